//! The call `TriggerJob`: each instance that is online gets one trigger, and fires once.

use std::sync::Arc;

use sidekeeper::proto::job_service_client::JobServiceClient;
use sidekeeper::proto::{ExecutionSource, TriggerJobRequest, TriggerJobResponse};
use tonic::{Code, Status};

use crate::fleet::{
    Event, Fleet, JOB, RegistryFault, RunningSidecar, Tree, bounded, each_second, job, request,
};

async fn trigger(sidecar: &RunningSidecar, job: &str) -> Result<TriggerJobResponse, Status> {
    let mut client = JobServiceClient::new(sidecar.connect().await);
    let request = TriggerJobRequest { job_name: job.to_owned(), ..Default::default() };
    bounded("the answer", client.trigger_job(request)).await.map(tonic::Response::into_inner)
}

/// The nodes of a Java instance that is busy: it does not take its trigger.
async fn java_instance(fleet: &Fleet, id: &str) {
    let ip = id.split_once("@-@").unwrap().0;
    let yaml = format!("jobInstanceId: {id}\nserverIp: {ip}\n");
    fleet.nodes.put(&format!("servers/{ip}"), "ENABLED").await;
    fleet.nodes.put(&format!("instances/{id}"), yaml).await;
}

#[tokio::test]
async fn all_instances_of_a_job_without_a_schedule_fire_once() {
    let fleet = Fleet::new().await;
    let (first, second) = (fleet.sidecar().await, fleet.sidecar_with(2, |_| ()).await);
    let mut one = first.attach(request(job(4))).await;
    let mut two = second.attach(request(None)).await;
    one.assigned(&[0, 1]).await;
    two.assigned(&[2, 3]).await;
    fleet.nodes.settled_tree().await;
    // The call goes to a sidecar without an instance of the job.
    let third = fleet.sidecar_with(3, |_| ()).await;
    let mut ids = [one.attached.instance_id.clone(), two.attached.instance_id.clone()];
    ids.sort();
    for _ in 0..2 {
        let answer = trigger(&third, JOB).await.unwrap();
        assert_eq!((&answer.triggered_instance_ids[..], answer.pending_instance_ids.len()), (&ids[..], 0));
        for app in [&mut one, &mut two] {
            for execute in app.executes(2).await {
                assert_eq!(execute.source(), ExecutionSource::Trigger);
                app.report_success(&execute).await;
            }
        }
        let taken = |tree: &Tree| tree.has("trigger") && tree.children("trigger").is_empty();
        fleet.nodes.until("the triggers to be taken", taken).await;
    }
}

#[tokio::test]
async fn a_pending_trigger_is_kept_and_reported_and_triggers_of_offline_instances_are_removed() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(job(1))).await;
    app.assigned(&[0]).await;
    fleet.nodes.settled_tree().await;
    java_instance(&fleet, "10.0.0.9@-@1").await;
    let own = app.attached.instance_id.clone();
    let answer = trigger(&sidecar, JOB).await.unwrap();
    assert_eq!(answer.triggered_instance_ids, [own.clone(), "10.0.0.9@-@1".to_owned()]);
    let created = fleet.nodes.tree().await.created("trigger/10.0.0.9@-@1");

    java_instance(&fleet, "10.0.0.10@-@1").await;
    fleet.nodes.put("trigger/10.0.0.7@-@gone", "").await;
    fleet.nodes.until("the own trigger to be taken", |tree| !tree.has(&format!("trigger/{own}"))).await;
    let answer = trigger(&sidecar, JOB).await.unwrap();
    assert_eq!(answer.pending_instance_ids, ["10.0.0.9@-@1"]);
    assert!(answer.triggered_instance_ids.contains(&"10.0.0.10@-@1".to_owned()), "{answer:?}");
    let tree = fleet.nodes.tree().await;
    assert_eq!(tree.created("trigger/10.0.0.9@-@1"), created, "the pending trigger was created again");
    assert!(tree.has("trigger/10.0.0.10@-@1") && !tree.has("trigger/10.0.0.7@-@gone"));

    // A trigger of an offline instance that has children stays, and does not prevent the others.
    fleet.nodes.put("trigger/10.0.0.7@-@gone/below", "").await;
    fleet.nodes.delete("trigger/10.0.0.10@-@1").await;
    let answer = trigger(&sidecar, JOB).await.unwrap();
    assert!(answer.triggered_instance_ids.contains(&"10.0.0.10@-@1".to_owned()), "{answer:?}");
}

#[tokio::test]
async fn a_job_that_cannot_be_triggered_is_refused_with_the_reason() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    fleet.nodes.put("config", "jobName: orders\nshardingTotalCount: 1\n").await;
    let refused = async |name: &str, code: Code, reason: &str| {
        let status = trigger(&sidecar, name).await.unwrap_err();
        assert_eq!(status.code(), code, "{status:?}");
        assert!(status.message().contains(reason), "{status:?}");
    };
    refused("a/b", Code::InvalidArgument, "job_name").await;
    refused("", Code::InvalidArgument, "job_name").await;
    refused("nobody", Code::NotFound, "job `nobody` has no configuration").await;
    refused(JOB, Code::FailedPrecondition, "has no instance online").await;
    assert!(!fleet.nodes.tree().await.has("trigger"));
}

/// A job with two Java instances, and a sidecar whose registry has this fault.
async fn with_fault(fault: RegistryFault) -> (Fleet, RunningSidecar) {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar_with_fault(fault).await;
    fleet.nodes.put("config", "jobName: orders\nshardingTotalCount: 1\n").await;
    java_instance(&fleet, "10.0.0.8@-@1").await;
    java_instance(&fleet, "10.0.0.9@-@1").await;
    (fleet, sidecar)
}

#[tokio::test]
async fn a_trigger_is_retried_while_instances_change_and_finally_refused() {
    let (fleet, sidecar) = with_fault(RegistryFault::InstanceFlickers(Arc::new(2.into()))).await;
    let answer = trigger(&sidecar, JOB).await.unwrap();
    assert_eq!(answer.triggered_instance_ids, ["10.0.0.8@-@1", "10.0.0.9@-@1"]);
    assert_eq!(fleet.nodes.tree().await.children("trigger").len(), 2);

    let (fleet, sidecar) = with_fault(RegistryFault::InstanceFlickers(Arc::new(u32::MAX.into()))).await;
    let status = trigger(&sidecar, JOB).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status:?}");
    assert!(status.message().contains("changed 5 times") && status.message().contains("10.0.0.9@-@1"));
    assert!(!fleet.nodes.tree().await.has("trigger"), "one instance was triggered without the others");
}

#[tokio::test]
async fn a_lost_answer_is_an_unknown_outcome_and_no_instance_is_triggered_twice() {
    let (fleet, sidecar) = with_fault(RegistryFault::AnswerLost).await;
    let status = trigger(&sidecar, JOB).await.unwrap_err();
    assert_eq!(status.code(), Code::Unknown, "{status:?}");
    assert_eq!(fleet.nodes.tree().await.children("trigger").len(), 2);
}

#[tokio::test]
async fn a_trigger_that_the_registry_refuses_is_refused_with_the_reason() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    fleet.nodes.put("config", "jobName: orders\nshardingTotalCount: 1\n").await;
    java_instance(&fleet, "10.0.0.9@-@1").await;
    fleet.nodes.ephemeral("trigger").await;
    let status = trigger(&sidecar, JOB).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    assert!(status.message().contains("trigger/10.0.0.9@-@1 is ephemeral"), "{status:?}");
}

#[tokio::test]
async fn a_trigger_is_unavailable_without_a_registry_and_while_the_sidecar_drains() {
    let (_ground, sidecar) = with_fault(RegistryFault::Unreachable).await;
    assert_eq!(trigger(&sidecar, JOB).await.unwrap_err().code(), Code::Unavailable);

    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(each_second(1))).await;
    let execute = app.execute().await;
    let mut client = JobServiceClient::new(sidecar.connect().await);
    let drained = sidecar.drain();
    let application = async {
        app.until("the drain", |event| matches!(event, Event::Draining(_)).then_some(())).await;
        let request = TriggerJobRequest { job_name: JOB.to_owned(), ..Default::default() };
        let status = bounded("the answer", client.trigger_job(request)).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        assert!(status.message().contains("is stopping"), "{status:?}");
        app.report_success(&execute).await;
    };
    futures::future::join(drained, application).await;
}

#[tokio::test]
async fn a_job_whose_items_or_servers_are_all_disabled_is_not_triggered() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(job(2))).await;
    app.assigned(&[0, 1]).await;
    fleet.nodes.settled_tree().await;
    let server = format!("servers/{}", app.attached.instance_id.split_once("@-@").unwrap().0);

    fleet.nodes.put("sharding/0/disabled", "").await;
    trigger(&sidecar, JOB).await.unwrap();
    let execute = app.execute().await;
    assert_eq!(execute.item, 1);
    app.report_success(&execute).await;
    let own = format!("trigger/{}", app.attached.instance_id);
    fleet.nodes.until("the trigger to be taken", |tree| !tree.has(&own)).await;
    fleet.nodes.put("sharding/1/disabled", "").await;
    let refused = trigger(&sidecar, JOB).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    assert!(refused.message().contains("all items of job `orders` are disabled"), "{refused:?}");

    fleet.nodes.delete("sharding/1/disabled").await;
    fleet.nodes.put(&server, "DISABLED").await;
    let refused = trigger(&sidecar, JOB).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    assert!(refused.message().contains("servers of all instances of job `orders`"), "{refused:?}");
    assert!(!fleet.nodes.tree().await.has(&own));

    fleet.nodes.put(&server, "ENABLED").await;
    trigger(&sidecar, JOB).await.unwrap();
}
