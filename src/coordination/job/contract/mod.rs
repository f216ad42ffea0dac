//! The inputs and outputs of a participant, as closed lists and plain values. Decides nothing.

pub mod answer;
pub mod commit;
pub mod effect;
pub mod event;
pub mod input;
pub mod plan;
pub mod reattach;
pub mod records;
pub mod report;
pub mod request;
