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
use sidekeeper::coordination::sticky::contract::{Answer, Effect, Event, Input};
use sidekeeper::coordination::time::Now;
use sidekeeper::extension::sticky::{OwnerNode, Record, StickyPaths};
use sidekeeper::tree::{
    Error, Node, NodeChange, NodeKind, Operation, Path, SessionId, Stat, Transaction, WatchEvent, Zxid,
};
use uuid::Uuid;

use super::application::{Action, Application};
use super::judge::Judge;
use super::requests::answer;
use crate::random::Random;

const TIMEOUT: Duration = Duration::from_secs(6);
const MARGIN: Duration = Duration::from_millis(1_200);

/// A broken promise, in words.
pub type Violation = String;

type Nodes = BTreeMap<Path, (Arc<[u8]>, Stat)>;

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

struct Stand {
    sidecar: usize,
    instance: String,
    id: Uuid,
    candidate: Candidate,
    known_session: Option<SessionId>,
    known_up: bool,
    application: Application,
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
    judge: Judge,
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
            judge: Judge::default(),
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
        let waiting: Vec<_> = waiting.map(|stand| (&stand.application, &stand.candidate)).collect();
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
            application: Application::new(self.random.once_in(2)),
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
        let Self { stands, random, judge, .. } = self;
        let stand = &mut stands[index];
        if stand.is_over
            || stand.application.has_left
            || self.now < self.sidecars[stand.sidecar].stopped_until
        {
            return;
        }
        let inputs = match stand.application.act(random, self.now, judge, self.next_call + 1) {
            None => return,
            Some(Action::Leave) => vec![Input::Left],
            Some(Action::Call { number, call, is_heard }) => {
                self.next_call = number;
                let unheard = (!is_heard).then_some(Input::Unheard(number));
                std::iter::once(Input::Asked(number, call)).chain(unheard).collect()
            }
        };
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
                    self.stands[index].application.deleted =
                        self.server.nodes.get(&owner).map(|(_, stat)| stat.created);
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
        self.changed(touched);
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
        self.server.last_zxid += 1;
        self.server.nodes.retain(|path, _| !paths.contains(path));
        self.changed(paths.into_iter().collect());
    }

    fn record(&self) -> Option<Record> {
        let (data, stat) = self.server.nodes.get(&self.lock.record())?;
        Some(Record::read(data, stat).unwrap())
    }

    /// Watches fire, and the promises about the nodes are checked.
    fn changed(&mut self, touched: BTreeSet<Path>) {
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
        let owner = self.server.nodes.get(&self.lock.owner()).map(|(_, stat)| stat.created);
        let result = self.judge.see(self.now, owner, self.record());
        self.violation = self.violation.take().or(result.err());
        self.outcome.interrupted = self.judge.interruptions;
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
            (stand.is_over, stand.application.owned) = (true, None);
            let calls = &stand.application.calls;
            if !calls.is_empty() {
                let left = format!("a call of a candidate that has ended has no answer: {calls:?}");
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
        let is_run = matches!(answer, Answer::Entered { .. });
        self.outcome.busy += usize::from(matches!(answer, Answer::Busy(_)));
        let application = &mut self.stands[index].application;
        match application.hear_answer(call, answer, (self.now, held), &mut self.judge) {
            Ok(true) => self.outcome.runs += usize::from(is_run),
            // Its caller has gone.
            Ok(false) if is_run => self.step(index, vec![Input::Unheard(call)]),
            Ok(false) => {}
            Err(violation) => self.violation = self.violation.take().or(Some(violation)),
        }
    }

    /// An application hears an event.
    fn hear(&mut self, index: usize, event: Event) {
        match &event {
            Event::Acquired { is_continued, .. } => {
                self.outcome.grants += 1;
                self.outcome.continued += usize::from(*is_continued);
            }
            Event::Lost { .. } => self.outcome.losses += 1,
            _ => {}
        }
        let is_owner = self.owner_stand() == Some(index);
        let heard = self.stands[index].application.hear(event, is_owner, &self.judge);
        self.violation = self.violation.take().or(heard.err());
    }

    /// The promises.
    fn check(&mut self) -> Result<(), Violation> {
        if let Some(violation) = self.violation.take() {
            return Err(violation);
        }
        let now = self.now;
        // A stopped sidecar tells its application nothing.
        let acts = |stand: &&Stand| stand.application.acts(now, !self.is_stopped(stand.sidecar));
        let acting: Vec<_> = self.stands.iter().filter(acts).collect();
        if acting.len() > 1 {
            let acting = acting.iter().map(|stand| (&stand.instance, &stand.application.owned));
            return Err(format!("two instances act: {:?}, now {now:?}", acting.collect::<Vec<_>>()));
        }
        Ok(())
    }
}
