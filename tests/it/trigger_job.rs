//! Triggering: everybody online is asked once, and fires once.

use std::sync::Arc;

use sidekeeper::proto::job_service_client::JobServiceClient;
use sidekeeper::proto::{ExecutionSource, TriggerJobRequest, TriggerJobResponse};
use tonic::{Code, Status};

use crate::ground::{Event, Ground, Host, JOB, Meddling, Tree, bounded, job, request, ticking};

async fn trigger(host: &Host, job: &str) -> Result<TriggerJobResponse, Status> {
    let mut client = JobServiceClient::new(host.connect().await);
    let request = TriggerJobRequest { job_name: job.to_owned() };
    bounded("the answer", client.trigger_job(request)).await.map(tonic::Response::into_inner)
}

/// An instance that takes nothing up by itself, like a Java peer that is busy.
async fn silent_instance(ground: &Ground, id: &str) {
    let ip = id.split_once("@-@").unwrap().0;
    let yaml = format!("jobInstanceId: {id}\nserverIp: {ip}\n");
    ground.outside.put(&format!("servers/{ip}"), "ENABLED").await;
    ground.outside.put(&format!("instances/{id}"), yaml).await;
}

#[tokio::test]
async fn all_instances_of_a_job_without_a_schedule_fire_once() {
    let ground = Ground::new().await;
    let (first, second) = (ground.sidecar().await, ground.sidecar_with(2, |_| ()).await);
    let mut one = first.attach(request(job(4))).await;
    let mut two = second.attach(request(None)).await;
    one.assigned(&[0, 1]).await;
    two.assigned(&[2, 3]).await;
    ground.outside.quiet().await;
    // Asked at a sidecar that has nothing to do with the job.
    let third = ground.sidecar_with(3, |_| ()).await;
    let mut ids = [one.attached.instance_id.clone(), two.attached.instance_id.clone()];
    ids.sort();
    for _ in 0..2 {
        let answer = trigger(&third, JOB).await.unwrap();
        assert_eq!((&answer.triggered_instance_ids[..], answer.pending_instance_ids.len()), (&ids[..], 0));
        for app in [&mut one, &mut two] {
            for execute in app.executes(2).await {
                assert_eq!(execute.source(), ExecutionSource::Trigger);
                app.done(&execute).await;
            }
        }
        let taken_up = |tree: &Tree| tree.has("trigger") && tree.children("trigger").is_empty();
        ground.outside.until("the triggers to be taken up", taken_up).await;
    }
}

#[tokio::test]
async fn a_trigger_that_was_not_taken_up_is_kept_and_told_and_those_of_the_gone_are_removed() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(job(1))).await;
    app.assigned(&[0]).await;
    ground.outside.quiet().await;
    silent_instance(&ground, "10.0.0.9@-@1").await;
    let own = app.attached.instance_id.clone();
    let answer = trigger(&host, JOB).await.unwrap();
    assert_eq!(answer.triggered_instance_ids, [own.clone(), "10.0.0.9@-@1".to_owned()]);
    let created = ground.outside.tree().await.created("trigger/10.0.0.9@-@1");

    silent_instance(&ground, "10.0.0.10@-@1").await;
    ground.outside.put("trigger/10.0.0.7@-@gone", "").await;
    ground.outside.until("ours to be taken up", |tree| !tree.has(&format!("trigger/{own}"))).await;
    let answer = trigger(&host, JOB).await.unwrap();
    assert_eq!(answer.pending_instance_ids, ["10.0.0.9@-@1"]);
    assert!(answer.triggered_instance_ids.contains(&"10.0.0.10@-@1".to_owned()), "{answer:?}");
    let tree = ground.outside.tree().await;
    assert_eq!(tree.created("trigger/10.0.0.9@-@1"), created, "the pending one was not touched");
    assert!(tree.has("trigger/10.0.0.10@-@1") && !tree.has("trigger/10.0.0.7@-@gone"));

    // What somebody else put below a trigger of the gone is in nobody's way.
    ground.outside.put("trigger/10.0.0.7@-@gone/below", "").await;
    ground.outside.delete("trigger/10.0.0.10@-@1").await;
    let answer = trigger(&host, JOB).await.unwrap();
    assert!(answer.triggered_instance_ids.contains(&"10.0.0.10@-@1".to_owned()), "{answer:?}");
}

#[tokio::test]
async fn what_cannot_be_triggered_is_refused_with_the_reason() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    ground.outside.put("config", "jobName: orders\nshardingTotalCount: 1\n").await;
    let refused = async |name: &str, code: Code, reason: &str| {
        let status = trigger(&host, name).await.unwrap_err();
        assert_eq!(status.code(), code, "{status:?}");
        assert!(status.message().contains(reason), "{status:?}");
    };
    refused("a/b", Code::InvalidArgument, "job_name").await;
    refused("", Code::InvalidArgument, "job_name").await;
    refused("nobody", Code::NotFound, "job `nobody` has no configuration").await;
    refused(JOB, Code::FailedPrecondition, "has no instance online").await;
    assert!(!ground.outside.tree().await.has("trigger"));
}

/// A job with an instance that takes nothing up, and a sidecar whose registry is meddled with.
async fn meddled(meddling: Meddling) -> (Ground, Host) {
    let ground = Ground::new().await;
    let host = ground.meddled(meddling).await;
    ground.outside.put("config", "jobName: orders\nshardingTotalCount: 1\n").await;
    silent_instance(&ground, "10.0.0.8@-@1").await;
    silent_instance(&ground, "10.0.0.9@-@1").await;
    (ground, host)
}

#[tokio::test]
async fn instances_that_come_and_go_are_tried_again_and_in_the_end_reported() {
    let (ground, host) = meddled(Meddling::Flicker(Arc::new(2.into()))).await;
    let answer = trigger(&host, JOB).await.unwrap();
    assert_eq!(answer.triggered_instance_ids, ["10.0.0.8@-@1", "10.0.0.9@-@1"]);
    assert_eq!(ground.outside.tree().await.children("trigger").len(), 2);

    let (ground, host) = meddled(Meddling::Flicker(Arc::new(u32::MAX.into()))).await;
    let status = trigger(&host, JOB).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status:?}");
    assert!(status.message().contains("changed 5 times") && status.message().contains("10.0.0.9@-@1"));
    assert!(!ground.outside.tree().await.has("trigger"), "nobody is triggered if not all are");
}

#[tokio::test]
async fn a_lost_answer_is_not_taken_for_a_refusal_and_nobody_is_triggered_twice() {
    let (ground, host) = meddled(Meddling::LostAnswer).await;
    let status = trigger(&host, JOB).await.unwrap_err();
    assert_eq!(status.code(), Code::Unknown, "{status:?}");
    assert_eq!(ground.outside.tree().await.children("trigger").len(), 2);
}

#[tokio::test]
async fn what_the_registry_does_not_take_is_told() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    ground.outside.put("config", "jobName: orders\nshardingTotalCount: 1\n").await;
    silent_instance(&ground, "10.0.0.9@-@1").await;
    ground.outside.ephemeral("trigger").await;
    let status = trigger(&host, JOB).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    assert!(status.message().contains("trigger/10.0.0.9@-@1 is ephemeral"), "{status:?}");
}

#[tokio::test]
async fn without_a_registry_or_while_it_drains_it_is_unavailable() {
    let (_ground, host) = meddled(Meddling::Away).await;
    assert_eq!(trigger(&host, JOB).await.unwrap_err().code(), Code::Unavailable);

    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(ticking(1))).await;
    let execute = app.execute().await;
    let mut client = JobServiceClient::new(host.connect().await);
    let drained = host.drain();
    let application = async {
        app.until("the drain", |event| matches!(event, Event::Draining(_)).then_some(())).await;
        let request = TriggerJobRequest { job_name: JOB.to_owned() };
        let status = bounded("the answer", client.trigger_job(request)).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        assert!(status.message().contains("is stopping"), "{status:?}");
        app.done(&execute).await;
    };
    futures::future::join(drained, application).await;
}

#[tokio::test]
async fn a_job_that_nobody_may_execute_is_not_triggered() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(job(2))).await;
    app.assigned(&[0, 1]).await;
    ground.outside.quiet().await;
    let server = format!("servers/{}", app.attached.instance_id.split_once("@-@").unwrap().0);

    ground.outside.put("sharding/0/disabled", "").await;
    trigger(&host, JOB).await.unwrap();
    let execute = app.execute().await;
    assert_eq!(execute.item, 1);
    app.done(&execute).await;
    let own = format!("trigger/{}", app.attached.instance_id);
    ground.outside.until("the trigger to be taken up", |tree| !tree.has(&own)).await;
    ground.outside.put("sharding/1/disabled", "").await;
    let refused = trigger(&host, JOB).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    assert!(refused.message().contains("all items of job `orders` are disabled"), "{refused:?}");

    ground.outside.delete("sharding/1/disabled").await;
    ground.outside.put(&server, "DISABLED").await;
    let refused = trigger(&host, JOB).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    assert!(refused.message().contains("servers of all instances of job `orders`"), "{refused:?}");
    assert!(!ground.outside.tree().await.has(&own));

    ground.outside.put(&server, "ENABLED").await;
    trigger(&host, JOB).await.unwrap();
}
