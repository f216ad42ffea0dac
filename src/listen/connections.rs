//! The bounds of connections: their number, and the time that a silent one stays open. All listeners of a
//! sidecar share one bound ([`Connections`]), so that connections cannot take all its descriptors. If several users are served,
//! each has half of it at most. A refused connection is closed at once; the log has a line about that a few times a minute.
//!
//! Beyond the bound a few more connections are accepted for ten seconds each, for health checks only. So a
//! probe sees that the process lives, and an application gets the reason of the refusal. The same holds for connections
//! of users whom the sidecar does not serve ([`Admission`]): they take none of the others' places.

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
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::codegen::http::{Request, Response};
use tonic::transport::server::Connected;
use tower::{Layer, Service};
use tracing::{debug, warn};

use super::admission::{Admission, Decision, Origin};
use super::caller::{Caller, CallerName};
use super::lanes::{Given, Lanes};
use super::limited_log::LimitedLog;
use super::listener::{Incoming, Listener, Socket};
use super::refusal::refusal;
use super::share::{Bound, Taken};
use super::token::is_open;
use crate::config::{Names, Rights};
use crate::reason::Reason;
use crate::runner::clock::Clock;
use crate::telemetry::limiter::PAUSE;

/// The pause after the system refused a connection, because it lacks descriptors or memory. It is short, so
/// that new connections are accepted soon after the lack has ended.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The pause after several such refusals. Each attempt costs time and finds nothing.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The most waiting connections that are closed between two such pauses. A listener's queue rarely has more,
/// and closing so many takes almost no time.
const CLOSED_AT_ONCE_MAX: usize = 64;

/// The number of connections, and how long they may be silent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// The most connections of all listeners. An application needs one, so this is far more than run on a
    /// machine. If the process has fewer descriptors, those run out first, and connections are closed for
    /// that reason.
    pub(super) connections: usize,
    /// Further connections, for health checks only.
    pub(super) for_health: usize,
    /// The time for a connection's first request, which a client sends as soon as it is connected. Also the
    /// life of a connection for health checks only.
    pub(super) first_request: Duration,
}

impl Limits {
    /// The limits of a sidecar.
    pub(super) const OURS: Self =
        Self { connections: 1_024, for_health: 16, first_request: Duration::from_secs(10) };
}

/// The connections of a sidecar. Clones share the bound.
#[derive(Clone)]
pub struct Connections {
    admission: Arc<Admission>,
    /// The names that any caller may use.
    allowed: Names,
    limits: Limits,
    clock: Clock,
    bound: Bound,
    for_health: Bound,
    /// Where those of others than its own user are served. `None`: with all others.
    lanes: Option<Arc<Lanes<Connection>>>,
    log: LimitedLog<Refusal>,
}

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Refusal {
    /// The sidecar does not serve its user, who has this number if it is known. The connection is for health checks only.
    Stranger(Option<u32>),
    /// It is not known which user it is of, but may be at the next attempt.
    Unknown,
    /// Its TLS handshake fails.
    Broken,
    /// The bound is reached. The connection is for health checks only.
    HealthOnly,
    /// The bound for health checks is reached, too.
    Full,
    /// The system lacks descriptors or memory.
    Exhausted,
    /// Another error.
    Failed,
}

fn log_left_out(refusal: Option<&Refusal>, left_out: u64) {
    warn!(
        event = "CONNECTIONS_REFUSED_AGAIN",
        ?refusal,
        left_out,
        "connections refused: and {left_out} more like it in the last {PAUSE:?}"
    );
}

impl Connections {
    /// The bound for one sidecar, which serves these callers, and allows them these names.
    pub(crate) fn new(
        admission: Admission,
        allowed: Names,
        lanes: Arc<Lanes<Connection>>,
        clock: &Clock,
    ) -> Self {
        Self { allowed, lanes: Some(lanes), ..Self::within(Limits::OURS, admission, clock) }
    }

    pub(super) fn within(limits: Limits, admission: Admission, clock: &Clock) -> Self {
        Self {
            allowed: Names::ALL,
            limits,
            clock: clock.clone(),
            bound: Bound::new(limits.connections, admission.serves_several()),
            for_health: Bound::new(limits.for_health, false),
            lanes: None,
            admission: Arc::new(admission),
            log: LimitedLog::new(clock, log_left_out),
        }
    }

    /// The connections of a listener, whose callers have these rights at most. The stream never ends, and has no errors.
    pub(crate) fn of(
        &self,
        listener: Listener,
        rights: Rights,
    ) -> impl Stream<Item = io::Result<Connection>> + use<> {
        let accept = Accept { listener, rights, connections: self.clone(), pause: PAUSE_MIN, spare: None };
        unfold(accept, |mut accept| async move { Some((Ok(accept.next().await), accept)) })
    }

    /// Accepts a connection with these rights at most, or logs why not.
    fn take(&self, socket: Box<dyn Socket>, origin: &Origin, rights: &Rights) -> Option<Connection> {
        let Limits { connections, for_health, first_request } = self.limits;
        let mut caller = Caller::new(CallerName::Unknown, Rights::NONE);
        let stranger = match self.admission.decide(origin) {
            Decision::Admit(admitted) => {
                caller = admitted.limited_to(rights).within(&self.allowed);
                None
            }
            Decision::Refuse(why) => {
                if self.log.admits(&Refusal::Stranger(origin.uid())) {
                    warn!(event = "CONNECTION_REFUSED", "a connection is for health checks only: {why}");
                }
                Some(HealthOnly::Stranger(why.into()))
            }
            Decision::Close(why) => {
                if self.log.admits(&Refusal::Unknown) {
                    warn!(event = "CONNECTION_REFUSED", "a connection is closed at once: {why}");
                }
                return None;
            }
        };
        let taken = match &stranger {
            Some(_) => None,
            None => self.bound.take(caller.name(), 1),
        };
        let (taken, health_only) = match taken {
            Some(taken) => (taken, None),
            None => match self.for_health.take(caller.name(), 1) {
                Some(taken) => (taken, Some(stranger.unwrap_or(HealthOnly::Full(self.bound.each())))),
                None => {
                    if self.log.admits(&Refusal::Full) {
                        warn!(
                            event = "CONNECTION_LIMIT",
                            connections,
                            for_health,
                            "a connection is closed at once: the limits of connections and of those for health checks \
                             are reached; find the program that opens so many"
                        );
                    }
                    return None;
                }
            },
        };
        if matches!(health_only, Some(HealthOnly::Full(_))) && self.log.admits(&Refusal::HealthOnly) {
            warn!(event = "CONNECTION_LIMIT",
                connections,
                for_each_caller = self.bound.each(),
                %caller,
                "a connection is for health checks only: the limit of connections is reached; let each application \
                 share one among its jobs, or find the program that leaves them open"
            );
        }
        let last_received = Arc::new(LastReceived { clock: self.clock.clone(), at: AtomicU64::new(0) });
        last_received.record();
        let info = ConnectionInfo { caller, health_only, has_requested: Arc::default(), last_received };
        let deadline = Some(Box::pin(sleep(first_request)));
        let is_own = self.admission.is_own(origin);
        Some(Connection { socket, info, is_own, deadline, _taken: taken })
    }

    /// Gives a connection of another user to its lane. Returns it if there is none for it.
    fn give(&self, connection: Connection) -> Option<Connection> {
        let Some(lanes) = self.lanes.as_ref().filter(|_| !connection.is_own) else { return Some(connection) };
        let caller = connection.info.caller.name().clone();
        match lanes.give(&caller, connection) {
            Given::Taken => None,
            Given::Back(connection) => Some(connection),
            Given::Closed => {
                if self.log.admits(&Refusal::Full) {
                    warn!(
                        event = "CONNECTION_LIMIT",
                        "a connection is closed at once: too many of its caller wait to be served"
                    );
                }
                None
            }
        }
    }
}

struct Accept {
    listener: Listener,
    rights: Rights,
    connections: Connections,
    pause: Duration,
    /// A descriptor in reserve. It is closed when the process has no other, so that a waiting connection can
    /// be accepted and closed.
    spare: Option<File>,
}

impl Accept {
    async fn next(&mut self) -> Connection {
        loop {
            if self.spare.is_none() {
                self.spare = File::open("/dev/null").ok();
            }
            match self.listener.accept().await {
                Ok(incoming) => {
                    self.pause = PAUSE_MIN;
                    match incoming {
                        Incoming::Opened(socket, origin) => {
                            let taken = self.connections.take(socket, &origin, &self.rights);
                            if let Some(connection) = taken.and_then(|taken| self.connections.give(taken)) {
                                return connection;
                            }
                        }
                        Incoming::Broken(why) => {
                            if self.connections.log.admits(&Refusal::Broken) {
                                warn!(event = "CONNECTION_REFUSED", "a connection is closed at once: {why}");
                            }
                        }
                    }
                }
                Err(error) if is_of_the_connection(&error) => debug!(%error, "a connection broke at once"),
                Err(error) => {
                    self.warn(&error);
                    if is_exhausted(&error) {
                        self.close_waiting();
                    }
                    sleep(self.pause).await;
                    self.pause = self.pause.saturating_mul(2).min(PAUSE_MAX);
                }
            }
        }
    }

    fn warn(&self, error: &io::Error) {
        if !is_exhausted(error) {
            if self.connections.log.admits(&Refusal::Failed) {
                warn!(event = "ACCEPT_FAILED", %error, "cannot accept a connection; trying again");
            }
        } else if self.connections.log.admits(&Refusal::Exhausted) {
            let descriptors_max = getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft);
            warn!(event = "DESCRIPTORS_EXHAUSTED",
                %error,
                descriptors_max,
                "connections are closed at once: the system gives no more descriptors; raise the limit (`ulimit -n`, \
                 `LimitNOFILE=` of systemd), or find the program that leaves connections open"
            );
        }
    }

    /// Closes the waiting connections with the descriptor in reserve. Their clients would wait for an answer
    /// otherwise.
    fn close_waiting(&mut self) {
        if self.spare.take().is_none() {
            return;
        }
        for _ in 0..CLOSED_AT_ONCE_MAX {
            let Some(Ok(())) = self.listener.close_next().now_or_never() else { return };
        }
    }
}

/// Whether the system lacks the means for a connection.
fn is_exhausted(error: &io::Error) -> bool {
    let number = error.raw_os_error().map(Errno::from_raw);
    matches!(number, Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM))
}

/// Whether only this connection failed, so that the next one can be accepted.
fn is_of_the_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

/// An accepted connection. It counts until it is dropped.
pub(crate) struct Connection {
    socket: Box<dyn Socket>,
    info: ConnectionInfo,
    /// Whether it is of the sidecar's own user or of root.
    is_own: bool,
    /// When the connection is closed without a request. `None`: it has brought one.
    deadline: Option<Pin<Box<Sleep>>>,
    _taken: Taken,
}

/// Why a connection is for health checks only.
#[derive(Debug, Clone)]
enum HealthOnly {
    /// There are too many connections: of all callers, or of this one, which may have so many.
    Full(usize),
    /// The sidecar does not serve its user, with the reason.
    Stranger(Arc<str>),
}

impl HealthOnly {
    /// The status of all other calls.
    fn refusal(&self) -> Status {
        match self {
            Self::Full(each) => refusal(
                Reason::TooMany,
                format!(
                    "this sidecar has as many connections as it takes, of all callers, or of this one, which may have {each}; close \
                     some (one serves all jobs of a process), and connect again"
                ),
            ),
            Self::Stranger(why) => refusal(Reason::PeerRefused, why.to_string()),
        }
    }
}

/// The connection of a call, for the services.
#[derive(Clone)]
pub(crate) struct ConnectionInfo {
    caller: Caller,
    health_only: Option<HealthOnly>,
    has_requested: Arc<AtomicBool>,
    last_received: Arc<LastReceived>,
}

impl ConnectionInfo {
    /// The time since data last arrived on the connection.
    pub(crate) fn silent_for(&self) -> Duration {
        let at = Duration::from_millis(self.last_received.at.load(Ordering::Relaxed));
        self.last_received.clock.now().mono.saturating_sub(at)
    }
}

/// When data last arrived on a connection.
struct LastReceived {
    clock: Clock,
    /// Milliseconds of the monotonic clock.
    at: AtomicU64,
}

impl LastReceived {
    fn record(&self) {
        let now = u64::try_from(self.clock.now().mono.as_millis()).unwrap_or(u64::MAX);
        self.at.store(now, Ordering::Relaxed);
    }
}

impl Connected for Connection {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        self.info.clone()
    }
}

impl Connection {
    /// Fails when the connection's time is over.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let Some(deadline) = &mut self.deadline else { return Ok(()) };
        if self.info.health_only.is_none() && self.info.has_requested.load(Ordering::Relaxed) {
            self.deadline = None;
            return Ok(());
        }
        match deadline.as_mut().poll(context) {
            Poll::Pending => Ok(()),
            Poll::Ready(()) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                match self.info.health_only {
                    Some(_) => "the connection was for health only, and its time is over",
                    None => "no request came in time",
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
            self.info.last_received.record();
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

/// The layer that records that a connection has brought a request, and adds the caller ([`Caller`]) to it. On a
/// connection for health checks it refuses all other calls.
#[derive(Debug, Clone, Copy, Default)]
pub struct Receive;

impl<S> Layer<S> for Receive {
    type Service = Received<S>;

    fn layer(&self, inner: S) -> Received<S> {
        Received { inner }
    }
}

/// A service behind this layer.
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

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if let Some(info) = request.extensions().get::<ConnectionInfo>() {
            info.has_requested.store(true, Ordering::Relaxed);
            if let Some(health_only) = &info.health_only
                && !is_open(request.uri().path())
            {
                return futures::future::ready(Ok(health_only.refusal().into_http())).boxed();
            }
            let caller = info.caller.clone();
            request.extensions_mut().insert(caller);
        }
        self.inner.call(request).boxed()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::timeout;
    use tonic::transport::{Channel, Endpoint, Server};
    use tonic::{Code, Status};
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;

    use super::super::peer::Unknown;
    use super::*;
    use crate::proto::WatchAssignmentsRequest;
    use crate::proto::assignment_service_client::AssignmentServiceClient;

    /// Far longer than any step here takes.
    const LIMIT: Duration = Duration::from_secs(30);

    /// A server within these limits that answers health checks only.
    async fn server(limits: Limits) -> String {
        let admission = Admission::new(&[], nix::unistd::geteuid().as_raw(), false);
        let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.endpoint().unwrap().replace("http://", "");
        let (_, health) = tonic_health::server::health_reporter();
        let incoming = Connections::within(limits, admission, &Clock::start()).of(listener, Rights::ALL);
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

    /// The status of a call that is not a health check. The server does not have its service.
    async fn other(channel: &Channel) -> Code {
        let request = WatchAssignmentsRequest::default();
        let mut client = AssignmentServiceClient::new(channel.clone());
        timeout(LIMIT, client.watch_assignments(request)).await.unwrap().unwrap_err().code()
    }

    /// Ends when the other side has closed the connection.
    async fn closed(mut stream: TcpStream) {
        let mut bytes = Vec::new();
        let _ = timeout(LIMIT, stream.read_to_end(&mut bytes)).await.expect("it is closed");
    }

    #[tokio::test]
    async fn a_connection_without_a_request_is_closed_and_one_with_a_request_stays() {
        let limits = Limits { first_request: Duration::from_secs(2), ..Limits::OURS };
        let address = server(limits).await;
        let request = HealthCheckRequest::default();
        let mut watch = HealthClient::new(connect(&address).await).watch(request).await.unwrap().into_inner();
        timeout(LIMIT, watch.message()).await.unwrap().unwrap().expect("the state of health");
        let silent = TcpStream::connect(&address).await.unwrap();
        // Bytes are no request.
        let mut without_request = TcpStream::connect(&address).await.unwrap();
        without_request.write_all(b"PRI * HTTP/2.0\r\n").await.unwrap();
        futures::future::join(closed(silent), closed(without_request)).await;
        // It is older than both of them.
        assert!(watch.message().now_or_never().is_none(), "the connection with a request was closed");
    }

    #[tokio::test]
    async fn beyond_the_bound_only_health_is_answered_until_a_connection_ends() {
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
        // The server notices their end some time later.
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

    #[tokio::test]
    async fn se_1_a_peer_that_is_not_served_gets_health_only_and_takes_no_place_of_others() {
        let limits = Limits { connections: 1, for_health: 1, first_request: LIMIT };
        let connections = Connections::within(limits, Admission::new(&[], 1, false), &Clock::start());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let of_nobody = connections.clone();
        let incoming = futures::stream::once(async move {
            let (stream, _) = listener.accept().await?;
            Ok::<_, io::Error>(
                of_nobody
                    .take(Box::new(stream), &Origin::User(Err(Unknown::NotMapped)), &Rights::ALL)
                    .unwrap(),
            )
        });
        let (_, service) = tonic_health::server::health_reporter();
        let serving = Server::builder().layer(Receive).add_service(service).serve_with_incoming(incoming);
        #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
        tokio::spawn(serving);
        let channel = connect(&address).await;
        health(&channel).await.unwrap();
        assert_eq!(other(&channel).await, Code::Unauthenticated);
        assert!(connections.bound.take(&CallerName::Unknown, 1).is_some());
        assert!(connections.for_health.take(&CallerName::Unknown, 1).is_none());
    }
}
