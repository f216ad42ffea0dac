//! `CancelExecutions` with `fleet`: the executions of all sidecars are cancelled, no later one, and what is not reached is named.

use sidekeeper::proto::job_service_client::JobServiceClient;
use sidekeeper::proto::{
    CancelExecutionsRequest, CancelReach, CancelReason, JobConfiguration, TriggerJobRequest,
};
use tonic::{Code, Status};

use crate::fleet::{App, Fleet, JOB, RunningSidecar, bounded, job, request};

/// Cancels executions of the fleet. Returns the instance, the item and the reach of each.
async fn cancel(
    sidecar: &RunningSidecar,
    id: &str,
    items: &[u32],
) -> Result<Vec<(String, u32, CancelReach)>, Status> {
    let mut client = JobServiceClient::new(sidecar.connect().await);
    let request = CancelExecutionsRequest {
        job_name: JOB.to_owned(),
        items: items.to_vec(),
        request_id: id.to_owned(),
        fleet: true,
    };
    let answer = bounded("the answer", client.cancel_executions(request)).await?.into_inner();
    assert!(answer.cancelled.is_empty());
    let one = |one: sidekeeper::proto::FleetExecution| (one.instance_id.clone(), one.item, one.reach());
    Ok(answer.fleet_executions.into_iter().map(one).collect())
}

async fn trigger(sidecar: &RunningSidecar) {
    let mut client = JobServiceClient::new(sidecar.connect().await);
    let request = TriggerJobRequest { job_name: JOB.to_owned(), ..TriggerJobRequest::default() };
    bounded("the answer", client.trigger_job(request)).await.unwrap();
}

/// Two applications at two sidecars, and a third sidecar without one.
async fn three(fleet: &Fleet) -> (App, App, RunningSidecar, [RunningSidecar; 2]) {
    let (first, second) = (fleet.sidecar().await, fleet.sidecar_with(2, |_| ()).await);
    let mut one = first.attach(request(job(4))).await;
    let mut two = second.attach(request(None)).await;
    one.assigned(&[0, 1]).await;
    two.assigned(&[2, 3]).await;
    fleet.nodes.settled_tree().await;
    (one, two, fleet.sidecar_with(3, |_| ()).await, [first, second])
}

#[tokio::test]
async fn the_executions_of_all_sidecars_are_cancelled_and_those_of_java_are_named() {
    let fleet = Fleet::new().await;
    let (mut one, mut two, third, _sidecars) = three(&fleet).await;
    trigger(&third).await;
    let (mine, theirs) = (one.executes(2).await, two.executes(2).await);
    // An execution of a Java instance.
    let java = "10.0.0.9@-@1";
    fleet.nodes.put("sharding/7/running", java).await;
    let ids = [&one, &two].map(|app| app.attached.instance_id.clone());
    let answer = cancel(&third, "", &[]).await.unwrap();
    let reached = |instance: &String, item| (instance.clone(), item, CancelReach::Sidecar);
    let [first, second] = &ids;
    let mut wanted = vec![reached(first, 0), reached(first, 1), reached(second, 2), reached(second, 3)];
    wanted.push((java.to_owned(), 7, CancelReach::Java));
    assert_eq!(answer, wanted);
    for (app, executes) in [(&mut one, mine), (&mut two, theirs)] {
        for _ in 0..2 {
            let cancel = app.cancel().await;
            assert_eq!(cancel.reason(), CancelReason::Operator);
            assert!(executes.iter().any(|execute| execute.execution_id == cancel.execution_id));
        }
        for execute in executes {
            app.report_success(&execute).await;
        }
    }
    assert!(fleet.nodes.tree().await.has("sharding/7/running"), "Java's node was touched");
}

#[tokio::test]
async fn op_3_a_repetition_shows_what_has_not_ended_and_concerns_no_later_execution() {
    let fleet = Fleet::new().await;
    let (mut one, mut two, third, [first, second]) = three(&fleet).await;
    trigger(&third).await;
    let (mine, theirs) = (one.executes(2).await, two.executes(2).await);
    let answer = cancel(&third, "mine", &[1, 2]).await.unwrap();
    assert_eq!(answer.iter().map(|(_, item, _)| *item).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((one.cancel().await.item, two.cancel().await.item), (1, 2));
    for execute in &mine {
        one.report_success(execute).await;
    }
    assert_eq!(cancel(&first, "mine", &[1, 2]).await.unwrap(), answer[1..], "only item 2 still runs");
    for execute in &theirs {
        two.report_success(execute).await;
    }
    trigger(&third).await;
    let later = one.executes(2).await;
    assert_eq!(cancel(&second, "mine", &[1, 2]).await.unwrap(), []);
    for execute in &later {
        let progress = one.progress(&execute.execution_id, false, None).await.unwrap();
        assert!(!progress.cancelled, "a later execution of item {} was cancelled", execute.item);
    }
    let other = cancel(&third, "mine", &[]).await.unwrap_err();
    assert_eq!(other.code(), Code::InvalidArgument, "{other:?}");
    one.report_all_open().await;
    two.executes(2).await;
    two.report_all_open().await;
}

#[tokio::test]
async fn a_fleet_that_cannot_be_cancelled_is_refused_and_nothing_is_written() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let refused = async |items: &[u32], code: Code, says: &str| {
        let status = cancel(&sidecar, "", items).await.unwrap_err();
        assert_eq!(status.code(), code, "{status:?}");
        assert!(status.message().contains(says), "{status:?}");
    };
    refused(&[], Code::NotFound, "no nodes of job `orders`").await;
    fleet.nodes.put("servers/10.0.0.1", "ENABLED").await;
    refused(&[], Code::NotFound, "no readable configuration").await;
    let unmonitored = JobConfiguration { monitor_execution: Some(false), ..job(2) };
    let mut app = sidecar.attach(request(unmonitored)).await;
    app.assigned(&[0, 1]).await;
    refused(&[], Code::FailedPrecondition, "does not monitor executions").await;
    fleet.nodes.edit_configuration("monitorExecution: false", "monitorExecution: true").await;
    refused(&[1, 2], Code::InvalidArgument, "has no item 2; it has 2 items").await;
    assert_eq!(fleet.nodes.children_of_own("fleet/cancels").await, Vec::<String>::new());
    assert_eq!(cancel(&sidecar, "", &[]).await.unwrap(), []);
}
