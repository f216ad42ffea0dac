//! Who is away for a while? An instance with a name, in a job that has `sidekeeper.grace`, keeps its items when it has
//! vanished or left: the leader leaves them where they are, and gives it nothing new, until the grace is over.
//!
//! Decides for the leader which names are to be waited for. Only what they own waits: what was being executed is taken
//! over at once, and fires in the meantime are made up for by whoever owns the item then. The time counts from when
//! this leader has seen the absence; a new one begins anew. That a name is waited for no more is written down together
//! with its items going to others, so that one who comes back at that moment either finds them or prevents it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::picture::fleet_view::FleetView;
use crate::coordination::job::picture::job_view::JobView;
use crate::coordination::job::picture::nodes::ServerStatus;
use crate::job::{InstanceId, Item};
use crate::mutants::mutant;
use crate::tree::{Operation, Transaction};

/// What the names were looked at for: the views' revisions, and the grace.
type Looked = (u64, u64, Duration);

/// The names whose items stay where they are.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Absences {
    since: BTreeMap<String, Duration>,
    /// Each with the instance that has it, or had it last.
    kept: BTreeMap<String, InstanceId>,
    next_end: Option<Duration>,
    looked: Option<Looked>,
    revision: u64,
}

impl Absences {
    /// When the next grace ends.
    pub(in crate::coordination) fn next_retry(&self, now: Duration) -> Option<Duration> {
        self.next_end.filter(|end| *end > now)
    }

    /// Grows when other names are waited for.
    pub(in crate::coordination) fn revision(&self) -> u64 {
        self.revision
    }

    /// With whom the items of an instance stay that is not online: with itself, or with that of its name, which has come
    /// back from elsewhere. `None`: with nobody.
    pub(in crate::coordination) fn stays_with(&self, owner: &InstanceId) -> Option<&InstanceId> {
        self.kept.get(owner.unique()?).filter(|_| !mutant!(AbsenceForgotten))
    }

    /// The instances that are waited for.
    pub(in crate::coordination) fn away<'a>(
        &'a self,
        view: &'a JobView,
    ) -> impl Iterator<Item = &'a InstanceId> + 'a {
        self.kept.values().filter(|id| !view.instances().contains_key(*id))
    }

    /// Forgets everything: somebody else leads.
    fn forget(&mut self) {
        if self.looked.is_some() {
            *self = Self { revision: self.revision + 1, ..Self::default() };
        }
    }

    /// Compares the names with who is online.
    fn look(&mut self, view: &JobView, fleet: &FleetView, grace: Duration, now: Duration) {
        let looked = (view.membership_revision(), fleet.revision(), grace);
        if self.looked == Some(looked) && self.next_end.is_none_or(|end| now < end) {
            return;
        }
        self.looked = Some(looked);
        self.next_end = None;
        let mut kept = BTreeMap::new();
        let mut away = BTreeSet::new();
        for (name, known) in fleet.names() {
            // Whoever says something registers in the same transaction: the job's nodes are read later than these.
            let is_there = fleet.member(&known.instance).is_some();
            if !view.instances().contains_key(&known.instance) && !is_there {
                let since = *self.since.entry(name.clone()).or_insert(now);
                away.insert(name);
                let end = since.saturating_add(grace);
                let status = known.instance.server_ip().and_then(|ip| view.server(ip));
                if now >= end || status.is_some_and(|status| status != ServerStatus::Enabled) {
                    continue;
                }
                self.next_end = Some(self.next_end.map_or(end, |known| known.min(end)));
            }
            kept.insert(name.clone(), known.instance.clone());
        }
        self.since.retain(|name, _| away.contains(name));
        if kept != self.kept {
            self.kept = kept;
            self.revision += 1;
        }
    }

    /// Notes who is away, if we lead.
    pub(in crate::coordination) fn mind_absences(&mut self, cx: &Context, out: &mut Outbox) {
        let now = cx.now;
        if !cx.is_registered() || !cx.is_leader() || !cx.fleet.is_loaded() {
            self.forget();
            return;
        }
        let grace = cx.settings.as_ref().map(|settings| settings.grace).unwrap_or_default();
        self.look(&cx.view, &cx.fleet, grace, now.mono);
        self.forget_names(cx, out);
    }

    /// Deletes the names that are waited for no more and own nothing. Those that do go with their items.
    fn forget_names(&self, cx: &Context, out: &mut Outbox) {
        if cx.fleet.names().len() == self.kept.len() {
            return;
        }
        let owner = |item: &crate::coordination::job::picture::nodes::ItemView| {
            item.owner.as_ref().map(|owner| owner.instance.clone())
        };
        let owners: BTreeSet<_> = cx.view.items().values().filter_map(owner).collect();
        let owning: BTreeSet<_> = owners.iter().filter_map(InstanceId::unique).collect();
        let over = cx
            .fleet
            .names()
            .iter()
            .filter(|(name, _)| !self.kept.contains_key(*name) && !owning.contains(name.as_str()));
        let mut transaction = Transaction::new();
        let mut size = 0;
        for (name, known) in over {
            if size >= cx.transaction_bytes {
                break;
            }
            let path = cx.identity.paths.fleet().name(name);
            let step = Operation::Delete { path, version: Some(known.version) };
            size += step.wire_size();
            transaction.push(step);
        }
        if !transaction.is_empty() && out.may_commit(cx, Purpose::ForgetNames) {
            out.commit(Purpose::ForgetNames, transaction);
        }
    }
}

/// The steps that end the waiting for the owners of these items, to go with the one that gives them to others.
pub(in crate::coordination) fn end_absences(cx: &Context, items: impl Iterator<Item = Item>) -> Transaction {
    let owner = |item| cx.view.item(item).and_then(|view| view.owner.as_ref());
    let names: BTreeSet<_> = items.filter_map(owner).filter_map(|owner| owner.instance.unique()).collect();
    let known = names.into_iter().filter_map(|name| Some((name, cx.fleet.names().get(name)?)));
    let step = |(name, known): (&str, &crate::coordination::job::picture::fleet_view::NameView)| {
        Operation::Delete { path: cx.identity.paths.fleet().name(name), version: Some(known.version) }
    };
    known.map(step).collect()
}
