//! A simulated world of one lock: a server with the lock's queues, sidecars with sessions, claims, and applications.
//!
//! Each sidecar has one connection. Requests reach the server in the order of their sending, and answers and the events of
//! watches come back in that order, or nearly. A connection that breaks takes its requests along: some have taken effect, one may take
//! effect after the next connection is made. The clock stands still unless the world moves it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use sidekeeper::coordination::lock::claim::Claim;
use sidekeeper::coordination::lock::contender::Wanted;
use sidekeeper::coordination::lock::contract::{Effect, End, Event, Input, Leader, LossReason, Part};
use sidekeeper::coordination::time::Now;
use sidekeeper::extension::lock::{Below, LockPaths, Mode};
use sidekeeper::job::FencingToken;
use sidekeeper::tree::{Error, Node, Path, SessionId, Stat, Zxid};
use uuid::Uuid;

use super::belief::Belief;
use super::requests::failed;
use crate::random::Random;

const TIMEOUT: Duration = Duration::from_secs(6);
const MARGIN: Duration = Duration::from_millis(1_200);

/// A broken promise, in words.
pub type Violation = String;

/// A node of the queue.
#[derive(Debug, Clone)]
struct Queued {
    created: Zxid,
    owner: SessionId,
}

#[derive(Debug, Default)]
struct Server {
    /// The nodes of queues that exist, and the number of their next children.
    folders: BTreeMap<Path, u32>,
    last_zxid: i64,
    last_session: i64,
    /// By the name below the lock's node.
    queue: BTreeMap<String, Queued>,
    /// The nodes of lock delays, and whether a request of a former connection has created each.
    delays: BTreeMap<String, bool>,
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
    requests: VecDeque<(usize, Part, Effect)>,
    answers: VecDeque<(usize, Part, Input)>,
    /// A request of the former connection, which takes effect before the request with this number of the present one.
    late: Option<(Part, Effect, u32)>,
    /// Sessions that were given up, and when they are closed.
    closing: Vec<(SessionId, Duration)>,
}

/// What a claim watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Own,
    Before,
    /// All nodes of a queue.
    Queue,
}

struct Hold {
    sidecar: usize,
    mode: Mode,
    /// Whether it is a candidate that stands again after a loss.
    stands_again: bool,
    claim: Claim,
    belief: Belief,
    known_session: Option<SessionId>,
    known_up: bool,
    /// The node of the hold, once it is known.
    node: Option<String>,
    watched: BTreeMap<(Part, Role), Path>,
    /// Whether its application counts the lease by itself. Otherwise it relies on the sidecar's word.
    counts: bool,
    /// Since when its application's lease is over, although the session's is not.
    stale_since: Option<Duration>,
    /// When its application gives the lock back.
    release_at: Option<Duration>,
    asked: bool,
    lock_delay: Duration,
    /// The node of its last grant, and whether the application has given the lock back since.
    granted: Option<(String, bool)>,
    /// When an operator has deleted its node.
    deleted_at: Option<Duration>,
    /// The highest term that its application has heard of.
    term: FencingToken,
    is_over: bool,
}

/// The kind of lock in a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Mutex,
    ReadersAndWriters,
    Election,
    Semaphore,
}

/// How a schedule went.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub grants: usize,
    pub faults: usize,
    pub losses: usize,
    pub timeouts: usize,
    /// How often a leader was told to a candidate.
    pub leaders: usize,
    /// How often a leader has named its successor.
    pub successors: usize,
    /// How many of the grants were of a semaphore's permits.
    pub permits: usize,
    /// How many holders with a lock delay have vanished.
    pub vanished: usize,
}

pub struct World {
    random: Random,
    now: Duration,
    server: Server,
    sidecars: Vec<Sidecar>,
    holds: Vec<Hold>,
    lock: LockPaths,
    kind: Kind,
    /// The permits of a semaphore.
    permits: usize,
    /// The holders with a delay that have vanished, and until when nobody may hold.
    vanished: BTreeMap<usize, Duration>,
    highest: Option<FencingToken>,
    /// A leader that an observer has seen before.
    seen: Option<Leader>,
    /// A promise that was broken while an application was told something.
    violation: Option<Violation>,
    faults: bool,
    pub outcome: Outcome,
}

impl Hold {
    /// The name of the contender's node, in the words of the contender.
    fn contender_node(&self) -> Option<String> {
        self.node.clone()
    }
}

/// The number at the end of a contender's name.
fn number(name: &str) -> String {
    name.chars().skip(name.len().saturating_sub(10)).collect()
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
        let kind = match random.below(4) {
            0 => Kind::Mutex,
            1 => Kind::ReadersAndWriters,
            2 => Kind::Election,
            _ => Kind::Semaphore,
        };
        let permits = usize::try_from(1 + random.below(3)).unwrap();
        let lock = LockPaths::at(Path::parse("/locks/bill").unwrap());
        let (server, outcome) = (Server::default(), Outcome::default());
        Self {
            random,
            now: Duration::from_secs(1),
            server,
            sidecars,
            holds: Vec::new(),
            lock,
            kind,
            permits,
            vanished: BTreeMap::new(),
            highest: None,
            seen: None,
            violation: None,
            faults: true,
            outcome,
        }
    }

    /// Runs a schedule full of faults, then one without, until nothing is left to be done.
    pub fn run(&mut self, steps: usize) -> Result<(), Violation> {
        for _ in 0..steps {
            self.act()?;
            self.check()?;
        }
        self.faults = false;
        for sidecar in &mut self.sidecars {
            (sidecar.down_until, sidecar.stopped_until) = (self.now, self.now);
        }
        self.pass_time();
        self.wake()?;
        for _ in 0..20_000 {
            // A session that was given up is closed a moment later.
            if self.server.queue.is_empty() && self.holds.iter().all(|hold| hold.is_over) {
                break;
            }
            self.act()?;
            self.check()?;
        }
        let is_first = |hold: &&Hold| {
            hold.contender_node() == self.server.queue.keys().min_by_key(|name| number(name)).cloned()
        };
        let waiting = || self.holds.iter().filter(|hold| !hold.is_over);
        if let Some(hold) = waiting().find(is_first).or(waiting().next()) {
            let Sidecar { session, is_up, requests, answers, .. } = &self.sidecars[hold.sidecar];
            return Err(format!(
                "a contender waits without a cause: {:?}, asked {}, {session:?}, up {is_up}, {requests:?}, {answers:?}, {:#?}, {:#?}",
                hold.belief, hold.asked, hold.claim, self.server.queue
            ));
        }
        if let Some(name) = self.server.queue.keys().next() {
            return Err(format!("{name} is left in the queue"));
        }
        Ok(())
    }

    fn act(&mut self) -> Result<(), Violation> {
        let index = usize::try_from(self.random.below(u64::try_from(self.sidecars.len()).unwrap())).unwrap();
        match self.random.below(20) {
            0 if self.faults => self.ask(index),
            1 => self.release(),
            2 if self.faults => self.fault(index),
            3 if self.kind == Kind::Election => self.observe(),
            3..=8 => self.serve(index),
            9..=14 => return self.deliver(index),
            _ => {
                let pause = if self.random.once_in(8) { 400 } else { 20 };
                self.now += Duration::from_millis(self.random.below(pause) + 1);
                self.pass_time();
                return self.wake();
            }
        }
        Ok(())
    }

    /// A new application asks for the lock.
    fn ask(&mut self, sidecar: usize) {
        if self.holds.iter().filter(|hold| !hold.is_over).count() >= 6 {
            return;
        }
        let mode = match (self.kind, self.random.below(3)) {
            (Kind::Mutex, _) => Mode::Mutex,
            (Kind::Election, _) => Mode::Candidate,
            (Kind::Semaphore, _) => Mode::Permit,
            (Kind::ReadersAndWriters, 0) => Mode::Write,
            (Kind::ReadersAndWriters, _) => Mode::Read,
        };
        let limit =
            |random: &mut Random| random.once_in(4).then(|| Duration::from_millis(random.below(3_000)));
        let wait_until = limit(&mut self.random).map(|limit| self.now + limit);
        let hold_max = limit(&mut self.random).map(|limit| limit + Duration::from_millis(1));
        let may_delay = matches!(mode, Mode::Mutex | Mode::Write) && self.random.once_in(2);
        let lock_delay = if may_delay { self.random.below(3_000) } else { 0 };
        let lock_delay = Duration::from_millis(lock_delay);
        let looks_first = self.random.once_in(4);
        let seed = self.random.next();
        let stands_again = mode == Mode::Candidate && !seed.is_multiple_of(4);
        let claim = Claim::new(Wanted {
            lock: self.lock.clone(),
            mode,
            wait_until,
            hold_max,
            queue_max: 100,
            looks_first,
            stands_again,
            permits: self.permits,
            lock_delay,
            seed: Uuid::from_u128(u128::from(seed) << 64),
        });
        self.holds.push(Hold {
            sidecar,
            mode,
            stands_again,
            claim,
            belief: Belief::Waits,
            known_session: None,
            known_up: true,
            node: None,
            watched: BTreeMap::new(),
            counts: self.random.once_in(2),
            stale_since: None,
            release_at: None,
            asked: false,
            lock_delay,
            granted: None,
            deleted_at: None,
            term: FencingToken(0),
            is_over: false,
        });
        let hold = self.holds.len() - 1;
        self.step(hold, Vec::new());
    }

    /// An application gives the lock back, or leaves.
    fn release(&mut self) {
        let now = self.now;
        let due = |hold: &Hold| !hold.is_over && !hold.asked && hold.release_at.is_some_and(|at| now >= at);
        let Some(index) = self.holds.iter().position(due) else { return };
        if self.is_stopped(self.holds[index].sidecar) {
            return;
        }
        let holds = matches!(self.holds[index].belief, Belief::Holds { .. });
        (self.holds[index].asked, self.holds[index].belief) = (true, Belief::Free);
        let input = if self.random.once_in(2) { Input::Release } else { Input::Left };
        if input == Input::Release {
            // Its node may have been deleted a moment before.
            self.vanished.remove(&index);
            if let Some((_, is_given_back)) = &mut self.holds[index].granted {
                *is_given_back = holds;
            }
        }
        self.step(index, vec![(Part::Queue, input)]);
    }

    /// The candidates of all connected sidecars see the leader; some of them as it was a moment ago. Sometimes the leader has
    /// named its successor.
    fn observe(&mut self) {
        let mut names: Vec<_> = self.server.queue.keys().cloned().collect();
        names.sort_unstable_by_key(|name| number(name));
        let seen = names.first().and_then(|name| {
            let queued = self.server.queue.get(name)?;
            Some(Leader {
                name: name.clone(),
                value: String::new(),
                term: FencingToken::from(queued.created),
            })
        });
        let nth = usize::try_from(self.random.below(20)).unwrap();
        // Candidates that make way for ever hold never: at the end no leader names a successor.
        let successor = names.get(nth + 1).filter(|_| self.faults).cloned();
        self.outcome.successors += usize::from(successor.is_some());
        for (index, hold) in self.holds.iter().enumerate() {
            let sidecar = &mut self.sidecars[hold.sidecar];
            if sidecar.is_up && !hold.is_over {
                let leader = if self.random.once_in(4) { self.seen.clone() } else { seen.clone() };
                sidecar.answers.push_back((
                    index,
                    Part::Queue,
                    Input::LeaderSeen { leader, successor: successor.clone() },
                ));
            }
        }
        self.seen = seen;
    }

    fn is_stopped(&self, sidecar: usize) -> bool {
        self.now < self.sidecars[sidecar].stopped_until
    }

    fn fault(&mut self, index: usize) {
        if !self.random.once_in(6) {
            return;
        }
        self.outcome.faults += 1;
        let long = Duration::from_millis(self.random.below(9_000));
        let short = Duration::from_millis(self.random.below(300));
        let lasts = if self.random.once_in(3) { long } else { short };
        match self.random.below(4) {
            0 | 1 => {
                self.sidecars[index].down_until = self.now + lasts;
                self.cut(index);
            }
            2 => {
                // A stop that comes during another one does not end that one: nothing would be done at its end.
                let stopped = &mut self.sidecars[index].stopped_until;
                *stopped = (*stopped).max(self.now + lasts);
            }
            _ => {
                let nodes = u64::try_from(self.server.queue.len()).unwrap();
                let nth = usize::try_from(self.random.below(nodes)).unwrap();
                if let Some(name) = self.server.queue.keys().nth(nth).cloned() {
                    let now = self.now;
                    let its = self.holds.iter_mut().find(|hold| hold.node.as_ref() == Some(&name));
                    let is_held = its.is_some();
                    if let Some(hold) = its {
                        hold.deleted_at = Some(now);
                    }
                    // A place in the queue of a semaphore proves nothing. The owner of a permit that has not heard of the grant
                    // would hear of the deletion only later, so that permit stays.
                    if is_held || matches!(Below::read(&name), Below::Queued(_)) {
                        self.remove(&name);
                    }
                }
            }
        }
    }

    /// The connection breaks.
    fn cut(&mut self, index: usize) {
        if !self.sidecars[index].is_up {
            return;
        }
        let lost: Vec<_> = std::mem::take(&mut self.sidecars[index].requests).into();
        let had_effect = self.random.below(u64::try_from(lost.len()).unwrap() + 1);
        for (place, (_, part, effect)) in lost.iter().enumerate() {
            if u64::try_from(place).unwrap() < had_effect {
                let _ = self.perform(index, *part, effect);
            } else if u64::try_from(place).unwrap() == had_effect && self.random.once_in(2) {
                self.sidecars[index].late = Some((*part, effect.clone(), 1));
            }
        }
        let unknown = || Error::OutcomeUnknown("the connection broke".to_owned());
        for (hold, part, effect) in lost {
            let answer = answer(&effect, Err(unknown()));
            self.sidecars[index].answers.extend(answer.map(|input| (hold, part, input)));
        }
        self.sidecars[index].is_up = false;
        self.tell_all(index);
    }

    /// The tasks of a sidecar see its session's state.
    fn tell_all(&mut self, sidecar: usize) {
        for hold in 0..self.holds.len() {
            if self.holds[hold].sidecar == sidecar && !self.holds[hold].is_over && !self.is_stopped(sidecar) {
                self.step(hold, Vec::new());
            }
        }
    }

    /// The changes of the session since a task has looked: by the last state, without states in between.
    fn session_inputs(&mut self, index: usize) -> Vec<Input> {
        let Sidecar { session, is_up, .. } = self.sidecars[self.holds[index].sidecar];
        let hold = &mut self.holds[index];
        let mut inputs = Vec::new();
        if hold.known_session != session {
            inputs.extend(hold.known_session.map(|_| Input::SessionLost));
            inputs.extend(session.map(Input::SessionOpened));
            (hold.known_session, hold.known_up) = (session, true);
        }
        if session.is_some() && hold.known_up != is_up {
            hold.known_up = is_up;
            inputs.push(if is_up { Input::SessionResumed } else { Input::SessionSuspended });
        }
        inputs
    }

    /// The server handles the next request of a sidecar.
    fn serve(&mut self, index: usize) {
        if !self.sidecars[index].is_up {
            return;
        }
        let Some((hold, part, effect)) = self.sidecars[index].requests.pop_front() else { return };
        if let Some((its, late, after)) = self.sidecars[index].late.take() {
            match after {
                0 => {
                    if let (Ok(_), Effect::CreateDelay(path)) = (self.perform(index, its, &late), &late) {
                        self.server.delays.insert(self.name(path), true);
                    }
                }
                more => self.sidecars[index].late = Some((its, late, more - 1)),
            }
        }
        match &effect {
            Effect::WatchOwn(Some(path)) | Effect::WatchBefore(Some(path)) => {
                if !self.has(path) {
                    self.sidecars[index].answers.push_back((hold, part, Input::Gone(path.clone())));
                }
                return;
            }
            Effect::WatchQueue(true) => {
                self.sidecars[index].answers.push_back((hold, part, Input::QueueChanged));
                return;
            }
            _ => {}
        }
        let result = self.perform(index, part, &effect);
        self.sidecars[index].answers.extend(answer(&effect, Ok(result)).map(|input| (hold, part, input)));
    }

    /// The node of a part of a claim.
    fn folder(&self, part: Part) -> Path {
        let lock = match (self.kind, part) {
            (Kind::Semaphore, Part::Queue) => self.lock.semaphore_queue(),
            (_, Part::Permits) => self.lock.semaphore_permits(),
            (_, Part::Queue | Part::Kind) => self.lock.clone(),
        };
        lock.lock().clone()
    }

    /// The name of a node below the lock's node.
    fn name(&self, path: &Path) -> String {
        self.lock.name_below(path).unwrap().to_owned()
    }

    fn has(&self, path: &Path) -> bool {
        let name = self.name(path);
        self.server.queue.contains_key(&name) || self.server.delays.contains_key(&name)
    }

    /// The names of the children of a node.
    fn children(&self, folder: &Path) -> Vec<String> {
        let queue = self.server.queue.keys().map(|name| self.lock.below(name).unwrap());
        let delays = self.server.delays.keys().map(|name| self.lock.below(name).unwrap());
        let nodes = queue.chain(delays).chain(self.server.folders.keys().cloned());
        let names = nodes.filter(|path| path.parent().as_ref() == Some(folder));
        let names: BTreeSet<_> = names.map(|path| path.name().to_owned()).collect();
        names.into_iter().collect()
    }

    /// A request takes effect.
    fn perform(&mut self, index: usize, part: Part, effect: &Effect) -> Result<Answered, Error> {
        let session = self.sidecars[index].session;
        let Some(session) = session.filter(|session| self.server.sessions.contains_key(session)) else {
            return Err(Error::SessionLost);
        };
        Ok(match effect {
            Effect::Create(_, path) => {
                let folder = path.parent().unwrap();
                let Some(number) = self.server.folders.get_mut(&folder) else {
                    return Err(Error::NoNode(path.clone()));
                };
                self.server.last_zxid += 1;
                let created = Zxid(self.server.last_zxid);
                let path = folder.child(&format!("{}{number:010}", path.name()));
                *number += 1;
                self.server.queue.insert(self.name(&path), Queued { created, owner: session });
                self.tell_queue(&folder);
                Answered::Created(path, created)
            }
            Effect::CreateParents => {
                self.server.folders.entry(self.folder(part)).or_insert(0);
                Answered::Done
            }
            Effect::CreateDelay(path) => {
                let name = self.name(path);
                if !self.server.folders.contains_key(&path.parent().unwrap()) {
                    return Err(Error::NoNode(path.clone()));
                } else if self.server.delays.contains_key(&name) {
                    return Err(Error::NodeExists(path.clone()));
                }
                self.server.delays.insert(name, false);
                Answered::Done
            }
            Effect::List(_) => Answered::Names(self.children(&self.folder(part))),
            Effect::Find(_, path) => Answered::Node(self.node(path)),
            Effect::ReadFirst(name) => Answered::Node(self.node(&self.folder(part).child(name))),
            Effect::Delete(path) => {
                self.remove(&self.name(path));
                Answered::Done
            }
            Effect::WatchOwn(_)
            | Effect::WatchBefore(_)
            | Effect::WatchQueue(_)
            | Effect::Notify(_)
            | Effect::GiveUpSession => Answered::Done,
        })
    }

    fn node(&self, path: &Path) -> Option<Node> {
        let queued = self.server.queue.get(&self.name(path))?;
        let stat = Stat {
            created: queued.created,
            modified: queued.created,
            version: 0,
            ephemeral_owner: Some(queued.owner),
            modified_ms: 0,
        };
        Some(Node { path: path.clone(), data: [].into(), stat })
    }

    /// A node is deleted; watches fire.
    fn remove(&mut self, name: &str) {
        if self.server.queue.remove(name).is_none() && self.server.delays.remove(name).is_none() {
            return;
        }
        let is_lost = |hold: &&Hold| hold.granted.as_ref().is_some_and(|(node, back)| node == name && !back);
        if let Some(index) = self.holds.iter().position(|hold| is_lost(&hold) && !hold.lock_delay.is_zero()) {
            self.vanished.insert(index, self.now + self.holds[index].lock_delay);
            self.outcome.vanished += 1;
        }
        let path = self.lock.below(name).unwrap();
        for (index, hold) in self.holds.iter_mut().enumerate() {
            let sidecar = &mut self.sidecars[hold.sidecar];
            for key in hold.watched.keys().copied().collect::<Vec<_>>() {
                if key.1 != Role::Queue && hold.watched.get(&key) == Some(&path) && sidecar.is_up {
                    hold.watched.remove(&key);
                    sidecar.answers.push_back((index, key.0, Input::Gone(path.clone())));
                }
            }
        }
        self.tell_queue(&path.parent().unwrap());
    }

    /// The nodes of a queue have changed; watches fire.
    fn tell_queue(&mut self, folder: &Path) {
        for (index, hold) in self.holds.iter().enumerate() {
            let sidecar = &mut self.sidecars[hold.sidecar];
            let watches =
                hold.watched.iter().filter(|((_, role), path)| *role == Role::Queue && *path == folder);
            for ((part, _), _) in watches.filter(|_| sidecar.is_up).collect::<Vec<_>>() {
                sidecar.answers.push_back((index, *part, Input::QueueChanged));
            }
        }
    }

    /// A sidecar takes its next answer, or all of them: a task may find several at once.
    fn deliver(&mut self, index: usize) -> Result<(), Violation> {
        if self.is_stopped(index) {
            return Ok(());
        }
        let all = self.random.once_in(4);
        // Answers and events reach a task on several ways, each of which may be the quicker one.
        let next = |answers: &mut VecDeque<_>, random: &mut Random| {
            let overtakes = answers.len() > 1 && random.once_in(4);
            if overtakes { answers.remove(1) } else { answers.pop_front() }
        };
        while let Some((hold, part, input)) = next(&mut self.sidecars[index].answers, &mut self.random) {
            if !self.holds[hold].is_over {
                self.step(hold, vec![(part, input)]);
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
        if self.server.queue.is_empty() && self.server.delays.is_empty() && self.random.once_in(20) {
            self.server.folders.clear();
        }
    }

    /// The server ends a session.
    fn expire(&mut self, session: SessionId) {
        self.server.sessions.remove(&session);
        let its = self.server.queue.iter().filter(|(_, queued)| queued.owner == session);
        for name in its.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.remove(&name);
        }
    }

    fn connect(&mut self, index: usize) {
        let session = self.sidecars[index].session;
        self.sidecars[index].is_up = true;
        if session.is_some_and(|session| self.server.sessions.contains_key(&session)) {
            self.tell_all(index);
            // A watch begins again with a snapshot.
            for hold in 0..self.holds.len() {
                if self.holds[hold].sidecar != index {
                    continue;
                }
                for ((part, role), path) in self.holds[hold].watched.clone() {
                    let input = match role {
                        Role::Queue => Some(Input::QueueChanged),
                        Role::Own | Role::Before => (!self.has(&path)).then_some(Input::Gone(path)),
                    };
                    self.sidecars[index].answers.extend(input.map(|input| (hold, part, input)));
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
        for hold in self.holds.iter_mut().filter(|hold| hold.sidecar == index) {
            hold.watched.clear();
        }
    }

    /// Contenders whose alarm has rung.
    fn wake(&mut self) -> Result<(), Violation> {
        for index in 0..self.holds.len() {
            let hold = &self.holds[index];
            if !hold.is_over && !self.is_stopped(hold.sidecar) {
                self.step(index, Vec::new());
            }
        }
        self.check()
    }

    fn step(&mut self, index: usize, more: Vec<(Part, Input)>) {
        let sidecar = self.holds[index].sidecar;
        let session_inputs = self.session_inputs(index);
        let mut inputs: Vec<_> = session_inputs.into_iter().map(|input| (Part::Queue, input)).collect();
        inputs.extend(more);
        if self.sidecars[sidecar].session.is_some() {
            let place = inputs
                .iter()
                .position(|(_, input)| matches!(input, Input::SessionOpened(_)))
                .map_or(0, |at| at + 1);
            inputs.insert(place, (Part::Queue, Input::Leased { until: self.sidecars[sidecar].lease }));
        }
        let now = Now { wall: Timestamp::UNIX_EPOCH, mono: self.now };
        let effects = self.holds[index].claim.step(now, inputs);
        for (part, effect) in effects {
            self.take_effect(index, part, effect);
        }
        if let Some(end) = self.holds[index].claim.end() {
            self.outcome.timeouts += usize::from(matches!(end, End::TimedOut(_)));
            let is_lost = matches!(end, End::Lost(LossReason::Lease | LossReason::Revoked));
            let hold = &self.holds[index];
            // One that was giving the lock back may end so.
            if hold.stands_again && is_lost && !hold.asked {
                self.violation = Some(format!("a candidate does not stand again: {end:?}"));
            }
            self.holds[index].is_over = true;
            if matches!(self.holds[index].belief, Belief::Waits) {
                self.holds[index].belief = Belief::Free;
            }
        }
    }

    fn take_effect(&mut self, index: usize, part: Part, effect: Effect) {
        let sidecar = self.holds[index].sidecar;
        // A watch outlives the connection on which it was asked for.
        let watch = match &effect {
            Effect::WatchOwn(path) => Some((Role::Own, path.clone())),
            Effect::WatchBefore(path) => Some((Role::Before, path.clone())),
            Effect::WatchQueue(is_on) => Some((Role::Queue, is_on.then(|| self.folder(part)))),
            _ => None,
        };
        if let Some((role, path)) = watch {
            let watched = &mut self.holds[index].watched;
            match path {
                Some(path) => drop(watched.insert((part, role), path)),
                None => drop(watched.remove(&(part, role))),
            }
        }
        match effect {
            Effect::Notify(event) => self.hear(index, event),
            Effect::GiveUpSession => {
                if let Some(session) = self.sidecars[sidecar].session.take() {
                    self.sidecars[sidecar].closing.push((session, self.now + MARGIN));
                    self.forget_in_flight(sidecar);
                    self.tell_all(sidecar);
                    self.sidecars[sidecar].is_up = false;
                    self.sidecars[sidecar].down_until = self.sidecars[sidecar].down_until.max(self.now);
                }
            }
            Effect::WatchOwn(None) | Effect::WatchBefore(None) | Effect::WatchQueue(false) => {}
            effect if self.sidecars[sidecar].session.is_none() => drop(effect),
            effect if !self.sidecars[sidecar].is_up => {
                if let Some(input) = answer(&effect, Err(Error::Suspended)) {
                    self.sidecars[sidecar].answers.push_back((index, part, input));
                }
            }
            effect => self.sidecars[sidecar].requests.push_back((index, part, effect)),
        }
    }

    /// An application hears an event.
    fn hear(&mut self, index: usize, event: Event) {
        let now = self.now;
        // Some hold for longer than a lease.
        let most = if self.random.once_in(5) { 20_000 } else { 1_000 };
        let held = Duration::from_millis(self.random.below(most));
        let lock = self.lock.clone();
        let hold = &mut self.holds[index];
        hold.belief.hear(&event);
        match event {
            Event::Acquired { token, path, lease_end } => {
                self.outcome.grants += 1;
                if hold.granted.is_some() && !hold.stands_again {
                    self.violation = Some(format!("{path} holds once more"));
                }
                self.outcome.permits += usize::from(self.kind == Kind::Semaphore);
                hold.node = lock.name_below(&path).map(str::to_owned);
                hold.granted = hold.node.clone().map(|node| (node, false));
                let is_delayed = matches!(hold.mode, Mode::Mutex | Mode::Read | Mode::Write);
                if is_delayed && self.vanished.values().any(|until| now < *until) {
                    self.violation = Some(format!("{path} holds within the delay of one that has vanished"));
                }
                hold.deleted_at = None;
                if token < hold.term {
                    self.violation = Some(format!("a candidate leads with {token:?} after {:?}", hold.term));
                }
                hold.term = token;
                if !hold.asked {
                    hold.belief = Belief::Holds { token, until: lease_end };
                    hold.release_at = Some(now + held);
                }
            }
            Event::Lost(_) => {
                self.outcome.losses += 1;
                // A candidate stands again, with another node. The session's end deletes this one.
                hold.node = None;
            }
            Event::LeaderChanged(leader) => {
                self.outcome.leaders += 1;
                if let Some(leader) = leader {
                    if leader.term < hold.term {
                        let known = hold.term;
                        self.violation = Some(format!("a candidate is told of {leader:?} after {known:?}"));
                    }
                    hold.term = leader.term;
                }
            }
            Event::Released => {
                let node = hold.node.clone().filter(|name| self.server.queue.contains_key(name));
                // Checked by `check`, which can fail.
                hold.node = node.map(|name| format!("left: {name}"));
                if let Some((node, true)) = &hold.granted {
                    let delay = lock.delay(hold.lock_delay, node).map(|path| path.name().to_owned());
                    let is_left = |name: &String| self.server.delays.get(name) == Some(&false);
                    if let Some(delay) = delay.filter(is_left) {
                        self.violation = Some(format!("the lock was given back, and {delay} is there"));
                    }
                }
            }
            _ => {}
        }
    }

    /// The promises.
    fn check(&mut self) -> Result<(), Violation> {
        if let Some(violation) = self.violation.take() {
            return Err(violation);
        }
        let now = self.now;
        let (mut believers, mut stale) = (Vec::new(), Vec::new());
        for (index, hold) in self.holds.iter().enumerate() {
            if let Some(name) = hold.node.as_deref().and_then(|name| name.strip_prefix("left: ")) {
                return Err(format!(
                    "the application was told that the lock was given back, and {name} is there"
                ));
            }
            if let Belief::Holds { token, until } = hold.belief {
                let (is_stopped, sidecar) = (self.is_stopped(hold.sidecar), &self.sidecars[hold.sidecar]);
                let lease_is_over = until.is_some_and(|until| now >= until);
                // A stopped sidecar tells its application nothing.
                let is_over = lease_is_over && (hold.counts || is_stopped);
                let stops = is_stopped || !sidecar.is_up;
                let is_renewed = lease_is_over && !stops && hold.deleted_at.is_none() && now < sidecar.lease;
                if hold
                    .stale_since
                    .filter(|_| is_renewed)
                    .is_some_and(|since| now > since + Duration::from_secs(3))
                {
                    return Err("the lease of a holder is not renewed".to_owned());
                }
                stale.push((index, is_renewed));
                // It hears of the deletion after the watch has fired.
                let late = hold.deleted_at.filter(|at| now > *at + Duration::from_secs(2));
                if late.is_some()
                    && !stops
                    && !is_over
                    && self.sidecars[hold.sidecar].answers.is_empty()
                    && self.sidecars[hold.sidecar].requests.is_empty()
                {
                    return Err("a holder does not hear that its node was deleted".to_owned());
                }
                if !is_over && hold.deleted_at.is_none() {
                    believers.push((hold.mode, token));
                }
            }
        }
        for (index, is_stale) in stale {
            let since = &mut self.holds[index].stale_since;
            *since = if is_stale { since.or(Some(now)) } else { None };
        }
        if self.kind == Kind::Semaphore {
            return match believers.len() > self.permits {
                true => Err(format!("more than {} applications have a permit: {believers:?}", self.permits)),
                false => Ok(()),
            };
        }
        let writers = believers.iter().filter(|(mode, _)| *mode != Mode::Read).count();
        if writers > 1 || (writers == 1 && believers.len() > 1) {
            return Err(format!("two applications hold the lock: {believers:?}"));
        }
        let newest = believers.iter().filter(|(mode, _)| *mode != Mode::Read).map(|(_, token)| *token).max();
        if let Some(newest) = newest {
            if self.highest.is_some_and(|highest| newest < highest) {
                return Err(format!("token {newest:?} after {:?}", self.highest));
            }
            self.highest = Some(newest);
        }
        Ok(())
    }
}

enum Answered {
    Created(Path, Zxid),
    Names(Vec<String>),
    Node(Option<Node>),
    Done,
}

/// The answer to a request. `None`: it has none.
fn answer(effect: &Effect, result: Result<Result<Answered, Error>, Error>) -> Option<Input> {
    let answered = match result.unwrap_or_else(Err) {
        Ok(answered) => answered,
        Err(error) => return failed(effect, &error),
    };
    Some(match (effect, answered) {
        (Effect::Create(attempt, _), Answered::Created(path, created)) => {
            Input::Created(*attempt, Ok((path, created)))
        }
        (Effect::CreateParents, _) => Input::ParentsCreated(Ok(())),
        (Effect::CreateDelay(path), _) => Input::DelayCreated(path.clone(), Ok(())),
        (Effect::List(look), Answered::Names(names)) => Input::Listed(*look, Ok(names)),
        (Effect::Find(attempt, path), Answered::Node(node)) => Input::Found(*attempt, path.clone(), Ok(node)),
        (Effect::ReadFirst(name), Answered::Node(node)) => Input::FirstRead(name.clone(), node),
        (Effect::Delete(path), _) => Input::Deleted(path.clone(), Ok(())),
        _ => return None,
    })
}
