//! Until when may the application rely on the session? It is told now and then, and when it asks (P4). Decides only what is
//! told.

use std::time::Duration;

use crate::coordination::job::contract::answer::{Answer, Ticket};
use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::event::{Event, SessionStatus};
use crate::coordination::job::execution::state::{Executions, State};
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Session;
use crate::coordination::lease::Lease;

/// Answers an application that asks until when the session may be acted on.
pub(in crate::coordination) fn answer_lease(
    cx: &Context,
    lease: &mut Lease,
    executions: &Executions,
    out: &mut Outbox,
    ticket: Ticket,
) {
    // An application that has not reported what was lost may still execute it, and may not have read that it is lost:
    // the lease of another session is not for that.
    let lost = executions.open.values().any(|open| open.state == State::Lost);
    let (status, lease_end) = match cx.session {
        Session::Connected(_) | Session::Suspended(_) if lost => (SessionStatus::Lost, Some(Duration::ZERO)),
        Session::Connected(_) => (SessionStatus::Connected, lease.end()),
        Session::Suspended(_) => (SessionStatus::Suspended, lease.end()),
        Session::None => (SessionStatus::Lost, Some(Duration::ZERO)),
    };
    lease.answer(lease_end);
    out.push(Effect::Answer(ticket, Answer::Lease { status, lease_end }));
}

/// Tells the application until when the session may be acted on, each time a third of what it was told is over.
pub(in crate::coordination) fn tell_lease(cx: &Context, lease: &mut Lease, out: &mut Outbox) {
    let now = cx.now;
    // While the registry is away nothing is proven, and the told lease stays in force.
    let connected = matches!(cx.session, Session::Connected(_));
    if !cx.assigned.attached || !connected || !lease.is_due(now.mono) {
        return;
    }
    let newer = lease.is_newer();
    if let Some(lease_end) = lease.tell(now.mono)
        && newer
    {
        out.tell(cx, Event::LeaseRenewed { lease_end });
    }
}
