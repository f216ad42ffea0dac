//! The spans of fires and executions, and their ids. Shell.
//!
//! Ids that several processes need are computed, so no process has to tell them to another one: the trace of a fire, the parent of its spans, and
//! the span of the first execution of each item. An instance that goes on with the work of a process that is dead links to that span.

use std::cell::Cell;

use jiff::Timestamp;
use opentelemetry::Context;
use opentelemetry::propagation::{Injector, TextMapPropagator as _};
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};
use sha2::{Digest as _, Sha256};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::job::Item;

/// The trace id of a fire is computed from bytes that begin with this, so that no other id is made from the same bytes.
const FIRE: &[u8] = b"sidekeeper fire";
/// The same for the span id of the first execution of an item.
const FIRST_EXECUTION: &[u8] = b"sidekeeper first execution";

/// The target of the spans of a fire. They are for traces only: no line is logged inside them, so no log keeps their fields.
pub const FIRE_SPANS: &str = "sidekeeper::fire";

thread_local! {
    /// The id of the span that this thread starts next; `None`: a random one.
    static NEXT: Cell<Option<SpanId>> = const { Cell::new(None) };
}

/// Gives spans random ids, but those of [`Traced::begin_as`].
#[derive(Debug, Default)]
pub(super) struct Ids(RandomIdGenerator);

impl IdGenerator for Ids {
    fn new_trace_id(&self) -> TraceId {
        self.0.new_trace_id()
    }

    fn new_span_id(&self) -> SpanId {
        NEXT.take().unwrap_or_else(|| self.0.new_span_id())
    }
}

/// The parent of all spans of one fire of a job: the same on each sidecar, because it is computed from the namespace, the job and the instant. So
/// the fire is one trace, though no instance has told another one about it. A failover and a retry belong to it, too.
///
/// It counts as sampled. `OTEL_TRACES_SAMPLER=traceidratio` takes the same part of the fires on each sidecar.
pub fn fire_context(namespace: &str, job: &str, instant: Timestamp) -> Context {
    let mut hash = Sha256::new();
    hash.update(FIRE);
    for part in [namespace, job, &instant.as_millisecond().to_string()] {
        hash.update([0]);
        hash.update(part);
    }
    let hash: [u8; 32] = hash.finalize().into();
    let (trace, rest) = hash.split_at(16);
    let (span, _) = rest.split_at(8);
    let context = SpanContext::new(
        TraceId::from_bytes(trace.try_into().unwrap_or_default()),
        SpanId::from_bytes(span.try_into().unwrap_or_default()),
        TraceFlags::SAMPLED,
        true,
        TraceState::NONE,
    );
    Context::new().with_remote_span_context(context)
}

/// The part of a fire at one instance.
#[derive(Debug, Clone)]
pub struct Fire {
    /// Its span. The executions are its children.
    pub span: Span,
    trace: TraceId,
}

impl Fire {
    /// Starts the span of a fire.
    pub fn begin(namespace: &str, job: &str, instant: Timestamp) -> Self {
        let span = tracing::info_span!(
            target: FIRE_SPANS,
            parent: None,
            "fire",
            job.name = job,
            faas.trigger = "timer",
            faas.time = %instant,
        );
        let context = fire_context(namespace, job, instant);
        let trace = context.span().span_context().trace_id();
        // Fails only if nothing is exported.
        let _ = span.set_parent(context);
        Self { span, trace }
    }

    /// The first execution of an item for the fire, which retries and failovers of the item come from: the same on each sidecar.
    pub fn first_execution(&self, item: Item) -> Traced {
        let mut hash = Sha256::new();
        hash.update(FIRST_EXECUTION);
        hash.update(self.trace.to_bytes());
        hash.update(item.0.to_be_bytes());
        let hash: [u8; 32] = hash.finalize().into();
        let (span, _) = hash.split_at(8);
        let span = SpanId::from_bytes(span.try_into().unwrap_or_default());
        Traced(SpanContext::new(self.trace, span, TraceFlags::SAMPLED, true, TraceState::NONE))
    }
}

/// The ids of a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traced(SpanContext);

impl Traced {
    /// Starts a span. It need not be entered. `None`: it is not exported.
    pub fn begin(span: &Span) -> Option<Self> {
        let context = span.context();
        let context = context.span().span_context().clone();
        context.is_valid().then_some(Self(context))
    }

    /// Starts a span with a computed id. Its parent has been started.
    pub fn begin_as(span: &Span, computed: &Self) -> Option<Self> {
        NEXT.set(Some(computed.0.span_id()));
        let begun = Self::begin(span);
        // A span that has been started before has its id.
        NEXT.set(None);
        begun
    }

    /// Records that a span goes on with what this one has begun.
    pub fn link_from(self, span: &Span) {
        span.add_link(self.0);
    }

    /// W3C trace context, `traceparent` and `tracestate` (often empty), for other programs.
    pub fn headers(&self) -> (String, String) {
        let mut headers = Headers::default();
        let context = Context::new().with_remote_span_context(self.0.clone());
        TraceContextPropagator::new().inject_context(&context, &mut headers);
        (headers.traceparent, headers.tracestate)
    }

    /// The id of its trace, if the trace is sampled: others are found nowhere.
    pub fn sampled_trace(&self) -> Option<String> {
        self.0.is_sampled().then(|| self.0.trace_id().to_string())
    }
}

#[derive(Default)]
struct Headers {
    traceparent: String,
    tracestate: String,
}

impl Injector for Headers {
    fn set(&mut self, key: &str, value: String) {
        match key {
            "traceparent" => self.traceparent = value,
            "tracestate" => self.tracestate = value,
            _ => {}
        }
    }
}
