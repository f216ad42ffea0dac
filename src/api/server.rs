//! The listeners and the services on them: TCP on the loopback interface and Unix sockets, health, reflection.

use std::fs::Metadata;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::watch;
use tonic::transport::server::Router;
use tonic::transport::{Error, Server};
use tonic_health::server::HealthReporter;
use tower::layer::util::{Identity, Stack};
use tracing::warn;

use crate::config::Secret;
use crate::proto;
use crate::proto::assignment_service_server::AssignmentServiceServer;
use crate::proto::job_service_server::JobServiceServer;
use crate::proto::participant_service_server::ParticipantServiceServer;
use crate::proto::sidecar_service_server::SidecarServiceServer;
use crate::runner::clock::Clock;

use super::accept::{Connections, Door, Receive};
use super::assignment::Assignments;
use super::date::DateBefore1970;
use super::job::Jobs;
use super::participant::Participants;
use super::refusals::LogRefusals;
use super::sidecar::Sidecars;
use super::token::RequireToken;

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
    /// A socket in the file system, whose file is removed when this is dropped.
    Unix(SocketFile, UnixListener),
}

/// The file of a socket that this process serves. Removes it when it is dropped, unless it is another's by then. Drop it
/// before the listener: the file's number is nobody else's for as long as the socket is open.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    id: FileId,
}

/// Device and number of a file, which tell it from any other that exists.
type FileId = (u64, u64);

impl SocketFile {
    /// The file that a socket was bound to just now.
    fn of(path: &FilePath) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), id: id(&std::fs::symlink_metadata(path)?) })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = remove_if(&self.path, self.id) {
            warn!(path = %self.path.display(), %error, "cannot remove the file of the socket");
        }
    }
}

fn id(file: &Metadata) -> FileId {
    (file.dev(), file.ino())
}

/// Removes this file, unless somebody has put another one in its place.
fn remove_if(path: &FilePath, is: FileId) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if id(&found) == is => std::fs::remove_file(path),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

impl Listener {
    /// Listens on a TCP address.
    pub async fn tcp(address: SocketAddr) -> io::Result<Self> {
        Ok(Self::Tcp(TcpListener::bind(address).await?))
    }

    /// Listens on a Unix socket. A file that a killed sidecar left is replaced; one that somebody serves is not, also if
    /// that process is stopped or too busy to answer.
    pub async fn unix(path: &FilePath) -> io::Result<Self> {
        remove_stale(path).await?;
        let listener = UnixListener::bind(path)?;
        Ok(Self::Unix(SocketFile::of(path)?, listener))
    }

    /// Where it listens, in the form of `SIDEKEEPER_ENDPOINT`.
    pub fn endpoint(&self) -> io::Result<String> {
        Ok(match self {
            Self::Tcp(listener) => format!("http://{}", listener.local_addr()?),
            Self::Unix(file, _) => format!("unix://{}", file.path.display()),
        })
    }
}

/// Removes the file of a socket that nobody serves. Fails if somebody does.
async fn remove_stale(path: &FilePath) -> io::Result<()> {
    let before = match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => id(&found),
        // There is nothing, or what is no socket: to bind tells.
        Ok(_) | Err(_) => return Ok(()),
    };
    match UnixStream::connect(path).await {
        // The only answer that means that no process has it. A full queue (EAGAIN) is that of one that is stopped.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => remove_if(path, before),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(_) => Err(taken("a process serves this socket")),
        Err(error) => Err(taken(&format!("a process may serve this socket ({error})"))),
    }
}

fn taken(why: &str) -> io::Error {
    let what = format!("{why}; stop that process, remove the file if there is none, or take another path");
    io::Error::new(io::ErrorKind::AddrInUse, what)
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
pub type Served =
    Router<Stack<RequireToken, Stack<Receive, Stack<LogRefusals, Stack<DateBefore1970, Identity>>>>>;

/// The router with all services, and the health to be kept. Without the token, if there is one, callers get no further.
/// A connection that is silent for longer than `silence` is closed.
pub fn router(
    services: Services,
    token: Option<&Secret>,
    silence: Duration,
    clock: &Clock,
) -> Result<(Served, Health), tonic_reflection::server::Error> {
    let (reporter, health_service) = tonic_health::server::health_reporter();
    let descriptors = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let router = Server::builder()
        .layer(DateBefore1970::new(clock))
        .layer(LogRefusals::new(clock))
        .layer(Receive)
        .layer(RequireToken::new(token))
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
    let door = match listener {
        Listener::Tcp(listener) => Door::Tcp(listener),
        Listener::Unix(file, listener) => Door::Unix { _file: file, listener },
    };
    router.serve_with_incoming_shutdown(connections.of(door), stopped).await
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixSocket;

    use super::*;

    async fn taken(path: &FilePath) -> String {
        let before = id(&std::fs::symlink_metadata(path).unwrap());
        let error = Listener::unix(path).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{error}");
        assert_eq!(id(&std::fs::symlink_metadata(path).unwrap()), before);
        error.to_string()
    }

    #[tokio::test]
    async fn a_socket_is_replaced_only_if_nobody_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.sock");
        let socket = UnixSocket::new_stream().unwrap();
        socket.bind(&path).unwrap();
        let owner = socket.listen(1).unwrap();
        assert!(taken(&path).await.contains("a process serves this socket"));
        // The owner is stopped: its queue is full.
        let mut waiting = Vec::new();
        while let Ok(stream) = UnixStream::connect(&path).await {
            waiting.push(stream);
        }
        assert!(taken(&path).await.contains("a process may serve this socket"));
        drop(owner);
        let replaced = Listener::unix(&path).await.unwrap();
        assert!(UnixStream::connect(&path).await.is_ok());
        drop(replaced);
        assert!(!path.exists());
        std::fs::write(&path, "no socket").unwrap();
        taken(&path).await;
    }

    #[tokio::test]
    async fn a_successors_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.sock");
        let old = Listener::unix(&path).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        let new = Listener::unix(&path).await.unwrap();
        drop(old);
        assert!(UnixStream::connect(&path).await.is_ok());
        drop(new);
        assert!(!path.exists());
    }
}
