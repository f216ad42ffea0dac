//! The spans of fires and executions, and their ids. Shell.
//!
//! Ids that several processes need are computed, so no process has to tell them to another one: the trace of a fire, the parent of its spans, and
//! the span of the first execution of each item. An instance that goes on with the work of a process that is dead links to that span.

use jiff::Timestamp;
use opentelemetry::Context;
use opentelemetry::trace::{self, SpanContext, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};
use sha2::{Digest as _, Sha256};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use twox_hash::XxHash64;

use super::span_bytes::{Common, Ids, SpanId, Times, Value};
use crate::job::Item;

/// The trace id of a fire is computed from bytes that begin with this, so that no other id is made from the same bytes.
const FIRE: &[u8] = b"sidekeeper fire";

/// The length of the header `traceparent`.
const TRACEPARENT: usize = 55;

/// The target of the spans of a fire. They are for traces only: no line is logged inside them, so no log keeps their fields.
pub const FIRE_SPANS: &str = "sidekeeper::fire";

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
    let (trace_id, rest) = hash.split_at(16);
    let (span, _) = rest.split_at(8);
    let context = SpanContext::new(
        TraceId::from_bytes(trace_id.try_into().unwrap_or_default()),
        trace::SpanId::from_bytes(span.try_into().unwrap_or_default()),
        TraceFlags::SAMPLED,
        true,
        TraceState::NONE,
    );
    Context::new().with_remote_span_context(context)
}

/// The part of a fire at one instance.
#[derive(Debug)]
pub struct Fire {
    /// `None`: it has ended.
    span: Option<Span>,
    traced: Traced,
    /// The ids of first executions are computed with it.
    seed: u64,
}

impl Fire {
    /// Starts the span of a fire. `None`: nothing is exported.
    pub fn begin(namespace: &str, job: &str, instant: Timestamp) -> Option<Self> {
        let span = tracing::info_span!(
            target: FIRE_SPANS,
            parent: None,
            "fire",
            job.name = job,
            faas.trigger = "timer",
            faas.time = %instant,
        );
        span.set_parent(fire_context(namespace, job, instant)).ok()?;
        let traced = Traced::begin(&span)?;
        let seed = XxHash64::oneshot(0, &traced.trace);
        Some(Self { span: Some(span), traced, seed })
    }

    /// Ends its span. Later executions of the fire have the same parent.
    pub fn end(&mut self) {
        drop(self.span.take());
    }

    /// The first execution of an item for the fire, which retries and failovers of the item come from: the same on each sidecar. Items of one
    /// fire never have the same id: with one seed the hash gives different results for different texts of four bytes.
    pub fn first_execution(&self, item: Item) -> SpanId {
        XxHash64::oneshot(self.seed, &item.0.to_be_bytes()).to_be_bytes()
    }

    /// Another execution.
    pub fn further_execution() -> SpanId {
        RandomIdGenerator::default().new_span_id().to_bytes()
    }

    /// The ids of one of its executions.
    pub fn traced(&self, execution: SpanId) -> Traced {
        Traced { span: execution, ..self.traced }
    }

    /// The bytes that spans of executions with these attributes have in common.
    pub fn common(&self, attributes: &[(&str, Value<'_>)]) -> Common {
        Common::new(self.traced.ids(), "execution", attributes)
    }
}

/// The times of a span. The clock may have been set back meanwhile.
pub fn times(begun: Timestamp, ended: Timestamp) -> Times {
    Times { begun: nanoseconds(begun), ended: nanoseconds(ended.max(begun)) }
}

fn nanoseconds(at: Timestamp) -> u64 {
    u64::try_from(at.as_nanosecond()).unwrap_or_default()
}

/// The ids of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traced {
    trace: [u8; 16],
    span: SpanId,
    is_sampled: bool,
}

impl Traced {
    /// Starts a span. It need not be entered. `None`: it is not exported.
    pub fn begin(span: &Span) -> Option<Self> {
        let context = span.context();
        let span = context.span();
        let context = span.span_context();
        context.is_valid().then(|| Self {
            trace: context.trace_id().to_bytes(),
            span: context.span_id().to_bytes(),
            is_sampled: context.is_sampled(),
        })
    }

    /// Its trace, and itself.
    pub fn ids(&self) -> Ids {
        (self.trace, self.span)
    }

    /// Whether the spans of its trace are exported.
    pub fn is_sampled(&self) -> bool {
        self.is_sampled
    }

    /// The id of its trace, if the trace is sampled: others are found nowhere.
    pub fn sampled_trace(&self) -> Option<[u8; 16]> {
        self.is_sampled.then_some(self.trace)
    }

    /// W3C trace context for other programs: `traceparent`. It is text only when somebody needs it: thousands of them may wait.
    pub fn header(&self) -> String {
        let mut digits = [0; 48];
        let (trace, span) = digits.split_at_mut(32);
        // They have two digits for each byte.
        let _ = hex::encode_to_slice(self.trace, trace);
        let _ = hex::encode_to_slice(self.span, span);
        let (trace, span) =
            str::from_utf8(&digits).unwrap_or_default().split_at_checked(32).unwrap_or_default();
        let mut header = String::with_capacity(TRACEPARENT);
        for part in ["00-", trace, "-", span, if self.is_sampled { "-01" } else { "-00" }] {
            header.push_str(part);
        }
        header
    }
}
