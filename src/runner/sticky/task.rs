//! The task of one candidate: select, step, perform. It runs until the candidate has ended, which is after its stream: no caller
//! can cancel it, so no node is left.
//!
//! Each candidate has one watch of its lock's node. That is a herd by design: an owner changes rarely, and then each candidate
//! begins its own grace. The watch is read before each result of a request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::StreamExt;
use tracing::{debug, info, warn};

use crate::coordination::sticky::candidate::Candidate;
use crate::coordination::sticky::contract::{Answer, Call, Effect, End, Event, Input};
use crate::coordination::time::Wakeup;
use crate::extension::sticky::StickyPaths;
use crate::registry::{SessionState, Watch};
use crate::runner::clock::Clock;
use crate::runner::session::current::{Current, Followed, is_followed, replaced, session_changed};
use crate::runner::session::lease::Lease;
use crate::runner::shared::Shared;
use crate::tree::{NodeKind, Path, WatchEvent};

/// Events that the application has not read. A lease that is renewed is sent only if there is room; an application that
/// does not read the others has left.
const EVENTS_MAX: usize = 64;
/// Requests of callers that the task has not taken.
const COMMANDS_MAX: usize = 16;

/// A request of a caller to a candidate.
#[derive(Debug)]
pub(super) enum Command {
    /// A call of the application.
    Call(Call, oneshot::Sender<Answer>),
    /// The sidecar stops.
    Drain {
        /// Until when runs may go on; monotonic.
        deadline: Duration,
    },
}

/// The callers' end of a candidate.
#[derive(Debug, Clone)]
pub(super) struct Handle {
    pub(super) commands: mpsc::Sender<Command>,
}

/// The application's end of a stand.
#[derive(Debug)]
pub struct Outlet {
    /// The events. Dropping them ends the stand.
    pub events: mpsc::Receiver<Event>,
    /// Set before the events end.
    pub end: watch::Receiver<Option<End>>,
}

/// Runs one candidate.
pub(super) struct Task {
    candidate: Candidate,
    lock: StickyPaths,
    clock: Clock,
    current: Current,
    lease: Lease,
    session: Option<Followed>,
    in_flight: FuturesUnordered<BoxFuture<'static, Input>>,
    watch: Option<Watch>,
    commands: mpsc::Receiver<Command>,
    /// The callers that wait for an answer, by the number of their call.
    callers: BTreeMap<u64, oneshot::Sender<Answer>>,
    calls: u64,
    /// Inputs that the task itself has noticed while it performed effects.
    noticed: Vec<Input>,
    events: mpsc::Sender<Event>,
    has_left: bool,
    end: watch::Sender<Option<End>>,
}

enum Ready {
    Session,
    Seen(Option<WatchEvent>),
    Input(Input),
    Command(Command),
    Left,
    Alarm,
}

impl Task {
    /// A task, the handle for its callers, and the outlet for its application.
    pub(super) fn new(candidate: Candidate, lock: StickyPaths, shared: &Shared) -> (Self, Handle, Outlet) {
        let (command_sender, commands) = mpsc::channel(COMMANDS_MAX);
        let (events, event_receiver) = mpsc::channel(EVENTS_MAX);
        let (end, end_receiver) = watch::channel(None);
        let mut current = shared.current.clone();
        current.mark_changed();
        let task = Self {
            candidate,
            lock,
            clock: shared.clock.clone(),
            current,
            lease: shared.lease.clone(),
            session: None,
            in_flight: FuturesUnordered::new(),
            watch: None,
            commands,
            callers: BTreeMap::new(),
            calls: 0,
            noticed: Vec::new(),
            events,
            has_left: false,
            end,
        };
        (task, Handle { commands: command_sender }, Outlet { events: event_receiver, end: end_receiver })
    }

    /// Runs until the candidate has ended. Calls `ended` before the application hears of the end: it may stand again at once.
    pub(super) async fn run(mut self, ended: impl FnOnce()) {
        let last = loop {
            let mut inputs = self.select().await;
            // The time is read before the lease: no proof may come in between.
            let now = self.clock.now();
            self.take_lease(&mut inputs);
            let effects = self.candidate.step(now, inputs);
            if self.candidate.end().is_some() {
                break effects;
            }
            self.perform_all(effects);
        };
        ended();
        self.perform_all(last);
        let end = self.candidate.end().cloned();
        debug!(lock = %self.lock.root(), ?end, "a candidate has ended");
        self.end.send_replace(end);
    }

    fn perform_all(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            self.perform(effect);
        }
    }

    async fn select(&mut self) -> Vec<Input> {
        let mut inputs = std::mem::take(&mut self.noticed);
        let ready = if inputs.is_empty() { self.next().await } else { Ready::Alarm };
        let mut later = Vec::new();
        self.take(ready, &mut inputs, &mut later);
        while let Some(Some(input)) = self.in_flight.next().now_or_never() {
            later.push(input);
        }
        // The changes of a transaction are in the watch before its result is here.
        while let Some(Ok(event)) = self.watch.as_mut().map(Watch::try_recv) {
            inputs.push(Input::Seen(event));
        }
        inputs.extend(later);
        inputs
    }

    async fn next(&mut self) -> Ready {
        let wakeup = Wakeup { wall: None, mono: self.candidate.next_wakeup(self.clock.now().mono) };
        tokio::select! {
            // The session first; the application last.
            biased;
            () = replaced(&mut self.current) => Ready::Session,
            () = session_changed(&mut self.session) => Ready::Session,
            () = lease_changed(&mut self.lease), if self.session.is_some() => Ready::Alarm,
            event = next_event(&mut self.watch) => Ready::Seen(event),
            Some(input) = self.in_flight.next() => Ready::Input(input),
            Some(command) = self.commands.recv() => Ready::Command(command),
            () = self.events.closed(), if !self.has_left => Ready::Left,
            () = self.clock.sleep_until(wakeup) => Ready::Alarm,
        }
    }

    /// `later`: the inputs that come after what the watch has seen.
    fn take(&mut self, ready: Ready, inputs: &mut Vec<Input>, later: &mut Vec<Input>) {
        match ready {
            Ready::Session => self.take_session(inputs),
            Ready::Seen(Some(event)) => inputs.push(Input::Seen(event)),
            Ready::Seen(None) => self.watch = None,
            Ready::Input(input) => later.push(input),
            Ready::Command(Command::Call(call, answer)) => {
                self.calls += 1;
                self.callers.insert(self.calls, answer);
                inputs.push(Input::Asked(self.calls, call));
            }
            Ready::Command(Command::Drain { deadline }) => inputs.push(Input::Drain { deadline }),
            Ready::Left => {
                self.has_left = true;
                inputs.push(Input::Left);
            }
            Ready::Alarm => {}
        }
    }

    fn take_session(&mut self, inputs: &mut Vec<Input>) {
        let current = self.current.borrow_and_update().clone();
        if is_followed(self.session.as_ref(), current.as_ref()) {
            if let Some((_, state)) = &mut self.session {
                let now = *state.borrow_and_update();
                inputs.push(match now {
                    SessionState::Connected => Input::SessionResumed,
                    SessionState::Suspended => Input::SessionSuspended,
                    SessionState::Lost => Input::SessionLost,
                });
            }
            return;
        }
        if self.session.take().is_some() {
            inputs.push(Input::SessionLost);
        }
        self.in_flight.clear();
        self.watch = None;
        if let Some(session) = current {
            let mut state = session.state();
            state.mark_changed();
            inputs.push(Input::SessionOpened(session.id()));
            // The request is sent at the call, and this future is ready at once; it fails only if the session is lost.
            let watch = session.watch(self.lock.root(), Arc::new(|_: &Path| true)).now_or_never();
            self.watch = watch.and_then(Result::ok);
            self.session = Some((session, state));
        }
    }

    /// Adds an input with the lease: before all others, or just behind the opening of the session.
    fn take_lease(&mut self, inputs: &mut Vec<Input>) {
        let Some((session, _)) = &self.session else { return };
        let proof = *self.lease.proof.borrow_and_update();
        let Some(proof) = proof.filter(|proof| proof.session == session.id()) else { return };
        let opened = inputs.iter().rposition(|input| matches!(input, Input::SessionOpened(_)));
        let place = opened.map_or(0, |opened| opened + 1);
        inputs.insert(place, Input::Leased { until: proof.until });
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            // Whether there is a session or not.
            Effect::Notify(event) => self.notify(event),
            Effect::Answer(call, answer) => {
                let caller = self.callers.remove(&call);
                if caller.is_some_and(|caller| caller.send(answer).is_err()) {
                    self.noticed.push(Input::Unheard(call));
                }
            }
            Effect::CreateParents => {
                let Some((session, _)) = &self.session else { return };
                let created = session.ensure(self.lock.queue(), NodeKind::Persistent, b"");
                self.in_flight.push(Box::pin(async move { Input::ParentsCreated(created.await.map(drop)) }));
            }
            Effect::Commit(number, transaction) => {
                let Some((session, _)) = &self.session else { return };
                let answer = session.commit(transaction);
                self.in_flight.push(Box::pin(async move {
                    Input::Committed(number, answer.await.map(drop).map_err(|error| error.error))
                }));
            }
            Effect::GiveUpSession => {
                if let Some((session, _)) = &self.session {
                    self.lease.give_up(session.id());
                }
            }
        }
    }

    fn notify(&mut self, event: Event) {
        let lock = self.lock.root();
        match &event {
            Event::Acquired { token, cause, .. } => {
                info!(%lock, fencing.token = token.0, ?cause, "sticky lock acquired");
            }
            Event::Lost { reason, .. } => {
                warn!(event = "STICKY_LOCK_LOST", %lock, ?reason, "sticky lock lost")
            }
            Event::State(_)
            | Event::LeaseRenewed(_)
            | Event::Suspended(_)
            | Event::Resumed(_)
            | Event::Draining { .. } => {}
        }
        let is_renewal = matches!(event, Event::LeaseRenewed(_));
        if let Err(mpsc::error::TrySendError::Full(_)) = self.events.try_send(event)
            && !is_renewal
            && !self.has_left
        {
            warn!(event = "APPLICATION_SLOW", lock = %self.lock.root(), "the application does not read the events of its sticky lock, and its stand ends");
            self.has_left = true;
            self.noticed.push(Input::Left);
        }
    }
}

/// Waits until the session is proven alive for longer.
async fn lease_changed(lease: &mut Lease) {
    if lease.proof.changed().await.is_err() {
        std::future::pending().await
    }
}

/// The next event of the watch; `None`: the watch has ended. Never ends without a watch.
async fn next_event(watch: &mut Option<Watch>) -> Option<WatchEvent> {
    match watch {
        Some(watch) => watch.recv().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordination::sticky::candidate::Wanted;

    #[tokio::test]
    async fn the_task_is_over_before_the_application_hears_of_the_end() {
        let lock = StickyPaths::named(&Path::root(), "bill").unwrap();
        let candidate = Candidate::new(Wanted {
            lock: lock.clone(),
            instance: "m1".to_owned(),
            stand: uuid::Uuid::nil(),
            grace: Duration::from_secs(1),
            queue_max: 1,
        });
        let (task, handle, outlet) = Task::new(candidate, lock, &Shared::without_session());
        handle.commands.send(Command::Drain { deadline: Duration::ZERO }).await.unwrap();
        let mut heard = None;
        task.run(|| heard = Some(outlet.end.borrow().clone())).await;
        assert_eq!(heard, Some(None));
        assert_eq!(*outlet.end.borrow(), Some(End::Draining));
    }
}
