//! The settings of a sidecar in a bundle: each with its origin, and its value if the table here allows it. Pure.

use serde_json::{Value, json};

use super::pseudonyms::{Kind, Pseudonyms};
use crate::config::GivenSetting;
use crate::config::settings as s;

/// How a setting is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// As it is, with pseudonyms for the addresses and names in it.
    Text,
    /// Only whether it is set: it is a secret, the path of a file, or has names of people.
    Presence,
    /// The pseudonym of a name of this kind.
    Name(Kind),
    /// The pseudonym of an address.
    Address,
    /// Addresses with ports.
    Servers,
    /// An address to listen on: its path and its options can have names.
    Listen,
    /// One of these words, or only that it is set.
    Word(&'static [&'static str]),
}

/// The classes. A setting that is not here is left out.
static CLASSES: &[(&s::Setting, Class)] = &[
    (&s::LISTEN, Class::Listen),
    (&s::TLS_CERT, Class::Presence),
    (&s::TLS_KEY, Class::Presence),
    (&s::TLS_CLIENT_CA, Class::Presence),
    (&s::TLS_CLIENT_CRL, Class::Presence),
    (&s::TLS_ALLOW, Class::Presence),
    (&s::ALLOW, Class::Text),
    (&s::JOBS_ALLOWED, Class::Word(&["*"])),
    (&s::TOKEN, Class::Presence),
    (&s::TOKEN_FILE, Class::Presence),
    (&s::ZOOKEEPER, Class::Servers),
    (&s::NAMESPACE, Class::Name(Kind::Namespace)),
    (&s::DIGEST, Class::Presence),
    (&s::DIGEST_FILE, Class::Presence),
    (&s::ZOOKEEPER_SASL_FILE, Class::Presence),
    (&s::ZOOKEEPER_KERBEROS, Class::Presence),
    (&s::ZOOKEEPER_CA, Class::Presence),
    (&s::ZOOKEEPER_CRL, Class::Presence),
    (&s::ZOOKEEPER_CERT, Class::Presence),
    (&s::ZOOKEEPER_KEY, Class::Presence),
    (&s::ZOOKEEPER_ACL, Class::Word(&["auto", "open", "creator"])),
    (&s::DATA_DIR, Class::Presence),
    (&s::STATE_DIR, Class::Presence),
    (&s::LOCK_ROOT, Class::Name(Kind::Namespace)),
    (&s::JOBS_DIR, Class::Presence),
    (&s::INSTANCE_IP, Class::Address),
    (&s::SESSION_TIMEOUT, Class::Text),
    (&s::LEASE_MARGIN, Class::Text),
    (&s::CONNECTION_TIMEOUT, Class::Text),
    (&s::REQUEST_TIMEOUT, Class::Text),
    (&s::DRAIN_TIMEOUT, Class::Text),
    (&s::SLOW_APPLICATION_TIMEOUT, Class::Text),
    (&s::SILENT_APPLICATION_TIMEOUT, Class::Text),
    (&s::LOG_LEVEL, Class::Text),
    (&s::LOG_FORMAT, Class::Text),
    (&s::OTLP_ENDPOINT, Class::Presence),
    (&s::DUMP_LISTEN, Class::Text),
    (&s::DUMP_ACCESS, Class::Text),
    (&s::HTTP_LISTEN, Class::Text),
    (&s::HTTP_ACCESS, Class::Text),
    (&s::HTTP_HOSTS, Class::Presence),
    (&s::METRICS_JOBS, Class::Text),
];

/// The settings, and the keys of those that were left out.
pub fn shown(pseudonyms: &mut Pseudonyms, settings: &[GivenSetting]) -> (Vec<Value>, Vec<&'static str>) {
    let (mut shown, mut left_out) = (Vec::new(), Vec::new());
    for setting in settings {
        let Some((_, class)) = CLASSES.iter().find(|(known, _)| known.key == setting.key) else {
            left_out.push(setting.key);
            continue;
        };
        let values = setting.texts.iter().map(|text| value(pseudonyms, *class, text));
        let values: Option<Vec<_>> = values.collect();
        shown.push(json!({
            "key": setting.key,
            "origin": setting.origin,
            "is_set": !setting.texts.is_empty(),
            "values": values.filter(|values| !values.is_empty()),
        }));
    }
    (shown, left_out)
}

/// The written form of a value. `None`: it is not written.
fn value(pseudonyms: &mut Pseudonyms, class: Class, text: &str) -> Option<String> {
    match class {
        Class::Presence => None,
        Class::Text => Some(pseudonyms.text(text)),
        Class::Name(kind) => Some(pseudonyms.name(kind, text)),
        Class::Address => Some(pseudonyms.address(text)),
        Class::Servers => Some(pseudonyms.servers(text)),
        Class::Listen => Some(listen(pseudonyms, text)),
        Class::Word(words) => words.contains(&text).then(|| text.to_owned()),
    }
}

fn listen(pseudonyms: &mut Pseudonyms, text: &str) -> String {
    let (address, options) = text.split_once('?').unwrap_or((text, ""));
    let address = if address.starts_with("unix:") { "unix:***".to_owned() } else { pseudonyms.text(address) };
    let is_shown = |option: &&str| option.starts_with("role=") || option.starts_with("mode=");
    let options: Vec<_> = options.split('&').filter(is_shown).collect();
    let mark = if options.is_empty() { "" } else { "?" };
    format!("{address}{mark}{}", options.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_12_each_setting_has_a_class_and_a_secret_one_shows_no_value() {
        let classified: Vec<_> = CLASSES.iter().map(|(setting, _)| setting.key).collect();
        let all: Vec<_> = s::ALL.iter().map(|setting| setting.key).collect();
        assert_eq!(classified, all);
        for (setting, class) in
            CLASSES.iter().filter(|(setting, _)| setting.secret || setting.value_name == "FILE")
        {
            assert_eq!(*class, Class::Presence, "{}", setting.key);
        }
    }

    #[test]
    fn values_have_pseudonyms_and_what_is_not_known_is_left_out() {
        let given = |key, texts: &[&str]| GivenSetting {
            key,
            texts: texts.iter().map(|text| (*text).to_owned()).collect(),
            origin: "flag",
        };
        let mut names = Pseudonyms::default();
        let (settings, left_out) = shown(
            &mut names,
            &[
                given(
                    "listen",
                    &["127.0.0.1:7070?jobs=hunter2", "unix:/run/hunter2?mode=0660&group=hunter2&role=view"],
                ),
                given("token", &["hunter2"]),
                given("zookeeper", &["zk1:2181,zk2:2181/hunter2"]),
                given("namespace", &["hunter2"]),
                given("zookeeper_acl", &["digest:hunter2:cdrwa"]),
                given("lease_margin", &[]),
                given("of_tomorrow", &["hunter2"]),
            ],
        );
        let rows: Vec<_> = settings.iter().map(|row| format!("{} {}", row["key"], row["values"])).collect();
        assert_eq!(
            rows,
            [
                r#""listen" ["ip1:7070","unix:***?mode=0660&role=view"]"#,
                r#""token" null"#,
                r#""zookeeper" ["host1:2181,host2:2181/namespace1"]"#,
                r#""namespace" ["namespace1"]"#,
                r#""zookeeper_acl" null"#,
                r#""lease_margin" null"#,
            ]
        );
        assert_eq!(settings[1]["is_set"], true);
        assert_eq!(settings[5]["is_set"], false);
        assert_eq!(left_out, ["of_tomorrow"]);
    }
}
