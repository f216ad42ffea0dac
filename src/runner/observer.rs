//! Follows a job for somebody who only looks: a watch, a view, and the state of the job after each change. Takes no
//! part in anything, and needs nobody to be attached.

use std::sync::Arc;
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

/// The latest state of the job. `None` until the first one is known. The observation ends when the receiver is dropped.
pub type Observation = watch::Receiver<Option<JobStatus>>;

/// Follows a job.
pub fn observe(shared: Shared, job: &JobName) -> Observation {
    let (latest, observation) = watch::channel(None);
    let paths = JobPaths::new(&shared.namespace, job);
    let span = tracing::info_span!("observer", job.name = %job);
    let clock = shared.clock.clone();
    // It ends when nobody looks any more.
    clock.spawn(follow(shared, paths, latest).instrument(span));
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
        let status = JobStatus::of(&view, &fleet, settings, &paths.config(), now());
        latest.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&status);
            *known = Some(status);
            changed
        });
    }
}
