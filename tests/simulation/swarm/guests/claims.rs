//! Guests that hold a lock, take a permit, or stand in an election, each with the sidecar's own core; and what has to hold for
//! all of them: mutual exclusion, the order of the queue, growing tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sidekeeper::coordination::lock::claim::Claim;
use sidekeeper::coordination::lock::contender::Wanted;
use sidekeeper::coordination::lock::contract::{Effect, End, Event, Input, LossReason, Part};
use sidekeeper::coordination::lock::picture::LockState;
use sidekeeper::coordination::time::Now;
use sidekeeper::extension::lock::{Child, HandOver, LockPaths, Mode, permit_number};
use sidekeeper::job::FencingToken;
use sidekeeper::tree::{Error, Node, NodeKind, Operation, OperationResult, Path, Transaction};
use uuid::Uuid;

use crate::lock::belief::Belief;
use crate::random::Random;

use super::super::client::Link;
use super::super::ensemble::{Content, subtree};
use super::super::invariants::Invariant;
use super::super::world::World;
use super::super::{MILLISECOND, Micros, SECOND};
use super::{Answer, Change, Core, Guest, Kind, Request, data};

/// How many seconds without a fault a holder may take to hear that its node was deleted.
const LOSS_TAKES: u64 = 4;

/// A watch of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::swarm) struct Watched(Part, Role);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Own,
    Before,
    /// All nodes of a queue.
    Queue,
}

#[derive(Debug)]
pub(super) struct Watch {
    path: Path,
    is_open: bool,
    /// The nodes of the queue that it has told of.
    children: BTreeSet<String>,
}

/// A guest's part in a lock.
#[derive(Debug)]
pub(super) struct Claiming {
    claim: Claim,
    mode: Mode,
    /// Whether it is a candidate that stands again after a loss.
    stands_again: bool,
    belief: Belief,
    /// The node of the hold.
    node: Option<Path>,
    pub(super) watches: BTreeMap<Watched, Watch>,
    /// Whether the application counts the lease by itself. Otherwise it relies on the sidecar's word.
    counts: bool,
    /// When it gives the lock back.
    release_at: Option<Micros>,
    has_left: bool,
    /// The highest term that it has heard of.
    term: FencingToken,
    /// The state of the election that it was told of.
    observed: Option<LockState>,
}

/// The lock of a schedule.
pub(super) struct Claimed {
    pub(super) lock: LockPaths,
    permits: usize,
    /// The token of the newest holder that was alone.
    highest: FencingToken,
    /// Nodes of holders that an operator has deleted, and for how many seconds no fault has been in the way of the news.
    deleted: BTreeMap<Path, u64>,
}

impl Claimed {
    pub(super) fn new(random: &mut Random) -> Self {
        let lock = LockPaths::at(Path::parse("/ns/@-@locks/bill").unwrap());
        let permits = 1 + random.below(3) as usize;
        Self { lock, permits, highest: FencingToken(0), deleted: BTreeMap::new() }
    }

    /// The node of a part of a claim.
    fn folder(&self, mode: Mode, part: Part) -> Path {
        let lock = match (mode, part) {
            (Mode::Permit, Part::Queue) => self.lock.semaphore_queue(),
            (_, Part::Permits) => self.lock.semaphore_permits(),
            (_, Part::Queue | Part::Kind) => self.lock.clone(),
        };
        lock.lock().clone()
    }
}

impl Claiming {
    pub(super) fn has_ended(&self) -> bool {
        self.claim.end().is_some()
    }

    pub(super) fn next_wakeup(&self, now: Duration) -> Option<Duration> {
        self.claim.next_wakeup(now)
    }

    /// Its stream has broken: without a lease of its own to count, the application stops.
    pub(super) fn is_cut_off(&mut self) {
        if !self.counts {
            self.belief = Belief::Free;
        }
    }

    /// The watches that have to be opened on the next connection.
    pub(super) fn close_watches(&mut self) -> Vec<Watched> {
        self.watches.values_mut().for_each(|watch| watch.is_open = false);
        self.watches.keys().copied().collect()
    }
}

impl World {
    pub(super) fn new_claim(&mut self, kind: Kind, mono: Duration) -> Claiming {
        let random = &mut self.guests.random;
        let mode = match (kind, random.below(3)) {
            (Kind::Mutex | Kind::Sticky, _) => Mode::Mutex,
            (Kind::Election, _) => Mode::Candidate,
            (Kind::Semaphore, _) => Mode::Permit,
            (Kind::ReadersAndWriters, 0) => Mode::Write,
            (Kind::ReadersAndWriters, _) => Mode::Read,
        };
        let limit =
            |random: &mut Random| random.once_in(4).then(|| Duration::from_millis(1 + random.below(4_000)));
        let wait_until = limit(random).filter(|_| mode != Mode::Candidate).map(|limit| mono + limit);
        let hold_max = limit(random).filter(|_| mode != Mode::Candidate);
        let looks_first = random.once_in(4);
        let seed = random.next();
        let stands_again = mode == Mode::Candidate && !seed.is_multiple_of(4);
        let wanted = Wanted {
            lock: self.guests.claimed.lock.clone(),
            mode,
            wait_until,
            hold_max,
            queue_max: 100,
            looks_first,
            stands_again,
            permits: self.guests.claimed.permits,
            lock_delay: Duration::ZERO,
            seed: Uuid::from_u128(u128::from(seed) << 64),
        };
        Claiming {
            claim: Claim::new(wanted),
            mode,
            stands_again,
            belief: Belief::Waits,
            node: None,
            watches: BTreeMap::new(),
            counts: random.once_in(2),
            release_at: None,
            has_left: false,
            term: FencingToken(0),
            observed: None,
        }
    }

    fn claim(&mut self, index: usize) -> &mut Claiming {
        match &mut self.guests.all[index].core {
            Core::Claim(claim) => claim,
            Core::Stand(_) => unreachable!("all guests of a schedule are of one kind"),
        }
    }

    /// The application gives the lock back when its time has come. Candidates that wait leave now and then.
    pub(super) fn act_with_claim(&mut self, index: usize) {
        let (now, is_calm) = (self.now, self.is_calm);
        let often = if is_calm { 4 } else { 20 };
        let leaves = self.guests.random.once_in(often);
        let is_polite = self.guests.random.once_in(2);
        let claim = self.claim(index);
        let is_due = match claim.belief {
            Belief::Holds { .. } => claim.release_at.is_some_and(|at| now >= at || is_calm),
            Belief::Waits | Belief::Free => leaves && (claim.mode == Mode::Candidate || !is_calm),
        };
        if !is_due || claim.has_left {
            return;
        }
        (claim.belief, claim.has_left) = (Belief::Free, true);
        let input = if is_polite { Input::Release } else { Input::Left };
        self.tell_guest(index, super::Input::Claim(Part::Queue, input));
    }

    pub(super) fn step_claim(
        &mut self,
        index: usize,
        now: Now,
        changes: &[Change],
        inputs: Vec<super::Input>,
    ) {
        let session = changes.iter().map(|change| match *change {
            Change::Lost => Input::SessionLost,
            Change::Opened(id) => Input::SessionOpened(id),
            Change::Leased(until) => Input::Leased { until },
            Change::Suspended => Input::SessionSuspended,
            Change::Resumed => Input::SessionResumed,
        });
        let mut all: Vec<_> = session.map(|input| (Part::Queue, input)).collect();
        all.extend(inputs.into_iter().filter_map(|input| match input {
            super::Input::Claim(part, input) => Some((part, input)),
            super::Input::Stand(_) => None,
        }));
        let m = self.guests.all[index].machine;
        if self.is_traced() && all.iter().any(|(_, input)| !matches!(input, Input::Leased { .. })) {
            self.note(m, || format!("guest {index} hears {all:?}"));
        }
        let claim = self.claim(index);
        if matches!(changes.first(), Some(Change::Lost | Change::Opened(_))) {
            claim.observed = None;
        }
        for (part, effect) in claim.claim.step(now, all) {
            self.claim_effect(index, part, effect);
        }
        self.check_holders();
    }

    fn claim_effect(&mut self, index: usize, part: Part, effect: Effect) {
        let m = self.guests.all[index].machine;
        self.note(m, || format!("guest {index}: {part:?} {effect:?}"));
        let watch = match &effect {
            Effect::WatchOwn(path) => Some((Role::Own, path.clone())),
            Effect::WatchBefore(path) => Some((Role::Before, path.clone())),
            Effect::WatchQueue(is_on) => {
                let mode = self.claim(index).mode;
                Some((Role::Queue, is_on.then(|| self.guests.claimed.folder(mode, part))))
            }
            _ => None,
        };
        if let Some((role, path)) = watch {
            let watched = Watched(part, role);
            let watches = &mut self.claim(index).watches;
            match path {
                None => drop(watches.remove(&watched)),
                Some(path) => {
                    watches.insert(watched, Watch { path, is_open: false, children: BTreeSet::new() });
                    self.send_of_guest(index, Request::Watch(watched));
                }
            }
            return;
        }
        match effect {
            Effect::Notify(event) => self.hear_claim(index, event),
            Effect::GiveUpSession => self.give_up_session(m),
            effect => self.send_of_guest(index, Request::Claim(part, effect)),
        }
    }

    /// At the leader. Reads are made when the answer arrives.
    pub(super) fn claim_takes_effect(
        &mut self,
        session: usize,
        index: usize,
        part: Part,
        effect: Effect,
    ) -> Option<Answer> {
        let input = match effect {
            Effect::List(_) | Effect::Find(..) | Effect::ReadFirst(_) => {
                return Some(Answer::Read(part, effect));
            }
            Effect::Create(attempt, path) => {
                let step = Operation::create(path, NodeKind::EphemeralSequential, &*data(index));
                let result = self.commit_as(session, vec![step]).map_err(|error| error.error);
                let created = result.and_then(|results| match results.into_iter().next() {
                    Some(OperationResult::Created { path, stat }) => Ok((path, stat.created)),
                    other => Err(Error::Refused(format!("{other:?}"))),
                });
                Input::Created(attempt, created)
            }
            Effect::CreateParents => {
                let mode = self.claim(index).mode;
                let folder = self.guests.claimed.folder(mode, part);
                self.create_above(session, &folder, NodeKind::Container);
                Input::ParentsCreated(Ok(()))
            }
            Effect::Delete(path) => {
                let result = self.commit_as(session, vec![Operation::delete(path.clone())]);
                let result = match result.map_err(|error| error.error) {
                    Ok(_) | Err(Error::NoNode(_)) => Ok(()),
                    Err(error) => Err(error),
                };
                Input::Deleted(path, result)
            }
            Effect::CreateDelay(path) => {
                let step = Operation::create(path.clone(), NodeKind::Persistent, []);
                let result = self.commit_as(session, vec![step]);
                Input::DelayCreated(path, result.map(drop).map_err(|error| error.error))
            }
            Effect::WatchOwn(_)
            | Effect::WatchBefore(_)
            | Effect::WatchQueue(_)
            | Effect::Notify(_)
            | Effect::GiveUpSession => return None,
        };
        self.tell(|| format!("for guest {index}: {input:?}"));
        Some(Answer::Claim(part, input))
    }

    pub(super) fn read_for_claim(
        &mut self,
        server: usize,
        applied: usize,
        index: usize,
        part: Part,
        effect: Effect,
    ) {
        let mode = self.claim(index).mode;
        let folder = self.guests.claimed.folder(mode, part);
        let replica = self.ensemble.replica(server, applied);
        let node = |path: &Path| {
            let (data, stat): &Content = replica.get(path)?;
            Some(Node { path: path.clone(), data: data.clone(), stat: *stat })
        };
        let input = match effect {
            Effect::List(look) => {
                let below = subtree(replica, &folder).into_iter();
                let children = below.filter(|node| node.path.parent().as_ref() == Some(&folder));
                Input::Listed(look, Ok(children.map(|node| node.path.name().to_owned()).collect()))
            }
            Effect::Find(attempt, path) => {
                let found = node(&path);
                Input::Found(attempt, path, Ok(found))
            }
            Effect::ReadFirst(name) => {
                let found = node(&folder.child(&name));
                Input::FirstRead(name, found)
            }
            _ => return,
        };
        self.tell_guest(index, super::Input::Claim(part, input));
    }

    pub(super) fn open_watch_of_claim(
        &mut self,
        server: usize,
        applied: usize,
        index: usize,
        watched: Watched,
    ) {
        if let Some(watch) = self.claim(index).watches.get_mut(&watched) {
            watch.is_open = true;
            if watched.1 == Role::Queue {
                // It begins with a snapshot.
                watch.children.clear();
                let Watched(part, _) = watched;
                self.tell_guest(index, super::Input::Claim(part, Input::QueueChanged));
            }
            self.tell_watches_of_claim(server, applied, index);
        }
    }

    pub(super) fn tell_watches_of_claim(&mut self, server: usize, applied: usize, index: usize) {
        let replica = self.ensemble.replica(server, applied);
        let Core::Claim(claim) = &mut self.guests.all[index].core else { return };
        let mut told = Vec::new();
        claim.watches.retain(|Watched(part, role), watch| {
            if !watch.is_open {
                return true;
            }
            if *role == Role::Queue {
                let nodes = subtree(replica, &watch.path);
                let children = nodes.into_iter().map(|node| node.path.name().to_owned()).collect();
                if watch.children != children {
                    watch.children = children;
                    told.push((*part, Input::QueueChanged));
                }
                return true;
            }
            let is_there = replica.contains_key(&watch.path);
            if !is_there {
                told.push((*part, Input::Gone(watch.path.clone())));
            }
            is_there
        });
        for (part, input) in told {
            self.tell_guest(index, super::Input::Claim(part, input));
        }
        self.observe_for_claim(server, applied, index);
    }

    /// A candidate is told who leads.
    pub(super) fn observe_for_claim(&mut self, server: usize, applied: usize, index: usize) {
        let lock = self.guests.claimed.lock.clone();
        let is_open = self.guests.all[index].seen.is_some();
        if self.claim(index).mode != Mode::Candidate || !is_open {
            return;
        }
        let nodes = subtree(self.ensemble.replica(server, applied), lock.lock()).into_iter();
        let named = nodes.filter_map(|node| Some((lock.name_below(&node.path)?.to_owned(), Some(node))));
        let state = LockState::of(named);
        if self.claim(index).observed.as_ref() == Some(&state) {
            return;
        }
        let (leader, successor) = state.leader();
        self.claim(index).observed = Some(state);
        self.tell_guest(index, super::Input::Claim(Part::Queue, Input::LeaderSeen { leader, successor }));
    }

    /// An application hears an event.
    fn hear_claim(&mut self, index: usize, event: Event) {
        let (now, is_calm) = (self.now, self.is_calm);
        // Some hold for longer than a lease.
        let most = if self.guests.random.once_in(5) { 10 * SECOND } else { SECOND };
        let held = self.guests.random.below(if is_calm { 100 * MILLISECOND } else { most });
        let claim = self.claim(index);
        claim.belief.hear(&event);
        match event {
            Event::Acquired { token, path, lease_end } => {
                claim.node = Some(path.clone());
                let mode = claim.mode;
                if !claim.has_left {
                    claim.belief = Belief::Holds { token, until: lease_end };
                    claim.release_at = Some(now + held);
                }
                self.guests.grants += 1;
                self.check_turn(index, mode, &path);
                self.check_token(index, mode, token);
                self.check_term(index, token);
            }
            Event::Lost(_) => {
                claim.node = None;
                self.guests.losses += 1;
            }
            Event::LeaderChanged(Some(leader)) => self.check_term(index, leader.term),
            Event::Released => {
                let path = claim.node.take();
                if let Some(path) = path.filter(|path| self.ensemble.get(path).is_some()) {
                    self.fail(Invariant::LockOrder, || {
                        format!("guest {index} has given {path} back, and it is there")
                    });
                }
            }
            _ => {}
        }
    }

    /// A grant is in the order of the queue: no contender that excludes it stands before it.
    fn check_turn(&mut self, index: usize, mode: Mode, path: &Path) {
        let Some(folder) = path.parent() else { return };
        let names = self.ensemble.children(&folder);
        let before: Vec<_> = if mode == Mode::Permit {
            let own = permit_number(path.name());
            let lower = names.into_iter().filter(|name| permit_number(name) < own).collect::<Vec<_>>();
            if lower.len() < self.guests.claimed.permits { Vec::new() } else { lower }
        } else {
            let Child::Contender { number: own, .. } = Child::read(path.name()) else { return };
            let excludes = |name: &String| match Child::read(name) {
                Child::Contender { mode: its, number } => {
                    number < own && !(its == Mode::Read && mode == Mode::Read)
                }
                _ => false,
            };
            names.into_iter().filter(excludes).collect()
        };
        if !before.is_empty() {
            self.fail(Invariant::LockOrder, || format!("guest {index} holds by {path} before {before:?}"));
        }
    }

    /// Who is alone has a greater token than all before it: a store that knows the newest accepts it.
    fn check_token(&mut self, index: usize, mode: Mode, token: FencingToken) {
        if !matches!(mode, Mode::Mutex | Mode::Write | Mode::Candidate) {
            return;
        }
        let highest = &mut self.guests.claimed.highest;
        let known = std::mem::replace(highest, token.max(*highest));
        if token <= known {
            self.fail(Invariant::LockToken, || format!("guest {index} holds with {token:?} after {known:?}"));
        }
    }

    /// A candidate hears of no leader before the last one.
    fn check_term(&mut self, index: usize, term: FencingToken) {
        let known = std::mem::replace(&mut self.claim(index).term, term);
        if term < known {
            self.fail(Invariant::LockToken, || format!("guest {index} hears of {term:?} after {known:?}"));
        }
    }

    /// A candidate that is to stand again after a loss does so, until its application has left.
    pub(super) fn check_end_of_claim(&mut self, index: usize) {
        let claim = self.claim(index);
        let is_lost = matches!(claim.claim.end(), Some(End::Lost(LossReason::Lease | LossReason::Revoked)));
        if claim.stands_again && is_lost && !claim.has_left {
            self.fail(Invariant::NoSilentWait, || format!("candidate {index} does not stand again"));
        }
    }

    /// Once a second: a holder whose node an operator has deleted hears of it, if no fault is in the way.
    pub(super) fn check_losses_are_told(&mut self) {
        for index in self.holders() {
            let m = self.guests.all[index].machine;
            let sidecar = self.machines[m].sidecar.as_ref();
            let is_connected = sidecar.is_some_and(|sidecar| sidecar.client.link != Link::Down)
                && self.machines[m].cut_off_until <= self.now
                && !self.machines[m].is_stopped(self.now);
            let Some(path) = self.claim(index).node.clone() else { continue };
            let Some(looks) = self.guests.claimed.deleted.get_mut(&path) else { continue };
            *looks = if is_connected { *looks + 1 } else { 0 };
            if *looks > LOSS_TAKES {
                self.fail(Invariant::LockHolders, || {
                    format!("guest {index} does not hear that {path} was deleted")
                });
            }
        }
    }

    /// The guests that hold the lock, if their applications obey.
    fn holders(&self) -> Vec<usize> {
        let holds = |guest: &Guest| {
            let Core::Claim(claim) = &guest.core else { return false };
            let Belief::Holds { until, .. } = claim.belief else { return false };
            let now = self.machines[guest.machine].mono(self.now);
            // A sidecar that has not looked since cannot have told its application of the end.
            let is_told = !guest.is_over && until.is_some_and(|until| guest.stepped_at >= until);
            !(until.is_some_and(|until| now >= until) && (claim.counts || !is_told))
        };
        (0..self.guests.all.len()).filter(|index| holds(&self.guests.all[*index])).collect()
    }

    /// No two obedient applications hold the lock against its kind.
    fn check_holders(&mut self) {
        let mut holders = Vec::new();
        for index in self.holders() {
            let claim = self.claim(index);
            let (mode, belief, node) = (claim.mode, claim.belief, claim.node.clone());
            // An operator has taken it away.
            if !node.is_some_and(|path| self.guests.claimed.deleted.contains_key(&path)) {
                holders.push((index, mode, belief));
            }
        }
        let alone = holders.iter().filter(|(_, mode, _)| !matches!(mode, Mode::Read | Mode::Permit)).count();
        let permits = holders.iter().filter(|(_, mode, _)| *mode == Mode::Permit).count();
        if alone > 1 || (alone == 1 && holders.len() > 1) || permits > self.guests.claimed.permits {
            self.fail(Invariant::LockHolders, || format!("holders of one lock: {holders:?}"));
        }
    }

    /// An operator deletes the node of a holder, or the leader's, or the owner's of a sticky lock.
    pub(super) fn operator_breaks_lock(&mut self, kind: Kind) {
        if kind == Kind::Sticky {
            return self.operator_breaks_sticky_lock();
        }
        let holders = self.guests.all.iter().filter_map(|guest| match &guest.core {
            Core::Claim(claim) if matches!(claim.belief, Belief::Holds { .. }) => claim.node.clone(),
            _ => None,
        });
        let holders: Vec<_> = holders.collect();
        let place = self.guests.random.below(holders.len() as u64) as usize;
        if let Some(path) = holders.get(place).cloned() {
            self.tell(|| format!("an operator deletes {path}"));
            self.guests.claimed.deleted.insert(path.clone(), 0);
            self.operate(vec![Operation::delete(path)]);
        }
    }

    /// The leader names the last candidate as its successor, for a moment.
    pub(super) fn leader_names_successor(&mut self) {
        let lock = self.guests.claimed.lock.lock().clone();
        let mut names = self.ensemble.children(&lock);
        names.sort_unstable_by_key(|name| match Child::read(name) {
            Child::Contender { number, .. } => number,
            _ => u32::MAX,
        });
        if let [first, _, .., last] = &names[..] {
            let (path, named) = (lock.child(first), HandOver::write(last, b"value"));
            self.tell(|| format!("{first} names {last} as its successor"));
            self.operate(vec![Operation::set(path.clone(), &named)]);
            let later = 20 * MILLISECOND + self.guests.random.below(SECOND);
            self.later(later, vec![Operation::set(path, b"value")]);
        }
    }
}

/// The transaction of a request. `None`: it is a read.
pub(super) fn transaction(effect: &Effect) -> Option<Transaction> {
    match effect {
        Effect::Create(_, path) => {
            Some(vec![Operation::create(path.clone(), NodeKind::EphemeralSequential, [])])
        }
        Effect::Delete(path) => Some(vec![Operation::delete(path.clone())]),
        Effect::CreateDelay(path) => Some(vec![Operation::create(path.clone(), NodeKind::Persistent, [])]),
        _ => None,
    }
}

/// The answer to a write whose outcome its client does not learn.
pub(super) fn unknown(input: Input, error: Error) -> Input {
    match input {
        Input::Created(attempt, _) => Input::Created(attempt, Err(error)),
        Input::ParentsCreated(_) => Input::ParentsCreated(Err(error)),
        Input::DelayCreated(path, _) => Input::DelayCreated(path, Err(error)),
        Input::Deleted(path, _) => Input::Deleted(path, Err(error)),
        other => other,
    }
}
