//! The exported spans, and the time limit of the last export.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use opentelemetry::trace::TraceContextExt as _;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Sampler, SpanData};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc as tokio_mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tracing::Span;
use tracing::span::{Attributes, Id};

use super::span_bytes::{Common, ExecutionSpan, Times};
use super::span_queue::{ENOUGH, PER_REQUEST};
use super::spans::{Fire, Traced, fire_context};
use super::*;
use crate::config::{Flags, Sources, load};
use crate::job::Item;

/// Far longer than any step here takes.
const LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Default)]
struct Collected(Arc<Mutex<Vec<SpanData>>>);

impl opentelemetry_sdk::trace::SpanExporter for Collected {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().unwrap().extend(batch);
        Ok(())
    }
}

/// The spans that end while something is done.
pub(crate) fn collect(act: impl FnOnce()) -> Vec<SpanData> {
    let collected = Collected::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(collected.clone()).build();
    tracing::subscriber::with_default(Registry::default().with(trace_layer(&provider)), act);
    let mut spans = collected.0.lock().unwrap();
    std::mem::take(&mut *spans)
}

fn current_trace() -> Option<Traced> {
    Traced::begin(&Span::current())
}

#[test]
fn spans_of_fires_are_traced_and_no_others() {
    let spans = collect(|| {
        assert_eq!(current_trace(), None);
        for span in [
            tracing::info_span!(target: "zookeeper_client", "serve"),
            tracing::info_span!("job"),
            tracing::debug_span!("detail"),
        ] {
            span.in_scope(|| assert_eq!(current_trace(), None));
        }
        tracing::info_span!(target: FIRE_SPANS, "fire").in_scope(|| {
            assert!(current_trace().unwrap().sampled_trace().is_some());
            tracing::info!("a line of the log");
        });
    });
    let names: Vec<_> = spans.iter().map(|span| (span.name.as_ref(), span.events.len())).collect();
    assert_eq!(names, [("fire", 0)]);
}

#[test]
fn op_15_a_fire_has_the_same_trace_on_each_sidecar_and_another_fire_has_another_one() {
    let id = |namespace: &str, job: &str, ms: i64| {
        let context = fire_context(namespace, job, Timestamp::from_millisecond(ms).unwrap());
        let span = context.span().span_context().clone();
        assert!(span.is_valid() && span.is_remote() && span.is_sampled());
        (span.trace_id().to_string(), span.span_id().to_string())
    };
    let one = id("/billing", "settlement", 1_732_795_200_000);
    // Never changed: sidecars of all versions compute it.
    assert_eq!(one, ("d386cfd9e5d126d8664436bb2a751b25".to_owned(), "06efd9d1253b884f".to_owned()));
    assert_eq!(id("/billing", "settlement", 1_732_795_200_000), one);
    for other in [
        id("/billing", "settlement", 1_732_795_200_001),
        id("/billing", "settlements", 1_732_795_200_000),
        id("/orders", "settlement", 1_732_795_200_000),
        id("/billing/settlement", "", 1_732_795_200_000),
    ] {
        assert_ne!(other.0, one.0);
    }
}

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(1_732_795_200_000 + ms).unwrap()
}

fn begin(job: &str) -> Fire {
    Fire::begin("/billing", job, at(0)).expect("it is exported")
}

#[test]
fn the_spans_of_a_fire_are_in_its_trace() {
    let mut execution = None;
    let spans = collect(|| {
        // A span that lasts as long as an instance is no part of it.
        tracing::info_span!("job").in_scope(|| {
            let fire = begin("settlement");
            let queue = SpanQueue::default();
            queue.push(&Arc::new(fire.common(&[])), &span(1));
            execution = queue.waiting().pop();
        });
    });
    let execution = execution.unwrap();
    let fire = spans.iter().find(|span| span.name == "fire").unwrap();
    assert_eq!(fire.span_context.trace_id().to_string(), "d386cfd9e5d126d8664436bb2a751b25");
    assert_eq!(fire.parent_span_id.to_string(), "06efd9d1253b884f");
    assert_eq!(execution.trace_id, fire.span_context.trace_id().to_bytes());
    assert_eq!(execution.parent_span_id, fire.span_context.span_id().to_bytes());
    assert_eq!((execution.name.as_str(), execution.span_id.len()), ("execution", 8));
}

#[test]
fn op_15_the_first_execution_of_an_item_has_the_same_span_on_each_sidecar() {
    let first = |job: &str, item: u32| {
        let mut header = String::new();
        collect(|| {
            let fire = begin(job);
            header = fire.traced(fire.first_execution(Item(item))).header();
        });
        header
    };
    // Never changed: sidecars of all versions compute it.
    assert_eq!(first("settlement", 3), "00-d386cfd9e5d126d8664436bb2a751b25-2e6fc820aa015b6f-01");
    assert_ne!(first("settlement", 4), first("settlement", 3));
    assert_ne!(first("settlements", 3).split_at(36).1, first("settlement", 3).split_at(36).1);
}

#[test]
fn further_executions_of_a_fire_have_ids_of_their_own() {
    collect(|| {
        let fire = begin("settlement");
        let further = fire.traced(Fire::further_execution());
        assert_ne!(further, fire.traced(Fire::further_execution()));
        assert_eq!(further.ids().0, fire.traced(fire.first_execution(Item(3))).ids().0);
        assert_eq!(further.sampled_trace(), Some(further.ids().0));
    });
}

#[test]
fn a_fire_that_is_not_sampled_leads_to_no_trace() {
    let provider = SdkTracerProvider::builder().with_sampler(Sampler::AlwaysOff).build();
    tracing::subscriber::with_default(Registry::default().with(trace_layer(&provider)), || {
        let fire = begin("settlement");
        let first = fire.first_execution(Item(3));
        assert_eq!(fire.traced(first).sampled_trace(), None);
        assert!(!fire.traced(first).is_sampled());
        assert!(fire.traced(first).header().ends_with("-00"));
    });
}

#[test]
fn an_exported_span_of_a_fire_says_nothing_about_threads_and_places_in_the_code() {
    let spans = collect(|| {
        drop(begin("settlement"));
    });
    let mut names: Vec<_> = spans[0].attributes.iter().map(|attribute| attribute.key.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["faas.time", "faas.trigger", "job.name"]);
}

/// Counts the spans that a log would keep the fields of.
#[derive(Clone, Default)]
struct Kept(Arc<AtomicU64>);

impl<S: Subscriber> Layer<S> for Kept {
    fn on_new_span(&self, _: &Attributes<'_>, _: &Id, _: layer::Context<'_, S>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn logs_keep_no_fields_of_the_spans_of_a_fire() {
    let kept = Kept::default();
    tracing::subscriber::with_default(Registry::default().with(kept.clone().with_filter(logged())), || {
        drop(tracing::info_span!("job"));
        assert_eq!(kept.0.load(Ordering::Relaxed), 1);
        // Its context is missing, because no traces are exported here.
        assert!(Fire::begin("/billing", "settlement", at(0)).is_none());
    });
    assert_eq!(kept.0.load(Ordering::Relaxed), 1);
}

#[test]
fn without_an_exporter_there_is_no_trace_context() {
    tracing::subscriber::with_default(Registry::default(), || {
        tracing::info_span!("execution").in_scope(|| assert_eq!(current_trace(), None));
    });
}

/// The span of an execution at this time.
fn span(number: u64) -> ExecutionSpan<'static> {
    let times = Times { begun: number, ended: number };
    ExecutionSpan { id: [3; 8], times, item: 3, token: 7, execution_id: "one", follows: None, failure: None }
}

fn push(queue: &SpanQueue, number: usize) {
    let common = Arc::new(Common::new(([1; 16], [2; 8]), "execution", &[]));
    queue.push(&common, &span(u64::try_from(number).unwrap()));
}

/// The numbers of the spans in a request.
fn numbers(request: &ExportTraceServiceRequest) -> Vec<usize> {
    let scopes = request.resource_spans.iter().flat_map(|of_resource| &of_resource.scope_spans);
    let spans = scopes.flat_map(|of_scope| &of_scope.spans);
    spans.map(|span| usize::try_from(span.start_time_unix_nano).unwrap()).collect()
}

/// A configuration that exports to this address, and the traces to it.
fn traces(endpoint: &str) -> Traces {
    let flags = Flags::from([("instance_ip", vec!["10.0.0.7".to_owned()])]);
    let sources = Sources { flags, file: None, environment: &|_| None, default_listen: None };
    Traces::start(&load(&sources).unwrap().config, endpoint).unwrap()
}

/// A fire of a job, with this number of executions.
fn execute(traces: &Traces, executions: u32) {
    tracing::subscriber::with_default(Registry::default().with(trace_layer(&traces.provider)), || {
        let fire = begin("settlement");
        let common = Arc::new(fire.common(&[]));
        for item in 0..executions {
            traces.queue.push(&common, &span(u64::from(item)));
        }
    });
}

async fn finish(traces: Traces) {
    let finished = tokio::task::spawn_blocking(|| traces.finish());
    timeout(LIMIT, finished).await.unwrap().unwrap();
}

#[derive(Debug)]
struct Hanging;

impl opentelemetry_sdk::trace::SpanExporter for Hanging {
    async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
        pending().await
    }
}

#[expect(clippy::disallowed_methods, reason = "the end of the traces ends the task")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_does_not_answer_cannot_hold_up_the_exit() {
    let traces = Traces {
        provider: SdkTracerProvider::builder().with_batch_exporter(Hanging).build(),
        queue: Arc::default(),
        sender: tokio::spawn(pending()),
        runtime: Handle::current(),
    };
    execute(&traces, 3);
    finish(traces).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_whose_connection_breaks_are_sent_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let sender = Sender::new(&format!("http://{address}"), "", &Resource::builder().build()).unwrap();
    let queue = SpanQueue::default();
    for number in 0..ENOUGH {
        push(&queue, number);
    }
    let ((), ()) = tokio::join!(sender.run(&queue), async {
        // It greets, takes a part of the request, and vanishes.
        let (mut connection, _) = listener.accept().await.unwrap();
        connection.write_all(&SETTINGS).await.unwrap();
        connection.read_exact(&mut [0; 1_000]).await.unwrap();
        drop((connection, listener));
        let (_, mut requests) = collector_at(address, Vec::new()).await;
        queue.end();
        let mut found = Vec::new();
        for _ in 0..ENOUGH / PER_REQUEST {
            found.extend(numbers(&next(&mut requests).await.1));
        }
        assert_eq!(found, (0..ENOUGH).collect::<Vec<_>>());
    });
    assert_eq!(queue.lost(), 0);
}

/// The first frame of a server in HTTP/2: no settings.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

/// What a collector has got.
type Requests = tokio_mpsc::Receiver<(Option<String>, ExportTraceServiceRequest)>;

/// Answers requests with these, then takes all.
struct Collector {
    answers: Mutex<Vec<Status>>,
    requests: tokio_mpsc::Sender<(Option<String>, ExportTraceServiceRequest)>,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let token = request.metadata().get("token").map(|token| token.to_str().unwrap().to_owned());
        let refused = self.answers.lock().unwrap().pop();
        self.requests.send((token, request.into_inner())).await.unwrap();
        refused.map_or_else(|| Ok(Response::new(ExportTraceServiceResponse::default())), Err)
    }
}

async fn collector(answers: Vec<Status>) -> (String, Requests) {
    collector_at("127.0.0.1:0".parse().unwrap(), answers).await
}

#[expect(clippy::disallowed_methods, reason = "the server ends with the test's runtime")]
async fn collector_at(address: SocketAddr, answers: Vec<Status>) -> (String, Requests) {
    let listener = TcpListener::bind(address).await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (requests, receiver) = tokio_mpsc::channel(8);
    let collector = Collector { answers: Mutex::new(answers), requests };
    let server = Server::builder().add_service(TraceServiceServer::new(collector));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    (endpoint, receiver)
}

/// The names of the spans in a request.
fn names(request: &ExportTraceServiceRequest) -> Vec<&str> {
    let scopes = request.resource_spans.iter().flat_map(|of_resource| &of_resource.scope_spans);
    scopes.flat_map(|of_scope| &of_scope.spans).map(|span| span.name.as_str()).collect()
}

async fn next(requests: &mut Requests) -> (Option<String>, ExportTraceServiceRequest) {
    timeout(LIMIT, requests.recv()).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_spans_reach_the_collector_with_the_name_of_the_service() {
    let (endpoint, mut requests) = collector(Vec::new()).await;
    let traces = traces(&endpoint);
    execute(&traces, 3);
    finish(traces).await;
    let both = [next(&mut requests).await.1, next(&mut requests).await.1];
    let mut found: Vec<_> = both.iter().map(names).collect();
    found.sort_unstable();
    assert_eq!(found, [vec!["execution"; 3], vec!["fire"]]);
    let [one, other] = both.map(|request| {
        let [of_resource] = request.resource_spans.as_slice() else { panic!("{request:?}") };
        let mut attributes = of_resource.resource.clone().unwrap().attributes;
        attributes.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        assert_eq!(of_resource.scope_spans[0].scope.as_ref().unwrap().name, "sidekeeper");
        format!("{attributes:?}")
    });
    // Both exporters say the same.
    assert_eq!(one, other);
    for expected in ["service.name", "\"sidekeeper\"", "host.ip", "10.0.0.7", "process.pid"] {
        assert!(one.contains(expected), "{one}");
    }
}

/// The collector's requests, without those with the spans of fires.
async fn next_executions(requests: &mut Requests) -> usize {
    loop {
        let (_, request) = next(requests).await;
        let names = names(&request);
        if names.contains(&"execution") {
            return names.len();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_spans_are_sent_before_the_end_in_requests_of_bounded_size() {
    let (endpoint, mut requests) = collector(Vec::new()).await;
    let traces = traces(&endpoint);
    execute(&traces, u32::try_from(ENOUGH).unwrap());
    for _ in 0..ENOUGH / PER_REQUEST {
        assert_eq!(next_executions(&mut requests).await, PER_REQUEST);
    }
    // They may wait in the memory of those that were sent.
    execute(&traces, 76);
    finish(traces).await;
    assert_eq!(next_executions(&mut requests).await, 76);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_that_a_busy_collector_did_not_take_are_sent_again_and_refused_ones_are_not() {
    for (refusal, lost) in [(Status::unavailable("busy"), 0), (Status::invalid_argument("no"), PER_REQUEST)] {
        let (endpoint, mut requests) = collector(vec![refusal]).await;
        let sender = Sender::new(&endpoint, "token=a%20b", &Resource::builder().build()).unwrap();
        let queue = SpanQueue::default();
        for number in 0..ENOUGH {
            push(&queue, number);
        }
        let ((), ()) = tokio::join!(sender.run(&queue), async {
            let (token, first) = next(&mut requests).await;
            assert_eq!(
                (token.as_deref(), numbers(&first)),
                (Some("a b"), (0..PER_REQUEST).collect::<Vec<_>>())
            );
            // The process ends: no pause holds up what is left.
            queue.end();
            let mut found = Vec::new();
            while found.len() < ENOUGH - lost {
                found.extend(numbers(&next(&mut requests).await.1));
            }
            assert_eq!(found, (lost..ENOUGH).collect::<Vec<_>>());
        });
        assert_eq!(queue.lost(), u64::try_from(lost).unwrap());
    }
}

#[test]
fn spans_are_sent_when_enough_of_them_wait_or_none_comes_any_more() {
    let queue = SpanQueue::default();
    for number in 1..ENOUGH {
        push(&queue, number);
    }
    assert!(!queue.is_due());
    push(&queue, 0);
    assert!(queue.is_due());
    push(&queue, 0);
    assert!(!queue.is_due());
    queue.end();
    assert!(queue.is_due());
}

#[test]
fn a_full_queue_drops_new_spans_and_counts_them() {
    let queue = SpanQueue::default();
    for number in 0..20_000 {
        push(&queue, number);
    }
    let waiting = queue.waiting();
    assert_eq!((waiting.len(), waiting.last().unwrap().start_time_unix_nano), (16_384, 16_383));
    assert_eq!(queue.lost(), 20_000 - 16_384);
}
