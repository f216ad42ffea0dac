//! The known nodes of a job: one watch and one picture for all followers of the job (its participants and observers).
//!
//! A feed follows the session by itself. A follower that looks at the picture first applies the changes that the registry has
//! sent, so the result of a commit never overtakes its changes. A task of the feed applies the changes that come while no
//! follower looks, and wakes the followers that have not seen them.
//!
//! When a commit succeeds, its changes are in the watch's queue already. So the picture is never behind a participant's own
//! commits, and the participant needs no second book-keeping. A change wakes the followers at most once in 20 microseconds for
//! each of them, because a step of each costs about that.
//!
//! While a follower looks, the picture cannot change. The registry's changes wait for the longest step of one participant,
//! which takes some milliseconds. Several followers may look at the same time.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::coordination::job::picture::Picture;
use crate::coordination::time::{Now, Wakeup};
use crate::elasticjob::path::JobPaths;
use crate::extension::path::ExtensionPaths;
use crate::job::{JobConfiguration, JobName};
use crate::registry::SessionState;
use crate::runner::clock::Clock;
use crate::runner::session::current::{Current, Followed, is_followed, replaced, session_changed};
use crate::tree::{Path, SessionId};

use super::watched::{News, Watched};

/// The pause after a feed has woken its followers, for each of them: about the time that one of them computes then. Without
/// it, a thousand participants that register would wake each other a million times.
const PAUSE_PER_FOLLOWER: Duration = Duration::from_micros(20);
/// A shorter pause is left out, because timers are not so exact.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// The longest pause: how late a follower may see a change if the feed has many followers.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// The feeds of all jobs that have followers. Clones share them.
#[derive(Clone, Default)]
pub struct Feeds {
    jobs: Arc<Mutex<BTreeMap<JobName, Arc<Feed>>>>,
}

impl Feeds {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<JobName, Arc<Feed>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The picture of a job that has followers, as they see it in this session. `None`: it is not known.
    pub(crate) fn peek(&self, job: &JobName, session: SessionId) -> Option<Picture> {
        let feed = Arc::clone(self.lock().get(job)?);
        let known = feed.known.read().unwrap_or_else(PoisonError::into_inner);
        let is_known = known.session == Some(session) && known.picture.nodes.is_loaded();
        is_known.then(|| known.picture.clone())
    }

    /// By how many milliseconds this machine's clock is ahead of the registry's in this session, by the job that shows it best.
    pub(crate) fn ahead_ms(&self, session: SessionId, now: Now) -> Option<i64> {
        let feeds: Vec<_> = self.lock().values().cloned().collect();
        let shown = feeds.iter().filter_map(|feed| {
            let known = feed.known.read().unwrap_or_else(PoisonError::into_inner);
            if known.session == Some(session) { known.picture.nodes.ahead_ms(now) } else { None }
        });
        // The travel of a change only makes the difference larger.
        shown.min_by_key(|ahead| ahead.abs())
    }

    /// Follows a job. The first follower starts its feed, and the last one that is dropped ends it.
    pub(crate) fn follow(
        &self,
        job: &JobName,
        namespace: &Path,
        (current, clock): (&Current, &Clock),
        configuration: Option<&Arc<JobConfiguration>>,
    ) -> Follower {
        let mut jobs = self.lock();
        let mut is_new = false;
        let feed = jobs.entry(job.clone()).or_insert_with(|| {
            is_new = true;
            Feed::new(job, namespace, (current, clock))
        });
        if configuration.is_some() {
            feed.write().picture.expect(configuration.cloned());
        }
        let mut source = feed.lock();
        source.last_follower += 1;
        let id = source.last_follower;
        source.followers.insert(id, Place::default());
        drop(source);
        if is_new {
            // The follower is in the list already: a feed without followers ends.
            clock.spawn(Arc::clone(feed).run());
        }
        Follower { feeds: self.clone(), feed: Arc::clone(feed), id, awaited: None }
    }
}

/// The picture before anything is read.
fn unknown(job: &JobName, namespace: &Path) -> Picture {
    Picture::unknown(&JobPaths::new(namespace, job), &ExtensionPaths::new(namespace, job))
}

/// The known nodes, for the followers to read.
struct Known {
    picture: Picture,
    /// The session in which the picture was read.
    session: Option<SessionId>,
    /// The number of the last reading of all nodes of the job that is in the picture.
    read: u64,
}

/// The source of the picture, and its followers.
struct Source {
    current: Current,
    session: Option<Followed>,
    /// The session's state when the feed read it last.
    state: SessionState,
    nodes: Watched,
    fleet: Watched,
    /// The version of the picture: grows with each change.
    version: u64,
    /// The version for which the followers were woken last.
    woken_for: u64,
    followers: BTreeMap<u64, Place>,
    last_follower: u64,
    /// The feed's task, if it waits.
    task: Option<Waker>,
}

/// The newest state that a follower has seen.
#[derive(Default)]
struct Place {
    /// The version that the follower has looked at.
    seen: u64,
    /// Wakes the follower, if it waits for another version.
    waker: Option<Waker>,
}

struct Feed {
    job: JobName,
    namespace: Path,
    clock: Clock,
    known: RwLock<Known>,
    source: Mutex<Source>,
}

impl Feed {
    fn new(job: &JobName, namespace: &Path, (current, clock): (&Current, &Clock)) -> Arc<Self> {
        let mut current = current.clone();
        current.mark_changed();
        Arc::new(Self {
            job: job.clone(),
            namespace: namespace.clone(),
            clock: clock.clone(),
            known: RwLock::new(Known { picture: unknown(job, namespace), session: None, read: 0 }),
            source: Mutex::new(Source {
                current,
                session: None,
                state: SessionState::Lost,
                nodes: Watched::job(JobPaths::new(namespace, job).root().clone(), clock.clone()),
                fleet: Watched::fleet(
                    ExtensionPaths::new(namespace, job).fleet().root().clone(),
                    clock.clone(),
                ),
                version: 1,
                woken_for: 1,
                followers: BTreeMap::new(),
                last_follower: 0,
                task: None,
            }),
        })
    }

    /// The picture before anything is read. Made anew, because thousands of followers need it seldom.
    fn unknown(&self) -> Picture {
        unknown(&self.job, &self.namespace)
    }

    fn lock(&self) -> MutexGuard<'_, Source> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies the changes that come, until the last follower is gone.
    async fn run(self: Arc<Self>) {
        loop {
            let (mut current, mut session) = {
                let source = self.lock();
                (source.current.clone(), source.session.clone())
            };
            tokio::select! {
                biased;
                () = replaced(&mut current) => {}
                () = session_changed(&mut session) => {}
                () = poll_fn(|context| self.poll_news(context)) => {}
            }
            let Some(followers) = self.wake_followers() else { return };
            let pause = PAUSE_PER_FOLLOWER.saturating_mul(followers);
            if pause >= PAUSE_MIN {
                let until = self.clock.now().mono.saturating_add(pause.min(PAUSE_MAX));
                self.clock.sleep_until(Wakeup { wall: None, mono: Some(until) }).await;
            }
        }
    }

    /// Wakes the followers that have not seen the present version. Returns the number of followers if they had to be woken,
    /// and 0 if not; `None`: there is no follower.
    fn wake_followers(&self) -> Option<u32> {
        let mut source = self.update(None);
        let followers = u32::try_from(source.followers.len()).unwrap_or(u32::MAX);
        if followers == 0 || source.woken_for == source.version {
            return (followers > 0).then_some(0);
        }
        let version = source.version;
        source.woken_for = version;
        let behind = source.followers.values_mut().filter(|place| place.seen != version);
        let wakers: Vec<_> = behind.filter_map(|place| place.waker.take()).collect();
        drop(source);
        wakers.into_iter().for_each(Waker::wake);
        Some(followers)
    }

    /// Waits for changes from the watches, for changes that a follower has applied, or for the end of the last follower.
    fn poll_news(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut source = self.update(Some(context));
        if source.woken_for != source.version || source.followers.is_empty() {
            return Poll::Ready(());
        }
        source.task = Some(context.waker().clone());
        Poll::Pending
    }

    /// Applies all that the registry has sent until now.
    fn update(&self, context: Option<&mut Context<'_>>) -> MutexGuard<'_, Source> {
        let mut source = self.lock();
        let switched = source.follow_session();
        let (nodes, fleet) = source.news(context);
        // The state is read after the events: a session is connected again before its watches send anything, so a snapshot
        // of the present connection is never dropped as one of the time before.
        let state = source.state_news();
        if !switched && nodes.is_empty() && fleet.is_empty() && state.is_none() {
            return source;
        }
        let now = self.clock.now();
        let mut known = self.write();
        if switched {
            known.picture.forget();
        }
        known.session = source.session.as_ref().map(|(session, _)| session.id());
        match state {
            Some(SessionState::Connected) => known.picture.forget_nodes(),
            Some(SessionState::Lost) => known.picture.forget(),
            Some(SessionState::Suspended) | None => {}
        }
        if state != Some(SessionState::Lost) {
            for news in nodes {
                match news {
                    News::Event(event) => known.picture.apply_nodes(event, now),
                    News::Gap => known.picture.forget_nodes(),
                }
            }
            for news in fleet {
                match news {
                    News::Event(event) => known.picture.apply_fleet(event),
                    // The handoffs that are planned stay in the picture until the nodes are read again.
                    News::Gap => {}
                }
            }
        }
        known.read = source.nodes.done();
        source.version += 1;
        source
    }
}

impl Source {
    /// Follows another session, if there is one.
    fn follow_session(&mut self) -> bool {
        // The sender may be dropped after its last change: then that change is still to be read.
        if !self.current.has_changed().unwrap_or(true) {
            return false;
        }
        let current = self.current.borrow_and_update().clone();
        if is_followed(self.session.as_ref(), current.as_ref()) {
            return false;
        }
        self.nodes.follow(current.clone());
        self.fleet.follow(current.clone());
        self.session = current.map(|session| {
            let state = session.state();
            self.state = *state.borrow();
            (session, state)
        });
        true
    }

    /// The session's state if it has changed, also if it has changed back.
    fn state_news(&mut self) -> Option<SessionState> {
        let (_, state) = self.session.as_mut()?;
        let changed = state.has_changed().unwrap_or(false);
        let before = std::mem::replace(&mut self.state, *state.borrow_and_update());
        (changed || before != self.state).then_some(self.state)
    }

    fn news(&mut self, context: Option<&mut Context<'_>>) -> (Vec<News>, Vec<News>) {
        let (mut nodes, mut fleet) = (Vec::new(), Vec::new());
        match context {
            Some(context) => {
                while let Poll::Ready(news) = self.nodes.poll_next(context) {
                    nodes.push(news);
                }
                while let Poll::Ready(news) = self.fleet.poll_next(context) {
                    fleet.push(news);
                }
            }
            None => {
                nodes.extend(std::iter::from_fn(|| self.nodes.next_now()));
                fleet.extend(std::iter::from_fn(|| self.fleet.next_now()));
            }
        }
        (nodes, fleet)
    }
}

/// Follows a job: shows its picture to one participant or observer.
pub(crate) struct Follower {
    feeds: Feeds,
    feed: Arc<Feed>,
    id: u64,
    /// The number of the reading that the follower has asked for, and whether the nodes are hidden from it until then.
    awaited: Option<(u64, bool)>,
}

impl Follower {
    /// Waits until there is a version that [`Self::look`] has not shown yet. Cancellation loses nothing.
    pub(crate) async fn changed(&mut self) {
        poll_fn(|context| {
            let mut source = self.feed.update(None);
            let version = source.version;
            match source.followers.get_mut(&self.id) {
                Some(place) if place.seen == version => {
                    place.waker = Some(context.waker().clone());
                    Poll::Pending
                }
                Some(_) | None => Poll::Ready(()),
            }
        })
        .await;
    }

    /// Shows the picture of this session, with all that the registry has sent until now. The second argument of `look` is
    /// whether the reading that the follower has asked for is in the picture for the first time.
    pub(crate) fn look<R>(
        &mut self,
        session: Option<SessionId>,
        look: impl FnOnce(&Picture, bool) -> R,
    ) -> R {
        let mut source = self.feed.update(None);
        let version = source.version;
        if let Some(place) = source.followers.get_mut(&self.id) {
            place.seen = version;
        }
        drop(source);
        let known = self.feed.known.read().unwrap_or_else(PoisonError::into_inner);
        if session.is_none() || known.session != session {
            return look(&self.feed.unknown(), false);
        }
        match self.awaited {
            Some((number, forget)) if known.read < number => {
                let nodes = if forget { self.feed.unknown().nodes } else { Arc::clone(&known.picture.nodes) };
                let picture = Picture { nodes, fleet: Arc::clone(&known.picture.fleet) };
                look(&picture, false)
            }
            Some(_) => {
                self.awaited = None;
                look(&known.picture, true)
            }
            None => look(&known.picture, false),
        }
    }

    /// Has the job's nodes read again. With `forget` no node is shown to this follower until that has happened.
    pub(crate) fn refresh(&mut self, forget: bool) {
        let mut source = self.feed.lock();
        let number = source.nodes.read_again();
        source.fleet.read_again();
        let forget = forget || self.awaited.is_some_and(|(_, forget)| forget);
        self.awaited = Some((number, forget));
        // The feed's task begins the reading.
        if let Some(task) = source.task.take() {
            task.wake();
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut jobs = self.feeds.lock();
        let mut source = self.feed.lock();
        source.followers.remove(&self.id);
        if source.followers.is_empty() {
            jobs.remove(&self.feed.job);
            if let Some(task) = source.task.take() {
                task.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::BoxFuture;
    use tokio::sync::watch;
    use uuid::Uuid;

    use super::*;
    use crate::registry::embedded::Embedded;
    use crate::registry::{Registry, Session};
    use crate::runner::clock::{Boottime, Machine};
    use crate::tree::{NodeKind, Operation};

    struct Job {
        registry: Embedded,
        namespace: Path,
        paths: JobPaths,
        name: JobName,
        clock: Clock,
        feeds: Feeds,
        session: Arc<dyn Session>,
        sender: watch::Sender<Option<Arc<dyn Session>>>,
        current: Current,
    }

    impl Job {
        async fn new() -> Self {
            let registry = Embedded::in_memory();
            let session = registry.open().await.unwrap();
            let name = JobName::parse("orders").unwrap();
            let namespace = Path::parse("/shop").unwrap();
            let paths = JobPaths::new(&namespace, &name);
            for folder in [paths.root(), &ExtensionPaths::new(&namespace, &name).fleet().members()] {
                session.ensure(folder, NodeKind::Persistent, b"").await.unwrap();
            }
            let (sender, current) = watch::channel(Some(Arc::clone(&session)));
            let (clock, feeds) = (Clock::start(), Feeds::default());
            Self { registry, namespace, paths, name, clock, feeds, session, sender, current }
        }

        fn follow(&self) -> Follower {
            self.feeds.follow(&self.name, &self.namespace, (&self.current, &self.clock), None)
        }

        /// A follower that has read the nodes.
        async fn reader(&self) -> Follower {
            let mut follower = self.follow();
            self.see(&mut follower, Picture::is_known).await;
            follower
        }

        /// Waits until a follower sees a picture with this property.
        async fn see(&self, follower: &mut Follower, what: impl Fn(&Picture) -> bool) {
            while !follower.look(Some(self.session.id()), |picture, _| what(picture)) {
                follower.changed().await;
            }
        }

        async fn mark(&self, folder: &str) {
            let node = self.paths.root().child(folder);
            self.session.commit(vec![Operation::create(node, NodeKind::Persistent, "")]).await.unwrap();
        }

        fn marked(picture: &Picture) -> bool {
            picture.nodes.class().is_some() && picture.nodes.necessary()
        }

        async fn flag(&self) {
            self.mark("leader").await;
            self.mark("leader/sharding").await;
            self.mark("leader/sharding/necessary").await;
        }
    }

    impl Picture {
        fn is_known(&self) -> bool {
            self.nodes.is_loaded() && self.fleet.is_loaded()
        }
    }

    #[tokio::test]
    async fn a_result_never_overtakes_its_changes() {
        let job = Job::new().await;
        let (mut one, mut other) = (job.reader().await, job.reader().await);
        job.mark("leader").await;
        job.mark("leader/sharding").await;
        for _ in 0..100 {
            job.mark("leader/sharding/necessary").await;
            assert!(one.look(Some(job.session.id()), |picture, _| Job::marked(picture)));
            let delete = Operation::delete(job.paths.root().child("leader/sharding/necessary"));
            job.session.commit(vec![delete]).await.unwrap();
            assert!(!other.look(Some(job.session.id()), |picture, _| Job::marked(picture)));
        }
    }

    #[tokio::test]
    async fn changes_that_one_follower_applies_wake_the_others() {
        let job = Job::new().await;
        let (mut one, mut other) = (job.reader().await, job.reader().await);
        while other.changed().now_or_never().is_some() {
            job.see(&mut other, Picture::is_known).await;
        }
        let waits = async {
            job.see(&mut other, Job::marked).await;
        };
        let takes = async {
            job.flag().await;
            assert!(one.look(Some(job.session.id()), |picture, _| Job::marked(picture)));
        };
        futures::future::join(waits, takes).await;
    }

    #[tokio::test]
    async fn nodes_that_are_read_again_are_hidden_only_from_the_follower_that_wants_that() {
        let job = Job::new().await;
        let (mut asks, mut other) = (job.reader().await, job.reader().await);
        let session = Some(job.session.id());
        asks.refresh(true);
        asks.refresh(false);
        assert_eq!(asks.look(session, |picture, read| (picture.nodes.is_loaded(), read)), (false, false));
        assert!(
            asks.look(session, |picture, _| picture.fleet.is_loaded()),
            "only the job's nodes are hidden"
        );
        assert!(other.look(session, |picture, _| picture.is_known()));
        loop {
            asks.changed().await;
            let (known, read) = asks.look(session, |picture, read| (picture.is_known(), read));
            assert_eq!(known, read);
            if known {
                break;
            }
        }
        assert!(!asks.look(session, |_, read| read), "the end of a reading is reported once");
        other.refresh(false);
        assert!(other.look(session, |picture, read| picture.is_known() && !read));
    }

    #[tokio::test]
    async fn each_session_shows_only_its_own_nodes() {
        let job = Job::new().await;
        let mut follower = job.reader().await;
        let (before, another) = (job.session.id(), job.registry.open().await.unwrap());
        job.sender.send_replace(Some(Arc::clone(&another)));
        assert!(!follower.look(Some(before), |picture, _| picture.is_known()));
        let now = Job { session: another, ..job };
        now.see(&mut follower, Picture::is_known).await;
        assert!(!follower.look(Some(before), |picture, _| picture.is_known()));
        assert!(!follower.look(None, |picture, _| picture.is_known()));
    }

    #[tokio::test]
    async fn nodes_are_unknown_from_a_session_s_return_to_the_next_reading() {
        let job = Job::new().await;
        let mut follower = job.reader().await;
        let session = Some(job.session.id());
        let (sender, state) = watch::channel(SessionState::Connected);
        follower.feed.lock().session = Some((Arc::clone(&job.session), state));
        sender.send_replace(SessionState::Suspended);
        assert!(follower.look(session, |picture, _| picture.is_known()), "the session may be alive");
        sender.send_replace(SessionState::Connected);
        assert!(!follower.look(session, |picture, _| picture.nodes.is_loaded()));
        assert!(follower.look(session, |picture, _| picture.fleet.is_loaded()));
        follower.refresh(false);
        job.see(&mut follower, Picture::is_known).await;
        sender.send_replace(SessionState::Lost);
        assert!(!follower.look(session, |picture, _| picture.nodes.is_loaded() || picture.fleet.is_loaded()));
    }

    /// A machine on which a new task runs before its starter goes on, as may happen with several threads.
    struct Eager(Clock);

    impl Machine for Eager {
        fn now(&self) -> Now {
            self.0.now()
        }

        fn sleep_until(&self, wakeup: Wakeup) -> BoxFuture<'static, ()> {
            let clock = self.0.clone();
            Box::pin(async move { clock.sleep_until(wakeup).await })
        }

        fn unguessable(&self) -> Uuid {
            Uuid::new_v4()
        }

        fn spawn(&self, mut task: BoxFuture<'static, ()>) {
            if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                self.0.spawn(task);
            }
        }

        fn boottime(&self) -> Option<&Boottime> {
            None
        }
    }

    #[tokio::test]
    async fn a_feed_whose_task_begins_at_once_has_its_follower_already() {
        let job = Job { clock: Clock::of(Arc::new(Eager(Clock::start()))), ..Job::new().await };
        let mut follower = job.follow();
        assert_eq!(
            Arc::strong_count(&follower.feed),
            3,
            "the feed's task, its follower, and the list of feeds"
        );
        job.see(&mut follower, Picture::is_known).await;
    }

    #[tokio::test]
    async fn a_feed_ends_with_its_last_follower() {
        let job = Job::new().await;
        let (one, other) = (job.reader().await, job.reader().await);
        let feed = Arc::downgrade(&one.feed);
        drop(one);
        assert_eq!(job.feeds.lock().len(), 1);
        drop(other);
        assert!(job.feeds.lock().is_empty());
        while feed.upgrade().is_some() {
            tokio::task::yield_now().await;
        }
        assert!(job.reader().await.look(Some(job.session.id()), |picture, _| picture.is_known()));
    }
}
