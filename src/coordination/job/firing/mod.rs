//! From the instant of the schedule to the transaction that starts items.

mod catch_up;
pub mod misfire;
pub mod schedule;
mod start;
pub(super) mod trigger;
