//! How long executions may take, what is cancelled and tried again, and how far they are.

use std::time::Duration;

use sidekeeper::proto::job_service_client::JobServiceClient;
use sidekeeper::proto::{
    self, CancelExecutionsRequest, CancelReason, CancelledExecution, CompletionStatus, ExecutionSource,
    JobConfiguration,
};
use tonic::{Code, Status};

use crate::ground::{
    App, Event, Ground, Host, JOB, Tree, bounded, failure, job, request, request_for, success, warnings_about,
};

/// A job that runs when it is triggered, with these properties.
fn triggered(total: u32, properties: &[(&str, &str)]) -> JobConfiguration {
    let mut configuration = JobConfiguration { failover: Some(true), cron: String::new(), ..job(total) };
    let own = properties.iter().map(|(key, value)| (format!("sidekeeper.{key}"), (*value).to_owned()));
    configuration.props = own.collect();
    configuration
}

async fn trigger(ground: &Ground, app: &App) {
    ground.outside.put(&format!("trigger/{}", app.attached.instance_id), "").await;
}

async fn cancel(host: &Host, job: &str, items: &[u32]) -> Result<Vec<CancelledExecution>, Status> {
    let mut client = JobServiceClient::new(host.connect().await);
    let request = CancelExecutionsRequest { job_name: job.to_owned(), items: items.to_vec() };
    let answer = bounded("the answer", client.cancel_executions(request)).await?;
    Ok(answer.into_inner().cancelled)
}

fn time_of(timestamp: Option<prost_types::Timestamp>) -> Duration {
    let timestamp = timestamp.unwrap();
    let seconds = Duration::from_secs(timestamp.seconds.try_into().unwrap());
    seconds + Duration::from_nanos(timestamp.nanos.try_into().unwrap())
}

#[tokio::test]
async fn an_execution_has_a_deadline_and_is_told_to_stop_when_it_has_passed() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(triggered(1, &[("execution-timeout", "300ms")]))).await;
    app.assigned(&[0]).await;
    ground.outside.quiet().await;
    for _ in 0..2 {
        trigger(&ground, &app).await;
        let execute = app.execute().await;
        assert_eq!(time_of(execute.deadline) - time_of(execute.fire_time), Duration::from_millis(300));
        let cancelled = app.cancel().await;
        assert_eq!(cancelled.execution_id, execute.execution_id);
        assert_eq!(cancelled.reason(), CancelReason::Deadline);
        // It obeys, and the job goes on.
        let status = app.report(vec![failure(&execute.execution_id, "stopped")]).await.unwrap();
        assert_eq!(status, [CompletionStatus::Recorded]);
    }
}

#[tokio::test]
async fn p2_an_application_that_does_not_stop_is_detached_and_another_one_executes_its_items() {
    let ground = Ground::new().await;
    let (one, two) = (ground.sidecar().await, ground.sidecar_with(2, |_| ()).await);
    let properties = [("execution-timeout", "300ms"), ("cancel-grace", "200ms")];
    let mut stubborn = one.attach(request(triggered(2, &properties))).await;
    stubborn.assigned(&[0, 1]).await;
    let mut other = two.attach(request(None)).await;
    stubborn.assigned(&[0]).await;
    other.assigned(&[1]).await;
    ground.outside.quiet().await;
    trigger(&ground, &stubborn).await;
    let execute = stubborn.execute().await;
    let again = other.execute().await;
    assert_eq!((again.item, again.source()), (0, ExecutionSource::Failover));
    assert_eq!(again.scheduled_time, execute.scheduled_time);
    other.done(&again).await;
    // It was told to stop, and then that it is over.
    let (ended, before) = stubborn.end().await;
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
    let said = status.message();
    let named = said.contains(&execute.execution_id) && said.contains("item 0") && said.contains("200ms");
    assert!(named && said.contains(JOB), "{said}");
    let logged = warnings_about(&execute.execution_id);
    assert!(logged.iter().any(|line| line.contains("has not reported execution")), "{logged:?}");
}

#[tokio::test]
async fn operators_cancel_what_runs_and_the_next_trigger_goes_on() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let properties = [("retry-max-attempts", "3"), ("retry-backoff", "1h"), ("retry-backoff-max", "1h")];
    let mut app = host.attach(request(triggered(3, &properties))).await;
    app.assigned(&[0, 1, 2]).await;
    ground.outside.quiet().await;
    assert_eq!(cancel(&host, JOB, &[]).await.unwrap(), []);
    trigger(&ground, &app).await;
    let executes = app.executes(3).await;
    // One has failed, and waits.
    app.report(vec![failure(&executes[0].execution_id, "no stock")]).await.unwrap();
    let unknown = cancel(&host, JOB, &[1, 99]).await.unwrap_err();
    assert_eq!(unknown.code(), Code::InvalidArgument, "{unknown}");
    assert!(unknown.message().contains("item 99; the job has 3 items"), "{unknown}");
    // Item 1 goes on.
    let cancelled = cancel(&host, JOB, &[0, 1]).await.unwrap();
    let expected = [(0, true), (1, false)].map(|(item, was_waiting)| CancelledExecution {
        instance_id: app.attached.instance_id.clone(),
        item,
        execution_id: executes[usize::try_from(item).unwrap()].execution_id.clone(),
        was_waiting,
    });
    assert_eq!(cancelled, expected);
    let told = app.cancel().await;
    assert_eq!((told.item, told.reason()), (1, CancelReason::Operator));
    app.report(vec![failure(&told.execution_id, "stopped")]).await.unwrap();
    app.done(&executes[2]).await;
    assert_eq!(cancel(&host, JOB, &[]).await.unwrap(), [], "nothing waits to be tried again");
    trigger(&ground, &app).await;
    assert!(app.executes(3).await.iter().all(|execute| execute.attempt == 1));
}

#[tokio::test]
async fn what_operators_cannot_cancel_is_said() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let nobody = cancel(&host, JOB, &[]).await.unwrap_err();
    assert_eq!(nobody.code(), Code::NotFound);
    assert!(nobody.message().contains(JOB), "{nobody}");
    let wrong = cancel(&host, "a/b", &[]).await.unwrap_err();
    assert_eq!(wrong.code(), Code::InvalidArgument);
    let many = cancel(&host, JOB, &vec![1; 10_001]).await.unwrap_err();
    assert_eq!(many.code(), Code::InvalidArgument);
    assert!(many.message().contains("items: given `10001 items`"), "{many}");
}

#[tokio::test]
async fn what_fails_is_tried_again_with_its_checkpoint_and_a_higher_token() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let properties = [("retry-max-attempts", "3"), ("retry-backoff", "50ms")];
    let mut app = host.attach(request(triggered(2, &properties))).await;
    app.assigned(&[0, 1]).await;
    ground.outside.quiet().await;
    trigger(&ground, &app).await;
    let executes = app.executes(2).await;
    app.done(&executes[1]).await;
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
    assert_eq!(ground.outside.tree().await.running(), ["0"]);
    app.report(vec![failure(&second.execution_id, "no stock")]).await.unwrap();
    let third = app.execute().await;
    assert_eq!((third.attempt, third.checkpoint.as_deref()), (3, Some(b"row 7".as_slice())));
    app.done(&third).await;
    let nothing = |tree: &Tree| tree.running().is_empty() && tree.checkpoints().is_empty();
    ground.outside.until("nothing to be left", nothing).await;
    // The old ids are known, and over.
    let again = app.report(vec![success(&first.execution_id)]).await.unwrap();
    assert_eq!(again, [CompletionStatus::AlreadyRecorded]);
}

#[tokio::test]
async fn what_is_rejected_is_not_tried_again_and_what_fails_for_the_last_time_is_reported() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let properties = [("retry-max-attempts", "2"), ("retry-backoff", "10ms")];
    let mut app = host.attach(request(triggered(2, &properties))).await;
    app.assigned(&[0, 1]).await;
    ground.outside.quiet().await;
    trigger(&ground, &app).await;
    let executes = app.executes(2).await;
    let rejected = proto::ExecutionResult {
        outcome: proto::ExecutionOutcome::Rejected.into(),
        ..failure(&executes[1].execution_id, "stopping")
    };
    app.report(vec![failure(&executes[0].execution_id, "no stock"), rejected]).await.unwrap();
    let second = app.execute().await;
    assert_eq!((second.item, second.attempt), (0, 2));
    app.report(vec![failure(&second.execution_id, "no stock")]).await.unwrap();
    trigger(&ground, &app).await;
    let executes = app.executes(2).await;
    assert!(executes.iter().all(|execute| execute.attempt == 1), "{executes:?}");
    let logged = warnings_about(&app.attached.instance_id);
    assert!(
        logged.iter().any(|line| line.contains("for the last time") && line.contains("attempts=2")),
        "{logged:?}"
    );
}

#[tokio::test]
async fn p5_a_checkpoint_reaches_whoever_takes_the_item_over_and_is_gone_when_it_has_succeeded() {
    let ground = Ground::new().await;
    let (one, two) = (ground.sidecar().await, ground.sidecar_with(2, |_| ()).await);
    let mut dying = one.attach(request(triggered(2, &[]))).await;
    dying.assigned(&[0, 1]).await;
    let mut survivor = two.attach(request(None)).await;
    dying.assigned(&[0]).await;
    survivor.assigned(&[1]).await;
    ground.outside.quiet().await;
    trigger(&ground, &dying).await;
    let crashed = dying.execute().await;
    for text in [b"row 1".as_slice(), b"row \n\xff 2"] {
        let answer = dying.progress(&crashed.execution_id, true, Some(text)).await.unwrap();
        assert_eq!(answer, proto::ReportProgressResponse::default(), "it has no deadline");
        // It is there when it was answered.
        assert_eq!(ground.outside.tree().await.checkpoints(), [("0".to_owned(), text.to_vec())].into());
    }
    drop(dying);
    let taken = survivor.execute().await;
    assert_eq!((taken.item, taken.source()), (0, ExecutionSource::Failover));
    assert_eq!(taken.checkpoint.as_deref(), Some(b"row \n\xff 2".as_slice()));
    survivor.done(&taken).await;
    assert!(ground.outside.tree().await.checkpoints().is_empty());
}

#[tokio::test]
async fn progress_moves_the_deadline_and_ends_with_the_execution() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(triggered(1, &[("execution-timeout", "10s")]))).await;
    let mut other = host.attach(request_for("payments", triggered(1, &[]))).await;
    app.assigned(&[0]).await;
    other.assigned(&[0]).await;
    ground.outside.quiet().await;
    trigger(&ground, &app).await;
    let execute = app.execute().await;
    let same = app.progress(&execute.execution_id, false, None).await.unwrap();
    // What is read from two clocks differs by some microseconds.
    let difference = time_of(same.deadline).abs_diff(time_of(execute.deadline));
    assert!(difference < Duration::from_millis(5), "{difference:?}");
    let moved = app.progress(&execute.execution_id, true, None).await.unwrap();
    assert!(time_of(moved.deadline) > time_of(execute.deadline), "{moved:?}");
    assert!(!moved.cancelled && !moved.superseded);

    cancel(&host, JOB, &[]).await.unwrap();
    let last = app.progress(&execute.execution_id, true, Some(b"so far")).await.unwrap();
    assert_eq!(last, proto::ReportProgressResponse { deadline: None, cancelled: true, superseded: false });
    assert_eq!(ground.outside.tree().await.checkpoints().len(), 1);

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
    refused(Code::NotFound, "nobody-1", app.progress("nobody-1", true, None).await);
    refused(Code::NotFound, &execute.execution_id, other.progress(&execute.execution_id, true, None).await);
    app.done(&execute).await;
    refused(Code::FailedPrecondition, "is over", app.progress(&execute.execution_id, true, None).await);
    app.attached.attachment_id = "gone".to_owned();
    refused(Code::NotFound, "gone", app.progress(&execute.execution_id, true, None).await);
}

#[tokio::test]
async fn properties_that_cannot_be_read_are_problems_and_the_defaults_hold() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(triggered(1, &[("execution-timeout", "7m")]))).await;
    app.assigned(&[0]).await;
    ground.outside.quiet().await;
    ground.outside.edit_configuration("7m", "7 minutes").await;
    let problems = app.problems("the problem", |problems| !problems.is_empty()).await;
    let [ignored, problem] = &problems[..] else { panic!("{problems:?}") };
    // It is not what the application asked for, either.
    let [problem, ignored] =
        if problem.message.starts_with("props") { [problem, ignored] } else { [ignored, problem] };
    assert!(ignored.message.contains("(`7 minutes` there, `7m` given)"), "{ignored:?}");
    let said =
        "props `sidekeeper.execution-timeout` is `7 minutes` and is ignored; allowed is `100ms` to `168h`";
    assert!(problem.message.contains(said), "{problem:?}");
    trigger(&ground, &app).await;
    assert_eq!(app.execute().await.deadline, None);
}
