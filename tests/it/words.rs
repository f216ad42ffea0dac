//! What the API says: reasons for programs, the lease and the grace, how items were executed last, and jobs that nobody
//! knows.

use sidekeeper::proto;
use sidekeeper::proto::assignment_service_client::AssignmentServiceClient;
use sidekeeper::proto::{ExecutionOutcome, SessionState};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::ground::{App, Ground, Host, bounded, failure, job, request, success, ticking};

/// The word for programs in a status.
fn reason(status: &Status) -> String {
    let info = status.get_details_error_info().unwrap_or_else(|| panic!("no ErrorInfo: {status:?}"));
    assert_eq!(info.domain, "sidekeeper");
    info.reason
}

async fn renew(app: &App, attachment_id: &str) -> Result<proto::RenewLeaseResponse, Status> {
    let request = proto::RenewLeaseRequest { attachment_id: attachment_id.to_owned() };
    let mut client = app.participants();
    bounded("the lease", client.renew_lease(request)).await.map(tonic::Response::into_inner)
}

#[tokio::test]
async fn each_end_of_a_stream_has_a_reason() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut stopped = host.attach(request(job(1))).await;
    stopped.assigned(&[0]).await;
    ground.outside.delete(&format!("instances/{}", stopped.attached.instance_id)).await;
    let ended = stopped.end().await.0.unwrap_err();
    assert_eq!((ended.code(), reason(&ended).as_str()), (Code::FailedPrecondition, "STOPPED_BY_OPERATOR"));

    let one = proto::AttachRequest { application_id: "one".to_owned(), ..request(job(1)) };
    let mut replaced = host.attach(one.clone()).await;
    let successor = host.attach(one).await;
    let ended = replaced.end().await.0.unwrap_err();
    assert_eq!((ended.code(), reason(&ended).as_str()), (Code::Aborted, "STREAM_REPLACED"));
    drop(successor);

    let unknown = proto::AttachRequest { job_name: "nobodys".to_owned(), ..request(None) };
    assert_eq!(reason(&host.refusal(unknown).await), "JOB_NOT_CONFIGURED");
    let wrong = proto::AttachRequest { weight: 1_001, ..request(job(1)) };
    assert_eq!(reason(&host.refusal(wrong).await), "INVALID_REQUEST");
    let never = proto::JobConfiguration { cron: "0 0 0 1 1 ? 2020".to_owned(), ..job(1) };
    let refused = host.refusal(request(never)).await;
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("configuration.cron: given `0 0 0 1 1 ? 2020`"), "{refused:?}");
}

#[tokio::test]
async fn an_application_is_told_its_grace_and_given_its_lease() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut configuration = job(1);
    configuration.props.insert("sidekeeper.grace".to_owned(), "7s".to_owned());
    let identified =
        |configuration| proto::AttachRequest { application_id: "one".to_owned(), ..request(configuration) };
    let mut app = host.attach(identified(Some(configuration.clone()))).await;
    app.assigned(&[0]).await;
    assert_eq!(app.attached.grace, Some(prost_types::Duration { seconds: 7, nanos: 0 }));
    // Sessions of the embedded registry do not end by themselves.
    assert_eq!(app.attached.lease_renewal_interval, None);
    let lease = renew(&app, &app.attached.attachment_id).await.unwrap();
    assert_eq!((lease.state(), lease.remaining_lease), (SessionState::Connected, None));
    assert_eq!(reason(&renew(&app, "gone").await.unwrap_err()), "ATTACHMENT_UNKNOWN");
    ground.outside.edit_configuration("7s", "9s").await;
    app.until("the new grace", |event| match event {
        proto::attach_response::Event::JobChanged(changed) => {
            changed.grace.filter(|grace| grace.seconds == 9).map(drop)
        }
        _ => None,
    })
    .await;
    // Nobody could be known as its next stream.
    let nameless = host.attach(request(configuration)).await;
    assert_eq!(nameless.attached.grace, Some(prost_types::Duration::default()));
}

#[tokio::test]
async fn a_failing_item_shows_in_a_watch_until_it_succeeds() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(ticking(1))).await;
    app.assigned(&[0]).await;
    let mut watcher = host.watch().await;
    for _ in 0..3 {
        let execute = app.execute().await;
        let message = "ValueError: no such city\n  File \"orders.py\", line 7";
        app.report(vec![failure(&execute.execution_id, message)]).await.unwrap();
    }
    let last = |state: &proto::WatchAssignmentsResponse| state.items.first()?.last_execution.clone();
    let state = watcher
        .until("three failures", |state| last(state).is_some_and(|last| last.times_in_a_row == 3))
        .await;
    let failed = last(&state).unwrap();
    assert_eq!(failed.outcome(), ExecutionOutcome::Failure);
    assert_eq!(failed.message, "ValueError: no such city");
    assert!(failed.since.unwrap().seconds < failed.at.unwrap().seconds, "{failed:?}");
    let execute = app.execute().await;
    app.report(vec![success(&execute.execution_id)]).await.unwrap();
    let is_success = |last: proto::LastExecution| last.outcome() == ExecutionOutcome::Success;
    let state = watcher.until("a success", |state| last(state).is_some_and(is_success)).await;
    assert_eq!(last(&state).unwrap().times_in_a_row, 1);
    // Another sidecar does not know.
    let other = ground.sidecar_with(2, |_| ()).await;
    let state = other.watch().await.until("the item", |state| state.items.len() == 1).await;
    assert_eq!(last(&state), None);
}

async fn first_state(host: &Host, job: &str, wait: bool) -> Result<proto::WatchAssignmentsResponse, Status> {
    let mut client = AssignmentServiceClient::new(host.connect().await);
    let request = proto::WatchAssignmentsRequest { job_name: job.to_owned(), wait_for_job: wait };
    let mut states = client.watch_assignments(request).await?.into_inner();
    let state = bounded("a state", states.message()).await?;
    Ok(state.expect("a state"))
}

#[tokio::test]
async fn a_job_that_nobody_knows_is_told_apart_from_one_without_instances() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let unknown = first_state(&host, "orders", false).await.unwrap_err();
    assert_eq!((unknown.code(), reason(&unknown).as_str()), (Code::NotFound, "JOB_UNKNOWN"));
    assert!(first_state(&host, "orders", true).await.unwrap().instances.is_empty());
    let app = host.attach(request(job(1))).await;
    drop(app);
    ground.outside.until("nobody", |tree| tree.children("instances").is_empty()).await;
    assert!(first_state(&host, "orders", false).await.unwrap().instances.is_empty());
}

#[tokio::test]
async fn a_schedule_in_the_registry_that_never_fires_again_is_a_problem() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(ticking(1))).await;
    app.assigned(&[0]).await;
    ground.outside.edit_configuration("* * * * * ?", "0 0 0 1 1 ? 2020").await;
    let is_said = |problems: &[proto::Problem]| {
        problems.iter().any(|problem| problem.message.contains("never fires again"))
    };
    app.problems("the problem", is_said).await;
    let mut watcher = host.watch().await;
    watcher.until("the problem", |state| is_said(&state.problems)).await;
}
