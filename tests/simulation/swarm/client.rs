//! A sidecar's session with the ensemble: a line of requests, a line of answers, and the log as far as it was told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use sidekeeper::coordination::job::contract::commit::{CommitId, Purpose};
use sidekeeper::coordination::job::contract::input::Input;
use sidekeeper::coordination::job::contract::records::{FoundCheckpoints, WrittenDown};
use sidekeeper::job::Item;
use sidekeeper::tree::{CommitError, Error, NodeChange, NodeKind, Operation, Path, Transaction, WatchEvent};

use super::ensemble::{Change, subtree};
use super::faults::Fault;
use super::guests;
use super::latch::Latch;
use super::machine::Stray;
use super::reads::{merged, tells_torn_states};
use super::world::{Event, World};
use super::{MILLISECOND, Micros};

/// The connection to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    Up(usize),
    Down,
}

pub(super) struct Client {
    /// The present session, by its place among all; the lease that is proven.
    pub(super) session: Option<usize>,
    pub(super) until: Duration,
    pub(super) link: Link,
    /// The number of the connection; messages of an earlier one are void.
    pub(super) epoch: u32,
    pub(super) line: VecDeque<Ask>,
    last_arrival: Micros,
    pub(super) answers: VecDeque<(Micros, Reply)>,
    last_answer: Micros,
    /// The log as far as the watches have told it.
    pub(super) seen: usize,
    /// How many changes of the next entry they have told as well.
    pub(super) part: usize,
    /// Until when the rest of that entry is on its way.
    split_until: Micros,
    /// The snapshot that is being read: how many entries the server had applied at its begin, and until when it takes.
    pub(super) loading: Option<(usize, Micros)>,
    /// Whether the watches are being opened: until then answers wait.
    pub(super) opening: bool,
    pub(super) watching: bool,
    pub(super) held: Vec<Input>,
    pub(super) deliver_at: Option<Micros>,
    /// Until when nothing gets through.
    quiet_until: Micros,
    /// Changes of the job whose contents are being read, and until when; those of the fleet may overtake them.
    reading: (Vec<NodeChange>, Micros),
    /// Until when the server is busy with a request that has not been answered in time; all others wait behind it.
    busy_until: Micros,
    /// News of the connection that the participant has not heard.
    pub(super) changed: bool,
    pub(super) latches: BTreeMap<u64, Latch>,
    pub(super) last_latch: u64,
}

/// A request.
#[derive(Debug)]
pub(super) enum Ask {
    Commit(CommitId, Purpose, Transaction),
    Watch,
    ReadLedger,
    FindCheckpoints(BTreeSet<Item>),
    Prove(Duration),
    JoinLatch(u64),
    ActInLatch(u64, Vec<Transaction>),
    LeaveLatch(u64),
    /// Latch nodes that the former process has left.
    ClearLatches,
    Guest(usize, guests::Request),
}

impl Ask {
    /// Its transaction, which may take effect without an answer. `None`: it has none, or is repeated anyhow.
    fn transaction(&self) -> Option<Transaction> {
        match self {
            Self::Commit(_, _, transaction) => Some(transaction.clone()),
            Self::Guest(_, request) => request.transaction(),
            _ => None,
        }
    }
}

/// An answer. Reads are made when it is sent, from the server's state then.
#[derive(Debug)]
pub(super) enum Reply {
    Input(Input),
    Watch,
    Ledger,
    Taken(BTreeSet<Item>),
    Checkpoints(BTreeSet<Item>),
    Proven(Duration),
    Latch(u64, Result<Option<Path>, Error>),
    LatchLeft(u64),
    Guest(usize, Option<guests::Answer>),
}

impl Client {
    pub(super) fn new() -> Self {
        Self {
            session: None,
            until: Duration::ZERO,
            link: Link::Down,
            epoch: 0,
            line: VecDeque::new(),
            last_arrival: 0,
            answers: VecDeque::new(),
            last_answer: 0,
            seen: 0,
            part: 0,
            split_until: 0,
            loading: None,
            opening: false,
            watching: false,
            held: Vec::new(),
            deliver_at: None,
            quiet_until: 0,
            reading: (Vec::new(), 0),
            busy_until: 0,
            changed: false,
            latches: BTreeMap::new(),
            last_latch: 0,
        }
    }
}

fn unknown() -> Error {
    Error::OutcomeUnknown("the connection broke".to_owned())
}

impl World {
    /// How long a message to or from the registry takes.
    pub(super) fn travel(&mut self) -> Micros {
        50 + self.network.below(self.plan.latency)
    }

    /// A sidecar sends a request, or fails to.
    pub(super) fn send(&mut self, m: usize, ask: Ask) {
        let travel = self.travel();
        let now = self.now;
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        let client = &mut sidecar.client;
        let Link::Up(_) = client.link else {
            self.refuse(m, ask, &Error::Suspended);
            return;
        };
        client.last_arrival = client.last_arrival.max(now + travel);
        let (at, epoch) = (client.last_arrival, client.epoch);
        client.line.push_back(ask);
        self.checks_line(m);
        self.at(at, Event::Arrive(m, epoch));
    }

    /// A request comes back as one that failed.
    pub(super) fn refuse(&mut self, m: usize, ask: Ask, error: &Error) {
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        let failed = match ask {
            Ask::Commit(id, ..) => Input::Committed(id, Err(CommitError::from(error.clone()))),
            Ask::ReadLedger => Input::Ledger(Err(error.to_string())),
            Ask::FindCheckpoints(_) => Input::Checkpoints(Err(error.to_string())),
            // The watches open themselves again with the next connection; latches look for themselves.
            Ask::Watch | Ask::Prove(_) | Ask::ClearLatches => return,
            Ask::Guest(index, request) => return self.refuse_guest(index, request, error),
            Ask::JoinLatch(latch) | Ask::ActInLatch(latch, _) | Ask::LeaveLatch(latch) => {
                return self.latch_disturbed(m, latch);
            }
        };
        if let Some(seat) = &mut sidecar.participant {
            seat.results.push(failed);
            self.wake(m, 0);
        }
    }

    /// The first request in line reaches the leader.
    pub(super) fn arrive(&mut self, m: usize, epoch: u32) {
        if self.now < self.ensemble.leaderless_until {
            let later = self.ensemble.leaderless_until + 1;
            return self.at(later, Event::Arrive(m, epoch));
        }
        if self.machines[m].cut_off_until > self.now {
            return;
        }
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        let client = &mut sidecar.client;
        let (true, Some(session)) = (client.epoch == epoch, client.session) else { return };
        if client.busy_until > self.now {
            let later = client.busy_until + 1;
            return self.at(later, Event::Arrive(m, epoch));
        }
        let Some(ask) = client.line.pop_front() else { return };
        if !self.sessions[session].alive {
            // The server has closed the connection.
            client.line.push_front(ask);
            return self.break_connection(m, true);
        }
        self.sessions[session].heard = self.now;
        if self.is_lossy(&ask) {
            if self.chance(self.plan.rates.lost_request, Fault::LostRequest) {
                self.note(m, || "the request is lost".to_owned());
                return self.refuse(m, ask, &unknown());
            }
            if self.chance(self.plan.rates.late_answer, Fault::LateAnswer) {
                let late = self.now + 100 * MILLISECOND + self.network.below(900) * MILLISECOND;
                if let Some(transaction) = ask.transaction() {
                    self.note(m, || "the answer is late".to_owned());
                    if let Some(sidecar) = &mut self.machines[m].sidecar {
                        sidecar.client.busy_until = late;
                    }
                    self.let_stray(session, transaction, late);
                    return self.refuse(m, ask, &unknown());
                }
            }
        }
        self.take_effect(m, session, ask);
    }

    fn is_lossy(&self, ask: &Ask) -> bool {
        self.now < self.plan.storm && ask.transaction().is_some()
    }

    /// A request takes effect at the leader; its answer comes when the client's server has seen it.
    fn take_effect(&mut self, m: usize, session: usize, ask: Ask) {
        let handle = Arc::clone(&self.sessions[session].handle);
        let reply = match ask {
            Ask::Commit(id, purpose, transaction) => {
                self.provide_for(m, purpose);
                self.check_written(m, &transaction);
                let lost =
                    self.now < self.plan.storm && self.chance(self.plan.rates.lost_answer, Fault::LostAnswer);
                let notable = matches!(purpose, Purpose::Start | Purpose::Leave | Purpose::Shard);
                let written = if notable { transaction.clone() } else { Vec::new() };
                let result = self.commit(&*handle, transaction);
                self.note(m, || match &result {
                    Ok(_) => format!("{purpose}: done"),
                    Err(error) => format!("{purpose}: {error}"),
                });
                if result.is_ok() {
                    self.note_written(session, &written);
                }
                let result = if lost { Err(CommitError::from(unknown())) } else { result };
                Reply::Input(Input::Committed(id, result))
            }
            Ask::Watch => Reply::Watch,
            Ask::ReadLedger => {
                let folder = self.own_paths.ledger();
                self.ensure(&*handle, &folder);
                Reply::Ledger
            }
            Ask::FindCheckpoints(items) => {
                let folder = self.own_paths.checkpoints();
                self.ensure(&*handle, &folder);
                Reply::Checkpoints(items)
            }
            Ask::Prove(sent) => Reply::Proven(sent),
            Ask::JoinLatch(latch) => Reply::Latch(latch, self.join_latch(m, session, latch).map(Some)),
            Ask::ActInLatch(latch, transactions) => {
                let acted = self.act_in_latch(m, session, latch, transactions);
                Reply::Latch(latch, acted.map(|()| None))
            }
            Ask::LeaveLatch(latch) => {
                self.leave_latch_node(m, session, latch);
                Reply::LatchLeft(latch)
            }
            Ask::ClearLatches => {
                self.clear_latches(session);
                return;
            }
            Ask::Guest(index, request) => {
                let lost = self.now < self.plan.storm
                    && request.transaction().is_some()
                    && self.chance(self.plan.rates.lost_answer, Fault::LostAnswer);
                self.take_effect_of_guest(session, index, request, lost)
            }
        };
        self.answer(m, reply);
    }

    fn answer(&mut self, m: usize, reply: Reply) {
        let (travel, len) = (self.travel(), self.ensemble.len());
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        let client = &mut sidecar.client;
        let Link::Up(server) = client.link else { return };
        let seen = self.ensemble.when_applied(server, len).max(self.now);
        client.last_answer = client.last_answer.max(seen + travel);
        let at = client.last_answer;
        client.answers.push_back((at, reply));
        let epoch = client.epoch;
        self.at(at, Event::Deliver(m, epoch));
    }

    /// The log has grown: the watches are notified when their server has seen it.
    pub(super) fn tell_watches(&mut self) {
        self.see_stand();
        let len = self.ensemble.len();
        for m in 0..self.machines.len() {
            let Some(sidecar) = &mut self.machines[m].sidecar else { continue };
            let client = &mut sidecar.client;
            let Link::Up(server) = client.link else { continue };
            if !client.watching || client.seen == len || client.deliver_at.is_some_and(|at| at > self.now) {
                continue;
            }
            let mut at = self.ensemble.when_applied(server, len).max(self.now);
            let epoch = client.epoch;
            let slow = self.plan.rates.slow_notification;
            at += self.travel();
            if self.now < self.plan.storm && self.chance(slow, Fault::SlowNotification) {
                at += self.network.below(600) * MILLISECOND;
                if let Some(sidecar) = &mut self.machines[m].sidecar {
                    sidecar.client.quiet_until = at;
                }
            }
            if let Some(sidecar) = &mut self.machines[m].sidecar {
                sidecar.client.deliver_at = Some(at);
            }
            self.at(at, Event::Deliver(m, epoch));
        }
    }

    /// The messages that have reached a client are passed on: changes first, then answers.
    pub(super) fn deliver(&mut self, m: usize, epoch: u32) {
        let now = self.now;
        let cut_off = self.machines[m].cut_off_until > now;
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        let client = &mut sidecar.client;
        let Link::Up(server) = client.link else { return };
        if client.epoch != epoch || cut_off {
            return;
        }
        if client.quiet_until > now {
            let at = client.quiet_until;
            client.deliver_at = Some(at);
            return self.at(at, Event::Deliver(m, epoch));
        }
        if client.deliver_at.is_some_and(|at| at <= now) {
            client.deliver_at = None;
        }
        if let Some((from, _)) = client.loading.take_if(|(_, until)| *until <= now) {
            let applied = self.ensemble.applied(server, now);
            self.open_watches(m, server, from, applied);
        }
        self.pump(m, server);
        if self.is_reading(m, server) {
            return;
        }
        self.tell_watches_of_guests(m, server);
        loop {
            let Some(sidecar) = &mut self.machines[m].sidecar else { return };
            let due = sidecar.client.answers.front().is_some_and(|(at, _)| *at <= now);
            let Some((_, reply)) = (if due { sidecar.client.answers.pop_front() } else { None }) else {
                break;
            };
            if sidecar.client.opening
                && let Reply::Input(input @ Input::Committed(..)) = reply
            {
                // It comes after the snapshot that shows its change.
                sidecar.client.held.push(input);
                continue;
            }
            self.take_reply(m, server, reply);
        }
        self.look_at_latches(m);
        // Entries that the server has not applied yet come later.
        let behind = self.machines[m]
            .sidecar
            .as_ref()
            .is_some_and(|sidecar| sidecar.client.watching && sidecar.client.seen < self.ensemble.len());
        if behind {
            self.tell_watches();
        }
    }

    /// Sends the entries that the server has applied to the watches; now and then a part, which may end within a
    /// transaction.
    fn pump(&mut self, m: usize, server: usize) {
        let now = self.now;
        let applied = self.ensemble.applied(server, now);
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        let client = &mut sidecar.client;
        if !client.watching || applied <= client.seen || client.split_until > now {
            return;
        }
        let waiting = self.ensemble.entries(client.seen, applied);
        let mut waiting = waiting.iter().flatten().skip(client.part);
        let count = waiting.clone().count();
        let times = self.plan.rates.split_transaction;
        let mut part = count;
        if times > 0 && now < self.plan.storm && count > 1 && self.reading.once_in(times) {
            part = 1 + self.reading.below(count as u64 - 1) as usize;
        }
        // Contents are read after the event, and with the answer all has come that happened before.
        if waiting.by_ref().take(part).any(Change::is_read) && !tells_torn_states() {
            part = count;
        }
        if part < count {
            client.split_until = now + 1 + self.reading.below(4 * self.plan.latency);
            let (at, epoch) = (client.split_until, client.epoch);
            self.counts.add(Fault::SplitTransaction);
            self.at(at, Event::Deliver(m, epoch));
        }
        self.take_changes(m, server, applied, part);
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        let reading = &mut sidecar.client.reading;
        let begins = !reading.0.is_empty() && reading.1 <= now && now < self.plan.storm;
        if begins && self.network.below(6) == 0 {
            reading.1 = now + 1 + self.network.below(4 * self.plan.latency);
        }
        self.wake(m, 0);
    }

    /// Takes so many changes from the log: those of the job wait until their contents are read.
    fn take_changes(&mut self, m: usize, server: usize, applied: usize, count: usize) {
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        let client = &mut sidecar.client;
        let waiting = self.ensemble.entries(client.seen, applied);
        let changes: Vec<Change> = waiting.iter().flatten().skip(client.part).take(count).cloned().collect();
        client.part += changes.len();
        for entry in waiting {
            if client.part < entry.len() {
                break;
            }
            client.part -= entry.len();
            client.seen += 1;
        }
        let mut fleet = Vec::new();
        for change in changes {
            let told = change.told();
            if change.of_job {
                client.reading.0.push(told);
            } else if change.of_fleet {
                fleet.push(told);
            }
        }
        let fleet = self.read_contents(server, applied, merged(fleet));
        if let Some(seat) = self.machines[m].seat().filter(|_| !fleet.is_empty()) {
            seat.fleet.push(WatchEvent::Changes(fleet));
        }
    }

    /// Events carry no contents: a client reads them afterwards, when they may have changed again.
    fn read_contents(&mut self, server: usize, applied: usize, changes: Vec<NodeChange>) -> Vec<NodeChange> {
        let replica = self.ensemble.replica(server, applied);
        let read = |change| match change {
            NodeChange::Put { path, content: Some(_) } => match replica.get(&path) {
                Some(content) => NodeChange::Put { path, content: Some(content.clone()) },
                None => NodeChange::Removed { path },
            },
            other => other,
        };
        changes.into_iter().map(read).collect()
    }

    /// Whether contents are still being read, or the rest of a transaction is on its way; if not, the client tells the
    /// nodes that it has read.
    fn is_reading(&mut self, m: usize, server: usize) -> bool {
        let now = self.now;
        let applied = self.ensemble.applied(server, now);
        let Some(sidecar) = &mut self.machines[m].sidecar else { return false };
        let client = &mut sidecar.client;
        let epoch = client.epoch;
        if client.reading.1 > now {
            let at = client.reading.1;
            self.at(at, Event::Deliver(m, epoch));
            return true;
        }
        let reads = |change: &NodeChange| matches!(change, NodeChange::Put { content: Some(_), .. });
        if client.reading.0.iter().any(reads) && !tells_torn_states() {
            // The client tells with them all changes until the contents were read.
            client.split_until = 0;
            self.take_changes(m, server, applied, usize::MAX);
        }
        let Some(sidecar) = &mut self.machines[m].sidecar else { return false };
        let changes = merged(std::mem::take(&mut sidecar.client.reading.0));
        let split = sidecar.client.split_until > now;
        let changes = self.read_contents(server, applied, changes);
        if let Some(seat) = self.machines[m].seat().filter(|_| !changes.is_empty()) {
            seat.nodes.push(WatchEvent::Changes(changes));
            self.wake(m, 0);
        }
        split
    }

    fn take_reply(&mut self, m: usize, server: usize, reply: Reply) {
        let applied = self.ensemble.applied(server, self.now);
        let input = match reply {
            Reply::Input(input) => input,
            Reply::Proven(sent) => return self.proven(m, sent),
            Reply::Watch => return self.load_watches(m, server, applied),
            Reply::Latch(latch, result) => return self.latch_answered(m, latch, result),
            Reply::LatchLeft(latch) => return self.left_latch(m, latch),
            Reply::Guest(index, answer) => return self.answer_guest(m, server, index, answer),
            Reply::Ledger => Input::Ledger(Ok(self.read_ledger(server, applied))),
            Reply::Checkpoints(items) => {
                let folder = self.own_paths.checkpoints();
                let nodes = subtree(self.ensemble.replica(server, applied), &folder);
                let item = |path: &Path| path.relative_to(&folder)?.parse().ok().map(Item);
                let nodes: BTreeSet<Item> = nodes.iter().filter_map(|node| item(&node.path)).collect();
                let read = self.read_checkpoints(server, applied, &items);
                Input::Checkpoints(Ok(FoundCheckpoints { nodes, read }))
            }
            Reply::Taken(items) => {
                let ledger = self.read_ledger(server, applied);
                let checkpoints = self.read_checkpoints(server, applied, &items);
                Input::TookOver(Ok(WrittenDown { ledger: ledger.entries, checkpoints }))
            }
        };
        self.hand_in(m, input);
    }

    /// An instance that takes items over reads their ledger entries and checkpoints.
    pub(super) fn read_taken(&mut self, m: usize, items: BTreeSet<Item>) {
        self.answer(m, Reply::Taken(items));
    }

    /// A result for the participant.
    pub(super) fn hand_in(&mut self, m: usize, input: Input) {
        if let Some(seat) = self.machines[m].seat() {
            seat.results.push(input);
            self.wake(m, 0);
        }
    }

    /// Opens the watches, or opens them anew.
    pub(super) fn watch(&mut self, m: usize) {
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        if let Some(seat) = &mut sidecar.participant {
            (seat.nodes, seat.fleet) = (Vec::new(), Vec::new());
        }
        sidecar.client.reading = (Vec::new(), 0);
        (sidecar.client.loading, sidecar.client.split_until) = (None, 0);
        (sidecar.client.watching, sidecar.client.opening) = (false, true);
        if matches!(sidecar.client.link, Link::Up(_)) {
            self.send(m, Ask::Watch);
        }
    }

    /// The connection breaks. Requests on their way take effect as far as they have got; no answer arrives. `lost`: the
    /// session is over, too.
    pub(super) fn break_connection(&mut self, m: usize, lost: bool) {
        let Some(sidecar) = &mut self.machines[m].sidecar else { return };
        let client = &mut sidecar.client;
        if client.link == Link::Down {
            return;
        }
        client.link = Link::Down;
        client.epoch += 1;
        let (line, answers) = (std::mem::take(&mut client.line), std::mem::take(&mut client.answers));
        client.changed = true;
        client.watching = false;
        client.opening = true;
        client.deliver_at = None;
        client.reading = (Vec::new(), 0);
        (client.loading, client.split_until) = (None, 0);
        let (epoch, session) = (client.epoch, client.session);
        self.note(m, || "disconnected".to_owned());
        for (_, reply) in answers {
            self.lose_reply(m, reply);
        }
        // The requests that get through come before those that do not.
        let through = if lost { 0 } else { self.network.below(line.len() as u64 + 1) };
        let mut late = self.now;
        for (index, ask) in line.into_iter().enumerate() {
            if let (Some(transaction), true, Some(session)) =
                (ask.transaction(), (index as u64) < through, session)
                && self.options.allows(Fault::LateEffect)
            {
                late += 1 + self.network.below(100 * MILLISECOND);
                self.counts.add(Fault::LateEffect);
                self.let_stray(session, transaction, late);
            }
            self.refuse(m, ask, &unknown());
        }
        self.disturb_latches(m);
        self.wake(m, 0);
        self.wake_guests(m);
        let soon = self.now + self.network.below(200 * MILLISECOND) + MILLISECOND;
        self.at(soon, Event::Reconnect(m, epoch));
    }

    fn lose_reply(&mut self, m: usize, reply: Reply) {
        let input = match reply {
            Reply::Input(Input::Committed(id, _)) => Input::Committed(id, Err(CommitError::from(unknown()))),
            Reply::Input(other) => other,
            Reply::Ledger => Input::Ledger(Err(unknown().to_string())),
            Reply::Checkpoints(_) => Input::Checkpoints(Err(unknown().to_string())),
            Reply::Taken(_) => Input::TookOver(Err(unknown().to_string())),
            // The watches open themselves again; latches look for themselves.
            Reply::Watch | Reply::Proven(_) | Reply::Latch(..) | Reply::LatchLeft(_) => return,
            Reply::Guest(index, answer) => return self.lose_answer_of_guest(index, answer, &unknown()),
        };
        self.hand_in(m, input);
    }

    /// A request that the client has given up takes effect later.
    fn let_stray(&mut self, session: usize, transaction: Transaction, at: Micros) {
        let connection = self.sessions[session].connections;
        self.strays.push(Stray { session, connection, transaction });
        self.at(at, Event::Stray(self.strays.len() - 1));
    }

    /// A request that the client has given up takes effect after all, unless the session has another connection.
    pub(super) fn stray(&mut self, index: usize) {
        let Stray { session, connection, transaction } = std::mem::take(&mut self.strays[index]);
        if self.sessions[session].alive && self.sessions[session].connections == connection {
            let handle = Arc::clone(&self.sessions[session].handle);
            let written = transaction.clone();
            let result = self.commit(&*handle, transaction);
            if result.is_ok() {
                self.note_written(session, &written);
            }
            self.tell(|| match &result {
                Ok(_) => "a late request takes effect".to_owned(),
                Err(error) => format!("a late request: {error}"),
            });
        }
    }

    fn commit(
        &mut self,
        session: &dyn sidekeeper::registry::Session,
        transaction: Transaction,
    ) -> sidekeeper::tree::CommitResult {
        self.set_registry_clock();
        let members = self.own_paths.fleet().members();
        if transaction.iter().any(|step| step.path().parent().as_ref() == Some(&members)) {
            self.note_stock();
        }
        let wrong = self.wrong_now(&transaction);
        let deleted = self.running_deleted_by(&transaction);
        let written = transaction.clone();
        let network = &mut self.network;
        let result = self.ensemble.commit(session, transaction, self.now, |bound| network.below(bound));
        if let Some((invariant, found)) = wrong.filter(|_| result.is_ok()) {
            self.fail(invariant, || found);
        }
        if result.is_ok() {
            self.note_running(&written, deleted);
        }
        self.tell_watches();
        result
    }

    pub(super) fn commit_as(
        &mut self,
        session: usize,
        transaction: Transaction,
    ) -> sidekeeper::tree::CommitResult {
        let handle = Arc::clone(&self.sessions[session].handle);
        self.commit(&*handle, transaction)
    }

    /// Creates a node and all that are missing above it.
    pub(super) fn create_above(&mut self, session: usize, path: &Path, kind: NodeKind) {
        let mut missing = Vec::new();
        let mut above = Some(path.clone());
        while let Some(path) = above.filter(|path| self.ensemble.get(path).is_none()) {
            above = path.parent();
            missing.push(path);
        }
        for path in missing.into_iter().rev() {
            let _ = self.commit_as(session, vec![Operation::create(path, kind, [])]);
        }
    }

    fn ensure(&mut self, session: &dyn sidekeeper::registry::Session, path: &Path) {
        let network = &mut self.network;
        let kind = NodeKind::Persistent;
        let _ = self.ensemble.ensure(session, path, kind, self.now, |bound| network.below(bound));
        self.tell_watches();
    }

    /// The nodes that the runner creates before some commits.
    fn provide_for(&mut self, m: usize, purpose: Purpose) {
        let fleet = self.own_paths.fleet();
        let folders = match purpose {
            Purpose::Register if self.machines[m].name.is_some() => {
                vec![self.namespace.clone(), fleet.members(), fleet.names()]
            }
            Purpose::Register => vec![self.namespace.clone(), fleet.members()],
            Purpose::Announce => vec![fleet.members()],
            _ => return,
        };
        for folder in folders {
            if self.ensemble.get(&folder).is_none() {
                let network = &mut self.network;
                self.ensemble.provide(&folder, self.now, |bound| network.below(bound));
                self.tell_watches();
            }
        }
    }
}
