//! Refuses calls without the token, if the sidecar has one: `authorization: Bearer TOKEN` on each call. A
//! tower layer around all services. Only health checks need no token, because probes have no secrets.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::{BoxFuture, FutureExt as _};
use tonic::Status;
use tonic::codegen::http::header::AUTHORIZATION;
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};

use super::refusal::refusal as refused;
use crate::config::Secret;
use crate::reason::Reason;

/// The calls that need no token.
const OPEN: &str = "/grpc.health.v1.Health/";
const SCHEME: &[u8] = b"Bearer ";

/// The layer.
#[derive(Debug, Clone, Default)]
pub struct RequireToken {
    token: Option<Arc<Secret>>,
}

impl RequireToken {
    /// Accepts calls with this token. `None`: accepts all calls.
    pub fn new(token: Option<&Secret>) -> Self {
        Self { token: token.cloned().map(Arc::new) }
    }
}

impl<S> Layer<S> for RequireToken {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { inner, token: self.token.clone() }
    }
}

/// A service behind the token.
#[derive(Debug, Clone)]
pub struct Guarded<S> {
    inner: S,
    token: Option<Arc<Secret>>,
}

impl<S, B, R> Service<Request<B>> for Guarded<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    R: Default + Send + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<R>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        match self.token.as_deref().and_then(|token| refusal(&request, token)) {
            Some(status) => futures::future::ready(Ok(status.into_http())).boxed(),
            None => self.inner.call(request).boxed(),
        }
    }
}

/// Whether every caller may call this path at any time.
pub(super) fn is_open(path: &str) -> bool {
    path.starts_with(OPEN)
}

/// Why the call is refused. `None`: it is accepted.
fn refusal<B>(request: &Request<B>, token: &Secret) -> Option<Status> {
    if is_open(request.uri().path()) {
        return None;
    }
    let Some(given) = request.headers().get(AUTHORIZATION) else {
        return Some(refused(
            Reason::TokenRefused,
            "this sidecar has a token, and the call has none; give it as `authorization: Bearer TOKEN` (client libraries: \
             in SIDEKEEPER_TOKEN)",
        ));
    };
    match given.as_bytes().strip_prefix(SCHEME) {
        Some(given) if same(given, token.reveal().as_bytes()) => None,
        Some(_) | None => Some(refused(
            Reason::TokenRefused,
            "the call's token is not this sidecar's; give that of its setting `token` as `authorization: Bearer TOKEN` \
             (client libraries: in SIDEKEEPER_TOKEN)",
        )),
    }
}

/// Whether two texts are equal. The time does not depend on the place of a difference.
fn same(given: &[u8], expected: &[u8]) -> bool {
    let differing = given.iter().zip(expected).fold(0, |differing, (a, b)| differing | (a ^ b));
    given.len() == expected.len() && differing == 0
}

#[cfg(test)]
mod tests {
    use super::same;

    #[test]
    fn only_the_same_text_is_the_same() {
        assert!(same(b"abc", b"abc"));
        for other in [&b""[..], b"ab", b"abd", b"abcd", b"ABC"] {
            assert!(!same(other, b"abc"), "{other:?}");
        }
    }
}
