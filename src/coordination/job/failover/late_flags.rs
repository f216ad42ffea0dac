//! Does a flag ask for a takeover that was completed already? A Java survivor looks at the nodes of a dead instance a
//! while after the crash, and flags items again that were taken over, executed and completed in the meantime (H11).
//!
//! A crash makes an instance leave. So an item whose takeover was completed needs no further takeover as long as no
//! instance has left since. An instance that leaves in the middle of an execution flags the item in the same
//! transaction, and this instance may see the flag before it sees the departure. So a flag counts as late only after a
//! while. Without a Java instance no flag is late: a sidecar that stays flags an item whose lock was lost. Decides which
//! flags are late; [`crate::coordination::job::failover::takeover`] removes them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::job::Item;
use crate::mutants::mutant;

use crate::coordination::job::picture::job_view::JobView;

/// How late a flag may come: the Java survivor may be busy with a full garbage collection, or with its other jobs.
const LATE_MAX: Duration = Duration::from_secs(30);

/// An item whose takeover was completed.
#[derive(Debug)]
struct CompletedTakeover {
    /// [`JobView::departures`] at that time.
    departures: u64,
    /// Until when a flag may be late; monotonic.
    until: Duration,
}

/// The items whose takeover was completed a short time ago.
#[derive(Debug, Default)]
pub(crate) struct LateFlags {
    taken: BTreeSet<Item>,
    completed_takeovers: BTreeMap<Item, CompletedTakeover>,
}

impl LateFlags {
    /// Compares the takeovers with the view.
    pub(crate) fn look(&mut self, view: &JobView, now: Duration) {
        self.completed_takeovers.retain(|_, completed_takeovers| now < completed_takeovers.until);
        let released: Vec<_> = self.taken.difference(view.taken()).copied().collect();
        for item in released {
            self.taken.remove(&item);
            // An instance that gives an item back flags it in the same transaction.
            if !view.failover_items().contains(&item) {
                let until = now.saturating_add(LATE_MAX);
                self.completed_takeovers
                    .insert(item, CompletedTakeover { departures: view.departures(), until });
            }
        }
        self.taken.extend(view.taken().iter().copied());
        self.completed_takeovers.retain(|item, _| !self.taken.contains(item));
    }

    /// Whether a flag of this item may be late. It is late if this is still true when all changes of the flag's
    /// transaction have been seen.
    pub(crate) fn may_be_late(&self, view: &JobView, item: Item) -> bool {
        if !view.has_java_instances() {
            return false;
        }
        let completed_takeovers = self.completed_takeovers.get(&item).filter(|_| !mutant!(LateFlagTaken));
        completed_takeovers
            .is_some_and(|completed_takeovers| completed_takeovers.departures == view.departures())
    }
}
