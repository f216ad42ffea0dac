//! Java peers as models: instances of ElasticJob 3.0.5, written from the notes on its protocol with its quirks and
//! hazards (numbered H as there), not from its source. Each request is a step that the scheduler orders; threads are
//! futures that it polls; time and chance come from the world. Traces of the real one validate the model (`traces.rs`).
//!
//! Left out are: tracing, error handlers, thread pools (items of a fire run at the same time, each for a random
//! time), the interruption by the API's shutdown, and the requests by which Curator's cache reads what has changed.

mod cache;
mod client;
mod election;
mod execution;
mod failover;
mod fleet;
mod latch;
mod listeners;
mod once;
mod process;
mod quartz;
mod rotation;
mod session;
mod sharding;
mod startup;
mod threads;
mod tickets;
mod traces;
pub mod yaml;

use std::cell::{Ref, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use futures::FutureExt;
use jiff::{SignedDuration, Timestamp};
use sidekeeper::registry::Registry;
use sidekeeper::registry::embedded::Embedded;
use sidekeeper::tree::{Operation, Path, SessionId};

use self::process::{ConnectionState, Process};
use self::threads::{Thread, Wait};
use self::yaml::Config;
use crate::random::Random;

/// How a process is set up.
#[derive(Debug, Clone)]
pub struct Options {
    pub ip: String,
    pub pid: u32,
    /// The local configuration.
    pub configuration: Config,
    pub class: &'static str,
    /// How long an item is executed, at least and at most.
    pub duration_ms: (u64, u64),
    /// After how long without a connection the server ends its session.
    pub session_ms: i64,
    /// By how much its clock is ahead of the world's.
    pub clock_ahead_ms: i64,
    /// By how much its cache is behind the events that it has got, at most.
    pub cache_lag_ms: u64,
    /// How long after its registration its scheduler starts, at most.
    pub scheduler_after_ms: u64,
    pub once_listener: bool,
    pub seed: u64,
}

/// One execution of an item.
#[derive(Debug, Clone)]
pub struct Run {
    pub item: u32,
    /// The instant of the schedule; `None`: it was asked for (by a trigger, or to take an item over).
    pub fire: Option<Timestamp>,
    pub misfire: bool,
    pub began: Timestamp,
    ends: Timestamp,
    /// `None`: it is open.
    pub ended: Option<Timestamp>,
}

/// One transaction of a session that took effect: its steps, each with the path as it was created.
#[derive(Debug, Clone)]
pub struct Write {
    pub session: SessionId,
    pub steps: Vec<(Operation, Path)>,
}

/// All transactions of the processes that share it, in order.
pub type Writes = Rc<RefCell<Vec<Write>>>;

/// A Java process with one job, and its session.
pub struct Java {
    process: Rc<Process>,
    threads: Vec<Thread>,
    /// It does nothing until then.
    frozen_until: Option<Timestamp>,
    /// Since when the server has not heard of it.
    silent_since: Option<Timestamp>,
    /// When its connection comes back.
    back_at: Option<Timestamp>,
    /// The process is gone; its session may not be.
    is_dead: bool,
    is_over: bool,
}

impl Java {
    pub fn start(registry: &Embedded, options: Options, now: Timestamp, writes: Option<Writes>) -> Self {
        let process = Rc::new(Process::new(registry, options, now, writes));
        let main = Thread::new(startup::main(Rc::clone(&process)));
        Self {
            process,
            threads: vec![main],
            frozen_until: None,
            silent_since: None,
            back_at: None,
            is_dead: false,
            is_over: false,
        }
    }

    /// One thread, chosen at random, goes on to its next request or wait.
    pub fn turn(&mut self, random: &mut Random) {
        if self.is_dead || self.frozen_until.is_some() {
            return;
        }
        let count = self.threads.iter().filter(|thread| thread.can_go_on(&self.process)).count();
        if count == 0 {
            return;
        }
        let chosen = random.below(count as u64) as usize;
        let mut able = (0..self.threads.len()).filter(|index| self.threads[*index].can_go_on(&self.process));
        let index = able.nth(chosen).unwrap();
        self.go_on(index);
        if self.process.has_exited.get() {
            self.die();
        }
    }

    fn go_on(&mut self, index: usize) {
        if self.threads[index].go_on(&self.process) {
            drop(self.threads.swap_remove(index));
        }
        self.threads.append(&mut self.process.spawned.borrow_mut());
    }

    /// Time has passed: connections come back, the server ends sessions, sleepers wake.
    pub fn tick(&mut self, now: Timestamp) {
        self.process.set_now(now);
        if self.frozen_until.is_some_and(|until| now >= until) {
            self.frozen_until = None;
            self.thaw();
        }
        let limit = SignedDuration::from_millis(self.process.options.session_ms);
        if self.silent_since.is_some_and(|since| now.duration_since(since) > limit) && !self.is_over {
            self.end_session();
        }
        if !self.is_dead && self.frozen_until.is_none() && self.back_at.is_some_and(|back| now >= back) {
            self.connect();
        }
    }

    /// The messages of the connection wait in the process now. After each change of the registry.
    pub fn take_news(&self) {
        if !self.is_dead {
            self.process.take_news();
        }
    }

    /// The connection breaks, and is back after a while; requests on their way take effect or do not. The session
    /// lives, if the while is not too long for it.
    pub fn lose_connection(&mut self, millis: i64, random: &mut Random) {
        if self.is_dead || !self.process.connected.get() {
            return;
        }
        for index in (0..self.threads.len()).rev() {
            if self.threads[index].wait == Wait::Answer && self.frozen_until.is_none() && random.once_in(2) {
                self.process.loses_answer.set(true);
                self.go_on(index);
                self.process.loses_answer.set(false);
            }
        }
        self.process.registry.suspend(self.session());
        self.disconnected();
        self.silent_since.get_or_insert(self.process.now());
        self.back_at = Some(self.process.now() + SignedDuration::from_millis(millis));
    }

    fn disconnected(&self) {
        self.process.connected.set(false);
        self.process.connections.set(self.process.connections.get() + 1);
        self.process.states.borrow_mut().push_back(ConnectionState::Unavailable);
        self.process.changed();
    }

    /// The process stops for a while, as in a long collection of garbage.
    pub fn freeze(&mut self, millis: i64) {
        if self.is_dead || self.frozen_until.is_some() {
            return;
        }
        let now = self.process.now();
        self.silent_since.get_or_insert(now);
        self.frozen_until = Some(now + SignedDuration::from_millis(millis));
    }

    fn thaw(&mut self) {
        if self.back_at.is_some() {
            return;
        }
        self.silent_since = None;
        if self.is_over {
            self.disconnected();
            self.back_at = Some(self.process.now());
        }
    }

    /// The server ends the session while the client is connected, and it is told of that the way a server does:
    /// its watch tells that its own nodes are gone, and then the connection is closed (tickets 1857, 2383).
    pub fn expire(&mut self, millis: i64) {
        if self.is_dead || self.is_over || !self.process.connected.get() {
            return;
        }
        let own = self.process.cache.borrow().of_session(self.session());
        self.end_session();
        let gone = own.into_iter().map(|path| cache::Raw::Change(path, None));
        self.process.raw.borrow_mut().extend(gone);
        self.disconnected();
        self.back_at = Some(self.process.now() + SignedDuration::from_millis(millis));
    }

    fn end_session(&mut self) {
        self.process.registry.expire(self.session());
        self.is_over = true;
    }

    fn connect(&mut self) {
        self.back_at = None;
        self.silent_since = None;
        if std::mem::take(&mut self.is_over) {
            let session = self.process.registry.open().now_or_never().unwrap().unwrap();
            *self.process.session.borrow_mut() = session;
            self.process.connected.set(true);
            self.process.reopen_watch();
        } else {
            self.process.registry.resume(self.session());
            self.process.connected.set(true);
        }
        self.process.connections.set(self.process.connections.get() + 1);
        self.process.states.borrow_mut().push_back(ConnectionState::Reconnected);
        self.process.changed();
        self.process.take_news();
    }

    /// The process is killed; the server ends its session when it has not heard of it for long enough.
    pub fn kill(&mut self) {
        if self.is_dead {
            return;
        }
        self.silent_since.get_or_insert(self.process.now());
        self.die();
    }

    fn die(&mut self) {
        self.is_dead = true;
        (self.frozen_until, self.back_at) = (None, None);
        self.silent_since.get_or_insert(self.process.now());
        self.threads.clear();
        self.process.spawned.borrow_mut().clear();
        self.process.close_watch();
        let now = self.process.now();
        for run in self.process.runs.borrow_mut().iter_mut().filter(|run| run.ended.is_none()) {
            run.ended = Some(now);
        }
    }

    /// The process is asked to end.
    pub fn stop(&mut self) {
        self.threads.push(Thread::new(Rc::clone(&self.process).exit()));
    }

    /// How long an item is executed from now on.
    pub fn set_duration(&self, least_ms: u64, most_ms: u64) {
        self.process.duration_ms.set((least_ms, most_ms));
    }

    pub fn id(&self) -> &str {
        &self.process.id
    }

    pub fn session(&self) -> SessionId {
        self.process.session.borrow().id()
    }

    /// Whether the process is gone.
    pub fn is_dead(&self) -> bool {
        self.is_dead
    }

    /// Whether it has taken the end of its session for an operator's order, or obeyed one: the process is there, and
    /// the job is over in it.
    pub fn was_stopped(&self) -> bool {
        self.process.was_stopped.get()
    }

    /// Since when it waits for a sharding of another instance.
    pub fn blocked_since(&self) -> Option<Timestamp> {
        self.process.blocked_since.get()
    }

    pub fn runs(&self) -> Ref<'_, Vec<Run>> {
        self.process.runs.borrow()
    }

    /// The nodes that it could not read.
    pub fn unreadable(&self) -> Vec<String> {
        self.process.unreadable.borrow().clone()
    }

    /// The running nodes of others that it has deleted: the item, and when.
    pub fn erased(&self) -> Ref<'_, Vec<(u32, Timestamp)>> {
        self.process.erased.borrow()
    }
}

/// The data of a node, seen from outside.
pub fn data_of(registry: &Embedded, path: &Path) -> Option<Arc<[u8]>> {
    let session = registry.open().now_or_never().unwrap().unwrap();
    session.get(path).now_or_never().unwrap().unwrap().map(|node| node.data)
}
