//! Has a Java leader forgotten an instance? It divides the items among the instances that it knew before it waited, and takes
//! the flag down afterwards (H5): an instance that has gone meanwhile keeps its items until the next event, and one that has
//! come meanwhile gets none.
//!
//! We may not flag a resharding when we do not lead. But a Java leader flags one at any event of a server's node, and
//! every instance writes its own again when it reconnects (protocol 2.1, 2.4): so do we, with what it holds.

use std::time::Duration;

use crate::job::Item;
use crate::mutants::mutant;
use crate::tree::Operation;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::participant::Participant;
use crate::coordination::job::picture::nodes::ItemView;
use crate::coordination::job::picture::settings::Settings;

/// How long a Java leader has to notice by itself, and between two reminders.
const PATIENCE: Duration = Duration::from_secs(5);

/// Since when a Java leader seems to have forgotten an instance.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Nudge {
    due: Option<Duration>,
}

impl Nudge {
    /// When the patience ends.
    pub(in crate::coordination) fn next_retry(&self, now: Duration) -> Option<Duration> {
        self.due.filter(|due| *due > now)
    }
}

impl Participant {
    /// Reminds a Java leader of items that belong to nobody, and of us.
    pub(in crate::coordination) fn nudge_leader(&mut self) {
        let now = self.cx.now;
        let orphans = self.has_orphans() && !mutant!(JavaLeaderNotReminded);
        if !orphans && (!self.is_left_out() || mutant!(LeftOutOfDivision)) {
            self.nudge.due = None;
            return;
        }
        let due = *self.nudge.due.get_or_insert(now.mono.saturating_add(PATIENCE));
        if now.mono < due || !self.out.may_commit(&self.cx, Purpose::Nudge) {
            return;
        }
        self.nudge.due = Some(now.mono.saturating_add(PATIENCE));
        let Some(version) = self.cx.view.server_version(self.cx.identity.server_ip) else { return };
        // An operator's change in between makes it fail, and is an event itself.
        let path = self.cx.identity.paths.server(self.cx.identity.server_ip);
        let (data, version) = (b"ENABLED".as_slice().into(), Some(version));
        self.out.commit(Purpose::Nudge, vec![Operation::Set { path, data, version }]);
    }

    /// The settings of the job, if a Java instance leads it, we may own items of it, and no division is under way.
    fn led_by_java(&self) -> Option<&Settings> {
        let java_leads = self.cx.view.leader().is_some_and(|leader| leader.instance.is_java());
        let ready = self.cx.phase == Phase::Active && self.cx.is_registered() && self.cx.is_enabled();
        let settings =
            self.cx.settings.as_ref().filter(|_| ready && java_leads && !self.cx.view.is_resharding());
        settings.filter(|settings| !settings.configuration.static_sharding)
    }

    /// Whether items have no owner that is online.
    fn has_orphans(&self) -> bool {
        let now = self.cx.now;
        let is_orphan = |item: Item| {
            let owner = self.cx.view.item(item).and_then(|view| view.owner.as_ref());
            owner.is_none_or(|owner| self.crash.gone_since(&owner.instance, now).is_some())
        };
        self.led_by_java().is_some_and(|settings| settings.items().any(is_orphan))
    }

    /// Whether we own no item, though each of ElasticJob's strategies gives one to every instance if there are enough. Of a
    /// strategy of the job's own we do not know.
    fn is_left_out(&self) -> bool {
        let Some(settings) = self.led_by_java().filter(|settings| settings.knows_strategy()) else {
            return false;
        };
        let me = &self.cx.identity.instance;
        let is_ours = |item: &ItemView| item.owner.as_ref().is_some_and(|owner| owner.instance == *me);
        // Asked at each step: one that owns items looks no further.
        if self.cx.view.items().values().any(is_ours) {
            return false;
        }
        let instances = u32::try_from(self.cx.view.available().len()).unwrap_or(u32::MAX);
        instances <= settings.configuration.sharding_total_count
    }
}
