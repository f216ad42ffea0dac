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

mod allocation;
mod catch_up;
mod checkpoint;
mod clock_skew;
mod completion;
mod deadline;
mod departure;
mod disabling;
mod failover;
mod fleet;
mod fleet_cancel;
mod handoff;
mod instance_name;
mod item_lock;
mod item_trigger;
mod java;
mod java_fleet;
mod java_peers;
mod late_flags;
mod leader_reminder;
mod leadership;
mod lease;
mod ledger;
mod lock;
mod misfire;
#[cfg(feature = "mutants")]
mod mutants;
mod notices;
mod once;
mod picture;
#[path = "../support/random.rs"]
#[allow(dead_code, reason = "the runner's simulation uses the rest")]
mod random;
mod registration;
mod removal;
mod request_size;
mod resharding;
mod restart;
mod retry;
mod rotation;
mod scale;
mod schedule;
mod setup;
mod stale_servers;
mod start;
mod sticky;
mod stream;
#[cfg(feature = "mutants")]
#[allow(dead_code, reason = "simulate.rs uses the rest")]
mod swarm;
mod trigger;
mod witness;
mod world;
