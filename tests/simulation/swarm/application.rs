//! Applications: they execute as they are told, stop on a cancel, and report; most of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use sidekeeper::coordination::job::contract::answer::Ticket;
use sidekeeper::coordination::job::contract::event::{
    AssignmentReason, CancelReason, Event as Told, Execute, SessionStatus,
};
use sidekeeper::coordination::job::contract::input::Input;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::coordination::job::contract::reattach::OpenExecution;
use sidekeeper::coordination::job::contract::report::{ExecutionResult, Outcome, ProgressReport};
use sidekeeper::extension::{once_listener, reattach_grace};
use sidekeeper::job::Item;

use super::attach::claim;
use super::faults::Fault;
use super::invariants::Invariant;
use super::machine::{Letter, StreamEnd, Word};
use super::world::{Event, World};
use super::{MILLISECOND, Micros, SECOND};

/// An execution that has ended, or goes on, without a stream.
#[derive(Debug, Clone)]
pub(super) struct Done {
    pub(super) execute: Execute,
    pub(super) outcome: Outcome,
}

/// Something that is being executed.
#[derive(Debug)]
pub(super) struct Execution {
    pub(super) execute: Execute,
    /// When it ends; `None`: never.
    pub(super) ends: Option<Micros>,
    pub(super) outcome: Outcome,
    /// Whether it ignores cancels.
    pub(super) disobeys: bool,
    /// It was cancelled, or has no right to go on, and goes on all the same.
    pub(super) is_rogue: bool,
}

#[derive(Debug, Default)]
pub(super) struct Application {
    pub(super) up: bool,
    pub(super) life: u32,
    pub(super) stream: Option<u32>,
    pub(super) last_stream: u32,
    /// The messages on their way to it.
    pub(super) inbox: VecDeque<Letter>,
    pub(super) stopped_until: Micros,
    pub(super) items: BTreeSet<Item>,
    generation: i64,
    /// Whether it was told on this stream that it is attached.
    pub(super) attached: bool,
    /// Executions that go on by the first message of this stream, and were not sent on it yet: their results are kept
    /// until then.
    resumed: BTreeSet<String>,
    pub(super) executions: BTreeMap<String, Execution>,
    /// The executions that have ended while there was no stream.
    results: Vec<Done>,
    /// Results that were reported and not acknowledged.
    pub(super) unanswered: Vec<Execute>,
    /// Until when the session may be acted on, as it was told.
    pub(super) lease_until: Option<Micros>,
    /// Whether that was over, and nothing was read since of a lease that is not.
    silent: bool,
    /// The executions that it begins once it has read all messages, among them those of a lease that is not over.
    waiting: Vec<Execute>,
    /// Until when it goes on without a stream.
    pub(super) away_until: Option<Micros>,
    /// When it looks after its executions.
    act_at: Option<Micros>,
    /// Whether it may have reported an execution that its stream does not know.
    pub(super) may_be_unknown: bool,
    /// Whether it was attached before, in this life.
    known: bool,
    /// Whether it is stopping, and has said so on this stream.
    stopping: bool,
    /// Whether it was told on this stream that no execution follows.
    drained: bool,
}

impl Application {
    /// The open executions that it names.
    pub(super) fn claims(&self) -> Vec<OpenExecution> {
        let running = self.executions.values().filter(|execution| !execution.is_rogue);
        let running =
            running.map(|open| claim(&Done { execute: open.execute.clone(), outcome: Outcome::Success }));
        running.chain(self.results.iter().map(claim)).collect()
    }

    /// Whether its next stream can be known as such.
    pub(super) fn is_known(&self) -> bool {
        self.known
    }

    pub(super) fn open_stream(&mut self, stream: u32) {
        (self.stream, self.last_stream) = (Some(stream), stream);
        (self.attached, self.generation, self.known) = (false, 0, true);
        (self.stopping, self.drained) = (false, false);
        self.resumed.clear();
        self.silent = false;
        self.away_until = None;
    }

    /// It begins anew.
    pub(super) fn forget(&mut self) {
        self.results.clear();
        self.unanswered.clear();
        self.executions.clear();
        self.items.clear();
        self.waiting.clear();
        self.resumed.clear();
        (self.lease_until, self.away_until, self.act_at) = (None, None, None);
        (self.known, self.may_be_unknown) = (false, false);
    }

    /// It has been stopped, and looks after its executions at once.
    pub(super) fn act_now(&mut self, now: Micros) {
        self.act_at = Some(now);
    }

    pub(super) fn is_stopped(&self, now: Micros) -> bool {
        self.stopped_until > now
    }

    pub(super) fn is_lease_over(&self, now: Micros) -> bool {
        self.lease_until.is_some_and(|until| now >= until)
    }

    /// Whether it has executed everything, and nothing is to come.
    fn is_done(&self) -> bool {
        self.drained && self.executions.is_empty() && self.waiting.is_empty()
    }

    /// Whether it can report the result of an execution: there is a stream, on which the execution was sent.
    fn can_report(&self, id: &str) -> bool {
        self.attached && self.stream.is_some() && !self.resumed.contains(id)
    }
}

impl World {
    /// The application reads its messages.
    pub(super) fn read_stream(&mut self, m: usize) {
        let now = self.now;
        let application = &mut self.machines[m].application;
        if !application.up || application.is_stopped(now) {
            return;
        }
        // A process that slept for longer than its lease learns that first.
        self.mind_lease(m);
        loop {
            let application = &mut self.machines[m].application;
            if application.inbox.front().is_none_or(|letter| letter.at > now) {
                break;
            }
            let Some(Letter { stream, word, .. }) = application.inbox.pop_front() else { break };
            if application.stream != Some(stream) {
                continue;
            }
            match word {
                Word::Told(Told::Execute(execute)) => {
                    if self.machines[m].application.drained {
                        let item = execute.item;
                        self.fail(Invariant::Assigned, || {
                            format!("item {item} starts on m{m} after Draining")
                        });
                    }
                    if !self.goes_on(m, &execute) {
                        self.machines[m].application.waiting.push(execute);
                    }
                }
                Word::Told(Told::Cancel { execution_id, item, reason }) => {
                    let waiting = &mut self.machines[m].application.waiting;
                    let place = waiting.iter().position(|execute| execute.execution_id == execution_id);
                    match place.map(|place| waiting.remove(place)) {
                        Some(execute) => {
                            self.note(m, || format!("item {item} is not begun: {reason:?}"));
                            let outcome = match reason {
                                CancelReason::LeaseLost => {
                                    Outcome::Interrupted("the lease is lost".to_owned())
                                }
                                _ => Outcome::Rejected(format!("{reason:?}")),
                            };
                            self.report(m, execute, outcome, 0);
                        }
                        None => self.cancelled(m, &execution_id, item, reason),
                    }
                }
                Word::Told(told) => self.told(m, told),
                Word::Closed(end) => self.stream_ended(m, end),
            }
        }
        self.mind_lease(m);
        let application = &mut self.machines[m].application;
        if !application.silent {
            for execute in std::mem::take(&mut application.waiting) {
                self.execute(m, execute);
            }
        }
        self.plan_act(m);
    }

    /// Whether its stream is to the sidecar that runs: it does not answer the messages of a former one.
    fn is_heard(&mut self, m: usize) -> bool {
        let speaks = self.machines[m].seat().and_then(|seat| seat.stream);
        speaks == self.machines[m].application.stream
    }

    fn told(&mut self, m: usize, told: Told) {
        let now = self.now;
        match told {
            Told::Attached { resumed, .. } => self.attached(m, &resumed),
            Told::AssignmentChanged { assignment, reason, .. } => {
                let generation = assignment.generation;
                let application = &mut self.machines[m].application;
                application.generation = generation.0;
                application.items = assignment.items.iter().map(|assigned| assigned.item).collect();
                if reason != AssignmentReason::SessionLost && self.is_heard(m) {
                    let takes = self.behaviour.below(30 * MILLISECOND);
                    let ticket = self.ticket(m);
                    self.call_at(m, now + takes, Input::Acknowledge(ticket, generation));
                }
            }
            Told::SessionChanged { lease_end, status } => self.lease_told(m, status, lease_end),
            Told::LeaseRenewed { lease_end } => {
                self.lease_told(m, SessionStatus::Connected, Some(lease_end));
            }
            Told::CallListener(call) => {
                let takes = self.behaviour.below(60 * MILLISECOND);
                let silent = self.behaviour.once_in(20) && !self.is_calm;
                let fails = self.behaviour.once_in(10) && !self.is_calm;
                let outcome = if fails { Err("no books today".to_owned()) } else { Ok(()) };
                if !silent {
                    let ticket = self.ticket(m);
                    self.call_at(m, now + takes, Input::ListenerReport(ticket, call.call_id, outcome));
                }
            }
            Told::Draining { .. } => self.machines[m].application.drained = true,
            Told::JobChanged { .. }
            | Told::Waiting(_)
            | Told::LeadershipChanged(_)
            | Told::Execute(_)
            | Told::Cancel { .. } => {}
        }
    }

    /// The lease ends then, on the clock that all processes of the machine share: a lease that is sent or read
    /// late has the same end.
    fn lease_told(&mut self, m: usize, status: SessionStatus, end: Option<Duration>) {
        let machine = &mut self.machines[m];
        let until = end.map(|end| machine.when_mono(end.min(Duration::from_secs(1 << 30))));
        machine.application.lease_until = until;
        self.mind_lease(m);
        let application = &mut self.machines[m].application;
        if status == SessionStatus::Connected && !application.is_lease_over(self.now) {
            application.silent = false;
        }
    }

    fn ticket(&mut self, m: usize) -> Ticket {
        let Some(seat) = self.machines[m].seat() else { return Ticket(0) };
        seat.tickets += 1;
        Ticket(seat.tickets)
    }

    /// On a new stream: executions that do not go on are stopped.
    fn attached(&mut self, m: usize, resumed: &[String]) {
        let application = &mut self.machines[m].application;
        application.attached = true;
        application.results.retain(|done| resumed.contains(&done.execute.execution_id));
        application.resumed = resumed.iter().cloned().collect();
        let stopped: Vec<String> =
            application.executions.keys().filter(|id| !resumed.contains(*id)).cloned().collect();
        for id in stopped {
            self.stop_execution(m, &id, "not resumed");
        }
    }

    fn execute(&mut self, m: usize, execute: Execute) {
        let now = self.now;
        let rates = self.plan.rates;
        // Drawn in any case, so that one execution changes no other.
        let dice: [u64; 6] = std::array::from_fn(|_| self.behaviour.next());
        let storm = now < self.plan.storm && !self.is_calm;
        let happens = |dice: u64, times: u64| storm && times > 0 && dice.is_multiple_of(times);
        let mut ends = Some(now + 500 + dice[0] % self.plan.duration);
        if happens(dice[1], rates.slow_execution) {
            self.counts.add(Fault::SlowApplication);
            ends = Some(now + (1 + dice[0] % 8) * 1_000 * MILLISECOND);
        } else if happens(dice[2], rates.hung) {
            self.counts.add(Fault::HungApplication);
            ends = None;
        }
        let failed = happens(dice[3], rates.failed);
        let outcome = match dice[4] % 4 {
            _ if !failed => Outcome::Success,
            0 => Outcome::Rejected("not today".to_owned()),
            1 => Outcome::Interrupted("it took its lease for lost".to_owned()),
            _ => Outcome::Failure("it went wrong".to_owned()),
        };
        if failed {
            self.counts.add(Fault::FailedExecution);
        }
        let disobeys = happens(dice[5], rates.disobedient);
        self.check_begin(m, &execute);
        self.executions += 1;
        self.note(m, || {
            let end = ends.map(|ends| (ends - now) / MILLISECOND);
            format!(
                "begins item {} ({}), ends in {end:?} ms, {outcome:?}",
                execute.item, execute.execution_id
            )
        });
        if dice[0].is_multiple_of(16) {
            let ticket = self.ticket(m);
            let data: Arc<[u8]> = dice[4].to_le_bytes().as_slice().into();
            self.note_checkpoint(m, ticket.0, &execute, Arc::clone(&data));
            let checkpoint = Some(data);
            let execution_id = execute.execution_id.clone();
            let progress =
                ProgressReport { execution_id, extend_deadline: dice[3].is_multiple_of(2), checkpoint };
            // A later call keeps the calls after it waiting, as a slow connection does: that is a fault.
            let after = if storm { dice[5] % self.plan.duration } else { 0 };
            self.call_at(m, now + after, Input::Progress(ticket, progress));
            self.machines[m].application.may_be_unknown = true;
        }
        let id = execute.execution_id.clone();
        let execution = Execution { execute, ends, outcome, disobeys, is_rogue: false };
        self.machines[m].application.executions.insert(id, execution);
    }

    /// Goes on with an execution that is told on a new stream, or reports it. Tells whether it is known.
    fn goes_on(&mut self, m: usize, execute: &Execute) -> bool {
        let application = &mut self.machines[m].application;
        application.resumed.remove(&execute.execution_id);
        if application.executions.contains_key(&execute.execution_id) {
            return true;
        }
        let results = &mut application.results;
        let Some(place) = results.iter().position(|done| done.execute.execution_id == execute.execution_id)
        else {
            return false;
        };
        let done = results.remove(place);
        self.report(m, done.execute, done.outcome, 0);
        true
    }

    fn cancelled(&mut self, m: usize, id: &str, item: Item, reason: CancelReason) {
        let application = &mut self.machines[m].application;
        let Some(execution) = application.executions.get_mut(id) else { return };
        if execution.disobeys && reason != CancelReason::LeaseLost {
            if !execution.is_rogue {
                execution.is_rogue = true;
                self.counts.add(Fault::Disobedience);
                self.note(m, || format!("does not stop item {item} ({reason:?})"));
            }
            return;
        }
        let Some(execution) = application.executions.remove(id) else { return };
        self.note(m, || format!("stops item {item} ({reason:?})"));
        self.check_ended(m, &execution, false);
        let late = self.plan.rates.late_report;
        let mut after = self.behaviour.below(5 * MILLISECOND);
        if late > 0 && self.behaviour.once_in(late) && !self.is_calm {
            self.counts.add(Fault::LateReport);
            after += self.behaviour.below(1_500 * MILLISECOND);
        }
        self.report(m, execution.execute, Outcome::Failure(format!("stopped: {reason:?}")), after);
    }

    /// Reports a result, after a while; now and then twice.
    fn report(&mut self, m: usize, execute: Execute, outcome: Outcome, after: Micros) {
        let at = self.now + 20 + after + self.behaviour.below(800);
        let duplicate = self.plan.rates.duplicate;
        let twice = duplicate > 0 && self.behaviour.once_in(duplicate) && !self.is_calm;
        let times = if self.is_heard(m) { 1 + u64::from(twice) } else { 0 };
        for _ in 0..times {
            let ticket = self.ticket(m);
            let result =
                ExecutionResult { execution_id: execute.execution_id.clone(), outcome: outcome.clone() };
            self.call_at(m, at, Input::Report(ticket, vec![result]));
        }
        if twice {
            self.counts.add(Fault::DuplicateReport);
            self.machines[m].application.may_be_unknown = true;
        }
        self.machines[m].application.unanswered.push(execute);
    }

    /// The application looks after its executions.
    pub(super) fn act(&mut self, m: usize) {
        let now = self.now;
        let application = &mut self.machines[m].application;
        if application.act_at.is_none_or(|at| at > now) {
            return;
        }
        application.act_at = None;
        if !application.up || application.is_stopped(now) {
            return;
        }
        self.mind_lease(m);
        let application = &mut self.machines[m].application;
        if application.away_until.is_some_and(|until| now >= until) {
            application.away_until = None;
            self.stop_executions(m, "nobody is back");
            self.machines[m].application.results.clear();
            self.machines[m].application.items.clear();
        }
        let application = &mut self.machines[m].application;
        let ended = |execution: &&Execution| execution.ends.is_some_and(|ends| ends <= now);
        let due = application.executions.values().filter(ended);
        let due: Vec<String> = due.map(|execution| execution.execute.execution_id.clone()).collect();
        for id in due {
            let application = &mut self.machines[m].application;
            let Some(execution) = application.executions.remove(&id) else { continue };
            self.note(m, || format!("ends item {} ({id})", execution.execute.item));
            self.check_ended(m, &execution, true);
            let Execution { execute, outcome, is_rogue, .. } = execution;
            if is_rogue && self.machines[m].application.stream.is_none() {
                continue;
            }
            if is_rogue {
                self.machines[m].application.may_be_unknown = true;
            }
            if self.machines[m].application.can_report(&id) {
                self.report(m, execute, outcome, 0);
            } else {
                self.machines[m].application.results.push(Done { execute, outcome });
            }
        }
        self.plan_act(m);
    }

    /// An application whose lease is over stops by itself.
    fn mind_lease(&mut self, m: usize) {
        let application = &mut self.machines[m].application;
        if application.is_lease_over(self.now) {
            application.silent = true;
            self.stop_executions(m, "the lease is over");
        }
    }

    fn plan_act(&mut self, m: usize) {
        let now = self.now;
        let application = &mut self.machines[m].application;
        let ends = application.executions.values().filter_map(|execution| execution.ends);
        let obeys = application.executions.values().any(|execution| !execution.is_rogue);
        let lease = application.lease_until.filter(|_| obeys);
        let next = ends.chain(lease).chain(application.away_until).min();
        let Some(next) = next.map(|next| next.max(now + 1)) else { return };
        if application.act_at.is_none_or(|at| at > next || at <= now) {
            application.act_at = Some(next);
            self.at(next, Event::Act(m));
        }
    }

    fn stop_execution(&mut self, m: usize, id: &str, why: &str) {
        let Some(execution) = self.machines[m].application.executions.remove(id) else { return };
        if execution.is_rogue {
            // Nothing stops it.
            self.machines[m].application.executions.insert(id.to_owned(), execution);
            return;
        }
        self.note(m, || format!("stops item {} ({id}): {why}", execution.execute.item));
        self.check_ended(m, &execution, false);
        let application = &mut self.machines[m].application;
        let outcome = Outcome::Interrupted(why.to_owned());
        if application.stream.is_none() || why != "the lease is over" {
            return;
        }
        if application.can_report(id) {
            application.may_be_unknown = true;
            self.report(m, execution.execute, outcome, 0);
        } else {
            // Whether it goes on is not known yet; its result is kept for when it is told.
            application.results.push(Done { execute: execution.execute, outcome });
        }
    }

    pub(super) fn stop_executions(&mut self, m: usize, why: &str) {
        let ids: Vec<String> = self.machines[m].application.executions.keys().cloned().collect();
        for id in ids {
            self.stop_execution(m, &id, why);
        }
    }

    /// The stream is over: the application goes on for as long as its job allows, and comes back.
    pub(super) fn stream_ended(&mut self, m: usize, end: StreamEnd) {
        let grace = self.grace();
        let now = self.now;
        let application = &mut self.machines[m].application;
        (application.stream, application.attached) = (None, false);
        application.waiting.clear();
        let unanswered = std::mem::take(&mut application.unanswered);
        let lease = application.lease_until;
        self.note(m, || "the stream is over".to_owned());
        if grace.is_zero() || end != StreamEnd::Broken {
            self.stop_executions(m, "the stream is over");
            self.machines[m].application.results.clear();
            self.machines[m].application.items.clear();
        } else {
            // By the machine's clock, which is the sidecar's, too.
            let machine = &mut self.machines[m];
            let until = machine.when_mono(machine.mono(now) + grace);
            let application = &mut machine.application;
            application.away_until = Some(lease.map_or(until, |lease| lease.min(until)));
            application.results.extend(
                unanswered
                    .into_iter()
                    .filter(|execute| !execute.execution_id.is_empty())
                    .map(|execute| Done { execute, outcome: Outcome::Success }),
            );
        }
        let life = self.machines[m].application.life;
        let pause = if end == StreamEnd::Stopped && !self.is_calm { 5_000 } else { 300 };
        let soon = now + 1 + self.behaviour.below(pause * MILLISECOND);
        self.at(soon, Event::Attach(m, life));
        self.plan_act(m);
    }

    /// An application stops, as a client library does: it tells its sidecar, executes what was started, and leaves.
    pub(super) fn stop_application(&mut self, m: usize, patience: Micros) -> bool {
        let now = self.now;
        let is_heard = self.is_heard(m);
        let application = &mut self.machines[m].application;
        let (up, attached) = (application.up && !application.is_stopped(now), application.attached);
        let Some(stream) = application.stream.filter(|_| up && attached && is_heard && !application.stopping)
        else {
            return false;
        };
        application.stopping = true;
        self.call(m, Input::Drain { deadline: None });
        self.at(now + MILLISECOND, Event::EndStream(m, stream, now + patience));
        true
    }

    /// An application that stops ends its stream if it is done, or waits no longer; and then its process ends.
    pub(super) fn end_stream(&mut self, m: usize, stream: u32, patience: Micros) {
        let now = self.now;
        let application = &self.machines[m].application;
        let is_stopping = application.up && application.stopping && application.stream == Some(stream);
        if !is_stopping {
            return;
        }
        let waits = !application.is_done() && now < patience;
        if waits || application.is_stopped(now) {
            let again = now + 5 * MILLISECOND;
            return self.at(again, Event::EndStream(m, stream, patience));
        }
        self.note(m, || "the application has stopped".to_owned());
        let waited_for = !self.grace().is_zero();
        self.end_application(m);
        self.call(m, if waited_for { Input::Left } else { Input::Detached });
        let life = self.machines[m].application.life;
        let later = now + 50 * MILLISECOND + self.behaviour.below(2 * SECOND);
        self.at(later, Event::Revive(m, life));
    }

    /// How long applications go on without a stream, as clients read it from the job: not at all with a once-listener.
    fn grace(&self) -> Duration {
        let job = &self.plan.configuration;
        let (grace, _) = reattach_grace::of(job);
        if once_listener::of(job).0.is_some() { Duration::ZERO } else { grace }
    }

    /// Executions that never end do end.
    pub(super) fn unhang(&mut self, m: usize) {
        let now = self.now;
        let soon = now + self.behaviour.below(300 * MILLISECOND);
        for execution in self.machines[m].application.executions.values_mut() {
            execution.ends = Some(execution.ends.map_or(soon, |ends| ends.min(soon.max(now))));
        }
        self.plan_act(m);
    }

    /// Whether an execution was told for a fire of the schedule.
    pub(super) fn is_of_schedule(execute: &Execute) -> bool {
        matches!(execute.source, Source::Schedule | Source::Misfire)
    }
}
