//! What the application is told: what is ours now, and what it waits for.

pub mod assignment;
pub(in crate::coordination) mod lease;
pub(in crate::coordination) mod open_executions;
pub mod waiting;
