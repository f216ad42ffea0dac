//! Which fires have come? The schedule steps to the present, and finds them.
//!
//! The schedule counts from the moment when its configuration was written, by this machine's clock. So an instance that
//! could not read the configuration at that time has missed its fires, and re-runs them. The registry's time stamps are
//! compared with this clock by `picture/registry_clock.rs`.
//!
//! A clock that goes back does not fire again, unless it was set back by more than [`CLOCK_SET_BACK`].

use jiff::{RoundMode, SignedDuration, Timestamp, TimestampRound, Unit};

use crate::coordination::job::execution::Executions;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::limits::MISFIRE_THRESHOLD;
use crate::coordination::job::ledger::Ledger;
use crate::coordination::job::picture::schedule::{latest_before, latest_until};
use crate::coordination::job::picture::settings::Schedule;
use crate::job::Item;
use crate::mutants::mutant;

/// How far the clock may go back before the schedule follows it. Below that, instants that have fired do not fire
/// again. Beyond it the clock was wrong before, and the job would stand still until the clock has caught up.
const CLOCK_SET_BACK: SignedDuration = SignedDuration::from_hours(1);
/// The least time between the instants of two executions of an item: the ledger counts milliseconds.
pub(super) const INSTANTS_APART: SignedDuration = SignedDuration::from_millis(1);

/// A fire that has not been dispatched to the items yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Due {
    scheduled: Timestamp,
    late: bool,
    /// The latest of the fires before it that were missed as well.
    missed: Option<Timestamp>,
    /// Whether this instance could not have known of another schedule when the fire came.
    unattended: bool,
}

impl Due {
    pub(super) fn scheduled(&self) -> Timestamp {
        self.scheduled
    }

    /// Whether it was noticed too late to be an ordinary fire.
    pub(super) fn is_late(&self) -> bool {
        self.late
    }

    /// The latest of the fires before it that were missed as well.
    pub(super) fn missed(&self) -> Option<Timestamp> {
        self.missed
    }
}

/// The schedule's progress.
#[derive(Debug, Default)]
pub(crate) struct Fires {
    next: Option<Timestamp>,
    latest: Option<Timestamp>,
    /// The latest fire before the first that could come.
    before: Option<Timestamp>,
    last_seen: Option<Timestamp>,
    /// When the participant began; its first schedule begins there, so that a fire during its registration is not
    /// missed.
    begin: Option<Timestamp>,
    reschedule: bool,
    /// When the present schedule was written, by this clock, if another one was in force before. Earlier fires of the
    /// present schedule do not count as missed.
    asked_since: Option<Timestamp>,
    due: Option<Due>,
}

impl Fires {
    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.next
    }

    /// Whether the schedule has fired for the last time.
    pub(crate) fn is_over(&self) -> bool {
        self.next.is_none() && !self.reschedule
    }

    /// The schedule of an instance that was online at this instant and before.
    pub(crate) fn since(since: Timestamp) -> Self {
        Self { last_seen: Some(since), begin: Some(since), reschedule: true, ..Self::default() }
    }

    /// Records when the participant began.
    pub(crate) fn begin(&mut self, now: Timestamp) {
        if self.last_seen.is_none() {
            self.last_seen = Some(now);
            self.begin = Some(now);
        }
    }

    /// The schedule may have changed. `since`: when it was written, by this clock.
    pub(crate) fn reschedule(
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

    /// When the present schedule was written, by this clock. `None`: no other schedule is known.
    pub(crate) fn asked_since(&self) -> Option<Timestamp> {
        self.asked_since
    }

    /// The instance owns nothing any more: other instances execute the due fires.
    pub(crate) fn forget(&mut self) {
        self.due = None;
    }

    /// The latest fire that has come.
    pub(crate) fn latest(&self) -> Option<Timestamp> {
        self.latest
    }

    /// The newest fire of the schedule, also if this instance was not online.
    pub(crate) fn newest(&self) -> Option<Timestamp> {
        self.latest.or(self.before)
    }

    /// The instant of an execution that belongs to no fire: the present, in milliseconds, as in the ledger. It lies
    /// after all fires that have come, also if this clock is behind another one: no other execution has this instant.
    pub(crate) fn present_of(
        &self,
        cx: &Context,
        ledger: &Ledger,
        executions: &Executions,
        item: Item,
    ) -> Timestamp {
        let now = cx.now;
        // Not rounded up: a fire may come at that instant.
        let to = TimestampRound::new().smallest(Unit::Millisecond).mode(RoundMode::Floor);
        let present = now.wall.round(to).unwrap_or(now.wall);
        let executing = executions.get(item).map(|open| open.planned().scheduled);
        let starting = executions.starting_of(item).map(|planned| planned.scheduled);
        let fired = ledger.settled(cx, item, now.wall).max(self.newest()).max(executing).max(starting);
        let after = fired.and_then(|fired| fired.checked_add(INSTANTS_APART).ok());
        after.map_or(present, |after| after.max(present))
    }

    /// Whether a fire waits to be dispatched.
    pub(crate) fn is_due(&self) -> bool {
        self.due.is_some()
    }

    /// Whether this fire waits to be dispatched.
    pub(crate) fn waits(&self, fire: Timestamp) -> bool {
        self.due.as_ref().is_some_and(|due| due.scheduled == fire)
    }

    /// Takes the fire that waits to be dispatched.
    pub(super) fn take_due(&mut self) -> Option<Due> {
        self.due.take()
    }

    /// Steps the schedule to the present. `attended`: whether this instance knows the present schedule.
    fn tick(&mut self, now: Timestamp, schedule: Option<&Schedule>, attended: bool) {
        let limit = if mutant!(FiredAgainAfterClockStep) { SignedDuration::ZERO } else { CLOCK_SET_BACK };
        let set_back = self.last_seen.is_some_and(|seen| now.duration_since(seen) < -limit);
        let set_back = set_back && !mutant!(ClockSetBackIgnored);
        self.last_seen = Some(now);
        if set_back {
            self.latest = None;
        }
        if set_back || std::mem::take(&mut self.reschedule) {
            // A schedule that was written while this instance could not read it counts from then. An instant that has
            // fired does not fire again because the schedule changed.
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

    /// Finds the fires that have come until now.
    pub(crate) fn follow_schedule(&mut self, cx: &Context) {
        let now = cx.now;
        if cx.follows_schedule() {
            let registered = cx.is_registered();
            let schedule = cx.settings.as_ref().and_then(|settings| settings.schedule.as_ref());
            self.tick(now.wall, schedule, registered);
        }
    }
}
