//! What the log is told: of what applications are told, and of executions that are not what their schedule says. Decides
//! nothing.

use tracing::{debug, info, warn};

use crate::coordination::job::contract::effect::RetryNews;
use crate::coordination::job::contract::event::Event;
use crate::coordination::time::Now;
use crate::job::{Item, Problem};

/// Items of an assignment that are named in the log; their number is always.
const ITEMS_LOGGED: usize = 100;

/// What an application is told.
pub(super) fn told(now: Now, event: &Event) {
    match event {
        Event::AssignmentChanged { assignment, reason, leader, .. } => {
            let items: Vec<_> =
                assignment.items.iter().map(|assigned| assigned.item).take(ITEMS_LOGGED).collect();
            let (generation, count) = (assignment.generation.0, assignment.items.len());
            info!(generation, count, ?items, leader, ?reason, "assignment");
        }
        Event::SessionChanged { status, lease_end } => {
            let remaining_lease = lease_end.map(|end| end.saturating_sub(now.mono));
            info!(?status, ?remaining_lease, "session");
        }
        Event::LeaseRenewed { lease_end } => {
            debug!(remaining = ?lease_end.saturating_sub(now.mono), "lease");
        }
        Event::Waiting(what) => info!(?what, "not attached yet"),
        Event::Execute(_)
        | Event::Attached { .. }
        | Event::Cancel { .. }
        | Event::LeadershipChanged(_)
        | Event::JobChanged { .. }
        | Event::CallListener(_)
        | Event::Draining { .. } => {}
    }
}

/// What is wrong with a node.
pub(super) fn problem(problem: &Problem) {
    let (path, message) = problem.excerpt();
    warn!(%path, "{message}");
}

/// What becomes of an execution that has failed.
pub(super) fn retry(item: Item, news: RetryNews) {
    match news {
        RetryNews::Waits { attempt, of, pause } => {
            info!(%item, attempt, of, ?pause, "an execution failed and will be tried again");
        }
        RetryNews::Dropped { attempt, why } => {
            warn!(%item, attempt, why, "an execution that failed is not tried again");
        }
        RetryNews::GivenUp { attempts } => {
            warn!(%item, attempts, "an execution failed for the last time and is given up");
        }
    }
}
