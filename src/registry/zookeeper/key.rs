//! The id and the password of a session, so that a later process can go on with it.
//!
//! The client library attaches to a session only with what it was given itself at an earlier connection, and shows the
//! password to nobody. So both are said in the protocol's own handshake, over a connection with ourselves on the loopback
//! interface: to learn a password, the client is let attach to the session there; to give it one, it is answered as
//! a server would that has just opened this session. No server takes part, and neither connection lives on.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use uuid::Uuid;
use zookeeper_client as zk;

use super::connection::Connection;
use super::settings::Checked;
use crate::registry::SessionKey;
use crate::tree::SessionId;

/// How long such a conversation may take; it needs no network.
const LIMIT: Duration = Duration::from_secs(5);
/// The largest message that is taken, in bytes: numbers, and a password of 16.
const MESSAGE_MAX: usize = 256;

/// What a client says first.
struct Greeting {
    timeout_ms: i32,
    session: i64,
    password: Vec<u8>,
}

/// The key of a session. `None`: it could not be learnt, which is logged.
pub(super) async fn of(
    checked: &Checked,
    session: &zk::SessionInfo,
    session_timeout: Duration,
) -> Option<SessionKey> {
    let learnt = timeout(LIMIT, learn(checked, session)).await;
    let learnt = learnt.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
    match learnt {
        Ok(password) => {
            Some(SessionKey { id: SessionId(session.id().0), password, timeout: session_timeout })
        }
        Err(error) => {
            tracing::warn!(session = %session.id(), %error, "the session's password cannot be learnt");
            None
        }
    }
}

async fn learn(checked: &Checked, session: &zk::SessionInfo) -> std::io::Result<Vec<u8>> {
    let (listener, address, here) = listen(checked, checked.settings.session_timeout).await?;
    let greeting = async {
        loop {
            let (mut stream, _) = listener.accept().await?;
            // Anybody on this machine can connect; only the client knows the session's id and comes for it.
            match greeted(&mut stream).await {
                Ok(greeting) if greeting.session == session.id().0 => return Ok(greeting.password),
                Ok(_) | Err(_) => {}
            }
        }
    };
    tokio::select! {
        greeting = greeting => greeting,
        // It is not answered, so it cannot succeed.
        failed = Connection::greet(&here, address, Some(session.clone())) => {
            let why = failed.err().map(|error| error.to_string()).unwrap_or_default();
            Err(std::io::Error::other(why))
        }
    }
}

/// What the client needs to attach to a session.
pub(super) async fn info(checked: &Checked, key: &SessionKey) -> Result<zk::SessionInfo, zk::Error> {
    let given = timeout(LIMIT, give(checked, key)).await;
    given.unwrap_or(Err(zk::Error::Timeout))
}

async fn give(checked: &Checked, key: &SessionKey) -> Result<zk::SessionInfo, zk::Error> {
    // Anybody on this machine can connect; only the client knows for which timeout it asks.
    let (_, random) = Uuid::new_v4().as_u64_pair();
    let secret = Duration::from_millis((random & 0x3fff_ffff) + 0x1000_0000);
    let (listener, address, here) = listen(checked, secret).await.map_err(|error| failed(&error))?;
    let asked = i32::try_from(secret.as_millis()).unwrap_or(i32::MAX);
    let answer = async {
        loop {
            let (mut stream, _) = listener.accept().await?;
            match greeted(&mut stream).await {
                Ok(greeting) if greeting.timeout_ms == asked => {
                    stream.write_all(&framed(&welcome(key))).await?;
                    // The client believes it when its first ping is answered, too.
                    frame(&mut stream).await?;
                    stream.write_all(&framed(&pong())).await?;
                    return Ok::<_, std::io::Error>(stream);
                }
                Ok(_) | Err(_) => {}
            }
        }
    };
    let connecting = Connection::greet(&here, address, None);
    let (answered, connected) = tokio::join!(answer, connecting);
    // The connection has to stay open until the client has read the answer.
    answered.map_err(|error| failed(&error))?;
    let connection = connected?;
    let info = connection.link.client.session().clone();
    connection.cut().await;
    Ok(info)
}

/// A listener, its address, and settings for a client that comes to it.
async fn listen(
    checked: &Checked,
    session_timeout: Duration,
) -> std::io::Result<(TcpListener, SocketAddr, Checked)> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    let mut here = checked.clone();
    // Our password for the servers is none of this.
    here.settings.digest = None;
    here.settings.session_timeout = session_timeout;
    Ok((listener, address, here))
}

fn invalid() -> std::io::Error {
    std::io::ErrorKind::InvalidData.into()
}

/// Reads a message: its length, and so many bytes.
async fn frame(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let length = usize::try_from(stream.read_i32().await?).map_err(|_| invalid())?;
    if length > MESSAGE_MAX {
        return Err(invalid());
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = i32::try_from(message.len()).unwrap_or(i32::MAX);
    [&length.to_be_bytes(), message].concat()
}

/// Reads a greeting: the protocol's version, the last transaction seen, the timeout, the session, the password.
async fn greeted(stream: &mut TcpStream) -> std::io::Result<Greeting> {
    let message = frame(stream).await?;
    let mut rest = message.as_slice();
    rest.read_i32().await?;
    rest.read_i64().await?;
    let timeout_ms = rest.read_i32().await?;
    let session = rest.read_i64().await?;
    let length = usize::try_from(rest.read_i32().await?).map_err(|_| invalid())?;
    let password = rest.get(..length).ok_or_else(invalid)?.to_vec();
    Ok(Greeting { timeout_ms, session, password })
}

/// A server's answer to a greeting: the protocol's version, the timeout, the session, the password, and that it is no
/// read-only server.
fn welcome(key: &SessionKey) -> Vec<u8> {
    let timeout_ms = i32::try_from(key.timeout.as_millis()).unwrap_or(i32::MAX);
    let length = i32::try_from(key.password.len()).unwrap_or(i32::MAX);
    let mut message = Vec::new();
    message.extend_from_slice(&0_i32.to_be_bytes());
    message.extend_from_slice(&timeout_ms.to_be_bytes());
    message.extend_from_slice(&key.id.0.to_be_bytes());
    message.extend_from_slice(&length.to_be_bytes());
    message.extend_from_slice(&key.password);
    message.push(0);
    message
}

/// A server's answer to a ping: the number that all pings have, the last transaction, no error.
fn pong() -> Vec<u8> {
    let (number, transaction, error) = (-2_i32, 0_i64, 0_i32);
    [&number.to_be_bytes()[..], &transaction.to_be_bytes(), &error.to_be_bytes()].concat()
}

fn failed(error: &std::io::Error) -> zk::Error {
    zk::Error::UnexpectedError(error.to_string())
}
