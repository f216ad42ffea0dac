//! The applications of the world: they execute and stop as they are told, and check the promises at each message.

use std::time::Duration;

use jiff::Timestamp;
use sidekeeper::coordination::job::contract::answer::Ticket;
use sidekeeper::coordination::job::contract::event::{
    AssignmentReason, CancelReason, Event, Execute, ListenerCall,
};
use sidekeeper::coordination::job::contract::input::Input;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::coordination::job::contract::report::{ExecutionResult, Outcome};
use sidekeeper::elasticjob::path::Barrier;
use sidekeeper::job::Item;

use super::{Execution, Happened, Listener, Start, World};

impl World {
    pub(super) fn call_listener(&mut self, index: usize, call: ListenerCall) {
        self.happened.push(Happened::Called(call.barrier, index));
        if self.nodes[index].dead || self.listener == Listener::IsSilent {
            return;
        }
        let takes = jiff::SignedDuration::from_millis(self.random.below(120) as i64);
        self.nodes[index].calls.push((call.call_id, call.barrier, self.now + takes));
    }

    pub(super) fn receive(&mut self, index: usize, event: Event) {
        let seed = self.seed;
        if self.nodes[index].life.alone && !matches!(event, Event::Attached { .. }) {
            // There is no stream.
            return;
        }
        if !matches!(event, Event::Execute(_) | Event::JobChanged { .. }) {
            self.log.push(format!("{} {index} {event:?}", self.now));
        }
        match event {
            Event::AssignmentChanged { assignment, revoked, reason, .. } => {
                let node = &mut self.nodes[index];
                // An item that was taken over belongs to no sharding.
                let assigned = |open: &&Execution| open.execute.source != Source::Failover;
                let open = node.executions.values().filter(assigned);
                let running: Vec<_> = open.map(|open| open.execute.item).collect();
                let moved = reason == AssignmentReason::Resharded
                    && revoked.iter().any(|item| running.contains(item));
                // A Java leader looks whether something runs, and only then begins to divide.
                self.moved_while_running += usize::from(moved);
                assert!(
                    !moved || !self.javas.is_empty(),
                    "seed {seed}: of {revoked:?}, {running:?} were moved from {index} while they ran"
                );
                let node = &mut self.nodes[index];
                assert!(assignment.generation.0 >= node.generation, "seed {seed}: generation went backwards");
                node.generation = assignment.generation.0;
                node.items = assignment.items.iter().map(|assigned| assigned.item).collect();
                let owned = node.items.clone();
                self.note_owned(index, &owned);
            }
            Event::Execute(execute) => self.execute(index, execute),
            Event::CallListener(call) => self.call_listener(index, call),
            Event::Cancel { execution_id, reason, item } => {
                self.cancels.push((item, reason, self.now));
                if self.ignored_cancels.contains(&reason) {
                    return;
                }
                // An obedient application stops at once, and reports.
                let stopped = self.nodes[index].executions.remove(&execution_id);
                let ended = stopped.as_ref().map(|stopped| Happened::Ended(stopped.execute.item, index));
                self.happened.extend(ended);
                let execute = stopped.as_ref().map(|stopped| stopped.execute.clone());
                self.nodes[index].life.unanswered.extend(execute);
                let is_lost = matches!(reason, CancelReason::LeaseLost | CancelReason::ItemLockLost);
                if let Some(stopped) = stopped.filter(|_| is_lost) {
                    self.interrupted.push((stopped.execute.item, self.now));
                }
                self.report(index, Some(item), execution_id);
            }
            Event::JobChanged { problems, .. } => self.nodes[index].problems.push(problems),
            Event::SessionChanged { lease_end, .. } => self.lease_notified(index, lease_end),
            Event::LeaseRenewed { lease_end } => self.lease_notified(index, Some(lease_end)),
            Event::Attached { resumed, .. } => self.attached(index, &resumed),
            Event::Draining { .. } => self.nodes[index].drained = true,
            Event::LeadershipChanged(_) => {}
            Event::Waiting(what) => self.waited.push(what),
        }
    }

    fn lease_notified(&mut self, index: usize, end: Option<Duration>) {
        let now = self.time().mono;
        self.nodes[index].leases.push(end.map(|end| end.saturating_sub(now)));
    }

    pub(super) fn execute(&mut self, index: usize, execute: Execute) {
        let seed = self.seed;
        let item = execute.item;
        assert!(!self.nodes[index].drained, "seed {seed}: item {item} starts at {index} after Draining");
        if self.goes_on(index, &execute) {
            return;
        }
        if self.nodes[index].dead {
            // The application is dead; it executes nothing.
            self.interrupted.push((item, self.now));
            self.record(index, &execute);
            return;
        }
        // A start from before the stream is sent after the assignment, though the item may have been revoked meanwhile.
        let late = execute.resumed || execute.source == Source::Failover;
        assert!(
            self.nodes[index].items.contains(&item) || late,
            "seed {seed}: item {item} is not assigned to {index}"
        );
        for other in &self.nodes {
            let same = other.executions.values().find(|execution| execution.execute.item == item);
            let twice = same.is_some_and(|same| !self.was_erased(item, same.execute.fired));
            assert!(
                !twice,
                "seed {seed}: P2: item {item} runs at {} and {index} at {}",
                other.name, self.now
            );
        }
        if !execute.resumed {
            self.check_lock(index, &execute);
        }
        assert!(execute.task_id.len() <= 255, "seed {seed}: {}", execute.task_id);
        let newest = self.tokens.entry(item).or_default();
        // Without running nodes all executions of one owner have the same.
        let least = *newest + i64::from(execute.configuration.monitor_execution);
        assert!(execute.token.0 >= least, "seed {seed}: P3: token {:?} after {newest}", execute.token);
        *newest = execute.token.0;
        self.record(index, &execute);
        let random = self.random.below(self.duration_max_ms);
        let duration = self.next_duration_ms.unwrap_or(random) as i64;
        let ends = self.now + jiff::SignedDuration::from_millis(duration);
        self.happened.push(Happened::Began(execute.source, item, index));
        self.nodes[index].executions.insert(execute.execution_id.clone(), Execution { execute, ends });
    }

    pub(super) fn record(&mut self, index: usize, execute: &Execute) {
        self.assert_not_executed(index, execute);
        self.starts.push(Start {
            scheduled: execute.scheduled,
            item: execute.item,
            misfire: execute.source == Source::Misfire,
            source: execute.source,
            node: index,
            deadline: execute.deadline,
            attempt: execute.attempt,
            parameter: execute.configuration.job_parameter.clone(),
            checkpoint: execute.checkpoint.as_ref().map(|data| data.to_vec()),
            execution_id: execute.execution_id.clone(),
            lock_token: execute.lock_token.map(|token| token.0),
            monitored: execute.configuration.monitor_execution,
            at: self.now,
        });
    }

    /// P5: no instant is executed twice by the schedule, or made up for after it was executed or made up for.
    fn assert_not_executed(&self, index: usize, execute: &Execute) {
        let first = execute.attempt == 1 && execute.configuration.monitor_execution;
        if !first || !matches!(execute.source, Source::Schedule | Source::Misfire) || self.was_set_back {
            return;
        }
        let before = self.starts.iter().filter(|start| start.item == execute.item && start.attempt == 1);
        let before = before.filter(|start| start.monitored);
        for start in before {
            let covers = start.misfire && start.scheduled >= execute.scheduled;
            // A Java instance keeps no ledger: the instant of its interrupted execution is a guess.
            let taken_over = start.source == Source::Failover && self.javas.is_empty();
            let begun = start.source == Source::Schedule || taken_over;
            let same = begun && start.scheduled == execute.scheduled;
            assert!(
                !covers && !same,
                "seed {}: P5: at {}, {index} executes {} for {} ({:?}) after {start:?}",
                self.seed,
                self.now,
                execute.item,
                execute.scheduled,
                execute.source
            );
        }
    }

    pub(super) fn report(&mut self, index: usize, item: Option<Item>, execution_id: String) {
        let outcome = item.and_then(|item| self.outcomes.get_mut(&item)?.pop_front());
        let outcome = outcome.unwrap_or(Outcome::Success);
        let node = &mut self.nodes[index];
        assert!(!node.life.alone, "seed {}: {index} has no stream to report on", self.seed);
        node.tickets += 1;
        let result = ExecutionResult { execution_id, outcome };
        node.results.push_back(Input::Report(Ticket(node.tickets), vec![result]));
    }

    /// The applications report the executions that have ended.
    pub(super) fn finish_executions(&mut self) {
        for index in 0..self.nodes.len() {
            let now = self.now;
            if self.is_detached(index) {
                // An execution that ends now is reported when the application reattaches.
                continue;
            }
            let done: Vec<_> = self.nodes[index]
                .executions
                .iter()
                .filter(|(_, execution)| execution.ends <= now)
                .map(|(id, _)| id.clone())
                .collect();
            for id in done {
                let done = self.nodes[index].executions.remove(&id).map(|done| done.execute);
                self.happened.extend(done.iter().map(|execute| Happened::Ended(execute.item, index)));
                if self.nodes[index].life.alone {
                    // It keeps the result for the next stream.
                    self.nodes[index].life.results.extend(done);
                    continue;
                }
                self.nodes[index].life.unanswered.extend(done.clone());
                let item = done.as_ref().map(|done| done.item);
                done.iter().for_each(|done| self.note_completed_takeover(done));
                self.report(index, item, id);
            }
        }
    }

    /// Notes a completed takeover.
    pub(super) fn note_completed_takeover(&mut self, done: &Execute) {
        if done.source == Source::Failover {
            self.completed_takeovers.push((done.item, done.fired));
        }
    }

    /// The applications' listeners answer their calls.
    pub(super) fn finish_calls(&mut self) {
        for index in 0..self.nodes.len() {
            let (due, later) = self.nodes[index].calls.drain(..).partition(|(_, _, ends)| *ends <= self.now);
            self.nodes[index].calls = later;
            let due: Vec<(String, Barrier, Timestamp)> = due;
            for (call, barrier, _) in due {
                self.happened.push(Happened::Answered(barrier, index));
                let fails = self.listener == Listener::Fails && barrier == Barrier::Started;
                let outcome = if fails { Err("no books today".to_owned()) } else { Ok(()) };
                let node = &mut self.nodes[index];
                node.tickets += 1;
                node.results.push_back(Input::ListenerReport(Ticket(node.tickets), call, outcome));
            }
        }
    }
}
