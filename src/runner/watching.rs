//! Watches a job's nodes for a participant: with the data that decisions read, for as long as the session lives.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tracing::debug;

use crate::coordination::participant::Wakeup;
use crate::elasticjob::path::Place;
use crate::registry::{Session, SessionState, Watch};
use crate::tree::{Path, WatchEvent};

use super::clock::Clock;

/// The pause between attempts to watch.
const WATCH_PAUSE: Duration = Duration::from_millis(100);

/// Watches the job. Tries until the session is lost.
pub(super) async fn open_watch(session: Arc<dyn Session>, root: Path, clock: Clock) -> Option<Watch> {
    let filter_root = root.clone();
    let wants: Arc<dyn Fn(&Path) -> bool + Send + Sync> = Arc::new(move |path: &Path| {
        path.relative_to(&filter_root).is_some_and(|relative| Place::of(relative).wants_data())
    });
    loop {
        match session.watch(&root, Arc::clone(&wants)).await {
            Ok(watch) => return Some(watch),
            Err(error) => {
                debug!(%root, %error, "cannot watch the job yet");
                let mut state = session.state();
                if *state.borrow_and_update() == SessionState::Lost {
                    return None;
                }
                let pause = clock.now().mono.saturating_add(WATCH_PAUSE);
                clock.sleep_until(Wakeup { wall: None, mono: Some(pause) }).await;
            }
        }
    }
}

/// The next news of a watch; never, if there is none.
pub(super) async fn receive(watch: &mut Option<Watch>) -> Option<WatchEvent> {
    match watch {
        Some(watch) => watch.recv().await,
        None => std::future::pending().await,
    }
}

/// The watch, once it is open; never, if none is being opened.
pub(super) async fn opened(opening: &mut Option<BoxFuture<'static, Option<Watch>>>) -> Option<Watch> {
    match opening {
        Some(opening) => opening.await,
        None => std::future::pending().await,
    }
}
