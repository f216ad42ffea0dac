//! A simulated world of one sticky lock: a server with the lock's nodes, sidecars with sessions, candidates, and applications.
//!
//! Each sidecar has one connection. Requests reach the server in the order of their sending, and answers and the changes of the
//! watch come back in one order. A connection that breaks takes its requests along: some have taken effect, one may take
//! effect after the next connection is made. The clock stands still unless the world moves it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use sidekeeper::coordination::sticky::candidate::{Candidate, Wanted};
use sidekeeper::coordination::sticky::contract::{Answer, Call, Effect, Event, Input, Leases};
use sidekeeper::coordination::time::Now;
use sidekeeper::extension::sticky::{OwnerNode, Record, StickyPaths};
use sidekeeper::job::FencingToken;
use sidekeeper::tree::{
    Error, Node, NodeChange, NodeKind, Operation, Path, SessionId, Stat, Transaction, WatchEvent, Zxid,
};
use uuid::Uuid;

use crate::random::Random;

const TIMEOUT: Duration = Duration::from_secs(6);
const MARGIN: Duration = Duration::from_millis(1_200);

/// A broken promise, in words.
pub type Violation = String;

type Nodes = BTreeMap<Path, (Arc<[u8]>, Stat)>;

/// The owner's node that was deleted last.
#[derive(Debug, Clone)]
struct Vanished {
    at: Duration,
    record: Record,
}

#[derive(Debug, Default)]
struct Server {
    nodes: Nodes,
    last_zxid: i64,
    last_session: i64,
    next_number: u32,
    /// When the server ends each session, unless it hears from it before.
    sessions: BTreeMap<SessionId, Duration>,
}

#[derive(Debug)]
struct Sidecar {
    session: Option<SessionId>,
    is_up: bool,
    /// The connection may be restored then.
    down_until: Duration,
    /// The process is stopped until then.
    stopped_until: Duration,
    lease: Duration,
    requests: VecDeque<(usize, Effect)>,
    answers: VecDeque<(usize, Input)>,
    /// A request of the former connection, which takes effect before the request with this number of the present one.
    late: Option<(Effect, u32)>,
    /// Sessions that were given up, and when they are closed.
    closing: Vec<(SessionId, Duration)>,
}

/// The belief of an application about its ownership.
#[derive(Debug, Clone)]
struct Owned {
    token: FencingToken,
    leases: Leases,
    run: Option<String>,
}

struct Stand {
    sidecar: usize,
    instance: String,
    id: Uuid,
    candidate: Candidate,
    known_session: Option<SessionId>,
    known_up: bool,
    owned: Option<Owned>,
    /// Whether its application counts the lease by itself. Otherwise it relies on the sidecar's word.
    counts: bool,
    /// Its owner's node that an operator has deleted last. It may hear of that grant only later.
    deleted: Option<Zxid>,
    /// The runs that its application was told of by the last `Acquired`.
    told: Vec<i64>,
    calls: BTreeSet<u64>,
    is_trying: bool,
    /// The call by which its application has resigned: it does not act until the answer.
    resigning: Option<u64>,
    leave_at: Option<Duration>,
    has_left: bool,
    is_over: bool,
}

/// How a schedule went.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    grants: usize,
    faults: usize,
    losses: usize,
    runs: usize,
    continued: usize,
    interrupted: usize,
    busy: usize,
}

impl Outcome {
    pub fn add(&mut self, other: &Self) {
        self.grants += other.grants;
        self.faults += other.faults;
        self.losses += other.losses;
        self.runs += other.runs;
        self.continued += other.continued;
        self.interrupted += other.interrupted;
        self.busy += other.busy;
    }

    pub fn counts(&self) -> [usize; 7] {
        [self.grants, self.faults, self.losses, self.runs, self.continued, self.interrupted, self.busy]
    }
}

pub struct World {
    random: Random,
    now: Duration,
    server: Server,
    sidecars: Vec<Sidecar>,
    stands: Vec<Stand>,
    lock: StickyPaths,
    next_call: u64,
    highest: i64,
    vanished: Option<Vanished>,
    /// The tokens of runs that were interrupted, and that no owner has resolved.
    interrupted: BTreeSet<i64>,
    /// The runs that have begun and that their applications have not left.
    open: BTreeSet<String>,
    /// The first broken promise that no caller has seen.
    violation: Option<Violation>,
    faults: bool,
    pub outcome: Outcome,
}

impl World {
    /// A world of a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::scattered(seed);
        let sidecar = || Sidecar {
            session: None,
            is_up: false,
            down_until: Duration::ZERO,
            stopped_until: Duration::ZERO,
            lease: Duration::ZERO,
            requests: VecDeque::new(),
            answers: VecDeque::new(),
            late: None,
            closing: Vec::new(),
        };
        let sidecars = (0..=random.below(3)).map(|_| sidecar()).collect();
        Self {
            random,
            now: Duration::from_secs(1),
            server: Server::default(),
            sidecars,
            stands: Vec::new(),
            lock: StickyPaths::named(&Path::parse("/sticky").unwrap(), "bill").unwrap(),
            next_call: 0,
            highest: 0,
            vanished: None,
            interrupted: BTreeSet::new(),
            open: BTreeSet::new(),
            violation: None,
            faults: true,
            outcome: Outcome::default(),
        }
    }

    /// Runs a schedule full of faults, then one without, until each application has had its run and has left.
    pub fn run(&mut self, steps: usize) -> Result<(), Violation> {
        for _ in 0..steps {
            self.act()?;
        }
        self.faults = false;
        for sidecar in &mut self.sidecars {
            (sidecar.down_until, sidecar.stopped_until) = (self.now, self.now);
        }
        self.pass_time();
        self.wake()?;
        for _ in 0..60_000 {
            if self.stands.iter().all(|stand| stand.is_over) && self.is_empty() {
                return Ok(());
            }
            self.act()?;
        }
        let waiting = self.stands.iter().filter(|stand| !stand.is_over);
        let waiting: Vec<_> = waiting.map(|stand| (&stand.owned, &stand.calls, &stand.candidate)).collect();
        let nodes: Vec<_> = self
            .server
            .nodes
            .iter()
            .map(|(path, (data, stat))| (path, String::from_utf8_lossy(data), stat.ephemeral_owner))
            .collect();
        Err(format!("a candidate waits without a cause, or leaves a node: {waiting:#?} {nodes:#?}"))
    }

    /// Whether no candidate has left a node.
    fn is_empty(&self) -> bool {
        self.server.nodes.values().all(|(_, stat)| stat.ephemeral_owner.is_none())
    }

    fn act(&mut self) -> Result<(), Violation> {
        let index = usize::try_from(self.random.below(u64::try_from(self.sidecars.len()).unwrap())).unwrap();
        match self.random.below(20) {
            0 if self.faults => self.stand(index),
            1 => self.use_lock(),
            2 if self.faults => self.fault(index),
            3..=8 => self.serve(index),
            9..=14 => self.deliver(index)?,
            _ => {
                let pause = if self.random.once_in(8) { 400 } else { 20 };
                self.now += Duration::from_millis(self.random.below(pause) + 1);
                self.pass_time();
                self.wake()?;
            }
        }
        self.check()
    }

    /// An application comes.
    fn stand(&mut self, sidecar: usize) {
        let live = || self.stands.iter().filter(|stand| !stand.is_over);
        if live().count() >= 5 {
            return;
        }
        // Sometimes the name of one that was here before, or still is.
        let instance = format!("m{}", self.random.below(5));
        let taken = live().any(|stand| stand.sidecar == sidecar && stand.instance == instance);
        if taken {
            return;
        }
        let id = Uuid::from_u128(u128::from(self.random.next()) << 64 | 1);
        let candidate = Candidate::new(Wanted {
            lock: self.lock.clone(),
            instance: instance.clone(),
            stand: id,
            grace: Duration::from_millis(1_000 * self.random.below(10)),
            queue_max: 100,
        });
        self.stands.push(Stand {
            sidecar,
            instance,
            id,
            candidate,
            known_session: None,
            known_up: true,
            owned: None,
            counts: self.random.once_in(2),
            deleted: None,
            told: Vec::new(),
            calls: BTreeSet::new(),
            is_trying: false,
            resigning: None,
            leave_at: None,
            has_left: false,
            is_over: false,
        });
        self.step(self.stands.len() - 1, Vec::new());
    }

    /// An application uses the lock.
    fn use_lock(&mut self) {
        if self.stands.is_empty() {
            return;
        }
        let index = usize::try_from(self.random.below(u64::try_from(self.stands.len()).unwrap())).unwrap();
        let now = self.now;
        let stand = &mut self.stands[index];
        if stand.is_over || stand.has_left || now < self.sidecars[stand.sidecar].stopped_until {
            return;
        }
        let inside = stand.owned.as_ref().is_some_and(|owned| owned.run.is_some());
        let call = match self.random.below(16) {
            // Sometimes inside a run. When the faults have ended, everybody leaves at last.
            0 => {
                stand.has_left = true;
                stand.owned = None;
                return self.step(index, vec![Input::Left]);
            }
            1 if stand.owned.is_some() => {
                let token = stand.told.first().copied().map(FencingToken);
                let Some(token) = token else { return };
                Call::Resolve { token }
            }
            2 if stand.owned.is_some() && self.random.once_in(3) => {
                let run = stand.owned.iter_mut().find_map(|owned| owned.run.take());
                self.open.retain(|open| Some(open) != run.as_ref());
                stand.resigning = Some(self.next_call + 1);
                Call::Resign
            }
            3 if inside => Call::Checkpoint { data: vec![7; 10] },
            4..=10 if inside => {
                if stand.leave_at.is_some_and(|at| now < at) {
                    return;
                }
                let run = stand.owned.iter_mut().find_map(|owned| owned.run.take());
                self.open.retain(|open| Some(open) != run.as_ref());
                Call::Leave { run_id: String::new() }
            }
            _ if !stand.is_trying && !inside => {
                stand.is_trying = true;
                let wait = Duration::from_millis(self.random.below(6_000));
                Call::TryRun { wait: if self.random.once_in(2) { Duration::ZERO } else { wait } }
            }
            _ => return,
        };
        self.next_call += 1;
        self.stands[index].calls.insert(self.next_call);
        let mut inputs = vec![Input::Asked(self.next_call, call.clone())];
        if matches!(call, Call::TryRun { .. }) && self.random.once_in(20) {
            // The caller has gone.
            self.stands[index].calls.remove(&self.next_call);
            inputs.push(Input::Unheard(self.next_call));
            self.stands[index].is_trying = false;
        }
        self.step(index, inputs);
    }

    fn is_stopped(&self, sidecar: usize) -> bool {
        self.now < self.sidecars[sidecar].stopped_until
    }

    fn fault(&mut self, index: usize) {
        if !self.random.once_in(6) {
            return;
        }
        self.outcome.faults += 1;
        let long = Duration::from_millis(self.random.below(18_000));
        let short = Duration::from_millis(self.random.below(300));
        let lasts = if self.random.once_in(3) { long } else { short };
        match self.random.below(8) {
            0..4 => {
                self.sidecars[index].down_until = self.now + lasts;
                self.cut(index);
            }
            4 | 5 => {
                // A stop that comes during another one does not end that one: nothing would be done at its end.
                let stopped = &mut self.sidecars[index].stopped_until;
                *stopped = (*stopped).max(self.now + lasts);
            }
            6 => {
                let queue = self.lock.queue().clone();
                let first = self.server.nodes.keys().find(|path| path.parent().as_ref() == Some(&queue));
                if let Some(path) = first.cloned() {
                    self.delete(vec![path]);
                }
            }
            _ => {
                let owner = self.owner_stand();
                if let Some(index) = owner.filter(|_| self.random.once_in(3)) {
                    let owner = self.lock.owner();
                    self.stands[index].deleted = self.server.nodes.get(&owner).map(|(_, stat)| stat.created);
                    self.delete(vec![owner]);
                }
            }
        }
    }

    /// The stand that owns the lock at the server.
    fn owner_stand(&self) -> Option<usize> {
        let (data, _) = self.server.nodes.get(&self.lock.owner())?;
        let owner = OwnerNode::read(data)?;
        self.stands.iter().position(|stand| stand.id == owner.stand)
    }

    /// The connection breaks.
    fn cut(&mut self, index: usize) {
        if !self.sidecars[index].is_up {
            return;
        }
        let lost: Vec<_> = std::mem::take(&mut self.sidecars[index].requests).into();
        let had_effect = usize::try_from(self.random.below(u64::try_from(lost.len()).unwrap() + 1)).unwrap();
        for (place, (_, effect)) in lost.iter().enumerate() {
            if place < had_effect {
                let _ = self.perform(index, effect);
            } else if place == had_effect && self.random.once_in(2) {
                self.sidecars[index].late = Some((effect.clone(), 1));
            }
        }
        let unknown = || Error::OutcomeUnknown("the connection broke".to_owned());
        for (stand, effect) in lost {
            self.sidecars[index].answers.extend(answer(&effect, Err(unknown())).map(|input| (stand, input)));
        }
        self.sidecars[index].is_up = false;
        self.tell_all(index);
    }

    /// The tasks of a sidecar see its session's state.
    fn tell_all(&mut self, sidecar: usize) {
        for stand in 0..self.stands.len() {
            if self.stands[stand].sidecar == sidecar
                && !self.stands[stand].is_over
                && !self.is_stopped(sidecar)
            {
                self.step(stand, Vec::new());
            }
        }
    }

    /// The changes of the session since a task has looked: by the last state, without states in between.
    fn session_inputs(&mut self, index: usize) -> Vec<Input> {
        let Sidecar { session, is_up, .. } = self.sidecars[self.stands[index].sidecar];
        let stand = &mut self.stands[index];
        let mut inputs = Vec::new();
        if stand.known_session != session {
            inputs.extend(stand.known_session.map(|_| Input::SessionLost));
            if let Some(session) = session {
                inputs.push(Input::SessionOpened(session));
                // The watch begins.
                let snapshot = self.snapshot();
                let stand = &mut self.stands[index];
                self.sidecars[stand.sidecar].answers.push_back((index, Input::Seen(snapshot)));
            }
            let stand = &mut self.stands[index];
            (stand.known_session, stand.known_up) = (session, true);
        }
        let stand = &mut self.stands[index];
        if session.is_some() && stand.known_up != is_up {
            stand.known_up = is_up;
            inputs.push(if is_up { Input::SessionResumed } else { Input::SessionSuspended });
        }
        inputs
    }

    fn snapshot(&self) -> WatchEvent {
        let nodes = self.server.nodes.iter();
        let nodes =
            nodes.map(|(path, (data, stat))| Node { path: path.clone(), data: data.clone(), stat: *stat });
        WatchEvent::Snapshot(nodes.collect())
    }

    /// The server handles the next request of a sidecar.
    fn serve(&mut self, index: usize) {
        if !self.sidecars[index].is_up {
            return;
        }
        let Some((stand, effect)) = self.sidecars[index].requests.pop_front() else { return };
        if let Some((late, after)) = self.sidecars[index].late.take() {
            match after {
                0 => {
                    let _ = self.perform(index, &late);
                }
                more => self.sidecars[index].late = Some((late, more - 1)),
            }
        }
        let result = self.perform(index, &effect);
        self.sidecars[index].answers.extend(answer(&effect, result).map(|input| (stand, input)));
    }

    /// Carries a request out.
    fn perform(&mut self, index: usize, effect: &Effect) -> Result<(), Error> {
        let session =
            self.sidecars[index].session.filter(|session| self.server.sessions.contains_key(session));
        let session = session.ok_or(Error::SessionLost)?;
        match effect {
            Effect::CreateParents => {
                let parents = [self.lock.root().clone(), self.lock.queue().clone()];
                let missing = parents.into_iter().filter(|path| !self.server.nodes.contains_key(path));
                let steps = missing.map(|path| Operation::create(path, NodeKind::Persistent, b"")).collect();
                self.commit(session, steps)
            }
            Effect::Commit(_, transaction) => self.commit(session, transaction.clone()),
            Effect::Notify(_) | Effect::Answer(..) | Effect::GiveUpSession => Ok(()),
        }
    }

    fn commit(&mut self, session: SessionId, transaction: Transaction) -> Result<(), Error> {
        let before = self.server.nodes.clone();
        let zxid = Zxid(self.server.last_zxid + 1);
        let mut touched = Vec::new();
        let result = transaction.into_iter().try_for_each(|operation| {
            touched.push(self.apply(session, zxid, operation)?);
            Ok(())
        });
        if let Err(error) = result {
            self.server.nodes = before;
            return Err(error);
        }
        self.server.last_zxid += 1;
        let touched: BTreeSet<_> = touched.into_iter().flatten().collect();
        self.changed(&before, touched);
        Ok(())
    }

    /// Applies one step; returns the changed path.
    fn apply(&mut self, session: SessionId, zxid: Zxid, operation: Operation) -> Result<Option<Path>, Error> {
        let nodes = &mut self.server.nodes;
        let modified_ms = i64::try_from(self.now.as_millis()).unwrap();
        match operation {
            Operation::Create { path, data, kind } => {
                let mut path = path;
                if kind == NodeKind::EphemeralSequential {
                    path = path.parent().unwrap().child(&format!(
                        "{}{:010}",
                        path.name(),
                        self.server.next_number
                    ));
                    self.server.next_number += 1;
                }
                if path
                    .parent()
                    .is_some_and(|parent| parent.is_within(self.lock.root()) && !nodes.contains_key(&parent))
                {
                    return Err(Error::NoNode(path));
                }
                if nodes.contains_key(&path) {
                    return Err(Error::NodeExists(path));
                }
                let ephemeral_owner = (kind != NodeKind::Persistent).then_some(session);
                let stat = Stat { created: zxid, modified: zxid, version: 0, ephemeral_owner, modified_ms };
                nodes.insert(path.clone(), (data, stat));
                Ok(Some(path))
            }
            Operation::Set { path, data, version } => {
                let node = nodes.get_mut(&path).ok_or_else(|| Error::NoNode(path.clone()))?;
                if version.is_some_and(|version| version != node.1.version) {
                    return Err(Error::BadVersion(path));
                }
                (node.0, node.1.modified, node.1.modified_ms) = (data, zxid, modified_ms);
                node.1.version += 1;
                Ok(Some(path))
            }
            Operation::Delete { path, .. } => match nodes.remove(&path) {
                Some(_) => Ok(Some(path)),
                None => Err(Error::NoNode(path)),
            },
            Operation::Check { path, .. } => match nodes.contains_key(&path) {
                true => Ok(None),
                false => Err(Error::NoNode(path)),
            },
        }
    }

    /// Nodes are deleted without a transaction of a sidecar.
    fn delete(&mut self, paths: Vec<Path>) {
        let before = self.server.nodes.clone();
        self.server.last_zxid += 1;
        self.server.nodes.retain(|path, _| !paths.contains(path));
        self.changed(&before, paths.into_iter().collect());
    }

    fn record(&self, nodes: &Nodes) -> Option<Record> {
        let (data, stat) = nodes.get(&self.lock.record())?;
        Some(Record::read(data, stat).unwrap())
    }

    /// Watches fire, and the promises about the nodes are checked.
    fn changed(&mut self, before: &Nodes, touched: BTreeSet<Path>) {
        let changes: Vec<_> = touched
            .into_iter()
            .map(|path| match self.server.nodes.get(&path) {
                Some(content) => NodeChange::Put { path, content: Some(content.clone()) },
                None => NodeChange::Removed { path },
            })
            .collect();
        for (index, stand) in self.stands.iter().enumerate() {
            let sidecar = &mut self.sidecars[stand.sidecar];
            if !stand.is_over && sidecar.is_up && stand.known_session == sidecar.session {
                sidecar.answers.push_back((index, Input::Seen(WatchEvent::Changes(changes.clone()))));
            }
        }
        let result = self.check_change(before);
        self.violation = self.violation.take().or(result.err());
    }

    fn check_change(&mut self, before: &Nodes) -> Result<(), Violation> {
        let owner = self.lock.owner();
        let created = |nodes: &Nodes| nodes.get(&owner).map(|(_, stat)| stat.created);
        let (was, is) = (created(before), created(&self.server.nodes));
        let (old, new) = (self.record(before), self.record(&self.server.nodes));
        if let Some(is) = is.filter(|is| Some(*is) != was) {
            let new = new.clone().ok_or("an owner without a record")?;
            if new.token != is.0 || new.token <= self.highest {
                return Err(format!("token {} after {}", new.token, self.highest));
            }
            self.highest = new.token;
            if let Some(Vanished { at, record }) = self.vanished.take().filter(|_| was.is_none()) {
                let is_last = record.stand == new.stand;
                let is_restarted = record.ended && record.owner == new.owner;
                let is_early = self.now < at + record.grace();
                if is_early && !record.resigned && !is_last && !is_restarted {
                    return Err(format!(
                        "{new:?} owns within the grace of {record:?}, vanished at {at:?}, now {:?}",
                        self.now
                    ));
                }
            }
        }
        if was.is_some() && created(&self.server.nodes).is_none() {
            self.vanished = new.clone().map(|record| Vanished { at: self.now, record });
        }
        // A run that the record had, and that its application has not left.
        if let (Some(old), Some(new)) = (&old, &new)
            && old.run.is_some()
            && old.run != new.run
        {
            let was_open = old.run.as_ref().is_some_and(|run| self.open.remove(run));
            // An instance that resigns ends its run, also one that begins in the same moment.
            if was_open && !new.resigned {
                self.interrupted.insert(old.token);
                self.outcome.interrupted += 1;
            }
        }
        if let (Some(old), Some(new)) = (&old, &new) {
            // Only an owner resolves runs.
            let gone = old.unfinished.iter().filter(|run| !new.unfinished.contains(run));
            for run in gone {
                if old.stand != new.stand {
                    return Err(format!("the interrupted run {run:?} is forgotten"));
                }
                self.interrupted.remove(&run.token);
            }
            let is_kept = |token: &i64| new.unfinished.iter().any(|run| run.token == *token);
            if let Some(token) = self.interrupted.iter().find(|token| !is_kept(token)) {
                return Err(format!("the interrupted run {token} is not in {new:?}"));
            }
        }
        Ok(())
    }

    /// A sidecar takes its next answer, or several at once, as a task does.
    fn deliver(&mut self, index: usize) -> Result<(), Violation> {
        if self.is_stopped(index) {
            return Ok(());
        }
        let all = self.random.once_in(4);
        while let Some((stand, input)) = self.sidecars[index].answers.pop_front() {
            if !self.stands[stand].is_over {
                self.step(stand, vec![input]);
            }
            if !all {
                break;
            }
        }
        self.check()
    }

    /// Ends sessions and restores connections whose time has come.
    fn pass_time(&mut self) {
        let now = self.now;
        for index in 0..self.sidecars.len() {
            let closing = std::mem::take(&mut self.sidecars[index].closing);
            for (session, at) in closing {
                if now >= at && self.sidecars[index].is_up && !self.is_stopped(index) {
                    self.expire(session);
                } else {
                    self.sidecars[index].closing.push((session, at));
                }
            }
            if self.is_stopped(index) {
                continue;
            }
            if !self.sidecars[index].is_up && now >= self.sidecars[index].down_until {
                self.connect(index);
            }
            let session = self.sidecars[index].session;
            if self.sidecars[index].is_up
                && session.is_some_and(|session| !self.server.sessions.contains_key(&session))
            {
                self.replace_session(index);
            }
            // The lease is proven by writes that are answered at once here.
            if let (Some(session), true) = (self.sidecars[index].session, self.sidecars[index].is_up)
                && self.server.sessions.contains_key(&session)
            {
                self.server.sessions.insert(session, now + TIMEOUT);
                self.sidecars[index].lease = now + TIMEOUT - MARGIN;
            }
        }
        let over: Vec<_> =
            self.server.sessions.iter().filter(|(_, at)| now >= **at).map(|(session, _)| *session).collect();
        for session in over {
            self.expire(session);
        }
    }

    /// The server ends a session.
    fn expire(&mut self, session: SessionId) {
        self.server.sessions.remove(&session);
        let its = self.server.nodes.iter().filter(|(_, (_, stat))| stat.ephemeral_owner == Some(session));
        let its: Vec<_> = its.map(|(path, _)| path.clone()).collect();
        if !its.is_empty() {
            self.delete(its);
        }
    }

    fn connect(&mut self, index: usize) {
        let session = self.sidecars[index].session;
        self.sidecars[index].is_up = true;
        if session.is_some_and(|session| self.server.sessions.contains_key(&session)) {
            self.tell_all(index);
            // The watch begins again with all nodes.
            for stand in 0..self.stands.len() {
                let its = &self.stands[stand];
                if its.sidecar == index && !its.is_over && its.known_session == session {
                    let snapshot = self.snapshot();
                    self.sidecars[index].answers.push_back((stand, Input::Seen(snapshot)));
                }
            }
            return;
        }
        self.replace_session(index);
    }

    /// The session is lost, and another one is opened.
    fn replace_session(&mut self, index: usize) {
        let had = self.sidecars[index].session.take().is_some();
        self.forget_in_flight(index);
        if had {
            self.tell_all(index);
        }
        self.server.last_session += 1;
        let session = SessionId(self.server.last_session);
        self.server.sessions.insert(session, self.now + TIMEOUT);
        (self.sidecars[index].session, self.sidecars[index].lease) =
            (Some(session), self.now + TIMEOUT - MARGIN);
        self.tell_all(index);
    }

    fn forget_in_flight(&mut self, index: usize) {
        let sidecar = &mut self.sidecars[index];
        sidecar.requests.clear();
        sidecar.answers.clear();
        sidecar.late = None;
    }

    /// Candidates whose alarm has rung.
    fn wake(&mut self) -> Result<(), Violation> {
        for index in 0..self.stands.len() {
            let stand = &self.stands[index];
            if !stand.is_over && !self.is_stopped(stand.sidecar) {
                self.step(index, Vec::new());
            }
        }
        self.check()
    }

    fn step(&mut self, index: usize, more: Vec<Input>) {
        let sidecar = self.stands[index].sidecar;
        let mut inputs = self.session_inputs(index);
        inputs.extend(more);
        if self.sidecars[sidecar].session.is_some() {
            let opened = inputs.iter().position(|input| matches!(input, Input::SessionOpened(_)));
            inputs
                .insert(opened.map_or(0, |at| at + 1), Input::Leased { until: self.sidecars[sidecar].lease });
        }
        let now = Now { wall: Timestamp::UNIX_EPOCH, mono: self.now };
        let effects = self.stands[index].candidate.step(now, inputs);
        for effect in effects {
            self.take_effect(index, effect);
        }
        if self.stands[index].candidate.end().is_some() {
            let stand = &mut self.stands[index];
            (stand.is_over, stand.owned) = (true, None);
            if !stand.calls.is_empty() {
                let left = format!("a call of a candidate that has ended has no answer: {:?}", stand.calls);
                self.violation = self.violation.take().or(Some(left));
            }
        }
    }

    fn take_effect(&mut self, index: usize, effect: Effect) {
        let sidecar = self.stands[index].sidecar;
        match effect {
            Effect::Notify(event) => self.hear(index, event),
            Effect::Answer(call, answer) => self.hear_answer(index, call, answer),
            Effect::GiveUpSession => {
                if let Some(session) = self.sidecars[sidecar].session.take() {
                    self.sidecars[sidecar].closing.push((session, self.now + MARGIN));
                    self.forget_in_flight(sidecar);
                    self.sidecars[sidecar].is_up = false;
                    self.sidecars[sidecar].down_until = self.sidecars[sidecar].down_until.max(self.now);
                    self.tell_all(sidecar);
                }
            }
            effect if self.sidecars[sidecar].session.is_none() => drop(effect),
            effect if !self.sidecars[sidecar].is_up => {
                if let Some(input) = answer(&effect, Err(Error::Suspended)) {
                    self.sidecars[sidecar].answers.push_back((index, input));
                }
            }
            effect => self.sidecars[sidecar].requests.push_back((index, effect)),
        }
    }

    fn hear_answer(&mut self, index: usize, call: u64, answer: Answer) {
        let held = Duration::from_millis(self.random.below(12_000));
        let now = self.now;
        let stand = &mut self.stands[index];
        if !stand.calls.remove(&call) {
            // Its caller has gone.
            if matches!(answer, Answer::Entered { .. }) {
                self.step(index, vec![Input::Unheard(call)]);
            }
            return;
        }
        match answer {
            Answer::Entered { token, run_id, leases } => {
                self.outcome.runs += 1;
                stand.is_trying = false;
                stand.resigning = stand.resigning.filter(|resigning| stand.calls.contains(resigning));
                if stand.owned.as_ref().is_none_or(|owned| owned.token != token) && !stand.has_left {
                    let what =
                        format!("a run of {token:?} begins, and its application has {:?}", stand.owned);
                    self.violation = self.violation.take().or(Some(what));
                } else if let Some(owned) = &mut stand.owned {
                    self.open.insert(run_id.clone());
                    (owned.run, owned.leases) = (Some(run_id), leases);
                    stand.leave_at = Some(now + held);
                }
            }
            Answer::Busy(_) => {
                self.outcome.busy += 1;
                stand.is_trying = false;
            }
            Answer::Refused(_) => stand.is_trying = false,
            Answer::Done => {}
        }
    }

    /// An application hears an event.
    fn hear(&mut self, index: usize, event: Event) {
        let interrupted = self.interrupted.clone();
        let is_owner = self.owner_stand() == Some(index);
        let stand = &mut self.stands[index];
        match event {
            Event::Acquired { token, is_continued, unfinished, leases, .. } => {
                self.outcome.grants += 1;
                self.outcome.continued += usize::from(is_continued);
                stand.resigning = stand.resigning.filter(|resigning| stand.calls.contains(resigning));
                stand.told = unfinished.iter().map(|run| run.token).collect();
                let run = stand.owned.as_ref().and_then(|owned| owned.run.clone()).filter(|_| is_continued);
                if !stand.has_left {
                    stand.owned = Some(Owned { token, leases, run });
                }
                let is_new = token.0 == self.highest;
                if let Some(run) =
                    interrupted.iter().find(|run| is_owner && is_new && !stand.told.contains(run))
                {
                    let untold = format!("the owner {token:?} does not hear of the interrupted run {run}");
                    self.violation = self.violation.take().or(Some(untold));
                }
            }
            Event::LeaseRenewed(leases) | Event::Suspended(leases) | Event::Resumed(leases) => {
                stand.owned.iter_mut().for_each(|owned| owned.leases = leases);
            }
            Event::Lost { .. } => {
                self.outcome.losses += 1;
                stand.owned = None;
            }
            Event::State(_) | Event::Draining { .. } => {}
        }
    }

    /// The promises.
    fn check(&mut self) -> Result<(), Violation> {
        if let Some(violation) = self.violation.take() {
            return Err(violation);
        }
        let now = self.now;
        let acts = |stand: &&Stand| {
            let Some(owned) = &stand.owned else { return false };
            let end = if owned.run.is_some() { owned.leases.run } else { owned.leases.owned };
            let is_over = end.is_some_and(|end| now >= end);
            // A stopped sidecar tells its application nothing.
            let counts = stand.counts || self.is_stopped(stand.sidecar);
            let is_deleted = stand.deleted.is_some_and(|deleted| FencingToken::from(deleted) == owned.token);
            !(is_deleted || stand.resigning.is_some() || is_over && counts)
        };
        let acting: Vec<_> =
            self.stands.iter().filter(acts).map(|stand| (&stand.instance, &stand.owned)).collect();
        if acting.len() > 1 {
            return Err(format!("two instances act: {acting:?}, now {now:?}"));
        }
        Ok(())
    }
}

/// The answer to a request. `None`: it has none.
fn answer(effect: &Effect, result: Result<(), Error>) -> Option<Input> {
    match effect {
        Effect::Commit(number, _) => Some(Input::Committed(*number, result)),
        Effect::CreateParents => Some(Input::ParentsCreated(result)),
        Effect::Notify(_) | Effect::Answer(..) | Effect::GiveUpSession => None,
    }
}
