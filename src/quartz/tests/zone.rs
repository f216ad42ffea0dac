//! Time zones: the accepted names, and the refused names with the right one.

use expect_test::expect;
use jiff::Timestamp;

use crate::quartz::parse_time_zone;

#[test]
fn names_and_offsets_of_java_are_read() {
    let summer: Timestamp = "2026-07-01T12:00:00Z".parse().unwrap();
    let zones = [
        ("", 0),
        ("UTC", 0),
        ("GMT", 0),
        ("GMT+0", 0),
        ("GMT+8", 8 * 60),
        ("GMT+8:00", 8 * 60),
        ("GMT+08:00", 8 * 60),
        ("GMT+0800", 8 * 60),
        ("GMT+530", 5 * 60 + 30),
        ("GMT-03:30", -(3 * 60 + 30)),
        ("GMT-23:59", -(23 * 60 + 59)),
        ("Europe/Berlin", 2 * 60),
        ("America/New_York", -4 * 60),
        ("Australia/Lord_Howe", 10 * 60 + 30),
        ("Etc/GMT+8", -8 * 60),
        ("US/Eastern", -4 * 60),
    ];
    for (text, minutes) in zones {
        let zone = parse_time_zone(text).unwrap();
        assert_eq!(zone.to_offset(summer).seconds(), minutes * 60, "{text}");
    }
}

#[test]
fn names_that_java_reads_as_gmt_are_refused() {
    let texts = [
        "Mars/Phobos",
        "europe/berlin",
        "gmt+8",
        "GMT+",
        "GMT+24",
        "GMT+8:60",
        "GMT+8:0",
        "GMT+08:00:00",
        "GMT+\u{0668}",
        "+08:00",
        " UTC",
        "../../etc/passwd",
        "Etc/Unknown",
        "a\nb",
    ];
    let mut table = String::new();
    for text in texts {
        table += &format!("{}\n", parse_time_zone(text).unwrap_err());
    }
    expect![[r#"
        time zone `Mars/Phobos`: must be an IANA name such as `Europe/Berlin`, `UTC`, or an offset such as `GMT+8` or `GMT-03:30`
        time zone `europe/berlin`: must be spelled `Europe/Berlin`, `UTC`, or an offset such as `GMT+8` or `GMT-03:30`
        time zone `gmt+8`: must be an IANA name such as `Europe/Berlin`, `UTC`, or an offset such as `GMT+8` or `GMT-03:30`
        time zone `GMT+`: must be an IANA name such as `Europe/Berlin`, `UTC`, or an offset such as `GMT+8` or `GMT-03:30`
        time zone `GMT+24`: must be an IANA name such as `Europe/Berlin`, `UTC`, or an offset such as `GMT+8` or `GMT-03:30`
        time zone `GMT+8:60`: must be an IANA name such as `Europe/Berlin`, `UTC`, or an offset such as `GMT+8` or `GMT-03:30`
        time zone `GMT+8:0`: must be an IANA name such as `Europe/Berlin`, `UTC`, or an offset such as `GMT+8` or `GMT-03:30`
        time zone `GMT+08:00:00`: must be an IANA name such as `Europe/Berlin`, `UTC`, or an offset such as `GMT+8` or `GMT-03:30`
        time zone `GMT+٨`: must be an IANA name such as `Europe/Berlin`, `UTC`, or an offset such as `GMT+8` or `GMT-03:30`
        time zone `+08:00`: must be an IANA name such as `Europe/Berlin`, `UTC`, or an offset such as `GMT+8` or `GMT-03:30`
        time zone ` UTC`: must be an IANA name such as `Europe/Berlin`, `UTC`, or an offset such as `GMT+8` or `GMT-03:30`
        time zone `../../etc/passwd`: must be an IANA name such as `Europe/Berlin`, `UTC`, or an offset such as `GMT+8` or `GMT-03:30`
        time zone `Etc/Unknown`: must be an IANA name such as `Europe/Berlin`, `UTC`, or an offset such as `GMT+8` or `GMT-03:30`
        time zone `a\nb`: must be an IANA name such as `Europe/Berlin`, `UTC`, or an offset such as `GMT+8` or `GMT-03:30`
    "#]].assert_eq(&table);

    let long = parse_time_zone(&"x".repeat(10_000)).unwrap_err();
    assert_eq!(long.given.len(), 64);
}
