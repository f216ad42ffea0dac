//! The queues of the items' locks: the first instance of a queue holds, and the token grows with each holder.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use sidekeeper::coordination::job::contract::event::Execute;
use sidekeeper::coordination::job::contract::input::{Input, LockNews};
use sidekeeper::extension::item_lock;
use sidekeeper::job::FencingToken;

use super::World;

/// A contender for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Contender {
    /// A node of this world, and the number of its request; `None`: another job.
    asked: Option<(usize, u64)>,
    token: i64,
}

#[derive(Debug, Default)]
pub struct Queues {
    queues: BTreeMap<String, VecDeque<Contender>>,
    last_token: i64,
    /// The tokens of holders whose nodes an operator has deleted; a start may be on its way.
    broken: BTreeSet<i64>,
}

impl Queues {
    fn push(&mut self, lock: &str, asked: Option<(usize, u64)>) {
        self.last_token += 1;
        let contender = Contender { asked, token: self.last_token };
        self.queues.entry(lock.to_owned()).or_default().push_back(contender);
    }

    /// The nodes in the queue of a lock, the holder first. `None`: another job.
    pub fn queue(&self, lock: &str) -> Vec<Option<usize>> {
        let queue = self.queues.get(lock).into_iter().flatten();
        queue.map(|contender| contender.asked.map(|(node, _)| node)).collect()
    }
}

impl World {
    /// Another job asks for a lock.
    pub fn take_lock(&mut self, lock: &str) {
        self.locks.push(lock, None);
    }

    /// The other job gives the lock back, or does not wait for it any more.
    pub fn free_lock(&mut self, lock: &str) {
        self.leave_queues(|of, contender| of == lock && contender.asked.is_none());
    }

    /// An operator deletes the node of the holder of a lock.
    pub fn break_lock(&mut self, lock: &str) {
        let first = self.locks.queues[lock][0];
        if let Some((node, number)) = first.asked {
            let lost = LockNews::Lost("somebody has deleted its node".to_owned());
            self.nodes[node].results.push_back(Input::ItemLock(number, lost));
        }
        self.locks.broken.insert(first.token);
        self.leave_queues(|of, contender| of == lock && *contender == first);
    }

    /// The first node in the queue of a lock hears that it cannot have the lock.
    pub fn refuse_lock(&mut self, lock: &str) {
        let first = self.locks.queues[lock].iter().find_map(|contender| contender.asked);
        let (node, number) = first.expect("a node in the queue");
        let refused = LockNews::Lost("its queue is full".to_owned());
        self.nodes[node].results.push_back(Input::ItemLock(number, refused));
        self.leave_queues(|_, contender| contender.asked == first);
    }

    pub(super) fn ask_lock(&mut self, node: usize, number: u64, lock: &str) {
        self.locks.push(lock, Some((node, number)));
        let queue = &self.locks.queues[lock];
        let news = match queue.front() {
            Some(first) if queue.len() == 1 => LockNews::Held(FencingToken(first.token)),
            _ => LockNews::Behind { holder: Some("another job".to_owned()) },
        };
        self.nodes[node].results.push_back(Input::ItemLock(number, news));
    }

    pub(super) fn give_lock_back(&mut self, node: usize, number: u64) {
        self.leave_queues(|_, contender| contender.asked == Some((node, number)));
    }

    /// The session of a node has ended.
    pub(super) fn end_locks(&mut self, node: usize) {
        self.leave_queues(|_, contender| contender.asked.is_some_and(|(of, _)| of == node));
    }

    fn leave_queues(&mut self, leaves: impl Fn(&str, &Contender) -> bool) {
        for (lock, queue) in &mut self.locks.queues {
            let before = queue.front().copied();
            queue.retain(|contender| !leaves(lock, contender));
            let first = queue.front().copied().filter(|first| Some(*first) != before);
            if let Some((node, number)) = first.and_then(|first| first.asked) {
                let held = LockNews::Held(FencingToken(first.unwrap().token));
                self.nodes[node].results.push_back(Input::ItemLock(number, held));
            }
        }
    }

    /// An execution begins only while its node holds the lock of the item, and has the lock's token.
    pub(super) fn check_lock(&self, node: usize, execute: &Execute) {
        let Some(lock) = item_lock::of(&execute.configuration, None).0 else {
            assert_eq!(execute.lock_token, None, "seed {}", self.seed);
            return;
        };
        if execute.lock_token.is_some_and(|token| self.locks.broken.contains(&token.0)) {
            return;
        }
        let lock = lock.name(execute.item);
        let holder = self.locks.queues.get(&lock).and_then(|queue| queue.front());
        let is_holder = holder.is_some_and(|holder| {
            holder.asked.is_some_and(|(of, _)| of == node)
                && execute.lock_token == Some(FencingToken(holder.token))
        });
        assert!(is_holder, "seed {}: {node} begins item {} and {holder:?} holds", self.seed, execute.item);
    }
}
