//! Which fires did an item miss while it changed hands? The ledger says up to which fire the item was executed, and its
//! new owner re-runs the missed ones (P5).
//!
//! An item without an entry has missed the fires since its node was created, as far as its executor was online then,
//! and no Java instance was: a Java instance leaves no entry.

use jiff::{SignedDuration, Timestamp};

use crate::coordination::job::agenda::Agenda;
use crate::coordination::job::contract::plan::{Planned, Source};
use crate::coordination::job::execution::Executions;
use crate::coordination::job::firing::misfire::has_unsettled;
use crate::coordination::job::firing::schedule::Fires;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::limits::MISFIRE_THRESHOLD;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::ledger::{Ledger, Reread};
use crate::coordination::job::membership::Membership;
use crate::coordination::job::once::Once;
use crate::coordination::job::picture::schedule::latest_until;
use crate::coordination::job::picture::settings::Schedule;
use crate::coordination::job::rotation::has_ledger_of_turns;
use crate::job::Item;
use crate::mutants::mutant;

/// How old a fire may be that an item's new owner re-runs, besides the time for which the item may have been reserved.
/// Above the longest session timeout (10 minutes), after which the items of a dead machine change hands; a longer gap
/// means that the job was switched off, and no user expects its fires then.
const HANDOVER_MAX: SignedDuration = SignedDuration::from_mins(11);

/// How old a fire may be that an item's new owner re-runs.
fn oldest(cx: &Context) -> SignedDuration {
    let grace = cx.settings.as_ref().map(|settings| settings.grace).unwrap_or_default();
    HANDOVER_MAX.saturating_add(SignedDuration::try_from(grace).unwrap_or_default())
}

impl Fires {
    /// Withdraws the plans and the missed fires that earlier owners have executed or re-run, according to the ledger.
    pub(crate) fn forget_overtaken(
        &self,
        cx: &Context,
        ledger: &Ledger,
        executions: &Executions,
        agenda: &mut Agenda,
        out: &mut Outbox,
        reread: &Reread,
    ) {
        let now = cx.now;
        // An instance that leaves does not notify its application: another instance may own its items already.
        let is_others = |item: &Item| {
            let owner = cx.view.item(*item).and_then(|view| view.owner.as_ref());
            owner.is_some_and(|owner| owner.instance != cx.identity.instance)
        };
        let came = |item: &Item| reread.may_have_been_elsewhere(*item) || is_others(item);
        // The flag may be that of an earlier fire.
        let is_flagged = |item: &Item, missed: Timestamp| {
            cx.view.misfired().contains(item) && ledger.flagged_for(*item) >= Some(missed)
        };
        let is_over = |item: &Item, missed: Timestamp| {
            came(item) && !is_flagged(item, missed) && ledger.was_started(cx, *item, missed, now.wall)
        };
        // Of an item that has stayed with this instance, the latest start is this instance's own: the request took effect
        // after its outcome had become unknown, and the application did not get the execution.
        let is_late_start = |item: &Item, planned: Planned| {
            let own = !planned.is_retry() && !came(item) && !mutant!(LateStartPlanned);
            own && ledger.started(*item) == Some(planned.scheduled)
        };
        if agenda.plans().any(|(item, planned)| is_late_start(&item, planned)) {
            // The owners of running nodes are read with the whole job only.
            out.read_again();
        }
        let revise = |item: Item, planned: Planned| {
            let started = |at| ledger.was_started(cx, item, at, now.wall);
            match planned.source {
                _ if planned.is_retry() => Some(planned),
                // The failover executes it; without failover the plan is executed when the node is deleted.
                _ if is_late_start(&item, planned) => (!cx.fails_over()).then_some(planned),
                Source::Schedule => (!started(planned.scheduled)).then_some(planned),
                Source::Misfire => (!is_over(&item, planned.scheduled)).then_some(planned),
                // An operator's trigger stays, with an instant of its own that was not executed.
                Source::Trigger if started(planned.scheduled) => {
                    Some(Planned { scheduled: self.present_of(cx, ledger, executions, item), ..planned })
                }
                Source::Trigger | Source::Failover => Some(planned),
            }
        };
        agenda.plan_anew(revise);
        // Also for an item that has stayed with this instance: in a rotation, or in one that has just ended, other
        // instances execute it. A fire that was recorded as missed while the entry was old is not missed if the ledger
        // has its instant.
        agenda.keep_missed(|item, missed| {
            let missed = missed.newest();
            !is_over(item, missed) && ledger.started(*item) != Some(missed)
        });
    }

    /// Re-runs the fires that came while the items changed hands, and that no instance has started.
    #[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
    pub(crate) fn catch_up(
        &mut self,
        cx: &Context,
        ledger: &Ledger,
        membership: &mut Membership,
        executions: &Executions,
        once: &Once,
        agenda: &mut Agenda,
        out: &mut Outbox,
    ) {
        let now = cx.now;
        // A fire that came in this step, or while the process slept, came before this look.
        self.follow_schedule(cx);
        let schedule = cx.settings.as_ref().and_then(|settings| settings.schedule.clone());
        let items: Vec<_> = cx.assigned.executable().map(|assigned| assigned.item).collect();
        for item in &items {
            let missed = self.witnessed_miss(cx, ledger, executions, agenda, schedule.as_ref(), *item);
            if let Some(missed) = missed {
                agenda.miss(cx, out, *item, missed);
            }
        }
        let knows = !cx.rotates() || has_ledger_of_turns(cx);
        let Some(schedule) = schedule.filter(|_| knows) else { return };
        for item in items {
            let returned = membership.returned(item);
            membership.caught_up(item);
            // The registry's clock says since when the item belongs to the name. A fire just before that, by another
            // clock, was not executed: there would be an entry.
            let early = |since: Timestamp| since.saturating_sub(MISFIRE_THRESHOLD).unwrap_or(since);
            let exists = cx.view.item(item).and_then(|view| view.since);
            let unsettled = returned.filter(|_| ledger.settled(cx, item, now.wall).is_none());
            let unsettled =
                unsettled.map(|since| exists.map_or(early(since), |exists| early(since).max(exists)));
            // The name may have got the item while this instance had no session; it was online for longer.
            let unsettled = unsettled.into_iter().chain(ledger.unsettled_after(cx, item, now.wall)).min();
            let Some(latest) =
                unsettled.map(|unsettled| unsettled.max(self.asked_since().unwrap_or(unsettled)))
            else {
                continue;
            };
            let Some(missed) = schedule.next_after(latest).filter(|missed| *missed <= now.wall) else {
                continue;
            };
            if now.wall.duration_since(missed) > oldest(cx) {
                continue;
            }
            let (newest, before) = latest_until(&schedule, missed, now.wall);
            // An instance that came after a fire re-runs it only while it is fresh: the fire met its registration. It
            // does not re-run older fires, because the job may have been off on purpose; unless they were reserved for
            // its name.
            let was_online = returned.is_some() || self.latest().is_some_and(|fired| fired >= newest);
            let fresh = now.wall.duration_since(newest) <= MISFIRE_THRESHOLD;
            // A recorded missed fire is re-run, and the execution that is about to re-run it is for all missed fires.
            let planned = agenda.planned(item).filter(|planned| planned.source != Source::Trigger);
            let starting = executions.starting_of(item).filter(|planned| planned.is_fire());
            let mut planned = planned.into_iter().chain(starting);
            let planned = planned.find(|planned| planned.scheduled >= newest);
            if agenda.has_missed(item, newest)
                || planned.is_some_and(|planned| !planned.is_first_of(Source::Schedule))
            {
                continue;
            }
            // The newest fire is about to be dispatched or started, or is executed now; then the missed ones lie before
            // it. The instance may have recorded fires before a planned one already; but another instance may have
            // owned the item since.
            let free = !executions.is_busy(cx, agenda, item) && !agenda.is_planned(item);
            let executes = !self.is_due()
                && fresh
                && free
                && !has_unsettled(cx, once, agenda, item)
                && planned.is_none();
            if executes {
                agenda.plan(item, Planned::new(Source::Schedule, newest));
            }
            if executes || planned.is_some() || self.is_due() {
                // Some instance re-runs a flagged fire in any case, and the fires after the flag with it.
                let flagged = cx.view.misfired().contains(&item);
                if let Some(before) = before.filter(|_| was_online || flagged) {
                    agenda.miss(cx, out, item, before);
                }
            } else if was_online || fresh {
                agenda.miss(cx, out, item, newest);
            }
        }
    }

    /// The fire that an item has missed according to the newest witness. `None`: none, or it is about to be executed.
    fn witnessed_miss(
        &self,
        cx: &Context,
        ledger: &Ledger,
        executions: &Executions,
        agenda: &Agenda,
        schedule: Option<&Schedule>,
        item: Item,
    ) -> Option<Timestamp> {
        let now = cx.now.wall;
        let told = cx.reruns_missed() && !cx.rotates() && !mutant!(WitnessIgnored);
        let fire = ledger.witnessed(now).filter(|fire| told && *fire <= now)?;
        let settled = ledger.settled(cx, item, now).filter(|settled| *settled < fire)?;
        // An item that was not executed for so long before the witness was disabled.
        let first = schedule.filter(|_| self.asked_since().is_none_or(|asked| asked <= settled));
        let first = first.and_then(|schedule| schedule.next_after(settled));
        let disabled = first.is_some_and(|first| fire.duration_since(first) > oldest(cx));
        let plans = agenda.planned(item).into_iter().chain(executions.starting_of(item));
        let is_covered = |planned: Planned| match planned.source {
            Source::Schedule => planned.scheduled == fire,
            Source::Misfire => planned.scheduled >= fire,
            Source::Trigger | Source::Failover => false,
        };
        let covered = self.waits(fire) || agenda.has_missed(item, fire) || plans.into_iter().any(is_covered);
        (!disabled && !covered).then_some(fire)
    }
}
