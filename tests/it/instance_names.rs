//! Instances with names: conflicts, and the items after a restart (P3, P7, H36).

use sidekeeper::proto;
use sidekeeper::proto::sidecar_service_client::SidecarServiceClient;
use sidekeeper::proto::{DetachRequest, DrainRequest, ExecutionSource, JobConfiguration};
use tonic::Code;

use crate::fleet::{App, Fleet, bounded, each_second, job, request, warnings_about};

/// The request of a process of an application, with an instance name.
fn named(name: &str, application: &str, configuration: JobConfiguration) -> proto::AttachRequest {
    let (instance_name, application_id) = (name.to_owned(), application.to_owned());
    proto::AttachRequest { instance_name, application_id, ..request(configuration) }
}

fn with_grace(mut configuration: JobConfiguration) -> JobConfiguration {
    configuration.props.insert("sidekeeper.grace".to_owned(), "1h".to_owned());
    configuration
}

async fn detach(app: &mut App, for_good: bool) {
    let attachment_id = app.attached.attachment_id.clone();
    bounded("the answer", app.client.detach(DetachRequest { attachment_id, for_good })).await.unwrap();
    app.end().await.0.unwrap();
}

#[tokio::test]
async fn a_restarted_application_is_the_same_instance_and_its_items_get_new_tokens() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut other = sidecar.attach(named("w-1", "other", with_grace(each_second(2)))).await;
    other.assigned(&[0, 1]).await;
    let mut app = sidecar.attach(named("w-0", "first", with_grace(each_second(2)))).await;
    assert_eq!(app.attached.instance_id, "10.0.0.1@-@w-0");
    app.assigned(&[1]).await;
    let token = app.token(1);
    let kept = other.assigned(&[0]).await.assignment.clone().unwrap().items[0].fencing_token;
    let refused = sidecar.refusal(named("w-0", "second", with_grace(each_second(2)))).await;
    assert_eq!(refused.code(), Code::AlreadyExists);
    assert!(refused.message().contains("instance_name `w-0`"), "{}", refused.message());
    assert!(
        !refused.message().contains("first"),
        "the message has the id of the other application: {}",
        refused.message()
    );
    let execute = app.execute().await;
    // The application is killed, and `reattach_grace` begins; the next process does not wait for its end.
    drop(app);
    let back = bounded("the next one", async {
        loop {
            match sidecar.try_attach(named("w-0", "second", with_grace(each_second(2)))).await {
                Ok(back) => break back,
                Err(status) => assert_eq!(status.code(), Code::AlreadyExists, "{status:?}"),
            }
        }
    });
    let mut back = Box::pin(back).await;
    assert_eq!(back.attached.instance_id, "10.0.0.1@-@w-0");
    // The execution of the first process is discarded. Its item is assigned at once, and the other instance keeps its own.
    assert!(back.attached.resumed_execution_ids.is_empty());
    assert_eq!(back.items(), [1]);
    assert!(back.token(1) > token);
    let next = back.execute().await;
    assert!(next.fencing_token > execute.fencing_token && next.item == 1);
    assert_eq!(fleet.nodes.tree().await.created("sharding/0/instance"), kept);
}

#[tokio::test]
async fn a_named_instance_that_restarts_at_another_address_keeps_its_items() {
    let fleet = Fleet::new().await;
    let (sidecar, stays) = (fleet.sidecar().await, fleet.sidecar_with(2, |_| ()).await);
    let mut other = stays.attach(named("w-0", "other", with_grace(each_second(3)))).await;
    let mut app = sidecar.attach(named("w-1", "first", with_grace(each_second(3)))).await;
    let items = app.assigned(&[2]).await.assignment.clone().unwrap().items;
    assert_eq!(items.len(), 1);
    other.assigned(&[0, 1]).await;
    let generation = other.generation();
    detach(&mut app, false).await;
    sidecar.drain().await;
    fleet.nodes.until("the instance to leave", |tree| tree.children("instances").len() == 1).await;
    // Wait for one fire.
    let executes = other.executes(2).await;
    for execute in &executes {
        other.report_success(execute).await;
    }
    other.executes(2).await;
    let sidecar = fleet.sidecar_with(3, |_| ()).await;
    let mut back = sidecar.attach(named("w-1", "second", with_grace(each_second(3)))).await;
    assert_eq!((back.attached.instance_id.as_str(), back.items()), ("10.0.0.3@-@w-1", vec![2]));
    let source = back.until("the first execution", |event| match event {
        crate::fleet::Event::Execute(execute) => Some(execute.source()),
        _ => None,
    });
    assert!(matches!(source.await, ExecutionSource::Misfire | ExecutionSource::Schedule));
    assert_eq!((other.items(), other.generation()), (vec![0, 1], generation));
}

#[tokio::test]
async fn an_instance_that_detaches_or_drains_for_good_releases_its_items() {
    let fleet = Fleet::new().await;
    let (sidecar, stays) = (fleet.sidecar().await, fleet.sidecar_with(2, |_| ()).await);
    let mut other = stays.attach(named("w-1", "other", with_grace(job(4)))).await;
    let mut one = sidecar.attach(named("w-0", "one", with_grace(job(4)))).await;
    one.assigned(&[2, 3]).await;
    detach(&mut one, true).await;
    other.assigned(&[0, 1, 2, 3]).await;
    let mut one = sidecar.attach(named("w-0", "one", with_grace(job(4)))).await;
    one.assigned(&[2, 3]).await;
    let mut service = SidecarServiceClient::new(sidecar.lazy_channel());
    let request = DrainRequest { timeout: None, for_good: true };
    bounded("the drain", service.drain(request)).await.unwrap();
    other.assigned(&[0, 1, 2, 3]).await;
}

#[tokio::test]
async fn an_instance_whose_name_is_in_use_waits_and_logs_a_warning() {
    let fleet = Fleet::new().await;
    let (sidecar, elsewhere) = (fleet.sidecar().await, fleet.sidecar_with(2, |_| ()).await);
    let mut app = sidecar.attach(named("taken-0", "first", with_grace(job(2)))).await;
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
        assert_eq!(fleet.nodes.tree().await.children("instances"), ["10.0.0.1@-@taken-0"]);
        detach(&mut app, false).await;
    };
    let (mut back, ()) = Box::pin(futures::future::join(waiting, leaving)).await;
    assert_eq!(back.attached.instance_id, "10.0.0.2@-@taken-0");
    back.assigned(&[0, 1]).await;
}

#[tokio::test]
async fn an_instance_name_is_unique_within_its_job_only() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let request =
        |job_name: &str| proto::AttachRequest { job_name: job_name.to_owned(), ..named("w-0", "", job(1)) };
    let orders = sidecar.attach(request("orders")).await;
    let payments = sidecar.attach(request("payments")).await;
    assert_eq!(orders.attached.instance_id, payments.attached.instance_id);
    // Without an application id, a second stream cannot replace the first one.
    assert_eq!(sidecar.refusal(request("orders")).await.code(), Code::AlreadyExists);
}
