//! What do items miss while they change hands? The ledger tells up to which fire an item was executed, and whoever owns it
//! makes up for the rest (P5).

use jiff::{SignedDuration, Timestamp};

use crate::coordination::job::contract::plan::{Planned, Source};
use crate::coordination::job::frame::limits::MISFIRE_THRESHOLD;
use crate::coordination::job::ledger::Reread;
use crate::coordination::job::participant::Participant;
use crate::coordination::job::picture::schedule::latest_until;
use crate::coordination::job::rotation::has_ledger_of_turns;
use crate::job::Item;

/// How old a fire may be that an item's new owner makes up for, besides the time for which the item may have waited for
/// its owner. Above the longest session timeout (10 minutes), after which the items of a dead machine change hands; a
/// longer gap means that the job was off, and nobody expects what was missed then.
const HANDOVER_MAX: SignedDuration = SignedDuration::from_mins(11);

impl Participant {
    /// Forgets what owners in between have executed or made up for, as the ledger tells.
    pub(in crate::coordination) fn forget_overtaken(&mut self, reread: &Reread) {
        let now = self.cx.now;
        // Who leaves is told nothing any more: what it had may be somebody else's.
        let is_others = |item: &Item| {
            let owner = self.cx.view.item(*item).and_then(|view| view.owner.as_ref());
            owner.is_some_and(|owner| owner.instance != self.cx.identity.instance)
        };
        let came = |item: &Item| reread.may_have_been_elsewhere(*item) || is_others(item);
        // The flag may be that of an earlier fire.
        let is_flagged = |item: &Item, missed: Timestamp| {
            self.cx.view.misfired().contains(item) && self.ledger.flagged_for(*item) >= Some(missed)
        };
        let is_over = |item: &Item, missed: Timestamp| {
            came(item) && !is_flagged(item, missed) && self.ledger.was_started(&self.cx, *item, missed, now.wall)
        };
        let revise = |item: Item, planned: Planned| {
            let started = |at| self.ledger.was_started(&self.cx, item, at, now.wall);
            match planned.source {
                _ if planned.is_retry() => Some(planned),
                Source::Schedule => (!started(planned.scheduled)).then_some(planned),
                Source::Misfire => (!is_over(&item, planned.scheduled)).then_some(planned),
                // An operator's wish stays, under an instant that is no fire's that was executed.
                Source::Trigger if started(planned.scheduled) => {
                    Some(Planned { scheduled: self.fires.present_of(&self.cx, &self.ledger, &self.executions, item), ..planned })
                }
                Source::Trigger | Source::Failover => Some(planned),
            }
        };
        let mut agenda = std::mem::take(&mut self.agenda);
        agenda.plan_anew(revise);
        // Also of an item that has stayed ours: in a relay, or in one that has just ended, others execute it. What was noted
        // while the entry was old is not missed if it is that very instant for which the item was started.
        agenda.keep_missed(|item, missed| {
            let missed = missed.newest();
            !is_over(item, missed) && self.ledger.started(*item) != Some(missed)
        });
        self.agenda = agenda;
    }

    /// Makes up for fires that came while the items changed hands, and that nobody started.
    pub(in crate::coordination) fn catch_up(&mut self) {
        let now = self.cx.now;
        // What has come in this step, or while we slept, was there before we looked.
        self.follow_schedule();
        let schedule = self.cx.settings.as_ref().and_then(|settings| settings.schedule.clone());
        let knows = !self.cx.is_relay() || has_ledger_of_turns(&self.cx);
        let Some(schedule) = schedule.filter(|_| knows) else { return };
        let items: Vec<_> = self.cx.assigned.executable().map(|assigned| assigned.item).collect();
        let grace = self.cx.settings.as_ref().map(|settings| settings.grace).unwrap_or_default();
        let oldest = HANDOVER_MAX.saturating_add(SignedDuration::try_from(grace).unwrap_or_default());
        for item in items {
            let returned = self.names.returned(item);
            self.names.caught_up(item);
            // Since when it has been the name's is by the registry's clock, and a fire just before that, by another's, was
            // executed by nobody: there would be an entry.
            let early = |since: Timestamp| since.saturating_sub(MISFIRE_THRESHOLD).unwrap_or(since);
            let exists = self.cx.view.item(item).and_then(|view| view.since);
            let owed = returned.filter(|_| self.ledger.settled(&self.cx, item, now.wall).is_none());
            let owed = owed.map(|since| exists.map_or(early(since), |exists| early(since).max(exists)));
            // It may have come to the name while we had no session, and we have been there for longer.
            let owed = owed.into_iter().chain(self.ledger.owed_after(&self.cx, item, now.wall)).min();
            let Some(latest) = owed.map(|owed| owed.max(self.fires.asked_since().unwrap_or(owed))) else {
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
            let witnessed = returned.is_some() || self.fires.latest().is_some_and(|fired| fired >= newest);
            let fresh = now.wall.duration_since(newest) <= MISFIRE_THRESHOLD;
            // What is known to be missed is made up for, and what is about to make up for it is for all of it.
            let planned = self.agenda.planned(item).filter(|planned| planned.source != Source::Trigger);
            let starting = self.executions.what_starts(item).filter(|planned| planned.is_fire());
            let mut planned = planned.into_iter().chain(starting);
            let planned = planned.find(|planned| planned.scheduled >= newest);
            if self.agenda.has_missed(item, newest)
                || planned.is_some_and(|planned| !planned.is_first_of(Source::Schedule))
            {
                continue;
            }
            // The newest is about to be divided, or to start, or is executed now; what is missing then lies before it. Of
            // what is to start that may have been noted before; but it may have been somebody else's since.
            let free = !self.executions.is_busy(&self.cx, &self.awaited, item) && !self.agenda.is_planned(item);
            let executes = !self.fires.is_due() && fresh && free && !self.owes(item) && planned.is_none();
            if executes {
                self.agenda.plan(item, Planned::new(Source::Schedule, newest));
            }
            if executes || planned.is_some() || self.fires.is_due() {
                // What is flagged is made up for by somebody in any case, and what came after the flag with it.
                let flagged = self.cx.view.misfired().contains(&item);
                if let Some(before) = before.filter(|_| witnessed || flagged) {
                    self.agenda.miss(&self.cx, &mut self.out, item, before);
                }
            } else if witnessed || fresh {
                self.agenda.miss(&self.cx, &mut self.out, item, newest);
            }
        }
    }
}
