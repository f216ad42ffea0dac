//! How far is the schedule? It steps to the present, and finds the fires that have come.

use jiff::{RoundMode, SignedDuration, Timestamp, TimestampRound, Unit};

use crate::coordination::job::execution::state::Executions;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::limits::MISFIRE_THRESHOLD;
use crate::coordination::job::ledger::Ledger;
use crate::coordination::job::picture::schedule::{latest_before, latest_until};
use crate::coordination::job::picture::settings::Schedule;
use crate::job::Item;
use crate::mutants::mutant;

/// How far the clock may go back before the schedule follows it. Below that, instants that have fired do not fire
/// again; beyond it the clock was wrong before, and waiting for it to catch up would stop the job.
const CLOCK_SET_BACK: SignedDuration = SignedDuration::from_hours(1);

/// A fire that has not been divided among the items yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) scheduled: Timestamp,
    /// Noticed too late to be an ordinary fire.
    pub(super) late: bool,
    /// Fires before it were missed as well; the latest of them.
    pub(super) missed: Option<Timestamp>,
    /// Nobody would have told us of another schedule when it came.
    unattended: bool,
}

/// The schedule's progress.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Fires {
    next: Option<Timestamp>,
    latest: Option<Timestamp>,
    /// The latest fire before the first that could come.
    before: Option<Timestamp>,
    last_seen: Option<Timestamp>,
    /// When the participant came to be; its first schedule begins there, so that a fire during its registration is
    /// not missed.
    begin: Option<Timestamp>,
    reschedule: bool,
    /// Since when the present schedule has been asked for, by our clock, if another one was in force before. Its fires
    /// before that are owed to nobody.
    asked_since: Option<Timestamp>,
    due: Option<Due>,
}

impl Fires {
    /// When the job fires next.
    pub(in crate::coordination) fn next(&self) -> Option<Timestamp> {
        self.next
    }

    /// Whether the schedule has fired for the last time.
    pub(in crate::coordination) fn is_over(&self) -> bool {
        self.next.is_none() && !self.reschedule
    }

    /// The schedule of a participant that follows another one, which was there until then or longer.
    pub(in crate::coordination) fn since(since: Timestamp) -> Self {
        Self { last_seen: Some(since), begin: Some(since), reschedule: true, ..Self::default() }
    }

    /// Notes when the participant came to be.
    pub(in crate::coordination) fn begin(&mut self, now: Timestamp) {
        if self.last_seen.is_none() {
            self.last_seen = Some(now);
            self.begin = Some(now);
        }
    }

    /// The schedule may have changed. `since`: when it was written, by our clock.
    pub(in crate::coordination) fn reschedule(
        &mut self,
        before: Option<&Schedule>,
        after: Option<&Schedule>,
        since: Option<Timestamp>,
    ) {
        if before != after {
            self.reschedule = true;
            let since = since.filter(|_| before.is_some());
            self.asked_since = since.filter(|_| !mutant!(ChangedScheduleBeginsWhenRead));
        }
    }

    /// Since when the present schedule has been asked for, by our clock. `None`: as far as we know there was no other.
    pub(in crate::coordination) fn asked_since(&self) -> Option<Timestamp> {
        self.asked_since
    }

    /// The instance owns nothing any more: other instances execute the due fires.
    pub(in crate::coordination) fn forget(&mut self) {
        self.due = None;
    }

    /// The latest fire that has come.
    pub(in crate::coordination) fn latest(&self) -> Option<Timestamp> {
        self.latest
    }

    /// The newest fire that there was, whether we were there or not.
    pub(in crate::coordination) fn newest(&self) -> Option<Timestamp> {
        self.latest.or(self.before)
    }

    /// The instant of an execution of an item that no fire asks for: the present, to the millisecond, which is what the
    /// ledger keeps. After all that has fired, though our clock may be behind another's: it is no execution's that there was.
    pub(in crate::coordination) fn present_of(
        &self,
        cx: &Context,
        ledger: &Ledger,
        executions: &Executions,
        item: Item,
    ) -> Timestamp {
        let now = cx.now;
        // Not rounded up: that may be an instant at which a fire comes.
        let to = TimestampRound::new().smallest(Unit::Millisecond).mode(RoundMode::Floor);
        let present = now.wall.round(to).unwrap_or(now.wall);
        let executing = executions.open.get(&item).map(|open| open.planned.scheduled);
        let starting = executions.what_starts(item).map(|planned| planned.scheduled);
        let fired = ledger.settled(cx, item, now.wall).max(self.newest()).max(executing).max(starting);
        let after = fired.and_then(|fired| fired.checked_add(SignedDuration::from_millis(1)).ok());
        after.map_or(present, |after| after.max(present))
    }

    /// Whether a fire waits to be divided.
    pub(in crate::coordination) fn is_due(&self) -> bool {
        self.due.is_some()
    }

    /// Takes the fire that waits to be divided.
    pub(super) fn take_due(&mut self) -> Option<Due> {
        self.due.take()
    }

    /// Steps the schedule to the present. `attended`: whether we know what the schedule is.
    fn tick(&mut self, now: Timestamp, schedule: Option<&Schedule>, attended: bool) {
        let limit = if mutant!(FiredAgainAfterClockStep) { SignedDuration::ZERO } else { CLOCK_SET_BACK };
        let set_back = self.last_seen.is_some_and(|seen| now.duration_since(seen) < -limit);
        let set_back = set_back && !mutant!(ClockSetBackIgnored);
        self.last_seen = Some(now);
        if set_back {
            self.latest = None;
        }
        if set_back || std::mem::take(&mut self.reschedule) {
            // A schedule that was written while we did not see it has been asked for since then. An instant that has fired
            // does not fire again because the schedule changed.
            let asked = self.asked_since.filter(|_| !set_back).map_or(now, |since| since.min(now));
            let from = self.latest.map_or(asked, |latest| latest.max(asked));
            let from = self.begin.take().map_or(from, |begin| begin.min(from));
            self.next = schedule.and_then(|schedule| schedule.next_after(from));
            self.before = schedule.and_then(|schedule| latest_before(schedule, from));
            let is_fire = |due: &Due| {
                schedule.is_some_and(|schedule| latest_before(schedule, due.scheduled) == Some(due.scheduled))
            };
            self.due.take_if(|due| due.unattended && !is_fire(due));
        }
        let (Some(schedule), Some(first)) = (schedule, self.next) else { return };
        if first > now {
            return;
        }
        let (scheduled, before) = latest_until(schedule, first, now);
        let waiting = self.due.take().map(|due| due.scheduled);
        let late = now.duration_since(scheduled) > MISFIRE_THRESHOLD;
        self.due = Some(Due { scheduled, late, missed: before.or(waiting), unattended: !attended });
        self.latest = Some(scheduled);
        self.next = schedule.next_after(scheduled.max(now));
    }

    /// Takes notice of the fires that have come until now.
    pub(in crate::coordination) fn follow_schedule(&mut self, cx: &Context) {
        let now = cx.now;
        if cx.follows_schedule() {
            let registered = cx.is_registered();
            let schedule = cx.settings.as_ref().and_then(|settings| settings.schedule.as_ref());
            self.tick(now.wall, schedule, registered);
        }
    }
}
