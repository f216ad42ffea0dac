//! What to do next, and why. Pure: no clock, no randomness, no I/O, no `async`.
//!
//! [`job`] is the state machine of one instance of one job. [`admin`] has the plans of operators, which are made once
//! and carried out. `lease` decides until when a state machine may rely on the session.

pub mod admin;
pub mod job;
mod lease;
pub mod lock;
pub mod sticky;
pub mod time;
