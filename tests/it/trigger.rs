//! Somebody asks an instance to fire now (protocol 6.6), as the lifecycle API does.

use sidekeeper::proto::{ExecutionSource, JobConfiguration, SessionState};

use crate::ground::{App, Ground, job, request, ticking};

async fn trigger(ground: &Ground, app: &App) {
    ground.outside.put(&format!("trigger/{}", app.attached.instance_id), "").await;
}

async fn taken(ground: &Ground) {
    ground.outside.until("the trigger to be taken", |tree| tree.children("trigger").is_empty()).await;
}

#[tokio::test]
async fn a_trigger_executes_each_item_of_a_job_without_schedule_once() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(JobConfiguration { cron: String::new(), ..job(3) })).await;
    app.assigned(&[0, 1, 2]).await;
    ground.outside.quiet().await;
    for _ in 0..2 {
        trigger(&ground, &app).await;
        let executes = app.executes(3).await;
        taken(&ground).await;
        for execute in &executes {
            assert_eq!(execute.source(), ExecutionSource::Trigger);
            app.done(execute).await;
        }
    }
    assert_eq!(app.open(), 0);
}

#[tokio::test]
async fn h18_items_that_run_when_the_trigger_comes_run_again_when_they_are_free() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(JobConfiguration { cron: String::new(), ..job(1) })).await;
    app.assigned(&[0]).await;
    ground.outside.quiet().await;
    trigger(&ground, &app).await;
    let first = app.execute().await;
    taken(&ground).await;
    trigger(&ground, &app).await;
    ground.outside.until("the flag", |tree| tree.has("sharding/0/misfire")).await;
    taken(&ground).await;
    app.done(&first).await;
    let again = app.execute().await;
    assert_eq!(again.source(), ExecutionSource::Misfire);
    app.done(&again).await;
}

#[tokio::test]
async fn a_trigger_for_a_disabled_server_is_swallowed() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let configuration = JobConfiguration { disabled: Some(true), ..ticking(1) };
    let mut app = host.attach(request(configuration)).await;
    trigger(&ground, &app).await;
    taken(&ground).await;
    ground.outside.put("servers/10.0.0.1", "ENABLED").await;
    assert_eq!(app.execute().await.source(), ExecutionSource::Schedule);
}

#[tokio::test]
async fn h27_a_job_without_schedule_survives_an_interruption() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(JobConfiguration { cron: String::new(), ..job(1) })).await;
    app.assigned(&[0]).await;
    let before = ground.outside.quiet().await;
    let session = before.session_of(&app.attached.instance_id);
    ground.registry.suspend(session);
    app.session(SessionState::Suspended).await;
    ground.registry.resume(session);
    app.session(SessionState::Connected).await;
    trigger(&ground, &app).await;
    let execute = app.execute().await;
    assert_eq!(execute.source(), ExecutionSource::Trigger);
    app.done(&execute).await;
    let instance = format!("instances/{}", app.attached.instance_id);
    assert_eq!(ground.outside.tree().await.created(&instance), before.created(&instance));
}
