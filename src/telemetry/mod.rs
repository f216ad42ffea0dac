//! Logs and traces. Shell: the process's one subscriber, and the exporters behind it.
//!
//! Logs go to standard error. Traces go to an OpenTelemetry collector if the configuration names one. Only
//! spans of this crate are exported, because some spans of the libraries last as long as a session and would
//! never be exported. [`limiter`] decides which of many similar events get a line, [`repeats`] which warnings are
//! repetitions, [`log_filter`] for how long another filter counts, and [`ring`] how many lines are kept in memory.
//! [`spans`] has the ids of spans, and [`span_bytes`] the bytes of those of executions. [`span_batch`] keeps them while they
//! wait, and [`span_queue`] takes them to the collector.

mod limited_lines;
pub mod limiter;
pub mod log_filter;
mod repeats;
pub mod ring;
mod span_batch;
pub mod span_bytes;
pub mod span_queue;
pub mod spans;

use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::{FilterExt as _, FilterFn};
use tracing_subscriber::layer::{self, Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};
use tracing_subscriber::{Registry, reload};

pub use self::limited_lines::ReadClock;
use self::limited_lines::{FindKinds, LeaveOut, Log, WithNumbers};
use self::span_queue::{Sender, SpanQueue};
use self::spans::FIRE_SPANS;
use crate::config::{Config, LogFormat};

/// How long the export of the last traces may take. An unreachable collector must not hold up the exit.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// A client can make the HTTP/2 library warn as often as it likes. A filter that names `h2` counts instead.
const QUIET: &str = "h2=error";

/// The queue of this process, if it exports traces.
static QUEUE: OnceLock<Arc<SpanQueue>> = OnceLock::new();

/// The queue for the spans of executions. `None`: no traces are exported, and spans are not worth their cost on the dispatch path.
pub fn execution_spans() -> Option<Arc<SpanQueue>> {
    QUEUE.get().cloned()
}

/// The number of spans of executions that were not sent, and will not be.
pub fn spans_dropped() -> u64 {
    QUEUE.get().map_or(0, |queue| queue.lost())
}

/// The warnings and errors of this process.
static WARNINGS: AtomicU64 = AtomicU64::new(0);
static ERRORS: AtomicU64 = AtomicU64::new(0);

/// The number of warnings and of errors of this process, also of those that the log filter leaves out.
pub fn lines() -> (u64, u64) {
    (WARNINGS.load(Ordering::Relaxed), ERRORS.load(Ordering::Relaxed))
}

/// Counts warnings and errors.
struct CountLines;

impl<S: Subscriber> Layer<S> for CountLines {
    fn on_event(&self, event: &Event<'_>, _: layer::Context<'_, S>) {
        let count = if *event.metadata().level() == Level::ERROR { &ERRORS } else { &WARNINGS };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Why telemetry could not start.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The log filter is invalid.
    #[error("the log filter is wrong: {0}")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    /// The exporter of traces cannot be built.
    #[error("traces cannot be exported: {0}")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
    /// The address of the collector is none.
    #[error("traces cannot be exported to `{endpoint}`: {error}; correct `otlp_endpoint`")]
    Endpoint {
        /// The address.
        endpoint: String,
        /// What is wrong with it.
        error: tonic::transport::Error,
    },
    /// The process already has a subscriber.
    #[error("logging was set up twice: {0}")]
    Twice(#[from] TryInitError),
}

/// Keeps telemetry running. Call [`Telemetry::finish`] at the end.
#[must_use = "the last traces are lost if it is not finished"]
pub struct Telemetry {
    traces: Option<Traces>,
}

/// The exports of this process.
struct Traces {
    provider: SdkTracerProvider,
    /// The same for the spans of executions.
    queue: Arc<SpanQueue>,
    sender: JoinHandle<()>,
    runtime: Handle,
}

impl Traces {
    /// Needs a tokio runtime around the call.
    #[expect(clippy::disallowed_methods, reason = "the end of these traces ends the task")]
    fn start(config: &Config, endpoint: &str) -> Result<Self, TelemetryError> {
        let resource = resource(config);
        let sender = Sender::new(endpoint, &span_queue::headers(), &resource);
        let sender =
            sender.map_err(|error| TelemetryError::Endpoint { endpoint: endpoint.to_owned(), error })?;
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint).build()?;
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
        let queue = Arc::new(SpanQueue::default());
        let sending = Arc::clone(&queue);
        let sender = tokio::spawn(async move { sender.run(&sending).await });
        Ok(Self { provider, queue, sender, runtime: Handle::current() })
    }

    /// Exports what remains, and waits for that a bounded time. Blocks; do not call it inside a task.
    fn finish(self) {
        let Self { provider, queue, sender, runtime } = self;
        queue.end();
        let stop = sender.abort_handle();
        let rest = runtime.spawn(async { timeout(FLUSH_TIMEOUT, sender).await });
        // Both at the same time.
        if let Err(error) = provider.shutdown_with_timeout(FLUSH_TIMEOUT) {
            tracing::warn!(event = "TRACES_NOT_EXPORTED", %error, "the last spans of fires were not exported");
        }
        if !matches!(runtime.block_on(rest), Ok(Ok(Ok(())))) {
            stop.abort();
            tracing::warn!(
                event = "TRACES_NOT_EXPORTED",
                "the last spans of executions were not exported: the collector did not take them in time"
            );
        }
    }
}

impl Telemetry {
    /// Sets up the process's logs and traces. The exporter needs a tokio runtime around this call. `now`: the monotonic clock.
    pub fn start(config: &Config, now: ReadClock) -> Result<Self, TelemetryError> {
        let (filter, handle) = reload::Layer::new(log_filter::parse(&config.log_level)?);
        log_filter::install(Box::new(move |filter| handle.reload(filter)));
        let traces = match &config.otlp_endpoint {
            Some(endpoint) => Some(Traces::start(config, endpoint)?),
            None => None,
        };
        if let Some(Traces { queue, .. }) = &traces {
            QUEUE.get_or_init(|| Arc::clone(queue));
        }
        Registry::default()
            .with(CountLines.with_filter(LevelFilter::WARN))
            .with(
                ring_layer()
                    .with_filter(log_filter::parse("info")?.and(LeaveOut::new(Log::Ring, now)).and(logged())),
            )
            .with(
                log_layer(config.log_format)
                    .with_filter(filter.and(LeaveOut::new(Log::Output, now)).and(logged())),
            )
            .with(traces.as_ref().map(|traces| trace_layer(&traces.provider)))
            .with(FindKinds.with_filter(LevelFilter::INFO.and(logged())))
            .try_init()?;
        Ok(Self { traces })
    }

    /// Exports the remaining traces, and waits for that a bounded time. Blocks; do not call it inside a task.
    pub fn finish(self) {
        if let Some(traces) = self.traces {
            traces.finish();
        }
    }
}

/// The lines in memory have one form, whatever the form of the log is.
fn ring_layer<S>() -> impl Layer<S> + Send + Sync
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    tracing_subscriber::fmt::layer()
        .with_writer(WithNumbers(Log::Ring, ring::RingWriter))
        .with_ansi(false)
        .json()
        .flatten_event(true)
}

fn log_layer<S>(format: LogFormat) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    let is_terminal = io::stderr().is_terminal();
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(WithNumbers(Log::Output, io::stderr))
        .with_ansi(is_terminal);
    match format {
        LogFormat::Auto if is_terminal => layer.boxed(),
        LogFormat::Text => layer.boxed(),
        LogFormat::Auto | LogFormat::Json => layer.json().flatten_event(true).boxed(),
    }
}

/// What the spans of this process have in common.
fn resource(config: &Config) -> Resource {
    Resource::builder()
        .with_service_name("sidekeeper")
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.namespace", config.namespace.clone()),
            KeyValue::new("host.ip", config.instance_ip.to_string()),
            KeyValue::new("process.pid", i64::from(std::process::id())),
        ])
        .build()
}

fn trace_layer<S>(provider: &SdkTracerProvider) -> impl Layer<S> + use<S>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    // Places in this code and its threads would be half of the bytes, and say nothing to an operator.
    tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("sidekeeper"))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_filter(FilterFn::new(is_traced).with_max_level_hint(LevelFilter::INFO))
}

/// Lets all through but the spans of a fire.
fn logged() -> FilterFn<impl Fn(&Metadata<'_>) -> bool + 'static> {
    FilterFn::new(|metadata| !is_traced(metadata)).with_max_level_hint(LevelFilter::TRACE)
}

/// The spans of a fire, with any log filter. Another span lasts as long as an instance, and to enter it would cost something for each message.
fn is_traced(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && metadata.target() == FIRE_SPANS
}

#[cfg(test)]
pub(crate) mod tests;
