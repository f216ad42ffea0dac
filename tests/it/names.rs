//! Instances with names: who may have one, and what comes back with it (P3, P7, H36).

use sidekeeper::proto;
use sidekeeper::proto::sidecar_service_client::SidecarServiceClient;
use sidekeeper::proto::{DetachRequest, DrainRequest, ExecutionSource, JobConfiguration};
use tonic::Code;

use crate::ground::{App, Ground, bounded, job, request, ticking, warnings_about};

/// The request of an application's process, under a name.
fn named(name: &str, application: &str, configuration: JobConfiguration) -> proto::AttachRequest {
    let (instance_name, application_id) = (name.to_owned(), application.to_owned());
    proto::AttachRequest { instance_name, application_id, ..request(configuration) }
}

fn with_grace(configuration: JobConfiguration) -> JobConfiguration {
    let props = [("sidekeeper.grace".to_owned(), "1h".to_owned())].into();
    JobConfiguration { props, ..configuration }
}

async fn detach(app: &mut App, for_good: bool) {
    let attachment_id = app.attached.attachment_id.clone();
    bounded("the answer", app.client.detach(DetachRequest { attachment_id, for_good })).await.unwrap();
    app.end().await.0.unwrap();
}

#[tokio::test]
async fn an_application_that_was_restarted_is_the_same_instance_and_its_items_have_new_tokens() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut other = host.attach(named("w-1", "other", with_grace(ticking(2)))).await;
    other.assigned(&[0, 1]).await;
    let mut app = host.attach(named("w-0", "first", with_grace(ticking(2)))).await;
    assert_eq!(app.attached.instance_id, "10.0.0.1@-@w-0");
    app.assigned(&[1]).await;
    let token = app.token(1);
    let kept = other.assigned(&[0]).await.assignment.clone().unwrap().items[0].fencing_token;
    let refused = host.refusal(named("w-0", "second", with_grace(ticking(2)))).await;
    assert_eq!(refused.code(), Code::AlreadyExists);
    assert!(refused.message().contains("instance_name `w-0`"), "{}", refused.message());
    assert!(!refused.message().contains("first"), "it tells a secret: {}", refused.message());
    let execute = app.execute().await;
    // It is killed; its stream's grace has begun, and the next process waits for nothing.
    drop(app);
    let back = bounded("the next one", async {
        loop {
            match host.try_attach(named("w-0", "second", with_grace(ticking(2)))).await {
                Ok(back) => break back,
                Err(status) => assert_eq!(status.code(), Code::AlreadyExists, "{status:?}"),
            }
        }
    });
    let mut back = Box::pin(back).await;
    assert_eq!(back.attached.instance_id, "10.0.0.1@-@w-0");
    // What the first one executed is nobody's any more; its item is there from the start, and the other keeps its own.
    assert!(back.attached.resumed_execution_ids.is_empty());
    assert_eq!(back.items(), [1]);
    assert!(back.token(1) > token);
    let next = back.execute().await;
    assert!(next.fencing_token > execute.fencing_token && next.item == 1);
    assert_eq!(ground.outside.tree().await.created("sharding/0/instance"), kept);
}

#[tokio::test]
async fn a_sidecar_that_was_restarted_elsewhere_has_the_items_of_its_name() {
    let ground = Ground::new().await;
    let (host, stays) = (ground.sidecar().await, ground.sidecar_with(2, |_| ()).await);
    let mut other = stays.attach(named("w-0", "other", with_grace(ticking(3)))).await;
    let mut app = host.attach(named("w-1", "first", with_grace(ticking(3)))).await;
    let items = app.assigned(&[2]).await.assignment.clone().unwrap().items;
    assert_eq!(items.len(), 1);
    other.assigned(&[0, 1]).await;
    let generation = other.generation();
    detach(&mut app, false).await;
    host.drain().await;
    ground.outside.until("it to have left", |tree| tree.children("instances").len() == 1).await;
    // A fire passes.
    let executes = other.executes(2).await;
    for execute in &executes {
        other.done(execute).await;
    }
    other.executes(2).await;
    let host = ground.sidecar_with(3, |_| ()).await;
    let mut back = host.attach(named("w-1", "second", with_grace(ticking(3)))).await;
    assert_eq!((back.attached.instance_id.as_str(), back.items()), ("10.0.0.3@-@w-1", vec![2]));
    let made_up = back.until("a fire to be made up for", |event| match event {
        crate::ground::Event::Execute(execute) => Some(execute.source()),
        _ => None,
    });
    assert!(matches!(made_up.await, ExecutionSource::Misfire | ExecutionSource::Schedule));
    assert_eq!((other.items(), other.generation()), (vec![0, 1], generation));
}

#[tokio::test]
async fn who_leaves_for_good_gives_its_items_away_by_itself_or_with_its_sidecar() {
    let ground = Ground::new().await;
    let (host, stays) = (ground.sidecar().await, ground.sidecar_with(2, |_| ()).await);
    let mut other = stays.attach(named("w-1", "other", with_grace(job(4)))).await;
    let mut one = host.attach(named("w-0", "one", with_grace(job(4)))).await;
    one.assigned(&[2, 3]).await;
    detach(&mut one, true).await;
    other.assigned(&[0, 1, 2, 3]).await;
    let mut one = host.attach(named("w-0", "one", with_grace(job(4)))).await;
    one.assigned(&[2, 3]).await;
    let mut sidecar = SidecarServiceClient::new(host.lazily());
    let request = DrainRequest { timeout: None, for_good: true };
    bounded("the drain", sidecar.drain(request)).await.unwrap();
    other.assigned(&[0, 1, 2, 3]).await;
}

#[tokio::test]
async fn who_finds_its_name_in_use_elsewhere_waits_and_says_so() {
    let ground = Ground::new().await;
    let (host, elsewhere) = (ground.sidecar().await, ground.sidecar_with(2, |_| ()).await);
    let mut app = host.attach(named("taken-0", "first", with_grace(job(2)))).await;
    app.assigned(&[0, 1]).await;
    let waiting = elsewhere.attach(named("taken-0", "second", with_grace(job(2))));
    let leaving = async {
        let known = || warnings_about("`taken-0` is in use by another session");
        bounded("the warning", async {
            while known().is_empty() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(ground.outside.tree().await.children("instances"), ["10.0.0.1@-@taken-0"]);
        detach(&mut app, false).await;
    };
    let (mut back, ()) = Box::pin(futures::future::join(waiting, leaving)).await;
    assert_eq!(back.attached.instance_id, "10.0.0.2@-@taken-0");
    back.assigned(&[0, 1]).await;
}

#[tokio::test]
async fn a_name_is_one_of_each_job_and_does_not_hinder_others() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let request =
        |job_name: &str| proto::AttachRequest { job_name: job_name.to_owned(), ..named("w-0", "", job(1)) };
    let orders = host.attach(request("orders")).await;
    let payments = host.attach(request("payments")).await;
    assert_eq!(orders.attached.instance_id, payments.attached.instance_id);
    // Without an id of its application nobody can be the next stream of it.
    assert_eq!(host.refusal(request("orders")).await.code(), Code::AlreadyExists);
}
