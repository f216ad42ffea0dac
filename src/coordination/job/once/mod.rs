//! The listener that acts once for the whole job, before the first item and after the last.

mod barrier;
mod listener;
pub(super) mod round;
pub(super) mod state;
