//! A machine: a clock, a sidecar, an application.

use std::collections::{BTreeSet, VecDeque};
use std::net::Ipv4Addr;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use sidekeeper::coordination::job::contract::event::Event as Told;
use sidekeeper::coordination::job::contract::input::Input;
use sidekeeper::coordination::job::contract::reattach::Former;
use sidekeeper::coordination::job::frame::context::Identity;
use sidekeeper::coordination::job::participant::Participant;
use sidekeeper::coordination::job::picture::Picture;
use sidekeeper::coordination::time::Now;
use sidekeeper::job::{InstanceName, Item};
use sidekeeper::tree::WatchEvent;

use super::application::Application;
use super::client::Client;
use super::plan::Clock;
use super::{Micros, SECOND};

pub(super) struct Machine {
    pub(super) ip: Ipv4Addr,
    pub(super) name: Option<InstanceName>,
    pub(super) clock: Clock,
    pub(super) sidecar: Option<Sidecar>,
    pub(super) application: Application,
    /// Until when the sidecar's process is stopped.
    pub(super) stopped_until: Micros,
    /// Until when it reaches no server.
    pub(super) cut_off_until: Micros,
    /// How many sidecars and participants there have been.
    pub(super) lives: u32,
    /// How many sidecars.
    pub(super) sidecars: u32,
    /// Neither comes back.
    pub(super) retired: bool,
    /// The state file of a killed sidecar.
    pub(super) memory: Option<StateFile>,
}

/// The state file of a sidecar.
pub(super) struct StateFile {
    pub(super) session: usize,
    pub(super) identity: Identity,
    pub(super) former: Former,
}

/// A sidecar's process.
pub(super) struct Sidecar {
    pub(super) life: u32,
    pub(super) client: Client,
    pub(super) participant: Option<Seat>,
    /// Drained: it attaches nobody, and ends with its participant.
    pub(super) stopping: bool,
}

/// A participant, and the inputs that wait for it.
pub(super) struct Seat {
    pub(super) core: Participant,
    pub(super) identity: Identity,
    /// The session that it knows.
    pub(super) session: Option<usize>,
    pub(super) leased: Option<Duration>,
    /// Which stream it speaks on.
    pub(super) stream: Option<u32>,
    pub(super) picture: Picture,
    pub(super) nodes: Vec<WatchEvent>,
    pub(super) fleet: Vec<WatchEvent>,
    pub(super) results: Vec<Input>,
    /// Calls of the application, with when they come.
    pub(super) calls: VecDeque<(Micros, Input)>,
    pub(super) tickets: u64,
    /// The calls up to which no application reads an answer any more: the caller was killed.
    pub(super) unread: u64,
    pub(super) attached_at: Timestamp,
    /// When it looks next, for which an event is in the queue.
    pub(super) step_at: Option<Micros>,
    pub(super) alarm_at: Option<Micros>,
    /// The problems that it reports.
    pub(super) problems: usize,
    pub(super) was_registered: bool,
    /// An operator has deleted its node.
    pub(super) is_stopped: bool,
    /// The items of its last assignment.
    pub(super) told: BTreeSet<Item>,
    /// The tokens of the executions that it sent.
    pub(super) tokens: BTreeSet<i64>,
    /// When it said for the first time that it is registered.
    pub(super) registered_at: Option<Micros>,
}

/// A message to the application.
#[derive(Debug)]
pub(super) enum Word {
    Told(Told),
    /// The stream has ended.
    Closed(StreamEnd),
}

/// A message on its way.
#[derive(Debug)]
pub(super) struct Letter {
    /// When it arrives.
    pub(super) at: Micros,
    /// On which stream.
    pub(super) stream: u32,
    pub(super) word: Word,
}

/// How a stream ends, as the application sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// It breaks: the application may reattach, and its executions may go on for the job's grace.
    Broken,
    /// The sidecar ends it: the instance ends, and with it its executions.
    Ended,
    /// An operator has stopped the instance: the application does not come back for a while.
    Stopped,
}

/// When the world begins, by clocks that are right.
pub(super) fn begin() -> Timestamp {
    Timestamp::from_second(1_767_225_600).unwrap()
}

impl Machine {
    /// The time on this machine.
    pub(super) fn now(&self, now: Micros) -> Now {
        let offset = i64::try_from(now).unwrap() + self.clock.ahead;
        Now { wall: begin() + SignedDuration::from_micros(offset), mono: self.mono(now) }
    }

    pub(super) fn mono(&self, now: Micros) -> Duration {
        let now = i128::from(now);
        let rate = 1_000_000 + i128::from(self.clock.rate_ppm);
        Duration::from_micros(u64::try_from(now * rate / 1_000_000).unwrap())
    }

    /// When the monotonic clock shows that.
    pub(super) fn when_mono(&self, mono: Duration) -> Micros {
        let rate = 1_000_000 + i128::from(self.clock.rate_ppm);
        let micros = i128::try_from(mono.as_micros()).unwrap() * 1_000_000;
        // Rounded up, so that it is not before.
        u64::try_from((micros + rate - 1) / rate + 1).unwrap_or(Micros::MAX)
    }

    /// When the time of day is that.
    pub(super) fn when_wall(&self, wall: Timestamp) -> Micros {
        let micros = wall.duration_since(begin()).as_micros() - i128::from(self.clock.ahead);
        u64::try_from(micros.max(0)).unwrap_or(Micros::MAX).saturating_add(1)
    }

    pub(super) fn is_stopped(&self, now: Micros) -> bool {
        self.stopped_until > now
    }

    pub(super) fn seat(&mut self) -> Option<&mut Seat> {
        self.sidecar.as_mut()?.participant.as_mut()
    }
}

impl Seat {
    pub(super) fn new(core: Participant, identity: Identity, attached_at: Timestamp) -> Self {
        let picture = Picture::unknown(&identity.paths, &identity.own_paths);
        Self {
            core,
            identity,
            session: None,
            leased: None,
            stream: None,
            picture,
            nodes: Vec::new(),
            fleet: Vec::new(),
            results: Vec::new(),
            calls: VecDeque::new(),
            tickets: 0,
            unread: 0,
            attached_at,
            step_at: None,
            alarm_at: None,
            problems: 0,
            was_registered: false,
            is_stopped: false,
            told: BTreeSet::new(),
            tokens: BTreeSet::new(),
            registered_at: None,
        }
    }
}

/// The state of a session at its server.
pub(super) struct ServerSession {
    pub(super) handle: std::sync::Arc<dyn sidekeeper::registry::Session>,
    pub(super) alive: bool,
    /// When it was heard from last.
    pub(super) heard: Micros,
    /// How often a client has connected. Requests of an earlier connection do not take effect any more: ZooKeeper's
    /// leader refuses it, as the session has moved; and a server closes the earlier connection of a session first.
    pub(super) connections: u32,
    /// How long the servers wait beyond the timeout: they look in ticks.
    pub(super) slack: Micros,
}

/// A request that may take effect after its client has given it up.
#[derive(Default)]
pub(super) struct Stray {
    pub(super) session: usize,
    /// By which of the session's connections it came.
    pub(super) connection: u32,
    pub(super) transaction: sidekeeper::tree::Transaction,
}

/// How far ahead the earliest next alarm may be; a world does not run for longer.
pub(super) const FAR: Micros = 1_000_000 * SECOND;
