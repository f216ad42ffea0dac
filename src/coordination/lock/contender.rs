//! One contender for one lock: its node, its place, and until when it holds.
//!
//! Level triggered: each step compares what is known with what should be there, and asks for what is missing. A contender
//! that needs a node creates it; a waiting contender watches the one before it, and lists the queue again when that is
//! gone; a holder watches its own node. While it is not known whether a request has created a node, the contender looks
//! for the node by its UUID, and takes only a node of its present session for its own (L4, L6).
//!
//! A candidate is a contender that hears who leads, and stands again after a loss if its application wants that. A leader
//! can name its successor: the candidates before that one stand again, behind it.
//!
//! A holder is told of the loss before another contender can hold: when the lease is over, when its node is deleted, when
//! its own time limit is over. A contender ends only when none of its nodes is left, or when its session has ended, which
//! deletes them (L5, L7).

use std::collections::BTreeSet;
use std::time::Duration;

use uuid::Uuid;

use crate::coordination::lease::Lease;
use crate::coordination::lock::contract::{Effect, End, Event, First, Input, Leader, LossReason};
use crate::coordination::lock::delay::{Delays, Next};
use crate::coordination::lock::queue::{Turn, permit_turn, turn};
use crate::coordination::time::Now;
use crate::excerpt::Excerpt;
use crate::extension::lock::{Child, HOLDER_BYTES_MAX, LockPaths, Mode, prefix};
use crate::job::FencingToken;
use crate::mutants::mutant;
use crate::tree::{Error, Node, Path, SessionId, Zxid};

/// After which time a wait or a hold is long: a contender watches its own node, and tells its application its place. A short
/// one needs neither, and would cost two requests more. Somebody deletes a contender's node by hand, in seconds.
const LONG: Duration = Duration::from_millis(100);
/// The pause before a request is sent again whose outcome is unknown although the session is connected.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the first answer about the queue may take, beyond the time that a contender wants to wait. Also for a contender
/// that does not want to wait at all.
const FIRST_ANSWER: Duration = Duration::from_secs(1);

/// After which time without a known place the application hears that the registry does not answer.
const NO_ANSWER_AFTER: Duration = Duration::from_secs(3);

/// The request of a contender.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The lock.
    pub lock: LockPaths,
    /// How it is to be held.
    pub mode: Mode,
    /// When the contender gives up waiting; monotonic. `None`: never.
    pub wait_until: Option<Duration>,
    /// For how long it may hold. `None`: for as long as it wants.
    pub hold_max: Option<Duration>,
    /// The most contenders in the queue, with this one.
    pub queue_max: usize,
    /// Whether the queue is read before a node is created in it: the lock may be of another kind.
    pub looks_first: bool,
    /// Whether the contender stands again after it has lost the lock, at the end of the queue. Otherwise it ends.
    pub stands_again: bool,
    /// The most holders at once. For permits of a semaphore only.
    pub permits: usize,
    /// For how long nobody may hold after this contender has lost the lock without giving it back. Zero: not at all.
    pub lock_delay: Duration,
    /// Where the UUIDs of the attempts begin: no other contender has it.
    pub seed: Uuid,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Session {
    None,
    Connected(SessionId),
    Suspended(SessionId),
}

/// The contender's node.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Own {
    None,
    /// A request is in flight.
    Creating(Uuid),
    /// The outcome of a request is unknown.
    Unknown(Uuid),
    /// A node was found, and is being read.
    Finding(Uuid),
    At {
        path: Path,
        created: Zxid,
    },
}

/// What a contender waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Cause {
    /// The end of the contender with this name.
    Contender(String),
    /// A free permit.
    Room,
    /// The end of the delay of a holder that has vanished.
    Delay {
        /// The delay's node.
        name: String,
        /// Monotonic.
        until: Duration,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Waiting,
    Held { until: Option<Duration>, long_at: Duration },
    Ending(End),
    Ended(End),
}

/// A contender.
#[derive(Debug)]
pub struct Contender {
    wanted: Wanted,
    session: Session,
    lease: Lease,
    state: State,
    own: Own,
    attempts: u32,
    /// Whether the queue was read once, if it has to be before a node is created.
    has_looked: bool,
    creating_parents: bool,
    /// The attempts whose nodes are not wanted, and may appear.
    strays: BTreeSet<String>,
    /// Nodes that are to be deleted, and whether a request is in flight.
    doomed: Vec<(Path, bool)>,
    /// The number of the last look, and whether it is in flight.
    looks: u64,
    is_looking: bool,
    /// Whether the queue must be read again.
    must_look: bool,
    /// The answer of the last look, until a step uses it.
    children: Option<Vec<String>>,
    waits_for: Option<Cause>,
    delays: Delays,
    /// When the wait of a contender becomes long; monotonic. `None`: it does not wait.
    long_at: Option<Duration>,
    position: usize,
    /// The first contender's name by the last look, and what is known of it.
    first: Option<String>,
    reading_first: bool,
    known_first: Option<First>,
    notified: Option<(usize, First)>,
    /// Since when the place is not known; monotonic. `None`: it is known, or the application has heard that it is not.
    lost_place: Option<Duration>,
    has_begun: bool,
    watched_own: Option<Path>,
    watched_before: Option<Path>,
    watches_queue: bool,
    /// Whether it may have a node: one that waits for a permit needs the first place of the semaphore's queue.
    may_stand: bool,
    /// Whether another contender waits for the application while this one may have no node.
    is_second: bool,
    /// Not before then a request is sent again; monotonic.
    retry_at: Option<Duration>,
    is_suspended: bool,
    drain: Option<Duration>,
    /// The highest term that this candidate knows, and the leader that its application knows.
    term: FencingToken,
    known_leader: Option<Leader>,
    out: Vec<Effect>,
}

impl Contender {
    /// A contender that has no session yet.
    pub fn new(wanted: Wanted) -> Self {
        let has_looked = !wanted.looks_first;
        let delays = Delays::new(wanted.lock_delay);
        Self {
            wanted,
            session: Session::None,
            lease: Lease::default(),
            state: State::Waiting,
            own: Own::None,
            attempts: 0,
            has_looked,
            creating_parents: false,
            strays: BTreeSet::new(),
            doomed: Vec::new(),
            looks: 0,
            is_looking: false,
            must_look: false,
            children: None,
            waits_for: None,
            delays,
            long_at: None,
            position: 0,
            first: None,
            reading_first: false,
            known_first: None,
            notified: None,
            lost_place: None,
            has_begun: false,
            watched_own: None,
            watched_before: None,
            watches_queue: false,
            may_stand: true,
            is_second: false,
            retry_at: None,
            is_suspended: false,
            drain: None,
            term: FencingToken(0),
            known_leader: None,
            out: Vec::new(),
        }
    }

    /// A contender that may have no node yet, because another one waits for the application.
    pub(super) fn second(wanted: Wanted) -> Self {
        Self { may_stand: false, is_second: true, ..Self::new(wanted) }
    }

    /// Takes the inputs, and returns the effects in their order.
    pub fn step(&mut self, now: Now, inputs: Vec<Input>) -> Vec<Effect> {
        let now = now.mono;
        if !std::mem::replace(&mut self.has_begun, true) {
            self.lost_place = Some(now);
        }
        for input in inputs {
            // The lease comes first: a process that slept must not act on inputs that waited for it.
            if !matches!(input, Input::Leased { .. }) {
                self.check_lease(now);
            }
            self.take(now, input);
        }
        self.check_lease(now);
        // First: the answer that grants the lock may be here already.
        self.use_children(now);
        self.check_limits(now);
        self.clean(now);
        self.contend(now);
        self.watch(now);
        self.notify_silence(now);
        self.notify_lease(now);
        std::mem::take(&mut self.out)
    }

    /// Why it has ended. `None`: it has not.
    pub fn end(&self) -> Option<&End> {
        match &self.state {
            State::Ended(end) => Some(end),
            State::Waiting | State::Held { .. } | State::Ending(_) => None,
        }
    }

    /// Whether the application holds the lock.
    pub(super) fn holds(&self) -> bool {
        matches!(self.state, State::Held { .. })
    }

    /// Whether it waits for the lock.
    pub(super) fn waits(&self) -> bool {
        self.state == State::Waiting
    }

    /// Whether it may have a node from now on. One that waits deletes its node if not.
    pub(super) fn set_may_stand(&mut self, now: Duration, may_stand: bool) {
        if self.may_stand == may_stand {
            return;
        }
        self.may_stand = may_stand;
        if may_stand && self.is_second {
            self.lost_place = Some(now);
        } else if !may_stand && self.waits() {
            self.give_up_place();
        }
    }

    /// Whether it waits for the application itself.
    fn is_asking(&self) -> bool {
        self.may_stand || !self.is_second
    }

    /// Ends it, if it waits.
    pub(super) fn end_waiting(&mut self, end: End) {
        if self.waits() {
            self.leave(end);
        }
    }

    /// When to step again if nothing happens before; monotonic.
    pub fn next_wakeup(&self, now: Duration) -> Option<Duration> {
        let (limit, long_at) = match &self.state {
            State::Waiting if !self.is_asking() => (None, None),
            State::Waiting => (earlier(self.waiting_limit(), self.silence_ends()), self.long_at),
            State::Held { until, long_at } => (earlier(*until, self.drain), Some(*long_at)),
            State::Ending(_) | State::Ended(_) => (None, None),
        };
        let notice = self.lease.next_notice().filter(|_| self.holds());
        let waits = [limit, long_at, self.delay_ends(), self.retry_at, self.lease.end(), notice];
        waits.into_iter().flatten().filter(|at| *at > now).min()
    }

    /// When the delay is over that the contender waits for; monotonic.
    fn delay_ends(&self) -> Option<Duration> {
        match &self.waits_for {
            Some(Cause::Delay { until, .. }) if self.waits() => Some(*until),
            _ => None,
        }
    }

    fn take(&mut self, now: Duration, input: Input) {
        match input {
            Input::SessionOpened(id) => {
                self.session = Session::Connected(id);
                self.lease = Lease::default();
            }
            Input::SessionSuspended => self.suspend(),
            Input::SessionResumed => {
                if let Session::Suspended(id) = self.session {
                    self.session = Session::Connected(id);
                    self.must_look |= self.own != Own::None && !mutant!(LockResumedBlindly);
                    self.retry_at = None;
                }
            }
            Input::SessionLost => {
                self.lose_session();
                self.lost_place = Some(now);
            }
            Input::Leased { until } => self.lease.renew(until),
            Input::Created(attempt, result) => self.created(now, attempt, result),
            Input::ParentsCreated(result) => {
                self.creating_parents = false;
                if let Err(error) = result {
                    self.failed(now, error);
                }
            }
            Input::DelayCreated(path, result) => self.delay_created(now, &path, result),
            Input::Listed(look, result) => self.listed(now, look, result),
            Input::Found(attempt, path, result) => self.found(now, attempt, path, result),
            Input::FirstRead(name, node) => self.first_read(name, node),
            Input::Gone(path) => self.gone(now, &path),
            Input::QueueChanged => self.must_look |= self.is_contending() && self.own != Own::None,
            Input::RevocationRequested => {
                if self.holds() {
                    self.out.push(Effect::Notify(Event::RevocationRequested));
                }
            }
            Input::LeaderSeen { leader, successor } => {
                self.leader_seen(leader);
                if let Some(successor) = successor {
                    self.make_way(&successor);
                }
            }
            Input::Deleted(path, result) => self.deleted(now, &path, result),
            Input::Release => {
                if self.is_contending() {
                    self.remove_delay();
                    self.leave(End::Released);
                }
            }
            Input::Left => {
                if self.is_contending() {
                    self.leave(End::Released);
                }
            }
            Input::Drain { deadline } => {
                self.drain = earlier(self.drain, Some(deadline));
                if let Some(deadline) = self.drain.filter(|_| self.holds()) {
                    self.out.push(Effect::Notify(Event::Draining { deadline }));
                }
            }
        }
    }

    /// The end of the lease, or of the time limits.
    fn check_lease(&mut self, now: Duration) {
        if self.session != Session::None && self.lease.is_over(now) && !mutant!(LockLeaseIgnored) {
            self.out.push(Effect::GiveUpSession);
            self.lose_session();
        }
    }

    fn check_limits(&mut self, now: Duration) {
        let is_over = |limit: Option<Duration>| limit.is_some_and(|limit| now >= limit);
        match self.state {
            State::Waiting if self.drain.is_some() => self.leave(End::Draining),
            State::Waiting if self.is_asking() && is_over(self.waiting_limit()) => {
                self.leave(End::TimedOut(self.known_first.clone()));
            }
            State::Held { until, .. } if is_over(until) => self.lose(LossReason::HoldLimit),
            State::Held { .. } if is_over(self.drain) => self.lose(LossReason::Draining),
            State::Waiting | State::Held { .. } | State::Ending(_) | State::Ended(_) => {}
        }
    }

    /// When the contender gives up waiting. One that only tries has to know first whether the lock is free.
    fn waiting_limit(&self) -> Option<Duration> {
        let knows = self.known_first.as_ref().is_some_and(|known| self.first.as_ref() == Some(&known.name));
        let extra = if knows { Duration::ZERO } else { FIRST_ANSWER };
        Some(self.wanted.wait_until?.saturating_add(extra))
    }

    fn suspend(&mut self) {
        if let Session::Connected(id) = self.session {
            self.session = Session::Suspended(id);
            if self.holds() {
                self.is_suspended = true;
                self.out.push(Effect::Notify(Event::Suspended { lease_end: self.lease.end() }));
            }
        }
    }

    /// All nodes of the session are deleted, or will be.
    fn lose_session(&mut self) {
        self.session = Session::None;
        self.lease = Lease::default();
        (self.own, self.retry_at) = (Own::None, None);
        self.strays.clear();
        self.doomed.clear();
        (self.is_looking, self.must_look, self.children) = (false, false, None);
        (self.creating_parents, self.reading_first) = (false, false);
        (self.waits_for, self.long_at, self.first) = (None, None, None);
        let delay = self.delays.lose_session();
        match &self.state {
            // It has protected nothing.
            State::Waiting => self.doomed.extend(delay.map(|path| (path, false))),
            State::Ended(_) => {}
            State::Held { .. } => {
                if !mutant!(LockLossNotTold) {
                    self.out.push(Effect::Notify(Event::Lost(LossReason::Lease)));
                }
                if self.wanted.stands_again && !mutant!(CandidateNotAgain) {
                    self.stand_again();
                } else {
                    self.state = State::Ended(End::Lost(LossReason::Lease));
                }
            }
            // It is not known that its node was deleted in time.
            State::Ending(End::Released) => {
                self.out.push(Effect::Notify(Event::Lost(LossReason::Lease)));
                self.state = State::Ended(End::Lost(LossReason::Lease));
            }
            State::Ending(end) => self.state = State::Ended(end.clone()),
        }
    }

    /// The lock is not held any more: the application hears of it first, then the node is deleted.
    fn lose(&mut self, reason: LossReason) {
        self.out.push(Effect::Notify(Event::Lost(reason)));
        self.leave(End::Lost(reason));
    }

    /// A candidate waits again, for a node at the end of the queue.
    fn stand_again(&mut self) {
        self.state = State::Waiting;
        self.is_suspended = false;
        (self.waits_for, self.long_at, self.first, self.notified) = (None, None, None, None);
    }

    /// A waiting contender deletes its node.
    fn give_up_place(&mut self) {
        // A node of which it is not known whether it exists is looked for all the same.
        if let Own::At { path, .. } = self.own.clone() {
            (self.own, self.must_look) = (Own::None, false);
            if !mutant!(CandidateLeavesNode) {
                self.doom(path);
            }
        }
        self.stand_again();
    }

    /// The node of the delay goes first: while the contender's node is there, nobody else can hold.
    fn remove_delay(&mut self) {
        if let Some(path) = self.delays.take()
            && !mutant!(LockDelayKept)
        {
            self.doom(path);
        }
    }

    fn leave(&mut self, end: End) {
        match self.state {
            State::Held { .. } => self.delays.leave(),
            State::Waiting | State::Ending(_) | State::Ended(_) => self.remove_delay(),
        }
        if end == End::Released && mutant!(LockReleasedEarly) {
            self.out.push(Effect::Notify(Event::Released));
        }
        self.state = State::Ending(end);
        match std::mem::replace(&mut self.own, Own::None) {
            Own::At { path, .. } => self.doom(path),
            // The answer in flight names the node; the contender deletes the node then.
            own @ (Own::Creating(_) | Own::Unknown(_) | Own::Finding(_)) => self.own = own,
            Own::None => {}
        }
    }

    fn doom(&mut self, path: Path) {
        if !self.doomed.iter().any(|(doomed, _)| *doomed == path) {
            self.doomed.push((path, false));
        }
    }

    fn is_contending(&self) -> bool {
        matches!(self.state, State::Waiting | State::Held { .. })
    }

    /// Whether a node that has appeared is to stay.
    fn wants_node(&self) -> bool {
        self.is_contending() && self.may_stand
    }

    fn created(&mut self, now: Duration, attempt: Uuid, result: Result<(Path, Zxid), Error>) {
        if self.own != Own::Creating(attempt) {
            return;
        }
        match result {
            Ok((path, created)) if self.wants_node() => self.own = Own::At { path, created },
            Ok((path, _)) => {
                self.own = Own::None;
                self.doom(path);
            }
            Err(Error::NoNode(_)) => {
                self.own = Own::None;
                if self.wants_node() {
                    self.creating_parents = true;
                    self.out.push(Effect::CreateParents);
                }
            }
            Err(Error::OutcomeUnknown(_)) if mutant!(LockUnknownForgotten) => self.own = Own::None,
            Err(Error::OutcomeUnknown(_)) => {
                self.own = Own::Unknown(attempt);
                (self.must_look, self.children) = (true, None);
                self.retry_at = Some(now.saturating_add(PAUSE));
            }
            Err(error) => {
                self.own = Own::None;
                self.failed(now, error);
            }
        }
    }

    /// A request surely had no effect.
    fn failed(&mut self, now: Duration, error: Error) {
        match error {
            // The session's own inputs say when to go on.
            Error::Suspended | Error::SessionLost => {}
            Error::OutcomeUnknown(_) => self.retry_at = Some(now.saturating_add(PAUSE)),
            error if self.is_contending() => self.leave(End::Refused(error)),
            // The contender leaves, and goes on until its node is deleted.
            Error::NoNode(_)
            | Error::NodeExists(_)
            | Error::BadVersion(_)
            | Error::NotEmpty(_)
            | Error::ParentIsEphemeral(_)
            | Error::NoPermission(_)
            | Error::Unreachable(_)
            | Error::ReadOnly(_)
            | Error::AuthRefused(_)
            | Error::Refused(_) => self.retry_at = Some(now.saturating_add(PAUSE)),
        }
    }

    fn listed(&mut self, now: Duration, look: u64, result: Result<Vec<String>, Error>) {
        if look != self.looks || !self.is_looking {
            return;
        }
        self.is_looking = false;
        match result {
            Ok(children) => self.children = Some(children),
            Err(error) => {
                self.must_look = true;
                self.failed(now, error);
            }
        }
    }

    fn found(&mut self, now: Duration, attempt: Uuid, path: Path, result: Result<Option<Node>, Error>) {
        if self.own != Own::Finding(attempt) {
            return;
        }
        let session = match self.session {
            Session::Connected(id) | Session::Suspended(id) => Some(id),
            Session::None => None,
        };
        match result {
            Ok(Some(node)) if node.stat.ephemeral_owner == session => {
                let created = node.stat.created;
                if self.wants_node() {
                    self.own = Own::At { path, created };
                    self.must_look = true;
                } else {
                    self.own = Own::None;
                    self.doom(path);
                }
            }
            // It belongs to a session that has ended, and will vanish with it.
            Ok(_) => self.own = Own::None,
            Err(error) => {
                self.own = Own::Unknown(attempt);
                self.must_look = true;
                self.failed(now, error);
            }
        }
    }

    fn first_read(&mut self, name: String, node: Option<Node>) {
        self.reading_first = false;
        let text =
            |data: &[u8]| Excerpt::of_length(&String::from_utf8_lossy(data), HOLDER_BYTES_MAX).into_string();
        let holder = node.as_ref().map(|node| text(&node.data)).filter(|text| !text.is_empty());
        let session = node.and_then(|node| node.stat.ephemeral_owner);
        self.known_first = Some(First { name, holder, session });
    }

    fn gone(&mut self, now: Duration, path: &Path) {
        if self.watched_before.as_ref() == Some(path) {
            self.watched_before = None;
            self.waits_for = None;
            self.must_look = true;
            if let (Own::At { path, created }, true) = (self.own.clone(), mutant!(LockHeldOutOfTurn)) {
                self.acquire(now, &path, created);
            }
        }
        let is_own = matches!(&self.own, Own::At { path: own, .. } if own == path);
        if is_own && self.is_contending() && !mutant!(LockRevocationMissed) {
            self.own_is_gone(path);
        }
    }

    /// Somebody else has deleted the contender's node. It is deleted once more: if a server's answer was of an earlier
    /// moment, nobody would delete it.
    fn own_is_gone(&mut self, path: &Path) {
        self.own = Own::None;
        self.doom(path.clone());
        match self.state {
            State::Held { .. } if self.wanted.stands_again => {
                self.out.push(Effect::Notify(Event::Lost(LossReason::Revoked)));
                self.stand_again();
                self.must_look = false;
            }
            State::Held { .. } => self.lose(LossReason::Revoked),
            // A waiting contender stands at the end again.
            State::Waiting => self.must_look = false,
            State::Ending(_) | State::Ended(_) => {}
        }
    }

    /// Another leader than the application knows? A server may show an earlier moment than another one did.
    fn leader_seen(&mut self, leader: Option<Leader>) {
        let is_older = leader.as_ref().is_some_and(|leader| leader.term < self.term);
        if leader == self.known_leader || (is_older && !mutant!(CandidateToldOlderTerm)) {
            return;
        }
        self.term = leader.as_ref().map_or(self.term, |leader| self.term.max(leader.term));
        self.known_leader.clone_from(&leader);
        self.out.push(Effect::Notify(Event::LeaderChanged(leader)));
    }

    /// The leader wants this successor. A candidate that stands before it goes behind it.
    fn make_way(&mut self, successor: &str) {
        let number = |name: &str| match Child::read(name) {
            Child::Contender { number, .. } => Some(number),
            Child::Delay { .. } | Child::WithoutNumber(_) | Child::OtherRecipe | Child::Foreign => None,
        };
        let (State::Waiting, Own::At { path, .. }) = (&self.state, &self.own) else { return };
        if number(successor).zip(number(path.name())).is_some_and(|(its, own)| own < its) {
            self.give_up_place();
        }
    }

    fn deleted(&mut self, now: Duration, path: &Path, result: Result<(), Error>) {
        let Some(place) = self.doomed.iter().position(|(doomed, _)| doomed == path) else { return };
        match result {
            Ok(()) => {
                self.doomed.swap_remove(place);
                // A node of this contender may have been the one that it waited for.
                self.must_look |= self.is_contending();
            }
            Err(error) => {
                if let Some((_, in_flight)) = self.doomed.get_mut(place) {
                    *in_flight = false;
                }
                // While the session is suspended or lost, its own inputs say when to go on.
                if !matches!(error, Error::Suspended | Error::SessionLost) {
                    self.retry_at = Some(now.saturating_add(PAUSE));
                }
            }
        }
    }

    /// Decides by the last answer.
    fn use_children(&mut self, now: Duration) {
        // An answer that came with the creation's is of after it.
        if matches!(self.own, Own::Creating(_) | Own::Finding(_)) || self.delays.is_creating() {
            return;
        }
        let Some(children) = self.children.take() else { return };
        let strays = children.iter().filter(|name| self.strays.iter().any(|stray| name.starts_with(stray)));
        for path in strays.filter_map(|name| self.wanted.lock.child(name)).collect::<Vec<_>>() {
            if !mutant!(LockStrayLeft) {
                self.doom(path);
            }
        }
        match self.own.clone() {
            Own::Unknown(attempt) => self.look_for(attempt, &children),
            Own::None if !self.is_contending() => self.strays.clear(),
            Own::None => self.look_before(&children),
            Own::At { path, created } => self.take_turn(now, &path, created, &children),
            Own::Creating(_) | Own::Finding(_) => {}
        }
    }

    /// Has the request of unknown outcome created a node?
    fn look_for(&mut self, attempt: Uuid, children: &[String]) {
        let mine = children.iter().find(|name| name.starts_with(&prefix(attempt)));
        if let Some(path) = mine.and_then(|name| self.wanted.lock.child(name)) {
            self.own = Own::Finding(attempt);
            self.out.push(Effect::Find(attempt, path));
        } else {
            // The request may still be on its way if its connection is gone.
            self.strays.insert(prefix(attempt));
            self.own = Own::None;
        }
    }

    /// Before the first node: is the queue one of this kind, and is there room?
    fn look_before(&mut self, children: &[String]) {
        if self.has_looked {
            return;
        }
        self.has_looked = true;
        if let Turn::Unclear(why) = turn(self.wanted.mode, "", children) {
            self.leave(End::Unclear(why));
        } else if children.len() >= self.wanted.queue_max {
            self.leave(End::QueueFull { contenders: children.len() });
        }
    }

    fn take_turn(&mut self, now: Duration, path: &Path, created: Zxid, children: &[String]) {
        if !self.is_contending() {
            return;
        }
        let turn = match self.wanted.mode {
            Mode::Permit => permit_turn(self.wanted.permits, path.name(), children),
            mode @ (Mode::Mutex | Mode::Read | Mode::Write | Mode::Candidate) => {
                turn(mode, path.name(), children)
            }
        };
        match turn {
            Turn::Absent => self.own_is_gone(path),
            _ if self.holds() => self.resume(),
            Turn::Unclear(why) => self.leave(End::Unclear(why)),
            Turn::Holds => self.hold_after_delays(now, path, created, children),
            Turn::Waits { .. } if children.len() > self.wanted.queue_max => {
                self.leave(End::QueueFull { contenders: children.len() - 1 });
            }
            Turn::Waits { before, first, position } => {
                let cause = Cause::Contender(before);
                (self.waits_for, self.position, self.lost_place) = (Some(cause), position, None);
                self.long_at = self.long_at.or(Some(now.saturating_add(LONG)));
                self.first = Some(first);
            }
            Turn::Full { first } => {
                (self.waits_for, self.position, self.lost_place) = (Some(Cause::Room), 0, None);
                self.long_at = self.long_at.or(Some(now.saturating_add(LONG)));
                self.first = Some(first);
            }
        }
    }

    /// The first of the queue holds, once no delay stops it and its own delay is known to all.
    fn hold_after_delays(&mut self, now: Duration, path: &Path, created: Zxid, children: &[String]) {
        if matches!(self.wanted.mode, Mode::Candidate | Mode::Permit) {
            return self.acquire(now, path, created);
        }
        self.waits_for = None;
        match self.delays.next(now, &self.wanted.lock, path.name(), children) {
            Next::Wait { name, until } => {
                self.first = Some(name.clone());
                self.waits_for = Some(Cause::Delay { name, until });
                (self.position, self.lost_place) = (0, None);
                self.long_at = self.long_at.or(Some(now.saturating_add(LONG)));
            }
            Next::Create(delay) => {
                self.out.push(Effect::CreateDelay(delay));
                // In the same flight.
                (self.is_looking, self.must_look) = (false, true);
            }
            Next::Hold(former) => {
                for path in former.iter().filter_map(|name| self.wanted.lock.child(name)).collect::<Vec<_>>()
                {
                    self.doom(path);
                }
                self.acquire(now, path, created);
            }
        }
    }

    fn delay_created(&mut self, now: Duration, path: &Path, result: Result<(), Error>) {
        self.must_look |= result.is_err() && self.is_contending();
        if let Err(Error::OutcomeUnknown(_)) = result {
            self.retry_at = Some(now.saturating_add(PAUSE));
        }
        if let Err(error) = self.delays.created(path, result) {
            self.failed(now, error);
        } else if !self.is_contending() {
            self.remove_delay();
        }
    }

    fn acquire(&mut self, now: Duration, path: &Path, created: Zxid) {
        // A session that is suspended proves nothing.
        let Session::Connected(_) = self.session else {
            self.must_look = true;
            return;
        };
        let until = self.wanted.hold_max.map(|max| now.saturating_add(max));
        self.state = State::Held { until, long_at: now.saturating_add(LONG) };
        (self.waits_for, self.long_at, self.first) = (None, None, None);
        self.lease.notify_again();
        let (token, path) = (FencingToken::from(created), path.clone());
        self.term = self.term.max(token);
        self.out.push(Effect::Notify(Event::Acquired { token, path, lease_end: self.lease.notify(now) }));
    }

    /// The holder's node is still there after an interruption.
    fn resume(&mut self) {
        if std::mem::take(&mut self.is_suspended) {
            self.out.push(Effect::Notify(Event::Resumed { lease_end: self.lease.end() }));
        }
    }

    /// Asks for what a contender needs.
    fn contend(&mut self, now: Duration) {
        let Session::Connected(_) = self.session else { return };
        if self.retry_at.is_some_and(|at| now < at) {
            return;
        }
        self.retry_at = None;
        let lacks_node = self.own == Own::None && !self.creating_parents;
        let creates = self.state == State::Waiting && self.may_stand && lacks_node;
        if creates && !self.has_looked {
            self.must_look = true;
        } else if creates {
            self.attempts += 1;
            let attempt = Uuid::from_u128(self.wanted.seed.as_u128() ^ u128::from(self.attempts));
            self.own = Own::Creating(attempt);
            self.out.push(Effect::Create(attempt, self.wanted.lock.contender(self.wanted.mode, attempt)));
            // In the same flight: a session sees its own writes. An earlier look is of before.
            (self.is_looking, self.must_look, self.children) = (false, true, None);
        }
        self.must_look |= self.delay_ends().is_some_and(|end| now >= end) && self.children.is_none();
        if self.must_look && !self.is_looking && !matches!(self.own, Own::Finding(_)) {
            (self.is_looking, self.must_look) = (true, false);
            self.looks += 1;
            self.out.push(Effect::List(self.looks));
        }
        if let Some(first) = self.first.clone().filter(|_| self.waits() && self.tells_place(now)) {
            self.tell_place(first);
        }
    }

    /// Is the wait long? One that will not become long needs the place for its answer.
    fn tells_place(&self, now: Duration) -> bool {
        self.long_at.is_none_or(|at| now >= at || self.wanted.wait_until.is_some_and(|until| until < at))
    }

    fn tell_place(&mut self, first: String) {
        match &self.known_first {
            Some(known) if known.name == first => {
                let place = (self.position, known.clone());
                if self.notified.as_ref() != Some(&place) {
                    self.notified = Some(place.clone());
                    let (position, first) = place;
                    self.out.push(Effect::Notify(Event::Waiting { position, first }));
                }
            }
            _ if self.reading_first => {}
            _ => {
                self.reading_first = true;
                self.out.push(Effect::ReadFirst(first));
            }
        }
    }

    /// Deletes the nodes that are not wanted. A contender that ends does so when none is left.
    fn clean(&mut self, now: Duration) {
        if matches!(self.session, Session::Connected(_)) && self.retry_at.is_none_or(|at| now >= at) {
            for (path, in_flight) in self.doomed.iter_mut().filter(|(_, in_flight)| !in_flight) {
                *in_flight = true;
                self.out.push(Effect::Delete(path.clone()));
            }
        }
        let State::Ending(end) = &self.state else { return };
        if self.own != Own::None || !self.doomed.is_empty() || self.delays.is_creating() {
            return;
        }
        if !self.strays.is_empty() && self.session != Session::None {
            // A last look shows whether a node of an unwanted attempt has appeared.
            self.must_look |= !self.is_looking;
            return;
        }
        if *end == End::Released {
            self.out.push(Effect::Notify(Event::Released));
        }
        self.state = State::Ended(end.clone());
    }

    /// Asks for the watches that are needed.
    fn watch(&mut self, now: Duration) {
        let own = match (&self.state, &self.own) {
            (State::Waiting, Own::At { path, .. }) if self.waits_for != Some(Cause::Room) => {
                self.long_at.map(|at| (path, at))
            }
            (State::Held { long_at, .. }, Own::At { path, .. }) => Some((path, *long_at)),
            _ => None,
        };
        let own = own.filter(|(path, at)| now >= *at || self.watched_own.as_ref() == Some(path));
        let own = own.map(|(path, _)| path.clone());
        let cause = self.waits_for.as_ref().filter(|_| self.state == State::Waiting);
        let before = match cause {
            Some(Cause::Contender(name) | Cause::Delay { name, .. }) => self.wanted.lock.child(name),
            Some(Cause::Room) | None => None,
        };
        let needs_queue = cause == Some(&Cause::Room) && !mutant!(SemaphoreNotWatched);
        if own != self.watched_own {
            self.watched_own = own.clone();
            self.out.push(Effect::WatchOwn(own));
        }
        if before != self.watched_before {
            self.watched_before = before.clone();
            self.out.push(Effect::WatchBefore(before));
        }
        if needs_queue != self.watches_queue {
            self.watches_queue = needs_queue;
            self.out.push(Effect::WatchQueue(needs_queue));
        }
    }

    /// When the application hears that the registry does not answer.
    fn silence_ends(&self) -> Option<Duration> {
        Some(self.lost_place?.saturating_add(NO_ANSWER_AFTER))
    }

    /// An application that waits without a place hears why, once.
    fn notify_silence(&mut self, now: Duration) {
        if self.waits() && self.is_asking() && self.silence_ends().is_some_and(|end| now >= end) {
            self.lost_place = None;
            self.out.push(Effect::Notify(Event::NoAnswer));
        }
    }

    /// Sends the end of the lease now and then: an application whose sidecar is stopped counts by itself.
    fn notify_lease(&mut self, now: Duration) {
        let is_due = self.holds() && !self.is_suspended && self.lease.is_due(now) && self.lease.is_newer();
        if let Some(lease_end) = is_due.then(|| self.lease.notify(now)).flatten() {
            self.out.push(Effect::Notify(Event::LeaseRenewed { lease_end }));
        }
    }
}

fn earlier(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}
