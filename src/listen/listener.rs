//! The address on which applications reach the sidecar: TCP on the loopback interface, or a Unix socket. Shell.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tracing::debug;

use crate::config::UnixAddress;

use super::peer::{Known, TcpOwners, of_unix};
use super::unix::UnixSocket;

/// An address that the sidecar serves.
#[derive(Debug)]
pub enum Listener {
    /// A loopback address.
    Tcp(TcpAddress),
    /// A socket in the file system.
    Unix(UnixSocket),
}

/// A loopback address that the sidecar serves.
#[derive(Debug)]
pub struct TcpAddress {
    listener: TcpListener,
    owners: TcpOwners,
}

impl Listener {
    /// Listens on a TCP address.
    pub async fn tcp(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        Ok(Self::Tcp(TcpAddress { listener, owners: TcpOwners::open() }))
    }

    /// Listens on a Unix socket (see [`UnixSocket::bind`]).
    pub async fn unix(address: &UnixAddress) -> io::Result<Self> {
        Ok(Self::Unix(UnixSocket::bind(address).await?))
    }

    /// The address in the form of `SIDEKEEPER_ENDPOINT`.
    pub fn endpoint(&self) -> io::Result<String> {
        Ok(match self {
            Self::Tcp(address) => format!("http://{}", address.listener.local_addr()?),
            Self::Unix(socket) => format!("unix://{}", socket.path().display()),
        })
    }

    /// The next connection, and who has opened it.
    pub(super) async fn accept(&self) -> io::Result<(Box<dyn Socket>, Known)> {
        Ok(match self {
            Self::Tcp(TcpAddress { listener, owners }) => {
                let (stream, _) = listener.accept().await?;
                if let Err(error) = stream.set_nodelay(true) {
                    debug!(%error, "a connection may answer late: TCP_NODELAY cannot be set");
                }
                let peer = owners.of(&stream);
                (Box::new(stream), peer)
            }
            Self::Unix(socket) => {
                let stream = socket.accept().await?;
                let peer = of_unix(&stream);
                (Box::new(stream), peer)
            }
        })
    }
}

/// A connection's bytes.
pub(super) trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}
