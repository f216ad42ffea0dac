//! Logs refused calls with method, code and message, for an operator whose application cannot attach. A tower
//! layer around all services; decides nothing. Callers cannot fill the log: `limited_log` counts repeated
//! refusals, and their texts are shortened.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use prost::Message as _;
use prost_types::FileDescriptorSet;
use tonic::codegen::http::{Request, Response};
use tonic::{Code, Status};
use tower::{Layer, Service};
use tracing::{debug, warn};

use crate::excerpt::Excerpt;
use crate::listen::limited_log::LimitedLog;
use crate::proto;
use crate::runner::clock::Clock;
use crate::telemetry::limiter::PAUSE;

/// Characters of a refusal's message in the log: enough for a handful of wrong fields, each with its allowed
/// values.
const MESSAGE_CHARS_MAX: usize = 1_000;

/// Refusals of one kind have the same method and code. `None`: no service has the method.
type Kind = (Option<String>, i32);

/// The layer. Clones share the counts of refusals that were not logged.
#[derive(Clone)]
pub struct LogRefusals {
    methods: Arc<BTreeSet<String>>,
    log: LimitedLog<Kind>,
}

impl LogRefusals {
    /// A layer for all services of the sidecar.
    pub fn new(clock: &Clock) -> Self {
        Self { methods: Arc::new(methods()), log: LimitedLog::new(clock, log_left_out) }
    }

    fn log(&self, method: &str, status: &Status) {
        let (code, detail) = (status.code(), || Excerpt::of_length(status.message(), MESSAGE_CHARS_MAX));
        // Callers repeat these calls, so they need no warning.
        if matches!(code, Code::Ok | Code::Cancelled | Code::Unavailable) {
            debug!(method = %Excerpt::of(method), ?code, detail = %detail(), "call ended");
            return;
        }
        let kind = (self.methods.get(method).cloned(), i32::from(code));
        if self.log.admits(&kind) {
            warn!(event = "CALL_REFUSED", method = %Excerpt::of(method), ?code, detail = %detail(), "call refused");
        }
    }
}

fn log_left_out(kind: Option<&Kind>, left_out: u64) {
    let method = kind.and_then(|(method, _)| method.as_deref()).unwrap_or("other");
    let code = kind.map(|(_, code)| Code::from_i32(*code));
    warn!(
        event = "CALLS_REFUSED_AGAIN",
        method,
        ?code,
        left_out,
        "calls refused: and {left_out} more like it in the last {PAUSE:?}"
    );
}

/// The paths of the methods of Sidekeeper's services and of health. Reflection is not among them: it refuses
/// only unknown names.
fn methods() -> BTreeSet<String> {
    let sets = [proto::DESCRIPTOR_SET, tonic_health::pb::FILE_DESCRIPTOR_SET];
    // Without a descriptor the refusals of all methods are counted together. That is no reason not to serve.
    let files =
        sets.into_iter().filter_map(|set| FileDescriptorSet::decode(set).ok()).flat_map(|set| set.file);
    let mut methods = BTreeSet::new();
    for file in files {
        for service in &file.service {
            let paths = service.method.iter();
            methods.extend(
                paths.map(|method| format!("/{}.{}/{}", file.package(), service.name(), method.name())),
            );
        }
    }
    methods
}

impl<S> Layer<S> for LogRefusals {
    type Service = Logged<S>;

    fn layer(&self, inner: S) -> Logged<S> {
        Logged { inner, refusals: self.clone() }
    }
}

/// A service whose refusals are logged.
#[derive(Clone)]
pub struct Logged<S> {
    inner: S,
    refusals: LogRefusals,
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
        let refusals = self.refusals.clone();
        let response = self.inner.call(request);
        Box::pin(async move {
            let response = response.await?;
            // A call that ends at once has its status in the headers. The participant logs the end of a
            // stream.
            if let Some(status) = Status::from_header_map(response.headers()) {
                refusals.log(&method, &status);
            }
            Ok(response)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::io;
    use std::sync::{Mutex, PoisonError};
    use std::time::Duration;

    use jiff::Timestamp;
    use tokio::sync::watch;

    use super::*;
    use crate::listen::still::Still;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Lines {
        fn all(&self) -> Vec<String> {
            let bytes = self.0.lock().unwrap();
            String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect()
        }
    }

    async fn refuse(service: &mut Logged<impl Refusing>, path: &str) {
        let request = Request::builder().uri(path).body(()).unwrap();
        service.call(request).await.unwrap();
    }

    trait Refusing:
        Service<Request<()>, Response = Response<()>, Error = Infallible, Future: Send + 'static>
    {
    }
    impl<S> Refusing for S where
        S: Service<Request<()>, Response = Response<()>, Error = Infallible, Future: Send + 'static>
    {
    }

    #[tokio::test]
    async fn twenty_thousand_refusals_give_a_handful_of_lines_with_their_number() {
        let (time, _) = watch::channel(Duration::ZERO);
        let clock = Clock::of(Arc::new(Still { wall: Timestamp::UNIX_EPOCH, mono: time.clone() }));
        let lines = Lines::default();
        let written = lines.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || written.clone()).finish();
        let _collected = tracing::subscriber::set_default(subscriber);
        let mut service = LogRefusals::new(&clock).layer(tower::util::service_fn(|_: Request<()>| async {
            let message = "no token ".repeat(150);
            Ok::<_, Infallible>(Status::unauthenticated(message).into_http::<()>())
        }));
        let attach = "/sidekeeper.v1.ParticipantService/Attach";
        let invented = format!("/{}", "x".repeat(500));
        for n in 0..10_000 {
            refuse(&mut service, attach).await;
            refuse(&mut service, &format!("{invented}{n}")).await;
        }
        let logged = lines.all();
        assert_eq!(logged.len(), 2, "{logged:?}");
        assert!(logged[0].contains(attach) && logged[0].contains("no token"), "{logged:?}");
        assert!(logged.iter().all(|line| line.len() < 1_250), "{logged:?}");
        // No further call comes, and the refusals that were not logged are still counted in the log.
        time.send_replace(PAUSE);
        let left_out = async {
            while lines.all().len() < 4 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), left_out).await.expect("their number is logged");
        let logged = lines.all().split_off(2);
        assert!(
            logged.iter().all(|line| line.contains("and 9999 more like it in the last 10s")),
            "{logged:?}"
        );
        assert!(logged.iter().any(|line| line.contains(attach)), "{logged:?}");
        assert!(logged.iter().any(|line| line.contains("method=\"other\"")), "{logged:?}");
    }
}
