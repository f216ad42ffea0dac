//! Refuses the names of jobs, locks and elections that a caller may not use. Each call that names one comes here before anything is
//! looked up, so the caller does not learn whether it exists. Pure.
//!
//! Calls that name nothing, but continue another one by its id, are not asked again: the ids cannot be guessed.

use tonic::Status;

use crate::excerpt::Excerpt;
use crate::extension::item_lock::{self, LOCK_PROPERTY};
use crate::listen::caller::Caller;
use crate::listen::refusal::refusal;
use crate::proto::lock_id::Id;
use crate::proto::{AttachRequest, LockId};
use crate::reason::Reason;

/// Fails if the caller may not use the job, the lock or the election of this name, or the lock with this path.
pub(super) fn check(caller: &Caller, name: &str) -> Result<(), Status> {
    if caller.may_use(name) {
        return Ok(());
    }
    Err(refusal(
        Reason::NameNotAllowed,
        format!(
            "{caller} may not use the name `{}`. Each of these settings of the sidecar limits the names: `jobs_allowed` for all \
             callers, `jobs=` of `listen` for the address, `jobs=` of `token_file` for the token",
            Excerpt::of(name)
        ),
    ))
}

/// The same for the job of an attachment, and for the name of the locks that its executions would hold.
pub(super) fn check_attach(caller: &Caller, request: &AttachRequest) -> Result<(), Status> {
    check(caller, &request.job_name)?;
    let lock = request.configuration.as_ref().and_then(|given| given.props.get(LOCK_PROPERTY));
    lock.and_then(|value| item_lock::shared_name(value)).map_or(Ok(()), |name| check(caller, &name))
}

/// The same for the lock or the election of a request. One that names none fails later, for that reason.
pub(super) fn check_lock(caller: &Caller, lock: Option<&LockId>) -> Result<(), Status> {
    match lock.and_then(|lock| lock.id.as_ref()) {
        Some(Id::Name(name)) => check(caller, name),
        Some(Id::Path(path)) => check(caller, path),
        None => Ok(()),
    }
}
