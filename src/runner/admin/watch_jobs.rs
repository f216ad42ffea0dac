//! Follows the jobs of the namespace for watchers: reads the list of all jobs again and again while somebody watches, once for all watchers.
//! Writes nothing to the registry, and leaves no watch there: a watch for each job would cost more than such a read, and only the list has Java's
//! jobs, too. Decides how often the jobs are read; [`crate::coordination::admin::rounds`] decides which have changed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tracing::Instrument as _;

use crate::coordination::admin::rounds::{Round, round};
use crate::runner::admin::jobs::{self, ListError, Page};
use crate::runner::session::current::Current;
use crate::runner::shared::Shared;

/// The most watchers at once. One that does not read keeps one round in memory.
const WATCHERS_MAX: usize = 100;
/// The pause between two reads: as soon as a person looks again.
const PAUSE: Duration = Duration::from_secs(2);
/// The pause is at least so many times as long as the read before it. So thousands of jobs are read for a fifth of the time at most.
const PAUSE_FACTOR: u32 = 4;

/// The last round, or why there will be none. `None`: it is not read yet.
pub type Rounds = Option<Result<Arc<Round>, ListError>>;

/// There are too many watchers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{WATCHERS_MAX} callers watch the jobs already; end some, or ask another sidecar")]
pub struct TooMany;

/// The watchers of the namespace's jobs: one task for all. Clones share them.
#[derive(Clone, Default)]
pub struct Watchers {
    latest: Arc<Mutex<Option<watch::Sender<Rounds>>>>,
}

/// Why the jobs are not read any more.
enum Ended {
    /// Nobody watches.
    Unwatched,
    /// The sidecar is stopping.
    Stopping,
    /// The registry does not answer.
    Failed(ListError),
}

impl Watchers {
    fn lock(&self) -> MutexGuard<'_, Option<watch::Sender<Rounds>>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches the jobs. The first receiver starts the task; it ends with the last receiver, when the registry does not answer, and when the
    /// sidecar stops.
    pub fn watch(&self, shared: &Shared) -> Result<watch::Receiver<Rounds>, TooMany> {
        let mut latest = self.lock();
        if let Some(known) = latest.as_ref() {
            return if known.receiver_count() < WATCHERS_MAX { Ok(known.subscribe()) } else { Err(TooMany) };
        }
        let (sender, rounds) = watch::channel(None);
        *latest = Some(sender.clone());
        let (watchers, shared) = (self.clone(), shared.clone());
        let clock = shared.clock.clone();
        let task = async move {
            loop {
                let ended = read_rounds(&shared, &sender).await;
                let mut latest = watchers.lock();
                match ended {
                    // A new watcher has come meanwhile.
                    Ended::Unwatched if sender.receiver_count() > 0 => continue,
                    Ended::Unwatched | Ended::Stopping => {}
                    Ended::Failed(error) => drop(sender.send_replace(Some(Err(error)))),
                }
                *latest = None;
                return;
            }
        };
        clock.spawn(task.instrument(tracing::info_span!("watch_jobs")));
        Ok(rounds)
    }
}

/// Reads the jobs until nobody watches, or until they cannot be read.
async fn read_rounds(shared: &Shared, latest: &watch::Sender<Rounds>) -> Ended {
    let all = Page { size: usize::MAX, after: None };
    let mut stopping = shared.current.clone();
    let mut known = Arc::new(Round::new());
    loop {
        let began = shared.clock.now().mono;
        let listed = tokio::select! {
            biased;
            () = latest.closed() => return Ended::Unwatched,
            () = stopped(&mut stopping) => return Ended::Stopping,
            listed = jobs::list(shared, &all, |_| true) => listed,
        };
        let jobs = match listed {
            Ok((jobs, _)) => jobs,
            Err(error) => return Ended::Failed(error),
        };
        known = Arc::new(round(&known, jobs));
        latest.send_if_modified(|told| {
            let is_new = told.as_ref().and_then(|told| told.as_ref().ok()) != Some(&known);
            if is_new {
                *told = Some(Ok(Arc::clone(&known)));
            }
            is_new
        });
        let took = shared.clock.now().mono.saturating_sub(began);
        tokio::select! {
            biased;
            () = latest.closed() => return Ended::Unwatched,
            () = stopped(&mut stopping) => return Ended::Stopping,
            () = shared.clock.sleep(took.saturating_mul(PAUSE_FACTOR).max(PAUSE)) => {}
        }
    }
}

/// Ends when the sidecar stops. A new session is no reason to end.
async fn stopped(current: &mut Current) {
    while current.changed().await.is_ok() {}
}
