//! The queue of events, and the phases of a schedule: a storm in which faults come, a calm in which everything has to
//! become right again, and now and then a farewell.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt::Write;
use std::net::Ipv4Addr;

use sidekeeper::elasticjob::path::JobPaths;
use sidekeeper::extension::path::ExtensionPaths;
use sidekeeper::job::InstanceName;
use sidekeeper::tree::{Path, Transaction, Zxid};

use crate::random::Random;

use super::application::Application;
use super::checks::Checks;
use super::ensemble::Ensemble;
use super::faults::{Counts, Fault};
use super::guests::Guests;
use super::invariants::{Invariant, Violation};
use super::item_locks::ItemLocks;
use super::machine::{Machine, ServerSession, Stray};
use super::plan::Plan;
use super::{MILLISECOND, Micros, Options, SECOND, Summary};

/// Something that happens at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A machine's sidecar is started.
    Start(usize),
    /// An application wants a stream.
    Attach(usize, u32),
    /// A participant looks.
    Step(usize),
    /// A participant wakes by itself.
    Alarm(usize),
    /// A request reaches the leader.
    Arrive(usize, u32),
    /// The messages that have reached a client are passed on.
    Deliver(usize, u32),
    Prove(usize, u32),
    LeaseOver(usize, usize),
    Reconnect(usize, u32),
    Expire(usize),
    EndSession(usize),
    Stray(usize),
    LatchLimit(usize, u32, u64),
    /// The application reads its stream.
    Read(usize),
    /// The application ends executions, or notices that its lease is over.
    Act(usize),
    /// An application is started again.
    Revive(usize, u32),
    /// A fault of the plan comes.
    Inflict(usize),
    /// An action of an operator is undone.
    Undo(usize),
    /// The leader answers again.
    Settle,
    /// A stopped process goes on.
    Resume(usize),
    /// A client has heard nothing for long.
    Silence(usize, u32),
    /// A sidecar that drains stops waiting for its applications.
    PatienceOver(usize, u32),
    /// An application that stops looks whether it may end this stream; it does so at the latest at that time.
    EndStream(usize, u32, Micros),
    /// The request for the lock of an item reaches the servers.
    LockAsked(usize),
    LockGivenBack(usize),
    LockNews(usize),
    /// Another job gives the lock with this token back.
    LockOfOtherOver(i64),
    /// A guest takes a step.
    Guest(usize),
    /// The application of a guest does something.
    GuestActs(usize),
    /// Once a second.
    Look,
}

pub(super) struct World {
    pub(super) seed: u64,
    pub(super) plan: Plan,
    pub(super) options: Options,
    pub(super) now: Micros,
    sequence: u64,
    events: BinaryHeap<Reverse<(Micros, u64, Event)>>,
    pub(super) ensemble: Ensemble,
    pub(super) namespace: Path,
    pub(super) paths: JobPaths,
    pub(super) own_paths: ExtensionPaths,
    pub(super) machines: Vec<Machine>,
    pub(super) sessions: Vec<ServerSession>,
    pub(super) strays: Vec<Stray>,
    pub(super) item_locks: ItemLocks,
    pub(super) guests: Guests,
    /// Chance of the network.
    pub(super) network: Random,
    /// Chance of the applications.
    pub(super) behaviour: Random,
    /// How clients read.
    pub(super) reading: Random,
    pub(super) counts: Counts,
    pub(super) checks: Checks,
    pub(super) steps: u64,
    /// Actions of operators that will be undone.
    pub(super) undo: Vec<Option<Vec<sidekeeper::tree::Operation>>>,
    /// Where garbage was put, and by which transaction: another node may come to the same place.
    pub(super) garbage: Vec<(Path, Zxid)>,
    pub(super) executions: u64,
    /// Whether faults are over.
    pub(super) is_calm: bool,
    trace: Option<String>,
    found: Option<Violation>,
}

impl World {
    pub(super) fn new(seed: u64, plan: Plan, options: Options) -> Self {
        let namespace = Path::parse("/ns").unwrap();
        let paths = JobPaths::new(&namespace, &plan.configuration.job_name);
        let own_paths = ExtensionPaths::new(&namespace, &plan.configuration.job_name);
        let mut ensemble = Ensemble::new(paths.root(), own_paths.fleet().root(), plan.servers);
        for server in 1..plan.servers {
            ensemble.set_lag(server, (0, plan.server_lag));
        }
        let trace = options.trace.then(String::new);
        let mut world = Self {
            seed,
            now: 0,
            sequence: 0,
            events: BinaryHeap::new(),
            ensemble,
            namespace,
            paths,
            own_paths,
            machines: Vec::new(),
            sessions: Vec::new(),
            strays: Vec::new(),
            item_locks: ItemLocks::new(plan.seeds[2]),
            guests: Guests::new(plan.guests, plan.seeds[2]),
            network: Random::new(plan.seeds[0]),
            behaviour: Random::new(plan.seeds[1]),
            reading: Random::new(plan.seeds[0] ^ 0x5265_6164_696e_6702),
            counts: Counts::default(),
            checks: Checks::default(),
            steps: 0,
            undo: Vec::new(),
            garbage: Vec::new(),
            executions: 0,
            is_calm: false,
            trace,
            found: None,
            plan,
            options,
        };
        world.at(SECOND, Event::Look);
        let described = world.options.trace.then(|| world.plan.describe());
        world.tell(|| described.unwrap_or_default());
        for _ in 0..world.plan.machines {
            world.add_machine();
        }
        for index in 0..world.plan.faults.len() {
            world.at(world.plan.faults[index].at, Event::Inflict(index));
        }
        world
    }

    /// Another machine, whose sidecar and application start soon.
    pub(super) fn add_machine(&mut self) -> usize {
        let m = self.machines.len();
        let clock = self.plan.clock(m, &self.options);
        if clock.rate_ppm != 0 {
            self.counts.add(Fault::ClockRate);
        }
        let name = self.plan.named.then(|| InstanceName::parse(&format!("worker-{m}")).unwrap());
        self.machines.push(Machine {
            ip: Ipv4Addr::new(10, 0, u8::try_from(m / 250).unwrap(), u8::try_from(m % 250).unwrap() + 1),
            name,
            clock,
            sidecar: None,
            application: Application::default(),
            stopped_until: 0,
            cut_off_until: 0,
            lives: 0,
            sidecars: 0,
            retired: false,
            memory: None,
        });
        let soon = self.now + self.network.below(300 * MILLISECOND);
        self.at(soon, Event::Start(m));
        let later = soon + self.network.below(200 * MILLISECOND);
        self.at(later, Event::Revive(m, 0));
        m
    }

    pub(super) fn at(&mut self, at: Micros, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    /// Lets everything happen until then, or until something is found to be wrong.
    pub(super) fn run_until(&mut self, until: Micros) {
        while let Some(Reverse((at, _, _))) = self.events.peek()
            && *at <= until
            && self.found.is_none()
        {
            let Some(Reverse((at, _, event))) = self.events.pop() else { break };
            self.now = self.now.max(at);
            self.happen(event);
        }
        if self.found.is_none() {
            self.now = self.now.max(until);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Start(m) => self.start_sidecar(m),
            Event::Attach(m, life) => self.attach(m, life),
            Event::Step(m) => self.step(m),
            Event::Alarm(m) => self.alarm(m),
            Event::Arrive(m, epoch) => self.arrive(m, epoch),
            Event::Deliver(m, epoch) => self.deliver(m, epoch),
            Event::Prove(m, epoch) => self.prove(m, epoch),
            Event::LeaseOver(m, session) => self.lease_over(m, session),
            Event::Reconnect(m, epoch) => self.reconnect(m, epoch),
            Event::Expire(session) => self.expire(session),
            Event::EndSession(session) => self.end_session(session),
            Event::Stray(index) => self.stray(index),
            Event::LatchLimit(m, life, latch) => self.latch_limit(m, life, latch),
            Event::Read(m) => self.read_stream(m),
            Event::Act(m) => self.act(m),
            Event::Revive(m, life) => self.revive(m, life),
            Event::Inflict(index) => self.inflict(index),
            Event::Undo(index) => self.take_back(index),
            Event::Settle => self.touch_sessions(),
            Event::Resume(m) => self.resume(m),
            Event::Silence(m, epoch) => self.silence(m, epoch),
            Event::PatienceOver(m, life) => self.end_drain(m, life),
            Event::EndStream(m, stream, patience) => self.end_stream(m, stream, patience),
            Event::LockAsked(index) => self.item_lock_asked(index),
            Event::LockGivenBack(index) => self.item_lock_given_back(index),
            Event::LockNews(place) => self.tell_lock_news(place),
            Event::LockOfOtherOver(token) => self.other_gives_lock_back(token),
            Event::Guest(index) => self.step_guest(index),
            Event::GuestActs(index) => self.guest_acts(index),
            Event::Look => {
                self.contend_for_item_locks();
                self.look_at_guests();
                self.check_waits();
                self.at(self.now + SECOND, Event::Look);
            }
        }
    }

    /// The whole schedule.
    pub(super) fn run(&mut self) {
        self.run_until(self.plan.storm);
        self.calm_down();
        self.become_right();
        self.check_no_finding();
        self.let_guests_end();
        let flagged = self.flagged_misfires();
        self.check_nothing_lost(|item| !flagged.contains(&item));
        self.watch_fires();
        // A trigger that waited for the end of an execution was rerun meanwhile.
        self.check_nothing_lost(|item| flagged.contains(&item));
        self.check_interrupted();
        self.check_item_triggers();
        if self.plan.calm_moves && self.found.is_none() {
            self.count_moves();
        }
        if self.plan.drained && self.found.is_none() {
            self.bid_farewell();
        }
        self.check_sizes();
    }

    /// The result, and the timeline.
    pub(super) fn end(self) -> (Result<Summary, Violation>, String) {
        let summary = Summary {
            faults: self.counts,
            simulated: self.now,
            steps: self.steps,
            executions: self.executions,
            grants: self.guests.grants,
            losses: self.guests.losses,
        };
        (self.found.map_or(Ok(summary), Err), self.trace.unwrap_or_default())
    }

    /// An invariant is broken. The first violation counts.
    pub(super) fn fail(&mut self, invariant: Invariant, found: impl FnOnce() -> String) {
        if self.found.is_none() {
            let violation = Violation { seed: self.seed, invariant, found: found(), at: self.now };
            self.tell(|| format!("VIOLATION {}: {}", violation.invariant, violation.found));
            self.found = Some(violation);
        }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.found.is_some()
    }

    /// A line of the timeline.
    pub(super) fn tell(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            let (seconds, micros) = (self.now / SECOND, self.now % SECOND);
            let _ = writeln!(trace, "{seconds:5}.{micros:06}     {}", what());
        }
    }

    /// A line of the timeline about a machine.
    pub(super) fn note(&mut self, m: usize, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            let (seconds, micros) = (self.now / SECOND, self.now % SECOND);
            let _ = writeln!(trace, "{seconds:5}.{micros:06} m{m:<2} {}", what());
        }
    }

    pub(super) fn is_traced(&self) -> bool {
        self.trace.is_some()
    }

    /// Whether something of a kind happens now, once in so many times; never if that is zero.
    pub(super) fn chance(&mut self, times: u64, fault: Fault) -> bool {
        let happens = times > 0 && self.network.once_in(times);
        if happens {
            self.counts.add(fault);
        }
        happens
    }

    /// The registry's clock follows ours.
    pub(super) fn set_registry_clock(&mut self) {
        let now = super::machine::begin().as_millisecond() + i64::try_from(self.now / MILLISECOND).unwrap();
        self.ensemble.set_clock(now);
    }

    /// A client that is no instance writes.
    pub(super) fn operate(&mut self, transaction: Transaction) -> bool {
        self.set_registry_clock();
        self.note_stock();
        let network = &mut self.network;
        let done = self.ensemble.operate(transaction, self.now, |bound| network.below(bound));
        self.note_stock();
        self.tell_watches();
        done
    }

    /// A new leader counts all sessions anew.
    fn touch_sessions(&mut self) {
        for session in &mut self.sessions {
            session.heard = self.now;
        }
    }

    /// The nodes of the registry, path by path.
    pub(super) fn tree(&mut self) -> BTreeMap<Path, super::ensemble::Content> {
        let len = self.ensemble.len();
        self.ensemble.replica(0, len).clone()
    }
}
