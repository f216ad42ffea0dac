//! Which servers have had no instance for so long that their nodes are removed? Only the leader decides, and only if the job asks
//! for it (`sidekeeper.stale-servers`).
//!
//! The time counts from when this leader has seen the server without an instance, without an interruption, by its own monotonic
//! clock. Each write of the server's node begins it anew: a Java instance writes it before it registers. So a server is removed
//! later than the time says, never earlier: after a change of the leader, or of its session, the time begins again.
//!
//! Never removed: a disabled server, because an operator has disabled it; one whose status cannot be read; this instance's own;
//! one whose instance still owns an item, because a name may keep the item for it.
//!
//! A sidecar whose server's node was removed in the moment of its registration writes the node again (`registration`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::picture::nodes::ServerStatus;
use crate::extension::removal::Removal;
use crate::tree::{Operation, Transaction};

/// The most servers that one transaction removes.
const AT_ONCE: usize = 100;

/// The enabled servers without instances.
#[derive(Debug, Default)]
pub(crate) struct StaleServers {
    /// Since when, monotonic, and the version of the server's node then.
    since: BTreeMap<Ipv4Addr, (i32, Duration)>,
    /// The nodes that were looked at last.
    looked: Option<u64>,
    after: Duration,
}

impl StaleServers {
    /// When the next server is to be removed.
    pub(crate) fn next_retry(&self, now: Duration) -> Option<Duration> {
        let due = self.since.values().map(|(_, since)| since.saturating_add(self.after));
        due.filter(|due| *due > now).min()
    }

    /// Removes the servers whose time is over.
    pub(crate) fn remove_stale(&mut self, cx: &Context, out: &mut Outbox) {
        let policy = cx.settings.as_ref().and_then(|settings| settings.stale_servers);
        let Some((policy, leader)) = policy.filter(|policy| may_remove(cx, *policy)).zip(cx.view.leader())
        else {
            *self = Self::default();
            return;
        };
        self.after = policy.after;
        let now = cx.now.mono;
        if self.looked != Some(cx.view.membership_revision()) {
            self.looked = Some(cx.view.membership_revision());
            self.look(cx);
        }
        let is_over = |since: Duration| since.saturating_add(policy.after) <= now;
        let stale = self.since.iter().filter(|(_, (_, since))| is_over(*since));
        let deletions = stale.take(AT_ONCE).map(|(ip, (version, _))| Operation::Delete {
            path: cx.identity.paths.server(*ip),
            version: Some(*version),
        });
        let deletions: Transaction = deletions.collect();
        if deletions.is_empty() || !out.may_commit(cx, Purpose::RemoveServers) {
            return;
        }
        // Another leader counts for itself.
        let leads = Operation::Check { path: cx.identity.paths.leader(), version: Some(leader.version) };
        out.commit(Purpose::RemoveServers, std::iter::once(leads).chain(deletions).collect());
    }

    fn look(&mut self, cx: &Context) {
        let online = cx.view.instances().keys();
        let owners = cx.view.item_views().filter_map(|item| Some(&item.owner.as_ref()?.instance));
        let mut used: BTreeSet<_> = online.chain(owners).filter_map(|id| id.server_ip()).collect();
        used.insert(cx.identity.server_ip);
        let idle = cx
            .view
            .servers()
            .filter(|ip| !used.contains(ip) && cx.view.server(*ip) == Some(ServerStatus::Enabled));
        let before = std::mem::take(&mut self.since);
        for ip in idle {
            let Some(version) = cx.view.server_version(ip) else { continue };
            let known = before.get(&ip).filter(|(known, _)| *known == version);
            self.since.insert(ip, known.copied().unwrap_or((version, cx.now.mono)));
        }
    }
}

/// Whether this instance may remove servers now.
fn may_remove(cx: &Context, policy: Removal) -> bool {
    let leads = cx.phase == Phase::Active && cx.is_connected() && cx.is_registered() && cx.is_leader();
    leads && (policy.beside_java || !cx.has_java_peers())
}
