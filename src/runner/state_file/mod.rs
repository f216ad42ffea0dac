//! The state file: what a sidecar writes down for its next process, which resumes the session with it. One small file,
//! written when a session begins or ends, and when an instance is attached or has left. Shell.
//!
//! An instance is written down before it has a node, and removed from the file after it has none. So the next process knows
//! all instances that have nodes in the session. If the file cannot be written it is removed, and the next process opens a
//! new session.
//!
//! The executions are not in the file, so a fire costs no write. Running nodes say which items were executed, the application says
//! which executions, and only an execution that both know goes on (`coordination/job/lifecycle/restart.rs`).
//!
//! Decides only whether a file is used ([`contents`]): one that is damaged, of another version, of another registry or open to
//! other users is reported and ignored. [`writer`] keeps the file up to date, in a [`storage`]: a `folder` on the disk, or the
//! storage of a test.
//!
//! Must not send requests to the registry, and must not know participants or streams.

pub mod contents;
mod folder;
pub mod storage;
#[cfg(test)]
mod tests;
pub mod writer;
