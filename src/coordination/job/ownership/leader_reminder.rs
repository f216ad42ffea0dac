//! Has a Java leader forgotten an instance? It reshards the items among the instances that it knew before it waited,
//! and lowers the flag afterwards (H5). So an instance that has left in the meantime keeps its items until the next
//! event, and one that has come in the meantime gets none.
//!
//! Only the leader may flag a resharding. But a Java leader flags one at any event of a server's node, and every
//! instance writes its own server's node again when it reconnects (protocol 2.1, 2.4). So this instance writes its own,
//! with the same content: the leader is reminded, not overruled.

use std::time::Duration;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::membership::liveness::Liveness;
use crate::coordination::job::picture::nodes::ItemView;
use crate::coordination::job::picture::settings::Settings;
use crate::job::Item;
use crate::mutants::mutant;
use crate::tree::Operation;

/// How long a Java leader has to notice by itself, and the pause between two reminders.
const PATIENCE: Duration = Duration::from_secs(5);

/// Since when a Java leader seems to have forgotten an instance.
#[derive(Debug, Default)]
pub(crate) struct LeaderReminder {
    due: Option<Duration>,
}

impl LeaderReminder {
    /// When the next reminder is due.
    pub(crate) fn next_retry(&self, now: Duration) -> Option<Duration> {
        self.due.filter(|due| *due > now)
    }

    /// Reminds a Java leader of items without an owner, and of this instance.
    pub(crate) fn remind_leader(&mut self, cx: &Context, liveness: &Liveness, out: &mut Outbox) {
        let now = cx.now;
        let orphans = has_orphans(cx, liveness) && !mutant!(JavaLeaderNotReminded);
        if !orphans && (!is_left_out(cx) || mutant!(LeftOutOfResharding)) {
            self.due = None;
            return;
        }
        let due = *self.due.get_or_insert(now.mono.saturating_add(PATIENCE));
        if now.mono < due || !out.may_commit(cx, Purpose::RemindLeader) {
            return;
        }
        self.due = Some(now.mono.saturating_add(PATIENCE));
        let Some(version) = cx.view.server_version(cx.identity.server_ip) else { return };
        // If an operator changes the node in between, the write fails, and the change is an event itself.
        let path = cx.identity.paths.server(cx.identity.server_ip);
        let (data, version) = (b"ENABLED".as_slice().into(), Some(version));
        out.commit(Purpose::RemindLeader, vec![Operation::Set { path, data, version }]);
    }
}

/// The settings of the job, if a Java instance leads it, this instance may own items of it, and no resharding is due.
fn led_by_java(cx: &Context) -> Option<&Settings> {
    let java_leads = cx.view.leader().is_some_and(|leader| leader.instance.is_java());
    let ready = cx.phase == Phase::Active && cx.is_registered() && cx.is_enabled();
    let settings = cx.settings.as_ref().filter(|_| ready && java_leads && !cx.view.is_resharding());
    settings.filter(|settings| !settings.configuration.static_sharding)
}

/// Whether items have no owner that is online.
fn has_orphans(cx: &Context, liveness: &Liveness) -> bool {
    let now = cx.now;
    let is_orphan = |item: Item| {
        let owner = cx.view.item(item).and_then(|view| view.owner.as_ref());
        owner.is_none_or(|owner| liveness.offline_since(&owner.instance, now).is_some())
    };
    led_by_java(cx).is_some_and(|settings| settings.items().any(is_orphan))
}

/// Whether this instance owns no item, though each of ElasticJob's strategies gives one to every instance if there are
/// enough. A strategy of the job's own may not.
fn is_left_out(cx: &Context) -> bool {
    let Some(settings) = led_by_java(cx).filter(|settings| settings.knows_strategy()) else {
        return false;
    };
    let me = &cx.identity.instance;
    let is_ours = |item: &ItemView| item.owner.as_ref().is_some_and(|owner| owner.instance == *me);
    // This is asked at each step: an instance that owns items asks no further.
    if cx.view.item_views().any(is_ours) {
        return false;
    }
    let instances = u32::try_from(cx.view.available().len()).unwrap_or(u32::MAX);
    instances <= settings.configuration.sharding_total_count
}
