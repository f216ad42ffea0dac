//! Due fires. Decides for each fire and each item: start it, or count it as missed (protocol 6.5; P5).
//!
//! ElasticJob's rule: a fire that cannot be executed at its time is made up for by one execution, however many were
//! missed, if the job has `misfire` on; otherwise it is skipped. We make up for it as soon as the item is free (see
//! `misfire`), where Java peers wait for the next fire (H8 to H10).

use crate::coordination::job::agenda::Agenda;
use crate::coordination::job::contract::plan::{Planned, Source};
use crate::coordination::job::execution::state::Executions;
use crate::coordination::job::firing::misfire::{Misfires, miss_unavailable, owes};
use crate::coordination::job::firing::schedule::Fires;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::ledger::Ledger;
use crate::coordination::job::once::state::Guarantee;
use crate::coordination::job::ownership::handoff_release::Handoff;
use crate::coordination::job::rotation::{Relay, Turn};
use crate::mutants::mutant;

impl Fires {
    /// Follows the schedule, and decides what each fire means for each item.
    #[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
    pub(in crate::coordination) fn fire(
        &mut self,
        cx: &Context,
        ledger: &Ledger,
        relay: &Relay,
        executions: &mut Executions,
        handoff: &Handoff,
        guarantee: &Guarantee,
        misfires: &Misfires,
        agenda: &mut Agenda,
        out: &mut Outbox,
    ) {
        if !cx.follows_schedule() {
            return;
        }
        self.follow_schedule(cx);
        if !cx.is_registered() {
            return;
        }
        miss_unavailable(cx, ledger, executions, handoff, self, agenda, out);
        let resharding = cx.view.is_resharding() && !mutant!(StartedWhileResharding);
        // A fire that comes while the instance owns nothing is not kept for later items: the ledger tells the missed fires of those.
        let concerned = cx.is_relay() || cx.assigned.executable().next().is_some();
        if resharding || (concerned && !ledger.is_ledger_read(cx)) || relay.turn(cx) == Turn::Changing {
            return;
        }
        self.divide_due(cx, ledger, relay, executions, guarantee, agenda, out);
        misfires.plan_misfires(cx, ledger, relay, executions, guarantee, self, agenda);
    }

    #[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
    fn divide_due(
        &mut self,
        cx: &Context,
        ledger: &Ledger,
        relay: &Relay,
        executions: &mut Executions,
        guarantee: &Guarantee,
        agenda: &mut Agenda,
        out: &mut Outbox,
    ) {
        let now = cx.now;
        let Some(due) = self.take_due() else { return };
        let active = cx.phase == Phase::Active;
        let items: Vec<_> = cx.assigned.executable().map(|assigned| assigned.item).collect();
        for item in items {
            let planned = agenda.planned(item).is_some_and(|planned| planned.scheduled >= due.scheduled);
            if planned
                || ledger.was_started(cx, item, due.scheduled, now.wall)
                || agenda.has_missed(item, due.scheduled)
                || relay.came_before_turn(cx, due.scheduled)
            {
                continue;
            }
            let free = active && !executions.is_busy(cx, agenda, item) && !agenda.is_planned(item);
            let in_time = free && !due.late && !guarantee.is_round_open();
            if !in_time {
                executions.suspect(cx, item);
            }
            if !in_time || owes(cx, guarantee, agenda, item) {
                agenda.miss(cx, out, item, due.scheduled);
                continue;
            }
            let planned = Planned::new(Source::Schedule, due.scheduled);
            agenda.plan(item, planned);
            // Somebody else may have executed that one before the item was ours.
            if let Some(missed) = due.missed.filter(|missed| !ledger.was_started(cx, item, *missed, now.wall))
            {
                agenda.miss(cx, out, item, missed);
            }
        }
    }
}
