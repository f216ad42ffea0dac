//! The agenda of each item: planned executions, missed fires, and failovers that come before both.
//!
//! Higher rooms plan, miss and await. This room only keeps the result.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::plan::Planned;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::limits::HEAD_START;
use crate::coordination::job::frame::outbox::Outbox;
use crate::job::Item;

/// How long an item's owner leaves it alone because it is flagged. Then nobody seems to be able to take it.
const FLAG_FIRST: Duration = Duration::from_secs(10);

/// The missed fires of an item, as far as they are known.
#[derive(Debug, Clone, Copy)]
pub(in crate::coordination) struct Missed {
    newest: Timestamp,
    /// Whether the item's flag has been seen.
    flagged: bool,
}

impl Missed {
    /// The newest fire that was missed.
    pub(in crate::coordination) fn newest(&self) -> Timestamp {
        self.newest
    }

    /// Whether the item's flag has been seen.
    pub(in crate::coordination) fn is_flagged(&self) -> bool {
        self.flagged
    }

    /// Compares it with the item's flag. Tells whether it is over: a flag that was seen and has
    /// gone means that an execution has made up for the fire. `is_starting`: an execution is being started, and its start deletes the flag.
    pub(in crate::coordination) fn follow_flag(&mut self, flag: bool, is_starting: bool) -> bool {
        let is_over = self.flagged && !flag;
        self.flagged = flag && !is_starting;
        is_over
    }
}

/// Planned executions and missed fires.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Agenda {
    planned: BTreeMap<Item, Planned>,
    missed: BTreeMap<Item, Missed>,
    awaited: Awaited,
}

impl Agenda {
    /// The instance owns nothing any more: other instances execute the plans and make up for the missed fires.
    pub(in crate::coordination) fn forget(&mut self) {
        self.planned.clear();
        self.missed.clear();
    }

    /// The failovers that come first.
    pub(in crate::coordination) fn awaited(&self) -> &Awaited {
        &self.awaited
    }

    /// The failovers that come first.
    pub(in crate::coordination) fn awaited_mut(&mut self) -> &mut Awaited {
        &mut self.awaited
    }

    /// Plans an execution. Gives the one that was planned before.
    pub(in crate::coordination) fn plan(&mut self, item: Item, planned: Planned) -> Option<Planned> {
        self.planned.insert(item, planned)
    }

    /// Plans an execution, unless there is one.
    pub(in crate::coordination) fn plan_if_free(&mut self, item: Item, planned: Planned) {
        self.planned.entry(item).or_insert(planned);
    }

    /// Takes an execution back.
    pub(in crate::coordination) fn withdraw(&mut self, item: Item) -> Option<Planned> {
        self.planned.remove(&item)
    }

    /// Takes all executions back.
    pub(in crate::coordination) fn withdraw_all(&mut self) -> BTreeMap<Item, Planned> {
        std::mem::take(&mut self.planned)
    }

    /// Takes the first execution that is planned.
    pub(in crate::coordination) fn take_first(&mut self) -> Option<(Item, Planned)> {
        self.planned.pop_first()
    }

    /// Takes the first execution of a kind.
    pub(in crate::coordination) fn take_first_that(
        &mut self,
        is_it: impl Fn(Planned) -> bool,
    ) -> Option<(Item, Planned)> {
        let (item, _) = self.planned.iter().find(|(_, planned)| is_it(**planned))?;
        self.planned.remove_entry(&item.clone())
    }

    /// Plans these again.
    pub(in crate::coordination) fn put_back(&mut self, planned: Vec<(Item, Planned)>) {
        self.planned.extend(planned);
    }

    /// Whether nothing is planned.
    pub(in crate::coordination) fn has_no_plans(&self) -> bool {
        self.planned.is_empty()
    }

    /// Whether an execution of the item is planned.
    pub(in crate::coordination) fn is_planned(&self, item: Item) -> bool {
        self.planned.contains_key(&item)
    }

    /// The execution of the item that is planned.
    pub(in crate::coordination) fn planned(&self, item: Item) -> Option<Planned> {
        self.planned.get(&item).copied()
    }

    /// All that is planned.
    pub(in crate::coordination) fn plans(&self) -> impl Iterator<Item = (Item, Planned)> + '_ {
        self.planned.iter().map(|(item, planned)| (*item, *planned))
    }

    /// Plans each execution anew, or takes it back.
    pub(in crate::coordination) fn plan_anew(&mut self, revise: impl Fn(Item, Planned) -> Option<Planned>) {
        let planned = std::mem::take(&mut self.planned);
        self.planned =
            planned.into_iter().filter_map(|(item, planned)| Some((item, revise(item, planned)?))).collect();
    }

    /// A fire of an item could not be executed at its time.
    pub(in crate::coordination) fn miss(
        &mut self,
        cx: &Context,
        out: &mut Outbox,
        item: Item,
        scheduled: Timestamp,
    ) {
        if !cx.makes_up() {
            out.push(Effect::Skipped { item, scheduled });
            return;
        }
        let missed = self.missed.entry(item).or_insert(Missed { newest: scheduled, flagged: false });
        missed.newest = missed.newest.max(scheduled);
    }

    /// The newest fire that an item is known to have missed.
    pub(in crate::coordination) fn newest_missed(&self, item: Item) -> Option<Timestamp> {
        self.missed.get(&item).map(|missed| missed.newest)
    }

    /// Whether it is known that an item has missed a fire.
    pub(in crate::coordination) fn has_missed(&self, item: Item, fire: Timestamp) -> bool {
        self.newest_missed(item).is_some_and(|newest| newest >= fire)
    }

    /// All missed fires.
    pub(in crate::coordination) fn missed(&self) -> &BTreeMap<Item, Missed> {
        &self.missed
    }

    /// Forgets the missed fires of an item: an execution makes up for them.
    pub(in crate::coordination) fn make_up(&mut self, item: Item) {
        self.missed.remove(&item);
    }

    /// Keeps the missed fires for which this instance still has to make up.
    pub(in crate::coordination) fn keep_missed(&mut self, keeps: impl FnMut(&Item, &mut Missed) -> bool) {
        self.missed.retain(keeps);
    }
}

/// The failovers that come before all else that is to be executed of an item.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Awaited {
    /// The items that the attempt in flight takes; empty: there is none.
    taking: BTreeSet<Item>,
    /// Since when flags are known.
    flagged_since: BTreeMap<Item, Duration>,
    /// Since when only the persistent node says that an item was taken over. Its taker has lost its session, or the other
    /// node has not been read yet.
    half_taken_since: BTreeMap<Item, Duration>,
}

impl Awaited {
    /// When the next head start ends, or the wait of an owner.
    pub(in crate::coordination) fn ends(&self) -> impl Iterator<Item = Duration> + '_ {
        let since = self.flagged_since.values().chain(self.half_taken_since.values());
        since.flat_map(|since| [HEAD_START, FLAG_FIRST].map(|wait| since.saturating_add(wait)))
    }

    /// Whether the failover of an item comes before any other execution of it: we are taking it, or it is flagged, or
    /// its taker has not said that it has ended. Its owner waits for a flag for [`FLAG_FIRST`] at most.
    pub(in crate::coordination) fn comes_first(&self, item: Item, now: Duration) -> bool {
        let mut since = self.flagged_since.get(&item).into_iter().chain(self.half_taken_since.get(&item));
        self.taking.contains(&item) || since.any(|since| now < since.saturating_add(FLAG_FIRST))
    }

    /// An attempt takes these.
    pub(in crate::coordination) fn take(&mut self, items: BTreeSet<Item>) {
        self.taking = items;
    }

    /// The attempt has ended. Gives the items that it was to take.
    pub(in crate::coordination) fn ended(&mut self) -> BTreeSet<Item> {
        std::mem::take(&mut self.taking)
    }

    /// The items that the attempt in flight takes; empty: there is none.
    pub(in crate::coordination) fn taking(&self) -> &BTreeSet<Item> {
        &self.taking
    }

    /// Notes since when flags are known.
    pub(in crate::coordination) fn update_flags(&mut self, flagged: &BTreeSet<Item>, now: Duration) {
        update(&mut self.flagged_since, flagged, now);
    }

    /// Notes since when items are half taken.
    pub(in crate::coordination) fn update_half_taken(&mut self, half: &BTreeSet<Item>, now: Duration) {
        update(&mut self.half_taken_since, half, now);
    }

    /// Since when flags are known.
    pub(in crate::coordination) fn flagged_since(&self) -> &BTreeMap<Item, Duration> {
        &self.flagged_since
    }
}

fn update(since: &mut BTreeMap<Item, Duration>, items: &BTreeSet<Item>, now: Duration) {
    since.retain(|item, _| items.contains(item));
    for item in items {
        since.entry(*item).or_insert(now);
    }
}
