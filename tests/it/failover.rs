//! Items of crashed instances are executed by others (P5, protocol 7), on one sidecar and on several.

use sidekeeper::proto::{Execute, ExecutionSource, JobConfiguration};
use sidekeeper::tree::{NodeKind, Operation};

use crate::ground::{App, Ground, Tree, job, request};

/// A job that only runs when it is triggered, and fails over.
fn triggered(total: u32) -> JobConfiguration {
    JobConfiguration { failover: Some(true), cron: String::new(), ..job(total) }
}

async fn trigger(ground: &Ground, app: &App) {
    ground.outside.put(&format!("trigger/{}", app.attached.instance_id), "").await;
}

/// What a finished failover leaves: nothing but the parents of its flags.
fn nothing_left(tree: &Tree) -> bool {
    let of_item = |name: &str| (0..4).any(|item| tree.has(&format!("sharding/{item}/{name}")));
    tree.running().is_empty()
        && tree.children("leader/failover/items").is_empty()
        && !of_item("failover")
        && !of_item("failovering")
}

fn is_the_same_work(taken: &Execute, crashed: &Execute) {
    assert_eq!(taken.source(), ExecutionSource::Failover);
    assert_eq!((taken.item, taken.scheduled_time), (crashed.item, crashed.scheduled_time));
    assert!(taken.fencing_token > crashed.fencing_token);
    assert_ne!(taken.execution_id, crashed.execution_id);
}

#[tokio::test]
async fn p5_what_a_dead_application_was_executing_is_executed_by_another_at_once() {
    let ground = Ground::new().await;
    let first = ground.sidecar().await;
    let second = ground.sidecar_with(2, |_| ()).await;
    let mut dying = first.attach(request(triggered(2))).await;
    dying.assigned(&[0, 1]).await;
    let mut survivor = second.attach(request(None)).await;
    dying.assigned(&[0]).await;
    survivor.assigned(&[1]).await;
    ground.outside.quiet().await;
    trigger(&ground, &dying).await;
    let crashed = dying.execute().await;
    assert_eq!(crashed.source(), ExecutionSource::Trigger);
    drop(dying);

    let taken = survivor.execute().await;
    is_the_same_work(&taken, &crashed);
    let while_it_runs = ground.outside.tree().await;
    let me = survivor.attached.instance_id.clone();
    assert_eq!(while_it_runs.text("sharding/0/failover").as_ref(), Some(&me));
    assert!(while_it_runs.is_ephemeral("sharding/0/failover"));
    assert_eq!(while_it_runs.text("sharding/0/failovering").as_ref(), Some(&me));
    assert!(!while_it_runs.is_ephemeral("sharding/0/failovering"));
    assert_eq!(while_it_runs.text("sharding/0/running").as_ref(), Some(&me));
    survivor.done(&taken).await;
    ground.outside.until("nothing to be left", nothing_left).await;
    survivor.assigned(&[0, 1]).await;
}

#[tokio::test]
async fn p5_several_crashed_items_are_shared_among_the_survivors() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut dying = host.attach(request(triggered(4))).await;
    dying.assigned(&[0, 1, 2, 3]).await;
    ground.outside.quiet().await;
    trigger(&ground, &dying).await;
    let crashed = dying.executes(4).await;
    // These two get nothing as long as all items run.
    let second = ground.sidecar_with(2, |_| ()).await;
    let mut others = [host.attach(request(None)).await, second.attach(request(None)).await];
    drop(dying);
    let mut taken = Vec::new();
    for other in &mut others {
        taken.push(other.executes(2).await);
    }
    for (other, taken) in others.iter_mut().zip(&taken) {
        for execute in taken {
            let crashed = crashed.iter().find(|crashed| crashed.item == execute.item).unwrap();
            is_the_same_work(execute, crashed);
            other.done(execute).await;
        }
    }
    ground.outside.until("nothing to be left", nothing_left).await;
}

#[tokio::test]
async fn p5_who_comes_after_a_crash_without_survivors_executes_what_was_left() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut dying = host.attach(request(triggered(1))).await;
    dying.assigned(&[0]).await;
    ground.outside.quiet().await;
    trigger(&ground, &dying).await;
    let crashed = dying.execute().await;
    drop(dying);
    ground.outside.until("the flag", |tree| tree.has("leader/failover/items/0")).await;

    let mut next = host.attach(request(None)).await;
    let taken = next.execute().await;
    is_the_same_work(&taken, &crashed);
    next.done(&taken).await;
    ground.outside.until("nothing to be left", nothing_left).await;
}

#[tokio::test]
async fn h4_running_nodes_that_a_java_instance_left_are_taken_over_after_a_grace() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(triggered(2))).await;
    app.assigned(&[0, 1]).await;
    ground.outside.quiet().await;
    drop(app);
    ground.outside.until("it to be gone", |tree| tree.children("instances").is_empty()).await;
    // What a Java instance leaves that is killed while it executes, and while it executes what it took over.
    for (node, data) in
        [("sharding/0/running", "10.9.9.9@-@4711"), ("sharding/1/failovering", "10.9.9.9@-@4711")]
    {
        ground.outside.put(node, data).await;
    }
    let mut next = host.attach(request(None)).await;
    let taken = next.executes(2).await;
    for execute in &taken {
        assert_eq!(execute.source(), ExecutionSource::Failover);
        next.done(execute).await;
    }
    ground.outside.until("nothing to be left", nothing_left).await;
}

#[tokio::test]
async fn h14_a_failover_that_is_switched_off_leaves_nothing_behind() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(triggered(2))).await;
    app.assigned(&[0, 1]).await;
    ground.outside.put("sharding/0/disabled", "").await;
    ground.outside.put("leader/failover/items/0", "").await;
    ground.outside.put("sharding/1/failovering", "10.9.9.9@-@x").await;
    let configuration = ground.outside.tree().await.text("config").unwrap();
    ground.outside.put("config", configuration.replace("failover: true", "failover: false")).await;
    ground.outside.until("nothing to be left", nothing_left).await;
}

#[tokio::test]
async fn h35_a_disabled_item_is_not_taken_over_until_it_is_enabled() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(triggered(2))).await;
    app.assigned(&[0, 1]).await;
    ground.outside.quiet().await;
    ground.outside.put("sharding/0/disabled", "").await;
    // Both flags in one go, so that whoever takes one has seen the other.
    let mut flags = vec![];
    for (node, kind) in [
        ("leader/failover", NodeKind::Persistent),
        ("leader/failover/items", NodeKind::Persistent),
        ("leader/failover/items/0", NodeKind::Persistent),
        ("leader/failover/items/1", NodeKind::Persistent),
    ] {
        flags.push(Operation::create(ground.outside.path(node), kind, ""));
    }
    ground.outside.commit(flags).await;
    let enabled = app.execute().await;
    assert_eq!((enabled.item, enabled.source()), (1, ExecutionSource::Failover));
    app.done(&enabled).await;
    assert!(ground.outside.tree().await.has("leader/failover/items/0"));
    ground.outside.delete("sharding/0/disabled").await;
    let disabled = app.execute().await;
    assert_eq!((disabled.item, disabled.source()), (0, ExecutionSource::Failover));
    app.done(&disabled).await;
    ground.outside.until("nothing to be left", nothing_left).await;
}
