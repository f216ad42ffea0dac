//! What to do next, and why. Pure: no clock, no randomness, no I/O, no `async`.
//!
//! The room's law: [`participant::Participant::step`] takes one look at everything (the job's [`picture`], the time, its
//! own state, one batch of inputs) and gives the effects that are missing. An event only wakes; the state decides. What is
//! in flight is state too, so a second look asks for nothing twice.
//!
//! The decisions, in the order in which each step takes them:
//! `lease` (is our session alive?), [`registration`] (are we an instance?), [`waiting`] (what does the application wait for?), `names` (who has a name?), [`assignment`]
//! (what is the application to know?), [`election`] (who leads?), `crash` (who is gone?), `absence` (who is away for a
//! while?), [`sharding`] (who owns what?), `java_peers` (how long does a division wait for Java instances?), [`handoff`]
//! (which items are to change hands, and when?), `nudge` (which instance has a Java leader forgotten?), `failover` (which
//! executions did crashed instances leave?), [`ledger`] (what has been started?), [`fire`] (what is due?), `misfire`
//! (what was missed?), `relay` (whose turn is it?), `trigger` (what was asked for?), `retry` (what is tried again?),
//! `guarantee` (who acts for all?), [`execution`] (what starts?), `clock_check` (is our clock right?), [`progress`] (how
//! far is it?), [`completion`] (what has ended?), `deadline` (until when may it run?), `slow` (what runs for longer than it should?), `grace` (what if the
//! application's stream breaks?), [`heritage`] (what if the sidecar's process does?), [`departure`] (how do we leave?).

mod absence;
pub mod assignment;
#[cfg(test)]
mod balance;
mod clock_check;
pub mod completion;
mod crash;
mod deadline;
pub mod departure;
pub mod difference;
mod echo;
pub mod effect;
pub mod election;
pub mod execution;
pub mod facts;
mod failover;
pub mod fire;
pub mod fleet;
mod former;
mod gate;
mod grace;
mod guarantee;
pub mod handoff;
pub mod heritage;
pub mod input;
mod java_peers;
mod lease;
pub mod ledger;
mod listener;
mod misfire;
mod names;
mod nudge;
pub mod operations;
pub mod participant;
pub mod pending;
pub mod picture;
pub mod progress;
pub mod registration;
mod registry_clock;
mod relay;
mod retry;
pub mod settings;
pub mod sharding;
mod slow;
pub mod status;
mod sticky;
mod trigger;
pub mod view;
pub mod waiting;
