//! The frame of all decisions: a context to read, and an outbox for proposals.

pub mod context;
pub mod limits;
pub(in crate::coordination) mod outbox;
pub mod pending;
pub(in crate::coordination) mod phase;
pub(in crate::coordination) mod verdict;
