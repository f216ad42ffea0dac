//! The agenda of each item: planned executions, missed fires, and failovers that come before both.
//!
//! Higher rooms plan executions, record missed fires and await failovers. This room only keeps the result.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::plan::Planned;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::limits::HEAD_START;
use crate::coordination::job::frame::outbox::Outbox;
use crate::job::Item;

/// How long the owner of a flagged item waits for a failover. After that no instance seems able to take the item over,
/// and the owner executes it.
const FLAG_FIRST: Duration = Duration::from_secs(10);

/// The missed fires of an item, as far as they are known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Missed {
    newest: Timestamp,
    /// Whether the item's flag has been seen.
    flagged: bool,
}

impl Missed {
    pub(crate) fn newest(&self) -> Timestamp {
        self.newest
    }

    pub(crate) fn is_flagged(&self) -> bool {
        self.flagged
    }

    /// Compares it with the item's flag. Returns true if the missed fires are re-run: a flag that was seen and was
    /// deleted means that an execution has re-run them. `is_starting`: an execution is being started, and its start
    /// deletes the flag.
    pub(crate) fn follow_flag(&mut self, flag: bool, is_starting: bool) -> bool {
        let is_over = self.flagged && !flag;
        self.flagged = flag && !is_starting;
        is_over
    }
}

#[derive(Debug, Default)]
pub(crate) struct Agenda {
    planned: BTreeMap<Item, Planned>,
    missed: BTreeMap<Item, Missed>,
    awaited: Awaited,
}

impl Agenda {
    /// The instance owns nothing any more: other instances execute the plans and re-run the missed fires.
    pub(crate) fn forget(&mut self) {
        self.planned.clear();
        self.missed.clear();
    }

    pub(crate) fn awaited(&self) -> &Awaited {
        &self.awaited
    }

    pub(crate) fn awaited_mut(&mut self) -> &mut Awaited {
        &mut self.awaited
    }

    /// Plans an execution. Returns the execution that was planned before.
    pub(crate) fn plan(&mut self, item: Item, planned: Planned) -> Option<Planned> {
        self.planned.insert(item, planned)
    }

    pub(crate) fn plan_if_free(&mut self, item: Item, planned: Planned) {
        self.planned.entry(item).or_insert(planned);
    }

    /// Withdraws an execution.
    pub(crate) fn withdraw(&mut self, item: Item) -> Option<Planned> {
        self.planned.remove(&item)
    }

    pub(crate) fn withdraw_all(&mut self) -> BTreeMap<Item, Planned> {
        std::mem::take(&mut self.planned)
    }

    pub(crate) fn take_first(&mut self) -> Option<(Item, Planned)> {
        self.planned.pop_first()
    }

    /// Takes the first execution for which `is_it` is true.
    pub(crate) fn take_first_that(&mut self, is_it: impl Fn(Planned) -> bool) -> Option<(Item, Planned)> {
        let (item, _) = self.planned.iter().find(|(_, planned)| is_it(**planned))?;
        self.planned.remove_entry(&item.clone())
    }

    /// Plans these executions again.
    pub(crate) fn put_back(&mut self, planned: Vec<(Item, Planned)>) {
        self.planned.extend(planned);
    }

    pub(crate) fn has_no_plans(&self) -> bool {
        self.planned.is_empty()
    }

    pub(crate) fn is_planned(&self, item: Item) -> bool {
        self.planned.contains_key(&item)
    }

    pub(crate) fn planned(&self, item: Item) -> Option<Planned> {
        self.planned.get(&item).copied()
    }

    pub(crate) fn plans(&self) -> impl Iterator<Item = (Item, Planned)> + '_ {
        self.planned.iter().map(|(item, planned)| (*item, *planned))
    }

    /// Plans each execution anew, or withdraws it.
    pub(crate) fn plan_anew(&mut self, revise: impl Fn(Item, Planned) -> Option<Planned>) {
        let planned = std::mem::take(&mut self.planned);
        self.planned =
            planned.into_iter().filter_map(|(item, planned)| Some((item, revise(item, planned)?))).collect();
    }

    /// Records that a fire of an item could not be executed at its time.
    pub(crate) fn miss(&mut self, cx: &Context, out: &mut Outbox, item: Item, scheduled: Timestamp) {
        if !cx.reruns_missed() {
            out.push(Effect::Skipped { item, scheduled });
            return;
        }
        let missed = self.missed.entry(item).or_insert(Missed { newest: scheduled, flagged: false });
        missed.newest = missed.newest.max(scheduled);
    }

    /// The newest fire of an item that is recorded as missed.
    pub(crate) fn newest_missed(&self, item: Item) -> Option<Timestamp> {
        self.missed.get(&item).map(|missed| missed.newest)
    }

    /// Whether this fire of the item, or a later one, is recorded as missed.
    pub(crate) fn has_missed(&self, item: Item, fire: Timestamp) -> bool {
        self.newest_missed(item).is_some_and(|newest| newest >= fire)
    }

    pub(crate) fn missed(&self) -> &BTreeMap<Item, Missed> {
        &self.missed
    }

    /// Forgets the missed fires of an item: an execution re-runs them.
    pub(crate) fn take_missed(&mut self, item: Item) {
        self.missed.remove(&item);
    }

    /// Keeps the missed fires that this instance still has to re-run.
    pub(crate) fn keep_missed(&mut self, keeps: impl FnMut(&Item, &mut Missed) -> bool) {
        self.missed.retain(keeps);
    }
}

/// The failovers that come before every other execution of their items.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    /// The items that the attempt in flight takes over; empty: no attempt is in flight.
    taking: BTreeSet<Item>,
    /// Since when this instance has seen each flag.
    flagged_since: BTreeMap<Item, Duration>,
    /// Since when only the persistent node says that an item was taken over: the taker has lost its session, or the
    /// ephemeral node has not been read yet.
    half_taken_since: BTreeMap<Item, Duration>,
}

impl Awaited {
    /// When the next head start ends, or the wait of an owner.
    pub(crate) fn ends(&self) -> impl Iterator<Item = Duration> + '_ {
        let since = self.flagged_since.values().chain(self.half_taken_since.values());
        since.flat_map(|since| [HEAD_START, FLAG_FIRST].map(|wait| since.saturating_add(wait)))
    }

    /// Whether the failover of an item comes before every other execution of it: this instance takes the item over, or
    /// the item is flagged, or its taker has not completed it. The item's owner waits for a flag for [`FLAG_FIRST`] at
    /// most.
    pub(crate) fn comes_first(&self, item: Item, now: Duration) -> bool {
        let mut since = self.flagged_since.get(&item).into_iter().chain(self.half_taken_since.get(&item));
        self.taking.contains(&item) || since.any(|since| now < since.saturating_add(FLAG_FIRST))
    }

    pub(crate) fn take(&mut self, items: BTreeSet<Item>) {
        self.taking = items;
    }

    /// The attempt has ended. Returns the items that it was to take over.
    pub(crate) fn ended(&mut self) -> BTreeSet<Item> {
        std::mem::take(&mut self.taking)
    }

    /// The items that the attempt in flight takes over; empty: no attempt is in flight.
    pub(crate) fn taking(&self) -> &BTreeSet<Item> {
        &self.taking
    }

    /// Records since when flags have been seen.
    pub(crate) fn update_flags(&mut self, flagged: &BTreeSet<Item>, now: Duration) {
        update(&mut self.flagged_since, flagged, now);
    }

    /// Records since when items are half taken.
    pub(crate) fn update_half_taken(&mut self, half: &BTreeSet<Item>, now: Duration) {
        update(&mut self.half_taken_since, half, now);
    }

    pub(crate) fn flagged_since(&self) -> &BTreeMap<Item, Duration> {
        &self.flagged_since
    }
}

fn update(since: &mut BTreeMap<Item, Duration>, items: &BTreeSet<Item>, now: Duration) {
    since.retain(|item, _| items.contains(item));
    for item in items {
        since.entry(*item).or_insert(now);
    }
}
