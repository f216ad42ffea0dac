//! The requests to the registry for an execution: no read; one transaction starts all items of a fire; and at most one
//! transaction for each report ends its executions. They are counted on the embedded registry, below the whole sidecar.
//! And the work for a change of a node: an unchanged configuration is not parsed again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/application.rs"]
mod application;

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use sidekeeper::coordination::job::picture::job_view::JobView;
use sidekeeper::coordination::job::picture::nodes::ConfigView;
use sidekeeper::coordination::time::Now;
use sidekeeper::proto::attach_response::Event;
use sidekeeper::proto::{AttachRequest, CompletionStatus, ExecutionSource, JobConfiguration};
use sidekeeper::registry::counted::{Counted, Counts};
use sidekeeper::registry::embedded::Embedded;
use sidekeeper::sidecar::Sidecar;
use sidekeeper::tree::{Node, NodeChange, Path, Stat, WatchEvent, Zxid};
use tempfile::TempDir;

use application::{Job, config, connect, job};

const ITEMS: u32 = 50;

/// A sidecar, and a job that has fired before: the requests that follow each resharding have been sent.
struct Steady {
    registry: Counted,
    job: Job,
    sidecar: Sidecar,
    _folder: TempDir,
}

impl Steady {
    async fn start(configuration: JobConfiguration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = config(&folder.path().join("socket"));
        let registry = Counted::new(Embedded::in_memory());
        let namespace = Path::parse("/budget").unwrap();
        let sidecar = Sidecar::start_on(config, namespace, Arc::new(registry.clone())).await.unwrap();
        let client = connect(&sidecar.endpoints()[0]).await;
        let job = Job::attach(client, "counted", configuration).await;
        let mut steady = Self { registry, job, sidecar, _folder: folder };
        let fire = steady.fire().await;
        steady.report([fire]).await;
        steady
    }

    /// Waits for a fire of all items; returns their executions.
    async fn fire(&mut self) -> Vec<String> {
        let mut executions = Vec::new();
        let mut scheduled = None;
        for _ in 0..ITEMS {
            let execute = self.job.execute().await;
            assert_eq!(execute.source(), ExecutionSource::Schedule);
            assert_eq!(*scheduled.get_or_insert(execute.scheduled_time), execute.scheduled_time, "one fire");
            executions.push(execute.execution_id);
        }
        executions
    }

    /// Reports executions, several reports at once.
    async fn report(&self, reports: impl IntoIterator<Item = Vec<String>>) {
        let answers = join_all(reports.into_iter().map(|executions| self.job.succeeded(executions))).await;
        for record in answers.iter().flatten() {
            assert_eq!(record.status(), CompletionStatus::Recorded);
        }
    }
}

/// The requests of a fire until the application has all executions, and those of its reports after that.
async fn cost(steady: &mut Steady, reports: usize) -> (Counts, Counts) {
    let before = steady.registry.counts();
    let fire = steady.fire().await;
    let started = steady.registry.counts();
    steady.report(fire.chunks(fire.len() / reports).map(<[_]>::to_vec)).await;
    (started.since(before), steady.registry.counts().since(started))
}

#[tokio::test]
async fn a_fire_starts_in_one_transaction_and_ends_in_one_for_each_report() {
    let mut steady = Steady::start(job("* * * * * ?", ITEMS)).await;
    let items = u64::from(ITEMS);
    for _ in 0..2 {
        let (start, completion) = cost(&mut steady, 1).await;
        // The check that no resharding came between; for each item its running node and its ledger entry.
        let expected = Counts { transactions: 1, operations: 1 + 2 * items, ..Counts::default() };
        assert_eq!(start, expected);
        // The same check: a late request must not delete the running nodes of other executions.
        let expected = Counts { transactions: 1, operations: 1 + items, ..Counts::default() };
        assert_eq!(completion, expected);
    }
}

#[tokio::test]
async fn reports_that_come_together_share_transactions() {
    let mut steady = Steady::start(job("* * * * * ?", ITEMS)).await;
    let (_, completion) = cost(&mut steady, 10).await;
    assert_eq!((completion.reads, completion.watches), (0, 0));
    assert_eq!(completion.operations, completion.transactions + u64::from(ITEMS));
    assert!((1..=10).contains(&completion.transactions), "{completion:?}");
}

#[tokio::test]
async fn the_instances_of_a_job_at_one_sidecar_share_its_watches() {
    // Without monitoring, a job has no ledger, which each instance would read by itself.
    let configuration = JobConfiguration { monitor_execution: Some(false), ..job("* * * * * ?", ITEMS) };
    let steady = Steady::start(configuration).await;
    let before = steady.registry.counts().watches;
    let mut client = connect(&steady.sidecar.endpoints()[0]).await;
    let mut streams = Vec::new();
    for _ in 0..5 {
        let request = AttachRequest { job_name: "counted".to_owned(), ..AttachRequest::default() };
        let mut events = client.attach(request).await.unwrap().into_inner();
        while !matches!(events.message().await.unwrap().unwrap().event, Some(Event::AssignmentChanged(_))) {}
        streams.push(events);
    }
    assert_eq!(steady.registry.counts().watches, before);
}

#[tokio::test]
async fn a_job_without_monitoring_sends_no_requests() {
    let configuration = job("* * * * * ?", ITEMS);
    let configuration = JobConfiguration { monitor_execution: Some(false), ..configuration };
    let mut steady = Steady::start(configuration).await;
    let (start, completion) = cost(&mut steady, 1).await;
    assert_eq!((start, completion), (Counts::default(), Counts::default()));
}

#[test]
fn h23_a_configuration_is_parsed_once_however_many_other_nodes_change() {
    let root = Path::parse("/budget/counted").unwrap();
    let stat = |zxid: i64| Stat {
        created: Zxid(zxid),
        modified: Zxid(zxid),
        version: 0,
        ephemeral_owner: None,
        modified_ms: 0,
    };
    let yaml: Arc<[u8]> = b"jobName: counted\nshardingTotalCount: 50\n".as_slice().into();
    let mut view = JobView::new(root.clone());
    let config = Node { path: root.child("config"), data: yaml, stat: stat(1) };
    let now = Now { wall: Timestamp::UNIX_EPOCH, mono: Duration::ZERO };
    view.apply(WatchEvent::Snapshot(vec![config]), now);
    let parsed = |view: &JobView| {
        let ConfigView::Valid(configuration) = view.config() else { panic!("{:?}", view.config()) };
        Arc::clone(configuration)
    };
    let before = parsed(&view);
    for zxid in 2..1_000 {
        let path = root.child(&format!("sharding/{}/running", zxid % 50));
        let put = NodeChange::Put { path: path.clone(), content: Some((b"".as_slice().into(), stat(zxid))) };
        view.apply(WatchEvent::Changes(vec![put, NodeChange::Removed { path }]), now);
    }
    assert!(Arc::ptr_eq(&before, &parsed(&view)), "the configuration was parsed again");
}
