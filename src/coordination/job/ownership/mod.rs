//! The owner of each item: resharding of all at once, handoff of one by one, and reservations for names that are away.

mod allocation;
#[cfg(test)]
mod balance;
pub(in crate::coordination) mod former_rule;
pub(in crate::coordination) mod handoff_plan;
pub(in crate::coordination) mod handoff_release;
pub(super) mod java_peers;
pub(super) mod leader_reminder;
pub(in crate::coordination) mod member;
pub mod mode;
pub mod reservation;
pub mod resharding;
pub(in crate::coordination) mod targets;
