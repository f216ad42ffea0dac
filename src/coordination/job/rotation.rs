//! Whose turn is it? In a job of one item with `SINGLE_SHARDING_BALANCE` the item walks over the servers, one execution
//! each (protocol 5.5).
//!
//! Whoever has executed the item names the next server in `next-job-instance-ip`; while that node exists, it says
//! whose turn it is, and the assignment does not. The node is ephemeral, and removed when it names a server that is
//! not there (which Java leaves standing); then the assignment holds again. Several instances of one server would all
//! execute in Java; of ours it is the first.
//!
//! Java passes the turn on in two requests, so the node is missing for a moment in between. Whoever took that for the
//! end of the turns would execute what Java has just executed, and name somebody else: it is nobody's turn until the
//! node has been missing for a while.

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

/// How long the node is missing before the assignment holds again. Far above the pause between Java's two requests; with
/// it, a fire that came meanwhile is still an ordinary one.
const PASSING_ON: Duration = Duration::from_millis(500);

/// Who may execute the item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::coordination) enum Turn {
    /// Whom it is assigned to.
    Assigned,
    /// Us, by this token.
    Ours(FencingToken),
    /// Somebody else, by this token.
    Others(FencingToken),
    /// Nobody, as far as is known: it is being passed on.
    Changing,
}

/// What was seen of the turns.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Relay {
    /// Whose turn it was when the view was last looked at, and by which token.
    seen: Option<(FencingToken, Option<Ipv4Addr>)>,
    /// When that turn's predecessor ended, or the last turn if there is none: a fire before that was for somebody else.
    /// `None`: not seen, or who had it has gone and can have left a fire to others.
    ended: Option<Timestamp>,
    /// Until when it may be on its way to the next server; monotonic.
    changing: Option<Duration>,
}

impl Relay {
    /// When the assignment holds again, if nobody is named until then; monotonic.
    pub(in crate::coordination) fn settles(&self) -> Option<Duration> {
        self.changing
    }

    /// Notices that the turn ends, and when nobody has got it after that. Tells whether the assignment holds again.
    pub(in crate::coordination) fn mind_turn(&mut self, cx: &Context) -> bool {
        let now = cx.now;
        if !cx.is_relay() || !cx.view.is_loaded() {
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
            // A fire that came in between is for whom it has come to.
            let ended = self.changing.and(self.ended).unwrap_or(next.since);
            *self = Self { seen: Some((token, ip)), ended: Some(ended), changing: None };
        }
        false
    }

    /// Whose turn it is.
    pub(in crate::coordination) fn turn(&self, cx: &Context) -> Turn {
        if !cx.is_relay() {
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

    /// Whether an instant is not after the one when we got the turn: then it was the predecessor's, who has executed the
    /// item for it or flagged it as missed.
    pub(in crate::coordination) fn came_before_turn(&self, cx: &Context, scheduled: Timestamp) -> bool {
        if has_ledger_of_turns(cx) {
            return false;
        }
        let for_us = matches!(self.turn(cx), Turn::Ours(_) | Turn::Assigned) && cx.is_relay();
        self.ended.is_some_and(|ended| for_us && scheduled <= ended)
    }
}

/// Whether the ledger tells what was executed or missed in the turns before ours, so that a fire between two turns, by
/// clocks that differ, is nobody else's: there is no Java instance, and what is missed is written down.
pub(in crate::coordination) fn has_ledger_of_turns(cx: &Context) -> bool {
    cx.makes_up() && cx.monitors() && !cx.has_java_peers()
}

/// The steps that give the turn to the next server, to go with those that end our execution of an item. One that the
/// job had when it was no relay yet has no turns.
pub(in crate::coordination) fn pass_on(cx: &Context, transaction: &mut Transaction, item: Item) {
    if !cx.is_relay() || !cx.has_item(item) {
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

/// Removes the turn of a server that is not there, so that the item does not stand still (P7).
pub(in crate::coordination) fn repair_relay(cx: &Context, out: &mut Outbox) {
    let Some(next) = cx.view.next_server().filter(|_| cx.is_relay()) else { return };
    let is_there = cx.view.available().iter().any(|id| id.server_ip() == next.ip);
    let ours = cx.is_leader() || cx.view.leader().is_some_and(|leader| leader.instance.is_java());
    let (path, version) = (cx.identity.paths.next_job_instance_ip(), Some(next.version));
    let active = cx.phase == Phase::Active && cx.is_registered();
    if !is_there && ours && active && out.may_commit(cx, Purpose::RepairRelay) {
        out.commit(Purpose::RepairRelay, vec![Operation::Delete { path, version }]);
    }
}
