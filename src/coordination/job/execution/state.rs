//! Which executions are open, starting, or of unknown outcome, and how each of them is named.
//!
//! How one starts is in `firing`; how it ends is in [`crate::coordination::job::execution::completion`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::coordination::job::agenda::Agenda;
use crate::coordination::job::contract::answer::{CompletionStatus, Ticket};
use crate::coordination::job::contract::event::Execute;
use crate::coordination::job::contract::plan::{Planned, Source};
use crate::coordination::job::contract::starting::Starting;
use crate::coordination::job::execution::ending::{Ended, Ending};
use crate::coordination::job::execution::limit::{Deadlines, Limit};
use crate::coordination::job::frame::context::Context;
use crate::job::{FencingToken, Item};

/// The separator before the item in an execution's id.
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
    pub(in crate::coordination) fn is_busy(&self, cx: &Context, agenda: &Agenda, item: Item) -> bool {
        self.has_open(item)
            || cx.view.running().contains(&item)
            || cx.is_taken_over(item)
            || agenda.awaited().comes_first(item, cx.now.mono)
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

    /// What the start that was asked for last is to begin, as long as nobody knows what has become of it.
    pub(in crate::coordination) fn starting(&self) -> impl Iterator<Item = (Item, Planned)> + '_ {
        let starting = self.starting.iter().chain(&self.unresolved);
        starting.map(|(item, starting)| (*item, starting.planned))
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

    /// Notes a token for an item. Gives the highest one, which is told.
    pub(in crate::coordination) fn raise_token(&mut self, item: Item, token: FencingToken) -> FencingToken {
        let highest = self.tokens.entry(item).or_insert(token);
        *highest = token.max(*highest);
        *highest
    }

    /// These are being started.
    pub(in crate::coordination) fn set_starting(&mut self, starting: BTreeMap<Item, Starting>) {
        self.starting = starting;
    }

    /// Takes the executions that were being started.
    pub(in crate::coordination) fn take_starting(&mut self) -> BTreeMap<Item, Starting> {
        std::mem::take(&mut self.starting)
    }

    /// The outcome of these starts is not known.
    pub(in crate::coordination) fn leave_unresolved(&mut self, starting: BTreeMap<Item, Starting>) {
        self.unresolved.extend(starting);
    }

    /// Takes the starts of unknown outcome.
    pub(in crate::coordination) fn take_unresolved(&mut self) -> BTreeMap<Item, Starting> {
        std::mem::take(&mut self.unresolved)
    }

    /// Whether no start has an unknown outcome.
    pub(in crate::coordination) fn is_resolved(&self) -> bool {
        self.unresolved.is_empty()
    }

    /// The session is lost: the executions that were being started are not ours.
    pub(in crate::coordination) fn forget_starting(&mut self) {
        self.starting.clear();
        self.unresolved.clear();
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
