//! `PlanSharding`: the plan is what the fleet then does, it changes nothing, and a wrong request is named.

use std::collections::BTreeMap;

use sidekeeper::proto;
use sidekeeper::proto::diagnostics_service_client::DiagnosticsServiceClient;
use sidekeeper::proto::{PlanShardingRequest, PlanShardingResponse};
use tonic::{Code, Status};

use crate::fleet::{App, Fleet, JOB, RunningSidecar, bounded, job, request};

async fn try_plan(
    sidecar: &RunningSidecar,
    request: PlanShardingRequest,
) -> Result<PlanShardingResponse, Status> {
    let mut client = DiagnosticsServiceClient::new(sidecar.connect().await);
    bounded("the plan", client.plan_sharding(request)).await.map(tonic::Response::into_inner)
}

async fn plan(sidecar: &RunningSidecar, change: PlanShardingRequest) -> PlanShardingResponse {
    let change = PlanShardingRequest { job_name: JOB.to_owned(), ..change };
    try_plan(sidecar, change).await.unwrap()
}

fn joining(id: &str) -> PlanShardingRequest {
    PlanShardingRequest { joining_instance_ids: vec![id.to_owned()], ..PlanShardingRequest::default() }
}

fn leaving(id: &str) -> PlanShardingRequest {
    PlanShardingRequest { leaving_instance_ids: vec![id.to_owned()], ..PlanShardingRequest::default() }
}

/// The owner of each item after the change.
fn next(plan: &PlanShardingResponse) -> BTreeMap<u32, String> {
    let owned = plan.items.iter().filter(|item| !item.next_instance_id.is_empty());
    owned.map(|item| (item.item, item.next_instance_id.clone())).collect()
}

/// Waits until the registry has this assignment.
async fn becomes(fleet: &Fleet, what: &str, wanted: &BTreeMap<u32, String>) {
    let is_so = |tree: &crate::fleet::Tree| {
        let items = tree.children("sharding");
        items.len() == wanted.len()
            && wanted
                .iter()
                .all(|(item, owner)| tree.text(&format!("sharding/{item}/instance")).as_ref() == Some(owner))
    };
    fleet.nodes.until(what, is_so).await;
}

async fn attach(sidecar: &RunningSidecar, name: &str, configuration: &proto::JobConfiguration) -> App {
    let instance_name = name.to_owned();
    sidecar.attach(proto::AttachRequest { instance_name, ..request(configuration.clone()) }).await
}

/// Instances join and leave, and the number of items changes: each time as planned.
async fn does_as_planned(configuration: proto::JobConfiguration) -> Vec<PlanShardingResponse> {
    let fleet = Fleet::new().await;
    let mut sidecars = Vec::new();
    for number in 1..=4 {
        sidecars.push(fleet.sidecar_with(number, |_| ()).await);
    }
    let mut apps = Vec::new();
    let mut plans = Vec::new();
    let first = attach(&sidecars[0], "w-1", &configuration).await;
    apps.push(first);
    becomes(
        &fleet,
        "the first assignment",
        &(0..11).map(|item| (item, "10.0.0.1@-@w-1".to_owned())).collect(),
    )
    .await;
    for number in 2..=4_usize {
        // Any sidecar plans.
        let planned = plan(&sidecars[3], joining(&format!("10.0.0.{number}@-@w-{number}"))).await;
        apps.push(attach(&sidecars[number - 1], &format!("w-{number}"), &configuration).await);
        becomes(&fleet, &format!("the plan for instance {number}"), &next(&planned)).await;
        plans.push(planned);
    }
    for total in [17, 6] {
        let change = PlanShardingRequest { sharding_total_count: Some(total), ..Default::default() };
        let planned = plan(&sidecars[1], change).await;
        let now = fleet.nodes.tree().await.text("config").unwrap();
        let line = now.lines().find(|line| line.starts_with("shardingTotalCount")).unwrap().to_owned();
        fleet.nodes.edit_configuration(&line, &format!("shardingTotalCount: {total}")).await;
        becomes(&fleet, &format!("the plan for {total} items"), &next(&planned)).await;
        plans.push(planned);
    }
    for number in [1, 3] {
        let planned = plan(&sidecars[1], leaving(&format!("10.0.0.{number}@-@w-{number}"))).await;
        // A kill; the names are not reserved.
        drop(apps.remove(usize::from(number == 3)));
        becomes(&fleet, &format!("the plan without instance {number}"), &next(&planned)).await;
        plans.push(planned);
    }
    plans
}

#[tokio::test]
async fn a_fleet_of_sidecars_does_as_planned_with_the_fewest_moves() {
    for planned in does_as_planned(job(11)).await {
        assert_eq!(planned.all_at_once_reason, "");
        assert_eq!(planned.moves, planned.least_moves, "{planned:?}");
        assert!(planned.remarks.is_empty(), "{planned:?}");
    }
}

#[tokio::test]
async fn a_fleet_that_reshards_all_at_once_does_as_planned_by_each_strategy() {
    for strategy in ["", "ODEVITY", "ROUND_ROBIN", "CONSISTENT_HASH"] {
        let mut configuration = job(11);
        configuration.job_sharding_strategy_type = strategy.to_owned();
        configuration.props.insert("sidekeeper.handoff".to_owned(), "off".to_owned());
        let plans = does_as_planned(configuration).await;
        assert!(plans.iter().all(|planned| planned.all_at_once_reason == "`sidekeeper.handoff` is `off`"));
        assert!(plans.iter().all(|planned| planned.moves >= planned.least_moves), "{strategy}: {plans:?}");
    }
}

#[tokio::test]
async fn beside_a_java_instance_a_sidecar_that_leads_does_as_planned() {
    const JAVA: &str = "10.0.0.9@-@7";
    let fleet = Fleet::new().await;
    let (first, second) = (fleet.sidecar().await, fleet.sidecar_with(2, |_| ()).await);
    let configuration = job(7);
    let _one = attach(&first, "w-1", &configuration).await;
    let _two = attach(&second, "w-2", &configuration).await;
    let planned = plan(&second, joining(JAVA)).await;
    assert_eq!(planned.all_at_once_reason, format!("instance {JAVA} is ElasticJob's own"));
    // As a Java instance registers.
    fleet.nodes.put("servers/10.0.0.9", "ENABLED").await;
    fleet
        .nodes
        .put(&format!("instances/{JAVA}"), format!("jobInstanceId: {JAVA}\nserverIp: 10.0.0.9\n"))
        .await;
    becomes(&fleet, "the plan with the Java instance", &next(&planned)).await;
    let planned = plan(&first, leaving(JAVA)).await;
    assert_eq!(planned.all_at_once_reason, "");
    fleet.nodes.delete(&format!("instances/{JAVA}")).await;
    becomes(&fleet, "the plan without it", &next(&planned)).await;
}

#[tokio::test]
async fn op_5_a_plan_for_a_job_that_only_java_instances_run_changes_nothing() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let ids = ["10.0.0.8@-@1", "10.0.0.9@-@1"];
    fleet.nodes.put("config", "jobName: orders\nshardingTotalCount: 5\n").await;
    fleet.nodes.put("leader/election/instance", ids[0]).await;
    for (item, id) in [(0, 1), (1, 1), (4, 1), (2, 0), (3, 0)] {
        fleet.nodes.put(&format!("sharding/{item}/instance"), ids[id]).await;
    }
    for id in ids {
        let ip = id.split_once('@').unwrap().0;
        fleet.nodes.put(&format!("servers/{ip}"), "ENABLED").await;
        fleet.nodes.put(&format!("instances/{id}"), format!("jobInstanceId: {id}\nserverIp: {ip}\n")).await;
    }
    let before = fleet.nodes.tree().await;
    let now = plan(&sidecar, PlanShardingRequest::default()).await;
    assert_eq!((now.moves, now.items.len()), (0, 5));
    assert!(now.as_of.is_some());
    let three = plan(&sidecar, PlanShardingRequest { joining_count: 1, ..Default::default() }).await;
    assert_eq!(three.items.iter().filter(|item| item.next_instance_id == "0.0.0.0@-@joining-1").count(), 1);
    let [remark] = &three.remarks[..] else { panic!("{three:?}") };
    assert!(remark.contains("give their ids"), "{remark}");
    let other =
        plan(&sidecar, PlanShardingRequest { strategy: "odevity".to_owned(), ..Default::default() }).await;
    assert!(other.moves >= other.least_moves);
    assert_eq!(fleet.nodes.tree().await, before);
}

#[tokio::test]
async fn what_is_wrong_in_a_plan_is_named() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(job(3))).await;
    app.assigned(&[0, 1, 2]).await;
    let own = app.attached.instance_id.clone();
    let none = PlanShardingRequest::default;
    for (change, says) in [
        (PlanShardingRequest { sharding_total_count: Some(0), ..none() }, "sharding_total_count: given `0`"),
        (PlanShardingRequest { sharding_total_count: Some(10_001), ..none() }, "1 to 10000"),
        (PlanShardingRequest { joining_count: 1_001, ..none() }, "at most 1000 instances that join"),
        (PlanShardingRequest { joining_count: u32::MAX, ..joining("10.0.0.4@-@w") }, "joining_count"),
        (PlanShardingRequest { strategy: "BEST".to_owned(), ..none() }, "`AVG_ALLOCATION`, `ODEVITY`"),
        (joining("worker-4"), "joining_instance_ids: given `worker-4`"),
        (joining("10.0.0.4@-@a/b"), "joining_instance_ids"),
        (joining("10.0.0.4@-@.."), "joining_instance_ids"),
        (joining(&own), "is online already"),
        (leaving("10.0.0.4@-@w"), "has no online instance `10.0.0.4@-@w` that could leave"),
        (
            PlanShardingRequest { leaving_instance_ids: vec![String::new(); 10_001], ..none() },
            "at most 10000",
        ),
    ] {
        let change = PlanShardingRequest { job_name: JOB.to_owned(), ..change };
        let status = try_plan(&sidecar, change).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().contains(says), "{status:?}");
    }
    let unknown = PlanShardingRequest { job_name: "nobody".to_owned(), ..none() };
    let status = try_plan(&sidecar, unknown).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound, "{status:?}");
    fleet.nodes.put("config", "no: yaml: at all").await;
    let status = try_plan(&sidecar, PlanShardingRequest { job_name: JOB.to_owned(), ..none() }).await;
    assert_eq!(status.unwrap_err().code(), Code::NotFound);
}
