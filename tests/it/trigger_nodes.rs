//! Trigger nodes, as ElasticJob's lifecycle API writes them: the instance fires now (protocol 6.6).

use sidekeeper::proto::{ExecutionSource, JobConfiguration, SessionState};

use crate::fleet::{App, Fleet, each_second, job, request};

async fn trigger(fleet: &Fleet, app: &App) {
    fleet.nodes.put(&format!("trigger/{}", app.attached.instance_id), "").await;
}

async fn taken(fleet: &Fleet) {
    fleet.nodes.until("the trigger to be taken", |tree| tree.children("trigger").is_empty()).await;
}

#[tokio::test]
async fn a_trigger_executes_each_item_of_a_job_without_schedule_once() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(JobConfiguration { cron: String::new(), ..job(3) })).await;
    app.assigned(&[0, 1, 2]).await;
    fleet.nodes.settled_tree().await;
    for _ in 0..2 {
        trigger(&fleet, &app).await;
        let executes = app.executes(3).await;
        taken(&fleet).await;
        for execute in &executes {
            assert_eq!(execute.source(), ExecutionSource::Trigger);
            app.report_success(execute).await;
        }
    }
    assert_eq!(app.open(), 0);
}

#[tokio::test]
async fn h18_items_that_run_at_a_trigger_run_again_when_they_are_free() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(JobConfiguration { cron: String::new(), ..job(1) })).await;
    app.assigned(&[0]).await;
    fleet.nodes.settled_tree().await;
    trigger(&fleet, &app).await;
    let first = app.execute().await;
    taken(&fleet).await;
    trigger(&fleet, &app).await;
    fleet.nodes.until("the flag", |tree| tree.has("sharding/0/misfire")).await;
    taken(&fleet).await;
    app.report_success(&first).await;
    let again = app.execute().await;
    assert_eq!(again.source(), ExecutionSource::Misfire);
    app.report_success(&again).await;
}

#[tokio::test]
async fn a_trigger_for_a_disabled_server_is_removed_without_a_fire() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let configuration = JobConfiguration { disabled: Some(true), ..each_second(1) };
    let mut app = sidecar.attach(request(configuration)).await;
    trigger(&fleet, &app).await;
    taken(&fleet).await;
    fleet.nodes.put("servers/10.0.0.1", "ENABLED").await;
    assert_eq!(app.execute().await.source(), ExecutionSource::Schedule);
}

#[tokio::test]
async fn h27_a_job_without_schedule_survives_an_interruption() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(JobConfiguration { cron: String::new(), ..job(1) })).await;
    app.assigned(&[0]).await;
    let before = fleet.nodes.settled_tree().await;
    let session = before.session_of(&app.attached.instance_id);
    fleet.registry.suspend(session);
    app.session(SessionState::Suspended).await;
    fleet.registry.resume(session);
    app.session(SessionState::Connected).await;
    trigger(&fleet, &app).await;
    let execute = app.execute().await;
    assert_eq!(execute.source(), ExecutionSource::Trigger);
    app.report_success(&execute).await;
    let instance = format!("instances/{}", app.attached.instance_id);
    assert_eq!(fleet.nodes.tree().await.created(&instance), before.created(&instance));
}
