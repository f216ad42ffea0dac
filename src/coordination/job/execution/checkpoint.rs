//! How far is an execution? Its application extends the deadline, and writes down from where another attempt can go on.
//!
//! What it writes down, a *checkpoint*, is in a node of the item under our own root
//! (`/{namespace}-sidekeeper/{job}/checkpoints/{item}`), together with the instant for which the execution was started:
//! whoever takes the item over after a crash, for the same instant, gets it, and so does a further attempt of our own.
//! The transaction that ends an execution well deletes it. What is left behind otherwise is of another instant, and
//! nobody gets it.
//!
//! One write is in flight, of all items that have something new; of several checkpoints of one item the latest counts.
//! Nodes are created or set by what is known of the folder, which is listed before the first write of a session.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::contract::answer::{Answer, Refusal, Ticket};
use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::plan::Planned;
use crate::coordination::job::contract::records::{Checkpoint, FoundCheckpoints};
use crate::coordination::job::contract::report::ProgressReport;
use crate::coordination::job::execution::limit::Limit;
use crate::coordination::job::execution::state::{Executions, State};
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::excerpt::Excerpt;
use crate::job::Item;
use crate::mutants::mutant;
use crate::tree::{CommitError, Error, NodeKind, Operation, Transaction};

/// The pause before the folder is listed again after a failure.
const PAUSE: Duration = Duration::from_millis(200);

/// A checkpoint that is to be written, and who waits for that.
#[derive(Debug)]
struct Write {
    /// The execution.
    number: u64,
    checkpoint: Checkpoint,
    ticket: Ticket,
    /// What the caller is told of its deadline.
    deadline: Option<Timestamp>,
    cancelled: bool,
}

/// The checkpoints of one participant.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Checkpoints {
    /// What a further attempt at the item gets.
    latest: BTreeMap<Item, Checkpoint>,
    /// The items whose nodes are known to exist, and for which instant each is, in milliseconds since 1970, if that is known.
    nodes: BTreeMap<Item, Option<i64>>,
    /// Whether all others are known not to.
    listed: bool,
    listing: bool,
    /// Whose checkpoints a former process may have written.
    inherited: BTreeSet<Item>,
    retry_at: Option<Duration>,
    waiting: BTreeMap<Item, Write>,
    writing: BTreeMap<Item, Write>,
}

impl Checkpoints {
    /// When the folder may be listed again.
    pub(in crate::coordination) fn next_retry(&self, now: Duration) -> Option<Duration> {
        self.retry_at.filter(|at| *at > now)
    }

    /// Executions of these items go on that a former process has begun: what it has written goes with them.
    pub(in crate::coordination) fn inherit(&mut self, items: impl Iterator<Item = Item>) {
        self.inherited.extend(items);
    }

    /// What is known of the nodes is wrong.
    pub(in crate::coordination) fn doubt(&mut self) {
        self.nodes.clear();
        self.listed = false;
    }

    /// Nobody of ours tries an item again for this instant.
    pub(in crate::coordination) fn discard(&mut self, item: Item, scheduled: Timestamp) {
        if self.latest.get(&item).is_some_and(|latest| latest.is_for(scheduled)) {
            self.latest.remove(&item);
        }
    }

    /// An execution for this instant has ended well, and its checkpoint is deleted.
    pub(in crate::coordination) fn deleted(&mut self, item: Item, scheduled: Timestamp) {
        self.discard(item, scheduled);
        if self.is_of(item, scheduled) {
            self.nodes.remove(&item);
        }
    }

    /// Whether the item's node is known to be the checkpoint of this instant.
    pub(in crate::coordination) fn is_of(&self, item: Item, scheduled: Timestamp) -> bool {
        let of = self.nodes.get(&item);
        of.is_some_and(|of| *of == Some(scheduled.as_millisecond()) || mutant!(CheckpointOfAnotherDeleted))
    }

    /// What a crashed execution left.
    pub(in crate::coordination) fn found(&mut self, item: Item, checkpoint: Option<&Checkpoint>) {
        match checkpoint {
            Some(checkpoint) => {
                self.nodes.insert(item, Some(checkpoint.scheduled_ms));
                self.latest.insert(item, checkpoint.clone());
            }
            None => {
                self.latest.remove(&item);
            }
        }
    }

    /// What an execution that begins gets: what one for the same instant left.
    pub(in crate::coordination) fn take_along(&self, item: Item, scheduled: Timestamp) -> Option<Arc<[u8]>> {
        let found = self.latest.get(&item).filter(|found| found.is_for(scheduled))?;
        Some(Arc::clone(&found.data))
    }

    /// From where an execution that is open could go on in another process.
    pub(in crate::coordination) fn reached(&self, item: Item, planned: Planned) -> Option<Arc<[u8]>> {
        let reached = self.latest.get(&item).filter(|reached| reached.is_for(planned.scheduled));
        reached.map(|reached| Arc::clone(&reached.data))
    }

    /// Puts back what was not written, unless something newer waits.
    fn put_back(&mut self, out: &mut Outbox) {
        for (item, write) in std::mem::take(&mut self.writing) {
            match self.waiting.entry(item) {
                Entry::Occupied(_) => out.push(write.answer(true)),
                Entry::Vacant(place) => {
                    place.insert(write);
                }
            }
        }
    }
}

impl Write {
    fn answer(&self, superseded: bool) -> Effect {
        let (deadline, cancelled) = (self.deadline, self.cancelled);
        Effect::Answer(self.ticket, Answer::Progressed { deadline, cancelled, superseded })
    }
}

impl Checkpoints {
    /// The application says how far it is.
    pub(in crate::coordination) fn progress(
        &mut self,
        cx: &Context,
        executions: &mut Executions,
        out: &mut Outbox,
        ticket: Ticket,
        report: ProgressReport,
    ) {
        let now = cx.now;
        let ProgressReport { execution_id, extend_deadline, checkpoint } = report;
        let Some(number) = executions.number(&execution_id) else {
            let refusal = Refusal::UnknownProgress { execution_id: Excerpt::of(&execution_id) };
            out.push(Effect::Answer(ticket, Answer::Refused(refusal)));
            return;
        };
        let timeout = cx.policy().timeout.filter(|_| extend_deadline);
        let item = executions.by_number.get(&number).copied();
        let execution = item.and_then(|item| Some((item, executions.open.get_mut(&item)?)));
        let Some((item, execution)) = execution.filter(|(_, open)| open.state == State::Running) else {
            let refusal = Refusal::ExecutionOver { execution_id: Excerpt::of(&execution_id) };
            out.push(Effect::Answer(ticket, Answer::Refused(refusal)));
            return;
        };
        let cancelled = execution.limit.cancelled.is_some();
        if let Some(timeout) = timeout.filter(|_| !cancelled) {
            executions.deadlines.forget(number, execution.limit);
            execution.limit = Limit::until(Some(now.mono.saturating_add(timeout)));
            executions.deadlines.watch(number, execution.limit);
        }
        let remaining = execution.limit.remaining(now.mono).filter(|_| !cancelled);
        let deadline = remaining.and_then(|remaining| now.wall.checked_add(remaining).ok());
        let scheduled_ms = execution.planned.scheduled.as_millisecond();
        let Some(data) = checkpoint else {
            let answer = Answer::Progressed { deadline, cancelled, superseded: false };
            out.push(Effect::Answer(ticket, answer));
            return;
        };
        let checkpoint = Checkpoint { scheduled_ms, data };
        self.latest.insert(item, checkpoint.clone());
        let write = Write { number, checkpoint, ticket, deadline, cancelled };
        let older = self.waiting.insert(item, write);
        out.extend(older.map(|older| older.answer(true)));
    }

    /// Writes down what has come.
    pub(in crate::coordination) fn write_checkpoints(
        &mut self,
        cx: &Context,
        executions: &Executions,
        out: &mut Outbox,
    ) {
        let (executions, out) = (executions, out);
        self.waiting.retain(|item, write| {
            let open = executions.open.get(item).filter(|open| open.number == write.number);
            let runs = open.is_some_and(|open| open.state == State::Running);
            if !runs {
                // Its result says more.
                out.push(write.answer(true));
            }
            runs
        });
        let idle = self.waiting.is_empty() && self.inherited.is_empty();
        if idle || !cx.is_registered() {
            return;
        }
        if !self.listed {
            self.find_checkpoints(cx, out);
            return;
        }
        if self.waiting.is_empty() || !out.may_commit(cx, Purpose::Checkpoint) {
            return;
        }
        // A write that comes after our instance has gone must not overtake whoever has the item now.
        let mut transaction = vec![Operation::check(cx.identity.paths.instance(&cx.identity.instance))];
        let mut size = 0;
        while size < cx.transaction_bytes
            && let Some((item, write)) = self.waiting.pop_first()
        {
            let begin = transaction.len();
            self.write_checkpoint(cx, &mut transaction, item, &write.checkpoint);
            size += transaction.iter().skip(begin).map(Operation::wire_size).sum::<usize>();
            self.nodes.insert(item, Some(write.checkpoint.scheduled_ms));
            self.writing.insert(item, write);
        }
        out.commit(Purpose::Checkpoint, transaction);
    }

    fn write_checkpoint(
        &self,
        cx: &Context,
        transaction: &mut Transaction,
        item: Item,
        checkpoint: &Checkpoint,
    ) {
        let paths = &cx.identity.paths;
        if cx.view.running().contains(&item) {
            transaction.push(Operation::check(paths.item_running(item)));
        }
        transaction.push(match self.nodes.contains_key(&item) {
            true => Operation::set(paths.checkpoint(item), checkpoint.write()),
            false => Operation::create(paths.checkpoint(item), NodeKind::Persistent, checkpoint.write()),
        });
    }

    /// Has the folder listed.
    fn find_checkpoints(&mut self, cx: &Context, out: &mut Outbox) {
        let now = cx.now;
        let checkpoints = self;
        if !checkpoints.listing && checkpoints.retry_at.is_none_or(|at| now.mono >= at) {
            checkpoints.listing = true;
            // The instance reads its own checkpoints again, because an unknown outcome may have left another one there.
            let known = checkpoints.latest.keys().chain(&checkpoints.inherited).copied().collect();
            out.push(Effect::FindCheckpoints(known));
        }
    }

    /// The folder was listed, and what a former process may have written was read.
    pub(in crate::coordination) fn checkpoints_found(
        &mut self,
        cx: &Context,
        found: Result<FoundCheckpoints, String>,
    ) {
        let now = cx.now;
        let checkpoints = self;
        checkpoints.listing = false;
        match found {
            Ok(FoundCheckpoints { nodes, read }) => {
                checkpoints.nodes = nodes.into_iter().map(|item| (item, None)).collect();
                checkpoints.listed = true;
                checkpoints.retry_at = None;
                for (item, checkpoint) in read {
                    checkpoints.nodes.insert(item, Some(checkpoint.scheduled_ms));
                    if checkpoints.inherited.contains(&item) {
                        // What has come since then is newer.
                        checkpoints.latest.entry(item).or_insert(checkpoint);
                    }
                }
                checkpoints.inherited.clear();
            }
            Err(_) => checkpoints.retry_at = Some(now.mono.saturating_add(PAUSE)),
        }
    }

    /// The checkpoints are recorded.
    pub(in crate::coordination) fn checkpoints_written(&mut self, out: &mut Outbox) {
        let written = std::mem::take(&mut self.writing);
        out.extend(written.values().map(|write| write.answer(false)));
    }

    /// They are not, or nobody knows; they are tried again while their executions run.
    pub(in crate::coordination) fn checkpoints_failed(&mut self, out: &mut Outbox, error: &CommitError) {
        if matches!(error.error, Error::NoNode(_) | Error::NodeExists(_) | Error::OutcomeUnknown(_)) {
            self.doubt();
        }
        self.put_back(out);
    }

    /// The session is lost, and with it everything that was executed.
    pub(in crate::coordination) fn forget_checkpoints(&mut self, executions: &Executions, out: &mut Outbox) {
        let lost = std::mem::take(self);
        for (item, write) in lost.waiting.into_iter().chain(lost.writing) {
            let execution_id = Excerpt::of(&executions.id(item, write.number));
            let refusal = Refusal::ExecutionOver { execution_id };
            out.push(Effect::Answer(write.ticket, Answer::Refused(refusal)));
        }
    }
}
