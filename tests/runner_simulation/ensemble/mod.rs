//! The registry's servers and the network before them: an embedded registry, on which each session's requests arrive
//! late and in order, or not; answers and changes travel in one line, as ZooKeeper sends them; and a session ends when
//! the servers have not heard from it for its timeout, whether its client knows that or not.

mod apart;
mod client;
mod connection;
mod line;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::FutureExt;
use sidekeeper::registry::embedded::Embedded;
use sidekeeper::registry::{DataFilter, Registry, Session, SessionState, Watch, WatchSender};
use sidekeeper::tree::{Path, SessionId, WatchEvent};
use tokio::sync::watch;

use crate::executor::Process;
use crate::timeline::Timeline;

use self::apart::Apart;
pub use self::client::ClientRegistry;
use self::line::Ask;

/// How long a request may take before its client gives it up.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
/// How long opening a session may take.
pub const CONNECTION_TIMEOUT: Duration = Duration::from_secs(2);

/// How the network behaves.
#[derive(Debug, Clone, Copy, Default)]
pub struct Weather {
    /// The longest way in one direction, when nothing is wrong; microseconds.
    pub hop_max: u64,
    /// One request or answer in so many takes up to 400 ms.
    pub spikes: u64,
    /// One notification in so many takes up to a second; all that comes after it waits for it.
    pub late_news: u64,
    /// One request in so many breaks the connection.
    pub breaks: u64,
}

/// Clones share it.
#[derive(Clone)]
pub struct Ensemble {
    pub timeline: Timeline,
    pub registry: Embedded,
    inner: Arc<Mutex<Inner>>,
    /// Items that their owners have given on.
    handed_over: Arc<Mutex<BTreeSet<Path>>>,
}

struct Inner {
    weather: Weather,
    timeout: Duration,
    sessions: BTreeMap<SessionId, Member>,
    /// Processes that nothing reaches, and that reach nothing.
    cut_off: BTreeSet<Process>,
    /// Processes whose server is cut off from the others, and has not noticed it.
    apart: BTreeMap<Process, Apart>,
    /// Processes that stand still.
    paused: BTreeSet<Process>,
    last: u64,
}

/// A session, on both sides of the network.
struct Member {
    process: Process,
    alive: Arc<AtomicBool>,
    password: Vec<u8>,
    timeout: Duration,
    // The servers' side.
    session: Arc<dyn Session>,
    over: bool,
    /// Since when they have heard nothing.
    silent_since: Option<Duration>,
    // The way.
    /// When the handshake of the connection was sent.
    greeted: Duration,
    /// Counts the connections.
    connection: u64,
    up: VecDeque<(Duration, Up)>,
    down: VecDeque<(Duration, Down)>,
    // The client's side.
    state: SessionState,
    states: Vec<watch::Sender<SessionState>>,
    asked: BTreeMap<u64, Box<dyn Ask>>,
    watches: BTreeMap<u64, Watched>,
}

/// What clients send.
#[derive(Clone, Copy)]
enum Up {
    Request(u64),
    Watch(u64),
}

/// What servers send.
enum Down {
    Answer(u64),
    News(u64, WatchEvent),
}

struct Watched {
    root: Path,
    wants_data: DataFilter,
    client: WatchSender,
    server: Option<Watch>,
}

impl Member {
    fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }

    fn set_state(&mut self, state: SessionState) {
        self.state = state;
        self.states.retain(|sender| !sender.is_closed());
        for sender in &self.states {
            sender.send_replace(state);
        }
    }
}

impl Ensemble {
    pub fn new(timeline: &Timeline, timeout: Duration) -> Self {
        let clock = timeline.clone();
        let registry = Embedded::in_memory_with_clock(Arc::new(move || clock.wall().as_millisecond()));
        let inner = Inner {
            weather: Weather { hop_max: 2_000, ..Weather::default() },
            timeout,
            sessions: BTreeMap::new(),
            cut_off: BTreeSet::new(),
            apart: BTreeMap::new(),
            paused: BTreeSet::new(),
            last: 0,
        };
        Self {
            timeline: timeline.clone(),
            registry,
            inner: Arc::new(Mutex::new(inner)),
            handed_over: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    pub fn set_weather(&self, weather: Weather) {
        self.lock().weather = weather;
    }

    /// Somebody who looks from outside, whom no weather concerns.
    pub fn outside(&self) -> Arc<dyn Session> {
        self.registry.open().now_or_never().unwrap().unwrap()
    }

    /// The sessions that the servers have of a process.
    pub fn sessions_of(&self, process: Process) -> Vec<SessionId> {
        let inner = self.lock();
        let ours = inner.sessions.iter().filter(|(_, member)| member.process == process && !member.over);
        ours.map(|(id, _)| *id).collect()
    }

    /// Whether an item's owner has given it on, rather than a leader divided all.
    pub fn was_handed_over(&self, item: &Path) -> bool {
        self.handed_over.lock().unwrap().contains(item)
    }

    /// Whether both sides believe that a session is well.
    pub fn is_good(&self, session: SessionId) -> bool {
        let inner = self.lock();
        inner.sessions.get(&session).is_some_and(|member| {
            member.state == SessionState::Connected && member.silent_since.is_none() && !member.over
        })
    }

    /// How long one way takes.
    fn hop(&self, weather: Weather) -> Duration {
        self.timeline.chance(|random| {
            if random.once_in(weather.spikes) {
                random.millis(1, 400)
            } else {
                random.micros(100, weather.hop_max)
            }
        })
    }

    /// A process is dead: its connections end, and what it has sent arrives or does not.
    pub fn bury(&self, process: Process) {
        for id in self.sessions_of(process) {
            self.break_connection(id, "crash");
        }
    }

    /// A process stands still, or goes on.
    pub fn set_paused(&self, process: Process, paused: bool) {
        if paused {
            self.lock().paused.insert(process);
            for id in self.sessions_of(process) {
                self.fall_silent(id);
            }
        } else {
            self.lock().paused.remove(&process);
            self.heard_from_all(process);
        }
    }

    /// Nothing reaches a process any more, or everything does again.
    pub fn set_cut_off(&self, process: Process, cut_off: bool) {
        if cut_off {
            self.lock().cut_off.insert(process);
            for id in self.sessions_of(process) {
                self.fall_silent(id);
                self.notice_later(id);
            }
        } else {
            self.lock().cut_off.remove(&process);
            self.heard_from_all(process);
        }
    }

    fn heard_from_all(&self, process: Process) {
        for id in self.sessions_of(process) {
            let connected = {
                let mut inner = self.lock();
                let parted = inner.cut_off.contains(&process) || inner.apart.contains_key(&process);
                let blocked = parted || inner.paused.contains(&process);
                let member = inner.sessions.get_mut(&id).unwrap();
                let connected = !blocked && member.state == SessionState::Connected;
                if connected {
                    member.silent_since = None;
                }
                connected
            };
            if connected {
                self.serve_up(id);
                self.serve_down(id);
            }
        }
    }
}
