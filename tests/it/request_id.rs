//! `request_id`: an operator's request that is repeated after a lost answer is carried out once.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use sidekeeper::proto::job_service_client::JobServiceClient;
use sidekeeper::proto::{
    CancelExecutionsRequest, CancelledExecution, ExecutionSource, TriggerJobRequest, TriggerJobResponse,
};
use sidekeeper::registry::embedded::Embedded;
use tonic::{Code, Status};

use crate::fleet::{App, Fleet, JOB, RegistryFault, RunningSidecar, Tree, bounded, job, request};

async fn trigger(sidecar: &RunningSidecar, id: &str) -> Result<TriggerJobResponse, Status> {
    let mut client = JobServiceClient::new(sidecar.connect().await);
    let request =
        TriggerJobRequest { job_name: JOB.to_owned(), request_id: id.to_owned(), ..Default::default() };
    bounded("the answer", client.trigger_job(request)).await.map(tonic::Response::into_inner)
}

async fn cancel(sidecar: &RunningSidecar, id: &str) -> Result<Vec<CancelledExecution>, Status> {
    let mut client = JobServiceClient::new(sidecar.connect().await);
    let request = CancelExecutionsRequest {
        job_name: JOB.to_owned(),
        request_id: id.to_owned(),
        ..CancelExecutionsRequest::default()
    };
    let answer = bounded("the answer", client.cancel_executions(request)).await?;
    Ok(answer.into_inner().cancelled)
}

/// Waits until the trigger of an application is taken up.
async fn taken(fleet: &Fleet) {
    let is_taken = |tree: &Tree| tree.has("trigger") && tree.children("trigger").is_empty();
    fleet.nodes.until("the triggers to be taken", is_taken).await;
}

/// Executes the single item of a job once, for a trigger.
async fn run(app: &mut App) {
    let execute = app.execute().await;
    assert_eq!(execute.source(), ExecutionSource::Trigger);
    app.report_success(&execute).await;
}

#[tokio::test]
async fn op_3_a_trigger_that_is_repeated_at_another_sidecar_after_a_lost_answer_runs_once() {
    let fleet = Fleet::new().await;
    let faulty = fleet.sidecar_with_fault(RegistryFault::AnswerLost).await;
    let other = fleet.sidecar_with(2, |_| ()).await;
    let mut app = other.attach(request(job(1))).await;
    app.assigned(&[0]).await;
    fleet.nodes.settled_tree().await;
    let lost = trigger(&faulty, "once").await.unwrap_err();
    assert_eq!(lost.code(), Code::Unknown, "{lost:?}");
    run(&mut app).await;
    taken(&fleet).await;
    for sidecar in [&other, &faulty] {
        let answer = trigger(sidecar, "once").await.unwrap();
        assert_eq!(answer.triggered_instance_ids, [app.attached.instance_id.clone()]);
        assert!(fleet.nodes.tree().await.children("trigger").is_empty(), "triggered again");
    }
    // Another id, or none, is another request.
    for id in ["twice", "", ""] {
        assert_eq!(trigger(&other, id).await.unwrap().triggered_instance_ids.len(), 1, "{id}");
        run(&mut app).await;
        taken(&fleet).await;
    }
}

#[tokio::test]
async fn a_repetition_knows_the_pending_triggers_too_and_refusals_are_not_remembered() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    fleet.nodes.put("config", "jobName: orders\nshardingTotalCount: 1\n").await;
    assert_eq!(trigger(&sidecar, "one").await.unwrap_err().code(), Code::FailedPrecondition);
    let java = "10.0.0.9@-@1";
    fleet.nodes.put("servers/10.0.0.9", "ENABLED").await;
    fleet.nodes.put(&format!("instances/{java}"), format!("jobInstanceId: {java}\n")).await;
    assert_eq!(trigger(&sidecar, "one").await.unwrap().triggered_instance_ids, [java]);
    assert_eq!(trigger(&sidecar, "two").await.unwrap().pending_instance_ids, [java]);
    fleet.nodes.delete(&format!("trigger/{java}")).await;
    fleet.nodes.delete(&format!("instances/{java}")).await;
    let first = trigger(&sidecar, "one").await.unwrap();
    assert_eq!(
        (&first.triggered_instance_ids[..], first.pending_instance_ids.len()),
        (&[java.to_owned()][..], 0)
    );
    let second = trigger(&sidecar, "two").await.unwrap();
    assert_eq!(
        (&second.pending_instance_ids[..], second.triggered_instance_ids.len()),
        (&[java.to_owned()][..], 0)
    );
    assert!(!fleet.nodes.tree().await.has(&format!("trigger/{java}")));
}

#[tokio::test]
async fn op_3_a_repeated_cancel_cancels_no_execution_that_has_begun_since() {
    let fleet = Fleet::new().await;
    let lost = Arc::new(1.into());
    let faulty = fleet.sidecar_with_fault(RegistryFault::RecordAnswerLost(Arc::clone(&lost))).await;
    let other = fleet.sidecar().await;
    let mut app = faulty.attach(request(job(1))).await;
    app.assigned(&[0]).await;
    fleet.nodes.settled_tree().await;
    trigger(&other, "").await.unwrap();
    let first = app.execute().await;
    // The sidecar loses the answer to its record, and finds it again.
    let answer = cancel(&faulty, "once").await.unwrap();
    assert_eq!(lost.load(Ordering::Relaxed), 0, "no answer was lost");
    let ids = |answer: &[CancelledExecution]| -> Vec<String> {
        answer.iter().map(|one| one.execution_id.clone()).collect()
    };
    assert_eq!(ids(&answer), std::slice::from_ref(&first.execution_id));
    assert_eq!(app.cancel().await.execution_id, first.execution_id);
    app.report_success(&first).await;

    trigger(&other, "").await.unwrap();
    let second = app.execute().await;
    assert_eq!(cancel(&faulty, "once").await.unwrap(), answer);
    assert_eq!(cancel(&other, "once").await.unwrap(), answer, "another sidecar recognises it");
    let progress = app.progress(&second.execution_id, false, None).await.unwrap();
    assert!(!progress.cancelled, "a repetition has cancelled a later execution");
    let repeated = cancel(&faulty, "twice").await.unwrap();
    assert_eq!(ids(&repeated), std::slice::from_ref(&second.execution_id));
    assert_eq!(app.cancel().await.execution_id, second.execution_id);
    app.report_success(&second).await;
}

#[tokio::test]
async fn a_wrong_id_is_refused_and_changes_nothing() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(job(1))).await;
    app.assigned(&[0]).await;
    fleet.nodes.settled_tree().await;
    cancel(&sidecar, "cancel").await.unwrap();
    trigger(&sidecar, "trigger").await.unwrap();
    run(&mut app).await;
    taken(&fleet).await;
    let before = fleet.nodes.tree().await;
    let long = "x".repeat(65);
    for (wrong, says) in [("a/b", "request_id"), (&long, "request_id"), ("cancel", "another request")] {
        let status = trigger(&sidecar, wrong).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().contains(says), "{status:?}");
    }
    for (wrong, says) in [(".", "request_id"), ("trigger", "another request")] {
        let status = cancel(&sidecar, wrong).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().contains(says), "{status:?}");
    }
    assert_eq!(fleet.nodes.tree().await, before);
}

#[tokio::test]
async fn requests_are_remembered_for_ten_minutes_and_then_removed_by_later_ones() {
    let time = Arc::new(AtomicI64::new(1_000_000));
    let clock = Arc::clone(&time);
    let registry = Embedded::in_memory_with_clock(Arc::new(move || clock.load(Ordering::Relaxed)));
    let fleet = Fleet::on(registry).await;
    let sidecar = fleet.sidecar().await;
    fleet.nodes.put("config", "jobName: orders\nshardingTotalCount: 1\n").await;
    fleet.nodes.put("servers/10.0.0.9", "ENABLED").await;
    fleet.nodes.put("instances/10.0.0.9@-@1", "jobInstanceId: 10.0.0.9@-@1\n").await;
    let remembered = async || {
        let names = fleet.nodes.children_of_own("requests").await;
        names.into_iter().collect::<std::collections::BTreeSet<_>>()
    };
    let of = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    trigger(&sidecar, "a").await.unwrap();
    time.fetch_add(1_000, Ordering::Relaxed);
    trigger(&sidecar, "b").await.unwrap();
    time.fetch_add(598_999, Ordering::Relaxed);
    trigger(&sidecar, "c").await.unwrap();
    assert_eq!(remembered().await, of(&["a", "b", "c"]));
    time.fetch_add(1, Ordering::Relaxed);
    trigger(&sidecar, "d").await.unwrap();
    assert_eq!(remembered().await, of(&["b", "c", "d"]));
    time.fetch_add(10_000_000, Ordering::Relaxed);
    // A call without an id leaves no record, and removes none.
    trigger(&sidecar, "").await.unwrap();
    assert_eq!(remembered().await, of(&["b", "c", "d"]));
    trigger(&sidecar, "e").await.unwrap();
    assert_eq!(remembered().await, of(&["e"]));
}
