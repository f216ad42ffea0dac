//! The invariants that hold at every moment: they are checked at each message, start, end and write.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use sidekeeper::coordination::job::contract::commit::Purpose;
use sidekeeper::coordination::job::contract::event::{Assignment, AssignmentReason, Execute};
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::elasticjob::path::Place;
use sidekeeper::elasticjob::{config_yaml, instance_yaml};
use sidekeeper::extension::handoff_policy;
use sidekeeper::job::{InstanceId, Item};
use sidekeeper::tree::{Node, Operation, Path};

use super::application::Execution;
use super::client::Link;
use super::faults::Fault;
use super::interruptions::Interruptions;
use super::invariants::Invariant;
use super::item_triggers::ItemTriggers;
use super::world::World;
use super::{Micros, SECOND};

/// How many bytes a ZooKeeper server accepts in one request.
const REQUEST_BYTES_MAX: usize = 1024 * 1024;
/// Requests of one sidecar that wait at most: one commit of each purpose, a reading of each kind, latches, a proof.
const LINE_MAX: usize = 40;
/// Messages to one application that wait at most while it reads.
const INBOX_MAX: usize = 2_000;
/// How long a resharding may be due without a cause that is reported: sessions have to end first, and names are waited
/// for.
const SILENT_WAIT_MAX: Micros = 40 * SECOND;

/// A start of an execution, as it was told.
#[derive(Debug, Clone)]
pub(super) struct Start {
    pub(super) scheduled: Timestamp,
    pub(super) source: Source,
    pub(super) attempt: u32,
    pub(super) monitored: bool,
    pub(super) machine: usize,
    pub(super) at: Micros,
}

/// The memory of the checks.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// The newest token that was told, for each item.
    tokens: BTreeMap<Item, i64>,
    /// The store: the highest token that it has seen for each item, and whose.
    store: BTreeMap<Item, (i64, String)>,
    /// Writes that the store refused.
    refused: Vec<String>,
    /// The starts, for each item.
    pub(super) starts: BTreeMap<Item, Vec<Start>>,
    /// The tokens of the executions that were told, until they are recorded.
    told: BTreeMap<String, (Item, i64)>,
    /// The triggers of items.
    pub(super) item_triggers: ItemTriggers,
    /// The starts in the registry: in which session, and with which prefix of the executions' ids.
    pub(super) begun: BTreeMap<(Item, Timestamp), (usize, Option<String>)>,
    /// Starts that were asked for to make up for all that was missed until then.
    pub(super) making_up: BTreeSet<(Item, Timestamp)>,
    /// When an operator last changed the schedule.
    pub(super) rescheduled_at: Option<Micros>,
    /// The latest time of day that a clock has shown before it was set back.
    pub(super) shown: Option<Timestamp>,
    /// The interrupted executions, and the checkpoints.
    pub(super) interruptions: Interruptions,
    /// Items whose owner's node an operator has deleted, and when.
    pub(super) disowned: BTreeMap<Item, Micros>,
    /// When items were last resharded by ElasticJob's rules, without a question to the owners.
    pub(super) divided: BTreeMap<Item, Micros>,
    /// When an item was last flagged as crashed.
    pub(super) flagged: BTreeMap<Item, Micros>,
    /// When a flag that no sidecar has raised was last lowered.
    pub(super) unflagged: BTreeMap<Item, Micros>,
    /// From when until when an operator had disabled a server.
    pub(super) disabled: Vec<(Micros, Micros)>,
    /// When an item was last told to a machine that did not have it.
    handed: BTreeMap<(usize, Item), Micros>,
    /// When an instance was last seen that does not announce how it hands over.
    pub(super) stock_at: Option<Micros>,
    /// Since when a resharding has been due that an instance could have made, without a report why it waits.
    silent_since: Option<Micros>,
}

impl Checks {
    /// The store takes a write, or refuses it.
    fn write(&mut self, execute: &Execute) -> bool {
        let newest = self.store.entry(execute.item).or_default();
        let same_owner = execute.token.0 == newest.0
            && (newest.1 == execute.execution_id || !execute.configuration.monitor_execution);
        if execute.token.0 > newest.0 || same_owner {
            *newest = (execute.token.0, execute.execution_id.clone());
            return true;
        }
        false
    }
}

impl World {
    /// A sidecar tells an execution.
    pub(super) fn check_told(&mut self, m: usize, execute: &Execute) {
        // An execution that was started without a stream is sent for the first time when the application reattaches.
        let is_known = self.checks.told.values().any(|known| *known == (execute.item, execute.token.0));
        if execute.resumed && is_known {
            return;
        }
        if !execute.resumed {
            self.check_item_lock(m, execute);
        }
        let (item, token) = (execute.item, execute.token.0);
        let monitored = execute.configuration.monitor_execution;
        let newest = self.checks.tokens.entry(item).or_default();
        let before = *newest;
        *newest = token.max(before);
        // Without running nodes an instance that is cut off may start its former items; the store refuses it.
        if monitored && token <= before {
            self.fail(Invariant::Fenced, || format!("item {item}: token {token} after {before}, by m{m}"));
        }
        if monitored {
            let running = self.ensemble.get(&self.paths.item_running(item));
            let session = self.session_of(m);
            let alive = session.is_some_and(|session| self.sessions[session].alive);
            let me = self.machines[m].seat().map(|seat| seat.identity.instance.clone());
            let ours = running.as_ref().is_some_and(|node| {
                let is_me = me.is_some_and(|me| *node.data == *me.as_str().as_bytes());
                is_me && node.stat.created.0 == token
            });
            if alive && !ours {
                self.fail(Invariant::RunningNode, || {
                    format!("m{m} is to execute item {item} with token {token}, and the node is {running:?}")
                });
            }
        }
        // An operator took the item away while it was being started.
        let disowned = self.was_disowned(item);
        let relay = self.is_relay();
        let Some(seat) = self.machines[m].seat() else { return };
        seat.tokens.insert(token);
        // A start from before the stream is sent after the assignment, though the item may have been revoked meanwhile.
        let late = disowned || execute.resumed;
        if !seat.told.contains(&item) && execute.source != Source::Failover && !late && !relay {
            let items = seat.told.clone();
            self.fail(Invariant::Assigned, || {
                format!("m{m} executes item {item}, and was assigned {items:?}")
            });
        }
        self.check_once(m, execute);
        self.check_item_trigger(m, execute);
        self.check_instant(m, execute);
        let start = Start {
            scheduled: execute.scheduled,
            source: execute.source,
            attempt: execute.attempt,
            monitored,
            machine: m,
            at: self.now,
        };
        self.checks.starts.entry(item).or_default().push(start);
        self.checks.told.insert(execute.execution_id.clone(), (item, token));
        if execute.task_id.len() > 255 {
            self.fail(Invariant::WellFormed, || format!("a task id of {} bytes", execute.task_id.len()));
        }
    }

    /// No instant is executed twice by the schedule, or made up for after it was executed or made up for.
    fn check_once(&mut self, m: usize, execute: &Execute) {
        let first = execute.attempt == 1 && execute.configuration.monitor_execution;
        if !first || !Self::is_of_schedule(execute) {
            return;
        }
        let starts = self.checks.starts.get(&execute.item).map_or(&[][..], Vec::as_slice);
        let before = starts.iter().rev().filter(|start| start.attempt == 1 && start.monitored);
        // A flag or a ledger entry that an operator has written lets an item fail over that no crash interrupted, or for a
        // wrong instant.
        let tampered = self.counts.of(Fault::Garbage) + self.counts.of(Fault::DeletedNode) > 0;
        let twice = before.clone().find(|start| {
            let covers = start.source == Source::Misfire && start.scheduled >= execute.scheduled;
            let settles = start.source == Source::Schedule || (start.source == Source::Failover && !tampered);
            covers || (settles && start.scheduled == execute.scheduled)
        });
        if let Some(twice) = twice.cloned() {
            self.fail(Invariant::OncePerFire, || {
                let (item, scheduled, source) = (execute.item, execute.scheduled, execute.source);
                format!("m{m} executes item {item} for {scheduled} ({source:?}) after {twice:?}")
            });
        }
    }

    /// An application begins an execution.
    pub(super) fn check_begin(&mut self, m: usize, execute: &Execute) {
        let item = execute.item;
        for (other, machine) in self.machines.iter().enumerate() {
            let application = &machine.application;
            // An application that is stopped, or goes on just now, does nothing, and learns first of the end of its
            // lease or stream; one whose lease ends now stops now. Without running nodes no instance knows the
            // executions of others, as in ElasticJob.
            let over = application.stopped_until >= self.now || application.is_lease_over(self.now);
            if over || !execute.configuration.monitor_execution {
                continue;
            }
            let mut open = application.executions.values();
            let open = open.find(|open| open.execute.item == item && !open.is_rogue);
            if let Some(open) = open {
                let id = open.execute.execution_id.clone();
                let token = open.execute.token.0;
                return self.fail(Invariant::OneExecutor, || {
                    let second = &execute.execution_id;
                    format!(
                        "item {item} is executed by m{other} ({id}, token {token}) and by m{m} ({second})"
                    )
                });
            }
        }
        if !self.checks.write(execute) && execute.configuration.monitor_execution {
            let known = self.checks.store.get(&item).cloned();
            self.fail(Invariant::Fenced, || {
                format!("m{m} begins item {item} with token {}, and the store has {known:?}", execute.token.0)
            });
        }
    }

    /// An application ends an execution, and writes its result.
    pub(super) fn check_ended(&mut self, _: usize, execution: &Execution, wrote: bool) {
        if wrote && !self.checks.write(&execution.execute) {
            self.checks.refused.push(execution.execute.execution_id.clone());
        }
    }

    /// A completion is recorded: the running node is gone, and the store had taken the result.
    pub(super) fn check_recorded(&mut self, m: usize, id: &str) {
        let Some((item, token)) = self.checks.told.remove(id) else { return };
        let running = self.ensemble.get(&self.paths.item_running(item));
        if self.plan.configuration.monitor_execution
            && running.is_some_and(|node| node.stat.created.0 == token)
        {
            self.fail(Invariant::RunningNode, || {
                format!("m{m} has recorded {id} of item {item}, and its node is still there")
            });
        }
        if self.plan.configuration.monitor_execution
            && self.checks.refused.iter().any(|refused| refused == id)
        {
            self.fail(Invariant::Fenced, || {
                format!("{id} of item {item} was recorded, and the store had refused its result")
            });
        }
    }

    /// A participant has ended: nothing of it is left, unless its session took or will take it.
    pub(super) fn check_end(&mut self, m: usize) {
        let Some(session) = self.session_of(m) else { return };
        let Some(sidecar) = &self.machines[m].sidecar else { return };
        let Some(seat) = &sidecar.participant else { return };
        let connected =
            matches!(sidecar.client.link, Link::Up(_)) && self.machines[m].cut_off_until <= self.now;
        if !self.sessions[session].alive
            || !connected
            || seat.session != Some(session)
            || !seat.was_registered
        {
            return;
        }
        let me = seat.identity.instance.clone();
        let id = self.sessions[session].handle.id();
        let monitored = self.plan.configuration.monitor_execution;
        let ours =
            |path: &Path| self.ensemble.get(path).is_some_and(|node| node.stat.ephemeral_owner == Some(id));
        // As long as the node of an earlier session stands, it is as after a crash: others take over when that node is
        // deleted.
        let instance = self.ensemble.get(&self.paths.instance(&me));
        let has_another =
            instance.is_some_and(|node| node.stat.ephemeral_owner.is_some_and(|owner| owner != id));
        let mut left: Vec<Path> = Vec::new();
        let paths = [self.paths.instance(&me), self.paths.leader(), self.own_paths.fleet().member(&me)];
        left.extend(paths.into_iter().filter(|path| ours(path)));
        for item in (0..self.plan.configuration.sharding_total_count.max(8)).map(Item) {
            // With failover a running node stays as after a crash, and is flagged.
            let flagged = self.ensemble.get(&self.paths.failover_item(item)).is_some();
            // Of an item that the job has no more the leader removes the flag first.
            let surplus = item.0 >= self.plan.configuration.sharding_total_count;
            let recently = |at: Option<&Micros>| at.is_some_and(|at| self.now < at + SECOND);
            let was_flagged = surplus && recently(self.checks.flagged.get(&item));
            // The leader flags it when it sees that the instance is offline.
            let interrupted = self.plan.configuration.failover && self.is_lock_broken(item);
            let flagged = flagged || was_flagged || interrupted || recently(self.checks.unflagged.get(&item));
            let path = self.paths.item_running(item);
            // Nodes that a former session has left go with that session.
            let is_its = |node: &Node| {
                let stays = node.stat.ephemeral_owner.is_none_or(|owner| owner == id);
                stays && seat.tokens.contains(&node.stat.created.0)
            };
            // An instance that was stopped and dies while it executes leaves the nodes that a crash leaves.
            let is_left = monitored
                && !has_another
                && !seat.is_stopped
                && self.ensemble.get(&path).as_ref().is_some_and(is_its);
            if is_left && !flagged {
                left.push(path);
            }
        }
        if !left.is_empty() {
            self.fail(Invariant::NothingLeft, || format!("m{m} has ended and left {left:?}"));
        }
    }

    /// Whether the single item walks over the servers.
    pub(super) fn is_relay(&self) -> bool {
        self.plan.configuration.job_sharding_strategy_type.as_deref() == Some("SINGLE_SHARDING_BALANCE")
    }

    pub(super) fn session_of(&self, m: usize) -> Option<usize> {
        self.machines[m].sidecar.as_ref()?.client.session
    }

    /// A sidecar sends an assignment: in a fleet of sidecars the previous owner of each item has released it, or its
    /// lease is over.
    pub(super) fn check_assignment(&mut self, m: usize, assignment: &Assignment, reason: AssignmentReason) {
        let items: BTreeSet<Item> = assignment.items.iter().map(|assigned| assigned.item).collect();
        let Some(seat) = self.machines[m].seat() else { return };
        let added: Vec<Item> = items.difference(&seat.told).copied().collect();
        seat.told = items;
        self.checks.handed.extend(added.iter().map(|item| ((m, *item), self.now)));
        // A previous owner that lost an item by an operator or by a resharding of ElasticJob's rules, and does not know
        // that yet, gets no message from the next owner.
        let disowned = |other: usize, item: &Item| {
            let handed = self.checks.handed.get(&(other, *item));
            let mut taken = self.checks.disowned.get(item).into_iter().chain(self.checks.divided.get(item));
            self.was_disowned(*item) || taken.any(|taken| handed.is_some_and(|at| at < taken))
        };
        // Beside an instance that does not announce how it hands over, all items are resharded at once, as in
        // ElasticJob; also a while after that instance has left, by a leader that has not seen that.
        let stock = self.checks.stock_at.is_some_and(|at| self.now < at + 2 * SECOND);
        if added.is_empty() || reason != AssignmentReason::HandedOff || stock || !self.all_hand_over() {
            return;
        }
        // Whose node an operator has deleted is no instance any more, and may not have heard of it.
        if !self.is_instance(m) {
            return;
        }
        let continuous = handoff_policy::of(&self.plan.configuration).0.continuous;
        for (other, machine) in self.machines.iter().enumerate().filter(|(other, _)| *other != m) {
            let Some(sidecar) = &machine.sidecar else { continue };
            let Some(seat) = &sidecar.participant else { continue };
            // An application whose stream has broken works on its items until its grace is over, and no cancel reaches
            // it.
            let alone = seat.stream.is_none();
            let works =
                continuous && alone && machine.application.away_until.is_some_and(|until| self.now < until);
            let over = machine.mono(self.now) >= sidecar.client.until || (alone && !works);
            let leaves = seat.core.is_leaving() && !works;
            let mut both = added.iter().filter(|item| seat.told.contains(item));
            let both = both.find(|item| !disowned(other, item));
            // Whose node an operator has deleted is no instance any more: that is how the protocol stops one.
            let stopped = self.ensemble.get(&self.paths.instance(&seat.identity.instance)).is_none();
            if let Some(item) = both.filter(|_| !over && !stopped && !leaves) {
                let found =
                    format!("m{m} is told that it owns item {item}, and m{other} was not told to let go");
                return self.fail(Invariant::RevokedFirst, || found);
            }
        }
    }

    /// Whether an operator has deleted the node of an item's owner, a short while ago.
    fn was_disowned(&self, item: Item) -> bool {
        self.checks.disowned.get(&item).is_some_and(|at| self.now < at + 2 * SECOND)
    }

    /// Whether all that stand among the instances say how they hand over: then that is in force.
    pub(super) fn all_hand_over(&self) -> bool {
        let instances = self.ensemble.children(&self.paths.root().child("instances"));
        let says = |id: &String| {
            let member = self.own_paths.fleet().members().try_child(id);
            member.is_ok_and(|member| self.ensemble.get(&member).is_some())
        };
        instances.iter().all(says)
    }

    /// Notes an instance that does not announce how it hands over: only operators create one.
    pub(super) fn note_stock(&mut self) {
        if !self.all_hand_over() {
            self.checks.stock_at = Some(self.now);
        }
    }

    /// Once a second: a resharding that waits for long has a cause that the leader reports. There may be no report
    /// for a while when the leader changes; the time without any report counts.
    pub(super) fn check_waits(&mut self) {
        let due = self.ensemble.get(&self.paths.necessary()).is_some();
        let healthy = self.machines.iter().any(|machine| {
            let connected = machine.sidecar.as_ref().is_some_and(|s| matches!(s.client.link, Link::Up(_)));
            connected && machine.application.attached && !machine.is_stopped(self.now)
        });
        let reported =
            self.machines.iter_mut().any(|machine| machine.seat().is_some_and(|seat| seat.problems > 0));
        if !due || !healthy || reported {
            self.checks.silent_since = None;
            return;
        }
        let since = *self.checks.silent_since.get_or_insert(self.now);
        if self.now - since > SILENT_WAIT_MAX {
            let seconds = (self.now - since) / SECOND;
            self.fail(Invariant::NoSilentWait, || {
                format!("a resharding has been due for {seconds} s, and nobody says why")
            });
        }
    }

    /// Something is about to be written by a sidecar: a Java peer must be able to read it.
    pub(super) fn check_written(&mut self, m: usize, transaction: &[Operation]) {
        for (index, step) in transaction.iter().enumerate() {
            let (path, data) = match step {
                Operation::Create { path, data, .. } | Operation::Set { path, data, .. } => (path, data),
                Operation::Delete { .. } | Operation::Check { .. } => continue,
            };
            let Some(relative) = path.relative_to(self.paths.root()) else { continue };
            let is_gone =
                |later: &Operation| matches!(later, Operation::Delete { path: gone, .. } if gone == path);
            if transaction.get(index + 1..).is_some_and(|later| later.iter().any(is_gone)) {
                // Nobody ever sees it.
                continue;
            }
            if let Err(why) = strictly_read(relative, data) {
                self.fail(Invariant::WellFormed, || {
                    format!("m{m} writes {:?} to {path}: {why}", String::from_utf8_lossy(data))
                });
            }
        }
    }

    /// A request is about to be sent.
    pub(super) fn check_request(&mut self, m: usize, purpose: Purpose, transaction: &[Operation]) {
        let size: usize = transaction.iter().map(Operation::wire_size).sum();
        if size >= REQUEST_BYTES_MAX {
            self.fail(Invariant::Bounded, || format!("m{m}: {purpose} in {size} bytes"));
        }
    }

    /// How much waits.
    pub(super) fn checks_line(&mut self, m: usize) {
        let machine = &self.machines[m];
        let line = machine.sidecar.as_ref().map_or(0, |sidecar| sidecar.client.line.len());
        let inbox = machine.application.inbox.len();
        let reads = !machine.application.is_stopped(self.now);
        if line > LINE_MAX || (reads && inbox > INBOX_MAX) {
            self.fail(Invariant::Bounded, || format!("m{m}: {line} requests wait, {inbox} messages"));
        }
    }
}

/// Whether a Java peer reads the data at a path of the job.
fn strictly_read(relative: &str, data: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(data).map_err(|error| error.to_string())?;
    let is_id = |text: &str| {
        let id = InstanceId::from_registry(text);
        id.server_ip().is_some() && id.unique().is_some()
    };
    let none = |problems: Vec<String>| if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) };
    match Place::of(relative) {
        Place::Config => match config_yaml::parse(data) {
            Ok(parsed) => none(parsed.problems),
            Err(error) => Err(error.to_string()),
        },
        Place::Instance(id) => none(instance_yaml::read(&InstanceId::from_registry(id), data).problems),
        Place::Server(ip) if ip.parse::<std::net::Ipv4Addr>().is_err() => Err("no address".to_owned()),
        Place::Server(_) if matches!(text, "ENABLED" | "DISABLED") => Ok(()),
        Place::Server(_) => Err("neither ENABLED nor DISABLED".to_owned()),
        Place::Leader
        | Place::ItemInstance(_)
        | Place::Running(_)
        | Place::Failover(_)
        | Place::Failovering(_) => {
            if is_id(text) {
                Ok(())
            } else {
                Err("no id of an instance".to_owned())
            }
        }
        Place::NextJobInstanceIp => {
            text.parse::<std::net::Ipv4Addr>().map(drop).map_err(|error| error.to_string())
        }
        Place::NotAnItem(_) | Place::ItemChild(..) => Err("Java peers know no such node".to_owned()),
        Place::Other if !relative.contains("latch") && !matches!(relative, "leader/election") => {
            Err("Java peers know no such node".to_owned())
        }
        Place::Root
        | Place::Folder(_)
        | Place::LeaderSharding
        | Place::Necessary
        | Place::Processing
        | Place::Item(_)
        | Place::Misfire(_)
        | Place::Disabled(_)
        | Place::FailoverItem(_)
        | Place::Trigger(_)
        | Place::RegistryTime
        | Place::Registered(..)
        | Place::Other => Ok(()),
    }
}
