//! The locks that applications of this sidecar hold or wait for. Shell.
//!
//! [`registry`] has the list of holds: whether an application may ask for a lock, and how all of them end. `task` runs one
//! contender: selects an input, steps, performs. [`observer`] follows the nodes of locks and elections, [`election`] lets a leader
//! resign, [`look`] reads and changes locks for people.
//!
//! Decides only what concerns several holds of this sidecar. Who holds a lock, and for how long, is the contender's
//! decision (`coordination/lock`).

pub mod election;
pub mod look;
pub mod observer;
pub mod registry;
mod task;
