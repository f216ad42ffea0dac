//! Which items are to change hands one by one? The leader publishes a plan; each owner revokes its items, and hands
//! them over by itself, in one transaction that checks that the plan still stands; no other instance waits (P1, P2).
//!
//! So an item has an owner at every moment, and nothing has to be undone when the leader dies: the plan is an
//! ephemeral node, and the next leader derives its own from the present owners. Items beyond a lowered total get no
//! next owner; they are handed over by removing them. ElasticJob's rules hold beside a Java instance, beside an
//! instance without a profile, and where the job asks for them (`mode`).

use std::collections::BTreeMap;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Session;
use crate::coordination::job::ownership::mode::{Mode, Modes};
use crate::coordination::job::ownership::reservation::Reservations;
use crate::coordination::job::ownership::settling::Settling;
use crate::coordination::job::ownership::targets::Targets;
use crate::extension::handoff_plan::HandoffPlan;
use crate::tree::{NodeKind, Operation, Transaction};

impl Targets {
    /// Publishes which items are to change hands, if this instance leads.
    pub(crate) fn plan_handoff(
        &mut self,
        cx: &Context,
        reservations: &Reservations,
        modes: &mut Modes,
        settling: &Settling,
        out: &mut Outbox,
    ) {
        let leads = cx.is_registered() && cx.is_leader() && cx.is_enabled();
        if !leads || !cx.phase.is_there() || cx.view.is_resharding() {
            return;
        }
        let mode = modes.now(cx);
        if mode == Mode::OneByOne && settling.waits(cx.now.mono) && !is_leaving(cx) {
            return;
        }
        let wanted = match mode {
            Mode::OneByOne => self.moves(cx, reservations),
            Mode::AllAtOnce(_) => BTreeMap::new(),
            Mode::Undecided(_) => return,
        };
        let Session::Connected(session) = cx.session else { return };
        let path = cx.identity.own_paths.fleet().handoff();
        let mut transaction = Transaction::new();
        if let Some(leader) = cx.view.leader() {
            transaction
                .push(Operation::Check { path: cx.identity.paths.leader(), version: Some(leader.version) });
        }
        let data = HandoffPlan::write(&wanted);
        match cx.fleet.plan() {
            None if wanted.is_empty() => return,
            Some(plan) if plan.targets == wanted && !wanted.is_empty() && plan.session == Some(session) => {
                return;
            }
            Some(plan) if plan.session == Some(session) && !wanted.is_empty() => {
                let version = Some(plan.version);
                transaction.push(Operation::Set { path, data: data.as_bytes().into(), version });
            }
            plan => {
                // The plan of an earlier leader is ephemeral in that leader's session; this one has to be in this
                // session.
                let version = plan.map(|plan| plan.version);
                transaction.extend(plan.map(|_| Operation::Delete { path: path.clone(), version }));
                if !wanted.is_empty() {
                    transaction.push(Operation::create(path, NodeKind::Ephemeral, data));
                }
            }
        }
        if out.may_commit(cx, Purpose::PlanHandoff) {
            out.commit(Purpose::PlanHandoff, transaction);
        }
    }
}

/// Whether an instance is about to leave, and waits until its items have moved.
fn is_leaving(cx: &Context) -> bool {
    cx.fleet.members().any(|(_, member)| member.profile.leaving)
}
