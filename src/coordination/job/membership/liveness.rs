//! Which instances are offline for good? Those that a node of the job names, and that are not among its instances
//! (protocol 7.1; H2, H4).
//!
//! An instance of a sidecar removes its profile together with its node, and so does the end of its session. While it
//! has a profile it is not offline: an operator has deleted its node to stop it, and it finishes its executions. A Java
//! instance deletes and creates its node whenever its connection comes back. An id of Java's is a bare number after the
//! separator; such an instance counts as offline only after [`JAVA_RECONNECT_GRACE`], and any other at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::limits::HEAD_START;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::picture::fleet_view::FleetView;
use crate::coordination::job::picture::job_view::JobView;
use crate::coordination::job::picture::nodes::{ItemView, Running};
use crate::coordination::time::Now;
use crate::job::{InstanceId, Item};
use crate::mutants::mutant;

/// How long a Java instance may be missing before it counts as offline: far above the two requests between which it is
/// missing when it reconnects, far below any session timeout, after which a crash is noticed.
const JAVA_RECONNECT_GRACE: Duration = Duration::from_secs(2);

/// The instances that are named somewhere and are missing, each since when.
#[derive(Debug, Default)]
pub(crate) struct Liveness {
    missing: BTreeMap<InstanceId, Duration>,
    /// [`JobView::seen_departures`] at the last look.
    departures: u64,
    /// The instances that are not registered any more, and still have a profile.
    finishing: BTreeSet<InstanceId>,
    /// The instances of the above that have removed their profile. The job's nodes may be older than that, because they
    /// are watched apart from the profiles.
    unread: BTreeSet<InstanceId>,
    looked: Option<(u64, u64)>,
}

impl Liveness {
    /// When a missing instance that is named somewhere counts as offline for good: may be in the future.
    fn offline_from(&self, id: &InstanceId) -> Option<Duration> {
        let since = *self.missing.get(id)?;
        Some(if id.is_java() && !mutant!(JavaGraceForgotten) {
            since.saturating_add(JAVA_RECONNECT_GRACE)
        } else {
            since
        })
    }

    /// Since when an instance that is named somewhere has been offline for good; `None`: it is not.
    pub(crate) fn offline_since(&self, id: &InstanceId, now: Now) -> Option<Duration> {
        self.offline_from(id).filter(|from| now.mono >= *from)
    }

    /// The next time that matters for a missing instance: the end of `java_reconnect_grace`, or of the leader's head
    /// start.
    pub(crate) fn next_retry(&self, now: Duration) -> Option<Duration> {
        let offline = self.missing.keys().filter_map(|id| self.offline_from(id));
        offline.flat_map(|from| [from, from.saturating_add(HEAD_START)]).filter(|at| *at > now).min()
    }

    pub(crate) fn was_read(&mut self) {
        self.unread.clear();
    }

    /// Compares the named instances with those online. Returns whether the nodes have to be read again before the
    /// result is known.
    fn look(&mut self, view: &JobView, fleet: &FleetView, now: Duration) -> bool {
        let named = view.item_views().flat_map(named_by);
        let is_instance = |id: &InstanceId| view.instances().contains_key(id);
        let offline: BTreeSet<_> = named.filter(|id| !is_instance(id)).cloned().collect();
        let (finishing, mut missing): (BTreeSet<_>, BTreeSet<_>) =
            offline.into_iter().partition(|id| fleet.member(id).is_some());
        let before = std::mem::replace(&mut self.finishing, finishing);
        let unread = self.unread.len();
        self.unread.extend(before.intersection(&missing).cloned());
        missing.retain(|id| !self.unread.contains(id));
        self.missing.retain(|id, _| missing.contains(id));
        for id in missing {
            self.missing.entry(id).or_insert(now);
        }
        self.unread.len() > unread
    }
}

/// The instances that an item's nodes name.
fn named_by(item: &ItemView) -> impl Iterator<Item = &InstanceId> {
    let owner = item.owner.as_ref().map(|owner| &owner.instance);
    let executor = item.running.as_ref().and_then(|running| running.owner.as_ref());
    let takers = [&item.failover, &item.failovering].into_iter().flatten().map(|taker| &taker.instance);
    owner.into_iter().chain(executor).chain(takers)
}

/// Whether an offline instance has left the item's running node, so that no instance will delete it. Not known while
/// the node's content is not: a Java instance may execute an item that it does not own, because its cache is behind
/// (protocol 4.3), or because an earlier leader that reshards late has deleted the owner (H6).
pub(crate) fn is_leftover(liveness: &Liveness, item: &ItemView, now: Now) -> bool {
    let executor = item.running.as_ref().and_then(|running| running.owner.as_ref());
    executor.is_some_and(|executor| {
        liveness.offline_since(executor, now).is_some() || mutant!(ForeignRunningDeleted)
    })
}

impl Liveness {
    /// Records which instances are offline. Their executions are known only with the content of the running nodes, so
    /// the view is read again if an instance went offline and that content is missing.
    pub(crate) fn update_liveness(
        &mut self,
        cx: &Context,
        has_open: impl Fn(Item) -> bool,
        out: &mut Outbox,
    ) {
        let now = cx.now;
        let revision = (cx.view.membership_revision(), cx.fleet.revision());
        if !cx.view.is_loaded() || self.looked == Some(revision) {
            return;
        }
        self.looked = Some(revision);
        let unread = self.look(&cx.view, &cx.fleet, now.mono);
        let departures = cx.view.seen_departures();
        let has_departures = std::mem::replace(&mut self.departures, departures) != departures;
        let unknown = |running: &Running| running.owner.is_none();
        let in_doubt = cx.view.running().iter().any(|item| {
            let running = cx.view.item(*item).and_then(|view| view.running.as_ref());
            running.is_some_and(unknown) && !has_open(*item)
        });
        if unread || (has_departures && in_doubt && cx.fails_over()) {
            out.read_again();
        }
    }
}
