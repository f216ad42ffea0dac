//! Reads a job's nodes, and keeps what is known of them. Shell. Decides nothing.
//!
//! [`feed`] has one picture of each job, for all participants and observers of the job; `watched` opens the watches that it
//! needs. [`snapshot`] reads nodes once, for callers that do not follow them.
//!
//! Must not know participants and observers, which are its followers. What the nodes mean is in [`crate::coordination::job::picture`].

pub mod feed;
pub mod snapshot;
pub(crate) mod watched;
