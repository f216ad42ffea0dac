//! Refusals of invalid requests: the code, the field, the given and the allowed value; the registry is not changed.

use sidekeeper::proto::{self, JobConfiguration};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::fleet::{App, Fleet, JOB, each_second, failure, job, request, request_for, success};

/// Checks the code of a refusal, and parts of its message.
#[track_caller]
fn check(status: &Status, code: Code, contained: &[&str]) {
    assert_eq!(status.code(), code, "{status:?}");
    for text in contained {
        assert!(status.message().contains(text), "`{text}` is missing: {status:?}");
    }
    // tonic itself makes this refusal, without a reason.
    if code == Code::OutOfRange {
        return;
    }
    let info = status.get_details_error_info().unwrap_or_else(|| panic!("no reason: {status:?}"));
    assert!(!info.reason.is_empty() && info.domain == "sidekeeper", "{status:?}");
}

/// As [`check`], for `INVALID_ARGUMENT`; the field is named in the message and in the details.
#[track_caller]
fn check_field(status: &Status, field: &str, given: &str, allowed: &str) {
    check(status, Code::InvalidArgument, &[&format!("{field}: given `{given}"), "; allowed: ", allowed]);
    let details = status.get_details_bad_request().expect("no details");
    let violation = details.field_violations.iter().find(|violation| violation.field == field);
    let violation = violation.unwrap_or_else(|| panic!("{field} is not in {details:?}"));
    assert!(
        violation.description.contains(given) && violation.description.contains(allowed),
        "{violation:?}"
    );
}

#[tokio::test]
async fn an_invalid_configuration_is_refused_with_its_field() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let text = |text: &str| text.to_owned();
    let cases: [(JobConfiguration, &str, &str, &str); 19] = [
        (
            JobConfiguration { cron: text("every minute"), ..job(3) },
            "cron",
            "every minute",
            "a Quartz cron expression of six or seven fields",
        ),
        (JobConfiguration { cron: text("* * * * * *"), ..job(3) }, "cron", "* * * * * *", "?"),
        (
            JobConfiguration { time_zone: text("Mars/Phobos"), ..each_second(3) },
            "time_zone",
            "Mars/Phobos",
            "IANA",
        ),
        (job(0), "sharding_total_count", "0", "an integer from 1 to 10000"),
        (job(10_001), "sharding_total_count", "10001", "an integer from 1 to 10000"),
        (job(u32::MAX), "sharding_total_count", "4294967295", "an integer from 1 to 10000"),
        (
            JobConfiguration { sharding_item_parameters: text("0=a,x=b"), ..job(3) },
            "sharding_item_parameters",
            "0=a,x=b",
            "part 2, `x=b`",
        ),
        (
            JobConfiguration { sharding_item_parameters: text("0=a=b"), ..job(3) },
            "sharding_item_parameters",
            "0=a=b",
            "pairs `item=value`",
        ),
        (
            JobConfiguration { sharding_item_parameters: text("0=a,9=z"), ..job(3) },
            "sharding_item_parameters",
            "0=a,9=z",
            "the items 0 to 2 only, not of 9",
        ),
        (
            JobConfiguration { job_sharding_strategy_type: text("BEST"), ..job(3) },
            "job_sharding_strategy_type",
            "BEST",
            "AVG_ALLOCATION",
        ),
        (
            JobConfiguration { props: [(text("sidekeeper.colour"), text("red"))].into(), ..job(3) },
            "props",
            "sidekeeper.colour",
            "sidekeeper.sharding-strategy",
        ),
        (
            JobConfiguration {
                props: [(text("sidekeeper.sharding-strategy"), text("ODEVITY"))].into(),
                ..job(3)
            },
            "props[sidekeeper.sharding-strategy]",
            "ODEVITY",
            "CONSISTENT_HASH",
        ),
        (
            JobConfiguration { job_parameter: "x".repeat(64 * 1024 + 1), ..job(3) },
            "job_parameter",
            "a text of 65537 bytes",
            "at most 65536 bytes",
        ),
        (
            JobConfiguration {
                max_time_diff: Some(prost_types::Duration { seconds: 1, nanos: 5 }),
                ..job(3)
            },
            "max_time_diff",
            "1 s and 5 ns",
            "whole seconds",
        ),
        (
            JobConfiguration {
                reconcile_interval: Some(prost_types::Duration { seconds: 61, nanos: 0 }),
                ..job(3)
            },
            "reconcile_interval",
            "61 s",
            "whole minutes",
        ),
        (JobConfiguration { job_class: text("com.acme\nJob"), ..job(3) }, "job_class", "com.acme", "control"),
        (
            JobConfiguration { job_class: "x".repeat(600 * 1024), ..job(3) },
            "job_class",
            "xxx",
            "at most 1024 bytes",
        ),
        (JobConfiguration { label: text("a\0b"), ..job(3) }, "label", "a text with a NUL", "without NUL"),
        (
            JobConfiguration { job_listener_types: vec![String::new()], ..job(3) },
            "job_listener_types",
            "an empty type",
            "not empty",
        ),
    ];
    let before = fleet.nodes.tree().await;
    for (configuration, field, given, allowed) in cases {
        let status = sidecar.refusal(request(configuration)).await;
        check_field(&status, &format!("configuration.{field}"), given, allowed);
    }
    assert_eq!(fleet.nodes.tree().await, before);
}

#[tokio::test]
async fn one_refusal_names_every_invalid_field() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let wrong = proto::AttachRequest {
        application_id: "two words".to_owned(),
        ..request_for("a/b", JobConfiguration { cron: "soon".to_owned(), ..job(0) })
    };
    let status = sidecar.refusal(wrong).await;
    for field in ["application_id", "job_name", "configuration.cron", "configuration.sharding_total_count"] {
        let details = status.get_details_bad_request().unwrap();
        assert!(
            details.field_violations.iter().any(|violation| violation.field == field),
            "{field}: {status:?}"
        );
    }
}

#[tokio::test]
async fn an_invalid_open_execution_is_refused_with_its_field() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let good = || proto::OpenExecution {
        execution_id: "of-another-process".to_owned(),
        fencing_token: 7,
        scheduled_time: Some(prost_types::Timestamp { seconds: 1_700_000_000, nanos: 0 }),
        source: proto::ExecutionSource::Trigger.into(),
        ..Default::default()
    };
    let claiming = |open_executions| proto::AttachRequest { open_executions, ..request(job(3)) };
    let never = Some(prost_types::Timestamp { seconds: i64::MAX, nanos: -1 });
    let cases = [
        (proto::OpenExecution { execution_id: String::new(), ..good() }, "execution_id", "1 to 128 bytes"),
        (proto::OpenExecution { execution_id: "x".repeat(129), ..good() }, "execution_id", "1 to 128 bytes"),
        (proto::OpenExecution { fencing_token: 0, ..good() }, "fencing_token", "above 0"),
        (proto::OpenExecution { fencing_token: i64::MIN, ..good() }, "fencing_token", "above 0"),
        (proto::OpenExecution { source: 99, ..good() }, "source", "the source from Execute"),
        (proto::OpenExecution { scheduled_time: never, ..good() }, "scheduled_time", "from Execute"),
        (proto::OpenExecution { deadline: never, ..good() }, "deadline", "an instant"),
        (proto::OpenExecution { cancel_reason: -1, ..good() }, "cancel_reason", "from Cancel"),
    ];
    for (wrong, field, allowed) in cases {
        let other = proto::OpenExecution { execution_id: "another".to_owned(), ..good() };
        let refused = sidecar.refusal(claiming(vec![other, wrong])).await;
        check(&refused, Code::InvalidArgument, &[&format!("open_executions[1].{field}: given `"), allowed]);
    }
    let refused = sidecar.refusal(claiming(vec![good(), good()])).await;
    check_field(&refused, "open_executions[1].execution_id", "of-another-process", "each execution once");
    let many = (0..20_001).map(|n| proto::OpenExecution { execution_id: n.to_string(), ..good() });
    let refused = sidecar.refusal(claiming(many.collect())).await;
    check_field(&refused, "open_executions", "20001 executions", "at most 20000");
    // A valid open execution that the sidecar does not know changes nothing.
    let app = sidecar.attach(claiming(vec![good()])).await;
    assert!(app.attached.resumed_execution_ids.is_empty());
}

#[tokio::test]
async fn a_name_that_cannot_be_a_node_is_refused() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let before = fleet.nodes.tree().await;
    let long = "x".repeat(201);
    for (name, given) in
        [("", ""), ("a/b", "a/b"), (&long, "xxx"), ("a@-@b", "a@-@b"), ("a\nb", "a\\nb"), ("..", "..")]
    {
        // Attach with and without a configuration, and a watch.
        let statuses = [
            sidecar.refusal(request_for(name, job(1))).await,
            sidecar.refusal(proto::AttachRequest { job_name: name.to_owned(), ..Default::default() }).await,
            sidecar.try_watch(name).await.err().unwrap(),
        ];
        for status in statuses {
            check_field(&status, "job_name", given, "a node's name in ZooKeeper");
        }
    }
    for id in ["two words", "a/b", &"x".repeat(65)] {
        let wrong = proto::AttachRequest { application_id: id.to_owned(), ..request(job(1)) };
        check_field(
            &sidecar.refusal(wrong).await,
            "application_id",
            id,
            "at most 64 characters of [A-Za-z0-9_.-]",
        );
    }
    for name in ["two words", "a/b", "4711", "..", &"x".repeat(65)] {
        let wrong = proto::AttachRequest { instance_name: name.to_owned(), ..request(job(1)) };
        check_field(
            &sidecar.refusal(wrong).await,
            "instance_name",
            name,
            "1 to 64 characters of [A-Za-z0-9_.-], one of them a letter",
        );
    }
    let wrong = proto::AttachRequest { client: "x".repeat(129), ..request(job(1)) };
    check_field(&sidecar.refusal(wrong).await, "client", "xxx", "at most 128 bytes");
    assert_eq!(fleet.nodes.tree().await, before);
}

#[tokio::test]
async fn a_configuration_that_differs_from_the_registry_or_another_application_is_refused() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let parameter = "x".repeat(60_000);
    let configuration = JobConfiguration {
        cron: "0 0 3 * * ?".to_owned(),
        job_class: "com.acme.OrderJob".to_owned(),
        job_parameter: parameter.clone(),
        ..job(3)
    };
    let mut app = sidecar.attach(request(configuration.clone())).await;
    app.assigned(&[0, 1, 2]).await;
    let before = fleet.nodes.settled_tree().await;

    let other = JobConfiguration { cron: "0 0 4 * * ?".to_owned(), ..configuration.clone() };
    check(
        &sidecar.refusal(request(other)).await,
        Code::FailedPrecondition,
        &["`orders`", "configuration.cron (`0 0 3 * * ?` there, `0 0 4 * * ?` given)", "overwrite"],
    );
    // A refusal has to fit into headers, however large the values are.
    let other = JobConfiguration { job_parameter: "y".repeat(60_000), ..configuration.clone() };
    check(
        &sidecar.refusal(request(other)).await,
        Code::FailedPrecondition,
        &["configuration.job_parameter (`xxx", "`yyy"],
    );
    let other = JobConfiguration { description: "another".to_owned(), ..configuration.clone() };
    check(&sidecar.refusal(request(other)).await, Code::FailedPrecondition, &["description"]);
    let class = JobConfiguration { job_class: "com.acme.OtherJob".to_owned(), ..configuration };
    check(
        &sidecar.refusal(request(class)).await,
        Code::FailedPrecondition,
        &["configuration.job_class `com.acme.OtherJob`", "com.acme.OrderJob"],
    );
    let unknown = proto::AttachRequest { job_name: "nobody".to_owned(), ..Default::default() };
    check(&sidecar.refusal(unknown).await, Code::NotFound, &["`nobody`", "`configuration`"]);
    assert_eq!(fleet.nodes.settled_tree().await, before);
    assert_eq!(app.items(), [0, 1, 2]);
}

#[tokio::test]
async fn a_message_that_is_too_large_is_refused_and_the_connection_stays_open() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let before = fleet.nodes.tree().await;
    let mut client = sidecar.participants().await;
    let large = JobConfiguration { description: "x".repeat(5 * 1024 * 1024), ..job(1) };
    let status = client.attach(request(large)).await.err().unwrap();
    check(&status, Code::OutOfRange, &["message length too large", "4194304 bytes"]);
    assert_eq!(fleet.nodes.tree().await, before);
    let large = JobConfiguration { description: "x".repeat(600 * 1024), ..job(1) };
    let status = client.attach(request(large)).await.err().unwrap();
    check_field(&status, "configuration", "a document of ", "at most 524288 bytes");
    App::attach(client, request(job(1))).await.unwrap();
}

#[tokio::test]
async fn a_report_with_one_invalid_result_changes_nothing() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(each_second(1))).await;
    let mut other = sidecar.attach(request_for("payments", each_second(1))).await;
    let ours = app.execute().await.execution_id;
    let theirs = other.execute().await.execution_id;
    let before = fleet.nodes.tree().await;
    let invalid = |outcome: i32| proto::ExecutionResult { outcome, ..success(&ours) };

    let nothing = app.report(Vec::new()).await.unwrap_err();
    check_field(&nothing, "results", "0 results", "1 to 10000 results");
    let many = app.report(vec![success(&ours); 10_001]).await.unwrap_err();
    check_field(&many, "results", "10001 results", "1 to 10000 results");
    for outcome in [0, 99] {
        let status = app.report(vec![success(&ours), invalid(outcome)]).await.unwrap_err();
        check_field(
            &status,
            "results[1].outcome",
            &outcome.to_string(),
            "SUCCESS, FAILURE, REJECTED or INTERRUPTED",
        );
    }
    let status = app.report(vec![failure(&ours, &"x".repeat(16 * 1024 + 1))]).await.unwrap_err();
    check_field(&status, "results[0].failure_message", "16385 bytes", "at most 16384 bytes");
    let status = app.report(vec![success("")]).await.unwrap_err();
    check_field(&status, "results[0].execution_id", "", "the id from Execute");

    let next = ours.replace("-1", "-2");
    for unknown in ["nonsense", "-", &next, &"x".repeat(100_000)] {
        let status = app.report(vec![success(&ours), success(unknown)]).await.unwrap_err();
        let given = unknown.chars().take(70).collect::<String>();
        check(&status, Code::NotFound, &["results[1].execution_id `", &given, "use the id from Execute"]);
    }
    let status = app.report(vec![success(&ours), success(&theirs)]).await.unwrap_err();
    check(&status, Code::PermissionDenied, &["results[1].execution_id", &theirs, "another attachment"]);
    assert_eq!(fleet.nodes.tree().await.running(), before.running());
    let node = "sharding/0/running";
    assert_eq!(fleet.nodes.tree().await.created(node), before.created(node));

    let attachment = std::mem::take(&mut app.attached.attachment_id);
    for unknown in ["", "nonsense", &"x".repeat(100_000)] {
        app.attached.attachment_id = unknown.to_owned();
        let status = app.report(vec![success(&ours)]).await.unwrap_err();
        check(&status, Code::NotFound, &["attachment_id `", "use the id from Attached"]);
        check(&app.acknowledge(1).await.unwrap_err(), Code::NotFound, &["attachment_id `"]);
    }
    app.attached.attachment_id = attachment;
    assert_eq!(app.report(vec![success(&ours)]).await.unwrap(), [proto::CompletionStatus::Recorded]);
}

#[tokio::test]
async fn only_generations_that_were_sent_can_be_acknowledged() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(job(1))).await;
    app.assigned(&[0]).await;
    let newest = app.generation();
    app.acknowledge(newest).await.unwrap();
    app.acknowledge(newest).await.unwrap();
    for given in [newest + 1, i64::MAX, -1] {
        let status = app.acknowledge(given).await.unwrap_err();
        check(
            &status,
            Code::InvalidArgument,
            &[&format!("generation {given} was never told"), &format!("the newest is {newest}")],
        );
    }
}

#[tokio::test]
async fn a_refused_application_can_attach_with_a_corrected_request() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut client = sidecar.participants().await;
    let wrong = request(JobConfiguration { cron: "soon".to_owned(), ..job(1) });
    client.attach(wrong).await.err().unwrap();
    let by_name = proto::AttachRequest { job_name: JOB.to_owned(), ..Default::default() };
    let status = App::attach(client.clone(), by_name).await.err().unwrap();
    assert_eq!(status.code(), Code::NotFound);
    let mut app = App::attach(client, request(each_second(1))).await.unwrap();
    app.execute().await;
}
