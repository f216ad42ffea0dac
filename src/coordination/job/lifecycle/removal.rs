//! Has somebody removed our node? That is an operator's command to stop (protocol 2.3), unless our session goes with it.

use std::time::Duration;

use crate::coordination::job::contract::effect::EndReason;
use crate::coordination::job::frame::limits::REMOVAL_TAKES;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::participant::Participant;
use crate::coordination::job::picture::nodes::ConfigView;
use crate::mutants::mutant;

/// The observations of our node.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Removal {
    /// Whether the view has shown our instance since it was registered in this session.
    seen: bool,
    /// When our node was removed; monotonic. `None`: it was not, or it is settled what that means.
    removed_at: Option<Duration>,
}

impl Removal {
    /// Our instance is there, or was when the former process had it.
    pub(in crate::coordination) fn was_seen(&mut self) {
        self.seen = true;
    }

    /// There is another session, in which nothing was seen.
    pub(in crate::coordination) fn forget_session(&mut self) {
        self.seen = false;
    }
}

impl Participant {
    /// Somebody removed our instance's node: a command to stop (protocol 2.3).
    pub(in crate::coordination) fn notice_removal(&mut self) {
        let now = self.cx.now;
        let settled = self.removal_settles().is_some_and(|at| now.mono >= at);
        if settled && self.cx.is_connected() {
            self.removal.removed_at = None;
        }
        if self.cx.is_registered() {
            self.removal.seen = true;
            // It is there after all: a network had changed the bytes. Nobody else can create it in our session.
            let stops = Phase::Draining { deadline: None, reason: EndReason::Stopped, cancelled: false };
            if self.removal.removed_at.take().is_some() && self.cx.phase == stops {
                self.cx.phase = Phase::Active;
            }
            return;
        }
        // Only an instance that was seen can have been removed: a snapshot may be older than our registration.
        if !self.removal.seen || !self.cx.is_connected() || mutant!(StopIgnored) {
            return;
        }
        let is_gone = self.cx.view.class().is_none() || *self.cx.view.config() == ConfigView::Absent;
        let reason = if is_gone { EndReason::JobRemoved } else { EndReason::Stopped };
        match &self.cx.phase {
            Phase::Active => {
                self.removal.removed_at = Some(now.mono);
                self.cx.phase = Phase::Draining { deadline: None, reason, cancelled: false };
            }
            // The rest of the job may go after our node.
            Phase::Draining { reason: EndReason::Stopped, deadline, cancelled } => {
                self.cx.phase = Phase::Draining { reason, deadline: *deadline, cancelled: *cancelled };
            }
            // The application may be on its way back, and the instance waits for it as before.
            Phase::Away { .. } if self.is_heir() => {}
            Phase::Away { .. } if self.has_come_back() => self.turn_away(reason),
            // No application is there that could end the executions.
            Phase::Away { .. } => self.leave(reason),
            Phase::Joining | Phase::Draining { .. } | Phase::Leaving(_) | Phase::Ended => {}
        }
    }

    /// Until when (monotonic) the end waits, so that the removal of the whole job is known from that of our node, and so
    /// is the end of our session: a client that closes it removes our node, too, and then its connection breaks.
    pub(in crate::coordination) fn removal_settles(&self) -> Option<Duration> {
        self.removal.removed_at.map(|at| at.saturating_add(REMOVAL_TAKES))
    }

    /// The session is lost. If our node went just before, it went with the session, and nobody wants us to stop.
    pub(in crate::coordination) fn forget_removal(&mut self) {
        if self.removal.removed_at.take().is_none() {
            return;
        }
        if let Phase::Draining { reason: reason @ EndReason::Stopped, deadline, cancelled } =
            &mut self.cx.phase
        {
            if deadline.is_some() || *cancelled {
                *reason = EndReason::Drained;
            } else {
                self.cx.phase = Phase::Active;
            }
        }
    }
}
