//! Which executions of this sidecar wait for the locks of their items, for observers. Decides nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use crate::coordination::admin::status::{JobStatus, WaitingForLock};
use crate::coordination::job::contract::effect::LockWait;
use crate::coordination::time::Now;
use crate::job::{InstanceId, Item, JobName};

type Jobs = BTreeMap<JobName, BTreeMap<InstanceId, BTreeMap<Item, WaitingForLock>>>;

/// The waits. Clones share them.
#[derive(Debug, Clone)]
pub struct LockWaits {
    jobs: Arc<watch::Sender<Jobs>>,
}

impl Default for LockWaits {
    fn default() -> Self {
        Self { jobs: Arc::new(watch::channel(Jobs::default()).0) }
    }
}

impl LockWaits {
    /// Records that an execution waits, or does not any more. Returns whether it waits for a holder that was not known.
    pub(crate) fn record(
        &self,
        now: Now,
        job: &JobName,
        instance: &InstanceId,
        item: Item,
        wait: &LockWait,
    ) -> bool {
        let LockWait::Behind { lock, holder } = wait else {
            self.remove(job, instance, |items| items.remove(&item).is_some());
            return false;
        };
        self.jobs.send_if_modified(|jobs| {
            let items = jobs.entry(job.clone()).or_default().entry(instance.clone()).or_default();
            let before = items.get(&item).filter(|before| before.lock == *lock);
            let since = before.map_or(now.wall, |before| before.since);
            let waiting = WaitingForLock { lock: lock.clone(), holder: holder.clone(), since };
            items.insert(item, waiting.clone()) != Some(waiting)
        })
    }

    /// Forgets an instance that has ended.
    pub(crate) fn forget(&self, job: &JobName, instance: &InstanceId) {
        self.remove(job, instance, |items| !std::mem::take(items).is_empty());
    }

    fn remove(
        &self,
        job: &JobName,
        instance: &InstanceId,
        remove: impl FnOnce(&mut BTreeMap<Item, WaitingForLock>) -> bool,
    ) {
        self.jobs.send_if_modified(|jobs| {
            let Some(instances) = jobs.get_mut(job) else { return false };
            let Some(items) = instances.get_mut(instance) else { return false };
            let is_changed = remove(items);
            if items.is_empty() {
                instances.remove(instance);
            }
            if instances.is_empty() {
                jobs.remove(job);
            }
            is_changed
        });
    }

    /// Changes when a wait of any job changes.
    pub(crate) fn subscribe(&self) -> watch::Receiver<impl Sized + use<>> {
        self.jobs.subscribe()
    }

    /// Adds to a job's status for which locks its owners wait.
    pub(crate) fn add_to(&self, job: &JobName, status: &mut JobStatus) {
        let jobs = self.jobs.borrow();
        let Some(instances) = jobs.get(job) else { return };
        for item in &mut status.items {
            // An item that was taken over waits at another instance than its owner.
            let waits = instances.values().find_map(|items| items.get(&item.item));
            item.waiting_for_lock = waits.cloned();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;

    #[test]
    fn a_wait_is_new_if_its_holder_is_and_nothing_is_left_of_it() {
        let (waits, job) = (LockWaits::default(), JobName::parse("orders").unwrap());
        let instance = InstanceId::from_registry("10.0.0.1@-@1");
        let record = |second, wait: &LockWait| {
            let mono = Duration::from_secs(second);
            let now = Now { wall: Timestamp::UNIX_EPOCH + mono, mono };
            waits.record(now, &job, &instance, Item(3), wait)
        };
        let behind =
            |holder: &str| LockWait::Behind { lock: "l".to_owned(), holder: Some(holder.to_owned()) };
        let news = [record(1, &behind("a")), record(2, &behind("a")), record(3, &behind("b"))];
        assert_eq!(news, [true, false, true]);
        let since = waits.jobs.borrow()[&job][&instance][&Item(3)].since;
        assert_eq!(since, Timestamp::UNIX_EPOCH + Duration::from_secs(1));
        assert!(!record(4, &LockWait::Over));
        assert!(waits.jobs.borrow().is_empty());
        record(5, &behind("a"));
        waits.forget(&job, &instance);
        assert!(waits.jobs.borrow().is_empty());
    }
}
