//! The calls of operators and the views of observers, which have no instance of their own. Shell.
//!
//! [`observer`] follows jobs and shows their status; [`trigger_job`] carries out the plan of a trigger
//! ([`crate::coordination::admin`] decides what it is). Both need no application to be attached.
//!
//! Must not know attachments and participants.

pub mod observer;
pub mod trigger_job;
