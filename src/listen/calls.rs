//! The bounds of calls: how many are in progress, how many bytes of their requests are on the way, and how many calls of operators a
//! caller makes in a second. A tower layer inside those that find the caller.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use http_body::{Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Bytes;
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};

use super::caller::{Caller, CallerName};
use super::refusal::refusal;
use super::share::{Bound, Taken};
use crate::config::Roles;
use crate::reason::Reason;
use crate::runner::clock::Clock;

/// The cost of a call for the sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cost {
    /// A small answer, or a stream that is bounded elsewhere.
    Small,
    /// An answer that may have megabytes.
    Large,
    /// An operator's call, which writes to the registry.
    Operation,
}

/// The cost of a call, by its path.
pub(crate) type Costs = fn(&str) -> Cost;

/// Calls in progress: twice the streams that may be open, and a report for each.
const CALLS_MAX: usize = 40_000;
/// Calls in progress of callers that the sidecar does not serve, which are health checks.
const STRANGERS_MAX: usize = 256;
/// Calls in progress whose answers may have megabytes each.
const LARGE_MAX: usize = 64;
/// Bytes of requests that have not arrived as a whole. The largest has 4 MiB.
const BYTES_MAX: usize = 64 * 1024 * 1024;
/// An operator's calls in a second, and at once after a pause. A person makes few, a program that triggers each job once makes
/// these.
const OPERATIONS_A_SECOND: u32 = 100;
const OPERATIONS_AT_ONCE: u32 = 200;
/// The callers whose pace is known. Beyond it those that have paused are forgotten.
const PACES_MAX: usize = 1_000;

/// The layer. Clones share the bounds.
#[derive(Clone)]
pub struct BoundCalls {
    bounds: Arc<Bounds>,
}

struct Bounds {
    costs: Costs,
    calls: Bound,
    large: Bound,
    /// Of callers that the sidecar does not serve: health checks.
    strangers: Bound,
    bytes: Bound,
    paces: Mutex<BTreeMap<CallerName, Pace>>,
    clock: Clock,
}

impl BoundCalls {
    /// `several`: more than one user is served, and none may take more than half.
    pub(crate) fn new(costs: Costs, several: bool, clock: &Clock) -> Self {
        let bound = |total| Bound::new(total, several);
        Self {
            bounds: Arc::new(Bounds {
                costs,
                calls: bound(CALLS_MAX),
                large: bound(LARGE_MAX),
                strangers: Bound::new(STRANGERS_MAX, false),
                bytes: bound(BYTES_MAX),
                paces: Mutex::default(),
                clock: clock.clone(),
            }),
        }
    }
}

impl Bounds {
    /// Takes a place for a call, until its answer has been sent.
    fn admit(&self, path: &str, caller: &Caller) -> Result<Vec<Taken>, Status> {
        let name = caller.name();
        let calls = if caller.roles() == Roles::NONE { &self.strangers } else { &self.calls };
        let mut taken = vec![self.take(calls, name, "calls in progress")?];
        match (self.costs)(path) {
            Cost::Small => {}
            Cost::Large => {
                taken.push(self.take(&self.large, name, "calls with large answers in progress")?)
            }
            Cost::Operation => self.pace(name)?,
        }
        Ok(taken)
    }

    fn take(&self, bound: &Bound, caller: &CallerName, of: &str) -> Result<Taken, Status> {
        bound.take(caller, 1).ok_or_else(|| {
            let text = format!(
                "this sidecar has no room for more {of}: a caller may have {} of them; wait for answers, and read them",
                bound.each()
            );
            refusal(Reason::TooMany, text)
        })
    }

    fn pace(&self, caller: &CallerName) -> Result<(), Status> {
        let now = self.clock.now().mono;
        let mut paces = self.paces.lock().unwrap_or_else(PoisonError::into_inner);
        if paces.len() >= PACES_MAX {
            paces.retain(|_, pace| !pace.is_full(now));
        }
        if paces.entry(caller.clone()).or_insert_with(|| Pace::full(now)).take(now) {
            return Ok(());
        }
        let text = format!("a caller may operate {OPERATIONS_A_SECOND} times in a second; wait for a moment");
        Err(refusal(Reason::TooMany, text))
    }
}

/// How many calls a caller may make now: some more with each moment that passes (a token bucket).
#[derive(Debug)]
struct Pace {
    /// When it would be full.
    full_at: Duration,
}

impl Pace {
    const STEP: Duration = match Duration::from_secs(1).checked_div(OPERATIONS_A_SECOND) {
        Some(step) => step,
        None => Duration::ZERO,
    };

    fn full(now: Duration) -> Self {
        Self { full_at: now }
    }

    fn is_full(&self, now: Duration) -> bool {
        self.full_at <= now
    }

    /// `false`: none is left.
    fn take(&mut self, now: Duration) -> bool {
        let next = self.full_at.max(now).saturating_add(Self::STEP);
        let fits = next.saturating_sub(now) <= Self::STEP * OPERATIONS_AT_ONCE;
        if fits {
            self.full_at = next;
        }
        fits
    }
}

impl<S> Layer<S> for BoundCalls {
    type Service = BoundedCalls<S>;

    fn layer(&self, inner: S) -> BoundedCalls<S> {
        BoundedCalls { inner, bounds: Arc::clone(&self.bounds) }
    }
}

/// A service whose calls are bounded.
#[derive(Clone)]
pub struct BoundedCalls<S> {
    inner: S,
    bounds: Arc<Bounds>,
}

impl<S> Service<Request<Body>> for BoundedCalls<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let caller = Caller::of(request.extensions());
        let (taken, bytes) = match self.bounds.admit(request.uri().path(), &caller) {
            Ok(taken) => (taken, self.bounds.bytes.take(caller.name(), 0)),
            Err(status) => return futures::future::ready(Ok(status.into_http())).boxed(),
        };
        let called = self.inner.call(request.map(|body| counted(body, bytes)));
        async move { Ok(called.await?.map(|body| kept(body, taken))) }.boxed()
    }
}

/// A body, and a look at the length of each piece of its data. The look may refuse a piece.
struct Looked<L> {
    body: Body,
    look: L,
}

impl<L> http_body::Body for Looked<L>
where
    L: FnMut(usize) -> Result<(), Status> + Unpin,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)) else {
            return Poll::Ready(None);
        };
        let length = frame.as_ref().ok().and_then(Frame::data_ref).map_or(0, Bytes::len);
        Poll::Ready(Some((self.look)(length).and(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A request whose bytes count until it has been read. `bytes` is `None` if nothing is left, not even for no bytes.
fn counted(body: Body, mut bytes: Option<Taken>) -> Body {
    let look = move |length| match bytes.as_mut().is_some_and(|bytes| bytes.add(length)) {
        true => Ok(()),
        false => Err(refusal(
            Reason::TooMany,
            "this sidecar has no room for more requests that are on their way: send fewer large ones at once"
                .to_owned(),
        )),
    };
    Body::new(Looked { body, look })
}

/// An answer that keeps these places until it has been sent.
fn kept(body: Body, taken: Vec<Taken>) -> Body {
    let look = move |_| {
        let _kept = &taken;
        Ok(())
    };
    Body::new(Looked { body, look })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn se_11_an_operator_makes_some_calls_at_once_and_then_so_many_a_second() {
        let mut now = Duration::from_secs(5);
        let mut pace = Pace::full(now);
        let at_once = (0..).take_while(|_| pace.take(now)).count();
        assert_eq!(at_once, usize::try_from(OPERATIONS_AT_ONCE).unwrap());
        now += Duration::from_secs(1);
        let after_a_second = (0..).take_while(|_| pace.take(now)).count();
        assert_eq!(after_a_second, usize::try_from(OPERATIONS_A_SECOND).unwrap());
        assert!(!pace.is_full(now));
        now += Duration::from_secs(2);
        assert!(pace.is_full(now));
    }
}
