//! The real sidecar in this process, through its real gRPC API: the embedded registry, tonic clients, one-second
//! schedules. A test waits for an event, with a bound far above the usual time.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::wildcard_enum_match_arm,
    unreachable_pub,
    reason = "tests fail by panicking and look at real clocks; nothing here is an interface"
)]

mod admission;
#[path = "../support/altered_session.rs"]
mod altered_session;
mod api_fields;
mod attach;
mod backup;
mod balance;
mod bundle;
mod cancel_fleet;
mod change_job;
mod configuration;
mod deadlines;
#[path = "../support/disk.rs"]
mod disk;
mod drain;
mod dump;
mod execute;
mod explain;
mod failover;
mod fleet;
mod full_disk;
mod grace;
mod instance_names;
mod invalid_nodes;
mod item_lock;
mod jobs;
mod list_triggers;
mod misfire;
mod notes;
mod once;
mod operator;
mod plan_sharding;
mod refusals;
mod request_id;
mod service;
mod session;
mod slow_application;
mod storm;
mod switch;
mod trigger_items;
mod trigger_job;
mod trigger_nodes;
mod watch_jobs;
