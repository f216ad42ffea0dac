//! `DisableItems`, `EnableItems`, `DisableServers`, `EnableServers`: nodes that differ are changed, once, and a wrong request changes nothing.

use sidekeeper::proto::job_service_client::JobServiceClient;
use sidekeeper::proto::{
    DisableItemsRequest, DisableServersRequest, EnableItemsRequest, EnableServersRequest,
};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::fleet::{Fleet, JOB, RunningSidecar, bounded, each_second, job, request};

async fn jobs(sidecar: &RunningSidecar) -> JobServiceClient<Channel> {
    JobServiceClient::new(sidecar.connect().await)
}

async fn disable(sidecar: &RunningSidecar, job: &str, items: &[u32]) -> Result<Vec<u32>, Status> {
    let request =
        DisableItemsRequest { job_name: job.to_owned(), items: items.to_vec(), ..Default::default() };
    let mut jobs = jobs(sidecar).await;
    bounded("the answer", jobs.disable_items(request)).await.map(|answer| answer.into_inner().changed_items)
}

async fn enable(sidecar: &RunningSidecar, job: &str, items: &[u32]) -> Result<Vec<u32>, Status> {
    let request = EnableItemsRequest { job_name: job.to_owned(), items: items.to_vec() };
    let mut jobs = jobs(sidecar).await;
    bounded("the answer", jobs.enable_items(request)).await.map(|answer| answer.into_inner().changed_items)
}

async fn disable_servers(sidecar: &RunningSidecar, ips: &[&str]) -> Result<Vec<String>, Status> {
    let server_ips = ips.iter().map(ToString::to_string).collect();
    let request = DisableServersRequest { job_name: JOB.to_owned(), server_ips, ..Default::default() };
    let mut jobs = jobs(sidecar).await;
    bounded("the answer", jobs.disable_servers(request))
        .await
        .map(|answer| answer.into_inner().changed_server_ips)
}

async fn enable_servers(sidecar: &RunningSidecar, ips: &[&str]) -> Result<Vec<String>, Status> {
    let server_ips = ips.iter().map(ToString::to_string).collect();
    let request = EnableServersRequest { job_name: JOB.to_owned(), server_ips };
    let mut jobs = jobs(sidecar).await;
    bounded("the answer", jobs.enable_servers(request))
        .await
        .map(|answer| answer.into_inner().changed_server_ips)
}

#[tokio::test]
async fn disabled_items_are_not_executed_until_they_are_enabled() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(each_second(3))).await;
    app.assigned(&[0, 1, 2]).await;
    // Any sidecar of the namespace does it.
    let other = fleet.sidecar_with(2, |_| ()).await;
    assert_eq!(disable(&other, JOB, &[2, 0, 2]).await.unwrap(), [0, 2]);
    assert_eq!(disable(&other, JOB, &[0, 1, 2]).await.unwrap(), [1], "the others are disabled already");
    assert_eq!(enable(&other, JOB, &[1]).await.unwrap(), [1]);
    assert_eq!(enable(&other, JOB, &[1]).await.unwrap(), Vec::<u32>::new());
    let tree = fleet.nodes.tree().await;
    assert!(
        tree.has("sharding/0/disabled")
            && !tree.has("sharding/1/disabled")
            && tree.has("sharding/2/disabled")
    );
    assert_eq!(tree.text("sharding/0/disabled").unwrap(), "");
    app.report_all_open().await;
    // From the second fire on, only the item that is enabled.
    let mut last = None;
    let mut alone = 0;
    while alone < 2 {
        let execute = app.execute().await;
        app.report_success(&execute).await;
        alone = if execute.item == 1 && last == Some(1) { alone + 1 } else { 0 };
        last = Some(execute.item);
    }
    assert_eq!(enable(&other, JOB, &[0, 2]).await.unwrap(), [0, 2]);
    loop {
        let execute = app.execute().await;
        app.report_success(&execute).await;
        if execute.item == 2 {
            break;
        }
    }
}

#[tokio::test]
async fn items_of_a_job_that_nobody_has_divided_yet_are_disabled_and_stay_so() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    fleet.nodes.put("config", "jobName: orders\nshardingTotalCount: 3\n").await;
    assert_eq!(disable(&sidecar, JOB, &[1]).await.unwrap(), [1]);
    let mut app = sidecar.attach(request(None)).await;
    app.assigned(&[0, 1, 2]).await;
    assert!(fleet.nodes.settled_tree().await.has("sharding/1/disabled"));
}

#[tokio::test]
async fn a_thousand_items_are_disabled_by_several_transactions() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    fleet.nodes.put("config", "jobName: orders\nshardingTotalCount: 3000\n").await;
    let all: Vec<_> = (0..3000).collect();
    assert_eq!(disable(&sidecar, JOB, &all).await.unwrap(), all);
    assert_eq!(enable(&sidecar, JOB, &all).await.unwrap(), all);
    let tree = fleet.nodes.tree().await;
    assert!(!all.iter().any(|item| tree.has(&format!("sharding/{item}/disabled"))));
}

#[tokio::test]
async fn a_disabled_server_loses_its_items_and_gets_them_back() {
    let fleet = Fleet::new().await;
    let (first, second) = (fleet.sidecar().await, fleet.sidecar_with(2, |_| ()).await);
    let mut one = first.attach(request(job(4))).await;
    let mut two = second.attach(request(None)).await;
    one.assigned(&[0, 1]).await;
    two.assigned(&[2, 3]).await;
    assert_eq!(disable_servers(&first, &["10.0.0.2"]).await.unwrap(), ["10.0.0.2"]);
    one.assigned(&[0, 1, 2, 3]).await;
    assert_eq!(
        disable_servers(&first, &[]).await.unwrap(),
        ["10.0.0.1"],
        "the other one is disabled already"
    );
    let tree = fleet.nodes.tree().await;
    assert_eq!(tree.text("servers/10.0.0.1").unwrap(), "DISABLED");
    assert_eq!(enable_servers(&first, &[]).await.unwrap(), ["10.0.0.1", "10.0.0.2"]);
    two.assigned(&[2, 3]).await;
    assert_eq!(enable_servers(&first, &["10.0.0.2"]).await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn what_is_wrong_is_named_and_changes_nothing() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let refused = async |job: &str, items: &[u32]| disable(&sidecar, job, items).await.unwrap_err();
    let unknown = refused(JOB, &[0]).await;
    assert_eq!(unknown.code(), Code::NotFound, "{unknown:?}");
    fleet.nodes.put("servers/10.0.0.1", "ENABLED").await;
    let unconfigured = refused(JOB, &[0]).await;
    assert_eq!(unconfigured.code(), Code::NotFound, "{unconfigured:?}");
    assert!(unconfigured.message().contains("no readable configuration"), "{unconfigured:?}");
    fleet.nodes.put("config", "jobName: orders\nshardingTotalCount: 3\n").await;
    let before = fleet.nodes.tree().await;
    for (job, items, says) in [
        (JOB, &[0, 3][..], "has no item 3; it has 3 items"),
        (JOB, &[], "items"),
        ("", &[0], "job_name"),
        (JOB, &[0; 10_001], "10001 items"),
    ] {
        let status = refused(job, items).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().contains(says), "{status:?}");
    }
    for (ips, says) in [(["10.0.0.9"], "has no server 10.0.0.9; it has 10.0.0.1"), (["ten"], "server_ips")] {
        let status = disable_servers(&sidecar, &ips).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().contains(says), "{status:?}");
    }
    assert_eq!(fleet.nodes.tree().await, before);
}
