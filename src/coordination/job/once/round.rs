//! Who acts once for the whole job, before the first item of a fire is executed and after the last? (protocol 6.7; H1,
//! H25.)
//!
//! Only jobs with `sidekeeper.once-listener` do so. All instances register their items at a gate, `started`. When all
//! items are there, the instance that takes the gate's latch calls its application, then removes the gate, and
//! everybody starts. With `completed` it is the same after the executions. What lies between is a *round*.
//!
//! What differs from Java peers, within the same protocol:
//! - **The view decides, again at each step**, so no removal is missed, and a gate is only removed by who found it
//!   complete under the latch. Of a gate that is given up, each instance takes back its own items only.
//! - **Every wait ends.** An instance that waited too long before a fire skips it, as Java does: whoever opens the books
//!   has not done so. The fire counts as missed. After a fire it stops waiting. Both are reported as problems.
//! - **A listener that fails or does not answer** makes its own instance skip the fire, as an exception does in Java, and
//!   lets the others go on. Its items are registered as completed, so that nobody waits for them.
//! - **An instance registers all items that it owns**, also those that it cannot start now; disabled items of any
//!   instance count as registered. Java waits for such items for ever.
//! - **What somebody takes over** from a crashed instance is registered as completed by who executed it.
//! - **Missed fires** are made up for inside a round that is open. Alone they begin one only if all items have missed
//!   theirs and no Java instance is there, because nobody else would come; but they join one that somebody has begun.
//!
//! If an instance crashes while it acts, another one acts again: at least once is all that the protocol can promise.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use crate::elasticjob::once_listener::OnceListener;
use crate::elasticjob::path::{Folder, Gate, JobPaths};
use crate::job::{Item, Problem};
use crate::mutants::mutant;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::plan::Planned;
use crate::coordination::job::contract::plan::Source;
use crate::coordination::job::frame::limits::HEAD_START;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::participant::Participant;
use crate::coordination::time::Now;

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
    stage: Stage,
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
    fn new(stage: Stage, scheduled: Timestamp) -> Self {
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
    fn enter(&mut self, stage: Stage, now: Now, wait: Duration) {
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
    taken_over: BTreeSet<Item>,
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
    /// The session is gone, and with it the latch; what was registered is for the next owners of the items.
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

    /// They are not; the view tells what to try again.
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

impl Participant {
    /// Whether executions may start, as far as other instances are concerned.
    pub(in crate::coordination) fn is_gate_open(&self) -> bool {
        self.cx.once_listener().is_none() || self.is_round_open() || mutant!(GateIgnored)
    }

    /// Whether we are in a round whose executions have begun: a further fire has to wait for the next one.
    pub(in crate::coordination) fn is_round_open(&self) -> bool {
        self.guarantee.round.as_ref().is_some_and(|round| round.stage != Stage::Before)
    }

    /// Whether a missed fire of the item may be made up for now.
    pub(in crate::coordination) fn may_make_up(&self, item: Item) -> bool {
        if self.cx.once_listener().is_none() {
            return true;
        }
        match &self.guarantee.round {
            Some(round) if round.stage == Stage::Before => !round.barred,
            Some(_) => self.is_inside(item),
            None => !self.cx.view.registered(Gate::Started).is_empty() || self.all_have_missed(),
        }
    }

    /// Whether the item's part of the open round has not ended.
    fn is_inside(&self, item: Item) -> bool {
        let over = self.guarantee.round.as_ref().is_some_and(|round| {
            let registered = round.registered.contains(&item) || self.guarantee.registering.contains(&item);
            round.barred || (round.stage == Stage::After && registered)
        });
        !over && !self.cx.view.registered(Gate::Completed).contains(&item)
    }

    /// Whether each item has missed a fire and everybody sees it and will come.
    fn all_have_missed(&self) -> bool {
        let missed = |item: Item| {
            self.cx.view.misfired().contains(&item)
                || self.cx.view.item(item).is_some_and(|view| view.disabled)
        };
        !self.cx.has_java_peers()
            && self.cx.settings.as_ref().is_some_and(|settings| settings.items().all(missed))
    }

    /// Goes on if the gate at which we wait was removed. Comes before the fires, so that one that was seen after the
    /// removal belongs to the next round.
    pub(in crate::coordination) fn pass_gate(&mut self) {
        let now = self.cx.now;
        let idle = self.has_nothing_to_execute();
        let guarantee = &mut self.guarantee;
        let Some(round) = &mut guarantee.round else { return };
        let Some(gate) = round.gate() else { return };
        // Nobody but who found it complete takes away what we have registered.
        let gone =
            !round.registered.is_empty() && round.registered.is_disjoint(self.cx.view.registered(gate));
        if !self.cx.view.is_loaded() || !gone || !guarantee.registering.is_empty() {
            return;
        }
        match gate {
            Gate::Started => {
                if round.acting == Acting::No {
                    guarantee.problem = None;
                }
                round.enter(Stage::Open, now, Duration::MAX);
            }
            Gate::Completed if idle => {
                if round.acting == Acting::No {
                    guarantee.problem = None;
                }
                guarantee.round = None;
            }
            Gate::Completed => {}
        }
    }

    /// Whether nothing is executed or about to be.
    fn has_nothing_to_execute(&self) -> bool {
        let waits = self.cx.phase == Phase::Active && self.planned_items().next().is_some();
        self.executions.is_idle() && !waits && self.retries.is_empty()
    }

    /// Takes the next step around a fire.
    pub(in crate::coordination) fn guard(&mut self) {
        let Some(listener) = self.cx.once_listener() else {
            self.give_up_round();
            self.withdraw();
            self.attend_latch();
            return;
        };
        self.note_taken_over(listener);
        if self.guarantee.round.is_none() {
            self.begin_round(listener);
        }
        match self.guarantee.round.as_ref().map(|round| round.stage) {
            Some(Stage::Before) => self.wait_before(),
            Some(Stage::Open) => self.watch_executions(listener),
            Some(Stage::After) => self.wait_after(),
            None => {}
        }
        self.register_items();
        self.withdraw();
        self.attend_latch();
    }

    /// What waits for the gate: everything planned, but what was taken over.
    fn planned_items(&self) -> impl Iterator<Item = (Item, Planned)> + '_ {
        self.agenda.plans().filter(|(_, planned)| !planned.is_first_of(Source::Failover))
    }

    fn begin_round(&mut self, listener: OnceListener) {
        let now = self.cx.now;
        if self.cx.phase != Phase::Active || !self.cx.is_registered() || !self.guarantee.withdrawn.is_empty()
        {
            return;
        }
        let Some(scheduled) = self.planned_items().map(|(_, planned)| planned.scheduled).max() else {
            return;
        };
        let mut round = Round::new(Stage::Before, scheduled);
        round.enter(Stage::Before, now, listener.started_timeout);
        self.guarantee.round = Some(round);
    }

    fn wait_before(&mut self) {
        let now = self.cx.now;
        let active = self.cx.phase == Phase::Active;
        let owned: Vec<_> = self.cx.assigned.executable().map(|assigned| assigned.item).collect();
        let Some(round) = &mut self.guarantee.round else { return };
        if active {
            round.items.extend(owned);
        }
        if now.mono >= round.until {
            self.too_late(Gate::Started);
        } else if !active && round.acting == Acting::No {
            // Others will execute what is planned here.
            self.give_up_round();
        }
    }

    fn watch_executions(&mut self, listener: OnceListener) {
        let now = self.cx.now;
        self.follow_executions();
        // A flag that is on its way is made up for in this round as well.
        if self.out.is_in_flight(Purpose::FlagMisfire) || !self.has_nothing_to_execute() {
            return;
        }
        if let Some(round) = &mut self.guarantee.round {
            round.enter(Stage::After, now, listener.completed_timeout);
        }
    }

    /// Notes what is executed in the open round. What was planned too late for it waits for the next one.
    fn follow_executions(&mut self) {
        let planned: Vec<_> = self.planned_items().collect();
        let (inside, outside): (Vec<_>, Vec<_>) =
            planned.into_iter().partition(|(item, _)| self.is_inside(*item));
        for (item, planned) in outside {
            self.agenda.withdraw(item);
            self.retries.could_not_start(&self.cx, &mut self.agenda, &mut self.out, item, planned);
        }
        let busy: Vec<_> = self.executions.busy_items().collect();
        if let Some(round) = &mut self.guarantee.round {
            round.items.extend(inside.into_iter().map(|(item, _)| item));
            round.executed.extend(busy.iter().filter(|item| round.items.contains(item)));
        }
    }

    fn wait_after(&mut self) {
        let now = self.cx.now;
        self.follow_executions();
        let owned: Vec<_> = self.cx.assigned.executable().map(|assigned| assigned.item).collect();
        let idle = self.has_nothing_to_execute();
        let Some(round) = &mut self.guarantee.round else { return };
        // What was a crashed instance's is ours to register.
        round.items.extend(owned);
        if round.registered.is_empty() && round.items.is_empty() {
            self.guarantee.round = None;
        } else if now.mono >= round.until && idle {
            self.too_late(Gate::Completed);
        }
    }

    /// What we have taken over and executed is registered by nobody else.
    fn note_taken_over(&mut self, listener: OnceListener) {
        let now = self.cx.now;
        let executing = self.executions.open.iter().filter(|(_, open)| open.taken_over);
        let executing: BTreeSet<_> = executing.map(|(item, _)| *item).collect();
        let before = std::mem::replace(&mut self.guarantee.taken_over, executing.clone());
        let ended: Vec<_> = before.difference(&executing).copied().collect();
        if ended.is_empty() || !self.cx.is_registered() {
            return;
        }
        let round = self.guarantee.round.get_or_insert_with(|| {
            let mut round = Round::new(Stage::After, now.wall);
            round.enter(Stage::After, now, listener.completed_timeout);
            round
        });
        // Before the next fire the round of the crashed execution is over.
        if round.stage != Stage::Before {
            round.items.extend(ended.iter().copied());
            round.executed.extend(ended);
        }
    }

    /// Whether we may leave, as far as a round is concerned: there is none, or others will end it.
    pub(in crate::coordination) fn is_round_over(&self) -> bool {
        let guarantee = &self.guarantee;
        let left_to_others = guarantee.round.as_ref().is_some_and(|round| {
            let registered = round.executed.is_subset(&round.registered);
            round.stage == Stage::After && registered && self.cx.view.instances().len() > 1
        });
        let round_over = guarantee.round.is_none() || left_to_others;
        round_over && guarantee.latch.is_none() && guarantee.withdrawn.is_empty()
    }

    /// We have waited too long at a gate.
    fn too_late(&mut self, gate: Gate) {
        let registered = self.cx.view.registered(gate);
        let settings = self.cx.settings.as_ref();
        let missing: Vec<_> = settings
            .into_iter()
            .flat_map(crate::coordination::job::picture::settings::Settings::items)
            .filter(|item| !registered.contains(item))
            .map(|item| item.0)
            .collect();
        let waited = match missing.as_slice() {
            [] => "the instance that acts for all did not end".to_owned(),
            missing => {
                format!("{} items did not come, the first of them {:?}", missing.len(), missing.first())
            }
        };
        let then = match gate {
            Gate::Started => "the fire was skipped and counts as missed",
            Gate::Completed => "nothing is called after the last execution",
        };
        let message = format!(
            "the once-listener waited too long: {waited}; {then}. Every instance of the job must have such a listener"
        );
        self.guarantee.problem = Some((gate, message));
        if gate == Gate::Started {
            self.skip_planned(true);
        }
        self.give_up_round();
    }

    /// Does not execute what waits for the gate.
    pub(in crate::coordination) fn skip_planned(&mut self, make_up: bool) {
        let planned: Vec<_> = self.planned_items().collect();
        for (item, Planned { scheduled, .. }) in planned {
            self.agenda.withdraw(item);
            if make_up {
                self.agenda.miss(&self.cx, &mut self.out, item, scheduled);
            } else {
                self.out.push(Effect::Skipped { item, scheduled });
            }
        }
    }

    /// Ends the round here, and takes back what was registered for it.
    fn give_up_round(&mut self) {
        let Some(round) = self.guarantee.round.take() else { return };
        let Some(gate) = round.gate() else { return };
        let owned = self.cx.assigned.executable().map(|assigned| assigned.item);
        let items: BTreeSet<_> = round.items.iter().copied().chain(owned).collect();
        self.guarantee.withdrawn.extend(items.into_iter().map(|item| (gate, item)));
    }
}
