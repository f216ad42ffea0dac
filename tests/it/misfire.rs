//! Fires while an execution of the item has not ended (P5).

use sidekeeper::proto::{Execute, ExecutionSource, JobConfiguration};

use crate::fleet::{App, Fleet, RunningSidecar, Tree, each_second, request, request_for, warnings_about};

/// The job fires in even seconds. The test acts in odd seconds, which another job shows, so never close to a fire.
const EVEN: &str = "0/2 * * * * ?";

fn seconds(execute: &Execute) -> i64 {
    execute.scheduled_time.unwrap().seconds
}

struct SlowExecution {
    fleet: Fleet,
    _sidecar: RunningSidecar,
    app: App,
    timekeeper: App,
    first: Execute,
}

impl SlowExecution {
    async fn start(misfire: bool) -> Self {
        let fleet = Fleet::new().await;
        let sidecar = fleet.sidecar().await;
        let configuration =
            JobConfiguration { cron: EVEN.to_owned(), misfire: Some(misfire), ..each_second(1) };
        let mut app = sidecar.attach(request(configuration)).await;
        let timekeeper = sidecar.attach(request_for("payments", each_second(1))).await;
        app.assigned(&[0]).await;
        let first = app.execute().await;
        Self { fleet, _sidecar: sidecar, app, timekeeper, first }
    }

    /// Waits for an odd second, at least so many seconds after the first fire.
    async fn wait_for_odd_second(&mut self, at_least: i64) {
        loop {
            let tick = self.timekeeper.execute().await;
            self.timekeeper.report_success(&tick).await;
            if seconds(&tick) % 2 == 1 && seconds(&tick) - seconds(&self.first) >= at_least {
                return;
            }
        }
    }
}

#[tokio::test]
async fn p5_one_misfire_re_run_starts_at_once_for_several_missed_fires() {
    let mut setup = SlowExecution::start(true).await;
    // The fires after two and four seconds are missed.
    setup.wait_for_odd_second(5).await;
    setup.fleet.nodes.until("the flag", |tree| tree.has("sharding/0/misfire")).await;
    let first = setup.first.clone();
    setup.app.report_success(&first).await;
    let re_run = setup.app.execute().await;
    assert_eq!(re_run.source(), ExecutionSource::Misfire);
    let missed = seconds(&re_run) - seconds(&first);
    assert!((2..=4).contains(&missed), "{missed} s after the first");
    // It starts at once, before the next fire.
    let late = re_run.fire_time.unwrap().seconds - seconds(&first);
    assert_eq!(late, 5);
    assert!(!setup.fleet.nodes.tree().await.has("sharding/0/misfire"));
    setup.app.report_success(&re_run).await;
    let next = setup.app.execute().await;
    assert_eq!(next.source(), ExecutionSource::Schedule);
    assert_eq!(seconds(&next) - seconds(&first), 6);
    assert!(next.fencing_token > re_run.fencing_token);
}

#[tokio::test]
async fn without_misfire_missed_fires_are_skipped_with_a_warning() {
    let mut setup = SlowExecution::start(false).await;
    setup.wait_for_odd_second(3).await;
    let first = setup.first.clone();
    let flagged = |tree: &Tree| tree.has("sharding/0/misfire");
    assert!(!flagged(&setup.fleet.nodes.tree().await));
    setup.app.report_success(&first).await;
    let next = setup.app.execute().await;
    assert_eq!(next.source(), ExecutionSource::Schedule);
    assert_eq!(seconds(&next) - seconds(&first), 4);
    // The skipped fire is logged.
    assert!(warnings_about(&setup.app.attached.instance_id).iter().any(|line| line.contains("fire skipped")));
}

#[tokio::test]
async fn p5_a_misfire_flag_of_another_instance_is_re_run() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let yearly = JobConfiguration { cron: "0 0 0 1 1 ?".to_owned(), ..each_second(2) };
    let mut app = sidecar.attach(request(yearly)).await;
    app.assigned(&[0, 1]).await;
    fleet.nodes.settled_tree().await;
    fleet.nodes.put("sharding/1/misfire", "").await;
    let execute = app.execute().await;
    assert_eq!((execute.item, execute.source()), (1, ExecutionSource::Misfire));
    assert!(!fleet.nodes.tree().await.has("sharding/1/misfire"));
}
