//! Sessions: opened, proven alive, given up in time, ended by the leader that has not heard of them for too long.

use std::time::Duration;

use super::MILLISECOND;
use super::client::{Ask, Link};
use super::machine::ServerSession;
use super::world::{Event, World};

impl World {
    /// Looks for a server; the session may be over by now.
    pub(super) fn reconnect(&mut self, m: usize, epoch: u32) {
        let (now, cut_off) = (self.now, self.machines[m].cut_off_until);
        let stopped = self.machines[m].stopped_until;
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        let client = &mut sidecar.client;
        if client.epoch != epoch || client.link != Link::Down {
            return;
        }
        let free = cut_off.max(self.ensemble.leaderless_until).max(stopped);
        if free > now {
            let later = free + 1 + self.network.below(100 * MILLISECOND);
            return self.at(later, Event::Reconnect(m, epoch));
        }
        let Some(session) = client.session else {
            return self.open_session(m);
        };
        if !self.sessions[session].alive {
            return self.session_lost(m);
        }
        // A server that is behind the client's last state refuses it.
        let seen = client.seen;
        let first = self.network.below(self.ensemble.servers() as u64) as usize;
        let servers = (0..self.ensemble.servers()).map(|place| (first + place) % self.ensemble.servers());
        let Some(server) = servers.into_iter().find(|server| self.ensemble.applied(*server, now) >= seen)
        else {
            return self.at(now + 20 * MILLISECOND, Event::Reconnect(m, epoch));
        };
        client.link = Link::Up(server);
        client.changed = true;
        self.sessions[session].heard = now;
        self.sessions[session].connections += 1;
        self.note(m, || format!("connected to server {server}"));
        self.watch(m);
        self.resume_latches(m);
        self.watch_for_guests(m);
        self.prove(m, epoch);
        self.wake(m, 0);
        self.wake_guests(m);
    }

    /// A new session.
    pub(super) fn open_session(&mut self, m: usize) {
        let server = self.network.below(self.ensemble.servers() as u64) as usize;
        let handle = self.ensemble.open();
        let slack = self.network.below(self.plan.session_timeout / 4);
        let connections = 0;
        self.sessions.push(ServerSession { handle, alive: true, heard: self.now, connections, slack });
        let session = self.sessions.len() - 1;
        self.serve(m, session, server);
    }

    /// A sidecar has a session, new or its former process's.
    pub(super) fn serve(&mut self, m: usize, session: usize, server: usize) {
        let until = self.machines[m].mono(self.now) + self.usable();
        self.sessions[session].heard = self.now;
        self.sessions[session].connections += 1;
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        let client = &mut sidecar.client;
        client.epoch += 1;
        (client.session, client.link, client.until) = (Some(session), Link::Up(server), until);
        (client.seen, client.changed) = (0, true);
        client.latches.clear();
        let epoch = client.epoch;
        let (id, timeout) = (self.sessions[session].handle.id(), self.plan.session_timeout);
        self.note(m, || format!("session {id} with server {server}"));
        let slack = self.sessions[session].slack;
        self.at(self.now + timeout + slack, Event::Expire(session));
        self.at(self.now + timeout / 10, Event::Prove(m, epoch));
        self.at(self.machines[m].when_mono(until), Event::LeaseOver(m, session));
        self.watch(m);
        self.wake(m, 0);
        self.wake_guests(m);
    }

    /// The holder of the session learns that it is over, and opens another one.
    pub(super) fn session_lost(&mut self, m: usize) {
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        let client = &mut sidecar.client;
        if client.session.take().is_none() {
            return;
        }
        client.link = Link::Down;
        client.epoch += 1;
        client.line.clear();
        client.answers.clear();
        client.held.clear();
        client.latches.clear();
        (client.watching, client.opening, client.deliver_at) = (false, false, None);
        client.changed = true;
        let epoch = client.epoch;
        self.note(m, || "the session is over".to_owned());
        self.wake(m, 0);
        self.wake_guests(m);
        let soon = self.now + self.network.below(100 * MILLISECOND) + 1;
        self.at(soon, Event::Reconnect(m, epoch));
    }

    /// The session is given up: it is ended at the server, if that can be reached, and another one is opened.
    pub(super) fn give_up_session(&mut self, m: usize) {
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        let client = &mut sidecar.client;
        let (link, session) = (client.link, client.session);
        if let (Link::Up(_), Some(session)) = (link, session)
            && self.machines[m].cut_off_until <= self.now
        {
            let later = self.now + self.travel();
            self.at(later, Event::EndSession(session));
        }
        self.session_lost(m);
    }

    /// A request that proves the session alive is sent, and the next one is planned.
    pub(super) fn prove(&mut self, m: usize, epoch: u32) {
        let (now, interval) = (self.now, self.plan.session_timeout / 10);
        let stopped = self.machines[m].is_stopped(now);
        let mono = self.machines[m].mono(now);
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        if sidecar.client.epoch != epoch || sidecar.client.session.is_none() {
            return;
        }
        if !stopped {
            self.send(m, Ask::Prove(mono));
        }
        self.at(now + interval, Event::Prove(m, epoch));
    }

    /// The registry has answered a request of that time.
    pub(super) fn proven(&mut self, m: usize, sent: Duration) {
        let usable = self.usable();
        let now = self.machines[m].mono(self.now);
        let stopped = self.machines[m].is_stopped(self.now);
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        // A process that is stopped reads no answer; and an answer that is read too late proves nothing any more.
        if !stopped && now < sidecar.client.until {
            sidecar.client.until = sidecar.client.until.max(sent + usable);
            self.wake_guests(m);
        }
    }

    /// The keeper of the session looks whether it is still proven.
    pub(super) fn lease_over(&mut self, m: usize, session: usize) {
        let (now, stopped) = (self.machines[m].mono(self.now), self.machines[m].stopped_until);
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        if sidecar.client.session != Some(session) {
            return;
        }
        let until = sidecar.client.until;
        if stopped > self.now {
            self.at(stopped + 1, Event::LeaseOver(m, session));
        } else if now >= until {
            self.note(m, || "the session cannot be proven alive in time".to_owned());
            self.give_up_session(m);
        } else {
            self.at(self.machines[m].when_mono(until), Event::LeaseOver(m, session));
        }
    }

    /// For how long after a proof a session may be acted on, as `runner/session/lease.rs` has it.
    pub(super) fn usable(&self) -> Duration {
        let timeout = self.plan.session_timeout;
        let margin = (timeout / 5).max(super::SECOND).min(timeout / 2);
        Duration::from_micros(timeout - margin)
    }

    /// The leader ends a session that it has not heard from for too long.
    pub(super) fn expire(&mut self, session: usize) {
        let ServerSession { alive, heard, slack, .. } = self.sessions[session];
        let end = (heard + self.plan.session_timeout + slack).max(self.ensemble.leaderless_until);
        if !alive {
            return;
        }
        if self.now < end {
            return self.at(end, Event::Expire(session));
        }
        self.tell(|| format!("session {session} expires"));
        self.note_stock();
        self.end_session(session);
    }

    pub(super) fn end_session(&mut self, session: usize) {
        if std::mem::replace(&mut self.sessions[session].alive, false) {
            let id = self.sessions[session].handle.id();
            let (ensemble, network) = (&mut self.ensemble, &mut self.network);
            ensemble.expire(id, self.now, |bound| network.below(bound));
            self.end_item_locks(session);
            self.tell_watches();
        }
    }
}
