//! Finished one-off jobs are removed when their time is over, on both registries, with a whole sidecar. The time is an argument, so
//! nothing waits for it.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use sidekeeper::coordination::admin::finished::{Job as Nodes, Step};
use sidekeeper::elasticjob::path::JobPaths;
use sidekeeper::extension::path::ExtensionPaths;
use sidekeeper::job::JobName;
use sidekeeper::proto::job_service_client::JobServiceClient;
use sidekeeper::proto::{JobConfiguration, TriggerJobRequest};
use sidekeeper::registry::{Error, Session};
use sidekeeper::runner::admin::{Namespace, housekeeping};
use sidekeeper::runner::clock::Clock;
use sidekeeper::sidecar::Sidecar;
use sidekeeper::tree::{Operation, Path, Transaction};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::application::{Job, config, connect, connect_channel, job};
use crate::conformance::on_both;
use crate::registries::{PATIENCE, TestRegistry, commit, exists, path};

on_both! {
    a_finished_job_is_removed_when_its_time_is_over_and_may_begin_anew,
    a_job_that_was_not_executed_stays,
    a_job_that_an_operator_has_disabled_stays,
    an_instance_that_registers_in_the_same_moment_keeps_its_job,
    one_sidecar_at_a_time_is_the_housekeeper,
}

const MINUTE: i64 = 60_000;
const JOB: &str = "bill";

/// A sidecar, and a session beside it.
struct World {
    sidecar: Sidecar,
    session: Arc<dyn Session>,
    root: Path,
    clock: Clock,
    _folder: TempDir,
}

impl World {
    async fn start(registry: &TestRegistry) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(&folder.path().join("socket"));
        config.instance_ip = Ipv4Addr::new(10, 0, 0, 1);
        config.drain_timeout = Duration::from_millis(500);
        let root = path("/jobs");
        let sidecar = Sidecar::start_on(config, root.clone(), registry.shared()).await.unwrap();
        Self { sidecar, session: registry.session().await, root, clock: Clock::start(), _folder: folder }
    }

    async fn attach(&self) -> Job {
        let props = [
            ("sidekeeper.handoff-settling".to_owned(), "0s".to_owned()),
            ("sidekeeper.remove-finished-after".to_owned(), "10m".to_owned()),
        ];
        let configuration = JobConfiguration { props: props.into(), ..job("", 2) };
        let attached = Job::attach(connect(&self.sidecar.endpoints()[0]).await, JOB, configuration);
        timeout(PATIENCE, attached).await.expect("the items do not come")
    }

    /// Executes all items once, and ends the application.
    async fn execute(&self, mut application: Job) {
        let mut client = JobServiceClient::new(connect_channel(&self.sidecar.endpoints()[0]).await);
        let trigger = TriggerJobRequest { job_name: JOB.to_owned(), ..Default::default() };
        client.trigger_job(trigger).await.unwrap();
        for _ in 0..2 {
            let execute = timeout(PATIENCE, application.execute()).await.expect("no execution comes");
            timeout(PATIENCE, application.succeeded(vec![execute.execution_id])).await.unwrap();
        }
        self.end(application).await;
    }

    /// Ends the application, and waits until its instance has left.
    async fn end(&self, application: Job) {
        drop(application);
        let left = async {
            while !self.session.children(&path("/jobs/bill/instances")).await.unwrap().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, left).await.expect("the instance does not leave");
    }

    /// The time by the registry's clock.
    async fn now(&self) -> i64 {
        housekeeping::take_turn(&*self.session, &self.root).await.unwrap().expect("the turn")
    }

    fn namespace(&self) -> Namespace<'_> {
        Namespace { session: &self.session, root: &self.root, clock: &self.clock }
    }

    /// Looks at all jobs, as if it were so many minutes later.
    async fn sweep(&self, minutes: i64) {
        let now = self.now().await;
        housekeeping::sweep(self.namespace(), now + minutes * MINUTE).await.unwrap();
    }

    /// Looks at all jobs an hour later, until the job is removed: ZooKeeper deletes empty containers by itself, which begins the time anew.
    async fn sweep_until_removed(&self) {
        let removed = async {
            while self.has("/jobs/bill").await {
                self.sweep(60).await;
            }
        };
        timeout(PATIENCE, removed).await.expect("the job is not removed");
    }

    /// The removal of the job after its time, not committed. Notes the end of the job before, again after ZooKeeper has
    /// deleted an empty container.
    async fn removal(&self) -> Transaction {
        let name = JobName::parse(JOB).unwrap();
        let (paths, own_paths) = (JobPaths::new(&self.root, &name), ExtensionPaths::new(&self.root, &name));
        loop {
            self.sweep(0).await;
            let nodes = self.session.subtree(paths.root()).await.unwrap();
            let own = self.session.subtree(own_paths.root()).await.unwrap();
            let read = Nodes { paths: &paths, own_paths: &own_paths, nodes, own };
            let later = self.now().await + 11 * MINUTE;
            if let Step::Remove(removal) = read.next_step(later, None, self.clock.now()) {
                return removal;
            }
        }
    }

    async fn has(&self, node: &str) -> bool {
        exists(&*self.session, node).await
    }

    async fn stop(self) {
        let (_hurry, never) = watch::channel(false);
        self.sidecar.drain(never).await;
    }
}

async fn a_finished_job_is_removed_when_its_time_is_over_and_may_begin_anew(registry: TestRegistry) {
    let world = World::start(&registry).await;
    let application = world.attach().await;
    world.execute(application).await;
    world.sweep(0).await;
    assert!(world.has("/jobs-sidekeeper/bill/finished").await, "it is not noted");
    world.sweep(9).await;
    assert!(world.has("/jobs/bill/config").await, "too early");
    world.sweep_until_removed().await;
    assert_eq!((world.has("/jobs/bill").await, world.has("/jobs-sidekeeper/bill").await), (false, false));
    assert!(world.has("/jobs").await);
    // As if it had never been there.
    let application = world.attach().await;
    world.sweep(60).await;
    world.execute(application).await;
    assert!(world.has("/jobs/bill/config").await);
    world.stop().await;
}

async fn a_job_that_was_not_executed_stays(registry: TestRegistry) {
    let world = World::start(&registry).await;
    let application = world.attach().await;
    world.end(application).await;
    for minutes in [0, 60] {
        world.sweep(minutes).await;
        assert!(!world.has("/jobs-sidekeeper/bill/finished").await, "it is noted");
    }
    assert!(world.has("/jobs/bill/config").await);
    world.stop().await;
}

async fn a_job_that_an_operator_has_disabled_stays(registry: TestRegistry) {
    let world = World::start(&registry).await;
    let application = world.attach().await;
    world.execute(application).await;
    world.sweep(0).await;
    let server = path("/jobs/bill/servers/10.0.0.1");
    commit(&*world.session, vec![Operation::set(server.clone(), "DISABLED")]).await;
    world.sweep(60).await;
    assert_eq!(*world.session.get(&server).await.unwrap().unwrap().data, *b"DISABLED");
    assert!(!world.has("/jobs-sidekeeper/bill/finished").await, "it is noted still");
    // Its time begins anew.
    commit(&*world.session, vec![Operation::set(server, "ENABLED")]).await;
    world.sweep(60).await;
    assert!(world.has("/jobs/bill/config").await);
    world.sweep_until_removed().await;
    world.stop().await;
}

async fn an_instance_that_registers_in_the_same_moment_keeps_its_job(registry: TestRegistry) {
    let world = World::start(&registry).await;
    let application = world.attach().await;
    world.execute(application).await;
    let removal = timeout(PATIENCE, world.removal()).await.expect("its time is not over");
    let application = world.attach().await;
    let refused = world.session.commit(removal).await.unwrap_err().error;
    // The instance may have deleted a node of the removal.
    let is_refused = matches!(refused, Error::NotEmpty(_) | Error::BadVersion(_) | Error::NoNode(_));
    assert!(is_refused, "{refused:?}");
    world.execute(application).await;
    world.stop().await;
}

async fn one_sidecar_at_a_time_is_the_housekeeper(registry: TestRegistry) {
    let (one, two) = (registry.session().await, registry.session().await);
    let root = path("/jobs");
    // No sidecar has ever been in a job.
    assert_eq!(housekeeping::take_turn(&*one, &root).await, Ok(None));
    commit(
        &*one,
        vec![Operation::create(path("/jobs-sidekeeper"), sidekeeper::tree::NodeKind::Persistent, "")],
    )
    .await;
    let first = housekeeping::take_turn(&*one, &root).await.unwrap().expect("the turn");
    assert_eq!(housekeeping::take_turn(&*two, &root).await, Ok(None));
    assert!(housekeeping::take_turn(&*one, &root).await.unwrap().expect("the turn") >= first);
    one.close().await;
    assert!(housekeeping::take_turn(&*two, &root).await.unwrap().is_some());
}
