//! The real sidecar in this process, through its real gRPC API: the embedded registry, tonic clients, one-second
//! schedules. No test sleeps; each waits for the event, with a bound far above what it takes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::wildcard_enum_match_arm,
    unreachable_pub,
    reason = "tests fail by panicking and look at real clocks; nothing here is anybody's interface"
)]

mod admission;
mod attach;
mod balance;
mod configuration;
mod deadlines;
#[path = "../support/disk.rs"]
mod disk;
mod drain;
mod dump;
mod execute;
mod failover;
mod full_disk;
mod garbage;
mod grace;
mod ground;
mod misfire;
mod names;
mod once;
mod operator;
mod refusals;
mod service;
mod session;
mod slow;
mod trigger;
mod trigger_job;
mod words;
