//! The real core of many participants on one embedded registry, on virtual time, from a seed. Promises P1, P2, P3,
//! P5 and P6 are checked after every event; a failing seed replays exactly (`SIMULATION_SEED=n`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::wildcard_enum_match_arm
)]
#![allow(clippy::print_stdout, unreachable_pub)]

mod balance;
mod cases;
mod deadlines;
mod divisions;
mod handoff;
mod heritage;
mod interrupted;
mod java;
mod java_peers;
mod lease;
mod misfires;
mod mixed;
#[cfg(feature = "mutants")]
mod mutants;
mod names;
mod neighbours;
mod once;
mod progress;
mod random;
mod replay;
mod scenarios;
mod streams;
#[allow(dead_code, reason = "the runs of many seeds, in simulate.rs, use the rest")]
mod swarm;
mod windows;
mod words;
mod world;
