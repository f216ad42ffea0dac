//! A refused field of a configuration or a request. Pure.

use crate::excerpt::Excerpt;
use crate::job::NameError;

/// A refused field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: given `{given}`; allowed: {allowed}")]
pub struct FieldError {
    /// The key (`shardingTotalCount`) or the path of the field in a request (`configuration.sharding_total_count`).
    pub field: String,
    /// The given value, shortened.
    pub given: String,
    /// The allowed values.
    pub allowed: String,
}

impl FieldError {
    /// An error with a shortened copy of `given`.
    pub fn new(field: &str, given: &str, allowed: &str) -> Self {
        Self { field: field.to_owned(), given: Excerpt::of(given).into_string(), allowed: allowed.to_owned() }
    }

    /// A refused job name.
    pub fn of_job_name(field: &str, error: &NameError) -> Self {
        let allowed = format!("a name that is a node's name in ZooKeeper, but this one {}", error.reason);
        Self::new(field, &error.given, &allowed)
    }

    /// All errors in one text.
    pub fn join(errors: &[Self]) -> String {
        errors.iter().map(Self::to_string).collect::<Vec<_>>().join("; ")
    }
}
