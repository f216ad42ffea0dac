//! Keeps the state file up to date: each change is on the disk before its caller goes on. Decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{Either, select};
use tokio::sync::oneshot;
use tracing::warn;

use crate::registry::SessionKey;
use crate::runner::clock::Clock;
use crate::tree;

use super::contents::{self, FormerProcess, Member, Place};
use super::folder::Folder;
use super::storage::{StateFileError, Storage};

/// How long a write may take. After that an instance goes on, though the file may not have it.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// Above so many locks, the file forgets those that are not in use.
const LOCKS_KEPT: usize = 1_000;

/// The state file of one sidecar. Clones share it; [`StateFile::none`] writes nothing.
#[derive(Clone)]
pub struct StateFile {
    inner: Option<Arc<Inner>>,
}

struct Inner {
    storage: Arc<dyn Storage>,
    clock: Clock,
    place: Place,
    facts: Mutex<Facts>,
    /// The revision of the facts that the file has. Locked while it is written.
    written: Arc<tokio::sync::Mutex<u64>>,
}

#[derive(Default)]
struct Facts {
    revision: u64,
    session: Option<SessionKey>,
    members: BTreeMap<String, Member>,
    locks: BTreeSet<tree::Path>,
    /// How many locks executions hold for their items, or wait for.
    item_locks: usize,
}

impl Inner {
    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StateFile {
    /// Writes nothing.
    pub fn none() -> Self {
        Self { inner: None }
    }

    /// Keeps the file in this folder. Makes the folder if it is missing, and locks it for this process. Returns what the
    /// former process has written down there. Fails if the folder cannot be used; a file that cannot be used is only reported.
    pub fn open(
        folder: &Path,
        place: Place,
        clock: &Clock,
    ) -> Result<(Self, Option<FormerProcess>), StateFileError> {
        Ok(Self::on(Arc::new(Folder::open(folder)?), place, clock))
    }

    /// Keeps the text in this storage, which no other process may use from now on. Returns what the former process has
    /// written down there.
    pub fn on(storage: Arc<dyn Storage>, place: Place, clock: &Clock) -> (Self, Option<FormerProcess>) {
        let left = storage.read().and_then(|text| text.map(|text| contents::read(&text, &place)).transpose());
        let former = left.unwrap_or_else(|why| {
            warn!(
                event = "STATE_IGNORED",
                file = storage.describe(),
                why,
                "what the former process left is ignored"
            );
            None
        });
        // The file keeps the former session until the session keeper sets another one, or none.
        let session = former.as_ref().map(|former| former.key.clone());
        let facts = Mutex::new(Facts { session, ..Facts::default() });
        let inner = Inner { storage, clock: clock.clone(), place, facts, written: Arc::default() };
        (Self { inner: Some(Arc::new(inner)) }, former)
    }

    /// Whether there is a state file.
    pub fn is_kept(&self) -> bool {
        self.inner.is_some()
    }

    /// Writes down the present session; `None`: there is none.
    pub async fn set_session(&self, key: Option<SessionKey>) {
        self.change(|facts| facts.session = key).await;
    }

    /// Keeps an instance of the former process, which a participant of this process has now. The file has the instance
    /// already. `participant` distinguishes the participant from all others.
    pub fn keep(&self, participant: &str, member: Member) {
        if let Some(inner) = &self.inner {
            inner.facts().members.insert(participant.to_owned(), member);
        }
    }

    /// Writes down an instance that is about to have nodes. `participant` distinguishes the participant from all others.
    pub async fn add(&self, participant: &str, member: Member) {
        self.change(|facts| drop(facts.members.insert(participant.to_owned(), member))).await;
    }

    /// Removes the instance of a participant that has ended and has no nodes any more.
    pub async fn remove(&self, participant: &str) {
        self.change(|facts| drop(facts.members.remove(participant))).await;
    }

    /// Writes down a lock in whose queue this process is about to have a node. The lock stays in the file: most locks are
    /// held again and again, and a write for each hold would delay it.
    pub async fn add_lock(&self, lock: &tree::Path) {
        let is_known = self.inner.as_ref().is_none_or(|inner| inner.facts().locks.contains(lock));
        if !is_known {
            self.change(|facts| facts.locks.extend([lock.clone()])).await;
        }
    }

    /// Removes the locks in whose queues this process has no node, if there are many.
    pub async fn keep_locks(&self, is_used: impl Fn(&tree::Path) -> bool) {
        let many = self.inner.as_ref().is_some_and(|inner| inner.facts().locks.len() > LOCKS_KEPT);
        if many {
            self.change(|facts| facts.locks.retain(is_used)).await;
        }
    }

    /// An execution is about to stand in the queue of its item's lock. The next process then does not resume the session:
    /// it could not give the lock back at the right time.
    pub async fn begin_item_lock(&self) {
        self.count_item_locks(|count| count.saturating_add(1)).await;
    }

    /// An execution has no node in the queue of its item's lock any more.
    pub async fn end_item_lock(&self) {
        self.count_item_locks(|count| count.saturating_sub(1)).await;
    }

    async fn count_item_locks(&self, count: impl Fn(usize) -> usize) {
        let Some(inner) = &self.inner else { return };
        let revision = {
            let mut facts = inner.facts();
            let before = facts.item_locks;
            facts.item_locks = count(before);
            facts.revision += u64::from((before == 0) != (facts.item_locks == 0));
            facts.revision
        };
        reach(inner, revision).await;
    }

    /// Changes the facts. Ends when the file has them, or when it cannot be written.
    async fn change(&self, change: impl FnOnce(&mut Facts)) {
        let Some(inner) = &self.inner else { return };
        let revision = {
            let mut facts = inner.facts();
            change(&mut facts);
            facts.revision += 1;
            facts.revision
        };
        reach(inner, revision).await;
    }
}

/// Ends when the file has this revision of the facts, or when it cannot be written.
async fn reach(inner: &Arc<Inner>, revision: u64) {
    let limit = std::pin::pin!(inner.clock.sleep(WRITE_LIMIT));
    let written = std::pin::pin!(write(Arc::clone(inner), revision));
    if let Either::Right(_) = select(written, limit).await {
        let file = inner.storage.describe();
        warn!(
            event = "STATE_NOT_WRITTEN",
            file, "the disk does not answer; the next process may not find this change of the state file"
        );
    }
}

/// Writes this revision of the facts, or a later one: changes that come while the disk is busy are written together.
async fn write(inner: Arc<Inner>, revision: u64) {
    let mut written = Arc::clone(&inner.written).lock_owned().await;
    if *written >= revision {
        return;
    }
    let (now, text) = {
        let facts = inner.facts();
        let (members, locks) = (facts.members.values(), facts.locks.iter());
        (
            facts.revision,
            contents::text(&inner.place, facts.session.as_ref(), members, locks, facts.item_locks > 0),
        )
    };
    let (done, is_done) = oneshot::channel::<()>();
    // The task goes on if its caller is dropped. The lock keeps the next write behind it.
    inner.clock.clone().spawn(async move {
        match inner.storage.put(text).await {
            Ok(()) => *written = now,
            Err(error) => warn!(event = "STATE_NOT_WRITTEN", file = inner.storage.describe(), %error, "the state file cannot be removed"),
        }
        drop(written);
        drop(done);
    });
    // Ends when the task drops its end.
    let _ = is_done.await;
}
