//! What if the application's stream breaks? A job may ask that its instance stays for a while (`sidekeeper.grace`), and is
//! taken over by the application's next stream (P6).
//!
//! Meanwhile the instance is away: its nodes stay, nothing new starts, fires are missed and made up for on return, and
//! nobody is told anything. Whoever comes back is told everything as at the start, and then the executions that are
//! still open, with their ids and tokens; if nobody does, the instance leaves as if there were no grace. A session that
//! is lost ends it at once: the executions are lost, and there is nobody to tell (P4).
//!
//! An instance that is to leave anyway, because its sidecar stops or an operator wants it to, does not come back from
//! that. But its application goes on for the grace, and nobody can tell it to stop: so it leaves when that is over (P2).

use std::time::Duration;

use crate::mutants::mutant;

use crate::coordination::job::contract::answer::CompletionStatus;
use crate::coordination::job::contract::effect::EndReason;
use crate::coordination::job::contract::plan::Source;
use crate::coordination::job::contract::reattach::Return;
use crate::coordination::job::execution::state::State;
use crate::coordination::job::firing::trigger::Trigger;
use crate::coordination::job::frame::phase::{Phase, Session};
use crate::coordination::job::participant::Participant;

impl Participant {
    /// Whether another stream of the application may take this participant over.
    pub fn may_resume(&self) -> bool {
        if self.is_heir() {
            return true;
        }
        let session = match self.cx.session {
            Session::Connected(id) | Session::Suspended(id) => Some(id),
            Session::None => None,
        };
        let registered = self.cx.registered.is_some() && self.cx.registered == session;
        let there = matches!(self.cx.phase, Phase::Active | Phase::Away { .. });
        there && registered && self.cx.assigned.attached && !self.cx.grace().is_zero()
    }

    /// The application's stream has broken.
    pub(in crate::coordination) fn detach(&mut self) {
        let now = self.cx.now;
        self.cx.unattended = self.goes_on_until();
        if self.misses_again() {
            return;
        }
        if !self.may_resume() {
            self.leave(EndReason::Detached);
            return;
        }
        self.settle_lost();
        self.retries.take_back_retries(&self.cx, &self.executions, &mut self.agenda);
        for (item, planned) in self.agenda.withdraw_all() {
            match planned.source {
                Source::Schedule | Source::Misfire => {
                    self.agenda.miss(&self.cx, &mut self.out, item, planned.scheduled)
                }
                // The nodes that ask for them are still there.
                Source::Trigger | Source::Failover => {}
            }
        }
        self.trigger = Trigger::default();
        self.cx.phase = Phase::Away { until: Some(now.mono.saturating_add(self.cx.grace())) };
    }

    /// Whoever was told to stop what is lost has gone.
    pub(in crate::coordination) fn settle_lost(&mut self) {
        let lost = self.executions.open.iter().filter(|(_, open)| open.state == State::Lost);
        for item in lost.map(|(item, _)| *item).collect::<Vec<_>>() {
            self.executions.settle(item, CompletionStatus::LeaseLost, &mut self.out);
        }
    }

    /// Until when (monotonic) an application that has just lost its stream may go on, whatever becomes of the instance:
    /// for the grace, and no longer than the lease that it was told. `None`: it stops at once.
    pub(in crate::coordination) fn goes_on_until(&self) -> Option<Duration> {
        let now = self.cx.now;
        let until = Some(self.cx.grace()).filter(|grace| !grace.is_zero())?.saturating_add(now.mono);
        // What the former process has told is over before our own lease is.
        let lease = self.lease.told().or(self.heritage.as_ref().and_then(|_| self.lease.end()));
        Some(lease.map_or(until, |lease| lease.min(until)))
    }

    /// The application has a stream again.
    pub(in crate::coordination) fn reattach(&mut self, back: Return) {
        if self.welcome(back).is_none() {
            return;
        }
        if self.may_resume() {
            self.cx.unattended = None;
            self.cx.phase = Phase::Away { until: None };
        } else {
            // What happened in the same moment has taken its place away; it attaches anew.
            self.turn_away(EndReason::Detached);
        }
    }

    /// Ends the absence: with everything if the application is back, by leaving if its time is over.
    pub(in crate::coordination) fn mind_grace(&mut self) {
        let now = self.cx.now;
        let Phase::Away { until } = self.cx.phase else { return };
        if self.is_heir() {
            self.mind_heritage();
            return;
        }
        let is_over = until.is_some_and(|until| now.mono >= until) && !mutant!(GraceEndless);
        if is_over {
            // Its items have waited for it; a name is not waited for once more.
            self.names.leaves_for_good();
        }
        if self.cx.session == Session::None || is_over {
            self.leave(EndReason::Detached);
        } else if until.is_none() && self.cx.is_registered() {
            self.cx.phase = Phase::Active;
            self.cx.assigned.renew();
            self.told.renew();
            self.lease.tell_again();
        }
    }

    /// When the absence ends; monotonic.
    pub(in crate::coordination) fn grace_ends(&self) -> Option<Duration> {
        match self.cx.phase {
            Phase::Away { until } => until,
            Phase::Joining | Phase::Active | Phase::Draining { .. } | Phase::Leaving(_) | Phase::Ended => {
                None
            }
        }
    }
}
