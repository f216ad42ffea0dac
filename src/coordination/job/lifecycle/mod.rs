//! How an instance goes away and comes back: a stream that breaks, a process that restarts, a departure.

pub mod departure;
pub(super) mod removal;
pub mod restart;
mod stream;
