//! Who is gone for good? Whoever is named by a node of the job, but is not among its instances (protocol 7.1; H2, H4).
//!
//! An instance of ours removes what it says to the other sidecars together with its node, and so does the end of its
//! session. While it says something it is not gone: an operator has deleted its node, which stops it, and it executes to
//! the end what it has begun. A Java instance deletes and creates its node whenever its connection comes back, so it is
//! given [`GRACE`] before anything is taken from it.

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

/// How long a Java instance may be away before it counts as gone: far above the two requests between which it is away
/// when it reconnects, far below any session timeout, which a real crash takes to be noticed anyway.
const GRACE: Duration = Duration::from_secs(2);

/// Who is missed, and since when.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Crash {
    absent: BTreeMap<InstanceId, Duration>,
    /// [`JobView::seen_departures`] when they were looked at last.
    departures: u64,
    /// Who is no instance any more and still says something.
    finishing: BTreeSet<InstanceId>,
    /// Who was, and says nothing any more. What the job's nodes tell of its executions may be older than that, because
    /// they are watched apart from what it said.
    unread: BTreeSet<InstanceId>,
    looked: Option<(u64, u64)>,
}

impl Crash {
    /// When an instance that is named somewhere, and is away, counts as gone for good: maybe in the future.
    fn gone_from(&self, id: &InstanceId) -> Option<Duration> {
        let since = *self.absent.get(id)?;
        Some(if id.is_java() && !mutant!(JavaGraceForgotten) { since.saturating_add(GRACE) } else { since })
    }

    /// Since when an instance that is named somewhere has been gone for good; `None`: it is not.
    pub(in crate::coordination) fn gone_since(&self, id: &InstanceId, now: Now) -> Option<Duration> {
        self.gone_from(id).filter(|from| now.mono >= *from)
    }

    /// When the next thing happens to somebody who is away: the end of the grace, or of the leader's head start.
    pub(in crate::coordination) fn next_retry(&self, now: Duration) -> Option<Duration> {
        let gone = self.absent.keys().filter_map(|id| self.gone_from(id));
        gone.flat_map(|from| [from, from.saturating_add(HEAD_START)]).filter(|at| *at > now).min()
    }

    /// All of the job's nodes are read.
    pub(in crate::coordination) fn was_read(&mut self) {
        self.unread.clear();
    }

    /// Compares who is named with who is online. Tells whether the nodes have to be read again before that is known.
    fn look(&mut self, view: &JobView, fleet: &FleetView, now: Duration) -> bool {
        let named = view.items().values().flat_map(named_by);
        let is_instance = |id: &InstanceId| view.instances().contains_key(id);
        let gone: BTreeSet<_> = named.filter(|id| !is_instance(id)).cloned().collect();
        let (finishing, mut absent): (BTreeSet<_>, BTreeSet<_>) =
            gone.into_iter().partition(|id| fleet.member(id).is_some());
        let before = std::mem::replace(&mut self.finishing, finishing);
        let unread = self.unread.len();
        self.unread.extend(before.intersection(&absent).cloned());
        absent.retain(|id| !self.unread.contains(id));
        self.absent.retain(|id, _| absent.contains(id));
        for id in absent {
            self.absent.entry(id).or_insert(now);
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

/// Whether a running node was left by somebody who is gone, so that nobody will delete it. While its content is not known
/// nobody can say: a Java instance may execute what it does not own, because its cache is behind (protocol 4.3), or because
/// an earlier leader that divides late has deleted the owner (H6).
pub(in crate::coordination) fn is_leftover(crash: &Crash, item: &ItemView, now: Now) -> bool {
    let executor = item.running.as_ref().and_then(|running| running.owner.as_ref());
    executor
        .is_some_and(|executor| crash.gone_since(executor, now).is_some() || mutant!(ForeignRunningDeleted))
}

impl Crash {
    /// Notes who has gone. What they executed is known only if the content of the running nodes is, so the view is
    /// read again when somebody has gone and it is not.
    pub(in crate::coordination) fn look_for_crashes(
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
        let somebody_went = std::mem::replace(&mut self.departures, departures) != departures;
        let unknown = |running: &Running| running.owner.is_none();
        let in_doubt = cx.view.running().iter().any(|item| {
            let running = cx.view.item(*item).and_then(|view| view.running.as_ref());
            running.is_some_and(unknown) && !has_open(*item)
        });
        if unread || (somebody_went && in_doubt && cx.fails_over()) {
            out.read_again();
        }
    }
}
