//! Is a failed execution retried? (`sidekeeper.retry-max-attempts`, `-backoff`, `-backoff-max`, `-on`.)
//!
//! A retry is an execution like any other: a new id, a new running node, a higher token. It keeps the cause and the
//! instant of the first attempt. Between two attempts the item is free: no node in the registry says that a retry will
//! come (P6). So a fire, a trigger or another owner takes the place of the retry: an offered retry is withdrawn from
//! the agenda at each step until it is started, and every other plan finds the item free.
//!
//! Retries are best effort: they are in memory only, and end when this instance loses the item or its session, and at a
//! drain. Each dropped retry is reported. Cancelled and rejected executions are not retried. An interrupted one is retried
//! as a failed one, unless it fails over (see `completion.rs`).
//!
//! In a job whose instances wait for each other (see `once/round.rs`), the attempts belong to
//! their round.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::coordination::job::agenda::Agenda;
use crate::coordination::job::contract::effect::{Effect, RetryNews};
use crate::coordination::job::contract::event::CancelReason;
use crate::coordination::job::contract::plan::Planned;
use crate::coordination::job::contract::report::Ending;
use crate::coordination::job::execution::Executions;
use crate::coordination::job::execution::checkpoint::Checkpoints;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Phase;
use crate::job::{FencingToken, Item};
use crate::mutants::mutant;

/// Why a retry is dropped that met an execution of another instance.
pub(crate) const BUSY_ELSEWHERE: &str = "another instance executes the item";

/// An execution that has failed.
#[derive(Debug, Clone, Copy)]
struct Failed {
    /// Its number.
    number: u64,
    /// The transaction that created its running node; `None`: it had none.
    node: Option<FencingToken>,
}

/// A retry that waits for its time.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    /// The planned retry.
    planned: Planned,
    /// The failed execution.
    failed: Failed,
    /// When it may begin; monotonic.
    at: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct Retries {
    waiting: BTreeMap<Item, Waiting>,
    due: BTreeSet<(Duration, Item)>,
    /// The failed executions whose retries are offered.
    offered: BTreeMap<Item, Failed>,
}

impl Retries {
    /// When the next pause ends.
    pub(crate) fn next_retry(&self, now: Duration) -> Option<Duration> {
        self.due.first().map(|(at, _)| *at).filter(|at| *at > now)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether a retry of the item waits or is offered.
    pub(crate) fn concerns(&self, item: Item) -> bool {
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

    /// Decides about failed executions, and drops or offers the waiting retries.
    pub(crate) fn retry(
        &mut self,
        cx: &Context,
        executions: &mut Executions,
        checkpoints: &mut Checkpoints,
        agenda: &mut Agenda,
        out: &mut Outbox,
        is_barrier_open: bool,
    ) {
        self.record_failures(cx, executions, checkpoints, out);
        if self.is_empty() {
            return;
        }
        // Retries wait until the application has reattached, like all executions.
        if cx.phase.is_detached() {
            return;
        }
        if cx.phase != Phase::Active {
            self.drop_retries(checkpoints, out, "the instance is leaving");
            return;
        }
        let items: Vec<_> = self.waiting.keys().copied().collect();
        for item in items {
            executions.suspect(cx, item);
            if let Some(why) = overtaken(cx, executions, agenda, item, is_barrier_open) {
                self.drop_retry(checkpoints, out, item, why);
            }
        }
        if cx.is_registered() && !cx.view.is_resharding() {
            self.offer_retries(cx, executions, agenda);
        }
    }

    /// Offers the retries whose time has come and whose items are free. An offered retry is withdrawn before the fires
    /// of the next step, if it was not started.
    fn offer_retries(&mut self, cx: &Context, executions: &Executions, agenda: &mut Agenda) {
        let due = self.due.iter().take_while(|(at, _)| *at <= cx.now.mono).map(|(_, item)| *item);
        for item in due.collect::<Vec<_>>() {
            if executions.is_busy(cx, agenda, item) {
                continue;
            }
            if let Some(waiting) = self.remove(item) {
                self.offered.insert(item, waiting.failed);
                agenda.plan(item, waiting.planned);
            }
        }
    }

    /// Withdraws the offered retries that were not started, so that a fire can take their place.
    pub(crate) fn take_back_retries(&mut self, cx: &Context, executions: &Executions, agenda: &mut Agenda) {
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

    /// The planned execution cannot begin: a retry is dropped because of `why`, and a fire is missed.
    pub(crate) fn could_not_start(
        &mut self,
        cx: &Context,
        agenda: &mut Agenda,
        out: &mut Outbox,
        item: Item,
        planned: Planned,
        why: &'static str,
    ) {
        if planned.is_retry() {
            self.offered.remove(&item);
            out.push(Effect::Retry(item, RetryNews::Dropped { attempt: planned.attempt, why }));
        } else {
            agenda.miss(cx, out, item, planned.scheduled);
        }
    }

    /// Decides whether failed executions are retried.
    pub(crate) fn record_failures(
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
                (Ending::Failure | Ending::Interruption, None) => policy.on.failure,
                (Ending::Failure | Ending::Interruption, Some(CancelReason::Deadline)) => policy.on.deadline,
                (Ending::Failure, Some(_)) if mutant!(CancelledIsRetried) => true,
                (Ending::Success | Ending::Failure | Ending::Rejection | Ending::Interruption, _) => false,
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
            let failed = Failed { number: ended.number, node: ended.node };
            let waiting = Waiting { planned, failed, at: now.mono.saturating_add(pause) };
            self.insert(item, waiting);
            let attempt = planned.attempt;
            out.push(Effect::Retry(item, RetryNews::Waits { attempt, of: policy.attempts, pause }));
        }
    }

    /// Drops all waiting retries.
    pub(crate) fn drop_retries(
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

    /// An operator cancels the retry of this item.
    pub(crate) fn cancel_retry(&mut self, checkpoints: &mut Checkpoints, out: &mut Outbox, item: Item) {
        self.drop_retry(checkpoints, out, item, "an operator has cancelled it");
    }

    /// The items with waiting retries, and of the attempt that failed its number and the transaction that created its
    /// running node.
    pub(super) fn failed_attempts(&self) -> impl Iterator<Item = (Item, u64, Option<FencingToken>)> + '_ {
        let attempt =
            |(item, waiting): (&Item, &Waiting)| (*item, waiting.failed.number, waiting.failed.node);
        self.waiting.iter().map(attempt)
    }

    fn drop_retry(&mut self, checkpoints: &mut Checkpoints, out: &mut Outbox, item: Item, why: &'static str) {
        let Some(waiting) = self.remove(item) else { return };
        let attempt = waiting.planned.attempt;
        checkpoints.discard(item, waiting.planned.scheduled);
        out.push(Effect::Retry(item, RetryNews::Dropped { attempt, why }));
    }
}

/// The reason for which the item cannot be retried; `None`: it can.
fn overtaken(
    cx: &Context,
    executions: &Executions,
    agenda: &Agenda,
    item: Item,
    is_barrier_open: bool,
) -> Option<&'static str> {
    if agenda.is_planned(item) || executions.has_open(item) {
        return Some("another execution of the item takes its place");
    }
    if !cx.is_registered() {
        // The item's state is not known while the session is suspended.
        return None;
    }
    if cx.assigned.executable_item(item).is_none() && !mutant!(RetriedByFormerOwner) {
        return Some("this instance does not own the item any more, or the item is disabled");
    }
    // A start of this retry can take effect after its outcome was unknown: nothing executes the item, and its running
    // node is deleted as soon as its owner was read.
    let left = executions.may_be_left(cx, item) && !mutant!(LateRetryDropped);
    if executions.is_busy(cx, agenda, item) && !left {
        return Some("another execution of the item takes its place");
    }
    (!is_barrier_open).then_some("the round of the once-listener is over")
}
