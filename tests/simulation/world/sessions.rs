//! Sessions that are lost, suspended, and proven alive.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use sidekeeper::coordination::job::contract::input::Input;
use sidekeeper::elasticjob::path::Barrier;
use sidekeeper::registry::{Registry, Session};

use super::{Ask, World};

impl World {
    /// The node learns that its session is lost, and then the server ends it: in the order that a lease guarantees
    /// (P4). Then the node opens another one.
    pub fn expire(&mut self, node: usize) {
        self.lose(node);
        self.registry.expire(self.nodes[node].session.id());
        self.open_another(node);
    }

    /// As [`Self::expire`], but the server does not end the session as long as the caller keeps it: its ephemeral nodes
    /// are still there when the node is back.
    #[must_use]
    pub fn give_up(&mut self, node: usize) -> Arc<dyn Session> {
        self.lose(node);
        let lost = Arc::clone(&self.nodes[node].session);
        self.open_another(node);
        lost
    }

    fn lose(&mut self, node: usize) {
        for barrier in [Barrier::Started, Barrier::Completed] {
            self.leave_latch(barrier, node);
        }
        self.nodes[node].line.clear();
        let stays =
            |input: &Input| matches!(input, Input::Detached | Input::Reattached(_) | Input::Drain { .. });
        self.nodes[node].results.retain(stays);
        self.nodes[node].watch = None;
        self.nodes[node].fleet = None;
        if self.is_detached(node) {
            // Its client stops when the lease is not renewed.
            self.stop_application(node);
        }
        self.nodes[node].results.push_front(Input::SessionLost);
        self.expiring = true;
        self.step(node);
        self.expiring = false;
    }

    fn open_another(&mut self, node: usize) {
        let session = self.registry.open().now_or_never().unwrap().unwrap();
        let node = &mut self.nodes[node];
        node.line.clear();
        node.results.push_back(Input::SessionOpened(session.id()));
        node.session = session;
        node.line.push_back(Ask::Watch);
        node.suspended = false;
    }

    /// The registry has answered what a node sent now: its session may be acted on for so long.
    pub fn prove(&mut self, node: usize, usable: Duration) {
        let until = self.time().mono + usable;
        self.nodes[node].results.push_front(Input::Leased { until });
    }

    /// The requests of a node take effect, and it does not look.
    pub fn take_effect(&mut self, node: usize) {
        while !self.nodes[node].line.is_empty() {
            self.perform(node);
        }
    }

    /// The first request of a node takes effect.
    pub fn take_first_effect(&mut self, node: usize) {
        self.perform(node);
    }

    /// Time passes, and no node wakes.
    pub fn wait(&mut self, millis: i64) {
        self.now += jiff::SignedDuration::from_millis(millis);
    }

    /// The node wakes, and looks.
    pub fn look(&mut self, node: usize) {
        self.step(node);
    }

    /// The node wakes, and looks before the latest changes reach it.
    pub fn look_before_news(&mut self, node: usize) {
        let late = (self.nodes[node].watch.take(), self.nodes[node].fleet.take());
        self.step(node);
        (self.nodes[node].watch, self.nodes[node].fleet) = late;
    }

    /// After how long the node wakes by itself, if nothing happens.
    pub fn wakes_in(&self, node: usize) -> Option<Duration> {
        let now = self.time();
        self.nodes[node].core.next_wakeup().mono.map(|at| at.saturating_sub(now.mono))
    }

    /// The connection breaks, or comes back; the session lives.
    pub fn toggle_suspended(&mut self, node: usize) {
        // While it is suspended it can execute nothing.
        let owned = std::mem::take(&mut self.nodes[node].items);
        self.note_owned(node, if self.nodes[node].suspended { &owned } else { &[] });
        self.nodes[node].items = owned;
        let node = &mut self.nodes[node];
        node.suspended = !node.suspended;
        let input = if node.suspended { Input::SessionSuspended } else { Input::SessionResumed };
        if node.suspended {
            self.registry.suspend(node.session.id());
        } else {
            self.registry.resume(node.session.id());
        }
        node.results.push_back(input);
    }

    /// All connections come back.
    pub fn resume_all(&mut self) {
        for node in self.alive() {
            if self.nodes[node].suspended {
                self.toggle_suspended(node);
            }
        }
    }
}
