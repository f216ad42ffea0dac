//! The dump command: a TCP port that shows the nodes of a job to whoever asks with one line. Shell.
//!
//! What a request is and what is shown is for [`crate::elasticjob::dump`] to say; here are the connections and their
//! bounds. Off unless it is configured. There is neither TLS nor authentication in it; the configuration sees to it that
//! leaving this machine was decided on purpose. Its source is protocol 9.

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
use crate::runner::shared::Shared;
use crate::runner::{session, snapshot};
use crate::telemetry::limiter::{Limiter, Verdict};

/// Connections at once; more wait in the system's queue. Far more than ask, because those who say nothing count, too; they
/// cost a descriptor each.
const CONNECTIONS_MAX: usize = 64;
/// Of these are answered at once. It is a tool for people, and an answer is a whole job in memory.
const ANSWERS_MAX: usize = 4;
/// How long a client may take to ask; it has one word to say.
const REQUEST_TIME: Duration = Duration::from_secs(2);
/// How long a client may wait for the answers of others.
const TURN_TIME: Duration = Duration::from_secs(20);
/// How long the registry may take.
const SNAPSHOT_TIME: Duration = Duration::from_secs(10);
/// How long a client may take to read the answer.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// The pause after the system refused a connection, usually because there are no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Listens. Says so in the log, and louder if other machines can reach it.
pub async fn bind(address: SocketAddr) -> io::Result<(SocketAddr, TcpListener)> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    if bound.ip().is_loopback() {
        info!(address = %bound, "answering the dump command");
    } else {
        warn!(address = %bound, "answering the dump command of anybody who reaches this address, without authentication");
    }
    Ok((bound, listener))
}

/// Answers until `stop` is true; what is being answered then is cut off.
pub async fn serve(listener: TcpListener, shared: Shared, mut stop: watch::Receiver<bool>) {
    let mut connections: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
    let turns = Arc::new(Semaphore::new(ANSWERS_MAX));
    let mut failures = Limiter::default();
    loop {
        tokio::select! {
            biased; // Who is connected is answered before others are let in.
            () = session::becomes(&mut stop, true) => return,
            Some(()) = connections.next() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, peer)) => connections.push(converse(stream, peer, shared.clone(), Arc::clone(&turns)).boxed()),
                Err(error) => {
                    if let Verdict::Tell(left_out) = failures.admit((), shared.clock.now().mono) {
                        warn!(%error, left_out, "cannot accept a connection for the dump command");
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

/// One request, one answer. Whatever goes wrong closes the connection, as in ElasticJob.
async fn converse(mut stream: TcpStream, peer: SocketAddr, shared: Shared, turns: Arc<Semaphore>) {
    let job = match timeout(REQUEST_TIME, read_line(&mut stream)).await {
        Ok(Ok(line)) => requested_job(&line),
        Ok(Err(error)) => return debug!(%peer, %error, "no dump: the connection broke"),
        Err(_) => return debug!(%peer, "no dump: no request came in time"),
    };
    let Some(job) = job else { return debug!(%peer, "no dump: not a request") };
    // The semaphore is never closed.
    let Ok(Ok(_turn)) = timeout(TURN_TIME, turns.acquire()).await else {
        return warn!(%peer, job.name = %job, "no dump: others are answered; ask again later");
    };
    let text = match timeout(SNAPSHOT_TIME, answer(&job, &shared)).await {
        Ok(Ok(text)) => text,
        Ok(Err(reason)) => return warn!(%peer, job.name = %job, reason, "no dump"),
        Err(_) => {
            return warn!(%peer, job.name = %job, "no dump: the registry did not answer within {SNAPSHOT_TIME:?}");
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

/// The text up to the end of its line or of the stream; what is too long for a request is left unread.
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
