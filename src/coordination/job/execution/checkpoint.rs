//! How far is an execution? The application extends the deadline of an execution, and writes checkpoints.
//!
//! A *checkpoint* is the place from which another attempt can go on. It is in a node of the item under Sidekeeper's own
//! root (`/{namespace}-sidekeeper/{job}/checkpoints/{item}`), together with the instant of the execution. The instance
//! that takes the item over after a crash gets the checkpoint, and so does a retry. The transaction that records a
//! success deletes it. A crash or a last failure leaves it behind: its instant is not that of a later fire, so no later
//! execution gets it, and no instance has to delete it.
//!
//! One write is in flight, for all items with a new checkpoint; of several checkpoints of one item the latest counts.
//! The known content of the folder says whether a node is created or set; the folder is listed before the first write
//! of a session.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::contract::answer::{Answer, Refusal, Ticket};
use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::effect::Effect;
use crate::coordination::job::contract::plan::Planned;
use crate::coordination::job::contract::records::FoundCheckpoints;
use crate::coordination::job::contract::report::ProgressReport;
use crate::coordination::job::execution::limit::Limit;
use crate::coordination::job::execution::{Executions, State};
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::excerpt::Excerpt;
use crate::extension::checkpoint::Checkpoint;
use crate::job::Item;
use crate::mutants::mutant;
use crate::tree::{CommitError, Error, NodeKind, Operation, Transaction};

/// The pause before the folder is listed again after a failure.
const PAUSE: Duration = Duration::from_millis(200);

/// A checkpoint that is to be written, and the call that waits for it.
#[derive(Debug)]
struct Write {
    /// The number of the execution.
    number: u64,
    checkpoint: Checkpoint,
    ticket: Ticket,
    /// The execution's deadline, for the answer.
    deadline: Option<Timestamp>,
    cancelled: bool,
}

/// The checkpoints of one participant.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    /// The checkpoints for retries.
    latest: BTreeMap<Item, Checkpoint>,
    /// The items whose nodes exist, and the instant of each in milliseconds since 1970, if that is known.
    nodes: BTreeMap<Item, Option<i64>>,
    /// Whether every other node is known not to exist.
    listed: bool,
    listing: bool,
    /// The items with executions of a former process, which may have written checkpoints.
    restored: BTreeSet<Item>,
    retry_at: Option<Duration>,
    waiting: BTreeMap<Item, Write>,
    writing: BTreeMap<Item, Write>,
}

impl Checkpoints {
    /// When the folder may be listed again.
    pub(crate) fn next_retry(&self, now: Duration) -> Option<Duration> {
        self.retry_at.filter(|at| *at > now)
    }

    /// Executions of a former process of this sidecar go on: their checkpoints go on with them.
    pub(crate) fn restore(&mut self, items: impl Iterator<Item = Item>) {
        self.restored.extend(items);
    }

    /// The known content of the folder is wrong.
    pub(crate) fn doubt(&mut self) {
        self.nodes.clear();
        self.listed = false;
    }

    /// This instance does not retry the item for this instant.
    pub(crate) fn discard(&mut self, item: Item, scheduled: Timestamp) {
        if self.latest.get(&item).is_some_and(|latest| latest.is_for(scheduled)) {
            self.latest.remove(&item);
        }
    }

    /// An execution for this instant has succeeded, and its checkpoint is deleted.
    pub(crate) fn deleted(&mut self, item: Item, scheduled: Timestamp) {
        self.discard(item, scheduled);
        if self.is_of(item, scheduled) {
            self.nodes.remove(&item);
        }
    }

    /// Whether the item's node is known to be the checkpoint of this instant.
    pub(crate) fn is_of(&self, item: Item, scheduled: Timestamp) -> bool {
        let of = self.nodes.get(&item);
        of.is_some_and(|of| *of == Some(scheduled.as_millisecond()) || mutant!(CheckpointOfAnotherDeleted))
    }

    /// The checkpoint of a crashed execution was read.
    pub(crate) fn found(&mut self, item: Item, checkpoint: Option<&Checkpoint>) {
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

    /// The checkpoint for an execution that begins, if there is one of the same instant.
    pub(crate) fn take_along(&self, item: Item, scheduled: Timestamp) -> Option<Arc<[u8]>> {
        let found = self.latest.get(&item).filter(|found| found.is_for(scheduled))?;
        Some(Arc::clone(&found.data))
    }

    /// The place from which another process could go on with an open execution.
    pub(crate) fn reached(&self, item: Item, planned: Planned) -> Option<Arc<[u8]>> {
        let reached = self.latest.get(&item).filter(|reached| reached.is_for(planned.scheduled));
        reached.map(|reached| Arc::clone(&reached.data))
    }

    /// Puts the unwritten checkpoints back, unless a newer one waits.
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
    /// The application reports the progress of an execution.
    pub(crate) fn progress(
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
        let cancelled = execution.limit.cancelled().is_some();
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

    /// Writes the new checkpoints.
    pub(crate) fn write_checkpoints(&mut self, cx: &Context, executions: &Executions, out: &mut Outbox) {
        let (executions, out) = (executions, out);
        self.waiting.retain(|item, write| {
            let open = executions.open.get(item).filter(|open| open.number == write.number);
            let runs = open.is_some_and(|open| open.state == State::Running);
            if !runs {
                // The result came first, and says more.
                out.push(write.answer(true));
            }
            runs
        });
        let idle = self.waiting.is_empty() && self.restored.is_empty();
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
        // A late write must not overwrite the checkpoint of the item's next owner: it fails when this instance is
        // offline.
        let mut transaction = vec![Operation::check(cx.identity.paths.instance(&cx.identity.instance))];
        let mut size = 0;
        while size < cx.fire_bytes()
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
        if cx.view.running().contains(&item) {
            transaction.push(Operation::check(cx.identity.paths.item_running(item)));
        }
        let path = cx.identity.own_paths.checkpoint(item);
        transaction.push(match self.nodes.contains_key(&item) {
            true => Operation::set(path, checkpoint.write()),
            false => Operation::create(path, NodeKind::Persistent, checkpoint.write()),
        });
    }

    /// Has the folder listed.
    fn find_checkpoints(&mut self, cx: &Context, out: &mut Outbox) {
        let now = cx.now;
        let checkpoints = self;
        if !checkpoints.listing && checkpoints.retry_at.is_none_or(|at| now.mono >= at) {
            checkpoints.listing = true;
            // The instance reads its own checkpoints again, because a write of unknown outcome may have changed them.
            let known = checkpoints.latest.keys().chain(&checkpoints.restored).copied().collect();
            out.push(Effect::FindCheckpoints(known));
        }
    }

    /// The folder was listed, and the checkpoints of former processes were read.
    pub(crate) fn checkpoints_found(&mut self, cx: &Context, found: Result<FoundCheckpoints, String>) {
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
                    if checkpoints.restored.contains(&item) {
                        // A checkpoint that was written since then is newer.
                        checkpoints.latest.entry(item).or_insert(checkpoint);
                    }
                }
                checkpoints.restored.clear();
            }
            Err(_) => checkpoints.retry_at = Some(now.mono.saturating_add(PAUSE)),
        }
    }

    /// The checkpoints are recorded.
    pub(crate) fn checkpoints_written(&mut self, out: &mut Outbox) {
        let written = std::mem::take(&mut self.writing);
        out.extend(written.values().map(|write| write.answer(false)));
    }

    /// The write has failed, or its outcome is unknown; the checkpoints are written again while their executions run.
    pub(crate) fn checkpoints_failed(&mut self, out: &mut Outbox, error: &CommitError) {
        if matches!(error.error, Error::NoNode(_) | Error::NodeExists(_) | Error::OutcomeUnknown(_)) {
            self.doubt();
        }
        self.put_back(out);
    }

    /// The session is lost, and all executions are lost with it.
    pub(crate) fn forget_checkpoints(&mut self, executions: &Executions, out: &mut Outbox) {
        let lost = std::mem::take(self);
        for (item, write) in lost.waiting.into_iter().chain(lost.writing) {
            let execution_id = Excerpt::of(&executions.id(item, write.number));
            let refusal = Refusal::ExecutionOver { execution_id };
            out.push(Effect::Answer(write.ticket, Answer::Refused(refusal)));
        }
    }
}
