//! Watches a part of the tree for a participant: with the data that decisions read, for as long as the session lives.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tracing::debug;

use crate::coordination::participant::Wakeup;
use crate::elasticjob::path::Place;
use crate::registry::{DataFilter, Session, SessionState, Watch};
use crate::tree::{Path, WatchEvent};

use super::clock::Clock;

/// The pause between attempts to watch.
const WATCH_PAUSE: Duration = Duration::from_millis(100);

/// A node that is watched with all below it, or will be as soon as that works.
pub(super) struct Watched {
    root: Path,
    wants_data: DataFilter,
    clock: Clock,
    opening: Option<BoxFuture<'static, Option<Watch>>>,
    watch: Option<Watch>,
}

impl Watched {
    /// The nodes of a job. Brings the data of those that decisions read.
    pub(super) fn job(root: Path, clock: Clock) -> Self {
        let filter_root = root.clone();
        let wants_data: DataFilter = Arc::new(move |path: &Path| {
            path.relative_to(&filter_root).is_some_and(|relative| Place::of(relative).wants_data())
        });
        Self { root, wants_data, clock, opening: None, watch: None }
    }

    /// What the sidecars of a job tell each other. Brings all data.
    pub(super) fn fleet(root: Path, clock: Clock) -> Self {
        Self { root, wants_data: Arc::new(|_: &Path| true), clock, opening: None, watch: None }
    }

    /// Watches from now on, which begins with a snapshot. Tries until the session is lost.
    pub(super) fn open(&mut self, session: &Arc<dyn Session>) {
        let (session, clock) = (Arc::clone(session), self.clock.clone());
        let (root, wants_data) = (self.root.clone(), Arc::clone(&self.wants_data));
        self.watch = None;
        self.opening = Some(Box::pin(async move {
            loop {
                match session.watch(&root, Arc::clone(&wants_data)).await {
                    Ok(watch) => return Some(watch),
                    Err(error) => debug!(%root, %error, "cannot watch yet"),
                }
                if *session.state().borrow() == SessionState::Lost {
                    return None;
                }
                let pause = clock.now().mono.saturating_add(WATCH_PAUSE);
                clock.sleep_until(Wakeup { wall: None, mono: Some(pause) }).await;
            }
        }));
    }

    /// Watches no more.
    pub(super) fn close(&mut self) {
        self.opening = None;
        self.watch = None;
    }

    /// The next news; `None`: the registry gave up on the watch, or the session is about to be lost. Never, if nothing
    /// is watched.
    pub(super) async fn next(&mut self) -> Option<WatchEvent> {
        if let Some(opening) = &mut self.opening {
            self.watch = opening.await;
            self.opening = None;
        }
        match &mut self.watch {
            Some(watch) => watch.recv().await,
            None => std::future::pending().await,
        }
    }

    /// News that are there already.
    pub(super) fn next_now(&mut self) -> Option<WatchEvent> {
        self.watch.as_mut()?.try_recv().ok()
    }
}
