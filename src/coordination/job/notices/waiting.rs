//! Why does an application wait that is not attached yet? The sidecar sends the reason after a while: silence does not
//! help a person who starts the application for the first time.
//!
//! Decides only the message and its time. It must not begin or end anything.

use std::time::Duration;

use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::event::{Event, WaitsFor};
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::{Phase, Session};

/// How long the sidecar sends no reason: a sidecar that has just started needs that long to find its registry.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// Since when it has waited; monotonic. `None`: it does not.
    since: Option<Duration>,
    sent: Option<WaitsFor>,
}

impl Waiting {
    /// When the reason is due.
    pub(crate) fn next_notice(&self) -> Option<Duration> {
        self.since.filter(|_| self.sent.is_none()).map(|since| since.saturating_add(PATIENCE))
    }

    /// Sends the reason to an application that is not attached.
    pub(crate) fn notify_waiting(&mut self, cx: &Context, out: &mut Outbox, is_back: bool) {
        let now = cx.now;
        if cx.phase != Phase::Joining && !is_back {
            *self = Self::default();
            return;
        }
        let since = *self.since.get_or_insert(now.mono);
        let what = waits_for(cx);
        if now.mono < since.saturating_add(PATIENCE) || self.sent.as_ref() == Some(&what) {
            return;
        }
        self.sent = Some(what.clone());
        out.push(Effect::Notify(Event::Waiting(what)));
    }
}

fn waits_for(cx: &Context) -> WaitsFor {
    match cx.session {
        Session::None => WaitsFor::Session,
        Session::Suspended(_) => WaitsFor::Registry,
        Session::Connected(_) => match cx.identity.name.clone().filter(|_| cx.name_taken) {
            Some(name) => WaitsFor::Name(name),
            None if !cx.view.is_loaded() || !cx.fleet.is_loaded() => WaitsFor::Nodes,
            None => WaitsFor::Registration,
        },
    }
}
