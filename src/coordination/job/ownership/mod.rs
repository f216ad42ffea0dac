//! The owner of each item: resharding of all items at once, handoff of one by one, and reservations for names of
//! offline instances; and the end of an operator's disabling.
//!
//! This file has the interface of the room; each question has a file of its own.

pub(crate) mod allocation;
pub(crate) mod disabling_end;
pub mod forecast;
mod handoff_plan;
mod handoff_release;
mod java_peers;
mod leader_reminder;
pub mod mode;
pub mod reservation;
mod resharding;
mod settling;
mod targets;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::execution::Executions;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::membership::Membership;
use crate::coordination::job::ownership::handoff_release::{Handoff, hands_over};
use crate::coordination::job::ownership::java_peers::JavaPeers;
use crate::coordination::job::ownership::leader_reminder::LeaderReminder;
use crate::coordination::job::ownership::mode::{Mode, Modes};
use crate::coordination::job::ownership::reservation::Reservations;
use crate::coordination::job::ownership::resharding::Resharding;
use crate::coordination::job::ownership::settling::Settling;
use crate::coordination::job::ownership::targets::Targets;
use crate::findings::problem::Problem;
use crate::job::{Generation, InstanceId, Item};

/// The state of resharding and handoff: of an owner, and of the leader.
#[derive(Debug, Default)]
pub(crate) struct Ownership {
    modes: Modes,
    settling: Settling,
    targets: Targets,
    resharding: Resharding,
    handoff: Handoff,
    reservations: Reservations,
    java_peers: JavaPeers,
    reminder: LeaderReminder,
}

impl Ownership {
    pub(crate) fn mode(&mut self, cx: &Context) -> Mode {
        self.modes.now(cx)
    }

    /// The nodes may have changed while the session was suspended.
    pub(crate) fn look_again(&mut self) {
        self.modes.look_again();
    }

    /// Reserves the items of names whose instances are offline, and ends reservations.
    pub(crate) fn update_reservations(&mut self, cx: &Context, out: &mut Outbox) {
        self.reservations.update_reservations(cx, out);
    }

    /// Returns the instances that get no items yet, if they have changed.
    pub(crate) fn find_unready(&mut self, cx: &Context) -> Option<BTreeSet<InstanceId>> {
        let unready = self.java_peers.find_unready(cx);
        let changed = unready != cx.unready;
        if changed {
            self.resharding.look_again();
        }
        changed.then_some(unready)
    }

    /// The leader flags a resharding that is due, and carries it out.
    pub(crate) fn shard(
        &mut self,
        cx: &Context,
        membership: &Membership,
        executions: &mut Executions,
        out: &mut Outbox,
    ) {
        self.settling.look(cx, &self.reservations);
        self.resharding.shard(
            cx,
            membership.liveness(),
            executions,
            &self.reservations,
            &mut self.java_peers,
            &mut self.modes,
            &self.settling,
            &mut self.targets,
            out,
        );
    }

    pub(crate) fn plan_handoff(&mut self, cx: &Context, out: &mut Outbox) {
        self.targets.plan_handoff(cx, &self.reservations, &mut self.modes, &self.settling, out);
    }

    pub(crate) fn remind_leader(&mut self, cx: &Context, membership: &Membership, out: &mut Outbox) {
        self.reminder.remind_leader(cx, membership.liveness(), out);
    }

    pub(crate) fn release(&mut self, cx: &Context, executions: &Executions, out: &mut Outbox) {
        self.handoff.release(cx, executions, out);
    }

    pub(crate) fn is_given(&self, cx: &Context, item: Item) -> bool {
        self.handoff.is_given(cx, item)
    }

    pub(crate) fn forget_given(&mut self, cx: &Context) -> bool {
        self.handoff.forget_given(cx)
    }

    pub(crate) fn revoked_items(&self) -> impl Iterator<Item = Item> {
        self.handoff.revoked_items()
    }

    /// Whether an item of this instance is to be revoked, or was.
    pub(crate) fn is_revoked(&self, cx: &Context, executions: &Executions, item: Item) -> bool {
        self.handoff.is_revoked(cx, executions, item)
    }

    pub(crate) fn revocation(&self, cx: &Context, executions: &Executions) -> Option<Generation> {
        self.handoff.revocation(cx, executions)
    }

    pub(crate) fn hands_over(&mut self, cx: &Context, membership: &Membership) -> bool {
        hands_over(cx, membership, &mut self.modes)
    }

    /// The session is lost: other instances get this one's items, and another one may lead.
    pub(crate) fn lose_session(&mut self) {
        self.resharding.forget();
        self.modes = Modes::default();
        self.settling = Settling::default();
        self.targets = Targets::default();
        self.handoff = Handoff::default();
        self.reminder = LeaderReminder::default();
    }

    /// A transaction of this room has succeeded.
    pub(crate) fn committed(&mut self, purpose: Purpose) {
        if purpose == Purpose::Shard {
            self.resharding.committed();
        }
    }

    /// A transaction of this room has failed.
    pub(crate) fn failed(&mut self, purpose: Purpose) {
        if purpose == Purpose::Shard {
            self.resharding.failed();
        } else if purpose == Purpose::HandOff {
            self.handoff.give_failed();
        }
    }

    /// The next times of this room; monotonic.
    pub(crate) fn waits(&self, now: Duration) -> impl Iterator<Item = Duration> {
        let plans = self.modes.next_retry(now).into_iter().chain(self.handoff.next_retry(now));
        let plans = plans.chain(self.settling.next_retry(now));
        let peers = self.reservations.next_retry(now).into_iter().chain(self.reminder.next_retry(now));
        plans.chain(peers).chain(self.java_peers.next_retry(now))
    }

    pub(crate) fn problem(&self, cx: &Context) -> Option<Problem> {
        self.resharding.problem(&cx.identity.paths)
    }
}
