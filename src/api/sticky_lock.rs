//! The service for sticky locks: stand, run, look.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use jiff::Timestamp;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use crate::coordination::sticky::contract::{
    Answer, Call, Event, Leases, LossReason, Refusal, Standing, State,
};
use crate::elasticjob::field_error::FieldError;
use crate::extension::lock::NAME_BYTES_MAX;
use crate::extension::sticky::{
    CHECKPOINT_BYTES_MAX, Cause, GRACE_MAX, INSTANCE_BYTES_MAX, Previous, StickyPaths, Unfinished,
};
use crate::job::FencingToken;
use crate::listen::caller::Caller;
use crate::proto;
use crate::proto::stand_response::Event as Message;
use crate::proto::sticky_lock_service_server::StickyLockService;
use crate::proto::try_run_response::Answer as RunAnswer;
use crate::runner::shared::Shared;
use crate::runner::sticky::look::StickyState;
use crate::runner::sticky::registry::{CallError, Outlet, Stand, StickyLocks};
use crate::tree::Path;

use super::convert::{InvalidRequest, check_application_id};
use super::{event, names, status};

/// The grace if the application gives none.
const GRACE_DEFAULT: Duration = Duration::from_secs(10);
/// The longest wait: longer than any use, and far from every overflow.
const WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// Names of locks in one answer: the default and the most.
const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1_000;

/// The service.
#[derive(Clone)]
pub struct StickyLockCalls {
    locks: StickyLocks,
}

impl StickyLockCalls {
    /// The service for these locks.
    pub fn new(locks: StickyLocks) -> Self {
        Self { locks }
    }

    fn read_lock(&self, name: &str, errors: &mut Vec<FieldError>) -> Option<StickyPaths> {
        let lock = StickyPaths::named(self.locks.root(), name).ok();
        let lock = lock.filter(|_| name.len() <= NAME_BYTES_MAX);
        if lock.is_none() {
            let allowed = "1 to 200 bytes without `/` and control characters, and not `.` or `..`";
            errors.push(FieldError::new("name", name, allowed));
        }
        lock
    }

    fn read_stand(&self, request: proto::StandRequest) -> Result<Stand, InvalidRequest> {
        let mut errors = Vec::new();
        let lock = self.read_lock(&request.name, &mut errors);
        let instance = request.instance_name;
        if instance.is_empty()
            || instance.len() > INSTANCE_BYTES_MAX
            || instance.chars().any(char::is_control)
        {
            let allowed = "1 to 255 bytes without control characters";
            errors.push(FieldError::new("instance_name", &instance, allowed));
        }
        let grace =
            read_duration("grace", request.grace, (GRACE_DEFAULT, GRACE_MAX), "0s to 24 hours", &mut errors);
        check_application_id(&request.application_id, &mut errors);
        match (lock, grace) {
            (Some(lock), Some(grace)) if errors.is_empty() => {
                Ok(Stand { lock, instance, grace, application_id: request.application_id })
            }
            _ => Err(InvalidRequest(errors)),
        }
    }

    async fn call(&self, stand_id: &str, call: Call) -> Result<Answer, Status> {
        let answer = self.locks.call(stand_id, call).await;
        answer.map_err(|error| status::of_stand_call(&error))
    }
}

/// Reads a duration. `bounds`: the default, and the most.
fn read_duration(
    field: &str,
    given: Option<prost_types::Duration>,
    bounds: (Duration, Duration),
    allowed: &str,
    errors: &mut Vec<FieldError>,
) -> Option<Duration> {
    let Some(given) = given else { return Some(bounds.0) };
    let read = Duration::try_from(given).ok().filter(|read| *read <= bounds.1);
    if read.is_none() {
        errors.push(FieldError::new(field, &format!("{}s", given.seconds), allowed));
    }
    read
}

#[tonic::async_trait]
impl StickyLockService for StickyLockCalls {
    type StandStream = StandEvents;

    async fn stand(&self, request: Request<proto::StandRequest>) -> Result<Response<StandEvents>, Status> {
        let caller = Caller::of(request.extensions());
        let request = request.into_inner();
        names::check(&caller, &request.name)?;
        let stand = self.read_stand(request).map_err(|invalid| invalid.to_status())?;
        let path = stand.lock.root().clone();
        let (stand_id, outlet) = self.locks.stand(stand).map_err(|error| status::of_stand(&error))?;
        let shared = self.locks.shared().clone();
        Ok(Response::new(StandEvents { stand_id: Some(stand_id), path, outlet, shared, ended: false }))
    }

    async fn try_run(
        &self,
        request: Request<proto::TryRunRequest>,
    ) -> Result<Response<proto::TryRunResponse>, Status> {
        let request = request.into_inner();
        let mut errors = Vec::new();
        let bounds = (Duration::ZERO, WAIT_MAX);
        let wait = read_duration("wait_timeout", request.wait_timeout, bounds, "0s to 365 days", &mut errors);
        let wait = wait.ok_or_else(|| InvalidRequest(errors).to_status())?;
        let answer = match self.call(&request.stand_id, Call::TryRun { wait }).await? {
            Answer::Entered { token, run_id, leases } => RunAnswer::Entered(proto::RunEntered {
                run_id,
                fencing_token: token.0,
                lease: Some(lease(leases, self.locks.shared())),
            }),
            Answer::Busy(found) => RunAnswer::Busy(standing(found)),
            // The candidate answers no such call so.
            Answer::Done | Answer::Refused(_) => {
                return Err(status::of_stand_call(&CallError::Refused(Refusal::Ended)));
            }
        };
        Ok(Response::new(proto::TryRunResponse { answer: Some(answer) }))
    }

    async fn leave(
        &self,
        request: Request<proto::LeaveRequest>,
    ) -> Result<Response<proto::LeaveResponse>, Status> {
        let proto::LeaveRequest { stand_id, run_id } = request.into_inner();
        self.call(&stand_id, Call::Leave { run_id }).await?;
        Ok(Response::new(proto::LeaveResponse {}))
    }

    async fn save_checkpoint(
        &self,
        request: Request<proto::SaveCheckpointRequest>,
    ) -> Result<Response<proto::SaveCheckpointResponse>, Status> {
        let proto::SaveCheckpointRequest { stand_id, checkpoint: data } = request.into_inner();
        if data.len() > CHECKPOINT_BYTES_MAX {
            let given = format!("{} bytes", data.len());
            let error = FieldError::new("checkpoint", &given, "at most 4096 bytes");
            return Err(InvalidRequest(vec![error]).to_status());
        }
        self.call(&stand_id, Call::Checkpoint { data }).await?;
        Ok(Response::new(proto::SaveCheckpointResponse {}))
    }

    async fn resolve(
        &self,
        request: Request<proto::ResolveRequest>,
    ) -> Result<Response<proto::ResolveResponse>, Status> {
        let proto::ResolveRequest { stand_id, fencing_token } = request.into_inner();
        self.call(&stand_id, Call::Resolve { token: FencingToken(fencing_token) }).await?;
        Ok(Response::new(proto::ResolveResponse {}))
    }

    async fn resign_ownership(
        &self,
        request: Request<proto::ResignOwnershipRequest>,
    ) -> Result<Response<proto::ResignOwnershipResponse>, Status> {
        self.call(&request.get_ref().stand_id, Call::Resign).await?;
        Ok(Response::new(proto::ResignOwnershipResponse {}))
    }

    async fn get_sticky_lock(
        &self,
        request: Request<proto::GetStickyLockRequest>,
    ) -> Result<Response<proto::GetStickyLockResponse>, Status> {
        names::check(&Caller::of(request.extensions()), &request.get_ref().name)?;
        let mut errors = Vec::new();
        let lock = self.read_lock(&request.get_ref().name, &mut errors);
        let lock = lock.ok_or_else(|| InvalidRequest(errors).to_status())?;
        let state = self.locks.look(&lock).await.map_err(|error| status::of_sticky_look(&error))?;
        Ok(Response::new(proto::GetStickyLockResponse { lock: Some(lock_message(&lock, state)) }))
    }

    async fn list_sticky_locks(
        &self,
        request: Request<proto::ListStickyLocksRequest>,
    ) -> Result<Response<proto::ListStickyLocksResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let request = request.into_inner();
        let size = usize::try_from(request.page_size).unwrap_or(usize::MAX);
        if size > PAGE_MAX {
            let error = FieldError::new("page_size", &request.page_size.to_string(), "0 to 1000");
            return Err(InvalidRequest(vec![error]).to_status());
        }
        let size = if size == 0 { PAGE_DEFAULT } else { size };
        let names = self.locks.names().await.map_err(|error| status::of_sticky_look(&error))?;
        // The token is the last name of the page before.
        let mut rest = names.into_iter().filter(|name| *name > request.page_token && caller.may_use(name));
        let names: Vec<_> = rest.by_ref().take(size).collect();
        let more = rest.next().is_some();
        let next_page_token = names.last().filter(|_| more).cloned().unwrap_or_default();
        Ok(Response::new(proto::ListStickyLocksResponse { names, next_page_token }))
    }
}

/// The stream of a stand. Dropping it ends the stand.
pub struct StandEvents {
    /// Taken by the first event.
    stand_id: Option<String>,
    path: Path,
    outlet: Outlet,
    shared: Shared,
    ended: bool,
}

impl Stream for StandEvents {
    type Item = Result<proto::StandResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(stand_id) = self.stand_id.take() {
            let started = Message::Started(proto::StandStarted { stand_id, path: self.path.to_string() });
            return Poll::Ready(Some(Ok(proto::StandResponse { event: Some(started) })));
        }
        self.outlet.events.poll_recv(context).map(|received| {
            if let Some(received) = received {
                return Some(Ok(proto::StandResponse { event: Some(message(received, &self.shared)) }));
            }
            self.ended = true;
            let end = self.outlet.end.borrow().clone();
            status::of_stand_end(&self.path, end.as_ref()).map(Err)
        })
    }
}

fn message(event: Event, shared: &Shared) -> Message {
    match event {
        Event::State(found) => Message::State(standing(found)),
        Event::Acquired { token, cause, is_continued, previous, unfinished: runs, leases } => {
            let cause = match cause {
                Cause::First => proto::StickyCause::First,
                Cause::Returned => proto::StickyCause::Returned,
                Cause::GraceOver => proto::StickyCause::GraceOver,
                Cause::Resigned => proto::StickyCause::Resigned,
            };
            Message::Acquired(proto::StickyAcquired {
                fencing_token: token.0,
                cause: cause.into(),
                continued: is_continued,
                previous: previous.map(previous_owner),
                unfinished: runs.into_iter().map(unfinished).collect(),
                lease: Some(lease(leases, shared)),
            })
        }
        Event::LeaseRenewed(leases) => Message::LeaseRenewed(lease(leases, shared)),
        Event::Suspended(leases) => Message::Suspended(lease(leases, shared)),
        Event::Resumed(leases) => Message::Resumed(lease(leases, shared)),
        Event::Draining { deadline } => Message::Draining(event::draining(deadline, shared.clock.now())),
        Event::Lost { reason, owner } => {
            let reason = match reason {
                LossReason::Lease => proto::StickyLossReason::LeaseLost,
                LossReason::Taken => proto::StickyLossReason::Taken,
                LossReason::Revoked => proto::StickyLossReason::Revoked,
                LossReason::Draining => proto::StickyLossReason::Draining,
                LossReason::Resigned => proto::StickyLossReason::Resigned,
            };
            Message::Lost(proto::StickyLost { reason: reason.into(), owner: owner.unwrap_or_default() })
        }
    }
}

fn lease(leases: Leases, shared: &Shared) -> proto::StickyLease {
    let part = |end| Some(event::lock_lease(end, &shared.clock));
    proto::StickyLease { owned: part(leases.owned), run: part(leases.run) }
}

/// A time of the registry's clock.
fn time(ms: Option<i64>) -> Option<prost_types::Timestamp> {
    ms.and_then(|ms| Timestamp::from_millisecond(ms).ok()).map(event::timestamp)
}

fn standing(found: Standing) -> proto::StickyStanding {
    let state = match found.state {
        State::Created => proto::StickyState::Created,
        State::Own => proto::StickyState::Own,
        State::Released => proto::StickyState::Released,
        State::Waiting => proto::StickyState::Waiting,
    };
    proto::StickyStanding {
        state: state.into(),
        owner: found.owner.unwrap_or_default(),
        fencing_token: found.token.map_or(0, |token| token.0),
        inside: found.is_inside,
        owned_since: time(found.acquired_ms),
    }
}

fn previous_owner(previous: Previous) -> proto::StickyPrevious {
    proto::StickyPrevious {
        instance_name: previous.instance,
        fencing_token: previous.token,
        owned_since: time(previous.acquired_ms),
        last_run_time: time(previous.entered_ms),
        inside: previous.inside,
    }
}

fn unfinished(run: Unfinished) -> proto::UnfinishedRun {
    proto::UnfinishedRun {
        instance_name: run.instance,
        fencing_token: run.token,
        begin_time: time(run.entered_ms),
        checkpoint: run.checkpoint,
    }
}

fn lock_message(lock: &StickyPaths, found: StickyState) -> proto::StickyLock {
    let record = found.record.unwrap_or_default();
    let is_owned = record.owner.is_some();
    let state = match (found.is_owned, is_owned) {
        (true, _) => proto::StickyState::Released,
        (false, true) => proto::StickyState::Waiting,
        (false, false) => proto::StickyState::Created,
    };
    proto::StickyLock {
        path: lock.root().to_string(),
        state: state.into(),
        fencing_token: if is_owned { record.token } else { 0 },
        session: found.session.map(|session| session.to_string()).unwrap_or_default(),
        inside: record.is_inside(),
        owned_since: time(record.acquired_ms.filter(|_| is_owned)),
        last_run_time: time(record.entered_ms),
        last_run_end_time: time(record.left_ms),
        grace: is_owned.then(|| record.grace()).and_then(|grace| grace.try_into().ok()),
        unfinished: record.unfinished.into_iter().map(unfinished).collect(),
        owner: record.owner.unwrap_or_default(),
        waiting: found.waiting,
    }
}
