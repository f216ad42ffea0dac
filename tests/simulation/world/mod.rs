//! The world: nodes (a participant, its session, its application), one registry, one clock.
//!
//! A node's requests wait in line and take effect one by one when the scheduler says so; so do the steps of its core,
//! which makes its view as stale as a slow network would. Applications stop on a cancel.

mod applications;
mod checks;
mod lives;
mod locks;
mod outside;
mod peers;
mod requests;
mod sessions;
mod streams;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use jiff::Timestamp;
use sidekeeper::coordination::job::contract::answer::Ticket;
use sidekeeper::coordination::job::contract::answer::{Answer, Refusal};
use sidekeeper::coordination::job::contract::commit::{CommitId, Purpose};
use sidekeeper::coordination::job::contract::effect::{Effect, EndReason, LockWait, RetryNews};
use sidekeeper::coordination::job::contract::event::WaitsFor;
use sidekeeper::coordination::job::contract::event::{CancelReason, Execute};
use sidekeeper::coordination::job::contract::input::{CancelWish, Input};
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::coordination::job::contract::report::{Outcome, ProgressReport};
use sidekeeper::coordination::job::contract::request::Request;
use sidekeeper::coordination::job::frame::context::Identity;
use sidekeeper::coordination::job::participant::Participant;
use sidekeeper::coordination::job::picture::Picture;
use sidekeeper::coordination::time::Now;
use sidekeeper::elasticjob::path::{Barrier, JobPaths};
use sidekeeper::extension::path::ExtensionPaths;
use sidekeeper::extension::profile::Profile;
use sidekeeper::findings::problem::Problem;
use sidekeeper::job::{InstanceId, InstanceName, Item, JobConfiguration, JobName};
use sidekeeper::registry::embedded::Embedded;
use sidekeeper::registry::{Registry, Session, Watch};
use sidekeeper::tree::{NodeChange, NodeKind, Operation, Path, Transaction, WatchEvent};

use crate::java::Java;
use crate::random::Random;

/// How many bytes a ZooKeeper server accepts in one request, unless it is set otherwise.
const REQUEST_BYTES_MAX: usize = 1024 * 1024;

/// A request in a node's queue to the registry.
enum Ask {
    Commit(CommitId, Transaction),
    Elect(Transaction),
    /// At the head of the latch: other requests come between joining and this.
    Lead(Transaction),
    TakeOver(Transaction, BTreeSet<Item>),
    FindCheckpoints(BTreeSet<Item>),
    ReadLedger,
    JoinLatch(Barrier, Timestamp),
    LeaveLatch(Barrier, Vec<Transaction>),
    Watch,
}

/// What all nodes together have asked of the registry, and heard from it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests: transactions, candidatures, and the reads that the core asks for.
    pub requests: usize,
    /// Changes that their watches sent.
    pub events: usize,
    /// Looks at changes with data, which ZooKeeper does not send with an event: a read each.
    pub reads: usize,
}

/// A node at the latch of a barrier.
struct Contender {
    node: usize,
    /// When it has to have left.
    until: Timestamp,
    held: bool,
}

/// The answer of an application's listener to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listener {
    /// It takes some milliseconds, and succeeds.
    Succeeds,
    /// It fails at once before the first item.
    Fails,
    /// It never answers.
    IsSilent,
}

/// Events around the executions, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happened {
    /// The listener of a node was called.
    Called(Barrier, usize),
    /// It answered.
    Answered(Barrier, usize),
    /// An execution began.
    Began(Source, Item, usize),
    /// It came to its end, or was interrupted.
    Ended(Item, usize),
}

pub struct Execution {
    pub execute: Execute,
    /// When the application will report it.
    pub ends: Timestamp,
}

pub struct Node {
    pub name: usize,
    pub instance: InstanceId,
    identity: Identity,
    joined: Timestamp,
    life: lives::Life,
    core: Participant,
    pub session: Arc<dyn Session>,
    watch: Option<Watch>,
    fleet: Option<Watch>,
    picture: Picture,
    line: VecDeque<Ask>,
    results: VecDeque<Input>,
    pub executions: BTreeMap<String, Execution>,
    pub items: Vec<Item>,
    /// The problems, as of each notice.
    pub problems: Vec<Vec<Problem>>,
    /// The time that the lease had left, as of each notice.
    pub leases: Vec<Option<Duration>>,
    pub ended: Option<EndReason>,
    generation: i64,
    tickets: u64,
    suspended: bool,
    /// The application was killed: it executes nothing any more.
    dead: bool,
    leaving: bool,
    /// The application was told that no execution follows.
    pub drained: bool,
    /// Until when its application goes on without a stream.
    detached_until: Option<Timestamp>,
    /// Calls of its listener that are to be answered, and when.
    calls: Vec<(String, Barrier, Timestamp)>,
}

/// One start of an execution, for the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    pub scheduled: Timestamp,
    pub item: Item,
    pub misfire: bool,
    pub source: Source,
    pub node: usize,
    /// When it has to be over.
    pub deadline: Option<Timestamp>,
    pub attempt: u32,
    /// The job's parameter, as the application got it.
    pub parameter: String,
    pub checkpoint: Option<Vec<u8>>,
    pub execution_id: String,
    /// The token of the lock that it holds for its item.
    pub lock_token: Option<i64>,
    /// Whether the job monitored its executions, so that there was a ledger.
    pub monitored: bool,
    /// When it was told.
    pub at: Timestamp,
}

pub struct World {
    pub random: Random,
    registry: Embedded,
    /// The registry's clock.
    registry_ms: Arc<AtomicI64>,
    /// By how much it is ahead of the nodes' clock.
    pub registry_ahead_ms: i64,
    /// How many commits of each purpose were asked for.
    pub commits: BTreeMap<Purpose, usize>,
    pub traffic: Traffic,
    pub nodes: Vec<Node>,
    pub now: Timestamp,
    start: Timestamp,
    pub starts: Vec<Start>,
    /// Completed takeovers: the item, and when it was started.
    pub completed_takeovers: Vec<(Item, Timestamp)>,
    /// Executions that did not come to their end: the item, and when it was interrupted.
    pub interrupted: Vec<(Item, Timestamp)>,
    tokens: BTreeMap<Item, i64>,
    pub configuration: JobConfiguration,
    pub seed: u64,
    /// The events, for looking at a failure.
    pub log: Vec<String>,
    /// Whether the world checks that items are only taken from owners that are offline, as is the rule without Java
    /// instances.
    pub one_by_one: bool,
    /// Whether answers of the registry get lost now and then.
    pub lossy: bool,
    /// The node whose next answer gets lost.
    pub loses_answer: Option<usize>,
    /// The node whose next request takes effect only with [`World::deliver_delayed`].
    pub delays_request: Option<usize>,
    delayed: Option<(usize, Transaction)>,
    /// How long the next executions take; `None`: a random time.
    pub next_duration_ms: Option<u64>,
    /// The nodes at the latches of the barriers, the head first.
    latches: BTreeMap<Barrier, VecDeque<Contender>>,
    /// The answers of the applications' listeners.
    pub listener: Listener,
    pub happened: Vec<Happened>,
    /// The reported problems: the code and the sentence.
    pub problems: Vec<String>,
    /// The notices about waiting.
    pub waited: Vec<WaitsFor>,
    /// The last answer to a question for the lease.
    leased: Option<Answer>,
    /// How long an application takes, at most, in milliseconds.
    pub duration_max_ms: u64,
    /// The cancel reasons that applications ignore.
    pub ignored_cancels: Vec<CancelReason>,
    /// The cancels: the item, the reason, and the time.
    pub cancels: Vec<(Item, CancelReason, Timestamp)>,
    /// How the next executions of an item end; then, and otherwise, well.
    pub outcomes: BTreeMap<Item, VecDeque<Outcome>>,
    /// Whether the time of day went back: then instants come again.
    was_set_back: bool,
    /// Whether a node learns that its session is lost.
    expiring: bool,
    /// The answers to the applications' calls.
    pub answers: Vec<Answer>,
    /// The news about retries.
    pub retries: Vec<(Item, RetryNews)>,
    /// The queues of the items' locks.
    pub locks: locks::Queues,
    /// The waits for locks.
    pub waits: Vec<(Item, LockWait)>,
    /// The fires that were not executed and will not be re-run.
    pub skips: Vec<(Item, Timestamp)>,
    /// Java instances of the job.
    pub javas: Vec<Java>,
    /// By how much the caches of those that start are behind, at most.
    pub java_cache_lag_ms: u64,
    /// How long after their registration their schedulers start, at most.
    pub java_scheduler_after_ms: u64,
    /// How many Java instances there have been.
    javas_started: u32,
    /// How many times a Java leader has moved an item while a sidecar's application executed it.
    pub moved_while_running: usize,
    /// Which node was notified to own which item, and until when.
    tenures: Vec<peers::Tenure>,
}

impl World {
    pub fn new(seed: u64, configuration: JobConfiguration) -> Self {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let registry_ms = Arc::new(AtomicI64::new(0));
        let clock = Arc::clone(&registry_ms);
        Self {
            random: Random::new(seed),
            registry: Embedded::in_memory_with_clock(Arc::new(move || clock.load(Ordering::Relaxed))),
            registry_ms,
            registry_ahead_ms: 0,
            commits: BTreeMap::new(),
            traffic: Traffic::default(),
            nodes: Vec::new(),
            now: start,
            start,
            starts: Vec::new(),
            completed_takeovers: Vec::new(),
            interrupted: Vec::new(),
            tokens: BTreeMap::new(),
            configuration,
            seed,
            log: Vec::new(),
            one_by_one: false,
            lossy: false,
            loses_answer: None,
            delays_request: None,
            delayed: None,
            next_duration_ms: None,
            duration_max_ms: 700,
            latches: BTreeMap::new(),
            listener: Listener::Succeeds,
            happened: Vec::new(),
            problems: Vec::new(),
            waited: Vec::new(),
            leased: None,
            ignored_cancels: Vec::new(),
            cancels: Vec::new(),
            outcomes: BTreeMap::new(),
            was_set_back: false,
            expiring: false,
            answers: Vec::new(),
            retries: Vec::new(),
            locks: locks::Queues::default(),
            waits: Vec::new(),
            skips: Vec::new(),
            javas: Vec::new(),
            java_cache_lag_ms: 0,
            java_scheduler_after_ms: 0,
            javas_started: 0,
            moved_while_running: 0,
            tenures: Vec::new(),
        }
    }

    pub fn time(&self) -> Now {
        let mono = Duration::try_from(self.now.duration_since(self.start)).unwrap();
        Now { wall: self.now, mono }
    }

    /// A new application with a sidecar of its own.
    pub fn join(&mut self) -> usize {
        let name = self.nodes.len();
        self.join_as(None, u16::try_from(name).unwrap() + 1)
    }

    /// As [`Self::join`], so many times.
    pub fn join_many(&mut self, count: usize) {
        for _ in 0..count {
            self.join();
        }
    }

    /// A new application with a sidecar of its own, under a name, on this machine.
    pub fn join_as(&mut self, called: Option<&str>, machine: u16) -> usize {
        self.join_with(called, machine, Profile::default())
    }

    /// As above, with this said of itself. One that does not say `rendezvous` is of an earlier version: its core is
    /// today's, and as a leader it divides as it would have, for it knows of itself.
    pub fn join_with(&mut self, called: Option<&str>, machine: u16, profile: Profile) -> usize {
        let name = self.nodes.len();
        self.log.push(format!("{} join {name} as {called:?} on {machine}", self.now));
        let [high, low] = machine.to_be_bytes();
        let ip = Ipv4Addr::new(10, 0, high, low);
        let called = called.map(|called| InstanceName::parse(called).unwrap());
        let unique = called.as_ref().map_or(format!("n{name}"), InstanceName::to_string);
        let job = self.configuration.job_name.clone();
        let namespace = Path::parse("/ns").unwrap();
        let identity = Identity {
            job: job.clone(),
            instance: InstanceId::new(ip, &unique),
            name: called,
            server_ip: ip,
            paths: JobPaths::new(&namespace, &job),
            own_paths: ExtensionPaths::new(&namespace, &job),
            execution_prefix: format!("node{name}"),
        };
        let request = Request {
            configuration: Some(Arc::new(self.configuration.clone())),
            class: None,
            profile,
            resumable: true,
        };
        let session = self.registry.open().now_or_never().unwrap().unwrap();
        session.ensure(&namespace, NodeKind::Persistent, b"").now_or_never().unwrap().unwrap();
        for folder in [identity.own_paths.fleet().members(), identity.own_paths.fleet().names()] {
            session.ensure(&folder, NodeKind::Persistent, b"").now_or_never().unwrap().unwrap();
        }
        let mut results = VecDeque::new();
        results.push_back(Input::SessionOpened(session.id()));
        self.nodes.push(Node {
            name,
            instance: identity.instance.clone(),
            identity: identity.clone(),
            joined: self.now,
            life: lives::Life::default(),
            picture: Picture::unknown(&identity.paths, &identity.own_paths),
            core: Participant::new(identity, request),
            session,
            watch: None,
            fleet: None,
            line: VecDeque::from([Ask::Watch]),
            results,
            executions: BTreeMap::new(),
            items: Vec::new(),
            problems: Vec::new(),
            leases: Vec::new(),
            ended: None,
            generation: 0,
            tickets: 0,
            suspended: false,
            dead: false,
            leaving: false,
            drained: false,
            detached_until: None,
            calls: Vec::new(),
        });
        name
    }

    /// The nodes whose sidecars run.
    fn up(&self) -> Vec<usize> {
        self.alive().into_iter().filter(|node| !self.nodes[*node].life.down).collect()
    }

    fn alive(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].ended.is_none()).collect()
    }

    /// The nodes that live and are not leaving.
    pub fn staying(&self) -> Vec<usize> {
        self.alive().into_iter().filter(|node| !self.nodes[*node].leaving).collect()
    }

    /// The registry refuses larger requests of this node.
    pub fn limit_requests(&mut self, node: usize, bytes: usize) {
        self.nodes[node].results.push_back(Input::RequestLimit(bytes));
    }

    /// The application dies: its executions end without a report.
    pub fn kill(&mut self, node: usize) {
        let open = self.nodes[node].executions.values();
        self.interrupted.extend(open.map(|open| (open.execute.item, self.now)));
        let open = self.nodes[node].executions.values();
        self.happened.extend(open.map(|open| Happened::Ended(open.execute.item, node)));
        self.note_owned(node, &[]);
        self.nodes[node].calls.clear();
        self.nodes[node].executions.clear();
        self.nodes[node].dead = true;
        self.nodes[node].leaving = true;
        self.nodes[node].results.push_back(Input::Detached);
    }

    /// The machine dies: the application at once, and the nodes of the sidecar when the server ends its session.
    pub fn crash(&mut self, node: usize) {
        self.log.push(format!("{} crash {node}", self.now));
        self.note_owned(node, &[]);
        let open = std::mem::take(&mut self.nodes[node].executions);
        self.happened.extend(open.values().map(|open| Happened::Ended(open.execute.item, node)));
        self.interrupted.extend(open.values().map(|open| (open.execute.item, self.now)));
        for barrier in [Barrier::Started, Barrier::Completed] {
            self.leave_latch(barrier, node);
        }
        let node = &mut self.nodes[node];
        (node.dead, node.leaving, node.ended) = (true, true, Some(EndReason::Detached));
        node.items.clear();
        node.line.clear();
    }

    /// The server ends the session of a node that has crashed.
    pub fn end_session(&mut self, node: usize) {
        self.registry.expire(self.nodes[node].session.id());
        self.end_locks(node);
    }

    /// An operator cancels the executions of these items of a node.
    pub fn cancel(&mut self, node: usize, items: &[u32]) {
        let items = items.iter().copied().map(Item).collect();
        self.nodes[node].tickets += 1;
        let ticket = Ticket(self.nodes[node].tickets);
        self.nodes[node]
            .results
            .push_back(Input::Cancel(ticket, CancelWish { items: Some(items), ..CancelWish::default() }));
    }

    /// The application that executes an item says how far it is.
    pub fn progress(&mut self, item: u32, extend_deadline: bool, checkpoint: Option<&[u8]>) {
        let open = |node: &Node| {
            let open = node.executions.iter().find(|(_, open)| open.execute.item == Item(item));
            open.map(|(id, _)| (node.name, id.clone()))
        };
        let (node, execution_id) = self.nodes.iter().find_map(open).expect("an execution");
        self.nodes[node].tickets += 1;
        let ticket = Ticket(self.nodes[node].tickets);
        let checkpoint = checkpoint.map(Into::into);
        let report = ProgressReport { execution_id, extend_deadline, checkpoint };
        self.nodes[node].results.push_back(Input::Progress(ticket, report));
    }

    /// An application asks for its lease; gives the answer.
    pub fn ask_lease(&mut self, node: usize) -> Answer {
        self.nodes[node].tickets += 1;
        let ticket = Ticket(self.nodes[node].tickets);
        self.nodes[node].results.push_back(Input::AskLease(ticket));
        self.look(node);
        self.leased.take().expect("an answer")
    }

    /// The application announces that it is stopping.
    pub fn drain_attachment(&mut self, node: usize) {
        self.log.push(format!("{} application {node} stops", self.now));
        self.nodes[node].results.push_back(Input::Drain { deadline: None });
    }

    /// The application, which is stopping, ends its stream.
    pub fn detach(&mut self, node: usize) {
        self.nodes[node].leaving = true;
        self.nodes[node].results.push_back(Input::Left);
    }

    /// The sidecar is told to stop.
    pub fn drain(&mut self, node: usize) {
        self.drain_within(node, Duration::from_secs(25));
    }

    /// The sidecar is told to stop, and for how long executions may go on.
    pub fn drain_within(&mut self, node: usize, limit: Duration) {
        let deadline = self.time().mono + limit;
        self.log.push(format!("{} drain {node}", self.now));
        self.nodes[node].leaving = true;
        self.nodes[node].results.push_back(Input::Drain { deadline: Some(deadline) });
    }

    /// The sidecar is told to stop, and that it does not come back.
    pub fn leave_for_good(&mut self, node: usize) {
        self.nodes[node].results.push_back(Input::ForGood);
        self.drain(node);
    }

    /// The node's core takes in what has come, watch first, as the runner does.
    fn step(&mut self, index: usize) {
        let now = self.time();
        let node = &mut self.nodes[index];
        let mut inputs = Vec::new();
        let session_news = |input: &Input| {
            matches!(
                input,
                Input::Leased { .. }
                    | Input::SessionOpened(_)
                    | Input::SessionLost
                    | Input::SessionSuspended
                    | Input::SessionResumed
            )
        };
        let (news, rest): (Vec<_>, Vec<_>) = node.results.drain(..).partition(session_news);
        for input in &news {
            match input {
                Input::SessionLost | Input::SessionOpened(_) => node.picture.forget(),
                Input::SessionResumed => node.picture.forget_nodes(),
                _ => {}
            }
        }
        inputs.extend(news);
        let mut read = false;
        while let Some(Ok(event)) = node.watch.as_mut().map(Watch::try_recv) {
            inputs.extend(matches!(event, WatchEvent::Snapshot(_)).then_some(Input::WasRead));
            read |= self.traffic.note(&event);
            node.picture.apply_nodes(event, now);
        }
        while let Some(Ok(event)) = node.fleet.as_mut().map(Watch::try_recv) {
            read |= self.traffic.note(&event);
            node.picture.apply_fleet(event);
        }
        self.traffic.reads += usize::from(read);
        inputs.extend(rest);
        let effects = node.core.step(now, &node.picture, inputs);
        for effect in effects {
            self.carry_out(index, effect);
        }
    }

    fn carry_out(&mut self, index: usize, effect: Effect) {
        let node = &mut self.nodes[index];
        match effect {
            Effect::Commit { id, purpose, transaction } => {
                let size: usize = transaction.iter().map(Operation::wire_size).sum();
                assert!(size < REQUEST_BYTES_MAX, "seed {}: {purpose} in {size} bytes", self.seed);
                node.line.push_back(Ask::Commit(id, transaction));
                *self.commits.entry(purpose).or_default() += 1;
            }
            Effect::GiveUpSession => {
                self.registry.expire(node.session.id());
                node.session = self.registry.open().now_or_never().unwrap().unwrap();
                node.line = VecDeque::from([Ask::Watch]);
                node.watch = None;
                node.fleet = None;
                node.results.push_back(Input::SessionOpened(node.session.id()));
            }
            Effect::Elect(transaction) => node.line.push_back(Ask::Elect(transaction)),
            Effect::TakeOver { transaction, items } => node.line.push_back(Ask::TakeOver(transaction, items)),
            Effect::FindCheckpoints(items) => node.line.push_back(Ask::FindCheckpoints(items)),
            Effect::ReadLedger => node.line.push_back(Ask::ReadLedger),
            Effect::HoldLatch { barrier, limit } => {
                let until = self.now + jiff::SignedDuration::try_from(limit).unwrap();
                node.line.push_back(Ask::JoinLatch(barrier, until));
            }
            Effect::LeaveLatch { barrier, transactions } => {
                node.line.push_back(Ask::LeaveLatch(barrier, transactions));
            }
            Effect::Refresh { forget } => {
                if forget {
                    node.picture.forget_nodes();
                }
                // News that comes before the new watches is dropped with the old ones.
                (node.watch, node.fleet) = (None, None);
                node.line.push_back(Ask::Watch);
            }
            Effect::Notify(event) => self.receive(index, event),
            Effect::Answer(_, answer @ Answer::Lease { .. }) => self.leased = Some(answer),
            Effect::Answer(_, answer) => {
                let expected = matches!(
                    answer,
                    Answer::Recorded(_)
                        | Answer::Acknowledged
                        | Answer::ListenerReported { .. }
                        | Answer::Cancelled(_)
                        | Answer::Progressed { .. }
                        | Answer::Refused(Refusal::ExecutionOver { .. })
                );
                assert!(expected, "seed {}: {answer:?}", self.seed);
                if let Answer::Recorded(records) = &answer {
                    let recorded = |id: &String| records.iter().any(|(known, _)| known == id);
                    node.life.unanswered.retain(|done| !recorded(&done.execution_id));
                }
                self.answers.push(answer);
            }
            Effect::Warn(problem) => {
                self.problems.push(format!("{} {}", problem.code.as_str(), problem.message));
            }
            Effect::Retry(item, news) => self.retries.push((item, news)),
            Effect::AskItemLock { number, lock } => self.ask_lock(index, number, &lock),
            Effect::GiveBackItemLock(number) => self.give_lock_back(index, number),
            Effect::LockWait(item, wait) => self.waits.push((item, wait)),
            Effect::Skipped { item, scheduled } => self.skips.push((item, scheduled)),
            Effect::Reported(..) | Effect::ExecutionLost { .. } => {}
            // Its stream has broken: the application does not read the end, and goes on for its grace.
            Effect::CloseStream(_) if node.detached_until.is_some() => {}
            Effect::CloseStream(_) => {
                // Its executions end with the stream, as those of an application that was killed.
                let open = std::mem::take(&mut node.executions);
                (node.dead, node.leaving) = (true, true);
                let items: Vec<_> = open.values().map(|open| open.execute.item).collect();
                self.happened.extend(items.iter().map(|item| Happened::Ended(*item, index)));
                self.interrupted.extend(items.into_iter().map(|item| (item, self.now)));
            }
            Effect::End(reason) => {
                assert!(node.executions.is_empty(), "seed {}: ended with open executions", self.seed);
                node.ended = Some(reason);
                self.note_owned(index, &[]);
                self.take_late_effect(index);
                self.end_locks(index);
                for barrier in [Barrier::Started, Barrier::Completed] {
                    self.leave_latch(barrier, index);
                }
                self.log.push(format!("{} {index} ended", self.now));
                // Its nodes go with its session.
                if !self.expiring {
                    self.assert_nothing_left(index);
                }
            }
        }
    }

    /// One thing happens somewhere. Tells whether anything could.
    pub fn turn(&mut self) {
        let alive = self.up();
        let count = alive.len() + self.javas.len();
        let chosen = self.random.below(count.max(1) as u64) as usize;
        if let Some(index) = alive.get(chosen).copied() {
            if self.random.once_in(2) { self.perform(index) } else { self.step(index) }
        } else if let Some(java) = self.javas.get_mut(chosen - alive.len()) {
            java.turn(&mut self.random);
        }
        self.take_java_news();
    }

    /// Lets everything that can happen now happen, in random order, with some time passing, until the given instant.
    pub fn run_until(&mut self, until: Timestamp) {
        while self.now < until {
            for _ in 0..(self.alive().len() + self.javas.len()) * 4 {
                self.turn();
            }
            let millis = 1 + self.random.below(8) as i64;
            self.now += jiff::SignedDuration::from_millis(millis);
            self.give_up_streams();
            self.finish_executions();
            self.finish_calls();
            self.time_out_latches();
            self.tick_javas();
        }
    }

    pub fn run_for(&mut self, millis: i64) {
        self.run_until(self.now + jiff::SignedDuration::from_millis(millis));
    }

    /// Everything in line takes effect and every node looks, until nothing changes. No time passes.
    pub fn settle(&mut self) {
        self.settle_and(|_| {});
    }

    /// As [`Self::settle`], with a look at the world after each effect.
    pub fn settle_and(&mut self, mut look: impl FnMut(&Self)) {
        for _ in 0..200 {
            for index in self.up() {
                while !self.nodes[index].line.is_empty() {
                    self.perform(index);
                    look(self);
                }
                self.step(index);
            }
        }
    }

    /// Time passes, and everything that follows happens at one instant, the nodes in order: for fleets of hundreds, for which
    /// [`Self::run_for`] takes too many looks.
    pub fn pass(&mut self, millis: i64) {
        self.now += jiff::SignedDuration::from_millis(millis);
        self.finish_executions();
        loop {
            let before = self.traffic;
            for index in self.up() {
                self.take_effect(index);
                self.step(index);
            }
            if self.traffic == before && self.nodes.iter().all(|node| node.line.is_empty()) {
                return;
            }
        }
    }

    /// The time of day goes back; the monotonic time does not.
    pub fn set_wall_back(&mut self, by: jiff::SignedDuration) {
        self.was_set_back = true;
        self.now -= by;
        self.start -= by;
    }
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, more: Self) {
        self.requests += more.requests;
        self.events += more.events;
        self.reads += more.reads;
    }
}

impl Traffic {
    /// Counts an event's changes, and tells whether data of them has to be read.
    fn note(&mut self, event: &WatchEvent) -> bool {
        let WatchEvent::Changes(changes) = event else { return false };
        self.events += changes.len();
        changes.iter().any(|change| matches!(change, NodeChange::Put { content: Some(_), .. }))
    }

    pub fn since(self, before: Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            events: self.events - before.events,
            reads: self.reads - before.reads,
        }
    }
}

/// The job of most scenarios: six items, every two seconds.
pub fn six_items() -> JobConfiguration {
    let mut configuration = JobConfiguration::new(JobName::parse("job").unwrap(), 6);
    configuration.cron = Some("0/2 * * * * ?".to_owned());
    configuration
}
