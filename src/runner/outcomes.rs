//! How the items that applications of this sidecar own were executed last. Participants record it, and observers show it.
//! Decides which failures get a line in the log. Shell.
//!
//! Only the sidecar of an item's owner knows this, and only in memory: in the registry it would cost a write for each execution.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;

use crate::coordination::admin::status::{Ending, JobStatus, LastExecution};
use crate::coordination::job::contract::report::Outcome;
use crate::coordination::time::Now;
use crate::excerpt::Excerpt;
use crate::job::{InstanceId, Item, JobName};
use crate::telemetry::limiter::{Limiter, Verdict};

/// How each item of an instance was executed last. As many as it has items.
type Items = BTreeMap<Item, LastExecution>;

/// The last executions of all jobs at this sidecar. Clones share them.
#[derive(Clone, Default)]
pub struct Outcomes {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    jobs: BTreeMap<JobName, BTreeMap<InstanceId, Items>>,
    /// The first failure of a job is logged, and then one in ten seconds.
    lines: Limiter<JobName>,
}

impl Outcomes {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an execution that was reported. Returns the message of a failure that is to be logged, and how many failures
    /// of the job were not logged since the last line.
    pub(crate) fn record(
        &self,
        now: Now,
        job: &JobName,
        instance: &InstanceId,
        item: Item,
        outcome: &Outcome,
    ) -> Option<(Excerpt, u64)> {
        let (ending, message) = match outcome {
            Outcome::Success => (Ending::Success, ""),
            Outcome::Failure(message) => (Ending::Failure, message.as_str()),
            Outcome::Rejected(message) => (Ending::Rejection, message.as_str()),
            Outcome::Interrupted(message) => (Ending::Interruption, message.as_str()),
        };
        let message = Excerpt::of(message.lines().find(|line| !line.trim().is_empty()).unwrap_or_default());
        let mut inner = self.lock();
        let items = inner.jobs.entry(job.clone()).or_default().entry(instance.clone()).or_default();
        count(items, item, ending, &message, now.wall);
        if ending != Ending::Failure {
            return None;
        }
        match inner.lines.admit(job.clone(), now.mono) {
            Verdict::Log(left_out) => Some((message, left_out)),
            Verdict::First(_) | Verdict::Count => None,
        }
    }

    /// Forgets an instance that has ended.
    pub(crate) fn forget(&self, job: &JobName, instance: &InstanceId) {
        let mut inner = self.lock();
        if let Some(instances) = inner.jobs.get_mut(job) {
            instances.remove(instance);
            if instances.is_empty() {
                inner.jobs.remove(job);
            }
        }
    }

    /// Adds to a job's status how the present owners executed their items last.
    pub(crate) fn add_to(&self, job: &JobName, status: &mut JobStatus) {
        let inner = self.lock();
        let Some(instances) = inner.jobs.get(job) else { return };
        for item in &mut status.items {
            let owner = item.owner.as_ref().and_then(|(owner, _)| instances.get(owner));
            item.last = owner.and_then(|items| items.get(&item.item)).cloned();
        }
    }
}

fn count(items: &mut Items, item: Item, ending: Ending, message: &Excerpt, at: Timestamp) {
    let before = items.get(&item);
    let success = if ending == Ending::Success { Some(at) } else { before.and_then(|before| before.success) };
    let before = before.filter(|before| before.ending == ending);
    let (times, since) = before.map_or((1, at), |before| (before.times.saturating_add(1), before.since));
    items.insert(item, LastExecution { ending, times, since, at, message: message.to_string(), success });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(second: u64) -> Now {
        let mono = Duration::from_secs(second);
        Now { wall: Timestamp::UNIX_EPOCH + mono, mono }
    }

    #[test]
    fn failures_in_a_row_are_counted_and_one_in_ten_seconds_is_logged() {
        let (outcomes, job) = (Outcomes::default(), JobName::parse("orders").unwrap());
        let instance = InstanceId::from_registry("10.0.0.1@-@1");
        let failure = Outcome::Failure("\nValueError: no such city\n  at line 3".to_owned());
        let mut lines = Vec::new();
        for second in 0..25 {
            lines.extend(outcomes.record(at(second), &job, &instance, Item(3), &failure).map(|line| line.1));
        }
        assert_eq!(lines, [0, 9, 9]);
        let last = outcomes.lock().jobs[&job][&instance][&Item(3)].clone();
        assert_eq!((last.ending, last.times, last.since), (Ending::Failure, 25, at(0).wall));
        assert_eq!((last.message.as_str(), last.success), ("ValueError: no such city", None));
        assert!(outcomes.record(at(26), &job, &instance, Item(3), &Outcome::Success).is_none());
        let last = outcomes.lock().jobs[&job][&instance][&Item(3)].clone();
        assert_eq!((last.ending, last.times, last.since), (Ending::Success, 1, at(26).wall));
        // The last success stays known while failures follow.
        outcomes.record(at(27), &job, &instance, Item(3), &failure);
        let last = outcomes.lock().jobs[&job][&instance][&Item(3)].clone();
        assert_eq!((last.ending, last.success), (Ending::Failure, Some(at(26).wall)));
        outcomes.forget(&job, &instance);
        assert!(outcomes.lock().jobs.is_empty());
    }
}
