//! Refuses calls without a token, if the sidecar has some: `authorization: Bearer TOKEN` on each call. A tower layer around
//! all services. Only health checks need no token, because probes have no secrets.

use std::task::{Context, Poll};

use futures::future::{BoxFuture, FutureExt as _};
use tokio::sync::watch;
use tonic::Status;
use tonic::codegen::http::header::AUTHORIZATION;
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};

use super::caller::Caller;
use super::refusal::refusal as refused;
use super::token_set::TokenSet;
use crate::reason::Reason;

/// The calls that need no token.
const OPEN: &str = "/grpc.health.v1.Health/";
const SCHEME: &[u8] = b"Bearer ";

/// The tokens in force. Clones see the same ones. `None` within: callers need none.
#[derive(Debug, Clone)]
pub struct Tokens {
    current: watch::Receiver<Option<TokenSet>>,
}

impl Tokens {
    /// The same tokens for ever.
    pub fn fixed(set: Option<TokenSet>) -> Self {
        watch::channel(set).1.into()
    }
}

impl From<watch::Receiver<Option<TokenSet>>> for Tokens {
    fn from(current: watch::Receiver<Option<TokenSet>>) -> Self {
        Self { current }
    }
}

/// The layer.
#[derive(Debug, Clone)]
pub struct RequireToken {
    tokens: Tokens,
}

impl RequireToken {
    /// Accepts calls with one of these tokens.
    pub fn new(tokens: Tokens) -> Self {
        Self { tokens }
    }
}

impl<S> Layer<S> for RequireToken {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { inner, tokens: self.tokens.clone() }
    }
}

/// A service behind the tokens.
#[derive(Debug, Clone)]
pub struct Guarded<S> {
    inner: S,
    tokens: Tokens,
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

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let checked = self.tokens.current.borrow().as_ref().map(|tokens| check(&request, tokens));
        match checked {
            Some(Err(status)) => return futures::future::ready(Ok(status.into_http())).boxed(),
            Some(Ok(Some(caller))) => {
                request.extensions_mut().insert(caller);
            }
            Some(Ok(None)) | None => {}
        }
        self.inner.call(request).boxed()
    }
}

/// Whether every caller may call this path at any time.
pub(crate) fn is_open(path: &str) -> bool {
    path.starts_with(OPEN)
}

/// The caller with its token. `None`: the call needs none. An error: why the call is refused.
fn check<B>(request: &Request<B>, tokens: &TokenSet) -> Result<Option<Caller>, Status> {
    if is_open(request.uri().path()) {
        return Ok(None);
    }
    let Some(given) = request.headers().get(AUTHORIZATION) else {
        return Err(refused(
            Reason::TokenRefused,
            "this sidecar has a token, and the call has none; give it as `authorization: Bearer TOKEN` (client libraries: \
             in SIDEKEEPER_TOKEN)",
        ));
    };
    match given.as_bytes().strip_prefix(SCHEME).and_then(|given| tokens.find(given)) {
        Some(token) => {
            Ok(Some(Caller::of(request.extensions()).with_token(token.name.clone(), &token.rights)))
        }
        None => Err(refused(
            Reason::TokenRefused,
            "the call's token is not this sidecar's; give one of its setting `token` or `token_file` as `authorization: \
             Bearer TOKEN` (client libraries: in SIDEKEEPER_TOKEN)",
        )),
    }
}
