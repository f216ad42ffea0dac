//! The port for probes and for Prometheus: `/livez`, `/readyz`, `/startupz`, `/metrics`, `/version`. Shell.
//!
//! [`guard`] decides which requests are answered, `answers` has the answer of each path; this file has the connections and their bounds. The port
//! is off unless it is configured. It has neither TLS nor authentication, and nothing that changes anything; browsers are kept out
//! all the same, because the names of jobs are nobody else's business.
//!
//! Must not write to the registry, nor ask it for anything.

mod answers;
mod guard;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

pub use self::answers::Answers;
use self::guard::Hosts;
use crate::runner::clock::Clock;
use crate::runner::waiting::becomes;
use crate::telemetry::limiter::{Limiter, Verdict};

/// Connections at once; more wait in the system's queue. Each answers one request.
const CONNECTIONS_MAX: usize = 32;
/// How long a client may take to send a request.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// How long a connection may last: the request, and the reading of an answer of some megabytes.
const CONNECTION_TIME: Duration = Duration::from_secs(15);
/// The largest head of a request.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// The pause after the system refused a connection, usually because there are no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Listens and logs the address. Warns if other machines can reach it.
pub async fn bind(address: SocketAddr) -> io::Result<(SocketAddr, TcpListener)> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    if bound.ip().is_loopback() {
        info!(address = %bound, "answering probes and scrapes");
    } else {
        warn!(event = "LISTENER_OPEN", address = %bound, "answering probes and scrapes without authentication: every machine that reaches this address can read the names and numbers of jobs");
    }
    Ok((bound, listener))
}

/// Answers until `stop` is true. `hosts`: further names by which clients may call this machine.
pub async fn serve(
    listener: TcpListener,
    answers: Answers,
    hosts: Vec<String>,
    clock: Clock,
    mut stop: watch::Receiver<bool>,
) {
    let mut connections: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
    let hosts = Arc::new(Hosts::new(hosts));
    let mut failures = Limiter::default();
    loop {
        tokio::select! {
            biased; // Open connections are served before new ones are accepted.
            () = becomes(&mut stop, true) => return,
            Some(()) = connections.next() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, peer)) => connections.push(converse(stream, peer, answers.clone(), Arc::clone(&hosts)).boxed()),
                Err(error) => {
                    if let Verdict::Log(left_out) = failures.admit((), clock.now().mono) {
                        warn!(event = "ACCEPT_FAILED", %error, left_out, "cannot accept a connection for probes and scrapes");
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

/// One request, one answer.
async fn converse(stream: TcpStream, peer: SocketAddr, answers: Answers, hosts: Arc<Hosts>) {
    let service = service_fn(move |request| {
        let (answers, hosts) = (answers.clone(), Arc::clone(&hosts));
        async move {
            Ok::<_, Infallible>(match guard::check(&request, &hosts) {
                Ok(()) => answers.answer(request.uri(), request.headers()).await,
                Err(refusal) => refusal.into_response(),
            })
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIME)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(CONNECTION_TIME, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%peer, %error, "a request for a probe or a scrape failed"),
        Err(_) => debug!(%peer, "a probe or a scrape was not read in time"),
    }
}
