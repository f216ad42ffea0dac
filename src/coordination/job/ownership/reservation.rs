//! Which offline instances keep their items for a while? An instance with a name, in a job that has `sidekeeper.grace`,
//! has a reservation when it has crashed or left: the leader leaves its items where they are, and gives it no others,
//! until `reattach_grace` is over.
//!
//! Decides for the leader which names have reservations. Only ownership is reserved: crashed executions are taken over
//! at once, and the owner of the item re-runs the fires in the meantime. The reserved instance counts in the balance as
//! if it were online. The grace counts from when this leader has seen that the instance is offline; a new leader counts
//! anew. The transaction that gives reserved items to others also deletes the name's node. So an instance that returns
//! at that moment prevents it, or finds its items gone, and there is no state in between.

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

/// The state for which the names were checked: the views' revisions, and the grace.
type Looked = (u64, u64, Duration);

/// The names whose items stay where they are.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    since: BTreeMap<String, Duration>,
    /// Each with the instance that has the name, or had it last.
    kept: BTreeMap<String, InstanceId>,
    next_end: Option<Duration>,
    looked: Option<Looked>,
    revision: u64,
}

impl Reservations {
    /// When the next grace ends.
    pub(crate) fn next_retry(&self, now: Duration) -> Option<Duration> {
        self.next_end.filter(|end| *end > now)
    }

    /// Grows when the reservations change.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// The instance that keeps the items of an offline instance: the same one, or the instance that has returned under
    /// its name with another address. `None`: none.
    pub(crate) fn stays_with(&self, owner: &InstanceId) -> Option<&InstanceId> {
        self.kept.get(owner.unique()?).filter(|_| !mutant!(ReservationForgotten))
    }

    /// The offline instances that have reservations.
    pub(crate) fn offline<'a>(&'a self, view: &'a JobView) -> impl Iterator<Item = &'a InstanceId> + 'a {
        self.kept.values().filter(|id| !view.instances().contains_key(*id))
    }

    /// Forgets all reservations: another instance leads.
    fn forget(&mut self) {
        if self.looked.is_some() {
            *self = Self { revision: self.revision + 1, ..Self::default() };
        }
    }

    /// Compares the names with the online instances.
    pub(super) fn look(&mut self, view: &JobView, fleet: &FleetView, grace: Duration, now: Duration) {
        let looked = (view.membership_revision(), fleet.revision(), grace);
        if self.looked == Some(looked) && self.next_end.is_none_or(|end| now < end) {
            return;
        }
        self.looked = Some(looked);
        self.next_end = None;
        let mut kept = BTreeMap::new();
        let mut offline = BTreeSet::new();
        for (name, known) in fleet.names() {
            // An instance writes its profile in the transaction of its registration, and the job's nodes are read later
            // than the profiles.
            let is_there = fleet.member(&known.instance).is_some();
            if !view.instances().contains_key(&known.instance) && !is_there {
                let since = *self.since.entry(name.clone()).or_insert(now);
                offline.insert(name);
                let end = since.saturating_add(grace);
                let status = known.instance.server_ip().and_then(|ip| view.server(ip));
                if now >= end || status.is_some_and(|status| status != ServerStatus::Enabled) {
                    continue;
                }
                self.next_end = Some(self.next_end.map_or(end, |known| known.min(end)));
            }
            kept.insert(name.clone(), known.instance.clone());
        }
        self.since.retain(|name, _| offline.contains(name));
        if kept != self.kept {
            self.kept = kept;
            self.revision += 1;
        }
    }

    /// Updates the reservations, if this instance leads.
    pub(crate) fn update_reservations(&mut self, cx: &Context, out: &mut Outbox) {
        let now = cx.now;
        if !cx.is_registered() || !cx.is_leader() || !cx.fleet.is_loaded() {
            self.forget();
            return;
        }
        let grace = cx.settings.as_ref().map(|settings| settings.grace).unwrap_or_default();
        self.look(&cx.view, &cx.fleet, grace, now.mono);
        self.forget_names(cx, out);
    }

    /// Deletes the names that have no reservation and own nothing. Names that own items are deleted together with the
    /// assignment of these items.
    fn forget_names(&self, cx: &Context, out: &mut Outbox) {
        if cx.fleet.names().len() == self.kept.len() {
            return;
        }
        let owner = |item: &crate::coordination::job::picture::nodes::ItemView| {
            item.owner.as_ref().map(|owner| owner.instance.clone())
        };
        let owners: BTreeSet<_> = cx.view.item_views().filter_map(owner).collect();
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
            let path = cx.identity.own_paths.fleet().name(name);
            let step = Operation::Delete { path, version: Some(known.version) };
            size += step.wire_size();
            transaction.push(step);
        }
        if !transaction.is_empty() && out.may_commit(cx, Purpose::ForgetNames) {
            out.commit(Purpose::ForgetNames, transaction);
        }
    }
}

/// The steps that end the reservations of the owners of these items, for the transaction that gives the items to
/// others.
pub(crate) fn end_reservations(cx: &Context, items: impl Iterator<Item = Item>) -> Transaction {
    let owner = |item| cx.view.item(item).and_then(|view| view.owner.as_ref());
    let names: BTreeSet<_> = items.filter_map(owner).filter_map(|owner| owner.instance.unique()).collect();
    let known = names.into_iter().filter_map(|name| Some((name, cx.fleet.names().get(name)?)));
    let step = |(name, known): (&str, &crate::extension::name_record::NameRecord)| Operation::Delete {
        path: cx.identity.own_paths.fleet().name(name),
        version: Some(known.version),
    };
    known.map(step).collect()
}
