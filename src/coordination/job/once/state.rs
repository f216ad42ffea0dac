//! A round of the once-listener, and what the instance remembers of it. Decides nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::frame::limits::HEAD_START;
use crate::coordination::time::Now;
use crate::elasticjob::path::{Folder, Gate, JobPaths};
use crate::job::{Item, Problem};

/// How long before the end of the wait a call of the listener is given up, at most; never more than a quarter of it.
const MARGIN_MAX: Duration = Duration::from_secs(5);

/// The pause after a failed attempt to take or to leave a latch.
const PAUSE: Duration = Duration::from_millis(500);

/// Where a round is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::coordination) enum Stage {
    /// Waits until all items are about to be executed.
    Before,
    /// Executes.
    Open,
    /// Waits until all items have been executed.
    After,
}

/// What becomes of the listener at the gate where the round waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::coordination) enum Acting {
    /// Nobody was called by us.
    No,
    /// The application was called, and has not answered.
    Called(String),
    /// It has answered; the gate is to be removed.
    Done,
}

/// One fire of the job, as far as it concerns us.
#[derive(Debug)]
pub(in crate::coordination) struct Round {
    pub(super) stage: Stage,
    /// When the wait at the gate ends; monotonic.
    pub(in crate::coordination) until: Duration,
    /// When a call of the listener is given up, so that the gate is removed before the others have waited too long.
    pub(in crate::coordination) answer_until: Duration,
    pub(in crate::coordination) scheduled: Timestamp,
    /// The items that are ours to register.
    pub(in crate::coordination) items: BTreeSet<Item>,
    /// Those of them that we have begun to execute.
    pub(in crate::coordination) executed: BTreeSet<Item>,
    /// Those that we have registered at the present gate, as the registry confirmed.
    pub(in crate::coordination) registered: BTreeSet<Item>,
    pub(in crate::coordination) acting: Acting,
    /// Our listener failed before the first item: nothing of ours is executed in this round.
    pub(in crate::coordination) barred: bool,
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

    pub(in crate::coordination) fn gate(&self) -> Option<Gate> {
        match self.stage {
            Stage::Before => Some(Gate::Started),
            Stage::Open => None,
            Stage::After => Some(Gate::Completed),
        }
    }

    /// Goes on to a stage, which ends after `wait`.
    pub(super) fn enter(&mut self, stage: Stage, now: Now, wait: Duration) {
        self.stage = stage;
        self.until = now.mono.saturating_add(wait);
        self.answer_until = self.until.saturating_sub(MARGIN_MAX.min(wait / 4));
        self.registered.clear();
        self.acting = Acting::No;
    }
}

/// What a participant knows of its rounds.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Guarantee {
    pub(in crate::coordination) round: Option<Round>,
    /// The latch that was asked for and not left, and whether it is held.
    pub(in crate::coordination) latch: Option<(Gate, Latch)>,
    /// Since when everybody is at the gate; monotonic.
    pub(in crate::coordination) complete_since: Option<Duration>,
    pub(in crate::coordination) retry_at: Option<Duration>,
    /// What the commit in flight registers; empty if it takes back.
    pub(in crate::coordination) registering: BTreeSet<Item>,
    /// Items that were taken over and are being executed.
    pub(super) taken_over: BTreeSet<Item>,
    /// Registrations to take back, because a gate was given up.
    pub(in crate::coordination) withdrawn: BTreeSet<(Gate, Item)>,
    pub(in crate::coordination) calls: u64,
    pub(in crate::coordination) problem: Option<(Gate, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::coordination) enum Latch {
    Joining,
    Held,
    Leaving,
}

impl Guarantee {
    /// The session is gone, and with it the latch; the registrations are for the next owners of the items.
    pub(in crate::coordination) fn forget(&mut self) {
        *self = Self { calls: self.calls, ..Self::default() };
    }

    /// When a wait or a pause ends.
    pub(in crate::coordination) fn next_retry(&self, now: Duration) -> Option<Duration> {
        let round = self.round.as_ref().filter(|round| round.stage != Stage::Open);
        let ends = round.into_iter().flat_map(|round| [round.until, round.answer_until]);
        let head_start = self.complete_since.map(|since| since.saturating_add(HEAD_START));
        ends.chain(self.retry_at).chain(head_start).filter(|at| *at > now).min()
    }

    /// What is wrong, if a gate was given up or a listener failed. It stands until the next gate was passed well.
    pub(in crate::coordination) fn problem(&self, paths: &JobPaths) -> Option<Problem> {
        let (gate, message) = self.problem.as_ref()?;
        Some(Problem { path: paths.folder(Folder::Gate(*gate)), message: message.clone() })
    }

    /// The registrations are made, or taken back.
    pub(in crate::coordination) fn committed(&mut self) {
        let registering = std::mem::take(&mut self.registering);
        if let Some(round) = &mut self.round {
            round.registered.extend(registering);
        }
    }

    /// They are not made; the view tells which to try again.
    pub(in crate::coordination) fn failed(&mut self) {
        self.registering.clear();
    }

    /// The latch was left, or not reached.
    pub(in crate::coordination) fn latch_left(&mut self, now: Now, gate: Gate, result: Result<(), String>) {
        self.latch = None;
        if let Err(error) = result {
            self.retry_at = Some(now.mono.saturating_add(PAUSE));
            self.problem = Some((gate, format!("the latch of the once-listener: {error}")));
        }
    }
}
