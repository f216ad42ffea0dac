//! `ListTriggers`: which triggers are there, and how far are they, as far as the nodes tell?

use sidekeeper::proto::job_service_client::JobServiceClient;
use sidekeeper::proto::{ListTriggersRequest, Trigger, TriggerJobRequest, TriggerState};
use tonic::{Code, Status};

use crate::fleet::{Fleet, JOB, RunningSidecar, bounded, job, request};

async fn trigger(sidecar: &RunningSidecar, id: &str) {
    let mut client = JobServiceClient::new(sidecar.connect().await);
    let request =
        TriggerJobRequest { job_name: JOB.to_owned(), request_id: id.to_owned(), ..Default::default() };
    bounded("the answer", client.trigger_job(request)).await.unwrap();
}

async fn list(sidecar: &RunningSidecar, job: &str) -> Result<Vec<Trigger>, Status> {
    let mut client = JobServiceClient::new(sidecar.connect().await);
    let request = ListTriggersRequest { job_name: job.to_owned() };
    let answer = bounded("the answer", client.list_triggers(request)).await?.into_inner();
    assert_eq!(answer.left_out_requests, 0);
    Ok(answer.triggers)
}

/// The only trigger of the job: its state, and what runs.
async fn only(sidecar: &RunningSidecar) -> (TriggerState, Vec<u32>) {
    let [trigger] = &list(sidecar, JOB).await.unwrap()[..] else { panic!("not one trigger") };
    assert_eq!(trigger.request_id, "mine");
    assert!(trigger.trigger_time.is_some());
    (trigger.state(), trigger.running_items.clone())
}

#[tokio::test]
async fn a_trigger_of_a_java_instance_is_followed_until_the_instance_has_left() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let java = "10.0.0.9@-@1";
    fleet.nodes.put("config", "jobName: orders\nshardingTotalCount: 2\n").await;
    assert_eq!(list(&sidecar, JOB).await.unwrap(), []);
    fleet.nodes.put("servers/10.0.0.9", "ENABLED").await;
    fleet.nodes.put(&format!("instances/{java}"), format!("jobInstanceId: {java}\n")).await;
    fleet.nodes.put("sharding/0/running", java).await;
    trigger(&sidecar, "mine").await;
    let before = fleet.nodes.tree().await;
    assert_eq!(only(&sidecar).await, (TriggerState::Pending, vec![]));
    assert_eq!(fleet.nodes.tree().await, before, "a list has changed a node (OP-5)");

    fleet.nodes.delete(&format!("trigger/{java}")).await;
    assert_eq!(only(&sidecar).await, (TriggerState::Done, vec![]), "the execution is older than the trigger");
    fleet.nodes.put("sharding/1/running", java).await;
    assert_eq!(only(&sidecar).await, (TriggerState::TakenUp, vec![1]));
    fleet.nodes.delete("sharding/1/running").await;
    assert_eq!(only(&sidecar).await, (TriggerState::Done, vec![]));
    fleet.nodes.delete(&format!("instances/{java}")).await;
    assert_eq!(only(&sidecar).await, (TriggerState::Unknown, vec![]));
    // ElasticJob's console triggers without an id.
    fleet.nodes.put("trigger/10.0.0.8@-@1", "").await;
    let all = list(&sidecar, JOB).await.unwrap();
    assert_eq!((all[0].state(), all[0].online, &*all[0].request_id), (TriggerState::Pending, false, ""));
    assert_eq!(all.len(), 2);
}

#[tokio::test]
async fn a_trigger_of_a_sidecar_s_instance_is_done_when_its_executions_are_reported() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let other = fleet.sidecar_with(2, |_| ()).await;
    let mut app = sidecar.attach(request(job(2))).await;
    app.assigned(&[0, 1]).await;
    fleet.nodes.settled_tree().await;
    trigger(&other, "mine").await;
    let executes = app.executes(2).await;
    assert_eq!(only(&other).await, (TriggerState::TakenUp, vec![0, 1]));
    for execute in &executes {
        app.report_success(execute).await;
    }
    assert_eq!(only(&other).await, (TriggerState::Done, vec![]));
}

#[tokio::test]
async fn the_triggers_of_an_unknown_job_are_refused() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    for (job, code) in
        [("nobody", Code::NotFound), ("", Code::InvalidArgument), ("a/b", Code::InvalidArgument)]
    {
        assert_eq!(list(&sidecar, job).await.unwrap_err().code(), code, "{job:?}");
    }
}
