//! The calls of operators and the views of observers, which have no instance of their own. Shell.
//!
//! [`observer`] follows jobs and shows their status; [`explain_job`] reads what explains one; [`trigger_job`] carries out the plan of a trigger
//! ([`crate::coordination::admin`] decides what it is). All need no application to be attached.
//!
//! Must not know attachments and participants.

pub mod explain_job;
pub mod observer;
pub mod trigger_job;
