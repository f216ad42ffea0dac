//! Which fires of an item have been started, by whomever (P5).
//!
//! A fire that meets a resharding could be executed by the old owner, by the new one, by both or by neither: each sees
//! the flag, the assignment and its own clock at slightly other times. So the transaction that starts an item also
//! writes down for which instant, in a node under our own root (`/{namespace}-sidekeeper/{job}/fires/{item}`, protocol
//! 12), and whoever owns the items after a resharding reads that before it fires. The check on the sharding's version
//! in the same transaction orders all starts of an old owner before the read of the new one. And each writer of an entry checks that it is
//! still the one that was read: a start or a flag of any instance in between (a relay's turns do not show in the
//! sharding's version), lets the transaction fail, and is looked at first.
//!
//! Java peers do not keep the ledger; with them, an item may run twice or not at all at a fire that meets a
//! resharding, as it always could. Jobs that do not monitor executions have none either.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::event::AssignedItem;
use crate::coordination::job::contract::plan::Planned;
use crate::coordination::job::contract::records::{LedgerEntry, LedgerNode};
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::job::{FencingToken, Generation, Item};
use crate::mutants::mutant;
use crate::tree::{NodeKind, Operation, Path};

/// The pause before a failed read is tried again.
const PAUSE: Duration = Duration::from_millis(100);
/// An entry that lies this far in the future was written by a clock that was wrong; it must not stop the job.
const CLOCK_WRONG: SignedDuration = SignedDuration::from_hours(1);

/// The known state of an item's node.
#[derive(Debug, Clone, Copy)]
struct Entry {
    says: LedgerEntry,
    /// `None`: there is no node.
    version: Option<i32>,
    /// With which token the item was ours when it was read: then nobody else can have started it since.
    token: FencingToken,
}

impl Entry {
    /// Writes the entry if nobody has written it since it was read; else the whole transaction fails.
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

    /// Items have come: look whether their entries are known, and which fires they have missed.
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

    /// For which instant an item was started last.
    pub(in crate::coordination) fn started(&self, item: Item) -> Option<Timestamp> {
        self.entries.get(&item)?.says.started
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

/// The changes that a reading of the ledger has brought.
#[derive(Debug)]
pub(in crate::coordination) struct Reread {
    /// The job's item walks over the servers, or did so at the last reading.
    relay: bool,
    /// The items whose tokens are not those of the last reading.
    changed: BTreeSet<Item>,
}

impl Reread {
    /// Whether others may have executed an item since the last reading.
    pub(in crate::coordination) fn may_have_been_elsewhere(&self, item: Item) -> bool {
        self.relay || self.changed.contains(&item)
    }
}

impl Ledger {
    /// Whether it is known which fires of our items have been started.
    pub(in crate::coordination) fn is_ledger_read(&self, cx: &Context) -> bool {
        let read = self.generation == Some(cx.assigned.generation());
        read || !cx.monitors() || mutant!(LedgerNotRead)
    }

    /// Whether a fire of an item has been started before.
    pub(in crate::coordination) fn was_started(
        &self,
        cx: &Context,
        item: Item,
        scheduled: Timestamp,
        now: Timestamp,
    ) -> bool {
        self.settled(cx, item, now).is_some_and(|settled| settled >= scheduled)
    }

    /// Up to which fire nothing of an item is missed, but what is flagged or noted elsewhere; `None`: nothing is known.
    pub(in crate::coordination) fn settled(
        &self,
        cx: &Context,
        item: Item,
        now: Timestamp,
    ) -> Option<Timestamp> {
        self.latest(item, now).filter(|_| cx.monitors())
    }

    /// After which instant the fires of an item are owed: what the ledger says; for an item without an entry, since when
    /// there is the item, or the configuration asks for it and our server is enabled, so that it waits for its first
    /// division; and since when we have been there without a Java instance, which would have left no entry. The former is
    /// by the registry's clock, so nothing counts as started because of it.
    pub(in crate::coordination) fn owed_after(
        &self,
        cx: &Context,
        item: Item,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let never_fired = || {
            let since = cx.view.item(item).and_then(|view| view.since).filter(|_| cx.monitors())?;
            let asked = cx.view.config_since().max(self.disabled_until);
            let since = asked.map_or(since, |asked| since.min(asked));
            Some(since.max(self.unmixed_since?))
        };
        self.settled(cx, item, now).or_else(never_fired)
    }

    /// Notes since when there have been sidecars only, and until when nobody wanted us to execute anything, as far as we
    /// have seen.
    pub(in crate::coordination) fn note_company(&mut self, cx: &Context) {
        let now = cx.now;
        if cx.is_registered() && (self.unmixed_since.is_none() || cx.has_java_peers()) {
            self.unmixed_since = Some(now.wall);
        }
        if cx.is_registered() && !cx.is_enabled() {
            self.disabled_until = Some(now.wall);
        }
    }

    /// An item's entry, as long as the item is ours, told or revoked. An instance that takes another one's item over leaves the
    /// ledger to its owner: it says for which instant that is already.
    fn ledger_entry(&self, cx: &Context, item: Item) -> Option<&Entry> {
        let token = token(cx, item)?;
        self.entries.get(&item).filter(|entry| cx.monitors() && entry.token == token)
    }

    /// Whether the entry of an item can be written: the item is ours, and its entry is known.
    pub(in crate::coordination) fn is_in_ledger(&self, cx: &Context, item: Item) -> bool {
        self.ledger_entry(cx, item).is_some()
    }

    /// The step that writes down an execution, to go with the one that starts it, and what it makes of the node.
    pub(in crate::coordination) fn ledger_start(
        &self,
        cx: &Context,
        item: Item,
        planned: Planned,
    ) -> Option<(Operation, LedgerNode)> {
        let entry = self.ledger_entry(cx, item).filter(|_| !mutant!(StartedWithoutLedger))?;
        let says = entry.says.after_start(planned, cx.waits_for_failover(item));
        Some(entry.write(cx.identity.paths.ledger_entry(item), says))
    }

    /// The step that writes down a missed fire, to go with the one that flags it, and what it makes of the node.
    pub(in crate::coordination) fn ledger_flag(
        &self,
        cx: &Context,
        item: Item,
        scheduled: Timestamp,
    ) -> Option<(Operation, LedgerNode)> {
        let entry = self.ledger_entry(cx, item).filter(|_| !mutant!(FlaggedWithoutLedger))?;
        Some(entry.write(cx.identity.paths.ledger_entry(item), entry.says.after_flag(scheduled)))
    }

    /// Has the ledger read after each sharding. Tells whether all entries are known without that.
    pub(in crate::coordination) fn consult_ledger(&mut self, cx: &Context, out: &mut Outbox) -> bool {
        let now = cx.now;
        let generation = cx.assigned.generation();
        let pausing = self.retry_at.is_some_and(|at| now.mono < at);
        if self.is_ledger_read(cx) || self.reading.is_some() || pausing {
            return false;
        }
        if !cx.is_registered() || cx.view.is_resharding() || cx.assigned.executable().next().is_none() {
            return false;
        }
        let relay = cx.is_relay() || self.of_relay;
        let known = |assigned: &AssignedItem| {
            !relay && self.entries.get(&assigned.item).is_some_and(|entry| entry.token == assigned.token)
        };
        if cx.assigned.assignment.iter().flat_map(|told| &told.items).all(known) {
            // No item has come that we did not have before. One may have been revoked for a while, and fires with it.
            self.generation = Some(generation);
            return true;
        }
        self.reading = Some(generation);
        out.push(Effect::ReadLedger);
        false
    }

    /// The ledger was read. `revoked`: items that are ours until their next owners have them. Gives what has changed;
    /// `None`: nothing is known.
    pub(in crate::coordination) fn ledger_read(
        &mut self,
        cx: &Context,
        revoked: impl Iterator<Item = Item>,
        read: Result<BTreeMap<Item, LedgerNode>, String>,
    ) -> Option<Reread> {
        let now = cx.now;
        let reading = self.reading.take();
        let Ok(read) = read else {
            self.retry_at = Some(now.mono.saturating_add(PAUSE));
            return None;
        };
        self.retry_at = None;
        // A sharding that came in between makes the read worthless. While the job's nodes are not known, nobody can say what
        // is owed: it is read again when they are.
        if reading != Some(cx.assigned.generation()) || !cx.view.is_loaded() {
            return None;
        }
        self.generation = reading;
        let told = cx.assigned.assignment.iter().flat_map(|told| &told.items);
        let told = told.map(|assigned| (assigned.item, assigned.token));
        let revoked = revoked.filter_map(|item| Some((item, token(cx, item)?)));
        self.entries = told
            .chain(revoked)
            .map(|(item, token)| {
                let node = read.get(&item);
                let (says, version) =
                    (node.map(|node| node.says).unwrap_or_default(), node.map(|node| node.version));
                let same = |known: &&Entry| known.token == token && known.version >= version;
                // An entry that we have written since the read is newer.
                let known = self.entries.get(&item).filter(|known| same(known) || mutant!(LedgerEntryKept));
                (item, known.copied().unwrap_or(Entry { says, version, token }))
            })
            .collect();
        let tokens: BTreeMap<_, _> = self.entries.iter().map(|(item, entry)| (*item, entry.token)).collect();
        let before = std::mem::replace(&mut self.tokens, tokens);
        let tokens = &self.tokens;
        let items = before.keys().chain(tokens.keys()).copied();
        let changed = items.filter(|item| before.get(item) != tokens.get(item)).collect();
        let relay = cx.is_relay();
        let relay = std::mem::replace(&mut self.of_relay, relay) || relay;
        Some(Reread { relay, changed })
    }
}

/// With which token an item is ours.
fn token(cx: &Context, item: Item) -> Option<FencingToken> {
    let told = cx.assigned.executable_item(item).map(|assigned| assigned.token);
    told.or_else(|| {
        let view = cx.view.item(item).filter(|view| !view.disabled)?;
        let owner = view.owner.as_ref().filter(|owner| owner.instance == cx.identity.instance)?;
        Some(owner.token)
    })
}
