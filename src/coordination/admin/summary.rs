//! A job in one line of a list, from a handful of its nodes. Decides whether it can run; `explain` says more.

use crate::elasticjob::config_yaml;
use crate::excerpt::Excerpt;
use crate::job::{InstanceId, JobName};

/// Whether a job can run, as ElasticJob's console shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// It has a configuration and an instance that may execute items.
    Ok,
    /// The servers of all instances that are online are disabled.
    Disabled,
    /// No instance is online.
    NoInstances,
    /// A resharding is due.
    Resharding,
    /// The job has no configuration, or one that cannot be read.
    Unreadable,
}

/// The nodes of a job that its line needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nodes {
    /// The content of the configuration's node; `None`: there is none.
    pub configuration: Option<Vec<u8>>,
    /// The instances that are online.
    pub instances: Vec<InstanceId>,
    /// Whether the server of one of them is enabled.
    pub is_enabled: bool,
    /// Whether a resharding is due.
    pub is_resharding: bool,
}

/// A job in a list. It has the shown values alone, so that two lines differ if and only if they look different.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSummary {
    /// The job.
    pub job: JobName,
    /// Whether it can run.
    pub state: JobState,
    /// The number of items. 0: the configuration cannot be read.
    pub total: u32,
    /// The schedule, shortened. Empty: none, or not known.
    pub cron: String,
    /// The time zone of the schedule, shortened. Empty: UTC, or not known.
    pub time_zone: String,
    /// The purpose, shortened.
    pub description: String,
    /// How many instances are online.
    pub instances: usize,
    /// How many of them are Java's.
    pub java_instances: usize,
}

impl JobSummary {
    /// The line of a job with these nodes.
    pub fn of(job: JobName, nodes: &Nodes) -> Self {
        let parsed = nodes.configuration.as_deref().and_then(|data| config_yaml::parse(data).ok());
        let state = match &parsed {
            None => JobState::Unreadable,
            Some(_) if nodes.instances.is_empty() => JobState::NoInstances,
            Some(_) if !nodes.is_enabled => JobState::Disabled,
            Some(_) if nodes.is_resharding => JobState::Resharding,
            Some(_) => JobState::Ok,
        };
        let configuration = parsed.as_ref().map(|parsed| &parsed.configuration);
        let text =
            |text: Option<&String>| text.map(|text| Excerpt::of(text).into_string()).unwrap_or_default();
        Self {
            job,
            state,
            total: configuration.map_or(0, |configuration| configuration.sharding_total_count),
            cron: text(configuration.and_then(|configuration| configuration.cron.as_ref())),
            time_zone: text(configuration.and_then(|configuration| configuration.time_zone.as_ref())),
            description: text(configuration.map(|configuration| &configuration.description)),
            instances: nodes.instances.len(),
            java_instances: nodes.instances.iter().filter(|instance| instance.is_java()).count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_ok_if_nothing_that_a_list_shows_keeps_it_from_running() {
        let job = JobName::parse("orders").unwrap();
        let well = Nodes {
            configuration: Some(b"jobName: orders\nshardingTotalCount: 3\n".to_vec()),
            instances: vec![InstanceId::from_registry("10.0.0.1@-@4711")],
            is_enabled: true,
            is_resharding: false,
        };
        let state = |nodes: &Nodes| JobSummary::of(job.clone(), nodes).state;
        assert_eq!(state(&well), JobState::Ok);
        assert_eq!(JobSummary::of(job.clone(), &well).java_instances, 1);
        let resharding = Nodes { is_resharding: true, ..well.clone() };
        assert_eq!(state(&resharding), JobState::Resharding);
        let disabled = Nodes { is_enabled: false, ..resharding };
        assert_eq!(state(&disabled), JobState::Disabled);
        let alone = Nodes { instances: Vec::new(), ..disabled };
        assert_eq!(state(&alone), JobState::NoInstances);
        for configuration in [None, Some(b"shardingTotalCount: x".to_vec()), Some(b"\xff".to_vec())] {
            assert_eq!(state(&Nodes { configuration, ..alone.clone() }), JobState::Unreadable);
        }
    }
}
