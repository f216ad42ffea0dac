//! An execution from the fire to the recorded result (P2, P3, P6).

use jiff::Timestamp;
use sidekeeper::proto::{self, CompletionStatus, ExecutionOutcome, ExecutionSource};

use crate::ground::{Ground, failure, request, success, ticking};

fn instant(timestamp: Option<prost_types::Timestamp>) -> Timestamp {
    let timestamp = timestamp.unwrap();
    Timestamp::new(timestamp.seconds, timestamp.nanos).unwrap()
}

#[tokio::test]
async fn an_execution_carries_all_that_its_handler_needs() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let configuration = proto::JobConfiguration {
        sharding_item_parameters: "0=Beijing".to_owned(),
        job_parameter: "all of it".to_owned(),
        ..ticking(2)
    };
    let mut app = host.attach(request(configuration)).await;
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
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(ticking(1))).await;
    app.assigned(&[0]).await;
    let mut last = app.token(0);
    let mut ids = Vec::new();
    for _ in 0..2 {
        let execute = app.execute().await;
        assert!(execute.fencing_token > last);
        last = execute.fencing_token;
        assert_eq!(ground.outside.tree().await.created("sharding/0/running"), last);
        assert!(!ids.contains(&execute.execution_id));
        app.done(&execute).await;
        ids.push(execute.execution_id);
    }
}

/// Attaches, and looks at the registry before, during and after an execution.
async fn running_nodes(configuration: proto::JobConfiguration, is_ephemeral: bool) {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(configuration)).await;
    app.assigned(&[0, 1]).await;
    let executes = app.executes(2).await;
    let tree = ground.outside.tree().await;
    for node in ["sharding/0/running", "sharding/1/running"] {
        assert_eq!(tree.text(node).as_ref(), Some(&app.attached.instance_id));
        assert_eq!(tree.is_ephemeral(node), is_ephemeral);
    }
    app.done(&executes[0]).await;
    // Its node is gone when the report is answered; the other one's is not.
    assert_eq!(ground.outside.tree().await.running(), ["1"]);
    app.done(&executes[1]).await;
}

#[tokio::test]
async fn p6_a_running_node_exists_exactly_while_its_execution_is_open() {
    running_nodes(ticking(2), true).await;
}

#[tokio::test]
async fn p6_with_failover_running_nodes_outlive_their_session() {
    running_nodes(proto::JobConfiguration { failover: Some(true), ..ticking(2) }, false).await;
}

#[tokio::test]
async fn executions_that_are_not_monitored_leave_no_nodes_and_run_all_the_same() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let configuration = proto::JobConfiguration { monitor_execution: Some(false), ..ticking(2) };
    let mut app = host.attach(request(configuration)).await;
    app.assigned(&[0, 1]).await;
    for execute in app.executes(2).await {
        assert!(ground.outside.tree().await.running().is_empty());
        assert_eq!(execute.fencing_token, app.token(execute.item));
        app.done(&execute).await;
    }
    app.execute().await;
}

#[tokio::test]
async fn p5_results_are_recorded_once_however_often_and_together_they_are_reported() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(ticking(3))).await;
    app.assigned(&[0, 1, 2]).await;
    let ids: Vec<_> = app.executes(3).await.into_iter().map(|execute| execute.execution_id).collect();
    let rejected = proto::ExecutionResult {
        outcome: ExecutionOutcome::Rejected.into(),
        ..failure(&ids[1], "shutting down")
    };
    // The same one twice in one report; a failure and a rejection end executions as well as a success does.
    let batch = vec![failure(&ids[0], "it broke"), rejected, failure(&ids[0], "it broke")];
    assert_eq!(app.report(batch).await.unwrap(), [CompletionStatus::Recorded; 3]);
    assert_eq!(ground.outside.tree().await.running(), ["2"]);
    let again = ids.iter().map(|id| success(id)).collect();
    assert_eq!(
        app.report(again).await.unwrap(),
        [CompletionStatus::AlreadyRecorded, CompletionStatus::AlreadyRecorded, CompletionStatus::Recorded]
    );
    assert!(ground.outside.tree().await.running().is_empty());
}
