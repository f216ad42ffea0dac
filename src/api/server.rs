//! The listeners and the services on them: TCP on the loopback interface and Unix sockets, health, reflection.

use std::net::SocketAddr;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tonic::transport::server::Router;
use tonic::transport::{Error, Server};
use tonic_health::server::HealthReporter;
use tower::layer::util::{Identity, Stack};

use crate::config::Secret;
use crate::proto;
use crate::proto::assignment_service_server::AssignmentServiceServer;
use crate::proto::job_service_server::JobServiceServer;
use crate::proto::participant_service_server::ParticipantServiceServer;
use crate::proto::sidecar_service_server::SidecarServiceServer;
use crate::runner::clock::Clock;

use super::accept::{Connections, Door, Receive};
use super::assignment::Assignments;
use super::job::Jobs;
use super::participant::Participants;
use super::refusals::LogRefusals;
use super::sidecar::Sidecars;
use super::token::RequireToken;

/// How often a silent connection is probed, so that an application that hangs with its host is noticed.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// How long a probe may go unanswered.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Calls on one connection at once: as many streams as may be attached, and a report for each.
const STREAMS_MAX: u32 = 20_000;
/// The largest message taken: a report of 10000 results fits, and a configuration document.
pub const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Whose health is told; the empty name is the sidecar as a whole.
const SERVICES: [&str; 5] = [
    "",
    "sidekeeper.v1.ParticipantService",
    "sidekeeper.v1.AssignmentService",
    "sidekeeper.v1.JobService",
    "sidekeeper.v1.SidecarService",
];

/// Where applications reach the sidecar.
#[derive(Debug)]
pub enum Listener {
    /// A loopback address.
    Tcp(TcpListener),
    /// A socket in the file system, removed when it is dropped.
    Unix(UnixListener, SocketFile),
}

/// Removes the socket's file when it is dropped.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody else may have removed it already.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listener {
    /// Listens on a TCP address.
    pub async fn tcp(address: SocketAddr) -> std::io::Result<Self> {
        Ok(Self::Tcp(TcpListener::bind(address).await?))
    }

    /// Listens on a Unix socket. A file that a killed sidecar left is replaced; one that somebody serves is not.
    pub async fn unix(path: &FilePath) -> std::io::Result<Self> {
        if path.exists() && tokio::net::UnixStream::connect(path).await.is_err() {
            let is_socket =
                std::os::unix::fs::FileTypeExt::is_socket(&std::fs::symlink_metadata(path)?.file_type());
            if is_socket {
                std::fs::remove_file(path)?;
            }
        }
        let listener = UnixListener::bind(path)?;
        Ok(Self::Unix(listener, SocketFile(path.to_owned())))
    }

    /// Where it listens, in the form of `SIDEKEEPER_ENDPOINT`.
    pub fn endpoint(&self) -> std::io::Result<String> {
        Ok(match self {
            Self::Tcp(listener) => format!("http://{}", listener.local_addr()?),
            Self::Unix(_, file) => format!("unix://{}", file.0.display()),
        })
    }
}

/// The services, shared by all listeners.
#[derive(Clone)]
pub struct Services {
    /// For applications.
    pub participants: Participants,
    /// For those who look.
    pub assignments: Assignments,
    /// For operators.
    pub jobs: Jobs,
    /// For those who start and stop the sidecar.
    pub sidecars: Sidecars,
}

/// Sets what the health service says.
#[derive(Clone)]
pub struct Health {
    reporter: HealthReporter,
}

impl Health {
    /// Says whether the sidecar can take work: it has a session with the registry and is not stopping.
    pub async fn set_ready(&self, ready: bool) {
        let status = match ready {
            true => tonic_health::ServingStatus::Serving,
            false => tonic_health::ServingStatus::NotServing,
        };
        for service in SERVICES {
            self.reporter.set_service_status(service, status).await;
        }
    }

    /// Ends the streams of those who watch the health; they would outlive everything else.
    pub async fn end(mut self) {
        for service in SERVICES {
            self.reporter.clear_service_status(service).await;
        }
    }
}

/// All services behind one door.
pub type Served = Router<Stack<RequireToken, Stack<Receive, Stack<LogRefusals, Identity>>>>;

/// The router with all services, and the health to be kept. Without the token, if there is one, callers get no further.
pub fn router(
    services: Services,
    token: Option<&Secret>,
    clock: &Clock,
) -> Result<(Served, Health), tonic_reflection::server::Error> {
    let (reporter, health_service) = tonic_health::server::health_reporter();
    let descriptors = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let router = Server::builder()
        .layer(LogRefusals::new(clock))
        .layer(Receive)
        .layer(RequireToken::new(token))
        .max_concurrent_streams(Some(STREAMS_MAX))
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .add_service(health_service)
        .add_service(descriptors().build_v1()?)
        .add_service(descriptors().build_v1alpha()?)
        .add_service(
            ParticipantServiceServer::new(services.participants).max_decoding_message_size(MESSAGE_BYTES_MAX),
        )
        .add_service(
            AssignmentServiceServer::new(services.assignments).max_decoding_message_size(MESSAGE_BYTES_MAX),
        )
        .add_service(JobServiceServer::new(services.jobs).max_decoding_message_size(MESSAGE_BYTES_MAX))
        .add_service(SidecarServiceServer::new(services.sidecars));
    Ok((router, Health { reporter }))
}

/// Serves on one listener until `stop` is true and the calls in progress have ended.
pub async fn serve(
    router: Served,
    listener: Listener,
    connections: Connections,
    mut stop: watch::Receiver<bool>,
) -> Result<(), Error> {
    let stopped = async move {
        // An error means that nobody can say stop any more, which is a stop.
        let _ = stop.wait_for(|stop| *stop).await;
    };
    let (door, file) = match listener {
        Listener::Tcp(listener) => (Door::Tcp(listener), None),
        Listener::Unix(listener, file) => (Door::Unix(listener), Some(file)),
    };
    let served = router.serve_with_incoming_shutdown(connections.of(door), stopped).await;
    drop(file);
    served
}
