//! The listeners of a sidecar, the bounds of their connections and calls, the users and the certificates that it serves, and the tokens and
//! the roles of its callers. Shell.
//!
//! This room knows connections and calls, but none of the services behind them.

pub mod admission;
pub mod authorize;
pub(crate) mod caller;
pub mod calls;
pub mod connections;
pub mod lanes;
pub(crate) mod limited_log;
pub mod listener;
pub(crate) mod measured;
pub(crate) mod peer;
pub(crate) mod refusal;
mod reread;
mod share;
#[cfg(test)]
pub(crate) mod still;
pub mod tls;
pub mod token;
pub mod token_file;
pub mod token_set;
pub mod unix;
