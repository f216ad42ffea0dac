//! Is an execution that failed tried again? (`sidekeeper.retry-max-attempts`, `-backoff`, `-backoff-max`, `-on`.)
//!
//! A further attempt is an execution like any other: a new id, a new running node, a higher token; it keeps the cause and
//! the instant of the first. Between attempts the item is free: nothing runs, and nothing in the registry says that
//! anything will (P6). So whatever comes first takes the place of the retry: a fire, a trigger, another owner.
//!
//! Retries are best effort: they live here only, and end with our ownership of the item, with our session, with a drain.
//! Each one that is dropped is reported. What an operator has cancelled, and what was rejected, is not tried again.
//!
//! In a job whose instances wait for each other (see [`crate::coordination::job::once::round`]), the attempts belong to their round.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::coordination::job::agenda::Agenda;
use crate::coordination::job::contract::answer::Cancelled;
use crate::coordination::job::contract::effect::{Effect, RetryNews};
use crate::coordination::job::contract::event::CancelReason;
use crate::coordination::job::contract::plan::Planned;
use crate::coordination::job::execution::checkpoint::Checkpoints;
use crate::coordination::job::execution::ending::Ending;
use crate::coordination::job::execution::state::Executions;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Phase;
use crate::job::Item;
use crate::mutants::mutant;

/// An attempt that waits for its time.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    /// The next attempt.
    planned: Planned,
    /// The execution that failed.
    failed: u64,
    /// When it may begin; monotonic.
    at: Duration,
}

/// The attempts that wait.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Retries {
    waiting: BTreeMap<Item, Waiting>,
    due: BTreeSet<(Duration, Item)>,
    /// The executions that failed, of attempts that were offered.
    offered: BTreeMap<Item, u64>,
}

impl Retries {
    /// When the next pause ends.
    pub(in crate::coordination) fn next_retry(&self, now: Duration) -> Option<Duration> {
        self.due.first().map(|(at, _)| *at).filter(|at| *at > now)
    }

    /// Whether anything waits to be tried again.
    pub(in crate::coordination) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether an item waits to be tried again, or is about to be.
    pub(in crate::coordination) fn concerns(&self, item: Item) -> bool {
        self.waiting.contains_key(&item) || self.offered.contains_key(&item)
    }

    fn insert(&mut self, item: Item, waiting: Waiting) {
        self.remove(item);
        self.due.insert((waiting.at, item));
        self.waiting.insert(item, waiting);
    }

    fn remove(&mut self, item: Item) -> Option<Waiting> {
        let waiting = self.waiting.remove(&item)?;
        self.due.remove(&(waiting.at, item));
        Some(waiting)
    }

    /// Looks at what has failed, and at what waits: whether it still may be tried again, and whether its time has come.
    pub(in crate::coordination) fn retry(
        &mut self,
        cx: &Context,
        executions: &mut Executions,
        checkpoints: &mut Checkpoints,
        agenda: &mut Agenda,
        out: &mut Outbox,
        is_gate_open: bool,
    ) {
        self.note_failures(cx, executions, checkpoints, out);
        if self.is_empty() {
            return;
        }
        let why = match cx.phase {
            Phase::Active => None,
            // They wait for the application to come back, like everything else.
            Phase::Away { .. } => return,
            Phase::Joining | Phase::Draining { .. } | Phase::Leaving(_) | Phase::Ended => {
                Some("the instance is leaving")
            }
        };
        if let Some(why) = why {
            self.drop_retries(checkpoints, out, why);
            return;
        }
        let items: Vec<_> = self.waiting.keys().copied().collect();
        for item in items {
            if let Some(why) = overtaken(cx, executions, agenda, item, is_gate_open) {
                self.drop_retry(checkpoints, out, item, why);
            }
        }
        if cx.is_registered() && !cx.view.is_resharding() {
            self.offer_retries(cx, agenda);
        }
    }

    /// Plans what is due. It is taken back before the next look at what fires, if it could not be started.
    fn offer_retries(&mut self, cx: &Context, agenda: &mut Agenda) {
        let now = cx.now;
        while let Some((at, item)) = self.due.first().copied().filter(|(at, _)| *at <= now.mono) {
            self.due.remove(&(at, item));
            if let Some(waiting) = self.waiting.remove(&item) {
                self.offered.insert(item, waiting.failed);
                agenda.plan(item, waiting.planned);
            }
        }
    }

    /// Takes back what was offered and has not been started, so that a fire can take its place.
    pub(in crate::coordination) fn take_back_retries(
        &mut self,
        cx: &Context,
        executions: &Executions,
        agenda: &mut Agenda,
    ) {
        let now = cx.now;
        let offered: Vec<_> = self.offered.iter().map(|(item, failed)| (*item, *failed)).collect();
        for (item, failed) in offered {
            let planned = agenda.planned(item).filter(|planned| planned.is_retry());
            if let Some(planned) = planned {
                agenda.withdraw(item);
                self.offered.remove(&item);
                self.insert(item, Waiting { planned, failed, at: now.mono });
            } else if executions.open.contains_key(&item) || !executions.has_open(item) {
                self.offered.remove(&item);
            }
        }
    }

    /// What was planned has met an execution of somebody else.
    pub(in crate::coordination) fn could_not_start(
        &mut self,
        cx: &Context,
        agenda: &mut Agenda,
        out: &mut Outbox,
        item: Item,
        planned: Planned,
    ) {
        if planned.is_retry() {
            self.offered.remove(&item);
            let why = "somebody else executes the item";
            out.push(Effect::Retry(item, RetryNews::Dropped { attempt: planned.attempt, why }));
        } else {
            agenda.miss(cx, out, item, planned.scheduled);
        }
    }

    /// Decides what becomes of executions that have failed.
    pub(in crate::coordination) fn note_failures(
        &mut self,
        cx: &Context,
        executions: &mut Executions,
        checkpoints: &mut Checkpoints,
        out: &mut Outbox,
    ) {
        let now = cx.now;
        let policy = cx.policy().retry;
        for (item, ended) in std::mem::take(&mut executions.ended) {
            if ended.ending == Ending::Success {
                checkpoints.deleted(item, ended.planned.scheduled);
            }
            let wanted = match (ended.ending, ended.cancelled) {
                (Ending::Failure, None) => policy.on.failure,
                (Ending::Failure, Some(CancelReason::Deadline)) => policy.on.deadline,
                (Ending::Failure, Some(_)) if mutant!(CancelledIsRetried) => true,
                (Ending::Success | Ending::Failure | Ending::Rejection, _) => false,
            };
            if !wanted || policy.attempts <= 1 {
                checkpoints.discard(item, ended.planned.scheduled);
                continue;
            }
            let attempt = ended.planned.attempt;
            if attempt >= policy.attempts && !mutant!(RetriedForEver) {
                checkpoints.discard(item, ended.planned.scheduled);
                out.push(Effect::Retry(item, RetryNews::GivenUp { attempts: attempt }));
                continue;
            }
            let pause = policy.pause_after(attempt);
            let planned = Planned { attempt: attempt.saturating_add(1), ..ended.planned };
            let waiting = Waiting { planned, failed: ended.number, at: now.mono.saturating_add(pause) };
            self.insert(item, waiting);
            let attempt = planned.attempt;
            out.push(Effect::Retry(item, RetryNews::Waits { attempt, of: policy.attempts, pause }));
        }
    }

    /// Nothing that waits is tried again.
    pub(in crate::coordination) fn drop_retries(
        &mut self,
        checkpoints: &mut Checkpoints,
        out: &mut Outbox,
        why: &'static str,
    ) {
        let items: Vec<_> = self.waiting.keys().copied().collect();
        for item in items {
            self.drop_retry(checkpoints, out, item, why);
        }
    }

    /// An operator wants nothing of this item to be executed now; gives what had waited.
    pub(in crate::coordination) fn cancel_retry(
        &mut self,
        executions: &Executions,
        checkpoints: &mut Checkpoints,
        out: &mut Outbox,
        item: Item,
    ) -> Option<Cancelled> {
        let failed = self.drop_retry(checkpoints, out, item, "an operator has cancelled it")?;
        Some(Cancelled { item, execution_id: executions.id(item, failed), was_waiting: true })
    }

    /// The items that wait to be tried again.
    pub(in crate::coordination) fn items_to_retry(&self) -> impl Iterator<Item = Item> + '_ {
        self.waiting.keys().copied()
    }

    fn drop_retry(
        &mut self,
        checkpoints: &mut Checkpoints,
        out: &mut Outbox,
        item: Item,
        why: &'static str,
    ) -> Option<u64> {
        let waiting = self.remove(item)?;
        let attempt = waiting.planned.attempt;
        checkpoints.discard(item, waiting.planned.scheduled);
        out.push(Effect::Retry(item, RetryNews::Dropped { attempt, why }));
        Some(waiting.failed)
    }
}

/// Why an item cannot be tried again; `None`: it can.
fn overtaken(
    cx: &Context,
    executions: &Executions,
    agenda: &Agenda,
    item: Item,
    is_gate_open: bool,
) -> Option<&'static str> {
    if agenda.is_planned(item) || executions.has_open(item) {
        return Some("another execution of the item takes its place");
    }
    if !cx.is_registered() {
        // Nothing is known while the registry is away.
        return None;
    }
    if cx.assigned.executable_item(item).is_none() && !mutant!(RetriedByFormerOwner) {
        return Some("the item is not ours any more, or is disabled");
    }
    if executions.is_busy(cx, agenda, item) {
        return Some("somebody else executes the item");
    }
    (!is_gate_open).then_some("the round of the once-listener is over")
}
