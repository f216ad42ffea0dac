//! Which fires of an item have been started, by whomever (P5).
//!
//! A fire that meets a resharding could be executed by the old owner, by the new one, by both or by neither: each sees
//! the flag, the assignment and its own clock at slightly other times. So the transaction that starts an item also
//! writes down for which instant, in a node under our own root (`/{namespace}-sidekeeper/{job}/fires/{item}`, protocol
//! 12), and whoever owns the items after a resharding reads that before it fires. The check on the sharding's version
//! in the same transaction orders all starts of an old owner before the read of the new one.
//!
//! Java peers do not keep the ledger; with them, an item may run twice or not at all at a fire that meets a
//! resharding, as it always could. Jobs that do not monitor executions have none either.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::job::{FencingToken, Generation, Item};
use crate::tree::{NodeKind, Operation, Path};

use super::effect::{AssignedItem, Effect, Source};
use super::fire::{MISFIRE_THRESHOLD, Planned, latest_until};
use super::input::Now;
use super::participant::Participant;

/// The pause before a failed read is tried again.
const PAUSE: Duration = Duration::from_millis(100);
/// How old a fire may be that an item's new owner makes up for. Above the longest session timeout (10 minutes), after
/// which the items of a dead machine change hands; a longer gap means that the job was off, and nobody expects what
/// was missed then.
const HANDOVER_MAX: SignedDuration = SignedDuration::from_mins(11);
/// An entry that lies this far in the future was written by a clock that was wrong; it must not stop the job.
const CLOCK_WRONG: SignedDuration = SignedDuration::from_hours(1);

/// What the ledger says about an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LedgerEntry {
    /// The latest fire that was started or flagged as missed.
    pub latest: Option<Timestamp>,
    /// For which instant the latest execution was started, whatever made it start. Whoever takes the item over after a
    /// crash executes it for that instant.
    pub started: Option<Timestamp>,
    /// For which instant the item was flagged as missed, until that was made up for.
    pub flagged: Option<Timestamp>,
}

impl LedgerEntry {
    /// Reads a node: three instants in milliseconds since 1970. Anything else counts as none.
    pub fn read(data: &[u8]) -> Self {
        let mut fields = std::str::from_utf8(data).unwrap_or_default().split(' ');
        let mut instant = || Timestamp::from_millisecond(fields.next()?.parse().ok()?).ok();
        Self { latest: instant(), started: instant(), flagged: instant() }
    }

    fn write(self) -> String {
        let field = |at: Option<Timestamp>| at.map_or("-".to_owned(), |at| at.as_millisecond().to_string());
        format!("{} {} {}", field(self.latest), field(self.started), field(self.flagged))
    }

    /// An instant that was made up for late must not hide a later one.
    fn with_latest(self, scheduled: Timestamp) -> Self {
        Self { latest: Some(self.latest.map_or(scheduled, |latest| latest.max(scheduled))), ..self }
    }

    /// The entry after this execution was started.
    fn after_start(self, planned: Planned) -> Self {
        let entry = if planned.is_fire() { self.with_latest(planned.scheduled) } else { self };
        let flagged = entry.flagged.filter(|_| planned.source != Source::Misfire);
        Self { started: Some(planned.scheduled), flagged, ..entry }
    }

    /// The entry after a missed fire was flagged.
    fn after_flag(self, scheduled: Timestamp) -> Self {
        Self { flagged: Some(scheduled), ..self.with_latest(scheduled) }
    }
}

/// What is known of an item's node.
#[derive(Debug, Clone, Copy)]
struct Entry {
    says: LedgerEntry,
    exists: bool,
    /// With which token the item was ours when it was read: then nobody else can have started it since.
    token: FencingToken,
}

impl Entry {
    fn operation(&self, path: Path, says: LedgerEntry) -> Operation {
        match self.exists {
            true => Operation::set(path, says.write()),
            false => Operation::create(path, NodeKind::Persistent, says.write()),
        }
    }
}

/// The ledger of one job, as far as it concerns our items.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// The sharding for which the entries were read.
    generation: Option<Generation>,
    entries: BTreeMap<Item, Entry>,
    /// The sharding for which a read is under way.
    reading: Option<Generation>,
    retry_at: Option<Duration>,
}

impl Ledger {
    /// When a failed read is tried again.
    pub(super) fn next_retry(&self, now: Duration) -> Option<Duration> {
        self.retry_at.filter(|at| *at > now)
    }

    /// Items have come: look whether their entries are known, and what they have missed.
    pub(super) fn look_again(&mut self) {
        self.generation = None;
    }

    /// The entries may be wrong: read them again.
    pub(super) fn doubt(&mut self) {
        self.generation = None;
        self.entries.clear();
    }

    fn latest(&self, item: Item, now: Timestamp) -> Option<Timestamp> {
        let latest = self.entries.get(&item).and_then(|entry| entry.says.latest);
        latest.filter(|latest| latest.duration_since(now) <= CLOCK_WRONG)
    }

    /// For which instant somebody of ours has flagged an item, if that was not made up for.
    pub(super) fn flagged_for(&self, item: Item) -> Option<Timestamp> {
        self.entries.get(&item)?.says.flagged
    }

    /// Notes that our transaction has started an execution.
    pub(super) fn started(&mut self, item: Item, planned: Planned) {
        if let Some(entry) = self.entries.get_mut(&item) {
            *entry = Entry { says: entry.says.after_start(planned), exists: true, ..*entry };
        }
    }

    /// Notes that our transaction has flagged a fire as missed.
    pub(super) fn flagged(&mut self, item: Item, scheduled: Timestamp) {
        if let Some(entry) = self.entries.get_mut(&item) {
            *entry = Entry { says: entry.says.after_flag(scheduled), exists: true, ..*entry };
        }
    }
}

impl Participant {
    pub(super) fn keeps_ledger(&self) -> bool {
        self.settings.as_ref().is_some_and(|settings| settings.configuration.monitor_execution)
    }

    /// Whether it is known which fires of our items have been started.
    pub(super) fn is_ledger_read(&self) -> bool {
        !self.keeps_ledger() || self.ledger.generation == Some(self.told.generation())
    }

    /// Whether a fire of an item has been started before.
    pub(super) fn was_started(&self, item: Item, scheduled: Timestamp, now: Timestamp) -> bool {
        self.keeps_ledger() && self.ledger.latest(item, now).is_some_and(|latest| latest >= scheduled)
    }

    /// The step that writes down an execution, to go with the one that starts it.
    pub(super) fn ledger_start(&self, item: Item, planned: Planned) -> Option<Operation> {
        let entry = self.ledger.entries.get(&item).filter(|_| self.keeps_ledger())?;
        Some(entry.operation(self.identity.paths.ledger_entry(item), entry.says.after_start(planned)))
    }

    /// The step that writes down a missed fire, to go with the one that flags it.
    pub(super) fn ledger_flag(&self, item: Item, scheduled: Timestamp) -> Option<Operation> {
        let entry = self.ledger.entries.get(&item).filter(|_| self.keeps_ledger())?;
        Some(entry.operation(self.identity.paths.ledger_entry(item), entry.says.after_flag(scheduled)))
    }

    /// Has the ledger read after each sharding.
    pub(super) fn consult_ledger(&mut self, now: Now) {
        let generation = self.told.generation();
        let pausing = self.ledger.retry_at.is_some_and(|at| now.mono < at);
        if self.is_ledger_read() || self.ledger.reading.is_some() || pausing {
            return;
        }
        if !self.is_registered() || self.view.is_resharding() || self.told.executable().next().is_none() {
            return;
        }
        let known = |assigned: &AssignedItem| {
            self.ledger.entries.get(&assigned.item).is_some_and(|entry| entry.token == assigned.token)
        };
        if self.told.assignment.iter().flat_map(|told| &told.items).all(known) {
            // No item has come that we did not have before. One may have been revoked for a while, and fires with it.
            self.ledger.generation = Some(generation);
            self.take_over(now);
            return;
        }
        self.ledger.reading = Some(generation);
        self.effects.push(Effect::ReadLedger);
    }

    /// The ledger was read.
    pub(super) fn ledger_read(&mut self, now: Now, read: Result<BTreeMap<Item, LedgerEntry>, String>) {
        let reading = self.ledger.reading.take();
        let Ok(read) = read else {
            self.ledger.retry_at = Some(now.mono.saturating_add(PAUSE));
            return;
        };
        self.ledger.retry_at = None;
        // A sharding that came in between makes the read worthless.
        if reading != Some(self.told.generation()) {
            return;
        }
        self.ledger.generation = reading;
        self.ledger.entries = self
            .told
            .assignment
            .iter()
            .flat_map(|assignment| &assignment.items)
            .map(|assigned| {
                let known = self.ledger.entries.get(&assigned.item);
                let known = known.filter(|entry| entry.token == assigned.token).copied();
                let found = read.get(&assigned.item);
                let (says, token) = (found.copied().unwrap_or_default(), assigned.token);
                (assigned.item, known.unwrap_or(Entry { says, exists: found.is_some(), token }))
            })
            .collect();
        // What was planned before may have been executed by an owner in between.
        let mut planned = std::mem::take(&mut self.fires.planned);
        planned.retain(|item, planned| {
            !(planned.is_first_of(Source::Schedule) && self.was_started(*item, planned.scheduled, now.wall))
        });
        self.fires.planned = planned;
        self.take_over(now);
    }

    /// Makes up for fires that came while the items changed hands, and that nobody started.
    fn take_over(&mut self, now: Now) {
        let schedule = self.settings.as_ref().and_then(|settings| settings.schedule.clone());
        let Some(schedule) = schedule.filter(|_| !self.is_relay()) else { return };
        let items: Vec<_> = self.told.executable().map(|assigned| assigned.item).collect();
        for item in items {
            let Some(latest) = self.ledger.latest(item, now.wall) else { continue };
            let Some(missed) = schedule.next_after(latest).filter(|missed| *missed <= now.wall) else {
                continue;
            };
            if now.wall.duration_since(missed) > HANDOVER_MAX {
                continue;
            }
            let (newest, _) = latest_until(&schedule, missed, now.wall);
            // Who came after a fire makes up for it only while it is fresh: then it met our registration. What was
            // missed before we came is not ours to judge; maybe nobody was there on purpose.
            let witnessed = self.fires.latest().is_some_and(|fired| fired >= newest);
            let fresh = now.wall.duration_since(newest) <= MISFIRE_THRESHOLD;
            // What is about to start, may have been started, or is about to be flagged is not missed.
            let planned = self.fires.planned.get(&item);
            if planned.is_some_and(|planned| planned.scheduled >= newest)
                || self.executions.is_starting(item)
                || self.fires.is_missed(item, newest)
            {
                continue;
            }
            // The newest is about to be divided, or is executed now; what is missing then lies before it.
            let executes = !self.fires.is_due() && fresh && !self.is_busy(item, now);
            if executes {
                let planned = Planned::new(Source::Schedule, newest);
                self.fires.planned.entry(item).or_insert(planned);
            }
            if executes || self.fires.is_due() {
                if missed < newest && witnessed {
                    self.missed(item, missed);
                }
            } else if witnessed || fresh {
                self.missed(item, newest);
            }
        }
    }
}
