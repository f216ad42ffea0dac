//! The sidecar is told to stop (P6; design 5).

use std::time::Duration;

use sidekeeper::config::Config;
use sidekeeper::proto::job_service_client::JobServiceClient;
use sidekeeper::proto::sidecar_service_client::SidecarServiceClient;
use sidekeeper::proto::{AssignmentReason, CancelReason, DrainRequest, JobConfiguration, TriggerJobRequest};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::ground::{App, Event, Ground, Host, JOB, Tree, bounded, job, request, request_for, ticking};

async fn draining(app: &mut App) {
    app.until("Draining", |event| matches!(event, Event::Draining(_)).then_some(())).await;
}

/// Drains while the application does its part.
async fn drain_while<T>(host: Host, hurry: watch::Receiver<bool>, application: impl Future<Output = T>) -> T {
    let both = Box::pin(futures::future::join(host.sidecar.drain(hurry), application));
    bounded("the drain", both).await.1
}

/// Nothing of a stopped sidecar's.
fn nothing_left(tree: &Tree) {
    assert_eq!(tree.children("instances"), [""; 0]);
    assert!(tree.running().is_empty() && !tree.has("leader/election/instance"), "{tree:#?}");
    assert!(tree.children("leader/election/latch").is_empty());
}

#[tokio::test]
async fn a_drain_lets_executions_finish_and_leaves_nothing() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(ticking(2))).await;
    app.assigned(&[0, 1]).await;
    let executes = app.executes(2).await;
    let newcomer = host.participants().await;
    let (_patient, hurry) = watch::channel(false);
    let application = async {
        draining(&mut app).await;
        let refused = App::attach(newcomer, request_for("payments", job(1))).await.err().unwrap();
        assert_eq!(refused.code(), Code::Unavailable);
        assert!(refused.message().contains("the sidecar is stopping"), "{refused:?}");
        for execute in &executes {
            app.done(execute).await;
        }
        app.end().await
    };
    let (ended, events) = drain_while(host, hurry, application).await;
    ended.unwrap();
    let last = events.last();
    assert!(
        matches!(last, Some(Event::AssignmentChanged(changed))
            if changed.reason() == AssignmentReason::Draining && changed.revoked_items == [0, 1]),
        "{events:#?}"
    );
    assert!(!events.iter().any(|event| matches!(event, Event::Execute(_) | Event::Cancel(_))));
    nothing_left(&ground.outside.tree().await);
}

#[tokio::test]
async fn a_drained_sidecar_s_items_go_on_elsewhere() {
    let ground = Ground::new().await;
    let (one, two) = (ground.sidecar().await, ground.sidecar_with(2, |_| ()).await);
    let mut leaves = one.attach(request(ticking(2))).await;
    leaves.assigned(&[0, 1]).await;
    let mut stays = two.attach(request(None)).await;
    stays.assigned(&[1]).await;
    drop(leaves);
    one.drain().await;
    stays.assigned(&[0, 1]).await;
    stays.executes(2).await;
}

#[tokio::test]
async fn executions_that_outlast_the_drain_are_cancelled_and_left_to_others() {
    let ground = Ground::new().await;
    let short = |config: &mut Config| config.drain_timeout = Duration::from_millis(100);
    let host = ground.sidecar_with(1, short).await;
    // Running nodes that do not end with the session.
    let configuration = JobConfiguration { failover: Some(true), ..ticking(2) };
    let mut app = host.attach(request(configuration)).await;
    app.assigned(&[0, 1]).await;
    let executes = app.executes(2).await;
    let (_patient, hurry) = watch::channel(false);
    let application = async {
        draining(&mut app).await;
        for _ in 0..2 {
            let cancel = app.cancel().await;
            assert_eq!(cancel.reason(), CancelReason::DrainTimeout);
        }
        // One of them obeys, the other never reports.
        app.done(&executes[0]).await;
        app.end().await.0
    };
    let ended = drain_while(host, hurry, application).await;
    ended.unwrap();
    let tree = ground.outside.tree().await;
    assert_eq!(tree.children("instances"), [""; 0]);
    let unfinished = executes[1].item.to_string();
    assert_eq!(tree.children("leader/failover/items"), [unfinished.as_str()]);
}

#[tokio::test]
async fn hurry_has_executions_stop_and_still_leaves_nothing() {
    let ground = Ground::new().await;
    // The drain timeout is far away.
    let hour = |config: &mut Config| config.drain_timeout = Duration::from_secs(3600);
    let host = ground.sidecar_with(1, hour).await;
    let mut app = host.attach(request(ticking(2))).await;
    app.assigned(&[0, 1]).await;
    let executes = app.executes(2).await;
    let (hurrying, hurry) = watch::channel(false);
    let application = async {
        draining(&mut app).await;
        hurrying.send_replace(true);
        for _ in 0..2 {
            let cancel = app.cancel().await;
            assert_eq!(cancel.reason(), CancelReason::DrainTimeout);
        }
        // One of them obeys within its grace, and is recorded; the other never reports.
        app.done(&executes[0]).await;
        app.end().await.0
    };
    drain_while(host, hurry, application).await.unwrap();
    nothing_left(&ground.outside.tree().await);
}

#[tokio::test]
async fn a_drain_by_call_answers_when_everybody_has_left_and_the_sidecar_stays_unready() {
    let ground = Ground::new().await;
    let (host, peer) = (ground.sidecar().await, ground.sidecar_with(2, |_| ()).await);
    let mut app = host.attach(request(job(2))).await;
    let mut stays = peer.attach(request(None)).await;
    app.assigned(&[0]).await;
    let trigger = TriggerJobRequest { job_name: JOB.to_owned() };
    JobServiceClient::new(host.connect().await).trigger_job(trigger).await.unwrap();
    let execute = app.execute().await;
    let mut sidecar = SidecarServiceClient::new(host.connect().await);
    let mut health = HealthClient::new(host.connect().await);
    let call = async { sidecar.drain(DrainRequest::default()).await.unwrap().into_inner() };
    let application = async {
        draining(&mut app).await;
        let health = health.check(HealthCheckRequest::default()).await.unwrap().into_inner();
        assert_eq!(health.status(), ServingStatus::NotServing);
        // The item is ours until it is done.
        assert!(ground.outside.tree().await.running().contains(&"0"));
        app.done(&execute).await;
        app.end().await
    };
    let (drained, (ended, events)) =
        bounded("the drain", Box::pin(futures::future::join(call, application))).await;
    ended.unwrap();
    assert!(!events.iter().any(|event| matches!(event, Event::Execute(_) | Event::Cancel(_))), "{events:#?}");
    let [instance] = &drained.instances[..] else { panic!("{drained:?}") };
    assert_eq!((&*instance.job_name, &instance.instance_id), ("orders", &app.attached.instance_id));
    assert_eq!(ground.outside.tree().await.children("instances"), [stays.attached.instance_id.clone()]);
    stays.assigned(&[0, 1]).await;
    // It is still there, and takes nobody on; a second call has nothing to do, and neither has the stop.
    let refused = host.refusal(request(None)).await;
    assert_eq!(refused.code(), Code::Unavailable);
    let again = bounded("the second drain", sidecar.drain(DrainRequest::default())).await.unwrap();
    assert!(again.into_inner().instances.is_empty());
    host.drain().await;
}

#[tokio::test]
async fn the_earliest_of_several_drains_counts() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(ticking(1))).await;
    let execute = app.execute().await;
    let drain = |seconds: i64| {
        let mut sidecar = SidecarServiceClient::new(host.lazily());
        let timeout = Some(prost_types::Duration { seconds, nanos: 0 });
        async move { bounded("a drain", sidecar.drain(DrainRequest { timeout, for_good: false })).await }
    };
    let application = async {
        draining(&mut app).await;
        let cancel = app.cancel().await;
        assert_eq!(cancel.reason(), CancelReason::DrainTimeout);
        app.done(&execute).await;
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
    nothing_left(&ground.outside.tree().await);
}

#[tokio::test]
async fn an_idle_sidecar_drains_at_once_whoever_is_connected() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let app = host.attach(request(job(1))).await;
    let watcher = host.watch().await;
    let mut health = HealthClient::new(host.connect().await);
    let health = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    // Connected, and never says a word.
    let address = host.sidecar.endpoints()[0].strip_prefix("http://").unwrap().to_owned();
    let mut silent = TcpStream::connect(address).await.unwrap();
    let mut some = [0; 9];
    bounded("the server's first frame", silent.read_exact(&mut some)).await.unwrap();
    host.drain().await;
    nothing_left(&ground.outside.tree().await);
    drop((app, watcher, health, silent));
}

#[tokio::test]
async fn a_drain_ends_those_who_look_as_well() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(job(1))).await;
    let mut watcher = host.watch().await;
    watcher.until("the item", |state| state.items.len() == 1).await;
    let (_patient, hurry) = watch::channel(false);
    let streams = futures::future::join(watcher.end(), app.end());
    let (watched, (ended, _)) = drain_while(host, hurry, streams).await;
    watched.unwrap();
    ended.unwrap();
}
