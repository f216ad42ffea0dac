//! The listeners of a sidecar, the bounds of their connections, the users whom it serves, and the token of its callers. Shell.
//!
//! This room knows connections and calls, but none of the services behind them.

pub mod admission;
pub mod connections;
pub(crate) mod limited_log;
pub mod listener;
mod peer;
pub(crate) mod refusal;
#[cfg(test)]
pub(crate) mod still;
pub mod token;
pub mod unix;
