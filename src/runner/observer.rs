//! Follows a job for somebody who only looks: a watch, a view, and the state of the job after each change. Takes no
//! part in anything, and needs nobody to be attached.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tracing::Instrument;

use crate::coordination::participant::Wakeup;
use crate::coordination::settings::Settings;
use crate::coordination::status::JobStatus;
use crate::coordination::view::JobView;
use crate::elasticjob::path::{JobPaths, Place};
use crate::job::{JobName, Problem};
use crate::registry::{Session, Watch};
use crate::tree::Path;

use super::hub::Shared;

/// The pause before a watch is tried again.
const PAUSE: Duration = Duration::from_millis(200);

/// The latest state of the job. `None` until the first one is known. The observation ends when the receiver is dropped.
pub type Observation = watch::Receiver<Option<JobStatus>>;

/// Follows a job.
pub fn observe(shared: Shared, job: &JobName) -> Observation {
    let (latest, observation) = watch::channel(None);
    let paths = JobPaths::new(&shared.namespace, job);
    let span = tracing::info_span!("observer", job.name = %job);
    #[expect(clippy::disallowed_methods, reason = "the observer's task; it ends when nobody looks any more")]
    tokio::spawn(follow(shared, paths, latest).instrument(span));
    observation
}

async fn follow(mut shared: Shared, paths: JobPaths, latest: watch::Sender<Option<JobStatus>>) {
    let mut settings = None;
    loop {
        let session = tokio::select! {
            biased;
            () = latest.closed() => return,
            session = shared.current.wait_for(Option::is_some) => match session {
                Ok(session) => session.clone(),
                // The sidecar is stopping.
                Err(_) => return,
            },
        };
        if let Some(session) = session {
            tokio::select! {
                biased;
                () = latest.closed() => return,
                () = follow_session(&shared, &paths, &session, &mut settings, &latest) => {}
            }
        }
        let message = "not connected to the registry; what is shown may be old".to_owned();
        latest.send_modify(|status| {
            if let Some(status) = status {
                let problem = Problem { path: paths.root().clone(), message };
                if !status.problems.contains(&problem) {
                    status.problems.push(problem);
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
    paths: &JobPaths,
    session: &Arc<dyn Session>,
    settings: &mut Option<Settings>,
    latest: &watch::Sender<Option<JobStatus>>,
) {
    let mut view = JobView::new(paths.root().clone());
    let Some(mut changes) = open(session, paths.root()).await else { return };
    loop {
        let next_fire = latest.borrow().as_ref().and_then(|status| status.next_fire);
        tokio::select! {
            biased;
            event = changes.recv() => match event {
                Some(event) => view.apply(event, shared.clock.now().wall),
                None => return,
            },
            () = shared.clock.sleep_until(Wakeup { wall: next_fire, mono: None }) => {}
        }
        while let Ok(event) = changes.try_recv() {
            view.apply(event, shared.clock.now().wall);
        }
        let status = JobStatus::of(&view, settings, &paths.config(), shared.clock.now().wall);
        latest.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&status);
            *known = Some(status);
            changed
        });
    }
}

async fn open(session: &Arc<dyn Session>, root: &Path) -> Option<Watch> {
    let filter_root = root.clone();
    let wants = Arc::new(move |path: &Path| {
        path.relative_to(&filter_root).is_some_and(|relative| Place::of(relative).wants_data())
    });
    session.watch(root, wants).await.ok()
}
