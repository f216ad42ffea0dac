//! From the instant of the schedule to the transaction that starts items.
//!
//! This file has the interface of the room; each question has a file of its own.

mod catch_up;
mod fire;
mod item_trigger;
mod misfire;
mod schedule;
mod start;
mod trigger;

use jiff::Timestamp;

use crate::coordination::job::agenda::Agenda;
use crate::coordination::job::execution::Executions;
use crate::coordination::job::execution::checkpoint::Checkpoints;
use crate::coordination::job::execution::retry::Retries;
use crate::coordination::job::firing::misfire::Misfires;
use crate::coordination::job::firing::schedule::Fires;
pub(crate) use crate::coordination::job::firing::start::{resolve, start_failed, started};
use crate::coordination::job::firing::trigger::Trigger;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::item_lock::ItemLocks;
use crate::coordination::job::ledger::{Ledger, Reread};
use crate::coordination::job::membership::Membership;
use crate::coordination::job::once::Once;
use crate::coordination::job::ownership::Ownership;
use crate::coordination::job::picture::settings::Rescheduled;
use crate::coordination::job::rotation::Rotation;
use crate::tree::CommitError;

/// The progress of the schedule, the trigger, and the flags in flight.
#[derive(Debug, Default)]
pub(crate) struct Firing {
    fires: Fires,
    misfires: Misfires,
    trigger: Trigger,
}

impl Firing {
    /// The state of an instance that was online at this instant and before.
    pub(crate) fn since(since: Timestamp) -> Self {
        Self { fires: Fires::since(since), ..Self::default() }
    }

    /// Begins anew: the schedule counts from this instant, and nothing is planned.
    pub(crate) fn begin_anew(&mut self, since: Timestamp, agenda: &mut Agenda) {
        self.fires = Fires::since(since);
        self.misfires = Misfires::default();
        agenda.forget();
    }

    /// Records when the participant began.
    pub(crate) fn begin(&mut self, now: Timestamp) {
        self.fires.begin(now);
    }

    /// When the next fire comes, or a missed fire has to be flagged.
    pub(crate) fn next(&self, now: Timestamp) -> Option<Timestamp> {
        // A flag that is due waits for a commit, which ends with a step of its own.
        let flag = self.misfires.next_flag().filter(|at| *at > now);
        self.fires.next().into_iter().chain(flag).min()
    }

    /// Whether the schedule has fired for the last time.
    pub(crate) fn is_over(&self) -> bool {
        self.fires.is_over()
    }

    /// The configuration has changed.
    pub(crate) fn reschedule(&mut self, cx: &Context, change: Rescheduled) {
        let schedule = cx.settings.as_ref().and_then(|settings| settings.schedule.as_ref());
        self.fires.reschedule(change.before.as_ref(), schedule, change.since);
    }

    #[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
    pub(crate) fn fire(
        &mut self,
        cx: &Context,
        ledger: &Ledger,
        rotation: &Rotation,
        executions: &mut Executions,
        ownership: &Ownership,
        once: &Once,
        agenda: &mut Agenda,
        out: &mut Outbox,
    ) {
        let misfires = &self.misfires;
        self.fires.fire(cx, ledger, rotation, executions, ownership, once, misfires, agenda, out);
    }

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
        self.fires.catch_up(cx, ledger, membership, executions, once, agenda, out);
    }

    pub(crate) fn forget_overtaken(
        &self,
        cx: &Context,
        ledger: &Ledger,
        executions: &Executions,
        agenda: &mut Agenda,
        out: &mut Outbox,
        reread: &Reread,
    ) {
        self.fires.forget_overtaken(cx, ledger, executions, agenda, out, reread);
    }

    /// Plans the executions that a trigger asks for.
    #[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
    pub(crate) fn apply_trigger(
        &mut self,
        cx: &Context,
        ledger: &Ledger,
        executions: &mut Executions,
        locks: &ItemLocks,
        once: &Once,
        agenda: &mut Agenda,
        out: &mut Outbox,
    ) {
        self.trigger.apply_trigger(cx, ledger, executions, locks, once, &self.fires, agenda, out);
    }

    /// Plans the executions that the triggers of items ask for.
    pub(crate) fn apply_item_triggers(
        &self,
        cx: &Context,
        ledger: &Ledger,
        executions: &mut Executions,
        locks: &ItemLocks,
        agenda: &mut Agenda,
    ) {
        item_trigger::plan(cx, ledger, executions, locks, &self.fires, agenda);
    }

    /// Deletes the triggers of items whose executions have ended.
    pub(crate) fn end_item_triggers(
        &self,
        cx: &Context,
        executions: &Executions,
        retries: &Retries,
        agenda: &Agenda,
        out: &mut Outbox,
    ) {
        item_trigger::end(cx, executions, retries, agenda, out);
    }

    /// The instance ignores triggers for a while; afterwards it looks at the request again.
    pub(crate) fn forget_trigger(&mut self) {
        self.trigger = Trigger::default();
    }

    pub(crate) fn flag_misfires(
        &mut self,
        cx: &Context,
        ledger: &Ledger,
        executions: &Executions,
        agenda: &mut Agenda,
        out: &mut Outbox,
    ) {
        self.misfires.flag_misfires(cx, ledger, executions, agenda, out);
    }

    pub(crate) fn flagged(&mut self, ledger: &mut Ledger) {
        self.misfires.flagged(ledger);
    }

    pub(crate) fn flag_failed(&mut self, ledger: &mut Ledger, error: &CommitError) {
        self.misfires.flag_failed(ledger, error);
    }

    #[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
    pub(crate) fn start(
        &self,
        cx: &Context,
        executions: &mut Executions,
        ledger: &mut Ledger,
        rotation: &Rotation,
        retries: &mut Retries,
        checkpoints: &Checkpoints,
        locks: &mut ItemLocks,
        once: &Once,
        agenda: &mut Agenda,
        out: &mut Outbox,
    ) {
        let (fires, misfires) = (&self.fires, &self.misfires);
        start::start(
            cx,
            executions,
            ledger,
            rotation,
            retries,
            checkpoints,
            locks,
            once,
            fires,
            misfires,
            agenda,
            out,
        );
    }

    /// The session is lost: this instance owns no item to fire.
    pub(crate) fn lose_session(&mut self) {
        self.fires.forget();
        self.misfires = Misfires::default();
        self.trigger = Trigger::default();
    }
}
