//! Watches a part of the tree, with the data that decisions read, for as long as the session lives.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tracing::debug;

use crate::coordination::time::Wakeup;
use crate::elasticjob::path::Place;
use crate::registry::{DataFilter, Session, SessionState, Watch};
use crate::runner::clock::Clock;
use crate::tree::{Path, WatchEvent};

/// The pause between attempts to watch.
const WATCH_PAUSE: Duration = Duration::from_millis(100);

/// The news of a watch.
#[derive(Debug)]
pub(crate) enum News {
    /// A snapshot, or changes.
    Event(WatchEvent),
    /// The registry has ended the watch, or the session is about to be lost: changes may be missing until the next
    /// snapshot.
    Gap,
}

/// A node that is watched with all nodes below it, as soon as the registry answers.
pub(crate) struct Watched {
    root: Path,
    wants_data: DataFilter,
    clock: Clock,
    session: Option<Arc<dyn Session>>,
    opening: Option<BoxFuture<'static, Option<Watch>>>,
    /// Replaces `watch` when its first snapshot comes. Until then `watch` is read, so that no change is missed.
    next: Option<Watch>,
    watch: Option<Watch>,
    /// The number of readings of all nodes that have begun.
    begun: u64,
    /// The number of the last reading that has ended.
    done: u64,
    /// Whether to read again when the present reading has ended.
    again: bool,
}

impl Watched {
    /// The nodes of a job. Brings the data of those that decisions read.
    pub(crate) fn job(root: Path, clock: Clock) -> Self {
        let filter_root = root.clone();
        let wants_data: DataFilter = Arc::new(move |path: &Path| {
            path.relative_to(&filter_root).is_some_and(|relative| Place::of(relative).wants_data())
        });
        Self::new(root, wants_data, clock)
    }

    /// The nodes with which the sidecars of a job inform each other. Brings all data.
    pub(crate) fn fleet(root: Path, clock: Clock) -> Self {
        Self::new(root, Arc::new(|_: &Path| true), clock)
    }

    /// The contenders of a lock. Brings all data.
    pub(crate) fn lock(root: Path, clock: Clock) -> Self {
        Self::new(root, Arc::new(|_: &Path| true), clock)
    }

    fn new(root: Path, wants_data: DataFilter, clock: Clock) -> Self {
        let (session, opening, next, watch) = (None, None, None, None);
        Self { root, wants_data, clock, session, opening, next, watch, begun: 0, done: 0, again: false }
    }

    /// Watches in this session from now on, and begins with a snapshot. `None`: there is no session.
    pub(crate) fn follow(&mut self, session: Option<Arc<dyn Session>>) {
        (self.opening, self.next, self.watch, self.again) = (None, None, None, false);
        self.session = session;
        self.open(Duration::ZERO);
    }

    /// Reads all nodes again. Returns the number of that reading, for [`Self::done`].
    pub(crate) fn read_again(&mut self) -> u64 {
        if self.opening.is_some() || self.next.is_some() {
            // The present reading may have read some nodes before this call.
            self.again = true;
            return self.begun + 1;
        }
        self.open(Duration::ZERO);
        // Without a session, it is the first reading of the next session.
        if self.opening.is_some() { self.begun } else { self.begun + 1 }
    }

    /// The number of the last reading that has ended.
    pub(crate) fn done(&self) -> u64 {
        self.done
    }

    /// Opens another watch. Tries again until the session is lost.
    fn open(&mut self, pause: Duration) {
        let Some(session) = self.session.clone() else { return };
        let clock = self.clock.clone();
        let (root, wants_data) = (self.root.clone(), Arc::clone(&self.wants_data));
        self.begun += 1;
        self.opening = Some(Box::pin(async move {
            let mut pause = pause;
            loop {
                if !pause.is_zero() {
                    let until = clock.now().mono.saturating_add(pause);
                    clock.sleep_until(Wakeup { wall: None, mono: Some(until) }).await;
                }
                if *session.state().borrow() == SessionState::Lost {
                    return None;
                }
                match session.watch(&root, Arc::clone(&wants_data)).await {
                    Ok(watch) => return Some(watch),
                    Err(error) => debug!(%root, %error, "cannot watch yet"),
                }
                pause = WATCH_PAUSE;
            }
        }));
    }

    /// The next news, for the feed's task, which waits for them.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<News> {
        loop {
            if let Some(opening) = &mut self.opening
                && let Poll::Ready(watch) = opening.poll_unpin(context)
            {
                (self.opening, self.next) = (None, watch);
            }
            match self.next.as_mut().map(|next| next.poll_recv(context)) {
                Some(Poll::Ready(Some(event))) => {
                    self.use_next();
                    return Poll::Ready(News::Event(event));
                }
                Some(Poll::Ready(None)) => {
                    self.next = None;
                    self.open(WATCH_PAUSE);
                    continue;
                }
                Some(Poll::Pending) | None => {}
            }
            return match self.watch.as_mut().map(|watch| watch.poll_recv(context)) {
                Some(Poll::Ready(Some(event))) => Poll::Ready(News::Event(event)),
                Some(Poll::Ready(None)) => {
                    self.watch = None;
                    if self.opening.is_none() && self.next.is_none() {
                        self.open(Duration::ZERO);
                    }
                    Poll::Ready(News::Gap)
                }
                Some(Poll::Pending) | None => Poll::Pending,
            };
        }
    }

    /// The news that have come already, for a follower, which does not wait.
    pub(crate) fn next_now(&mut self) -> Option<News> {
        if let Some(Ok(event)) = self.next.as_mut().map(Watch::try_recv) {
            self.use_next();
            return Some(News::Event(event));
        }
        self.watch.as_mut()?.try_recv().ok().map(News::Event)
    }

    fn use_next(&mut self) {
        self.watch = self.next.take();
        self.done = self.begun;
        if std::mem::take(&mut self.again) {
            self.open(Duration::ZERO);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use crate::registry::Registry;
    use crate::registry::embedded::Embedded;
    use crate::registry::watch_channel;

    async fn next(watched: &mut Watched) -> News {
        poll_fn(|context| watched.poll_next(context)).await
    }

    #[tokio::test]
    async fn a_watch_that_the_registry_ends_leaves_a_gap_until_the_next_snapshot() {
        let session = Embedded::in_memory().open().await.unwrap();
        let mut watched = Watched::fleet(Path::root(), Clock::start());
        watched.follow(Some(session));
        assert!(matches!(next(&mut watched).await, News::Event(WatchEvent::Snapshot(_))));
        watched.watch = Some(watch_channel().1);
        assert!(matches!(next(&mut watched).await, News::Gap));
        assert!(matches!(next(&mut watched).await, News::Event(WatchEvent::Snapshot(_))));
        assert_eq!(watched.done(), 2);
    }

    #[tokio::test]
    async fn a_reading_begins_after_it_was_asked_for() {
        let session = Embedded::in_memory().open().await.unwrap();
        let mut watched = Watched::fleet(Path::root(), Clock::start());
        assert_eq!(watched.read_again(), 1, "the first one of the first session");
        watched.follow(Some(session));
        assert_eq!(watched.read_again(), 2, "the first one may have begun before");
        assert_eq!(watched.read_again(), 2);
        for done in 1..=2 {
            assert!(matches!(next(&mut watched).await, News::Event(WatchEvent::Snapshot(_))));
            assert_eq!(watched.done(), done);
        }
        assert_eq!(watched.read_again(), 3);
    }
}
