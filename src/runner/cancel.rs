//! Cancels the executions of a job at this sidecar for an operator. Decides nothing.
//!
//! A request with an id first leaves a record of the executions that it is about to cancel, and then cancels exactly these. So a repetition
//! cancels the same executions, if they still run, and never a later one.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::oneshot;

use crate::coordination::job::contract::answer::Cancelled;
use crate::coordination::job::contract::input::CancelWish;
use crate::coordination::job::frame::limits::TRANSACTION_BYTES_MAX;
use crate::extension::path::ExtensionPaths;
use crate::extension::request_record::{CancelledRecord, RequestId, RequestRecord, write_cancelled};
use crate::job::{InstanceId, Item, JobName};
use crate::runner::attachments::calls::CallError;
use crate::runner::attachments::registry::Attachments;
use crate::runner::requests;
use crate::tree::{Error, NodeKind, Operation};

/// How often the record is written while its outcome is unknown. The registry's request timeout bounds each attempt.
const ATTEMPTS_MAX: u32 = 3;

/// Why executions were not cancelled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CancelError {
    /// No application is attached for the job.
    #[error(
        "no application is attached to this sidecar for job `{0}`: check the name, or ask another sidecar"
    )]
    NotAttached(JobName),
    /// The participant refused it.
    #[error(transparent)]
    Refused(CallError),
    /// There is no session, which the record needs.
    #[error(
        "the sidecar has no session with the registry to record the request in; try again, or without request_id"
    )]
    NoSession,
    /// The record could not be read or written. No execution was cancelled.
    #[error("no execution of job `{job}` was cancelled, because the request could not be recorded: {error}")]
    Unrecorded {
        /// The job.
        job: JobName,
        /// How.
        error: Error,
    },
    /// The record has no place in one node.
    #[error(
        "{count} executions of job `{job}` are too many for one request with an id; name some of its items"
    )]
    TooMany {
        /// The job.
        job: JobName,
        /// How many.
        count: usize,
    },
    /// The request's id was given to another kind of request.
    #[error("request_id `{id}` was given to another request about job `{job}`; use a new one")]
    OtherRequest {
        /// The job.
        job: JobName,
        /// The id.
        id: RequestId,
    },
    /// The sidecar is stopping.
    #[error("the sidecar is stopping")]
    Stopping,
}

/// Executions by their instances.
pub type ByInstance = BTreeMap<InstanceId, Vec<Cancelled>>;

/// Cancels executions of a job that run here: those of these items, or all. Returns them by instance. If the job does not have one of the
/// items, no execution is cancelled. `request`: the id that the caller has given the request; if it was carried out before, this returns
/// what it has cancelled, and cancels no other execution.
pub async fn cancel(
    attachments: &Attachments,
    job: &JobName,
    items: Option<BTreeSet<Item>>,
    request: Option<RequestId>,
) -> Result<ByInstance, CancelError> {
    let Some(id) = request else {
        let wish = CancelWish { items, ..CancelWish::default() };
        let cancelled = ask(attachments, job, wish).await?;
        log(job, &cancelled);
        return Ok(cancelled);
    };
    // The caller may go away at any time. The sidecar carries out the recorded request all the same.
    let (attachments, job) = (attachments.clone(), job.clone());
    let clock = attachments.shared().clock.clone();
    let (sender, answer) = oneshot::channel();
    let task = async move {
        let cancelled = cancel_once(&attachments, &job, items, &id).await;
        // A caller that has gone away needs no answer.
        let _ = sender.send(cancelled);
    };
    // Ends with the answers of the registry and of the participants, which are bounded.
    clock.spawn(task);
    answer.await.unwrap_or(Err(CancelError::Stopping))
}

async fn cancel_once(
    attachments: &Attachments,
    job: &JobName,
    items: Option<BTreeSet<Item>>,
    id: &RequestId,
) -> Result<ByInstance, CancelError> {
    let shared = attachments.shared();
    let session = shared.current.borrow().clone().ok_or(CancelError::NoSession)?;
    let paths = ExtensionPaths::new(&shared.namespace, job);
    let unrecorded = |error| CancelError::Unrecorded { job: job.clone(), error };
    let path = paths.request(id, 0);
    if let Some(record) = requests::read(&*session, &path).await.map_err(unrecorded)? {
        return repeat(attachments, job, id, record).await;
    }
    let wish = CancelWish { items, only_named: true, ..CancelWish::default() };
    let named = ask(attachments, job, wish).await?;
    let record = records(&named);
    let create = Operation::create(path.clone(), NodeKind::Persistent, write_cancelled(&record));
    if create.wire_size() > TRANSACTION_BYTES_MAX {
        return Err(CancelError::TooMany { job: job.clone(), count: record.len() });
    }
    requests::make_room(&*session, &paths).await.map_err(unrecorded)?;
    for attempt in 1..=ATTEMPTS_MAX {
        match session.commit(vec![create.clone()]).await.map_err(|failure| failure.error) {
            Ok(results) => {
                cancel_recorded(attachments, job, &record).await;
                log(job, &named);
                requests::forget_old(&*session, &paths, id, &results).await;
                return Ok(named);
            }
            // An attempt before this one, or the same request at the same time.
            Err(Error::NodeExists(_)) => {
                let record = requests::read(&*session, &path).await.map_err(unrecorded)?;
                return repeat(attachments, job, id, record.unwrap_or(RequestRecord::Unknown)).await;
            }
            Err(Error::OutcomeUnknown(_)) if attempt < ATTEMPTS_MAX => {}
            Err(error) => return Err(unrecorded(error)),
        }
    }
    Err(CancelError::Stopping)
}

/// Carries out what the record says, and returns it. Executions that have ended stay so, and those of other sidecars are their affair.
async fn repeat(
    attachments: &Attachments,
    job: &JobName,
    id: &RequestId,
    record: RequestRecord,
) -> Result<ByInstance, CancelError> {
    let RequestRecord::Cancel(record) = record else {
        return Err(CancelError::OtherRequest { job: job.clone(), id: id.clone() });
    };
    cancel_recorded(attachments, job, &record).await;
    let mut cancelled = ByInstance::new();
    for CancelledRecord { instance, item, execution_id, was_waiting } in record {
        cancelled.entry(instance).or_default().push(Cancelled { item, execution_id, was_waiting });
    }
    Ok(cancelled)
}

/// Cancels the executions of a record that run here.
async fn cancel_recorded(attachments: &Attachments, job: &JobName, record: &[CancelledRecord]) {
    let execution_ids = Some(record.iter().map(|one| one.execution_id.clone()).collect());
    // Without an application nothing runs here, and no item is named that the job might not have.
    let _ = ask(attachments, job, CancelWish { execution_ids, ..CancelWish::default() }).await;
}

async fn ask(attachments: &Attachments, job: &JobName, wish: CancelWish) -> Result<ByInstance, CancelError> {
    let cancelled = attachments.cancel(job, &wish).await.map_err(CancelError::Refused)?;
    cancelled.ok_or_else(|| CancelError::NotAttached(job.clone()))
}

fn records(named: &ByInstance) -> Vec<CancelledRecord> {
    let of = |(instance, executions): (&InstanceId, &Vec<Cancelled>)| {
        let record = |one: &Cancelled| CancelledRecord {
            instance: instance.clone(),
            item: one.item,
            execution_id: one.execution_id.clone(),
            was_waiting: one.was_waiting,
        };
        executions.iter().map(record).collect::<Vec<_>>()
    };
    named.iter().flat_map(of).collect()
}

fn log(job: &JobName, cancelled: &ByInstance) {
    let count: usize = cancelled.values().map(Vec::len).sum();
    tracing::info!(job.name = %job, count, "executions cancelled by an operator");
}
