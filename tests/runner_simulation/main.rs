//! The real runner, hub and services of several sidecars, on one registry behind a network that fails, on virtual time,
//! from a seed. No socket, no thread, no real time: a failing seed replays exactly (`SIMULATION_SEED=n`, which prints what
//! happened). `SIMULATION_SEEDS=n` asks for another number of seeds.
//!
//! `tests/simulation` does the same to the core alone. What is here that is not there: requests that are under way while
//! everything else goes on, tasks that are interrupted between any two awaits, leases, reports and streams as they are.

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
mod notes;
mod random;
mod scenarios;
mod sidecar;
mod timeline;
mod transport;
mod world;
