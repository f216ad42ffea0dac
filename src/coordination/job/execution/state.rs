//! What starts? An execution is planned, its running node created, and the application told (protocol 6.1; P2, P3). How
//! it ends is in [`crate::coordination::job::execution::completion`].
//!
//! The running nodes of one fire are created in one transaction. Nothing is told before its node exists; no node that
//! somebody else holds is touched.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::job::agenda::Awaited;
use crate::coordination::job::contract::answer::{CompletionStatus, Ticket};
use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::event::{CancelReason, Event, Execute};
use crate::coordination::job::contract::plan::{Planned, Source};
use crate::coordination::job::contract::records::LedgerNode;
use crate::coordination::job::execution::limit::{Deadlines, Limit};
use crate::coordination::job::execution::retry::{Ended, Ending};
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::participant::Participant;
use crate::elasticjob::task_id;
use crate::job::{FencingToken, Item, JobConfiguration};
use crate::mutants::mutant;
use crate::tree::{CommitError, Error, NodeKind, Operation, OperationResult, Transaction};

/// Lost executions whose late reports are still told apart from recorded ones.
const LOST_REMEMBERED: usize = 1024;

/// What stands before the item in an execution's id.
const ITEM_SEPARATOR: char = '.';

/// The item that an execution id of a sidecar names.
pub(in crate::coordination) fn item_of(execution_id: &str) -> Option<Item> {
    let (_, item) = execution_id.rsplit_once(ITEM_SEPARATOR)?;
    item.parse().ok().map(Item)
}

#[derive(Debug, PartialEq, Eq)]
pub(in crate::coordination) enum State {
    /// The application executes it.
    Running,
    /// The application has reported; the running node is to be deleted.
    Reported,
    /// The session was lost meanwhile; the application was told to stop, and has not reported.
    Lost,
}

#[derive(Debug)]
pub(in crate::coordination) struct Execution {
    pub(in crate::coordination) number: u64,
    pub(in crate::coordination) state: State,
    /// It was taken over from a crashed instance, so the nodes that say so go with its running node.
    pub(in crate::coordination) taken_over: bool,
    pub(in crate::coordination) planned: Planned,
    /// The view's revision that showed its running node.
    pub(in crate::coordination) running_seen: Option<u64>,
    /// How it ended, as the application reported.
    pub(in crate::coordination) ending: Option<Ending>,
    /// Until when it may go on.
    pub(in crate::coordination) limit: Limit,
    /// What the application was told, for a stream that comes after this one.
    pub(in crate::coordination) told: Option<Box<Execute>>,
    /// Reports that wait for it: the ticket and the place in its answer.
    pub(in crate::coordination) waiting: Vec<(Ticket, usize)>,
}

/// An execution whose running node is being created.
#[derive(Debug, Clone, Copy)]
struct Starting {
    planned: Planned,
    /// The index of the node's creation in the transaction.
    index: usize,
    /// What the transaction makes of the item's node in the ledger.
    entry: Option<LedgerNode>,
}

#[derive(Debug)]
pub(in crate::coordination) struct Report {
    pub(in crate::coordination) records: Vec<(String, CompletionStatus)>,
    pub(in crate::coordination) missing: usize,
}

/// The executions of one participant.
#[derive(Debug)]
pub(in crate::coordination) struct Executions {
    pub(in crate::coordination) prefix: String,
    pub(in crate::coordination) last_number: u64,
    pub(in crate::coordination) open: BTreeMap<Item, Execution>,
    pub(in crate::coordination) by_number: BTreeMap<u64, Item>,
    pub(in crate::coordination) deadlines: Deadlines,
    pub(in crate::coordination) lost: BTreeSet<u64>,
    pub(in crate::coordination) reports: BTreeMap<Ticket, Report>,
    /// What was recorded in this step.
    pub(in crate::coordination) ended: Vec<(Item, Ended)>,
    /// What the start in flight creates.
    starting: BTreeMap<Item, Starting>,
    /// What a start of unknown outcome may have created; the next snapshot tells.
    unresolved: BTreeMap<Item, Starting>,
    /// Reported, and not being deleted yet.
    pub(in crate::coordination) reported: Vec<Item>,
    /// What the completion in flight deletes: the item, and where its running node is in the transaction.
    pub(in crate::coordination) completing: Vec<(Item, Option<usize>)>,
    /// The highest token told for each item. Executions that are not monitored have the assignment's, which is older
    /// than those of executions that were monitored before.
    tokens: BTreeMap<Item, FencingToken>,
    /// The ids of executions that a former process has told, in both directions. As many as it had open.
    inherited: (BTreeMap<u64, String>, BTreeMap<String, u64>),
    pub(in crate::coordination) suspicious: bool,
    pub(in crate::coordination) investigated: Option<Duration>,
}

impl Executions {
    pub(in crate::coordination) fn new(prefix: String) -> Self {
        Self {
            prefix,
            last_number: 0,
            open: BTreeMap::new(),
            by_number: BTreeMap::new(),
            deadlines: Deadlines::default(),
            lost: BTreeSet::new(),
            reports: BTreeMap::new(),
            ended: Vec::new(),
            starting: BTreeMap::new(),
            unresolved: BTreeMap::new(),
            reported: Vec::new(),
            completing: Vec::new(),
            tokens: BTreeMap::new(),
            inherited: Default::default(),
            suspicious: false,
            investigated: None,
        }
    }

    /// Whether an execution of the item is starting or open.
    pub(in crate::coordination) fn has_open(&self, item: Item) -> bool {
        self.open.contains_key(&item)
            || self.starting.contains_key(&item)
            || self.unresolved.contains_key(&item)
    }

    /// Whether an execution of the item may not begin because one has not ended.
    pub(in crate::coordination) fn is_busy(
        &self,
        cx: &Context,
        awaited: &Awaited,
        item: Item,
    ) -> bool {
        self.has_open(item)
            || cx.view.running().contains(&item)
            || cx.is_taken_over(item)
            || awaited.comes_first(item, cx.now.mono)
    }

    /// Whether an execution of the item is starting, so that the application has not been told of it.
    pub(in crate::coordination) fn is_starting(&self, item: Item) -> bool {
        self.what_starts(item).is_some()
    }

    /// What is starting of an item.
    pub(in crate::coordination) fn what_starts(&self, item: Item) -> Option<Planned> {
        let starting = self.starting.get(&item).or_else(|| self.unresolved.get(&item));
        starting.map(|starting| starting.planned)
    }

    /// The items with executions that are starting or open.
    pub(in crate::coordination) fn busy_items(&self) -> impl Iterator<Item = Item> + '_ {
        self.open.keys().chain(self.starting.keys()).chain(self.unresolved.keys()).copied()
    }

    /// Whether nothing is starting or open.
    pub(in crate::coordination) fn is_idle(&self) -> bool {
        self.open.is_empty() && self.starting.is_empty() && self.unresolved.is_empty()
    }

    /// Whether what is being started includes such an execution.
    pub(in crate::coordination) fn starts(&self, what: impl Fn(&Planned) -> bool) -> bool {
        self.starting.values().chain(self.unresolved.values()).any(|starting| what(&starting.planned))
    }

    /// Opens an execution, and gives its id.
    pub(in crate::coordination) fn open(&mut self, item: Item, planned: Planned, limit: Limit) -> String {
        self.last_number += 1;
        let number = self.last_number;
        let taken_over = planned.is_first_of(Source::Failover);
        let (state, ending, told, waiting) = (State::Running, None, None, Vec::new());
        let running_seen = None;
        let execution =
            Execution { number, state, taken_over, planned, running_seen, ending, limit, told, waiting };
        self.open.insert(item, execution);
        self.deadlines.watch(number, limit);
        self.by_number.insert(number, item);
        self.id(item, number)
    }

    /// The id of an execution. It says which item, for the next process of this sidecar.
    pub(in crate::coordination) fn id(&self, item: Item, number: u64) -> String {
        let inherited = self.inherited.0.get(&number).cloned();
        inherited.unwrap_or_else(|| format!("{}-{number}{ITEM_SEPARATOR}{item}", self.prefix))
    }

    /// Gives an execution the id that a former process has told.
    pub(in crate::coordination) fn call(&mut self, number: u64, id: String) {
        self.inherited.0.insert(number, id.clone());
        self.inherited.1.insert(id, number);
    }

    /// Notes the highest token told for an item.
    pub(in crate::coordination) fn raise_token(&mut self, item: Item, token: FencingToken) {
        let highest = self.tokens.entry(item).or_insert(token);
        *highest = token.max(*highest);
    }

    /// The number in an execution id of ours that was given out.
    pub(in crate::coordination) fn number(&self, id: &str) -> Option<u64> {
        if let Some(inherited) = self.inherited.1.get(id) {
            return Some(*inherited);
        }
        let (number, _) = id.strip_prefix(&*self.prefix)?.strip_prefix('-')?.split_once(ITEM_SEPARATOR)?;
        let number = number.parse().ok()?;
        (1..=self.last_number).contains(&number).then_some(number)
    }
}

impl Participant {
    /// What the start that was asked for last is to begin, as long as nobody knows what has become of it: the item, why, and
    /// for which instant.
    pub fn starting(&self) -> impl Iterator<Item = (Item, Source, Timestamp)> + '_ {
        let starting = self.executions.starting.iter().chain(&self.executions.unresolved);
        starting.map(|(item, Starting { planned, .. })| (*item, planned.source, planned.scheduled))
    }

    /// Starts what is planned.
    pub(in crate::coordination) fn start(&mut self) {
        if self.agenda.has_no_plans() || self.cx.phase != Phase::Active {
            return;
        }
        if !self.cx.is_registered() || !self.out.may_commit(&self.cx, Purpose::Start) {
            return;
        }
        let Some(settings) = &self.cx.settings else { return };
        if settings.parameters.is_err() {
            self.agenda.withdraw_all();
            return;
        }
        let configuration = Arc::clone(&settings.configuration);
        // What was taken over belongs to no sharding, and waits for none.
        let resharding = self.cx.view.is_resharding() && !mutant!(StartedWhileResharding);
        let assigned_too = !resharding && self.ledger.is_ledger_read(&self.cx) && self.is_gate_open();
        let (batch, transaction) = self.start_batch(&configuration, assigned_too);
        if batch.is_empty() {
            return;
        }
        self.executions.starting = batch;
        if mutant!(ToldBeforeNode) {
            self.started(&[]);
            self.out.commit(Purpose::Start, transaction);
        } else if transaction.is_empty() {
            // Nothing to be written: executions are not monitored.
            self.started(&[]);
        } else {
            self.out.commit(Purpose::Start, transaction);
        }
    }

    fn start_batch(
        &mut self,
        configuration: &JobConfiguration,
        assigned_too: bool,
    ) -> (BTreeMap<Item, Starting>, Transaction) {
        let stays = configuration.failover && !mutant!(RunningNodeEphemeral);
        let kind = if stays { NodeKind::Persistent } else { NodeKind::Ephemeral };
        let instance = self.cx.identity.instance.clone();
        let mut transaction = Transaction::new();
        let mut batch = BTreeMap::new();
        let mut size = 0;
        let undivided = self.cx.undivided().filter(|_| configuration.monitor_execution && assigned_too);
        transaction.extend(undivided.filter(|_| !mutant!(StartedOnOldSharding)));
        let mut waiting = Vec::new();
        while size < self.cx.transaction_bytes
            && let Some((item, planned)) = self.next_planned(assigned_too)
        {
            if self.misfires.is_flagging(item) {
                // What is in flight writes the item's entry in the ledger.
                waiting.push((item, planned));
                continue;
            }
            if !self.may_start(item, planned) {
                continue;
            }
            let planned = self.made_up(item, planned);
            let before = transaction.len();
            let flagged = self.cx.view.misfired().contains(&item) && !mutant!(MisfireFlagLeft);
            if flagged && planned.is_first_of(Source::Misfire) {
                transaction.push(Operation::delete(self.cx.identity.paths.item_misfire(item)));
            }
            let index = transaction.len();
            if configuration.monitor_execution {
                transaction.push(Operation::create(
                    self.cx.identity.paths.item_running(item),
                    kind,
                    instance.as_str(),
                ));
            }
            let (step, entry) = self.ledger.ledger_start(&self.cx, item, planned).unzip();
            transaction.extend(step);
            size += transaction.iter().skip(before).map(Operation::wire_size).sum::<usize>();
            batch.insert(item, Starting { planned, index, entry });
        }
        self.agenda.put_back(waiting);
        let triggered = batch.values().any(|starting| starting.planned.is_first_of(Source::Trigger));
        if triggered && self.cx.view.triggers().contains(&instance) {
            transaction.push(Operation::delete(self.cx.identity.paths.trigger(&instance)));
        }
        (batch, transaction)
    }

    /// Takes the next execution that is planned and may begin now.
    fn next_planned(&mut self, assigned_too: bool) -> Option<(Item, Planned)> {
        if assigned_too {
            return self.agenda.take_first();
        }
        self.agenda.take_first_that(|planned| planned.is_first_of(Source::Failover))
    }

    /// Whether an execution that was planned is still to begin.
    fn may_start(&mut self, item: Item, planned: Planned) -> bool {
        if planned.is_first_of(Source::Failover) {
            return self.cx.has_taken(item)
                && !self.executions.has_open(item)
                && !self.cx.view.running().contains(&item);
        }
        let retried = planned.is_retry() && mutant!(RetriedByFormerOwner);
        if self.cx.assigned.executable_item(item).is_none() && !retried {
            return false;
        }
        if self.executions.is_busy(&self.cx, &self.awaited, item) {
            self.retries.could_not_start(&self.cx, &mut self.agenda, &mut self.out, item, planned);
            return false;
        }
        true
    }

    /// The running nodes exist: tell the application.
    pub(in crate::coordination) fn started(&mut self, results: &[OperationResult]) {
        let token = |result: &OperationResult| match result {
            OperationResult::Created { stat, .. } => Some(FencingToken::from(stat.created)),
            OperationResult::Set { .. } | OperationResult::Deleted | OperationResult::Checked => None,
        };
        self.begin(&results.iter().map(token).collect::<Vec<_>>());
    }

    /// Tells what is starting, with the token at each one's index, or else the assignment's.
    fn begin(&mut self, tokens: &[Option<FencingToken>]) {
        let now = self.cx.now;
        let starting = std::mem::take(&mut self.executions.starting);
        let Some(settings) = self.cx.settings.clone() else { return };
        let items: Vec<_> = starting.keys().copied().collect();
        let (job, instance) = (self.cx.identity.job.clone(), self.cx.identity.instance.clone());
        let timeout = settings.policy.timeout;
        // What nobody would wait for is not begun, and ends with us, at no deadline of its own.
        let begins = !self.cx.is_giving_up();
        let until = timeout.filter(|_| begins).map(|timeout| now.mono.saturating_add(timeout));
        let limit = Limit::until(until);
        let together: Arc<str> = task_id::build(&job, &items, &instance).into();
        for (item, Starting { planned, index, entry }) in starting {
            let assigned = || self.cx.assigned.executable_item(item).map(|assigned| assigned.token);
            let created = tokens.get(index).copied().flatten().filter(|_| !mutant!(TokenReused));
            let Some(token) = created.or_else(assigned) else { continue };
            let highest = self.executions.tokens.entry(item).or_insert(token);
            let token = token.max(*highest);
            *highest = token;
            // A longer one fits into no trace table, and a fire of thousands of items would carry each of them in each
            // message.
            let task_id = match together.len() <= task_id::BYTES_MAX {
                true => Arc::clone(&together),
                false => task_id::build(&job, &[item], &instance).into(),
            };
            let execution_id = self.executions.open(item, planned, limit);
            let checkpoint = self.checkpoints.take_along(item, planned.scheduled);
            if let Some(entry) = entry {
                self.ledger.written(item, entry);
            }
            let execute = Execute {
                execution_id,
                item,
                parameter: settings.parameter(item).map(str::to_owned),
                configuration: Arc::clone(&settings.configuration),
                task_id,
                source: planned.source,
                attempt: planned.attempt,
                checkpoint,
                scheduled: planned.scheduled,
                fired: now.wall,
                deadline: timeout.and_then(|timeout| now.wall.checked_add(timeout).ok()),
                token,
                resumed: false,
            };
            let running = self.cx.view.item(item).and_then(|view| view.running.as_ref());
            if let Some(open) = self.executions.open.get_mut(&item) {
                open.told = Some(Box::new(execute.clone()));
                open.running_seen = running.map(|running| running.seen);
            }
            // A stream that was told nothing yet is told all that is open together with the assignment.
            if self.cx.assigned.attached && begins {
                self.out.tell(&self.cx, Event::Execute(execute));
            }
        }
    }

    /// Nothing was started, or nobody knows: plan it again. What has become of it shows in the view.
    pub(in crate::coordination) fn start_failed(&mut self, error: &CommitError, unknown: bool) {
        let starting = std::mem::take(&mut self.executions.starting);
        self.ledger.doubt();
        if unknown {
            if !mutant!(UnknownStartForgotten) {
                self.executions.unresolved = starting;
            }
            return;
        }
        // What was taken over is planned anew from the view.
        let assigned = |(_, starting): &(Item, Starting)| !starting.planned.is_first_of(Source::Failover);
        for (item, starting) in starting.into_iter().filter(assigned) {
            let Starting { planned, index, .. } = starting;
            let met_running = error.index == Some(index) && matches!(error.error, Error::NodeExists(_));
            if met_running {
                // Somebody's, or one that an earlier request of ours has created late: looked at before it is judged.
                self.executions.unresolved.insert(item, starting);
                self.out.forget_and_read(&mut self.cx);
            } else {
                self.agenda.plan_if_free(item, planned);
            }
        }
    }

    /// Looks what became of a start of unknown outcome: nodes with our id are ours, and have not been told yet. Also when
    /// an operator has stopped us meanwhile: what was begun is ended.
    pub(in crate::coordination) fn resolve(&mut self) {
        if self.executions.unresolved.is_empty() || !self.cx.was_registered() || !self.cx.view.is_loaded() {
            return;
        }
        let mut results = Vec::new();
        for (item, mut starting) in std::mem::take(&mut self.executions.unresolved) {
            let running = self.cx.view.item(item).and_then(|view| view.running.as_ref());
            let ours = running.filter(|running| running.owner.as_ref() == Some(&self.cx.identity.instance));
            if let Some(token) = ours.and_then(|running| running.token) {
                starting.index = results.len();
                results.push(token);
                self.executions.starting.insert(item, starting);
            } else if !starting.planned.is_first_of(Source::Failover) {
                self.agenda.plan_if_free(item, starting.planned);
            }
        }
        self.begin(&results.into_iter().map(Some).collect::<Vec<_>>());
    }

    /// Tells the application to stop everything; what it still reports is too late.
    pub(in crate::coordination) fn cancel_executions(&mut self, reason: CancelReason) {
        let lost = reason == CancelReason::LeaseLost;
        if lost {
            self.executions.starting.clear();
            self.executions.unresolved.clear();
            self.executions.completing.clear();
            for item in std::mem::take(&mut self.executions.reported) {
                self.executions.settle(item, CompletionStatus::LeaseLost, &mut self.out);
            }
        }
        let open: Vec<_> = self.executions.open.iter().map(|(item, open)| (*item, open.number)).collect();
        for (item, number) in open {
            let Some(execution) = self.executions.open.get_mut(&item) else { continue };
            match execution.state {
                State::Reported if lost => {
                    self.executions.settle(item, CompletionStatus::LeaseLost, &mut self.out);
                }
                State::Running => {
                    if lost {
                        execution.state = State::Lost;
                        self.executions.lost.insert(number);
                        if self.executions.lost.len() > LOST_REMEMBERED {
                            self.executions.lost.pop_first();
                        }
                    }
                    self.executions.stop_execution(&self.cx, &mut self.out, item, reason);
                }
                State::Reported | State::Lost => {}
            }
        }
    }
}
