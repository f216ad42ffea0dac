//! The locks of items: their queues at the servers, and the news of them. Other jobs ask for the same locks in the storm.
//!
//! The contenders of locks have a world of their own, with the requests of each. Here a queue is what it promises: first come,
//! first served, and a session that ends leaves it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use sidekeeper::coordination::job::contract::event::Execute;
use sidekeeper::coordination::job::contract::input::{Input, LockNews};
use sidekeeper::extension::item_lock;
use sidekeeper::job::{FencingToken, Item};

use crate::random::Random;

use super::client::Link;
use super::invariants::Invariant;
use super::world::{Event, World};
use super::{MILLISECOND, Micros, SECOND};

/// The pause before a request is sent again that could not be sent.
const AGAIN: Micros = 20 * MILLISECOND;
/// How long another job holds a lock at most.
const HELD_MAX: Micros = 3 * SECOND;

/// A request of a participant for a lock.
#[derive(Debug, Clone)]
struct Asked {
    machine: usize,
    /// Which participant of the machine: the number of its life.
    life: u32,
    number: u64,
    lock: String,
    is_given_back: bool,
}

/// A contender in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Contender {
    /// The request, and the session of its node. `None`: another job.
    asked: Option<(usize, usize)>,
    token: i64,
}

/// All queues.
pub(super) struct ItemLocks {
    queues: BTreeMap<String, VecDeque<Contender>>,
    asked: Vec<Asked>,
    news: Vec<(usize, usize, LockNews)>,
    last_token: i64,
    /// The tokens of contenders whose nodes the servers or an operator have deleted.
    taken: BTreeSet<i64>,
    /// The names of locks that operators have broken.
    broken: BTreeSet<String>,
    /// Chance of the other jobs.
    others: Random,
}

impl ItemLocks {
    pub(super) fn new(seed: u64) -> Self {
        let others = Random::new(seed ^ 0x4974_656d_4c6f_636b);
        let (queues, asked, news) = (BTreeMap::new(), Vec::new(), Vec::new());
        let (taken, broken) = (BTreeSet::new(), BTreeSet::new());
        Self { queues, asked, news, last_token: 0, taken, broken, others }
    }
}

impl World {
    /// A participant asks for a lock.
    pub(super) fn ask_item_lock(&mut self, machine: usize, number: u64, lock: String) {
        let life = self.machines[machine].lives;
        self.note(machine, || format!("asks for the lock {lock}, {number}"));
        self.item_locks.asked.push(Asked { machine, life, number, lock, is_given_back: false });
        let later = self.now + self.travel();
        self.at(later, Event::LockAsked(self.item_locks.asked.len() - 1));
    }

    /// The request reaches the servers, once there is a connection.
    pub(super) fn item_lock_asked(&mut self, index: usize) {
        let Asked { machine, life, ref lock, is_given_back, .. } = self.item_locks.asked[index];
        if is_given_back || !self.is_life(machine, life) {
            return;
        }
        let client = self.machines[machine].sidecar.as_ref().map(|sidecar| &sidecar.client);
        let session = client.filter(|client| client.link != Link::Down).and_then(|client| client.session);
        let Some(session) = session.filter(|session| self.sessions[*session].alive) else {
            return self.at(self.now + AGAIN, Event::LockAsked(index));
        };
        let lock = lock.clone();
        self.item_locks.last_token += 1;
        let contender = Contender { asked: Some((index, session)), token: self.item_locks.last_token };
        let queue = self.item_locks.queues.entry(lock).or_default();
        queue.push_back(contender);
        let news = match queue.len() {
            1 => LockNews::Held(FencingToken(contender.token)),
            _ => LockNews::Behind { holder: None },
        };
        self.send_lock_news(index, session, news);
    }

    /// A participant gives a lock back, or does not wait for it any more.
    pub(super) fn give_item_lock_back(&mut self, machine: usize, number: u64) {
        let life = self.machines[machine].lives;
        let is_it = |asked: &Asked| (asked.machine, asked.life, asked.number) == (machine, life, number);
        let Some(index) = self.item_locks.asked.iter().position(is_it) else { return };
        self.item_locks.asked[index].is_given_back = true;
        let later = self.now + self.travel();
        self.at(later, Event::LockGivenBack(index));
    }

    /// A participant has ended: the runner gives its locks back.
    pub(super) fn give_item_locks_back(&mut self, machine: usize) {
        let life = self.machines[machine].lives;
        let its = |asked: &&Asked| (asked.machine, asked.life, asked.is_given_back) == (machine, life, false);
        let numbers: Vec<_> = self.item_locks.asked.iter().filter(its).map(|asked| asked.number).collect();
        for number in numbers {
            self.give_item_lock_back(machine, number);
        }
    }

    pub(super) fn item_lock_given_back(&mut self, index: usize) {
        let machine = self.item_locks.asked[index].machine;
        let in_queue = |contender: &Contender| contender.asked.is_some_and(|(of, _)| of == index);
        let session = self.item_locks.queues.values().flatten().find(|contender| in_queue(contender));
        let Some((_, session)) = session.and_then(|contender| contender.asked) else { return };
        let client = self.machines[machine].sidecar.as_ref().map(|sidecar| &sidecar.client);
        let is_sent =
            client.is_some_and(|client| client.link != Link::Down && client.session == Some(session));
        if is_sent {
            self.leave_lock_queues(in_queue);
        } else if client.is_some_and(|client| client.session == Some(session)) {
            // Otherwise the end of the session does it.
            self.at(self.now + AGAIN, Event::LockGivenBack(index));
        }
    }

    /// The servers have ended a session.
    pub(super) fn end_item_locks(&mut self, session: usize) {
        let its = |contender: &Contender| contender.asked.is_some_and(|(_, of)| of == session);
        let nodes = self.item_locks.queues.values().flatten().filter(|contender| its(contender));
        let tokens: Vec<_> = nodes.map(|contender| contender.token).collect();
        self.item_locks.taken.extend(tokens);
        self.leave_lock_queues(its);
    }

    fn leave_lock_queues(&mut self, leaves: impl Fn(&Contender) -> bool) {
        let mut first = Vec::new();
        for queue in self.item_locks.queues.values_mut() {
            let before = queue.front().copied();
            queue.retain(|contender| !leaves(contender));
            first.extend(queue.front().copied().filter(|first| Some(*first) != before));
        }
        for Contender { asked, token } in first {
            if let Some((index, session)) = asked {
                self.send_lock_news(index, session, LockNews::Held(FencingToken(token)));
            }
        }
    }

    fn send_lock_news(&mut self, index: usize, session: usize, news: LockNews) {
        self.item_locks.news.push((index, session, news));
        let later = self.now + self.travel();
        self.at(later, Event::LockNews(self.item_locks.news.len() - 1));
    }

    /// News of a lock reaches its participant, if its connection has not broken; then it comes with the next one.
    pub(super) fn tell_lock_news(&mut self, place: usize) {
        let (index, session, news) = self.item_locks.news[place].clone();
        let Asked { machine, life, number, is_given_back, .. } = self.item_locks.asked[index];
        if is_given_back || !self.is_life(machine, life) || self.session_of(machine) != Some(session) {
            return;
        }
        let is_down = self.machines[machine].sidecar.as_ref().is_some_and(|it| it.client.link == Link::Down);
        if is_down || self.machines[machine].is_stopped(self.now) {
            return self.at(self.now + AGAIN, Event::LockNews(place));
        }
        let Some(seat) = self.machines[machine].seat() else { return };
        seat.results.push(Input::ItemLock(number, news));
        self.wake(machine, 0);
    }

    fn is_life(&self, machine: usize, life: u32) -> bool {
        let sidecar = self.machines[machine].sidecar.as_ref();
        self.machines[machine].lives == life && sidecar.is_some_and(|sidecar| sidecar.participant.is_some())
    }

    /// Once a second: another job takes the lock of an item, or an operator deletes the node of a holder.
    pub(super) fn contend_for_item_locks(&mut self) {
        let Some(lock) = item_lock::of(&self.plan.configuration, None).0.filter(|_| !self.is_calm) else {
            return;
        };
        let items: Vec<_> = self.items().collect();
        let others = &mut self.item_locks.others;
        let item = items[others.below(items.len() as u64) as usize];
        let name = lock.name(item);
        match others.below(8) {
            0 | 1 => {
                let held = 1 + others.below(HELD_MAX);
                self.tell(|| format!("another job asks for the lock {name}"));
                self.item_locks.last_token += 1;
                let token = self.item_locks.last_token;
                let contender = Contender { asked: None, token };
                self.item_locks.queues.entry(name).or_default().push_back(contender);
                self.at(self.now + held, Event::LockOfOtherOver(token));
            }
            2 => {
                let first = self.item_locks.queues.get(&name).and_then(|queue| queue.front()).copied();
                let Some(Contender { asked: Some((index, session)), token }) = first else { return };
                self.tell(|| format!("an operator breaks the lock {name}"));
                self.item_locks.taken.insert(token);
                self.item_locks.broken.insert(name);
                self.leave_lock_queues(|contender| contender.token == token);
                self.send_lock_news(index, session, LockNews::Lost("its node was deleted".to_owned()));
            }
            _ => {}
        }
    }

    /// Another job gives a lock back.
    pub(super) fn other_gives_lock_back(&mut self, token: i64) {
        self.leave_lock_queues(|contender| contender.token == token);
    }

    /// An execution is sent for the first time: its instance holds the lock of the item, or the servers have taken it away.
    pub(super) fn check_item_lock(&mut self, machine: usize, execute: &Execute) {
        let Some(lock) = item_lock::of(&execute.configuration, None).0 else { return };
        let name = lock.name(execute.item);
        let Some(FencingToken(token)) = execute.lock_token else {
            let item = execute.item;
            return self.fail(Invariant::Locked, || {
                format!("m{machine} begins item {item} without the lock {name}")
            });
        };
        let queue = self.item_locks.queues.get(&name);
        let holds = queue.and_then(|queue| queue.front()).is_some_and(|first| first.token == token);
        if !holds && !self.item_locks.taken.contains(&token) {
            let (item, queue) = (execute.item, queue.cloned());
            self.fail(Invariant::Locked, || {
                format!("m{machine} begins item {item} with token {token} of the lock {name}: {queue:?}")
            });
        }
    }

    /// Whether an operator has broken the lock of an item. Its execution may have been interrupted by that.
    pub(super) fn is_lock_broken(&self, item: Item) -> bool {
        let lock = item_lock::of(&self.plan.configuration, None).0;
        lock.is_some_and(|lock| self.item_locks.broken.contains(&lock.name(item)))
    }

    /// A lock that another job holds, or a session that nobody uses: the item cannot be executed at its fires.
    pub(super) fn lock_of_other(&self) -> Option<&str> {
        let sidecars = self.machines.iter().filter_map(|machine| machine.sidecar.as_ref());
        let used: BTreeSet<_> = sidecars.filter_map(|sidecar| sidecar.client.session).collect();
        let is_others =
            |contender: &Contender| contender.asked.is_none_or(|(_, session)| !used.contains(&session));
        let queue = self.item_locks.queues.iter().find(|(_, queue)| queue.iter().any(is_others));
        queue.map(|(name, _)| name.as_str())
    }

    /// In the end nothing waits for a lock, and nothing holds one, but executions.
    pub(super) fn check_item_locks_left(&mut self) {
        let left: Vec<_> = self.item_locks.queues.iter().filter(|(_, queue)| !queue.is_empty()).collect();
        let text = left.first().map(|(name, queue)| format!("{name}: {queue:?}"));
        if let Some(text) = text {
            self.fail(Invariant::NothingLeft, || format!("contenders for an item's lock are left: {text}"));
        }
    }
}
