//! The sticky locks for which applications of this sidecar stand. Shell.
//!
//! [`registry`] has the list of stands: whether an application may stand, its calls, and how all of them end. `task` runs one
//! candidate: selects an input, steps, performs. [`look`] reads locks for people.
//!
//! Decides only what concerns several stands of this sidecar. Ownership and its end are the candidate's decision
//! (`coordination/sticky`).

pub mod look;
pub mod registry;
mod task;
