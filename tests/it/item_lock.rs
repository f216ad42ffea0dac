//! Executions that hold a lock for their item (`sidekeeper.item-lock`).

use sidekeeper::proto::{
    CancelReason, CompletionStatus, ExecutionSource, JobConfiguration, WatchAssignmentsResponse,
};
use sidekeeper::registry::Registry;
use sidekeeper::tree::{Operation, Path};

use crate::fleet::{Fleet, each_second, failure, request, request_for};

fn with_lock(name: &str) -> JobConfiguration {
    let props = [("sidekeeper.item-lock".to_owned(), name.to_owned())].into();
    JobConfiguration { props, ..each_second(1) }
}

#[tokio::test]
async fn s53_an_item_of_another_job_waits_and_is_shown_with_the_holder() {
    let fleet = Fleet::new().await;
    let one = fleet.sidecar_with(1, |_| {}).await;
    let other = fleet.sidecar_with(2, |_| {}).await;
    let mut first = one.attach(request_for("orders", with_lock("ledger"))).await;
    let held = first.execute().await;
    let mut second = other.attach(request_for("bills", with_lock("ledger"))).await;
    second.assigned(&[0]).await;
    let mut watcher = other.try_watch("bills").await.unwrap();
    let waits =
        |state: &WatchAssignmentsResponse| state.items.iter().any(|item| item.waiting_for_lock.is_some());
    let state = watcher.until("the wait", waits).await;
    assert!(!state.items[0].running);
    let waiting = state.items[0].waiting_for_lock.clone().unwrap();
    assert_eq!(waiting.lock_name, "ledger@-@0");
    assert_eq!(waiting.holder, format!("{} of job orders", first.attached.instance_id));
    assert!(waiting.since.is_some());
    first.report_success(&held).await;
    let next = second.execute().await;
    assert!(next.lock_token > held.lock_token && held.lock_token > 0);
    // By turns: the first job waits for the second one.
    second.report_success(&next).await;
    let again = first.execute().await;
    assert!(again.lock_token > next.lock_token);
}

#[tokio::test]
async fn s56_a_lost_lock_cancels_the_execution_which_is_then_taken_over() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let configuration = JobConfiguration { failover: Some(true), ..with_lock("true") };
    let mut app = sidecar.attach(request(configuration)).await;
    let held = app.execute().await;
    let outside = fleet.registry.open().await.unwrap();
    let lock = Path::parse(&format!("/{}-sidekeeper/@-@locks/queues/orders@-@0", fleet.namespace)).unwrap();
    let queue = outside.children(&lock).await.unwrap().unwrap();
    assert_eq!(queue.len(), 1);
    outside.commit(vec![Operation::delete(lock.child(&queue[0]))]).await.unwrap();
    let cancel = app.cancel().await;
    assert_eq!((cancel.reason(), &cancel.execution_id), (CancelReason::ItemLockLost, &held.execution_id));
    let records = app.report(vec![failure(&held.execution_id, "cancelled")]).await;
    assert_eq!(records.unwrap(), [CompletionStatus::LeaseLost]);
    let again = app.execute().await;
    assert_eq!((again.source(), again.scheduled_time), (ExecutionSource::Failover, held.scheduled_time));
    assert!(again.lock_token > held.lock_token);
}
