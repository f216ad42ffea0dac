//! One task for each attached stream: select, step, perform. Decides nothing.
//!
//! Select takes what has happened in a fixed order: the session first, so that a lost one is known before anything
//! else; the application last. Everything that is ready is taken in one step. The picture of the job's nodes is looked at
//! after that, so a result never overtakes its changes (see `feed`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::StreamExt;
use tracing::{Span, debug, info, warn};

use crate::coordination::job::contract::answer::Answer;
use crate::coordination::job::contract::answer::Ticket;
use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::effect::{Effect, EndReason};
use crate::coordination::job::contract::event::Event;
use crate::coordination::job::contract::input::Input;
use crate::coordination::job::contract::report::Outcome;
use crate::coordination::job::frame::context::Identity;
use crate::coordination::job::participant::Participant;
use crate::coordination::time::Now;
use crate::coordination::time::Wakeup;
use crate::elasticjob::path::Gate;
use crate::job::Item;
use crate::reason::Reason;
use crate::registry::{Session, SessionState};
use crate::telemetry;
use crate::tree::Path;

use super::clock::Clock;
use super::command::{Command, Handle};
use super::commits::commit_in;
use super::feed::Follower;
use super::held_latch::HeldLatch;
use super::lease::Lease;
use super::outcomes::Outcomes;
use super::refusals::Refusals;
use super::session::Current;
use super::shared::Shared;
use super::waiting::{closed, replaced, room, session_changed};
use super::{latched, ledger, news};

/// Calls of the application that wait to be taken; the callers beyond wait in their own tasks.
const COMMAND_QUEUE: usize = 256;
/// Events between us and the transport. Small: what the transport does not take waits in the backlog, where its age is
/// known.
const OUTBOX: usize = 64;
/// Events that may wait besides one execution for each item: assignments, sessions, cancels.
const BACKLOG_SPARE: usize = 1024;
/// Inputs taken in one step at most, so that a flood of one kind cannot keep the others waiting.
const INPUTS_PER_STEP: usize = 4096;

/// An event, and the trace it belongs to.
#[derive(Debug)]
pub struct Told {
    /// The event.
    pub event: Event,
    /// W3C `traceparent` and `tracestate` of an execution's span.
    pub trace: Option<(String, String)>,
}

/// Why a stream ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamEnd {
    /// The participant ended.
    Ended(EndReason),
    /// The application did not read its events for so long.
    SlowApplication(Duration),
    /// Another stream of the same application took its place.
    Replaced,
    /// The registry cannot write down that the application is attached; with the reason, and what to do.
    Unwritable(String),
}

impl StreamEnd {
    /// The word for programs; `None`: it was to end, and nothing is wrong.
    pub fn word(&self) -> Option<Reason> {
        match self {
            Self::Ended(reason) => reason.word(),
            Self::SlowApplication(_) => Some(Reason::SlowApplication),
            Self::Replaced => Some(Reason::StreamReplaced),
            Self::Unwritable(_) => Some(Reason::RegistryFull),
        }
    }
}

/// What the application reads.
#[derive(Debug)]
pub struct Outlet {
    /// The events. Dropping it detaches the application.
    pub events: mpsc::Receiver<Told>,
    /// Set when the events have ended.
    pub end: Arc<OnceLock<StreamEnd>>,
    /// Set before it is dropped: for how long nothing had come from the application.
    pub silent_for: Arc<OnceLock<Duration>>,
}

/// Runs one participant.
pub struct Runner {
    core: Participant,
    identity: Identity,
    clock: Clock,
    namespace: Path,
    slow_after: Duration,
    silent_after: Duration,
    current: Current,
    lease: Lease,
    /// The end of the lease as the core knows it.
    leased: Option<Duration>,
    session: Option<(Arc<dyn Session>, watch::Receiver<SessionState>)>,
    picture: Follower,
    in_flight: FuturesUnordered<BoxFuture<'static, Input>>,
    commands: mpsc::Receiver<Command>,
    tickets: BTreeMap<Ticket, oneshot::Sender<Answer>>,
    last_ticket: u64,
    outbox: Option<mpsc::Sender<Told>>,
    backlog: VecDeque<Told>,
    blocked_since: Option<Duration>,
    /// Whether the application was told that it is attached.
    is_attached: bool,
    end: Arc<OnceLock<StreamEnd>>,
    /// For how long nothing had come from the application when its stream broke.
    silent_for: Arc<OnceLock<Duration>>,
    over: watch::Sender<bool>,
    spans: BTreeMap<String, Span>,
    latches: BTreeMap<Gate, HeldLatch>,
    /// How large requests may be, as the core knows it.
    request_limit: Option<usize>,
    refusals: Arc<Refusals>,
    outcomes: Outcomes,
}

/// What select came back with.
enum Ready {
    Inputs(Vec<Input>),
    Session,
    Picture,
    Room(mpsc::OwnedPermit<Told>),
    Gone,
    Command(Command),
    Alarm,
}

impl Runner {
    /// A runner, the handle for its callers, and the outlet for its application.
    pub(super) fn new(
        core: Participant,
        identity: Identity,
        picture: Follower,
        shared: &Shared,
    ) -> (Self, Handle, Outlet) {
        let (command_sender, commands) = mpsc::channel(COMMAND_QUEUE);
        let (outbox, events) = mpsc::channel(OUTBOX);
        let (over, over_receiver) = watch::channel(false);
        let (end, silent_for) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
        let runner = Self {
            core,
            identity,
            clock: shared.clock.clone(),
            namespace: shared.namespace.clone(),
            slow_after: shared.slow_application_timeout,
            silent_after: shared.silent_application_timeout,
            current: shared.current.clone(),
            lease: shared.lease.clone(),
            leased: None,
            session: None,
            picture,
            in_flight: FuturesUnordered::new(),
            commands,
            tickets: BTreeMap::new(),
            last_ticket: 0,
            outbox: Some(outbox),
            backlog: VecDeque::new(),
            blocked_since: None,
            is_attached: false,
            end: Arc::clone(&end),
            silent_for: Arc::clone(&silent_for),
            over,
            spans: BTreeMap::new(),
            latches: BTreeMap::new(),
            request_limit: None,
            refusals: Arc::default(),
            outcomes: shared.outcomes.clone(),
        };
        (runner, Handle { commands: command_sender, over: over_receiver }, Outlet { events, end, silent_for })
    }

    /// Runs until the participant has ended and the application was told all that it was to be told.
    pub async fn run(mut self) {
        self.current.mark_changed();
        while !self.core.has_ended() {
            let mut inputs = self.select().await;
            // Read before the lease: a proof that comes in between must not be missed.
            let now = self.clock.now();
            self.take_limit(&mut inputs);
            self.take_lease(&mut inputs);
            self.step(now, inputs);
            self.check_slow(now);
        }
        // A departing application may still read what is buffered; one that does not is not waited for.
        if let Some(outbox) = self.outbox.take() {
            while let Some(told) = self.backlog.pop_front() {
                if outbox.try_send(told).is_err() {
                    break;
                }
            }
        }
        self.outcomes.forget(&self.identity.job, &self.identity.instance);
        self.over.send_replace(true);
    }

    /// Shows the core the picture and what has happened, and does what it asks for.
    fn step(&mut self, now: Now, mut inputs: Vec<Input>) {
        let (core, session) = (&mut self.core, self.session.as_ref().map(|(session, _)| session.id()));
        let effects = self.picture.look(session, |picture, was_read| {
            if was_read {
                // Before the results, which may ask for the next reading; nothing comes before the lease.
                let place = usize::from(matches!(inputs.first(), Some(Input::Leased { .. })));
                inputs.insert(place, Input::WasRead);
            }
            core.step(now, picture, inputs)
        });
        for effect in effects {
            self.perform(now, effect);
        }
    }

    /// Waits for something to happen, and takes everything that has.
    async fn select(&mut self) -> Vec<Input> {
        let mut inputs = Vec::new();
        loop {
            let ready = self.next(self.wakeup()).await;
            // Room for events that wait is none of the core's business: a burst of thousands would be as many steps.
            let concerns_core = !matches!(ready, Ready::Room(_));
            self.take(ready, &mut inputs);
            while inputs.len() < INPUTS_PER_STEP {
                let Some(ready) = self.next_now() else { break };
                self.take(ready, &mut inputs);
            }
            if concerns_core || !inputs.is_empty() {
                return inputs;
            }
        }
    }

    fn wakeup(&self) -> Wakeup {
        let mut wakeup = self.core.next_wakeup();
        let slow = self.blocked_since.map(|since| since.saturating_add(self.slow_after));
        wakeup.mono = [wakeup.mono, slow].into_iter().flatten().min();
        wakeup
    }

    async fn next(&mut self, wakeup: Wakeup) -> Ready {
        let blocked = self.outbox.clone().filter(|_| !self.backlog.is_empty());
        let outbox = self.outbox.clone();
        tokio::select! {
            // The order is the module's promise; see its header.
            biased;
            () = replaced(&mut self.current) => Ready::Session,
            () = session_changed(&mut self.session) => Ready::Session,
            () = self.picture.changed() => Ready::Picture,
            Some(input) = self.in_flight.next() => Ready::Inputs(vec![input]),
            () = closed(outbox) => Ready::Gone,
            Some(permit) = room(blocked) => Ready::Room(permit),
            Some(command) = self.commands.recv() => Ready::Command(command),
            () = self.clock.sleep_until(wakeup) => Ready::Alarm,
        }
    }

    /// What is ready without waiting, in the same order. The session is left to the next turn: it comes first there.
    fn next_now(&mut self) -> Option<Ready> {
        let in_flight = self.in_flight.next().now_or_never();
        if let Some(Some(input)) = in_flight {
            return Some(Ready::Inputs(vec![input]));
        }
        self.commands.try_recv().ok().map(Ready::Command)
    }

    fn take(&mut self, ready: Ready, inputs: &mut Vec<Input>) {
        match ready {
            Ready::Inputs(more) => inputs.extend(more),
            Ready::Session => self.take_session(inputs),
            Ready::Room(permit) => {
                self.blocked_since = None;
                if let Some(told) = self.backlog.pop_front() {
                    permit.send(told);
                }
                self.flush();
            }
            Ready::Gone => {
                let silent_for = self.silent_for.get().copied().unwrap_or_default();
                // A connection that is not silent is heard of at each ping, after half of the time.
                if silent_for >= self.silent_after / 4 * 3 {
                    warn!(
                        ?silent_for,
                        "the application did not answer, so its connection was closed: it is stopped, or busy for too long, \
                         or cut off (see silent_application_timeout)"
                    );
                }
                self.outbox = None;
                self.backlog.clear();
                inputs.push(Input::Detached);
            }
            Ready::Command(command) => self.take_command(command, inputs),
            // Each step looks at the picture.
            Ready::Picture | Ready::Alarm => {}
        }
    }

    /// Tells the core how large requests may be, if that has become known.
    fn take_limit(&mut self, inputs: &mut Vec<Input>) {
        let limit = self.session.as_ref().and_then(|(session, _)| session.request_limit());
        if limit.is_some() && limit != self.request_limit {
            self.request_limit = limit;
            inputs.extend(limit.map(Input::RequestLimit));
        }
    }

    /// Puts the news of the lease before everything else that concerns the session.
    fn take_lease(&mut self, inputs: &mut Vec<Input>) {
        let Some((session, _)) = &self.session else { return };
        let proof = *self.lease.proof.borrow();
        let Some(proof) = proof.filter(|proof| proof.session == session.id()) else { return };
        let opened = inputs.iter().rposition(|input| matches!(input, Input::SessionOpened(_)));
        if opened.is_some() || self.leased != Some(proof.until) {
            self.leased = Some(proof.until);
            let place = opened.map_or(0, |opened| opened + 1);
            inputs.insert(place, Input::Leased { until: proof.until });
        }
    }

    fn take_session(&mut self, inputs: &mut Vec<Input>) {
        let current = self.current.borrow_and_update().clone();
        let same = match (&self.session, &current) {
            (Some((ours, _)), Some(theirs)) => Arc::ptr_eq(ours, theirs),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if same {
            if let Some((session, state)) = &mut self.session {
                let now = *state.borrow_and_update();
                inputs.push(match now {
                    SessionState::Connected => Input::SessionResumed,
                    SessionState::Suspended => Input::SessionSuspended,
                    SessionState::Lost => Input::SessionLost,
                });
                // An application that is not attached yet would wait for a person, and not know it.
                if let Some(obstacle) = session.obstacle()
                    && !self.is_attached
                    && self.outbox.is_some()
                {
                    self.hang_up(StreamEnd::Unwritable(obstacle));
                    inputs.push(Input::Detached);
                }
            }
            return;
        }
        if self.session.take().is_some() {
            inputs.push(Input::SessionLost);
        }
        self.in_flight.clear();
        self.latches.clear();
        if let Some(session) = current {
            let mut state = session.state();
            state.mark_changed();
            inputs.push(Input::SessionOpened(session.id()));
            self.session = Some((session, state));
        }
    }

    fn take_command(&mut self, command: Command, inputs: &mut Vec<Input>) {
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        match command {
            Command::Report(results, answer) => {
                for result in &results {
                    self.spans.remove(&result.execution_id);
                }
                self.tickets.insert(ticket, answer);
                inputs.push(Input::Report(ticket, results));
            }
            Command::Acknowledge(generation, answer) => {
                self.tickets.insert(ticket, answer);
                inputs.push(Input::Acknowledge(ticket, generation));
            }
            Command::AskLease(answer) => {
                self.tickets.insert(ticket, answer);
                inputs.push(Input::AskLease(ticket));
            }
            Command::Listener(call, outcome, answer) => {
                self.tickets.insert(ticket, answer);
                inputs.push(Input::ListenerReport(ticket, call, outcome));
            }
            Command::Progress(report, answer) => {
                self.tickets.insert(ticket, answer);
                inputs.push(Input::Progress(ticket, report));
            }
            Command::Cancel(items, answer) => {
                self.tickets.insert(ticket, answer);
                inputs.push(Input::Cancel(ticket, items));
            }
            Command::Drain { deadline, for_good } => {
                inputs.extend(for_good.then_some(Input::ForGood));
                inputs.push(Input::Drain { deadline });
            }
            Command::Replace { same, back, outlet } => {
                let resumed = (same && self.core.may_resume()).then(|| self.replace_outlet());
                if resumed.is_some() {
                    inputs.push(Input::Reattached(back));
                } else {
                    let _ = self.end.set(StreamEnd::Replaced);
                    inputs.push(Input::Left);
                }
                // A caller that has gone away leaves a stream that is broken.
                let _ = outlet.send(resumed);
            }
            Command::Yield { leaves } => {
                let leaving = inputs.iter().any(|input| matches!(input, Input::Left));
                let alone = self.outbox.is_none() && self.core.may_yield();
                let gone = alone || leaving || self.core.is_leaving();
                inputs.extend(gone.then_some(Input::Left));
                // A caller that has gone away looks again when it comes back.
                let _ = leaves.send(gone);
            }
            Command::Leave { for_good } => {
                inputs.extend(for_good.then_some(Input::ForGood));
                inputs.push(Input::Left);
            }
        }
    }

    fn perform(&mut self, now: Now, effect: Effect) {
        match effect {
            Effect::Commit { id, purpose, transaction } => {
                let Some((session, _)) = &self.session else { return };
                debug!(%purpose, steps = transaction.len(), "commit");
                let commit = match purpose {
                    // What has to exist before, but is not written for an application that is refused.
                    Purpose::Register => {
                        let fleet = self.identity.paths.fleet();
                        let names = self.identity.name.as_ref().map(|_| fleet.names());
                        let folders = [Some(self.namespace.clone()), Some(fleet.members()), names];
                        commit_in(session, folders, transaction)
                    }
                    Purpose::Announce => {
                        commit_in(session, [Some(self.identity.paths.fleet().members())], transaction)
                    }
                    Purpose::Abdicate
                    | Purpose::FlagResharding
                    | Purpose::Shard
                    | Purpose::Start
                    | Purpose::Complete
                    | Purpose::Checkpoint
                    | Purpose::FlagMisfire
                    | Purpose::Guarantee
                    | Purpose::FlagFailover
                    | Purpose::TakeTrigger
                    | Purpose::CheckClock
                    | Purpose::RepairRelay
                    | Purpose::Nudge
                    | Purpose::PlanHandoff
                    | Purpose::HandOff
                    | Purpose::Renew
                    | Purpose::ForgetNames
                    | Purpose::Leave => session.commit(transaction),
                };
                let (refusals, clock) = (Arc::clone(&self.refusals), self.clock.clone());
                self.in_flight.push(Box::pin(async move {
                    let result = commit.await;
                    if let Err(error) = &result {
                        debug!(%purpose, %error, "commit failed");
                        refusals.tell(clock.now().mono, purpose, error);
                    }
                    Input::Committed(id, result)
                }));
            }
            Effect::Elect(transaction) => {
                let Some((session, _)) = &self.session else { return };
                self.in_flight.push(latched::elect(&self.clock, session, &self.identity.paths, transaction));
            }
            Effect::TakeOver { transaction, items } => {
                let Some((session, _)) = &self.session else { return };
                self.in_flight.push(latched::take_over(
                    &self.clock,
                    session,
                    &self.identity.paths,
                    transaction,
                    &items,
                ));
            }
            Effect::HoldLatch { gate, limit } => {
                let Some((session, _)) = &self.session else { return };
                let latch = self.identity.paths.guarantee_latch(gate);
                let (held, news) = HeldLatch::join(&self.clock, Arc::clone(session), latch, gate, limit);
                self.latches.insert(gate, held);
                self.in_flight.push(news);
            }
            Effect::LeaveLatch { gate, transactions } => {
                let Some(held) = self.latches.remove(&gate) else { return };
                self.in_flight.push(held.leave(gate, transactions));
            }
            Effect::GiveUpSession => {
                if let Some((session, _)) = &self.session {
                    self.lease.give_up(session.id());
                }
            }
            Effect::Refresh { forget } => self.picture.refresh(forget),
            Effect::ReadLedger => {
                let Some((session, _)) = &self.session else { return };
                let read = ledger::read(Arc::clone(session), self.identity.paths.ledger());
                self.in_flight.push(Box::pin(async move { Input::Ledger(read.await) }));
            }
            Effect::FindCheckpoints(items) => {
                let Some((session, _)) = &self.session else { return };
                let paths = self.identity.paths.clone();
                let find = ledger::find_checkpoints(Arc::clone(session), paths, items);
                self.in_flight.push(Box::pin(async move { Input::Checkpoints(find.await) }));
            }
            Effect::Tell(event) => self.tell(now, event),
            Effect::Answer(ticket, answer) => {
                if let Some(sender) = self.tickets.remove(&ticket) {
                    // A caller that has gone away does not need its answer.
                    let _ = sender.send(answer);
                }
            }
            Effect::Warn(problem) => news::problem(&problem),
            Effect::Skipped { item, scheduled } => {
                warn!(%item, %scheduled, "fire skipped: the item was busy or the fire too late, and misfire is off");
            }
            Effect::Retry(item, news) => news::retry(item, news),
            Effect::Reported(item, outcome) => self.note_outcome(now, item, &outcome),
            Effect::CloseStream(reason) => self.hang_up(StreamEnd::Ended(reason)),
            Effect::End(reason) => {
                let word = reason.word().map(tracing::field::display);
                info!(reason = word, how = ?reason, "ended");
                let _ = self.end.set(StreamEnd::Ended(reason));
            }
        }
    }

    fn note_outcome(&mut self, now: Now, item: Item, outcome: &Outcome) {
        let Identity { job, instance, .. } = &self.identity;
        if let Some((message, left_out)) = self.outcomes.note(now, job, instance, item, outcome) {
            let left_out = (left_out > 0).then_some(left_out);
            warn!(%item, left_out, "an execution failed: {message}");
        }
    }

    fn tell(&mut self, now: Now, event: Event) {
        news::told(now, &event);
        let trace = self.trace(&event);
        if self.outbox.is_none() {
            return;
        }
        self.is_attached |= matches!(event, Event::Attached { .. });
        self.backlog.push_back(Told { event, trace });
        self.flush();
        if !self.backlog.is_empty() && self.blocked_since.is_none() {
            self.blocked_since = Some(now.mono);
        }
    }

    /// Hands on what there is room for.
    fn flush(&mut self) {
        let Some(outbox) = &self.outbox else { return };
        while !self.backlog.is_empty() {
            let Ok(permit) = outbox.try_reserve() else { break };
            if let Some(told) = self.backlog.pop_front() {
                permit.send(told);
            }
        }
        if self.backlog.is_empty() {
            self.blocked_since = None;
        } else if self.blocked_since.is_none() {
            self.blocked_since = Some(self.clock.now().mono);
        }
    }

    /// Detaches an application that does not read: it is told by the end of its stream, and handled as crashed.
    fn check_slow(&mut self, now: Now) {
        let stuck = self.blocked_since.is_some_and(|since| now.mono >= since.saturating_add(self.slow_after));
        let items = self.core.items_max();
        if !stuck && self.backlog.len() <= items.saturating_add(BACKLOG_SPARE) {
            return;
        }
        warn!(waiting = self.backlog.len(), "the application does not read its events; it is detached");
        self.hang_up(StreamEnd::SlowApplication(self.slow_after));
        self.step(now, vec![Input::Detached]);
    }

    /// Ends the application's stream, and opens another one for the same participant.
    fn replace_outlet(&mut self) -> Outlet {
        self.hang_up(StreamEnd::Replaced);
        let (outbox, events) = mpsc::channel(OUTBOX);
        self.outbox = Some(outbox);
        (self.end, self.silent_for) = Default::default();
        Outlet { events, end: Arc::clone(&self.end), silent_for: Arc::clone(&self.silent_for) }
    }

    /// Ends the application's stream.
    fn hang_up(&mut self, end: StreamEnd) {
        // What was said first is the reason.
        let _ = self.end.set(end);
        self.outbox = None;
        self.backlog.clear();
        self.blocked_since = None;
    }

    /// The trace of an execution that begins, or goes on with another stream.
    fn trace(&mut self, event: &Event) -> Option<(String, String)> {
        let Event::Execute(execute) = event else { return None };
        if !telemetry::is_tracing() {
            return None;
        }
        let span = self.spans.entry(execute.execution_id.clone()).or_insert_with(|| {
            tracing::info_span!(
                "execution",
                job.name = %self.identity.job,
                item = %execute.item,
                instance.id = %self.identity.instance,
                execution.id = %execute.execution_id,
                fencing.token = execute.token.0,
            )
        });
        span.in_scope(telemetry::current_trace_context)
    }
}
