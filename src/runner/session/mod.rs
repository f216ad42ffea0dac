//! The sidecar's session with the registry. Shell.
//!
//! Decides when to open a session, when to give one up, and how to end it: [`keeper`]. Decides how long a session may be
//! relied on: [`lease`], by the proof that `proven` takes from the registry's answers. [`current`] is how all other tasks see
//! the session; [`former`] has the session of the sidecar's former process, and removes the latches that it left.
//!
//! Must not know jobs, participants or streams, except for the names of the jobs whose latches `former` removes.

pub mod current;
pub mod former;
pub mod keeper;
pub mod lease;
mod proven;
