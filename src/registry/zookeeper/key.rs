//! The id and the password of a session, with which a later process can resume it.
//!
//! The client library attaches to a session only with values from an earlier connection of its own, and never
//! shows the password. So both directions use the protocol's own handshake, over a connection of this process
//! with itself on the loopback interface. To read a password, the client attaches to the session there. To
//! set one, the client gets the answer of a server that has just opened this session. No server takes part,
//! and both connections are closed.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;
use uuid::Uuid;
use zookeeper_client as zk;

use super::connection::{Connection, OpenError};
use super::settings::Checked;
use crate::registry::SessionKey;
use crate::tree::SessionId;

/// How long such a handshake may take. It needs no network.
const LIMIT: Duration = Duration::from_secs(5);
/// The largest accepted message, in bytes: numbers, and a password of 16.
const MESSAGE_MAX: usize = 256;

/// The client's first message.
struct Greeting {
    timeout_ms: i32,
    session: i64,
    password: Vec<u8>,
}

/// The key of a session. `None`: it could not be read, which is logged.
pub(super) async fn of(
    checked: &Checked,
    session: &zk::SessionInfo,
    session_timeout: Duration,
) -> Option<SessionKey> {
    let password = timeout(LIMIT, read_password(checked, session)).await;
    let password = password.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
    match password {
        Ok(password) => {
            Some(SessionKey { id: SessionId(session.id().0), password, timeout: session_timeout })
        }
        Err(error) => {
            tracing::warn!(event = "SESSION_NOT_KEPT", session = %session.id(), %error, "the session's password cannot be read");
            None
        }
    }
}

async fn read_password(checked: &Checked, session: &zk::SessionInfo) -> std::io::Result<Vec<u8>> {
    let (listener, address, here) = listen(checked, checked.settings.session_timeout).await?;
    let server = address.into();
    let greeting = async {
        loop {
            let (mut stream, _) = listener.accept().await?;
            // Any process on this machine can connect. Only the client knows the session's id and sends it.
            match greeted(&mut stream).await {
                Ok(greeting) if greeting.session == session.id().0 => return Ok(greeting.password),
                Ok(_) | Err(_) => {}
            }
        }
    };
    tokio::select! {
        greeting = greeting => greeting,
        // This attempt gets no answer, so it cannot succeed.
        failed = Connection::greet(&here, &server, Some(session.clone())) => {
            let why = failed.err().map(|error| error.to_string()).unwrap_or_default();
            Err(std::io::Error::other(why))
        }
    }
}

/// The value with which the client attaches to a session.
pub(super) async fn info(checked: &Checked, key: &SessionKey) -> Result<zk::SessionInfo, zk::Error> {
    let given = timeout(LIMIT, give(checked, key)).await;
    given.unwrap_or(Err(zk::Error::Timeout))
}

async fn give(checked: &Checked, key: &SessionKey) -> Result<zk::SessionInfo, zk::Error> {
    // Any process on this machine can connect. Only the client knows the requested timeout.
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
                    // The client accepts the session only after an answer to its first ping.
                    frame(&mut stream).await?;
                    stream.write_all(&framed(&pong())).await?;
                    return Ok::<_, std::io::Error>(stream);
                }
                Ok(_) | Err(_) => {}
            }
        }
    };
    let server = address.into();
    let connecting = Connection::greet(&here, &server, None);
    let (answered, connected) = tokio::join!(answer, connecting);
    // The connection has to stay open until the client has read the answer.
    answered.map_err(|error| failed(&error))?;
    let connection = connected.map_err(OpenError::into_client)?;
    let info = connection.link.client.session().clone();
    connection.cut().await;
    Ok(info)
}

/// A listener, its address, and settings for a client that connects to it.
async fn listen(
    checked: &Checked,
    session_timeout: Duration,
) -> std::io::Result<(TcpListener, SocketAddr, Checked)> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    // The credentials for the servers must not be sent here.
    Ok((listener, address, checked.for_ourselves(session_timeout)))
}

fn invalid() -> std::io::Error {
    std::io::ErrorKind::InvalidData.into()
}

/// Reads a message: its length, and that many bytes.
async fn frame(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Vec<u8>> {
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

/// Whether a client that sends these bytes has greeted: for tests of the parser.
pub async fn is_greeting(mut sent: &[u8]) -> bool {
    greeted(&mut sent).await.is_ok()
}

/// Reads a greeting: the protocol's version, the last transaction seen, the timeout, the session, the password.
async fn greeted(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Greeting> {
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
