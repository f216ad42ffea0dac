//! The real runner and services of several sidecars, on one registry behind a network that fails, on virtual
//! time, from a seed. No socket, no thread, no real time: a failing seed replays exactly (`SIMULATION_SEED=n`, which
//! prints the log). `SIMULATION_SEEDS=n` asks for another number of seeds.
//!
//! `tests/simulation` simulates the core alone. This simulation also covers requests that are in flight while the rest
//! goes on, tasks that are interrupted between any two awaits, and the real leases, reports and streams.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::wildcard_enum_match_arm
)]
#![allow(clippy::print_stdout, unreachable_pub)]

mod application;
mod checks;
mod ensemble;
mod executor;
mod machine;
#[cfg(feature = "mutants")]
mod mutants;
#[path = "../support/random.rs"]
mod random;
mod scenarios;
mod sidecar;
mod state_file;
mod timeline;
mod transport;
mod world;
