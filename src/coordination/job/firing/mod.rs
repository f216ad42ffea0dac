//! From the instant of the schedule to the transaction that starts items.

mod catch_up;
mod fire;
pub mod misfire;
pub mod schedule;
pub(super) mod start;
pub(super) mod trigger;
