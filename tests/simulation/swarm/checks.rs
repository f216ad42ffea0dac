//! What is looked at when something is told, begun, ended, written: the invariants that hold at every moment.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use sidekeeper::coordination::job::contract::commit::Purpose;
use sidekeeper::coordination::job::contract::event::{Assignment, AssignmentReason, Execute};
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::elasticjob::path::Place;
use sidekeeper::elasticjob::{config_yaml, handoff_policy, instance_yaml};
use sidekeeper::job::{InstanceId, Item};
use sidekeeper::tree::{Node, Operation, Path};

use super::application::Execution;
use super::client::Link;
use super::interruptions::Interruptions;
use super::invariants::Invariant;
use super::world::World;
use super::{Micros, SECOND};

/// What a ZooKeeper server takes in one request, in bytes.
const REQUEST_BYTES_MAX: usize = 1024 * 1024;
/// Requests of one sidecar that wait at most: one commit of each purpose, a reading of each kind, latches, a proof.
const LINE_MAX: usize = 40;
/// Messages to one application that wait at most while it reads.
const INBOX_MAX: usize = 2_000;
/// How long a resharding may be due without a cause that is reported: sessions have to end first, and names are waited for.
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

/// What is remembered for the checks.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// The newest token that was told, for each item.
    tokens: BTreeMap<Item, i64>,
    /// The store: the highest token that it has seen for each item, and whose.
    store: BTreeMap<Item, (i64, String)>,
    /// Writes that the store refused.
    refused: Vec<String>,
    /// What was started, for each item.
    pub(super) starts: BTreeMap<Item, Vec<Start>>,
    /// The tokens of the executions that were told, until they are recorded.
    told: BTreeMap<String, (Item, i64)>,
    /// What was started in the registry: in which session, and whose executions' ids begin how.
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
    /// When items were last divided by ElasticJob's rules, which asks nobody.
    pub(super) divided: BTreeMap<Item, Micros>,
    /// When an item was last flagged as crashed.
    pub(super) flagged: BTreeMap<Item, Micros>,
    /// When a flag that nobody of ours has put there was last taken away.
    pub(super) unflagged: BTreeMap<Item, Micros>,
    /// From when until when an operator had disabled a server.
    pub(super) disabled: Vec<(Micros, Micros)>,
    /// When an item was last told to a machine that did not have it.
    handed: BTreeMap<(usize, Item), Micros>,
    /// When somebody was last seen among the instances who does not say how it hands over.
    pub(super) stock_at: Option<Micros>,
    /// Since when a resharding has been due while somebody could have carried it out, and nobody has said why it waits.
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
        // What was started while nobody could be told is told for the first time on return.
        let is_known = self.checks.told.values().any(|known| *known == (execute.item, execute.token.0));
        if execute.resumed && is_known {
            return;
        }
        let (item, token) = (execute.item, execute.token.0);
        let monitored = execute.configuration.monitor_execution;
        let newest = self.checks.tokens.entry(item).or_default();
        let before = *newest;
        *newest = token.max(before);
        // Without running nodes whoever is cut off may start what was his before; the store refuses him.
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
        // What an operator took away while it was being started.
        let disowned = self.was_disowned(item);
        let relay = self.is_relay();
        let Some(seat) = self.machines[m].seat() else { return };
        seat.tokens.insert(token);
        // What was begun before a stream came is told after the assignment, though the item may have gone meanwhile.
        let late = disowned || execute.resumed;
        if !seat.told.contains(&item) && execute.source != Source::Failover && !late && !relay {
            let items = seat.told.clone();
            self.fail(Invariant::Assigned, || {
                format!("m{m} executes item {item}, and was assigned {items:?}")
            });
        }
        self.check_once(m, execute);
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
        let twice = before.clone().find(|start| {
            let covers = start.source == Source::Misfire && start.scheduled >= execute.scheduled;
            covers || (start.source == Source::Schedule && start.scheduled == execute.scheduled)
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
            // Who is stopped, or goes on just now, does nothing, and learns first that its lease is over, or its stream;
            // whose lease ends now stops now. Without running nodes nobody knows what is executed, as in ElasticJob.
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
        // As long as the node of an earlier session stands, it is as after a crash: others take over when that has gone.
        let instance = self.ensemble.get(&self.paths.instance(&me));
        let has_another =
            instance.is_some_and(|node| node.stat.ephemeral_owner.is_some_and(|owner| owner != id));
        let mut left: Vec<Path> = Vec::new();
        let paths = [self.paths.instance(&me), self.paths.leader(), self.paths.fleet().member(&me)];
        left.extend(paths.into_iter().filter(|path| ours(path)));
        for item in (0..self.plan.configuration.sharding_total_count.max(8)).map(Item) {
            // What fails over is left as after a crash, and flagged.
            let flagged = self.ensemble.get(&self.paths.failover_item(item)).is_some();
            // Of an item that the job has no more the leader removes the flag first.
            let surplus = item.0 >= self.plan.configuration.sharding_total_count;
            let recently = |at: Option<&Micros>| at.is_some_and(|at| self.now < at + SECOND);
            let was_flagged = surplus && recently(self.checks.flagged.get(&item));
            let flagged = flagged || was_flagged || recently(self.checks.unflagged.get(&item));
            let path = self.paths.item_running(item);
            // What a former session has left goes with that.
            let is_its = |node: &Node| {
                let stays = node.stat.ephemeral_owner.is_none_or(|owner| owner == id);
                stays && seat.tokens.contains(&node.stat.created.0)
            };
            // Who was stopped, and dies while it executes, leaves what a crash leaves.
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

    /// A sidecar tells an assignment: in a fleet of sidecars whoever had an item before has been told to let go, or its
    /// lease is over.
    pub(super) fn check_assignment(&mut self, m: usize, assignment: &Assignment, reason: AssignmentReason) {
        let items: BTreeSet<Item> = assignment.items.iter().map(|assigned| assigned.item).collect();
        let Some(seat) = self.machines[m].seat() else { return };
        let added: Vec<Item> = items.difference(&seat.told).copied().collect();
        seat.told = items;
        self.checks.handed.extend(added.iter().map(|item| ((m, *item), self.now)));
        // Who had an item when an operator took it away, or a division by ElasticJob's rules, and has not heard of it, is
        // not told by whom it comes to.
        let disowned = |other: usize, item: &Item| {
            let handed = self.checks.handed.get(&(other, *item));
            let mut taken = self.checks.disowned.get(item).into_iter().chain(self.checks.divided.get(item));
            self.was_disowned(*item) || taken.any(|taken| handed.is_some_and(|at| at < taken))
        };
        // Where somebody does not say how it hands over, all is divided at once, as in ElasticJob; also a while after that
        // is gone, by a leader that has not seen it go.
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
            // Whose stream has broken works on what it has until its grace is over, and cannot be told to stop.
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

    /// Whether an operator has deleted the node that says who owns an item, a short while ago.
    fn was_disowned(&self, item: Item) -> bool {
        self.checks.disowned.get(&item).is_some_and(|at| self.now < at + 2 * SECOND)
    }

    /// Whether all that stand among the instances say how they hand over: then that is in force.
    pub(super) fn all_hand_over(&self) -> bool {
        let instances = self.ensemble.children(&self.paths.root().child("instances"));
        let says = |id: &String| {
            let member = self.paths.fleet().members().try_child(id);
            member.is_ok_and(|member| self.ensemble.get(&member).is_some())
        };
        instances.iter().all(says)
    }

    /// Notes that somebody stands among the instances who does not say how it hands over: only operators bring that about.
    pub(super) fn note_stock(&mut self) {
        if !self.all_hand_over() {
            self.checks.stock_at = Some(self.now);
        }
    }

    /// Once a second: a resharding that waits for long has a cause that somebody reports. Who reports it is the leader, so it
    /// may be silent for a while when another one leads; what counts is for how long nobody has said anything.
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

/// Whether a Java peer reads what is written at a path of the job.
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
