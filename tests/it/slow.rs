//! An application that does not read its stream.

use std::time::Duration;

use sidekeeper::proto::JobConfiguration;
use tonic::Code;

use crate::ground::{Ground, JOB, request, request_for, ticking};

#[tokio::test]
async fn an_application_that_does_not_read_is_detached_and_harms_nobody_else() {
    let ground = Ground::new().await;
    let timeout = Duration::from_millis(300);
    let host = ground.sidecar_with(1, |config| config.slow_application_timeout = timeout).await;
    // Six megabytes a fire: more than all buffers on the way hold.
    let parameter = "x".repeat(60 * 1024);
    let heavy = JobConfiguration { job_parameter: parameter, ..ticking(100) };
    let mut slow = host.attach(request(heavy)).await;
    let mut other = host.attach(request_for("payments", ticking(1))).await;
    let all: Vec<_> = (0..100).collect();
    slow.assigned(&all).await;
    let gone =
        |tree: &crate::ground::Tree| tree.children("instances").is_empty() && tree.running().is_empty();
    let id = slow.attached.instance_id.clone();
    ground.outside.until("its instance", |tree| tree.has(&format!("instances/{id}"))).await;
    ground.outside.until("the slow one to be gone", gone).await;
    // Two more fires of the other one, on the same sidecar.
    for _ in 0..2 {
        let execute = other.execute().await;
        other.done(&execute).await;
    }
    let (ended, _) = slow.end().await;
    let status = ended.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    let said = status.message();
    assert!(said.contains("has not read its stream for 300ms") && said.contains(JOB), "{said}");
    // It may come back.
    host.attach(request(None)).await.assigned(&all).await;
}
