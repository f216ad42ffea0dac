//! Logs the calls that were refused, with method, code and message: what an operator looks for when an application
//! says that it cannot attach. A tower layer around all services; decides nothing.

use std::task::{Context, Poll};

use futures::future::BoxFuture;
use tonic::codegen::http::{Request, Response};
use tonic::{Code, Status};
use tower::{Layer, Service};
use tracing::{debug, warn};

/// The layer.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogRefusals;

impl<S> Layer<S> for LogRefusals {
    type Service = Logged<S>;

    fn layer(&self, inner: S) -> Logged<S> {
        Logged { inner }
    }
}

/// A service whose refusals are logged.
#[derive(Debug, Clone)]
pub struct Logged<S> {
    inner: S,
}

impl<S, B, R> Service<Request<B>> for Logged<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: 'static,
    R: 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<R>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let method = request.uri().path().to_owned();
        let response = self.inner.call(request);
        Box::pin(async move {
            let response = response.await?;
            // A call that ends at once carries its status in the headers; a stream's end is logged by its participant.
            if let Some(status) = Status::from_header_map(response.headers()) {
                log(&method, &status);
            }
            Ok(response)
        })
    }
}

fn log(method: &str, status: &Status) {
    let (code, message) = (status.code(), status.message());
    match code {
        // Callers try these again; they are no news.
        Code::Ok | Code::Cancelled | Code::Unavailable => debug!(method, ?code, message, "call ended"),
        Code::Unknown
        | Code::InvalidArgument
        | Code::DeadlineExceeded
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Internal
        | Code::DataLoss
        | Code::Unauthenticated => warn!(method, ?code, message, "call refused"),
    }
}
