//! What all decisions share: what they may read, and what they may propose.

pub mod context;
pub mod limits;
pub(in crate::coordination) mod outbox;
pub mod pending;
pub(in crate::coordination) mod phase;
pub(in crate::coordination) mod verdict;
