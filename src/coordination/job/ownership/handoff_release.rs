//! When does an owner give an item on? When the leader has planned it and the application is done with it (P1, P2).
//!
//! An item always has an owner: the old one until the transaction that makes it the new one's. An item without an
//! online owner is not handed over but assigned, as by any resharding.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::execution::state::Executions;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::membership::announcement::Announcement;
use crate::coordination::job::ownership::mode::{Mode, Modes};
use crate::coordination::job::picture::nodes::ItemView;
use crate::elasticjob::handoff_policy::Handoff as Policy;
use crate::job::{FencingToken, Generation, InstanceId, Item};
use crate::mutants::mutant;
use crate::tree::{NodeKind, Operation, Transaction};

/// An item that was taken from the application and not given to the next owner yet.
#[derive(Debug)]
struct Revoked {
    since: Duration,
    /// With which generation the application was told.
    told: Generation,
}

/// What a participant remembers of handing over. None of it is needed to be right.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Handoff {
    revoked: BTreeMap<Item, Revoked>,
    /// Items that we have given to others, with the tokens under which they were ours. They are not ours any more, also
    /// when the plan is seen to be gone before the items are seen to have others.
    given: BTreeMap<Item, FencingToken>,
    /// Whether it is not known if the last request to give items has taken effect.
    in_doubt: bool,
    deadline: Option<Duration>,
}

impl Handoff {
    /// The items that are ours until the next owner has them, though the application was told to let go.
    pub(in crate::coordination) fn revoked_items(&self) -> impl Iterator<Item = Item> + '_ {
        self.revoked.keys().copied()
    }

    /// Whether we have given an item to somebody else, and do not see it yet.
    pub(in crate::coordination) fn is_given(&self, cx: &Context, item: Item) -> bool {
        let owner = cx.view.item(item).and_then(|view| view.owner.as_ref());
        let given = self.given.get(&item).filter(|_| !mutant!(GivenForgotten));
        owner.is_some_and(|owner| given == Some(&owner.token))
    }

    /// The request to give items has failed. If it is not known whether it took effect, the next snapshot tells.
    pub(in crate::coordination) fn give_failed(&mut self) {
        self.in_doubt = true;
    }

    /// When an item goes even if its owner is not done with it.
    pub(in crate::coordination) fn next_retry(&self, now: Duration) -> Option<Duration> {
        self.deadline.filter(|at| *at > now)
    }

    /// Whether an item of ours is to be somebody else's, so that the application is to let go of it. Not while it is
    /// being started: the application is told in the order in which things happen; nor while nobody can be told.
    pub(in crate::coordination) fn is_revoked(
        &self,
        cx: &Context,
        executions: &Executions,
        item: Item,
    ) -> bool {
        if self.is_given(cx, item) {
            return true;
        }
        if is_deaf(cx) {
            return false;
        }
        cx.fleet.is_to_leave(item, &cx.identity.instance) && !executions.is_starting(item)
    }

    /// Forgets a given item as soon as its new owner is seen, or the request is seen to have failed. Tells whether our items may
    /// be others than the application was told.
    pub(in crate::coordination) fn forget_given(&mut self, cx: &Context) -> bool {
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

    /// The latest plan that takes an item from us, as a generation.
    pub(in crate::coordination) fn revocation(
        &self,
        cx: &Context,
        executions: &Executions,
    ) -> Option<Generation> {
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

    /// Gives items that are to be somebody else's to whom they are to go, as soon as the application is done with them.
    pub(in crate::coordination) fn release(
        &mut self,
        cx: &Context,
        executions: &Executions,
        out: &mut Outbox,
    ) {
        let now = cx.now;
        self.deadline = None;
        if is_deaf(cx) {
            self.revoked.clear();
            return;
        }
        let (Some(plan), Some(settings)) = (cx.fleet.plan().cloned(), &cx.settings) else {
            self.revoked.clear();
            return;
        };
        let (policy, patience) = (settings.handoff.handoff, settings.handoff.deadline);
        let told: BTreeSet<Item> = cx
            .assigned
            .assignment
            .iter()
            .flat_map(|told| &told.items)
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
            if target.as_ref() == Some(&cx.identity.instance) || told.contains(item) {
                continue;
            }
            let generation = cx.assigned.generation();
            let known = self.revoked.remove(item);
            let revoked = known.unwrap_or(Revoked { since: now.mono, told: generation });
            let due = revoked.since.saturating_add(patience);
            let acknowledged = policy != Policy::Drained
                || cx.assigned.acknowledged >= revoked.told
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
        // A node that was just renewed has the version of the former one: it must be seen first.
        let writes = [Purpose::Start, Purpose::FlagMisfire, Purpose::Renew];
        let writes = writes.map(|purpose| out.is_in_flight(purpose));
        let ready = cx.is_registered() && !writes.contains(&true) && !mutant!(NeverHandedOver);
        if transaction.is_empty() || !ready || !out.may_commit(cx, Purpose::HandOff) {
            return;
        }
        // Only as long as it is the leader's will, we are there, and so is who gets them: what somebody had who has left is
        // divided anew, by who may not have seen to whom it was given. A division that we have not seen makes the
        // items somebody else's, under the same version of their nodes: they are new.
        let (path, version) = (cx.identity.paths.fleet().handoff(), Some(plan.version));
        let mut steps = vec![Operation::Check { path, version }];
        steps.extend(cx.undivided());
        let present = |id| Operation::Check { path: cx.identity.paths.instance(id), version: None };
        steps.extend([&cx.identity.instance].into_iter().chain(targets).map(present));
        steps.push(cx.fleet.handed_over());
        steps.extend(transaction);
        self.given = given;
        out.commit(Purpose::HandOff, steps);
    }
}

/// Whether nobody can tell the application to let go of what it works on. An instance that leaves without a
/// stream gives the items away that it does not execute, unless ownership is continuous.
fn is_deaf(cx: &Context) -> bool {
    let deaf = cx.unattended.is_some() && cx.is_continuous();
    deaf || matches!(cx.phase, Phase::Away { .. })
}

/// Whether a departure waits until others have our items.
pub(in crate::coordination) fn hands_over(
    cx: &Context,
    announcement: &Announcement,
    modes: &mut Modes,
) -> bool {
    let now = cx.now;
    if !announcement.waits(now.mono) || !cx.is_registered() {
        return false;
    }
    let me = &cx.identity.instance;
    let owns = |view: &ItemView| view.owner.as_ref().is_some_and(|owner| owner.instance == *me);
    let stays = |id: &InstanceId| cx.fleet.member(id).is_some_and(|member| !member.profile.leaving);
    cx.view.items().values().any(owns)
        && cx.view.available().iter().any(|id| id != me && stays(id))
        && modes.now(cx) == Mode::Gentle
}
