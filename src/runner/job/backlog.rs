//! The task's end of the application's stream, and the events that wait until the application reads them. Decides only
//! whether an application is slow.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::runner::clock::Clock;

use super::outlet::{Outlet, StreamEnd, TracedEvent};

/// Events between the task and the transport. Few: an event that the transport does not take waits in the backlog, which
/// knows how old it is.
const STREAM: usize = 64;
/// Events that may wait besides one execution for each item: assignments, sessions, cancels.
const SPARE: usize = 1024;

/// The events of one application, in order, and its stream if there is one.
pub(super) struct Backlog {
    clock: Clock,
    stream: Option<mpsc::Sender<Box<TracedEvent>>>,
    waiting: VecDeque<Box<TracedEvent>>,
    /// Since when the stream has had no room; monotonic. `None`: no event waits.
    blocked_since: Option<Duration>,
    end: Arc<OnceLock<StreamEnd>>,
    silent_for: Arc<OnceLock<Duration>>,
}

impl Backlog {
    /// A backlog, and the outlet of its first stream.
    pub(super) fn new(clock: Clock) -> (Self, Outlet) {
        let mut backlog = Self {
            clock,
            stream: None,
            waiting: VecDeque::new(),
            blocked_since: None,
            end: Arc::default(),
            silent_for: Arc::default(),
        };
        let outlet = backlog.open();
        (backlog, outlet)
    }

    fn open(&mut self) -> Outlet {
        let (stream, events) = mpsc::channel(STREAM);
        self.stream = Some(stream);
        (self.end, self.silent_for) = Default::default();
        Outlet { events, end: Arc::clone(&self.end), silent_for: Arc::clone(&self.silent_for) }
    }

    /// Whether the application has a stream.
    pub(super) fn is_open(&self) -> bool {
        self.stream.is_some()
    }

    /// Waits until the application's stream breaks. Never ends without a stream.
    pub(super) async fn broken(&self) {
        match &self.stream {
            Some(stream) => stream.closed().await,
            None => std::future::pending().await,
        }
    }

    /// Waits until the stream has room for an event that waits. Never ends if no event waits; `None`: the stream is broken.
    pub(super) async fn room(&self) -> Option<mpsc::OwnedPermit<Box<TracedEvent>>> {
        match self.stream.clone().filter(|_| !self.waiting.is_empty()) {
            Some(stream) => stream.reserve_owned().await.ok(),
            None => std::future::pending().await,
        }
    }

    /// Sends the next event into the room for it, and as many more as possible.
    pub(super) fn fill(&mut self, room: mpsc::OwnedPermit<Box<TracedEvent>>) {
        self.blocked_since = None;
        if let Some(event) = self.waiting.pop_front() {
            room.send(event);
        }
        self.flush();
    }

    /// Sends an event behind the others. Without a stream it is dropped.
    pub(super) fn push(&mut self, event: TracedEvent) {
        if self.stream.is_some() {
            self.waiting.push_back(Box::new(event));
            self.flush();
        }
    }

    /// Sends the events that the stream has room for.
    fn flush(&mut self) {
        let Some(stream) = &self.stream else { return };
        while !self.waiting.is_empty() {
            let Ok(room) = stream.try_reserve() else { break };
            if let Some(event) = self.waiting.pop_front() {
                room.send(event);
            }
        }
        if self.waiting.is_empty() {
            self.blocked_since = None;
        } else if self.blocked_since.is_none() {
            self.blocked_since = Some(self.clock.now().mono);
        }
    }

    /// When the application becomes slow if it reads nothing until then; monotonic.
    pub(super) fn slow_at(&self, limit: Duration) -> Option<Duration> {
        self.blocked_since.map(|since| since.saturating_add(limit))
    }

    /// How many events wait, if the application has read nothing for the limit, or if too many wait. `items`: how many items
    /// the job has.
    pub(super) fn slow(&self, now: Duration, limit: Duration, items: usize) -> Option<usize> {
        let waiting = self.waiting.len();
        let is_slow = self.slow_at(limit).is_some_and(|at| now >= at);
        (is_slow || waiting > items.saturating_add(SPARE)).then_some(waiting)
    }

    /// For how long nothing had come from the application when its stream broke.
    pub(super) fn silent_for(&self) -> Duration {
        self.silent_for.get().copied().unwrap_or_default()
    }

    /// The stream is broken: drops it, and the events for it.
    pub(super) fn detach(&mut self) {
        self.stream = None;
        self.waiting.clear();
        self.blocked_since = None;
    }

    /// Sets why the stream ends, unless a reason is set already.
    pub(super) fn set_end(&self, end: StreamEnd) {
        let _ = self.end.set(end);
    }

    /// Ends the stream, and drops the events for it.
    pub(super) fn close(&mut self, end: StreamEnd) {
        self.set_end(end);
        self.stream = None;
        self.waiting.clear();
        self.blocked_since = None;
    }

    /// Ends the stream, and opens another one.
    pub(super) fn replace(&mut self) -> Outlet {
        self.close(StreamEnd::Replaced);
        self.open()
    }

    /// Ends the stream after the events that it has room for, which the application may still read. The task does not wait
    /// for an application that does not read: the other events are dropped.
    pub(super) fn finish(&mut self) {
        self.flush();
        self.stream = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordination::job::contract::event::Event;
    use crate::job::FencingToken;

    const LIMIT: Duration = Duration::from_secs(10);

    fn event(is_leader: bool) -> TracedEvent {
        TracedEvent { event: Event::LeadershipChanged(is_leader.then_some(FencingToken(7))), execution: None }
    }

    /// A backlog in which one event has no room in the stream.
    fn blocked() -> (Backlog, Outlet) {
        let (mut backlog, outlet) = Backlog::new(Clock::start());
        for _ in 0..STREAM {
            backlog.push(event(false));
        }
        assert_eq!(backlog.slow_at(LIMIT), None);
        backlog.push(event(true));
        (backlog, outlet)
    }

    #[tokio::test]
    async fn events_wait_for_room_and_keep_their_order() {
        let (mut backlog, mut outlet) = blocked();
        assert!(futures::poll!(std::pin::pin!(backlog.room())).is_pending());
        for _ in 0..STREAM {
            assert!(matches!(outlet.events.recv().await.unwrap().event, Event::LeadershipChanged(None)));
        }
        let room = backlog.room().await.unwrap();
        backlog.fill(room);
        assert!(matches!(outlet.events.recv().await.unwrap().event, Event::LeadershipChanged(Some(_))));
        assert_eq!(backlog.slow_at(LIMIT), None);
    }

    #[tokio::test]
    async fn an_application_is_slow_if_it_reads_nothing_until_the_limit() {
        let (backlog, _outlet) = blocked();
        let at = backlog.slow_at(LIMIT).unwrap();
        assert_eq!(backlog.slow(at - Duration::from_nanos(1), LIMIT, 0), None);
        assert_eq!(backlog.slow(at, LIMIT, 0), Some(1));
    }

    #[tokio::test]
    async fn an_application_whose_stream_is_broken_is_not_slow() {
        let (mut backlog, outlet) = blocked();
        drop(outlet);
        backlog.broken().await;
        backlog.detach();
        assert_eq!(backlog.slow_at(LIMIT), None);
    }

    #[tokio::test]
    async fn an_application_is_slow_if_too_many_events_wait() {
        let (mut backlog, _outlet) = blocked();
        for _ in 0..SPARE {
            backlog.push(event(true));
        }
        assert_eq!(backlog.slow(Duration::ZERO, LIMIT, 0), Some(SPARE + 1));
        assert_eq!(backlog.slow(Duration::ZERO, LIMIT, 1), None);
    }
}
