//! The latches of elections, of failovers and of barriers: sequential nodes, of which the lowest holds (protocol 3.2).
//! Tasks of their own in the sidecar, as in `registry/latch.rs`: they are bounded in time, and always leave.

use std::collections::BTreeSet;

use sidekeeper::coordination::job::contract::input::Input;
use sidekeeper::coordination::job::membership::leadership::LATCH_LIMIT;
use sidekeeper::elasticjob::path::Barrier;
use sidekeeper::job::Item;
use sidekeeper::tree::{Error, NodeKind, Operation, OperationResult, Path, Transaction};

use super::Micros;
use super::client::{Ask, Link};
use super::ensemble::subtree;
use super::world::{Event, World};

/// The purpose of a latch.
#[derive(Debug, Clone)]
pub(super) enum Errand {
    Elect(Transaction),
    TakeOver(Transaction, BTreeSet<Item>),
    Barrier(Barrier),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Joining,
    Waiting,
    Acting,
    Holding,
    Leaving,
}

/// A contender.
#[derive(Debug)]
pub(super) struct Latch {
    errand: Errand,
    folder: Path,
    prefix: String,
    stage: Stage,
    failed: Option<String>,
    /// Whether a barrier's was said to be held.
    was_held: bool,
    /// The commits of a barrier's holder before it leaves.
    release: Option<Vec<Transaction>>,
}

impl World {
    pub(super) fn begin_latch(&mut self, m: usize, errand: Errand, limit: Option<Micros>) {
        let folder = match &errand {
            Errand::Elect(_) => self.paths.election_latch(),
            Errand::TakeOver(..) => self.paths.failover_latch(),
            Errand::Barrier(barrier) => self.paths.guarantee_latch(*barrier),
        };
        let limit = limit.unwrap_or_else(|| u64::try_from(LATCH_LIMIT.as_micros()).unwrap());
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        let client = &mut sidecar.client;
        client.last_latch += 1;
        let id = client.last_latch;
        let prefix = format!("_c_{m}x{}x{id}-latch-", sidecar.life);
        let (stage, life) = (Stage::Joining, sidecar.life);
        let (failed, was_held, release) = (None, false, None);
        let latch = Latch { errand, folder, prefix, stage, failed, was_held, release };
        client.latches.insert(id, latch);
        self.at(self.now + limit, Event::LatchLimit(m, life, id));
        self.send(m, Ask::JoinLatch(id));
    }

    fn latch(&mut self, m: usize, id: u64) -> Option<&mut Latch> {
        self.machines[m].sidecar.as_mut()?.client.latches.get_mut(&id)
    }

    /// At the leader: a node is created.
    pub(super) fn join_latch(&mut self, m: usize, session: usize, id: u64) -> Result<Path, Error> {
        let Some(latch) = self.latch(m, id) else { return Err(Error::SessionLost) };
        let (folder, prefix) = (latch.folder.clone(), latch.prefix.clone());
        self.create_above(session, &folder, NodeKind::Container);
        let step = Operation::create(folder.child(&prefix), NodeKind::EphemeralSequential, []);
        let created = self.commit_as(session, vec![step]).map_err(|error| error.error)?;
        match created.into_iter().next() {
            Some(OperationResult::Created { path, .. }) => Ok(path),
            other => Err(Error::Refused(format!("{other:?}"))),
        }
    }

    pub(super) fn act_in_latch(
        &mut self,
        m: usize,
        session: usize,
        id: u64,
        transactions: Vec<Transaction>,
    ) -> Result<(), Error> {
        let mut result = Ok(());
        for transaction in transactions {
            self.check_written(m, &transaction);
            let committed = self.commit_as(session, transaction).map(drop).map_err(|error| error.error);
            self.note(m, || format!("in latch {id}: {committed:?}"));
            result = result.and(committed);
        }
        result
    }

    pub(super) fn leave_latch_node(&mut self, m: usize, session: usize, id: u64) {
        let Some(latch) = self.latch(m, id) else { return };
        let (folder, prefix) = (latch.folder.clone(), latch.prefix.clone());
        for name in self.ensemble.children(&folder) {
            if name.starts_with(&prefix) {
                let _ = self.commit_as(session, vec![Operation::delete(folder.child(&name))]);
            }
        }
    }

    /// The nodes that a former process has left at latches.
    pub(super) fn clear_latches(&mut self, session: usize) {
        let id = self.sessions[session].handle.id();
        let barriers =
            [Barrier::Started, Barrier::Completed].map(|barrier| self.paths.guarantee_latch(barrier));
        for folder in [self.paths.election_latch(), self.paths.failover_latch()].into_iter().chain(barriers) {
            for name in self.ensemble.children(&folder) {
                let path = folder.child(&name);
                let node = self.ensemble.get(&path);
                if node.is_some_and(|node| node.stat.ephemeral_owner == Some(id)) {
                    let _ = self.commit_as(session, vec![Operation::delete(path)]);
                }
            }
        }
    }

    /// An answer about a latch.
    pub(super) fn latch_answered(&mut self, m: usize, id: u64, result: Result<Option<Path>, Error>) {
        let Some(latch) = self.latch(m, id) else { return };
        match (latch.stage, result) {
            (Stage::Joining, Ok(Some(_))) => latch.stage = Stage::Waiting,
            (Stage::Joining, Ok(None)) => {}
            (Stage::Joining, Err(error)) => self.leave_latch(m, id, Some(error.to_string())),
            (Stage::Acting, result) => {
                // Whether it took effect is for the view to tell; of a barrier it is said.
                let is_gate = matches!(latch.errand, Errand::Barrier(_));
                let failed = result.err().filter(|_| is_gate).map(|error| error.to_string());
                self.leave_latch(m, id, failed);
            }
            (Stage::Waiting | Stage::Holding | Stage::Leaving, _) => {}
        }
    }

    fn leave_latch(&mut self, m: usize, id: u64, failed: Option<String>) {
        let Some(latch) = self.latch(m, id) else { return };
        latch.stage = Stage::Leaving;
        latch.failed = latch.failed.take().or(failed);
        self.send(m, Ask::LeaveLatch(id));
    }

    /// A latch's node is gone.
    pub(super) fn left_latch(&mut self, m: usize, id: u64) {
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        if sidecar
            .client
            .latches
            .get(&id)
            .is_some_and(|latch| latch.was_held && latch.release.is_none() && latch.failed.is_some())
        {
            // A barrier's latch whose time is over: said when it is to be left.
            if let Some(latch) = sidecar.client.latches.get_mut(&id) {
                latch.stage = Stage::Holding;
            }
            return;
        }
        let Some(latch) = sidecar.client.latches.remove(&id) else { return };
        let failed = latch.failed.map_or(Ok(()), Err);
        match latch.errand {
            Errand::Elect(_) => self.hand_in(m, Input::Elected(failed)),
            Errand::TakeOver(_, items) => match failed {
                Ok(()) => self.read_taken(m, items),
                Err(error) => self.hand_in(m, Input::TookOver(Err(error))),
            },
            Errand::Barrier(barrier) => self.hand_in(m, Input::LatchLeft(barrier, failed)),
        }
    }

    /// A waiting contender checks whether the latch is free.
    pub(super) fn look_at_latches(&mut self, m: usize) {
        let Some(sidecar) = &self.machines[m].sidecar else { return };
        let Link::Up(server) = sidecar.client.link else { return };
        let waiting = sidecar.client.latches.iter().filter(|(_, latch)| latch.stage == Stage::Waiting);
        let waiting: Vec<u64> = waiting.map(|(id, _)| *id).collect();
        for id in waiting {
            let Some(latch) = self.latch(m, id) else { continue };
            let (folder, prefix) = (latch.folder.clone(), latch.prefix.clone());
            let applied = self.ensemble.applied(server, self.now);
            let mut names: Vec<String> = subtree(self.ensemble.replica(server, applied), &folder)
                .iter()
                .filter(|node| node.path != folder && node.path.name().contains("latch-"))
                .map(|node| node.path.name().to_owned())
                .collect();
            let number = |name: &str| name.rsplit_once("latch-").map_or(name, |(_, n)| n).to_owned();
            names.sort_by_key(|name| number(name));
            match names.iter().position(|name| name.starts_with(&prefix)) {
                Some(0) => self.hold_latch(m, id),
                Some(_) => {}
                None => self.leave_latch(m, id, Some("the latch's node was deleted".to_owned())),
            }
        }
    }

    fn hold_latch(&mut self, m: usize, id: u64) {
        let Some(latch) = self.latch(m, id) else { return };
        match latch.errand.clone() {
            Errand::Elect(transaction) | Errand::TakeOver(transaction, _) => {
                latch.stage = Stage::Acting;
                self.send(m, Ask::ActInLatch(id, vec![transaction]));
            }
            Errand::Barrier(barrier) => {
                (latch.stage, latch.was_held) = (Stage::Holding, true);
                self.hand_in(m, Input::LatchHeld(barrier));
            }
        }
    }

    /// The holder of a barrier's latch names its commits, and leaves.
    pub(super) fn release_gate(&mut self, m: usize, barrier: Barrier, transactions: Vec<Transaction>) {
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        let is_it = |latch: &Latch| matches!(latch.errand, Errand::Barrier(other) if other == barrier);
        let Some((id, latch)) = sidecar.client.latches.iter_mut().find(|(_, latch)| is_it(latch)) else {
            return;
        };
        let id = *id;
        latch.release = Some(Vec::new());
        if latch.failed.is_some() {
            // Its time was over.
            return self.left_latch(m, id);
        }
        latch.stage = Stage::Acting;
        self.send(m, Ask::ActInLatch(id, transactions));
    }

    /// The time that was given to a latch is over.
    pub(super) fn latch_limit(&mut self, m: usize, life: u32, id: u64) {
        let Some(sidecar) = &self.machines[m].sidecar else { return };
        if sidecar.life != life {
            return;
        }
        let Some(latch) = sidecar.client.latches.get(&id) else { return };
        if latch.stage != Stage::Leaving {
            let over = format!("the latch {} was not free in time", latch.folder);
            self.leave_latch(m, id, Some(over));
        }
    }

    /// A request about a latch has failed; it is left as soon as there is a connection.
    pub(super) fn latch_disturbed(&mut self, m: usize, id: u64) {
        if let Some(latch) = self.latch(m, id) {
            latch.stage = Stage::Leaving;
            latch.failed.get_or_insert_with(|| "the connection broke".to_owned());
        }
    }

    pub(super) fn disturb_latches(&mut self, m: usize) {
        let Some(sidecar) = &self.machines[m].sidecar else { return };
        let moving = |latch: &Latch| latch.stage != Stage::Holding && latch.stage != Stage::Waiting;
        let all = sidecar.client.latches.iter().filter(|(_, latch)| moving(latch));
        let all: Vec<u64> = all.map(|(id, _)| *id).collect();
        for id in all {
            self.latch_disturbed(m, id);
        }
    }

    /// There is a connection again.
    pub(super) fn resume_latches(&mut self, m: usize) {
        let Some(sidecar) = &self.machines[m].sidecar else { return };
        let leaving = sidecar.client.latches.iter().filter(|(_, latch)| latch.stage == Stage::Leaving);
        let leaving: Vec<u64> = leaving.map(|(id, _)| *id).collect();
        for id in leaving {
            self.send(m, Ask::LeaveLatch(id));
        }
    }
}
