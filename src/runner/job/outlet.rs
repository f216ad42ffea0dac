//! The events that an application reads, and the reason why its stream ends. Decides nothing.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::coordination::job::contract::effect::EndReason;
use crate::coordination::job::contract::event::Event;
use crate::reason::Reason;
use crate::telemetry::spans::Traced;

/// An event for an application, and the trace it belongs to.
#[derive(Debug)]
pub struct TracedEvent {
    /// The event.
    pub event: Event,
    /// The execution that it begins, if the fire is traced.
    pub execution: Option<Traced>,
}

/// Why a stream ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamEnd {
    /// The participant ended.
    Ended(EndReason),
    /// The application did not read its events for so long.
    SlowApplication(Duration),
    /// Another stream of the same application took its place.
    Replaced,
    /// The registry cannot write down that the application is attached; with the reason, and what to do.
    Unwritable(String),
}

impl StreamEnd {
    /// The word for programs; `None`: the stream was to end, and nothing is wrong.
    pub fn word(&self) -> Option<Reason> {
        match self {
            Self::Ended(reason) => reason.word(),
            Self::SlowApplication(_) => Some(Reason::SlowApplication),
            Self::Replaced => Some(Reason::StreamReplaced),
            Self::Unwritable(_) => Some(Reason::RegistryFull),
        }
    }
}

/// The application's end of its stream.
#[derive(Debug)]
pub struct Outlet {
    /// The events. Dropping them detaches the application. Boxed, because the channel has places for 32 of them also if it
    /// is empty, and there are thousands of streams.
    pub events: mpsc::Receiver<Box<TracedEvent>>,
    /// Set when the events have ended.
    pub end: Arc<OnceLock<StreamEnd>>,
    /// Set by the transport before it drops the outlet of a silent connection: for how long nothing had come from the
    /// application.
    pub silent_for: Arc<OnceLock<Duration>>,
}
