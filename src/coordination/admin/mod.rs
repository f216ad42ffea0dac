//! One-shot plans for operators and observers: a view in, a transaction, a refusal or a state out. Pure.

pub mod backup;
pub mod cancel_fleet;
pub mod doctor;
pub mod explain;
pub mod finished;
pub mod plan_sharding;
pub mod pod;
pub mod rounds;
pub mod status;
pub mod summary;
pub mod switch;
pub mod trigger_items;
pub mod trigger_job;
pub mod triggers;
pub mod update;
