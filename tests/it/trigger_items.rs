//! The call `TriggerJob` with items or a parameter: each named item is executed once, by its owner, or nothing is changed.

use std::sync::Arc;

use sidekeeper::proto::job_service_client::JobServiceClient;
use sidekeeper::proto::{
    ExecutionSource, ItemTrigger, JobConfiguration, ListTriggersRequest, TriggerJobRequest, TriggerState,
};
use tonic::{Code, Status};

use crate::fleet::{App, Fleet, JOB, RegistryFault, RunningSidecar, bounded, job, request};

fn wish(items: &[u32], parameter: Option<&str>) -> TriggerJobRequest {
    TriggerJobRequest {
        job_name: JOB.to_owned(),
        items: items.to_vec(),
        parameter: parameter.map(str::to_owned),
        ..TriggerJobRequest::default()
    }
}

async fn trigger(sidecar: &RunningSidecar, request: TriggerJobRequest) -> Result<Vec<u32>, Status> {
    let mut client = JobServiceClient::new(sidecar.connect().await);
    let answer = bounded("the answer", client.trigger_job(request)).await?.into_inner();
    assert!(answer.triggered_instance_ids.is_empty() && answer.pending_instance_ids.is_empty(), "{answer:?}");
    Ok(answer.triggered_items)
}

async fn listed(sidecar: &RunningSidecar) -> Vec<ItemTrigger> {
    let mut client = JobServiceClient::new(sidecar.connect().await);
    let request = ListTriggersRequest { job_name: JOB.to_owned() };
    let answer = bounded("the answer", client.list_triggers(request)).await.unwrap().into_inner();
    assert_eq!(answer.triggers, [], "no instance was triggered");
    answer.item_triggers
}

/// Two applications at two sidecars, and a third sidecar without one.
async fn three(fleet: &Fleet) -> (App, App, RunningSidecar, [RunningSidecar; 2]) {
    let (first, second) = (fleet.sidecar().await, fleet.sidecar_with(2, |_| ()).await);
    let configuration = JobConfiguration { job_parameter: "all".to_owned(), ..job(4) };
    let mut one = first.attach(request(configuration)).await;
    let mut two = second.attach(request(None)).await;
    one.assigned(&[0, 1]).await;
    two.assigned(&[2, 3]).await;
    fleet.nodes.settled_tree().await;
    (one, two, fleet.sidecar_with(3, |_| ()).await, [first, second])
}

/// Waits until no trigger of an item is there.
async fn ended(fleet: &Fleet) {
    let all = async {
        while !fleet.nodes.children_of_own("fleet/triggers").await.is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    bounded("the triggers to end", all).await;
}

#[tokio::test]
async fn the_named_items_are_executed_once_by_their_owners_with_the_parameter() {
    let fleet = Fleet::new().await;
    let (mut one, mut two, third, _sidecars) = three(&fleet).await;
    let request = TriggerJobRequest { request_id: "mine".to_owned(), ..wish(&[3, 1], Some("day=1")) };
    assert_eq!(trigger(&third, request.clone()).await.unwrap(), [1, 3]);
    let mut begun = Vec::new();
    for (app, item) in [(&mut one, 1), (&mut two, 3)] {
        let execute = app.execute().await;
        assert_eq!((execute.item, &*execute.job_parameter), (item, "day=1"));
        assert_eq!(execute.source(), ExecutionSource::Trigger);
        begun.push(execute);
    }
    let states = |listed: &[ItemTrigger]| -> Vec<_> {
        listed.iter().map(|one| (one.item, one.state(), one.instance_id.clone())).collect()
    };
    let (first, second) = (one.attached.instance_id.clone(), two.attached.instance_id.clone());
    let taken_up = TriggerState::TakenUp;
    let while_they_run = listed(&third).await;
    assert_eq!(states(&while_they_run), [(1, taken_up, first), (3, taken_up, second)]);
    assert!(while_they_run.iter().all(|one| one.request_id == "mine" && one.trigger_time.is_some()));
    assert!(!format!("{while_they_run:?}").contains("day=1"), "a list shows the parameter");
    one.report_success(&begun[0]).await;
    two.report_success(&begun[1]).await;
    ended(&fleet).await;
    let done = |item| (item, TriggerState::Done, String::new());
    assert_eq!(states(&listed(&third).await), [done(1), done(3)]);

    // OP-3: a repetition changes nothing, and one that asks for something else is refused.
    assert_eq!(trigger(&third, request.clone()).await.unwrap(), [1, 3]);
    let others = [
        TriggerJobRequest { items: vec![3], ..request.clone() },
        TriggerJobRequest { parameter: Some("day=2".to_owned()), ..request.clone() },
        TriggerJobRequest { parameter: None, ..request.clone() },
        TriggerJobRequest { items: Vec::new(), parameter: None, ..request.clone() },
    ];
    for other in others {
        let refused = trigger(&third, other).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
        assert!(refused.message().contains("request_id `mine`") && !refused.message().contains("day"));
    }
    // Without items all enabled ones, and the next trigger has the job's own parameter again.
    fleet.nodes.put("sharding/0/disabled", "").await;
    assert_eq!(trigger(&third, wish(&[], Some(""))).await.unwrap(), [1, 2, 3]);
    let mut executes = one.executes(1).await;
    executes.extend(two.executes(2).await);
    assert!(executes.iter().all(|execute| execute.job_parameter.is_empty()), "{executes:?}");
    one.report_success(&executes[0]).await;
    two.report_success(&executes[1]).await;
    two.report_success(&executes[2]).await;
    ended(&fleet).await;
    assert_eq!(trigger(&third, wish(&[2], None)).await.unwrap(), [2]);
    let execute = two.execute().await;
    assert_eq!((execute.item, &*execute.job_parameter), (2, "all"));
}

#[tokio::test]
async fn a_request_that_cannot_be_carried_out_is_refused_by_name_and_changes_nothing() {
    let fleet = Fleet::new().await;
    let (_one, _two, third, _sidecars) = three(&fleet).await;
    fleet.nodes.put("sharding/2/disabled", "").await;
    let refused = async |request: TriggerJobRequest, code: Code, reasons: &[&str]| {
        let status = trigger(&third, request).await.unwrap_err();
        assert_eq!(status.code(), code, "{status:?}");
        assert!(reasons.iter().all(|reason| status.message().contains(reason)), "{status:?}");
        // The Java instance brings a resharding.
        assert!(!fleet.nodes.tree().await.has("trigger"), "{status:?}");
        for folder in ["fleet/triggers", "requests"] {
            assert!(fleet.nodes.children_of_own(folder).await.is_empty(), "{folder}: {status:?}");
        }
    };
    let no_item = ["job `orders` has no item 4; it has 4 items, from 0"];
    refused(wish(&[1, 4], None), Code::InvalidArgument, &no_item).await;
    let disabled = ["the items 2 of job `orders` are disabled"];
    refused(wish(&[1, 2], Some("x")), Code::FailedPrecondition, &disabled).await;
    let long = "hunter2".repeat(1_000);
    refused(wish(&[1], Some(&long)), Code::InvalidArgument, &["parameter", "a text of 7000 bytes"]).await;
    let unknown = TriggerJobRequest { job_name: "nobody".to_owned(), ..wish(&[1], None) };
    refused(unknown, Code::NotFound, &["job `nobody` has no configuration"]).await;
    // A Java instance, and an instance of a sidecar of an earlier version, which has published no such line.
    fleet.nodes.put("instances/10.0.0.9@-@1", "jobInstanceId: 10.0.0.9@-@1\nserverIp: 10.0.0.9\n").await;
    let java = ["the Java instances of job `orders`", "10.0.0.9@-@1"];
    refused(wish(&[1], None), Code::FailedPrecondition, &java).await;
    fleet.nodes.put("instances/10.0.0.8@-@abc", "jobInstanceId: 10.0.0.8@-@abc\nserverIp: 10.0.0.8\n").await;
    let both = ["those of sidecars of earlier versions", "10.0.0.9@-@1, 10.0.0.8@-@abc"];
    refused(wish(&[], Some("x")), Code::FailedPrecondition, &both).await;
}

#[tokio::test]
async fn op_3_a_request_whose_answer_was_lost_is_carried_out_once() {
    let fleet = Fleet::new().await;
    let faulty = fleet.sidecar_with_fault(RegistryFault::RecordAnswerLost(Arc::new(1.into()))).await;
    let other = fleet.sidecar_with(2, |_| ()).await;
    let mut app = other.attach(request(job(2))).await;
    app.assigned(&[0, 1]).await;
    fleet.nodes.settled_tree().await;
    let request = TriggerJobRequest { request_id: "once".to_owned(), ..wish(&[1], Some("day=1")) };
    let lost = trigger(&faulty, request.clone()).await.unwrap_err();
    assert_eq!(lost.code(), Code::Unknown, "{lost:?}");
    let execute = app.execute().await;
    app.report_success(&execute).await;
    ended(&fleet).await;
    for sidecar in [&other, &faulty] {
        assert_eq!(trigger(sidecar, request.clone()).await.unwrap(), [1]);
        assert!(fleet.nodes.children_of_own("fleet/triggers").await.is_empty(), "triggered again");
    }
}
