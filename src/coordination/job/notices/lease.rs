//! Until when may the application rely on the session? It is told now and then, and when it asks (P4). Decides only what is
//! told.

use std::time::Duration;

use crate::coordination::job::contract::answer::{Answer, Ticket};
use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::event::{Event, SessionStatus};
use crate::coordination::job::execution::state::State;
use crate::coordination::job::frame::phase::Session;
use crate::coordination::job::participant::Participant;

impl Participant {
    /// Answers an application that asks until when the session may be acted on.
    pub(in crate::coordination) fn answer_lease(&mut self, ticket: Ticket) {
        // An application that has not reported what was lost may still execute it, and may not have read that it is lost:
        // the lease of another session is not for that.
        let lost = self.executions.open.values().any(|open| open.state == State::Lost);
        let (status, lease_end) = match self.cx.session {
            Session::Connected(_) | Session::Suspended(_) if lost => {
                (SessionStatus::Lost, Some(Duration::ZERO))
            }
            Session::Connected(_) => (SessionStatus::Connected, self.lease.end()),
            Session::Suspended(_) => (SessionStatus::Suspended, self.lease.end()),
            Session::None => (SessionStatus::Lost, Some(Duration::ZERO)),
        };
        self.lease.answer(lease_end);
        self.out.push(Effect::Answer(ticket, Answer::Lease { status, lease_end }));
    }

    /// Tells the application until when the session may be acted on, each time a third of what it was told is over.
    pub(in crate::coordination) fn tell_lease(&mut self) {
        let now = self.cx.now;
        // While the registry is away nothing is proven, and what was told stays so.
        let connected = matches!(self.cx.session, Session::Connected(_));
        if !self.cx.assigned.attached || !connected || !self.lease.is_due(now.mono) {
            return;
        }
        let newer = self.lease.is_newer();
        if let Some(lease_end) = self.lease.tell(now.mono)
            && newer
        {
            self.out.tell(&self.cx, Event::LeaseRenewed { lease_end });
        }
    }
}
