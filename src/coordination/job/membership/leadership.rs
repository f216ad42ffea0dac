//! Which instance leads? This instance stands for election when there is no leader, and abdicates when its server is
//! disabled (protocol 3).
//!
//! The leader's id is in `leader/election/instance`. The latch only keeps candidates in line with Java peers; the
//! runner joins it for at most [`LATCH_LIMIT`] (H1).

use std::time::Duration;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::limits::REMOVAL_TAKES;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::membership::announcement::withdraw_plan;
use crate::elasticjob::path::JobPaths;
use crate::findings::problem::{Problem, ProblemCode};
use crate::job::InstanceId;
use crate::mutants::mutant;
use crate::tree::{NodeKind, Operation, Transaction};

/// How long a candidate may take for the latch. Holding it takes two round trips; a candidate that takes longer is
/// stuck.
pub const LATCH_LIMIT: Duration = Duration::from_secs(10);
/// The pause after an attempt that failed, or whose leader is not seen.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a leader may be missing among the instances before its node is removed. A Java peer that stops deletes its
/// instance a moment before its leadership.
const LEFTOVER_AFTER: Duration = Duration::from_secs(5);

/// The attempts of this instance to lead.
#[derive(Debug, Default)]
pub(crate) struct Election {
    standing: bool,
    failures: u32,
    retry_at: Option<Duration>,
    leftover_since: Option<Duration>,
    /// The last leader.
    last: Option<InstanceId>,
    vacant_since: Option<Duration>,
}

impl Election {
    /// An attempt has ended.
    pub(crate) fn ended(&mut self, now: Duration, well: bool) {
        self.standing = false;
        self.failures = if well { 0 } else { self.failures.saturating_add(1) };
        // After an attempt that ended well there was a leader. The view may show it later, if it is another instance.
        self.retry_at = Some(now.saturating_add(PAUSE));
    }

    pub(crate) fn next_retry(&self, now: Duration) -> Option<Duration> {
        let leftover = self.leftover_since.map(|since| since.saturating_add(LEFTOVER_AFTER));
        let vacant = self.vacant_since.map(|since| since.saturating_add(REMOVAL_TAKES));
        [self.retry_at, leftover, vacant].into_iter().flatten().filter(|at| *at > now).min()
    }

    /// The problem that elections fail.
    pub(crate) fn problem(&self, paths: &JobPaths) -> Option<Problem> {
        (self.failures >= 2).then(|| Problem {
            path: paths.election_latch(),
            message:
                "no leader can be elected: another candidate holds the latch; look for a stuck instance at \
                      the head of its children"
                    .to_owned(),
            code: ProblemCode::LeaderMissing,
        })
    }

    pub(crate) fn is_standing(&self) -> bool {
        self.standing
    }

    /// Stands for election, abdicates, or removes the node of a leader that is offline.
    pub(crate) fn elect(&mut self, cx: &Context, out: &mut Outbox) {
        let now = cx.now;
        if !matches!(cx.phase, Phase::Active) || !cx.is_registered() {
            return;
        }
        let Some(leader) = cx.view.leader().cloned() else {
            self.leftover_since = None;
            let since = *self.vacant_since.get_or_insert(now.mono);
            // An operator may be removing the whole job, and a candidate creates nodes. In all other cases a leader
            // disappears together with its instance.
            let last = self.last.as_ref();
            let odd = last.is_some_and(|last| cx.view.instances().contains_key(last));
            if !odd || now.mono >= since.saturating_add(REMOVAL_TAKES) {
                self.stand(cx, out);
            }
            return;
        };
        self.vacant_since = None;
        if self.failures == 0 {
            self.retry_at = None;
        }
        self.last = Some(leader.instance.clone());
        let leftover = if cx.view.instances().contains_key(&leader.instance) {
            self.leftover_since = None;
            false
        } else {
            let since = *self.leftover_since.get_or_insert(now.mono);
            now.mono >= since.saturating_add(LEFTOVER_AFTER) && !mutant!(LeftoverLeaderKept)
        };
        let abdicate = cx.is_leader() && !cx.is_enabled() && !mutant!(DisabledLeaderStays);
        if (abdicate || leftover) && out.may_commit(cx, Purpose::Abdicate) {
            let mut transaction = Transaction::new();
            if abdicate {
                give_up_leadership(cx, &mut transaction);
                transaction.extend(withdraw_plan(cx));
            } else {
                let (path, version) = (cx.identity.paths.leader(), Some(leader.version));
                transaction.push(Operation::Delete { path, version });
            }
            out.commit(Purpose::Abdicate, transaction);
        }
    }

    fn stand(&mut self, cx: &Context, out: &mut Outbox) {
        let now = cx.now;
        let pausing = self.retry_at.is_some_and(|at| now.mono < at);
        if self.standing || pausing || !cx.is_enabled() {
            return;
        }
        self.standing = true;
        let instance = cx.identity.instance.as_str();
        out.push(Effect::Elect(vec![Operation::create(
            cx.identity.paths.leader(),
            NodeKind::Ephemeral,
            instance,
        )]));
    }
}

/// The steps that end this instance's leadership. The next leader has to reshard its items: a Java leader does so only
/// if the flag is up, and it may have seen this instance leave while this instance still led.
pub(crate) fn give_up_leadership(cx: &Context, transaction: &mut Transaction) {
    let paths = &cx.identity.paths;
    let Some(leader) = cx.view.leader().filter(|_| !mutant!(LeadershipKept)) else { return };
    let stays = cx.settings.as_ref().is_some_and(|settings| settings.configuration.static_sharding);
    let others = cx.view.instances().keys().any(InstanceId::is_java);
    if others && !stays && !cx.view.necessary() {
        transaction.push(Operation::create(paths.necessary(), NodeKind::Persistent, ""));
        transaction.push(Operation::set(paths.leader_sharding(), ""));
    }
    transaction.push(Operation::Delete { path: paths.leader(), version: Some(leader.version) });
}
