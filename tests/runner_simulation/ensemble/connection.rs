//! Connections that break and are made again, and sessions that end.

use std::time::Duration;

use futures::FutureExt;
use sidekeeper::registry::{Error, SessionState};
use sidekeeper::tree::SessionId;

use super::queue::{Ask, unknown};
use super::{Ensemble, Inner, Watched};

/// The longest pause between two attempts to connect again, in milliseconds.
const RECONNECT_MAX: u64 = 600;
/// A server that crashes loses the contacts with clients of the last milliseconds, at most so many.
const FORGOTTEN_MAX: u64 = 500;

impl Ensemble {
    /// The servers hear nothing from a session any more; after its timeout they end it.
    pub(super) fn fall_silent(&self, id: SessionId) {
        // The servers may have lost the newest contacts.
        let forgotten = self.timeline.chance(|random| random.millis(0, FORGOTTEN_MAX));
        self.fall_silent_since(id, self.timeline.now().saturating_sub(forgotten));
    }

    /// The servers have heard nothing from a session since then.
    pub(super) fn fall_silent_since(&self, id: SessionId, since: Duration) {
        let over = {
            let mut inner = self.lock();
            let Some(member) = inner.sessions.get_mut(&id).filter(|member| !member.over) else { return };
            if member.silent_since.is_some() {
                return;
            }
            member.silent_since = Some(since);
            since + member.timeout
        };
        // The servers check sessions only at intervals.
        let late = self.timeline.chance(|random| random.millis(0, 300));
        let ensemble = self.clone();
        self.timeline.at(over + late, move |_| ensemble.expire_if_silent(id));
    }

    fn expire_if_silent(&self, id: SessionId) {
        let session = {
            let mut inner = self.lock();
            let Some(member) = inner.sessions.get_mut(&id).filter(|member| !member.over) else { return };
            let patience = member.timeout.saturating_sub(Duration::from_millis(1));
            let now = self.timeline.now();
            if member.silent_since.is_none_or(|since| now.saturating_sub(since) < patience) {
                return;
            }
            member.over = true;
            std::sync::Arc::clone(&member.session)
        };
        self.timeline.fault("session expired");
        self.timeline.log(format!("servers: session {id} has expired"));
        self.end(id, &*session);
        self.break_connection(id, "session over");
    }

    /// The servers end a session.
    pub(super) fn end(&self, id: SessionId, session: &dyn sidekeeper::registry::Session) {
        let _ = session.close().now_or_never();
        let mut inner = self.lock();
        if let Some(member) = inner.sessions.get_mut(&id) {
            member.over = true;
        }
        let network = inner.network;
        self.pump(&mut inner, network);
    }

    /// A client that hears nothing notices after two thirds of its timeout.
    pub(super) fn notice_later(&self, id: SessionId) {
        let (connection, patience) = {
            let inner = self.lock();
            let Some(member) = inner.sessions.get(&id) else { return };
            (member.connection, member.timeout * 2 / 3)
        };
        let ensemble = self.clone();
        self.timeline.after(patience, move |_| {
            let still = {
                let inner = ensemble.lock();
                let member = inner.sessions.get(&id);
                member.is_some_and(|member| member.connection == connection && inner.is_blocked(member))
            };
            if still {
                ensemble.break_connection(id, "silence noticed");
            }
        });
    }

    /// The connection of a session breaks. Requests in flight take effect or not; answers in flight are lost.
    pub fn break_connection(&self, id: SessionId, why: &'static str) {
        let takes_effect = self.timeline.chance(|random| random.once_in(2));
        if takes_effect {
            self.flush_up(id);
        }
        let failed: Vec<Box<dyn Ask>> = {
            let mut inner = self.lock();
            let Some(member) = inner.sessions.get_mut(&id) else { return };
            if member.state != SessionState::Connected {
                return;
            }
            self.timeline.fault(why);
            member.connection += 1;
            member.up.clear();
            member.down.clear();
            for watched in member.watches.values_mut() {
                watched.server = None;
            }
            let asked = std::mem::take(&mut member.asked);
            member.set_state(SessionState::Suspended);
            asked.into_values().collect()
        };
        self.timeline.log(format!("session {id}: {why}"));
        for mut asked in failed {
            asked.fail(unknown("the connection broke"));
        }
        self.fall_silent(id);
        let gives_up = {
            let inner = self.lock();
            inner.sessions.get(&id).map(|member| (member.connection, member.timeout * 4 / 3))
        };
        if let Some((connection, patience)) = gives_up {
            let ensemble = self.clone();
            self.timeline.after(patience, move |_| ensemble.lose_if_still(id, connection));
            self.reconnect_later(id, connection);
        }
    }

    /// All requests in flight take effect now.
    fn flush_up(&self, id: SessionId) {
        let now = self.timeline.now();
        {
            let mut inner = self.lock();
            let blocked = inner.sessions.get(&id).is_none_or(|member| inner.is_blocked(member));
            let Some(member) = inner.sessions.get_mut(&id).filter(|_| !blocked) else { return };
            for (arrival, _) in &mut member.up {
                *arrival = now;
            }
        }
        self.serve_up(id);
    }

    fn reconnect_later(&self, id: SessionId, connection: u64) {
        let pause = self.timeline.chance(|random| random.millis(10, RECONNECT_MAX));
        let ensemble = self.clone();
        self.timeline.after(pause, move |_| ensemble.reconnect(id, connection));
    }

    fn reconnect(&self, id: SessionId, connection: u64) {
        let mut guard = self.lock();
        let inner: &mut Inner = &mut guard;
        let Some(member) = inner.sessions.get_mut(&id) else { return };
        let waits = member.state == SessionState::Suspended && member.connection == connection;
        if !waits || !member.is_alive() {
            return;
        }
        let unreachable =
            inner.cut_off.contains(&member.process) || inner.partitioned.contains_key(&member.process);
        if unreachable || inner.paused.contains(&member.process) {
            drop(guard);
            return self.reconnect_later(id, connection);
        }
        if member.over {
            member.set_state(SessionState::Lost);
            member.watches.clear();
            return;
        }
        member.silent_since = None;
        member.connection += 1;
        member.greeted = self.timeline.now();
        for watched in member.watches.values_mut() {
            Self::watch_anew(&*member.session, watched);
        }
        member.set_state(SessionState::Connected);
        self.timeline.log(format!("session {id}: connected again"));
        let network = inner.network;
        self.pump(inner, network);
    }

    pub(super) fn watch_anew(session: &dyn sidekeeper::registry::Session, watched: &mut Watched) {
        let filter = std::sync::Arc::clone(&watched.wants_data);
        watched.server = session.watch(&watched.root, filter).now_or_never().and_then(Result::ok);
    }

    /// A client that could not connect for longer than its session can live gives it up.
    fn lose_if_still(&self, id: SessionId, connection: u64) {
        let mut inner = self.lock();
        if let Some(member) = inner.sessions.get_mut(&id)
            && member.connection == connection
            && member.state == SessionState::Suspended
            && member.is_alive()
        {
            member.set_state(SessionState::Lost);
            member.watches.clear();
        }
    }

    /// The client ends its session. Returns whether it has to send a request for that.
    pub(super) fn end_by_client(&self, id: SessionId) -> bool {
        if self.timeline.chance(|random| random.once_in(2)) {
            self.flush_up(id);
        }
        let (failed, connected) = {
            let mut inner = self.lock();
            let Some(member) = inner.sessions.get_mut(&id) else { return false };
            let connected = member.state == SessionState::Connected && !member.over;
            member.set_state(SessionState::Lost);
            member.watches.clear();
            (std::mem::take(&mut member.asked), connected)
        };
        self.fall_silent(id);
        for mut asked in failed.into_values() {
            asked.fail(Error::SessionLost);
        }
        connected
    }
}
