//! The address on which applications reach the sidecar: TCP on the loopback interface, a Unix socket, or any address with TLS. Shell.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tracing::debug;

use crate::config::UnixAddress;

use super::admission::Origin;
use super::peer::{TcpOwners, of_unix};
use super::tls::{Tls, TlsAddress};
use super::unix::UnixSocket;

/// An address that the sidecar serves.
#[derive(Debug)]
pub enum Listener {
    /// A loopback address.
    Tcp(TcpAddress),
    /// An address with TLS.
    Tls(TlsAddress),
    /// A socket in the file system.
    Unix(UnixSocket),
}

/// A new connection of a listener.
pub(super) enum Incoming {
    /// A connection, and the peer that has opened it.
    Opened(Box<dyn Socket>, Origin),
    /// A connection that failed before it could be used, and why.
    Broken(String),
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

    /// Listens on an address with TLS, with the certificates in force.
    pub async fn tls(address: SocketAddr, current: watch::Receiver<Tls>) -> io::Result<Self> {
        Ok(Self::Tls(TlsAddress::bind(address, current).await?))
    }

    /// Listens on a Unix socket (see [`UnixSocket::bind`]).
    pub async fn unix(address: &UnixAddress) -> io::Result<Self> {
        Ok(Self::Unix(UnixSocket::bind(address).await?))
    }

    /// The address in the form of `SIDEKEEPER_ENDPOINT`.
    pub fn endpoint(&self) -> io::Result<String> {
        Ok(match self {
            Self::Tcp(address) => format!("http://{}", address.listener.local_addr()?),
            Self::Tls(address) => format!("https://{}", address.local_addr()?),
            Self::Unix(socket) => format!("unix://{}", socket.path().display()),
        })
    }

    /// The next connection.
    pub(super) async fn accept(&mut self) -> io::Result<Incoming> {
        Ok(match self {
            Self::Tcp(TcpAddress { listener, owners }) => {
                let (stream, _) = listener.accept().await?;
                if let Err(error) = stream.set_nodelay(true) {
                    debug!(%error, "a connection may answer late: TCP_NODELAY cannot be set");
                }
                let peer = owners.of(&stream);
                Incoming::Opened(Box::new(stream), Origin::User(peer))
            }
            Self::Tls(address) => match address.accept().await? {
                Ok((stream, names)) => Incoming::Opened(Box::new(stream), Origin::Certificate(names)),
                Err(why) => Incoming::Broken(why),
            },
            Self::Unix(socket) => {
                let stream = socket.accept().await?;
                let peer = of_unix(&stream);
                Incoming::Opened(Box::new(stream), Origin::User(peer))
            }
        })
    }

    /// Accepts a connection and closes it.
    pub(super) async fn close_next(&self) -> io::Result<()> {
        match self {
            Self::Tcp(address) => address.listener.accept().await.map(drop),
            Self::Tls(address) => address.close_next().await,
            Self::Unix(socket) => socket.accept().await.map(drop),
        }
    }
}

/// A connection's bytes.
pub(super) trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}
