//! One candidate for one sticky lock: when it may become the owner, what it is told, and until when it may act.
//!
//! [`view`] is the lock's nodes as values, [`rules`] says when a candidate may try, [`candidate`] is
//! the machine, [`contract`] its inputs and effects. A sticky lock shares the session and the lease with jobs and locks, and
//! nothing else.

pub mod candidate;
pub mod contract;
pub mod rules;
pub mod view;
