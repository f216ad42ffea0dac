//! Checks the executions that an application reports as open.

use std::collections::BTreeSet;

use crate::coordination::job::contract::event::CancelReason;
use crate::coordination::job::contract::plan::Source;
use crate::coordination::job::contract::reattach::OpenExecution;
use crate::elasticjob::field_error::FieldError;
use crate::job::FencingToken;
use crate::proto;

use super::event;

/// The most open executions: for each item of the largest job one that runs, and one whose result was in
/// flight.
const OPEN_MAX: usize = 20_000;
/// The most bytes of an execution id. The sidecar's ids have about thirty.
const ID_MAX: usize = 128;

/// Reads all executions, and records all errors.
pub(super) fn read(open: Vec<proto::OpenExecution>, errors: &mut Vec<FieldError>) -> Vec<OpenExecution> {
    if open.len() > OPEN_MAX {
        let given = format!("{} executions", open.len());
        errors.push(FieldError::new("open_executions", &given, "at most 20000 executions"));
        return Vec::new();
    }
    let mut ids = BTreeSet::new();
    let mut read = Vec::with_capacity(open.len());
    for (index, open) in open.into_iter().enumerate() {
        let mut wrong = |name: &str, given: &str, allowed: &str| {
            errors.push(FieldError::new(&format!("open_executions[{index}].{name}"), given, allowed));
        };
        if open.execution_id.is_empty() || open.execution_id.len() > ID_MAX {
            wrong("execution_id", &open.execution_id, "the id from Execute, 1 to 128 bytes");
        }
        if !ids.insert(open.execution_id.clone()) {
            wrong("execution_id", &open.execution_id, "each execution once");
        }
        if open.fencing_token <= 0 {
            wrong("fencing_token", &open.fencing_token.to_string(), "the token from Execute, above 0");
        }
        let source = proto::ExecutionSource::try_from(open.source).map(source);
        if source.is_err() {
            wrong("source", &open.source.to_string(), "the source from Execute, or none");
        }
        let scheduled = open.scheduled_time.as_ref().map(event::instant);
        if scheduled == Some(None) {
            wrong(
                "scheduled_time",
                &format!("{:?}", open.scheduled_time),
                "the instant from Execute, or none",
            );
        }
        let deadline = open.deadline.as_ref().map(event::instant);
        if deadline == Some(None) {
            wrong("deadline", &format!("{:?}", open.deadline), "an instant, or none");
        }
        let cancelled = proto::CancelReason::try_from(open.cancel_reason).map(cancelled);
        if cancelled.is_err() {
            wrong("cancel_reason", &open.cancel_reason.to_string(), "the reason from Cancel, or none");
        }
        read.push(OpenExecution {
            execution_id: open.execution_id,
            token: FencingToken(open.fencing_token),
            source: source.ok().flatten(),
            scheduled: scheduled.flatten(),
            attempt: open.attempt.max(1),
            deadline: deadline.flatten(),
            cancelled: cancelled.ok().flatten(),
        });
    }
    read
}

fn source(source: proto::ExecutionSource) -> Option<Source> {
    match source {
        proto::ExecutionSource::Unspecified => None,
        proto::ExecutionSource::Schedule => Some(Source::Schedule),
        proto::ExecutionSource::Trigger => Some(Source::Trigger),
        proto::ExecutionSource::Misfire => Some(Source::Misfire),
        proto::ExecutionSource::Failover => Some(Source::Failover),
    }
}

fn cancelled(reason: proto::CancelReason) -> Option<CancelReason> {
    match reason {
        proto::CancelReason::Unspecified => None,
        proto::CancelReason::LeaseLost => Some(CancelReason::LeaseLost),
        proto::CancelReason::Deadline => Some(CancelReason::Deadline),
        proto::CancelReason::DrainTimeout => Some(CancelReason::DrainTimeout),
        proto::CancelReason::Operator => Some(CancelReason::Operator),
        proto::CancelReason::ItemLockLost => Some(CancelReason::ItemLockLost),
    }
}
