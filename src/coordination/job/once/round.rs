//! When does one instance act for the whole job, before the first item of a fire is executed and after the last?
//! (protocol 6.7; H1, H25.)
//!
//! Only jobs with `sidekeeper.once-listener` do so. All instances register their items at a barrier, `started`. When
//! all items are registered, the instance that holds the barrier's latch calls its application, then removes the
//! barrier, and all instances start their items. With `completed` it is the same after the executions. The time between
//! the two barriers is a *round*.
//!
//! Differences from Java peers, within the same protocol:
//! - **The view decides, again at each step**, so no removal is missed. Only an instance that found a barrier complete
//!   under the latch removes it. Of a barrier that is given up, each instance withdraws its own items only.
//! - **Every wait ends.** An instance that waited too long before a fire skips it, as Java does: the listener that had
//!   to act first has not acted. The fire counts as missed. After a fire it stops waiting. Both are reported as
//!   problems.
//! - **A listener that fails or does not answer** makes its own instance skip the fire, as an exception does in Java,
//!   and lets the others go on. Its items are registered as completed, so that no instance waits for them.
//! - **An instance registers all items that it owns**, also those that it cannot start now; disabled items of any
//!   instance count as registered. Java waits for such items for ever.
//! - **An item that was taken over** from a crashed instance is registered as completed by its taker.
//! - **Missed fires** are re-run inside a round that is open. Alone they begin one only if all items have missed theirs
//!   and there is no Java instance, because no other instance would come; but they join a round that another instance
//!   has begun.
//!
//! If an instance crashes while it acts, another one acts again: the protocol can promise at least once, and no more.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::coordination::job::agenda::Agenda;
use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::execution::Executions;
use crate::coordination::job::execution::retry::{BUSY_ELSEWHERE, Retries};
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::ledger::Ledger;
use crate::coordination::job::once::barrier::{planned_items, skip_planned};
use crate::coordination::job::once::{Acting, Once, Round, Stage};
use crate::elasticjob::path::Barrier;
use crate::extension::once_listener::OnceListener;
use crate::job::Item;
use crate::mutants::mutant;

impl Once {
    /// Whether executions may start, as far as other instances are concerned.
    pub(crate) fn is_barrier_open(&self, cx: &Context) -> bool {
        cx.once_listener().is_none() || self.is_round_open() || mutant!(BarrierIgnored)
    }

    /// Whether the executions of the round have begun: a further fire has to wait for the next round.
    pub(crate) fn is_round_open(&self) -> bool {
        self.round.as_ref().is_some_and(|round| round.stage != Stage::Before)
    }

    /// Whether a missed fire of the item may be re-run now.
    pub(crate) fn may_rerun(&self, cx: &Context, item: Item) -> bool {
        if cx.once_listener().is_none() {
            return true;
        }
        match &self.round {
            Some(round) if round.stage == Stage::Before => !round.barred,
            Some(_) => self.is_inside(cx, item),
            None => !cx.view.registered(Barrier::Started).is_empty() || all_have_missed(cx),
        }
    }

    /// Whether the item's part of the open round has not ended.
    fn is_inside(&self, cx: &Context, item: Item) -> bool {
        let over = self.round.as_ref().is_some_and(|round| {
            let registered = round.registered.contains(&item) || self.registering.contains(&item);
            round.barred || (round.stage == Stage::After && registered)
        });
        !over && !cx.view.registered(Barrier::Completed).contains(&item)
    }

    /// Goes on if the barrier of this round was removed. Comes before the fires, so that a fire that was seen after the
    /// removal belongs to the next round.
    pub(crate) fn pass_barrier(
        &mut self,
        cx: &Context,
        executions: &Executions,
        retries: &Retries,
        agenda: &Agenda,
    ) {
        let now = cx.now;
        let idle = has_nothing_to_execute(cx, executions, retries, agenda);
        let Some(round) = &mut self.round else { return };
        let Some(barrier) = round.barrier() else { return };
        // Only the instance that found the barrier complete removes these registrations.
        let removed =
            !round.registered.is_empty() && round.registered.is_disjoint(cx.view.registered(barrier));
        if !cx.view.is_loaded() || !removed || !self.registering.is_empty() {
            return;
        }
        match barrier {
            Barrier::Started => {
                if round.acting == Acting::No {
                    self.problem = None;
                }
                round.enter(Stage::Open, now, Duration::MAX);
            }
            Barrier::Completed if idle => {
                if round.acting == Acting::No {
                    self.problem = None;
                }
                self.round = None;
            }
            Barrier::Completed => {}
        }
    }

    /// Takes the next step around a fire.
    pub(crate) fn guard(
        &mut self,
        cx: &Context,
        ledger: &Ledger,
        executions: &Executions,
        retries: &mut Retries,
        agenda: &mut Agenda,
        out: &mut Outbox,
    ) {
        let Some(listener) = cx.once_listener() else {
            self.give_up_round(cx);
            self.withdraw(cx, out);
            self.attend_latch(cx, agenda, out);
            return;
        };
        self.record_taken_over(cx, executions, listener);
        if self.round.is_none() {
            self.begin_round(cx, agenda, listener);
        }
        match self.round.as_ref().map(|round| round.stage) {
            Some(Stage::Before) => self.wait_before(cx, agenda, out),
            Some(Stage::Open) => self.watch_executions(cx, executions, retries, agenda, out, listener),
            Some(Stage::After) => self.wait_after(cx, executions, retries, agenda, out),
            None => {}
        }
        self.register_items(cx, ledger, executions, retries, agenda, out);
        self.withdraw(cx, out);
        self.attend_latch(cx, agenda, out);
    }

    fn begin_round(&mut self, cx: &Context, agenda: &Agenda, listener: OnceListener) {
        let now = cx.now;
        if cx.phase != Phase::Active || !cx.is_registered() || !self.withdrawn.is_empty() {
            return;
        }
        let Some(scheduled) = planned_items(agenda).map(|(_, planned)| planned.scheduled).max() else {
            return;
        };
        let mut round = Round::new(Stage::Before, scheduled);
        round.enter(Stage::Before, now, listener.started_timeout);
        self.round = Some(Box::new(round));
    }

    fn wait_before(&mut self, cx: &Context, agenda: &mut Agenda, out: &mut Outbox) {
        let now = cx.now;
        let active = cx.phase == Phase::Active;
        let owned: Vec<_> = cx.assigned.executable().map(|assigned| assigned.item).collect();
        let Some(round) = &mut self.round else { return };
        if active {
            round.items.extend(owned);
        }
        if now.mono >= round.until {
            self.too_late(cx, agenda, out, Barrier::Started);
        } else if !active && round.acting == Acting::No {
            // Other instances will execute these plans.
            self.give_up_round(cx);
        }
    }

    fn watch_executions(
        &mut self,
        cx: &Context,
        executions: &Executions,
        retries: &mut Retries,
        agenda: &mut Agenda,
        out: &mut Outbox,
        listener: OnceListener,
    ) {
        let now = cx.now;
        self.follow_executions(cx, executions, retries, agenda, out);
        // The fire of a flag that is being written is re-run in this round as well.
        if out.is_in_flight(Purpose::FlagMisfire) || !has_nothing_to_execute(cx, executions, retries, agenda)
        {
            return;
        }
        if let Some(round) = &mut self.round {
            round.enter(Stage::After, now, listener.completed_timeout);
        }
    }

    /// Records the executions of the open round. An execution that was planned too late for it waits for the next one.
    fn follow_executions(
        &mut self,
        cx: &Context,
        executions: &Executions,
        retries: &mut Retries,
        agenda: &mut Agenda,
        out: &mut Outbox,
    ) {
        let planned: Vec<_> = planned_items(agenda).collect();
        let (inside, outside): (Vec<_>, Vec<_>) =
            planned.into_iter().partition(|(item, _)| self.is_inside(cx, *item));
        for (item, planned) in outside {
            agenda.withdraw(item);
            retries.could_not_start(cx, agenda, out, item, planned, BUSY_ELSEWHERE);
        }
        let busy: Vec<_> = executions.busy_items().collect();
        if let Some(round) = &mut self.round {
            round.items.extend(inside.into_iter().map(|(item, _)| item));
            round.executed.extend(busy.iter().filter(|item| round.items.contains(item)));
        }
    }

    fn wait_after(
        &mut self,
        cx: &Context,
        executions: &Executions,
        retries: &mut Retries,
        agenda: &mut Agenda,
        out: &mut Outbox,
    ) {
        let now = cx.now;
        self.follow_executions(cx, executions, retries, agenda, out);
        let owned: Vec<_> = cx.assigned.executable().map(|assigned| assigned.item).collect();
        let idle = has_nothing_to_execute(cx, executions, retries, agenda);
        let Some(round) = &mut self.round else { return };
        // This instance has to register the items of a crashed instance that it owns now.
        round.items.extend(owned);
        if round.registered.is_empty() && round.items.is_empty() {
            self.round = None;
        } else if now.mono >= round.until && idle {
            self.too_late(cx, agenda, out, Barrier::Completed);
        }
    }

    /// Records the items that this instance has taken over and executed: no other instance registers them.
    fn record_taken_over(&mut self, cx: &Context, executions: &Executions, listener: OnceListener) {
        let now = cx.now;
        let executing = executions.iter().filter(|(_, open)| open.is_taken_over());
        let executing: BTreeSet<_> = executing.map(|(item, _)| item).collect();
        let before = std::mem::replace(&mut self.taken_over, executing.clone());
        let ended: Vec<_> = before.difference(&executing).copied().collect();
        if ended.is_empty() || !cx.is_registered() {
            return;
        }
        let round = self.round.get_or_insert_with(|| {
            let mut round = Round::new(Stage::After, now.wall);
            round.enter(Stage::After, now, listener.completed_timeout);
            Box::new(round)
        });
        // Before the next fire the round of the crashed execution is over.
        if round.stage != Stage::Before {
            round.items.extend(ended.iter().copied());
            round.executed.extend(ended);
        }
    }

    /// Whether this instance may leave the round: there is none, or other instances will end it.
    pub(crate) fn is_round_over(&self, cx: &Context) -> bool {
        let once = self;
        let left_to_others = once.round.as_ref().is_some_and(|round| {
            let registered = round.executed.is_subset(&round.registered);
            round.stage == Stage::After && registered && cx.view.instances().len() > 1
        });
        let round_over = once.round.is_none() || left_to_others;
        round_over && once.latch.is_none() && once.withdrawn.is_empty()
    }

    /// This instance has waited too long at a barrier.
    fn too_late(&mut self, cx: &Context, agenda: &mut Agenda, out: &mut Outbox, barrier: Barrier) {
        let registered = cx.view.registered(barrier);
        let settings = cx.settings.as_ref();
        let missing: Vec<_> = settings
            .into_iter()
            .flat_map(crate::coordination::job::picture::settings::Settings::items)
            .filter(|item| !registered.contains(item))
            .map(|item| item.0)
            .collect();
        let waited = match missing.as_slice() {
            [] => "the instance that acts for all did not finish".to_owned(),
            missing => {
                format!(
                    "{} items were not registered, the first of them {:?}",
                    missing.len(),
                    missing.first()
                )
            }
        };
        let then = match barrier {
            Barrier::Started => "the fire was skipped and counts as missed",
            Barrier::Completed => "nothing is called after the last execution",
        };
        let message = format!(
            "the once-listener waited too long: {waited}; {then}. Every instance of the job must have such a listener"
        );
        self.problem = Some((barrier, message));
        if barrier == Barrier::Started {
            skip_planned(cx, agenda, out, true);
        }
        self.give_up_round(cx);
    }

    /// Ends the round here, and withdraws this instance's registrations.
    fn give_up_round(&mut self, cx: &Context) {
        let Some(round) = self.round.take() else { return };
        let Some(barrier) = round.barrier() else { return };
        let owned = cx.assigned.executable().map(|assigned| assigned.item);
        let items: BTreeSet<_> = round.items.iter().copied().chain(owned).collect();
        self.withdrawn.extend(items.into_iter().map(|item| (barrier, item)));
    }
}

/// Whether each item has missed a fire, and all instances see that and join a round.
fn all_have_missed(cx: &Context) -> bool {
    let missed = |item: Item| {
        cx.view.misfired().contains(&item) || cx.view.item(item).is_some_and(|view| view.disabled)
    };
    !cx.has_java_peers() && cx.settings.as_ref().is_some_and(|settings| settings.items().all(missed))
}

/// Whether no execution is open or planned.
fn has_nothing_to_execute(cx: &Context, executions: &Executions, retries: &Retries, agenda: &Agenda) -> bool {
    let waits = cx.phase == Phase::Active && planned_items(agenda).next().is_some();
    executions.is_idle() && !waits && retries.is_empty()
}
