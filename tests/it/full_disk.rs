//! A full disk of the data folder: each caller gets the reason at once, and the sidecar serves again without a restart.

use sidekeeper::proto::job_service_client::JobServiceClient;
use sidekeeper::proto::{CompletionStatus, SessionState, TriggerJobRequest};
use tonic::{Code, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::disk::Disk;
use crate::fleet::{Fleet, JOB, bounded, each_second, request, request_for, success};

async fn wait_for_status(stream: &mut tonic::Streaming<HealthCheckResponse>, wanted: ServingStatus) {
    let search = async { while stream.message().await.unwrap().unwrap().status() != wanted {} };
    bounded(wanted.as_str_name(), search).await;
}

#[tokio::test]
async fn a_full_disk_is_explained_to_every_caller_until_there_is_room() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), Disk::default());
    let fleet = Fleet::on(disk.open(folder.path())).await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(each_second(1))).await;
    app.assigned(&[0]).await;
    let mut health = HealthClient::new(sidecar.connect().await);
    let mut health = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    wait_for_status(&mut health, ServingStatus::Serving).await;
    let execute = app.execute().await;
    let explained = |status: Status| {
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        let wanted = format!("make room in data_dir {}", folder.path().display());
        assert!(status.message().contains(&wanted), "{status}");
    };

    disk.fill();
    // The call that finds the full disk and later calls get the same answer.
    explained(sidecar.refusal(request_for("payments", each_second(1))).await);
    wait_for_status(&mut health, ServingStatus::NotServing).await;
    app.session(SessionState::Suspended).await;
    explained(sidecar.refusal(request_for("invoices", each_second(1))).await);
    let results = vec![success(&execute.execution_id)];
    explained(bounded("the report", app.report(results.clone())).await.unwrap_err());
    let mut jobs = JobServiceClient::new(sidecar.connect().await);
    let asked = jobs.trigger_job(TriggerJobRequest { job_name: JOB.to_owned(), ..Default::default() });
    explained(bounded("the trigger", asked).await.unwrap_err());

    disk.make_room();
    wait_for_status(&mut health, ServingStatus::Serving).await;
    let recorded = app.report(results).await.unwrap();
    // The sidecar may have kept the first report.
    assert!(
        matches!(recorded[..], [CompletionStatus::Recorded | CompletionStatus::AlreadyRecorded]),
        "{recorded:?}"
    );
    let next = app.execute().await;
    app.report_success(&next).await;
    let mut other = sidecar.attach(request_for("payments", each_second(1))).await;
    other.assigned(&[0]).await;
}
