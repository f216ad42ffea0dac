//! The registry's servers and the network before them: an embedded registry. The requests of a session arrive late and in
//! order, or are lost; answers and changes share one queue, as in ZooKeeper; and a session ends when the servers have
//! heard nothing from it for its timeout, whether its client knows that or not.

mod client;
mod connection;
mod partitioned_server;
mod queue;

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

pub use self::client::ClientRegistry;
use self::partitioned_server::PartitionedServer;
use self::queue::Ask;

/// How long a client waits for the answer to a request.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
/// How long a client waits for a connection.
pub const CONNECTION_TIMEOUT: Duration = Duration::from_secs(2);

/// The faults and delays of the network.
#[derive(Debug, Clone, Copy, Default)]
pub struct Network {
    /// The longest delay in one direction without faults, in microseconds.
    pub hop_max: u64,
    /// One request or answer in so many takes up to 400 ms.
    pub spikes: u64,
    /// One notification in so many takes up to a second; later messages wait for it.
    pub late_changes: u64,
    /// One request in so many breaks the connection.
    pub breaks: u64,
}

/// Clones share the servers and the network.
#[derive(Clone)]
pub struct Ensemble {
    pub timeline: Timeline,
    pub registry: Embedded,
    inner: Arc<Mutex<Inner>>,
    /// Items whose newest owner got them by a handoff.
    handed_over: Arc<Mutex<BTreeSet<Path>>>,
}

struct Inner {
    network: Network,
    timeout: Duration,
    sessions: BTreeMap<SessionId, Member>,
    /// Processes without a connection to any server.
    cut_off: BTreeSet<Process>,
    /// Processes whose server is partitioned, and has not noticed it.
    partitioned: BTreeMap<Process, PartitionedServer>,
    /// Paused processes.
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
    /// The time since when the servers have heard nothing.
    silent_since: Option<Duration>,
    // The connection.
    /// When the handshake of the connection was sent.
    greeted: Duration,
    /// The number of connections so far.
    connection: u64,
    up: VecDeque<(Duration, Up)>,
    down: VecDeque<(Duration, Down)>,
    // The client's side.
    state: SessionState,
    states: Vec<watch::Sender<SessionState>>,
    asked: BTreeMap<u64, Box<dyn Ask>>,
    watches: BTreeMap<u64, Watched>,
}

/// The messages of clients.
#[derive(Clone, Copy)]
enum Up {
    Request(u64),
    Watch(u64),
}

/// The messages of servers.
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
            network: Network { hop_max: 2_000, ..Network::default() },
            timeout,
            sessions: BTreeMap::new(),
            cut_off: BTreeSet::new(),
            partitioned: BTreeMap::new(),
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

    pub fn set_network(&self, network: Network) {
        self.lock().network = network;
    }

    /// A session without delays and faults, for the checks.
    pub fn outside(&self) -> Arc<dyn Session> {
        self.registry.open().now_or_never().unwrap().unwrap()
    }

    /// The open sessions of a process on the servers.
    pub fn sessions_of(&self, process: Process) -> Vec<SessionId> {
        let inner = self.lock();
        let open = inner.sessions.iter().filter(|(_, member)| member.process == process && !member.over);
        open.map(|(id, _)| *id).collect()
    }

    /// Whether the owner of an item got it by a handoff, and not by a resharding of the leader.
    pub fn was_handed_over(&self, item: &Path) -> bool {
        self.handed_over.lock().unwrap().contains(item)
    }

    /// Whether a session is connected and open, on both sides.
    pub fn is_good(&self, session: SessionId) -> bool {
        let inner = self.lock();
        inner.sessions.get(&session).is_some_and(|member| {
            member.state == SessionState::Connected && member.silent_since.is_none() && !member.over
        })
    }

    /// The delay of one message.
    fn hop(&self, network: Network) -> Duration {
        self.timeline.chance(|random| {
            if random.once_in(network.spikes) {
                random.millis(1, 400)
            } else {
                random.micros(100, network.hop_max)
            }
        })
    }

    /// A process is dead: its connections break; requests in flight take effect or not.
    pub fn break_connections_of(&self, process: Process) {
        for id in self.sessions_of(process) {
            self.break_connection(id, "crash");
        }
    }

    /// Pauses or resumes a process.
    pub fn set_paused(&self, process: Process, paused: bool) {
        if paused {
            self.lock().paused.insert(process);
            for id in self.sessions_of(process) {
                self.fall_silent(id);
            }
        } else {
            self.lock().paused.remove(&process);
            self.resume_contact(process);
        }
    }

    /// Cuts a process off from all servers, or reconnects it.
    pub fn set_cut_off(&self, process: Process, cut_off: bool) {
        if cut_off {
            self.lock().cut_off.insert(process);
            for id in self.sessions_of(process) {
                self.fall_silent(id);
                self.notice_later(id);
            }
        } else {
            self.lock().cut_off.remove(&process);
            self.resume_contact(process);
        }
    }

    fn resume_contact(&self, process: Process) {
        for id in self.sessions_of(process) {
            let connected = {
                let mut inner = self.lock();
                let unreachable =
                    inner.cut_off.contains(&process) || inner.partitioned.contains_key(&process);
                let blocked = unreachable || inner.paused.contains(&process);
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
