//! The task of one participant: select, step, perform.
//!
//! Select takes what has happened in a fixed order: the session first, so that the participant knows of a lost session
//! before anything else; the application last. Everything that is ready is taken in one step. The participant looks at the
//! picture of the job's nodes after that, so a result never overtakes its changes (see [`crate::runner::nodes::feed`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::StreamExt;
use tracing::{debug, info, warn};

use crate::coordination::job::contract::answer::{Answer, Ticket};
use crate::coordination::job::contract::commit::{CommitId, Purpose};
use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::event::Event;
use crate::coordination::job::contract::input::Input;
use crate::coordination::job::contract::report::Outcome;
use crate::coordination::job::frame::context::Identity;
use crate::coordination::job::participant::Participant;
use crate::coordination::time::{Now, Wakeup};
use crate::elasticjob::path::Barrier;
use crate::job::Item;
use crate::metrics::meters::Meters;
use crate::registry::SessionState;
use crate::runner::clock::Clock;
use crate::runner::elections::Elections;
use crate::runner::lock::registry::Locks;
use crate::runner::lock_waits::LockWaits;
use crate::runner::nodes::feed::Follower;
use crate::runner::outcomes::Outcomes;
use crate::runner::session::current::{Current, Followed, is_followed, replaced, session_changed};
use crate::runner::session::lease::Lease;
use crate::runner::shared::Shared;
use crate::runner::turns::Turn;
use crate::telemetry;
use crate::tree::{Path, Transaction};

use super::backlog::Backlog;
use super::command::{Command, Handle};
use super::commits::commit;
use super::item_locks::ItemLocks;
use super::latches::{self, HeldLatch};
use super::log::Refusals;
use super::measure::Measure;
use super::outlet::{Outlet, StreamEnd, TracedEvent};
use super::spans::Spans;
use super::{log, reads};

/// How long an instance that joins may keep others waiting for their turn. Joining takes a few round trips.
const TURN: Duration = Duration::from_secs(2);
/// Calls that wait until the task takes them. Further callers wait in their own tasks.
const COMMAND_QUEUE: usize = 256;
/// Inputs that one step takes at most, so that many inputs of one kind cannot delay the others for long.
const INPUTS_PER_STEP: usize = 4096;

/// Runs one participant.
pub(crate) struct Task {
    participant: Participant,
    identity: Identity,
    clock: Clock,
    namespace: Path,
    slow_after: Duration,
    silent_after: Duration,
    current: Current,
    lease: Lease,
    /// The end of the lease that the participant knows.
    leased: Option<Duration>,
    session: Option<Followed>,
    picture: Follower,
    in_flight: FuturesUnordered<BoxFuture<'static, Input>>,
    commands: mpsc::Receiver<Box<Command>>,
    tickets: BTreeMap<Ticket, oneshot::Sender<Answer>>,
    last_ticket: u64,
    backlog: Backlog,
    /// Whether the application was notified that it is attached.
    is_attached: bool,
    /// The instance's turn to join, and when it gives it back at the latest; monotonic. `None`: it has given it back.
    turn: Option<(Turn, Duration)>,
    over: watch::Sender<bool>,
    /// `None`: no traces are exported.
    spans: Option<Spans>,
    latches: BTreeMap<Barrier, HeldLatch>,
    /// The limit of a request's size that the participant knows.
    request_limit: Option<usize>,
    refusals: Arc<Refusals>,
    outcomes: Outcomes,
    item_locks: ItemLocks,
    lock_waits: LockWaits,
    elections: Elections,
    meters: Meters,
    measure: Measure,
}

/// An event that a task has waited for.
enum Ready {
    Inputs(Vec<Input>),
    Session,
    Picture,
    Room(mpsc::OwnedPermit<Box<TracedEvent>>),
    Broken,
    Command(Command),
    Alarm,
}

impl Task {
    /// A task, the handle for its callers, and the outlet for its application.
    pub(crate) fn new(
        participant: Participant,
        identity: Identity,
        picture: Follower,
        shared: &Shared,
        locks: &Arc<Locks>,
    ) -> (Box<Self>, Handle, Outlet) {
        let (command_sender, commands) = mpsc::channel(COMMAND_QUEUE);
        let (backlog, outlet) = Backlog::new(shared.clock.clone());
        let (over, over_receiver) = watch::channel(false);
        let item_locks = ItemLocks::new(Arc::clone(locks));
        let measure = Measure::new(shared.meters.job(&identity.job));
        let spans = telemetry::execution_spans()
            .map(|queue| Spans::new(&shared.namespace, &identity.job, &identity.instance, queue));
        let task = Self {
            participant,
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
            backlog,
            is_attached: false,
            turn: None,
            over,
            spans,
            latches: BTreeMap::new(),
            request_limit: None,
            refusals: Arc::default(),
            outcomes: shared.outcomes.clone(),
            item_locks,
            lock_waits: shared.lock_waits.clone(),
            elections: shared.elections.clone(),
            meters: shared.meters.clone(),
            measure,
        };
        (Box::new(task), Handle { commands: command_sender, over: over_receiver }, outlet)
    }

    /// Runs until the participant has ended. `turn`: its turn to join.
    ///
    /// Boxed: the future of a caller would have room for several copies of a large value.
    pub(crate) async fn run(mut self: Box<Self>, turn: Option<Turn>) {
        let late = self.clock.now().mono.saturating_add(TURN);
        self.turn = turn.map(|turn| (turn, late));
        self.current.mark_changed();
        while !self.participant.has_ended() {
            let mut inputs = self.select().await;
            // The time is read before the lease: no proof may come in between.
            let now = self.clock.now();
            self.take_limit(&mut inputs);
            self.take_lease(&mut inputs);
            self.step(now, inputs);
            self.check_slow(now);
            self.turn = self.turn.take().filter(|(_, late)| !self.is_attached && now.mono < *late);
        }
        self.measure.ended(&self.participant);
        if let Some(spans) = &mut self.spans {
            spans.end(self.clock.now().wall, self.participant.begun());
        }
        self.backlog.finish();
        self.outcomes.forget(&self.identity.job, &self.identity.instance);
        self.lock_waits.forget(&self.identity.job, &self.identity.instance);
        self.over.send_replace(true);
    }

    /// Steps the participant with the picture and the inputs, and performs its effects.
    fn step(&mut self, now: Now, mut inputs: Vec<Input>) {
        let (participant, session) =
            (&mut self.participant, self.session.as_ref().map(|(session, _)| session.id()));
        let effects = self.picture.look(session, |picture, was_read| {
            if was_read {
                // Before the results, which may ask for the next reading, but behind the lease.
                let place = usize::from(matches!(inputs.first(), Some(Input::Leased { .. })));
                inputs.insert(place, Input::WasRead);
            }
            participant.step(now, picture, inputs)
        });
        for effect in effects {
            self.perform(now, effect);
        }
        if let Some(spans) = &mut self.spans {
            spans.stepped();
        }
        self.measure.stepped(&self.participant);
    }

    /// Waits until something happens, and takes everything that has happened.
    async fn select(&mut self) -> Vec<Input> {
        let mut inputs = Vec::new();
        loop {
            let ready = self.next(self.wakeup()).await;
            // The participant needs no step when events are sent: a burst of thousands would be as many steps.
            let needs_step = !matches!(ready, Ready::Room(_));
            self.take(ready, &mut inputs);
            while inputs.len() < INPUTS_PER_STEP {
                let Some(ready) = self.next_now() else { break };
                self.take(ready, &mut inputs);
            }
            if needs_step || !inputs.is_empty() {
                return inputs;
            }
        }
    }

    fn wakeup(&self) -> Wakeup {
        let mut wakeup = self.participant.next_wakeup();
        let late = self.turn.as_ref().map(|(_, late)| *late);
        wakeup.mono = [wakeup.mono, self.backlog.slow_at(self.slow_after), late].into_iter().flatten().min();
        wakeup
    }

    async fn next(&mut self, wakeup: Wakeup) -> Ready {
        tokio::select! {
            // The order is the one that the file's header promises.
            biased;
            () = replaced(&mut self.current) => Ready::Session,
            () = session_changed(&mut self.session) => Ready::Session,
            () = self.picture.changed() => Ready::Picture,
            Some(input) = self.in_flight.next() => Ready::Inputs(vec![input]),
            Some(input) = self.item_locks.next() => Ready::Inputs(vec![input]),
            () = self.backlog.broken() => Ready::Broken,
            Some(room) = self.backlog.room() => Ready::Room(room),
            Some(command) = self.commands.recv() => Ready::Command(*command),
            () = self.clock.sleep_until(wakeup) => Ready::Alarm,
        }
    }

    /// The event that is ready without waiting, in the same order. The session waits for the next call of `next`, where it comes first.
    fn next_now(&mut self) -> Option<Ready> {
        let in_flight = self.in_flight.next().now_or_never();
        if let Some(Some(input)) = in_flight {
            return Some(Ready::Inputs(vec![input]));
        }
        let lock = self.item_locks.next().now_or_never();
        if let Some(Some(input)) = lock {
            return Some(Ready::Inputs(vec![input]));
        }
        self.commands.try_recv().ok().map(|command| Ready::Command(*command))
    }

    fn take(&mut self, ready: Ready, inputs: &mut Vec<Input>) {
        match ready {
            Ready::Inputs(more) => inputs.extend(more),
            Ready::Session => self.take_session(inputs),
            Ready::Room(room) => self.backlog.fill(room),
            Ready::Broken => {
                let silent_for = self.backlog.silent_for();
                // An application on a connection that works answers each ping, and there is one in each half of the time.
                if silent_for >= self.silent_after / 4 * 3 {
                    warn!(
                        event = "APPLICATION_SILENT",
                        ?silent_for,
                        "the application did not answer, so its connection was closed: it is stopped, or busy for too long, \
                         or cut off (see silent_application_timeout)"
                    );
                }
                self.backlog.detach();
                inputs.push(Input::Detached);
            }
            Ready::Command(command) => self.take_command(command, inputs),
            // Each step looks at the picture and at the time.
            Ready::Picture | Ready::Alarm => {}
        }
    }

    /// Adds an input with the limit of a request's size, if the limit is new.
    fn take_limit(&mut self, inputs: &mut Vec<Input>) {
        let limit = self.session.as_ref().and_then(|(session, _)| session.request_limit());
        if limit.is_some() && limit != self.request_limit {
            self.request_limit = limit;
            inputs.extend(limit.map(Input::RequestLimit));
        }
    }

    /// Adds an input with the lease, if it has changed: before all others, or just behind the opening of the session.
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
        if is_followed(self.session.as_ref(), current.as_ref()) {
            if let Some((session, state)) = &mut self.session {
                let now = *state.borrow_and_update();
                inputs.push(match now {
                    SessionState::Connected => Input::SessionResumed,
                    SessionState::Suspended => Input::SessionSuspended,
                    SessionState::Lost => Input::SessionLost,
                });
                // An application that is not attached yet must know that it waits for a person.
                if let Some(obstacle) = session.obstacle()
                    && !self.is_attached
                    && self.backlog.is_open()
                {
                    self.backlog.close(StreamEnd::Unwritable(obstacle));
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
            Command::Cancel(wish, answer) => {
                self.tickets.insert(ticket, answer);
                inputs.push(Input::Cancel(ticket, wish));
            }
            Command::Drain { deadline, for_good } => {
                inputs.extend(for_good.then_some(Input::ForGood));
                inputs.push(Input::Drain { deadline });
            }
            Command::Replace { same, back, outlet } => {
                let reattached = (same && self.participant.may_reattach()).then(|| self.backlog.replace());
                if reattached.is_some() {
                    inputs.push(Input::Reattached(back));
                } else {
                    self.backlog.set_end(StreamEnd::Replaced);
                    inputs.push(Input::Left);
                }
                // If the caller is gone, it drops the outlet, and the stream is broken.
                let _ = outlet.send(reattached);
            }
            Command::ReleaseName { leaves } => {
                let leaving = inputs.iter().any(|input| matches!(input, Input::Left));
                let alone = !self.backlog.is_open() && self.participant.may_release_name();
                let gone = alone || leaving || self.participant.is_leaving();
                inputs.extend(gone.then_some(Input::Left));
                // A caller that is gone needs no answer.
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
            Effect::Commit { id, purpose, transaction } => self.commit(id, purpose, transaction),
            Effect::Elect(transaction) => {
                let Some((session, _)) = &self.session else { return };
                let (elections, clock, identity) = (&self.elections, &self.clock, &self.identity);
                self.in_flight.push(latches::elect(elections, clock, session, identity, transaction));
            }
            Effect::TakeOver { transaction, items } => {
                let Some((session, _)) = &self.session else { return };
                self.in_flight.push(latches::take_over(
                    &self.clock,
                    session,
                    &self.identity,
                    transaction,
                    &items,
                ));
            }
            Effect::HoldLatch { barrier, limit } => {
                let Some((session, _)) = &self.session else { return };
                let latch = self.identity.paths.guarantee_latch(barrier);
                let (held, news) = HeldLatch::join(&self.clock, Arc::clone(session), latch, barrier, limit);
                self.latches.insert(barrier, held);
                self.in_flight.push(news);
            }
            Effect::LeaveLatch { barrier, transactions } => {
                let Some(held) = self.latches.remove(&barrier) else { return };
                self.in_flight.push(held.leave(barrier, transactions));
            }
            Effect::GiveUpSession => {
                if let Some((session, _)) = &self.session {
                    self.lease.give_up(session.id());
                }
            }
            Effect::Refresh { forget } => self.picture.refresh(forget),
            Effect::ReadLedger => {
                let Some((session, _)) = &self.session else { return };
                let read = reads::read(Arc::clone(session), self.identity.own_paths.clone());
                self.in_flight.push(Box::pin(async move { Input::Ledger(read.await) }));
            }
            Effect::FindCheckpoints(items) => {
                let Some((session, _)) = &self.session else { return };
                let paths = self.identity.own_paths.clone();
                let find = reads::find_checkpoints(Arc::clone(session), paths, items);
                self.in_flight.push(Box::pin(async move { Input::Checkpoints(find.await) }));
            }
            Effect::Notify(event) => self.send(now, event),
            Effect::Answer(ticket, answer) => {
                if let Some(sender) = self.tickets.remove(&ticket) {
                    // A caller that is gone needs no answer.
                    let _ = sender.send(answer);
                }
            }
            Effect::Warn(problem) => log::problem(&problem),
            Effect::Skipped { item, scheduled } => {
                self.measure.skipped();
                warn!(event = "FIRE_SKIPPED", %item, %scheduled, "fire skipped: the item was busy or the fire too late, and misfire is off");
            }
            Effect::Retry(item, news) => {
                self.measure.retry(news);
                log::retry(item, news);
            }
            Effect::AskItemLock { number, lock } => {
                if let Some(refused) = self.item_locks.ask(number, &lock, &self.identity) {
                    self.in_flight.push(Box::pin(std::future::ready(refused)));
                }
            }
            Effect::GiveBackItemLock(number) => self.item_locks.give_back(number),
            Effect::LockWait(item, wait) => {
                let Identity { job, instance, .. } = &self.identity;
                let is_new = self.lock_waits.record(now, job, instance, item, &wait);
                log::lock_wait(item, &wait, is_new);
            }
            Effect::Reported(reported) => {
                let traced = match (&mut self.spans, &reported.sent) {
                    (Some(spans), Some(sent)) => spans.reported(now.wall, sent, &reported.outcome),
                    _ => None,
                };
                self.measure.reported(now, &reported, traced.as_ref());
                self.record_outcome(now, reported.item, &reported.outcome);
            }
            Effect::ExecutionLost { item, sent } => {
                self.measure.lost();
                if let (Some(spans), Some(sent)) = (&mut self.spans, sent) {
                    spans.lost(now.wall, &sent);
                }
                debug!(%item, "an execution was stopped after the session was lost");
            }
            Effect::CloseStream(reason) => self.backlog.close(StreamEnd::Ended(reason)),
            Effect::End(reason) => {
                let word = reason.word().map(tracing::field::display);
                info!(reason = word, how = ?reason, "ended");
                self.backlog.set_end(StreamEnd::Ended(reason));
            }
        }
    }

    fn commit(&mut self, id: CommitId, purpose: Purpose, transaction: Transaction) {
        let Some((session, _)) = &self.session else { return };
        debug!(%purpose, steps = transaction.len(), "commit");
        let work = self.measure.work(purpose, &transaction);
        let committing = commit(session, &self.namespace, &self.identity, purpose, transaction);
        let (refusals, clock) = (Arc::clone(&self.refusals), self.clock.clone());
        self.in_flight.push(Box::pin(async move {
            let result = committing.await;
            match &result {
                Ok(_) => work.done(),
                Err(error) => {
                    debug!(%purpose, %error, "commit failed");
                    refusals.warn(clock.now().mono, purpose, error);
                }
            }
            Input::Committed(id, result)
        }));
    }

    fn record_outcome(&mut self, now: Now, item: Item, outcome: &Outcome) {
        let Identity { job, instance, .. } = &self.identity;
        if let Some((message, left_out)) = self.outcomes.record(now, job, instance, item, outcome) {
            let left_out = (left_out > 0).then_some(left_out);
            warn!(event = "EXECUTION_FAILED", %item, left_out, detail = %message, "an execution failed");
        }
    }

    /// Sends an event to the application.
    fn send(&mut self, now: Now, event: Event) {
        log::event(now, &event);
        let mut execution = None;
        if let Event::Execute(execute) = &event
            && let Some(spans) = &mut self.spans
        {
            execution = spans.execute(now.wall, execute);
        }
        self.measure.event(now, &event, execution.as_ref());
        if self.backlog.is_open() {
            self.is_attached |= matches!(event, Event::Attached { .. });
            self.backlog.push(TracedEvent { event, execution });
        }
    }

    /// Detaches an application that does not read its events: its stream ends with the reason, and the participant handles
    /// the instance like one whose stream is broken.
    fn check_slow(&mut self, now: Now) {
        let items = self.participant.items_max();
        let Some(waiting) = self.backlog.slow(now.mono, self.slow_after, items) else { return };
        self.meters.slow_reader();
        warn!(
            event = "APPLICATION_SLOW",
            waiting, "the application does not read its events; it is detached"
        );
        self.backlog.close(StreamEnd::SlowApplication(self.slow_after));
        self.step(now, vec![Input::Detached]);
    }
}
