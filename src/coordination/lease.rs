//! Is our session surely alive? A lease on the monotonic clock (P4).
//!
//! The registry ends a session when it has not heard from it for the session's timeout. It has heard from it, at the
//! earliest, when the last request that it answered was *sent*; a safety margin before that time is over, the
//! participant gives up by itself: whatever the network says later, the application has been told.
//!
//! Decides only when that is. It is looked at before anything else that has happened: a process that was asleep for
//! longer than its lease must learn that first, also if news of the registry wait for it.
//!
//! A process that is stopped for that long cannot tell its application so. Therefore the application is told now and
//! then when the lease ends, and stops by itself what it executes when that is over without newer word.

use std::time::Duration;

use crate::mutants::mutant;

use crate::coordination::job::contract::answer::Answer;
use crate::coordination::job::contract::answer::Ticket;
use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::event::{Event, SessionStatus};
use crate::coordination::job::execution::state::State;
use crate::coordination::job::frame::phase::Session;
use crate::coordination::job::participant::Participant;
use crate::coordination::time::Now;

/// The part of what the application was told after which it is told again, as a divisor: if one word is late, there is
/// still time for another.
const TELL_PART: u32 = 3;
/// The shortest time between two words, also if little of the lease is left.
const TELL_INTERVAL_MIN: Duration = Duration::from_millis(50);

/// Until when the session may be acted on; all times are monotonic.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Lease {
    /// `None`: nothing is known to end it.
    until: Option<Duration>,
    /// The end that the application was told last.
    told: Option<Duration>,
    /// When to look whether it is to be told a later one. `None`: at once.
    tell_at: Option<Duration>,
    /// The end that it was given last when it asked.
    answered: Option<Duration>,
}

impl Lease {
    /// The registry has answered: the session may be acted on until then.
    pub(in crate::coordination) fn renew(&mut self, until: Duration) {
        self.until = self.until.max(Some(until));
    }

    /// How long it may be acted on without further word. `None`: not known.
    pub(in crate::coordination) fn remaining(&self, now: Duration) -> Option<Duration> {
        self.until.map(|until| until.saturating_sub(now))
    }

    /// When it ends, unless the registry answers before.
    pub(in crate::coordination) fn end(&self) -> Option<Duration> {
        self.until
    }

    /// The latest end that the application was told, or given when it asked. `None`: it was told none.
    pub(in crate::coordination) fn told(&self) -> Option<Duration> {
        self.told.max(self.answered)
    }

    /// How often an application asks that counts its lease by the answers.
    pub(in crate::coordination) fn renewal_interval(&self, now: Duration) -> Option<Duration> {
        self.remaining(now).map(|left| (left / TELL_PART).max(TELL_INTERVAL_MIN))
    }

    /// When to look whether the application is to be told a later end.
    pub(in crate::coordination) fn next_word(&self) -> Option<Duration> {
        self.tell_at
    }

    /// Another stream has been told nothing yet.
    pub(in crate::coordination) fn tell_again(&mut self) {
        (self.told, self.tell_at, self.answered) = (None, None, None);
    }

    /// Takes note that the application is told now when it ends; gives that.
    pub(in crate::coordination) fn tell(&mut self, now: Duration) -> Option<Duration> {
        self.told = self.until;
        self.tell_at = self.renewal_interval(now).map(|interval| now.saturating_add(interval));
        self.until
    }
}

impl Participant {
    /// Gives the session up if it cannot be proven alive any more.
    pub(in crate::coordination) fn mind_lease(&mut self, now: Now) {
        let over = self.lease.until.is_some_and(|until| now.mono >= until);
        if over && self.session != Session::None && !mutant!(LeaseIgnored) {
            self.effects.push(Effect::GiveUpSession);
            self.lose_session();
        }
    }

    /// Answers an application that asks until when the session may be acted on.
    pub(in crate::coordination) fn answer_lease(&mut self, ticket: Ticket) {
        // An application that has not reported what was lost may still execute it, and may not have read that it is lost:
        // the lease of another session is not for that.
        let lost = self.executions.open.values().any(|open| open.state == State::Lost);
        let (status, lease_end) = match self.session {
            Session::Connected(_) | Session::Suspended(_) if lost => {
                (SessionStatus::Lost, Some(Duration::ZERO))
            }
            Session::Connected(_) => (SessionStatus::Connected, self.lease.until),
            Session::Suspended(_) => (SessionStatus::Suspended, self.lease.until),
            Session::None => (SessionStatus::Lost, Some(Duration::ZERO)),
        };
        self.lease.answered = self.lease.answered.max(lease_end);
        self.effects.push(Effect::Answer(ticket, Answer::Lease { status, lease_end }));
    }

    /// Tells the application until when the session may be acted on, each time a third of what it was told is over.
    pub(in crate::coordination) fn tell_lease(&mut self, now: Now) {
        // While the registry is away nothing is proven, and what was told stays so.
        let connected = matches!(self.session, Session::Connected(_));
        if !self.told.attached || !connected || self.lease.tell_at.is_some_and(|at| now.mono < at) {
            return;
        }
        let newer = self.lease.until > self.lease.told;
        if let Some(lease_end) = self.lease.tell(now.mono)
            && newer
        {
            self.tell_event(Event::LeaseRenewed { lease_end });
        }
    }
}
