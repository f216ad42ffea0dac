//! The start of executions. A planned execution begins when its running node is created, and then the application gets
//! it (protocol 6.1; P2, P3).
//!
//! The running nodes of one fire are created in one transaction, or in several one after the other if it is large. The
//! application gets no execution before its node exists, in a job that monitors executions; a node of another instance
//! is never changed.
//!
//! A start checks the version of `leader/sharding`: a start that was decided on an older assignment fails, and is
//! decided again. While assigned items may not start (a resharding is due, the ledger is not read, a barrier is
//! closed), items that were taken over start without that check: the `failover` node, and not the assignment, says
//! which instance executes them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::coordination::job::agenda::Agenda;
use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::event::{Event, Execute};
use crate::coordination::job::contract::plan::{Planned, Source, Starting};
use crate::coordination::job::execution::Executions;
use crate::coordination::job::execution::checkpoint::Checkpoints;
use crate::coordination::job::execution::retry::{BUSY_ELSEWHERE, Retries};
use crate::coordination::job::firing::item_trigger;
use crate::coordination::job::firing::misfire::{Misfires, rerun_for_missed};
use crate::coordination::job::firing::schedule::Fires;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::item_lock::ItemLocks;
use crate::coordination::job::ledger::Ledger;
use crate::coordination::job::once::Once;
use crate::coordination::job::rotation::Rotation;
use crate::elasticjob::task_id;
use crate::job::{FencingToken, Item, JobConfiguration};
use crate::mutants::mutant;
use crate::tree::{CommitError, Error, NodeKind, Operation, OperationResult, Transaction};

/// Starts the planned executions.
#[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
pub(crate) fn start(
    cx: &Context,
    executions: &mut Executions,
    ledger: &mut Ledger,
    rotation: &Rotation,
    retries: &mut Retries,
    checkpoints: &Checkpoints,
    locks: &mut ItemLocks,
    once: &Once,
    fires: &Fires,
    misfires: &Misfires,
    agenda: &mut Agenda,
    out: &mut Outbox,
) {
    if agenda.has_no_plans() || cx.phase != Phase::Active {
        return;
    }
    // The fleet's nodes have the parameters of triggers.
    if !cx.is_registered() || !cx.fleet.is_loaded() || !out.may_commit(cx, Purpose::Start) {
        return;
    }
    let Some(settings) = &cx.settings else { return };
    if settings.parameters.is_err() {
        agenda.withdraw_all();
        return;
    }
    let configuration = Arc::clone(&settings.configuration);
    // An item that was taken over belongs to no assignment, and waits for no resharding.
    let resharding = cx.view.is_resharding() && !mutant!(StartedWhileResharding);
    let assigned_too = !resharding && ledger.is_ledger_read(cx) && once.is_barrier_open(cx);
    let (batch, transaction) = start_batch(
        cx,
        executions,
        ledger,
        rotation,
        retries,
        locks,
        fires,
        misfires,
        agenda,
        out,
        &configuration,
        assigned_too,
    );
    if batch.is_empty() {
        return;
    }
    executions.set_starting(batch);
    if mutant!(SentBeforeNode) {
        started(cx, executions, ledger, checkpoints, locks, out, &[]);
        out.commit(Purpose::Start, transaction);
    } else if transaction.is_empty() {
        // Executions are not monitored: there is nothing to write.
        started(cx, executions, ledger, checkpoints, locks, out, &[]);
    } else {
        out.commit(Purpose::Start, transaction);
    }
}

#[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
fn start_batch(
    cx: &Context,
    executions: &mut Executions,
    ledger: &Ledger,
    rotation: &Rotation,
    retries: &mut Retries,
    locks: &mut ItemLocks,
    fires: &Fires,
    misfires: &Misfires,
    agenda: &mut Agenda,
    out: &mut Outbox,
    configuration: &JobConfiguration,
    assigned_too: bool,
) -> (BTreeMap<Item, Starting>, Transaction) {
    let stays = configuration.failover && !mutant!(RunningNodeEphemeral);
    let kind = if stays { NodeKind::Persistent } else { NodeKind::Ephemeral };
    let instance = cx.identity.instance.clone();
    let mut transaction = Transaction::new();
    let mut batch = BTreeMap::new();
    let mut size = 0;
    let not_resharded = cx.not_resharded().filter(|_| configuration.monitor_execution && assigned_too);
    transaction.extend(not_resharded.filter(|_| !mutant!(StartedOnOldSharding)));
    let mut waiting = Vec::new();
    while size < cx.fire_bytes()
        && let Some((item, planned)) = next_planned(agenda, assigned_too)
    {
        if misfires.is_flagging(item) {
            // Another transaction in flight writes the item's entry in the ledger.
            waiting.push((item, planned));
            continue;
        }
        if item_trigger::waits(cx, executions, agenda, item, planned) {
            executions.suspect(cx, item);
            waiting.push((item, planned));
            continue;
        }
        if !may_start(cx, executions, retries, agenda, out, item, planned) {
            continue;
        }
        if !locks.may_start(cx, out, item) {
            waiting.push((item, planned));
            continue;
        }
        let planned = rerun_for_missed(cx, ledger, rotation, executions, fires, agenda, item, planned);
        let before = transaction.len();
        let flagged = cx.view.misfired().contains(&item) && !mutant!(MisfireFlagLeft);
        if flagged && planned.is_first_of(Source::Misfire) {
            transaction.push(Operation::delete(cx.identity.paths.item_misfire(item)));
        }
        let index = transaction.len();
        if configuration.monitor_execution {
            transaction.push(Operation::create(
                cx.identity.paths.item_running(item),
                kind,
                instance.as_str(),
            ));
        }
        let (step, entry) = ledger.ledger_start(cx, item, planned).unzip();
        transaction.extend(step);
        let (mark, parameter) = item_trigger::begin(cx, item, planned);
        transaction.extend(mark);
        size += transaction.iter().skip(before).map(Operation::wire_size).sum::<usize>();
        batch.insert(item, Starting { planned, index, entry, parameter });
    }
    agenda.put_back(waiting);
    let triggered = batch.values().any(|starting| starting.planned.is_for_instance_trigger());
    if triggered && cx.view.triggers().contains(&instance) {
        transaction.push(Operation::delete(cx.identity.paths.trigger(&instance)));
    }
    (batch, transaction)
}

/// Whether a planned execution may still begin.
fn may_start(
    cx: &Context,
    executions: &mut Executions,
    retries: &mut Retries,
    agenda: &mut Agenda,
    out: &mut Outbox,
    item: Item,
    planned: Planned,
) -> bool {
    if planned.is_first_of(Source::Failover) {
        return cx.has_taken(item) && !executions.has_open(item) && !cx.view.running().contains(&item);
    }
    let retried = planned.is_retry() && mutant!(RetriedByFormerOwner);
    if cx.assigned.executable_item(item).is_none() && !retried {
        return false;
    }
    if !item_trigger::may_begin(cx, item, planned) {
        return false;
    }
    if executions.is_busy(cx, agenda, item) {
        executions.suspect(cx, item);
        retries.could_not_start(cx, agenda, out, item, planned, BUSY_ELSEWHERE);
        return false;
    }
    true
}

/// The running nodes exist: send the executions to the application.
pub(crate) fn started(
    cx: &Context,
    executions: &mut Executions,
    ledger: &mut Ledger,
    checkpoints: &Checkpoints,
    locks: &mut ItemLocks,
    out: &mut Outbox,
    results: &[OperationResult],
) {
    let token = |result: &OperationResult| match result {
        OperationResult::Created { stat, .. } => Some(FencingToken::from(stat.created)),
        OperationResult::Set { .. } | OperationResult::Deleted | OperationResult::Checked => None,
    };
    begin(cx, executions, ledger, checkpoints, locks, out, &results.iter().map(token).collect::<Vec<_>>());
}

/// Sends the starting executions, each with the token at its index, or else the assignment's.
fn begin(
    cx: &Context,
    executions: &mut Executions,
    ledger: &mut Ledger,
    checkpoints: &Checkpoints,
    locks: &mut ItemLocks,
    out: &mut Outbox,
    tokens: &[Option<FencingToken>],
) {
    let now = cx.now;
    let starting = executions.take_starting();
    let Some(settings) = cx.settings.clone() else { return };
    let items: Vec<_> = starting.keys().copied().collect();
    let (job, instance) = (cx.identity.job.clone(), cx.identity.instance.clone());
    let timeout = settings.policy.timeout;
    // If this instance is giving up, the execution is not begun, and ends with the instance.
    let begins = !cx.is_giving_up();
    let until = timeout.filter(|_| begins).map(|timeout| now.mono.saturating_add(timeout));
    let together: Arc<str> = task_id::build(&job, &items, &instance).into();
    for (item, Starting { planned, index, entry, parameter }) in starting {
        let assigned = || cx.assigned.executable_item(item).map(|assigned| assigned.token);
        let created = tokens.get(index).copied().flatten().filter(|_| !mutant!(TokenReused));
        let Some(token) = created.or_else(assigned) else { continue };
        let token = executions.raise_token(item, token);
        // A longer one fits into no trace table, and a fire of thousands of items would carry each of them in each
        // message.
        let task_id = match together.len() <= task_id::BYTES_MAX {
            true => Arc::clone(&together),
            false => task_id::build(&job, &[item], &instance).into(),
        };
        let execution_id = executions.open(item, planned, until);
        let checkpoint = checkpoints.take_along(item, planned.scheduled);
        if let Some(entry) = entry {
            ledger.written(item, entry);
        }
        let execute = Execute {
            execution_id,
            item,
            parameter: settings.parameter(item).map(str::to_owned),
            configuration: settings.configuration_with(parameter.as_deref()),
            task_id,
            source: planned.source,
            attempt: planned.attempt,
            checkpoint,
            scheduled: planned.scheduled,
            fired: now.wall,
            deadline: timeout.and_then(|timeout| now.wall.checked_add(timeout).ok()),
            token,
            lock_token: locks.token(item),
            resumed: false,
            restored: false,
        };
        let running = cx.view.item(item).and_then(|view| view.running.as_ref());
        let node = created.filter(|_| cx.monitors());
        executions.begins(item, execute.clone(), node, running.map(|running| running.seen), now.mono);
        // A stream without an assignment gets all open executions together with the assignment.
        if cx.assigned.attached && begins {
            out.notify(cx, Event::Execute(execute));
        }
        locks.began(cx, executions, out, item);
    }
}

/// No node was created, or the outcome is unknown: plan the executions again. The view will show the outcome. Returns
/// whether the nodes have to be read before any further decision.
pub(crate) fn start_failed(
    executions: &mut Executions,
    ledger: &mut Ledger,
    agenda: &mut Agenda,
    error: &CommitError,
    unknown: bool,
) -> bool {
    let starting = executions.take_starting();
    ledger.doubt();
    if unknown {
        if !mutant!(UnknownStartForgotten) {
            executions.leave_unresolved(starting);
        }
        return false;
    }
    // Items that were taken over are planned anew from the view.
    let assigned = |(_, starting): &(Item, Starting)| !starting.planned.is_first_of(Source::Failover);
    let mut met = false;
    for (item, starting) in starting.into_iter().filter(assigned) {
        let Starting { planned, index, .. } = starting;
        let met_running = error.index == Some(index) && matches!(error.error, Error::NodeExists(_));
        if met_running {
            // The node belongs to another instance, or a late earlier request of this instance has created it: the
            // nodes are read before the decision.
            executions.leave_unresolved(BTreeMap::from([(item, starting)]));
            met = true;
        } else {
            agenda.plan_if_free(item, planned);
        }
    }
    met
}

/// Finds the nodes of starts of unknown outcome: the nodes with this instance's id belong to executions that the
/// application has not begun. Also after an operator's stop: then these executions are ended.
pub(crate) fn resolve(
    cx: &Context,
    executions: &mut Executions,
    ledger: &mut Ledger,
    checkpoints: &Checkpoints,
    locks: &mut ItemLocks,
    agenda: &mut Agenda,
    out: &mut Outbox,
) {
    if executions.is_resolved() || !cx.was_registered() || !cx.view.is_loaded() {
        return;
    }
    let (mut results, mut confirmed) = (Vec::new(), BTreeMap::new());
    for (item, mut starting) in executions.take_unresolved() {
        let running = cx.view.item(item).and_then(|view| view.running.as_ref());
        let ours = running.filter(|running| running.owner.as_ref() == Some(&cx.identity.instance));
        if let Some(token) = ours.and_then(|running| running.token) {
            starting.index = results.len();
            results.push(token);
            confirmed.insert(item, starting);
        } else if !starting.planned.is_first_of(Source::Failover) {
            agenda.plan_if_free(item, starting.planned);
        }
    }
    executions.set_starting(confirmed);
    begin(
        cx,
        executions,
        ledger,
        checkpoints,
        locks,
        out,
        &results.into_iter().map(Some).collect::<Vec<_>>(),
    );
}

/// Takes the next planned execution that may begin now.
fn next_planned(agenda: &mut Agenda, assigned_too: bool) -> Option<(Item, Planned)> {
    if assigned_too {
        return agenda.take_first();
    }
    agenda.take_first_that(|planned| planned.is_first_of(Source::Failover))
}
