//! Follows jobs for observers: the status of a job after each change, computed once for all observers of the job. Writes
//! nothing to the registry. Decides nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tracing::Instrument;

use crate::coordination::admin::status::JobStatus;
use crate::coordination::job::picture::Picture;
use crate::coordination::time::Wakeup;
use crate::elasticjob::path::JobPaths;
use crate::findings::problem::{Problem, ProblemCode};
use crate::job::JobName;
use crate::runner::shared::Shared;

/// Observations that may be open at once, of all jobs together. Each costs little more than a status that is not read yet.
const OBSERVATIONS_MAX: usize = 1_000;

/// The status of a job. `None` until the first one is known.
pub type Observed = Option<Arc<JobStatus>>;

/// There are too many observations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{OBSERVATIONS_MAX} observations are open already; end some, or ask another sidecar")]
pub struct TooMany;

/// The jobs that are observed: one task and one status for all observers of the same job. Clones share them.
#[derive(Clone, Default)]
pub struct Observers {
    jobs: Arc<Mutex<BTreeMap<JobName, watch::Sender<Observed>>>>,
}

impl Observers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<JobName, watch::Sender<Observed>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Observes a job. The first receiver of a job starts a task, and the last one that is dropped ends it.
    pub fn observe(&self, shared: &Shared, job: &JobName) -> Result<watch::Receiver<Observed>, TooMany> {
        let mut jobs = self.lock();
        let open: usize = jobs.values().map(watch::Sender::receiver_count).sum();
        if open >= OBSERVATIONS_MAX {
            return Err(TooMany);
        }
        if let Some(known) = jobs.get(job) {
            return Ok(known.subscribe());
        }
        let (latest, observation) = watch::channel(None);
        jobs.insert(job.clone(), latest.clone());
        let (observers, shared, job) = (self.clone(), shared.clone(), job.clone());
        let clock = shared.clock.clone();
        let span = tracing::info_span!("observer", job.name = %job);
        let task = async move {
            loop {
                let goes_on = follow(shared.clone(), &job, &latest).await;
                let mut jobs = observers.lock();
                // A new observer may have come meanwhile.
                if !goes_on || latest.receiver_count() == 0 {
                    jobs.remove(&job);
                    return;
                }
            }
        };
        // The task ends with the last observer.
        clock.spawn(task.instrument(span));
        Ok(observation)
    }
}

/// Follows a job until it has no observer, or the sidecar is stopping. Returns whether observers may come again.
async fn follow(shared: Shared, job: &JobName, latest: &watch::Sender<Observed>) -> bool {
    let paths = JobPaths::new(&shared.namespace, job);
    let mut current = shared.current.clone();
    let mut picture = shared.follow(job, None);
    let (mut settings, mut next_fire) = (None, None);
    let mut lock_waits = shared.lock_waits.subscribe();
    loop {
        tokio::select! {
            biased;
            () = latest.closed() => return true,
            changed = current.changed() => if changed.is_err() {
                // The sidecar is stopping.
                return false;
            },
            () = picture.changed() => {}
            // The sender is in `shared`.
            _ = lock_waits.changed() => {}
            () = shared.clock.sleep_until(Wakeup { wall: next_fire, mono: None }) => {}
        }
        let session = current.borrow_and_update().as_ref().map(|session| session.id());
        let now = shared.clock.now().wall;
        let status = picture.look(session, |Picture { nodes, fleet }, _| {
            nodes.is_loaded().then(|| JobStatus::of(nodes, fleet, &mut settings, &paths.config(), now))
        });
        next_fire = status.as_ref().and_then(|status| status.next_fire);
        match (status, session) {
            (Some(mut status), _) => {
                shared.outcomes.add_to(job, &mut status);
                shared.lock_waits.add_to(job, &mut status);
                latest.send_if_modified(|known| {
                    let changed = known.as_deref() != Some(&status);
                    if changed {
                        *known = Some(Arc::new(status));
                    }
                    changed
                });
            }
            (None, None) => {
                let message = "not connected to the registry; what is shown may be old".to_owned();
                let problem =
                    Problem { path: paths.root().clone(), message, code: ProblemCode::RegistryUnreachable };
                latest.send_if_modified(|known| {
                    let Some(status) = known.as_mut().filter(|status| !status.problems.contains(&problem))
                    else {
                        return false;
                    };
                    Arc::make_mut(status).problems.push(problem);
                    true
                });
            }
            // The nodes are being read now.
            (None, Some(_)) => {}
        }
    }
}
