//! How long does the leader wait at a resharding beside Java instances, so that no fire is lost? In a fleet without
//! Java instances it waits for nothing.
//!
//! A Java instance reads its items at a fire: it waits until the resharding flag is deleted, and then reads the owners
//! from a cache that follows the registry a little later (protocol 4.2, 4.3). And it registers before its scheduler
//! runs (protocol 2.1). So three things wait:
//!
//! - the flag stays up after a resharding, until the caches have the new owners; the leader lowers it in another
//!   transaction;
//! - an instance gets no items if a fire comes before it is ready, or has come while the flag is up: that fire waits
//!   for the next owner, which must have been online. A sidecar is ready when it is registered, a Java instance when
//!   its scheduler can be expected to run;
//! - no resharding takes items from an online instance while a fire is being started: some instances have looked at the
//!   flag before the resharding, and some look after it. A fire is started at its time, or when the flag is lowered.
//!
//! Each wait is bounded. The nodes show that a resharding has answered the flag: the transaction that changed
//! `leader/sharding` last has also created the owners. So the next leader lowers the flag as well; a Java leader
//! reshards again. A leader that follows another one derives each wait from the view again, or waits once more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::picture::job_view::JobView;
use crate::coordination::job::picture::nodes::{InstanceView, ItemView};
use crate::job::{FencingToken, Generation, InstanceId, Item};
use crate::mutants::mutant;
use crate::tree::{Operation, SessionId, Transaction, Zxid};

/// How long the flag stays up after a resharding. ElasticJob 3.0.5's cache was seen to be behind the flag by at most 21 ms
/// with 20 items and 410 ms with 100, on a busy machine. A fire that meets a resharding is late by as much; that is less than
/// the shortest time between two fires.
const CACHES_FOLLOW: Duration = Duration::from_millis(750);
/// How long after its registration the scheduler of a Java instance may not run yet. It was seen to start after 0.04 to
/// 1.2 s; with Spring Boot it starts when the application's context is complete. An instance that waits costs nothing but
/// balance: others execute the items.
const SCHEDULER_STARTS: Duration = Duration::from_secs(5);
/// How long an instance may be missing and be the same when it returns: a Java instance deletes and creates its node
/// when its connection comes back, and its scheduler runs on.
const RECONNECTS: Duration = Duration::from_secs(2);
/// How long before a fire no resharding begins: about the time of a request, and the difference of clocks in one network.
const BEFORE_FIRE: SignedDuration = SignedDuration::from_millis(50);
/// How long after a fire, or after the flag was lowered, no resharding begins: until all instances have looked at the
/// flag (Java instances do every 100 ms) and have created running nodes. Together with the above less than a second,
/// which is the shortest time between two fires.
const AFTER_FIRE: Duration = Duration::from_millis(250);

/// An instance, as the views have shown it.
#[derive(Debug, Clone, Copy)]
struct Seen {
    session: Option<SessionId>,
    /// From when on its scheduler can be expected to fire; monotonic.
    ready: Duration,
    /// Since when it has been missing, monotonic.
    missing: Option<Duration>,
}

/// The known times of the instances of a job with Java instances. A participant that has lost this state waits once
/// more, and does nothing wrong.
#[derive(Debug, Default)]
pub(crate) struct JavaPeers {
    looked: Option<u64>,
    seen: BTreeMap<InstanceId, Seen>,
    /// Since when the flag has been up, and when it was lowered; monotonic.
    flagged: Option<Duration>,
    lowered: Option<Duration>,
    /// The latest resharding while the flag was up, by the transaction, and when it was first seen; monotonic.
    resharded: Option<(Zxid, Duration)>,
    /// When to look again, each monotonic: for an instance that starts, and for a resharding or its flag.
    ready_at: Option<Duration>,
    due: Option<Duration>,
}

impl JavaPeers {
    /// When a wait ends.
    pub(crate) fn next_retry(&self, now: Duration) -> Option<Duration> {
        [self.ready_at, self.due].into_iter().flatten().filter(|at| *at > now).min()
    }

    /// Records since when the flag has been up, or was lowered.
    fn record_flag(&mut self, is_up: bool, now: Duration) {
        if is_up {
            self.flagged.get_or_insert(now);
        } else if self.flagged.take().is_some() {
            self.lowered = Some(now);
        }
    }

    /// Records which instances are online, and since when.
    fn look(&mut self, view: &JobView, now: Duration) {
        // Without a Java instance, online or missing for a moment, no instance waits.
        if !view.has_java_instances() && !self.seen.keys().any(InstanceId::is_java) {
            self.seen.clear();
            return;
        }
        for (id, seen) in &mut self.seen {
            let is_there = view.instances().contains_key(id);
            seen.missing = if is_there { None } else { seen.missing.or(Some(now)) };
        }
        self.seen.retain(|_, seen| seen.missing.is_none_or(|since| now < since.saturating_add(RECONNECTS)));
        // All times are by the registry's clock: this one may be wrong. This instance's node is as new as its session.
        let newest = view.instances().values().filter_map(|instance| instance.since).max();
        for (id, instance) in view.instances() {
            if self.seen.get(id).is_some_and(|seen| seen.session == instance.session) {
                continue;
            }
            let starts_after = if id.is_java() { SCHEDULER_STARTS } else { Duration::ZERO };
            let ready = now.saturating_add(starts_after).saturating_sub(age(instance, newest));
            self.seen.insert(id.clone(), Seen { session: instance.session, ready, missing: None });
        }
    }
}

/// How long an instance has been online, at least.
fn age(instance: &InstanceView, newest: Option<Timestamp>) -> Duration {
    let age = newest.zip(instance.since).map(|(newest, since)| newest.duration_since(since));
    age.and_then(|age| Duration::try_from(age).ok()).unwrap_or_default()
}

impl JavaPeers {
    /// Finds the instances that get no items yet.
    pub(crate) fn find_unready(&mut self, cx: &Context) -> BTreeSet<InstanceId> {
        (self.due, self.ready_at) = (None, None);
        let none = BTreeSet::new();
        let now = cx.now;
        if !cx.view.is_loaded() {
            return none;
        }
        self.record_flag(cx.view.necessary(), now.mono);
        let revision = cx.view.membership_revision();
        if self.looked != Some(revision) {
            self.looked = Some(revision);
            self.look(&cx.view, now.mono);
        }
        let Some(settings) = cx.settings.as_ref().filter(|_| cx.has_java_peers()) else { return none };
        let Some(schedule) = &settings.schedule else { return none };
        // A static assignment is made among all online instances.
        if settings.configuration.static_sharding || mutant!(NewcomerGetsItems) {
            return none;
        }
        // A fire that has come since the flag went up waits for the owner that the resharding chooses.
        let flagged = self.flagged.filter(|_| !mutant!(JoinedWhileFlagged));
        let from = flagged.unwrap_or(now.mono);
        let late = |seen: &Seen| seen.missing.is_none() && seen.ready > from;
        let late: Vec<_> = self.seen.iter().filter(|(_, seen)| late(seen)).collect();
        if late.is_empty() {
            return none;
        }
        let wall = |mono: Duration| match mono.checked_sub(now.mono) {
            Some(ahead) => now.wall.checked_add(ahead),
            None => now.wall.checked_sub(now.mono.saturating_sub(mono)),
        };
        let Some(fire) = wall(from).ok().and_then(|from| schedule.next_after(from)) else { return none };
        let misses_it = |seen: &Seen| wall(seen.ready).is_ok_and(|ready| fire < ready);
        let is_unready = |(id, seen): &(&InstanceId, &Seen)| {
            misses_it(seen) && (!was_given_items(cx, id) || mutant!(GivenTakenBack))
        };
        let unready: Vec<_> = late.into_iter().filter(is_unready).collect();
        let ready_at = unready.iter().map(|(_, seen)| seen.ready).filter(|at| *at > now.mono).min();
        let unready = unready.into_iter().map(|(id, _)| id.clone()).collect();
        self.ready_at = ready_at;
        unready
    }

    /// Lowers the flag when the Java instances' caches have seen the resharding.
    pub(crate) fn lower_flag(&mut self, cx: &Context, out: &mut Outbox) {
        let now = cx.now;
        let Some(resharded) = cx.view.sharding_changed().filter(|_| is_flag_answered(cx)) else {
            return;
        };
        let since = match self.resharded {
            Some((known, since)) if known == resharded => since,
            Some(_) | None => now.mono,
        };
        self.resharded = Some((resharded, since));
        let due = since.saturating_add(CACHES_FOLLOW);
        if now.mono < due {
            self.due = Some(due);
            return;
        }
        if !out.may_commit(cx, Purpose::FlagResharding) {
            return;
        }
        let paths = &cx.identity.paths;
        let mut transaction = Transaction::new();
        if let Some(leader) = cx.view.leader() {
            transaction.push(Operation::Check { path: paths.leader(), version: Some(leader.version) });
        }
        transaction.extend(cx.not_resharded());
        transaction.push(Operation::delete(paths.necessary()));
        if cx.view.processing() {
            transaction.push(Operation::delete(paths.processing()));
        }
        out.commit(Purpose::FlagResharding, transaction);
    }

    /// Whether a resharding that takes items from an online instance has to wait, because a fire is being started.
    pub(crate) fn waits_for_fire(&mut self, cx: &Context, owners: &[InstanceId]) -> bool {
        let now = cx.now;
        if cx.view.necessary() || !cx.has_java_peers() || mutant!(ReshardedAtFire) {
            return false;
        }
        let lowered = self.lowered.filter(|_| !mutant!(LoweringUnnoticed));
        let lowered = lowered.map(|lowered| lowered.saturating_add(AFTER_FIRE));
        let schedule = cx.settings.as_ref().and_then(|settings| settings.schedule.as_ref());
        let fire = || schedule?.next_after(now.wall.checked_sub(AFTER_FIRE).ok()?);
        let near = fire().filter(|fire| fire.duration_since(now.wall) < BEFORE_FIRE);
        let over = near.and_then(|fire| fire.checked_add(AFTER_FIRE).ok());
        let over = over.and_then(|over| Duration::try_from(over.duration_since(now.wall)).ok());
        let over = over.map(|wait| now.mono.saturating_add(wait));
        let Some(until) = lowered.max(over).filter(|until| *until > now.mono) else { return false };
        let moves = |(item, owner): (u32, &InstanceId)| {
            cx.view.online_owner(Item(item)).is_some_and(|before| before != owner)
        };
        if !(0..).zip(owners).any(moves) {
            return false;
        }
        self.due = Some(until);
        true
    }
}

/// Whether an instance has got items since it registered: it keeps them, though the schedule has changed and a fire
/// comes now.
fn was_given_items(cx: &Context, id: &InstanceId) -> bool {
    let Some(created) = cx.view.instances().get(id).map(|instance| instance.created) else {
        return false;
    };
    let given = |item: &ItemView| {
        let owner = item.owner.as_ref().filter(|owner| owner.instance == *id);
        owner.is_some_and(|owner| owner.token > FencingToken::from(created))
    };
    cx.view.item_views().any(given)
}

/// Whether the flag is up although the items were resharded after it was raised.
pub(crate) fn is_flag_answered(cx: &Context) -> bool {
    let resharded = Generation(cx.view.sharding_changed().map_or(0, |zxid| zxid.0));
    cx.view.necessary() && cx.has_java_peers() && resharded == cx.view.generation()
}

/// Whether the flag stays up after a resharding.
pub(crate) fn keeps_flag(cx: &Context) -> bool {
    cx.has_java_peers() && !mutant!(FlagLoweredWithResharding)
}
