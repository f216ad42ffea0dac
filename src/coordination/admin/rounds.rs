//! All jobs of a namespace as they were read at one moment, and the differences between two such rounds, which watchers are told. Decides
//! which jobs have changed. A watcher that is slow skips rounds: each difference has the whole state of a job, so nothing is missed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::coordination::admin::summary::JobSummary;
use crate::job::JobName;

/// The jobs of a round. Rounds share the states that are equal.
pub type Round = BTreeMap<JobName, Arc<JobSummary>>;

/// A difference between two rounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The job is new, or has changed.
    Job(Arc<JobSummary>),
    /// The job was removed.
    Removed(JobName),
    /// The first round is complete.
    Synced,
}

/// The round with these jobs, after another one.
pub fn round(before: &Round, jobs: Vec<JobSummary>) -> Round {
    let shared = |summary: JobSummary| {
        let known = before.get(&summary.job).filter(|known| ***known == summary);
        let known = known.map(Arc::clone);
        (summary.job.clone(), known.unwrap_or_else(|| Arc::new(summary)))
    };
    jobs.into_iter().map(shared).collect()
}

/// The differences between the round that a watcher knows and a later one, among the jobs that it wants: at most one of each job. `None`: it knows
/// none.
pub fn changes(told: Option<&Round>, now: &Round, is_wanted: impl Fn(&JobName) -> bool) -> VecDeque<Change> {
    let known = |job: &JobName| told.and_then(|told| told.get(job));
    let wanted = now.iter().filter(|(job, _)| is_wanted(job));
    let changed = wanted.filter(|(job, summary)| known(job) != Some(*summary));
    let changed = changed.map(|(_, summary)| Change::Job(Arc::clone(summary)));
    let removed = told.into_iter().flat_map(BTreeMap::keys).filter(|job| !now.contains_key(*job));
    let removed = removed.filter(|job| is_wanted(job)).cloned().map(Change::Removed);
    changed.chain(removed).chain(told.is_none().then_some(Change::Synced)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordination::admin::summary::Nodes;

    fn job(name: &str) -> JobName {
        JobName::parse(name).unwrap()
    }

    fn summary(name: &str, total: u32) -> JobSummary {
        let configuration = Some(format!("jobName: {name}\nshardingTotalCount: {total}\n").into_bytes());
        let nodes = Nodes { configuration, instances: Vec::new(), is_enabled: true, is_resharding: false };
        JobSummary::of(job(name), &nodes)
    }

    fn told(told: Option<&Round>, now: &Round) -> Vec<String> {
        let changes = changes(told, now, |job| job.as_str() != "hidden");
        let words = changes.into_iter().map(|change| match change {
            Change::Job(summary) => format!("{}={}", summary.job, summary.total),
            Change::Removed(job) => format!("-{job}"),
            Change::Synced => "synced".to_owned(),
        });
        words.collect()
    }

    #[test]
    fn a_watcher_is_told_each_difference_once_and_never_of_jobs_that_it_does_not_want() {
        let one = round(&Round::new(), vec![summary("a", 1), summary("b", 1), summary("hidden", 1)]);
        assert_eq!(told(None, &one), ["a=1", "b=1", "synced"]);
        assert_eq!(told(None, &Round::new()), ["synced"]);
        let same = round(&one, vec![summary("a", 1), summary("b", 1), summary("hidden", 2)]);
        assert!(Arc::ptr_eq(&same[&job("a")], &one[&job("a")]), "equal states are kept once");
        assert_eq!(told(Some(&one), &same), [""; 0]);
        let later = round(&same, vec![summary("b", 2), summary("c", 1)]);
        assert_eq!(told(Some(&same), &later), ["b=2", "c=1", "-a"]);
        // A slow watcher skips what was between.
        let last = round(&later, vec![summary("a", 3), summary("b", 1)]);
        assert_eq!(told(Some(&one), &last), ["a=3"]);
    }
}
