//! What starts, what has ended? An execution's road: planned, its running node created, told to the application,
//! reported, its running node deleted, the report answered (protocol 6.1; P2, P3, P6).
//!
//! The running nodes of one fire are created in one transaction, and deleted in batches while one is in flight. Nothing
//! is told before its node exists; no node that somebody else holds is touched.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::elasticjob::task_id;
use crate::job::{FencingToken, Item, JobConfiguration};
use crate::tree::{CommitError, Error, NodeKind, Operation, OperationResult, Transaction};

use super::effect::{
    Answer, CancelReason, CompletionStatus, Effect, Event, Execute, Purpose, Refusal, Source,
};
use super::fire::Planned;
use super::input::{ExecutionResult, Now, Ticket};
use super::participant::{Participant, Phase};
use super::sharding::TRANSACTION_BYTES_MAX;

/// How often the view is read again because of running nodes in the way, at most.
const INVESTIGATION_PAUSE: Duration = Duration::from_secs(10);
/// Lost executions whose late reports are still told apart from recorded ones.
const LOST_REMEMBERED: usize = 1024;

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// The application executes it.
    Running,
    /// The application has reported; the running node is to be deleted.
    Reported,
    /// The session was lost meanwhile; the application was told to stop, and has not reported.
    Lost,
}

#[derive(Debug)]
struct Execution {
    number: u64,
    state: State,
    /// Reports that wait for it: the ticket and the place in its answer.
    waiting: Vec<(Ticket, usize)>,
}

/// An execution whose running node is being created.
#[derive(Debug, Clone, Copy)]
struct Starting {
    planned: Planned,
    /// The index of the node's creation in the transaction.
    index: usize,
}

#[derive(Debug)]
struct Report {
    records: Vec<(String, CompletionStatus)>,
    missing: usize,
}

/// The executions of one participant.
#[derive(Debug)]
pub(super) struct Executions {
    prefix: String,
    last_number: u64,
    open: BTreeMap<Item, Execution>,
    by_number: BTreeMap<u64, Item>,
    lost: BTreeSet<u64>,
    reports: BTreeMap<Ticket, Report>,
    /// What the start in flight creates.
    starting: BTreeMap<Item, Starting>,
    /// What a start of unknown outcome may have created; the next snapshot tells.
    unresolved: BTreeMap<Item, Starting>,
    /// Reported, and not being deleted yet.
    reported: Vec<Item>,
    /// What the completion in flight deletes.
    completing: Vec<Item>,
    suspicious: bool,
    investigated: Option<Duration>,
}

impl Executions {
    pub(super) fn new(prefix: String) -> Self {
        Self {
            prefix,
            last_number: 0,
            open: BTreeMap::new(),
            by_number: BTreeMap::new(),
            lost: BTreeSet::new(),
            reports: BTreeMap::new(),
            starting: BTreeMap::new(),
            unresolved: BTreeMap::new(),
            reported: Vec::new(),
            completing: Vec::new(),
            suspicious: false,
            investigated: None,
        }
    }

    /// Whether an execution of the item is starting or open.
    pub(super) fn is_busy(&self, item: Item) -> bool {
        self.open.contains_key(&item)
            || self.starting.contains_key(&item)
            || self.unresolved.contains_key(&item)
    }

    /// The items with executions that are starting or open.
    pub(super) fn busy_items(&self) -> impl Iterator<Item = Item> + '_ {
        self.open.keys().chain(self.starting.keys()).chain(self.unresolved.keys()).copied()
    }

    /// Whether nothing is starting or open.
    pub(super) fn is_idle(&self) -> bool {
        self.open.is_empty() && self.starting.is_empty() && self.unresolved.is_empty()
    }

    /// The items whose running nodes are ours.
    pub(super) fn running_items(&self) -> impl Iterator<Item = Item> + '_ {
        self.open.iter().filter(|(_, open)| open.state != State::Lost).map(|(item, _)| *item)
    }

    /// Opens an execution, and gives its id.
    fn open(&mut self, item: Item) -> String {
        self.last_number += 1;
        let number = self.last_number;
        self.open.insert(item, Execution { number, state: State::Running, waiting: Vec::new() });
        self.by_number.insert(number, item);
        self.id(number)
    }

    fn id(&self, number: u64) -> String {
        format!("{}-{number}", self.prefix)
    }

    /// The number in an execution id of ours that was given out.
    fn number(&self, id: &str) -> Option<u64> {
        let number = id.strip_prefix(&*self.prefix)?.strip_prefix('-')?.parse().ok()?;
        (1..=self.last_number).contains(&number).then_some(number)
    }

    fn settle(&mut self, item: Item, status: CompletionStatus, effects: &mut Vec<Effect>) {
        let Some(execution) = self.open.remove(&item) else { return };
        self.by_number.remove(&execution.number);
        for (ticket, place) in execution.waiting {
            let Some(report) = self.reports.get_mut(&ticket) else { continue };
            if let Some((_, record)) = report.records.get_mut(place) {
                *record = status;
            }
            report.missing = report.missing.saturating_sub(1);
            if report.missing == 0
                && let Some(report) = self.reports.remove(&ticket)
            {
                effects.push(Effect::Answer(ticket, Answer::Recorded(report.records)));
            }
        }
    }
}

impl Participant {
    /// Starts what is planned.
    pub(super) fn start(&mut self, now: Now) {
        self.resolve(now);
        if self.fires.planned.is_empty() || self.phase != Phase::Active {
            return;
        }
        let ready = self.is_registered() && !self.view.is_resharding() && self.is_ledger_read();
        if !ready || !self.may_commit(now, Purpose::Start) {
            return;
        }
        let Some(settings) = &self.settings else { return };
        if settings.parameters.is_err() {
            self.fires.planned.clear();
            return;
        }
        let configuration = Arc::clone(&settings.configuration);
        let (batch, transaction) = self.start_batch(&configuration);
        if batch.is_empty() {
            return;
        }
        self.executions.starting = batch;
        if transaction.is_empty() {
            // Nothing to be written: executions are not monitored.
            self.started(now, &[]);
        } else {
            self.commit(Purpose::Start, transaction);
        }
    }

    fn start_batch(&mut self, configuration: &JobConfiguration) -> (BTreeMap<Item, Starting>, Transaction) {
        let kind = if configuration.failover { NodeKind::Persistent } else { NodeKind::Ephemeral };
        let instance = self.identity.instance.clone();
        let mut transaction = Transaction::new();
        let mut batch = BTreeMap::new();
        let mut size = 0;
        if let (true, Some(version)) = (configuration.monitor_execution, self.view.sharding_version()) {
            // Fails if the items were divided anew, or are about to be, since we looked.
            let path = self.identity.paths.leader_sharding();
            transaction.push(Operation::Check { path, version: Some(version) });
        }
        while size < TRANSACTION_BYTES_MAX
            && let Some((item, planned)) = self.fires.planned.pop_first()
        {
            if self.told.executable_item(item).is_none() {
                continue;
            }
            if self.is_busy(item) {
                self.missed(item, planned.scheduled);
                continue;
            }
            let before = transaction.len();
            if self.view.misfired().contains(&item) && planned.source == Source::Misfire {
                transaction.push(Operation::delete(self.identity.paths.item_misfire(item)));
            }
            let index = transaction.len();
            if configuration.monitor_execution {
                transaction.push(Operation::create(
                    self.identity.paths.item_running(item),
                    kind,
                    instance.as_str(),
                ));
            }
            transaction.extend(self.ledger_operation(item, planned.scheduled));
            size += transaction.iter().skip(before).map(Operation::wire_size).sum::<usize>();
            batch.insert(item, Starting { planned, index });
        }
        (batch, transaction)
    }

    /// The running nodes exist: tell the application.
    pub(super) fn started(&mut self, now: Now, results: &[OperationResult]) {
        let token = |result: &OperationResult| match result {
            OperationResult::Created { stat, .. } => Some(FencingToken::from(stat.created)),
            OperationResult::Set { .. } | OperationResult::Deleted | OperationResult::Checked => None,
        };
        self.begin(now, &results.iter().map(token).collect::<Vec<_>>());
    }

    /// Tells what is starting, with the token at each one's index, or else the assignment's.
    fn begin(&mut self, now: Now, tokens: &[Option<FencingToken>]) {
        let starting = std::mem::take(&mut self.executions.starting);
        let Some(settings) = self.settings.clone() else { return };
        let items: Vec<_> = starting.keys().copied().collect();
        let task_id: Arc<str> = task_id::build(&self.identity.job, &items, &self.identity.instance).into();
        for (item, Starting { planned, index }) in starting {
            let assigned = || self.told.executable_item(item).map(|assigned| assigned.token);
            let Some(token) = tokens.get(index).copied().flatten().or_else(assigned) else { continue };
            let execution_id = self.executions.open(item);
            self.ledger.written(item, planned.scheduled);
            self.tell_event(Event::Execute(Execute {
                execution_id,
                item,
                parameter: settings.parameter(item).map(str::to_owned),
                configuration: Arc::clone(&settings.configuration),
                task_id: Arc::clone(&task_id),
                source: planned.source,
                scheduled: planned.scheduled,
                fired: now.wall,
                token,
            }));
        }
    }

    /// Nothing was started, or nobody knows: plan it again. What has become of it shows in the view.
    pub(super) fn start_failed(&mut self, error: &CommitError, unknown: bool) {
        let starting = std::mem::take(&mut self.executions.starting);
        self.ledger.doubt();
        if unknown {
            self.executions.unresolved = starting;
            return;
        }
        for (item, Starting { planned, index }) in starting {
            let met_running = error.index == Some(index) && matches!(error.error, Error::NodeExists(_));
            if met_running {
                self.missed(item, planned.scheduled);
            } else {
                self.fires.planned.entry(item).or_insert(planned);
            }
        }
    }

    /// Looks what became of a start of unknown outcome: nodes with our id are ours, and have not been told yet.
    fn resolve(&mut self, now: Now) {
        if self.executions.unresolved.is_empty() || !self.is_registered() {
            return;
        }
        let mut results = Vec::new();
        for (item, mut starting) in std::mem::take(&mut self.executions.unresolved) {
            let running = self.view.item(item).and_then(|view| view.running.as_ref());
            let ours = running.filter(|running| running.owner.as_ref() == Some(&self.identity.instance));
            if let Some(token) = ours.and_then(|running| running.token) {
                starting.index = results.len();
                results.push(token);
                self.executions.starting.insert(item, starting);
            } else {
                self.fires.planned.entry(item).or_insert(starting.planned);
            }
        }
        self.begin(now, &results.into_iter().map(Some).collect::<Vec<_>>());
    }

    /// Takes a report of results.
    pub(super) fn report(&mut self, ticket: Ticket, results: &[ExecutionResult]) {
        let numbers: Option<Vec<_>> =
            results.iter().map(|result| self.executions.number(&result.execution_id)).collect();
        let Some(numbers) = numbers else {
            let unknown = results
                .iter()
                .enumerate()
                .find(|(_, result)| self.executions.number(&result.execution_id).is_none());
            if let Some((index, result)) = unknown {
                let execution_id = result.execution_id.clone();
                let refusal = Refusal::UnknownExecution { index, execution_id };
                self.effects.push(Effect::Answer(ticket, Answer::Refused(refusal)));
            }
            return;
        };
        let mut records = Vec::with_capacity(results.len());
        let mut missing = 0;
        let mut lost = Vec::new();
        for (place, (result, number)) in results.iter().zip(numbers).enumerate() {
            let executions = &mut self.executions;
            let item = executions.by_number.get(&number).copied();
            let execution = item.and_then(|item| executions.open.get_mut(&item));
            let status = match (item, execution) {
                (Some(item), Some(execution)) if execution.state == State::Lost => {
                    lost.push(item);
                    CompletionStatus::LeaseLost
                }
                (Some(item), Some(execution)) => {
                    if execution.state == State::Running {
                        execution.state = State::Reported;
                        executions.reported.push(item);
                    }
                    execution.waiting.push((ticket, place));
                    missing += 1;
                    CompletionStatus::Recorded
                }
                (_, _) if executions.lost.contains(&number) => CompletionStatus::LeaseLost,
                (_, _) => CompletionStatus::AlreadyRecorded,
            };
            records.push((result.execution_id.clone(), status));
        }
        for item in lost {
            self.executions.settle(item, CompletionStatus::LeaseLost, &mut self.effects);
        }
        if missing == 0 {
            self.effects.push(Effect::Answer(ticket, Answer::Recorded(records)));
        } else {
            self.executions.reports.insert(ticket, Report { records, missing });
        }
    }

    /// Deletes the running nodes of what was reported, in one batch while another is in flight.
    pub(super) fn complete(&mut self, now: Now) {
        let leftovers = self.leftovers();
        if self.executions.reported.is_empty() && leftovers.is_empty() {
            return;
        }
        if !self.may_commit(now, Purpose::Complete) || matches!(self.phase, Phase::Leaving(_)) {
            return;
        }
        let mut transaction = Transaction::new();
        let mut size = 0;
        let mut rest = Vec::new();
        for item in std::mem::take(&mut self.executions.reported) {
            if size >= TRANSACTION_BYTES_MAX {
                rest.push(item);
            } else if self.view.running().contains(&item) {
                let operation = Operation::delete(self.identity.paths.item_running(item));
                size += operation.wire_size();
                transaction.push(operation);
                self.executions.completing.push(item);
            } else {
                self.executions.settle(item, CompletionStatus::Recorded, &mut self.effects);
            }
        }
        self.executions.reported = rest;
        for item in leftovers {
            transaction.push(Operation::delete(self.identity.paths.item_running(item)));
        }
        if !transaction.is_empty() {
            self.commit(Purpose::Complete, transaction);
        }
    }

    /// The running nodes are gone: answer the reports.
    pub(super) fn completed(&mut self) {
        for item in std::mem::take(&mut self.executions.completing) {
            self.executions.settle(item, CompletionStatus::Recorded, &mut self.effects);
        }
    }

    /// Some node was gone already, or the outcome is unknown: look again, one by one if need be.
    pub(super) fn complete_failed(&mut self, error: &CommitError) {
        let completing = std::mem::take(&mut self.executions.completing);
        let gone = error.index.filter(|_| matches!(error.error, Error::NoNode(_)));
        for (index, item) in completing.into_iter().enumerate() {
            if gone == Some(index) {
                self.executions.settle(item, CompletionStatus::Recorded, &mut self.effects);
            } else {
                self.executions.reported.push(item);
            }
        }
    }

    /// Running nodes of our items that nobody will delete: with our id, while we execute nothing there (what a lost
    /// session or an unknown outcome left), or with that of an instance that is not online (H4).
    fn leftovers(&self) -> Vec<Item> {
        if !self.is_registered() || self.pending.is_in_flight(Purpose::Start) {
            return Vec::new();
        }
        let mine = |item: &Item| self.told.executable_item(*item).is_some();
        let ours = self.view.running_of(&self.identity.instance);
        let orphans = self.view.running_of_nobody().filter(mine);
        ours.chain(orphans).filter(|item| !self.executions.is_busy(*item)).collect()
    }

    /// Notes that a running node is in the way. If nobody knows whose it is, the view is read again, which tells: one
    /// that was left behind must not block its item for good (H4).
    pub(super) fn suspect(&mut self, item: Item) {
        let running = self.view.item(item).and_then(|view| view.running.as_ref());
        let unknown = running.is_some_and(|running| running.owner.is_none());
        if unknown && !self.executions.is_busy(item) {
            self.executions.suspicious = true;
        }
    }

    /// Has the view read again if a running node is in the way that nobody knows.
    pub(super) fn investigate(&mut self, now: Now) {
        let executions = &mut self.executions;
        let recent =
            executions.investigated.is_some_and(|at| now.mono < at.saturating_add(INVESTIGATION_PAUSE));
        if std::mem::take(&mut executions.suspicious) && !recent {
            executions.investigated = Some(now.mono);
            self.effects.push(Effect::Refresh);
        }
    }

    /// Tells the application to stop everything; what it still reports is too late.
    pub(super) fn cancel_executions(&mut self, reason: CancelReason) {
        let lost = reason == CancelReason::LeaseLost;
        if lost {
            self.executions.starting.clear();
            self.executions.unresolved.clear();
            self.executions.completing.clear();
            for item in std::mem::take(&mut self.executions.reported) {
                self.executions.settle(item, CompletionStatus::LeaseLost, &mut self.effects);
            }
        }
        let open: Vec<_> = self.executions.open.iter().map(|(item, open)| (*item, open.number)).collect();
        for (item, number) in open {
            let Some(execution) = self.executions.open.get_mut(&item) else { continue };
            match execution.state {
                State::Reported if lost => {
                    self.executions.settle(item, CompletionStatus::LeaseLost, &mut self.effects);
                }
                State::Running => {
                    if lost {
                        execution.state = State::Lost;
                        self.executions.lost.insert(number);
                        if self.executions.lost.len() > LOST_REMEMBERED {
                            self.executions.lost.pop_first();
                        }
                    }
                    let execution_id = self.executions.id(number);
                    self.tell_event(Event::Cancel { execution_id, item, reason });
                }
                State::Reported | State::Lost => {}
            }
        }
    }
}
