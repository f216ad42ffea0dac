//! A stand-in for the sidecar, so that the program around it compiles: it holds its listeners and serves nothing.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;

use tokio::sync::watch;

use crate::config::{Config, ListenAddress};

/// Why a sidecar could not start.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct StartError {
    address: String,
    source: std::io::Error,
}

/// A running sidecar.
pub struct Sidecar {
    endpoints: Vec<String>,
    listeners: Vec<OwnedFd>,
}

impl Sidecar {
    /// Binds the listeners and starts everything; returns once it serves.
    #[expect(clippy::unused_async, reason = "a stand-in")]
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let mut sidecar = Self { endpoints: Vec::new(), listeners: Vec::new() };
        for address in &config.listen {
            let error = |source| StartError { address: address.to_string(), source };
            match address {
                ListenAddress::Tcp(socket) => {
                    let listener = TcpListener::bind(socket).map_err(error)?;
                    let local = listener.local_addr().map_err(error)?;
                    sidecar.endpoints.push(format!("http://{local}"));
                    sidecar.listeners.push(listener.into());
                }
                ListenAddress::Unix(path) => {
                    let listener = UnixListener::bind(path).map_err(error)?;
                    sidecar.endpoints.push(format!("unix://{}", path.display()));
                    sidecar.listeners.push(listener.into());
                }
            }
        }
        Ok(sidecar)
    }

    /// The endpoints it serves on.
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// Drains.
    #[expect(clippy::unused_async, reason = "a stand-in")]
    pub async fn drain(self, hurry: watch::Receiver<bool>) {
        drop((self, hurry));
    }
}
