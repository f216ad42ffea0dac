//! Adds the header `date` to answers where hyper cannot. HTTP has no time of day before 1970: hyper panics on
//! it, and the connection ends. A machine without a battery starts with such a time. A tower layer around all
//! services.

use std::task::{Context, Poll};

use futures::future::BoxFuture;
use jiff::Timestamp;
use tonic::codegen::http::header::DATE;
use tonic::codegen::http::{HeaderValue, Request, Response};
use tower::{Layer, Service};

use crate::runner::clock::Clock;

/// The first instant that HTTP can express.
const FIRST: HeaderValue = HeaderValue::from_static("Thu, 01 Jan 1970 00:00:00 GMT");

/// The layer.
#[derive(Clone)]
pub struct DateBefore1970 {
    clock: Clock,
}

impl DateBefore1970 {
    /// A layer that reads this clock.
    pub fn new(clock: &Clock) -> Self {
        Self { clock: clock.clone() }
    }
}

impl<S> Layer<S> for DateBefore1970 {
    type Service = Dated<S>;

    fn layer(&self, inner: S) -> Dated<S> {
        Dated { inner, clock: self.clock.clone() }
    }
}

/// A service whose answers have a date that HTTP can express.
#[derive(Clone)]
pub struct Dated<S> {
    inner: S,
    clock: Clock,
}

impl<S, B, R> Service<Request<B>> for Dated<S>
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
        let clock = self.clock.clone();
        let response = self.inner.call(request);
        Box::pin(async move {
            let mut response = response.await?;
            if clock.now().wall < Timestamp::UNIX_EPOCH {
                response.headers_mut().insert(DATE, FIRST);
            }
            Ok(response)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::sync::watch;

    use super::*;
    use crate::listen::still::Still;

    async fn date(wall: Timestamp) -> Option<HeaderValue> {
        let (mono, _) = watch::channel(Duration::ZERO);
        let clock = Clock::of(Arc::new(Still { wall, mono }));
        let inner = tower::service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) });
        let answer = DateBefore1970::new(&clock).layer(inner).call(Request::new(())).await.unwrap();
        answer.headers().get(DATE).cloned()
    }

    #[tokio::test]
    async fn hyper_never_formats_a_date_before_1970() {
        assert_eq!(date(Timestamp::from_millisecond(-1).unwrap()).await, Some(FIRST));
        assert_eq!(date(Timestamp::MIN).await, Some(FIRST));
        assert_eq!(date(Timestamp::UNIX_EPOCH).await, None);
    }
}
