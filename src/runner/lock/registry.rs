//! The list of holds. Starts a contender's task for each, and removes it before the application hears that it has ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use uuid::Uuid;

use crate::coordination::lock::claim::Claim;
use crate::coordination::lock::contender::Wanted;
use crate::coordination::lock::contract::End;
use crate::coordination::time::Wakeup;
use crate::extension::lock::{LockPaths, Mode, Roots};
use crate::extension::sticky;
use crate::runner::shared::Shared;
use crate::tree::Path;

use super::observer::{Observed, Observers, TooMany};
use super::task::{Command, Handle, Task};

pub use super::task::Outlet;

/// The most holds of one sidecar. Each has a node in the registry, a task, and a stream.
const HOLDS_MAX: usize = 10_000;
/// The most contenders in one queue. A Java contender reads all their names in one answer, which may have 1 MB.
const QUEUE_MAX: usize = 1_000;
/// How long the deletion of nodes may take after a drain's deadline.
const LEAVING_TAKES: Duration = Duration::from_secs(5);

/// A request for a lock.
#[derive(Debug, Clone)]
pub struct Hold {
    /// The lock.
    pub lock: LockPaths,
    /// Whether the lock is one that other programs chose the place of.
    pub is_foreign: bool,
    /// How it is to be held.
    pub mode: Mode,
    /// The most holders at once, of a semaphore.
    pub permits: usize,
    /// For how long to wait. `None`: without a limit.
    pub wait: Option<Duration>,
    /// For how long to hold. `None`: without a limit.
    pub hold_max: Option<Duration>,
    /// For how long nobody may hold if this holder loses the lock without giving it back. Zero: not at all.
    pub lock_delay: Duration,
    /// The data of its node: the holder in the words of the application, or the value of a candidate. `None`: it gave none.
    pub data: Option<String>,
    /// Whether a candidate that has lost stands again. Not for locks.
    pub stands_again: bool,
    /// The application. Empty: it gave none.
    pub application_id: String,
    /// Whether an execution holds it for its item. A drain leaves it to the execution.
    pub is_of_item: bool,
}

/// Why a hold is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HoldError {
    /// The sidecar is stopping.
    #[error("the sidecar is stopping; ask another one")]
    Draining,
    /// The same application holds the lock, or waits for it.
    #[error(
        "this application holds the lock {lock} already, or waits for it: it would wait for itself; release that hold first"
    )]
    HeldAlready {
        /// The lock.
        lock: Path,
    },
    /// Too many holds.
    #[error("{HOLDS_MAX} holds and campaigns are open at this sidecar, which is the most; end some of them")]
    TooMany,
    /// Too many observed elections.
    #[error(transparent)]
    TooManyObserved(#[from] TooMany),
}

/// Why a hold cannot be released.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    /// There is no such hold.
    #[error("this sidecar has no hold `{0}`: it has ended, or another sidecar has it")]
    Unknown(String),
    /// The hold has ended otherwise.
    #[error("hold `{hold_id}` was not released: it had ended before")]
    EndedBefore {
        /// The hold.
        hold_id: String,
        /// Why it has ended.
        end: Option<End>,
    },
}

struct Open {
    lock: LockPaths,
    application_id: String,
    is_of_item: bool,
    handle: Handle,
}

#[derive(Default)]
struct Inner {
    /// By the hold's id.
    holds: BTreeMap<String, Open>,
    /// Whether holds are refused because the sidecar is stopping.
    draining: Option<Duration>,
}

/// The holds of this sidecar. Clones share the list.
#[derive(Clone)]
pub struct Locks {
    shared: Shared,
    /// The roots of the locks and the elections with names.
    roots: Roots,
    observers: Observers,
    inner: Arc<Mutex<Inner>>,
    /// The number of tasks that run.
    count: Arc<watch::Sender<usize>>,
}

impl Locks {
    /// A list without holds. `roots`: of the locks and the elections with names.
    pub fn new(shared: Shared, roots: Roots) -> Self {
        let (inner, count) = (Arc::default(), Arc::new(watch::channel(0).0));
        Self { shared, roots, observers: Observers::default(), inner, count }
    }

    /// The state that all tasks share.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The roots of the locks and the elections with names.
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// Observes a lock or an election: its state after each change.
    pub fn observe(&self, lock: &LockPaths) -> Result<watch::Receiver<Observed>, TooMany> {
        self.observers.observe(&self.shared, lock)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a lock. Returns the id of the hold, and the application's end of it.
    pub fn hold(&self, hold: Hold) -> Result<(String, Outlet), HoldError> {
        let mut inner = self.lock();
        if inner.draining.is_some() {
            return Err(HoldError::Draining);
        }
        if inner.holds.len() >= HOLDS_MAX {
            return Err(HoldError::TooMany);
        }
        let is_same = |open: &Open| open.application_id == hold.application_id && open.lock == hold.lock;
        if !hold.application_id.is_empty() && inner.holds.values().any(is_same) {
            return Err(HoldError::HeldAlready { lock: hold.lock.lock().clone() });
        }
        let is_candidate = hold.mode == Mode::Candidate;
        // A candidate hears who leads.
        let election = is_candidate.then(|| self.observe(&hold.lock)).transpose()?;
        let clock = &self.shared.clock;
        let hold_id = clock.unguessable();
        let now = clock.now().mono;
        let claim = Claim::new(Wanted {
            lock: hold.lock.clone(),
            mode: hold.mode,
            wait_until: hold.wait.map(|wait| now.saturating_add(wait)),
            hold_max: hold.hold_max,
            queue_max: QUEUE_MAX,
            looks_first: hold.is_foreign,
            stands_again: hold.stands_again,
            permits: hold.permits,
            lock_delay: hold.lock_delay,
            // Random text of 32 hexadecimal digits.
            seed: Uuid::try_parse(&clock.unguessable()).unwrap_or_default(),
        });
        let data = hold.data.clone().unwrap_or_else(|| self.holder());
        let (place, is_of_item) = ((hold.lock.clone(), hold.mode), hold.is_of_item);
        let (task, handle, outlet) =
            Task::new(claim, place, is_of_item, data.as_bytes().into(), election, &self.shared);
        let open = Open { lock: hold.lock.clone(), application_id: hold.application_id, is_of_item, handle };
        inner.holds.insert(hold_id.clone(), open);
        self.count.send_modify(|count| *count += 1);
        drop(inner);
        let (locks, id) = (self.clone(), hold_id.clone());
        // The task ends after its stream, with a drain, or with the session's lease.
        clock.spawn(async move {
            // Before the claim has a node: the next process removes the node if it resumes the session.
            let state_file = &locks.shared.state_file;
            if is_of_item {
                state_file.begin_item_lock().await;
            } else {
                let queues = match hold.mode {
                    Mode::Permit => vec![hold.lock.semaphore_queue(), hold.lock.semaphore_permits()],
                    Mode::Mutex | Mode::Read | Mode::Write | Mode::Candidate => vec![hold.lock.clone()],
                };
                for queue in &queues {
                    state_file.add_lock(queue.lock()).await;
                }
            }
            task.run(|| drop(locks.lock().holds.remove(&id))).await;
            locks.count.send_modify(|count| *count = count.saturating_sub(1));
            if is_of_item {
                return state_file.end_item_lock().await;
            }
            let sticky_locks = sticky::default_root(&locks.shared.namespace);
            let is_used = |lock: &Path| locks.is_used(lock) || lock.is_within(&sticky_locks);
            locks.shared.state_file.keep_locks(is_used).await;
        });
        Ok((hold_id, outlet))
    }

    /// Whom other programs see: not the application id, which is a secret, and nothing of the hold's id, which releases it.
    fn holder(&self) -> String {
        let unique: String = self.shared.clock.unguessable().chars().take(12).collect();
        format!("{}@-@{unique}", self.shared.server_ip)
    }

    fn is_used(&self, lock: &Path) -> bool {
        self.lock().holds.values().any(|open| lock.is_within(open.lock.lock()))
    }

    /// The lock of a hold, and the handle of its task.
    pub(super) fn find(&self, hold_id: &str) -> Result<(LockPaths, Handle), ReleaseError> {
        let inner = self.lock();
        let open = inner.holds.get(hold_id).ok_or_else(|| ReleaseError::Unknown(hold_id.to_owned()))?;
        Ok((open.lock.clone(), open.handle.clone()))
    }

    /// Gives a lock back. Ends when its node is deleted.
    pub async fn release(&self, hold_id: &str) -> Result<(), ReleaseError> {
        let (_, mut handle) = self.find(hold_id)?;
        // A task that has ended has a known end.
        let _ = handle.commands.send(Command::Release).await;
        let end = handle.end.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
        match end {
            Some(End::Released) => Ok(()),
            end => Err(ReleaseError::EndedBefore { hold_id: hold_id.to_owned(), end }),
        }
    }

    /// Refuses holds from now on. Contenders that wait end at once; holders may go on until the deadline (monotonic), and
    /// lose their locks then. An execution keeps the lock of its item until it has ended. Ends when no hold is left, or some seconds after the deadline.
    pub async fn drain(&self, deadline: Duration) {
        let handles: Vec<_> = {
            let mut inner = self.lock();
            inner.draining = inner.draining.into_iter().chain([deadline]).min();
            let holds = inner.holds.values().filter(|open| !open.is_of_item);
            holds.map(|open| open.handle.clone()).collect()
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
