//! Whose turn is it? In a job of one item with `SINGLE_SHARDING_BALANCE` the item walks over the servers, one execution
//! each (protocol 5.5).
//!
//! Whoever has executed the item names the next server in `next-job-instance-ip`; while that node exists, it says
//! whose turn it is, and the assignment does not. The node is ephemeral, and removed when it names a server that is
//! not there (which Java leaves standing); then the assignment holds again. Several instances of one server would all
//! execute in Java; of ours it is the first.

use std::net::Ipv4Addr;

use crate::job::{FencingToken, ShardingStrategy};
use crate::tree::{NodeKind, Operation, Transaction};

use super::effect::Purpose;
use super::input::Now;
use super::participant::{Participant, Phase};

/// Who may execute the item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Whom it is assigned to.
    Assigned,
    /// Us, by this token.
    Ours(FencingToken),
    /// Somebody else, by this token.
    Others(FencingToken),
}

impl Participant {
    /// Whether the job's item walks over the servers.
    pub(super) fn is_relay(&self) -> bool {
        self.settings.as_ref().is_some_and(|settings| {
            settings.strategy == ShardingStrategy::SingleShardingBalance
                && settings.configuration.sharding_total_count == 1
        })
    }

    /// Whose turn it is.
    pub(super) fn turn(&self) -> Turn {
        let Some(next) = self.view.next_server().filter(|_| self.is_relay()) else { return Turn::Assigned };
        let Some(ip) = next.ip else { return Turn::Assigned };
        let first = self.view.available().into_iter().find(|id| id.server_ip() == Some(ip));
        if first.as_ref() == Some(&self.identity.instance) {
            Turn::Ours(next.token)
        } else {
            Turn::Others(next.token)
        }
    }

    /// The steps that give the turn to the next server, to go with those that end our execution.
    pub(super) fn pass_on(&self, transaction: &mut Transaction) {
        if !self.is_relay() {
            return;
        }
        let servers: Vec<Ipv4Addr> = self.view.available().iter().filter_map(|id| id.server_ip()).collect();
        let ours = servers.iter().position(|ip| *ip == self.identity.server_ip);
        let next = ours.and_then(|ours| servers.iter().cycle().nth(ours + 1)).or(servers.first());
        let Some(next) = next else { return };
        let path = self.identity.paths.next_job_instance_ip();
        if let Some(known) = self.view.next_server() {
            transaction.push(Operation::Delete { path: path.clone(), version: Some(known.version) });
        }
        transaction.push(Operation::create(path, NodeKind::Ephemeral, next.to_string()));
    }

    /// Removes a turn of somebody who is not there, so that the item does not stand still (P7).
    pub(super) fn repair_relay(&mut self, now: Now) {
        let Some(next) = self.view.next_server().filter(|_| self.is_relay()) else { return };
        let is_there = self.view.available().iter().any(|id| id.server_ip() == next.ip);
        let ours = self.is_leader() || self.view.leader().is_some_and(|leader| leader.instance.is_java());
        let (path, version) = (self.identity.paths.next_job_instance_ip(), Some(next.version));
        let active = self.phase == Phase::Active && self.is_registered();
        if !is_there && ours && active && self.may_commit(now, Purpose::RepairRelay) {
            self.commit(Purpose::RepairRelay, vec![Operation::Delete { path, version }]);
        }
    }
}
