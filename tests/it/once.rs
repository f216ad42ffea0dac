//! One instance acts for all, before the first item of a fire and after the last (protocol 6.7).

use sidekeeper::proto::{self, JobConfiguration, ListenerOutcome};
use tonic::Code;

use crate::ground::{App, Event, Ground, job, request};

/// A job that runs when it is triggered, with the listener.
fn triggered(total: u32, timeout: &str) -> JobConfiguration {
    let mut configuration = JobConfiguration { cron: String::new(), ..job(total) };
    for (key, value) in [("", "true"), (".started-timeout", timeout), (".completed-timeout", timeout)] {
        configuration.props.insert(format!("sidekeeper.once-listener{key}"), value.to_owned());
    }
    configuration
}

async fn trigger(ground: &Ground, apps: &[&App]) {
    for app in apps {
        ground.outside.put(&format!("trigger/{}", app.attached.instance_id), "").await;
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
async fn all_instances_wait_while_one_acts_before_the_first_item_and_after_the_last() {
    let ground = Ground::new().await;
    let (one, two) = (ground.sidecar().await, ground.sidecar_with(2, |_| ()).await);
    let mut first = one.attach(request(triggered(2, "20s"))).await;
    first.assigned(&[0, 1]).await;
    let mut second = two.attach(request(None)).await;
    first.assigned(&[0]).await;
    second.assigned(&[1]).await;
    ground.outside.quiet().await;
    trigger(&ground, &[&second, &first]).await;

    // The owner of the first item acts.
    let call = before_first(&mut first).await;
    assert_eq!(call.job_name, first.attached.job_name);
    assert!(call.deadline.unwrap().seconds > call.scheduled_time.unwrap().seconds);
    let waiting = ground.outside.tree().await;
    assert_eq!(waiting.children("guarantee/started"), ["0", "1"]);
    assert!(!waiting.is_ephemeral("guarantee/started/0"));
    assert_eq!(waiting.text("guarantee/started/0").as_deref(), Some(""));
    assert!(waiting.running().is_empty());
    let latch = waiting.children("guarantee/started-latch");
    assert!(latch.iter().any(|name| name.starts_with("_c_") && name.contains("-latch-")), "{latch:?}");
    assert!(answer(&first, &call.call_id, ListenerOutcome::Success).await.unwrap());

    let (of_second, of_first) = (second.execute().await, first.execute().await);
    assert_eq!((of_second.item, of_first.item), (1, 0));
    assert!(!ground.outside.tree().await.has("guarantee/started"));
    first.done(&of_first).await;
    let one_there = |tree: &crate::ground::Tree| tree.children("guarantee/completed") == ["0"];
    ground.outside.until("one item to be registered", one_there).await;
    second.done(&of_second).await;
    let last = after_last(&mut first).await;
    assert_ne!(last.call_id, call.call_id);
    assert!(answer(&first, &last.call_id, ListenerOutcome::Success).await.unwrap());
    let gone = |tree: &crate::ground::Tree| {
        !tree.has("guarantee/started")
            && !tree.has("guarantee/completed")
            && tree.children("guarantee/started-latch").is_empty()
            && tree.children("guarantee/completed-latch").is_empty()
    };
    ground.outside.until("nothing to be registered", gone).await;
    assert!(!answer(&first, &last.call_id, ListenerOutcome::Success).await.unwrap(), "it came again");
}

#[tokio::test]
async fn a_java_peer_and_we_wait_for_each_other() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(triggered(2, "20s"))).await;
    app.assigned(&[0, 1]).await;
    ground.outside.put("servers/10.9.9.9", "ENABLED").await;
    let java = "jobInstanceId: 10.9.9.9@-@77\nserverIp: 10.9.9.9\n";
    ground.outside.put("instances/10.9.9.9@-@77", java).await;
    let items = app.until("one item", |event| match event {
        Event::AssignmentChanged(changed) => {
            let items = &changed.assignment.as_ref().unwrap().items;
            (items.len() == 1).then(|| items[0].item)
        }
        _ => None,
    });
    let ours = items.await;
    ground.outside.quiet().await;
    trigger(&ground, &[&app]).await;
    let registered = |tree: &crate::ground::Tree| tree.children("guarantee/started").len() == 1;
    ground.outside.until("us to be registered", registered).await;
    ground.outside.put(&format!("guarantee/started/{}", 1 - ours), "").await;
    let call = before_first(&mut app).await;
    assert!(answer(&app, &call.call_id, ListenerOutcome::Success).await.unwrap());
    let execute = app.execute().await;
    app.done(&execute).await;
    let ended = |tree: &crate::ground::Tree| tree.children("guarantee/completed").len() == 1;
    ground.outside.until("us to be registered", ended).await;
    // This time the Java peer is quicker: it acts, and removes the gate. We go on without acting.
    let parent = ground.outside.path("guarantee/completed");
    let ours_there = ground.outside.path(&format!("guarantee/completed/{ours}"));
    let removal = [ours_there, parent].map(sidekeeper::tree::Operation::delete);
    ground.outside.commit(removal.to_vec()).await;
    trigger(&ground, &[&app]).await;
    ground.outside.until("us to be registered", registered).await;
}

#[tokio::test]
async fn h25_a_wait_without_end_is_ended_reported_and_leaves_nothing() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(triggered(2, "1s"))).await;
    app.assigned(&[0, 1]).await;
    ground.outside.quiet().await;
    trigger(&ground, &[&app]).await;
    let call = before_first(&mut app).await;
    // No answer.
    let problem = app.until("a problem", |event| match event {
        Event::JobChanged(changed) => changed.problems.first().cloned(),
        _ => None,
    });
    let problem = problem.await;
    assert!(problem.path.ends_with("/guarantee/started"), "{problem:?}");
    assert!(problem.message.contains("did not answer in time"), "{problem:?}");
    assert!(!answer(&app, &call.call_id, ListenerOutcome::Success).await.unwrap());
    let gone = |tree: &crate::ground::Tree| {
        !tree.has("guarantee/started") && tree.children("guarantee/started-latch").is_empty()
    };
    ground.outside.until("nothing to be registered", gone).await;
    assert_eq!(app.open(), 0);
}

#[tokio::test]
async fn outcomes_of_calls_that_were_never_made_are_refused() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(triggered(1, "20s"))).await;
    app.assigned(&[0]).await;
    let unknown = answer(&app, "nobody-call-1", ListenerOutcome::Success).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    assert!(unknown.message().contains("nobody-call-1"), "{unknown}");
    let unset = answer(&app, "nobody-call-1", ListenerOutcome::Unspecified).await.unwrap_err();
    assert_eq!(unset.code(), Code::InvalidArgument);
    assert!(unset.message().contains("outcome"), "{unset}");
}
