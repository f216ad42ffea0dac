//! What the nodes of one sticky lock have to keep: growing tokens, the grace of the last owner, no interrupted run forgotten.

use std::collections::BTreeSet;
use std::time::Duration;

use sidekeeper::extension::sticky::Record;
use sidekeeper::tree::Zxid;

/// The owner's node that was deleted last.
#[derive(Debug, Clone)]
struct Vanished {
    at: Duration,
    record: Record,
}

#[derive(Debug, Default)]
pub struct Judge {
    /// The token of the last owner.
    pub highest: i64,
    /// The tokens of runs that were interrupted, and that no owner has resolved.
    pub interrupted: BTreeSet<i64>,
    /// The runs that have begun and that their applications have not left.
    pub open: BTreeSet<String>,
    /// How many runs were interrupted.
    pub interruptions: usize,
    vanished: Option<Vanished>,
    /// The owner's node and the record, as they were after the last change.
    owner: Option<Zxid>,
    record: Option<Record>,
    /// By how much the clocks of instances are faster than the world's, as a divisor of the grace. Zero: not at all.
    fast: u32,
}

impl Judge {
    /// A judge of a world in which the clocks of instances run faster by at most this part: a divisor.
    #[allow(dead_code, reason = "the world of sticky locks has one clock")]
    pub fn of_clocks(fast: u32) -> Self {
        Self { fast, ..Self::default() }
    }

    /// The nodes have changed: when the owner's node was created, and the record.
    pub fn see(&mut self, now: Duration, owner: Option<Zxid>, record: Option<Record>) -> Result<(), String> {
        let (was, old) = (std::mem::replace(&mut self.owner, owner), self.record.take());
        self.record.clone_from(&record);
        if let Some(is) = owner.filter(|is| Some(*is) != was) {
            let new = record.as_ref().ok_or("an owner without a record")?;
            if new.token != is.0 || new.token <= self.highest {
                return Err(format!("token {} after {}", new.token, self.highest));
            }
            self.highest = new.token;
            if let Some(Vanished { at, record }) = self.vanished.take().filter(|_| was.is_none()) {
                let is_last = record.stand == new.stand;
                let is_restarted = record.ended && record.owner == new.owner;
                let grace = record.grace();
                let is_early = now < at + grace - grace.checked_div(self.fast).unwrap_or_default();
                if is_early && !record.resigned && !is_last && !is_restarted {
                    return Err(format!(
                        "{new:?} owns within the grace of {record:?}, vanished at {at:?}, now {now:?}"
                    ));
                }
            }
        }
        if was.is_some() && owner.is_none() {
            self.vanished = record.clone().map(|record| Vanished { at: now, record });
        }
        let (Some(old), Some(new)) = (&old, &record) else { return Ok(()) };
        // A run that the record had, and that its application has not left.
        if old.run.is_some() && old.run != new.run {
            let was_open = old.run.as_ref().is_some_and(|run| self.open.remove(run));
            // An instance that resigns ends its run, also one that begins in the same moment.
            if was_open && !new.resigned {
                self.interrupted.insert(old.token);
                self.interruptions += 1;
            }
        }
        // Only an owner resolves runs.
        let gone = old.unfinished.iter().filter(|run| !new.unfinished.contains(run));
        for run in gone {
            if old.stand != new.stand {
                return Err(format!("the interrupted run {run:?} is forgotten"));
            }
            self.interrupted.remove(&run.token);
        }
        let is_kept = |token: &i64| new.unfinished.iter().any(|run| run.token == *token);
        if let Some(token) = self.interrupted.iter().find(|token| !is_kept(token)) {
            return Err(format!("the interrupted run {token} is not in {new:?}"));
        }
        Ok(())
    }
}
