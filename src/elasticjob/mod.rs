//! The wire: how ElasticJob 3.0.5 writes jobs, instances, items and configurations in the registry. Pure.
//!
//! This room turns bytes into values and problems, and values into bytes. It makes no decision about the next
//! step, and has no clock, task or channel. Its source is the description of ElasticJob's protocol; comments
//! quote its sections as "protocol n". No content of the registry may cause a panic here.

pub mod config_yaml;
pub mod config_yaml_editor;
pub mod dump;
pub mod field_error;
pub mod instance_yaml;
pub mod item_parameters;
pub mod java;
pub mod path;
pub mod redaction;
pub mod strategy;
pub mod task_id;
pub mod validate;

mod config_yaml_writer;
mod extra_configurations;
mod yaml;
mod yaml_types;
