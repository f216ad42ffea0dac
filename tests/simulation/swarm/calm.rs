//! The state that the fleet has to reach after the faults, and to keep.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::coordination::job::frame::limits::MISFIRE_THRESHOLD;
use sidekeeper::extension::{handoff_policy, once_listener, reattach_grace};
use sidekeeper::job::Item;
use sidekeeper::tree::Path;
use twox_hash::XxHash64;

use super::checks::Start;
use super::client::Link;
use super::faults::Fault;
use super::invariants::Invariant;
use super::world::World;
use super::{MILLISECOND, Micros, SECOND};

impl World {
    pub(super) fn items(&self) -> impl Iterator<Item = Item> + use<> {
        (0..self.plan.configuration.sharding_total_count).map(Item)
    }

    /// How long it may take until all is right, when nothing is wrong any more from outside.
    fn bound(&self) -> Micros {
        let (grace, _) = reattach_grace::of(&self.plan.configuration);
        let (handoff, _) = handoff_policy::of(&self.plan.configuration);
        let waits = grace + handoff.deadline.min(std::time::Duration::from_secs(4));
        2 * self.plan.session_timeout + u64::try_from(waits.as_micros()).unwrap() + 15 * SECOND
    }

    /// The fault in the state; `None`: there is none.
    fn trouble(&self) -> Option<(Invariant, String)> {
        for (m, machine) in self.machines.iter().enumerate() {
            if machine.retired {
                if machine.sidecar.as_ref().is_some_and(|sidecar| sidecar.participant.is_some()) {
                    return Some((Invariant::NothingLeft, format!("m{m} has not left")));
                }
            } else if !machine.application.attached {
                return Some((Invariant::Owned, format!("m{m} is not attached")));
            } else if !self.is_registered(m) {
                return Some((Invariant::Owned, format!("m{m} is not registered, or has no connection")));
            }
        }
        if let Some(lock) = self.lock_of_other() {
            return Some((
                Invariant::NoSilentWait,
                format!("the lock {lock} is held by another job or by nobody"),
            ));
        }
        if let Some(instance) = self.left_over() {
            return Some((Invariant::Owned, format!("{instance} is still an instance, and nobody is it")));
        }
        if let Some(left) = self.left_trigger() {
            return Some((Invariant::Triggered, left));
        }
        let text = |path: &Path| {
            self.ensemble.get(path).map(|node| String::from_utf8_lossy(&node.data).into_owned())
        };
        if self.ensemble.get(&self.paths.necessary()).is_some() {
            return Some((Invariant::Owned, "a resharding is due".to_owned()));
        }
        let is_static = self.plan.configuration.static_sharding;
        if !is_static && self.ensemble.get(&self.own_paths.fleet().handoff()).is_some() {
            return Some((Invariant::Owned, "items are to change hands".to_owned()));
        }
        let owners: BTreeMap<String, usize> = self
            .machines
            .iter()
            .enumerate()
            .filter_map(|(m, machine)| {
                let seat = machine.sidecar.as_ref()?.participant.as_ref()?;
                machine.application.attached.then(|| (seat.identity.instance.to_string(), m))
            })
            .collect();
        for item in self.items() {
            // A static job's first assignment stays for good, as in ElasticJob.
            if !is_static && let Some(wrong) = self.not_owned(item, &owners) {
                return Some((Invariant::Owned, wrong));
            }
            let running = text(&self.paths.item_running(item));
            if let Some(running) = running {
                let open = owners.get(&running).is_some_and(|m| {
                    let executions = &self.machines[*m].application.executions;
                    executions.values().any(|open| open.execute.item == item)
                });
                if !open {
                    let found =
                        format!("item {item} has a running node of {running}, and nobody executes it");
                    return Some((Invariant::RunningNode, found));
                }
            }
            if self.ensemble.get(&self.paths.failover_item(item)).is_some() {
                return Some((Invariant::Owned, format!("item {item} waits to be taken over")));
            }
        }
        None
    }

    /// The fault in the state that no start or end on its way explains: that may take a round trip, and clocks that
    /// fire one after another can be met in theirs again and again.
    fn lasting_trouble(&mut self) -> Option<(Invariant, String)> {
        let found = self.trouble()?;
        if found.0 != Invariant::RunningNode {
            return Some(found);
        }
        self.run_until(self.now + 2 * (50 + self.plan.latency) + 5 * MILLISECOND);
        self.trouble().filter(|again| again.0 != Invariant::RunningNode || *again == found)
    }

    /// An instance that stays until its session ends, because its sidecar has died. It may have the turn of a rotation.
    fn left_over(&self) -> Option<String> {
        let sidecars = self.machines.iter().filter_map(|machine| machine.sidecar.as_ref());
        let sessions = sidecars.filter_map(|sidecar| sidecar.client.session);
        let served: Vec<_> = sessions.map(|session| self.sessions[session].handle.id()).collect();
        let folder = self.paths.root().child("instances");
        let is_left = |id: &String| {
            let node = folder.try_child(id).ok().and_then(|path| self.ensemble.get(&path));
            let owner = node.and_then(|node| node.stat.ephemeral_owner);
            owner.is_some_and(|owner| !served.contains(&owner))
        };
        self.ensemble.children(&folder).into_iter().find(is_left)
    }

    /// Whether a machine's sidecar is connected, and the registry has its instance in that session.
    fn is_registered(&self, m: usize) -> bool {
        let Some(sidecar) = &self.machines[m].sidecar else { return false };
        let (Some(seat), Some(session)) = (&sidecar.participant, sidecar.client.session) else {
            return false;
        };
        let node = self.ensemble.get(&self.paths.instance(&seat.identity.instance));
        let owner = node.and_then(|node| node.stat.ephemeral_owner);
        matches!(sidecar.client.link, Link::Up(_)) && owner == Some(self.sessions[session].handle.id())
    }

    /// Whether the registry has the instance of a machine.
    pub(super) fn is_instance(&self, m: usize) -> bool {
        let seat = self.machines[m].sidecar.as_ref().and_then(|sidecar| sidecar.participant.as_ref());
        seat.is_some_and(|seat| self.ensemble.get(&self.paths.instance(&seat.identity.instance)).is_some())
    }

    /// Why an item is not owned by a node that knows of it; `None`: it is.
    fn not_owned(&self, item: Item, owners: &BTreeMap<String, usize>) -> Option<String> {
        let node = self.ensemble.get(&self.paths.item_instance(item));
        let owner = node.map(|node| String::from_utf8_lossy(&node.data).into_owned());
        let Some(m) = owner.as_ref().and_then(|owner| owners.get(owner)).copied() else {
            return Some(format!("item {item} is owned by {owner:?} of {owners:?}"));
        };
        let told = &self.machines[m].application.items;
        if !told.contains(&item) && !self.is_relay() {
            return Some(format!("m{m} owns item {item}, and was told {told:?}"));
        }
        let holders = self.machines.iter().filter(|machine| machine.application.items.contains(&item));
        (holders.count() > 1).then(|| format!("item {item} is owned by several"))
    }

    /// Everything becomes right within a bound.
    pub(super) fn become_right(&mut self) {
        let end = self.now + self.bound();
        let mut right_since = None;
        let mut known = None;
        while !self.has_failed() {
            self.run_until(self.now + 250 * MILLISECOND);
            let trouble = self.lasting_trouble();
            if trouble != known {
                self.tell(|| format!("not right: {:?}", trouble.as_ref().map(|(_, found)| found)));
                known.clone_from(&trouble);
            }
            match trouble {
                None => {
                    let since = *right_since.get_or_insert(self.now);
                    if self.now >= since + SECOND {
                        return;
                    }
                }
                Some((invariant, found)) => {
                    right_since = None;
                    if self.now >= end {
                        return self.fail(invariant, || found);
                    }
                }
            }
        }
    }

    /// When nothing is wrong, each item is executed exactly once at each fire, and flagged fires are rerun.
    pub(super) fn watch_fires(&mut self) {
        let period = self.plan.period;
        let once = self.plan.configuration.props.contains_key(once_listener::ENABLED_PROPERTY);
        let job = &self.plan.configuration;
        if period == 0 || self.has_failed() || once || job.static_sharding || !job.monitor_execution {
            return;
        }
        let wall = |world: &Self, at: Micros| {
            let shown = world.machines.iter().filter(|machine| !machine.retired).map(|m| m.now(at).wall);
            (shown.clone().min(), shown.max())
        };
        let (_, Some(from)) = wall(self, self.now + SECOND / 2) else { return };
        // An instant that a clock has shown in the storm, before it was set back, does not come again.
        let from = self.checks.shown.map_or(from, |shown| from.max(shown));
        let flagged = self.flagged_misfires();
        self.run_until(self.now + 2 * period * SECOND + SECOND);
        let makes_up = self.plan.configuration.misfire;
        if let Some(item) = self.flagged_misfires().intersection(&flagged).next().filter(|_| makes_up) {
            return self.fail(Invariant::OncePerFire, || format!("item {item} stays flagged as missed"));
        }
        let (Some(until), _) = wall(self, self.now.saturating_sub(SECOND)) else { return };
        let mut fire = from.as_second() + 1;
        while fire < until.as_second() && !self.has_failed() {
            if fire % 60 % i64::try_from(period).unwrap() == 0 {
                for item in self.items() {
                    self.check_exactly_once(item, fire);
                }
            }
            fire += 1;
        }
    }

    /// The items whose missed fires are to be made up for.
    pub(super) fn flagged_misfires(&self) -> BTreeSet<Item> {
        self.items().filter(|item| self.ensemble.get(&self.paths.item_misfire(*item)).is_some()).collect()
    }

    /// Fires that the storm has made impossible at their time were rerun. Only fires count that an instance has
    /// witnessed that is still there: a fire without an attached instance is lost, as in ElasticJob.
    pub(super) fn check_nothing_lost(&mut self, counts_now: impl Fn(Item) -> bool) {
        let job = &self.plan.configuration;
        let (handoff, _) = handoff_policy::of(job);
        let counts = job.misfire && job.monitor_execution && !handoff.continuous && self.plan.period > 0;
        let changed =
            [Fault::TotalChange, Fault::ItemSwitch, Fault::ClockStep, Fault::Garbage, Fault::DeletedNode];
        let changed = changed.iter().any(|fault| self.counts.of(*fault) > 0);
        // With clocks that differ, instances disagree about which fires came before the schedule was changed.
        let rescheduled = self.counts.of(Fault::ScheduleChange) > 0;
        let changed = changed || (rescheduled && self.counts.of(Fault::ClockRate) > 0);
        if !counts || changed || self.has_failed() {
            return;
        }
        let relay = self.is_relay();
        let once = job.props.contains_key(once_listener::ENABLED_PROPERTY);
        let seats = self.machines.iter().filter_map(|machine| {
            let seat = machine.sidecar.as_ref()?.participant.as_ref()?;
            seat.registered_at.map(|at| machine.now(at).wall)
        });
        let Some(witnessed) = seats.min().filter(|_| !relay && !once && !job.static_sharding) else { return };
        let second = |at: Micros| self.machines[0].now(at).wall.as_second();
        let end = second(self.plan.storm) - 1;
        // No instance executes the items of a disabled server, if it has no other.
        let spans = self.checks.disabled.iter().map(|(from, until)| second(*from) - 2..=second(*until) + 2);
        let disabled: Vec<_> = spans.collect();
        let period = i64::try_from(self.plan.period).unwrap();
        // A new schedule counts from when it was written, as far as the instances can tell: they learn how the
        // registry's clock differs from news that may come late.
        let rescheduled = self.checks.rescheduled_at.map_or(i64::MIN, |at| second(at) + 2);
        let mut fire = (witnessed.as_second() + 2).max(rescheduled);
        while fire < end {
            if fire % 60 % period == 0 && !disabled.iter().any(|span| span.contains(&fire)) {
                let instant = Timestamp::from_second(fire).unwrap();
                for item in self.items().filter(|item| counts_now(*item)) {
                    let starts = self.checks.starts.get(&item).map_or(&[][..], Vec::as_slice);
                    let covers = |start: &Start| match start.source {
                        Source::Schedule => start.scheduled == instant,
                        Source::Misfire | Source::Failover => start.scheduled >= instant,
                        Source::Trigger => false,
                    };
                    // An instance that was not there does not know of the fire.
                    let next = starts.iter().find(|start| start.scheduled > instant);
                    // So does an owner that had the item between, began it, and died.
                    let knew = next.is_some_and(|next| {
                        let another = !job.failover && self.was_lost_between(item, instant, next.scheduled);
                        self.had_seen(next.machine, instant) && !another
                    });
                    // Without failover, an execution whose session is lost is lost, as in ElasticJob, and with it all
                    // fires that it covered: its start has deleted the flag.
                    let lost = !job.failover && self.may_have_been_lost(item, instant);
                    if knew && !lost && !starts.iter().any(covers) {
                        let near: Vec<_> = starts
                            .iter()
                            .filter(|start| start.scheduled >= instant)
                            .take(3)
                            .cloned()
                            .collect();
                        return self.fail(Invariant::OncePerFire, || {
                            format!(
                                "item {item} was never executed for {instant}; what came next was {near:?}"
                            )
                        });
                    }
                }
            }
            fire += 1;
        }
    }

    /// Whether the participant of a machine was registered at an instant, and has been since.
    fn had_seen(&self, m: usize, instant: Timestamp) -> bool {
        let machine = &self.machines[m];
        let seat = machine.sidecar.as_ref().and_then(|sidecar| sidecar.participant.as_ref());
        let since = seat.and_then(|seat| seat.registered_at);
        since.is_some_and(|since| machine.now(since).wall < instant)
    }

    fn check_exactly_once(&mut self, item: Item, fire: i64) {
        let starts = self.checks.starts.get(&item).map_or(&[][..], Vec::as_slice);
        let for_it = |start: &&Start| {
            let scheduled = start.scheduled.as_second() == fire && start.scheduled.subsec_nanosecond() == 0;
            scheduled && start.attempt == 1 && matches!(start.source, Source::Schedule | Source::Misfire)
        };
        let count = starts.iter().filter(for_it).count();
        // A retry of an execution that failed in the storm may run; then the fire is skipped, if no rerun covers it.
        let retried = |start: &Start| start.attempt > 1 && start.at >= self.plan.storm;
        // By the clock of the server that has the turn next it may have been before its turn.
        let relayed = self.is_relay() && self.clocks_differ();
        let skips = !self.plan.configuration.misfire && (relayed || starts.iter().any(retried));
        let skipped = count == 0 && skips;
        if count != 1 && !skipped {
            let last: Vec<_> = starts.iter().rev().take(4).cloned().collect();
            let fire = Timestamp::from_second(fire).unwrap();
            self.fail(Invariant::OncePerFire, || {
                format!("item {item} was executed {count} times for {fire}, without faults; the last were {last:?}")
            });
        }
    }

    /// Whether a fire that is in time by one clock is missed by another.
    fn clocks_differ(&self) -> bool {
        let shown = self.machines.iter().filter(|machine| !machine.retired).map(|m| m.now(self.now).wall);
        let (first, last) = (shown.clone().min(), shown.max());
        first.zip(last).is_some_and(|(first, last)| last.duration_since(first) > MISFIRE_THRESHOLD)
    }

    /// The owner of each item.
    fn owners(&self) -> BTreeMap<Item, String> {
        let owner = |item: Item| {
            let node = self.ensemble.get(&self.paths.item_instance(item))?;
            Some((item, String::from_utf8_lossy(&node.data).into_owned()))
        };
        self.items().filter_map(owner).collect()
    }

    /// One joins and one leaves, and no more moves than has to, so that each has the share that is prescribed.
    pub(super) fn count_moves(&mut self) {
        let job = &self.plan.configuration;
        let (handoff, _) = handoff_policy::of(job);
        let sticky = job.job_sharding_strategy_type.is_none()
            && !job.static_sharding
            && handoff.handoff != handoff_policy::Handoff::Off;
        let members = self.machines.iter().filter(|machine| !machine.retired).count();
        if !sticky || members == 0 {
            return;
        }
        let Some(before) = self.settled_owners() else { return };
        let joined = self.add_machine();
        let others = self.others(joined);
        self.run_until(self.now + SECOND);
        self.become_right();
        if self.others(joined) != others {
            return; // Somebody has left and come back, because its application did not stop when it was told to.
        }
        self.check_moves("joined", &before);
        if self.has_failed() {
            return;
        }
        let Some(before) = self.settled_owners() else { return };
        self.machines[joined].retired = true;
        self.drain_sidecar(joined, 3 * SECOND, true);
        self.run_until(self.now + SECOND);
        self.become_right();
        if self.others(joined) == others {
            self.check_moves("left", &before);
        }
    }

    /// Which instances the other machines have.
    fn others(&self, m: usize) -> Vec<Option<String>> {
        let others = self.machines.iter().enumerate().filter(|(other, _)| *other != m);
        let seats = others.map(|(_, machine)| machine.sidecar.as_ref()?.participant.as_ref());
        seats.map(|seat| seat.map(|seat| seat.identity.instance.to_string())).collect()
    }

    /// The owner of each item when none has moved for a while; `None`: items move all the time.
    fn settled_owners(&mut self) -> Option<BTreeMap<Item, String>> {
        for _ in 0..6 {
            let before = self.owners();
            self.run_until(self.now + 2 * SECOND);
            if self.owners() == before && self.trouble().is_none() {
                return Some(before);
            }
        }
        None
    }

    /// How many items each instance is to have, when all have the same weight: an equal part, and one more for those
    /// that rank first. Computed here once more, from the promise of `src/extension/rendezvous.rs`.
    fn shares(&self, items: usize) -> BTreeMap<String, usize> {
        let there = self.machines.iter().filter(|machine| !machine.retired);
        let ids = there.filter_map(|machine| machine.sidecar.as_ref()?.participant.as_ref());
        let draw = |id: &str| {
            let job = self.plan.configuration.job_name.as_str();
            let (_, name) = id.split_once("@-@").unwrap();
            XxHash64::oneshot(0, format!("{job}\0{name}").as_bytes())
        };
        let mut ids: Vec<_> = ids.map(|seat| seat.identity.instance.to_string()).collect();
        ids.sort_by_key(|id| Reverse(draw(id)));
        let count = ids.len().max(1);
        let share = |place: usize| items / count + usize::from(place < items % count);
        ids.into_iter().enumerate().map(|(place, id)| (id, share(place))).collect()
    }

    fn check_moves(&mut self, what: &str, before: &BTreeMap<Item, String>) {
        let after = self.owners();
        let moved = before.iter().filter(|(item, owner)| after.get(item) != Some(*owner)).count();
        let count = |owners: &BTreeMap<Item, String>, id: &String| {
            owners.values().filter(|owner| *owner == id).count()
        };
        let shares = self.shares(before.len());
        let outdated = (0..self.machines.len()).any(|m| !self.machines[m].retired && self.is_outdated(m));
        // Items whose owner is offline have to move, and items beyond an owner's share.
        let gone = before.values().filter(|owner| !shares.contains_key(*owner)).count();
        let (most, right) = if outdated {
            // Seats beyond the equal part stay where they are, if they can.
            let whole = before.len() / shares.len().max(1);
            (gone.max(whole) + 1, shares.keys().all(|id| (whole..=whole + 1).contains(&count(&after, id))))
        } else {
            let beyond = shares.iter().map(|(id, share)| count(before, id).saturating_sub(*share));
            (gone + beyond.sum::<usize>(), shares.iter().all(|(id, share)| count(&after, id) == *share))
        };
        if moved > most || !right {
            self.fail(Invariant::FewMoves, || {
                format!(
                    "one has {what}, and {moved} items moved where at most {most} had to, to shares of {shares:?}: \
                     {before:?}, {after:?}"
                )
            });
        }
    }

    /// All leave, and nothing of ours is left.
    pub(super) fn bid_farewell(&mut self) {
        for m in 0..self.machines.len() {
            self.machines[m].retired = true;
            self.drain_sidecar(m, 3 * SECOND, true);
        }
        self.run_until(self.now + 12 * SECOND);
        if self.has_failed() {
            return;
        }
        let left: Vec<String> = self
            .tree()
            .into_iter()
            .filter(|(path, (_, stat))| {
                let name = path.as_str();
                stat.ephemeral_owner.is_some()
                    || name.contains("instances/")
                    || name.ends_with("/running")
                    || name.contains("latch-")
                    || name.contains("failover/items/")
                    || name.ends_with("election/instance")
            })
            .map(|(path, _)| path.to_string())
            .collect();
        if !left.is_empty() {
            self.fail(Invariant::NothingLeft, || format!("all have left, and there is still {left:?}"));
        }
        self.check_item_locks_left();
    }

    /// The memory of the participants is in proportion to the job.
    pub(super) fn check_sizes(&mut self) {
        let items = self.plan.configuration.sharding_total_count.max(9) as usize;
        let most = 60_000 + 6_000 * items;
        for m in 0..self.machines.len() {
            let Some(seat) = self.machines[m].seat() else { continue };
            let size = format!("{:?}", seat.core).len();
            if size > most {
                self.fail(Invariant::Bounded, || format!("m{m} keeps {size} bytes, as text"));
            }
        }
    }
}
