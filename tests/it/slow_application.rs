//! An application that does not read its stream.

use std::time::Duration;

use sidekeeper::proto::JobConfiguration;
use tonic::Code;

use crate::fleet::{Fleet, JOB, each_second, request, request_for};

#[tokio::test]
async fn an_application_that_does_not_read_is_disconnected_and_delays_no_other_application() {
    let fleet = Fleet::new().await;
    let timeout = Duration::from_millis(300);
    let sidecar = fleet.sidecar_with(1, |config| config.slow_application_timeout = timeout).await;
    // Six megabytes a fire: more than all buffers on the way hold.
    let parameter = "x".repeat(60 * 1024);
    let heavy = JobConfiguration { job_parameter: parameter, ..each_second(100) };
    let mut slow = sidecar.attach(request(heavy)).await;
    let mut other = sidecar.attach(request_for("payments", each_second(1))).await;
    let all: Vec<_> = (0..100).collect();
    slow.assigned(&all).await;
    let removed =
        |tree: &crate::fleet::Tree| tree.children("instances").is_empty() && tree.running().is_empty();
    let id = slow.attached.instance_id.clone();
    fleet.nodes.until("its instance", |tree| tree.has(&format!("instances/{id}"))).await;
    fleet.nodes.until("the slow application to be disconnected", removed).await;
    // Two more fires of the other application, on the same sidecar.
    for _ in 0..2 {
        let execute = other.execute().await;
        other.report_success(&execute).await;
    }
    let (ended, _) = slow.end().await;
    let status = ended.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    let message = status.message();
    assert!(message.contains("has not read its stream for 300ms") && message.contains(JOB), "{message}");
    // The slow application may attach again.
    sidecar.attach(request(None)).await.assigned(&all).await;
}
