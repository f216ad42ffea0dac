//! Streams that break: the instance stays registered for `reattach_grace` (`sidekeeper.grace`; P6).

use std::time::Duration;

use sidekeeper::config::Config;
use sidekeeper::proto;
use sidekeeper::proto::{CancelReason, CompletionStatus, DetachRequest, ExecutionSource, JobConfiguration};
use tonic::Code;

use crate::fleet::{App, Event, Fleet, Tree, bounded, each_second, request, success};

fn with_grace(grace: &str, total: u32) -> JobConfiguration {
    let mut configuration = each_second(total);
    configuration.props.insert("sidekeeper.grace".to_owned(), grace.to_owned());
    configuration
}

/// The request of one process of an application, with its id.
fn identified(configuration: JobConfiguration) -> proto::AttachRequest {
    proto::AttachRequest { application_id: "worker-1".to_owned(), ..request(configuration) }
}

fn is_registered(tree: &Tree, instance: &str) -> bool {
    tree.children("instances").contains(&instance)
}

#[tokio::test]
async fn an_application_that_reattaches_resumes_its_executions() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(identified(with_grace("1h", 2))).await;
    app.assigned(&[0, 1]).await;
    let executes = app.executes(2).await;
    assert!(executes.iter().all(|execute| !execute.resumed));
    let before = fleet.nodes.tree().await;
    let (old, generation) = (app.attached.clone(), app.generation());
    drop(app);

    let mut reattached = sidecar.attach(identified(with_grace("1h", 2))).await;
    assert_eq!(reattached.attached.instance_id, old.instance_id);
    assert_ne!(reattached.attached.attachment_id, old.attachment_id);
    let ids: Vec<_> = executes.iter().map(|execute| execute.execution_id.clone()).collect();
    assert_eq!(reattached.attached.resumed_execution_ids, ids);
    assert_eq!((reattached.items(), reattached.generation()), (vec![0, 1], generation));
    for before in &executes {
        let again = reattached.execute().await;
        assert_eq!(again, proto::Execute { resumed: true, ..before.clone() });
    }
    // No node was created again.
    let after = fleet.nodes.tree().await;
    for path in ["sharding/0/running", "sharding/1/running", "sharding/0/instance"] {
        assert_eq!(
            before.node(path).map(|node| node.stat.created),
            after.node(path).map(|node| node.stat.created)
        );
    }
    assert_eq!(before.session_of(&old.instance_id), after.session_of(&old.instance_id));
    reattached.report_success(&executes[0]).await;
    let unknown = proto::ReportCompletionRequest {
        attachment_id: old.attachment_id,
        results: vec![success(&executes[1].execution_id)],
    };
    let unknown = reattached.client.report_completion(unknown).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    reattached.report_success(&executes[1]).await;
    // The instance goes on with the next fire.
    assert!(!reattached.execute().await.resumed);
}

#[tokio::test]
async fn fires_missed_by_a_detached_application_are_re_run_after_it_reattaches() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(identified(with_grace("1h", 1))).await;
    let execute = app.execute().await;
    let mut client = app.client.clone();
    let attachment_id = app.attached.attachment_id.clone();
    drop(app);
    // An execution that ends while the stream is broken is recorded, also under the old attachment.
    let results = vec![success(&execute.execution_id)];
    let report = client.report_completion(proto::ReportCompletionRequest { attachment_id, results });
    let records = bounded("the report", report).await.unwrap().into_inner().records;
    assert_eq!(records[0].status(), CompletionStatus::Recorded);
    fleet.nodes.until("the fire to be flagged", |tree| tree.has("sharding/0/misfire")).await;
    assert!(fleet.nodes.tree().await.running().is_empty());

    let mut reattached = sidecar.attach(identified(with_grace("1h", 1))).await;
    assert!(reattached.attached.resumed_execution_ids.is_empty());
    let re_run = reattached.execute().await;
    assert_eq!((re_run.source(), re_run.resumed), (ExecutionSource::Misfire, false));
    assert!(re_run.fencing_token > execute.fencing_token);
}

#[tokio::test]
async fn a_detached_application_leaves_when_reattach_grace_ends() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(identified(with_grace("700ms", 1))).await;
    app.execute().await;
    let instance = app.attached.instance_id.clone();
    let clock = tokio::time::Instant::now();
    drop(app);
    fleet.nodes.until("the instance to leave", |tree| !is_registered(tree, &instance)).await;
    assert!(clock.elapsed() >= Duration::from_millis(600), "{:?}", clock.elapsed());
    assert!(fleet.nodes.tree().await.running().is_empty());
    // The next stream is a new instance, without executions to resume.
    let next = sidecar.attach(identified(with_grace("700ms", 1))).await;
    assert!(next.attached.resumed_execution_ids.is_empty());
}

#[tokio::test]
async fn a_replaced_stream_passes_its_executions_to_the_new_stream() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut first = sidecar.attach(identified(with_grace("1h", 1))).await;
    let execute = first.execute().await;
    let mut second = sidecar.attach(identified(with_grace("1h", 1))).await;
    let (ended, _) = first.end().await;
    assert_eq!(ended.unwrap_err().code(), Code::Aborted);
    assert_eq!(second.attached.instance_id, first.attached.instance_id);
    assert_eq!(second.execute().await.execution_id, execute.execution_id);
    second.report_success(&execute).await;
    // A stream with another configuration does not resume the executions.
    let other = JobConfiguration { overwrite: Some(true), ..with_grace("1h", 3) };
    let mut third = sidecar.attach(identified(other)).await;
    let (ended, _) = second.end().await;
    assert_eq!(ended.unwrap_err().code(), Code::Aborted);
    assert!(third.attached.resumed_execution_ids.is_empty());
    third.assigned(&[0, 1, 2]).await;
}

#[tokio::test]
async fn an_application_that_detaches_or_has_no_id_has_no_reattach_grace() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(identified(with_grace("1h", 1))).await;
    app.execute().await;
    let attachment_id = app.attached.attachment_id.clone();
    let detach =
        |attachment_id: &str| DetachRequest { attachment_id: attachment_id.to_owned(), for_good: false };
    bounded("the answer", app.client.detach(detach(&attachment_id))).await.unwrap();
    let (ended, _) = app.end().await;
    ended.unwrap();
    let empty = |tree: &Tree| tree.children("instances").is_empty() && tree.running().is_empty();
    fleet.nodes.until("the instance to leave", empty).await;
    let unknown = app.client.detach(detach(&attachment_id)).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);

    let nameless = sidecar.attach(request(with_grace("1h", 1))).await;
    drop(nameless);
    fleet.nodes.until("the instance without an id to leave", empty).await;
}

#[tokio::test]
async fn a_cancel_for_a_detached_application_is_sent_when_it_reattaches() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut configuration = with_grace("1h", 1);
    configuration.props.insert("sidekeeper.execution-timeout".to_owned(), "1500ms".to_owned());
    configuration.props.insert("sidekeeper.cancel-grace".to_owned(), "1h".to_owned());
    let mut app = sidecar.attach(identified(configuration.clone())).await;
    let execute = app.execute().await;
    drop(app);
    // The deadline passes meanwhile.
    fleet.nodes.until("a fire to be flagged", |tree| tree.has("sharding/0/misfire")).await;
    tokio::time::sleep(Duration::from_millis(1600)).await;
    let mut reattached = sidecar.attach(identified(configuration)).await;
    assert_eq!(reattached.execute().await.execution_id, execute.execution_id);
    let cancel = reattached.cancel().await;
    assert_eq!((cancel.reason(), &cancel.execution_id), (CancelReason::Deadline, &execute.execution_id));
}

#[tokio::test]
async fn a_detached_application_whose_node_is_deleted_leaves_when_reattach_grace_ends() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(identified(with_grace("2s", 1))).await;
    app.execute().await;
    let instance = app.attached.instance_id.clone();
    drop(app);
    fleet
        .nodes
        .until("a fire to be missed by the detached application", |tree| tree.has("sharding/0/misfire"))
        .await;
    assert!(is_registered(&fleet.nodes.tree().await, &instance));
    fleet.nodes.delete(&format!("instances/{instance}")).await;
    let removed = |tree: &Tree| !is_registered(tree, &instance) && tree.running().is_empty();
    fleet.nodes.until("the instance to leave", removed).await;
}

/// The sidecar cannot cancel the executions, and does not wait for ever: its session outlives the process.
#[tokio::test]
async fn a_drain_leaves_the_nodes_of_a_detached_application_until_the_session_ends() {
    let fleet = Fleet::new().await;
    let short = |config: &mut Config| config.drain_timeout = Duration::from_millis(100);
    let sidecar = fleet.sidecar_with(1, short).await;
    let mut app = sidecar.attach(identified(with_grace("1h", 1))).await;
    app.execute().await;
    let instance = app.attached.instance_id.clone();
    drop(app);
    fleet
        .nodes
        .until("a fire to be missed by the detached application", |tree| tree.has("sharding/0/misfire"))
        .await;
    let session = fleet.nodes.tree().await.session_of(&instance);
    sidecar.drain().await;
    let left = fleet.nodes.tree().await;
    assert!(is_registered(&left, &instance));
    assert_eq!(left.running().len(), 1);
    fleet.registry.expire(session);
    let removed = |tree: &Tree| !is_registered(tree, &instance) && tree.running().is_empty();
    fleet.nodes.until("the session to end", removed).await;
}

#[tokio::test]
async fn a_lost_session_ends_reattach_grace() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(identified(with_grace("1h", 1))).await;
    let execute = app.execute().await;
    let instance = app.attached.instance_id.clone();
    drop(app);
    fleet
        .nodes
        .until("a fire to be missed by the detached application", |tree| tree.has("sharding/0/misfire"))
        .await;
    let session = fleet.nodes.tree().await.session_of(&instance);
    fleet.registry.expire(session);
    fleet.nodes.until("the instance to leave", |tree| !is_registered(tree, &instance)).await;
    let mut reattached: App = sidecar.attach(identified(with_grace("1h", 1))).await;
    assert!(reattached.attached.resumed_execution_ids.is_empty());
    let late = reattached.report(vec![success(&execute.execution_id)]).await.unwrap_err();
    assert_eq!(late.code(), Code::NotFound);
    let next = reattached.until("an execution", |event| match event {
        Event::Execute(execute) => Some(execute.clone()),
        _ => None,
    });
    assert!(next.await.fencing_token > execute.fencing_token);
}

#[tokio::test]
async fn items_of_a_detached_instance_stay_with_it_until_it_reattaches() {
    let fleet = Fleet::new().await;
    let (one, two) = (fleet.sidecar().await, fleet.sidecar_with(2, |_| ()).await);
    let configuration = JobConfiguration { cron: String::new(), ..with_grace("1h", 2) };
    let mut app = one.attach(identified(configuration.clone())).await;
    app.assigned(&[0, 1]).await;
    let instance = app.attached.instance_id.clone();
    drop(app);
    let mut newcomer = two.attach(request(None)).await;
    let owners = |tree: &Tree| [0, 1].map(|item| tree.text(&format!("sharding/{item}/instance")).unwrap());
    assert_eq!(owners(&fleet.nodes.settled_tree().await), [instance.clone(), instance.clone()]);
    let mut reattached = one.attach(identified(configuration)).await;
    newcomer.assigned(&[1]).await;
    reattached.assigned(&[0]).await;
    assert_eq!(reattached.attached.instance_id, instance);
}
