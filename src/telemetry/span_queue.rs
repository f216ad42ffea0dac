//! Spans on their way to the collector. Shell. Decides how many wait, when they are sent, and which are sent again.
//!
//! It is for the spans of executions, of which there are many; all others go through the exporter of the library. A queue that is full drops new
//! spans: an application never waits for a collector.

use std::collections::VecDeque;
use std::error::Error as _;
use std::iter::once;
use std::str::FromStr as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::iter;
use http_body::Frame;
use http_body_util::StreamBody;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;
use tokio::sync::Notify;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codec::{BufferSettings, Codec, EncodeBuf, Encoder};
use tonic::codegen::http;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{MetadataKey, MetadataMap};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use tower::ServiceExt as _;

use super::span_batch::{Batch, Chunks};
use super::span_bytes::{Common, ExecutionSpan, request_head};

/// How many spans go into one request. The same as in the libraries of OpenTelemetry.
pub(super) const PER_REQUEST: usize = 512;
/// How many spans are sent without a wait for more: several requests one after the other cost less than each of them at another time.
pub(super) const ENOUGH: usize = 4 * 1024;
/// How many spans wait at most: some 1.5 megabytes, without the texts of failures.
const WAITING_MAX: usize = 16 * 1024;
/// The memory of how many requests is kept: some 50 KB each.
const SPARE_MAX: usize = ENOUGH / PER_REQUEST;
/// How long a span waits for others at most, and how long a pause is after a collector has not answered.
const PERIOD: Duration = Duration::from_secs(5);
/// How long a collector may take for a request.
const ANSWER: Duration = Duration::from_secs(10);

/// Where a collector takes spans.
const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// The spans that wait.
#[derive(Debug, Default)]
pub struct SpanQueue {
    waiting: Mutex<Waiting>,
    /// There are [`ENOUGH`], or the process ends.
    due: Notify,
    /// How many spans were not sent, and will not be.
    lost: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    /// The last one grows. The others are full, or were sent in vain.
    batches: VecDeque<Batch>,
    spans: usize,
    dropped: usize,
    is_last: bool,
    /// The memory of requests that were sent, for the next ones: fresh memory of this size costs more than to fill it.
    spare: Vec<Batch>,
}

impl SpanQueue {
    /// Adds a span, unless the queue is full.
    pub fn push(&self, common: &Arc<Common>, span: &ExecutionSpan<'_>) {
        let mut waiting = self.lock();
        if waiting.spans >= WAITING_MAX {
            waiting.dropped = waiting.dropped.saturating_add(1);
            self.lose(1);
            return;
        }
        waiting.spans += 1;
        if waiting.batches.back().is_none_or(|batch| batch.count() >= PER_REQUEST) {
            let batch = waiting.spare.pop().unwrap_or_default();
            waiting.batches.push_back(batch);
        }
        if let Some(batch) = waiting.batches.back_mut() {
            batch.push(common, span);
        }
        if waiting.spans == ENOUGH {
            self.due.notify_one();
        }
    }

    /// The spans that wait.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> Vec<opentelemetry_proto::tonic::trace::v1::Span> {
        let waiting = self.lock();
        let chunks = waiting.batches.iter().flat_map(|batch| Chunks::new(&Arc::new(batch.clone())));
        let spans = |chunk| opentelemetry_proto::tonic::trace::v1::ScopeSpans::decode(chunk).unwrap().spans;
        chunks.flat_map(spans).collect()
    }

    /// Whether spans are sent without a wait for more. Asked once.
    #[cfg(test)]
    pub(super) fn is_due(&self) -> bool {
        futures::FutureExt::now_or_never(self.due.notified()).is_some()
    }

    /// How many spans were not sent, and will not be: the queue was full, or the collector did not take them.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    fn lose(&self, count: usize) {
        self.lost.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// No span comes after this. The sender ends when it has sent those that wait.
    pub(super) fn end(&self) {
        self.lock().is_last = true;
        self.due.notify_one();
    }

    /// The next spans to send. `full`: only if there are enough for a whole request.
    fn take(&self, full: bool) -> Option<Batch> {
        let mut waiting = self.lock();
        let is_enough = |batch: &Batch| batch.count() >= PER_REQUEST || !full || waiting.is_last;
        if !waiting.batches.front().is_some_and(is_enough) {
            return None;
        }
        let batch = waiting.batches.pop_front()?;
        waiting.spans = waiting.spans.saturating_sub(batch.count());
        Some(batch)
    }

    /// Keeps the memory of spans that were sent.
    fn recycle(&self, mut batch: Batch) {
        batch.clear();
        let mut waiting = self.lock();
        if waiting.spare.len() < SPARE_MAX {
            waiting.spare.push(batch);
        }
    }

    /// Puts spans back that were not sent.
    fn put_back(&self, batch: Batch) {
        let mut waiting = self.lock();
        waiting.spans = waiting.spans.saturating_add(batch.count());
        waiting.batches.push_front(batch);
    }

    /// Writes into the log how many spans have found no room since the last call.
    fn warn_of_dropped(&self) {
        let dropped = std::mem::take(&mut self.lock().dropped);
        if dropped > 0 {
            tracing::warn!(
                event = "TRACES_NOT_EXPORTED",
                dropped,
                "spans were dropped, because the collector takes them too slowly or not at all"
            );
        }
    }

    fn is_last(&self) -> bool {
        self.lock().is_last
    }

    /// Waits until no further span comes.
    async fn ended(&self) {
        while !self.is_last() {
            self.due.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends spans to a collector.
pub(super) struct Sender {
    channel: Channel,
    headers: MetadataMap,
    /// Bytes of `Resource` and `InstrumentationScope`.
    resource: Vec<u8>,
    scope: Vec<u8>,
}

impl Sender {
    /// A sender to the collector at `endpoint`, with headers like `key=value,key=value`. It connects when it has spans. Needs a tokio runtime
    /// around the call.
    pub(super) fn new(
        endpoint: &str,
        headers: &str,
        resource: &opentelemetry_sdk::Resource,
    ) -> Result<Self, tonic::transport::Error> {
        let attributes = resource.iter().map(|(key, value)| KeyValue {
            key: key.to_string(),
            value: Some(AnyValue::from(value.clone())),
            ..KeyValue::default()
        });
        Ok(Self {
            channel: Endpoint::from_shared(endpoint.to_owned())?.connect_lazy(),
            headers: metadata(headers),
            resource: Resource { attributes: attributes.collect(), ..Resource::default() }.encode_to_vec(),
            scope: InstrumentationScope { name: "sidekeeper".to_owned(), ..InstrumentationScope::default() }
                .encode_to_vec(),
        })
    }

    /// Sends what comes into the queue, until it has ended.
    pub(super) async fn run(self, queue: &SpanQueue) {
        let mut has_failed_at_end = false;
        loop {
            let is_full = timeout(PERIOD, queue.due.notified()).await.is_ok();
            loop {
                queue.warn_of_dropped();
                let Some(batch) = queue.take(is_full) else { break };
                let is_last = queue.is_last();
                let Err((status, batch)) = self.send(queue, batch).await else { continue };
                // At the end once: a request may break with its connection, and the next one with the rest of it.
                let is_sent_again = is_passing(&status) && !has_failed_at_end;
                has_failed_at_end = is_last;
                tracing::warn!(
                    event = "TRACES_NOT_EXPORTED",
                    count = batch.count(),
                    is_sent_again,
                    detail = %status.message(),
                    code = ?status.code(),
                    "the collector did not take spans"
                );
                if is_sent_again {
                    queue.put_back(batch);
                } else {
                    queue.lose(batch.count());
                }
                if is_last && !is_sent_again {
                    return queue.lose(queue.lock().spans);
                }
                let _ = timeout(PERIOD, queue.ended()).await;
            }
            if queue.is_last() && queue.lock().spans == 0 {
                return;
            }
        }
    }

    /// Gives the spans back if the collector has not taken them.
    async fn send(&self, queue: &SpanQueue, batch: Batch) -> Result<(), (Status, Batch)> {
        let head = request_head(&self.resource, &self.scope, batch.len());
        let head = framed(&head, batch.len());
        let batch = Arc::new(batch);
        let chunks = Chunks::new(&batch);
        // They go to the connection as they are: the codecs of the library would copy them.
        let with_body = move |request: http::Request<Body>| {
            let frames =
                once(head.clone()).chain(chunks.clone()).map(|bytes| Ok::<_, Status>(Frame::data(bytes)));
            request.map(|_| Body::new(StreamBody::new(iter(frames))))
        };
        let mut request = Request::new(());
        *request.metadata_mut() = self.headers.clone();
        let sending = async {
            let mut client = Grpc::new(self.channel.clone().map_request(with_body));
            client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            client.unary(request, PathAndQuery::from_static(EXPORT), Answers).await
        };
        let answer = timeout(ANSWER, sending).await;
        let answer = answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("it did not answer in time")));
        let answer: ExportTraceServiceResponse = match answer {
            Ok(answer) => {
                queue.recycle(Arc::unwrap_or_clone(batch));
                answer.into_inner()
            }
            Err(status) => return Err((status, Arc::unwrap_or_clone(batch))),
        };
        if let Some(refused) = answer.partial_success
            && refused.rejected_spans > 0
        {
            queue.lose(usize::try_from(refused.rejected_spans).unwrap_or_default());
            tracing::warn!(
                event = "TRACES_NOT_EXPORTED",
                count = refused.rejected_spans,
                detail = %refused.error_message,
                "the collector has refused spans"
            );
        }
        Ok(())
    }
}

/// The bytes in front of the spans, with the length of the message before them, as gRPC has it.
fn framed(head: &[u8], spans_len: usize) -> Bytes {
    let len = u32::try_from(head.len().saturating_add(spans_len)).unwrap_or(u32::MAX);
    let is_compressed = 0;
    [&[is_compressed], len.to_be_bytes().as_slice(), head].concat().into()
}

/// The codec of the answers. It writes nothing: the requests are bytes already.
#[derive(Debug, Clone, Copy)]
struct Answers;

impl Codec for Answers {
    type Encode = ();
    type Decode = ExportTraceServiceResponse;
    type Encoder = Self;
    type Decoder = <ProstCodec<(), ExportTraceServiceResponse> as Codec>::Decoder;

    fn encoder(&mut self) -> Self::Encoder {
        *self
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<(), _>::raw_decoder(BufferSettings::default())
    }
}

impl Encoder for Answers {
    type Item = ();
    type Error = Status;

    fn encode(&mut self, (): (), _: &mut EncodeBuf<'_>) -> Result<(), Status> {
        Ok(())
    }
}

/// Whether the same request may succeed later: the connection has failed, or the collector has answered with one of the codes that the protocol's
/// specification names.
fn is_passing(status: &Status) -> bool {
    let is_broken = status.source().is_some();
    is_broken
        || matches!(
            status.code(),
            Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Aborted
                | Code::OutOfRange
                | Code::Unavailable
                | Code::DataLoss
        )
}

/// The headers that the environment gives for the export of traces, `key=value,key=value`: those of the libraries of OpenTelemetry.
pub(super) fn headers() -> String {
    let names = ["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"];
    names.iter().find_map(|name| std::env::var(name).ok()).unwrap_or_default()
}

/// The headers of each request. A wrong one is left out.
fn metadata(headers: &str) -> MetadataMap {
    let mut map = MetadataMap::new();
    for (key, value) in headers.split(',').filter_map(|header| header.split_once('=')) {
        let value = percent_encoding::percent_decode_str(value.trim()).decode_utf8_lossy();
        if let (Ok(key), Ok(value)) = (MetadataKey::from_str(key.trim()), value.parse()) {
            map.insert(key, value);
        }
    }
    map
}
