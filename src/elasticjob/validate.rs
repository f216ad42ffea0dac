//! The rules for configurations that may enter a registry. Pure.
//!
//! One list of rules for configurations from requests and from files; the callers translate the names of
//! fields. Reading the registry is more lenient (`config_yaml`), because the sidecar has to work with any
//! configuration that is already there.

use crate::elasticjob::field_error::FieldError;
use crate::elasticjob::item_parameters::ItemParametersError;
use crate::elasticjob::{config_yaml, item_parameters};
use crate::excerpt::Excerpt;
use crate::job::{JobConfiguration, SHARDING_TOTAL_COUNT_MAX, ShardingStrategy};

/// Bytes in the longest job parameter. Each execution gets the parameter.
pub const JOB_PARAMETER_BYTES_MAX: usize = 64 * 1024;

/// Bytes in the longest class name or job type: far above any of Java's, far below the limit of a node.
pub const JOB_CLASS_BYTES_MAX: usize = 1024;

/// Bytes in the largest configuration document: half of ZooKeeper's default limit for a request. So the
/// document always fits into one request with its path and the rest of a transaction.
pub const DOCUMENT_BYTES_MAX: usize = 512 * 1024;

/// Checks of other rooms: Quartz's expressions, and Sidekeeper's properties.
#[derive(Clone, Copy)]
pub struct Checks<'a> {
    /// Checks a cron expression. The error names the mistake.
    pub cron: &'a dyn Fn(&str) -> Result<(), String>,
    /// Checks a time zone. The error names the mistake.
    pub time_zone: &'a dyn Fn(&str) -> Result<(), String>,
    /// Checks a key of `props` and its value.
    pub property: &'a dyn Fn(&str, &str) -> Result<(), FieldError>,
}

/// All errors of a configuration, by ElasticJob's keys.
pub fn validate(configuration: &JobConfiguration, checks: Checks<'_>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check_schedule(configuration, checks, &mut errors);
    check_items(configuration, &mut errors);
    check_strategy(configuration, &mut errors);
    check_props(configuration, checks, &mut errors);
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

fn check_schedule(c: &JobConfiguration, checks: Checks<'_>, errors: &mut Vec<FieldError>) {
    if let Some(cron) = &c.cron
        && let Err(reason) = (checks.cron)(cron)
    {
        let allowed = format!("a Quartz cron expression of six or seven fields; {reason}");
        errors.push(FieldError::new("cron", cron, &allowed));
    }
    if let Some(time_zone) = &c.time_zone
        && let Err(reason) = (checks.time_zone)(time_zone)
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

fn check_props(c: &JobConfiguration, checks: Checks<'_>, errors: &mut Vec<FieldError>) {
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
        errors.extend((checks.property)(key, value).err());
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
