//! What the application is told: what is ours now, and what it waits for.

pub mod assignment;
mod lease;
pub mod waiting;
