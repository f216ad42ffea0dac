//! One instance of one job. Pure.
//!
//! The room's law: [`participant::Participant::step`] takes one look at everything (the job's [`picture`], the time,
//! its own state, one batch of inputs) and returns the effects that are missing. An input only wakes it; the state
//! decides. Requests in flight are state too, so a second look asks for nothing twice.
//!
//! The decisions, in the order of each step: the end of the session's lease (`lease`), a broken stream ([`lifecycle`]),
//! registration and renewal of items ([`membership`]), the turn (`rotation`), starts of unknown outcome ([`firing`]),
//! messages to the application ([`notices`]), election and the instances that are offline ([`membership`]), the owner
//! of each item ([`ownership`]), the items of crashed instances (`failover`), the ledger ([`ledger`]), the round of the
//! once-listener (`once`), due, missed and triggered fires ([`firing`]), retries ([`execution`]), starts ([`firing`], with the locks of items: `item_lock`),
//! the check of the clock ([`membership`]), completions and deadlines ([`execution`]), the departure ([`lifecycle`]).

pub(crate) mod agenda;
pub mod contract;
pub mod execution;
mod failover;
pub mod firing;
pub mod frame;
pub(crate) mod item_lock;
pub mod ledger;
pub mod lifecycle;
pub mod membership;
pub mod notices;
mod once;
pub mod ownership;
pub mod participant;
pub mod picture;
mod rotation;
