//! Health, reflection, identity of applications and streams, and watches.

use sidekeeper::proto;
use tonic::Code;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::fleet::{Fleet, bounded, each_second, job, request, request_for};

async fn wait_for_status(stream: &mut tonic::Streaming<HealthCheckResponse>, wanted: ServingStatus) {
    let search = async { while stream.message().await.unwrap().unwrap().status() != wanted {} };
    bounded(wanted.as_str_name(), search).await;
}

#[tokio::test]
async fn a_sidecar_is_ready_with_a_session_and_not_while_it_drains() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(each_second(1))).await;
    let mut health = HealthClient::new(sidecar.connect().await);
    let mut streams = Vec::new();
    for service in ["", "sidekeeper.v1.ParticipantService", "sidekeeper.v1.JobService"] {
        let request = HealthCheckRequest { service: service.to_owned() };
        streams.push(health.watch(request).await.unwrap().into_inner());
    }
    for stream in &mut streams {
        wait_for_status(stream, ServingStatus::Serving).await;
    }
    let execute = app.execute().await;
    let application = async {
        for stream in &mut streams {
            wait_for_status(stream, ServingStatus::NotServing).await;
        }
        // These are for the time when the others do not serve.
        for service in ["sidekeeper.v1.SidecarService", "sidekeeper.v1.DiagnosticsService"] {
            let request = HealthCheckRequest { service: service.to_owned() };
            let answer = health.check(request).await.unwrap().into_inner();
            assert_eq!(answer.status(), ServingStatus::Serving, "{service}");
        }
        app.report_success(&execute).await;
    };
    futures::future::join(sidecar.drain(), application).await;
}

#[tokio::test]
async fn a_sidecar_is_ready_again_after_a_lost_session() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(job(1))).await;
    app.assigned(&[0]).await;
    let mut health = HealthClient::new(sidecar.connect().await);
    let mut stream = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    wait_for_status(&mut stream, ServingStatus::Serving).await;
    let tree = fleet.nodes.settled_tree().await;
    fleet.registry.expire(tree.session_of(&app.attached.instance_id));
    app.session(proto::SessionState::Lost).await;
    app.assigned(&[0]).await;
    let check = health.check(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(check.status(), ServingStatus::Serving);
}

#[tokio::test]
async fn reflection_lists_all_services() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut client = ServerReflectionClient::new(sidecar.connect().await);
    let list = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut answers = client.server_reflection_info(tokio_stream::once(list)).await.unwrap().into_inner();
    let answer = bounded("the list", answers.message()).await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("{answer:?}")
    };
    let names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    for name in [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "sidekeeper.v1.AssignmentService",
        "sidekeeper.v1.ElectionService",
        "sidekeeper.v1.JobService",
        "sidekeeper.v1.LockService",
        "sidekeeper.v1.SidecarService",
        "sidekeeper.v1.ParticipantService",
        "sidekeeper.v1.StickyLockService",
    ] {
        assert!(names.iter().any(|known| known == name), "{names:?}");
    }
}

fn as_application(id: &str, request: proto::AttachRequest) -> proto::AttachRequest {
    proto::AttachRequest { application_id: id.to_owned(), ..request }
}

#[tokio::test]
async fn an_application_is_the_same_instance_in_all_its_jobs() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let orders = sidecar.attach(as_application("shop-1", request(job(1)))).await;
    let payments = sidecar.attach(as_application("shop-1", request_for("payments", job(1)))).await;
    assert_eq!(orders.attached.instance_id, payments.attached.instance_id);
    assert!(
        !orders.attached.instance_id.contains("shop"),
        "the instance id has the application id: {:?}",
        orders.attached
    );
    assert_ne!(orders.attached.attachment_id, payments.attached.attachment_id);
    let stranger = sidecar.attach(as_application("shop-2", request(job(1)))).await;
    let nameless = sidecar.attach(request(job(1))).await;
    let another = sidecar.attach(request(job(1))).await;
    let ids = [&orders, &stranger, &nameless, &another].map(|app| app.attached.instance_id.clone());
    assert_eq!(ids.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
}

#[tokio::test]
async fn a_new_stream_of_an_application_replaces_the_old_one() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut old = sidecar.attach(as_application("shop-1", request(each_second(2)))).await;
    old.assigned(&[0, 1]).await;
    let executes = old.executes(2).await;
    let mut new = sidecar.attach(as_application("shop-1", request(each_second(2)))).await;
    let status = old.end().await.0.unwrap_err();
    assert_eq!(status.code(), Code::Aborted);
    assert!(status.message().contains("same application_id"), "{status:?}");
    assert_eq!(new.attached.instance_id, old.attached.instance_id);
    assert_ne!(new.attached.attachment_id, old.attached.attachment_id);
    new.assigned(&[0, 1]).await;
    let tree = fleet.nodes.settled_tree().await;
    assert_eq!(tree.children("instances"), [new.attached.instance_id.clone()]);
    // The executions of the old stream are discarded, and do not block the items.
    let id = executes[0].execution_id.clone();
    let late = old.report(vec![crate::fleet::success(&id)]).await.unwrap_err();
    assert_eq!(late.code(), Code::NotFound);
    new.executes(2).await;
}

#[tokio::test]
async fn a_watch_shows_the_state_of_a_job() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut watcher = sidecar.watch().await;
    let nothing = watcher.until("a state", |_| true).await;
    assert!(nothing.configuration.is_none() && nothing.instances.is_empty() && nothing.items.is_empty());
    let configuration =
        proto::JobConfiguration { sharding_item_parameters: "0=Beijing".to_owned(), ..each_second(2) };
    let mut app = sidecar.attach(request(configuration)).await;
    app.assigned(&[0, 1]).await;
    let executes = app.executes(2).await;
    app.report_success(&executes[1]).await;
    let state = watcher
        .until("an execution", |state| {
            !state.resharding && state.items.iter().map(|item| item.running).eq([true, false])
        })
        .await;
    let id = &app.attached.instance_id;
    let [instance] = state.instances.as_slice() else { panic!("{state:#?}") };
    assert_eq!((&instance.instance_id, instance.server_ip.as_str()), (id, "10.0.0.1"));
    assert!(instance.enabled && instance.leader);
    assert_eq!((state.job_name.as_str(), state.generation), ("orders", app.generation()));
    assert_eq!(state.items[0].item_parameter.as_deref(), Some("Beijing"));
    assert_eq!((&state.items[0].instance_id, state.items[0].fencing_token), (id, app.token(0)));
    assert!(state.next_fire_time.is_some() && state.problems.is_empty(), "{state:#?}");
}

#[tokio::test]
async fn h33_a_watch_shows_an_owner_that_is_offline() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    for (node, data) in
        [("config", "{jobName: orders, shardingTotalCount: 1}"), ("sharding/0/instance", "10.9.9.9@-@1")]
    {
        fleet.nodes.put(node, data).await;
    }
    let mut watcher = sidecar.watch().await;
    let state = watcher.until("the item", |state| state.items.len() == 1).await;
    assert_eq!((state.instances.len(), state.items[0].instance_id.as_str()), (0, "10.9.9.9@-@1"));
    assert!(state.items[0].fencing_token > 0);
}
