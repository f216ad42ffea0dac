//! Looks which server serves, before a session is brought to it.
//!
//! A server that is starting, or has stopped serving, may have its connections accepted by the operating system, and then
//! says nothing. A client that greets it waits for as long as for a server that has fallen silent; and who breaks such a
//! greeting off does not know whether the server will take it for the session's newest one after all. So each server is
//! first asked something that concerns no session: the word `srvr`, which ZooKeeper answers by default, on a connection
//! of its own. Such a question can be asked again, and asked of several servers at once, whatever becomes of it.

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

/// How long a server may take to answer before it is asked once more, beside the first time. A server that was starting when
/// it was asked first is found by the second one.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// How long an answer is waited for at most: longer than any network takes that can be worked with.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// How much later the second server of a list is asked than the first, and the third than the second: the first one answers
/// within it, usually, and is the only one that is asked.
const NEXT_SERVER: Duration = Duration::from_millis(20);
/// How much of an answer is read, in bytes: what is looked for is at its beginning or within its few lines.
const ANSWER_MAX: u64 = 4_096;

/// The answer of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Says {
    /// It serves.
    Serves,
    /// It answers, but does not say whether it serves: it may have been told not to answer such questions.
    Something,
    /// It does not serve, or there is nobody.
    Not,
}

/// A server that serves. `None`: there is none now. Bounded in time by the connection timeout.
pub(super) async fn find(checked: &Checked) -> Option<SocketAddr> {
    // Sidecars begin with different servers.
    let mut servers = checked.servers.clone();
    let (random, _) = Uuid::new_v4().as_u64_pair();
    let first = usize::try_from(random).unwrap_or_default().checked_rem(servers.len()).unwrap_or_default();
    servers.rotate_left(first);
    // At most as many for each server as there are pauses in the time for which an answer is waited for.
    let mut asked: FuturesUnordered<BoxFuture<'_, (Says, Option<SocketAddr>)>> = FuturesUnordered::new();
    let mut over = pin!(sleep(checked.settings.connection_timeout));
    loop {
        let mut later = Duration::ZERO;
        for (host, port) in &servers {
            asked.push(Box::pin(ask_later(later, host, *port)));
            later = later.saturating_add(NEXT_SERVER);
        }
        let mut again = pin!(sleep(ASK_AGAIN.saturating_add(later)));
        // One that may serve is taken if no other one says that it does.
        let mut maybe = None;
        loop {
            tokio::select! {
                biased;
                answer = asked.next() => match answer {
                    Some((Says::Serves, server @ Some(_))) => return server,
                    Some((Says::Something, server)) => maybe = maybe.or(server),
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

async fn ask_later(later: Duration, host: &str, port: u16) -> (Says, Option<SocketAddr>) {
    sleep(later).await;
    match timeout(ANSWER_LIMIT, ask(host, port)).await {
        Ok(Ok((says, server))) => (says, Some(server)),
        Ok(Err(error)) => {
            tracing::trace!(host, port, %error, "a ZooKeeper server does not answer");
            (Says::Not, None)
        }
        Err(_) => (Says::Not, None),
    }
}

async fn ask(host: &str, port: u16) -> std::io::Result<(Says, SocketAddr)> {
    let mut stream = TcpStream::connect((host, port)).await?;
    let server = stream.peer_addr()?;
    stream.write_all(b"srvr").await?;
    let mut answer = Vec::new();
    let mut stream = stream.take(ANSWER_MAX);
    while stream.read_buf(&mut answer).await? > 0 && says(&answer) == Says::Something {}
    Ok((says(&answer), server))
}

/// What an answer says, or as much of it as has come.
fn says(answer: &[u8]) -> Says {
    let answer = String::from_utf8_lossy(answer);
    let mode = answer.split_inclusive('\n').find_map(|line| line.strip_prefix("Mode: ")?.strip_suffix('\n'));
    match mode {
        Some("read-only") => Says::Not,
        Some(_) => Says::Serves,
        None if answer.contains("not currently serving") => Says::Not,
        None => Says::Something,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_understood_as_soon_as_they_are_clear() {
        assert_eq!(says(b"Zookeeper version: 3.9.5\nZxid: 0x0\nMode: follower\nNode"), Says::Serves);
        assert_eq!(says(b"Zxid: 0x0\nMode: standalone\n"), Says::Serves);
        assert_eq!(says(b"Zxid: 0x0\nMode: read-only\nNode count: 5\n"), Says::Not);
        assert_eq!(says(b"This ZooKeeper instance is not currently serving requests\n"), Says::Not);
        assert_eq!(says(b"Zxid: 0x0\nMode: read"), Says::Something);
        assert_eq!(says(b"srvr is not executed because it is not in the whitelist.\n"), Says::Something);
        assert_eq!(says(b"\xff\xfe"), Says::Something);
    }
}
