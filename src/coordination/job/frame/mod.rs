//! What all decisions share: what they may read, and what they may propose.

pub mod limits;
pub mod pending;
pub(in crate::coordination) mod phase;
