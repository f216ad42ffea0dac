//! How long does the leader wait before it moves items to instances that have joined? Many instances join within a short
//! time when a fleet starts, and each division of the items among them costs each sidecar of the job requests and its
//! applications changes of their assignments.
//!
//! The first that joins waits for [`ALONE`]. After a division, those that join wait until the settling time of the job
//! (`sidekeeper.handoff-settling`) has passed since then, and get their items together. Only moves for joins wait: an
//! item without an owner gets one at once, unless no instance has any item, and an instance that leaves hands its items over
//! at once.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::coordination::job::frame::context::Context;
use crate::coordination::job::ownership::reservation::Reservations;
use crate::job::InstanceId;

/// How long an instance that joins alone waits. Those of one deployment that start at the same moment register within it.
const ALONE: Duration = Duration::from_millis(50);

/// The leader's wait for further instances.
#[derive(Debug, Default)]
pub(crate) struct Settling {
    /// The revision of the view at the last look. `None`: this instance did not lead.
    looked: Option<u64>,
    /// The instances at the last look.
    known: BTreeSet<InstanceId>,
    /// The end of the last wait, or of the present one.
    until: Option<Duration>,
    /// Whether an instance is online that owns an item, or the items of one are reserved.
    is_owned: bool,
}

impl Settling {
    /// Looks for instances that have joined or left.
    pub(crate) fn look(&mut self, cx: &Context, reservations: &Reservations) {
        if !cx.is_registered() || !cx.is_leader() {
            *self = Self::default();
            return;
        }
        let revision = cx.view.membership_revision();
        if self.looked == Some(revision) {
            return;
        }
        let now = cx.now.mono;
        let is_owner =
            |id: &InstanceId| cx.view.instances().contains_key(id) || reservations.stays_with(id).is_some();
        self.is_owned = cx
            .view
            .item_views()
            .any(|item| item.owner.as_ref().is_some_and(|owner| is_owner(&owner.instance)));
        let instances = cx.view.instances();
        let joined = match self.looked.replace(revision) {
            Some(_) => instances.keys().any(|id| !self.known.contains(id)),
            // The instances of a new leader may have been there for long.
            None => !self.is_owned,
        };
        if self.known.iter().any(|id| !instances.contains_key(id)) {
            self.until = self.until.map(|until| until.min(now));
        } else if joined && !self.waits(now) {
            let settling = cx.settings.as_ref().map(|settings| settings.handoff.settling).unwrap_or_default();
            let alone = now.saturating_add(ALONE.min(settling));
            self.until = Some(self.until.map_or(alone, |last| alone.max(last.saturating_add(settling))));
        }
        self.known = instances.keys().cloned().collect();
    }

    /// Whether moves for instances that have joined wait.
    pub(crate) fn waits(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Whether the first division of the job waits.
    pub(crate) fn is_first_waiting(&self, now: Duration) -> bool {
        !self.is_owned && self.waits(now)
    }

    /// The end of the wait.
    pub(crate) fn next_retry(&self, now: Duration) -> Option<Duration> {
        self.until.filter(|at| *at > now)
    }
}
