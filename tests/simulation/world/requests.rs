//! How requests of the nodes take effect: one by one, now and then with a lost answer; and the holders of the latches.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::FutureExt;
use sidekeeper::coordination::job::contract::input::Input;
use sidekeeper::elasticjob::path::{Barrier, Place};
use sidekeeper::extension::ledger_entry::LedgerEntry;
use sidekeeper::extension::path::ExtensionPaths;
use sidekeeper::job::Item;
use sidekeeper::registry::{CommitError, Error};
use sidekeeper::tree::{NodeKind, Operation, Path};

use super::{Ask, Contender, World};

impl World {
    /// The registry stamps the next writes with its own time.
    pub(super) fn set_registry_clock(&mut self) {
        let registry_now = self.now.as_millisecond() + self.registry_ahead_ms;
        self.registry_ms.store(registry_now, Ordering::Relaxed);
    }

    /// One request of the node takes effect.
    pub(super) fn perform(&mut self, index: usize) {
        self.set_registry_clock();
        let one_by_one = self.one_by_one;
        let node = &mut self.nodes[index];
        let ask = node.line.pop_front();
        self.traffic.requests += usize::from(ask.is_some());
        match ask {
            Some(Ask::Commit(id, transaction)) => {
                let stolen = if one_by_one { stolen(node, &transaction) } else { Vec::new() };
                let forgotten = forgotten(node, &transaction);
                let overwritten = if self.javas.is_empty() { None } else { overwritten(node, &transaction) };
                let overwritten = overwritten.filter(|(item, _)| !self.was_erased_just_now(*item));
                let node = &mut self.nodes[index];
                let lost = self.lossy && self.random.once_in(25);
                let delayed = self.delays_request.take_if(|delays| *delays == index).is_some();
                if delayed {
                    self.delayed = Some((index, transaction.clone()));
                }
                // A request that was lost on its way did nothing; one whose answer was lost did all of it.
                let result = if delayed || (lost && self.random.once_in(2)) {
                    Ok(Vec::new())
                } else {
                    node.session.commit(transaction).now_or_never().expect("at once")
                };
                let lost = self.loses_answer.take_if(|loses| *loses == index).is_some() || lost || delayed;
                assert!(
                    stolen.is_empty() || result.is_err(),
                    "seed {}: {index} has taken {stolen:?} from an instance that is online",
                    self.seed
                );
                assert!(
                    overwritten.is_none() || result.is_err(),
                    "seed {}: at {}, {index} has touched another's running node: {overwritten:?}\n{:#?}",
                    self.seed,
                    self.now,
                    self.log
                );
                assert!(
                    forgotten.is_empty() || result.is_err(),
                    "seed {}: {index} has written an older ledger: {forgotten:?}",
                    self.seed
                );
                let unknown = CommitError::from(Error::OutcomeUnknown("the answer was lost".to_owned()));
                let result = if lost { Err(unknown) } else { result };
                node.results.push_back(Input::Committed(id, result));
            }
            Some(Ask::Elect(transaction)) => node.line.push_back(Ask::Lead(transaction)),
            Some(Ask::Lead(transaction)) => {
                for parent in ["leader", "leader/election"] {
                    let path = Path::parse("/ns").unwrap().child(&format!("job/{parent}"));
                    let _ = node.session.ensure(&path, NodeKind::Container, b"").now_or_never().unwrap();
                }
                let _ = node.session.commit(transaction).now_or_never().unwrap();
                node.results.push_back(Input::Elected(Ok(())));
            }
            Some(Ask::FindCheckpoints(items)) => {
                let paths = ExtensionPaths::new(&Path::parse("/ns").unwrap(), &self.configuration.job_name);
                let session = Arc::clone(&node.session);
                let find = sidekeeper::runner::job::reads::find_checkpoints(session, paths, items);
                let found = find.now_or_never().unwrap_or(Err("later".into()));
                node.results.push_back(Input::Checkpoints(found));
            }
            Some(Ask::TakeOver(transaction, items)) => {
                let _ = node.session.commit(transaction).now_or_never().unwrap();
                let paths = ExtensionPaths::new(&Path::parse("/ns").unwrap(), &self.configuration.job_name);
                let read =
                    sidekeeper::runner::job::reads::read_taken(Arc::clone(&node.session), paths, items);
                node.results.push_back(Input::TookOver(read.now_or_never().unwrap_or(Err("later".into()))));
            }
            Some(Ask::ReadLedger) => {
                let paths = ExtensionPaths::new(&Path::parse("/ns").unwrap(), &self.configuration.job_name);
                let read = sidekeeper::runner::job::reads::read(Arc::clone(&node.session), paths);
                node.results.push_back(Input::Ledger(read.now_or_never().unwrap_or(Err("later".into()))));
            }
            Some(Ask::JoinLatch(barrier, until)) => {
                let contenders = self.latches.entry(barrier).or_default();
                contenders.push_back(Contender { node: index, until, held: false });
                self.grant(barrier);
            }
            Some(Ask::LeaveLatch(barrier, transactions)) => {
                let mut result = Ok(());
                for transaction in transactions {
                    let committed = node.session.commit(transaction).now_or_never().unwrap();
                    result = result.and(committed.map(drop).map_err(|error| error.to_string()));
                }
                node.results.push_back(Input::LatchLeft(barrier, result));
                self.leave_latch(barrier, index);
            }
            Some(Ask::Watch) => {
                let root = Path::parse("/ns/job").unwrap();
                let filter_root = root.clone();
                let wants = Arc::new(move |path: &Path| {
                    path.relative_to(&filter_root).is_some_and(|relative| Place::of(relative).wants_data())
                });
                node.watch = node.session.watch(&root, wants).now_or_never().unwrap().ok();
                let fleet = Path::parse("/ns-sidekeeper/job/fleet").unwrap();
                let all = Arc::new(|_: &Path| true);
                node.fleet = node.session.watch(&fleet, all).now_or_never().unwrap().ok();
            }
            None => {}
        }
    }

    /// The delayed request takes effect, after its node has heard that the outcome is unknown.
    pub fn deliver_delayed(&mut self) {
        let (index, transaction) = self.delayed.take().expect("a delayed request");
        self.set_registry_clock();
        let committed = self.nodes[index].session.commit(transaction).now_or_never().expect("at once");
        committed.expect("nothing has changed meanwhile");
    }

    /// A node has ended: requests that it sent in tasks of their own still take effect.
    pub(super) fn take_late_effect(&mut self, index: usize) {
        let line = &mut self.nodes[index].line;
        line.retain(|ask| matches!(ask, Ask::Elect(_) | Ask::Lead(_) | Ask::TakeOver(..)));
        while !self.expiring && !self.nodes[index].line.is_empty() {
            self.perform(index);
        }
    }

    /// Whether a node is a candidate.
    pub fn is_candidate(&self, node: usize) -> bool {
        self.nodes[node].line.iter().any(|ask| matches!(ask, Ask::Elect(_) | Ask::Lead(_)))
    }

    /// Whether a node is about to read the job's nodes again.
    pub fn is_reading(&self, node: usize) -> bool {
        self.nodes[node].line.iter().any(|ask| matches!(ask, Ask::Watch))
    }

    /// Whether a node is about to read the ledger.
    pub fn is_reading_ledger(&self, node: usize) -> bool {
        self.nodes[node].line.iter().any(|ask| matches!(ask, Ask::ReadLedger))
    }

    /// Whether a node has been asked to take items over, and has not.
    pub fn is_taking(&self, node: usize) -> bool {
        self.nodes[node].line.iter().any(|ask| matches!(ask, Ask::TakeOver(..)))
    }

    /// Gives a latch to the node at its head.
    pub(super) fn grant(&mut self, barrier: Barrier) {
        let head = self.latches.get_mut(&barrier).and_then(VecDeque::front_mut);
        if let Some(head) = head.filter(|head| !head.held) {
            head.held = true;
            self.nodes[head.node].results.push_back(Input::LatchHeld(barrier));
        }
    }

    pub(super) fn leave_latch(&mut self, barrier: Barrier, index: usize) {
        if let Some(contenders) = self.latches.get_mut(&barrier) {
            contenders.retain(|contender| contender.node != index);
        }
        self.grant(barrier);
    }

    /// H1: no node stays at a latch longer than it announced.
    pub(super) fn time_out_latches(&mut self) {
        for barrier in [Barrier::Started, Barrier::Completed] {
            let Some(contenders) = self.latches.get_mut(&barrier) else { continue };
            for contender in contenders.iter().filter(|contender| contender.until < self.now) {
                assert!(
                    !contender.held,
                    "seed {}: {} holds {barrier:?} for too long",
                    self.seed, contender.node
                );
                let late = Input::LatchLeft(barrier, Err("the latch was not free".to_owned()));
                self.nodes[contender.node].results.push_back(late);
            }
            contenders.retain(|contender| contender.held || contender.until >= self.now);
        }
    }
}

/// The items that a transaction takes from another instance that is online.
fn stolen(node: &super::Node, transaction: &[Operation]) -> Vec<Path> {
    let read = |path: &Path| node.session.get(path).now_or_never().unwrap().unwrap();
    let root = Path::parse("/ns/job").unwrap();
    let is_stolen = |path: &Path| {
        let relative = path.relative_to(&root).unwrap_or_default();
        let Place::ItemInstance(_) = Place::of(relative) else { return false };
        let owner = read(path).map(|owner| String::from_utf8_lossy(&owner.data).into_owned());
        let another = owner.filter(|owner| *owner != node.instance.to_string());
        another.is_some_and(|owner| read(&root.child(&format!("instances/{owner}"))).is_some())
    };
    let deleted = transaction.iter().filter_map(|step| match step {
        Operation::Delete { path, .. } => Some(path),
        Operation::Create { .. } | Operation::Set { .. } | Operation::Check { .. } => None,
    });
    deleted.filter(|path| is_stolen(path)).cloned().collect()
}

/// The running node that a transaction deletes or writes, though it belongs to another instance that is online.
fn overwritten(node: &super::Node, transaction: &[Operation]) -> Option<(Item, String)> {
    let root = Path::parse("/ns/job").unwrap();
    let read = |path: &Path| node.session.get(path).now_or_never().unwrap().ok().flatten();
    let overwritten = |path: &Path| {
        let Some(Place::Running(item)) = path.relative_to(&root).map(Place::of) else { return None };
        let running = read(path)?;
        let another = String::from_utf8_lossy(&running.data).into_owned();
        let is_another = another != node.instance.to_string() && !another.is_empty();
        let instance = read(&root.child(&format!("instances/{another}"))).filter(|_| is_another)?;
        // A node that an earlier session of the same instance left may go.
        let is_its = running.stat.created > instance.stat.created;
        is_its.then(|| (item, format!("{item} of {another}: {transaction:?}")))
    };
    let touched = transaction.iter().filter_map(|step| match step {
        Operation::Delete { path, .. } | Operation::Set { path, .. } => Some(path),
        Operation::Create { .. } | Operation::Check { .. } => None,
    });
    touched.into_iter().find_map(overwritten)
}

/// The entries of the ledger that a transaction sets back, so that a fire would be executed once more.
fn forgotten(node: &super::Node, transaction: &[Operation]) -> Vec<Path> {
    let folder = Path::parse("/ns-sidekeeper/job/fires").unwrap();
    let is_forgotten = |path: &Path, data: &[u8]| {
        // A node whose connection is broken writes nothing either.
        let known = node.session.get(path).now_or_never().unwrap().ok().flatten();
        path.parent().as_ref() == Some(&folder)
            && known
                .is_some_and(|known| LedgerEntry::read(data).latest < LedgerEntry::read(&known.data).latest)
    };
    let set = transaction.iter().filter_map(|step| match step {
        Operation::Set { path, data, .. } => Some((path, data)),
        Operation::Create { .. } | Operation::Delete { .. } | Operation::Check { .. } => None,
    });
    set.filter(|(path, data)| is_forgotten(path, data)).map(|(path, _)| path.clone()).collect()
}
