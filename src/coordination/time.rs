//! The time, as an argument, and the time of the next step.

use std::time::Duration;

use jiff::Timestamp;

/// The time, as an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Time of day; may jump.
    pub wall: Timestamp,
    /// Time since an arbitrary start; only grows.
    pub mono: Duration,
}

/// When to step again, if no input comes before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wakeup {
    /// At a time of day: the next fire.
    pub wall: Option<Timestamp>,
    /// At a monotonic time: the end of a pause or of a deadline.
    pub mono: Option<Duration>,
}
