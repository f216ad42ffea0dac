//! What the application is told: what is ours now, and what it waits for.

pub mod assignment;
pub mod waiting;
