//! What starts? An execution that is planned begins when its running node is created, and the application is told then
//! (protocol 6.1; P2, P3).
//!
//! The running nodes of one fire are created in one transaction. Nothing is told before its node exists; no node that
//! somebody else holds is touched.

use std::collections::BTreeMap;
use std::sync::Arc;


use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::event::{Event, Execute};
use crate::coordination::job::contract::plan::{Planned, Source};
use crate::coordination::job::execution::limit::Limit;
use crate::coordination::job::contract::plan::Starting;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::participant::Participant;
use crate::elasticjob::task_id;
use crate::job::{FencingToken, Item, JobConfiguration};
use crate::mutants::mutant;
use crate::tree::{CommitError, Error, NodeKind, Operation, OperationResult, Transaction};

impl Participant {
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
        let assigned_too = !resharding && self.ledger.is_ledger_read(&self.cx) && self.guarantee.is_gate_open(&self.cx);
        let (batch, transaction) = self.start_batch(&configuration, assigned_too);
        if batch.is_empty() {
            return;
        }
        self.executions.set_starting(batch);
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
        let starting = self.executions.take_starting();
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
            let token = self.executions.raise_token(item, token);
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
        let starting = self.executions.take_starting();
        self.ledger.doubt();
        if unknown {
            if !mutant!(UnknownStartForgotten) {
                self.executions.leave_unresolved(starting);
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
                self.executions.leave_unresolved(BTreeMap::from([(item, starting)]));
                self.out.forget_and_read(&mut self.cx);
            } else {
                self.agenda.plan_if_free(item, planned);
            }
        }
    }

    /// Looks what became of a start of unknown outcome: nodes with our id are ours, and have not been told yet. Also when
    /// an operator has stopped us meanwhile: what was begun is ended.
    pub(in crate::coordination) fn resolve(&mut self) {
        if self.executions.is_resolved() || !self.cx.was_registered() || !self.cx.view.is_loaded() {
            return;
        }
        let (mut results, mut confirmed) = (Vec::new(), BTreeMap::new());
        for (item, mut starting) in self.executions.take_unresolved() {
            let running = self.cx.view.item(item).and_then(|view| view.running.as_ref());
            let ours = running.filter(|running| running.owner.as_ref() == Some(&self.cx.identity.instance));
            if let Some(token) = ours.and_then(|running| running.token) {
                starting.index = results.len();
                results.push(token);
                confirmed.insert(item, starting);
            } else if !starting.planned.is_first_of(Source::Failover) {
                self.agenda.plan_if_free(item, starting.planned);
            }
        }
        self.executions.set_starting(confirmed);
        self.begin(&results.into_iter().map(Some).collect::<Vec<_>>());
    }
}
