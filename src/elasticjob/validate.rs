//! Which configurations are let into a registry, and why others are not. Pure.
//!
//! One list of rules for configurations from requests and from files; the callers name the fields in their own
//! terms. Reading the registry is more lenient (`config_yaml`), because what stands there has to be lived with.

use crate::elasticjob::item_parameters::ItemParametersError;
use crate::elasticjob::strategy::STRATEGY_PROPERTY;
use crate::elasticjob::{
    config_yaml, execution_policy, grace, handoff_policy, item_parameters, once_listener,
};
use crate::excerpt::Excerpt;
use crate::job::{JobConfiguration, NameError, SHARDING_TOTAL_COUNT_MAX, ShardingStrategy};

/// Bytes in the longest job parameter: it is handed to each execution.
pub const JOB_PARAMETER_BYTES_MAX: usize = 64 * 1024;

/// Bytes in the longest class name or job type: far above any of Java's, far below what a node may hold.
pub const JOB_CLASS_BYTES_MAX: usize = 1024;

/// Bytes in the largest configuration document: half of ZooKeeper's default limit for a request, so that it always
/// fits into one together with its path and the rest of a transaction.
pub const DOCUMENT_BYTES_MAX: usize = 512 * 1024;

/// The keys in `props` that belong to Sidekeeper.
const OWN_PREFIX: &str = "sidekeeper.";

/// Those of them that exist.
const OWN_PROPERTIES: [&str; 15] = [
    STRATEGY_PROPERTY,
    once_listener::ENABLED_PROPERTY,
    once_listener::STARTED_PROPERTY,
    once_listener::COMPLETED_PROPERTY,
    execution_policy::TIMEOUT_PROPERTY,
    execution_policy::CANCEL_GRACE_PROPERTY,
    execution_policy::RETRY_ATTEMPTS_PROPERTY,
    execution_policy::RETRY_BACKOFF_PROPERTY,
    execution_policy::RETRY_BACKOFF_MAX_PROPERTY,
    execution_policy::RETRY_ON_PROPERTY,
    handoff_policy::HANDOFF_PROPERTY,
    handoff_policy::DEADLINE_PROPERTY,
    handoff_policy::OWNERSHIP_PROPERTY,
    handoff_policy::ITEM_LABELS_PROPERTY,
    grace::PROPERTY,
];

/// A field that was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: given `{given}`; allowed: {allowed}")]
pub struct FieldError {
    /// The key (`shardingTotalCount`) or the path of the field in a request (`configuration.sharding_total_count`).
    pub field: String,
    /// What was given, shortened.
    pub given: String,
    /// What is allowed.
    pub allowed: String,
}

impl FieldError {
    /// An error that repeats `given` shortened.
    pub fn new(field: &str, given: &str, allowed: &str) -> Self {
        Self { field: field.to_owned(), given: Excerpt::of(given).into_string(), allowed: allowed.to_owned() }
    }

    /// A job name that was refused.
    pub fn of_job_name(field: &str, error: &NameError) -> Self {
        let allowed = format!("a name that is a node's name in ZooKeeper, but this one {}", error.reason);
        Self::new(field, &error.given, &allowed)
    }

    /// All errors in one text.
    pub fn join(errors: &[Self]) -> String {
        errors.iter().map(Self::to_string).collect::<Vec<_>>().join("; ")
    }
}

/// How schedules are checked; the error says what is wrong. An argument, because this room does not know Quartz.
#[derive(Clone, Copy)]
pub struct ScheduleCheck<'a> {
    /// Checks a cron expression.
    pub cron: &'a dyn Fn(&str) -> Result<(), String>,
    /// Checks a time zone.
    pub time_zone: &'a dyn Fn(&str) -> Result<(), String>,
}

/// Everything that is wrong with a configuration, by ElasticJob's keys.
pub fn validate(configuration: &JobConfiguration, schedule: ScheduleCheck<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check_schedule(configuration, schedule, &mut errors);
    check_items(configuration, &mut errors);
    check_strategy(configuration, &mut errors);
    check_props(configuration, &mut errors);
    check_texts(configuration, &mut errors);
    if configuration.reconcile_interval_minutes < 0 {
        let given = configuration.reconcile_interval_minutes.to_string();
        errors.push(FieldError::new("reconcileIntervalMinutes", &given, "0 (never) or a number of minutes"));
    }
    let bytes = config_yaml::write(configuration).len();
    if bytes > DOCUMENT_BYTES_MAX {
        let allowed = format!("a document of at most {DOCUMENT_BYTES_MAX} bytes");
        errors.push(FieldError::new("configuration", &format!("a document of {bytes} bytes"), &allowed));
    }
    errors
}

/// Checks the class name or job type that becomes the content of the job's root node.
pub fn validate_job_class(field: &str, job_class: &str) -> Option<FieldError> {
    let allowed = format!(
        "a Java class name or job type of at most {JOB_CLASS_BYTES_MAX} bytes without control characters"
    );
    let wrong = job_class.len() > JOB_CLASS_BYTES_MAX || job_class.chars().any(char::is_control);
    wrong.then(|| FieldError::new(field, job_class, &allowed))
}

fn check_schedule(c: &JobConfiguration, schedule: ScheduleCheck<'_>, errors: &mut Vec<FieldError>) {
    if let Some(cron) = &c.cron
        && let Err(reason) = (schedule.cron)(cron)
    {
        let allowed = format!("a Quartz cron expression of six or seven fields; {reason}");
        errors.push(FieldError::new("cron", cron, &allowed));
    }
    if let Some(time_zone) = &c.time_zone
        && let Err(reason) = (schedule.time_zone)(time_zone)
    {
        let allowed =
            format!("an IANA name such as `Europe/Berlin` or an offset such as `GMT+8:00`; {reason}");
        errors.push(FieldError::new("timeZone", time_zone, &allowed));
    }
}

fn check_items(c: &JobConfiguration, errors: &mut Vec<FieldError>) {
    let total = c.sharding_total_count;
    if !(1..=SHARDING_TOTAL_COUNT_MAX).contains(&total) {
        let allowed = format!("an integer from 1 to {SHARDING_TOTAL_COUNT_MAX}");
        errors.push(FieldError::new("shardingTotalCount", &total.to_string(), &allowed));
    }
    let field = "shardingItemParameters";
    match item_parameters::parse(&c.sharding_item_parameters) {
        Err(error) => {
            let (position, part, reason) = (error.position, &error.part, error.reason);
            let allowed = format!("{}; part {position}, `{part}`, {reason}", ItemParametersError::ALLOWED);
            errors.push(FieldError::new(field, &c.sharding_item_parameters, &allowed));
        }
        Ok(parameters) => {
            let is_item = |item: i32| u32::try_from(item).is_ok_and(|item| item < total);
            if let Some(item) = parameters.keys().copied().find(|item| !is_item(*item)).filter(|_| total > 0)
            {
                let allowed = format!("parameters of the items 0 to {} only, not of {item}", total - 1);
                errors.push(FieldError::new(field, &c.sharding_item_parameters, &allowed));
            }
        }
    }
}

fn check_strategy(c: &JobConfiguration, errors: &mut Vec<FieldError>) {
    let Some(text) = c.job_sharding_strategy_type.as_deref().filter(|text| !text.is_empty()) else { return };
    if ShardingStrategy::from_type(text).is_none() {
        let allowed = format!("one of {}", ShardingStrategy::type_names());
        errors.push(FieldError::new("jobShardingStrategyType", text, &allowed));
    }
}

fn check_props(c: &JobConfiguration, errors: &mut Vec<FieldError>) {
    for (key, value) in &c.props {
        let field = format!("props[{}]", Excerpt::of(key));
        if key.is_empty() {
            errors.push(FieldError::new("props", "an empty key", "keys that are not empty"));
        }
        if key.contains('\0') || value.contains('\0') {
            errors.push(FieldError::new(
                &field,
                "a text with a NUL character",
                "texts without NUL characters",
            ));
        }
        if !key.starts_with(OWN_PREFIX) {
            continue;
        }
        if !OWN_PROPERTIES.contains(&key.as_str()) {
            let allowed = format!(
                "keys that begin with `{OWN_PREFIX}` are Sidekeeper's: {}",
                OWN_PROPERTIES.join(", ")
            );
            errors.push(FieldError::new("props", key, &allowed));
        } else if key != STRATEGY_PROPERTY {
            let checked = once_listener::check(key, value)
                .and_then(|()| execution_policy::check(key, value))
                .and_then(|()| handoff_policy::check(key, value))
                .and_then(|()| grace::check(key, value));
            if let Err(allowed) = checked {
                errors.push(FieldError::new(&field, value, allowed));
            }
        } else if ShardingStrategy::from_type(value) != Some(ShardingStrategy::ConsistentHash) {
            errors.push(FieldError::new(
                &field,
                value,
                "`CONSISTENT_HASH`; all other strategies go into `jobShardingStrategyType`",
            ));
        }
    }
}

fn check_texts(c: &JobConfiguration, errors: &mut Vec<FieldError>) {
    let bytes = c.job_parameter.len();
    if bytes > JOB_PARAMETER_BYTES_MAX {
        let allowed = format!("a text of at most {JOB_PARAMETER_BYTES_MAX} bytes");
        errors.push(FieldError::new("jobParameter", &format!("a text of {bytes} bytes"), &allowed));
    }
    let texts = [
        ("cron", c.cron.as_deref()),
        ("timeZone", c.time_zone.as_deref()),
        ("shardingItemParameters", Some(c.sharding_item_parameters.as_str())),
        ("jobParameter", Some(c.job_parameter.as_str())),
        ("jobShardingStrategyType", c.job_sharding_strategy_type.as_deref()),
        ("jobExecutorThreadPoolSizeProviderType", c.job_executor_thread_pool_size_provider_type.as_deref()),
        ("jobErrorHandlerType", c.job_error_handler_type.as_deref()),
        ("description", Some(c.description.as_str())),
        ("label", c.label.as_deref()),
    ];
    let listeners = c.job_listener_types.iter().map(|text| ("jobListenerTypes", Some(text.as_str())));
    for (field, text) in texts.into_iter().chain(listeners) {
        if text.is_some_and(|text| text.contains('\0')) {
            errors.push(FieldError::new(
                field,
                "a text with a NUL character",
                "texts without NUL characters",
            ));
        }
    }
    if c.job_listener_types.iter().any(String::is_empty) {
        errors.push(FieldError::new("jobListenerTypes", "an empty type", "types that are not empty"));
    }
}
