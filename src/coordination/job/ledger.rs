//! Which fires of an item have been started, by any instance? (P5)
//!
//! Without a ledger a fire that meets a resharding could be executed by the old owner, by the new one, by both or by
//! neither: each sees the flag, the assignment and its own clock at slightly other times. So the transaction that
//! starts an item also writes the instant of the fire, in a node under Sidekeeper's own root
//! (`/{namespace}-sidekeeper/{job}/fires/{item}`, protocol 12), and the owner of the items after a resharding reads
//! it before it fires. The check on the sharding's version in the same transaction orders all starts of an old owner
//! before the read of the new one; at a handoff, the old owner has no start in flight
//! (`ownership/handoff_release.rs`).
//!
//! An entry is valid for a token. After a change of the assignment the owner reads the ledger once, with one request
//! for the folder, if an item has a new token; until then no assigned item starts. Each writer of an entry checks
//! that the entry is still the one that it read: tokens do not show everything, because in a rotation other
//! instances execute an item that keeps its owner. A start or a flag of another instance in between lets the
//! transaction fail, and the entry is read again first.
//!
//! An item that was never started has missed the fires since the configuration asks for them: a fire just before a
//! job's first resharding waits for that, as in ElasticJob.
//!
//! Many items that are busy at a fire need no flag each: one *witness* says for all of them that the job was on at that
//! fire, and an item whose entry ends before it has missed it. So what a fleet cannot execute costs less than what it
//! executes (`firing/misfire.rs`).
//!
//! The owner of an item waits for the item's failover. If no instance takes the item over in time, the owner goes on,
//! and the entry keeps the instant of the crashed execution in a field of its own.
//!
//! Java peers do not keep the ledger; with them, an item may run twice or not at all at a fire that meets a
//! resharding, as in ElasticJob. Jobs that do not monitor executions have no ledger either.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::event::AssignedItem;
use crate::coordination::job::contract::plan::{Planned, Source};
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::extension::ledger_entry::{LedgerEntry, LedgerNode, LedgerNodes};
use crate::job::{FencingToken, Generation, Item};
use crate::mutants::mutant;
use crate::tree::{CommitError, Error, NodeKind, Operation, Path, Transaction};

/// The pause before a failed read is tried again.
const PAUSE: Duration = Duration::from_millis(100);
/// An entry that lies this far in the future was written by a wrong clock; it must not stop the job.
const CLOCK_WRONG: SignedDuration = SignedDuration::from_hours(1);
/// How many old witnesses are deleted at once: more than there are, unless instances create them at the same moment.
const WITNESSES_DELETED: usize = 16;

/// The known state of an item's node.
#[derive(Debug, Clone, Copy)]
struct Entry {
    content: LedgerEntry,
    /// `None`: the node does not exist.
    version: Option<i32>,
    /// The token of the item when the entry was read: under the same token no other instance has started the item
    /// since.
    token: FencingToken,
}

impl Entry {
    /// Writes the entry if no instance has written it since it was read; else the whole transaction fails.
    fn write(&self, path: Path, entry: LedgerEntry) -> (Operation, LedgerNode) {
        match self.version {
            Some(version) => {
                let checked = Some(version).filter(|_| !mutant!(LedgerEntryKept));
                let data = entry.write().as_bytes().into();
                let node = LedgerNode { entry, version: version.wrapping_add(1) };
                (Operation::Set { path, data, version: checked }, node)
            }
            None => {
                let node = LedgerNode { entry, version: 0 };
                (Operation::create(path, NodeKind::Persistent, entry.write()), node)
            }
        }
    }
}

/// The ledger's entries of this instance's items.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// The sharding for which the entries were read.
    generation: Option<Generation>,
    /// Boxed: a node of the map has room for eleven, and many instances have one item.
    entries: BTreeMap<Item, Box<Entry>>,
    /// The tokens of the items at the last read of the ledger.
    tokens: BTreeMap<Item, FencingToken>,
    /// The fires that have a witness, as far as it is known.
    witnesses: BTreeSet<Timestamp>,
    /// Whether it was read in a rotation, where other instances execute an item though its owner keeps it: then an
    /// entry may be old under the same token.
    of_rotation: bool,
    /// How often it was read.
    reads: u64,
    /// The sharding for which a read is in flight.
    reading: Option<Generation>,
    retry_at: Option<Duration>,
    /// Since when no Java instance has been seen; by this clock.
    unmixed_since: Option<Timestamp>,
    /// Until when this instance's server was disabled, according to the views so far; by this clock.
    disabled_until: Option<Timestamp>,
}

impl Ledger {
    /// When a failed read is tried again.
    pub(crate) fn next_retry(&self, now: Duration) -> Option<Duration> {
        self.retry_at.filter(|at| *at > now)
    }

    pub(crate) fn forget(&mut self) {
        let Self { unmixed_since, disabled_until, reads, .. } = *self;
        *self = Self { unmixed_since, disabled_until, reads, ..Self::default() };
    }

    /// The instance has got items: check whether their entries are known, and which fires they have missed.
    pub(crate) fn look_again(&mut self) {
        self.generation = None;
    }

    /// The entries may be wrong: read them again.
    pub(crate) fn doubt(&mut self) {
        self.generation = None;
        self.entries.clear();
    }

    fn latest(&self, item: Item, now: Timestamp) -> Option<Timestamp> {
        let latest = self.entries.get(&item).and_then(|entry| entry.content.latest);
        latest.filter(|latest| latest.duration_since(now) <= CLOCK_WRONG)
    }

    /// The instant for which a sidecar has flagged the item, if it was not re-run.
    pub(crate) fn flagged_for(&self, item: Item) -> Option<Timestamp> {
        self.entries.get(&item)?.content.flagged
    }

    /// The instant of the item's latest start.
    pub(crate) fn started(&self, item: Item) -> Option<Timestamp> {
        self.entries.get(&item)?.content.started
    }

    /// Records an item's node as this instance's transaction has written it. The entry may have been read since, and
    /// not every start of an item writes the ledger: so only a node that is newer than the known entry counts.
    /// Otherwise it would hide an entry of the same version that another instance has written.
    pub(crate) fn written(&mut self, item: Item, node: LedgerNode) {
        let entry = self.entries.get_mut(&item).filter(|entry| entry.version < Some(node.version));
        if let Some(entry) = entry {
            (entry.content, entry.version) = (node.entry, Some(node.version));
        }
    }
}

/// The changes that a read of the ledger has brought.
#[derive(Debug)]
pub(crate) struct Reread {
    /// Whether the job's item rotates over the servers, or did so at the last read.
    rotation: bool,
    /// The items whose tokens have changed since the last read.
    changed: BTreeSet<Item>,
}

impl Reread {
    /// Whether other instances may have executed the item since the last read.
    pub(crate) fn may_have_been_elsewhere(&self, item: Item) -> bool {
        self.rotation || self.changed.contains(&item)
    }
}

impl Ledger {
    /// Whether the ledger was read for all of this instance's items.
    pub(crate) fn is_ledger_read(&self, cx: &Context) -> bool {
        let read = self.generation == Some(cx.assigned.generation());
        read || !cx.monitors() || mutant!(LedgerNotRead)
    }

    /// How often it was read.
    pub(crate) fn reads(&self) -> u64 {
        self.reads
    }

    /// Whether a fire of an item has been started before.
    pub(crate) fn was_started(&self, cx: &Context, item: Item, scheduled: Timestamp, now: Timestamp) -> bool {
        self.settled(cx, item, now).is_some_and(|settled| settled >= scheduled)
    }

    /// The fire up to which the item has missed nothing, but for flagged and recorded fires; `None`: not known.
    pub(crate) fn settled(&self, cx: &Context, item: Item, now: Timestamp) -> Option<Timestamp> {
        self.latest(item, now).filter(|_| cx.monitors())
    }

    /// The instant after which the fires of an item are unsettled. It is the latest of these: the ledger's entry; for
    /// an item without an entry, since when the item exists, or the configuration asks for the fires and the server is
    /// enabled, so that a fire waits for the first resharding; and since when this instance has been online without a
    /// Java instance, which would have left no entry. The time of the item's node is by the registry's clock, so no
    /// fire counts as started because of it.
    pub(crate) fn unsettled_after(&self, cx: &Context, item: Item, now: Timestamp) -> Option<Timestamp> {
        let never_fired = || {
            let since = cx.view.item(item).and_then(|view| view.since).filter(|_| cx.monitors())?;
            let asked = cx.view.config_since().max(self.disabled_until);
            let since = asked.map_or(since, |asked| since.min(asked));
            Some(since.max(self.unmixed_since?))
        };
        self.settled(cx, item, now).or_else(never_fired)
    }

    /// Records since when there have been no Java instances, and until when this instance's server was disabled.
    pub(crate) fn record_peers(&mut self, cx: &Context) {
        let now = cx.now;
        if cx.is_registered() && (self.unmixed_since.is_none() || cx.has_java_peers()) {
            self.unmixed_since = Some(now.wall);
        }
        if cx.is_registered() && !cx.is_enabled() {
            self.disabled_until = Some(now.wall);
        }
    }

    /// The entry of an item that this instance owns, in force or revoked. An instance that takes another one's item
    /// over does not write the entry: it has the instant already.
    fn ledger_entry(&self, cx: &Context, item: Item) -> Option<&Entry> {
        let token = token(cx, item)?;
        self.entries.get(&item).map(Box::as_ref).filter(|entry| cx.monitors() && entry.token == token)
    }

    /// Whether the entry of an item can be written: this instance owns the item, and its entry is known.
    pub(crate) fn is_in_ledger(&self, cx: &Context, item: Item) -> bool {
        self.ledger_entry(cx, item).is_some()
    }

    /// The step that writes a start into the ledger, for the transaction of the start; and the entry after it.
    pub(crate) fn ledger_start(
        &self,
        cx: &Context,
        item: Item,
        planned: Planned,
    ) -> Option<(Operation, LedgerNode)> {
        let entry = self.ledger_entry(cx, item).filter(|_| !mutant!(StartedWithoutLedger))?;
        let after = after_start(entry.content, planned, cx.waits_for_failover(item));
        Some(entry.write(cx.identity.own_paths.ledger_entry(item), after))
    }

    /// The step that writes a missed fire into the ledger, for the transaction of the flag; and the entry after it.
    pub(crate) fn ledger_flag(
        &self,
        cx: &Context,
        item: Item,
        scheduled: Timestamp,
    ) -> Option<(Operation, LedgerNode)> {
        let entry = self.ledger_entry(cx, item).filter(|_| !mutant!(FlaggedWithoutLedger))?;
        Some(entry.write(cx.identity.own_paths.ledger_entry(item), after_flag(entry.content, scheduled)))
    }

    /// The newest fire that has a witness.
    pub(crate) fn witnessed(&self, now: Timestamp) -> Option<Timestamp> {
        let mut newest_first = self.witnesses.iter().rev().copied();
        newest_first.find(|fire| fire.duration_since(now) <= CLOCK_WRONG)
    }

    /// The transaction that creates the witness of a fire, and deletes older ones.
    pub(crate) fn witness(&self, cx: &Context, fire: Timestamp) -> Transaction {
        let paths = &cx.identity.own_paths;
        let older = self.witnesses.range(..fire).take(WITNESSES_DELETED);
        let older = older.map(|older| Operation::delete(paths.witness(*older)));
        let created = Operation::create(paths.witness(fire), NodeKind::Persistent, "");
        std::iter::once(created).chain(older).collect()
    }

    /// The witness of a fire was created, and older ones were deleted.
    pub(crate) fn witness_created(&mut self, fire: Timestamp) {
        let older: Vec<_> = self.witnesses.range(..fire).take(WITNESSES_DELETED).copied().collect();
        self.witnesses.retain(|known| !older.contains(known));
        self.witnesses.insert(fire);
    }

    /// The witness of a fire was not created.
    pub(crate) fn witness_failed(&mut self, fire: Timestamp, error: &CommitError) {
        // The older ones may have been deleted by another instance. It is the one that has created them.
        self.witnesses.retain(|known| *known >= fire);
        match (&error.error, error.index) {
            (Error::NodeExists(_), Some(0)) => drop(self.witnesses.insert(fire)),
            // A read creates the folder.
            (Error::NoNode(_), Some(0)) => self.doubt(),
            _ => {}
        }
    }

    /// Has the ledger read after each resharding. Returns whether all entries are known without a read.
    pub(crate) fn consult_ledger(&mut self, cx: &Context, out: &mut Outbox) -> bool {
        let now = cx.now;
        let generation = cx.assigned.generation();
        let pausing = self.retry_at.is_some_and(|at| now.mono < at);
        if self.is_ledger_read(cx) || self.reading.is_some() || pausing {
            return false;
        }
        if !cx.is_registered() || cx.view.is_resharding() || cx.assigned.executable().next().is_none() {
            return false;
        }
        let rotation = cx.rotates() || self.of_rotation;
        let known = |assigned: &AssignedItem| {
            !rotation && self.entries.get(&assigned.item).is_some_and(|entry| entry.token == assigned.token)
        };
        if cx.assigned.assignment.iter().flat_map(|sent| &sent.items).all(known) {
            // This instance has got no new item. An item may have been revoked for a while, and its fires were missed.
            self.generation = Some(generation);
            return true;
        }
        self.reading = Some(generation);
        out.push(Effect::ReadLedger);
        false
    }

    /// The ledger was read. `revoked`: items that this instance owns until it has handed them over. Returns the
    /// changes; `None`: the read was worthless.
    pub(crate) fn ledger_read(
        &mut self,
        cx: &Context,
        revoked: impl Iterator<Item = Item>,
        read: Result<LedgerNodes, String>,
    ) -> Option<Reread> {
        let now = cx.now;
        let reading = self.reading.take();
        let Ok(LedgerNodes { entries: read, witnesses }) = read else {
            self.retry_at = Some(now.mono.saturating_add(PAUSE));
            return None;
        };
        self.retry_at = None;
        // A resharding during the read makes it worthless. So does an unknown state of the job's nodes, because it
        // hides which fires are unsettled. The ledger is read again later.
        if reading != Some(cx.assigned.generation()) || !cx.view.is_loaded() {
            return None;
        }
        self.generation = reading;
        self.reads += 1;
        // A witness that this instance has created since the read is newer.
        let own = self.witnesses.last().copied();
        self.witnesses = witnesses;
        self.witnesses.extend(own);
        let sent = cx.assigned.assignment.iter().flat_map(|sent| &sent.items);
        let sent = sent.map(|assigned| (assigned.item, assigned.token));
        let revoked = revoked.filter_map(|item| Some((item, token(cx, item)?)));
        self.entries = sent
            .chain(revoked)
            .map(|(item, token)| {
                let node = read.get(&item);
                let (entry, version) =
                    (node.map(|node| node.entry).unwrap_or_default(), node.map(|node| node.version));
                // An entry that this instance has written since the read is newer.
                let is_newer = |known: &Entry| known.token == token && known.version >= version;
                let known = self.entries.get(&item);
                let kept = known.filter(|known| is_newer(known) || mutant!(LedgerEntryKept));
                (item, kept.cloned().unwrap_or_else(|| Box::new(Entry { content: entry, version, token })))
            })
            .collect();
        let tokens: BTreeMap<_, _> = self.entries.iter().map(|(item, entry)| (*item, entry.token)).collect();
        let before = std::mem::replace(&mut self.tokens, tokens);
        let tokens = &self.tokens;
        let items = before.keys().chain(tokens.keys()).copied();
        let changed = items.filter(|item| before.get(item) != tokens.get(item)).collect();
        let rotation = cx.rotates();
        let rotation = std::mem::replace(&mut self.of_rotation, rotation) || rotation;
        Some(Reread { rotation, changed })
    }
}

/// The token with which this instance owns an item.
fn token(cx: &Context, item: Item) -> Option<FencingToken> {
    let assigned = cx.assigned.executable_item(item).map(|assigned| assigned.token);
    assigned.or_else(|| {
        let view = cx.view.item(item).filter(|view| !view.disabled)?;
        let owner = view.owner.as_ref().filter(|owner| owner.instance == cx.identity.instance)?;
        Some(owner.token)
    })
}

/// An instant that is re-run late does not hide a later one.
fn with_latest(entry: LedgerEntry, scheduled: Timestamp) -> LedgerEntry {
    LedgerEntry { latest: Some(entry.latest.map_or(scheduled, |latest| latest.max(scheduled))), ..entry }
}

/// The entry after this execution was started. `waits`: an interrupted execution waits for its failover.
fn after_start(entry: LedgerEntry, planned: Planned, waits: bool) -> LedgerEntry {
    let interrupted = entry.crashed().filter(|_| waits);
    let entry = if planned.is_fire() { with_latest(entry, planned.scheduled) } else { entry };
    let flagged = entry.flagged.filter(|_| !planned.is_first_of(Source::Misfire));
    LedgerEntry { started: Some(planned.scheduled), flagged, interrupted, ..entry }
}

/// The entry after a missed fire was flagged.
fn after_flag(entry: LedgerEntry, scheduled: Timestamp) -> LedgerEntry {
    LedgerEntry { flagged: Some(scheduled), ..with_latest(entry, scheduled) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: i64) -> Timestamp {
        Timestamp::from_millisecond(milliseconds).unwrap()
    }

    #[test]
    fn the_instant_of_a_crash_is_kept_until_its_failover_has_ended() {
        let start = |entry: LedgerEntry, source, milliseconds, waits| {
            let after = after_start(entry, Planned::new(source, at(milliseconds)), waits);
            assert_eq!(LedgerEntry::read(after.write().as_bytes()), after);
            after
        };
        let crashed = start(LedgerEntry::default(), Source::Schedule, 1_000, false);
        assert_eq!((crashed.crashed(), crashed.write().as_str()), (Some(at(1_000)), "1000 1000 -"));
        // Nobody has taken the item for so long that its owner goes on.
        let other = start(crashed, Source::Misfire, 3_000, true);
        assert_eq!((other.crashed(), other.write().as_str()), (Some(at(1_000)), "3000 3000 - 1000"));
        let third = start(other, Source::Schedule, 4_000, true);
        assert_eq!(third.crashed(), Some(at(1_000)));
        let failover = start(third, Source::Failover, 1_000, true);
        assert_eq!(failover.crashed(), Some(at(1_000)));
        let next = start(failover, Source::Schedule, 5_000, false);
        assert_eq!((next.crashed(), next.write().as_str()), (Some(at(5_000)), "5000 5000 -"));
    }
}
