//! The list of stands. Starts a candidate's task for each, and removes it before the application hears that it has ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use uuid::Uuid;

use crate::coordination::sticky::candidate::{Candidate, Wanted};
use crate::coordination::sticky::contract::{Answer, Call, Refusal};
use crate::coordination::time::Wakeup;
use crate::extension::sticky::{StickyPaths, default_root};
use crate::runner::shared::Shared;
use crate::tree::Path;

use super::task::{Command, Handle, Task};

pub use super::task::Outlet;

/// The most stands of one sidecar. Each has a node in the registry, a watch, a task, and a stream.
const STANDS_MAX: usize = 1_000;
/// The most candidates of one lock: each of them watches all of them.
const QUEUE_MAX: usize = 100;
/// How long the deletion of nodes may take after a drain's deadline.
const LEAVING_TAKES: Duration = Duration::from_secs(5);

/// A request to stand.
#[derive(Debug, Clone)]
pub struct Stand {
    /// The lock.
    pub lock: StickyPaths,
    /// The name of the instance.
    pub instance: String,
    /// How long others are to wait after this instance has vanished.
    pub grace: Duration,
    /// The application. Empty: it gave none.
    pub application_id: String,
}

/// Why a stand is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StandError {
    /// The sidecar is stopping.
    #[error("the sidecar is stopping; ask another one")]
    Draining,
    /// The same instance or application stands.
    #[error(
        "instance `{instance}` or its application stands for the sticky lock {lock} already, at this sidecar; end that stream \
         first"
    )]
    StandsAlready {
        /// The lock.
        lock: Path,
        /// The instance.
        instance: String,
    },
    /// Too many stands.
    #[error("{STANDS_MAX} stands are open at this sidecar, which is the most; end some of them")]
    TooMany,
}

/// Why a call of a stand is not answered by its candidate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// There is no such stand.
    #[error("this sidecar has no stand `{0}`: it has ended, or another sidecar has it")]
    Unknown(String),
    /// The candidate refuses the call.
    #[error("{0}")]
    Refused(#[from] Refusal),
}

struct Open {
    lock: StickyPaths,
    instance: String,
    application_id: String,
    handle: Handle,
}

#[derive(Default)]
struct Inner {
    /// By the stand's id.
    stands: BTreeMap<String, Open>,
    is_draining: bool,
}

/// The stands of this sidecar. Clones share the list.
#[derive(Clone)]
pub struct StickyLocks {
    shared: Shared,
    root: Path,
    inner: Arc<Mutex<Inner>>,
    /// The number of tasks that run.
    count: Arc<watch::Sender<usize>>,
}

impl StickyLocks {
    /// A list without stands.
    pub fn new(shared: Shared) -> Self {
        let root = default_root(&shared.namespace);
        Self { shared, root, inner: Arc::default(), count: Arc::new(watch::channel(0).0) }
    }

    /// The state that all tasks share.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The root of all sticky locks.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stands for a lock. Returns the id of the stand, and the application's end of it.
    pub fn stand(&self, stand: Stand) -> Result<(String, Outlet), StandError> {
        let mut inner = self.lock();
        if inner.is_draining {
            return Err(StandError::Draining);
        }
        if inner.stands.len() >= STANDS_MAX {
            return Err(StandError::TooMany);
        }
        let is_same = |open: &Open| {
            let application = !stand.application_id.is_empty() && open.application_id == stand.application_id;
            open.lock == stand.lock && (application || open.instance == stand.instance)
        };
        if inner.stands.values().any(is_same) {
            let (lock, instance) = (stand.lock.root().clone(), stand.instance);
            return Err(StandError::StandsAlready { lock, instance });
        }
        let clock = &self.shared.clock;
        let stand_id = clock.unguessable();
        let candidate = Candidate::new(Wanted {
            lock: stand.lock.clone(),
            instance: stand.instance.clone(),
            // Random text of 32 hexadecimal digits.
            stand: Uuid::try_parse(&clock.unguessable()).unwrap_or_default(),
            grace: stand.grace,
            queue_max: QUEUE_MAX,
        });
        let (task, handle, outlet) = Task::new(candidate, stand.lock.clone(), &self.shared);
        let Stand { lock, instance, application_id, .. } = stand;
        let open = Open { lock: lock.clone(), instance, application_id, handle };
        inner.stands.insert(stand_id.clone(), open);
        self.count.send_modify(|count| *count += 1);
        drop(inner);
        let (locks, id) = (self.clone(), stand_id.clone());
        // The task ends after its stream, with a drain, or with the session's lease.
        clock.spawn(async move {
            // Before the candidate has a node: the next process removes the nodes if it resumes the session.
            locks.shared.state_file.add_lock(lock.root()).await;
            locks.shared.state_file.add_lock(lock.queue()).await;
            task.run(|| drop(locks.lock().stands.remove(&id))).await;
            locks.count.send_modify(|count| *count = count.saturating_sub(1));
        });
        Ok((stand_id, outlet))
    }

    /// Passes a call to a candidate, and returns its answer.
    pub async fn call(&self, stand_id: &str, call: Call) -> Result<Answer, CallError> {
        let handle = self.lock().stands.get(stand_id).map(|open| open.handle.clone());
        let Some(handle) = handle else { return Err(CallError::Unknown(stand_id.to_owned())) };
        let (answer, answered) = oneshot::channel();
        // A task that has ended drops the call.
        let _ = handle.commands.send(Command::Call(call, answer)).await;
        match answered.await.unwrap_or(Answer::Refused(Refusal::Ended)) {
            Answer::Refused(refusal) => Err(CallError::Refused(refusal)),
            answer @ (Answer::Entered { .. } | Answer::Busy(_) | Answer::Done) => Ok(answer),
        }
    }

    /// Refuses stands from now on. Candidates end at once; runs may go on until the deadline (monotonic). Ends when no stand is
    /// left, or some seconds after the deadline.
    pub async fn drain(&self, deadline: Duration) {
        let handles: Vec<_> = {
            let mut inner = self.lock();
            inner.is_draining = true;
            inner.stands.values().map(|open| open.handle.clone()).collect()
        };
        for handle in handles {
            // A task that has ended has nothing to drain.
            let _ = handle.commands.send(Command::Drain { deadline }).await;
        }
        let mut count = self.count.subscribe();
        let last = deadline.saturating_add(LEAVING_TAKES);
        tokio::select! {
            biased;
            _ = count.wait_for(|count| *count == 0) => {}
            () = self.shared.clock.sleep_until(Wakeup { wall: None, mono: Some(last) }) => {}
        }
    }
}
