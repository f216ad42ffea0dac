//! Follows jobs for those who only look: a watch, a view, and the state of the job after each change, one for all who look
//! at the same job. Takes no part in anything, and needs nobody to be attached.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tracing::Instrument;

use crate::coordination::fleet::FleetView;
use crate::coordination::participant::Wakeup;
use crate::coordination::settings::Settings;
use crate::coordination::status::JobStatus;
use crate::coordination::view::JobView;
use crate::elasticjob::path::JobPaths;
use crate::job::{JobName, Problem};
use crate::registry::Session;

use super::hub::Shared;
use super::watching::Watched;

/// The pause before a watch is tried again.
const PAUSE: Duration = Duration::from_millis(200);

/// Observations that may be open at once, of all jobs together. Each costs little but the states that its reader leaves unread.
const OBSERVATIONS_MAX: usize = 1_000;

/// The state of a job. `None` until the first one is known.
pub type Observed = Option<Arc<JobStatus>>;

/// There are too many observations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{OBSERVATIONS_MAX} observations are open already; end some, or ask another sidecar")]
pub struct TooMany;

/// The jobs that are observed: one watch of the registry, and one state, for all that look at the same job. Clones share
/// it.
#[derive(Clone, Default)]
pub struct Observers {
    jobs: Arc<Mutex<BTreeMap<JobName, watch::Sender<Observed>>>>,
}

impl Observers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<JobName, watch::Sender<Observed>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows a job. The first receiver of a job starts a task, and the last one that is dropped ends it.
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
                // Somebody may have come meanwhile.
                if !goes_on || latest.receiver_count() == 0 {
                    jobs.remove(&job);
                    return;
                }
            }
        };
        // It ends when nobody looks any more.
        clock.spawn(task.instrument(span));
        Ok(observation)
    }
}

/// Follows a job until nobody looks, or the sidecar is stopping. Tells whether somebody may look again.
async fn follow(mut shared: Shared, job: &JobName, latest: &watch::Sender<Observed>) -> bool {
    let paths = JobPaths::new(&shared.namespace, job);
    let mut settings = None;
    loop {
        let session = tokio::select! {
            biased;
            () = latest.closed() => return true,
            session = shared.current.wait_for(Option::is_some) => match session {
                Ok(session) => session.clone(),
                // The sidecar is stopping.
                Err(_) => return false,
            },
        };
        if let Some(session) = session {
            tokio::select! {
                biased;
                () = latest.closed() => return true,
                () = follow_session(&shared, (job, &paths), &session, &mut settings, latest) => {}
            }
        }
        let message = "not connected to the registry; what is shown may be old".to_owned();
        latest.send_modify(|status| {
            if let Some(status) = status {
                let problem = Problem { path: paths.root().clone(), message };
                if !status.problems.contains(&problem) {
                    Arc::make_mut(status).problems.push(problem);
                }
            }
        });
        let mono = shared.clock.now().mono.saturating_add(PAUSE);
        shared.clock.sleep_until(Wakeup { wall: None, mono: Some(mono) }).await;
    }
}

/// Follows the job until the watch ends, which it does when the session is lost.
async fn follow_session(
    shared: &Shared,
    (job, paths): (&JobName, &JobPaths),
    session: &Arc<dyn Session>,
    settings: &mut Option<Settings>,
    latest: &watch::Sender<Observed>,
) {
    let (mut view, mut fleet) = (JobView::new(paths.root().clone()), FleetView::new(paths.fleet()));
    let mut nodes = Watched::job(paths.root().clone(), shared.clock.clone());
    let mut members = Watched::fleet(paths.fleet().root().clone(), shared.clock.clone());
    nodes.open(session);
    members.open(session);
    loop {
        let next_fire = latest.borrow().as_ref().and_then(|status| status.next_fire);
        let now = || shared.clock.now().wall;
        tokio::select! {
            biased;
            event = nodes.next() => match event {
                Some(event) => view.apply(event, now()),
                None => return,
            },
            event = members.next() => match event {
                Some(event) => fleet.apply(event),
                None => return,
            },
            () = shared.clock.sleep_until(Wakeup { wall: next_fire, mono: None }) => {}
        }
        while let Some(event) = nodes.next_now() {
            view.apply(event, now());
        }
        while let Some(event) = members.next_now() {
            fleet.apply(event);
        }
        if !view.is_loaded() {
            continue;
        }
        let mut status = JobStatus::of(&view, &fleet, settings, &paths.config(), now());
        shared.outcomes.add_to(job, &mut status);
        latest.send_if_modified(|known| {
            let changed = known.as_deref() != Some(&status);
            if changed {
                *known = Some(Arc::new(status));
            }
            changed
        });
    }
}
