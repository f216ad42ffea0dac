//! The once-listener: one instance acts once for the whole job, before the first and after the last item of a fire.
//!
//! This file has the state that the room shares: a round of the listener, and the past rounds of the instance. It
//! decides nothing.

mod barrier;
mod listener;
mod round;

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::frame::limits::HEAD_START;
use crate::coordination::time::Now;
use crate::elasticjob::path::{Barrier, Folder, JobPaths};
use crate::findings::problem::{Problem, ProblemCode};
use crate::job::Item;

/// How long before the end of the wait a call of the listener is given up, at most; never more than a quarter of it.
const MARGIN_MAX: Duration = Duration::from_secs(5);

/// The pause after a failed attempt to take or to leave a latch.
const PAUSE: Duration = Duration::from_millis(500);

/// The stage of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Waits until all items are about to be executed.
    Before,
    /// Executes.
    Open,
    /// Waits until all items have been executed.
    After,
}

/// The state of the listener at the barrier of the round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Acting {
    /// This instance has called nothing.
    No,
    /// The application was called, and has not answered.
    Called(String),
    /// It has answered; the barrier is to be removed.
    Done,
}

/// One fire of the job, for this instance.
#[derive(Debug)]
pub(crate) struct Round {
    stage: Stage,
    /// When the wait at the barrier ends; monotonic.
    until: Duration,
    /// When a call of the listener is given up, so that the barrier is removed before the others have waited too long.
    answer_until: Duration,
    scheduled: Timestamp,
    /// The items that this instance has to register.
    items: BTreeSet<Item>,
    /// Those of them whose executions have begun.
    executed: BTreeSet<Item>,
    /// Those that are registered at the present barrier, as the registry confirmed.
    registered: BTreeSet<Item>,
    acting: Acting,
    /// Whether this instance's listener failed before the first item: then it executes none of its items in this round.
    barred: bool,
}

impl Round {
    pub(super) fn new(stage: Stage, scheduled: Timestamp) -> Self {
        Self {
            stage,
            until: Duration::MAX,
            answer_until: Duration::MAX,
            scheduled,
            items: BTreeSet::new(),
            executed: BTreeSet::new(),
            registered: BTreeSet::new(),
            acting: Acting::No,
            barred: false,
        }
    }

    pub(crate) fn barrier(&self) -> Option<Barrier> {
        match self.stage {
            Stage::Before => Some(Barrier::Started),
            Stage::Open => None,
            Stage::After => Some(Barrier::Completed),
        }
    }

    /// Enters a stage, which ends after `wait`.
    pub(super) fn enter(&mut self, stage: Stage, now: Now, wait: Duration) {
        self.stage = stage;
        self.until = now.mono.saturating_add(wait);
        self.answer_until = self.until.saturating_sub(MARGIN_MAX.min(wait / 4));
        self.registered.clear();
        self.acting = Acting::No;
    }
}

#[derive(Debug, Default)]
pub(crate) struct Once {
    round: Option<Box<Round>>,
    /// The latch that was asked for and not left, and whether it is held.
    latch: Option<(Barrier, Latch)>,
    /// Since when the barrier is complete; monotonic.
    complete_since: Option<Duration>,
    retry_at: Option<Duration>,
    /// The items that the commit in flight registers; empty if it withdraws some.
    registering: BTreeSet<Item>,
    /// The items that were taken over and are being executed.
    taken_over: BTreeSet<Item>,
    /// Registrations to withdraw, because a barrier was given up.
    withdrawn: BTreeSet<(Barrier, Item)>,
    calls: u64,
    problem: Option<(Barrier, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Latch {
    Joining,
    Held,
    Leaving,
}

impl Once {
    /// The session has ended, and the latch with it; the registrations are for the next owners of the items.
    pub(crate) fn forget(&mut self) {
        *self = Self { calls: self.calls, ..Self::default() };
    }

    /// When a wait or a pause ends.
    pub(crate) fn next_retry(&self, now: Duration) -> Option<Duration> {
        let round = self.round.as_ref().filter(|round| round.stage != Stage::Open);
        let ends = round.into_iter().flat_map(|round| [round.until, round.answer_until]);
        let head_start = self.complete_since.map(|since| since.saturating_add(HEAD_START));
        ends.chain(self.retry_at).chain(head_start).filter(|at| *at > now).min()
    }

    /// The problem that a barrier was given up, or that a listener failed. It stands until the next barrier was passed
    /// well.
    pub(crate) fn problem(&self, paths: &JobPaths) -> Option<Problem> {
        let (barrier, message) = self.problem.as_ref()?;
        Some(Problem {
            path: paths.folder(Folder::Barrier(*barrier)),
            message: message.clone(),
            code: ProblemCode::OnceListenerFailed,
        })
    }

    /// The registrations are made, or withdrawn.
    pub(crate) fn committed(&mut self) {
        let registering = std::mem::take(&mut self.registering);
        if let Some(round) = &mut self.round {
            round.registered.extend(registering);
        }
    }

    /// The commit failed; the view shows which registrations to try again.
    pub(crate) fn failed(&mut self) {
        self.registering.clear();
    }

    /// The latch was left, or not reached.
    pub(crate) fn latch_left(&mut self, now: Now, barrier: Barrier, result: Result<(), String>) {
        self.latch = None;
        if let Err(error) = result {
            self.retry_at = Some(now.mono.saturating_add(PAUSE));
            self.problem = Some((barrier, format!("the latch of the once-listener: {error}")));
        }
    }
}
