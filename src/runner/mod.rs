//! The only place where effects happen: it waits, steps the core, and does what the core asks for. Shell.
//!
//! [`session`] keeps one session with the registry for the whole sidecar, [`lease`] proves it alive, by what `proven` says
//! is a proof; [`participant`]
//! runs one participant for each attached application stream; [`observer`] follows a job for those who only look;
//! [`operator`] carries out what they command; [`outcomes`] knows how items were executed last; [`hub`] knows who is attached, [`drain`] has all of them leave;
//! [`command`] lists what callers can ask of a participant; [`feed`] knows the nodes of a job for all of them, and `watching`
//! opens its watches; `waiting` waits for the rest
//! of what happens to them; `succession` hands one from a stream to the next; [`memory`] is what the next process of this
//! sidecar finds if this one is killed, `heirs` what it makes of that; [`clock`] is the only reader of clocks and
//! entropy.

pub mod clock;
pub mod command;
mod commits;
pub mod drain;
pub mod feed;
pub mod heirs;
mod held_latch;
pub mod hub;
mod latched;
pub mod lease;
pub mod ledger;
pub mod memory;
mod news;
pub mod observer;
pub mod operator;
pub mod outcomes;
pub mod participant;
mod proven;
mod refusals;
pub mod session;
pub mod shared;
pub mod snapshot;
mod succession;
mod waiting;
mod watching;
