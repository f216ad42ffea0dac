//! The registry's contract (`sidekeeper::registry`), tested on both registries by the same functions, and what only
//! one of them can do wrong: what a network does to ZooKeeper's, what a restart, a damaged file and a full disk do to the embedded one.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::wildcard_enum_match_arm,
    reason = "tests fail by panicking, and look at real clocks and tasks"
)]

mod conformance;
mod damage;
#[path = "../support/disk.rs"]
mod disk;
mod faults;
mod full_disk;
mod ground;
mod latch;
mod persistence;
mod restart;
mod resumption;
#[path = "../support/mod.rs"]
mod support;
mod watching;
