//! Has a Java leader forgotten somebody? It divides the items among the instances that it knew before it waited, and takes
//! the flag down afterwards (H5); who has gone meanwhile keeps its items until the next event.
//!
//! We may not flag a resharding when we do not lead. But a Java leader flags one at any event of a server's node, and
//! every instance writes its own again when it reconnects (protocol 2.1, 2.4): so do we, with what it holds.

use std::time::Duration;

use crate::mutants::mutant;
use crate::tree::Operation;

use super::effect::Purpose;
use super::input::Now;
use super::participant::{Participant, Phase};

/// How long a Java leader has to notice by itself, and between two reminders.
const PATIENCE: Duration = Duration::from_secs(5);

/// Since when a Java leader seems to have forgotten somebody.
#[derive(Debug, Default)]
pub(super) struct Nudge {
    due: Option<Duration>,
}

impl Nudge {
    /// When the patience ends.
    pub(super) fn next_retry(&self, now: Duration) -> Option<Duration> {
        self.due.filter(|due| *due > now)
    }
}

impl Participant {
    /// Reminds a Java leader of items that belong to nobody.
    pub(super) fn nudge_leader(&mut self, now: Now) {
        if !self.has_orphans(now) || mutant!(JavaLeaderNotReminded) {
            self.nudge.due = None;
            return;
        }
        let due = *self.nudge.due.get_or_insert(now.mono.saturating_add(PATIENCE));
        if now.mono < due || !self.may_commit(now, Purpose::Nudge) {
            return;
        }
        self.nudge.due = Some(now.mono.saturating_add(PATIENCE));
        let Some(version) = self.view.server_version(self.identity.server_ip) else { return };
        // An operator's change in between makes it fail, and is an event itself.
        let path = self.identity.paths.server(self.identity.server_ip);
        let (data, version) = (b"ENABLED".as_slice().into(), Some(version));
        self.commit(Purpose::Nudge, vec![Operation::Set { path, data, version }]);
    }

    /// Whether items have no owner that is online, though a Java instance leads and nothing is under way.
    fn has_orphans(&self, now: Now) -> bool {
        let Some(settings) =
            self.settings.as_ref().filter(|settings| !settings.configuration.static_sharding)
        else {
            return false;
        };
        let java_leads = self.view.leader().is_some_and(|leader| leader.instance.is_java());
        let ready = self.phase == Phase::Active && self.is_registered() && self.is_enabled();
        ready
            && java_leads
            && !self.view.is_resharding()
            && settings.items().any(|item| {
                let owner = self.view.item(item).and_then(|view| view.owner.as_ref());
                owner.is_none_or(|owner| self.crash.gone_since(&owner.instance, now).is_some())
            })
    }
}
