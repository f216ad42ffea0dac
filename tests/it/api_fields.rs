//! Fields of the API: reasons for programs, the lease and `reattach_grace`, the last execution of an item, unknown jobs,
//! and a schedule that never fires again.

use sidekeeper::proto;
use sidekeeper::proto::assignment_service_client::AssignmentServiceClient;
use sidekeeper::proto::{ExecutionOutcome, SessionState};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::fleet::{App, Fleet, RunningSidecar, bounded, each_second, failure, job, request, success};

/// The reason for programs in a status.
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
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut stopped = sidecar.attach(request(job(1))).await;
    stopped.assigned(&[0]).await;
    fleet.nodes.delete(&format!("instances/{}", stopped.attached.instance_id)).await;
    let ended = stopped.end().await.0.unwrap_err();
    assert_eq!((ended.code(), reason(&ended).as_str()), (Code::FailedPrecondition, "STOPPED_BY_OPERATOR"));

    let one = proto::AttachRequest { application_id: "one".to_owned(), ..request(job(1)) };
    let mut replaced = sidecar.attach(one.clone()).await;
    let successor = sidecar.attach(one).await;
    let ended = replaced.end().await.0.unwrap_err();
    assert_eq!((ended.code(), reason(&ended).as_str()), (Code::Aborted, "STREAM_REPLACED"));
    drop(successor);

    let unknown = proto::AttachRequest { job_name: "nobodys".to_owned(), ..request(None) };
    assert_eq!(reason(&sidecar.refusal(unknown).await), "JOB_NOT_CONFIGURED");
    let wrong = proto::AttachRequest { weight: 1_001, ..request(job(1)) };
    assert_eq!(reason(&sidecar.refusal(wrong).await), "INVALID_REQUEST");
    let never = proto::JobConfiguration { cron: "0 0 0 1 1 ? 2020".to_owned(), ..job(1) };
    let refused = sidecar.refusal(request(never)).await;
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("configuration.cron: given `0 0 0 1 1 ? 2020`"), "{refused:?}");
}

#[tokio::test]
async fn an_application_receives_its_reattach_grace_and_its_lease() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut configuration = job(1);
    configuration.props.insert("sidekeeper.grace".to_owned(), "7s".to_owned());
    let identified =
        |configuration| proto::AttachRequest { application_id: "one".to_owned(), ..request(configuration) };
    let mut app = sidecar.attach(identified(Some(configuration.clone()))).await;
    app.assigned(&[0]).await;
    assert_eq!(app.attached.grace, Some(prost_types::Duration { seconds: 7, nanos: 0 }));
    // Sessions of the embedded registry do not end by themselves.
    assert_eq!(app.attached.lease_renewal_interval, None);
    let lease = renew(&app, &app.attached.attachment_id).await.unwrap();
    assert_eq!((lease.state(), lease.remaining_lease), (SessionState::Connected, None));
    assert_eq!(reason(&renew(&app, "unknown").await.unwrap_err()), "ATTACHMENT_UNKNOWN");
    fleet.nodes.edit_configuration("7s", "9s").await;
    app.until("the new grace", |event| match event {
        proto::attach_response::Event::JobChanged(changed) => {
            changed.grace.filter(|grace| grace.seconds == 9).map(drop)
        }
        _ => None,
    })
    .await;
    // Without an application id, no stream can reattach.
    let nameless = sidecar.attach(request(configuration)).await;
    assert_eq!(nameless.attached.grace, Some(prost_types::Duration::default()));
}

#[tokio::test]
async fn a_failing_item_shows_in_a_watch_until_it_succeeds() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(each_second(1))).await;
    app.assigned(&[0]).await;
    let mut watcher = sidecar.watch().await;
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
    assert_eq!(failed.last_success_time, None);
    let execute = app.execute().await;
    app.report(vec![success(&execute.execution_id)]).await.unwrap();
    let is_success = |last: proto::LastExecution| last.outcome() == ExecutionOutcome::Success;
    let state = watcher.until("a success", |state| last(state).is_some_and(is_success)).await;
    let succeeded = last(&state).unwrap();
    assert_eq!((succeeded.times_in_a_row, succeeded.last_success_time), (1, succeeded.at));
    // Failures after it do not hide when the item was executed last with success.
    let execute = app.execute().await;
    app.report(vec![failure(&execute.execution_id, "again")]).await.unwrap();
    let is_failure = |last: proto::LastExecution| last.outcome() == ExecutionOutcome::Failure;
    let state = watcher.until("a failure", |state| last(state).is_some_and(is_failure)).await;
    assert_eq!(last(&state).unwrap().last_success_time, succeeded.at);
    // Another sidecar does not know the last execution.
    let other = fleet.sidecar_with(2, |_| ()).await;
    let state = other.watch().await.until("the item", |state| state.items.len() == 1).await;
    assert_eq!(last(&state), None);
}

async fn first_state(
    sidecar: &RunningSidecar,
    job: &str,
    wait: bool,
) -> Result<proto::WatchAssignmentsResponse, Status> {
    let mut client = AssignmentServiceClient::new(sidecar.connect().await);
    let request = proto::WatchAssignmentsRequest { job_name: job.to_owned(), wait_for_job: wait };
    let mut states = client.watch_assignments(request).await?.into_inner();
    let state = bounded("a state", states.message()).await?;
    Ok(state.expect("a state"))
}

#[tokio::test]
async fn a_watch_refuses_an_unknown_job_and_shows_a_job_without_instances() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let unknown = first_state(&sidecar, "orders", false).await.unwrap_err();
    assert_eq!((unknown.code(), reason(&unknown).as_str()), (Code::NotFound, "JOB_UNKNOWN"));
    assert!(first_state(&sidecar, "orders", true).await.unwrap().instances.is_empty());
    let app = sidecar.attach(request(job(1))).await;
    drop(app);
    fleet.nodes.until("all instances to be offline", |tree| tree.children("instances").is_empty()).await;
    assert!(first_state(&sidecar, "orders", false).await.unwrap().instances.is_empty());
}

#[tokio::test]
async fn a_schedule_in_the_registry_that_never_fires_again_is_a_problem() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(each_second(1))).await;
    app.assigned(&[0]).await;
    fleet.nodes.edit_configuration("* * * * * ?", "0 0 0 1 1 ? 2020").await;
    let is_reported =
        |problems: &[proto::Problem]| problems.iter().any(|problem| problem.code == "JOB_NEVER_FIRES_AGAIN");
    app.problems("the problem", is_reported).await;
    let mut watcher = sidecar.watch().await;
    watcher.until("the problem", |state| is_reported(&state.problems)).await;
}
