//! Streams that break, and instances that stay (`sidekeeper.grace`; P6).

use std::time::Duration;

use sidekeeper::config::Config;
use sidekeeper::proto;
use sidekeeper::proto::{CancelReason, CompletionStatus, DetachRequest, ExecutionSource, JobConfiguration};
use tonic::Code;

use crate::ground::{App, Event, Ground, Tree, bounded, request, success, ticking};

fn with_grace(grace: &str, total: u32) -> JobConfiguration {
    let props = [("sidekeeper.grace".to_owned(), grace.to_owned())].into();
    JobConfiguration { props, ..ticking(total) }
}

/// The request of one application's process.
fn of(configuration: JobConfiguration) -> proto::AttachRequest {
    proto::AttachRequest { application_id: "worker-1".to_owned(), ..request(configuration) }
}

fn is_there(tree: &Tree, instance: &str) -> bool {
    tree.children("instances").contains(&instance)
}

#[tokio::test]
async fn an_application_that_comes_back_has_its_executions_again() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(of(with_grace("1h", 2))).await;
    app.assigned(&[0, 1]).await;
    let executes = app.executes(2).await;
    assert!(executes.iter().all(|execute| !execute.resumed));
    let before = ground.outside.tree().await;
    let (old, generation) = (app.attached.clone(), app.generation());
    drop(app);

    let mut back = host.attach(of(with_grace("1h", 2))).await;
    assert_eq!(back.attached.instance_id, old.instance_id);
    assert_ne!(back.attached.attachment_id, old.attachment_id);
    let ids: Vec<_> = executes.iter().map(|execute| execute.execution_id.clone()).collect();
    assert_eq!(back.attached.resumed_execution_ids, ids);
    assert_eq!((back.items(), back.generation()), (vec![0, 1], generation));
    for before in &executes {
        let again = back.execute().await;
        assert_eq!(again, proto::Execute { resumed: true, ..before.clone() });
    }
    // Nothing has moved.
    let after = ground.outside.tree().await;
    for path in ["sharding/0/running", "sharding/1/running", "sharding/0/instance"] {
        assert_eq!(
            before.node(path).map(|node| node.stat.created),
            after.node(path).map(|node| node.stat.created)
        );
    }
    assert_eq!(before.session_of(&old.instance_id), after.session_of(&old.instance_id));
    back.done(&executes[0]).await;
    let unknown = proto::ReportCompletionRequest {
        attachment_id: old.attachment_id,
        results: vec![success(&executes[1].execution_id)],
    };
    let unknown = back.client.report_completion(unknown).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    back.done(&executes[1]).await;
    // Its life goes on.
    assert!(!back.execute().await.resumed);
}

#[tokio::test]
async fn fires_in_the_meantime_are_made_up_for_and_nothing_starts() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(of(with_grace("1h", 1))).await;
    let execute = app.execute().await;
    let mut client = app.client.clone();
    let attachment_id = app.attached.attachment_id.clone();
    drop(app);
    // What ends while the stream is broken is recorded, also for the old attachment.
    let results = vec![success(&execute.execution_id)];
    let report = client.report_completion(proto::ReportCompletionRequest { attachment_id, results });
    let records = bounded("the report", report).await.unwrap().into_inner().records;
    assert_eq!(records[0].status(), CompletionStatus::Recorded);
    ground.outside.until("the fire to be flagged", |tree| tree.has("sharding/0/misfire")).await;
    assert!(ground.outside.tree().await.running().is_empty());

    let mut back = host.attach(of(with_grace("1h", 1))).await;
    assert!(back.attached.resumed_execution_ids.is_empty());
    let made_up = back.execute().await;
    assert_eq!((made_up.source(), made_up.resumed), (ExecutionSource::Misfire, false));
    assert!(made_up.fencing_token > execute.fencing_token);
}

#[tokio::test]
async fn an_application_that_does_not_come_back_leaves_when_its_grace_is_over() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(of(with_grace("700ms", 1))).await;
    app.execute().await;
    let instance = app.attached.instance_id.clone();
    let clock = tokio::time::Instant::now();
    drop(app);
    ground.outside.until("it to have left", |tree| !is_there(tree, &instance)).await;
    assert!(clock.elapsed() >= Duration::from_millis(600), "{:?}", clock.elapsed());
    assert!(ground.outside.tree().await.running().is_empty());
    // The next one is a new instance, which has nothing to resume.
    let next = host.attach(of(with_grace("700ms", 1))).await;
    assert!(next.attached.resumed_execution_ids.is_empty());
}

#[tokio::test]
async fn a_stream_that_is_replaced_hands_over_what_it_has() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut first = host.attach(of(with_grace("1h", 1))).await;
    let execute = first.execute().await;
    let mut second = host.attach(of(with_grace("1h", 1))).await;
    let (ended, _) = first.end().await;
    assert_eq!(ended.unwrap_err().code(), Code::Aborted);
    assert_eq!(second.attached.instance_id, first.attached.instance_id);
    assert_eq!(second.execute().await.execution_id, execute.execution_id);
    second.done(&execute).await;
    // Who asks for something else does not go on with it.
    let other = JobConfiguration { overwrite: Some(true), ..with_grace("1h", 3) };
    let mut third = host.attach(of(other)).await;
    let (ended, _) = second.end().await;
    assert_eq!(ended.unwrap_err().code(), Code::Aborted);
    assert!(third.attached.resumed_execution_ids.is_empty());
    third.assigned(&[0, 1, 2]).await;
}

#[tokio::test]
async fn who_says_that_it_leaves_has_no_grace_and_neither_has_who_cannot_be_known() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(of(with_grace("1h", 1))).await;
    app.execute().await;
    let attachment_id = app.attached.attachment_id.clone();
    let detach =
        |attachment_id: &str| DetachRequest { attachment_id: attachment_id.to_owned(), for_good: false };
    bounded("the answer", app.client.detach(detach(&attachment_id))).await.unwrap();
    let (ended, _) = app.end().await;
    ended.unwrap();
    let empty = |tree: &Tree| tree.children("instances").is_empty() && tree.running().is_empty();
    ground.outside.until("it to have left", empty).await;
    let unknown = app.client.detach(detach(&attachment_id)).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);

    let nameless = host.attach(request(with_grace("1h", 1))).await;
    drop(nameless);
    ground.outside.until("the nameless one to have left", empty).await;
}

#[tokio::test]
async fn what_was_told_to_stop_meanwhile_is_told_on_return() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut configuration = with_grace("1h", 1);
    configuration.props.insert("sidekeeper.execution-timeout".to_owned(), "1500ms".to_owned());
    configuration.props.insert("sidekeeper.cancel-grace".to_owned(), "1h".to_owned());
    let mut app = host.attach(of(configuration.clone())).await;
    let execute = app.execute().await;
    drop(app);
    // Its deadline passes before the second fire from now.
    ground.outside.until("a fire to be flagged", |tree| tree.has("sharding/0/misfire")).await;
    tokio::time::sleep(Duration::from_millis(1600)).await;
    let mut back = host.attach(of(configuration)).await;
    assert_eq!(back.execute().await.execution_id, execute.execution_id);
    let cancel = back.cancel().await;
    assert_eq!((cancel.reason(), &cancel.execution_id), (CancelReason::Deadline, &execute.execution_id));
}

#[tokio::test]
async fn what_an_application_without_a_stream_may_execute_is_left_when_its_grace_is_over() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(of(with_grace("2s", 1))).await;
    app.execute().await;
    let instance = app.attached.instance_id.clone();
    drop(app);
    ground.outside.until("it to be away", |tree| tree.has("sharding/0/misfire")).await;
    assert!(is_there(&ground.outside.tree().await, &instance));
    ground.outside.delete(&format!("instances/{instance}")).await;
    let gone = |tree: &Tree| !is_there(tree, &instance) && tree.running().is_empty();
    ground.outside.until("it to have left", gone).await;
}

/// Nobody can tell it to stop, and the sidecar does not wait for ever: its session outlives the process.
#[tokio::test]
async fn what_an_application_without_a_stream_may_execute_is_not_given_away_by_a_drain_that_is_over() {
    let ground = Ground::new().await;
    let short = |config: &mut Config| config.drain_timeout = Duration::from_millis(100);
    let host = ground.sidecar_with(1, short).await;
    let mut app = host.attach(of(with_grace("1h", 1))).await;
    app.execute().await;
    let instance = app.attached.instance_id.clone();
    drop(app);
    ground.outside.until("it to be away", |tree| tree.has("sharding/0/misfire")).await;
    let session = ground.outside.tree().await.session_of(&instance);
    host.drain().await;
    let left = ground.outside.tree().await;
    assert!(is_there(&left, &instance));
    assert_eq!(left.running().len(), 1);
    ground.registry.expire(session);
    let gone = |tree: &Tree| !is_there(tree, &instance) && tree.running().is_empty();
    ground.outside.until("its session to be over", gone).await;
}

#[tokio::test]
async fn a_lost_session_ends_the_grace() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(of(with_grace("1h", 1))).await;
    let execute = app.execute().await;
    let instance = app.attached.instance_id.clone();
    drop(app);
    ground.outside.until("it to be away", |tree| tree.has("sharding/0/misfire")).await;
    let session = ground.outside.tree().await.session_of(&instance);
    ground.registry.expire(session);
    ground.outside.until("it to have left", |tree| !is_there(tree, &instance)).await;
    let mut back: App = host.attach(of(with_grace("1h", 1))).await;
    assert!(back.attached.resumed_execution_ids.is_empty());
    let late = back.report(vec![success(&execute.execution_id)]).await.unwrap_err();
    assert_eq!(late.code(), Code::NotFound);
    let next = back.until("an execution", |event| match event {
        Event::Execute(execute) => Some(execute.clone()),
        _ => None,
    });
    assert!(next.await.fencing_token > execute.fencing_token);
}

#[tokio::test]
async fn items_of_who_is_away_do_not_change_hands_until_it_is_back() {
    let ground = Ground::new().await;
    let (one, two) = (ground.sidecar().await, ground.sidecar_with(2, |_| ()).await);
    let configuration = JobConfiguration { cron: String::new(), ..with_grace("1h", 2) };
    let mut app = one.attach(of(configuration.clone())).await;
    app.assigned(&[0, 1]).await;
    let instance = app.attached.instance_id.clone();
    drop(app);
    let mut newcomer = two.attach(request(None)).await;
    let owners = |tree: &Tree| [0, 1].map(|item| tree.text(&format!("sharding/{item}/instance")).unwrap());
    assert_eq!(owners(&ground.outside.quiet().await), [instance.clone(), instance.clone()]);
    let mut back = one.attach(of(configuration)).await;
    newcomer.assigned(&[1]).await;
    back.assigned(&[0]).await;
    assert_eq!(back.attached.instance_id, instance);
}
