//! Counts the calls of the API by method and status, and times them until their answer begins. A tower layer around all others, so
//! refused calls count too. Decides nothing.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::future::{BoxFuture, FutureExt as _};
use http_body::{Frame, SizeHint};
use tonic::body::Body;
use tonic::codegen::Bytes;
use tonic::codegen::http::{HeaderMap, Request, Response};
use tonic::{Code, Status};
use tower::{Layer, Service};

use crate::metrics::OTHER;
use crate::metrics::meters::Meters;
use crate::runner::clock::Clock;

/// The path of a method, if there is one with this path.
pub(crate) type Methods = fn(&str) -> Option<&'static str>;

/// The layer. Clones share the counters.
#[derive(Clone)]
pub struct MeasureCalls {
    meters: Meters,
    methods: Methods,
    clock: Clock,
}

impl MeasureCalls {
    pub(crate) fn new(meters: Meters, methods: Methods, clock: &Clock) -> Self {
        Self { meters, methods, clock: clock.clone() }
    }
}

impl<S> Layer<S> for MeasureCalls {
    type Service = MeasuredCalls<S>;

    fn layer(&self, inner: S) -> MeasuredCalls<S> {
        MeasuredCalls { inner, layer: self.clone() }
    }
}

/// A service whose calls are counted.
#[derive(Clone)]
pub struct MeasuredCalls<S> {
    inner: S,
    layer: MeasureCalls,
}

impl<S> Service<Request<Body>> for MeasuredCalls<S>
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
        let method = (self.layer.methods)(request.uri().path()).unwrap_or(OTHER);
        let MeasureCalls { meters, clock, .. } = self.layer.clone();
        let since = clock.now().mono;
        let mut call = Call { meters, method, code: None };
        let called = self.inner.call(request);
        async move {
            let response = called.await?;
            call.meters.answered(method, clock.now().mono.saturating_sub(since));
            // A refused call has its status in the head.
            call.look(response.headers());
            Ok(response.map(|body| Body::new(Measured { body, call })))
        }
        .boxed()
    }
}

/// A call that has not ended.
struct Call {
    meters: Meters,
    method: &'static str,
    code: Option<Code>,
}

impl Call {
    fn look(&mut self, headers: &HeaderMap) {
        if let Some(status) = Status::from_header_map(headers) {
            self.code = Some(status.code());
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // A call without a status was cut off: its caller is gone.
        self.meters.called(self.method, word(self.code.unwrap_or(Code::Cancelled)));
    }
}

/// The name of a status in gRPC's specification.
fn word(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// The body of an answer, whose end has the status.
struct Measured {
    body: Body,
    call: Call,
}

impl http_body::Body for Measured {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(trailers) = frame.trailers_ref() {
                    self.call.look(trailers);
                }
            }
            Some(Err(status)) => self.call.code = Some(status.code()),
            None => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
