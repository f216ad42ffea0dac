//! Which instance has a name? An instance with a name is the same after a restart of its application, its sidecar or
//! its machine: no other instance may have the name in the meantime, and the new instance owns the items of the old one
//! (H36, P7).
//!
//! The registration writes the name into a persistent node under Sidekeeper's own root: the version of that node orders
//! newcomers, also from different addresses. If a live session has the name, a newcomer waits, and never takes anything
//! from it. The instance that gets the name renews the items of the name, so that they have new tokens: an earlier
//! process may still write with the old ones (P3). An instance with a published profile has its name, also after an
//! operator has removed the instance: it may still execute. Which items stay with the name of an offline instance,
//! [`crate::coordination::job::ownership::reservation`] decides.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::effect::{Effect, EndReason};
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::{Phase, Session, Verdict};
use crate::coordination::job::picture::nodes::Ownership;
use crate::extension::name_record::NameRecord;
use crate::findings::problem::{Problem, ProblemCode};
use crate::job::{InstanceId, Item};
use crate::mutants::mutant;
use crate::tree::{NodeKind, Operation, SessionId};

/// How long a newcomer waits for its name. Above the default session timeout, after which a killed predecessor is
/// offline; below the minute after which clients give up, so that they get the reason.
const WAIT_MAX: Duration = Duration::from_secs(45);

/// The state of a participant with a name.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// The session of the last registration: its nodes are this instance's own.
    session: Option<SessionId>,
    /// The instance that has the name, and since when this one has waited for it.
    holder: Option<(InstanceId, Duration)>,
    /// Whether the instance leaves for good.
    for_good: bool,
    /// The items that the name owned before this instance had it, and since when; until their missed fires are known.
    returned: BTreeMap<Item, Timestamp>,
}

impl Names {
    /// When the wait for the name ends.
    pub(crate) fn next_retry(&self, now: Duration) -> Option<Duration> {
        let end = self.holder.as_ref().map(|(_, since)| since.saturating_add(WAIT_MAX));
        end.filter(|end| *end > now)
    }

    /// The instance leaves for good: its items are not reserved.
    pub(crate) fn leaves_for_good(&mut self) {
        self.for_good = true;
    }

    /// Whether another session is known to have this instance's name.
    pub(crate) fn is_taken(&self) -> bool {
        self.holder.is_some()
    }

    /// This instance is registered.
    pub(crate) fn registered(&mut self, session: SessionId) {
        self.session = Some(session);
        self.holder = None;
    }

    /// Since when the name has owned an item, if it did before this instance had the name.
    pub(crate) fn returned(&self, item: Item) -> Option<Timestamp> {
        self.returned.get(&item).copied()
    }

    /// The missed fires of the item are known.
    pub(crate) fn caught_up(&mut self, item: Item) {
        self.returned.remove(&item);
    }

    /// Checks whether another session has this instance's name. Gives up in the end.
    pub(crate) fn waits_for_name(&mut self, cx: &Context, out: &mut Outbox) -> Verdict {
        let now = cx.now;
        let (Some(name), Session::Connected(session)) = (cx.identity.name.clone(), cx.session) else {
            return Verdict::Continue;
        };
        let ours = [Some(session), self.session];
        let paths = &cx.identity.paths;
        let registered = cx.view.instances().iter();
        let registered =
            registered.filter(|(_, view)| view.session.is_none() || !ours.contains(&view.session));
        let registered = registered.map(|(id, _)| (id, paths.instance(id)));
        // An instance that an operator has stopped is not registered any more, and removes its profile when its
        // executions have ended.
        let stopped = cx.fleet.members().filter(|(_, member)| member.session.is_some());
        let stopped = stopped.filter(|(_, member)| !ours.contains(&member.session));
        let stopped = stopped.map(|(id, _)| (id, cx.identity.own_paths.fleet().member(id)));
        let is_namesake = |(id, _): &(&InstanceId, _)| id.has_name(name.as_str());
        let holder = registered.chain(stopped).find(is_namesake).filter(|_| !mutant!(NameTakenFromLiving));
        let Some((holder, path)) = holder.map(|(id, path)| (id.clone(), path)) else {
            self.holder = None;
            return Verdict::Continue;
        };
        let known = self.holder.take().filter(|(known, _)| *known == holder);
        if known.is_none() {
            let message = format!(
                "instance name `{name}` is in use by another session; waiting until that has left. If it was killed, \
                 it has when its session times out; if it lives, stop one of the two, or give one another name"
            );
            out.push(Effect::Warn(Problem {
                path: path.clone(),
                message,
                code: ProblemCode::InstanceNameTaken,
            }));
        }
        let since = known.map_or(now.mono, |(_, since)| since);
        self.holder = Some((holder, since));
        if now.mono >= since.saturating_add(WAIT_MAX) {
            return Verdict::End(EndReason::NameTaken { name, path });
        }
        Verdict::Continue
    }

    /// Whether this instance's items are reserved when it leaves.
    pub(crate) fn keeps_items(&self, cx: &Context) -> bool {
        let grace = cx.settings.as_ref().map(|settings| settings.grace).unwrap_or_default();
        cx.identity.name.is_some() && !self.for_good && !grace.is_zero()
    }

    /// The step that removes the name's node; `None`: it stays for the instance's return, or does not exist.
    pub(crate) fn give_up_name(&self, cx: &Context, reason: &EndReason) -> Option<Operation> {
        let by_operator = matches!(reason, EndReason::Stopped | EndReason::JobRemoved);
        let known = cx.name_view().filter(|_| by_operator || !self.keeps_items(cx))?;
        let path = cx.identity.own_paths.fleet().name(cx.identity.name.as_ref()?.as_str());
        Some(Operation::Delete { path, version: Some(known.version) })
    }

    /// Renews the items that the name owned before this instance had it. Gives the name up after an operator's stop.
    pub(crate) fn renew_items(&mut self, cx: &Context, out: &mut Outbox, is_given: impl Fn(Item) -> bool) {
        let now = cx.now;
        if let Phase::Draining { reason, .. } = &cx.phase
            && let EndReason::Stopped | EndReason::JobRemoved = reason
            && let Some(step) = self.give_up_name(cx, reason)
            && out.may_commit(cx, Purpose::ForgetNames)
        {
            return out.commit(Purpose::ForgetNames, vec![step]);
        }
        if cx.phase != Phase::Active || !cx.is_registered() || cx.view.is_resharding() {
            return;
        }
        let (Some(name), Some(known)) = (&cx.identity.name, cx.name_view()) else { return };
        if !out.may_commit(cx, Purpose::Renew) {
            return;
        }
        let path = cx.identity.own_paths.fleet().name(name.as_str());
        let mut transaction = vec![Operation::Check { path, version: Some(known.version) }];
        // After a resharding that this view does not show, other instances own the items, under the same version of
        // their nodes.
        transaction.extend(cx.not_resharded());
        transaction.push(cx.fleet.handed_over());
        let mut size = 0;
        let mut renewed = Vec::new();
        for (item, view) in cx.view.items() {
            // A node that this instance has just handed over has the version of the node that an earlier holder of the
            // name had.
            let is_due = |owner: &&Ownership| is_to_be_renewed(cx, owner) && !is_given(item);
            let Some(owner) = view.owner.as_ref().filter(is_due) else { continue };
            // Steps that do not fit go into the next transaction.
            if size >= cx.transaction_bytes {
                break;
            }
            let path = cx.identity.paths.item_instance(item);
            let before = transaction.len();
            transaction.push(Operation::Delete { path: path.clone(), version: Some(owner.version) });
            transaction.push(Operation::create(path, NodeKind::Persistent, cx.identity.instance.as_str()));
            size += transaction.iter().skip(before).map(Operation::wire_size).sum::<usize>();
            renewed.push((item, owner.since.unwrap_or(now.wall)));
        }
        if renewed.is_empty() {
            return;
        }
        // Recorded though the transaction may fail: the name owned them in any case.
        for (item, since) in renewed {
            self.returned.entry(item).or_insert(since);
        }
        out.commit(Purpose::Renew, transaction);
    }
}

/// The step that writes the name's node.
pub(crate) fn take_name(cx: &Context) -> Option<Operation> {
    let name = cx.identity.name.as_ref()?;
    let path = cx.identity.own_paths.fleet().name(name.as_str());
    let data = NameRecord::write(&cx.identity.instance, &cx.request.profile);
    Some(match cx.fleet.names().get(name.as_str()) {
        // Fails if another instance has taken the name since this view.
        Some(known) => Operation::Set { path, data: data.as_bytes().into(), version: Some(known.version) },
        None => Operation::create(path, NodeKind::Persistent, data),
    })
}

/// Whether the name got the item before this instance had the name: then this instance owns the item when it has
/// renewed it.
pub(crate) fn is_to_be_renewed(cx: &Context, owner: &Ownership) -> bool {
    let me = &cx.identity.instance;
    let named = cx.identity.name.as_ref().is_some_and(|name| owner.instance.has_name(name.as_str()));
    let registered = cx.view.instances().get(me).map(|view| view.created.into());
    let named = named && !mutant!(NameNotRenewed);
    named && (owner.instance != *me || registered.is_none_or(|registered| owner.token < registered))
}
