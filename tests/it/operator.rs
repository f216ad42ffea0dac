//! What operators do with the registry's nodes, through the console or by hand (P8).

use sidekeeper::proto::{AssignmentReason, ExecutionSource};
use tonic::Code;

use crate::ground::{Event, Ground, job, request, ticking};

#[tokio::test]
async fn a_disabled_item_is_owned_and_not_executed_until_it_is_enabled() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(ticking(3))).await;
    app.assigned(&[0, 1, 2]).await;
    ground.outside.put("sharding/2/disabled", "").await;
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
    // The helper would object to an execution of a disabled item.
    for _ in 0..2 {
        for execute in app.executes(2).await {
            app.done(&execute).await;
        }
    }
    ground.outside.delete("sharding/2/disabled").await;
    while app.execute().await.item != 2 {}
}

#[tokio::test]
async fn a_disabled_server_gives_everything_away_and_gets_it_back() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(job(2))).await;
    app.assigned(&[0, 1]).await;
    assert!(app.told().leader);
    ground.outside.quiet().await;
    ground.outside.put("servers/10.0.0.1", "DISABLED").await;
    app.assigned(&[]).await;
    assert_eq!(app.told().reason(), AssignmentReason::ServerStatus);
    let deposed = |event: &Event| matches!(event, Event::LeadershipChanged(change) if !change.leader);
    app.until("the loss of leadership", |event| deposed(event).then_some(())).await;
    let no_leader = |tree: &crate::ground::Tree| !tree.has("leader/election/instance");
    ground.outside.until("no leader", no_leader).await;

    // Another server takes over, and shares when the first one is back.
    let other = ground.sidecar_with(2, |_| ()).await;
    let mut second = other.attach(request(None)).await;
    second.assigned(&[0, 1]).await;
    assert!(second.told().leader);
    ground.outside.put("servers/10.0.0.1", "ENABLED").await;
    app.assigned(&[1]).await;
    second.assigned(&[0]).await;
    // The operator's word outlives the instance.
    ground.outside.put("servers/10.0.0.1", "DISABLED").await;
    app.assigned(&[]).await;
    drop(app);
    let app = host.attach(request(None)).await;
    assert!(app.items().is_empty());
    assert_eq!(ground.outside.tree().await.text("servers/10.0.0.1").unwrap(), "DISABLED");
}

#[tokio::test]
async fn another_total_divides_the_items_anew_and_another_cron_is_followed() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    // At first it fires once a year.
    let configuration = sidekeeper::proto::JobConfiguration { cron: "0 0 0 1 1 ?".to_owned(), ..job(3) };
    let mut app = host.attach(request(configuration)).await;
    app.assigned(&[0, 1, 2]).await;
    let mut watcher = host.watch().await;
    ground.outside.edit_configuration("shardingTotalCount: 3", "shardingTotalCount: 5").await;
    app.assigned(&[0, 1, 2, 3, 4]).await;
    ground.outside.edit_configuration("shardingTotalCount: 5", "shardingTotalCount: 2").await;
    app.assigned(&[0, 1]).await;
    assert_eq!(app.told().revoked_items, [2, 3, 4]);
    let state = watcher.until("two items", |state| state.items.len() == 2 && !state.resharding).await;
    assert_eq!(state.configuration.unwrap().sharding_total_count, 2);
    assert_eq!(ground.outside.quiet().await.children("sharding"), ["0", "1"]);

    ground.outside.edit_configuration("0 0 0 1 1 ?", "* * * * * ?").await;
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
async fn an_instance_whose_node_is_deleted_finishes_what_runs_and_stops() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(ticking(1))).await;
    let execute = app.execute().await;
    ground.outside.quiet().await;
    ground.outside.delete(&format!("instances/{}", app.attached.instance_id)).await;
    // What is the application's to finish is recorded; nothing starts any more, or the helper would know of it.
    app.assigned(&[]).await;
    app.done(&execute).await;
    let (ended, _) = app.end().await;
    let status = ended.unwrap_err();
    assert_eq!((status.code(), app.open()), (Code::FailedPrecondition, 0));
    assert!(status.message().contains("an operator stopped this instance of job `orders`"), "{status:?}");
    let left = |tree: &crate::ground::Tree| {
        tree.running().is_empty()
            && tree.children("instances").is_empty()
            && !tree.has("leader/election/instance")
    };
    ground.outside.until("nothing to be left", left).await;
    // Attaching again is how it comes back.
    let mut back = host.attach(request(None)).await;
    back.assigned(&[0]).await;
}

#[tokio::test]
async fn a_job_that_is_removed_whole_stops_and_says_so() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(ticking(2))).await;
    let executes = app.executes(2).await;
    ground.outside.quiet().await;
    // Node by node, as ElasticJob's lifecycle API removes a job; latches and the like come and go.
    loop {
        let tree = ground.outside.tree().await;
        let Some(last) = tree.names().pop() else { break };
        ground.outside.try_delete(&last).await;
    }
    for execute in &executes {
        app.done(execute).await;
    }
    let status = app.end().await.0.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("job `orders` was removed from the registry"), "{status:?}");
    // Nothing of it was written again.
    assert_eq!(ground.outside.tree().await.names(), [""; 0]);
    let refused = host.refusal(request(None)).await;
    assert_eq!(refused.code(), Code::NotFound);
}
