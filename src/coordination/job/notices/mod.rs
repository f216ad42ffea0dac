//! The messages to the application: its assignment, its session, and the reason why it waits.

pub mod assignment;
pub(crate) mod lease;
pub(crate) mod open_executions;
pub(crate) mod problems;
pub mod waiting;
