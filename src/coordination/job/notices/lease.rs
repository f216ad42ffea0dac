//! Until when may the application rely on the session? The answer is sent now and then, and when the application asks
//! (P4). Decides only about messages.

use std::time::Duration;

use crate::coordination::job::contract::answer::{Answer, Ticket};
use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::event::{Event, SessionStatus};
use crate::coordination::job::execution::Executions;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Session;
use crate::coordination::lease::Lease;

/// Answers an application that asks until when it may rely on the session.
pub(crate) fn answer_lease(
    cx: &Context,
    lease: &mut Lease,
    executions: &Executions,
    out: &mut Outbox,
    ticket: Ticket,
) {
    // An application that has not reported its lost executions may still run them, and may not have read that they are
    // lost: the lease of another session is not for them.
    let lost = executions.iter().any(|(_, open)| open.is_lost());
    let (status, lease_end) = match cx.session {
        Session::Connected(_) | Session::Suspended(_) if lost => (SessionStatus::Lost, Some(Duration::ZERO)),
        Session::Connected(_) => (SessionStatus::Connected, lease.end()),
        Session::Suspended(_) => (SessionStatus::Suspended, lease.end()),
        Session::None => (SessionStatus::Lost, Some(Duration::ZERO)),
    };
    lease.answer(lease_end);
    out.push(Effect::Answer(ticket, Answer::Lease { status, lease_end }));
}

/// Sends the application the end of the lease, each time a third of the last sent lease is over.
pub(crate) fn notify_lease(cx: &Context, lease: &mut Lease, out: &mut Outbox) {
    let now = cx.now;
    // While the session is suspended nothing is proven, and the sent lease stays in force.
    let connected = matches!(cx.session, Session::Connected(_));
    if !cx.assigned.attached || !connected || !lease.is_due(now.mono) {
        return;
    }
    let newer = lease.is_newer();
    if let Some(lease_end) = lease.notify(now.mono)
        && newer
    {
        out.notify(cx, Event::LeaseRenewed { lease_end });
    }
}
