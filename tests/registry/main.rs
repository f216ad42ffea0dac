//! The registry's contract (`sidekeeper::registry`), tested on both registries by the same functions; and the faults of
//! one of them: of the network for ZooKeeper; a restart, a damaged file and a full disk for the embedded registry.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::wildcard_enum_match_arm,
    reason = "tests fail by panicking, and look at real clocks and tasks"
)]

#[path = "../support/application.rs"]
#[allow(dead_code, reason = "other test binaries use the rest")]
mod application;
mod conformance;
mod damage;
#[path = "../support/disk.rs"]
mod disk;
mod elections;
mod faults;
mod finished;
mod full_disk;
mod latch;
mod locks;
mod persistence;
mod registries;
mod restart;
mod resumption;
mod secure;
mod sticky_locks;
#[path = "../support/mod.rs"]
mod support;
mod watching;
