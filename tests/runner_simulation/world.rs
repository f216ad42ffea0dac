//! The world: sidecars on a registry, applications beside them, and the recorded facts that the checks need.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use sidekeeper::proto;
use sidekeeper::registry::Session;

use crate::application::App;
use crate::ensemble::Ensemble;
use crate::executor::Executor;
use crate::sidecar::Place;
use crate::state_file::Disk;
use crate::timeline::{Due, Timeline};
use crate::transport::{Call, Stream};

/// The timeout of sessions.
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(6);
/// How often the running nodes are compared with what applications do.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// The number of lines of the log that a violation shows.
const LINES_SHOWN: usize = 120;

/// A job.
#[derive(Debug, Clone)]
pub struct Job {
    pub name: String,
    pub total: u32,
    /// Seconds from one fire to the next.
    pub period: i64,
    pub failover: bool,
    pub grace: Duration,
    /// Whether the handoff is `drained`: an item moves after its owner's acknowledgement.
    pub drained: bool,
}

impl Job {
    pub fn configuration(&self) -> proto::JobConfiguration {
        let mut props = BTreeMap::new();
        if !self.grace.is_zero() {
            props.insert("sidekeeper.grace", format!("{}ms", self.grace.as_millis()));
        }
        if self.drained {
            props.insert("sidekeeper.handoff", "drained".to_owned());
        }
        proto::JobConfiguration {
            sharding_total_count: self.total,
            cron: format!("0/{} * * * * ?", self.period),
            failover: Some(self.failover),
            props: props.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
            ..Default::default()
        }
    }
}

/// An execution that an application received.
#[derive(Debug, Clone)]
pub struct Start {
    pub job: usize,
    pub item: u32,
    pub scheduled: Timestamp,
    pub source: proto::ExecutionSource,
    pub attempt: u32,
    pub app: usize,
    pub execution_id: String,
    pub at: Duration,
}

pub struct World {
    pub seed: u64,
    pub timeline: Timeline,
    pub executor: Executor,
    pub ensemble: Ensemble,
    /// A session without delays, for the checks.
    pub outside: Arc<dyn Session>,
    pub jobs: Vec<Job>,
    pub places: Vec<Place>,
    pub apps: Vec<App>,
    pub streams: BTreeMap<u64, Stream>,
    pub calls: BTreeMap<u64, Call>,
    pub last_number: u64,
    pub last_process: u64,
    /// Whether clocks differ.
    pub clocks_are_wrong: bool,
    /// Whether the scenario has no faults, so that the checks allow no exceptions.
    pub exact: bool,
    /// The time since when no fault occurs any more.
    pub quiet_since: Option<Duration>,
    /// How long executions take at most, in milliseconds.
    pub duration_max: u64,
    /// Whether applications report late, and twice.
    pub sloppy: bool,
    /// The current executions: the application, for each job and item.
    pub executing: BTreeMap<(usize, u32), Vec<(usize, String)>>,
    /// The newest token of each job and item.
    pub tokens: BTreeMap<(usize, u32), i64>,
    /// The applications that have an item in their assignment, or have not acknowledged its revocation.
    pub owners: BTreeMap<(usize, u32), BTreeSet<usize>>,
    pub starts: Vec<Start>,
    /// The time of the last trigger of each job.
    pub triggered: BTreeMap<usize, Duration>,
    /// The triggers of items, by their parameters: the job, the item, and the instant of the executions that applications got.
    pub item_triggers: BTreeMap<String, (usize, u32, Option<prost_types::Timestamp>)>,
    /// The number of times that each result was recorded.
    pub recorded: BTreeMap<String, usize>,
    /// The deviations of running nodes from executions, with the time since when each exists.
    pub odd: BTreeMap<String, Duration>,
}

impl World {
    pub fn new(seed: u64, jobs: Vec<Job>, sidecars: usize, has_state_file: bool) -> Self {
        let timeline = Timeline::new(seed);
        let ensemble = Ensemble::new(&timeline, SESSION_TIMEOUT);
        let outside = ensemble.outside();
        let place = |number: usize| Place {
            ip: Ipv4Addr::new(10, 0, 0, number as u8 + 1),
            disk: has_state_file.then(Disk::default),
            life: None,
            paused: false,
            cut_off: false,
        };
        let mut world = Self {
            seed,
            executor: Executor::new(),
            outside,
            jobs,
            places: (0..sidecars).map(place).collect(),
            apps: Vec::new(),
            streams: BTreeMap::new(),
            calls: BTreeMap::new(),
            last_number: 0,
            last_process: 0,
            clocks_are_wrong: false,
            exact: false,
            quiet_since: None,
            duration_max: 1_200,
            sloppy: false,
            executing: BTreeMap::new(),
            tokens: BTreeMap::new(),
            owners: BTreeMap::new(),
            starts: Vec::new(),
            triggered: BTreeMap::new(),
            item_triggers: BTreeMap::new(),
            recorded: BTreeMap::new(),
            odd: BTreeMap::new(),
            timeline,
            ensemble,
        };
        world.check_again();
        world
    }

    fn check_again(&mut self) {
        self.check_running_nodes();
        self.timeline.after(CHECK_INTERVAL, Self::check_again);
    }

    /// Runs the world for so much time.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.timeline.now() + time;
        loop {
            self.run_tasks();
            match self.timeline.next(end) {
                Some(Due::Wake(waker)) => waker.wake(),
                Some(Due::Act(act)) => act(self),
                None => break,
            }
        }
        self.run_tasks();
    }

    pub fn run_seconds(&mut self, seconds: u64) {
        self.run_for(Duration::from_secs(seconds));
    }

    fn run_tasks(&mut self) {
        if let Err(why) = self.executor.run(&self.timeline) {
            self.violation("no panic, no endless loop", &why);
        }
    }

    pub fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// The time of a message between an application and its sidecar.
    pub fn short_hop(timeline: &Timeline) -> Duration {
        timeline.chance(|random| random.micros(50, 1_000))
    }

    /// Fails the test: a promise is broken.
    pub fn violation(&self, promise: &str, what: &str) -> ! {
        let lines = self.timeline.lines();
        // With a single seed, the whole log is shown.
        let all = std::env::var_os("SIMULATION_SEED").is_some();
        let shown = if all { 0 } else { lines.len().saturating_sub(LINES_SHOWN) };
        panic!(
            "seed {} at {:.4}: {promise}: {what}\n{}",
            self.seed,
            self.timeline.now().as_secs_f64(),
            lines[shown..].join("\n")
        );
    }

    /// Ends all faults; from now on the fleet must recover.
    pub fn calm_down(&mut self) {
        self.ensemble.set_network(crate::ensemble::Network { hop_max: 2_000, ..Default::default() });
        self.executor.lags = 0;
        for index in 0..self.places.len() {
            self.pause_if(index, false);
            self.cut_off_if(index, false);
        }
        self.quiet_since = Some(self.timeline.now());
        self.timeline.log("quiet");
    }

    fn pause_if(&mut self, index: usize, paused: bool) {
        if self.places[index].paused != paused {
            self.pause_sidecar(index, paused);
        }
    }

    fn cut_off_if(&mut self, index: usize, cut_off: bool) {
        if self.places[index].cut_off != cut_off {
            self.cut_off_sidecar(index, cut_off);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Objects that hold a session are dropped before the registry.
        for index in 0..self.places.len() {
            if let Some(life) = self.places[index].life.take() {
                life.alive.store(false, std::sync::atomic::Ordering::Relaxed);
                self.executor.kill(life.process);
            }
        }
        self.timeline.clear();
    }
}
