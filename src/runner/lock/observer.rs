//! Follows locks for observers: the state of a lock after each change of its nodes. One watch and one task for all observers
//! of a lock, the candidates of an election among them. Writes nothing to the registry. Decides nothing.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::coordination::lock::picture::{LockState, Picture};
use crate::extension::lock::LockPaths;
use crate::runner::nodes::watched::{News, Watched};
use crate::runner::session::current::{Followed, session_changed};
use crate::runner::shared::Shared;

/// The most locks that are observed at once. Each has a watch in the registry.
const OBSERVED_MAX: usize = 1_000;

/// The state of a lock, and whether the registry answers. `None` until the first state is known.
pub type Observed = Option<Observation>;

/// The state of a lock at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// The state, as the registry has told it last.
    pub state: Arc<LockState>,
    /// Whether the registry tells of changes now. Otherwise the state may be old.
    pub is_current: bool,
}

/// There are too many observed locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{OBSERVED_MAX} locks and elections are observed already, which is the most; end some, or ask another sidecar"
)]
pub struct TooMany;

/// The locks that are observed. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Observers {
    locks: Arc<Mutex<BTreeMap<LockPaths, watch::Sender<Observed>>>>,
}

impl Observers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<LockPaths, watch::Sender<Observed>>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Observes a lock. The first receiver of a lock starts a task, and the last one that is dropped ends it.
    pub(super) fn observe(
        &self,
        shared: &Shared,
        lock: &LockPaths,
    ) -> Result<watch::Receiver<Observed>, TooMany> {
        let mut locks = self.lock();
        if let Some(known) = locks.get(lock) {
            return Ok(known.subscribe());
        }
        if locks.len() >= OBSERVED_MAX {
            return Err(TooMany);
        }
        let (latest, observation) = watch::channel(None);
        locks.insert(lock.clone(), latest.clone());
        let (observers, shared, lock) = (self.clone(), shared.clone(), lock.clone());
        let clock = shared.clock.clone();
        // The task ends with the last observer.
        clock.spawn(async move {
            loop {
                let goes_on = follow(&shared, &lock, &latest).await;
                let mut locks = observers.lock();
                // A new observer may have come meanwhile.
                if !goes_on || latest.receiver_count() == 0 {
                    locks.remove(&lock);
                    return;
                }
            }
        });
        Ok(observation)
    }
}

/// Follows a lock until it has no observer, or the sidecar is stopping. Returns whether observers may come again.
async fn follow(shared: &Shared, lock: &LockPaths, latest: &watch::Sender<Observed>) -> bool {
    let mut current = shared.current.clone();
    let mut picture = Picture::new(lock);
    let mut watched = Watched::lock(lock.lock().clone(), shared.clock.clone());
    let mut session: Option<Followed> = None;
    current.mark_changed();
    loop {
        let news = tokio::select! {
            biased;
            () = latest.closed() => return true,
            changed = current.changed() => {
                if changed.is_err() {
                    // The sidecar is stopping.
                    return false;
                }
                let opened = current.borrow_and_update().clone();
                watched.follow(opened.clone());
                session = opened.map(|session| (session.clone(), session.state()));
                News::Gap
            }
            // A connection that is restored sends a snapshot.
            () = session_changed(&mut session) => News::Gap,
            news = poll_fn(|context| watched.poll_next(context)) => news,
        };
        let next = match news {
            News::Event(event) => {
                picture.apply(event);
                Some(Observation { state: Arc::new(picture.state()), is_current: true })
            }
            News::Gap => latest.borrow().clone().map(|known| Observation { is_current: false, ..known }),
        };
        latest.send_if_modified(|known| {
            let changed = *known != next;
            *known = next;
            changed
        });
    }
}
