//! The frame of all decisions: a context to read, and an outbox for proposals.

pub mod context;
pub mod limits;
pub(crate) mod outbox;
pub(crate) mod pending;
pub(crate) mod phase;
