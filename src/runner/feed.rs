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

use crate::coordination::participant::Wakeup;
use crate::coordination::picture::Picture;
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
        let feed = jobs.entry(job.clone()).or_insert_with(|| Feed::start(paths, current, clock));
        if configuration.is_some() {
            feed.write().picture.expect(configuration.cloned());
        }
        let mut source = feed.lock();
        source.last_follower += 1;
        let id = source.last_follower;
        source.followers.insert(id, Place::default());
        drop(source);
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
    fn start(paths: &JobPaths, current: &Current, clock: &Clock) -> Arc<Self> {
        let mut current = current.clone();
        current.mark_changed();
        let feed = Arc::new(Self {
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
        });
        // It ends with the last follower.
        clock.spawn(Arc::clone(&feed).run());
        feed
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
