//! Who has a name? An instance that was given one is the same after a restart, of its application or its sidecar or its
//! machine: nobody else may have the name meanwhile, and what was the old one's is the new one's (H36, P7).
//!
//! The name is written down with the registration, in a persistent node under our own root: the version of that node
//! orders newcomers, also from different addresses. Who finds the name taken by a session that lives waits, and never
//! takes anything from it. Who has it renews its items, so that they have new tokens: an earlier process may still
//! write with the old ones (P3). Whose items stay with a name whose instance is away is for [`crate::coordination::job::ownership::reservation`].

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::effect::{Effect, EndReason};
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::{Phase, Session};
use crate::coordination::job::frame::verdict::Verdict;
use crate::coordination::job::picture::fleet_view::NameView;
use crate::coordination::job::picture::nodes::Ownership;
use crate::job::{InstanceId, Item, Problem};
use crate::mutants::mutant;
use crate::tree::{NodeKind, Operation, SessionId};

/// How long a newcomer waits for its name. Above the default session timeout, after which a killed predecessor is gone;
/// below the minute after which clients give up, so that they learn why.
const WAIT_MAX: Duration = Duration::from_secs(45);

/// What a participant with a name remembers.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Names {
    /// The session in which it registered last: what that has left is its own.
    session: Option<SessionId>,
    /// Who has the name, and since when that has been waited for.
    holder: Option<(InstanceId, Duration)>,
    /// Whether it does not come back.
    for_good: bool,
    /// Items that were the name's before it came, and since when; until it is known what they have missed.
    returned: BTreeMap<Item, Timestamp>,
}

impl Names {
    /// When the patience ends.
    pub(in crate::coordination) fn next_retry(&self, now: Duration) -> Option<Duration> {
        let end = self.holder.as_ref().map(|(_, since)| since.saturating_add(WAIT_MAX));
        end.filter(|end| *end > now)
    }

    /// The instance does not come back: nothing is to be kept for it.
    pub(in crate::coordination) fn leaves_for_good(&mut self) {
        self.for_good = true;
    }

    /// Whether another session has our name, as far as is known.
    pub(in crate::coordination) fn is_taken(&self) -> bool {
        self.holder.is_some()
    }

    /// Our nodes are there.
    pub(in crate::coordination) fn registered(&mut self, session: SessionId) {
        self.session = Some(session);
        self.holder = None;
    }

    /// Since when an item has been the name's, if it was before we came.
    pub(in crate::coordination) fn returned(&self, item: Item) -> Option<Timestamp> {
        self.returned.get(&item).copied()
    }

    /// It is known what an item has missed.
    pub(in crate::coordination) fn caught_up(&mut self, item: Item) {
        self.returned.remove(&item);
    }

    /// Looks whether somebody has our name. Gives up waiting for it in the end.
    pub(in crate::coordination) fn waits_for_name(&mut self, cx: &Context, out: &mut Outbox) -> Verdict {
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
        // Whom an operator has stopped is no instance any more, and falls silent when it has ended what it executes.
        let stopped = cx.fleet.members().filter(|(_, member)| member.session.is_some());
        let stopped = stopped.filter(|(_, member)| !ours.contains(&member.session));
        let stopped = stopped.map(|(id, _)| (id, paths.fleet().member(id)));
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
            out.push(Effect::Warn(Problem { path: path.clone(), message }));
        }
        let since = known.map_or(now.mono, |(_, since)| since);
        self.holder = Some((holder, since));
        if now.mono >= since.saturating_add(WAIT_MAX) {
            return Verdict::End(EndReason::NameTaken { name, path });
        }
        Verdict::Continue
    }

    /// Whether our items are to stay with us when we leave.
    pub(in crate::coordination) fn keeps_items(&self, cx: &Context) -> bool {
        let grace = cx.settings.as_ref().map(|settings| settings.grace).unwrap_or_default();
        cx.identity.name.is_some() && !self.for_good && !grace.is_zero()
    }

    /// The step that takes our name back; `None`: it stays written down, because we come back, or is not.
    pub(in crate::coordination) fn give_up_name(
        &self,
        cx: &Context,
        reason: &EndReason,
    ) -> Option<Operation> {
        let by_operator = matches!(reason, EndReason::Stopped | EndReason::JobRemoved);
        let known = cx.name_view().filter(|_| by_operator || !self.keeps_items(cx))?;
        let path = cx.identity.paths.fleet().name(cx.identity.name.as_ref()?.as_str());
        Some(Operation::Delete { path, version: Some(known.version) })
    }

    /// Renews what was the name's before we had it. Gives the name up when an operator has stopped us.
    pub(in crate::coordination) fn renew_items(
        &mut self,
        cx: &Context,
        out: &mut Outbox,
        is_given: impl Fn(Item) -> bool,
    ) {
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
        let path = cx.identity.paths.fleet().name(name.as_str());
        let mut transaction = vec![Operation::Check { path, version: Some(known.version) }];
        // A division that we have not seen makes the items somebody else's, under the same version of their nodes.
        transaction.extend(cx.undivided());
        transaction.push(cx.fleet.handed_over());
        let mut size = 0;
        let mut renewed = Vec::new();
        for (item, view) in cx.view.items() {
            // What we have just given to others has the version under which it was the name's before.
            let is_due = |owner: &&Ownership| is_to_be_renewed(cx, owner) && !is_given(*item);
            let Some(owner) = view.owner.as_ref().filter(is_due) else { continue };
            // Steps that do not fit go into the next transaction.
            if size >= cx.transaction_bytes {
                break;
            }
            let path = cx.identity.paths.item_instance(*item);
            let before = transaction.len();
            transaction.push(Operation::Delete { path: path.clone(), version: Some(owner.version) });
            transaction.push(Operation::create(path, NodeKind::Persistent, cx.identity.instance.as_str()));
            size += transaction.iter().skip(before).map(Operation::wire_size).sum::<usize>();
            renewed.push((*item, owner.since.unwrap_or(now.wall)));
        }
        if renewed.is_empty() {
            return;
        }
        // Noted though it may fail: they were the name's in any case.
        for (item, since) in renewed {
            self.returned.entry(item).or_insert(since);
        }
        out.commit(Purpose::Renew, transaction);
    }
}

/// The step that writes our name down.
pub(in crate::coordination) fn take_name(cx: &Context) -> Option<Operation> {
    let name = cx.identity.name.as_ref()?;
    let path = cx.identity.paths.fleet().name(name.as_str());
    let data = NameView::write(&cx.identity.instance, &cx.request.profile);
    Some(match cx.fleet.names().get(name.as_str()) {
        // Fails if somebody else of this name has come since we looked.
        Some(known) => Operation::Set { path, data: data.as_bytes().into(), version: Some(known.version) },
        None => Operation::create(path, NodeKind::Persistent, data),
    })
}

/// Whether an item's node was written for the name before we had it: the item is ours when we have renewed it.
pub(in crate::coordination) fn is_to_be_renewed(cx: &Context, owner: &Ownership) -> bool {
    let me = &cx.identity.instance;
    let named = cx.identity.name.as_ref().is_some_and(|name| owner.instance.has_name(name.as_str()));
    let registered = cx.view.instances().get(me).map(|view| view.created.into());
    let named = named && !mutant!(NameNotRenewed);
    named && (owner.instance != *me || registered.is_none_or(|registered| owner.token < registered))
}
