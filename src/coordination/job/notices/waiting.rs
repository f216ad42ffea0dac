//! An application that is not attached yet is told after a while why it waits: silence says nothing to a person who starts
//! it for the first time.
//!
//! Decides only the message and its time. It must not begin or end anything.

use std::time::Duration;

use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::event::{Event, WaitsFor};
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::{Phase, Session};

/// How long it is not told: a sidecar that has just started needs that long to find its registry.
const PATIENCE: Duration = Duration::from_secs(3);

/// The wait of one application.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Waiting {
    /// Since when it has waited; monotonic. `None`: it does not.
    since: Option<Duration>,
    told: Option<WaitsFor>,
}

impl Waiting {
    /// When it is to be told.
    pub(in crate::coordination) fn next_word(&self) -> Option<Duration> {
        self.since.filter(|_| self.told.is_none()).map(|since| since.saturating_add(PATIENCE))
    }

    /// Tells an application that is not attached why it waits.
    pub(in crate::coordination) fn tell_waiting(&mut self, cx: &Context, out: &mut Outbox, is_back: bool) {
        let now = cx.now;
        if cx.phase != Phase::Joining && !is_back {
            *self = Self::default();
            return;
        }
        let since = *self.since.get_or_insert(now.mono);
        let what = waits_for(cx);
        if now.mono < since.saturating_add(PATIENCE) || self.told.as_ref() == Some(&what) {
            return;
        }
        self.told = Some(what.clone());
        out.push(Effect::Tell(Event::Waiting(what)));
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
