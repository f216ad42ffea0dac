//! The only place where effects happen: tasks that wait, step the participants, and perform what they ask for. Shell.
//!
//! The rooms, from the ground up; a room uses those before it, and `tests/tidy/rooms.rs` checks that. [`clock`] is the only
//! reader of clocks and entropy. [`state_file`] is what the next process of the sidecar finds. [`session`] keeps one session
//! with the registry for the whole sidecar. [`nodes`] knows the nodes of each job. [`shared`] is the state that all tasks share,
//! with the last executions ([`outcomes`]), the waits for locks ([`lock_waits`]) and the elections of jobs ([`elections`]).
//! `turns` has the order in which many instances join. [`lock`] runs one contender for each
//! lock. [`requests`] knows which requests of operators were carried out before. [`job`] runs one participant for each instance. [`attachments`] has the list of instances and takes the calls for
//! them; [`admin`] serves observers and operators, and [`cancel`] those who cancel executions. [`heartbeat`] knows whether the process gets its time, and [`gauges`] the state for
//! a scrape of Prometheus.
//!
//! Must not know protos and sockets: `api` and `dump` do.

pub mod admin;
pub mod attachments;
pub mod cancel;
pub mod clock;
pub mod elections;
pub mod gauges;
pub mod heartbeat;
pub mod job;
pub mod lock;
pub mod lock_waits;
pub mod nodes;
pub mod outcomes;
pub mod requests;
pub mod session;
pub mod shared;
pub mod state_file;
pub mod sticky;
mod turns;
pub mod waiting;
