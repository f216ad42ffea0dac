//! The sidecar's session with the registry. Shell.
//!
//! Decides when to open a session, when to give one up, and how to end it: [`keeper`]. Decides how long a session may be
//! relied on: [`lease`], by the proof that `proven` takes from the registry's answers. [`current`] is how all other tasks see
//! the session; `together` sends the transactions of several participants in one request, `folders` knows the folders that exist; [`former`] has the session of the sidecar's former process, and removes the latches that it left.
//!
//! Must not know jobs, participants or streams, except for the names of the jobs whose latches `former` removes.

pub mod current;
mod folders;
pub mod former;
pub mod keeper;
pub mod lease;
mod proven;
mod together;
