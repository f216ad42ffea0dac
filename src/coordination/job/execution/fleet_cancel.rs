//! Has an operator cancelled executions of the whole fleet?
//!
//! The operator's request is a node that stays for some minutes. Each step compares it with the executions that are open and with the
//! retries that wait, so an instance that sees the node late obeys it all the same. It concerns only executions whose running nodes are
//! older than it: the registry's transactions order both, and no clock does. A later execution is not concerned, however long the node
//! stays. An execution without a running node cannot be compared, and goes on.

use crate::coordination::job::contract::event::CancelReason;
use crate::coordination::job::execution::Executions;
use crate::coordination::job::execution::checkpoint::Checkpoints;
use crate::coordination::job::execution::retry::Retries;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::job::{FencingToken, Item};
use crate::mutants::mutant;

impl Executions {
    /// Cancels the executions that operators have cancelled in the whole fleet, and drops their retries.
    pub(crate) fn obey_fleet_cancels(
        &mut self,
        cx: &Context,
        retries: &mut Retries,
        checkpoints: &mut Checkpoints,
        out: &mut Outbox,
    ) {
        if !cx.fleet.has_cancels() {
            return;
        }
        let is_cancelled = |item: Item, node: Option<FencingToken>| {
            let Some(before) = cx.fleet.cancelled_before(item) else { return false };
            match node {
                Some(node) => node < before || mutant!(FleetCancelHitsLater),
                None => mutant!(FleetCancelHitsUnrecorded),
            }
        };
        let concerned = self.running().filter(|(item, open)| {
            open.cancelled() != Some(CancelReason::Operator) && is_cancelled(*item, open.node)
        });
        let concerned: Vec<_> = concerned.map(|(item, _)| item).collect();
        for item in concerned {
            self.cancel_for_operator(cx, out, item);
        }
        let waiting = retries.failed_attempts().filter(|(item, _, node)| is_cancelled(*item, *node));
        let waiting: Vec<_> = waiting.map(|(item, ..)| item).collect();
        for item in waiting {
            retries.cancel_retry(checkpoints, out, item);
        }
    }
}
