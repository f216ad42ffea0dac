//! Changes of operators to the nodes of the registry, through the console or by hand (P8).

use sidekeeper::proto::{AssignmentReason, ExecutionSource};
use tonic::Code;

use crate::fleet::{Event, Fleet, each_second, job, request};

#[tokio::test]
async fn a_disabled_item_is_owned_and_not_executed_until_it_is_enabled() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(each_second(3))).await;
    app.assigned(&[0, 1, 2]).await;
    fleet.nodes.put("sharding/2/disabled", "").await;
    let reason = app
        .until("the item to be disabled", |event| match event {
            Event::AssignmentChanged(changed) => {
                let items = &changed.assignment.as_ref().unwrap().items;
                items.iter().any(|item| item.item == 2 && item.disabled).then_some(changed.reason())
            }
            _ => None,
        })
        .await;
    assert_eq!(reason, AssignmentReason::ItemChanged);
    // `App` fails at an execution of a disabled item.
    for _ in 0..2 {
        for execute in app.executes(2).await {
            app.report_success(&execute).await;
        }
    }
    fleet.nodes.delete("sharding/2/disabled").await;
    while app.execute().await.item != 2 {}
}

#[tokio::test]
async fn a_disabled_server_releases_its_items_and_gets_a_share_when_it_is_enabled() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(job(2))).await;
    let leadership = |event: &Event| match event {
        Event::LeadershipChanged(change) => Some(*change),
        _ => None,
    };
    let elected = app.until("leadership", leadership).await;
    assert!(elected.leader);
    app.assigned(&[0, 1]).await;
    assert!(app.last_assignment().leader);
    fleet.nodes.settled_tree().await;
    fleet.nodes.put("servers/10.0.0.1", "DISABLED").await;
    app.assigned(&[]).await;
    assert_eq!(app.last_assignment().reason(), AssignmentReason::ServerStatus);
    let deposed = app.until("the loss of leadership", leadership).await;
    assert!(!deposed.leader && deposed.term == 0, "{deposed:?}");
    let no_leader = |tree: &crate::fleet::Tree| !tree.has("leader/election/instance");
    fleet.nodes.until("no leader", no_leader).await;

    // Another server owns the items, and shares them when the first one is enabled again.
    let other = fleet.sidecar_with(2, |_| ()).await;
    let mut second = other.attach(request(None)).await;
    let next = second.until("leadership", leadership).await;
    second.assigned(&[0, 1]).await;
    assert!(second.last_assignment().leader);
    assert!(next.term > elected.term && elected.term > 0, "{next:?} after {elected:?}");
    fleet.nodes.put("servers/10.0.0.1", "ENABLED").await;
    app.assigned(&[1]).await;
    second.assigned(&[0]).await;
    // The status that the operator set outlives the instance.
    fleet.nodes.put("servers/10.0.0.1", "DISABLED").await;
    app.assigned(&[]).await;
    drop(app);
    let app = sidecar.attach(request(None)).await;
    assert!(app.items().is_empty());
    assert_eq!(fleet.nodes.tree().await.text("servers/10.0.0.1").unwrap(), "DISABLED");
}

#[tokio::test]
async fn a_changed_total_reshards_the_items_and_a_changed_cron_applies() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    // At first it fires once a year.
    let configuration = sidekeeper::proto::JobConfiguration { cron: "0 0 0 1 1 ?".to_owned(), ..job(3) };
    let mut app = sidecar.attach(request(configuration)).await;
    app.assigned(&[0, 1, 2]).await;
    let mut watcher = sidecar.watch().await;
    fleet.nodes.edit_configuration("shardingTotalCount: 3", "shardingTotalCount: 5").await;
    app.assigned(&[0, 1, 2, 3, 4]).await;
    fleet.nodes.edit_configuration("shardingTotalCount: 5", "shardingTotalCount: 2").await;
    app.assigned(&[0, 1]).await;
    assert_eq!(app.last_assignment().revoked_items, [2, 3, 4]);
    let state = watcher.until("two items", |state| state.items.len() == 2 && !state.resharding).await;
    assert_eq!(state.configuration.unwrap().sharding_total_count, 2);
    assert_eq!(fleet.nodes.settled_tree().await.children("sharding"), ["0", "1"]);

    fleet.nodes.edit_configuration("0 0 0 1 1 ?", "* * * * * ?").await;
    let changed = |event: &Event| match event {
        Event::JobChanged(changed) => Some(changed.configuration.clone().unwrap().cron),
        _ => None,
    };
    let cron = app.until("the configuration", |event| changed(event).filter(|cron| cron.starts_with('*')));
    assert_eq!(cron.await, "* * * * * ?");
    for execute in app.executes(2).await {
        assert_eq!((execute.source(), execute.sharding_total_count), (ExecutionSource::Schedule, 2));
    }
}

#[tokio::test]
async fn an_instance_whose_node_is_deleted_finishes_its_executions_and_stops() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(each_second(1))).await;
    let execute = app.execute().await;
    fleet.nodes.settled_tree().await;
    fleet.nodes.delete(&format!("instances/{}", app.attached.instance_id)).await;
    // The running execution is recorded. No other one starts: `App` would have it open.
    app.assigned(&[]).await;
    app.report_success(&execute).await;
    let (ended, _) = app.end().await;
    let status = ended.unwrap_err();
    assert_eq!((status.code(), app.open()), (Code::FailedPrecondition, 0));
    assert!(status.message().contains("an operator stopped this instance of job `orders`"), "{status:?}");
    let removed = |tree: &crate::fleet::Tree| {
        tree.running().is_empty()
            && tree.children("instances").is_empty()
            && !tree.has("leader/election/instance")
    };
    fleet.nodes.until("the nodes to be removed", removed).await;
    // The application can attach again.
    let mut back = sidecar.attach(request(None)).await;
    back.assigned(&[0]).await;
}

#[tokio::test]
async fn an_instance_of_a_removed_job_stops_with_the_reason() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(each_second(2))).await;
    let executes = app.executes(2).await;
    fleet.nodes.settled_tree().await;
    // Node by node, as ElasticJob's lifecycle API removes a job. Some nodes, such as latches, change meanwhile.
    loop {
        let tree = fleet.nodes.tree().await;
        let Some(last) = tree.names().pop() else { break };
        fleet.nodes.try_delete(&last).await;
    }
    for execute in &executes {
        app.report_success(execute).await;
    }
    let status = app.end().await.0.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("job `orders` was removed from the registry"), "{status:?}");
    // The sidecar has not written a node of the job again.
    assert_eq!(fleet.nodes.tree().await.names(), [""; 0]);
    let refused = sidecar.refusal(request(None)).await;
    assert_eq!(refused.code(), Code::NotFound);
}
