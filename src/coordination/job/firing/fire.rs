//! Due fires. Decides for each fire and each item: start it, or count it as missed (protocol 6.5; P5).
//!
//! ElasticJob's rule: if the job has `misfire` on, one execution re-runs all fires that could not be executed at their
//! time; otherwise they are skipped. A sidecar re-runs them as soon as the item is free (see `misfire`), where Java
//! peers wait for the next fire (H8 to H10).

use crate::coordination::job::agenda::Agenda;
use crate::coordination::job::contract::plan::{Planned, Source};
use crate::coordination::job::execution::Executions;
use crate::coordination::job::firing::misfire::{Misfires, has_unsettled, miss_unavailable};
use crate::coordination::job::firing::schedule::Fires;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::ledger::Ledger;
use crate::coordination::job::once::Once;
use crate::coordination::job::ownership::Ownership;
use crate::coordination::job::rotation::{Rotation, Turn};
use crate::mutants::mutant;

impl Fires {
    /// Steps the schedule, and dispatches each due fire to the items.
    #[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
    pub(crate) fn fire(
        &mut self,
        cx: &Context,
        ledger: &Ledger,
        rotation: &Rotation,
        executions: &mut Executions,
        ownership: &Ownership,
        once: &Once,
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
        miss_unavailable(cx, ledger, executions, ownership, self, agenda, out);
        let resharding = cx.view.is_resharding() && !mutant!(StartedWhileResharding);
        // A fire that comes while the instance owns nothing is not kept for later items: the ledger has the missed
        // fires of those.
        let concerned = cx.rotates() || cx.assigned.executable().next().is_some();
        if resharding || (concerned && !ledger.is_ledger_read(cx)) || rotation.turn(cx) == Turn::Changing {
            return;
        }
        self.plan_due(cx, ledger, rotation, executions, once, agenda, out);
        misfires.plan_misfires(cx, ledger, rotation, executions, once, self, agenda);
    }

    #[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
    fn plan_due(
        &mut self,
        cx: &Context,
        ledger: &Ledger,
        rotation: &Rotation,
        executions: &mut Executions,
        once: &Once,
        agenda: &mut Agenda,
        out: &mut Outbox,
    ) {
        let now = cx.now;
        let Some(due) = self.take_due() else { return };
        let active = cx.phase == Phase::Active;
        let items: Vec<_> = cx.assigned.executable().map(|assigned| assigned.item).collect();
        for item in items {
            let planned = agenda.planned(item).is_some_and(|planned| planned.scheduled >= due.scheduled());
            if planned
                || ledger.was_started(cx, item, due.scheduled(), now.wall)
                || agenda.has_missed(item, due.scheduled())
                || rotation.came_before_turn(cx, due.scheduled())
            {
                continue;
            }
            let free = active && !executions.is_busy(cx, agenda, item) && !agenda.is_planned(item);
            let in_time = free && !due.is_late() && !once.is_round_open();
            if !in_time {
                executions.suspect(cx, item);
            }
            if !in_time || has_unsettled(cx, once, agenda, item) {
                agenda.miss(cx, out, item, due.scheduled());
                continue;
            }
            let planned = Planned::new(Source::Schedule, due.scheduled());
            agenda.plan(item, planned);
            // Another instance may have executed that fire before this one owned the item.
            if let Some(missed) =
                due.missed().filter(|missed| !ledger.was_started(cx, item, *missed, now.wall))
            {
                agenda.miss(cx, out, item, missed);
            }
        }
    }
}
