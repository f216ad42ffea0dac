//! The task of one claim to a lock: select, step, perform. It runs until the claim has ended, which is after its stream: no
//! caller can cancel it, so no node is left in a queue (locks specification L4, L5).

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt;
use tracing::{debug, info, warn};

use super::observer::Observed;
use crate::coordination::lock::claim::Claim;
use crate::coordination::lock::contract::{Effect, End, Event, Input, Part};
use crate::coordination::time::Wakeup;
use crate::extension::lock::{LockPaths, Mode, REVOKE};
use crate::job::FencingToken;
use crate::registry::{Session, SessionState, Watch, latch};
use crate::runner::clock::Clock;
use crate::runner::session::current::{Current, Followed, is_followed, replaced, session_changed};
use crate::runner::session::lease::Lease;
use crate::runner::shared::Shared;
use crate::tree::{Error, NodeChange, NodeKind, Operation, OperationResult, Path, WatchEvent, Zxid};

/// Events that the application has not read. A lease that is renewed is sent only if there is room; an application that
/// does not read the others has left.
const EVENTS_MAX: usize = 64;
/// Requests of callers that the task has not taken.
const COMMANDS_MAX: usize = 4;

/// A request of a caller to a contender.
#[derive(Debug, Clone, Copy)]
pub(super) enum Command {
    /// The application gives the lock back.
    Release,
    /// The sidecar stops.
    Drain {
        /// Until when holders may go on; monotonic.
        deadline: std::time::Duration,
    },
}

/// The callers' end of a contender.
#[derive(Debug, Clone)]
pub(super) struct Handle {
    pub(super) commands: mpsc::Sender<Command>,
    /// The node by which the contender holds the lock, and its token. `None`: it does not hold it.
    pub(super) held: watch::Receiver<Option<(Path, FencingToken)>>,
    /// Why the contender has ended. `None`: it has not.
    pub(super) end: watch::Receiver<Option<End>>,
}

/// The application's end of a hold.
#[derive(Debug)]
pub struct Outlet {
    /// The events. Dropping them gives the lock back.
    pub events: mpsc::Receiver<Event>,
    /// Set before the events end.
    pub end: watch::Receiver<Option<End>>,
}

/// The watches of one contender.
#[derive(Default)]
struct Watches {
    own: Option<(Path, Watch)>,
    before: Option<(Path, Watch)>,
    /// Of all nodes of the queue.
    queue: Option<Watch>,
}

/// Runs one claim.
pub(super) struct Task {
    claim: Claim,
    lock: LockPaths,
    /// Where the nodes of each part are.
    paths: PartPaths,
    /// Whether it is for one execution of an item, of which the log of the job tells.
    is_of_item: bool,
    /// The data of its node.
    holder: Arc<[u8]>,
    clock: Clock,
    current: Current,
    lease: Lease,
    session: Option<Followed>,
    in_flight: FuturesUnordered<BoxFuture<'static, (Part, Input)>>,
    queue: Watches,
    permits: Watches,
    /// The nodes of the election of a candidate.
    election: Option<watch::Receiver<Observed>>,
    commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<Event>,
    has_left: bool,
    held: watch::Sender<Option<(Path, FencingToken)>>,
    end: watch::Sender<Option<End>>,
}

/// The nodes of a claim's parts.
struct PartPaths {
    queue: LockPaths,
    permits: LockPaths,
    kind: LockPaths,
}

impl PartPaths {
    fn new(lock: &LockPaths, mode: Mode) -> Self {
        let queue = if mode == Mode::Permit { lock.semaphore_queue() } else { lock.clone() };
        Self { queue, permits: lock.semaphore_permits(), kind: lock.clone() }
    }

    fn of(&self, part: Part) -> &LockPaths {
        match part {
            Part::Queue => &self.queue,
            Part::Permits => &self.permits,
            Part::Kind => &self.kind,
        }
    }
}

enum Ready {
    Session,
    Input((Part, Input)),
    Watch(Part, Watched),
    Election,
    Command(Command),
    Left,
    Alarm,
}

impl Task {
    /// A task, the handle for its callers, and the outlet for its application.
    pub(super) fn new(
        claim: Claim,
        (lock, mode): (LockPaths, Mode),
        is_of_item: bool,
        holder: Arc<[u8]>,
        election: Option<watch::Receiver<Observed>>,
        shared: &Shared,
    ) -> (Self, Handle, Outlet) {
        let (command_sender, commands) = mpsc::channel(COMMANDS_MAX);
        let (events, event_receiver) = mpsc::channel(EVENTS_MAX);
        let (end, end_receiver) = watch::channel(None);
        let (held, held_receiver) = watch::channel(None);
        let mut current = shared.current.clone();
        current.mark_changed();
        let task = Self {
            claim,
            paths: PartPaths::new(&lock, mode),
            lock,
            is_of_item,
            holder,
            clock: shared.clock.clone(),
            current,
            lease: shared.lease.clone(),
            session: None,
            in_flight: FuturesUnordered::new(),
            queue: Watches::default(),
            permits: Watches::default(),
            election,
            commands,
            events,
            has_left: false,
            held,
            end,
        };
        let (commands, end) = (command_sender, end_receiver.clone());
        let handle = Handle { commands, held: held_receiver, end };
        (task, handle, Outlet { events: event_receiver, end: end_receiver })
    }

    /// Runs until the claim has ended. Calls `ended` before the application hears of the end: it may ask again at once.
    pub(super) async fn run(mut self, ended: impl FnOnce()) {
        let last = loop {
            let mut inputs = self.select().await;
            // The time is read before the lease: no proof may come in between.
            let now = self.clock.now();
            self.take_lease(&mut inputs);
            let effects = self.claim.step(now, inputs);
            if self.claim.end().is_some() {
                break effects;
            }
            self.perform_all(effects);
        };
        ended();
        self.perform_all(last);
        let end = self.claim.end().cloned();
        debug!(lock = %self.lock.lock(), ?end, "a claim to a lock has ended");
        self.end.send_replace(end);
    }

    fn perform_all(&mut self, effects: Vec<(Part, Effect)>) {
        for (part, effect) in effects {
            self.perform(part, effect);
        }
    }

    fn watches(&mut self, part: Part) -> &mut Watches {
        if part == Part::Permits { &mut self.permits } else { &mut self.queue }
    }

    async fn select(&mut self) -> Vec<(Part, Input)> {
        let mut inputs = Vec::new();
        let ready = self.next().await;
        self.take(ready, &mut inputs);
        while let Some(Some(input)) = self.in_flight.next().now_or_never() {
            inputs.push(input);
        }
        inputs
    }

    async fn next(&mut self) -> Ready {
        let wakeup = Wakeup { wall: None, mono: self.claim.next_wakeup(self.clock.now().mono) };
        tokio::select! {
            // The session first; the application last.
            biased;
            () = replaced(&mut self.current) => Ready::Session,
            () = session_changed(&mut self.session) => Ready::Session,
            () = lease_changed(&mut self.lease), if self.session.is_some() => Ready::Alarm,
            watched = self.queue.next() => Ready::Watch(Part::Queue, watched),
            watched = self.permits.next() => Ready::Watch(Part::Permits, watched),
            () = election_changed(&mut self.election) => Ready::Election,
            Some(input) = self.in_flight.next() => Ready::Input(input),
            Some(command) = self.commands.recv() => Ready::Command(command),
            () = self.events.closed(), if !self.has_left => Ready::Left,
            () = self.clock.sleep_until(wakeup) => Ready::Alarm,
        }
    }

    fn take(&mut self, ready: Ready, inputs: &mut Vec<(Part, Input)>) {
        let mut push = |input| inputs.push((Part::Queue, input));
        match ready {
            Ready::Session => self.take_session(inputs),
            Ready::Input(input) => inputs.push(input),
            Ready::Watch(part, watched) => {
                if let Some(input) = self.watches(part).take(watched) {
                    inputs.push((part, input));
                }
            }
            Ready::Election => {
                let Some(election) = &mut self.election else { return };
                let seen = election.borrow_and_update().clone();
                if let Some(seen) = seen.filter(|seen| seen.is_current) {
                    let (leader, successor) = seen.state.leader();
                    push(Input::LeaderSeen { leader, successor });
                }
            }
            Ready::Command(Command::Release) => push(Input::Release),
            Ready::Command(Command::Drain { deadline }) => push(Input::Drain { deadline }),
            Ready::Left => {
                self.has_left = true;
                push(Input::Left);
            }
            Ready::Alarm => {}
        }
    }

    fn take_session(&mut self, inputs: &mut Vec<(Part, Input)>) {
        let mut push = |input| inputs.push((Part::Queue, input));
        let current = self.current.borrow_and_update().clone();
        if is_followed(self.session.as_ref(), current.as_ref()) {
            if let Some((_, state)) = &mut self.session {
                let now = *state.borrow_and_update();
                push(match now {
                    SessionState::Connected => Input::SessionResumed,
                    SessionState::Suspended => Input::SessionSuspended,
                    SessionState::Lost => Input::SessionLost,
                });
            }
            return;
        }
        if self.session.take().is_some() {
            push(Input::SessionLost);
        }
        self.in_flight.clear();
        (self.queue, self.permits) = (Watches::default(), Watches::default());
        if let Some(session) = current {
            let mut state = session.state();
            state.mark_changed();
            push(Input::SessionOpened(session.id()));
            self.session = Some((session, state));
        }
    }

    /// Adds an input with the lease: before all others, or just behind the opening of the session.
    fn take_lease(&mut self, inputs: &mut Vec<(Part, Input)>) {
        let Some((session, _)) = &self.session else { return };
        let proof = *self.lease.proof.borrow_and_update();
        let Some(proof) = proof.filter(|proof| proof.session == session.id()) else { return };
        let opened = inputs.iter().rposition(|(_, input)| matches!(input, Input::SessionOpened(_)));
        let place = opened.map_or(0, |opened| opened + 1);
        inputs.insert(place, (Part::Queue, Input::Leased { until: proof.until }));
    }

    fn perform(&mut self, part: Part, effect: Effect) {
        // Whether there is a session or not.
        if let Effect::Notify(event) = effect {
            return self.notify(event);
        }
        let Some((session, _)) = &self.session else { return };
        let session = Arc::clone(session);
        let lock = self.paths.of(part).clone();
        match effect {
            Effect::Create(attempt, path) => {
                let create = Operation::create(path, NodeKind::EphemeralSequential, &self.holder);
                let answer = session.commit(vec![create]);
                self.in_flight
                    .push(Box::pin(async move { (part, Input::Created(attempt, created(answer.await))) }));
            }
            Effect::CreateDelay(path) => {
                let create = Operation::create(path.clone(), NodeKind::Persistent, &self.holder);
                let answer = session.commit(vec![create]);
                self.in_flight.push(Box::pin(async move {
                    let result = answer.await.map(drop).map_err(|error| error.error);
                    (part, Input::DelayCreated(path, result))
                }));
            }
            Effect::CreateParents => {
                self.in_flight.push(Box::pin(async move {
                    (part, Input::ParentsCreated(latch::create_containers(&*session, lock.lock()).await))
                }));
            }
            Effect::List(look) => {
                let answer = session.children(lock.lock());
                self.in_flight.push(Box::pin(async move {
                    (part, Input::Listed(look, answer.await.map(Option::unwrap_or_default)))
                }));
            }
            Effect::Find(attempt, path) => {
                let answer = session.get(&path);
                self.in_flight
                    .push(Box::pin(async move { (part, Input::Found(attempt, path, answer.await)) }));
            }
            Effect::ReadFirst(name) => {
                let answer = lock.child(&name).map(|path| session.get(&path));
                self.in_flight.push(Box::pin(async move {
                    let node = match answer {
                        Some(answer) => answer.await.ok().flatten(),
                        None => None,
                    };
                    (part, Input::FirstRead(name, node))
                }));
            }
            Effect::WatchOwn(path) => {
                self.watches(part).own = path.and_then(|path| watch_node(&*session, path));
            }
            Effect::WatchBefore(path) => {
                self.watches(part).before = path.and_then(|path| watch_node(&*session, path));
            }
            Effect::WatchQueue(is_on) => {
                let watch = is_on.then(|| session.watch(lock.lock(), Arc::new(|_: &Path| false)));
                self.watches(part).queue = watch.and_then(ready);
            }
            Effect::Delete(path) => {
                let answer = session.commit(vec![Operation::delete(path.clone())]);
                self.in_flight.push(Box::pin(async move {
                    let result = match answer.await.map_err(|error| error.error) {
                        Ok(_) | Err(Error::NoNode(_)) => Ok(()),
                        Err(error) => Err(error),
                    };
                    (part, Input::Deleted(path, result))
                }));
            }
            Effect::GiveUpSession => self.lease.give_up(session.id()),
            Effect::Notify(_) => {}
        }
    }

    fn notify(&mut self, event: Event) {
        match &event {
            Event::Acquired { token, path, .. } => {
                self.held.send_replace(Some((path.clone(), *token)));
                if self.is_of_item {
                    debug!(%path, fencing.token = token.0, "lock acquired");
                } else {
                    info!(%path, fencing.token = token.0, "lock acquired");
                }
            }
            Event::Lost(reason) => {
                self.held.send_replace(None);
                warn!(event = "LOCK_LOST", lock = %self.lock.lock(), ?reason, "lock lost");
            }
            Event::Waiting { .. }
            | Event::NoAnswer
            | Event::LeaseRenewed { .. }
            | Event::Suspended { .. }
            | Event::Resumed { .. }
            | Event::RevocationRequested
            | Event::LeaderChanged(_)
            | Event::Draining { .. }
            | Event::Released => {}
        }
        let is_renewal = matches!(event, Event::LeaseRenewed { .. });
        if let Err(mpsc::error::TrySendError::Full(_)) = self.events.try_send(event)
            && !is_renewal
        {
            warn!(event = "APPLICATION_SLOW", lock = %self.lock.lock(), "the application does not read the events of its lock, and loses the lock");
            self.has_left = true;
            self.in_flight.push(Box::pin(std::future::ready((Part::Queue, Input::Left))));
        }
    }
}

/// An event of a watch; `None`: the watch has ended.
enum Watched {
    Own(Option<WatchEvent>),
    Before(Option<WatchEvent>),
    Queue(Option<WatchEvent>),
}

impl Watches {
    /// The next event of a watch. Never ends without a watch.
    async fn next(&mut self) -> Watched {
        let of_queue = async |watch: &mut Option<Watch>| match watch {
            Some(watch) => watch.recv().await,
            None => std::future::pending().await,
        };
        tokio::select! {
            biased;
            event = next_event(&mut self.own) => Watched::Own(event),
            event = next_event(&mut self.before) => Watched::Before(event),
            event = of_queue(&mut self.queue) => Watched::Queue(event),
        }
    }

    fn take(&mut self, watched: Watched) -> Option<Input> {
        match watched {
            Watched::Own(event) => {
                let (path, _) = self.own.as_ref()?;
                match event.map(|event| seen(path, event)) {
                    Some(Seen::There) => None,
                    Some(Seen::Revoked) => Some(Input::RevocationRequested),
                    Some(Seen::Gone) => self.own.take().map(|(path, _)| Input::Gone(path)),
                    None => {
                        self.own = None;
                        None
                    }
                }
            }
            Watched::Before(event) => {
                let (path, _) = self.before.as_ref()?;
                match event.map(|event| seen(path, event)) {
                    Some(Seen::Revoked | Seen::There) => None,
                    Some(Seen::Gone) => self.before.take().map(|(path, _)| Input::Gone(path)),
                    None => {
                        self.before = None;
                        None
                    }
                }
            }
            Watched::Queue(Some(_)) => Some(Input::QueueChanged),
            Watched::Queue(None) => {
                self.queue = None;
                None
            }
        }
    }
}

/// Waits until the nodes of the election change. Never ends without an election.
async fn election_changed(election: &mut Option<watch::Receiver<Observed>>) {
    if let Some(election) = election
        && election.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// Waits until the session is proven alive for longer.
async fn lease_changed(lease: &mut Lease) {
    if lease.proof.changed().await.is_err() {
        std::future::pending().await
    }
}

/// The next event of a watch; `None`: the watch has ended. Never ends without a watch.
async fn next_event(watch: &mut Option<(Path, Watch)>) -> Option<WatchEvent> {
    match watch {
        Some((_, watch)) => watch.recv().await,
        None => std::future::pending().await,
    }
}

fn watch_node(session: &dyn Session, path: Path) -> Option<(Path, Watch)> {
    let watch = ready(session.watch_node(&path))?;
    Some((path, watch))
}

/// The watch that was asked for. The future is ready at once; it fails only if the session is lost.
fn ready(watch: BoxFuture<'_, Result<Watch, Error>>) -> Option<Watch> {
    watch.now_or_never()?.ok()
}

/// The state of the watched node by an event.
enum Seen {
    There,
    Gone,
    Revoked,
}

fn seen(path: &Path, event: WatchEvent) -> Seen {
    let is_revoked = |data: &[u8]| data == REVOKE;
    match event {
        WatchEvent::Snapshot(nodes) => match nodes.iter().find(|node| node.path == *path) {
            Some(node) if is_revoked(&node.data) => Seen::Revoked,
            Some(_) => Seen::There,
            None => Seen::Gone,
        },
        WatchEvent::Changes(changes) => match changes.iter().rfind(|change| change.path() == path) {
            Some(NodeChange::Removed { .. }) => Seen::Gone,
            Some(NodeChange::Put { content: Some((data, _)), .. }) if is_revoked(data) => Seen::Revoked,
            Some(NodeChange::Put { .. }) | None => Seen::There,
        },
    }
}

fn created(answer: crate::tree::CommitResult) -> Result<(Path, Zxid), Error> {
    match answer.map_err(|error| error.error)?.first() {
        Some(OperationResult::Created { path, stat }) => Ok((path.clone(), stat.created)),
        other => Err(Error::OutcomeUnknown(format!("a creation resulted in {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::coordination::lock::contender::Wanted;

    #[tokio::test]
    async fn the_task_is_over_before_the_application_hears_of_the_release() {
        let lock = LockPaths::named(&Path::root(), "bill").unwrap();
        let claim = Claim::new(Wanted {
            lock: lock.clone(),
            mode: Mode::Mutex,
            wait_until: None,
            hold_max: None,
            queue_max: 1,
            looks_first: false,
            stands_again: false,
            permits: 0,
            lock_delay: Duration::ZERO,
            seed: uuid::Uuid::nil(),
        });
        let shared = Shared::without_session();
        let place = (lock, Mode::Mutex);
        let (task, handle, mut outlet) = Task::new(claim, place, false, Arc::from(*b"me"), None, &shared);
        handle.commands.send(Command::Release).await.unwrap();
        let mut heard = None;
        task.run(|| heard = Some((outlet.events.try_recv().is_ok(), outlet.end.borrow().clone()))).await;
        assert_eq!(heard, Some((false, None)));
        assert_eq!(outlet.events.recv().await, Some(Event::Released));
        assert_eq!(*outlet.end.borrow(), Some(End::Released));
    }
}
