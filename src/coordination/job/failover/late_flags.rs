//! Has a crash been made good already? A Java survivor looks at what a dead instance left a while after it has gone, and
//! flags items again that were taken over, executed and completed meanwhile (H11).
//!
//! An instance that crashes leaves: an item that its heir has completed needs no other heir as long as no instance has
//! left since. An instance that leaves in the middle of an execution flags the item in the same transaction, and the flag
//! may be seen before the departure is. So a flag is an echo only after a while. Decides which flags are such echoes;
//! [`crate::coordination::job::failover::takeover`] removes them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::job::Item;
use crate::mutants::mutant;

use crate::coordination::job::picture::job_view::JobView;

/// How late an echo may come: a Java survivor that is busy with a full garbage collection, or with its other jobs.
const LATE_MAX: Duration = Duration::from_secs(30);

/// An item whose takeover was completed.
#[derive(Debug)]
struct MadeGood {
    /// [`JobView::departures`] at that time.
    departures: u64,
    /// Until when a flag may be an echo; monotonic.
    until: Duration,
}

/// What was taken over and completed a short time ago.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Echoes {
    taken: BTreeSet<Item>,
    made_good: BTreeMap<Item, MadeGood>,
}

impl Echoes {
    /// Compares what was taken with what is.
    pub(in crate::coordination) fn look(&mut self, view: &JobView, now: Duration) {
        self.made_good.retain(|_, made_good| now < made_good.until);
        let released: Vec<_> = self.taken.difference(view.taken()).copied().collect();
        for item in released {
            self.taken.remove(&item);
            // Whoever gives an item up flags it in the same transaction.
            if !view.failover_items().contains(&item) {
                let until = now.saturating_add(LATE_MAX);
                self.made_good.insert(item, MadeGood { departures: view.departures(), until });
            }
        }
        self.taken.extend(view.taken().iter().copied());
        self.made_good.retain(|item, _| !self.taken.contains(item));
    }

    /// Whether a flag of this item may be an echo: it is one if this is still so when all parts of the transaction that has
    /// raised it have been seen.
    pub(in crate::coordination) fn may_be_echo(&self, view: &JobView, item: Item) -> bool {
        let made_good = self.made_good.get(&item).filter(|_| !mutant!(EchoObeyed));
        made_good.is_some_and(|made_good| made_good.departures == view.departures())
    }
}
