//! From the running node to the recorded completion: executions that are open, their results, deadlines, retries and
//! checkpoints.
//!
//! This file has the state that the room shares: the executions that are open, starting, or of unknown outcome, and the
//! id of each. It decides nothing. `firing` starts executions.

pub mod checkpoint;
mod completion;
mod deadline;
mod fleet_cancel;
mod limit;
mod restored;
pub(super) mod retry;
pub(super) mod slow;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::coordination::job::agenda::Agenda;
use crate::coordination::job::contract::answer::{CompletionStatus, Ticket};
use crate::coordination::job::contract::event::{CancelReason, Execute};
use crate::coordination::job::contract::plan::{Planned, Source, Starting};
use crate::coordination::job::contract::report::{Ended, Ending};
use crate::coordination::job::execution::limit::{Deadlines, Limit};
use crate::coordination::job::frame::context::Context;
use crate::job::{FencingToken, Item};

/// The separator before the item in an execution's id.
const ITEM_SEPARATOR: char = '.';

/// The item in the id of an execution of a sidecar.
pub(crate) fn item_of(execution_id: &str) -> Option<Item> {
    let (_, item) = execution_id.rsplit_once(ITEM_SEPARATOR)?;
    item.parse().ok().map(Item)
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// The application executes it.
    Running,
    /// The application has reported it; the running node is to be deleted.
    Reported,
    /// The session was lost in the meantime; the application was notified, and has not reported.
    Lost,
}

#[derive(Debug)]
pub(crate) struct Execution {
    number: u64,
    state: State,
    /// Whether it was taken over from a crashed instance: then the nodes of the takeover are deleted with its running
    /// node.
    taken_over: bool,
    planned: Planned,
    /// When the application got it from this process; monotonic.
    begun: Option<Duration>,
    /// The transaction that created its running node; `None`: it has none.
    node: Option<FencingToken>,
    /// The view's revision that showed its running node.
    running_seen: Option<u64>,
    /// The reported result.
    ending: Option<Ending>,
    limit: Limit,
    /// The message with which the application began it, for the application's next stream.
    sent: Option<Arc<Execute>>,
    /// The reports that wait for it: the ticket and the place in its answer.
    waiting: Vec<(Ticket, usize)>,
}

#[derive(Debug)]
struct Report {
    records: Vec<(String, CompletionStatus)>,
    missing: usize,
}

impl Execution {
    /// The number of the execution, for this participant.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The cause, the instant and the attempt.
    pub(crate) fn planned(&self) -> Planned {
        self.planned
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state == State::Running
    }

    pub(crate) fn is_reported(&self) -> bool {
        self.state == State::Reported
    }

    /// Whether the session was lost during the execution, and the application has not reported it.
    pub(crate) fn is_lost(&self) -> bool {
        self.state == State::Lost
    }

    pub(crate) fn is_taken_over(&self) -> bool {
        self.taken_over
    }

    /// The reason for which it was cancelled.
    pub(crate) fn cancelled(&self) -> Option<CancelReason> {
        self.limit.cancelled()
    }

    /// The time until its limit.
    pub(crate) fn remaining(&self, now: Duration) -> Option<Duration> {
        self.limit.remaining(now)
    }

    /// The message with which the application began it.
    pub(crate) fn sent(&self) -> Option<&Arc<Execute>> {
        self.sent.as_ref()
    }
}

#[derive(Debug)]
pub(crate) struct Executions {
    prefix: String,
    last_number: u64,
    open: BTreeMap<Item, Execution>,
    by_number: BTreeMap<u64, Item>,
    deadlines: Deadlines,
    lost: BTreeSet<u64>,
    reports: BTreeMap<Ticket, Report>,
    /// The results that were recorded in this step.
    ended: Vec<(Item, Ended)>,
    /// The executions that the start in flight creates.
    starting: BTreeMap<Item, Starting>,
    /// The executions that a start of unknown outcome may have created; the next snapshot shows which.
    unresolved: BTreeMap<Item, Starting>,
    /// The reported executions whose deletion is not in flight.
    reported: Vec<Item>,
    /// The executions that the completion in flight deletes: the item, and the index of its running node's deletion in
    /// the transaction.
    completing: Vec<(Item, Option<usize>)>,
    /// The highest token sent for each item. Executions without running nodes have the assignment's token, which is
    /// older than the tokens of earlier executions with running nodes.
    tokens: BTreeMap<Item, FencingToken>,
    /// The ids of a former process' executions, in both directions. As many as the former process had open.
    former_ids: (BTreeMap<u64, String>, BTreeMap<String, u64>),
    /// The items that running nodes of unknown owners block.
    suspected: BTreeSet<Item>,
    /// The items whose running nodes interrupted executions have left, until the view shows that they are this instance's;
    /// and whether it is being read for that.
    interrupted: BTreeMap<Item, bool>,
    /// When the view was last read because of them; monotonic.
    investigated: Option<Duration>,
}

impl Executions {
    pub(crate) fn new(prefix: String) -> Self {
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
            former_ids: Default::default(),
            suspected: BTreeSet::new(),
            interrupted: BTreeMap::new(),
            investigated: None,
        }
    }

    pub(crate) fn get(&self, item: Item) -> Option<&Execution> {
        self.open.get(&item)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Item, &Execution)> {
        self.open.iter().map(|(item, execution)| (*item, execution))
    }

    /// The executions that are neither reported nor lost.
    pub(crate) fn running(&self) -> impl Iterator<Item = (Item, &Execution)> {
        self.iter().filter(|(_, execution)| execution.is_running())
    }

    /// How many executions are open whose reports have not come.
    pub(crate) fn unreported(&self) -> usize {
        self.open.len().saturating_sub(self.unrecorded())
    }

    /// How many executions are reported, and not recorded yet.
    pub(crate) fn unrecorded(&self) -> usize {
        self.reported.len().saturating_add(self.completing.len())
    }

    /// How many executions are open.
    pub(crate) fn count(&self) -> usize {
        self.open.len()
    }

    /// How many executions this participant has opened so far.
    pub(crate) fn opened(&self) -> u64 {
        self.last_number
    }

    pub(crate) fn next_deadline(&self, now: Duration) -> Option<Duration> {
        self.deadlines.next_retry(now)
    }

    /// The application begins the open execution of an item now. `node`: the transaction that created its running node.
    /// `seen`: the picture's revision that showed that node.
    pub(crate) fn begins(
        &mut self,
        item: Item,
        execute: Execute,
        node: Option<FencingToken>,
        seen: Option<u64>,
        now: Duration,
    ) {
        if let Some(open) = self.open.get_mut(&item) {
            open.node = node;
            open.begun = Some(now);
            open.sent = Some(Arc::new(execute));
            open.running_seen = seen;
        }
    }

    /// Whether an execution of the item is starting or open.
    pub(crate) fn has_open(&self, item: Item) -> bool {
        self.open.contains_key(&item)
            || self.starting.contains_key(&item)
            || self.unresolved.contains_key(&item)
    }

    /// Whether an execution of the item has to wait, because another one has not ended.
    pub(crate) fn is_busy(&self, cx: &Context, agenda: &Agenda, item: Item) -> bool {
        self.has_open(item)
            || cx.view.running().contains(&item)
            || cx.is_taken_over(item)
            || agenda.awaited().comes_first(item, cx.now.mono)
    }

    /// Whether an execution of the item is starting: the application has not begun it.
    pub(crate) fn is_starting(&self, item: Item) -> bool {
        self.starting_of(item).is_some()
    }

    /// The execution of the item that is starting.
    pub(crate) fn starting_of(&self, item: Item) -> Option<Planned> {
        let starting = self.starting.get(&item).or_else(|| self.unresolved.get(&item));
        starting.map(|starting| starting.planned)
    }

    /// The items with executions that are starting or open.
    pub(crate) fn busy_items(&self) -> impl Iterator<Item = Item> + '_ {
        self.open.keys().chain(self.starting.keys()).chain(self.unresolved.keys()).copied()
    }

    /// Whether no execution is starting or open.
    pub(crate) fn is_idle(&self) -> bool {
        self.open.is_empty() && self.starting.is_empty() && self.unresolved.is_empty()
    }

    /// Whether an execution is starting for which `what` is true.
    pub(crate) fn starts(&self, what: impl Fn(&Planned) -> bool) -> bool {
        self.starting.values().chain(self.unresolved.values()).any(|starting| what(&starting.planned))
    }

    /// The executions of the start in flight, and of the starts of unknown outcome.
    pub(crate) fn starting(&self) -> impl Iterator<Item = (Item, Planned)> + '_ {
        let starting = self.starting.iter().chain(&self.unresolved);
        starting.map(|(item, starting)| (*item, starting.planned))
    }

    /// Opens an execution, and returns its id.
    ///
    /// `until`: when (monotonic) it is cancelled.
    pub(crate) fn open(&mut self, item: Item, planned: Planned, until: Option<Duration>) -> String {
        let limit = Limit::until(until);
        self.last_number += 1;
        let number = self.last_number;
        let taken_over = planned.is_first_of(Source::Failover);
        let (state, ending, sent, waiting) = (State::Running, None, None, Vec::new());
        let (begun, node, running_seen) = (None, None, None);
        let execution = Execution {
            number,
            state,
            taken_over,
            planned,
            begun,
            node,
            running_seen,
            ending,
            limit,
            sent,
            waiting,
        };
        self.open.insert(item, execution);
        self.deadlines.watch(number, limit);
        self.by_number.insert(number, item);
        self.id(item, number)
    }

    /// The id of an execution. The id contains the item, for the next process of this sidecar.
    pub(crate) fn id(&self, item: Item, number: u64) -> String {
        let former = self.former_ids.0.get(&number).cloned();
        former.unwrap_or_else(|| format!("{}-{number}{ITEM_SEPARATOR}{item}", self.prefix))
    }

    /// Gives an execution the id that it had in a former process.
    fn call(&mut self, number: u64, id: String) {
        self.former_ids.0.insert(number, id.clone());
        self.former_ids.1.insert(id, number);
    }

    /// Records a token for an item. Returns the highest one, which the application gets.
    pub(crate) fn raise_token(&mut self, item: Item, token: FencingToken) -> FencingToken {
        let highest = self.tokens.entry(item).or_insert(token);
        *highest = token.max(*highest);
        *highest
    }

    pub(crate) fn set_starting(&mut self, starting: BTreeMap<Item, Starting>) {
        self.starting = starting;
    }

    pub(crate) fn take_starting(&mut self) -> BTreeMap<Item, Starting> {
        std::mem::take(&mut self.starting)
    }

    /// The outcome of these starts is unknown.
    pub(crate) fn leave_unresolved(&mut self, starting: BTreeMap<Item, Starting>) {
        self.unresolved.extend(starting);
    }

    /// Takes the starts of unknown outcome.
    pub(crate) fn take_unresolved(&mut self) -> BTreeMap<Item, Starting> {
        std::mem::take(&mut self.unresolved)
    }

    /// Whether no start has an unknown outcome.
    pub(crate) fn is_resolved(&self) -> bool {
        self.unresolved.is_empty()
    }

    /// The session is lost: this instance does not own the executions that were starting.
    pub(crate) fn forget_starting(&mut self) {
        self.starting.clear();
        self.unresolved.clear();
    }

    /// The number in the id of an execution that this sidecar has opened.
    pub(crate) fn number(&self, id: &str) -> Option<u64> {
        if let Some(former) = self.former_ids.1.get(id) {
            return Some(*former);
        }
        let (number, _) = id.strip_prefix(&*self.prefix)?.strip_prefix('-')?.split_once(ITEM_SEPARATOR)?;
        let number = number.parse().ok()?;
        (1..=self.last_number).contains(&number).then_some(number)
    }
}
