//! The exported spans, and the time limit of the last export.

use std::future::pending;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::SpanData;
use tokio::net::TcpListener;
use tokio::sync::mpsc as tokio_mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::*;
use crate::config::{Flags, Sources, load};

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

#[test]
fn spans_of_this_crate_are_traced_and_the_registry_clients_are_not() {
    let collected = Collected::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(collected.clone()).build();
    let subscriber = Registry::default().with(trace_layer(&provider));
    tracing::subscriber::with_default(subscriber, || {
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
    let names: Vec<_> = collected.0.lock().unwrap().iter().map(|span| span.name.to_string()).collect();
    assert_eq!(names, ["execution"]);
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
