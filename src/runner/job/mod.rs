//! One task for each instance that is attached here: it waits, steps the participant, and performs the effects. Shell.
//! Decides nothing about jobs: the participant does ([`crate::coordination::job`]).
//!
//! `task` selects what has happened, steps and performs. [`command`] has the calls that a task takes, [`outlet`] what an
//! application reads, and `backlog` the events that wait until the application reads them. The requests to the registry
//! that are more than one transaction: `commits`, `latches`, [`reads`]. `item_locks` has the locks that executions hold for
//! their items. `log` has the log lines about a participant, `measure` its numbers, and `spans` its traces.
//!
//! Must not know the other tasks: what concerns several instances is in [`super::attachments`].

mod backlog;
pub mod command;
mod commits;
mod item_locks;
mod item_set;
mod latches;
mod log;
mod measure;
pub mod outlet;
pub mod reads;
mod spans;
pub(crate) mod task;
