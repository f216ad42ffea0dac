//! The disk of the data folder is full: it is said at once to everybody whom it concerns, and passes without a restart.

use sidekeeper::proto::job_service_client::JobServiceClient;
use sidekeeper::proto::{CompletionStatus, SessionState, TriggerJobRequest};
use tonic::{Code, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::disk::Disk;
use crate::ground::{Ground, JOB, bounded, request, request_for, success, ticking};

async fn becomes(stream: &mut tonic::Streaming<HealthCheckResponse>, wanted: ServingStatus) {
    let search = async { while stream.message().await.unwrap().unwrap().status() != wanted {} };
    bounded(wanted.as_str_name(), search).await;
}

#[tokio::test]
async fn who_asks_is_told_what_to_do_and_all_goes_on_when_there_is_room() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), Disk::default());
    let ground = Ground::on(disk.open(folder.path())).await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(ticking(1))).await;
    app.assigned(&[0]).await;
    let mut health = HealthClient::new(host.connect().await);
    let mut health = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    becomes(&mut health, ServingStatus::Serving).await;
    let execute = app.execute().await;
    let explained = |status: Status| {
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        let wanted = format!("make room in data_dir {}", folder.path().display());
        assert!(status.message().contains(&wanted), "{status}");
    };

    disk.fill();
    // Who finds it out is told like those who come later.
    explained(host.refusal(request_for("payments", ticking(1))).await);
    becomes(&mut health, ServingStatus::NotServing).await;
    app.session(SessionState::Suspended).await;
    explained(host.refusal(request_for("invoices", ticking(1))).await);
    let results = vec![success(&execute.execution_id)];
    explained(bounded("the report", app.report(results.clone())).await.unwrap_err());
    let mut jobs = JobServiceClient::new(host.connect().await);
    let asked = jobs.trigger_job(TriggerJobRequest { job_name: JOB.to_owned() });
    explained(bounded("the trigger", asked).await.unwrap_err());

    disk.make_room();
    becomes(&mut health, ServingStatus::Serving).await;
    let recorded = app.report(results).await.unwrap();
    // The first report has been kept.
    assert!(
        matches!(recorded[..], [CompletionStatus::Recorded | CompletionStatus::AlreadyRecorded]),
        "{recorded:?}"
    );
    let next = app.execute().await;
    app.done(&next).await;
    let mut other = host.attach(request_for("payments", ticking(1))).await;
    other.assigned(&[0]).await;
}
