//! The messages to the application: its assignment, its session, and the reason why it waits.

pub mod assignment;
pub(in crate::coordination) mod lease;
pub(in crate::coordination) mod open_executions;
pub mod waiting;
