//! When does an owner hand an item over? When the leader has planned it and the application has released it (P1, P2).
//!
//! The owner first sends the application an assignment without the item. The application has released the item when it
//! has no open execution, and with `drained` or continuous ownership when it has also acknowledged that assignment.
//! After `sidekeeper.handoff-deadline` (30 s) the owner hands the item over anyway: a running node that still exists
//! then keeps the next owner from starting the item. If the leader dies, its plan is deleted with its session. The owner
//! then still owns the item and sends it again in an assignment, and the next leader makes a plan of its own.
//!
//! No start, no misfire flag and no renewal is in flight when the item is handed over. So the next owner, which reads
//! the ledger for its new token, sees all fires that this instance has started.
//!
//! An item always has an owner: the old one until the transaction that gives it to the new one. An item without an
//! online owner is not handed over but assigned, as by any resharding. A handover raises the version of
//! `fleet/members`, which a resharding by ElasticJob's rules checks: the nodes of the items show no handover, because a
//! new node has version 0 like the one before.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::execution::Executions;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::membership::Membership;
use crate::coordination::job::ownership::mode::{Mode, Modes};
use crate::coordination::job::picture::nodes::ItemView;
use crate::extension::handoff_policy::Handoff as Policy;
use crate::job::{FencingToken, Generation, InstanceId, Item};
use crate::mutants::mutant;
use crate::tree::{NodeKind, Operation, Transaction};

/// An item that was revoked and not handed over yet.
#[derive(Debug)]
struct Revoked {
    since: Duration,
    /// The generation of the message that revoked it.
    generation: Generation,
}

/// The handovers of this instance. A participant that has lost this state does nothing wrong.
#[derive(Debug, Default)]
pub(crate) struct Handoff {
    revoked: BTreeMap<Item, Revoked>,
    /// The items that were handed over, with their tokens before. This instance does not own them any more, also if the
    /// view shows the plan's end before the new owners.
    given: BTreeMap<Item, FencingToken>,
    /// Whether the outcome of the last handover is unknown.
    in_doubt: bool,
    deadline: Option<Duration>,
}

impl Handoff {
    /// The items that this instance owns until it has handed them over, though the application had to release them.
    pub(crate) fn revoked_items(&self) -> impl Iterator<Item = Item> + '_ {
        self.revoked.keys().copied()
    }

    /// Whether this instance has handed the item over, and the view does not show it yet.
    pub(crate) fn is_given(&self, cx: &Context, item: Item) -> bool {
        let owner = cx.view.item(item).and_then(|view| view.owner.as_ref());
        let given = self.given.get(&item).filter(|_| !mutant!(GivenForgotten));
        owner.is_some_and(|owner| given == Some(&owner.token))
    }

    /// The handover has failed. If its outcome is unknown, the next snapshot shows it.
    pub(crate) fn give_failed(&mut self) {
        self.in_doubt = true;
    }

    /// When an item is handed over even if the application has not released it.
    pub(crate) fn next_retry(&self, now: Duration) -> Option<Duration> {
        self.deadline.filter(|at| *at > now)
    }

    /// Whether the application has to release this item, because another instance is to own it. Not while an execution
    /// of it is starting: the application gets events in the order in which they happen; nor while the application
    /// cannot be notified.
    pub(crate) fn is_revoked(&self, cx: &Context, executions: &Executions, item: Item) -> bool {
        if self.is_given(cx, item) {
            return true;
        }
        if cannot_be_notified(cx) {
            return false;
        }
        cx.fleet.is_to_leave(item, &cx.identity.instance) && !executions.is_starting(item)
    }

    /// Forgets a handed over item as soon as the view shows its new owner, or that the handover has failed. Returns
    /// whether this instance's items may differ from those that were sent.
    pub(crate) fn forget_given(&mut self, cx: &Context) -> bool {
        if !cx.view.is_loaded() {
            return false;
        }
        let in_doubt = std::mem::take(&mut self.in_doubt);
        if in_doubt {
            self.given.clear();
        }
        let mut given = std::mem::take(&mut self.given);
        let ours = |item: &Item, token: &FencingToken| {
            let owner = cx.view.item(*item).and_then(|view| view.owner.as_ref());
            owner.is_some_and(|owner| owner.token == *token)
        };
        given.retain(|item, token| ours(item, token));
        self.given = given;
        in_doubt
    }

    /// The latest plan that takes an item from this instance, as a generation.
    pub(crate) fn revocation(&self, cx: &Context, executions: &Executions) -> Option<Generation> {
        let plan = cx.fleet.plan()?;
        let mine = |item: &Item| {
            let owner = cx.view.item(*item).and_then(|view| view.owner.as_ref());
            owner.is_some_and(|owner| owner.instance == cx.identity.instance)
        };
        plan.targets
            .keys()
            .any(|item| mine(item) && self.is_revoked(cx, executions, *item))
            .then_some(Generation(plan.changed))
    }

    /// Hands items over to their next owners, as soon as the application has released them.
    pub(crate) fn release(&mut self, cx: &Context, executions: &Executions, out: &mut Outbox) {
        let now = cx.now;
        self.deadline = None;
        if cannot_be_notified(cx) {
            self.revoked.clear();
            return;
        }
        let (Some(plan), Some(settings)) = (cx.fleet.plan().cloned(), &cx.settings) else {
            self.revoked.clear();
            return;
        };
        let (policy, patience) = (settings.handoff.handoff, settings.handoff.deadline);
        let sent: BTreeSet<Item> = cx
            .assigned
            .assignment
            .iter()
            .flat_map(|sent| &sent.items)
            .map(|assigned| assigned.item)
            .collect();
        let mut transaction = Transaction::new();
        let mut targets = BTreeSet::new();
        let mut given = BTreeMap::new();
        let mut kept = BTreeMap::new();
        let mut size = 0;
        for (item, target) in &plan.targets {
            let owner = cx.view.item(*item).and_then(|view| view.owner.as_ref());
            let Some(owner) = owner.filter(|owner| owner.instance == cx.identity.instance) else {
                continue;
            };
            if target.as_ref() == Some(&cx.identity.instance) || sent.contains(item) {
                continue;
            }
            let generation = cx.assigned.generation();
            let known = self.revoked.remove(item);
            let revoked = known.unwrap_or(Revoked { since: now.mono, generation });
            let due = revoked.since.saturating_add(patience);
            let acknowledged = policy != Policy::Drained
                || cx.assigned.acknowledged >= revoked.generation
                || mutant!(AcknowledgementIgnored);
            let done = acknowledged && (!executions.has_open(*item) || mutant!(HandedOverWhileBusy));
            if (done || now.mono >= due) && size < cx.transaction_bytes {
                let path = cx.identity.paths.item_instance(*item);
                let before = transaction.len();
                match target {
                    Some(target) if mutant!(HandedOverWithSameToken) => {
                        transaction.push(Operation::set(path, target.as_str()));
                    }
                    target => {
                        let version = Some(owner.version);
                        transaction.push(Operation::Delete { path: path.clone(), version });
                        let target = target.as_ref();
                        transaction.extend(
                            target.map(|id| Operation::create(path, NodeKind::Persistent, id.as_str())),
                        );
                    }
                }
                size += transaction.iter().skip(before).map(Operation::wire_size).sum::<usize>();
                targets.extend(target);
                given.insert(*item, owner.token);
            } else if !done {
                self.deadline = Some(self.deadline.map_or(due, |known| known.min(due)));
            }
            kept.insert(*item, revoked);
        }
        self.revoked = kept;
        // A renewed node has the version of the former one: the view must show it first.
        let writes = [Purpose::Start, Purpose::FlagMisfire, Purpose::Renew];
        let writes = writes.map(|purpose| out.is_in_flight(purpose));
        let ready = cx.is_registered() && !writes.contains(&true) && !mutant!(NeverHandedOver);
        if transaction.is_empty() || !ready || !out.may_commit(cx, Purpose::HandOff) {
            return;
        }
        // The transaction fails unless the plan still stands, this instance is online, and so is the next owner: the
        // leader that reshards the items of an offline instance may not have seen this handover. After a resharding
        // that this view does not show, other instances own the items, under the same version of their nodes.
        let (path, version) = (cx.identity.own_paths.fleet().handoff(), Some(plan.version));
        let mut steps = vec![Operation::Check { path, version }];
        steps.extend(cx.not_resharded());
        let present = |id| Operation::Check { path: cx.identity.paths.instance(id), version: None };
        steps.extend([&cx.identity.instance].into_iter().chain(targets).map(present));
        steps.push(cx.fleet.handed_over());
        steps.extend(transaction);
        self.given = given;
        out.commit(Purpose::HandOff, steps);
    }
}

/// Whether the application works on its items and cannot be notified. An instance that leaves without a stream hands
/// over the items that it does not execute, unless ownership is continuous.
fn cannot_be_notified(cx: &Context) -> bool {
    let unreachable = cx.unattended.is_some() && cx.is_continuous();
    unreachable || cx.phase.is_detached()
}

/// Whether a departure waits until the items are handed over.
pub(crate) fn hands_over(cx: &Context, membership: &Membership, modes: &mut Modes) -> bool {
    let now = cx.now;
    if !membership.is_announcement_waiting(now.mono) || !cx.is_registered() {
        return false;
    }
    let me = &cx.identity.instance;
    let owns = |view: &ItemView| view.owner.as_ref().is_some_and(|owner| owner.instance == *me);
    let stays = |id: &InstanceId| cx.fleet.member(id).is_some_and(|member| !member.profile.leaving);
    cx.view.item_views().any(owns)
        && cx.view.available().iter().any(|id| id != me && stays(id))
        && modes.now(cx) == Mode::OneByOne
}
