//! The start of executions. A planned execution begins when its running node is created, and the application is told then
//! (protocol 6.1; P2, P3).
//!
//! The running nodes of one fire are created in one transaction. Nothing is told before its node exists; no node that
//! somebody else holds is touched.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::coordination::job::agenda::Agenda;
use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::contract::event::{Event, Execute};
use crate::coordination::job::contract::plan::{Planned, Source};
use crate::coordination::job::contract::starting::Starting;
use crate::coordination::job::execution::checkpoint::Checkpoints;
use crate::coordination::job::execution::limit::Limit;
use crate::coordination::job::execution::retry::Retries;
use crate::coordination::job::execution::state::Executions;
use crate::coordination::job::firing::misfire::{Misfires, made_up};
use crate::coordination::job::firing::schedule::Fires;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::frame::outbox::Outbox;
use crate::coordination::job::frame::phase::Phase;
use crate::coordination::job::ledger::Ledger;
use crate::coordination::job::once::state::Guarantee;
use crate::coordination::job::rotation::Relay;
use crate::elasticjob::task_id;
use crate::job::{FencingToken, Item, JobConfiguration};
use crate::mutants::mutant;
use crate::tree::{CommitError, Error, NodeKind, Operation, OperationResult, Transaction};

/// Starts what is planned.
#[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
pub(in crate::coordination) fn start(
    cx: &Context,
    executions: &mut Executions,
    ledger: &mut Ledger,
    relay: &Relay,
    retries: &mut Retries,
    checkpoints: &Checkpoints,
    guarantee: &Guarantee,
    fires: &Fires,
    misfires: &Misfires,
    agenda: &mut Agenda,
    out: &mut Outbox,
) {
    if agenda.has_no_plans() || cx.phase != Phase::Active {
        return;
    }
    if !cx.is_registered() || !out.may_commit(cx, Purpose::Start) {
        return;
    }
    let Some(settings) = &cx.settings else { return };
    if settings.parameters.is_err() {
        agenda.withdraw_all();
        return;
    }
    let configuration = Arc::clone(&settings.configuration);
    // What was taken over belongs to no sharding, and waits for none.
    let resharding = cx.view.is_resharding() && !mutant!(StartedWhileResharding);
    let assigned_too = !resharding && ledger.is_ledger_read(cx) && guarantee.is_gate_open(cx);
    let (batch, transaction) = start_batch(
        cx,
        executions,
        ledger,
        relay,
        retries,
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
    if mutant!(ToldBeforeNode) {
        started(cx, executions, ledger, checkpoints, out, &[]);
        out.commit(Purpose::Start, transaction);
    } else if transaction.is_empty() {
        // Nothing to be written: executions are not monitored.
        started(cx, executions, ledger, checkpoints, out, &[]);
    } else {
        out.commit(Purpose::Start, transaction);
    }
}

#[expect(clippy::too_many_arguments, reason = "it names each room that it reads")]
fn start_batch(
    cx: &Context,
    executions: &mut Executions,
    ledger: &Ledger,
    relay: &Relay,
    retries: &mut Retries,
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
    let undivided = cx.undivided().filter(|_| configuration.monitor_execution && assigned_too);
    transaction.extend(undivided.filter(|_| !mutant!(StartedOnOldSharding)));
    let mut waiting = Vec::new();
    while size < cx.transaction_bytes
        && let Some((item, planned)) = next_planned(agenda, assigned_too)
    {
        if misfires.is_flagging(item) {
            // What is in flight writes the item's entry in the ledger.
            waiting.push((item, planned));
            continue;
        }
        if !may_start(cx, executions, retries, agenda, out, item, planned) {
            continue;
        }
        let planned = made_up(cx, ledger, relay, executions, fires, agenda, item, planned);
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
        size += transaction.iter().skip(before).map(Operation::wire_size).sum::<usize>();
        batch.insert(item, Starting { planned, index, entry });
    }
    agenda.put_back(waiting);
    let triggered = batch.values().any(|starting| starting.planned.is_first_of(Source::Trigger));
    if triggered && cx.view.triggers().contains(&instance) {
        transaction.push(Operation::delete(cx.identity.paths.trigger(&instance)));
    }
    (batch, transaction)
}

/// Whether an execution that was planned is still to begin.
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
    if executions.is_busy(cx, agenda, item) {
        retries.could_not_start(cx, agenda, out, item, planned);
        return false;
    }
    true
}

/// The running nodes exist: tell the application.
pub(in crate::coordination) fn started(
    cx: &Context,
    executions: &mut Executions,
    ledger: &mut Ledger,
    checkpoints: &Checkpoints,
    out: &mut Outbox,
    results: &[OperationResult],
) {
    let token = |result: &OperationResult| match result {
        OperationResult::Created { stat, .. } => Some(FencingToken::from(stat.created)),
        OperationResult::Set { .. } | OperationResult::Deleted | OperationResult::Checked => None,
    };
    begin(cx, executions, ledger, checkpoints, out, &results.iter().map(token).collect::<Vec<_>>());
}

/// Tells what is starting, with the token at each one's index, or else the assignment's.
fn begin(
    cx: &Context,
    executions: &mut Executions,
    ledger: &mut Ledger,
    checkpoints: &Checkpoints,
    out: &mut Outbox,
    tokens: &[Option<FencingToken>],
) {
    let now = cx.now;
    let starting = executions.take_starting();
    let Some(settings) = cx.settings.clone() else { return };
    let items: Vec<_> = starting.keys().copied().collect();
    let (job, instance) = (cx.identity.job.clone(), cx.identity.instance.clone());
    let timeout = settings.policy.timeout;
    // What nobody would wait for is not begun, and ends with us, at no deadline of its own.
    let begins = !cx.is_giving_up();
    let until = timeout.filter(|_| begins).map(|timeout| now.mono.saturating_add(timeout));
    let limit = Limit::until(until);
    let together: Arc<str> = task_id::build(&job, &items, &instance).into();
    for (item, Starting { planned, index, entry }) in starting {
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
        let execution_id = executions.open(item, planned, limit);
        let checkpoint = checkpoints.take_along(item, planned.scheduled);
        if let Some(entry) = entry {
            ledger.written(item, entry);
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
        let running = cx.view.item(item).and_then(|view| view.running.as_ref());
        if let Some(open) = executions.open.get_mut(&item) {
            open.told = Some(Box::new(execute.clone()));
            open.running_seen = running.map(|running| running.seen);
        }
        // A stream that was told nothing yet is told all that is open together with the assignment.
        if cx.assigned.attached && begins {
            out.tell(cx, Event::Execute(execute));
        }
    }
}

/// Nothing was started, or nobody knows: plan it again. What has become of it shows in the view. Tells whether the nodes
/// are to be read before anything else is decided.
pub(in crate::coordination) fn start_failed(
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
    // What was taken over is planned anew from the view.
    let assigned = |(_, starting): &(Item, Starting)| !starting.planned.is_first_of(Source::Failover);
    let mut met = false;
    for (item, starting) in starting.into_iter().filter(assigned) {
        let Starting { planned, index, .. } = starting;
        let met_running = error.index == Some(index) && matches!(error.error, Error::NodeExists(_));
        if met_running {
            // Another instance's node, or one that an earlier request of ours has created late: it is looked at before it is judged.
            executions.leave_unresolved(BTreeMap::from([(item, starting)]));
            met = true;
        } else {
            agenda.plan_if_free(item, planned);
        }
    }
    met
}

/// Looks what became of a start of unknown outcome: nodes with our id are ours, and have not been told yet. Also when
/// an operator has stopped us meanwhile: what was begun is ended.
pub(in crate::coordination) fn resolve(
    cx: &Context,
    executions: &mut Executions,
    ledger: &mut Ledger,
    checkpoints: &Checkpoints,
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
    begin(cx, executions, ledger, checkpoints, out, &results.into_iter().map(Some).collect::<Vec<_>>());
}

/// Takes the next execution that is planned and may begin now.
fn next_planned(agenda: &mut Agenda, assigned_too: bool) -> Option<(Item, Planned)> {
    if assigned_too {
        return agenda.take_first();
    }
    agenda.take_first_that(|planned| planned.is_first_of(Source::Failover))
}
