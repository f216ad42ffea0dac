//! Which fires of an item have been started, by whomever (P5).
//!
//! A fire that meets a resharding could be executed by the old owner, by the new one, by both or by neither: each sees
//! the flag, the assignment and its own clock at slightly other times. So the transaction that starts an item also
//! writes down for which instant, in a node under our own root (`/{namespace}-sidekeeper/{job}/fires/{item}`, protocol
//! 12), and whoever owns the items after a resharding reads that before it fires. The check on the sharding's version
//! in the same transaction orders all starts of an old owner before the read of the new one. And who writes an entry checks that it is
//! still the one that was read: whatever was started or flagged meanwhile, by whomever (a relay's turns do not show in the
//! sharding's version), lets the transaction fail, and is looked at first.
//!
//! Java peers do not keep the ledger; with them, an item may run twice or not at all at a fire that meets a
//! resharding, as it always could. Jobs that do not monitor executions have none either.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::event::AssignedItem;
use crate::coordination::job::contract::plan::{Planned, Source};
use crate::coordination::job::contract::records::{LedgerEntry, LedgerNode};
use crate::coordination::job::frame::limits::MISFIRE_THRESHOLD;
use crate::coordination::job::participant::Participant;
use crate::coordination::job::picture::schedule::latest_until;
use crate::job::{FencingToken, Generation, Item};
use crate::mutants::mutant;
use crate::tree::{NodeKind, Operation, Path};

/// The pause before a failed read is tried again.
const PAUSE: Duration = Duration::from_millis(100);
/// How old a fire may be that an item's new owner makes up for, besides the time for which the item may have waited for
/// its owner. Above the longest session timeout (10 minutes), after which the items of a dead machine change hands; a
/// longer gap means that the job was off, and nobody expects what was missed then.
const HANDOVER_MAX: SignedDuration = SignedDuration::from_mins(11);
/// An entry that lies this far in the future was written by a clock that was wrong; it must not stop the job.
const CLOCK_WRONG: SignedDuration = SignedDuration::from_hours(1);

/// What is known of an item's node.
#[derive(Debug, Clone, Copy)]
struct Entry {
    says: LedgerEntry,
    /// `None`: there is no node.
    version: Option<i32>,
    /// With which token the item was ours when it was read: then nobody else can have started it since.
    token: FencingToken,
}

impl Entry {
    /// Writes on what was read: it fails if anybody else has written since, and then nothing of its transaction is done.
    fn write(&self, path: Path, says: LedgerEntry) -> (Operation, LedgerNode) {
        match self.version {
            Some(version) => {
                let checked = Some(version).filter(|_| !mutant!(LedgerEntryKept));
                let data = says.write().as_bytes().into();
                let node = LedgerNode { says, version: version.wrapping_add(1) };
                (Operation::Set { path, data, version: checked }, node)
            }
            None => {
                let node = LedgerNode { says, version: 0 };
                (Operation::create(path, NodeKind::Persistent, says.write()), node)
            }
        }
    }
}

/// The ledger of one job, as far as it concerns our items.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Ledger {
    /// The sharding for which the entries were read.
    generation: Option<Generation>,
    entries: BTreeMap<Item, Entry>,
    /// The tokens of the items for which the ledger was read last.
    tokens: BTreeMap<Item, FencingToken>,
    /// Whether it was read in a relay, where others execute an item though its owner keeps it: an entry is old, then, under
    /// the same token.
    of_relay: bool,
    /// The sharding for which a read is under way.
    reading: Option<Generation>,
    retry_at: Option<Duration>,
    /// Since when no Java instance has been seen; by our clock.
    unmixed_since: Option<Timestamp>,
    /// Until when our server was disabled, as far as we have seen; by our clock.
    disabled_until: Option<Timestamp>,
}

impl Ledger {
    /// When a failed read is tried again.
    pub(in crate::coordination) fn next_retry(&self, now: Duration) -> Option<Duration> {
        self.retry_at.filter(|at| *at > now)
    }

    /// The session is lost.
    pub(in crate::coordination) fn forget(&mut self) {
        let Self { unmixed_since, disabled_until, .. } = *self;
        *self = Self { unmixed_since, disabled_until, ..Self::default() };
    }

    /// Items have come: look whether their entries are known, and what they have missed.
    pub(in crate::coordination) fn look_again(&mut self) {
        self.generation = None;
    }

    /// The entries may be wrong: read them again.
    pub(in crate::coordination) fn doubt(&mut self) {
        self.generation = None;
        self.entries.clear();
    }

    fn latest(&self, item: Item, now: Timestamp) -> Option<Timestamp> {
        let latest = self.entries.get(&item).and_then(|entry| entry.says.latest);
        latest.filter(|latest| latest.duration_since(now) <= CLOCK_WRONG)
    }

    /// For which instant somebody of ours has flagged an item, if that was not made up for.
    pub(in crate::coordination) fn flagged_for(&self, item: Item) -> Option<Timestamp> {
        self.entries.get(&item)?.says.flagged
    }

    /// Notes what our transaction has made of an item's node. Not every one that starts an item writes the ledger, and the
    /// entry may have been read since: only what is newer than the entry counts, or ours would pass for the present one
    /// when somebody else has written as often as we had not.
    pub(in crate::coordination) fn written(&mut self, item: Item, node: LedgerNode) {
        let entry = self.entries.get_mut(&item).filter(|entry| entry.version < Some(node.version));
        if let Some(entry) = entry {
            (entry.says, entry.version) = (node.says, Some(node.version));
        }
    }
}

impl Participant {
    /// Whether it is known which fires of our items have been started.
    pub(in crate::coordination) fn is_ledger_read(&self) -> bool {
        let read = self.ledger.generation == Some(self.cx.assigned.generation());
        read || !self.cx.keeps_ledger() || mutant!(LedgerNotRead)
    }

    /// Whether a fire of an item has been started before.
    pub(in crate::coordination) fn was_started(
        &self,
        item: Item,
        scheduled: Timestamp,
        now: Timestamp,
    ) -> bool {
        self.settled(item, now).is_some_and(|settled| settled >= scheduled)
    }

    /// Up to which fire nothing of an item is missed, but what is flagged or noted elsewhere; `None`: nothing is known.
    pub(in crate::coordination) fn settled(&self, item: Item, now: Timestamp) -> Option<Timestamp> {
        self.ledger.latest(item, now).filter(|_| self.cx.keeps_ledger())
    }

    /// After which instant the fires of an item are owed: what the ledger says; for an item without an entry, since when
    /// there is the item, or the configuration asks for it and our server is enabled, so that it waits for its first
    /// division; and since when we have been there without a Java instance, which would have left no entry. The former is
    /// by the registry's clock, so nothing counts as started because of it.
    pub(in crate::coordination) fn owed_after(&self, item: Item, now: Timestamp) -> Option<Timestamp> {
        let never_fired = || {
            let since =
                self.cx.view.item(item).and_then(|view| view.since).filter(|_| self.cx.keeps_ledger())?;
            let asked = self.cx.view.config_since().max(self.ledger.disabled_until);
            let since = asked.map_or(since, |asked| since.min(asked));
            Some(since.max(self.ledger.unmixed_since?))
        };
        self.settled(item, now).or_else(never_fired)
    }

    /// Notes since when there have been sidecars only, and until when nobody wanted us to execute anything, as far as we
    /// have seen.
    pub(in crate::coordination) fn note_company(&mut self) {
        let now = self.cx.now;
        if self.cx.is_registered() && (self.ledger.unmixed_since.is_none() || self.cx.has_java_peers()) {
            self.ledger.unmixed_since = Some(now.wall);
        }
        if self.cx.is_registered() && !self.cx.is_enabled() {
            self.ledger.disabled_until = Some(now.wall);
        }
    }

    /// An item's entry, as long as the item is ours, told or revoked. Who takes over what is somebody else's leaves the
    /// ledger to its owner: it says for which instant that is already.
    fn ledger_entry(&self, item: Item) -> Option<&Entry> {
        let token = self.token(item)?;
        self.ledger.entries.get(&item).filter(|entry| self.cx.keeps_ledger() && entry.token == token)
    }

    /// Whether what happens to an item can be written down: it is ours, and its entry is known.
    pub(in crate::coordination) fn is_in_ledger(&self, item: Item) -> bool {
        self.ledger_entry(item).is_some()
    }

    /// With which token an item is ours.
    fn token(&self, item: Item) -> Option<FencingToken> {
        let told = self.cx.assigned.executable_item(item).map(|assigned| assigned.token);
        told.or_else(|| {
            let view = self.cx.view.item(item).filter(|view| !view.disabled)?;
            let owner = view.owner.as_ref().filter(|owner| owner.instance == self.cx.identity.instance)?;
            Some(owner.token)
        })
    }

    /// The step that writes down an execution, to go with the one that starts it, and what it makes of the node.
    pub(in crate::coordination) fn ledger_start(
        &self,
        item: Item,
        planned: Planned,
    ) -> Option<(Operation, LedgerNode)> {
        let entry = self.ledger_entry(item).filter(|_| !mutant!(StartedWithoutLedger))?;
        let says = entry.says.after_start(planned, self.cx.waits_for_failover(item));
        Some(entry.write(self.cx.identity.paths.ledger_entry(item), says))
    }

    /// The step that writes down a missed fire, to go with the one that flags it, and what it makes of the node.
    pub(in crate::coordination) fn ledger_flag(
        &self,
        item: Item,
        scheduled: Timestamp,
    ) -> Option<(Operation, LedgerNode)> {
        let entry = self.ledger_entry(item).filter(|_| !mutant!(FlaggedWithoutLedger))?;
        Some(entry.write(self.cx.identity.paths.ledger_entry(item), entry.says.after_flag(scheduled)))
    }

    /// Has the ledger read after each sharding.
    pub(in crate::coordination) fn consult_ledger(&mut self) {
        let now = self.cx.now;
        let generation = self.cx.assigned.generation();
        let pausing = self.ledger.retry_at.is_some_and(|at| now.mono < at);
        if self.is_ledger_read() || self.ledger.reading.is_some() || pausing {
            return;
        }
        if !self.cx.is_registered()
            || self.cx.view.is_resharding()
            || self.cx.assigned.executable().next().is_none()
        {
            return;
        }
        let relay = self.cx.is_relay() || self.ledger.of_relay;
        let known = |assigned: &AssignedItem| {
            !relay
                && self.ledger.entries.get(&assigned.item).is_some_and(|entry| entry.token == assigned.token)
        };
        if self.cx.assigned.assignment.iter().flat_map(|told| &told.items).all(known) {
            // No item has come that we did not have before. One may have been revoked for a while, and fires with it.
            self.ledger.generation = Some(generation);
            self.take_over();
            return;
        }
        self.ledger.reading = Some(generation);
        self.out.push(Effect::ReadLedger);
    }

    /// The ledger was read.
    pub(in crate::coordination) fn ledger_read(&mut self, read: Result<BTreeMap<Item, LedgerNode>, String>) {
        let now = self.cx.now;
        let reading = self.ledger.reading.take();
        let Ok(read) = read else {
            self.ledger.retry_at = Some(now.mono.saturating_add(PAUSE));
            return;
        };
        self.ledger.retry_at = None;
        // A sharding that came in between makes the read worthless. While the job's nodes are not known, nobody can say what
        // is owed: it is read again when they are.
        if reading != Some(self.cx.assigned.generation()) || !self.cx.view.is_loaded() {
            return;
        }
        self.ledger.generation = reading;
        let told = self.cx.assigned.assignment.iter().flat_map(|told| &told.items);
        let told = told.map(|assigned| (assigned.item, assigned.token));
        let revoked = self.handoff.revoked_items().filter_map(|item| Some((item, self.token(item)?)));
        self.ledger.entries = told
            .chain(revoked)
            .map(|(item, token)| {
                let node = read.get(&item);
                let (says, version) =
                    (node.map(|node| node.says).unwrap_or_default(), node.map(|node| node.version));
                let same = |known: &&Entry| known.token == token && known.version >= version;
                // What we have written since the read is newer.
                let known =
                    self.ledger.entries.get(&item).filter(|known| same(known) || mutant!(LedgerEntryKept));
                (item, known.copied().unwrap_or(Entry { says, version, token }))
            })
            .collect();
        self.forget_overtaken();
        self.take_over();
    }

    /// Forgets what owners in between have executed or made up for, as the ledger tells.
    fn forget_overtaken(&mut self) {
        let now = self.cx.now;
        let tokens = self.ledger.entries.iter().map(|(item, entry)| (*item, entry.token)).collect();
        let before = std::mem::replace(&mut self.ledger.tokens, tokens);
        let relay = self.cx.is_relay();
        let relay = std::mem::replace(&mut self.ledger.of_relay, relay) || relay;
        // Who leaves is told nothing any more: what it had may be somebody else's.
        let is_others = |item: &Item| {
            let owner = self.cx.view.item(*item).and_then(|view| view.owner.as_ref());
            owner.is_some_and(|owner| owner.instance != self.cx.identity.instance)
        };
        let came = |item: &Item| relay || is_others(item) || before.get(item) != self.ledger.tokens.get(item);
        // The flag may be that of an earlier fire.
        let is_flagged = |item: &Item, missed: Timestamp| {
            self.cx.view.misfired().contains(item) && self.ledger.flagged_for(*item) >= Some(missed)
        };
        let is_over = |item: &Item, missed: Timestamp| {
            came(item) && !is_flagged(item, missed) && self.was_started(*item, missed, now.wall)
        };
        let (mut planned, mut misfires) = (self.fires.planned.clone(), self.fires.misfires.clone());
        planned.retain(|item, planned| match planned.source {
            _ if planned.is_retry() => true,
            Source::Schedule => !self.was_started(*item, planned.scheduled, now.wall),
            Source::Misfire => !is_over(item, planned.scheduled),
            Source::Trigger | Source::Failover => true,
        });
        // Also of an item that has stayed ours: in a relay, or in one that has just ended, others execute it. What was noted
        // while the entry was old is not missed if it is that very instant for which the item was started.
        let started = |item: &Item| self.ledger.entries.get(item).and_then(|entry| entry.says.started);
        misfires.forget(|item, missed| is_over(item, missed) || started(item) == Some(missed));
        // What an operator has asked for is still to be done, under an instant that is no fire's that was executed.
        for (item, planned) in &mut planned {
            if planned.is_first_of(Source::Trigger) && self.was_started(*item, planned.scheduled, now.wall) {
                planned.scheduled = self.present_of(*item);
            }
        }
        (self.fires.planned, self.fires.misfires) = (planned, misfires);
    }

    /// Makes up for fires that came while the items changed hands, and that nobody started.
    fn take_over(&mut self) {
        let now = self.cx.now;
        // What has come in this step, or while we slept, was there before we looked.
        self.follow_schedule();
        let schedule = self.cx.settings.as_ref().and_then(|settings| settings.schedule.clone());
        let knows = !self.cx.is_relay() || self.has_ledger_of_turns();
        let Some(schedule) = schedule.filter(|_| knows) else { return };
        let items: Vec<_> = self.cx.assigned.executable().map(|assigned| assigned.item).collect();
        let grace = self.cx.settings.as_ref().map(|settings| settings.grace).unwrap_or_default();
        let oldest = HANDOVER_MAX.saturating_add(SignedDuration::try_from(grace).unwrap_or_default());
        for item in items {
            let returned = self.names.returned(item);
            self.names.caught_up(item);
            // Since when it has been the name's is by the registry's clock, and a fire just before that, by another's, was
            // executed by nobody: there would be an entry.
            let early = |since: Timestamp| since.saturating_sub(MISFIRE_THRESHOLD).unwrap_or(since);
            let exists = self.cx.view.item(item).and_then(|view| view.since);
            let owed = returned.filter(|_| self.settled(item, now.wall).is_none());
            let owed = owed.map(|since| exists.map_or(early(since), |exists| early(since).max(exists)));
            // It may have come to the name while we had no session, and we have been there for longer.
            let owed = owed.into_iter().chain(self.owed_after(item, now.wall)).min();
            let Some(latest) = owed.map(|owed| owed.max(self.fires.asked_since().unwrap_or(owed))) else {
                continue;
            };
            let Some(missed) = schedule.next_after(latest).filter(|missed| *missed <= now.wall) else {
                continue;
            };
            if now.wall.duration_since(missed) > oldest {
                continue;
            }
            let (newest, before) = latest_until(&schedule, missed, now.wall);
            // Who came after a fire makes up for it only while it is fresh: then it met our registration. What was
            // missed before we came is not ours to judge, maybe nobody was there on purpose; unless it waited for us.
            let witnessed = returned.is_some() || self.fires.latest().is_some_and(|fired| fired >= newest);
            let fresh = now.wall.duration_since(newest) <= MISFIRE_THRESHOLD;
            // What is known to be missed is made up for, and what is about to make up for it is for all of it.
            let planned = self.fires.planned.get(&item).filter(|planned| planned.source != Source::Trigger);
            let starting = self.executions.what_starts(item).filter(|planned| planned.is_fire());
            let mut planned = planned.copied().into_iter().chain(starting);
            let planned = planned.find(|planned| planned.scheduled >= newest);
            if self.fires.misfires.has_missed(item, newest)
                || planned.is_some_and(|planned| !planned.is_first_of(Source::Schedule))
            {
                continue;
            }
            // The newest is about to be divided, or to start, or is executed now; what is missing then lies before it. Of
            // what is to start that may have been noted before; but it may have been somebody else's since.
            let free = !self.is_busy(item) && !self.fires.planned.contains_key(&item);
            let executes = !self.fires.is_due() && fresh && free && !self.owes(item) && planned.is_none();
            if executes {
                self.fires.planned.insert(item, Planned::new(Source::Schedule, newest));
            }
            if executes || planned.is_some() || self.fires.is_due() {
                // What is flagged is made up for by somebody in any case, and what came after the flag with it.
                let flagged = self.cx.view.misfired().contains(&item);
                if let Some(before) = before.filter(|_| witnessed || flagged) {
                    self.missed(item, before);
                }
            } else if witnessed || fresh {
                self.missed(item, newest);
            }
        }
    }
}
