//! The dump command: a TCP port that answers one line with the nodes of a job. Shell.
//!
//! [`crate::elasticjob::dump`] decides what a request is and what the answer shows. This room has the
//! connections and their bounds. The port is off unless it is configured. It has neither TLS nor
//! authentication. The configuration makes sure that an operator has decided on purpose to open it to other
//! machines. Its source is protocol 9.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use crate::elasticjob::dump::{REQUEST_BYTES_MAX, requested_job, text};
use crate::elasticjob::path::JobPaths;
use crate::job::JobName;
use crate::runner::nodes::snapshot;
use crate::runner::shared::Shared;
use crate::runner::waiting::becomes;
use crate::telemetry::limiter::{Limiter, Verdict};

/// Connections at once; more wait in the system's queue. The number is far above the number of askers,
/// because silent connections count, too. Each costs a descriptor.
const CONNECTIONS_MAX: usize = 64;
/// Connections that are answered at once. The command is a tool for people, and an answer holds a whole job
/// in memory.
const ANSWERS_MAX: usize = 4;
/// How long a client may take to send its request of one line.
const REQUEST_TIME: Duration = Duration::from_secs(2);
/// How long a request may wait until other requests are answered.
const TURN_TIME: Duration = Duration::from_secs(20);
/// How long the registry may take to answer.
const SNAPSHOT_TIME: Duration = Duration::from_secs(10);
/// How long a client may take to read the answer.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// The pause after the system refused a connection, usually because there are no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Listens and logs the address. Warns if other machines can reach it.
pub async fn bind(address: SocketAddr) -> io::Result<(SocketAddr, TcpListener)> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    if bound.ip().is_loopback() {
        info!(address = %bound, "answering the dump command");
    } else {
        warn!(event = "LISTENER_OPEN", address = %bound, "answering the dump command without authentication: every machine that reaches this address can read all jobs");
    }
    Ok((bound, listener))
}

/// Answers until `stop` is true. An answer in progress is cut off then.
pub async fn serve(listener: TcpListener, shared: Shared, mut stop: watch::Receiver<bool>) {
    let mut connections: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
    let turns = Arc::new(Semaphore::new(ANSWERS_MAX));
    let mut failures = Limiter::default();
    loop {
        tokio::select! {
            biased; // Open connections are served before new ones are accepted.
            () = becomes(&mut stop, true) => return,
            Some(()) = connections.next() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, peer)) => connections.push(converse(stream, peer, shared.clone(), Arc::clone(&turns)).boxed()),
                Err(error) => {
                    if let Verdict::Log(left_out) = failures.admit((), shared.clock.now().mono) {
                        warn!(event = "ACCEPT_FAILED", %error, left_out, "cannot accept a connection for the dump command");
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

/// One request, one answer. Each error closes the connection, as in ElasticJob.
async fn converse(mut stream: TcpStream, peer: SocketAddr, shared: Shared, turns: Arc<Semaphore>) {
    let job = match timeout(REQUEST_TIME, read_line(&mut stream)).await {
        Ok(Ok(line)) => requested_job(&line),
        Ok(Err(error)) => return debug!(%peer, %error, "no dump: the connection broke"),
        Err(_) => return debug!(%peer, "no dump: no request came in time"),
    };
    let Some(job) = job else { return debug!(%peer, "no dump: not a request") };
    // The semaphore is never closed.
    let Ok(Ok(_turn)) = timeout(TURN_TIME, turns.acquire()).await else {
        return warn!(event = "DUMP_FAILED", %peer, job.name = %job, "no dump: other requests are in progress; try again later");
    };
    let text = match timeout(SNAPSHOT_TIME, answer(&job, &shared)).await {
        Ok(Ok(text)) => text,
        Ok(Err(reason)) => return warn!(event = "DUMP_FAILED", %peer, job.name = %job, reason, "no dump"),
        Err(_) => {
            return warn!(event = "DUMP_FAILED", %peer, job.name = %job, "no dump: the registry did not answer within {SNAPSHOT_TIME:?}");
        }
    };
    let written = async {
        stream.write_all(text.as_bytes()).await?;
        stream.shutdown().await
    };
    match timeout(ANSWER_TIME, written).await {
        Ok(Ok(())) => info!(%peer, job.name = %job, bytes = text.len(), "dump"),
        Ok(Err(error)) => debug!(%peer, job.name = %job, %error, "dump cut off: the connection broke"),
        Err(_) => debug!(%peer, job.name = %job, "dump cut off: it was not read in time"),
    }
}

/// Reads up to the end of the line or of the stream. Does not read beyond the length of the longest request.
async fn read_line(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let limit = REQUEST_BYTES_MAX + b"\r\n".len();
    while line.len() < limit && line.last() != Some(&b'\n') {
        match stream.read_u8().await {
            Ok(byte) => line.push(byte),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        }
    }
    Ok(line)
}

async fn answer(job: &JobName, shared: &Shared) -> Result<String, String> {
    let current = shared.current.borrow().clone();
    let session = current.ok_or("there is no session with the registry")?;
    let paths = JobPaths::new(&shared.namespace, job);
    let nodes = snapshot::read(&*session, paths.root()).await.map_err(|error| error.to_string())?;
    Ok(text(paths.root(), &nodes))
}
