//! The services of a sidecar behind its listeners, with health and reflection. Shell.

use std::io;
use std::time::Duration;

use futures::Stream;
use tokio::sync::watch;
use tonic::transport::server::Router;
use tonic::transport::{Error, Server};
use tonic_health::server::HealthReporter;
use tower::layer::util::{Identity, Stack};

use crate::listen::authorize::Authorize;
use crate::listen::calls::BoundCalls;
use crate::listen::connections::{Connection, Receive};
use crate::listen::measured::MeasureCalls;
use crate::listen::token::{RequireToken, Tokens};
use crate::metrics::meters::Meters;
use crate::proto;
use crate::proto::assignment_service_server::AssignmentServiceServer;
use crate::proto::diagnostics_service_server::DiagnosticsServiceServer;
use crate::proto::election_service_server::ElectionServiceServer;
use crate::proto::job_service_server::JobServiceServer;
use crate::proto::lock_service_server::LockServiceServer;
use crate::proto::namespace_service_server::NamespaceServiceServer;
use crate::proto::participant_service_server::ParticipantServiceServer;
use crate::proto::sidecar_service_server::SidecarServiceServer;
use crate::proto::sticky_lock_service_server::StickyLockServiceServer;
use crate::runner::clock::Clock;

use super::assignment::Assignments;
use super::date::DateBefore1970;
use super::diagnostics::Diagnostics;
use super::election::ElectionCalls;
use super::job::Jobs;
use super::lock::LockCalls;
use super::methods;
use super::namespace::Namespaces;
use super::participant::Participants;
use super::refusals::LogRefusals;
use super::sidecar::Sidecars;
use super::sticky_lock::StickyLockCalls;

/// Calls on one connection at once: the most streams that may be attached, and a report for each.
const STREAMS_MAX: u32 = 20_000;
/// The largest message of an application that takes part in jobs. A report of 10000 results fits, and so does a configuration
/// document.
pub const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The largest message of all others. The data of a lock and a checkpoint have 64 KiB at most, and `CancelExecutions` may name 10000
/// items.
const SMALL_MESSAGE_BYTES_MAX: usize = 256 * 1024;

/// The services that need the registry. The empty name is the sidecar as a whole.
const SERVICES: [&str; 8] = [
    "",
    "sidekeeper.v1.ParticipantService",
    "sidekeeper.v1.AssignmentService",
    "sidekeeper.v1.JobService",
    "sidekeeper.v1.LockService",
    "sidekeeper.v1.ElectionService",
    "sidekeeper.v1.StickyLockService",
    "sidekeeper.v1.NamespaceService",
];
/// The services for the time when the registry is away, or the sidecar is stopping.
const ALWAYS: [&str; 2] = ["sidekeeper.v1.SidecarService", "sidekeeper.v1.DiagnosticsService"];

/// The services, shared by all listeners.
#[derive(Clone)]
pub struct Services {
    /// For applications.
    pub participants: Participants,
    /// For observers.
    pub assignments: Assignments,
    /// For operators.
    pub jobs: Jobs,
    /// For applications that use locks, and their operators.
    pub locks: LockCalls,
    /// For applications that stand for election, and for those that want to know who leads.
    pub elections: ElectionCalls,
    /// For applications that use sticky locks.
    pub sticky_locks: StickyLockCalls,
    /// For the programs that start and stop the sidecar.
    pub sidecars: Sidecars,
    /// For operators whose job does not run.
    pub diagnostics: Diagnostics,
    /// For operators who save and restore the namespace.
    pub namespaces: Namespaces,
}

/// Sets the status of the health service.
#[derive(Clone)]
pub struct Health {
    reporter: HealthReporter,
}

impl Health {
    /// Sets whether the sidecar can accept work: it has a session with the registry and is not stopping. The services for operators
    /// serve in any case.
    pub async fn set_ready(&self, ready: bool) {
        let status = match ready {
            true => tonic_health::ServingStatus::Serving,
            false => tonic_health::ServingStatus::NotServing,
        };
        for service in SERVICES {
            self.reporter.set_service_status(service, status).await;
        }
        for service in ALWAYS {
            self.reporter.set_service_status(service, tonic_health::ServingStatus::Serving).await;
        }
    }

    /// Ends the streams of health watchers, which would outlive all other tasks.
    pub async fn end(mut self) {
        for service in SERVICES.into_iter().chain(ALWAYS) {
            self.reporter.clear_service_status(service).await;
        }
    }
}

/// All services, behind one router.
pub type Served = Router<
    Stack<
        BoundCalls,
        Stack<
            Authorize,
            Stack<
                RequireToken,
                Stack<Receive, Stack<LogRefusals, Stack<DateBefore1970, Stack<MeasureCalls, Identity>>>>,
            >,
        >,
    >,
>;

/// The router with all services, and the health status to update. If there are tokens, calls without one are
/// refused; and so are those whose caller lacks the method's role, or takes more than its part, which is half if `several` users are served. A connection that is silent for longer than `silence` is closed.
pub fn router(
    services: Services,
    tokens: Tokens,
    several: bool,
    silence: Duration,
    (meters, clock): (Meters, &Clock),
) -> Result<(Served, Health), tonic_reflection::server::Error> {
    let (reporter, health_service) = tonic_health::server::health_reporter();
    let descriptors = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let router = Server::builder()
        .layer(MeasureCalls::new(meters, methods::known, clock))
        .layer(DateBefore1970::new(clock))
        .layer(LogRefusals::new(clock))
        .layer(Receive)
        .layer(RequireToken::new(tokens))
        .layer(Authorize::new(methods::need))
        .layer(BoundCalls::new(methods::cost, several, clock))
        .max_concurrent_streams(Some(STREAMS_MAX))
        .http2_keepalive_interval(Some(silence / 2))
        .http2_keepalive_timeout(Some(silence / 2))
        .add_service(health_service)
        .add_service(descriptors().build_v1()?)
        .add_service(descriptors().build_v1alpha()?)
        .add_service(
            ParticipantServiceServer::new(services.participants).max_decoding_message_size(MESSAGE_BYTES_MAX),
        )
        .add_service(
            AssignmentServiceServer::new(services.assignments)
                .max_decoding_message_size(SMALL_MESSAGE_BYTES_MAX),
        )
        .add_service(
            LockServiceServer::new(services.locks).max_decoding_message_size(SMALL_MESSAGE_BYTES_MAX),
        )
        .add_service(
            ElectionServiceServer::new(services.elections).max_decoding_message_size(SMALL_MESSAGE_BYTES_MAX),
        )
        .add_service(
            StickyLockServiceServer::new(services.sticky_locks)
                .max_decoding_message_size(SMALL_MESSAGE_BYTES_MAX),
        )
        .add_service(JobServiceServer::new(services.jobs).max_decoding_message_size(SMALL_MESSAGE_BYTES_MAX))
        .add_service(
            SidecarServiceServer::new(services.sidecars).max_decoding_message_size(SMALL_MESSAGE_BYTES_MAX),
        )
        .add_service(
            NamespaceServiceServer::new(services.namespaces)
                .max_decoding_message_size(SMALL_MESSAGE_BYTES_MAX),
        )
        .add_service(
            DiagnosticsServiceServer::new(services.diagnostics)
                .max_decoding_message_size(SMALL_MESSAGE_BYTES_MAX),
        );
    Ok((router, Health { reporter }))
}

/// Serves these connections until `stop` is true and the calls in progress have ended.
pub(crate) async fn serve(
    router: Served,
    connections: impl Stream<Item = io::Result<Connection>>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), Error> {
    let stopped = async move {
        // An error means that the sender was dropped. That counts as a stop.
        let _ = stop.wait_for(|stop| *stop).await;
    };
    router.serve_with_incoming_shutdown(connections, stopped).await
}
