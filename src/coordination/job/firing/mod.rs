//! From the instant of the schedule to the transaction that starts items.

pub mod misfire;
pub mod schedule;
pub(super) mod trigger;
