//! The applications that are attached to this sidecar, and the way to their participants. Shell.
//!
//! Decides only what concerns several instances of this sidecar: whether a stream may attach ([`request`] has the reasons
//! against it), under which instance id, and whether it reattaches to a participant that is here already (`reattach`). All
//! decisions about a job are the participants'.
//!
//! [`registry`] has the attachments (in a `list`), and starts their tasks, in the order of [`super::turns`]; `attach` adds one, [`calls`] finds the task for a call,
//! `restore` starts the participants of the former process, and [`drain`] has all instances leave.
//!
//! Must not know protos, and must not send requests to the registry of jobs.

mod attach;
pub mod calls;
pub mod drain;
mod list;
mod reattach;
pub mod registry;
pub mod request;
mod restore;
