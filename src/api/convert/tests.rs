//! The fields that applications may set, and the errors of the others.

use expect_test::expect;

use super::*;

const CHECKS: Checks<'_> =
    Checks { cron: &check_cron, time_zone: &check_time_zone, property: &crate::extension::properties::check };

fn check_cron(text: &str) -> Result<(), String> {
    let fields = text.split(' ').count();
    if (6..=7).contains(&fields) { Ok(()) } else { Err(format!("there are {fields}")) }
}

fn check_time_zone(text: &str) -> Result<(), String> {
    if text == "Nowhere" { Err("it is not known".to_owned()) } else { Ok(()) }
}

fn message() -> proto::JobConfiguration {
    proto::JobConfiguration { sharding_total_count: 3, ..Default::default() }
}

fn full_message() -> proto::JobConfiguration {
    proto::JobConfiguration {
        sharding_total_count: 3,
        cron: "0/5 * * * * ?".to_owned(),
        time_zone: "Europe/Berlin".to_owned(),
        sharding_item_parameters: "0=a,2=c".to_owned(),
        job_parameter: "p".to_owned(),
        monitor_execution: Some(false),
        failover: Some(true),
        misfire: Some(false),
        max_time_diff: Some(Duration { seconds: 5, nanos: 0 }),
        reconcile_interval: Some(Duration { seconds: 120, nanos: 0 }),
        job_sharding_strategy_type: "ODEVITY".to_owned(),
        static_sharding: Some(true),
        disabled: Some(true),
        overwrite: Some(true),
        job_class: "com.example.OrderJob".to_owned(),
        description: "d".to_owned(),
        label: "l".to_owned(),
        props: [("k".to_owned(), "v".to_owned())].into_iter().collect(),
        job_error_handler_type: "LOG".to_owned(),
        job_executor_thread_pool_size_provider_type: "CPU".to_owned(),
        job_listener_types: vec!["x".to_owned()],
    }
}

fn refused(name: &str, message: &proto::JobConfiguration) -> String {
    let errors = job_from_proto(name, message, CHECKS).unwrap_err().0;
    errors.iter().map(|error| format!("{error}\n")).collect()
}

#[test]
fn absent_fields_have_the_builder_s_defaults() {
    let job = job_from_proto("demoJob", &message(), CHECKS).unwrap();
    assert_eq!(job.configuration, JobConfiguration::new(JobName::parse("demoJob").unwrap(), 3));
    assert_eq!(job.job_class, None);
}

#[test]
fn every_field_goes_there_and_back() {
    let job = job_from_proto("demoJob", &full_message(), CHECKS).unwrap();
    let mut expected = JobConfiguration::new(JobName::parse("demoJob").unwrap(), 3);
    expected.cron = Some("0/5 * * * * ?".to_owned());
    expected.time_zone = Some("Europe/Berlin".to_owned());
    expected.sharding_item_parameters = "0=a,2=c".to_owned();
    expected.job_parameter = "p".to_owned();
    expected.monitor_execution = false;
    expected.failover = true;
    expected.misfire = false;
    expected.max_time_diff_seconds = 5;
    expected.reconcile_interval_minutes = 2;
    expected.job_sharding_strategy_type = Some("ODEVITY".to_owned());
    expected.static_sharding = true;
    expected.disabled = true;
    expected.overwrite = true;
    expected.description = "d".to_owned();
    expected.label = Some("l".to_owned());
    expected.props.insert("k".to_owned(), "v".to_owned());
    expected.job_error_handler_type = Some("LOG".to_owned());
    expected.job_executor_thread_pool_size_provider_type = Some("CPU".to_owned());
    expected.job_listener_types = vec!["x".to_owned()];
    assert_eq!(job.configuration, expected);
    assert_eq!(job.job_class.as_deref(), Some("com.example.OrderJob"));
    assert_eq!(configuration_to_proto(&job.configuration, "com.example.OrderJob"), full_message());
}

#[test]
fn consistent_hash_travels_in_props() {
    let mut message = full_message();
    message.job_sharding_strategy_type = "CONSISTENT_HASH".to_owned();
    let job = job_from_proto("demoJob", &message, CHECKS).unwrap();
    assert_eq!(job.configuration.job_sharding_strategy_type, None);
    assert_eq!(job.configuration.props[STRATEGY_PROPERTY], "CONSISTENT_HASH");
    assert_eq!(configuration_to_proto(&job.configuration, &message.job_class), message);
}

#[test]
fn unset_durations_mean_never() {
    let mut configuration = job_from_proto("demoJob", &message(), CHECKS).unwrap().configuration;
    configuration.reconcile_interval_minutes = -1;
    let message = configuration_to_proto(&configuration, "");
    assert_eq!(message.max_time_diff, None);
    assert_eq!(message.reconcile_interval, Some(Duration { seconds: 0, nanos: 0 }));
}

#[test]
fn all_wrong_fields_are_named_at_once() {
    let mut message = full_message();
    message.sharding_total_count = 0;
    message.cron = "* *".to_owned();
    message.time_zone = "Nowhere".to_owned();
    message.sharding_item_parameters = "0=a,1".to_owned();
    message.job_parameter = "x".repeat(65_537);
    message.max_time_diff = Some(Duration { seconds: 1, nanos: 1 });
    message.reconcile_interval = Some(Duration { seconds: 90, nanos: 0 });
    message.job_sharding_strategy_type = "RANDOM".to_owned();
    message.job_class = "a\nb".to_owned();
    message.description = "a\0".to_owned();
    message.job_listener_types = vec![String::new()];
    message.props = [
        ("", "x"),
        ("n", "\0"),
        ("sidekeeper.lock", "x"),
        ("sidekeeper.item-lock", "a/b"),
        (STRATEGY_PROPERTY, "ODEVITY"),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect();
    expect![[r#"
        job_name: given `a/b`; allowed: a name that is a node's name in ZooKeeper, but this one holds a `/`, which separates nodes
        configuration.max_time_diff: given `1 s and 1 ns`; allowed: whole seconds, 0 to 2147483647
        configuration.reconcile_interval: given `90 s and 0 ns`; allowed: whole minutes, 0 to 2147483647
        configuration.cron: given `* *`; allowed: a Quartz cron expression of six or seven fields; there are 2
        configuration.time_zone: given `Nowhere`; allowed: an IANA name such as `Europe/Berlin` or an offset such as `GMT+8:00`; it is not known
        configuration.sharding_total_count: given `0`; allowed: an integer from 1 to 10000
        configuration.sharding_item_parameters: given `0=a,1`; allowed: pairs `item=value` joined by `,`, where a value is not empty and has neither `,` nor `=`; part 2, `1`, is not one item and one value
        configuration.job_sharding_strategy_type: given `RANDOM`; allowed: one of `AVG_ALLOCATION`, `ODEVITY`, `ROUND_ROBIN`, `SINGLE_SHARDING_BALANCE`, `CONSISTENT_HASH`
        configuration.props: given `an empty key`; allowed: keys that are not empty
        configuration.props[n]: given `a text with a NUL character`; allowed: texts without NUL characters
        configuration.props[sidekeeper.item-lock]: given `a/b`; allowed: `true` or nothing (a lock of the job's own), `false` (no lock), or a name that the job shares with others: at most 187 bytes, without `/`, not beginning with `@-@`
        configuration.props: given `sidekeeper.lock`; allowed: keys that begin with `sidekeeper.` are Sidekeeper's: sidekeeper.sharding-strategy, sidekeeper.once-listener, sidekeeper.once-listener.started-timeout, sidekeeper.once-listener.completed-timeout, sidekeeper.execution-timeout, sidekeeper.cancel-grace, sidekeeper.retry-max-attempts, sidekeeper.retry-backoff, sidekeeper.retry-backoff-max, sidekeeper.retry-on, sidekeeper.handoff, sidekeeper.handoff-deadline, sidekeeper.handoff-settling, sidekeeper.ownership, sidekeeper.item-labels, sidekeeper.grace, sidekeeper.item-lock, sidekeeper.item-lock-timeout, sidekeeper.stale-servers, sidekeeper.stale-servers-beside-java, sidekeeper.remove-finished-after, sidekeeper.remove-finished-beside-java
        configuration.props[sidekeeper.sharding-strategy]: given `ODEVITY`; allowed: `CONSISTENT_HASH`; all other strategies go into `jobShardingStrategyType`
        configuration.job_parameter: given `a text of 65537 bytes`; allowed: a text of at most 65536 bytes
        configuration.description: given `a text with a NUL character`; allowed: texts without NUL characters
        configuration.job_listener_types: given `an empty type`; allowed: types that are not empty
        configuration.job_class: given `a\nb`; allowed: a Java class name or job type of at most 1024 bytes without control characters
    "#]]
    .assert_eq(&refused("a/b", &message));
}

#[test]
fn values_that_depend_on_each_other_are_checked_together() {
    let mut message = message();
    message.sharding_item_parameters = "0=a,3=d".to_owned();
    expect![[r#"
        configuration.sharding_item_parameters: given `0=a,3=d`; allowed: parameters of the items 0 to 2 only, not of 3
    "#]].assert_eq(&refused("demoJob", &message));

    message.sharding_item_parameters = "-1=a".to_owned();
    expect![[r#"
        configuration.sharding_item_parameters: given `-1=a`; allowed: parameters of the items 0 to 2 only, not of -1
    "#]].assert_eq(&refused("demoJob", &message));

    message.sharding_item_parameters.clear();
    message.job_sharding_strategy_type = "single_sharding_balance".to_owned();
    assert!(job_from_proto("demoJob", &message, CHECKS).is_ok());
    message = self::message();
    message.sharding_total_count = 10_001;
    message.props.insert("large".to_owned(), "x".repeat(512 * 1024));
    expect![[r#"
        configuration.sharding_total_count: given `10001`; allowed: an integer from 1 to 10000
        configuration: given `a document of 524574 bytes`; allowed: a document of at most 524288 bytes
    "#]]
    .assert_eq(&refused("demoJob", &message));
}

#[test]
fn durations_have_ranges() {
    for (seconds, nanos) in [(-1, 0), (0, -1), (i64::MAX, 0), (i64::from(i32::MAX) + 1, 0)] {
        let mut message = message();
        message.max_time_diff = Some(Duration { seconds, nanos });
        assert!(refused("demoJob", &message).starts_with("configuration.max_time_diff: "));
    }
    let mut message = message();
    message.reconcile_interval = Some(Duration { seconds: -60, nanos: 0 });
    assert!(refused("demoJob", &message).starts_with("configuration.reconcile_interval: "));
}

#[test]
fn a_status_names_the_fields_and_fits_into_headers() {
    let mut message = message();
    message.sharding_total_count = 0;
    message.cron = "\u{4e2d}".repeat(1000);
    let status = job_from_proto("demoJob", &message, CHECKS).unwrap_err().to_status();
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    assert!(status.message().contains("configuration.cron: given `\u{4e2d}"));
    assert!(
        status
            .message()
            .contains("configuration.sharding_total_count: given `0`; allowed: an integer from 1")
    );
    let violations = status.get_error_details().bad_request().unwrap().field_violations.clone();
    let fields: Vec<&str> = violations.iter().map(|violation| violation.field.as_str()).collect();
    assert_eq!(fields, ["configuration.cron", "configuration.sharding_total_count"]);
    assert!(violations[1].description.contains("given `0`; allowed: an integer from 1 to 10000"));

    message.props = (0..500).map(|n| (format!("sidekeeper.{n}\u{4e2d}"), String::new())).collect();
    let invalid = job_from_proto("demoJob", &message, CHECKS).unwrap_err();
    assert_eq!(invalid.0.len(), 502);
    let status = invalid.to_status();
    assert!(status.message().contains(" more"), "{}", status.message());
    assert!(status.message().len() * 3 + status.details().len() * 4 / 3 < 8 * 1024);
}
