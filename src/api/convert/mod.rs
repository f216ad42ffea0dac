//! Converts job configurations between proto and domain, and names every refused field.
//!
//! [`crate::elasticjob::validate`] has the rules. This file adds the errors that only the proto can have
//! (durations, absent fields), and uses the names of the proto's fields.

use std::fmt;

use prost_types::Duration;
use tonic_types::{ErrorDetails, StatusExt};

use crate::elasticjob::config_yaml_editor::Key;
pub use crate::elasticjob::field_error::FieldError;
use crate::elasticjob::validate::{Checks, validate, validate_job_class};
use crate::extension::strategy::{self, STRATEGY_PROPERTY};
use crate::job::{JobConfiguration, JobName, ShardingStrategy};
use crate::listen::refusal::DOMAIN;
use crate::proto;
use crate::reason::Reason;

/// Bytes of error texts in a status. They are sent in headers, for which gRPC libraries allow 8 KiB in all:
/// once as the message, percent-encoded to up to three times this size, and twice in the details, as base64.
const STATUS_TEXT_BYTES_MAX: usize = 1000;

/// The most characters of an application id; a UUID has 36.
const APPLICATION_ID_MAX: usize = 64;

/// An application's checked description of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedJob {
    /// The job's configuration. A request never has `jobExtraConfigurations`: code that replaces a
    /// configuration with them must copy them.
    pub configuration: JobConfiguration,
    /// The class name or job type for the job's root node. `None`: the registry's value stays.
    pub job_class: Option<String>,
}

/// Checks an application id.
pub(super) fn check_application_id(given: &str, errors: &mut Vec<FieldError>) {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if given.len() > APPLICATION_ID_MAX || !given.chars().all(allowed) {
        errors.push(FieldError::new("application_id", given, "at most 64 characters of [A-Za-z0-9_.-]"));
    }
}

/// A refused request with all its errors.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct InvalidRequest(pub Vec<FieldError>);

impl fmt::Display for InvalidRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&FieldError::join(&self.0))
    }
}

impl InvalidRequest {
    /// `INVALID_ARGUMENT`, with the fields in the message and as `BadRequest` details.
    ///
    /// A status has to fit into headers. So of very many errors it has the first ones and the number of the
    /// others.
    pub fn to_status(&self) -> tonic::Status {
        let mut bytes = 0;
        let shown: Vec<&FieldError> = self
            .0
            .iter()
            .enumerate()
            .take_while(|(position, error)| {
                bytes += error.to_string().len();
                *position == 0 || bytes <= STATUS_TEXT_BYTES_MAX
            })
            .map(|(_, error)| error)
            .collect();
        let mut message = shown.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        let hidden = self.0.len() - shown.len();
        if hidden > 0 {
            message.push_str(&format!("; and {hidden} more"));
        }
        let mut details = ErrorDetails::with_error_info(Reason::InvalidRequest.as_str(), DOMAIN, []);
        for error in shown {
            let description = format!("given `{}`; allowed: {}", error.given, error.allowed);
            details.add_bad_request_violation(error.field.clone(), description);
        }
        tonic::Status::with_error_details(tonic::Code::InvalidArgument, message, details)
    }
}

/// Checks the name and configuration of a job. Reports all errors, not only the first.
///
/// `CONSISTENT_HASH` moves from the strategy's type to `props` (see [`STRATEGY_PROPERTY`]).
pub fn job_from_proto(
    job_name: &str,
    message: &proto::JobConfiguration,
    checks: Checks<'_>,
) -> Result<CheckedJob, InvalidRequest> {
    let mut errors = Vec::new();
    // A placeholder for a wrong name, so that all other fields are checked, too. It is never returned.
    let name = JobName::parse(job_name).or_else(|error| {
        errors.push(FieldError::of_job_name("job_name", &error));
        JobName::parse("unnamed")
    });
    let Ok(name) = name else { return Err(InvalidRequest(errors)) };
    let mut configuration = fields_from_proto(name, message, &mut errors);
    strategy::move_own_strategy(&mut configuration);

    let found = validate(&configuration, checks);
    errors.extend(found.into_iter().map(|error| FieldError { field: proto_field(&error.field), ..error }));
    errors.extend(validate_job_class("configuration.job_class", &message.job_class));
    if errors.is_empty() {
        Ok(CheckedJob { configuration, job_class: non_empty(&message.job_class) })
    } else {
        Err(InvalidRequest(errors))
    }
}

/// A configuration as applications see it. `job_class` is the content of the job's root node.
///
/// It includes secrets: show it to others only after [`crate::elasticjob::redaction::redacted`].
pub fn configuration_to_proto(configuration: &JobConfiguration, job_class: &str) -> proto::JobConfiguration {
    let c = configuration;
    let mut props = c.props.clone();
    let mut strategy_type = c.job_sharding_strategy_type.clone().unwrap_or_default();
    let own = props.get(STRATEGY_PROPERTY).and_then(|text| ShardingStrategy::from_type(text));
    if strategy_type.is_empty() && own == Some(ShardingStrategy::ConsistentHash) {
        strategy_type = ShardingStrategy::ConsistentHash.type_name().to_owned();
        props.remove(STRATEGY_PROPERTY);
    }
    let duration = |seconds: i64| Duration { seconds, nanos: 0 };
    let max_time_diff = i64::from(c.max_time_diff_seconds);
    proto::JobConfiguration {
        sharding_total_count: c.sharding_total_count,
        cron: c.cron.clone().unwrap_or_default(),
        time_zone: c.time_zone.clone().unwrap_or_default(),
        sharding_item_parameters: c.sharding_item_parameters.clone(),
        job_parameter: c.job_parameter.clone(),
        monitor_execution: Some(c.monitor_execution),
        failover: Some(c.failover),
        misfire: Some(c.misfire),
        max_time_diff: (max_time_diff >= 0).then(|| duration(max_time_diff)),
        reconcile_interval: Some(duration(i64::from(c.reconcile_interval_minutes.max(0)) * 60)),
        job_sharding_strategy_type: strategy_type,
        static_sharding: Some(c.static_sharding),
        disabled: Some(c.disabled),
        overwrite: Some(c.overwrite),
        job_class: job_class.to_owned(),
        description: c.description.clone(),
        label: c.label.clone().unwrap_or_default(),
        props: props.into_iter().collect(),
        job_error_handler_type: c.job_error_handler_type.clone().unwrap_or_default(),
        job_executor_thread_pool_size_provider_type: c
            .job_executor_thread_pool_size_provider_type
            .clone()
            .unwrap_or_default(),
        job_listener_types: c.job_listener_types.clone(),
    }
}

/// The values of a message for some keys. Whether they fit together is not checked.
pub(super) fn values_from_proto(
    name: JobName,
    message: &proto::JobConfiguration,
) -> Result<JobConfiguration, InvalidRequest> {
    let mut errors = Vec::new();
    let configuration = fields_from_proto(name, message, &mut errors);
    if errors.is_empty() { Ok(configuration) } else { Err(InvalidRequest(errors)) }
}

/// The name of a key's field in `JobConfiguration`.
pub fn field_of(key: Key) -> String {
    let path = proto_field(key.as_str());
    path.strip_prefix("configuration.").map(str::to_owned).unwrap_or(path)
}

/// Errors of a configuration's keys, by the names of the fields.
pub(super) fn in_fields(errors: &[FieldError]) -> InvalidRequest {
    let field = |error: &FieldError| FieldError { field: proto_field(&error.field), ..error.clone() };
    InvalidRequest(errors.iter().map(field).collect())
}

fn fields_from_proto(
    name: JobName,
    message: &proto::JobConfiguration,
    errors: &mut Vec<FieldError>,
) -> JobConfiguration {
    let defaults = JobConfiguration::new(name, message.sharding_total_count);
    JobConfiguration {
        cron: non_empty(&message.cron),
        time_zone: non_empty(&message.time_zone),
        sharding_item_parameters: message.sharding_item_parameters.clone(),
        job_parameter: message.job_parameter.clone(),
        monitor_execution: message.monitor_execution.unwrap_or(defaults.monitor_execution),
        failover: message.failover.unwrap_or(defaults.failover),
        misfire: message.misfire.unwrap_or(defaults.misfire),
        max_time_diff_seconds: whole_units(message.max_time_diff.as_ref(), Unit::Seconds, errors)
            .unwrap_or(defaults.max_time_diff_seconds),
        reconcile_interval_minutes: whole_units(message.reconcile_interval.as_ref(), Unit::Minutes, errors)
            .unwrap_or(defaults.reconcile_interval_minutes),
        job_sharding_strategy_type: non_empty(&message.job_sharding_strategy_type),
        job_executor_thread_pool_size_provider_type: non_empty(
            &message.job_executor_thread_pool_size_provider_type,
        ),
        job_error_handler_type: non_empty(&message.job_error_handler_type),
        job_listener_types: message.job_listener_types.clone(),
        props: message.props.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
        description: message.description.clone(),
        label: non_empty(&message.label),
        disabled: message.disabled.unwrap_or(defaults.disabled),
        overwrite: message.overwrite.unwrap_or(defaults.overwrite),
        static_sharding: message.static_sharding.unwrap_or(defaults.static_sharding),
        ..defaults
    }
}

/// The units of ElasticJob's two durations.
#[derive(Clone, Copy)]
enum Unit {
    Seconds,
    Minutes,
}

/// A duration in whole units. `None` if it is absent or was refused.
fn whole_units(duration: Option<&Duration>, unit: Unit, errors: &mut Vec<FieldError>) -> Option<i32> {
    let duration = duration?;
    let (field, name, unit_seconds) = match unit {
        Unit::Seconds => ("configuration.max_time_diff", "seconds", 1),
        Unit::Minutes => ("configuration.reconcile_interval", "minutes", 60),
    };
    let units = i32::try_from(duration.seconds / unit_seconds)
        .ok()
        .filter(|_| duration.nanos == 0 && duration.seconds >= 0 && duration.seconds % unit_seconds == 0);
    if units.is_none() {
        let given = format!("{} s and {} ns", duration.seconds, duration.nanos);
        errors.push(FieldError::new(field, &given, &format!("whole {name}, 0 to {}", i32::MAX)));
    }
    units
}

fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// The path of the proto field for a key of ElasticJob: `props[a]` is `configuration.props[a]`,
/// `shardingTotalCount` is `configuration.sharding_total_count`.
fn proto_field(key: &str) -> String {
    match key {
        "configuration" => key.to_owned(),
        "reconcileIntervalMinutes" => "configuration.reconcile_interval".to_owned(),
        "maxTimeDiffSeconds" => "configuration.max_time_diff".to_owned(),
        _ => {
            let (name, index) = key.split_at_checked(key.find('[').unwrap_or(key.len())).unwrap_or((key, ""));
            let mut path = String::from("configuration.");
            for c in name.chars() {
                if c.is_ascii_uppercase() {
                    path.push('_');
                }
                path.push(c.to_ascii_lowercase());
            }
            path + index
        }
    }
}

#[cfg(test)]
mod tests;
