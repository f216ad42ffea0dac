//! Has an operator removed this instance's node? That is the command to stop (protocol 2.3), unless the end of the
//! session removed it.

use std::time::Duration;

use crate::coordination::job::contract::effect::EndReason;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::limits::REMOVAL_TAKES;
use crate::coordination::job::frame::phase::{Phase, Verdict};
use crate::coordination::job::lifecycle::Lifecycle;
use crate::coordination::job::picture::nodes::ConfigView;
use crate::mutants::mutant;

impl Lifecycle {
    /// Checks whether this instance's node was removed: a command to stop (protocol 2.3).
    pub(crate) fn check_removal(&mut self, cx: &mut Context) -> Verdict {
        let now = cx.now;
        let settled = self.removal_settles().is_some_and(|at| now.mono >= at);
        if settled && cx.is_connected() {
            self.removed_at = None;
        }
        if cx.is_registered() {
            self.seen = true;
            // The node was not removed: a network had changed the bytes. No other client can create it in this session.
            let stops = Phase::Draining { deadline: None, reason: EndReason::Stopped, cancelled: false };
            if self.removed_at.take().is_some() && cx.phase == stops {
                cx.phase = self.phase_before_stop();
            }
            return Verdict::Continue;
        }
        // Only an instance that the view has shown can have been removed: a snapshot may be older than the
        // registration.
        if !self.seen || !cx.is_connected() || mutant!(StopIgnored) {
            return Verdict::Continue;
        }
        let is_gone = cx.view.class().is_none() || *cx.view.config() == ConfigView::Absent;
        let reason = if is_gone { EndReason::JobRemoved } else { EndReason::Stopped };
        match &cx.phase {
            Phase::Active => {
                self.removed_at = Some(now.mono);
                cx.phase = Phase::Draining { deadline: None, reason, cancelled: false };
            }
            // The rest of the job may be removed after this instance's node.
            Phase::Draining { reason: EndReason::Stopped, deadline, cancelled } => {
                cx.phase = Phase::Draining { reason, deadline: *deadline, cancelled: *cancelled };
            }
            Phase::Detached { .. } | Phase::Reattaching | Phase::Restored => {
                if self.is_restored(cx) {
                    // The application may be about to reattach, and the instance waits for it as before.
                } else if self.has_come_back(cx) {
                    return Verdict::Disconnect(reason);
                } else {
                    // The application that could end the executions has ended.
                    return Verdict::Leave(reason);
                }
            }
            Phase::Joining | Phase::Draining { .. } | Phase::Leaving(_) | Phase::Ended => {}
        }
        Verdict::Continue
    }

    /// Until when (monotonic) the end waits, to learn whether the whole job is being removed, or the session has ended:
    /// a client that closes its session removes the instance's node too, and then its connection breaks.
    pub(crate) fn removal_settles(&self) -> Option<Duration> {
        self.removed_at.map(|at| at.saturating_add(REMOVAL_TAKES))
    }

    /// The phase after what looked like an operator's stop.
    fn phase_before_stop(&self) -> Phase {
        match self.application_stops {
            true => Phase::Draining { deadline: None, reason: EndReason::Detached, cancelled: false },
            false => Phase::Active,
        }
    }

    /// The session is lost. If the instance's node was removed just before, the end of the session removed it, and not
    /// an operator.
    pub(crate) fn forget_removal(&mut self, cx: &mut Context) {
        self.seen = false;
        if self.removed_at.take().is_none() {
            return;
        }
        if let Phase::Draining { reason: reason @ EndReason::Stopped, deadline, cancelled } = &mut cx.phase {
            if deadline.is_some() || *cancelled {
                *reason = EndReason::Drained;
            } else {
                cx.phase = self.phase_before_stop();
            }
        }
    }
}
