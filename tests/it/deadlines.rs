//! Deadlines, cancellations, retries and progress of executions.

use std::time::Duration;

use sidekeeper::proto::job_service_client::JobServiceClient;
use sidekeeper::proto::{
    self, CancelExecutionsRequest, CancelReason, CancelledExecution, CompletionStatus, ExecutionSource,
    JobConfiguration,
};
use tonic::{Code, Status};

use crate::fleet::{
    App, Event, Fleet, JOB, RunningSidecar, Tree, bounded, failure, job, request, request_for, success,
    warnings_about,
};

/// A job that runs when it is triggered, with these properties.
fn triggered(total: u32, properties: &[(&str, &str)]) -> JobConfiguration {
    let mut configuration = JobConfiguration { failover: Some(true), cron: String::new(), ..job(total) };
    let own = properties.iter().map(|(key, value)| (format!("sidekeeper.{key}"), (*value).to_owned()));
    configuration.props = own.collect();
    configuration
}

async fn trigger(fleet: &Fleet, app: &App) {
    fleet.nodes.put(&format!("trigger/{}", app.attached.instance_id), "").await;
}

async fn cancel(
    sidecar: &RunningSidecar,
    job: &str,
    items: &[u32],
) -> Result<Vec<CancelledExecution>, Status> {
    let mut client = JobServiceClient::new(sidecar.connect().await);
    let request =
        CancelExecutionsRequest { job_name: job.to_owned(), items: items.to_vec(), ..Default::default() };
    let answer = bounded("the answer", client.cancel_executions(request)).await?;
    Ok(answer.into_inner().cancelled)
}

fn time_of(timestamp: Option<prost_types::Timestamp>) -> Duration {
    let timestamp = timestamp.unwrap();
    let seconds = Duration::from_secs(timestamp.seconds.try_into().unwrap());
    seconds + Duration::from_nanos(timestamp.nanos.try_into().unwrap())
}

#[tokio::test]
async fn an_execution_gets_its_deadline_and_a_cancel_when_the_deadline_passes() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(triggered(1, &[("execution-timeout", "300ms")]))).await;
    app.assigned(&[0]).await;
    fleet.nodes.settled_tree().await;
    for _ in 0..2 {
        trigger(&fleet, &app).await;
        let execute = app.execute().await;
        assert_eq!(time_of(execute.deadline) - time_of(execute.fire_time), Duration::from_millis(300));
        let cancelled = app.cancel().await;
        assert_eq!(cancelled.execution_id, execute.execution_id);
        assert_eq!(cancelled.reason(), CancelReason::Deadline);
        // The application stops it, and the job goes on.
        let status = app.report(vec![failure(&execute.execution_id, "stopped")]).await.unwrap();
        assert_eq!(status, [CompletionStatus::Recorded]);
    }
}

#[tokio::test]
async fn p2_an_unresponsive_application_is_disconnected_and_another_one_executes_its_items() {
    let fleet = Fleet::new().await;
    let (one, two) = (fleet.sidecar().await, fleet.sidecar_with(2, |_| ()).await);
    let properties = [("execution-timeout", "300ms"), ("cancel-grace", "200ms")];
    let mut unresponsive = one.attach(request(triggered(2, &properties))).await;
    unresponsive.assigned(&[0, 1]).await;
    let mut other = two.attach(request(None)).await;
    unresponsive.assigned(&[0]).await;
    other.assigned(&[1]).await;
    fleet.nodes.settled_tree().await;
    trigger(&fleet, &unresponsive).await;
    let execute = unresponsive.execute().await;
    let again = other.execute().await;
    assert_eq!((again.item, again.source()), (0, ExecutionSource::Failover));
    assert_eq!(again.scheduled_time, execute.scheduled_time);
    other.report_success(&again).await;
    // The application received the cancel, and then the end of the stream.
    let (ended, before) = unresponsive.end().await;
    let reasons: Vec<_> = before
        .iter()
        .filter_map(|event| match event {
            Event::Cancel(cancel) => Some(cancel.reason()),
            _ => None,
        })
        .collect();
    assert_eq!(reasons, [CancelReason::Deadline]);
    let status = ended.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    let message = status.message();
    let named =
        message.contains(&execute.execution_id) && message.contains("item 0") && message.contains("200ms");
    assert!(named && message.contains(JOB), "{message}");
    let logged = warnings_about(&execute.execution_id);
    assert!(logged.iter().any(|line| line.contains("has not reported execution")), "{logged:?}");
}

#[tokio::test]
async fn an_operator_cancels_running_and_waiting_executions_and_the_next_trigger_starts_anew() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let properties = [("retry-max-attempts", "3"), ("retry-backoff", "1h"), ("retry-backoff-max", "1h")];
    let mut app = sidecar.attach(request(triggered(3, &properties))).await;
    app.assigned(&[0, 1, 2]).await;
    fleet.nodes.settled_tree().await;
    assert_eq!(cancel(&sidecar, JOB, &[]).await.unwrap(), []);
    trigger(&fleet, &app).await;
    let executes = app.executes(3).await;
    // Item 0 has failed, and waits for its retry.
    app.report(vec![failure(&executes[0].execution_id, "no stock")]).await.unwrap();
    let unknown = cancel(&sidecar, JOB, &[1, 99]).await.unwrap_err();
    assert_eq!(unknown.code(), Code::InvalidArgument, "{unknown}");
    assert!(unknown.message().contains("item 99; the job has 3 items"), "{unknown}");
    // Item 1 is running.
    let cancelled = cancel(&sidecar, JOB, &[0, 1]).await.unwrap();
    let expected = [(0, true), (1, false)].map(|(item, was_waiting)| CancelledExecution {
        instance_id: app.attached.instance_id.clone(),
        item,
        execution_id: executes[usize::try_from(item).unwrap()].execution_id.clone(),
        was_waiting,
    });
    assert_eq!(cancelled, expected);
    let cancel_notice = app.cancel().await;
    assert_eq!((cancel_notice.item, cancel_notice.reason()), (1, CancelReason::Operator));
    app.report(vec![failure(&cancel_notice.execution_id, "stopped")]).await.unwrap();
    app.report_success(&executes[2]).await;
    assert_eq!(cancel(&sidecar, JOB, &[]).await.unwrap(), [], "no retry is waiting");
    trigger(&fleet, &app).await;
    assert!(app.executes(3).await.iter().all(|execute| execute.attempt == 1));
}

#[tokio::test]
async fn a_cancel_request_that_cannot_be_served_is_refused_with_the_reason() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let not_attached = cancel(&sidecar, JOB, &[]).await.unwrap_err();
    assert_eq!(not_attached.code(), Code::NotFound);
    assert!(not_attached.message().contains(JOB), "{not_attached}");
    let wrong = cancel(&sidecar, "a/b", &[]).await.unwrap_err();
    assert_eq!(wrong.code(), Code::InvalidArgument);
    let many = cancel(&sidecar, JOB, &vec![1; 10_001]).await.unwrap_err();
    assert_eq!(many.code(), Code::InvalidArgument);
    assert!(many.message().contains("items: given `10001 items`"), "{many}");
}

#[tokio::test]
async fn a_failed_execution_is_retried_with_its_checkpoint_and_a_higher_token() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let properties = [("retry-max-attempts", "3"), ("retry-backoff", "50ms")];
    let mut app = sidecar.attach(request(triggered(2, &properties))).await;
    app.assigned(&[0, 1]).await;
    fleet.nodes.settled_tree().await;
    trigger(&fleet, &app).await;
    let executes = app.executes(2).await;
    app.report_success(&executes[1]).await;
    let first = executes[0].clone();
    assert_eq!((first.attempt, first.checkpoint.clone()), (1, None));
    app.progress(&first.execution_id, true, Some(b"row 7")).await.unwrap();
    app.report(vec![failure(&first.execution_id, "no stock")]).await.unwrap();
    let second = app.execute().await;
    assert_eq!((second.attempt, second.checkpoint.as_deref()), (2, Some(b"row 7".as_slice())));
    assert_eq!((second.item, second.source()), (0, ExecutionSource::Trigger));
    assert_eq!(second.scheduled_time, first.scheduled_time);
    assert!(second.fencing_token > first.fencing_token);
    assert_ne!(second.execution_id, first.execution_id);
    assert_eq!(fleet.nodes.tree().await.running(), ["0"]);
    app.report(vec![failure(&second.execution_id, "no stock")]).await.unwrap();
    let third = app.execute().await;
    assert_eq!((third.attempt, third.checkpoint.as_deref()), (3, Some(b"row 7".as_slice())));
    app.report_success(&third).await;
    let cleaned = |tree: &Tree| tree.running().is_empty() && tree.checkpoints().is_empty();
    fleet.nodes.until("the nodes to be removed", cleaned).await;
    // The earlier attempts are still known, and have ended.
    let again = app.report(vec![success(&first.execution_id)]).await.unwrap();
    assert_eq!(again, [CompletionStatus::AlreadyRecorded]);
}

#[tokio::test]
async fn a_rejected_execution_is_not_retried_and_the_last_failure_is_logged() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let properties = [("retry-max-attempts", "2"), ("retry-backoff", "10ms")];
    let mut app = sidecar.attach(request(triggered(2, &properties))).await;
    app.assigned(&[0, 1]).await;
    fleet.nodes.settled_tree().await;
    trigger(&fleet, &app).await;
    let executes = app.executes(2).await;
    let rejected = proto::ExecutionResult {
        outcome: proto::ExecutionOutcome::Rejected.into(),
        ..failure(&executes[1].execution_id, "stopping")
    };
    app.report(vec![failure(&executes[0].execution_id, "no stock"), rejected]).await.unwrap();
    let second = app.execute().await;
    assert_eq!((second.item, second.attempt), (0, 2));
    app.report(vec![failure(&second.execution_id, "no stock")]).await.unwrap();
    trigger(&fleet, &app).await;
    let executes = app.executes(2).await;
    assert!(executes.iter().all(|execute| execute.attempt == 1), "{executes:?}");
    let logged = warnings_about(&app.attached.instance_id);
    assert!(
        logged.iter().any(|line| line.contains("for the last time") && line.contains("attempts=2")),
        "{logged:?}"
    );
}

#[tokio::test]
async fn p5_a_checkpoint_reaches_the_instance_that_takes_over_and_is_removed_at_success() {
    let fleet = Fleet::new().await;
    let (one, two) = (fleet.sidecar().await, fleet.sidecar_with(2, |_| ()).await);
    let mut dying = one.attach(request(triggered(2, &[]))).await;
    dying.assigned(&[0, 1]).await;
    let mut survivor = two.attach(request(None)).await;
    dying.assigned(&[0]).await;
    survivor.assigned(&[1]).await;
    fleet.nodes.settled_tree().await;
    trigger(&fleet, &dying).await;
    let crashed = dying.execute().await;
    for text in [b"row 1".as_slice(), b"row \n\xff 2"] {
        let answer = dying.progress(&crashed.execution_id, true, Some(text)).await.unwrap();
        assert_eq!(answer, proto::ReportProgressResponse::default(), "it has no deadline");
        // The checkpoint is in the registry before the answer.
        assert_eq!(fleet.nodes.tree().await.checkpoints(), [("0".to_owned(), text.to_vec())].into());
    }
    drop(dying);
    let taken = survivor.execute().await;
    assert_eq!((taken.item, taken.source()), (0, ExecutionSource::Failover));
    assert_eq!(taken.checkpoint.as_deref(), Some(b"row \n\xff 2".as_slice()));
    survivor.report_success(&taken).await;
    assert!(fleet.nodes.tree().await.checkpoints().is_empty());
}

#[tokio::test]
async fn progress_extends_the_deadline_and_is_refused_after_the_execution() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(triggered(1, &[("execution-timeout", "10s")]))).await;
    let mut other = sidecar.attach(request_for("payments", triggered(1, &[]))).await;
    app.assigned(&[0]).await;
    other.assigned(&[0]).await;
    fleet.nodes.settled_tree().await;
    trigger(&fleet, &app).await;
    let execute = app.execute().await;
    let same = app.progress(&execute.execution_id, false, None).await.unwrap();
    // The two deadlines are computed from two clocks, which differ by some microseconds.
    let difference = time_of(same.deadline).abs_diff(time_of(execute.deadline));
    assert!(difference < Duration::from_millis(5), "{difference:?}");
    let moved = app.progress(&execute.execution_id, true, None).await.unwrap();
    assert!(time_of(moved.deadline) > time_of(execute.deadline), "{moved:?}");
    assert!(!moved.cancelled && !moved.superseded);

    cancel(&sidecar, JOB, &[]).await.unwrap();
    let last = app.progress(&execute.execution_id, true, Some(b"so far")).await.unwrap();
    assert_eq!(last, proto::ReportProgressResponse { deadline: None, cancelled: true, superseded: false });
    assert_eq!(fleet.nodes.tree().await.checkpoints().len(), 1);

    let refused = |code: Code, said: &str, status: Result<proto::ReportProgressResponse, Status>| {
        let status = status.unwrap_err();
        assert!(status.code() == code && status.message().contains(said), "{status:?}");
    };
    let large = vec![0; 65_537];
    refused(
        Code::InvalidArgument,
        "checkpoint: given `65537 bytes`; allowed: at most 65536 bytes",
        app.progress(&execute.execution_id, true, Some(&large)).await,
    );
    refused(Code::InvalidArgument, "execution_id", app.progress("", true, None).await);
    refused(Code::NotFound, "unknown-1", app.progress("unknown-1", true, None).await);
    refused(Code::NotFound, &execute.execution_id, other.progress(&execute.execution_id, true, None).await);
    app.report_success(&execute).await;
    refused(Code::FailedPrecondition, "is over", app.progress(&execute.execution_id, true, None).await);
    app.attached.attachment_id = "unknown".to_owned();
    refused(Code::NotFound, "unknown", app.progress(&execute.execution_id, true, None).await);
}

#[tokio::test]
async fn a_property_that_cannot_be_read_is_a_problem_and_its_default_applies() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(triggered(1, &[("execution-timeout", "7m")]))).await;
    app.assigned(&[0]).await;
    fleet.nodes.settled_tree().await;
    fleet.nodes.edit_configuration("7m", "7 minutes").await;
    let problems = app.problems("the problem", |problems| !problems.is_empty()).await;
    let [ignored, problem] = &problems[..] else { panic!("{problems:?}") };
    // The value also differs from the one in the request of the application.
    let [problem, ignored] =
        if problem.message.starts_with("props") { [problem, ignored] } else { [ignored, problem] };
    assert!(ignored.message.contains("(`7 minutes` there, `7m` given)"), "{ignored:?}");
    let said =
        "props `sidekeeper.execution-timeout` is `7 minutes` and is ignored; allowed is `100ms` to `168h`";
    assert!(problem.message.contains(said), "{problem:?}");
    assert_eq!((&*ignored.code, &*problem.code), ("JOB_CONFIG_DIFFERS", "JOB_SETTING_WRONG"));
    trigger(&fleet, &app).await;
    assert_eq!(app.execute().await.deadline, None);
}
