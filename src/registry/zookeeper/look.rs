//! Finds a server that serves, before a session connects to it.
//!
//! The operating system may accept connections for a server that is starting or has stopped serving; such a
//! server then sends nothing. A client that greets it waits as long as for a silent server. And after a
//! dropped greeting it is unknown whether the server will later count it as the session's newest connection.
//! So each server first gets a question that concerns no session: the word `srvr`, which ZooKeeper answers by
//! default, on a connection of its own. Such a question can be repeated, and sent to several servers at once,
//! whatever happens to it.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use futures::future::{BoxFuture, join_all};
use futures::stream::FuturesUnordered;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::credentials::Presented;
use super::settings::Checked;
use super::tls::{self, Tls};
use crate::tree::{self, ServerAnswer};

/// The time after which a server without an answer gets a second question beside the first. The second one
/// finds a server that was starting at the first.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// How long to wait for an answer at most: longer than the delay of any usable network.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// The same with TLS. A question costs a server a handshake: many at once would keep a busy server from answering any.
const ASK_AGAIN_TLS: Duration = Duration::from_secs(1);
const ANSWER_LIMIT_TLS: Duration = Duration::from_secs(8);
/// The delay between the questions to two servers of the list. Usually the first server answers within it,
/// and no other server is asked.
const NEXT_SERVER: Duration = Duration::from_millis(20);
/// How much of an answer is read, in bytes. The first lines have all that is needed.
const ANSWER_MAX: u64 = 4_096;

/// A server that serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    /// Where it answered.
    pub(super) address: SocketAddr,
    /// Its name in the list, and its port: certificates and tickets are for names.
    name: (String, u16),
}

impl Server {
    /// Its name or address in the list.
    pub(super) fn host(&self) -> &str {
        &self.name.0
    }

    /// Where the client library connects. With TLS that is the name, which the library resolves anew.
    pub(super) fn endpoint(&self, by_name: bool) -> String {
        let (host, port) = &self.name;
        match by_name {
            false => self.address.to_string(),
            true if host.contains(':') => format!("[{host}]:{port}"),
            true => format!("{host}:{port}"),
        }
    }
}

impl From<SocketAddr> for Server {
    fn from(address: SocketAddr) -> Self {
        Self { address, name: (address.ip().to_string(), address.port()) }
    }
}

/// How often a server is asked for [`ask_each`] at most: a busy machine may be late once.
const QUESTIONS: u32 = 2;
/// An answer that takes less needs no other one.
const QUICK: Duration = Duration::from_millis(100);

/// Why there is no server.
#[derive(Debug)]
pub(super) enum NoServer {
    /// None serves now.
    Silent,
    /// None serves now, and at least one serves read-only.
    ReadOnly,
    /// Every server refuses a certificate, or we refuse its: waiting does not help.
    Refused(String),
}

/// The outcome of a question.
enum Asked {
    Answer(Answer, Server),
    Refused(String),
    Nothing,
}

/// A server's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// The server serves.
    Serving,
    /// The server answers, but not whether it serves: its configuration may forbid the answer.
    Unclear,
    /// The server does not serve.
    NotServing,
    /// The server serves reads only, which is not enough: it has lost the majority.
    ReadOnly,
}

/// A serving server. Bounded in time by the connection timeout.
pub(super) async fn find(checked: &Checked, presented: &Presented) -> Result<Server, NoServer> {
    // Sidecars begin with different servers.
    let mut servers = checked.servers.clone();
    let (random, _) = Uuid::new_v4().as_u64_pair();
    let first = usize::try_from(random).unwrap_or_default().checked_rem(servers.len()).unwrap_or_default();
    servers.rotate_left(first);
    // At most as many for each server as there are pauses within the time limit of an answer.
    let mut asked: FuturesUnordered<BoxFuture<'_, Asked>> = FuturesUnordered::new();
    let (mut refused, mut all_refuse, mut is_read_only) = (None, true, false);
    let ask_again = if presented.tls().is_some() { ASK_AGAIN_TLS } else { ASK_AGAIN };
    let mut over = pin!(sleep(checked.settings.connection_timeout));
    loop {
        let mut later = Duration::ZERO;
        for (host, port) in &servers {
            asked.push(Box::pin(ask_later(later, host, *port, presented.tls())));
            later = later.saturating_add(NEXT_SERVER);
        }
        let mut again = pin!(sleep(ask_again.saturating_add(later)));
        // A server with an unclear answer is the choice if no other server serves for certain.
        let mut maybe = None;
        loop {
            tokio::select! {
                biased;
                answer = asked.next() => match answer {
                    Some(Asked::Answer(Answer::Serving, server)) => return Ok(server),
                    Some(Asked::Answer(Answer::Unclear, server)) => maybe = maybe.or(Some(server)),
                    Some(Asked::Refused(reason)) => refused = Some(reason),
                    Some(Asked::Answer(Answer::ReadOnly, _)) => (all_refuse, is_read_only) = (false, true),
                    Some(Asked::Answer(Answer::NotServing, _) | Asked::Nothing) => all_refuse = false,
                    None => return maybe.ok_or_else(|| nothing(refused.filter(|_| all_refuse), is_read_only)),
                },
                () = &mut over => {
                    return maybe.ok_or_else(|| nothing(refused.filter(|_| all_refuse), is_read_only));
                }
                () = &mut again => break,
            }
        }
        if let Some(server) = maybe {
            return Ok(server);
        }
    }
}

fn nothing(refused: Option<String>, is_read_only: bool) -> NoServer {
    let silent = if is_read_only { NoServer::ReadOnly } else { NoServer::Silent };
    refused.map_or(silent, NoServer::Refused)
}

async fn ask_later(later: Duration, host: &str, port: u16, tls: Option<&Tls>) -> Asked {
    sleep(later).await;
    let limit = if tls.is_some() { ANSWER_LIMIT_TLS } else { ANSWER_LIMIT };
    match timeout(limit, ask(host, port, tls)).await {
        Ok(Ok((answer, server))) => Asked::Answer(meaning(&answer), server),
        Ok(Err(error)) => {
            tracing::trace!(host, port, %error, "a ZooKeeper server does not answer");
            tls::refusal(&error)
                .map_or(Asked::Nothing, |reason| Asked::Refused(format!("{host}:{port}: {reason}")))
        }
        Err(_) => Asked::Nothing,
    }
}

/// Asks each server of the list, all at once, how it is.
pub(super) async fn ask_each(checked: &Checked, presented: &Presented) -> Vec<tree::Server> {
    join_all(checked.servers.iter().map(|(host, port)| async move {
        let answer = ask_some_times(checked, host, *port, presented.tls()).await;
        tree::Server { address: format!("{host}:{port}"), answer }
    }))
    .await
}

/// The quickest of some answers, or the last failure.
async fn ask_some_times(
    checked: &Checked,
    host: &str,
    port: u16,
    tls: Option<&Tls>,
) -> Result<ServerAnswer, String> {
    let now = || checked.clock.as_ref().map(|clock| clock());
    let mut best = Err("it was not asked".to_owned());
    for _ in 0..QUESTIONS {
        let asked = now();
        let told = ask_once(host, port, tls).await;
        let took = now().zip(asked).map(|(now, asked)| now.saturating_sub(asked));
        best = match (told, best) {
            (Ok(version), Ok(ServerAnswer { took: before, .. })) => {
                Ok(ServerAnswer { version, took: took.min(before) })
            }
            (Ok(version), Err(_)) => Ok(ServerAnswer { version, took }),
            (Err(_), Ok(before)) => Ok(before),
            (Err(reason), Err(_)) => Err(reason),
        };
        if best.as_ref().is_ok_and(|answer| answer.took.is_none_or(|took| took < QUICK)) {
            break;
        }
    }
    best
}

/// The version of a server that serves, or the reason for which it does not.
async fn ask_once(host: &str, port: u16, tls: Option<&Tls>) -> Result<Option<(u32, u32)>, String> {
    let limit = if tls.is_some() { ANSWER_LIMIT_TLS } else { ANSWER_LIMIT };
    let closed = || {
        "it closes the connection without an answer, as a server does for an address that has maxClientCnxns connections"
            .to_owned()
    };
    let answer = match timeout(limit, ask(host, port, tls)).await {
        Ok(Ok((answer, _))) => answer,
        Ok(Err(error)) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
            return Err(closed());
        }
        Ok(Err(error)) => return Err(tls::refusal(&error).unwrap_or_else(|| error.to_string())),
        Err(_) => return Err(format!("it does not answer within {limit:?}")),
    };
    match meaning(&answer) {
        Answer::Unclear if answer.is_empty() => Err(closed()),
        Answer::Serving | Answer::Unclear => Ok(version(&answer)),
        Answer::NotServing => Err("it does not serve now: it is starting, or has no majority".to_owned()),
        Answer::ReadOnly => Err("it serves read-only: it has no majority".to_owned()),
    }
}

/// The first two parts of the version in an answer: `Zookeeper version: 3.9.5-…`.
fn version(answer: &[u8]) -> Option<(u32, u32)> {
    let answer = String::from_utf8_lossy(answer);
    let text = answer.lines().find_map(|line| line.strip_prefix("Zookeeper version: "))?;
    let mut parts = text.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

async fn ask(host: &str, port: u16, tls: Option<&Tls>) -> std::io::Result<(Vec<u8>, Server)> {
    let stream = TcpStream::connect((host, port)).await?;
    let server = Server { address: stream.peer_addr()?, name: (host.to_owned(), port) };
    let answer = match tls {
        None => question(stream).await?,
        Some(tls) => question(tls.connect(host, stream).await?).await?,
    };
    Ok((answer, server))
}

async fn question(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<Vec<u8>> {
    stream.write_all(b"srvr").await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    let mut stream = stream.take(ANSWER_MAX);
    while stream.read_buf(&mut answer).await? > 0 && meaning(&answer) == Answer::Unclear {}
    Ok(answer)
}

/// The meaning of an answer, or of its first part.
fn meaning(answer: &[u8]) -> Answer {
    let answer = String::from_utf8_lossy(answer);
    let mode = answer.split_inclusive('\n').find_map(|line| line.strip_prefix("Mode: ")?.strip_suffix('\n'));
    match mode {
        Some("read-only") => Answer::ReadOnly,
        Some(_) => Answer::Serving,
        None if answer.contains("not currently serving") => Answer::NotServing,
        None => Answer::Unclear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_understood_as_soon_as_they_are_clear() {
        assert_eq!(meaning(b"Zookeeper version: 3.9.5\nZxid: 0x0\nMode: follower\nNode"), Answer::Serving);
        assert_eq!(meaning(b"Zxid: 0x0\nMode: standalone\n"), Answer::Serving);
        assert_eq!(meaning(b"Zxid: 0x0\nMode: read-only\nNode count: 5\n"), Answer::ReadOnly);
        assert_eq!(
            meaning(b"This ZooKeeper instance is not currently serving requests\n"),
            Answer::NotServing
        );
        assert_eq!(meaning(b"Zxid: 0x0\nMode: read"), Answer::Unclear);
        assert_eq!(meaning(b"srvr is not executed because it is not in the whitelist.\n"), Answer::Unclear);
        assert_eq!(meaning(b"\xff\xfe"), Answer::Unclear);
    }

    #[test]
    fn the_version_is_read_if_the_server_tells_it() {
        let of = |text: &str| version(text.as_bytes());
        assert_eq!(of("Zookeeper version: 3.9.5-abc, built on 2026\nMode: standalone\n"), Some((3, 9)));
        assert_eq!(of("Zookeeper version: 3.10.0\n"), Some((3, 10)));
        for unknown in ["", "Zookeeper version: \n", "Zookeeper version: 3\n", "srvr is not executed\n"] {
            assert_eq!(of(unknown), None, "{unknown}");
        }
    }
}
