//! The listener that runs once for all instances, before the first item of a fire and after the last (protocol 6.7).

use sidekeeper::proto::{self, JobConfiguration, ListenerOutcome};
use tonic::Code;

use crate::fleet::{App, Event, Fleet, job, request};

/// A job with the listener and without a schedule: it fires when it is triggered.
fn triggered(total: u32, timeout: &str) -> JobConfiguration {
    let mut configuration = JobConfiguration { cron: String::new(), ..job(total) };
    for (key, value) in [("", "true"), (".started-timeout", timeout), (".completed-timeout", timeout)] {
        configuration.props.insert(format!("sidekeeper.once-listener{key}"), value.to_owned());
    }
    configuration
}

async fn trigger(fleet: &Fleet, apps: &[&App]) {
    for app in apps {
        fleet.nodes.put(&format!("trigger/{}", app.attached.instance_id), "").await;
    }
}

async fn before_first(app: &mut App) -> proto::BeforeFirst {
    let call = |event: &Event| match event {
        Event::BeforeFirst(call) => Some(call.clone()),
        _ => None,
    };
    app.until("BeforeFirst", call).await
}

async fn after_last(app: &mut App) -> proto::AfterLast {
    let call = |event: &Event| match event {
        Event::AfterLast(call) => Some(call.clone()),
        _ => None,
    };
    app.until("AfterLast", call).await
}

async fn answer(app: &App, call: &str, outcome: ListenerOutcome) -> Result<bool, tonic::Status> {
    let request = proto::ReportListenerRequest {
        attachment_id: app.attached.attachment_id.clone(),
        call_id: call.to_owned(),
        outcome: outcome.into(),
        failure_message: String::new(),
    };
    let mut client = app.client.clone();
    client.report_listener(request).await.map(|response| response.into_inner().in_time)
}

#[tokio::test]
async fn all_instances_wait_while_one_runs_the_listener_before_the_first_item_and_after_the_last() {
    let fleet = Fleet::new().await;
    let (one, two) = (fleet.sidecar().await, fleet.sidecar_with(2, |_| ()).await);
    let mut first = one.attach(request(triggered(2, "20s"))).await;
    first.assigned(&[0, 1]).await;
    let mut second = two.attach(request(None)).await;
    first.assigned(&[0]).await;
    second.assigned(&[1]).await;
    fleet.nodes.settled_tree().await;
    trigger(&fleet, &[&second, &first]).await;

    // The owner of the first item runs the listener.
    let call = before_first(&mut first).await;
    assert_eq!(call.job_name, first.attached.job_name);
    assert!(call.deadline.unwrap().seconds > call.scheduled_time.unwrap().seconds);
    let waiting = fleet.nodes.tree().await;
    assert_eq!(waiting.children("guarantee/started"), ["0", "1"]);
    assert!(!waiting.is_ephemeral("guarantee/started/0"));
    assert_eq!(waiting.text("guarantee/started/0").as_deref(), Some(""));
    assert!(waiting.running().is_empty());
    let latch = waiting.children("guarantee/started-latch");
    assert!(latch.iter().any(|name| name.starts_with("_c_") && name.contains("-latch-")), "{latch:?}");
    assert!(answer(&first, &call.call_id, ListenerOutcome::Success).await.unwrap());

    let (of_second, of_first) = (second.execute().await, first.execute().await);
    assert_eq!((of_second.item, of_first.item), (1, 0));
    assert!(!fleet.nodes.tree().await.has("guarantee/started"));
    first.report_success(&of_first).await;
    let one_registered = |tree: &crate::fleet::Tree| tree.children("guarantee/completed") == ["0"];
    fleet.nodes.until("one item to be registered", one_registered).await;
    second.report_success(&of_second).await;
    let last = after_last(&mut first).await;
    assert_ne!(last.call_id, call.call_id);
    assert!(answer(&first, &last.call_id, ListenerOutcome::Success).await.unwrap());
    let removed = |tree: &crate::fleet::Tree| {
        !tree.has("guarantee/started")
            && !tree.has("guarantee/completed")
            && tree.children("guarantee/started-latch").is_empty()
            && tree.children("guarantee/completed-latch").is_empty()
    };
    fleet.nodes.until("the barrier to be removed", removed).await;
    assert!(
        !answer(&first, &last.call_id, ListenerOutcome::Success).await.unwrap(),
        "the call was open again"
    );
}

#[tokio::test]
async fn a_java_peer_and_a_sidecar_wait_for_each_other_at_the_barrier() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(triggered(2, "20s"))).await;
    app.assigned(&[0, 1]).await;
    fleet.nodes.put("servers/10.9.9.9", "ENABLED").await;
    let java = "jobInstanceId: 10.9.9.9@-@77\nserverIp: 10.9.9.9\n";
    fleet.nodes.put("instances/10.9.9.9@-@77", java).await;
    let items = app.until("one item", |event| match event {
        Event::AssignmentChanged(changed) => {
            let items = &changed.assignment.as_ref().unwrap().items;
            (items.len() == 1).then(|| items[0].item)
        }
        _ => None,
    });
    let own_item = items.await;
    fleet.nodes.settled_tree().await;
    trigger(&fleet, &[&app]).await;
    let registered = |tree: &crate::fleet::Tree| tree.children("guarantee/started").len() == 1;
    fleet.nodes.until("the instance to be registered", registered).await;
    fleet.nodes.put(&format!("guarantee/started/{}", 1 - own_item), "").await;
    let call = before_first(&mut app).await;
    assert!(answer(&app, &call.call_id, ListenerOutcome::Success).await.unwrap());
    let execute = app.execute().await;
    app.report_success(&execute).await;
    let ended = |tree: &crate::fleet::Tree| tree.children("guarantee/completed").len() == 1;
    fleet.nodes.until("the instance to be registered", ended).await;
    // The Java peer is quicker this time: it runs the listener, and removes the barrier. The sidecar goes on without a call.
    let parent = fleet.nodes.path("guarantee/completed");
    let own_node = fleet.nodes.path(&format!("guarantee/completed/{own_item}"));
    let removal = [own_node, parent].map(sidekeeper::tree::Operation::delete);
    fleet.nodes.commit(removal.to_vec()).await;
    trigger(&fleet, &[&app]).await;
    fleet.nodes.until("the instance to be registered", registered).await;
}

#[tokio::test]
async fn h25_a_listener_call_without_an_answer_is_ended_and_reported_and_leaves_no_nodes() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(triggered(2, "1s"))).await;
    app.assigned(&[0, 1]).await;
    fleet.nodes.settled_tree().await;
    trigger(&fleet, &[&app]).await;
    let call = before_first(&mut app).await;
    // No answer.
    let problem = app.until("a problem", |event| match event {
        Event::JobChanged(changed) => changed.problems.first().cloned(),
        _ => None,
    });
    let problem = problem.await;
    assert!(problem.path.ends_with("/guarantee/started"), "{problem:?}");
    assert!(problem.message.contains("did not answer in time"), "{problem:?}");
    assert_eq!(problem.code, "ONCE_LISTENER_FAILED");
    assert!(!answer(&app, &call.call_id, ListenerOutcome::Success).await.unwrap());
    let removed = |tree: &crate::fleet::Tree| {
        !tree.has("guarantee/started") && tree.children("guarantee/started-latch").is_empty()
    };
    fleet.nodes.until("the barrier to be removed", removed).await;
    assert_eq!(app.open(), 0);
}

#[tokio::test]
async fn outcomes_of_calls_that_were_never_made_are_refused() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(triggered(1, "20s"))).await;
    app.assigned(&[0]).await;
    let unknown = answer(&app, "unknown-call-1", ListenerOutcome::Success).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    assert!(unknown.message().contains("unknown-call-1"), "{unknown}");
    let unset = answer(&app, "unknown-call-1", ListenerOutcome::Unspecified).await.unwrap_err();
    assert_eq!(unset.code(), Code::InvalidArgument);
    assert!(unset.message().contains("outcome"), "{unset}");
}
