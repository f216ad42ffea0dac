//! Fires that meet an execution which has not ended (P5).

use sidekeeper::proto::{Execute, ExecutionSource, JobConfiguration};

use crate::ground::{App, Ground, Host, Tree, request, request_for, ticking, warnings_about};

/// Fires in even seconds; somebody else tells the odd ones, so that nothing here happens close to a fire.
const EVEN: &str = "0/2 * * * * ?";

fn seconds(execute: &Execute) -> i64 {
    execute.scheduled_time.unwrap().seconds
}

struct Scene {
    ground: Ground,
    _host: Host,
    app: App,
    timekeeper: App,
    first: Execute,
}

impl Scene {
    async fn set(misfire: bool) -> Self {
        let ground = Ground::new().await;
        let host = ground.sidecar().await;
        let configuration = JobConfiguration { cron: EVEN.to_owned(), misfire: Some(misfire), ..ticking(1) };
        let mut app = host.attach(request(configuration)).await;
        let timekeeper = host.attach(request_for("payments", ticking(1))).await;
        app.assigned(&[0]).await;
        let first = app.execute().await;
        Self { ground, _host: host, app, timekeeper, first }
    }

    /// Waits for an odd second that is so far after the first fire.
    async fn pass(&mut self, at_least: i64) {
        loop {
            let tick = self.timekeeper.execute().await;
            self.timekeeper.done(&tick).await;
            if seconds(&tick) % 2 == 1 && seconds(&tick) - seconds(&self.first) >= at_least {
                return;
            }
        }
    }
}

#[tokio::test]
async fn p5_however_many_fires_were_missed_one_execution_makes_up_for_them_at_once() {
    let mut scene = Scene::set(true).await;
    // The fires after two and four seconds are missed.
    scene.pass(5).await;
    scene.ground.outside.until("the flag", |tree| tree.has("sharding/0/misfire")).await;
    let first = scene.first.clone();
    scene.app.done(&first).await;
    let made_up = scene.app.execute().await;
    assert_eq!(made_up.source(), ExecutionSource::Misfire);
    let missed = seconds(&made_up) - seconds(&first);
    assert!((2..=4).contains(&missed), "{missed} s after the first");
    // At once: before the next fire.
    let late = made_up.fire_time.unwrap().seconds - seconds(&first);
    assert_eq!(late, 5);
    assert!(!scene.ground.outside.tree().await.has("sharding/0/misfire"));
    scene.app.done(&made_up).await;
    let next = scene.app.execute().await;
    assert_eq!(next.source(), ExecutionSource::Schedule);
    assert_eq!(seconds(&next) - seconds(&first), 6);
    assert!(next.fencing_token > made_up.fencing_token);
}

#[tokio::test]
async fn without_misfire_what_was_missed_is_skipped() {
    let mut scene = Scene::set(false).await;
    scene.pass(3).await;
    let first = scene.first.clone();
    let flagged = |tree: &Tree| tree.has("sharding/0/misfire");
    assert!(!flagged(&scene.ground.outside.tree().await));
    scene.app.done(&first).await;
    let next = scene.app.execute().await;
    assert_eq!(next.source(), ExecutionSource::Schedule);
    assert_eq!(seconds(&next) - seconds(&first), 4);
    // It is not skipped in silence.
    assert!(warnings_about(&scene.app.attached.instance_id).iter().any(|line| line.contains("fire skipped")));
}

#[tokio::test]
async fn p5_a_flag_that_another_instance_left_is_made_up_for() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let yearly = JobConfiguration { cron: "0 0 0 1 1 ?".to_owned(), ..ticking(2) };
    let mut app = host.attach(request(yearly)).await;
    app.assigned(&[0, 1]).await;
    ground.outside.quiet().await;
    ground.outside.put("sharding/1/misfire", "").await;
    let execute = app.execute().await;
    assert_eq!((execute.item, execute.source()), (1, ExecutionSource::Misfire));
    assert!(!ground.outside.tree().await.has("sharding/1/misfire"));
}
