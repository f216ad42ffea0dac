//! The exported spans, and the time limit of the last export.

use std::future::pending;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

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
use tokio::net::TcpListener;
use tokio::sync::mpsc as tokio_mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tracing::Span;
use tracing::span::{Attributes, Id};

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
    let provider = SdkTracerProvider::builder().with_id_generator(Ids::default());
    let provider = provider.with_simple_exporter(collected.clone()).build();
    tracing::subscriber::with_default(Registry::default().with(trace_layer(&provider)), act);
    let mut spans = collected.0.lock().unwrap();
    std::mem::take(&mut *spans)
}

fn current_trace_context() -> Option<(String, String)> {
    Some(Traced::begin(&Span::current())?.headers())
}

#[test]
fn spans_of_this_crate_are_traced_and_the_registry_clients_are_not() {
    let spans = collect(|| {
        assert_eq!(current_trace_context(), None);
        tracing::info_span!(target: "zookeeper_client", "serve").in_scope(|| {
            assert_eq!(current_trace_context(), None);
            tracing::info_span!("execution").in_scope(|| {
                let (traceparent, tracestate) = current_trace_context().unwrap();
                assert!(traceparent.starts_with("00-") && traceparent.ends_with("-01"), "{traceparent}");
                assert_eq!((traceparent.len(), tracestate.as_str()), (55, ""));
            });
        });
        tracing::debug_span!("detail").in_scope(|| assert_eq!(current_trace_context(), None));
    });
    let names: Vec<_> = spans.iter().map(|span| span.name.to_string()).collect();
    assert_eq!(names, ["execution"]);
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

#[test]
fn the_spans_of_a_fire_are_in_its_trace() {
    let instant = Timestamp::from_millisecond(1_732_795_200_000).unwrap();
    let spans = collect(|| {
        // A span that lasts as long as an instance is no part of it.
        tracing::info_span!("job").in_scope(|| {
            let Fire { span: fire, .. } = Fire::begin("/billing", "settlement", instant);
            let execution = tracing::info_span!(parent: &fire, "execution");
            execution.in_scope(|| {
                let (traceparent, _) = current_trace_context().unwrap();
                assert!(traceparent.starts_with("00-d386cfd9e5d126d8664436bb2a751b25-"), "{traceparent}");
            });
        });
    });
    let of_trace = spans
        .iter()
        .filter(|span| span.span_context.trace_id().to_string() == "d386cfd9e5d126d8664436bb2a751b25");
    assert_eq!(of_trace.map(|span| span.name.to_string()).collect::<Vec<_>>(), ["execution", "fire"]);
    let fire = spans.iter().find(|span| span.name == "fire").unwrap();
    assert_eq!(fire.parent_span_id.to_string(), "06efd9d1253b884f");
}

#[test]
fn op_15_the_first_execution_of_an_item_has_the_same_span_on_each_sidecar() {
    let instant = Timestamp::from_millisecond(1_732_795_200_000).unwrap();
    let first =
        |job: &str, item: u32| Fire::begin("/billing", job, instant).first_execution(Item(item)).headers().0;
    // Never changed: sidecars of all versions compute it.
    assert_eq!(first("settlement", 3), "00-d386cfd9e5d126d8664436bb2a751b25-1ba3fe9ac523788c-01");
    assert_ne!(first("settlement", 4), first("settlement", 3));
    assert_ne!(first("settlements", 3).split_at(36).1, first("settlement", 3).split_at(36).1);
}

#[test]
fn a_computed_id_is_for_one_span_alone() {
    let instant = Timestamp::from_millisecond(1_732_795_200_000).unwrap();
    let first = Fire::begin("/billing", "settlement", instant).first_execution(Item(3));
    let spans = collect(|| {
        let fire = Fire::begin("/billing", "settlement", instant);
        let span = tracing::info_span!(parent: &fire.span, "execution");
        let begun = Traced::begin_as(&span, &first).unwrap();
        assert_eq!(begun.headers(), first.headers());
        // It is started already.
        let again = Traced::begin_as(&span, &fire.first_execution(Item(4)));
        assert_eq!(again.unwrap().headers(), first.headers());
        let other = tracing::info_span!(parent: &fire.span, "other");
        assert_eq!(begun.sampled_trace().as_deref(), Some("d386cfd9e5d126d8664436bb2a751b25"));
        assert!(Traced::begin(&other).unwrap().headers() != first.headers());
    });
    assert_eq!(spans.len(), 3);
}

#[test]
fn a_span_that_is_not_sampled_leads_to_no_trace() {
    let provider = SdkTracerProvider::builder().with_id_generator(Ids::default());
    let provider = provider.with_sampler(Sampler::AlwaysOff).build();
    tracing::subscriber::with_default(Registry::default().with(trace_layer(&provider)), || {
        let traced = Traced::begin(&tracing::info_span!("execution")).unwrap();
        assert!(traced.headers().0.ends_with("-00"));
        assert_eq!(traced.sampled_trace(), None);
    });
}

#[test]
fn an_exported_span_of_a_fire_says_nothing_about_threads_and_places_in_the_code() {
    let spans = collect(|| {
        Fire::begin("/billing", "settlement", Timestamp::UNIX_EPOCH).span.in_scope(|| {});
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
        drop(Fire::begin("/billing", "settlement", Timestamp::UNIX_EPOCH));
    });
    assert_eq!(kept.0.load(Ordering::Relaxed), 1);
}

#[test]
fn without_an_exporter_there_is_no_trace_context() {
    tracing::subscriber::with_default(Registry::default(), || {
        tracing::info_span!("execution").in_scope(|| assert_eq!(current_trace_context(), None));
    });
}

#[derive(Debug)]
struct Hanging;

impl opentelemetry_sdk::trace::SpanExporter for Hanging {
    async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
        pending().await
    }
}

#[test]
fn a_collector_that_does_not_answer_cannot_hold_up_the_exit() {
    let provider = SdkTracerProvider::builder().with_batch_exporter(Hanging).build();
    tracing::subscriber::with_default(Registry::default().with(trace_layer(&provider)), || {
        tracing::info_span!("execution").in_scope(|| {});
    });
    let (finished, wait) = mpsc::channel();
    thread::spawn(move || {
        Telemetry { provider: Some(provider) }.finish();
        finished.send(()).unwrap();
    });
    wait.recv_timeout(LIMIT).unwrap();
}

struct Collector(tokio_mpsc::Sender<ExportTraceServiceRequest>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.send(request.into_inner()).await.unwrap();
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[expect(clippy::disallowed_methods, reason = "the server ends with the test's runtime")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_traces_reach_the_collector_with_the_service_name() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (sender, mut requests) = tokio_mpsc::channel(1);
    let server = Server::builder().add_service(TraceServiceServer::new(Collector(sender)));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));

    let flags = Flags::from([("instance_ip", vec!["10.0.0.7".to_owned()])]);
    let sources = Sources { flags, file: None, environment: &|_| None, default_listen: None };
    let provider = provider(&load(&sources).unwrap().config, &endpoint).unwrap();
    tracing::subscriber::with_default(Registry::default().with(trace_layer(&provider)), || {
        tracing::info_span!("execution", job.name = "orders").in_scope(|| {});
    });
    let finished = tokio::task::spawn_blocking(|| Telemetry { provider: Some(provider) }.finish());
    let request = tokio::time::timeout(LIMIT, requests.recv()).await.unwrap().unwrap();
    finished.await.unwrap();

    let traces = &request.resource_spans[0];
    assert_eq!(traces.scope_spans[0].spans[0].name, "execution");
    let resource = format!("{:?}", traces.resource.as_ref().unwrap().attributes);
    for expected in ["service.name", "\"sidekeeper\"", "host.ip", "10.0.0.7"] {
        assert!(resource.contains(expected), "{resource}");
    }
}
