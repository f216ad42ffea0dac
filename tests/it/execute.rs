//! An execution, from the fire to the recorded result (P2, P3, P6).

use jiff::Timestamp;
use sidekeeper::proto::{self, CompletionStatus, ExecutionOutcome, ExecutionSource};

use crate::fleet::{Fleet, each_second, failure, request, success};

fn instant(timestamp: Option<prost_types::Timestamp>) -> Timestamp {
    let timestamp = timestamp.unwrap();
    Timestamp::new(timestamp.seconds, timestamp.nanos).unwrap()
}

#[tokio::test]
async fn an_execution_carries_all_that_its_handler_needs() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let configuration = proto::JobConfiguration {
        sharding_item_parameters: "0=Beijing".to_owned(),
        job_parameter: "all of it".to_owned(),
        ..each_second(2)
    };
    let mut app = sidecar.attach(request(configuration)).await;
    app.assigned(&[0, 1]).await;
    let executes = app.executes(2).await;
    let [first, second] = executes.as_slice() else { panic!("{executes:?}") };
    assert_eq!((first.item, first.item_parameter.as_deref()), (0, Some("Beijing")));
    assert_eq!((second.item, second.item_parameter.as_deref()), (1, None));
    assert_ne!(first.execution_id, second.execution_id);
    for execute in &executes {
        assert_eq!(execute.job_name, "orders");
        assert_eq!(execute.job_parameter, "all of it");
        assert_eq!(execute.sharding_total_count, 2);
        let id = &app.attached.instance_id;
        assert_eq!(execute.task_id, format!("orders@-@0,1@-@READY@-@{id}"));
        assert_eq!(execute.source(), ExecutionSource::Schedule);
        let (scheduled, fired) = (instant(execute.scheduled_time), instant(execute.fire_time));
        assert_eq!(scheduled.subsec_nanosecond(), 0);
        assert!(scheduled <= fired && fired <= Timestamp::now(), "{execute:?}");
        assert_eq!(execute.deadline, None);
    }
    assert_eq!(first.scheduled_time, second.scheduled_time);
}

#[tokio::test]
async fn p3_tokens_grow_with_each_execution_and_are_those_of_the_running_nodes() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(each_second(1))).await;
    app.assigned(&[0]).await;
    let mut last = app.token(0);
    let mut ids = Vec::new();
    for _ in 0..2 {
        let execute = app.execute().await;
        assert!(execute.fencing_token > last);
        last = execute.fencing_token;
        assert_eq!(fleet.nodes.tree().await.created("sharding/0/running"), last);
        assert!(!ids.contains(&execute.execution_id));
        app.report_success(&execute).await;
        ids.push(execute.execution_id);
    }
}

/// Attaches, and looks at the registry before, during and after an execution.
async fn running_nodes(configuration: proto::JobConfiguration, is_ephemeral: bool) {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(configuration)).await;
    app.assigned(&[0, 1]).await;
    let executes = app.executes(2).await;
    let tree = fleet.nodes.tree().await;
    for node in ["sharding/0/running", "sharding/1/running"] {
        assert_eq!(tree.text(node).as_ref(), Some(&app.attached.instance_id));
        assert_eq!(tree.is_ephemeral(node), is_ephemeral);
    }
    app.report_success(&executes[0]).await;
    // The node is removed before the report is answered; the node of the other execution stays.
    assert_eq!(fleet.nodes.tree().await.running(), ["1"]);
    app.report_success(&executes[1]).await;
}

#[tokio::test]
async fn p6_a_running_node_exists_exactly_while_its_execution_is_open() {
    running_nodes(each_second(2), true).await;
}

#[tokio::test]
async fn p6_with_failover_running_nodes_outlive_their_session() {
    running_nodes(proto::JobConfiguration { failover: Some(true), ..each_second(2) }, false).await;
}

#[tokio::test]
async fn executions_without_monitoring_run_and_create_no_nodes() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let configuration = proto::JobConfiguration { monitor_execution: Some(false), ..each_second(2) };
    let mut app = sidecar.attach(request(configuration)).await;
    app.assigned(&[0, 1]).await;
    for execute in app.executes(2).await {
        assert!(fleet.nodes.tree().await.running().is_empty());
        assert_eq!(execute.fencing_token, app.token(execute.item));
        app.report_success(&execute).await;
    }
    app.execute().await;
}

#[tokio::test]
async fn p5_a_result_is_recorded_once_when_it_is_reported_again() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(each_second(3))).await;
    app.assigned(&[0, 1, 2]).await;
    let ids: Vec<_> = app.executes(3).await.into_iter().map(|execute| execute.execution_id).collect();
    let rejected = proto::ExecutionResult {
        outcome: ExecutionOutcome::Rejected.into(),
        ..failure(&ids[1], "shutting down")
    };
    // One result twice in one report; failures and rejections end executions, too.
    let batch = vec![failure(&ids[0], "it broke"), rejected, failure(&ids[0], "it broke")];
    assert_eq!(app.report(batch).await.unwrap(), [CompletionStatus::Recorded; 3]);
    assert_eq!(fleet.nodes.tree().await.running(), ["2"]);
    let again = ids.iter().map(|id| success(id)).collect();
    assert_eq!(
        app.report(again).await.unwrap(),
        [CompletionStatus::AlreadyRecorded, CompletionStatus::AlreadyRecorded, CompletionStatus::Recorded]
    );
    assert!(fleet.nodes.tree().await.running().is_empty());
}
