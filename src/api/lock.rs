//! The service for locks: hold, release, look, revoke, break.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use jiff::Timestamp;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};

use crate::coordination::lock::contract::{Event, First, LossReason};
use crate::coordination::lock::picture::LockState;
use crate::elasticjob::field_error::FieldError;
use crate::excerpt::Excerpt;
use crate::extension::lock::{Below, Child, HOLDER_BYTES_MAX, LOCK_DELAY_MAX, LockPaths, Mode};
use crate::listen::caller::Caller;
use crate::listen::refusal::refusal;
use crate::proto;
use crate::proto::hold_response::Event as Message;
use crate::proto::lock_id::Id;
use crate::proto::lock_service_server::LockService;
use crate::reason::Reason;
use crate::runner::lock::registry::{Hold, Locks, Outlet};
use crate::runner::shared::Shared;
use crate::tree::{Node, Path};

use super::convert::{InvalidRequest, check_application_id};
use super::{audit, event, names, status};

/// The longest time limit: longer than any use, and far from every overflow.
const LIMIT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// The shortest time that a lock may be held.
const HOLD_MIN: Duration = Duration::from_millis(1);
/// The most permits of a semaphore: as many as the contenders of a queue.
const PERMITS_MAX: usize = 1_000;
/// Names of locks in one answer: the default and the most.
const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1_000;
/// The end of the name of each sidecar's own root beside its namespace.
const OWN_ROOT_SUFFIX: &str = "-sidekeeper";

/// The service.
#[derive(Clone)]
pub struct LockCalls {
    locks: Locks,
}

impl LockCalls {
    /// The service for these locks.
    pub fn new(locks: Locks) -> Self {
        Self { locks }
    }

    fn read_one(&self, caller: &Caller, given: Option<proto::LockId>) -> Result<LockPaths, Status> {
        names::check_lock(caller, given.as_ref())?;
        let mut errors = Vec::new();
        let lock = read_lock(&self.locks, Kind::Lock, given, &mut errors);
        lock.map(|(lock, _)| lock).ok_or_else(|| InvalidRequest(errors).to_status())
    }

    fn read_hold(&self, request: proto::HoldRequest) -> Result<Hold, InvalidRequest> {
        let mut errors = Vec::new();
        let mode = match request.mode() {
            proto::LockMode::Unspecified if request.mode != 0 => None,
            proto::LockMode::Unspecified | proto::LockMode::Mutex => Some(Mode::Mutex),
            proto::LockMode::Read => Some(Mode::Read),
            proto::LockMode::Write => Some(Mode::Write),
            proto::LockMode::Semaphore => Some(Mode::Permit),
        };
        if mode.is_none() {
            errors.push(FieldError::new(
                "mode",
                &request.mode.to_string(),
                "MUTEX, READ, WRITE or SEMAPHORE",
            ));
        }
        let permits = usize::try_from(request.permits).unwrap_or(usize::MAX);
        let (least, most, allowed) = match mode {
            Some(Mode::Permit) => (1, PERMITS_MAX, "1 to 1000"),
            _ => (0, 0, "0: only a semaphore has permits"),
        };
        if !(least..=most).contains(&permits) {
            errors.push(FieldError::new("permits", &request.permits.to_string(), allowed));
        }
        let lock = read_lock(&self.locks, Kind::Lock, request.lock, &mut errors);
        let wait = read_limit("wait_timeout", request.wait_timeout, Duration::ZERO, &mut errors);
        let hold_max = read_limit("hold_timeout", request.hold_timeout, HOLD_MIN, &mut errors);
        let lock_delay = read_limit("lock_delay", request.lock_delay, Duration::ZERO, &mut errors);
        let lock_delay = lock_delay.unwrap_or_default();
        let is_foreign = lock.as_ref().is_some_and(|(_, is_foreign)| *is_foreign);
        let may_delay = !is_foreign && matches!(mode, Some(Mode::Mutex | Mode::Write));
        if lock_delay > LOCK_DELAY_MAX || (!lock_delay.is_zero() && !may_delay) {
            let allowed = "0s to 600s, for MUTEX and WRITE, of a lock with `lock.name`";
            errors.push(FieldError::new("lock_delay", &format!("{lock_delay:?}"), allowed));
        }
        let holder = request.holder;
        if holder.len() > HOLDER_BYTES_MAX || holder.chars().any(char::is_control) {
            errors.push(FieldError::new("holder", &holder, "at most 255 bytes without control characters"));
        }
        check_application_id(&request.application_id, &mut errors);
        match (lock, mode) {
            (Some((lock, is_foreign)), Some(mode)) if errors.is_empty() => {
                let (data, application_id) =
                    (Some(holder).filter(|text| !text.is_empty()), request.application_id);
                Ok(Hold {
                    lock,
                    is_foreign,
                    mode,
                    permits,
                    lock_delay,
                    wait,
                    hold_max,
                    stands_again: false,
                    data,
                    application_id,
                    is_of_item: false,
                })
            }
            _ => Err(InvalidRequest(errors)),
        }
    }
}

/// The service whose request names a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Lock,
    Election,
}

/// The lock or the election of a request, and whether its place was chosen by other programs.
pub(super) fn read_lock(
    locks: &Locks,
    kind: Kind,
    given: Option<proto::LockId>,
    errors: &mut Vec<FieldError>,
) -> Option<(LockPaths, bool)> {
    let (root, field) = match kind {
        Kind::Lock => (&locks.roots().locks, "lock"),
        Kind::Election => (&locks.roots().elections, "election"),
    };
    match given.and_then(|lock| lock.id) {
        Some(Id::Name(name)) => {
            let lock = LockPaths::named(root, &name);
            if lock.is_none() {
                let allowed = "1 to 200 bytes without `/` and control characters, not `.` or `..`, and not `@-@` at the \
                               beginning";
                errors.push(FieldError::new(&format!("{field}.name"), &name, allowed));
            }
            lock.map(|lock| (lock, false))
        }
        Some(Id::Path(path)) => {
            let read = Path::parse(&path).ok().filter(|path| !path.is_root() && !is_private(locks, path));
            if read.is_none() {
                let allowed = format!(
                    "a path like `/locks/bill`, not `/`, not in the namespace of the jobs, and not in a sidecar's own \
                     root (for a node below `{root}` give `{field}.name`)"
                );
                errors.push(FieldError::new(&format!("{field}.path"), &path, &allowed));
            }
            read.map(|path| (LockPaths::at(path), true))
        }
        None => {
            errors.push(FieldError::new(field, "", &format!("`{field}.name` or `{field}.path`")));
            None
        }
    }
}

/// Whether a path belongs to jobs or to a sidecar.
fn is_private(locks: &Locks, path: &Path) -> bool {
    let namespace = &locks.shared().namespace;
    // Another namespace's root is known by its name only.
    let is_own_root = path.as_str().split('/').any(|name| name.ends_with(OWN_ROOT_SUFFIX));
    path.is_within(namespace) || namespace.is_within(path) || is_own_root
}

fn read_limit(
    field: &str,
    given: Option<prost_types::Duration>,
    least: Duration,
    errors: &mut Vec<FieldError>,
) -> Option<Duration> {
    let given = given?;
    match Duration::try_from(given) {
        Ok(limit) if (least..=LIMIT_MAX).contains(&limit) => Some(limit),
        Ok(_) | Err(_) => {
            let allowed = if least.is_zero() { "0s to 365 days" } else { "1 ms to 365 days" };
            errors.push(FieldError::new(field, &format!("{}s", given.seconds), allowed));
            None
        }
    }
}

#[tonic::async_trait]
impl LockService for LockCalls {
    type HoldStream = HoldEvents;
    type WatchLockStream = Pin<Box<dyn Stream<Item = Result<proto::WatchLockResponse, Status>> + Send>>;

    async fn hold(&self, request: Request<proto::HoldRequest>) -> Result<Response<Self::HoldStream>, Status> {
        let caller = Caller::of(request.extensions());
        let request = request.into_inner();
        names::check_lock(&caller, request.lock.as_ref())?;
        let hold = self.read_hold(request).map_err(|invalid| invalid.to_status())?;
        let path = hold.lock.lock().clone();
        let (hold_id, outlet) = self.locks.hold(hold).map_err(|error| status::of_hold(&error))?;
        let shared = self.locks.shared().clone();
        Ok(Response::new(HoldEvents { hold_id: Some(hold_id), path, outlet, shared, ended: false }))
    }

    async fn release(
        &self,
        request: Request<proto::ReleaseRequest>,
    ) -> Result<Response<proto::ReleaseResponse>, Status> {
        let released = self.locks.release(&request.get_ref().hold_id).await;
        released.map_err(|error| status::of_release(&error))?;
        Ok(Response::new(proto::ReleaseResponse {}))
    }

    async fn get_lock(
        &self,
        request: Request<proto::GetLockRequest>,
    ) -> Result<Response<proto::GetLockResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let lock = self.read_one(&caller, request.into_inner().lock)?;
        let state = self.locks.look(&lock).await.map_err(|error| status::of_lock(&error))?;
        Ok(Response::new(proto::GetLockResponse { lock: Some(lock_message(&lock, &state)) }))
    }

    async fn list_locks(
        &self,
        request: Request<proto::ListLocksRequest>,
    ) -> Result<Response<proto::ListLocksResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let request = request.into_inner();
        let size = usize::try_from(request.page_size).unwrap_or(usize::MAX);
        if size > PAGE_MAX {
            let error = FieldError::new("page_size", &request.page_size.to_string(), "0 to 1000");
            return Err(InvalidRequest(vec![error]).to_status());
        }
        let size = if size == 0 { PAGE_DEFAULT } else { size };
        let names = self.locks.names().await.map_err(|error| status::of_lock(&error))?;
        // The token is the last name of the page before.
        let mut rest = names.into_iter().filter(|name| *name > request.page_token && caller.may_use(name));
        let names: Vec<_> = rest.by_ref().take(size).collect();
        let more = rest.next().is_some();
        let next_page_token = names.last().filter(|_| more).cloned().unwrap_or_default();
        Ok(Response::new(proto::ListLocksResponse { names, next_page_token }))
    }

    async fn watch_lock(
        &self,
        request: Request<proto::WatchLockRequest>,
    ) -> Result<Response<Self::WatchLockStream>, Status> {
        let caller = Caller::of(request.extensions());
        let lock = self.read_one(&caller, request.into_inner().lock)?;
        let states = observe(&self.locks, &lock)?.map(move |(state, stale_reason)| {
            Ok(proto::WatchLockResponse { lock: Some(lock_message(&lock, &state)), stale_reason })
        });
        Ok(Response::new(Box::pin(states)))
    }

    async fn request_revocation(
        &self,
        request: Request<proto::RequestRevocationRequest>,
    ) -> Result<Response<proto::RequestRevocationResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let lock = self.read_one(&caller, request.into_inner().lock)?;
        let asked = self.locks.request_revocation(&lock).await.map_err(|error| status::of_lock(&error));
        audit::record(&caller, "RequestRevocation", lock.lock(), &asked);
        Ok(Response::new(proto::RequestRevocationResponse { holder: Some(contender(&lock, &asked?)) }))
    }

    async fn break_lock(
        &self,
        request: Request<proto::BreakLockRequest>,
    ) -> Result<Response<proto::BreakLockResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let request = request.into_inner();
        let lock = self.read_one(&caller, request.lock)?;
        let is_contender = matches!(
            Below::read(&request.node_name),
            Below::Child(Child::Contender { .. } | Child::Delay { .. } | Child::WithoutNumber(_))
                | Below::Queued(_)
                | Below::Permit(_)
        );
        let node = lock.below(&request.node_name).filter(|_| is_contender).ok_or_else(|| {
            let allowed = "the `node_name` of one of the lock's contenders or vanished holders";
            InvalidRequest(vec![FieldError::new("node_name", &request.node_name, allowed)]).to_status()
        })?;
        let broken = self.locks.break_lock(&lock, &node).await.map_err(|error| status::of_lock(&error));
        audit::record(&caller, "BreakLock", &node, &broken);
        broken.map(|()| Response::new(proto::BreakLockResponse {}))
    }
}

/// The states of a lock, each with the reason why it may be old.
pub(super) fn observe(
    locks: &Locks,
    lock: &LockPaths,
) -> Result<impl Stream<Item = (Arc<LockState>, String)> + Send + use<>, Status> {
    let shared = locks.shared().clone();
    if shared.current.borrow().is_none() {
        let text = "the sidecar has no session with the registry; try again";
        return Err(refusal(Reason::RegistryAway, text));
    }
    let observed = locks.observe(lock).map_err(|error| refusal(Reason::TooMany, error.to_string()))?;
    Ok(WatchStream::new(observed).filter_map(move |seen| {
        let seen = seen?;
        let stale_reason = || event::no_registry(&shared.trouble.borrow().trouble);
        Some((seen.state, if seen.is_current { String::new() } else { stale_reason() }))
    }))
}

/// The stream of a hold. Dropping it gives the lock back.
pub struct HoldEvents {
    /// Taken by the first event.
    hold_id: Option<String>,
    path: Path,
    outlet: Outlet,
    shared: Shared,
    ended: bool,
}

impl Stream for HoldEvents {
    type Item = Result<proto::HoldResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(hold_id) = self.hold_id.take() {
            let started = Message::Started(proto::HoldStarted { hold_id, path: self.path.to_string() });
            return Poll::Ready(Some(Ok(proto::HoldResponse { event: Some(started) })));
        }
        while let Some(received) = ready!(self.outlet.events.poll_recv(context)) {
            if let Some(event) = message(received, &self.shared) {
                return Poll::Ready(Some(Ok(proto::HoldResponse { event: Some(event) })));
            }
        }
        self.ended = true;
        let end = self.outlet.end.borrow().clone();
        Poll::Ready(status::of_hold_end(&self.path, end.as_ref()).map(Err))
    }
}

fn message(event: Event, shared: &Shared) -> Option<Message> {
    let clock = &shared.clock;
    let lease = |end| event::lock_lease(end, clock);
    Some(match event {
        Event::Waiting { position, first } => Message::Waiting(proto::LockWaiting {
            position: u32::try_from(position).unwrap_or(u32::MAX),
            first: Some(first_contender(first)),
            reason: String::new(),
        }),
        Event::NoAnswer => {
            let reason = event::no_registry(&shared.trouble.borrow().trouble);
            Message::Waiting(proto::LockWaiting { position: 0, first: None, reason })
        }
        Event::Acquired { token, path, lease_end } => Message::Acquired(proto::LockAcquired {
            fencing_token: token.0,
            node_path: path.to_string(),
            lease: Some(lease(lease_end)),
        }),
        Event::LeaseRenewed { lease_end } => Message::LeaseRenewed(lease(Some(lease_end))),
        Event::Suspended { lease_end } => Message::Suspended(lease(lease_end)),
        Event::Resumed { lease_end } => Message::Resumed(lease(lease_end)),
        Event::Draining { deadline } => Message::Draining(event::draining(deadline, clock.now())),
        Event::RevocationRequested => Message::RevocationRequested(proto::RevocationRequested {}),
        Event::Lost(reason) => Message::Lost(proto::LockLost { reason: loss_reason(reason).into() }),
        Event::Released => Message::Released(proto::LockReleased {}),
        // Only candidates hear of it.
        Event::LeaderChanged(_) => return None,
    })
}

/// The reason of a loss as a message.
pub(super) fn loss_reason(reason: LossReason) -> proto::LockLossReason {
    match reason {
        LossReason::Lease => proto::LockLossReason::LeaseLost,
        LossReason::Revoked => proto::LockLossReason::Revoked,
        LossReason::HoldLimit => proto::LockLossReason::HoldTimeout,
        LossReason::Draining => proto::LockLossReason::Draining,
    }
}

fn first_contender(first: First) -> proto::Contender {
    proto::Contender {
        mode: mode(&first.name).into(),
        node_name: first.name,
        holder: first.holder.unwrap_or_default(),
        session: first.session.map(|session| session.to_string()).unwrap_or_default(),
        fencing_token: 0,
        since: None,
        lock_delay: None,
    }
}

fn contender(lock: &LockPaths, node: &Node) -> proto::Contender {
    let name = lock.name_below(&node.path).unwrap_or(node.path.name());
    proto::Contender {
        node_name: name.to_owned(),
        holder: Excerpt::of_length(&String::from_utf8_lossy(&node.data), HOLDER_BYTES_MAX).into_string(),
        session: node.stat.ephemeral_owner.map(|session| session.to_string()).unwrap_or_default(),
        mode: mode(name).into(),
        fencing_token: node.stat.created.0,
        since: Timestamp::from_millisecond(node.stat.modified_ms).ok().map(event::timestamp),
        lock_delay: None,
    }
}

fn mode(name: &str) -> proto::LockMode {
    match Below::read(name) {
        Below::Queued(_) | Below::Permit(_) => proto::LockMode::Semaphore,
        Below::Child(Child::Contender { mode, .. } | Child::WithoutNumber(mode)) => match mode {
            Mode::Mutex => proto::LockMode::Mutex,
            Mode::Read => proto::LockMode::Read,
            Mode::Write => proto::LockMode::Write,
            Mode::Permit => proto::LockMode::Semaphore,
            Mode::Candidate => proto::LockMode::Unspecified,
        },
        Below::Child(Child::Delay { .. } | Child::OtherRecipe | Child::Foreign)
        | Below::Semaphore
        | Below::Foreign => proto::LockMode::Unspecified,
    }
}

fn lock_message(lock: &LockPaths, state: &LockState) -> proto::Lock {
    proto::Lock {
        path: lock.lock().to_string(),
        holders: state.holders.iter().map(|node| contender(lock, node)).collect(),
        waiting: state.waiting.iter().map(|node| contender(lock, node)).collect(),
        foreign_nodes: state.foreign.clone(),
        vanished: state.vanished.iter().map(|node| vanished_holder(lock, node)).collect(),
    }
}

/// A holder that has vanished, by the node of its delay.
fn vanished_holder(lock: &LockPaths, node: &Node) -> proto::Contender {
    let lock_delay = match Child::read(node.path.name()) {
        Child::Delay { delay, .. } => delay.try_into().ok(),
        Child::Contender { .. } | Child::WithoutNumber(_) | Child::OtherRecipe | Child::Foreign => None,
    };
    proto::Contender { fencing_token: 0, lock_delay, ..contender(lock, node) }
}
