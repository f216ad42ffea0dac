//! Whose turn is it? In a job of one item with `SINGLE_SHARDING_BALANCE` the item rotates over the servers, one
//! execution each (protocol 5.5).
//!
//! The instance that has executed the item names the next server in `next-job-instance-ip`. While that node exists, it
//! says which server has the turn, and the assignment does not count. The node is ephemeral, and the leader removes it
//! when it names a server without an online instance (Java leaves it); then the assignment holds again. In Java, all
//! instances of one server would execute the item; among sidecars it is the first.
//!
//! Java passes the turn on in two requests, so the node is missing for a moment in between. An instance that took this
//! for the end of the turns would execute the item again after Java, and name another server: so no server has the turn
//! until the node has been missing for a while.

use std::net::Ipv4Addr;
use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Phase;
use crate::job::{FencingToken, Item};
use crate::mutants::mutant;
use crate::tree::{NodeKind, Operation, Transaction};

/// How long the node is missing before the assignment holds again. Far above the pause between Java's two requests; a
/// fire in that time is still an ordinary one afterwards.
const PASSING_ON: Duration = Duration::from_millis(500);

/// The server that may execute the item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The owner of the item.
    Assigned,
    /// This instance, with this token.
    Ours(FencingToken),
    /// Another instance, with this token.
    Others(FencingToken),
    /// No known server: the turn is being passed on.
    Changing,
}

/// The turns that the views have shown.
#[derive(Debug, Default)]
pub(crate) struct Rotation {
    /// The turn in the last view: its token and its server.
    seen: Option<(FencingToken, Option<Ipv4Addr>)>,
    /// When the turn before that one ended, or the last turn if there is none now: a fire before that was another
    /// server's. `None`: not seen, or the server of that turn is offline and may have left a fire to others.
    ended: Option<Timestamp>,
    /// Until when the turn may be on its way to the next server; monotonic.
    changing: Option<Duration>,
}

impl Rotation {
    /// When the assignment holds again, if no server gets the turn until then; monotonic.
    pub(crate) fn settles(&self) -> Option<Duration> {
        self.changing
    }

    /// Records the end of a turn, and that no server has got the next one in time. Returns whether the assignment holds
    /// again.
    pub(crate) fn update_turn(&mut self, cx: &Context) -> bool {
        let now = cx.now;
        if !cx.rotates() || !cx.view.is_loaded() {
            return false;
        }
        let Some(next) = cx.view.next_server() else {
            if let Some((_, ip)) = self.seen.take() {
                let is_there = cx.view.available().iter().any(|id| id.server_ip() == ip);
                let changing = now.mono.saturating_add(PASSING_ON);
                let ended = is_there.then_some(now.wall);
                *self = Self { seen: None, ended, changing: Some(changing) };
            }
            if self.changing.is_some_and(|until| now.mono >= until) {
                self.changing = None;
                return true;
            }
            return false;
        };
        let (token, ip) = (next.token, next.ip);
        if self.seen.is_none_or(|(seen, _)| seen != token) {
            // A fire that came in between is for the server that has got the turn.
            let ended = self.changing.and(self.ended).unwrap_or(next.since);
            *self = Self { seen: Some((token, ip)), ended: Some(ended), changing: None };
        }
        false
    }

    pub(crate) fn turn(&self, cx: &Context) -> Turn {
        if !cx.rotates() {
            return Turn::Assigned;
        }
        let Some(next) = cx.view.next_server() else {
            return if self.changing.is_some() { Turn::Changing } else { Turn::Assigned };
        };
        let Some(ip) = next.ip else { return Turn::Assigned };
        let first = cx.view.available().into_iter().find(|id| id.server_ip() == Some(ip));
        if first.as_ref() == Some(&cx.identity.instance) {
            Turn::Ours(next.token)
        } else {
            Turn::Others(next.token)
        }
    }

    /// Whether an instant is not after the start of this instance's turn: then it was the predecessor's, which has
    /// executed the item for it or flagged it as missed.
    pub(crate) fn came_before_turn(&self, cx: &Context, scheduled: Timestamp) -> bool {
        if has_ledger_of_turns(cx) {
            return false;
        }
        let for_us = matches!(self.turn(cx), Turn::Ours(_) | Turn::Assigned) && cx.rotates();
        self.ended.is_some_and(|ended| for_us && scheduled <= ended)
    }
}

/// Whether the ledger has the executed and the missed fires of the turns before this instance's, so that a fire between
/// two turns, by clocks that differ, belongs to this one: there is no Java instance, and missed fires are written down.
pub(crate) fn has_ledger_of_turns(cx: &Context) -> bool {
    cx.reruns_missed() && cx.monitors() && !cx.has_java_peers()
}

/// The steps that give the turn to the next server, for the transaction that ends an execution of the item. An item
/// that the job had before it was a rotation has no turns.
pub(crate) fn pass_on(cx: &Context, transaction: &mut Transaction, item: Item) {
    if !cx.rotates() || !cx.has_item(item) {
        return;
    }
    let servers: Vec<Ipv4Addr> = cx.assignable().iter().filter_map(|id| id.server_ip()).collect();
    let ours = servers.iter().position(|ip| *ip == cx.identity.server_ip);
    let steps = if mutant!(TurnKept) { 0 } else { 1 };
    let next = ours.and_then(|ours| servers.iter().cycle().nth(ours + steps)).or(servers.first());
    let Some(next) = next else { return };
    let path = cx.identity.paths.next_job_instance_ip();
    if let Some(known) = cx.view.next_server() {
        transaction.push(Operation::Delete { path: path.clone(), version: Some(known.version) });
    }
    transaction.push(Operation::create(path, NodeKind::Ephemeral, next.to_string()));
}

/// Removes the turn of a server that is offline, so that the item does not stand still (P7).
pub(crate) fn repair_rotation(cx: &Context, out: &mut Outbox) {
    let Some(next) = cx.view.next_server().filter(|_| cx.rotates()) else { return };
    let is_there = cx.view.available().iter().any(|id| id.server_ip() == next.ip);
    let ours = cx.is_leader() || cx.view.leader().is_some_and(|leader| leader.instance.is_java());
    let (path, version) = (cx.identity.paths.next_job_instance_ip(), Some(next.version));
    let active = cx.phase == Phase::Active && cx.is_registered();
    if !is_there && ours && active && out.may_commit(cx, Purpose::RepairRotation) {
        out.commit(Purpose::RepairRotation, vec![Operation::Delete { path, version }]);
    }
}
