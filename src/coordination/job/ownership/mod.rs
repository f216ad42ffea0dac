//! Who owns which item: resharding of all at once, handoff of one by one, and what is reserved for names that are away.

mod allocation;
#[cfg(test)]
mod balance;
pub(in crate::coordination) mod former_rule;
pub mod handoff;
pub(super) mod java_peers;
pub(super) mod leader_reminder;
pub mod reservation;
pub mod resharding;
