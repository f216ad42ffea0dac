//! The gRPC services. They translate messages to inputs and effects to messages, and decide nothing. Shell.

pub mod assignment;
mod audit;
pub mod bundle;
pub mod convert;
pub mod date;
pub mod diagnostics;
pub mod election;
pub mod event;
pub mod finding;
pub mod job;
pub mod jobs;
pub mod lock;
mod methods;
mod names;
pub mod namespace;
mod open_executions;
pub mod participant;
pub mod plan;
pub mod refusals;
pub mod server;
pub mod sidecar;
mod size;
pub mod status;
pub mod sticky_lock;
mod version;
mod watch_jobs;
