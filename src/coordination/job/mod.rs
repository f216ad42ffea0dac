//! One instance of one job. Pure.
//!
//! The room's law: [`participant::Participant::step`] takes one look at everything (the job's [`picture`], the time, its
//! own state, one batch of inputs) and gives the effects that are missing. An event only wakes; the state decides. What is
//! in flight is state too, so a second look asks for nothing twice.
//!
//! The decisions, in the order in which each step takes them: is our session alive (`lease`)? What if the stream of the
//! application breaks ([`lifecycle`])? Are we an instance, and which items are renewed ([`membership`])? Whose turn is it
//! (`rotation`)? What has a start of unknown outcome begun ([`firing`])? What is the application told ([`notices`])? Who
//! leads, and which instances are gone ([`membership`])? Who owns which item ([`ownership`])? What did crashed instances
//! leave (`failover`)? Which fires were started ([`ledger`])? Who acts once for all (`once`)? What is due, missed or asked
//! for ([`firing`])? What is tried again ([`execution`])? What starts ([`firing`])? Is our clock right ([`membership`])?
//! What has ended, and until when may the rest run ([`execution`])? How do we leave ([`lifecycle`])?

pub(in crate::coordination) mod agenda;
pub mod contract;
pub mod execution;
mod failover;
pub mod firing;
pub mod frame;
pub mod ledger;
pub mod lifecycle;
pub mod membership;
pub mod notices;
mod once;
pub mod ownership;
pub mod participant;
pub mod picture;
mod rotation;
