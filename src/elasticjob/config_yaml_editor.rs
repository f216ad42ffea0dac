//! Changes some keys of a configuration document, and leaves every other byte as it is: the order of the keys, comments, and keys that only
//! other programs know. Pure.
//!
//! A document is edited by its lines: a line that begins with a key is the first of an entry, and the lines below it that are indented, or
//! begin with `-`, belong to it. Documents of ElasticJob and its console have that form. For any other form the edited document would mean
//! something else, so it is read again, and refused.

use crate::elasticjob::config_yaml::{self, ConfigProblem};
use crate::elasticjob::yaml::{self, Content};
use crate::job::JobConfiguration;

/// The keys of a configuration that an edit may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// `cron`
    Cron,
    /// `timeZone`
    TimeZone,
    /// `shardingTotalCount`
    ShardingTotalCount,
    /// `shardingItemParameters`
    ShardingItemParameters,
    /// `jobParameter`
    JobParameter,
    /// `monitorExecution`
    MonitorExecution,
    /// `failover`
    Failover,
    /// `misfire`
    Misfire,
    /// `maxTimeDiffSeconds`
    MaxTimeDiffSeconds,
    /// `reconcileIntervalMinutes`
    ReconcileIntervalMinutes,
    /// `jobShardingStrategyType`
    JobShardingStrategyType,
    /// `jobExecutorThreadPoolSizeProviderType`
    JobExecutorThreadPoolSizeProviderType,
    /// `jobErrorHandlerType`
    JobErrorHandlerType,
    /// `jobListenerTypes`
    JobListenerTypes,
    /// `props`
    Props,
    /// `description`
    Description,
    /// `label`
    Label,
    /// `disabled`
    Disabled,
    /// `overwrite`
    Overwrite,
    /// `staticSharding`
    StaticSharding,
}

impl Key {
    /// All keys.
    pub const ALL: [Self; 20] = [
        Self::Cron,
        Self::TimeZone,
        Self::ShardingTotalCount,
        Self::ShardingItemParameters,
        Self::JobParameter,
        Self::MonitorExecution,
        Self::Failover,
        Self::Misfire,
        Self::MaxTimeDiffSeconds,
        Self::ReconcileIntervalMinutes,
        Self::JobShardingStrategyType,
        Self::JobExecutorThreadPoolSizeProviderType,
        Self::JobErrorHandlerType,
        Self::JobListenerTypes,
        Self::Props,
        Self::Description,
        Self::Label,
        Self::Disabled,
        Self::Overwrite,
        Self::StaticSharding,
    ];

    /// The key in a document.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cron => "cron",
            Self::TimeZone => "timeZone",
            Self::ShardingTotalCount => "shardingTotalCount",
            Self::ShardingItemParameters => "shardingItemParameters",
            Self::JobParameter => "jobParameter",
            Self::MonitorExecution => "monitorExecution",
            Self::Failover => "failover",
            Self::Misfire => "misfire",
            Self::MaxTimeDiffSeconds => "maxTimeDiffSeconds",
            Self::ReconcileIntervalMinutes => "reconcileIntervalMinutes",
            Self::JobShardingStrategyType => "jobShardingStrategyType",
            Self::JobExecutorThreadPoolSizeProviderType => "jobExecutorThreadPoolSizeProviderType",
            Self::JobErrorHandlerType => "jobErrorHandlerType",
            Self::JobListenerTypes => "jobListenerTypes",
            Self::Props => "props",
            Self::Description => "description",
            Self::Label => "label",
            Self::Disabled => "disabled",
            Self::Overwrite => "overwrite",
            Self::StaticSharding => "staticSharding",
        }
    }

    /// Copies the value of this key.
    pub fn copy(self, from: &JobConfiguration, to: &mut JobConfiguration) {
        match self {
            Self::Cron => to.cron.clone_from(&from.cron),
            Self::TimeZone => to.time_zone.clone_from(&from.time_zone),
            Self::ShardingTotalCount => to.sharding_total_count = from.sharding_total_count,
            Self::ShardingItemParameters => {
                to.sharding_item_parameters.clone_from(&from.sharding_item_parameters);
            }
            Self::JobParameter => to.job_parameter.clone_from(&from.job_parameter),
            Self::MonitorExecution => to.monitor_execution = from.monitor_execution,
            Self::Failover => to.failover = from.failover,
            Self::Misfire => to.misfire = from.misfire,
            Self::MaxTimeDiffSeconds => to.max_time_diff_seconds = from.max_time_diff_seconds,
            Self::ReconcileIntervalMinutes => to.reconcile_interval_minutes = from.reconcile_interval_minutes,
            Self::JobShardingStrategyType => {
                to.job_sharding_strategy_type.clone_from(&from.job_sharding_strategy_type);
            }
            Self::JobExecutorThreadPoolSizeProviderType => {
                let from = &from.job_executor_thread_pool_size_provider_type;
                to.job_executor_thread_pool_size_provider_type.clone_from(from);
            }
            Self::JobErrorHandlerType => to.job_error_handler_type.clone_from(&from.job_error_handler_type),
            Self::JobListenerTypes => to.job_listener_types.clone_from(&from.job_listener_types),
            Self::Props => to.props.clone_from(&from.props),
            Self::Description => to.description.clone_from(&from.description),
            Self::Label => to.label.clone_from(&from.label),
            Self::Disabled => to.disabled = from.disabled,
            Self::Overwrite => to.overwrite = from.overwrite,
            Self::StaticSharding => to.static_sharding = from.static_sharding,
        }
    }
}

/// Why a document cannot be edited.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// It is no configuration.
    #[error(transparent)]
    Unreadable(#[from] ConfigProblem),
    /// The edited document would mean something else.
    #[error(
        "the document has a form that cannot be edited key by key; write it anew in block form, a key a line"
    )]
    Form,
}

/// The keys whose values differ.
pub fn difference(one: &JobConfiguration, other: &JobConfiguration) -> Vec<Key> {
    let differs = |key: &Key| {
        let mut copy = one.clone();
        key.copy(other, &mut copy);
        copy != *one
    };
    Key::ALL.into_iter().filter(differs).collect()
}

/// The document with the values of these keys from another configuration.
pub fn edit(document: &[u8], wanted: &JobConfiguration, keys: &[Key]) -> Result<String, EditError> {
    let before = config_yaml::parse(document)?;
    let text = std::str::from_utf8(document).map_err(|_| EditError::Form)?;
    let mut expected = before.configuration.clone();
    for key in keys {
        key.copy(wanted, &mut expected);
    }
    let written = config_yaml::write(&expected);
    let edited = splice(text, &written, keys);
    // A key that the lines do not show would be there twice.
    let keys_of = |text: &str| match yaml::parse(text).map(|root| root.content) {
        Ok(Content::Mapping(pairs)) => {
            pairs.iter().filter_map(|(key, _)| key.scalar().map(str::to_owned)).collect::<Vec<_>>()
        }
        Ok(_) | Err(_) => Vec::new(),
    };
    let all = keys_of(&edited);
    let is_double = |key: &Key| all.iter().filter(|known| *known == key.as_str()).count() > 1;
    if keys.iter().any(is_double) {
        return Err(EditError::Form);
    }
    match config_yaml::parse(edited.as_bytes()) {
        Ok(after) if after.configuration == expected && after.problems == before.problems => Ok(edited),
        Ok(_) | Err(_) => Err(EditError::Form),
    }
}

/// An entry of a document: its key, and its lines.
struct Entry<'a> {
    key: Option<&'a str>,
    text: &'a str,
}

/// Cuts a text into entries. The lines before the first key are an entry without a key, and so is a comment between two keys.
fn entries(text: &str) -> Vec<Entry<'_>> {
    let mut entries: Vec<Entry<'_>> = Vec::new();
    let mut begin = 0;
    let mut end = 0;
    let mut key = None;
    for line in text.split_inclusive('\n') {
        let belongs = line.starts_with([' ', '\t', '-']) && !line.starts_with("---");
        if !belongs {
            if end > begin {
                entries.push(Entry { key, text: text.get(begin..end).unwrap_or_default() });
            }
            begin = end;
            key = key_of(line);
        }
        end += line.len();
    }
    if end > begin {
        entries.push(Entry { key, text: text.get(begin..end).unwrap_or_default() });
    }
    entries
}

/// The key with which a line begins.
fn key_of(line: &str) -> Option<&str> {
    let (key, rest) = line.split_once(':')?;
    let is_key = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (is_key && rest.starts_with([' ', '\n', '\r'])).then_some(key)
}

/// The old text with the entries of the new one for these keys.
fn splice(old: &str, new: &str, keys: &[Key]) -> String {
    let new = entries(new);
    let replacement = |key: &str| new.iter().find(|entry| entry.key == Some(key)).map(|entry| entry.text);
    let is_changed = |key: &str| keys.iter().any(|changed| changed.as_str() == key);
    let mut text = String::with_capacity(old.len());
    let mut seen = Vec::new();
    for entry in entries(old) {
        match entry.key.filter(|key| is_changed(key)) {
            Some(key) => {
                text.push_str(replacement(key).unwrap_or_default());
                seen.push(key);
            }
            None => text.push_str(entry.text),
        }
    }
    for key in keys.iter().map(|key| key.as_str()).filter(|key| !seen.contains(key)) {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(replacement(key).unwrap_or_default());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "# by the console\ncron: 0/5 * * * * ?\ndescription: ''\nelsewhere: {a: 1}\njobListenerTypes:\n- ONE\n- TWO\n# about the name\njobName: orders\njobParameter: |\n  two\n  lines\nprops:\n  b: '2'\n  a: '1'\nshardingTotalCount: 3\n";

    fn wanted(change: impl Fn(&mut JobConfiguration)) -> JobConfiguration {
        let mut configuration = config_yaml::parse(DOCUMENT.as_bytes()).unwrap().configuration;
        change(&mut configuration);
        configuration
    }

    #[test]
    fn op_2_other_keys_comments_and_unknown_keys_are_kept_byte_for_byte() {
        let other = wanted(|configuration| {
            configuration.sharding_total_count = 12;
            configuration.cron = Some("0 0 3 * * ?".to_owned());
            configuration.description = "not asked for".to_owned();
        });
        let edited = edit(DOCUMENT.as_bytes(), &other, &[Key::Cron, Key::ShardingTotalCount]).unwrap();
        let expected = DOCUMENT
            .replace("cron: 0/5 * * * * ?", "cron: '0 0 3 * * ?'")
            .replace("shardingTotalCount: 3", "shardingTotalCount: 12");
        assert_eq!(edited, expected);
    }

    #[test]
    fn lists_maps_and_texts_of_several_lines_are_replaced_removed_and_added() {
        let other = wanted(|configuration| {
            configuration.job_listener_types = vec!["THREE".to_owned()];
            configuration.job_parameter = "one line".to_owned();
            configuration.props.clear();
            configuration.label = Some("blue".to_owned());
        });
        let keys = [Key::JobListenerTypes, Key::JobParameter, Key::Props, Key::Label];
        let edited = edit(DOCUMENT.as_bytes(), &other, &keys).unwrap();
        let expected = DOCUMENT
            .replace("- ONE\n- TWO\n", "- 'THREE'\n")
            .replace("jobParameter: |\n  two\n  lines\n", "jobParameter: 'one line'\n")
            .replace("props:\n  b: '2'\n  a: '1'\n", "");
        assert_eq!(edited, expected + "label: 'blue'\n");
        let again = edit(edited.as_bytes(), &wanted(|_| ()), &keys).unwrap();
        let again = config_yaml::parse(again.as_bytes()).unwrap().configuration;
        assert_eq!(again, wanted(|_| ()));
    }

    #[test]
    fn a_document_whose_lines_are_no_entries_is_refused() {
        for document in [
            "{jobName: orders, shardingTotalCount: 3}\n",
            "jobName: orders\n\"shardingTotalCount\": 3\n",
            "jobName: orders\nshardingTotalCount: 3\n...\n",
        ] {
            let mut other = config_yaml::parse(document.as_bytes()).unwrap().configuration;
            other.sharding_total_count = 4;
            other.label = Some("blue".to_owned());
            let keys = [Key::ShardingTotalCount, Key::Label];
            assert_eq!(edit(document.as_bytes(), &other, &keys), Err(EditError::Form), "{document}");
        }
        assert!(matches!(
            edit(b"shardingTotalCount: x", &wanted(|_| ()), &[]),
            Err(EditError::Unreadable(_))
        ));
    }

    #[test]
    fn the_difference_names_exactly_the_keys_that_differ() {
        assert_eq!(difference(&wanted(|_| ()), &wanted(|_| ())), []);
        let other = wanted(|configuration| {
            configuration.failover = true;
            configuration.time_zone = Some("GMT+8:00".to_owned());
        });
        assert_eq!(difference(&wanted(|_| ()), &other), [Key::TimeZone, Key::Failover]);
    }
}
