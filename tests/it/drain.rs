//! Drains of the sidecar: by a stop, in a hurry, by a call; and of one application that stops (P6; design 5).

use std::time::Duration;

use sidekeeper::config::Config;
use sidekeeper::proto::job_service_client::JobServiceClient;
use sidekeeper::proto::sidecar_service_client::SidecarServiceClient;
use sidekeeper::proto::{
    AssignmentReason, CancelReason, DetachRequest, DrainAttachmentRequest, DrainRequest, ExecutionSource,
    JobConfiguration, TriggerJobRequest,
};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::fleet::{
    App, Event, Fleet, JOB, RunningSidecar, Tree, bounded, each_second, job, request, request_for,
};

async fn draining(app: &mut App) {
    app.until("Draining", |event| matches!(event, Event::Draining(_)).then_some(())).await;
}

/// Drains while the application does its part.
async fn drain_while<T>(
    sidecar: RunningSidecar,
    hurry: watch::Receiver<bool>,
    application: impl Future<Output = T>,
) -> T {
    let both = Box::pin(futures::future::join(sidecar.inner.drain(hurry), application));
    bounded("the drain", both).await.1
}

/// The registry has no node of a stopped sidecar.
fn assert_no_nodes(tree: &Tree) {
    assert_eq!(tree.children("instances"), [""; 0]);
    assert!(tree.running().is_empty() && !tree.has("leader/election/instance"), "{tree:#?}");
    assert!(tree.children("leader/election/latch").is_empty());
}

#[tokio::test]
async fn a_drain_lets_executions_finish_and_leaves_no_nodes() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(each_second(2))).await;
    app.assigned(&[0, 1]).await;
    let executes = app.executes(2).await;
    let newcomer = sidecar.participants().await;
    let (_no_hurry, hurry) = watch::channel(false);
    let application = async {
        draining(&mut app).await;
        let refused = App::attach(newcomer, request_for("payments", job(1))).await.err().unwrap();
        assert_eq!(refused.code(), Code::Unavailable);
        assert!(refused.message().contains("the sidecar is stopping"), "{refused:?}");
        for execute in &executes {
            app.report_success(execute).await;
        }
        app.end().await
    };
    let (ended, events) = drain_while(sidecar, hurry, application).await;
    ended.unwrap();
    let last = events.last();
    assert!(
        matches!(last, Some(Event::AssignmentChanged(changed))
            if changed.reason() == AssignmentReason::Draining && changed.revoked_items == [0, 1]),
        "{events:#?}"
    );
    assert!(!events.iter().any(|event| matches!(event, Event::Execute(_) | Event::Cancel(_))));
    assert_no_nodes(&fleet.nodes.tree().await);
}

#[tokio::test]
async fn an_application_that_stops_gets_nothing_more_and_leaves_when_it_detaches() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(each_second(1))).await;
    let execute = app.execute().await;
    let attachment_id = app.attached.attachment_id.clone();
    let drain = DrainAttachmentRequest { attachment_id: attachment_id.clone(), for_good: false };
    bounded("the answer", app.client.drain_attachment(drain.clone())).await.unwrap();
    let deadline = app
        .until("Draining", |event| match event {
            Event::Draining(draining) => Some(draining.deadline),
            _ => None,
        })
        .await;
    assert_eq!(deadline, None);
    bounded("the second answer", app.client.drain_attachment(drain.clone())).await.unwrap();
    app.report_success(&execute).await;
    let missed = |tree: &Tree| tree.has("sharding/0/misfire") && tree.running().is_empty();
    fleet.nodes.until("a fire to be missed", missed).await;

    // The next instance executes what was missed, while the application still has its stream.
    let mut next = sidecar.attach(request(None)).await;
    assert_eq!(next.execute().await.source(), ExecutionSource::Misfire);
    assert_eq!(fleet.nodes.tree().await.children("instances").len(), 2);
    let detach = DetachRequest { attachment_id, for_good: false };
    bounded("the answer", app.client.detach(detach)).await.unwrap();
    let (ended, events) = app.end().await;
    ended.unwrap();
    assert!(!events.iter().any(|event| matches!(event, Event::Cancel(_))), "{events:#?}");
    let unknown = next.client.drain_attachment(drain).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
}

#[tokio::test]
async fn the_items_of_a_drained_sidecar_move_to_another_sidecar() {
    let fleet = Fleet::new().await;
    let (one, two) = (fleet.sidecar().await, fleet.sidecar_with(2, |_| ()).await);
    let mut leaves = one.attach(request(each_second(2))).await;
    leaves.assigned(&[0, 1]).await;
    let mut stays = two.attach(request(None)).await;
    stays.assigned(&[1]).await;
    drop(leaves);
    one.drain().await;
    stays.assigned(&[0, 1]).await;
    stays.executes(2).await;
}

#[tokio::test]
async fn executions_that_outlast_the_drain_are_cancelled_and_flagged_for_failover() {
    let fleet = Fleet::new().await;
    let short = |config: &mut Config| config.drain_timeout = Duration::from_millis(100);
    let sidecar = fleet.sidecar_with(1, short).await;
    // With failover, running nodes do not end with the session.
    let configuration = JobConfiguration { failover: Some(true), ..each_second(2) };
    let mut app = sidecar.attach(request(configuration)).await;
    app.assigned(&[0, 1]).await;
    let executes = app.executes(2).await;
    let (_no_hurry, hurry) = watch::channel(false);
    let application = async {
        draining(&mut app).await;
        for _ in 0..2 {
            let cancel = app.cancel().await;
            assert_eq!(cancel.reason(), CancelReason::DrainTimeout);
        }
        // The application stops one of them, and never reports the other one.
        app.report_success(&executes[0]).await;
        app.end().await.0
    };
    let ended = drain_while(sidecar, hurry, application).await;
    ended.unwrap();
    let tree = fleet.nodes.tree().await;
    assert_eq!(tree.children("instances"), [""; 0]);
    let unfinished = executes[1].item.to_string();
    assert_eq!(tree.children("leader/failover/items"), [unfinished.as_str()]);
}

#[tokio::test]
async fn a_hurried_drain_cancels_executions_and_leaves_no_nodes() {
    let fleet = Fleet::new().await;
    // The drain timeout is too long to be reached.
    let hour = |config: &mut Config| config.drain_timeout = Duration::from_secs(3600);
    let sidecar = fleet.sidecar_with(1, hour).await;
    let mut app = sidecar.attach(request(each_second(2))).await;
    app.assigned(&[0, 1]).await;
    let executes = app.executes(2).await;
    let (hurry_sender, hurry) = watch::channel(false);
    let application = async {
        draining(&mut app).await;
        hurry_sender.send_replace(true);
        for _ in 0..2 {
            let cancel = app.cancel().await;
            assert_eq!(cancel.reason(), CancelReason::DrainTimeout);
        }
        // The application stops one within `drain_cancel_grace`, which is recorded, and never reports the other one.
        app.report_success(&executes[0]).await;
        app.end().await.0
    };
    drain_while(sidecar, hurry, application).await.unwrap();
    assert_no_nodes(&fleet.nodes.tree().await);
}

#[tokio::test]
async fn a_drain_by_call_answers_when_all_instances_have_left_and_the_sidecar_stays_unready() {
    let fleet = Fleet::new().await;
    let (sidecar, peer) = (fleet.sidecar().await, fleet.sidecar_with(2, |_| ()).await);
    let mut app = sidecar.attach(request(job(2))).await;
    let mut stays = peer.attach(request(None)).await;
    app.assigned(&[0]).await;
    let trigger = TriggerJobRequest { job_name: JOB.to_owned(), ..Default::default() };
    JobServiceClient::new(sidecar.connect().await).trigger_job(trigger).await.unwrap();
    let execute = app.execute().await;
    let mut service = SidecarServiceClient::new(sidecar.connect().await);
    let mut health = HealthClient::new(sidecar.connect().await);
    let call = async { service.drain(DrainRequest::default()).await.unwrap().into_inner() };
    let application = async {
        draining(&mut app).await;
        let health = health.check(HealthCheckRequest::default()).await.unwrap().into_inner();
        assert_eq!(health.status(), ServingStatus::NotServing);
        // The instance keeps the item until its execution ends.
        assert!(fleet.nodes.tree().await.running().contains(&"0"));
        app.report_success(&execute).await;
        app.end().await
    };
    let (drained, (ended, events)) =
        bounded("the drain", Box::pin(futures::future::join(call, application))).await;
    ended.unwrap();
    assert!(!events.iter().any(|event| matches!(event, Event::Execute(_) | Event::Cancel(_))), "{events:#?}");
    let [instance] = &drained.instances[..] else { panic!("{drained:?}") };
    assert_eq!((&*instance.job_name, &instance.instance_id), ("orders", &app.attached.instance_id));
    assert_eq!(fleet.nodes.tree().await.children("instances"), [stays.attached.instance_id.clone()]);
    stays.assigned(&[0, 1]).await;
    // The sidecar still runs, and refuses new applications; a second call and the stop have nothing left to do.
    let refused = sidecar.refusal(request(None)).await;
    assert_eq!(refused.code(), Code::Unavailable);
    let again = bounded("the second drain", service.drain(DrainRequest::default())).await.unwrap();
    assert!(again.into_inner().instances.is_empty());
    sidecar.drain().await;
}

#[tokio::test]
async fn the_earliest_deadline_of_several_drains_applies() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(each_second(1))).await;
    let execute = app.execute().await;
    let drain = |seconds: i64| {
        let mut service = SidecarServiceClient::new(sidecar.lazy_channel());
        let timeout = Some(prost_types::Duration { seconds, nanos: 0 });
        async move { bounded("a drain", service.drain(DrainRequest { timeout, for_good: false })).await }
    };
    let application = async {
        draining(&mut app).await;
        let cancel = app.cancel().await;
        assert_eq!(cancel.reason(), CancelReason::DrainTimeout);
        app.report_success(&execute).await;
        app.end().await.0
    };
    let drains = Box::pin(futures::future::join3(drain(3600), drain(0), drain(1800)));
    let ((first, second, third), ended) = futures::future::join(drains, application).await;
    ended.unwrap();
    for drained in [first, second, third] {
        drained.unwrap();
    }
    let refused = drain(3601).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("timeout: given `3601s`"), "{}", refused.message());
    assert_no_nodes(&fleet.nodes.tree().await);
}

#[tokio::test]
async fn an_idle_sidecar_drains_at_once_despite_open_connections() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let app = sidecar.attach(request(job(1))).await;
    let watcher = sidecar.watch().await;
    let mut health = HealthClient::new(sidecar.connect().await);
    let health = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    // A connection on which the client sends nothing.
    let address = sidecar.inner.endpoints()[0].strip_prefix("http://").unwrap().to_owned();
    let mut silent = TcpStream::connect(address).await.unwrap();
    let mut some = [0; 9];
    bounded("the server's first frame", silent.read_exact(&mut some)).await.unwrap();
    sidecar.drain().await;
    assert_no_nodes(&fleet.nodes.tree().await);
    drop((app, watcher, health, silent));
}

#[tokio::test]
async fn a_drain_ends_watches() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(job(1))).await;
    let mut watcher = sidecar.watch().await;
    watcher.until("the item", |state| state.items.len() == 1).await;
    let (_no_hurry, hurry) = watch::channel(false);
    let streams = futures::future::join(watcher.end(), app.end());
    let (watched, (ended, _)) = drain_while(sidecar, hurry, streams).await;
    watched.unwrap();
    ended.unwrap();
}
