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
    first: Timestamp,
    newest: Timestamp,
    /// Whether the item's flag has been seen.
    flagged: bool,
}

impl Missed {
    /// The first that was recorded.
    pub(crate) fn first(&self) -> Timestamp {
        self.first
    }

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
    /// With the place in the order.
    planned: BTreeMap<Item, (i64, Planned)>,
    /// The planned items, the one that has waited longest first: in a job that cannot follow its schedule each item has
    /// its turn.
    order: BTreeSet<(i64, Item)>,
    missed: BTreeMap<Item, Missed>,
    /// The items with missed fires for which no execution is planned.
    missed_without_plan: BTreeSet<Item>,
    /// How often a fire was recorded as missed.
    misses: u64,
    awaited: Awaited,
}

impl Agenda {
    /// The instance owns nothing any more: other instances execute the plans and re-run the missed fires.
    pub(crate) fn forget(&mut self) {
        self.withdraw_all();
        self.missed.clear();
        self.missed_without_plan.clear();
    }

    pub(crate) fn awaited(&self) -> &Awaited {
        &self.awaited
    }

    pub(crate) fn awaited_mut(&mut self) -> &mut Awaited {
        &mut self.awaited
    }

    /// Plans an execution. Returns the execution that was planned before; the new one has its place in the order.
    pub(crate) fn plan(&mut self, item: Item, planned: Planned) -> Option<Planned> {
        let last = self.order.last().map_or(0, |(place, _)| place.saturating_add(1));
        let place = self.planned.get(&item).map_or(last, |(place, _)| *place);
        self.order.insert((place, item));
        self.missed_without_plan.remove(&item);
        self.planned.insert(item, (place, planned)).map(|(_, before)| before)
    }

    pub(crate) fn plan_if_free(&mut self, item: Item, planned: Planned) {
        if !self.is_planned(item) {
            self.plan(item, planned);
        }
    }

    /// Withdraws an execution.
    pub(crate) fn withdraw(&mut self, item: Item) -> Option<Planned> {
        let (place, planned) = self.planned.remove(&item)?;
        self.order.remove(&(place, item));
        if self.missed.contains_key(&item) {
            self.missed_without_plan.insert(item);
        }
        Some(planned)
    }

    pub(crate) fn withdraw_all(&mut self) -> BTreeMap<Item, Planned> {
        self.order.clear();
        self.missed_without_plan = self.missed.keys().copied().collect();
        let planned = std::mem::take(&mut self.planned);
        planned.into_iter().map(|(item, (_, planned))| (item, planned)).collect()
    }

    /// Takes the execution that has waited longest.
    pub(crate) fn take_first(&mut self) -> Option<(Item, Planned)> {
        self.take_first_that(|_| true)
    }

    /// Takes the first execution for which `is_it` is true.
    pub(crate) fn take_first_that(&mut self, is_it: impl Fn(Planned) -> bool) -> Option<(Item, Planned)> {
        let is_it = |item: &Item| self.planned(*item).is_some_and(&is_it);
        let item = self.order.iter().map(|(_, item)| *item).find(is_it)?;
        Some((item, self.withdraw(item)?))
    }

    /// Plans these executions again, before all others.
    pub(crate) fn put_back(&mut self, planned: Vec<(Item, Planned)>) {
        for (item, planned) in planned.into_iter().rev() {
            let first = self.order.first().map_or(0, |(place, _)| place.saturating_sub(1));
            self.withdraw(item);
            self.order.insert((first, item));
            self.missed_without_plan.remove(&item);
            self.planned.insert(item, (first, planned));
        }
    }

    pub(crate) fn has_no_plans(&self) -> bool {
        self.planned.is_empty()
    }

    pub(crate) fn is_planned(&self, item: Item) -> bool {
        self.planned.contains_key(&item)
    }

    pub(crate) fn planned(&self, item: Item) -> Option<Planned> {
        self.planned.get(&item).map(|(_, planned)| *planned)
    }

    pub(crate) fn plans(&self) -> impl Iterator<Item = (Item, Planned)> + '_ {
        self.planned.iter().map(|(item, (_, planned))| (*item, *planned))
    }

    /// Plans each execution anew, or withdraws it.
    pub(crate) fn plan_anew(&mut self, revise: impl Fn(Item, Planned) -> Option<Planned>) {
        for (item, planned) in self.plans().collect::<Vec<_>>() {
            match revise(item, planned) {
                Some(planned) => drop(self.plan(item, planned)),
                None => drop(self.withdraw(item)),
            }
        }
    }

    /// Records that a fire of an item could not be executed at its time.
    pub(crate) fn miss(&mut self, cx: &Context, out: &mut Outbox, item: Item, scheduled: Timestamp) {
        if !cx.reruns_missed() {
            out.push(Effect::Skipped { item, scheduled });
            return;
        }
        self.misses += 1;
        if !self.is_planned(item) {
            self.missed_without_plan.insert(item);
        }
        let missed = Missed { first: scheduled, newest: scheduled, flagged: false };
        let missed = self.missed.entry(item).or_insert(missed);
        missed.first = missed.first.min(scheduled);
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

    /// The items with missed fires for which no execution is planned.
    pub(crate) fn missed_without_plan(&self) -> impl Iterator<Item = Item> + '_ {
        self.missed_without_plan.iter().copied()
    }

    /// How often a fire was recorded as missed.
    pub(crate) fn misses(&self) -> u64 {
        self.misses
    }

    /// Forgets the missed fires of an item: an execution re-runs them.
    pub(crate) fn take_missed(&mut self, item: Item) {
        self.missed.remove(&item);
        self.missed_without_plan.remove(&item);
    }

    /// Keeps the missed fires that this instance still has to re-run.
    pub(crate) fn keep_missed(&mut self, keeps: impl FnMut(&Item, &mut Missed) -> bool) {
        self.missed.retain(keeps);
        self.missed_without_plan.retain(|item| self.missed.contains_key(item));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordination::job::contract::plan::Source;

    #[test]
    fn the_item_that_has_waited_longest_is_the_next_one_also_when_it_is_planned_anew() {
        let mut agenda = Agenda::default();
        let plan = |source| Planned::new(source, Timestamp::UNIX_EPOCH);
        for item in [7, 8, 9] {
            agenda.plan(Item(item), plan(Source::Schedule));
        }
        let take = |agenda: &mut Agenda| agenda.take_first().map(|(item, planned)| (item.0, planned.source));
        let seven = agenda.take_first().into_iter().collect();
        // Item 1 comes later, and 8 is planned anew; 7 could not begin.
        agenda.plan(Item(1), plan(Source::Schedule));
        agenda.plan(Item(8), plan(Source::Misfire));
        agenda.put_back(seven);
        agenda.plan_anew(|item, planned| (item != Item(9)).then_some(planned));
        assert_eq!(take(&mut agenda), Some((7, Source::Schedule)));
        assert_eq!(take(&mut agenda), Some((8, Source::Misfire)));
        assert_eq!(take(&mut agenda), Some((1, Source::Schedule)));
        assert_eq!(take(&mut agenda), None);
    }
}
