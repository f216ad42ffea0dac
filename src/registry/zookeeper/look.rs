//! Finds a server that serves, before a session connects to it.
//!
//! The operating system may accept connections for a server that is starting or has stopped serving; such a
//! server then sends nothing. A client that greets it waits as long as for a silent server. And after a
//! dropped greeting it is unknown whether the server will later count it as the session's newest connection.
//! So each server first gets a question that concerns no session: the word `srvr`, which ZooKeeper answers by
//! default, on a connection of its own. Such a question can be repeated, and sent to several servers at once,
//! whatever happens to it.

use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::settings::Checked;

/// The time after which a server without an answer gets a second question beside the first. The second one
/// finds a server that was starting at the first.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// How long to wait for an answer at most: longer than the delay of any usable network.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// The delay between the questions to two servers of the list. Usually the first server answers within it,
/// and no other server is asked.
const NEXT_SERVER: Duration = Duration::from_millis(20);
/// How much of an answer is read, in bytes. The first lines have all that is needed.
const ANSWER_MAX: u64 = 4_096;

/// A server's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// The server serves.
    Serving,
    /// The server answers, but not whether it serves: its configuration may forbid the answer.
    Unclear,
    /// The server does not serve, or nothing answers.
    NotServing,
}

/// A serving server. `None`: there is none now. Bounded in time by the connection timeout.
pub(super) async fn find(checked: &Checked) -> Option<SocketAddr> {
    // Sidecars begin with different servers.
    let mut servers = checked.servers.clone();
    let (random, _) = Uuid::new_v4().as_u64_pair();
    let first = usize::try_from(random).unwrap_or_default().checked_rem(servers.len()).unwrap_or_default();
    servers.rotate_left(first);
    // At most as many for each server as there are pauses within the time limit of an answer.
    let mut asked: FuturesUnordered<BoxFuture<'_, (Answer, Option<SocketAddr>)>> = FuturesUnordered::new();
    let mut over = pin!(sleep(checked.settings.connection_timeout));
    loop {
        let mut later = Duration::ZERO;
        for (host, port) in &servers {
            asked.push(Box::pin(ask_later(later, host, *port)));
            later = later.saturating_add(NEXT_SERVER);
        }
        let mut again = pin!(sleep(ASK_AGAIN.saturating_add(later)));
        // A server with an unclear answer is the choice if no other server serves for certain.
        let mut maybe = None;
        loop {
            tokio::select! {
                biased;
                answer = asked.next() => match answer {
                    Some((Answer::Serving, server @ Some(_))) => return server,
                    Some((Answer::Unclear, server)) => maybe = maybe.or(server),
                    Some(_) => {}
                    None => return maybe,
                },
                () = &mut over => return maybe,
                () = &mut again => break,
            }
        }
        if maybe.is_some() {
            return maybe;
        }
    }
}

async fn ask_later(later: Duration, host: &str, port: u16) -> (Answer, Option<SocketAddr>) {
    sleep(later).await;
    match timeout(ANSWER_LIMIT, ask(host, port)).await {
        Ok(Ok((answer, server))) => (answer, Some(server)),
        Ok(Err(error)) => {
            tracing::trace!(host, port, %error, "a ZooKeeper server does not answer");
            (Answer::NotServing, None)
        }
        Err(_) => (Answer::NotServing, None),
    }
}

async fn ask(host: &str, port: u16) -> std::io::Result<(Answer, SocketAddr)> {
    let mut stream = TcpStream::connect((host, port)).await?;
    let server = stream.peer_addr()?;
    stream.write_all(b"srvr").await?;
    let mut answer = Vec::new();
    let mut stream = stream.take(ANSWER_MAX);
    while stream.read_buf(&mut answer).await? > 0 && meaning(&answer) == Answer::Unclear {}
    Ok((meaning(&answer), server))
}

/// The meaning of an answer, or of its first part.
fn meaning(answer: &[u8]) -> Answer {
    let answer = String::from_utf8_lossy(answer);
    let mode = answer.split_inclusive('\n').find_map(|line| line.strip_prefix("Mode: ")?.strip_suffix('\n'));
    match mode {
        Some("read-only") => Answer::NotServing,
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
        assert_eq!(meaning(b"Zxid: 0x0\nMode: read-only\nNode count: 5\n"), Answer::NotServing);
        assert_eq!(
            meaning(b"This ZooKeeper instance is not currently serving requests\n"),
            Answer::NotServing
        );
        assert_eq!(meaning(b"Zxid: 0x0\nMode: read"), Answer::Unclear);
        assert_eq!(meaning(b"srvr is not executed because it is not in the whitelist.\n"), Answer::Unclear);
        assert_eq!(meaning(b"\xff\xfe"), Answer::Unclear);
    }
}
