//! When a candidate may try to become the owner (the table of locks specification 9.3). A pure function of the lock's nodes,
//! and of how long this candidate has seen no owner.
//!
//! Ownership does not rest on these rules but on the exclusive creation and on the record's version. The length of a run does:
//! an owner inside a run goes on for the grace after its lease, because nobody tries before.

use std::time::Duration;

use uuid::Uuid;

use crate::coordination::sticky::view::{Candidacy, View};
use crate::extension::sticky::{Cause, Record, is_of};
use crate::mutants::mutant;

/// A candidate, as the rules see it.
#[derive(Debug, Clone, Copy)]
pub struct Me<'a> {
    /// The name of its instance.
    pub instance: &'a str,
    /// Itself.
    pub stand: Uuid,
    /// The grace that it asks for.
    pub grace: Duration,
    /// Whether somebody has deleted its owner's node by hand: then it has no right to be the first.
    pub is_revoked: bool,
}

/// The place of a candidate before others: the last owner's name, then names with interrupted runs, then the rest.
fn class(record: Option<&Record>, instance: &str) -> u8 {
    let Some(record) = record else { return 2 };
    if record.owner.as_deref() == Some(instance) {
        0
    } else if record.unfinished.iter().any(|run| run.instance == instance) {
        1
    } else {
        2
    }
}

/// The candidates in the order in which they may try.
pub fn order(view: &View) -> Vec<&Candidacy> {
    let record = view.readable();
    let mut queue: Vec<_> = view.queue.iter().collect();
    queue.sort_by_key(|one| (class(record, &one.instance), one.number));
    queue
}

/// Whether a candidate is the first that may try.
fn is_first(view: &View, me: Me<'_>) -> bool {
    order(view).first().is_some_and(|first| is_of(&first.name, me.stand))
}

/// How long a candidate waits after it has seen that nobody owns the lock. Zero: not at all.
pub fn wait(view: &View, me: Me<'_>) -> Duration {
    let Some(record) = view.readable() else { return Duration::ZERO };
    let Some(owner) = &record.owner else { return Duration::ZERO };
    let is_last = record.stand == me.stand && !me.is_revoked;
    // Its sidecar knew that the former process does not act any more.
    let is_restarted = owner == me.instance && record.ended;
    if is_last || is_restarted || mutant!(StickyGraceIgnored) {
        Duration::ZERO
    } else {
        record.grace().max(me.grace)
    }
}

/// Whether a candidate may try now, and why it then becomes the owner. `absent`: for how long it has seen that nobody owns the
/// lock.
pub fn may_try(view: &View, me: Me<'_>, absent: Duration) -> Option<Cause> {
    // Its own node of a former session is in no one's way.
    if view.owner.as_ref().is_some_and(|owner| !owner.is_of(me.stand)) {
        return None;
    }
    let record = view.readable();
    let is_last = record.is_some_and(|record| record.owner.is_some() && record.stand == me.stand);
    if view.owner.is_some() && !is_last {
        return None;
    }
    if is_last && !me.is_revoked {
        return Some(Cause::Returned);
    }
    if absent < wait(view, me) || !is_first(view, me) {
        return None;
    }
    Some(match record {
        None => Cause::First,
        Some(record) => match &record.owner {
            Some(owner) if owner == me.instance => Cause::Returned,
            Some(_) => Cause::GraceOver,
            None if record.resigned => Cause::Resigned,
            None => Cause::First,
        },
    })
}
