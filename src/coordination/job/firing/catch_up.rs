//! Fires that items miss while they change hands. The ledger tells up to which fire an item was executed, and its owner makes
//! up for the rest (P5).

use jiff::{SignedDuration, Timestamp};

use crate::coordination::job::agenda::Agenda;
use crate::coordination::job::contract::plan::{Planned, Source};
use crate::coordination::job::execution::state::Executions;
use crate::coordination::job::firing::misfire::owes;
use crate::coordination::job::firing::schedule::Fires;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::limits::MISFIRE_THRESHOLD;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::ledger::{Ledger, Reread};
use crate::coordination::job::membership::instance_name::Names;
use crate::coordination::job::once::state::Guarantee;
use crate::coordination::job::picture::schedule::latest_until;
use crate::coordination::job::rotation::has_ledger_of_turns;
use crate::job::Item;

/// How old a fire may be that an item's new owner makes up for, besides the time for which the item may have waited for
/// its owner. Above the longest session timeout (10 minutes), after which the items of a dead machine change hands; a
/// longer gap means that the job was off, and nobody expects what was missed then.
const HANDOVER_MAX: SignedDuration = SignedDuration::from_mins(11);

impl Fires {
    /// Forgets what owners in between have executed or made up for, as the ledger tells.
    pub(in crate::coordination) fn forget_overtaken(
        &self,
        cx: &Context,
        ledger: &Ledger,
        executions: &Executions,
        agenda: &mut Agenda,
        reread: &Reread,
    ) {
        let now = cx.now;
        // An instance that leaves is told nothing any more: its items may be another instance's.
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
        let revise = |item: Item, planned: Planned| {
            let started = |at| ledger.was_started(cx, item, at, now.wall);
            match planned.source {
                _ if planned.is_retry() => Some(planned),
                Source::Schedule => (!started(planned.scheduled)).then_some(planned),
                Source::Misfire => (!is_over(&item, planned.scheduled)).then_some(planned),
                // An operator's wish stays, under an instant that is no fire's that was executed.
                Source::Trigger if started(planned.scheduled) => {
                    Some(Planned { scheduled: self.present_of(cx, ledger, executions, item), ..planned })
                }
                Source::Trigger | Source::Failover => Some(planned),
            }
        };
        agenda.plan_anew(revise);
        // Also of an item that has stayed ours: in a relay, or in one that has just ended, others execute it. What was noted
        // while the entry was old is not missed if it is that very instant for which the item was started.
        agenda.keep_missed(|item, missed| {
            let missed = missed.newest();
            !is_over(item, missed) && ledger.started(*item) != Some(missed)
        });
    }

    /// Makes up for fires that came while the items changed hands, and that nobody started.
    #[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
    pub(in crate::coordination) fn catch_up(
        &mut self,
        cx: &Context,
        ledger: &Ledger,
        names: &mut Names,
        executions: &Executions,
        guarantee: &Guarantee,
        agenda: &mut Agenda,
        out: &mut Outbox,
    ) {
        let now = cx.now;
        // A fire that came in this step, or while the process slept, was there before this look.
        self.follow_schedule(cx);
        let schedule = cx.settings.as_ref().and_then(|settings| settings.schedule.clone());
        let knows = !cx.is_relay() || has_ledger_of_turns(cx);
        let Some(schedule) = schedule.filter(|_| knows) else { return };
        let items: Vec<_> = cx.assigned.executable().map(|assigned| assigned.item).collect();
        let grace = cx.settings.as_ref().map(|settings| settings.grace).unwrap_or_default();
        let oldest = HANDOVER_MAX.saturating_add(SignedDuration::try_from(grace).unwrap_or_default());
        for item in items {
            let returned = names.returned(item);
            names.caught_up(item);
            // Since when it has been the name's is by the registry's clock, and a fire just before that, by another's, was
            // executed by nobody: there would be an entry.
            let early = |since: Timestamp| since.saturating_sub(MISFIRE_THRESHOLD).unwrap_or(since);
            let exists = cx.view.item(item).and_then(|view| view.since);
            let owed = returned.filter(|_| ledger.settled(cx, item, now.wall).is_none());
            let owed = owed.map(|since| exists.map_or(early(since), |exists| early(since).max(exists)));
            // It may have come to the name while we had no session, and we have been there for longer.
            let owed = owed.into_iter().chain(ledger.owed_after(cx, item, now.wall)).min();
            let Some(latest) = owed.map(|owed| owed.max(self.asked_since().unwrap_or(owed))) else {
                continue;
            };
            let Some(missed) = schedule.next_after(latest).filter(|missed| *missed <= now.wall) else {
                continue;
            };
            if now.wall.duration_since(missed) > oldest {
                continue;
            }
            let (newest, before) = latest_until(&schedule, missed, now.wall);
            // Who came after a fire makes up for it only while it is fresh: then it met our registration. What was
            // missed before we came is not ours to judge, maybe nobody was there on purpose; unless it waited for us.
            let witnessed = returned.is_some() || self.latest().is_some_and(|fired| fired >= newest);
            let fresh = now.wall.duration_since(newest) <= MISFIRE_THRESHOLD;
            // A known missed fire is made up for, and the execution that is about to do so is for all missed fires.
            let planned = agenda.planned(item).filter(|planned| planned.source != Source::Trigger);
            let starting = executions.what_starts(item).filter(|planned| planned.is_fire());
            let mut planned = planned.into_iter().chain(starting);
            let planned = planned.find(|planned| planned.scheduled >= newest);
            if agenda.has_missed(item, newest)
                || planned.is_some_and(|planned| !planned.is_first_of(Source::Schedule))
            {
                continue;
            }
            // The newest is about to be divided, or to start, or is executed now; what is missing then lies before it. Of
            // what is to start that may have been noted before; but it may have been somebody else's since.
            let free = !executions.is_busy(cx, agenda, item) && !agenda.is_planned(item);
            let executes =
                !self.is_due() && fresh && free && !owes(cx, guarantee, agenda, item) && planned.is_none();
            if executes {
                agenda.plan(item, Planned::new(Source::Schedule, newest));
            }
            if executes || planned.is_some() || self.is_due() {
                // Some instance makes up for a flagged fire in any case, and for the fires after the flag with it.
                let flagged = cx.view.misfired().contains(&item);
                if let Some(before) = before.filter(|_| witnessed || flagged) {
                    agenda.miss(cx, out, item, before);
                }
            } else if witnessed || fresh {
                agenda.miss(cx, out, item, newest);
            }
        }
    }
}
