//! The values that all rooms share: job, item, instance, fencing token, configuration. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;

use crate::tree::Zxid;

/// The separator in instance and task ids (ElasticJob's).
pub const ID_SEPARATOR: &str = "@-@";

/// The largest sharding total count that is accepted. ElasticJob has no limit. Up to this count a resharding
/// fits into a few dozen transactions of ZooKeeper's default size.
pub const SHARDING_TOTAL_COUNT_MAX: u32 = 10_000;

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} `{given}` {reason}")]
pub struct NameError {
    /// `job name`, `instance id` and the like.
    pub what: &'static str,
    /// The refused text.
    pub given: String,
    /// The rule that the text breaks, and what is allowed.
    pub reason: &'static str,
}

/// A job's name: the name of its node under the namespace.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobName(Arc<str>);

impl JobName {
    /// Bytes in the longest name accepted: ElasticJob's trace tables hold 100 characters and task ids 255 bytes, but
    /// jobs without tracing may exceed that.
    pub const MAX_BYTES: usize = 200;

    /// Checks a name.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let error = |reason| NameError { what: "job name", given: text.to_owned(), reason };
        if text.is_empty() {
            return Err(error("is empty; it must have 1 to 200 bytes"));
        }
        if text.len() > Self::MAX_BYTES {
            return Err(error("is too long; it must have 1 to 200 bytes"));
        }
        if text.contains('/') {
            return Err(error("holds a `/`, which separates nodes"));
        }
        if text.contains(ID_SEPARATOR) {
            return Err(error("holds `@-@`, which separates the parts of task ids"));
        }
        if crate::tree::Path::root().try_child(text).is_err() {
            return Err(error("is `.`, `..` or holds a control character"));
        }
        Ok(Self(text.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An item of a job: a number from 0 to the sharding total count less one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Item(pub u32);

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An instance of a job: `{ipv4}@-@{unique}`.
///
/// The registry may hold any text, so the text is kept as it is. [`InstanceId::server_ip`] is `None` if it
/// does not have this form.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(Arc<str>);

impl InstanceId {
    /// An instance on this server. `unique` distinguishes it from other instances there.
    pub fn new(server_ip: Ipv4Addr, unique: &str) -> Self {
        Self(format!("{server_ip}{ID_SEPARATOR}{unique}").into())
    }

    /// An instance id that was read from the registry.
    pub fn from_registry(text: &str) -> Self {
        Self(text.into())
    }

    /// The address before the separator: the instance's server. `None` if it is not an IPv4 address.
    pub fn server_ip(&self) -> Option<Ipv4Addr> {
        self.0.split_once(ID_SEPARATOR)?.0.parse().ok()
    }

    /// Whether the id has the form of Java's, `{ipv4}@-@{pid}`: a bare number after the separator. A
    /// sidecar's ids never have a bare number there.
    pub fn is_java(&self) -> bool {
        self.unique()
            .is_some_and(|unique| !unique.is_empty() && unique.bytes().all(|byte| byte.is_ascii_digit()))
    }

    /// The part after the separator, which distinguishes the instance from others on its server. It is the
    /// instance's name, if it has one. `None`: there is no separator.
    pub fn unique(&self) -> Option<&str> {
        // A search for one byte is quicker. It finds the separator in all well-formed ids.
        let (_, rest) = self.0.split_at_checked(self.0.find('@')?)?;
        rest.strip_prefix(ID_SEPARATOR).or_else(|| rest.split_once(ID_SEPARATOR).map(|(_, unique)| unique))
    }

    /// Whether this is an id of the instance with this name, on any server.
    pub fn has_name(&self, name: &str) -> bool {
        self.unique() == Some(name)
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for InstanceId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A name that an application gives its instance. The instance keeps it over restarts: it is the end of the
/// instance's id.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceName(Arc<str>);

impl InstanceName {
    /// Characters in the longest name accepted: a pod's name has 63.
    pub const MAX_CHARS: usize = 64;
    /// The allowed names, for error texts.
    pub const ALLOWED: &'static str = "1 to 64 characters of [A-Za-z0-9_.-], one of them a letter";

    /// Checks a name. A name without a letter could be a process id, which marks Java's instances. `.` and
    /// `..` are no names of nodes.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        let is_name = text.len() <= Self::MAX_CHARS
            && text.chars().all(allowed)
            && text.chars().any(|c| c.is_ascii_alphabetic());
        if is_name {
            return Ok(Self(text.into()));
        }
        let reason = "is none; allowed are 1 to 64 characters of [A-Za-z0-9_.-], one of them a letter";
        Err(NameError { what: "instance name", given: text.to_owned(), reason })
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InstanceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for InstanceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A sharding of a job: the transaction that made it. It grows with each sharding; zero means never sharded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Generation(pub i64);

/// Grows with each new owner and each execution of an item (promise P3). It is the id of the transaction that
/// created the node which gives the right to act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FencingToken(pub i64);

impl From<Zxid> for FencingToken {
    fn from(zxid: Zxid) -> Self {
        Self(zxid.0)
    }
}

/// How items are allocated to instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardingStrategy {
    /// Equal runs of items, remainders to the first instances (ElasticJob's default).
    AvgAllocation,
    /// As above, with the order of instances reversed for job names with an even hash.
    Odevity,
    /// As above, with the order of instances rotated by the job name's hash.
    RoundRobin,
    /// As above, rotated by hash and clock.
    SingleShardingBalance,
    /// By the hash of job name and item, the consistent hashing of the articles; Sidekeeper only.
    ConsistentHash,
}

/// A job's configuration: ElasticJob's `JobConfigurationPOJO` (protocol 1.4), checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobConfiguration {
    /// The job.
    pub job_name: JobName,
    /// Quartz cron expression; `None`: no schedule.
    pub cron: Option<String>,
    /// Time zone of the expression as written; `None`: UTC.
    pub time_zone: Option<String>,
    /// Into how many items the job is split, 1 to [`SHARDING_TOTAL_COUNT_MAX`].
    pub sharding_total_count: u32,
    /// One parameter for each item, `0=a,1=b`.
    pub sharding_item_parameters: String,
    /// A parameter for the whole job.
    pub job_parameter: String,
    /// Whether the job has running nodes while items execute.
    pub monitor_execution: bool,
    /// Whether other instances execute the items of crashed instances.
    pub failover: bool,
    /// Whether missed fires are re-run.
    pub misfire: bool,
    /// Tolerated seconds between the sidecar's clock and the registry's; negative: not checked.
    pub max_time_diff_seconds: i32,
    /// Minutes between two reconciliations; zero or less: never.
    pub reconcile_interval_minutes: i32,
    /// ElasticJob's strategy type as written; `None`: the default.
    pub job_sharding_strategy_type: Option<String>,
    /// ElasticJob's thread pool type as written.
    pub job_executor_thread_pool_size_provider_type: Option<String>,
    /// ElasticJob's error handler type as written.
    pub job_error_handler_type: Option<String>,
    /// ElasticJob's listener types as written.
    pub job_listener_types: Vec<String>,
    /// Settings by key; Sidekeeper's own begin with `sidekeeper.`.
    pub props: BTreeMap<String, String>,
    /// A description for people.
    pub description: String,
    /// A label, which is only stored.
    pub label: Option<String>,
    /// Whether a server that does not exist yet is registered as disabled.
    pub disabled: bool,
    /// Whether this configuration replaces the registry's.
    pub overwrite: bool,
    /// Whether the first assignment never changes.
    pub static_sharding: bool,
    /// The source text of `jobExtraConfigurations`, kept byte for byte: lines with their line ends, from the
    /// key on. Empty if there are none.
    pub job_extra_configurations: String,
}

impl JobConfiguration {
    /// A configuration with ElasticJob's builder defaults (protocol 1.4).
    pub fn new(job_name: JobName, sharding_total_count: u32) -> Self {
        Self {
            job_name,
            cron: None,
            time_zone: None,
            sharding_total_count,
            sharding_item_parameters: String::new(),
            job_parameter: String::new(),
            monitor_execution: true,
            failover: false,
            misfire: true,
            max_time_diff_seconds: -1,
            reconcile_interval_minutes: 10,
            job_sharding_strategy_type: None,
            job_executor_thread_pool_size_provider_type: None,
            job_error_handler_type: None,
            job_listener_types: Vec::new(),
            props: BTreeMap::new(),
            description: String::new(),
            label: None,
            disabled: false,
            overwrite: false,
            static_sharding: false,
            job_extra_configurations: String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_name_differs_from_process_ids_and_is_the_name_of_a_node() {
        for text in ["worker-0", "a", "7a", "A.b_c-1", &"x".repeat(64)] {
            assert_eq!(InstanceName::parse(text).unwrap().as_str(), text);
        }
        for text in ["", "4711", ".", "..", "-", "1-2", "a/b", "a@-@b", "a b", "\u{e4}", &"x".repeat(65)] {
            assert!(InstanceName::parse(text).is_err(), "{text}");
        }
        let id = InstanceId::new(Ipv4Addr::new(10, 0, 0, 1), "worker-0");
        assert!(id.has_name("worker-0") && !id.has_name("worker") && !id.is_java());
        assert_eq!(InstanceId::from_registry("worker-0").unique(), None);
    }
}
