//! The wire: how ElasticJob 3.0.5 spells jobs, instances, items and configurations in the registry. Pure.
//!
//! This room turns bytes into values (and the problems found on the way) and values into bytes. It decides nothing
//! about what to do next, and holds no clock, task or channel. Its source is the description of ElasticJob's protocol,
//! whose sections are quoted as "protocol n". Nothing that stands in the registry may panic here.

pub mod config_yaml;
pub mod dump;
pub mod duration_text;
pub mod execution_policy;
pub mod grace;
pub mod handoff_policy;
pub mod instance_yaml;
pub mod item_parameters;
pub mod java;
pub mod once_listener;
pub mod path;
pub mod redaction;
pub mod rendezvous;
pub mod strategy;
pub mod task_id;
pub mod validate;

mod config_yaml_writer;
mod extra_configurations;
mod yaml;
mod yaml_types;
