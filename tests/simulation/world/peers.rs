//! Java instances in the world, and the rules for sidecars beside them. What Java loses or does twice is its own
//! affair, and counted at most.

use std::collections::BTreeMap;

use futures::FutureExt;
use jiff::Timestamp;
use sidekeeper::job::Item;
use sidekeeper::registry::Registry;
use sidekeeper::tree::Path;

use super::World;
use crate::java::yaml::Config;
use crate::java::{Java, Options};

/// After how long without a connection a Java instance's session ends.
const SESSION_MS: i64 = 6_000;

/// How long a change may take to get to everybody.
const UNSEEN_MS: i64 = 100;

/// For how long a sidecar's application could execute an item.
#[derive(Debug, Clone)]
pub struct Tenure {
    node: usize,
    item: Item,
    from: Timestamp,
    /// `None`: it still can.
    to: Option<Timestamp>,
}

impl World {
    /// A new Java process.
    pub fn join_java(&mut self) {
        self.javas_started += 1;
        let ours = &self.configuration;
        let configuration = Config {
            cron: ours.cron.clone(),
            failover: ours.failover,
            misfire: ours.misfire,
            monitor_execution: ours.monitor_execution,
            reconcile_interval_minutes: ours.reconcile_interval_minutes,
            job_sharding_strategy_type: ours.job_sharding_strategy_type.clone(),
            ..Config::new(ours.job_name.as_str(), ours.sharding_total_count)
        };
        let options = Options {
            ip: format!("10.0.1.{}", self.javas_started % 250),
            pid: 4_000 + self.javas_started,
            configuration,
            class: "com.example.OrderJob",
            duration_ms: (1, self.duration_max_ms),
            session_ms: SESSION_MS,
            clock_ahead_ms: self.random.below(60) as i64 - 30,
            cache_lag_ms: self.java_cache_lag_ms,
            scheduler_after_ms: self.java_scheduler_after_ms,
            once_listener: false,
            seed: self.random.next(),
        };
        self.log.push(format!("{} java {}@-@{} starts", self.now, options.ip, options.pid));
        self.javas.push(Java::start(&self.registry, options, self.now, None));
    }

    /// The Java processes that have a job to do.
    pub fn living_javas(&self) -> Vec<usize> {
        let lives = |java: &usize| !self.javas[*java].is_dead() && !self.javas[*java].was_stopped();
        (0..self.javas.len()).filter(lives).collect()
    }

    pub(super) fn take_java_news(&self) {
        self.javas.iter().for_each(Java::take_news);
    }

    pub(super) fn tick_javas(&mut self) {
        for java in &mut self.javas {
            java.tick(self.now);
        }
        self.take_java_news();
    }

    /// Whether a Java instance has deleted or overwritten another instance's running node of an item since an instant.
    pub(super) fn was_erased(&self, item: Item, since: Timestamp) -> bool {
        let by = |java: &Java| java.erased().iter().any(|(erased, at)| *erased == item.0 && *at >= since);
        self.javas.iter().any(by)
    }

    /// Whether that happened just now, so that sidecars cannot know.
    pub(super) fn was_erased_just_now(&self, item: Item) -> bool {
        self.was_erased(item, self.now - jiff::SignedDuration::from_millis(UNSEEN_MS))
    }

    /// Every Java reader reads everything that sidecars have written.
    pub fn assert_java_reads(&self) {
        for java in &self.javas {
            let unreadable = java.unreadable();
            assert!(unreadable.is_empty(), "seed {}: {} throws: {unreadable:?}", self.seed, java.id());
        }
    }

    /// P6: an execution of a sidecar has its running node, unless a Java instance has deleted it.
    pub fn assert_running_nodes(&self) {
        for node in self.nodes.iter().filter(|node| node.ended.is_none() && !node.suspended) {
            for open in node.executions.values() {
                let execute = &open.execute;
                let running = self.get(&format!("sharding/{}/running", execute.item));
                let is_ours = running.is_some_and(|holder| holder == node.instance.as_str().as_bytes());
                assert!(
                    is_ours || self.was_erased(execute.item, execute.fired),
                    "seed {}: at {}, {} executes {} without a running node",
                    self.seed,
                    self.now,
                    node.name,
                    execute.item
                );
            }
        }
    }

    /// P1: every item has an owner that is there; a sidecar that owns one has been told; and each has one if there are
    /// enough.
    pub fn assert_owned_with_javas(&self) {
        let online = self.children("instances");
        let mut wrong = Vec::new();
        let told: BTreeMap<_, _> = self
            .alive()
            .into_iter()
            .flat_map(|node| self.nodes[node].items.iter().map(move |item| (*item, node)))
            .collect();
        for item in (0..self.configuration.sharding_total_count).map(Item) {
            let owner = self.get(&format!("sharding/{item}/instance")).unwrap_or_default();
            let owner = String::from_utf8_lossy(&owner).into_owned();
            let ours = told.get(&item).map(|node| self.nodes[*node].instance.to_string());
            // One that has shut its job down, and registered all the same, keeps what it has: Java's affair (2383).
            let is_java = self.javas.iter().any(|java| !java.is_dead() && java.id() == owner);
            let is_right = if is_java { ours.is_none() } else { ours.as_ref() == Some(&owner) };
            if !is_right || !online.contains(&owner) {
                wrong.push(format!("{item}: {owner}, told to {ours:?}"));
            }
        }
        // Each strategy gives an item to every instance if there are enough.
        let items = usize::try_from(self.configuration.sharding_total_count).unwrap();
        if online.len() <= items {
            let staying = self.staying();
            let idle = staying.iter().filter(|node| self.nodes[**node].items.is_empty());
            wrong.extend(idle.map(|node| format!("{} has no item", self.nodes[*node].name)));
        }
        assert!(
            wrong.is_empty(),
            "seed {}: P1 at {}: {wrong:#?}\n{:#?}\nleader {:?}, online {online:?}, javas {:?}\n{:#?}",
            self.seed,
            self.now,
            self.paths(),
            self.get("leader/election/instance").map(|leader| String::from_utf8_lossy(&leader).into_owned()),
            self.living_javas().into_iter().map(|java| self.javas[java].id()).collect::<Vec<_>>(),
            self.log
        );
    }

    /// A node owns these items from now on, and no others; or it can execute nothing.
    pub(super) fn note_owned(&mut self, node: usize, items: &[Item]) {
        let now = self.now;
        for open in self.tenures.iter_mut().filter(|tenure| tenure.node == node && tenure.to.is_none()) {
            if !items.contains(&open.item) {
                open.to = Some(now);
            }
        }
        for item in items {
            let is_open =
                |tenure: &Tenure| tenure.node == node && tenure.item == *item && tenure.to.is_none();
            if !self.tenures.iter().any(is_open) {
                self.tenures.push(Tenure { node, item: *item, from: now, to: None });
            }
        }
    }

    /// P5, P7: no fire of an item is lost that a sidecar owned and could execute: it, or its rerun, follows
    /// within a bound, if it owns the item for that long. Fires are every two seconds.
    pub fn assert_nothing_lost(&self, bound: jiff::SignedDuration) {
        for tenure in &self.tenures {
            let last = tenure.to.unwrap_or(self.now) - bound;
            let mut fire = Timestamp::from_second(tenure.from.as_second() / 2 * 2 + 4).unwrap();
            while fire < last {
                let is_for = |start: &super::Start| {
                    let is_now = start.at >= fire && start.at <= fire + bound;
                    start.item == tenure.item && start.scheduled >= fire && is_now
                };
                let by_java = |java: &Java| {
                    let is_now = |began: Timestamp| began >= fire && began <= fire + bound;
                    java.runs().iter().any(|run| run.item == tenure.item.0 && is_now(run.began))
                };
                assert!(
                    self.starts.iter().any(is_for) || self.javas.iter().any(by_java),
                    "seed {}: the fire {fire} of {tenure:?} is lost\n{:#?}",
                    self.seed,
                    self.log
                );
                fire += jiff::SignedDuration::from_secs(2);
            }
        }
    }

    /// The names below a node of the job.
    pub fn children(&self, relative: &str) -> Vec<String> {
        let session = self.registry.open().now_or_never().unwrap().unwrap();
        let path = Path::parse("/ns/job").unwrap().child(relative);
        session.children(&path).now_or_never().unwrap().unwrap().unwrap_or_default()
    }

    /// Items with the running node of a Java instance that does not execute them: its deletion got lost, which it
    /// swallows (H7). As long as the instance lives no other can know, and every sharding that moves the item waits.
    pub fn left_running_by_javas(&self) -> Vec<(u32, i64)> {
        let is_left = |item: &u32| {
            let running = self.get(&format!("sharding/{item}/running")).unwrap_or_default();
            let holder = self.javas.iter().find(|java| java.id().as_bytes() == running);
            let executes = |java: &Java| {
                java.runs()
                    .iter()
                    .any(|run| run.item == *item && run.ended.is_none_or(|ended| ended >= self.now))
            };
            holder.is_some_and(|holder| !executes(holder))
        };
        let left = (0..self.configuration.sharding_total_count).filter(is_left);
        left.map(|item| (item, self.created(&format!("sharding/{item}/running")))).collect()
    }

    /// How often an item was executed by a Java instance and another one at once.
    pub fn overlaps_of_javas(&self) -> usize {
        let mut runs = Vec::new();
        for (place, java) in self.javas.iter().enumerate() {
            let ended = |run: &crate::java::Run| run.ended.unwrap_or(self.now);
            runs.extend(java.runs().iter().map(|run| (run.item, run.began, ended(run), place)));
        }
        runs.sort_unstable();
        let overlap = |pair: &&[(u32, Timestamp, Timestamp, usize)]| {
            pair[0].0 == pair[1].0 && pair[1].1 < pair[0].2 && pair[0].3 != pair[1].3
        };
        runs.windows(2).filter(overlap).count()
    }
}
