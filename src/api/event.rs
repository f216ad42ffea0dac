//! Turns the core's events into messages.

use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::admin::status::{Ending, JobStatus, LastExecution, WaitingForLock};
use crate::coordination::job::contract::answer::CompletionStatus;
use crate::coordination::job::contract::event::WaitsFor;
use crate::coordination::job::contract::event::{
    Assignment, AssignmentReason, CancelReason, Event, ListenerCall, SessionStatus,
};
use crate::coordination::job::contract::plan::Source;
use crate::coordination::job::ownership::mode::Mode;
use crate::coordination::time::Now;
use crate::elasticjob::path::Barrier;
use crate::elasticjob::redaction;
use crate::excerpt::Excerpt;
use crate::findings::problem::Problem;
use crate::job::{Item, JobConfiguration, JobName};
use crate::proto;
use crate::proto::attach_response::Event as Message;
use crate::runner::clock::Clock;
use crate::runner::job::outlet::TracedEvent;
use crate::runner::shared::Shared;

use super::{convert, size, version};

/// Characters of the registry's last error in a message to an application or an operator.
pub(super) const TROUBLE_CHARS_MAX: usize = 300;

/// An event of a stream as a message. `shared` has the clock, because the core has some times only as
/// remaining or monotonic times, and the registry's last error.
pub fn to_message(
    traced: TracedEvent,
    attachment_id: &str,
    job: &JobName,
    shared: &Shared,
) -> proto::AttachResponse {
    let clock = &shared.clock;
    let now = clock.now();
    let event = match traced.event {
        Event::Attached { instance, configuration, resumed, grace, lease_renewal_interval } => {
            Message::Attached(proto::Attached {
                attachment_id: attachment_id.to_owned(),
                instance_id: instance.to_string(),
                job_name: job.to_string(),
                configuration: Some(configuration_message(&configuration)),
                sidecar_version: env!("CARGO_PKG_VERSION").to_owned(),
                resumed_execution_ids: resumed,
                api_level: version::API_LEVEL,
                grace: duration(grace),
                lease_renewal_interval: lease_renewal_interval.and_then(duration),
            })
        }
        Event::AssignmentChanged { assignment, added, revoked, leader, reason } => {
            Message::AssignmentChanged(proto::AssignmentChanged {
                assignment: Some(self::assignment(assignment)),
                added_items: items(added),
                revoked_items: items(revoked),
                leader,
                reason: assignment_reason(reason).into(),
            })
        }
        Event::Execute(execute) => {
            Message::Execute(proto::Execute {
                execution_id: execute.execution_id,
                item: execute.item.0,
                item_parameter: execute.parameter,
                job_parameter: execute.configuration.job_parameter.clone(),
                sharding_total_count: execute.configuration.sharding_total_count,
                task_id: execute.task_id.to_string(),
                source: source(execute.source).into(),
                scheduled_time: Some(timestamp(execute.scheduled)),
                fire_time: Some(timestamp(execute.fired)),
                deadline: execute.deadline.map(timestamp),
                fencing_token: execute.token.0,
                traceparent: traced.execution.map(|execution| execution.header()).unwrap_or_default(),
                // No sampler of the sidecar has a state.
                tracestate: String::new(),
                job_name: job.to_string(),
                attempt: execute.attempt,
                checkpoint: execute.checkpoint.map(|data| data.to_vec()),
                resumed: execute.resumed,
                lock_token: execute.lock_token.map_or(0, |token| token.0),
            })
        }
        Event::Cancel { execution_id, item, reason } => Message::Cancel(proto::Cancel {
            execution_id,
            item: item.0,
            reason: cancel_reason(reason).into(),
        }),
        Event::LeadershipChanged(term) => Message::LeadershipChanged(proto::LeadershipChanged {
            leader: term.is_some(),
            term: term.map_or(0, |term| term.0),
        }),
        Event::SessionChanged { status, lease_end } => session_changed(status, lease_end, now, clock),
        Event::LeaseRenewed { lease_end } => {
            session_changed(SessionStatus::Connected, Some(lease_end), now, clock)
        }
        Event::JobChanged { configuration, problems, grace } => Message::JobChanged(proto::JobChanged {
            configuration: Some(configuration_message(&configuration)),
            problems: problems.iter().map(problem).collect(),
            grace: duration(grace),
        }),
        Event::Waiting(what) => {
            let reason = waits_for(&what, job, &shared.trouble.borrow().trouble);
            Message::Waiting(proto::Waiting { reason })
        }
        Event::CallListener(call) => listener_call(call, job, now.wall),
        Event::Draining { remaining } => {
            let deadline = remaining.map(|remaining| now.mono.saturating_add(remaining));
            Message::Draining(deadline.map(|deadline| draining(deadline, now)).unwrap_or_default())
        }
    };
    proto::AttachResponse { event: Some(event) }
}

fn session_changed(status: SessionStatus, lease_end: Option<Duration>, now: Now, clock: &Clock) -> Message {
    let (remaining_lease, lease_end_boottime_ns, boottime_clock) = lease(lease_end, now, clock);
    Message::SessionChanged(proto::SessionChanged {
        state: session_state(status).into(),
        remaining_lease,
        lease_end_boottime_ns,
        boottime_clock,
    })
}

/// Why the registry does not answer. `trouble`: the error of the last attempt to open a session; empty: there is one.
pub(super) fn no_registry(trouble: &str) -> String {
    if trouble.is_empty() {
        return "the registry does not answer; the sidecar waits until it does".to_owned();
    }
    let trouble = Excerpt::of_length(trouble, TROUBLE_CHARS_MAX);
    format!("the sidecar has no session with the registry, and tries to open one; {trouble}")
}

/// The reason of a wait, for a person. `trouble`: the error of the last attempt to open a session.
fn waits_for(what: &WaitsFor, job: &JobName, trouble: &str) -> String {
    match what {
        WaitsFor::Session if trouble.is_empty() => "the sidecar opens a session with the registry".to_owned(),
        WaitsFor::Session => no_registry(trouble),
        WaitsFor::Registry => no_registry(""),
        WaitsFor::Name(name) => format!(
            "another session has instance_name `{name}` of job `{job}`; if its process was killed, that session ends \
             when it times out"
        ),
        WaitsFor::Nodes => format!("the sidecar reads the nodes of job `{job}`"),
        WaitsFor::Registration => format!("the sidecar registers the instance of job `{job}`"),
    }
}

/// The lease of a lock. `lease_end`: monotonic; `None`: no end is expected.
pub(super) fn lock_lease(lease_end: Option<Duration>, clock: &Clock) -> proto::LockLease {
    let (remaining_lease, lease_end_boottime_ns, boottime_clock) = lease(lease_end, clock.now(), clock);
    proto::LockLease { remaining_lease, lease_end_boottime_ns, boottime_clock }
}

/// The sidecar stops at this time, monotonic.
pub(super) fn draining(deadline: Duration, now: Now) -> proto::Draining {
    let deadline = after(now.wall, deadline.saturating_sub(now.mono));
    proto::Draining { deadline: Some(timestamp(deadline)) }
}

/// The end of a lease in the forms of the protos: the remaining time, the end on the kernel's clock, and which clock that is.
fn lease(
    lease_end: Option<Duration>,
    now: Now,
    clock: &Clock,
) -> (Option<prost_types::Duration>, u64, String) {
    // The time that an event waited here is not part of the remaining time.
    let remaining = lease_end.map(|end| end.saturating_sub(now.mono));
    let end = clock.boottime().zip(lease_end);
    let end = end.and_then(|(boottime, end)| Some((boottime.nanoseconds(end)?, boottime.clock.clone())));
    let (nanoseconds, name) = end.unwrap_or_default();
    (remaining.and_then(duration), nanoseconds, name)
}

/// The answer to an application that renews its lease.
pub fn lease_answer(
    status: SessionStatus,
    lease_end: Option<Duration>,
    now: Now,
) -> proto::RenewLeaseResponse {
    let remaining = lease_end.map(|end| end.saturating_sub(now.mono));
    proto::RenewLeaseResponse {
        state: session_state(status).into(),
        remaining_lease: remaining.and_then(duration),
    }
}

pub(super) fn duration(duration: Duration) -> Option<prost_types::Duration> {
    duration.try_into().ok()
}

pub(super) fn last_execution(last: &LastExecution) -> proto::LastExecution {
    let outcome = match last.ending {
        Ending::Success => proto::ExecutionOutcome::Success,
        Ending::Failure => proto::ExecutionOutcome::Failure,
        Ending::Rejection => proto::ExecutionOutcome::Rejected,
        Ending::Interruption => proto::ExecutionOutcome::Interrupted,
    };
    proto::LastExecution {
        outcome: outcome.into(),
        times_in_a_row: last.times,
        since: Some(timestamp(last.since)),
        at: Some(timestamp(last.at)),
        message: last.message.clone(),
        last_success_time: last.success.map(timestamp),
    }
}

fn item_lock_wait(waiting: &WaitingForLock) -> proto::ItemLockWait {
    proto::ItemLockWait {
        lock_name: waiting.lock.clone(),
        holder: waiting.holder.as_deref().map(|holder| Excerpt::of(holder).to_string()).unwrap_or_default(),
        since: Some(timestamp(waiting.since)),
    }
}

fn listener_call(call: ListenerCall, job: &JobName, now: Timestamp) -> Message {
    let (call_id, job_name) = (call.call_id, job.to_string());
    let scheduled_time = Some(timestamp(call.scheduled));
    let deadline = Some(timestamp(after(now, call.remaining)));
    match call.barrier {
        Barrier::Started => {
            Message::BeforeFirst(proto::BeforeFirst { call_id, scheduled_time, deadline, job_name })
        }
        Barrier::Completed => {
            Message::AfterLast(proto::AfterLast { call_id, scheduled_time, deadline, job_name })
        }
    }
}

/// The state of a job as a message.
pub fn status_to_message(job: &JobName, status: &JobStatus) -> proto::WatchAssignmentsResponse {
    let configuration = status.configuration.as_deref();
    let (mode, reason) = match &status.handoff {
        None => (proto::HandoffMode::Unspecified, String::new()),
        Some(Mode::OneByOne) => (proto::HandoffMode::OneByOne, String::new()),
        Some(Mode::AllAtOnce(reason)) => (proto::HandoffMode::AllAtOnce, reason.to_string()),
        Some(Mode::Undecided(id)) => {
            (proto::HandoffMode::AllAtOnce, format!("instance {id} has not published its profile yet"))
        }
    };
    let mut state = proto::WatchAssignmentsResponse {
        job_name: job.to_string(),
        configuration: configuration.map(configuration_message),
        generation: status.generation.0,
        instances: status
            .instances
            .iter()
            .map(|instance| proto::InstanceStatus {
                server_ip: instance.instance.server_ip().map(|ip| ip.to_string()).unwrap_or_default(),
                instance_id: instance.instance.to_string(),
                enabled: instance.enabled,
                leader: instance.leader,
            })
            .collect(),
        items: status
            .items
            .iter()
            .map(|item| {
                let owner = item.owner.as_ref();
                let (instance, token) = owner.map(|(id, token)| (id.to_string(), token.0)).unzip();
                proto::ItemStatus {
                    item: item.item.0,
                    item_parameter: item.parameter.clone(),
                    instance_id: instance.unwrap_or_default(),
                    fencing_token: token.unwrap_or_default(),
                    running: item.running,
                    misfire: item.misfire,
                    disabled: item.disabled,
                    next_instance_id: item.next.as_ref().map(ToString::to_string).unwrap_or_default(),
                    last_execution: item.last.as_ref().map(last_execution),
                    waiting_for_lock: item.waiting_for_lock.as_ref().map(item_lock_wait),
                    running_since: item.running_since.map(timestamp),
                }
            })
            .collect(),
        resharding: status.resharding,
        next_fire_time: status.next_fire.map(timestamp),
        problems: status.problems.iter().map(problem).collect(),
        handoff_mode: mode.into(),
        handoff_mode_reason: reason,
        parameters_hidden: false,
    };
    size::fit(&mut state);
    state
}

/// A configuration without secrets.
fn configuration_message(configuration: &JobConfiguration) -> proto::JobConfiguration {
    convert::configuration_to_proto(&redaction::redacted(configuration), "")
}

/// The fate of a result, as a message.
pub fn completion_status(status: CompletionStatus) -> proto::CompletionStatus {
    match status {
        CompletionStatus::Recorded => proto::CompletionStatus::Recorded,
        CompletionStatus::AlreadyRecorded => proto::CompletionStatus::AlreadyRecorded,
        CompletionStatus::LeaseLost => proto::CompletionStatus::LeaseLost,
    }
}

fn assignment(assignment: Assignment) -> proto::Assignment {
    let item = |assigned: crate::coordination::job::contract::event::AssignedItem| proto::AssignedItem {
        item: assigned.item.0,
        item_parameter: assigned.parameter,
        fencing_token: assigned.token.0,
        disabled: assigned.disabled,
    };
    proto::Assignment {
        generation: assignment.generation.0,
        sharding_total_count: assignment.total,
        items: assignment.items.into_iter().map(item).collect(),
    }
}

fn assignment_reason(reason: AssignmentReason) -> proto::AssignmentReason {
    match reason {
        AssignmentReason::Attached => proto::AssignmentReason::Attached,
        AssignmentReason::Resharded => proto::AssignmentReason::Resharded,
        AssignmentReason::HandedOff => proto::AssignmentReason::HandedOff,
        AssignmentReason::Relayed => proto::AssignmentReason::Relayed,
        AssignmentReason::ServerStatus => proto::AssignmentReason::ServerStatus,
        AssignmentReason::ItemChanged => proto::AssignmentReason::ItemChanged,
        AssignmentReason::SessionLost => proto::AssignmentReason::SessionLost,
        AssignmentReason::Draining => proto::AssignmentReason::Draining,
    }
}

fn source(source: Source) -> proto::ExecutionSource {
    match source {
        Source::Schedule => proto::ExecutionSource::Schedule,
        Source::Misfire => proto::ExecutionSource::Misfire,
        Source::Trigger => proto::ExecutionSource::Trigger,
        Source::Failover => proto::ExecutionSource::Failover,
    }
}

fn cancel_reason(reason: CancelReason) -> proto::CancelReason {
    match reason {
        CancelReason::LeaseLost => proto::CancelReason::LeaseLost,
        CancelReason::Deadline => proto::CancelReason::Deadline,
        CancelReason::Operator => proto::CancelReason::Operator,
        CancelReason::DrainTimeout => proto::CancelReason::DrainTimeout,
        CancelReason::ItemLockLost => proto::CancelReason::ItemLockLost,
    }
}

fn session_state(status: SessionStatus) -> proto::SessionState {
    match status {
        SessionStatus::Connected => proto::SessionState::Connected,
        SessionStatus::Suspended => proto::SessionState::Suspended,
        SessionStatus::Lost => proto::SessionState::Lost,
    }
}

fn items(items: Vec<Item>) -> Vec<u32> {
    items.into_iter().map(|item| item.0).collect()
}

fn problem(problem: &Problem) -> proto::Problem {
    let (path, message) = problem.excerpt();
    proto::Problem {
        path: path.into_string(),
        message: message.into_string(),
        code: problem.code.as_str().to_owned(),
    }
}

fn after(now: Timestamp, remaining: Duration) -> Timestamp {
    now.checked_add(remaining).unwrap_or(Timestamp::MAX)
}

/// An instant of a message. `None`: it is out of range.
pub(super) fn instant(timestamp: &prost_types::Timestamp) -> Option<Timestamp> {
    Timestamp::new(timestamp.seconds, timestamp.nanos).ok().filter(|_| timestamp.nanos >= 0)
}

/// An instant as the API has it.
pub fn timestamp(instant: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: instant.as_second(), nanos: instant.subsec_nanosecond() }
}
