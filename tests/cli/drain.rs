//! `drain`, and a second signal; each test has a sidecar of its own.

use nix::sys::signal::Signal;
use sidekeeper::proto::attach_response::Event;
use sidekeeper::proto::participant_service_client::ParticipantServiceClient;
use sidekeeper::proto::{AttachRequest, AttachResponse, CancelReason, JobConfiguration};
use tokio::time::timeout;
use tonic::Streaming;

use super::{LIMIT, Running, output, sidekeeper};

/// A sidecar with a drain timeout of an hour, and its endpoint.
async fn sidecar_with_long_drain() -> (Running, String) {
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--log-format", "json", "--drain-timeout", "1h"];
    let mut serve = Running::start(sidekeeper(&arguments));
    let endpoint = loop {
        let event: serde_json::Value = serde_json::from_str(&serve.log_line().await).unwrap();
        if event["message"] == "serving" {
            break event["endpoints"].as_str().unwrap().to_owned();
        }
    };
    (serve, endpoint)
}

/// An application with a running execution that it never reports.
async fn attach_busy_application(endpoint: &str) -> Streaming<AttachResponse> {
    let mut client = ParticipantServiceClient::connect(endpoint.to_owned()).await.unwrap();
    let configuration =
        JobConfiguration { sharding_total_count: 1, cron: "* * * * * ?".to_owned(), ..Default::default() };
    let request = AttachRequest {
        job_name: "orders".to_owned(),
        configuration: Some(configuration),
        ..Default::default()
    };
    let mut events = client.attach(request).await.unwrap().into_inner();
    until(&mut events, |event| matches!(event, Event::Execute(_))).await;
    events
}

async fn until(events: &mut Streaming<AttachResponse>, wanted: impl Fn(&Event) -> bool) {
    let search = async {
        while let Some(message) = events.message().await.unwrap() {
            if wanted(&message.event.unwrap()) {
                return;
            }
        }
        panic!("the stream has ended");
    };
    timeout(LIMIT, search).await.unwrap();
}

#[tokio::test]
async fn drain_returns_when_all_instances_have_left_and_the_stop_takes_no_time() {
    let (serve, endpoint) = sidecar_with_long_drain().await;
    let mut events = attach_busy_application(&endpoint).await;
    let drained = output(sidekeeper(&["drain", "--timeout", "0s", "--endpoint", &endpoint])).await;
    assert_eq!((drained.code, drained.stderr.as_str()), (Some(0), ""));
    assert!(
        drained.stdout.starts_with("left  ") && drained.stdout.ends_with("  of orders\n"),
        "{}",
        drained.stdout
    );
    until(
        &mut events,
        |event| matches!(event, Event::Cancel(cancel) if cancel.reason() == CancelReason::DrainTimeout),
    )
    .await;
    let mut command = sidekeeper(&["drain", "--json"]);
    command.env("SIDEKEEPER_ENDPOINT", &endpoint);
    let again = output(command).await;
    assert_eq!((again.code, again.stdout.as_str()), (Some(0), "{\"instances\":[]}\n"));
    serve.signal(Signal::SIGTERM);
    assert_eq!(serve.end().await.code(), Some(0));
}

#[tokio::test]
async fn a_second_signal_cancels_executions() {
    let (serve, endpoint) = sidecar_with_long_drain().await;
    let mut events = attach_busy_application(&endpoint).await;
    serve.signal(Signal::SIGTERM);
    until(&mut events, |event| matches!(event, Event::Draining(_))).await;
    serve.signal(Signal::SIGINT);
    until(
        &mut events,
        |event| matches!(event, Event::Cancel(cancel) if cancel.reason() == CancelReason::DrainTimeout),
    )
    .await;
    assert_eq!(serve.end().await.code(), Some(0));
}

#[tokio::test]
async fn wrong_arguments_are_usage_errors_and_an_absent_sidecar_is_a_failure() {
    for wrong in [["--timeout", "soon"], ["--timeout", "2h"], ["--endpoint", "ftp://x"]] {
        let answer = output(sidekeeper(&["drain", wrong[0], wrong[1]])).await;
        assert_eq!((answer.code, answer.stdout.as_str()), (Some(64), ""), "{wrong:?}");
        assert!(answer.stderr.contains(wrong[0]), "{}", answer.stderr);
    }
    let absent = output(sidekeeper(&["drain", "--endpoint", "unix:///nonexistent/s.sock"])).await;
    assert_eq!(absent.code, Some(1));
    assert!(
        absent.stderr.contains(
            "no sidecar answers at unix:///nonexistent/s.sock; is `sidekeeper serve` running there?"
        ),
        "{}",
        absent.stderr
    );
}

#[tokio::test]
async fn zookeeper_as_a_flag_counts_more_than_the_variable_of_a_sidecar() {
    let jobs = |flags: &[&'static str]| {
        let words = [&["jobs", "--zookeeper", "127.0.0.1:1"], flags].concat();
        let mut command = sidekeeper(&words);
        command.env("SIDEKEEPER_ENDPOINT", "unix:/nowhere/api.sock").env("SIDEKEEPER_CA", "ca.pem");
        output(command)
    };
    let of_variable = jobs(&[]).await;
    assert_eq!(of_variable.code, Some(75), "{}", of_variable.stderr);
    assert!(of_variable.stderr.contains("no session with ZooKeeper"), "{}", of_variable.stderr);
    let both_flags = jobs(&["--endpoint", "unix:/nowhere/api.sock"]).await;
    assert_eq!(both_flags.code, Some(64), "{}", both_flags.stderr);
}
