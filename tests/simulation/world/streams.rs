//! Streams that break, and applications that reattach: an application goes on with its executions, and gets no message
//! meanwhile.

use std::time::Duration;

use sidekeeper::coordination::job::contract::answer::Ticket;
use sidekeeper::coordination::job::contract::input::Input;
use sidekeeper::job::Generation;

use super::{Happened, World};

impl World {
    /// The application's stream breaks. It goes on, and stops by itself when the grace of its job is over.
    pub fn break_stream(&mut self, node: usize, grace: Duration) {
        self.break_stream_unseen(node, grace);
        self.nodes[node].results.push_back(Input::Detached);
    }

    /// As before, and the sidecar does not notice.
    pub fn break_stream_unseen(&mut self, node: usize, grace: Duration) {
        self.log.push(format!("{} the stream of {node} breaks", self.now));
        let until = self.now + jiff::SignedDuration::try_from(grace).unwrap();
        self.nodes[node].detached_until = Some(until);
        self.nodes[node].life.alone = true;
    }

    /// The application acknowledges the newest assignment.
    pub fn acknowledge(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        node.tickets += 1;
        let told = Input::Acknowledge(Ticket(node.tickets), Generation(node.generation));
        node.results.push_back(told);
    }

    /// Whether a node's application has no stream.
    pub fn is_detached(&self, node: usize) -> bool {
        self.nodes[node].detached_until.is_some()
    }

    /// The application has a stream again, unless it has given up, and names its open executions.
    pub fn reattach(&mut self, node: usize) {
        let away = self.nodes[node].detached_until.take().is_some();
        if self.nodes[node].ended.is_none() && (away || self.nodes[node].life.alone) {
            self.reattach_naming(node, |_| {});
        }
    }

    /// Applications that have been without a stream for as long as their job allows stop.
    pub(super) fn give_up_streams(&mut self) {
        for index in 0..self.nodes.len() {
            if self.nodes[index].detached_until.is_some_and(|until| self.now >= until) {
                self.stop_application(index);
            }
        }
    }

    /// Everything that an application executes ends without a report.
    pub(super) fn stop_application(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        (node.detached_until, node.dead, node.leaving) = (None, true, true);
        let open = std::mem::take(&mut node.executions);
        let unreported = std::mem::take(&mut node.life.results);
        self.interrupted.extend(unreported.into_iter().map(|done| (done.item, self.now)));
        for open in open.into_values() {
            self.interrupted.push((open.execute.item, self.now));
            self.happened.push(Happened::Ended(open.execute.item, index));
        }
    }
}
