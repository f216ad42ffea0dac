//! The state that the threads of one Java process share: its session, its clock, its memory.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use futures::FutureExt;
use jiff::{SignedDuration, Timestamp};
use sidekeeper::registry::embedded::Embedded;
use sidekeeper::registry::{Registry, Session, Watch};
use sidekeeper::tree::Path;

use super::cache::{Cache, Event, Raw};
use super::quartz::Quartz;
use super::threads::{Thread, Wait};
use super::yaml::Config;
use super::{Options, Run, Writes};
use crate::random::Random;

/// The events of the listener of connection states (protocol 2.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionState {
    Unavailable,
    Reconnected,
}

/// A document, and what it says.
type Parsed = (Arc<[u8]>, Rc<Config>);

pub struct Process {
    pub registry: Embedded,
    pub session: RefCell<Arc<dyn Session>>,
    watch: RefCell<Option<Watch>>,
    has_watch: Cell<bool>,
    pub namespace: Path,
    pub job: Path,
    pub id: String,
    pub options: Options,
    now: Cell<Timestamp>,
    random: RefCell<Random>,
    wanted: Cell<Wait>,
    /// An exception is on its way.
    pub is_thrown: Cell<bool>,
    pub is_rotation: Cell<bool>,
    /// How long an item is executed, at least and at most.
    pub duration_ms: Cell<(u64, u64)>,
    /// How often a barrier of the listeners was removed.
    pub removed_gates: Cell<u64>,
    /// Calls of the listeners: the barrier, and when.
    pub called: RefCell<Vec<(String, Timestamp)>>,
    /// The nodes that could not be read.
    pub unreadable: RefCell<Vec<String>>,
    changes: Cell<u64>,
    pub spawned: RefCell<Vec<Thread>>,

    /// Whether there is a connection.
    pub connected: Cell<bool>,
    /// How many connections there have been.
    pub connections: Cell<u64>,
    /// Whether the request that goes on now takes effect, and its answer gets lost.
    pub loses_answer: Cell<bool>,
    pub states: RefCell<VecDeque<ConnectionState>>,

    pub cache: RefCell<Cache>,
    pub raw: RefCell<VecDeque<Raw>>,
    pub events: RefCell<VecDeque<Event>>,
    pub is_listening: Cell<bool>,
    /// Nodes that latches wait for; true when they are gone.
    pub awaited: RefCell<BTreeMap<Path, bool>>,

    pub quartz: RefCell<Quartz>,
    /// The configuration as it was last parsed, and the text.
    pub parsed: RefCell<Option<Parsed>>,
    /// The total that was last seen.
    pub total: Cell<u32>,
    /// The job is over in this process; the process goes on.
    pub is_shut: Cell<bool>,
    /// The job has been shut down by the deletion of its own instance node.
    pub was_stopped: Cell<bool>,
    /// Whether it executes.
    pub is_running: Cell<bool>,
    pub has_started: Cell<bool>,
    pub has_exited: Cell<bool>,
    /// Since when it waits for the leader's sharding.
    pub blocked_since: Cell<Option<Timestamp>>,
    pub runs: RefCell<Vec<Run>>,
    pub writes: Option<Writes>,
    /// Running nodes of others that it has deleted: the item, and when.
    pub erased: RefCell<Vec<(u32, Timestamp)>>,
}

impl Process {
    pub fn new(registry: &Embedded, options: Options, now: Timestamp, writes: Option<Writes>) -> Self {
        let session = registry.open().now_or_never().unwrap().unwrap();
        let namespace = Path::parse("/ns").unwrap();
        Self {
            registry: registry.clone(),
            session: RefCell::new(session),
            watch: RefCell::new(None),
            has_watch: Cell::new(false),
            job: namespace.child(&options.configuration.job_name),
            namespace,
            id: format!("{}@-@{}", options.ip, options.pid),
            random: RefCell::new(Random::new(options.seed)),
            now: Cell::new(now),
            wanted: Cell::new(Wait::Turn),
            is_thrown: Cell::new(false),
            is_rotation: Cell::new(false),
            duration_ms: Cell::new(options.duration_ms),
            removed_gates: Cell::new(0),
            called: RefCell::default(),
            unreadable: RefCell::default(),
            changes: Cell::new(0),
            spawned: RefCell::default(),
            connected: Cell::new(true),
            connections: Cell::new(0),
            loses_answer: Cell::new(false),
            states: RefCell::default(),
            cache: RefCell::default(),
            raw: RefCell::default(),
            events: RefCell::default(),
            is_listening: Cell::new(false),
            awaited: RefCell::default(),
            quartz: RefCell::default(),
            parsed: RefCell::default(),
            total: Cell::new(0),
            is_shut: Cell::new(false),
            was_stopped: Cell::new(false),
            is_running: Cell::new(false),
            has_started: Cell::new(false),
            has_exited: Cell::new(false),
            blocked_since: Cell::new(None),
            runs: RefCell::default(),
            writes,
            erased: RefCell::default(),
            options,
        }
    }

    /// The world's time.
    pub fn now(&self) -> Timestamp {
        self.now.get()
    }

    /// This machine's clock.
    pub fn local_now(&self) -> Timestamp {
        self.now.get() + SignedDuration::from_millis(self.options.clock_ahead_ms)
    }

    pub fn set_now(&self, now: Timestamp) {
        self.now.set(now);
    }

    pub fn below(&self, bound: u64) -> u64 {
        self.random.borrow_mut().below(bound)
    }

    pub fn want_wait(&self, wait: Wait) {
        self.wanted.set(wait);
    }

    pub fn wanted_wait(&self) -> Wait {
        self.wanted.get()
    }

    pub fn changes(&self) -> u64 {
        self.changes.get()
    }

    /// Something has changed in memory that threads may wait for.
    pub fn changed(&self) {
        self.changes.set(self.changes.get() + 1);
    }

    /// Opens the recursive watch of the job, which begins with everything that is there.
    pub fn open_watch(&self) {
        let all = Arc::new(|_: &Path| true);
        let watch = self.session.borrow().watch(&self.job, all).now_or_never().unwrap().ok();
        *self.watch.borrow_mut() = watch;
        self.has_watch.set(true);
        self.take_news();
    }

    /// In a new session, if there was one.
    pub fn reopen_watch(&self) {
        if self.has_watch.get() {
            self.open_watch();
        }
    }

    pub fn close_watch(&self) {
        *self.watch.borrow_mut() = None;
    }

    /// The messages of the connection wait in this process from now on. To be called after each change, so that
    /// no two changes of a node become one.
    pub fn take_news(&self) {
        let mut watch = self.watch.borrow_mut();
        let Some(watch) = watch.as_mut() else { return };
        while let Ok(event) = watch.try_recv() {
            let mut raw = self.raw.borrow_mut();
            Raw::from_watch(event, &self.job, &mut raw);
            let mut awaited = self.awaited.borrow_mut();
            if !awaited.is_empty() {
                for raw in &*raw {
                    let Raw::Change(path, None) = raw else { continue };
                    awaited.entry(self.job.child(path)).and_modify(|is_gone| *is_gone = true);
                }
            }
            drop(raw);
            self.changed();
        }
    }
}
