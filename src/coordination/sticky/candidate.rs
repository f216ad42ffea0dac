//! One candidate for one sticky lock: its place, its ownership, its run.
//!
//! Level triggered: each step compares the lock's nodes, as the watch shows them, with what should be there, and asks for one
//! change at a time. Each transaction that changes the ownership or the run rests on the record's version, so a request that
//! comes late has no effect. When an outcome is unknown, the candidate first sends checks without effect: when they are
//! answered, the watch shows whether the request has taken effect.
//!
//! Ownership is told only when the nodes show it in the present session. The loss is told before another instance can own the
//! lock: to an idle owner when the session's lease is over, to an owner inside a run a grace later. In that time the candidate
//! tries to get the lock back in another session, and then the run goes on with a new token.

use std::collections::VecDeque;
use std::time::Duration;

use uuid::Uuid;

use crate::coordination::lease::Lease;
use crate::coordination::sticky::contract::{
    Answer, Call, Effect, End, Event, Input, Leases, LossReason, Refusal, Standing, State,
};
use crate::coordination::sticky::rules::{Me, may_try, wait};
use crate::coordination::sticky::view::{Version, View};
use crate::coordination::time::Now;
use crate::extension::sticky::{OwnerNode, Previous, Record, StickyPaths, UNFINISHED_MAX, Written};
use crate::job::FencingToken;
use crate::mutants::mutant;
use crate::tree::{Error, NodeKind, Operation, SessionId, Transaction, WatchEvent};

/// The pause before a request is sent again that was refused, unless the nodes change before.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the first answer about the owner may take, beyond the time that a call wants to wait.
const FIRST_ANSWER: Duration = Duration::from_secs(1);
/// How long a call waits for the registry.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// The most calls that wait for an answer.
const CALLS_MAX: usize = 16;
/// The shortest time between two checkpoints.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);
/// The checks that follow an unknown outcome. The first one may overtake a request of the connection that broke.
const CHECKS: u8 = 2;
/// The part of the grace in which a run goes on after a session without a lease was lost, as a divisor: when the session ended
/// is not known.
const LOST_PART: u32 = 2;

/// The request of a candidate.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The lock.
    pub lock: StickyPaths,
    /// The name of the instance.
    pub instance: String,
    /// The candidate: no other one has this id.
    pub stand: Uuid,
    /// How long others are to wait after this instance has vanished.
    pub grace: Duration,
    /// The most candidates in the queue.
    pub queue_max: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Session {
    None,
    Connected(SessionId),
    Suspended(SessionId),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Life {
    Standing,
    Ending(End),
    Ended(End),
}

/// An ownership that the application was told of.
#[derive(Debug, Clone)]
struct Own {
    token: FencingToken,
    session: SessionId,
    /// The end of the session's lease. `None`: no end is expected.
    lease_end: Option<Duration>,
    grace: Duration,
    /// The run that the application is inside.
    run: Option<String>,
    is_suspended: bool,
    /// When its session was lost.
    lost_at: Option<Duration>,
}

impl Own {
    fn leases(&self) -> Leases {
        let run = match (self.lease_end, self.lost_at) {
            (Some(end), _) => Some(end.saturating_add(self.grace)),
            (None, Some(lost)) => Some(lost.saturating_add(self.grace / LOST_PART)),
            (None, None) => None,
        };
        Leases { owned: self.lease_end, run }
    }
}

/// A call of `TryRun` that waits.
#[derive(Debug)]
struct Asking {
    call: u64,
    until: Duration,
    run_id: String,
    is_sent: bool,
}

/// Another call that waits.
#[derive(Debug)]
struct Job {
    /// `None`: the caller has got an answer, or is gone.
    call: Option<u64>,
    kind: Kind,
    answer_by: Duration,
    is_sent: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Leave(String),
    Checkpoint(Vec<u8>),
    Resolve(FencingToken),
    Resign,
}

/// The transaction in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    Grant,
    Enter,
    Job,
    /// A check without effect.
    Check,
    Other,
}

/// A candidate.
#[derive(Debug)]
pub struct Candidate {
    wanted: Wanted,
    session: Session,
    lease: Lease,
    life: Life,
    view: View,
    /// Whether the view is of this session, and without a gap.
    is_fresh: bool,
    own: Option<Own>,
    in_flight: Option<(u64, Sent)>,
    number: u64,
    /// Checks that have to be answered before anything else is sent.
    checks: u8,
    creating_parents: bool,
    /// Not before then a request is sent again; monotonic.
    retry_at: Option<Duration>,
    /// The record's version with which nobody owns the lock, and since when that was seen.
    absent: Option<(Option<Version>, Duration)>,
    /// The record's version at which somebody has deleted the owner's node.
    revoked: Option<Option<Version>>,
    asking: Option<Asking>,
    jobs: VecDeque<Job>,
    /// A run that is over although the record may say otherwise: never begun, or left.
    over: Option<String>,
    /// The call that was answered with the beginning of the open run.
    run_call: Option<u64>,
    runs: u64,
    checkpoint_at: Option<Duration>,
    drain: Option<Duration>,
    told: Option<Standing>,
    out: Vec<Effect>,
}

impl Candidate {
    /// A candidate that has no session yet.
    pub fn new(wanted: Wanted) -> Self {
        Self {
            wanted,
            session: Session::None,
            lease: Lease::default(),
            life: Life::Standing,
            view: View::default(),
            is_fresh: false,
            own: None,
            in_flight: None,
            number: 0,
            checks: 0,
            creating_parents: false,
            retry_at: None,
            absent: None,
            revoked: None,
            asking: None,
            jobs: VecDeque::new(),
            over: None,
            run_call: None,
            runs: 0,
            checkpoint_at: None,
            drain: None,
            told: None,
            out: Vec::new(),
        }
    }

    /// Takes the inputs, and returns the effects in their order.
    pub fn step(&mut self, now: Now, inputs: Vec<Input>) -> Vec<Effect> {
        let now = now.mono;
        for input in inputs {
            // The leases come first: a process that slept must not act on inputs that waited for it.
            if !matches!(input, Input::Leased { .. }) {
                self.check_leases(now);
            }
            self.take(now, input);
        }
        self.check_leases(now);
        self.look(now);
        self.check_drain(now);
        self.answer(now);
        self.act(now);
        self.notify_state();
        self.notify_lease(now);
        std::mem::take(&mut self.out)
    }

    /// Why it has ended. `None`: it has not.
    pub fn end(&self) -> Option<&End> {
        match &self.life {
            Life::Ended(end) => Some(end),
            Life::Standing | Life::Ending(_) => None,
        }
    }

    /// When to step again if nothing happens before; monotonic.
    pub fn next_wakeup(&self, now: Duration) -> Option<Duration> {
        let run_end = self.own.as_ref().filter(|own| own.run.is_some()).and_then(|own| own.leases().run);
        let grace_end = self.absent.map(|(_, since)| since.saturating_add(wait(&self.view, self.me())));
        let asking = self.asking.as_ref().map(|asking| {
            if now < asking.until { asking.until } else { asking.until.saturating_add(FIRST_ANSWER) }
        });
        let job = self.jobs.iter().filter(|job| job.call.is_some()).map(|job| job.answer_by).min();
        let notice = self.lease.next_notice().filter(|_| self.own.is_some());
        let waits = [run_end, grace_end, asking, job, notice, self.retry_at, self.lease.end(), self.drain];
        waits.into_iter().flatten().filter(|at| *at > now).min()
    }

    fn me(&self) -> Me<'_> {
        let is_revoked = self.revoked.is_some_and(|revoked| revoked == self.view.version);
        Me { instance: &self.wanted.instance, stand: self.wanted.stand, grace: self.wanted.grace, is_revoked }
    }

    fn take(&mut self, now: Duration, input: Input) {
        match input {
            Input::SessionOpened(id) => {
                self.session = Session::Connected(id);
                self.lease = Lease::default();
            }
            Input::SessionSuspended => {
                if let Session::Connected(id) = self.session {
                    self.session = Session::Suspended(id);
                    self.is_fresh = false;
                    self.tell_suspended();
                }
            }
            Input::SessionResumed => {
                if let Session::Suspended(id) = self.session {
                    self.session = Session::Connected(id);
                    self.retry_at = None;
                }
            }
            Input::SessionLost => self.lose_session(now),
            Input::Leased { until } => {
                self.lease.renew(until);
                let session = self.session;
                if let Some(own) = self.own.as_mut().filter(|own| session == Session::Connected(own.session))
                {
                    own.lease_end = self.lease.end();
                }
            }
            Input::Seen(event) => {
                // After a gap the watch begins again with all nodes. Old ones may come once more: they are late, and no
                // transaction rests on them.
                self.is_fresh |= matches!(event, WatchEvent::Snapshot(_)) && self.session != Session::None;
                self.view.take(&self.wanted.lock, event);
                self.retry_at = None;
            }
            Input::Committed(number, result) => self.committed(now, number, result),
            Input::ParentsCreated(result) => {
                self.creating_parents = false;
                if let Err(error) = result {
                    self.failed(now, error);
                }
            }
            Input::Asked(call, what) => self.asked(now, call, what),
            Input::Unheard(call) => self.unheard(now, call),
            Input::Left => self.leave(End::Left),
            Input::Drain { deadline } => {
                self.drain = self.drain.into_iter().chain([deadline]).min();
                if self.own.as_ref().is_some_and(|own| own.run.is_some()) {
                    self.out.push(Effect::Notify(Event::Draining { deadline }));
                }
            }
        }
    }

    /// The end of the session's lease, and of the time for which a run may go on without it.
    fn check_leases(&mut self, now: Duration) {
        if self.session != Session::None && self.lease.is_over(now) && !mutant!(StickyLeaseIgnored) {
            self.out.push(Effect::GiveUpSession);
            self.lose_session(now);
        }
        let is_over = self.own.as_ref().filter(|own| own.lost_at.is_some()).is_some_and(|own| {
            let end = if self.is_inside() { own.leases().run } else { own.lost_at };
            end.is_some_and(|end| now >= end)
        });
        if is_over && !mutant!(StickyRunEndless) {
            self.lose(LossReason::Lease, None);
        }
    }

    /// All nodes of the session are deleted, or will be.
    fn lose_session(&mut self, now: Duration) {
        self.session = Session::None;
        self.lease = Lease::default();
        self.is_fresh = false;
        self.view = View::default();
        (self.in_flight, self.checks, self.creating_parents, self.retry_at) = (None, 0, false, None);
        let is_inside = self.is_inside();
        if let Some(own) = self.own.as_mut().filter(|own| own.lost_at.is_none()) {
            own.lost_at = Some(now);
            // The registry has ended the session at the latest now.
            own.lease_end = own.lease_end.map(|end| end.min(now));
            if !is_inside {
                self.lose(LossReason::Lease, None);
            } else {
                own.is_suspended = false;
                self.tell_suspended();
            }
        }
        if let Some(asking) = self.asking.take_if(|asking| asking.is_sent) {
            self.over = Some(asking.run_id);
            self.out.push(Effect::Answer(asking.call, Answer::Refused(Refusal::Away)));
        }
        self.jobs.iter_mut().for_each(|job| job.is_sent = false);
        if let Life::Ending(end) = &self.life {
            self.life = Life::Ended(end.clone());
        }
    }

    /// Whether the application is inside a run, and has not left it.
    fn is_inside(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.run.is_some() && own.run != self.over)
    }

    fn tell_suspended(&mut self) {
        if let Some(own) = self.own.as_mut().filter(|own| !own.is_suspended) {
            own.is_suspended = true;
            self.out.push(Effect::Notify(Event::Suspended(own.leases())));
        }
    }

    fn lose(&mut self, reason: LossReason, owner: Option<String>) {
        if self.own.take().is_some() && !mutant!(StickyLossNotTold) {
            self.out.push(Effect::Notify(Event::Lost { reason, owner }));
        }
    }

    fn leave(&mut self, end: End) {
        if self.life != Life::Standing {
            return;
        }
        self.life = if self.session == Session::None { Life::Ended(end) } else { Life::Ending(end) };
        self.own = None;
        let asking = self.asking.take().map(|asking| asking.call);
        let jobs = std::mem::take(&mut self.jobs).into_iter().filter_map(|job| job.call);
        let answers = asking.into_iter().chain(jobs);
        self.out.extend(answers.map(|call| Effect::Answer(call, Answer::Refused(Refusal::Ended))));
    }

    fn committed(&mut self, now: Duration, number: u64, result: Result<(), Error>) {
        let Some((_, sent)) = self.in_flight.filter(|(known, _)| *known == number) else { return };
        self.in_flight = None;
        match result {
            // The watch shows what has changed.
            Ok(()) if sent == Sent::Check => self.checks = self.checks.saturating_sub(1),
            Ok(()) => {}
            Err(Error::OutcomeUnknown(_)) => {
                self.checks = if mutant!(StickyUnknownForgotten) { 0 } else { CHECKS };
                self.retry_at = Some(now.saturating_add(PAUSE));
            }
            Err(error) => {
                match sent {
                    // The answer is one, whatever it says.
                    Sent::Check if !matches!(error, Error::Suspended | Error::SessionLost) => {
                        self.checks = self.checks.saturating_sub(1);
                    }
                    Sent::Enter => self.asking.iter_mut().for_each(|asking| asking.is_sent = false),
                    Sent::Job => self.jobs.iter_mut().for_each(|job| job.is_sent = false),
                    Sent::Check | Sent::Grant | Sent::Other => {}
                }
                self.failed(now, error);
            }
        }
    }

    /// A request surely had no effect.
    fn failed(&mut self, now: Duration, error: Error) {
        match error {
            // The session's own inputs say when to go on.
            Error::Suspended | Error::SessionLost => {}
            // Another one was first; the watch shows it.
            Error::NoNode(_)
            | Error::NodeExists(_)
            | Error::BadVersion(_)
            | Error::NotEmpty(_)
            | Error::ParentIsEphemeral(_)
            | Error::Unreachable(_)
            | Error::ReadOnly(_)
            | Error::AuthRefused(_)
            | Error::OutcomeUnknown(_) => self.retry_at = Some(now.saturating_add(PAUSE)),
            error @ (Error::NoPermission(_) | Error::Refused(_)) => {
                self.retry_at = Some(now.saturating_add(PAUSE));
                self.lose(LossReason::Revoked, None);
                self.leave(End::Refused(error));
            }
        }
    }

    fn asked(&mut self, now: Duration, call: u64, what: Call) {
        let mut refuse = |refusal| self.out.push(Effect::Answer(call, Answer::Refused(refusal)));
        if self.life != Life::Standing {
            return refuse(Refusal::Ended);
        }
        if self.jobs.iter().filter(|job| job.call.is_some()).count() >= CALLS_MAX {
            return refuse(Refusal::TooMany(CALLS_MAX));
        }
        let kind = match what {
            Call::TryRun { wait } => {
                if self.asking.is_some() {
                    return refuse(Refusal::TooMany(1));
                }
                self.runs += 1;
                let run_id = format!("{}-{}", self.wanted.stand.simple(), self.runs);
                let until = now.saturating_add(wait);
                self.asking = Some(Asking { call, until, run_id, is_sent: false });
                return;
            }
            Call::Leave { run_id } => {
                let open = self.own.as_ref().and_then(|own| own.run.clone());
                let Some(open) = open.filter(|open| run_id.is_empty() || *open == run_id) else {
                    return refuse(Refusal::NotInside(run_id));
                };
                self.over = Some(open.clone());
                Kind::Leave(open)
            }
            Call::Checkpoint { data } => {
                if self.own.as_ref().is_none_or(|own| own.run.is_none()) {
                    return refuse(Refusal::NotInside(String::new()));
                }
                let is_soon = |at: Duration| now < at.saturating_add(CHECKPOINT_INTERVAL);
                if self.checkpoint_at.is_some_and(is_soon) {
                    return refuse(Refusal::TooSoon);
                }
                self.checkpoint_at = Some(now);
                Kind::Checkpoint(data)
            }
            Call::Resolve { token } => Kind::Resolve(token),
            Call::Resign => Kind::Resign,
        };
        if self.own.is_none() {
            return refuse(Refusal::NotOwner);
        }
        let answer_by = now.saturating_add(CALL_LIMIT);
        self.jobs.push_back(Job { call: Some(call), kind, answer_by, is_sent: false });
    }

    /// A run whose beginning its application has not heard of did not begin.
    fn unheard(&mut self, now: Duration, call: u64) {
        self.jobs.iter_mut().filter(|job| job.call == Some(call)).for_each(|job| job.call = None);
        if self.asking.as_ref().is_some_and(|asking| asking.call == call && !asking.is_sent) {
            self.asking = None;
        }
        let run = self.own.as_ref().filter(|_| self.run_call == Some(call)).and_then(|own| own.run.clone());
        let is_leaving = self.jobs.iter().any(|job| matches!(job.kind, Kind::Leave(_)));
        if let Some(run) = run.filter(|_| !is_leaving) {
            self.over = Some(run.clone());
            self.jobs.push_back(Job { call: None, kind: Kind::Leave(run), answer_by: now, is_sent: false });
        }
    }

    fn is_connected(&self) -> Option<SessionId> {
        match self.session {
            Session::Connected(id) if self.is_fresh => Some(id),
            Session::Connected(_) | Session::Suspended(_) | Session::None => None,
        }
    }

    /// Whether the nodes show that this candidate owns the lock in the present session.
    fn is_owner(&self, session: SessionId) -> bool {
        self.view.is_owned_by(self.wanted.stand, session)
    }

    /// Compares the nodes with what the application was told.
    fn look(&mut self, now: Duration) {
        let Some(session) = self.is_connected() else { return };
        if self.view.owner.is_some() {
            self.absent = None;
        } else if self.absent.is_none_or(|(version, _)| version != self.view.version) {
            self.absent = Some((self.view.version, now));
        }
        if let Some(Err(why)) = &self.view.record {
            let (path, why) = (self.wanted.lock.record(), why.clone());
            self.lose(LossReason::Revoked, None);
            return self.leave(End::Unreadable { path, why });
        }
        if self.life != Life::Standing {
            return;
        }
        if self.is_owner(session) {
            self.look_as_owner(session);
        } else {
            self.look_as_other(session);
        }
    }

    fn look_as_owner(&mut self, session: SessionId) {
        let Some(record) = self.view.readable() else { return };
        let token = FencingToken(record.token);
        self.revoked = None;
        let lease_end = self.lease.end();
        if let Some(own) = self.own.as_mut().filter(|own| own.token == token) {
            if own.run.is_some() && record.run != own.run {
                // The application has left it.
                own.run = None;
            }
            if std::mem::take(&mut own.is_suspended) {
                let leases = own.leases();
                self.out.push(Effect::Notify(Event::Resumed(leases)));
            }
            return;
        }
        let run = self.own.as_ref().and_then(|own| own.run.clone()).filter(|_| record.run.is_some());
        if record.run != run {
            // The record is set right first.
            return;
        }
        let own = Own {
            token,
            session,
            lease_end,
            grace: record.grace(),
            run: run.clone(),
            is_suspended: false,
            lost_at: None,
        };
        let unfinished = if mutant!(StickyUnfinishedUntold) { Vec::new() } else { record.unfinished.clone() };
        let acquired = Event::Acquired {
            token,
            cause: record.cause,
            is_continued: run.is_some(),
            previous: record.previous.clone(),
            unfinished,
            leases: own.leases(),
        };
        self.own = Some(own);
        self.lease.notify_again();
        self.out.push(Effect::Notify(acquired));
    }

    fn look_as_other(&mut self, session: SessionId) {
        let Some(own) = &self.own else { return };
        let stand = self.wanted.stand;
        let record = self.view.readable();
        let is_last = record.is_some_and(|record| record.stand == stand && record.owner.is_some());
        let is_free = self.view.owner.as_ref().is_none_or(|owner| owner.is_of(stand));
        // Back in another session, and nobody was faster.
        if own.session != session && is_last && is_free {
            return;
        }
        if record.is_some_and(|record| record.stand == stand && record.resigned) {
            // As the application has asked.
            return self.lose(LossReason::Resigned, None);
        }
        let owner = record.filter(|record| record.stand != stand).and_then(|record| record.owner.clone());
        let reason = if owner.is_some() { LossReason::Taken } else { LossReason::Revoked };
        self.revoked = is_last.then_some(self.view.version);
        // The deletion of the owner's node may show before the record does; or somebody else has deleted the node.
        let has_resigned = self.jobs.iter().any(|job| job.kind == Kind::Resign && job.is_sent);
        let reason = if has_resigned { LossReason::Resigned } else { reason };
        self.lose(reason, owner);
    }

    fn check_drain(&mut self, now: Duration) {
        let Some(deadline) = self.drain else { return };
        let is_inside = self.own.as_ref().is_some_and(|own| own.run.is_some());
        if self.life == Life::Standing && (!is_inside || now >= deadline) {
            self.lose(LossReason::Draining, None);
            self.leave(End::Draining);
        }
    }

    /// The state of the lock for people and callers.
    fn standing(&self) -> Standing {
        let record = self.view.readable();
        let owner = record.and_then(|record| record.owner.clone());
        let state = match (&self.own, &self.view.owner, &owner) {
            (Some(_), ..) => State::Own,
            (None, Some(_), _) => State::Released,
            (None, None, Some(_)) => State::Waiting,
            (None, None, None) => State::Created,
        };
        let is_owned = owner.is_some();
        Standing {
            state,
            owner,
            token: record.filter(|_| is_owned).map(|record| FencingToken(record.token)),
            is_inside: record.is_some_and(Record::is_inside),
            acquired_ms: record.filter(|_| is_owned).and_then(|record| record.acquired_ms),
        }
    }

    fn answer(&mut self, now: Duration) {
        self.answer_run(now);
        self.answer_jobs(now);
    }

    fn answer_run(&mut self, now: Duration) {
        if self.jobs.iter().any(|job| job.kind == Kind::Resign) {
            // No run begins for an application that gives the lock away.
            if let Some(asking) = self.asking.take() {
                self.over = asking.is_sent.then_some(asking.run_id).or(self.over.take());
                self.out.push(Effect::Answer(asking.call, Answer::Refused(Refusal::NotOwner)));
            }
            return;
        }
        let connected = self.is_connected();
        let is_owner = connected.is_some_and(|session| self.is_owner(session));
        let record_run = self.view.readable().and_then(|record| record.run.clone());
        let Some(asking) = &self.asking else { return };
        if let Some(own) =
            self.own.as_mut().filter(|_| is_owner && record_run.as_ref() == Some(&asking.run_id))
        {
            own.run = record_run;
            let (token, leases) = (own.token, own.leases());
            self.run_call = Some(asking.call);
            let entered = Answer::Entered { token, run_id: asking.run_id.clone(), leases };
            self.out.push(Effect::Answer(asking.call, entered));
            self.asking = None;
            return;
        }
        if asking.is_sent {
            if connected.is_none() || self.checks > 0 || self.in_flight.is_some() {
                return;
            }
            // It had no effect.
            self.asking.iter_mut().for_each(|asking| asking.is_sent = false);
        }
        let Some(asking) = &self.asking else { return };
        let unresolved = self.view.readable().map_or(0, |record| record.unfinished.len());
        if is_owner && unresolved >= UNFINISHED_MAX {
            let refused = Answer::Refused(Refusal::Unresolved(unresolved));
            self.out.push(Effect::Answer(asking.call, refused));
            self.asking = None;
            return;
        }
        let is_inside = self.own.as_ref().is_some_and(|own| own.run.is_some());
        // Another one owns the lock, or others wait for its grace. Otherwise a moment will show it.
        let is_busy = connected.is_some() && !self.is_about_to_own(now) && (!is_owner || is_inside);
        let is_late = now >= asking.until.saturating_add(FIRST_ANSWER);
        if (is_busy && now >= asking.until) || is_late {
            let answer = match connected {
                Some(_) => Answer::Busy(self.standing()),
                None => Answer::Refused(Refusal::Away),
            };
            self.out.push(Effect::Answer(asking.call, answer));
            self.asking = None;
        }
    }

    /// Whether this candidate may become the owner without waiting.
    fn is_about_to_own(&self, now: Duration) -> bool {
        let is_free = self.view.owner.as_ref().is_none_or(|owner| owner.is_of(self.wanted.stand));
        let absent = self.absent.map_or(Duration::ZERO, |(_, since)| now.saturating_sub(since));
        is_free && absent >= wait(&self.view, self.me())
    }

    fn answer_jobs(&mut self, now: Duration) {
        let is_owner = self.is_connected().map(|session| self.is_owner(session));
        let is_known = self.in_flight.is_none() && self.checks == 0;
        while let Some(job) = self.jobs.front() {
            let record = self.view.readable();
            let is_done = is_owner.is_some_and(|is_owner| match &job.kind {
                Kind::Leave(run) => is_owner && record.is_some_and(|record| record.run.as_ref() != Some(run)),
                Kind::Checkpoint(data) => {
                    is_owner && record.is_some_and(|record| record.is_inside() && record.checkpoint == *data)
                }
                Kind::Resolve(token) => {
                    let is_open = |record: &Record| record.unfinished.iter().any(|run| run.token == token.0);
                    is_owner && record.is_some_and(|record| !is_open(record))
                }
                Kind::Resign => !is_owner && job.is_sent,
            });
            let is_lost = is_known && self.own.is_none();
            let answer = if is_done {
                Answer::Done
            } else if is_lost {
                Answer::Refused(Refusal::NotOwner)
            } else if matches!(job.kind, Kind::Checkpoint(_)) && self.has_no_run() {
                Answer::Refused(Refusal::NotInside(String::new()))
            } else {
                break;
            };
            let call = self.jobs.pop_front().and_then(|job| job.call);
            self.out.extend(call.map(|call| Effect::Answer(call, answer)));
        }
        if is_owner.is_some() && is_known {
            // It had no effect.
            self.jobs.iter_mut().for_each(|job| job.is_sent = false);
        }
        let late = self.jobs.iter_mut().filter(|job| now >= job.answer_by);
        let late = late.filter_map(|job| job.call.take());
        self.out.extend(late.map(|call| Effect::Answer(call, Answer::Refused(Refusal::Away))));
        // A run that was left has ended, also if nobody waits for the answer.
        self.jobs.retain(|job| job.call.is_some() || job.is_sent || matches!(job.kind, Kind::Leave(_)));
    }

    fn has_no_run(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.run.is_none())
    }

    /// Asks for one change, if one is needed.
    fn act(&mut self, now: Duration) {
        if self.retry_at.is_some_and(|at| now < at) {
            return;
        }
        let Session::Connected(session) = self.session else { return };
        if self.in_flight.is_some() || self.creating_parents {
            return;
        }
        self.retry_at = None;
        if self.checks > 0 {
            let check = Operation::check(self.wanted.lock.queue().clone());
            return self.commit(Sent::Check, vec![check]);
        }
        if !self.is_fresh {
            return;
        }
        if matches!(self.life, Life::Ending(_)) {
            return self.clean(session);
        }
        if !self.view.has_parents {
            self.creating_parents = true;
            return self.out.push(Effect::CreateParents);
        }
        if self.is_owner(session) {
            self.act_as_owner(session);
        } else {
            self.act_as_other(now, session);
        }
    }

    fn commit(&mut self, sent: Sent, transaction: Transaction) {
        self.number += 1;
        self.in_flight = Some((self.number, sent));
        self.out.push(Effect::Commit(self.number, transaction));
    }

    /// The step that writes the record, if nobody has written it in the meantime.
    fn write(&self, record: &Record) -> Operation {
        let (path, data) = (self.wanted.lock.record(), record.write());
        match self.view.version {
            None => Operation::create(path, NodeKind::Persistent, data),
            Some(version) => {
                let version = (!mutant!(StickyRecordUnguarded)).then_some(version.number);
                Operation::Set { path, data: data.into_bytes().into(), version }
            }
        }
    }

    fn delete_own_nodes(&self, session: SessionId) -> Transaction {
        let nodes = self.view.nodes_of(self.wanted.stand, session);
        let queue = self.wanted.lock.queue();
        nodes.into_iter().map(|one| Operation::delete(queue.child(&one.name))).collect()
    }

    /// Deletes what a candidate that ends has left. It ends when nothing is left.
    fn clean(&mut self, session: SessionId) {
        let Life::Ending(end) = self.life.clone() else { return };
        let mut steps = self.delete_own_nodes(session);
        if self
            .view
            .owner
            .as_ref()
            .is_some_and(|owner| owner.is_of(self.wanted.stand) && owner.session == Some(session))
        {
            // The sidecar knows that the application does not act any more. An interrupted run stays in the record.
            if let Some(record) = self.view.readable().filter(|record| record.stand == self.wanted.stand) {
                let mut record = Record { ended: true, ..record.clone() };
                if record.run.is_some() && record.run == self.over {
                    (record.run, record.checkpoint) = (None, Vec::new());
                }
                steps.push(self.write(&record));
            }
            steps.push(Operation::delete(self.wanted.lock.owner()));
        }
        if steps.is_empty() {
            self.life = Life::Ended(end);
        } else {
            self.commit(Sent::Other, steps);
        }
    }

    fn act_as_owner(&mut self, session: SessionId) {
        let Some(record) = self.view.readable().cloned() else { return };
        let nodes = self.delete_own_nodes(session);
        if !nodes.is_empty() {
            return self.commit(Sent::Other, nodes);
        }
        let own_run = self.own.as_ref().and_then(|own| own.run.clone());
        let is_entering =
            self.asking.as_ref().is_some_and(|asking| Some(&asking.run_id) == record.run.as_ref());
        if record.run.is_some() && record.run != own_run && !is_entering {
            // Nobody is inside the run that the record has.
            let record = self.without_run(record);
            return self.commit(Sent::Other, vec![self.write(&record)]);
        }
        let Some(own) = self.own.as_ref().filter(|own| own.session == session) else { return };
        let owner = Operation::check(self.wanted.lock.owner());
        if let Some(job) = self.jobs.front().filter(|job| !job.is_sent) {
            let mut steps = vec![owner];
            let mut next = record;
            match &job.kind {
                Kind::Leave(_) => {
                    (next.run, next.checkpoint, next.written) = (None, Vec::new(), Some(Written::Leave));
                }
                Kind::Checkpoint(data) => next.checkpoint = data.clone(),
                Kind::Resolve(token) => next.unfinished.retain(|run| run.token != token.0),
                Kind::Resign => {
                    if next.run.take().is_some() {
                        next.written = Some(Written::Leave);
                    }
                    (next.owner, next.resigned, next.checkpoint) = (None, true, Vec::new());
                    steps.push(Operation::delete(self.wanted.lock.owner()));
                }
            }
            steps.push(self.write(&next));
            if let Some(job) = self.jobs.front_mut() {
                job.is_sent = true;
            }
            return self.commit(Sent::Job, steps);
        }
        if own.run.is_some() || record.unfinished.len() >= UNFINISHED_MAX {
            return;
        }
        if let Some(asking) = self.asking.as_mut().filter(|asking| !asking.is_sent) {
            asking.is_sent = true;
            let (run, checkpoint) = (Some(asking.run_id.clone()), Vec::new());
            let next = Record { run, checkpoint, left_ms: None, written: Some(Written::Enter), ..record };
            let steps = vec![owner, self.write(&next)];
            self.commit(Sent::Enter, steps);
        }
    }

    /// The record without the run that nobody is inside.
    fn without_run(&self, record: Record) -> Record {
        let mut next = Record { run: None, checkpoint: Vec::new(), ..record.clone() };
        let is_over = record.run.is_some() && record.run == self.over;
        next.unfinished
            .extend(record.interrupted().filter(|_| !is_over && !mutant!(StickyUnfinishedDropped)));
        next
    }

    fn act_as_other(&mut self, now: Duration, session: SessionId) {
        let absent = self.absent.map_or(Duration::ZERO, |(_, since)| now.saturating_sub(since));
        let cause = may_try(&self.view, self.me(), absent);
        let nodes = self.delete_own_nodes(session);
        if let Some(cause) = cause {
            let before = self.view.readable().cloned();
            let is_continued = self.own.as_ref().is_some_and(|own| {
                own.run.is_some() && before.as_ref().is_some_and(|before| before.run == own.run)
            });
            let previous = before.as_ref().and_then(|before| {
                Some(Previous {
                    instance: before.owner.clone()?,
                    token: before.token,
                    acquired_ms: before.acquired_ms,
                    entered_ms: before.entered_ms,
                    inside: before.is_inside(),
                })
            });
            let before = before.unwrap_or_default();
            let kept = if is_continued { before } else { self.without_run(before) };
            let record = Record {
                owner: Some(self.wanted.instance.clone()),
                stand: self.wanted.stand,
                grace_ms: u64::try_from(self.wanted.grace.as_millis()).unwrap_or(u64::MAX),
                token: 0,
                acquired_ms: None,
                cause,
                resigned: false,
                ended: false,
                previous,
                written: Some(Written::Grant),
                ..kept
            };
            let owner = OwnerNode { instance: self.wanted.instance.clone(), stand: self.wanted.stand };
            let mut steps = vec![self.write(&record)];
            if self.view.owner.is_some() {
                steps.push(Operation::delete(self.wanted.lock.owner()));
            }
            steps.push(Operation::create(self.wanted.lock.owner(), NodeKind::Ephemeral, owner.write()));
            steps.extend(nodes);
            return self.commit(Sent::Grant, steps);
        }
        match nodes.len() {
            0 if self.view.queue.len() >= self.wanted.queue_max => {
                self.leave(End::QueueFull { candidates: self.view.queue.len() });
            }
            0 => {
                let node = self.wanted.lock.candidate(self.wanted.stand);
                let create = Operation::create(node, NodeKind::EphemeralSequential, &self.wanted.instance);
                self.commit(Sent::Other, vec![create]);
            }
            1 => {}
            // A request whose outcome was unknown had an effect after all.
            _ => self.commit(Sent::Other, nodes.into_iter().skip(1).collect()),
        }
    }

    /// The state, when it has changed.
    fn notify_state(&mut self) {
        let Some(session) = self.is_connected().filter(|_| self.life == Life::Standing) else { return };
        // An owner that was not told yet hears `Acquired` first.
        if self.is_owner(session) && self.own.is_none() {
            return;
        }
        let standing = self.standing();
        if self.told.as_ref() != Some(&standing) {
            self.told = Some(standing.clone());
            self.out.push(Effect::Notify(Event::State(standing)));
        }
    }

    /// Sends the end of the lease now and then: an application whose sidecar is stopped counts by itself.
    fn notify_lease(&mut self, now: Duration) {
        let Some(own) = self.own.as_ref().filter(|own| !own.is_suspended && own.lost_at.is_none()) else {
            return;
        };
        if self.lease.is_due(now) && self.lease.is_newer() && self.lease.notify(now).is_some() {
            self.out.push(Effect::Notify(Event::LeaseRenewed(own.leases())));
        }
    }
}
