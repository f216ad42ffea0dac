//! Failover: other instances take over the items of crashed ones, on one sidecar and on several (P5, protocol 7).

use sidekeeper::proto::{Execute, ExecutionSource, JobConfiguration};
use sidekeeper::tree::{NodeKind, Operation};

use crate::fleet::{App, Fleet, Tree, job, request};

/// A job with failover and without a schedule: it fires when it is triggered.
fn triggered(total: u32) -> JobConfiguration {
    JobConfiguration { failover: Some(true), cron: String::new(), ..job(total) }
}

async fn trigger(fleet: &Fleet, app: &App) {
    fleet.nodes.put(&format!("trigger/{}", app.attached.instance_id), "").await;
}

/// A finished failover leaves only the parents of its flags.
fn has_no_failover_nodes(tree: &Tree) -> bool {
    let of_item = |name: &str| (0..4).any(|item| tree.has(&format!("sharding/{item}/{name}")));
    tree.running().is_empty()
        && tree.children("leader/failover/items").is_empty()
        && !of_item("failover")
        && !of_item("failovering")
}

fn assert_same_fire(taken: &Execute, crashed: &Execute) {
    assert_eq!(taken.source(), ExecutionSource::Failover);
    assert_eq!((taken.item, taken.scheduled_time), (crashed.item, crashed.scheduled_time));
    assert!(taken.fencing_token > crashed.fencing_token);
    assert_ne!(taken.execution_id, crashed.execution_id);
}

#[tokio::test]
async fn p5_the_execution_of_a_dead_application_is_taken_over_at_once() {
    let fleet = Fleet::new().await;
    let first = fleet.sidecar().await;
    let second = fleet.sidecar_with(2, |_| ()).await;
    let mut dying = first.attach(request(triggered(2))).await;
    dying.assigned(&[0, 1]).await;
    let mut survivor = second.attach(request(None)).await;
    dying.assigned(&[0]).await;
    survivor.assigned(&[1]).await;
    fleet.nodes.settled_tree().await;
    trigger(&fleet, &dying).await;
    let crashed = dying.execute().await;
    assert_eq!(crashed.source(), ExecutionSource::Trigger);
    drop(dying);

    let taken = survivor.execute().await;
    assert_same_fire(&taken, &crashed);
    let while_it_runs = fleet.nodes.tree().await;
    let survivor_id = survivor.attached.instance_id.clone();
    assert_eq!(while_it_runs.text("sharding/0/failover").as_ref(), Some(&survivor_id));
    assert!(while_it_runs.is_ephemeral("sharding/0/failover"));
    assert_eq!(while_it_runs.text("sharding/0/failovering").as_ref(), Some(&survivor_id));
    assert!(!while_it_runs.is_ephemeral("sharding/0/failovering"));
    assert_eq!(while_it_runs.text("sharding/0/running").as_ref(), Some(&survivor_id));
    survivor.report_success(&taken).await;
    fleet.nodes.until("the failover nodes to be removed", has_no_failover_nodes).await;
    survivor.assigned(&[0, 1]).await;
}

#[tokio::test]
async fn p5_several_crashed_items_are_shared_among_the_survivors() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut dying = sidecar.attach(request(triggered(4))).await;
    dying.assigned(&[0, 1, 2, 3]).await;
    fleet.nodes.settled_tree().await;
    trigger(&fleet, &dying).await;
    let crashed = dying.executes(4).await;
    // These two own no item while all items run.
    let second = fleet.sidecar_with(2, |_| ()).await;
    let mut others = [sidecar.attach(request(None)).await, second.attach(request(None)).await];
    drop(dying);
    let mut taken = Vec::new();
    for other in &mut others {
        taken.push(other.executes(2).await);
    }
    for (other, taken) in others.iter_mut().zip(&taken) {
        for execute in taken {
            let crashed = crashed.iter().find(|crashed| crashed.item == execute.item).unwrap();
            assert_same_fire(execute, crashed);
            other.report_success(execute).await;
        }
    }
    fleet.nodes.until("the failover nodes to be removed", has_no_failover_nodes).await;
}

#[tokio::test]
async fn p5_an_instance_that_joins_after_a_crash_without_survivors_executes_the_flagged_item() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut dying = sidecar.attach(request(triggered(1))).await;
    dying.assigned(&[0]).await;
    fleet.nodes.settled_tree().await;
    trigger(&fleet, &dying).await;
    let crashed = dying.execute().await;
    drop(dying);
    fleet.nodes.until("the flag", |tree| tree.has("leader/failover/items/0")).await;

    let mut next = sidecar.attach(request(None)).await;
    let taken = next.execute().await;
    assert_same_fire(&taken, &crashed);
    next.report_success(&taken).await;
    fleet.nodes.until("the failover nodes to be removed", has_no_failover_nodes).await;
}

#[tokio::test]
async fn h4_running_nodes_of_a_crashed_java_instance_are_taken_over_after_java_reconnect_grace() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(triggered(2))).await;
    app.assigned(&[0, 1]).await;
    fleet.nodes.settled_tree().await;
    drop(app);
    fleet.nodes.until("the instance to leave", |tree| tree.children("instances").is_empty()).await;
    // A Java instance leaves these nodes when it is killed: in an execution, and in an execution that it took over.
    for (node, data) in
        [("sharding/0/running", "10.9.9.9@-@4711"), ("sharding/1/failovering", "10.9.9.9@-@4711")]
    {
        fleet.nodes.put(node, data).await;
    }
    let mut next = sidecar.attach(request(None)).await;
    let taken = next.executes(2).await;
    for execute in &taken {
        assert_eq!(execute.source(), ExecutionSource::Failover);
        next.report_success(execute).await;
    }
    fleet.nodes.until("the failover nodes to be removed", has_no_failover_nodes).await;
}

#[tokio::test]
async fn h14_switching_failover_off_removes_its_nodes() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(triggered(2))).await;
    app.assigned(&[0, 1]).await;
    fleet.nodes.put("sharding/0/disabled", "").await;
    fleet.nodes.put("leader/failover/items/0", "").await;
    fleet.nodes.put("sharding/1/failovering", "10.9.9.9@-@x").await;
    let configuration = fleet.nodes.tree().await.text("config").unwrap();
    fleet.nodes.put("config", configuration.replace("failover: true", "failover: false")).await;
    fleet.nodes.until("the failover nodes to be removed", has_no_failover_nodes).await;
}

#[tokio::test]
async fn h35_a_disabled_item_is_not_taken_over_until_it_is_enabled() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(triggered(2))).await;
    app.assigned(&[0, 1]).await;
    fleet.nodes.settled_tree().await;
    fleet.nodes.put("sharding/0/disabled", "").await;
    // Both flags in one transaction, so that an instance that takes one flag has seen the other.
    let mut flags = vec![];
    for (node, kind) in [
        ("leader/failover", NodeKind::Persistent),
        ("leader/failover/items", NodeKind::Persistent),
        ("leader/failover/items/0", NodeKind::Persistent),
        ("leader/failover/items/1", NodeKind::Persistent),
    ] {
        flags.push(Operation::create(fleet.nodes.path(node), kind, ""));
    }
    fleet.nodes.commit(flags).await;
    let enabled = app.execute().await;
    assert_eq!((enabled.item, enabled.source()), (1, ExecutionSource::Failover));
    app.report_success(&enabled).await;
    assert!(fleet.nodes.tree().await.has("leader/failover/items/0"));
    fleet.nodes.delete("sharding/0/disabled").await;
    let disabled = app.execute().await;
    assert_eq!((disabled.item, disabled.source()), (0, ExecutionSource::Failover));
    app.report_success(&disabled).await;
    fleet.nodes.until("the failover nodes to be removed", has_no_failover_nodes).await;
}
