//! All that goes into a participant and comes out of it, as closed lists and plain values. Decides nothing.

pub mod answer;
pub mod commit;
pub mod effect;
pub mod event;
pub mod input;
pub mod plan;
pub mod profile;
pub mod reattach;
pub mod records;
pub mod report;
pub mod request;
pub(in crate::coordination) mod starting;
