//! The invariants, at each step and at the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use jiff::{SignedDuration, Timestamp};
use sidekeeper::proto;
use sidekeeper::proto::ExecutionSource;
use sidekeeper::tree::{Node, Path, SessionId, WatchEvent};

use crate::executor::Process;
use crate::sidecar::NAMESPACE;
use crate::world::{SESSION_TIMEOUT, Start, World};

/// How long a running node may exist without its execution, or the reverse, without disturbances.
const ROUND_TRIP: Duration = Duration::from_millis(500);
/// The time after which a disturbance has no more effect: sessions of dead processes, leases and `reattach_grace` have ended.
pub const SETTLED: Duration = Duration::from_secs(20);

impl World {
    /// P2: no other application executes the item.
    pub fn check_single_executor(&self, index: usize, job: usize, item: u32, id: &str) {
        let excused = |app: usize| self.apps[app].unresponsive || self.apps[app].hung;
        let none = Vec::new();
        let executing = self.executing.get(&(job, item)).unwrap_or(&none);
        let other = executing.iter().find(|(app, other)| other != id && !excused(*app));
        if let Some((app, other)) = other.filter(|_| !excused(index)) {
            self.violation(
                "P2",
                &format!("item {item} of job {job} runs at {app} ({other}), and starts at {index} ({id})"),
            );
        }
    }

    /// P3: tokens grow with each execution.
    pub fn check_token(&mut self, job: usize, execute: &proto::Execute) {
        let newest = self.tokens.entry((job, execute.item)).or_default();
        // A message that was not read from a broken stream is sent again.
        let least = *newest + i64::from(!execute.resumed);
        let token = execute.fencing_token;
        if token < least {
            let what = format!("item {} of job {job} has token {token} after {newest}", execute.item);
            self.violation("P3", &what);
        }
        *newest = token;
    }

    /// P5: the executions with the parameter of an item's trigger are of this item and for one instant.
    pub fn check_item_trigger(&mut self, job: usize, execute: &proto::Execute) {
        if execute.job_parameter.is_empty() {
            return;
        }
        let known = self.item_triggers.get_mut(&execute.job_parameter);
        let is_it = known.is_some_and(|(of, item, instant)| {
            let same = *instant.get_or_insert(execute.scheduled_time.unwrap_or_default());
            (*of, *item) == (job, execute.item) && Some(same) == execute.scheduled_time
        });
        if !is_it {
            self.violation("P5: a trigger of an item", &format!("job {job}: {execute:?}"));
        }
    }

    /// P5: no instant starts twice by the schedule, and no misfire re-run covers an instant that was executed or re-run.
    pub fn check_started_once(&self, start: &Start) {
        let first = start.attempt == 1;
        if !first || !matches!(start.source, ExecutionSource::Schedule | ExecutionSource::Misfire) {
            return;
        }
        // A trigger while an item is busy is re-run for the newest fire.
        let asked = self.triggered.get(&start.job).is_some_and(|at| *at + SETTLED > start.at);
        if asked && start.source == ExecutionSource::Misfire {
            return;
        }
        let same = |other: &&Start| other.job == start.job && other.item == start.item && other.attempt == 1;
        let again = self.starts.iter().rev().filter(same).find(|other| match other.source {
            ExecutionSource::Misfire => other.scheduled >= start.scheduled,
            ExecutionSource::Schedule => other.scheduled == start.scheduled,
            _ => false,
        });
        if let Some(again) = again {
            self.violation("P5: no fire twice", &format!("{start:?} after {again:?}"));
        }
    }

    fn read(&self, path: &Path) -> Option<Node> {
        self.outside.get(path).now_or_never().unwrap().unwrap()
    }

    /// Whether an instance owns an item in the registry.
    pub fn is_owned_by(&self, job: usize, item: u32, instance: &str) -> bool {
        let owner = self.read(&self.item_path(job, item));
        owner.is_some_and(|owner| *owner.data == *instance.as_bytes())
    }

    /// The node with the owner of an item.
    pub fn item_path(&self, job: usize, item: u32) -> Path {
        self.job_path(job, &format!("sharding/{item}/instance"))
    }

    fn job_path(&self, job: usize, below: &str) -> Path {
        Path::parse(NAMESPACE).unwrap().child(&self.jobs[job].name).child(below)
    }

    /// All nodes of the registry.
    pub fn nodes(&self) -> Vec<Node> {
        let watch = self.outside.watch(&Path::root(), Arc::new(|_: &Path| false));
        let mut watch = watch.now_or_never().unwrap().unwrap();
        match watch.try_recv() {
            Ok(WatchEvent::Snapshot(nodes)) => nodes,
            _ => Vec::new(),
        }
    }

    /// P6: a running node exists exactly while an execution of it is not reported.
    pub fn check_running_nodes(&mut self) {
        let now = self.timeline.now();
        let settled = self.quiet_since.is_some_and(|since| now >= since + SETTLED);
        let bound = if self.exact || settled { ROUND_TRIP } else { SESSION_TIMEOUT + SETTLED };
        let mut odd = BTreeMap::new();
        for job in 0..self.jobs.len() {
            for item in 0..self.jobs[job].total {
                let node = self.read(&self.job_path(job, &format!("sharding/{item}/running")));
                let token = node.map(|node| node.stat.created.0);
                let mut executions = self.executions_of(job, item);
                let found = executions.iter().position(|(_, of)| Some(*of) == token);
                if let Some(found) = found {
                    executions.remove(found);
                } else if let Some(token) = token.filter(|_| !self.waits_for_an_instance(job, item)) {
                    odd.insert(
                        format!("item {item} of job {job} has a running node {token} and no execution"),
                        now,
                    );
                }
                for (app, token) in executions {
                    odd.insert(
                        format!("item {item} of job {job} runs at {app} ({token}) without its node"),
                        now,
                    );
                }
            }
        }
        for (what, since) in &mut odd {
            *since = self.odd.get(what).copied().unwrap_or(now);
            if now > *since + bound {
                self.violation("P6", &format!("{what}, since {:.3}", since.as_secs_f64()));
            }
        }
        self.odd = odd;
    }

    /// Whether an item is flagged for failover, and no instance can take it over.
    fn waits_for_an_instance(&self, job: usize, item: u32) -> bool {
        let flag = self.job_path(job, &format!("leader/failover/items/{item}"));
        let mut seats = self.apps.iter().filter(|app| app.alive && !app.left).map(|app| &app.seats[job]);
        self.read(&flag).is_some() && seats.all(|seat| seat.attachment.is_none())
    }

    /// The applications that execute an item, or have not reported it, with the tokens.
    fn executions_of(&self, job: usize, item: u32) -> Vec<(usize, i64)> {
        let mut executions = Vec::new();
        for (index, app) in self.apps.iter().enumerate().filter(|(_, app)| app.alive) {
            let seat = &app.seats[job];
            let open = seat.open.values().map(|open| &open.execute);
            let all = open.chain(seat.results.values().map(|(execute, _)| execute));
            // An unresponsive application may go on although it lost the item.
            let counts = all.filter(|execute| execute.item == item && !app.unresponsive && !app.hung);
            executions.extend(counts.map(|execute| (index, execute.fencing_token)));
        }
        executions
    }

    /// A session has no nodes after a complete drain, except running nodes for failover.
    pub fn check_drained(&self, session: SessionId) {
        for node in self.nodes() {
            let path = node.path.as_str();
            let is_own = node.stat.ephemeral_owner == Some(session);
            // An instance leaves a latch at its turn or its timeout.
            if is_own && !path.contains("/latch/") && !path.ends_with("/running") {
                self.violation("nothing is left after a drain", path);
            }
        }
    }

    /// The session of a process that was stopped has ended.
    pub fn check_session_left(&self, process: Process) {
        let left = self.ensemble.sessions_of(process);
        if self.exact && !left.is_empty() {
            self.violation("nothing is left after a drain", &format!("sessions {left:?}"));
        }
    }

    /// A process without attached applications has only the task of its session, and at most one for each job.
    pub fn check_bounds(&self, index: usize) {
        let Some(life) = &self.places[index].life else { return };
        let attached = self.streams.values().any(|stream| self.apps[stream.app].place == index);
        let tasks = self.executor.tasks_of(life.process);
        if !attached && tasks > 1 + self.jobs.len() {
            self.violation("what has ended leaves no task", &format!("sidecar {index} has {tasks}"));
        }
    }

    /// P1: each item belongs to an instance that is online, and exactly one application has it in its assignment.
    pub fn check_all_owned(&self) {
        for job in 0..self.jobs.len() {
            let seats = self.apps.iter().filter(|app| app.alive).map(|app| &app.seats[job]);
            if seats.clone().all(|seat| seat.attachment.is_none()) {
                continue;
            }
            for item in 0..self.jobs[job].total {
                let owner = self.read(&self.job_path(job, &format!("sharding/{item}/instance")));
                let owner = owner.map(|node| String::from_utf8_lossy(&node.data).into_owned());
                let online = owner.as_ref().is_some_and(|owner| {
                    self.read(&self.job_path(job, &format!("instances/{owner}"))).is_some()
                });
                let know = seats.clone().filter(|seat| seat.items.contains_key(&item)).count();
                if !online || know != 1 {
                    let what =
                        format!("item {item} of job {job} is {owner:?}'s; {know} applications have it");
                    self.violation("P1: every item is owned", &what);
                }
            }
        }
    }

    /// P5: an execution that ended a while ago was recorded exactly once.
    pub fn check_all_recorded(&self) {
        let old = self.timeline.now().saturating_sub(Duration::from_millis(self.duration_max + 1_000));
        for start in self.starts.iter().filter(|start| start.at < old) {
            let times = self.recorded.get(&start.execution_id).copied().unwrap_or_default();
            if times != 1 {
                let what = format!("{start:?} of application {}: {times} times", start.app);
                self.violation("P5: a completion is recorded once", &what);
            }
        }
    }

    /// P5: one execution for each item and fire between two moments.
    pub fn check_each_fire_once(&self, from: Duration, to: Duration) {
        let at = |time: Duration| crate::timeline::start_of_time() + time;
        for (number, job) in self.jobs.iter().enumerate() {
            let mut fire = at(from).as_second() / job.period * job.period + job.period;
            while Timestamp::from_second(fire).unwrap() + SignedDuration::from_secs(1) < at(to) {
                let instant = Timestamp::from_second(fire).unwrap();
                for item in 0..job.total {
                    let starts = self.starts.iter().filter(|start| {
                        start.job == number && start.item == item && start.scheduled == instant
                    });
                    let starts: Vec<_> = starts.collect();
                    if starts.len() != 1 {
                        let what = format!("item {item} of job {number} at {instant}: {starts:?}");
                        self.violation("P5: each fire once", &what);
                    }
                }
                fire += job.period;
            }
        }
    }
}
