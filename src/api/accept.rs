//! The bounds of connections: how many there are, and how long a silent one stays. All listeners of a sidecar share one bound ([`Connections`]), so nobody can
//! take all of its descriptors. A connection that is refused is closed at once, and the log says so a few times a minute.
//!
//! Beyond the bound a few connections more are taken for ten seconds each, and only health is answered on
//! them: a probe that gets in sees that the process lives, and an application learns what it was refused for.

use std::fs::File;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{Stream, unfold};
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tonic::codegen::http::{Request, Response};
use tonic::transport::server::Connected;
use tower::{Layer, Service};
use tracing::{debug, warn};

use super::limited_log::LimitedLog;
use super::server::SocketFile;
use super::status;
use super::token::is_open;
use crate::reason::Reason;
use crate::runner::clock::Clock;
use crate::telemetry::limiter::PAUSE;

/// The pause after the system refused a connection for want of descriptors or memory. Short enough that nobody notices when
/// there are some again.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The pause after it has refused several times. Each looks for something that is not there.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Connections that are sent away between two such pauses: more than a listener's queue has at most times, few enough to
/// be done in no time.
const SENT_AWAY_MAX: usize = 64;

/// How many connections, and how long they may be silent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Connections of all listeners at once. An application needs one, so this is far more than run on a machine. Where a
    /// process may have fewer descriptors, those run out first, and then connections are closed for that.
    pub(super) connections: usize,
    /// Connections beyond it, for health only.
    pub(super) for_health: usize,
    /// How long a connection may take to bring its first request, which a client sends as soon as it is connected; and how
    /// long one for health only is open.
    pub(super) first_request: Duration,
}

impl Limits {
    /// Those of a sidecar.
    pub(super) const OURS: Self =
        Self { connections: 1_024, for_health: 16, first_request: Duration::from_secs(10) };
}

/// The connections of a sidecar. Clones share the bound.
#[derive(Clone)]
pub struct Connections {
    limits: Limits,
    clock: Clock,
    free: Arc<Semaphore>,
    free_for_health: Arc<Semaphore>,
    log: LimitedLog<Refusal>,
}

/// Why connections are not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Refusal {
    /// There are as many as there may be; one more is for health only.
    HealthOnly,
    /// Those for health are taken, too.
    Full,
    /// The system has no descriptors or no memory.
    Exhausted,
    /// Anything else.
    Failed,
}

fn tell_left_out(refusal: Option<&Refusal>, left_out: u64) {
    warn!(?refusal, left_out, "connections refused: and {left_out} more like it in the last {PAUSE:?}");
}

impl Connections {
    /// The bound for one sidecar.
    pub fn new(clock: &Clock) -> Self {
        Self::within(Limits::OURS, clock)
    }

    pub(super) fn within(limits: Limits, clock: &Clock) -> Self {
        Self {
            limits,
            clock: clock.clone(),
            free: Arc::new(Semaphore::new(limits.connections)),
            free_for_health: Arc::new(Semaphore::new(limits.for_health)),
            log: LimitedLog::new(clock, tell_left_out),
        }
    }

    /// The connections that come to a listener. They never end, and none of them is an error.
    pub(super) fn of(&self, door: Door) -> impl Stream<Item = io::Result<Connection>> + use<> {
        let accept = Accept { door, connections: self.clone(), pause: PAUSE_MIN, spare: None };
        unfold(accept, |mut accept| async move { Some((Ok(accept.next().await), accept)) })
    }

    /// Takes a connection, or says why not.
    fn take(&self, socket: Box<dyn Socket>) -> Option<Connection> {
        let Limits { connections, for_health, first_request } = self.limits;
        let (permit, health_only) = match Arc::clone(&self.free).try_acquire_owned() {
            Ok(permit) => (permit, false),
            Err(_) => match Arc::clone(&self.free_for_health).try_acquire_owned() {
                Ok(permit) => (permit, true),
                Err(_) => {
                    if self.log.admits(&Refusal::Full) {
                        warn!(
                            connections,
                            for_health,
                            "a connection is closed at once: there are as many as there may be, and those for health \
                             are taken; find out who opens so many"
                        );
                    }
                    return None;
                }
            },
        };
        if health_only && self.log.admits(&Refusal::HealthOnly) {
            warn!(
                connections,
                "a connection is for health only: there are as many as there may be; have each application share one \
                 among its jobs, or find out who leaves them open"
            );
        }
        let heard = Arc::new(Heard { clock: self.clock.clone(), at: AtomicU64::new(0) });
        heard.note();
        let visitor = Visitor { health_only, has_asked: Arc::default(), heard };
        let deadline = Some(Box::pin(sleep(first_request)));
        Some(Connection { socket, visitor, deadline, _permit: permit })
    }
}

/// Where connections come from.
pub(super) enum Door {
    Tcp(TcpListener),
    /// With its file, which goes first.
    Unix {
        _file: SocketFile,
        listener: UnixListener,
    },
}

impl Door {
    async fn accept(&self) -> io::Result<Box<dyn Socket>> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                if let Err(error) = stream.set_nodelay(true) {
                    debug!(%error, "a connection may answer late: TCP_NODELAY cannot be set");
                }
                Box::new(stream)
            }
            Self::Unix { listener, .. } => Box::new(listener.accept().await?.0),
        })
    }
}

struct Accept {
    door: Door,
    connections: Connections,
    pause: Duration,
    /// A descriptor in reserve: given up when there are no others, so that who knocks can be sent away.
    spare: Option<File>,
}

impl Accept {
    async fn next(&mut self) -> Connection {
        loop {
            if self.spare.is_none() {
                self.spare = File::open("/dev/null").ok();
            }
            match self.door.accept().await {
                Ok(socket) => {
                    self.pause = PAUSE_MIN;
                    if let Some(connection) = self.connections.take(socket) {
                        return connection;
                    }
                }
                Err(error) if is_of_the_connection(&error) => debug!(%error, "a connection broke at once"),
                Err(error) => {
                    self.tell(&error);
                    if is_exhausted(&error) {
                        self.send_away();
                    }
                    sleep(self.pause).await;
                    self.pause = self.pause.saturating_mul(2).min(PAUSE_MAX);
                }
            }
        }
    }

    fn tell(&self, error: &io::Error) {
        if !is_exhausted(error) {
            if self.connections.log.admits(&Refusal::Failed) {
                warn!(%error, "cannot accept a connection; it is tried again");
            }
        } else if self.connections.log.admits(&Refusal::Exhausted) {
            let descriptors_max = getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft);
            warn!(
                %error,
                descriptors_max,
                "connections are closed at once: the system gives no more descriptors; raise the limit (`ulimit -n`, \
                 `LimitNOFILE=` of systemd), or find out who leaves connections open"
            );
        }
    }

    /// Closes the connections that wait, with the descriptor in reserve: a client that hears nothing would wait for us.
    fn send_away(&mut self) {
        if self.spare.take().is_none() {
            return;
        }
        for _ in 0..SENT_AWAY_MAX {
            // It is closed again in the same breath.
            let Some(Ok(_)) = self.door.accept().now_or_never() else { return };
        }
    }
}

/// Whether the system has nothing to make a connection of.
fn is_exhausted(error: &io::Error) -> bool {
    let number = error.raw_os_error().map(Errno::from_raw);
    matches!(number, Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM))
}

/// Whether this one connection failed, so that the next one may be looked at.
fn is_of_the_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

/// A connection that was taken. It counts until it is dropped.
pub(super) struct Connection {
    socket: Box<dyn Socket>,
    visitor: Visitor,
    /// When it is closed, unless it brings a request before. `None`: it has.
    deadline: Option<Pin<Box<Sleep>>>,
    _permit: OwnedSemaphorePermit,
}

/// The connection of a call, as the services know it.
#[derive(Clone)]
pub(super) struct Visitor {
    health_only: bool,
    has_asked: Arc<AtomicBool>,
    heard: Arc<Heard>,
}

impl Visitor {
    /// For how long nothing has come over the connection.
    pub(super) fn silent_for(&self) -> Duration {
        let at = Duration::from_millis(self.heard.at.load(Ordering::Relaxed));
        self.heard.clock.now().mono.saturating_sub(at)
    }
}

/// When something came over a connection last.
struct Heard {
    clock: Clock,
    /// Milliseconds of the monotonic clock.
    at: AtomicU64,
}

impl Heard {
    fn note(&self) {
        let now = u64::try_from(self.clock.now().mono.as_millis()).unwrap_or(u64::MAX);
        self.at.store(now, Ordering::Relaxed);
    }
}

impl Connected for Connection {
    type ConnectInfo = Visitor;

    fn connect_info(&self) -> Visitor {
        self.visitor.clone()
    }
}

impl Connection {
    /// Fails when the connection's time is over.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let Some(deadline) = &mut self.deadline else { return Ok(()) };
        if !self.visitor.health_only && self.visitor.has_asked.load(Ordering::Relaxed) {
            self.deadline = None;
            return Ok(());
        }
        match deadline.as_mut().poll(context) {
            Poll::Pending => Ok(()),
            Poll::Ready(()) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                match self.visitor.health_only {
                    true => "there are too many connections, so this one was for health only",
                    false => "no request came in time",
                },
            )),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.visitor.heard.note();
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.socket).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.socket).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

/// The layer that notes that a connection has brought a request, and answers nothing but health where that is so.
#[derive(Debug, Clone, Copy, Default)]
pub struct Receive;

impl<S> Layer<S> for Receive {
    type Service = Received<S>;

    fn layer(&self, inner: S) -> Received<S> {
        Received { inner }
    }
}

/// A service whose visitors are received.
#[derive(Debug, Clone)]
pub struct Received<S> {
    inner: S,
}

impl<S, B, R> Service<Request<B>> for Received<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    R: Default + Send + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<R>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if let Some(visitor) = request.extensions().get::<Visitor>() {
            visitor.has_asked.store(true, Ordering::Relaxed);
            if visitor.health_only && !is_open(request.uri().path()) {
                let refused = status::refusal(
                    Reason::TooMany,
                    format!(
                        "this sidecar has {} connections, and takes no more; close some (one serves all jobs of a process), \
                     and connect again",
                        Limits::OURS.connections
                    ),
                );
                return futures::future::ready(Ok(refused.into_http())).boxed();
            }
        }
        self.inner.call(request).boxed()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::time::timeout;
    use tonic::transport::{Channel, Endpoint, Server};
    use tonic::{Code, Status};
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;

    use super::*;
    use crate::proto::WatchAssignmentsRequest;
    use crate::proto::assignment_service_client::AssignmentServiceClient;

    /// Far more than anything here takes.
    const LIMIT: Duration = Duration::from_secs(30);

    /// A server within these limits that answers health, and knows nothing else.
    async fn server(limits: Limits) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (_, health) = tonic_health::server::health_reporter();
        let incoming = Connections::within(limits, &Clock::start()).of(Door::Tcp(listener));
        let serving = Server::builder().layer(Receive).add_service(health).serve_with_incoming(incoming);
        #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
        tokio::spawn(serving);
        address
    }

    async fn connect(address: &str) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        timeout(LIMIT, endpoint.connect()).await.unwrap().unwrap()
    }

    async fn health(channel: &Channel) -> Result<(), Status> {
        let request = HealthCheckRequest::default();
        timeout(LIMIT, HealthClient::new(channel.clone()).check(request)).await.unwrap().map(drop)
    }

    /// What a call of a service is refused with; nobody serves it here.
    async fn other(channel: &Channel) -> Code {
        let request = WatchAssignmentsRequest::default();
        let mut client = AssignmentServiceClient::new(channel.clone());
        timeout(LIMIT, client.watch_assignments(request)).await.unwrap().unwrap_err().code()
    }

    /// Until the connection is closed by the other side.
    async fn closed(mut stream: TcpStream) {
        let mut told = Vec::new();
        let _ = timeout(LIMIT, stream.read_to_end(&mut told)).await.expect("it is closed");
    }

    #[tokio::test]
    async fn who_asks_for_nothing_is_sent_away_and_who_has_asked_stays() {
        let limits = Limits { first_request: Duration::from_secs(2), ..Limits::OURS };
        let address = server(limits).await;
        let request = HealthCheckRequest::default();
        let mut watch = HealthClient::new(connect(&address).await).watch(request).await.unwrap().into_inner();
        timeout(LIMIT, watch.message()).await.unwrap().unwrap().expect("the state of health");
        let silent = TcpStream::connect(&address).await.unwrap();
        // Bytes are no request.
        let mut babbling = TcpStream::connect(&address).await.unwrap();
        babbling.write_all(b"PRI * HTTP/2.0\r\n").await.unwrap();
        futures::future::join(closed(silent), closed(babbling)).await;
        // It is older than both of them.
        assert!(watch.message().now_or_never().is_none(), "who had asked was sent away");
    }

    #[tokio::test]
    async fn beyond_the_bound_only_health_is_answered_until_somebody_goes() {
        let limits = Limits { connections: 2, for_health: 1, first_request: LIMIT };
        let address = server(limits).await;
        let (first, second) = (connect(&address).await, connect(&address).await);
        for channel in [&first, &second] {
            health(channel).await.unwrap();
            assert_eq!(other(channel).await, Code::Unimplemented);
        }
        let third = connect(&address).await;
        health(&third).await.unwrap();
        assert_eq!(other(&third).await, Code::ResourceExhausted);
        closed(TcpStream::connect(&address).await.unwrap()).await;
        health(&third).await.unwrap();
        drop((first, third));
        // The server hears of their end by and by.
        let admitted = async {
            loop {
                let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
                if let Ok(channel) = endpoint.connect().await
                    && other(&channel).await == Code::Unimplemented
                {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        timeout(LIMIT, admitted).await.expect("one more is admitted");
        assert_eq!(other(&second).await, Code::Unimplemented);
    }
}
