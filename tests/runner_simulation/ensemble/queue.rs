//! The queues between a session and its servers: one for requests and one for answers and changes, both in order.

use std::time::Duration;

use futures::FutureExt;
use sidekeeper::registry::{CommitError, Error, Session, SessionState};
use sidekeeper::tree::SessionId;
use tokio::sync::oneshot;

use super::{Down, Ensemble, Inner, Member, Network, REQUEST_TIMEOUT, Up};

/// The servers that a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    /// Only the connected server.
    OneServer,
    /// The leader.
    Leader,
    /// The leader and a majority of the servers.
    Quorum,
}

/// A request without an answer so far.
pub(super) trait Ask: Send {
    /// The servers that the request needs.
    fn needs(&self) -> Needs;
    /// The request takes effect on the server.
    fn run(&mut self, server: &dyn Session);
    /// The answer reaches the client.
    fn answer(self: Box<Self>);
    /// The client stops waiting, with this error.
    fn fail(&mut self, error: Error);
}

/// The result of a request.
pub(super) trait Failing: Send + 'static {
    fn failed(error: Error) -> Self;
}

impl<T: Send + 'static> Failing for Result<T, Error> {
    fn failed(error: Error) -> Self {
        Err(error)
    }
}

impl<T: Send + 'static> Failing for Result<T, CommitError> {
    fn failed(error: Error) -> Self {
        Err(error.into())
    }
}

pub(super) struct Call<T, F> {
    needs: Needs,
    work: Option<F>,
    result: Option<T>,
    reply: Option<oneshot::Sender<T>>,
}

impl<T: Failing, F: FnOnce(&dyn Session) -> T + Send> Ask for Call<T, F> {
    fn needs(&self) -> Needs {
        self.needs
    }

    fn run(&mut self, server: &dyn Session) {
        self.result = self.work.take().map(|work| work(server));
    }

    fn answer(self: Box<Self>) {
        if let (Some(result), Some(reply)) = (self.result, self.reply) {
            // The caller may have dropped its future.
            let _ = reply.send(result);
        }
    }

    fn fail(&mut self, error: Error) {
        if let Some(reply) = self.reply.take() {
            let _ = reply.send(T::failed(error));
        }
    }
}

pub(super) fn unknown(why: &str) -> Error {
    Error::OutcomeUnknown(why.to_owned())
}

impl Inner {
    pub(super) fn is_blocked(&self, member: &Member) -> bool {
        self.cut_off.contains(&member.process) || self.partitioned.contains_key(&member.process)
    }
}

impl Ensemble {
    /// Sends a request; the future is its answer.
    pub(super) fn send<T: Failing>(
        &self,
        id: SessionId,
        needs: Needs,
        work: impl FnOnce(&dyn Session) -> T + Send + 'static,
    ) -> futures::future::BoxFuture<'static, T> {
        let mut inner = self.lock();
        let network = inner.network;
        inner.last += 1;
        let number = inner.last;
        let Some(member) = inner.sessions.get_mut(&id) else {
            return Box::pin(futures::future::ready(T::failed(Error::SessionLost)));
        };
        let refusal = match member.state {
            SessionState::Connected => None,
            SessionState::Suspended => Some(Error::Suspended),
            SessionState::Lost => Some(Error::SessionLost),
        };
        if let Some(refusal) = refusal {
            return Box::pin(futures::future::ready(T::failed(refusal)));
        }
        let (reply, answer) = oneshot::channel();
        let call = Call { needs, work: Some(work), result: None, reply: Some(reply) };
        member.asked.insert(number, Box::new(call));
        self.send_up(id, member, network, Up::Request(number));
        drop(inner);
        let (late, broken) = (self.clone(), self.clone());
        self.timeline.after(REQUEST_TIMEOUT, move |_| late.give_up(id, number));
        if self.timeline.chance(|random| random.once_in(network.breaks)) {
            let when = self.timeline.chance(|random| random.micros(0, 4 * network.hop_max));
            self.timeline.after(when, move |_| broken.break_connection(id, "connection broken"));
        }
        Box::pin(answer.map(|answer| answer.unwrap_or_else(|_| T::failed(unknown("the client has ended")))))
    }

    /// The client stops waiting for a request.
    fn give_up(&self, id: SessionId, number: u64) {
        // The request may still take effect.
        let mut inner = self.lock();
        let member = inner.sessions.get_mut(&id);
        if let Some(asked) = member.and_then(|member| member.asked.get_mut(&number)) {
            asked.fail(unknown("no answer in time"));
        }
    }

    pub(super) fn send_up(&self, id: SessionId, member: &mut Member, network: Network, up: Up) {
        let arrival = self.timeline.now() + self.hop(network);
        let arrival = member.up.back().map_or(arrival, |(last, _)| arrival.max(*last));
        member.up.push_back((arrival, up));
        let ensemble = self.clone();
        self.timeline.at(arrival, move |_| ensemble.serve_up(id));
    }

    /// The requests that have reached the servers take effect.
    pub(super) fn serve_up(&self, id: SessionId) {
        loop {
            let mut guard = self.lock();
            let inner = &mut *guard;
            let network = inner.network;
            let Some(member) = inner.sessions.get_mut(&id) else { return };
            let due = member.up.front().is_some_and(|(arrival, _)| *arrival <= self.timeline.now());
            if !due || member.over || inner.cut_off.contains(&member.process) {
                return;
            }
            let Some((_, up)) = member.up.pop_front() else { return };
            let partitioned = inner.partitioned.get(&member.process);
            match up {
                Up::Request(number) => {
                    if let Some(asked) = member.asked.get_mut(&number) {
                        match (partitioned, asked.needs()) {
                            (None, _) => asked.run(&*member.session),
                            (Some(partitioned), Needs::OneServer) => asked.run(partitioned),
                            (Some(partitioned), Needs::Leader) if partitioned.leads => asked.run(partitioned),
                            // The request never takes effect.
                            (Some(_), Needs::Leader | Needs::Quorum) => continue,
                        }
                    }
                }
                // The client sends the watch again after the next connection.
                Up::Watch(_) if partitioned.is_some() => continue,
                Up::Watch(number) => {
                    if let Some(watched) = member.watches.get_mut(&number) {
                        Self::watch_anew(&*member.session, watched);
                    }
                }
            }
            // Changes are sent before the answer.
            self.pump(inner, network);
            if let (Up::Request(number), Some(member)) = (up, inner.sessions.get_mut(&id)) {
                let arrival = self.enqueue(member, self.hop(network), Down::Answer(number));
                let ensemble = self.clone();
                self.timeline.at(arrival, move |_| ensemble.serve_down(id));
            }
        }
    }

    /// Puts a message of the servers into the queue; returns the time of its arrival.
    fn enqueue(&self, member: &mut Member, hop: Duration, down: Down) -> Duration {
        let arrival = self.timeline.now() + hop;
        let arrival = member.down.back().map_or(arrival, |(last, _)| arrival.max(*last));
        member.down.push_back((arrival, down));
        arrival
    }

    /// Sends the new changes to all watches.
    pub(super) fn pump(&self, inner: &mut Inner, network: Network) {
        let Inner { sessions, partitioned, .. } = inner;
        // A partitioned server gets no changes.
        for (id, member) in
            sessions.iter_mut().filter(|(_, member)| !partitioned.contains_key(&member.process))
        {
            let mut news = Vec::new();
            for (number, watched) in &mut member.watches {
                while let Some(Ok(event)) = watched.server.as_mut().map(sidekeeper::registry::Watch::try_recv)
                {
                    news.push(Down::News(*number, event));
                }
            }
            for news in news {
                let late = self.timeline.chance(|random| random.once_in(network.late_changes));
                let hop = if late {
                    self.timeline.fault("late changes");
                    self.timeline.chance(|random| random.millis(1, 1_000))
                } else {
                    self.hop(network)
                };
                let arrival = self.enqueue(member, hop, news);
                let (ensemble, id) = (self.clone(), *id);
                self.timeline.at(arrival, move |_| ensemble.serve_down(id));
            }
        }
    }

    /// The answers that have arrived reach the client.
    pub(super) fn serve_down(&self, id: SessionId) {
        loop {
            let mut guard = self.lock();
            let inner = &mut *guard;
            let Some(member) = inner.sessions.get_mut(&id) else { return };
            let due = member.down.front().is_some_and(|(arrival, _)| *arrival <= self.timeline.now());
            if !due || inner.cut_off.contains(&member.process) {
                return;
            }
            match member.down.pop_front() {
                Some((_, Down::Answer(number))) => {
                    let asked = member.asked.remove(&number);
                    drop(guard);
                    if let Some(asked) = asked {
                        asked.answer();
                    }
                }
                Some((_, Down::News(number, event))) => {
                    if let Some(watched) = member.watches.get(&number) {
                        match event {
                            sidekeeper::tree::WatchEvent::Snapshot(nodes) => watched.client.snapshot(nodes),
                            sidekeeper::tree::WatchEvent::Changes(changes) => watched.client.changes(changes),
                        }
                    }
                }
                None => return,
            }
        }
    }
}
