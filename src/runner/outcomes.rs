//! How the items that applications of this sidecar own were executed last, for those who look, and which failures get a
//! line in the log. Shell: shared by all participants and observers. Decides nothing about executions.

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

/// All that is known. Clones share it.
#[derive(Clone, Default)]
pub struct Outcomes {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    jobs: BTreeMap<JobName, BTreeMap<InstanceId, Items>>,
    /// The first failure of a job is told, and then one in ten seconds.
    lines: Limiter<JobName>,
}

impl Outcomes {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of an execution that was reported. Gives the line that the log is to have, and how many failures of the
    /// job had none since the last one.
    pub(super) fn note(
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
        };
        let message = Excerpt::of(message.lines().find(|line| !line.trim().is_empty()).unwrap_or_default());
        let mut inner = self.lock();
        let items = inner.jobs.entry(job.clone()).or_default().entry(instance.clone()).or_default();
        note(items, item, ending, &message, now.wall);
        if ending != Ending::Failure {
            return None;
        }
        match inner.lines.admit(job.clone(), now.mono) {
            Verdict::Tell(left_out) => Some((message, left_out)),
            Verdict::First(_) | Verdict::Count => None,
        }
    }

    /// An instance has ended.
    pub(super) fn forget(&self, job: &JobName, instance: &InstanceId) {
        let mut inner = self.lock();
        if let Some(instances) = inner.jobs.get_mut(job) {
            instances.remove(instance);
            if instances.is_empty() {
                inner.jobs.remove(job);
            }
        }
    }

    /// Adds to a job's state how its items were executed last by those that own them now.
    pub(super) fn add_to(&self, job: &JobName, status: &mut JobStatus) {
        let inner = self.lock();
        let Some(instances) = inner.jobs.get(job) else { return };
        for item in &mut status.items {
            let owner = item.owner.as_ref().and_then(|(owner, _)| instances.get(owner));
            item.last = owner.and_then(|items| items.get(&item.item)).cloned();
        }
    }
}

fn note(items: &mut Items, item: Item, ending: Ending, message: &Excerpt, at: Timestamp) {
    let before = items.get(&item).filter(|before| before.ending == ending);
    let (times, since) = before.map_or((1, at), |before| (before.times.saturating_add(1), before.since));
    items.insert(item, LastExecution { ending, times, since, at, message: message.to_string() });
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
    fn failures_in_a_row_are_counted_and_one_line_in_ten_seconds_tells_them() {
        let (outcomes, job) = (Outcomes::default(), JobName::parse("orders").unwrap());
        let instance = InstanceId::from_registry("10.0.0.1@-@1");
        let failure = Outcome::Failure("\nValueError: no such city\n  at line 3".to_owned());
        let mut lines = Vec::new();
        for second in 0..25 {
            lines.extend(outcomes.note(at(second), &job, &instance, Item(3), &failure).map(|line| line.1));
        }
        assert_eq!(lines, [0, 9, 9]);
        let last = outcomes.lock().jobs[&job][&instance][&Item(3)].clone();
        assert_eq!((last.ending, last.times, last.since), (Ending::Failure, 25, at(0).wall));
        assert_eq!(last.message, "ValueError: no such city");
        assert!(outcomes.note(at(26), &job, &instance, Item(3), &Outcome::Success).is_none());
        let last = outcomes.lock().jobs[&job][&instance][&Item(3)].clone();
        assert_eq!((last.ending, last.times, last.since), (Ending::Success, 1, at(26).wall));
        outcomes.forget(&job, &instance);
        assert!(outcomes.lock().jobs.is_empty());
    }
}
