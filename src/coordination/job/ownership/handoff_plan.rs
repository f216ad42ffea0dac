//! Which items are to change hands one by one? The leader writes it down; each owner lets go of its own, and gives them on;
//! no other instance waits (P1, P2).

use std::collections::BTreeMap;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::{Phase, Session};
use crate::coordination::job::ownership::mode::{Mode, Modes};
use crate::coordination::job::ownership::reservation::Absences;
use crate::coordination::job::ownership::targets::Targets;
use crate::coordination::job::picture::fleet_view::HandoffPlan;
use crate::job::{InstanceId, Item};
use crate::tree::{NodeKind, Operation, Transaction};

impl Targets {
    /// Writes down which items are to change hands, if we lead.
    pub(in crate::coordination) fn plan_handoff(
        &mut self,
        cx: &Context,
        absences: &Absences,
        modes: &mut Modes,
        out: &mut Outbox,
    ) {
        let leads = cx.is_registered() && cx.is_leader() && cx.is_enabled();
        if !leads
            || !matches!(cx.phase, Phase::Active | Phase::Away { .. } | Phase::Draining { .. })
            || cx.view.is_resharding()
        {
            return;
        }
        let mode = modes.now(cx);
        let wanted = match mode {
            Mode::Gentle => self.moves(cx, absences),
            Mode::Stock(_) => BTreeMap::new(),
            Mode::Undecided(_) => return,
        };
        let Session::Connected(session) = cx.session else { return };
        let path = cx.identity.paths.fleet().handoff();
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
                // One of an earlier leader is ephemeral in its session; ours has to be in ours.
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

    /// The items that are with one instance that is online, and should be with another, or with nobody.
    fn moves(&mut self, cx: &Context, absences: &Absences) -> BTreeMap<Item, Option<InstanceId>> {
        let targets = self.now(cx, absences);
        let total = cx.settings.as_ref().map_or(u32::MAX, |s| s.configuration.sharding_total_count);
        let surplus = cx.view.items().range(Item(total)..).map(|(item, _)| (*item, None));
        let moves = |(item, target): &(Item, Option<InstanceId>)| {
            let owner = cx.view.online_owner(*item);
            owner.is_some_and(|owner| target.as_ref() != Some(owner))
        };
        (0..).map(Item).zip(targets.into_iter().map(Some)).chain(surplus).filter(moves).collect()
    }
}
