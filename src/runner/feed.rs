//! What is known of a job's nodes: one watch and one picture for all participants and observers of the job. Shell.
//! Decides nothing.
//!
//! A feed follows the session by itself. Whoever looks at the picture takes in first what the registry has told, so the
//! result of a commit never overtakes its changes. A task of the feed takes in what comes while nobody looks, and wakes
//! those that have not seen it.
//!
//! While a participant looks, the picture cannot change; the registry's news wait for the longest step of one
//! participant, some milliseconds. Participants look at the same time.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::watch;

use crate::coordination::job::picture::Picture;
use crate::coordination::time::Wakeup;
use crate::elasticjob::path::JobPaths;
use crate::job::{JobConfiguration, JobName};
use crate::registry::{Session, SessionState};
use crate::tree::SessionId;

use super::clock::Clock;
use super::session::Current;
use super::waiting::{replaced, session_changed};
use super::watching::{News, Watched};

/// The pause after its followers were woken, for each of them: about what one of them has to compute then. A thousand
/// participants that join would wake each other a million times otherwise.
const PAUSE_PER_FOLLOWER: Duration = Duration::from_micros(20);
/// A shorter pause is none: a timer is not so exact.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// The longest pause; what a participant of many hears late.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// The feeds of all jobs that are followed. Clones share them.
#[derive(Clone, Default)]
pub struct Feeds {
    jobs: Arc<Mutex<BTreeMap<JobName, Arc<Feed>>>>,
}

impl Feeds {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<JobName, Arc<Feed>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows a job. The first follower starts its feed, and the last one that is dropped ends it.
    pub(super) fn follow(
        &self,
        job: &JobName,
        paths: &JobPaths,
        (current, clock): (&Current, &Clock),
        configuration: Option<&Arc<JobConfiguration>>,
    ) -> Follower {
        let mut jobs = self.lock();
        let mut is_new = false;
        let feed = jobs.entry(job.clone()).or_insert_with(|| {
            is_new = true;
            Feed::new(paths, current, clock)
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
            // Not before it has a follower: without one it ends.
            clock.spawn(Arc::clone(feed).run());
        }
        let unknown = Picture::unknown(paths);
        let (feeds, job, feed) = (self.clone(), job.clone(), Arc::clone(feed));
        Follower { feeds, job, feed, id, awaited: None, unknown }
    }
}

/// What is known, for those who look.
struct Known {
    picture: Picture,
    /// The session that it is of.
    session: Option<SessionId>,
    /// The last reading of all of the job's nodes that is in it.
    read: u64,
}

/// Where it comes from.
struct Source {
    current: Current,
    session: Option<(Arc<dyn Session>, watch::Receiver<SessionState>)>,
    /// The session's state when it was looked at last.
    state: SessionState,
    nodes: Watched,
    fleet: Watched,
    /// Grows with each change of what is known.
    version: u64,
    /// The version of which the followers were told.
    told: u64,
    followers: BTreeMap<u64, Place>,
    last_follower: u64,
    /// The feed's task, if it waits.
    task: Option<Waker>,
}

/// How far a follower is.
#[derive(Default)]
struct Place {
    /// The version that it has looked at.
    seen: u64,
    /// If it waits for another one.
    waker: Option<Waker>,
}

struct Feed {
    clock: Clock,
    known: RwLock<Known>,
    source: Mutex<Source>,
}

impl Feed {
    fn new(paths: &JobPaths, current: &Current, clock: &Clock) -> Arc<Self> {
        let mut current = current.clone();
        current.mark_changed();
        Arc::new(Self {
            clock: clock.clone(),
            known: RwLock::new(Known { picture: Picture::unknown(paths), session: None, read: 0 }),
            source: Mutex::new(Source {
                current,
                session: None,
                state: SessionState::Lost,
                nodes: Watched::job(paths.root().clone(), clock.clone()),
                fleet: Watched::fleet(paths.fleet().root().clone(), clock.clone()),
                version: 1,
                told: 1,
                followers: BTreeMap::new(),
                last_follower: 0,
                task: None,
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Source> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what comes, until nobody follows any more.
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

    /// Wakes those that have not seen what is known. Gives how many follow, if it told them anything; `None`: nobody does.
    fn wake_followers(&self) -> Option<u32> {
        let mut source = self.take_in(None);
        let followers = u32::try_from(source.followers.len()).unwrap_or(u32::MAX);
        if followers == 0 || source.told == source.version {
            return (followers > 0).then_some(0);
        }
        let version = source.version;
        source.told = version;
        let behind = source.followers.values_mut().filter(|place| place.seen != version);
        let wakers: Vec<_> = behind.filter_map(|place| place.waker.take()).collect();
        drop(source);
        wakers.into_iter().for_each(Waker::wake);
        Some(followers)
    }

    /// Waits for news of the watches, for something that a follower took in, or for the last follower to go.
    fn poll_news(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut source = self.take_in(Some(context));
        if source.told != source.version || source.followers.is_empty() {
            return Poll::Ready(());
        }
        source.task = Some(context.waker().clone());
        Poll::Pending
    }

    /// Takes in what the registry has told until now.
    fn take_in(&self, context: Option<&mut Context<'_>>) -> MutexGuard<'_, Source> {
        let mut source = self.lock();
        let switched = source.follow_session();
        let (nodes, fleet) = source.news(context);
        // Read after the events: a session that goes on is connected before its watches tell anything, so a snapshot is
        // never taken for one of the time before.
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
                    // What is to be handed over stays so until more is known.
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
        // What nobody changes any more may have changed before.
        if !self.current.has_changed().unwrap_or(true) {
            return false;
        }
        let current = self.current.borrow_and_update().clone();
        let same = match (&self.session, &current) {
            (Some((ours, _)), Some(theirs)) => Arc::ptr_eq(ours, theirs),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if same {
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

    /// What the session has become, if that has changed, also if it is what it was before.
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

/// One who follows a job.
pub(super) struct Follower {
    feeds: Feeds,
    job: JobName,
    feed: Arc<Feed>,
    id: u64,
    /// The reading of the job's nodes that was asked for, and whether they are unknown until it has ended.
    awaited: Option<(u64, bool)>,
    unknown: Picture,
}

impl Follower {
    /// Waits until there is something that [`Self::look`] has not shown yet. Cancellation loses nothing.
    pub(super) async fn changed(&mut self) {
        poll_fn(|context| {
            let mut source = self.feed.take_in(None);
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

    /// Shows what is known in this session, with all that the registry has told until now, and whether the reading that was
    /// asked for is in it for the first time.
    pub(super) fn look<R>(
        &mut self,
        session: Option<SessionId>,
        look: impl FnOnce(&Picture, bool) -> R,
    ) -> R {
        let mut source = self.feed.take_in(None);
        let version = source.version;
        if let Some(place) = source.followers.get_mut(&self.id) {
            place.seen = version;
        }
        drop(source);
        let known = self.feed.known.read().unwrap_or_else(PoisonError::into_inner);
        if session.is_none() || known.session != session {
            return look(&self.unknown, false);
        }
        match self.awaited {
            Some((number, forget)) if known.read < number => {
                let nodes = if forget { &self.unknown.nodes } else { &known.picture.nodes };
                let picture = Picture { nodes: Arc::clone(nodes), fleet: Arc::clone(&known.picture.fleet) };
                look(&picture, false)
            }
            Some(_) => {
                self.awaited = None;
                look(&known.picture, true)
            }
            None => look(&known.picture, false),
        }
    }

    /// Has the job's nodes read again. With `forget` none is shown until that has happened.
    pub(super) fn refresh(&mut self, forget: bool) {
        let mut source = self.feed.lock();
        let number = source.nodes.read_again();
        source.fleet.read_again();
        let forget = forget || self.awaited.is_some_and(|(_, forget)| forget);
        self.awaited = Some((number, forget));
        // It has to begin.
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
            jobs.remove(&self.job);
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
    use uuid::Uuid;

    use super::*;
    use crate::coordination::time::Now;
    use crate::registry::Registry;
    use crate::registry::embedded::Embedded;
    use crate::runner::clock::{Boottime, Machine};
    use crate::tree::{NodeKind, Operation, Path};

    struct Job {
        registry: Embedded,
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
            let paths = JobPaths::new(&Path::parse("/shop").unwrap(), &name);
            for folder in [paths.root(), &paths.fleet().members()] {
                session.ensure(folder, NodeKind::Persistent, b"").await.unwrap();
            }
            let (sender, current) = watch::channel(Some(Arc::clone(&session)));
            let (clock, feeds) = (Clock::start(), Feeds::default());
            Self { registry, paths, name, clock, feeds, session, sender, current }
        }

        fn follow(&self) -> Follower {
            self.feeds.follow(&self.name, &self.paths, (&self.current, &self.clock), None)
        }

        /// A follower that has seen the nodes.
        async fn reader(&self) -> Follower {
            let mut follower = self.follow();
            self.see(&mut follower, Picture::is_known).await;
            follower
        }

        /// Waits until a follower is shown something.
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
    async fn what_one_follower_takes_in_wakes_the_others() {
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
    async fn nodes_that_are_read_again_are_hidden_only_from_the_one_who_wants_that() {
        let job = Job::new().await;
        let (mut asks, mut other) = (job.reader().await, job.reader().await);
        let session = Some(job.session.id());
        asks.refresh(true);
        asks.refresh(false);
        assert_eq!(asks.look(session, |picture, read| (picture.nodes.is_loaded(), read)), (false, false));
        assert!(asks.look(session, |picture, _| picture.fleet.is_loaded()), "nobody has asked for that");
        assert!(other.look(session, |picture, _| picture.is_known()));
        loop {
            asks.changed().await;
            let (known, read) = asks.look(session, |picture, read| (picture.is_known(), read));
            assert_eq!(known, read);
            if known {
                break;
            }
        }
        assert!(!asks.look(session, |_, read| read), "that is told once");
        other.refresh(false);
        assert!(other.look(session, |picture, read| picture.is_known() && !read));
    }

    #[tokio::test]
    async fn each_session_shows_only_what_it_has_told() {
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

    /// A machine on which a task begins before the one that has started it goes on, as it may on several threads.
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
    async fn a_feed_that_begins_at_once_has_its_follower_already() {
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
