//! The application's stream breaks. A job may ask that its instance stays for `reattach_grace`
//! (`sidekeeper.grace`), and that the application's next stream reattaches to it (P6). So one participant may have
//! several streams, one after another.
//!
//! In the meantime the instance is *detached*: its nodes stay, nothing new starts, its fires are missed and re-run
//! later, and nothing is sent. A stream that reattaches gets everything as at the start, and then the executions
//! that are still open (`resumed`), with their ids and tokens, and a pending `Cancel` again: the participant forgets
//! its messages, and not its state. The participant decides whether a stream may reattach;
//! `runner/attachments/reattach.rs` only finds the participant and compares the requests. A stream without an
//! `application_id`, or with another job class, name, configuration or profile, does not reattach: it waits a few
//! seconds for the instance to leave. If no stream reattaches, the instance leaves when the grace ends, as if there
//! were none (`departure`). If the session is lost the instance ends at once: the executions are lost, and there is
//! no stream for a message (P4).
//!
//! An instance that is leaving when its stream breaks, because its sidecar stops or after an operator's stop, does
//! not accept another stream. But its application goes on for the grace, and no message can stop it: so the instance
//! leaves when the grace is over (P2).

use std::time::Duration;

use crate::coordination::job::agenda::Agenda;
use crate::coordination::job::contract::effect::EndReason;
use crate::coordination::job::contract::plan::Source;
use crate::coordination::job::contract::reattach::Return;
use crate::coordination::job::execution::Executions;
use crate::coordination::job::execution::retry::Retries;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::{Phase, Session, Verdict};
use crate::coordination::job::lifecycle::Lifecycle;
use crate::coordination::job::lifecycle::departure::leave;
use crate::coordination::job::membership::Membership;
use crate::coordination::lease::Lease;
use crate::mutants::mutant;

impl Lifecycle {
    /// Whether another stream of the application may reattach to this instance.
    pub(crate) fn may_reattach(&self, cx: &Context) -> bool {
        if self.is_restored(cx) {
            return true;
        }
        let registered = cx.registered.is_some() && cx.registered == cx.session.id();
        let may_stay = cx.phase == Phase::Active || cx.phase.is_detached();
        may_stay && registered && cx.assigned.attached && !cx.grace().is_zero()
    }

    /// The application's stream has broken. Returns whether the instance waits for another one.
    pub(crate) fn detach(
        &mut self,
        cx: &mut Context,
        lease: &Lease,
        agenda: &mut Agenda,
        executions: &mut Executions,
        retries: &mut Retries,
        out: &mut Outbox,
    ) -> bool {
        cx.unattended = self.goes_on_until(cx, lease);
        if self.detach_again(cx) {
            return true;
        }
        if !self.may_reattach(cx) {
            leave(cx, executions, EndReason::Detached);
            return false;
        }
        executions.settle_lost(out);
        retries.take_back_retries(cx, executions, agenda);
        for (item, planned) in agenda.withdraw_all() {
            match planned.source {
                Source::Schedule | Source::Misfire => agenda.miss(cx, out, item, planned.scheduled),
                // The nodes that ask for these executions still exist.
                Source::Trigger | Source::Failover => {}
            }
        }
        cx.phase = Phase::Detached { until: cx.now.mono.saturating_add(cx.grace()) };
        true
    }

    /// Until when (monotonic) an application that has just lost its stream may go on: for `reattach_grace`, and no
    /// longer than the lease that was sent to it. `None`: it stops at once.
    pub(crate) fn goes_on_until(&self, cx: &Context, lease: &Lease) -> Option<Duration> {
        let until = Some(cx.grace()).filter(|grace| !grace.is_zero())?.saturating_add(cx.now.mono);
        // The lease that the former process sent ends before the present lease does.
        let notified = lease.notified().or(self.restart.as_ref().and_then(|_| lease.end()));
        Some(notified.map_or(until, |notified| notified.min(until)))
    }

    /// The application has reattached with a new stream.
    pub(crate) fn reattach(&mut self, cx: &mut Context, back: Return) -> Verdict {
        if self.welcome(cx, back).is_none() {
            return Verdict::Continue;
        }
        if !self.may_reattach(cx) {
            // Another input of the same step has ended the wait; the application attaches anew.
            return Verdict::Disconnect(EndReason::Detached);
        }
        cx.unattended = None;
        cx.phase = Phase::Reattaching;
        Verdict::Continue
    }

    /// Ends the wait of a detached instance: it leaves if the grace is over, and goes on if the application has
    /// reattached. Returns whether it goes on, so that everything is sent again.
    pub(crate) fn check_reattach_grace(
        &mut self,
        cx: &mut Context,
        membership: &mut Membership,
        executions: &Executions,
    ) -> bool {
        let is_over = match cx.phase {
            Phase::Detached { until } => cx.now.mono >= until && !mutant!(GraceEndless),
            Phase::Reattaching => false,
            Phase::Restored | Phase::Joining | Phase::Active => return false,
            Phase::Draining { .. } | Phase::Leaving(_) | Phase::Ended => return false,
        };
        if is_over {
            // Its items were reserved for `reattach_grace` already; its name gets no second reservation.
            membership.leaves_for_good();
        }
        if cx.session == Session::None || is_over {
            leave(cx, executions, EndReason::Detached);
        } else if cx.phase == Phase::Reattaching && cx.is_registered() {
            cx.phase = Phase::Active;
            return true;
        }
        false
    }
}
