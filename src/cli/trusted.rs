//! Connections to a sidecar that nobody has named: only one of this user, or of root, is taken. Another user may have taken
//! the place before it, to get calls and tokens.
//!
//! The kernel names the owner of the listening end: the credentials of a Unix socket's listener, and the owner of the TCP
//! socket at the other end.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use nix::unistd::geteuid;
use tokio::net::{TcpStream, UnixStream};
use tonic::transport::{Channel, Endpoint, Error};
use tower::service_fn;

use crate::listen::peer::{self, Known, Unknown};
use crate::runtime_folder;

/// The user who may do everything on a machine.
const ROOT: u32 = 0;
/// How often to look whether a connection was accepted, and how many times: for two seconds.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(5);
const ACCEPT_LOOKS_MAX: u32 = 400;

/// Connects to this socket, and again after each break. Fails if another user serves it, or could replace it.
pub(super) async fn unix(endpoint: Endpoint, socket: &Path) -> Result<Channel, Error> {
    let socket = socket.to_owned();
    let connect = move |_| {
        let socket: PathBuf = socket.clone();
        async move {
            runtime_folder::check(&socket)?;
            let stream = UnixStream::connect(&socket).await?;
            check(&peer::of_unix(&stream), &socket.display().to_string(), false)?;
            Ok::<_, io::Error>(TokioIo::new(stream))
        }
    };
    endpoint.connect_with_connector(service_fn(connect)).await
}

/// The same for this loopback address, `HOST:PORT`. `has_token`: calls will have the sidecar's token.
pub(super) async fn tcp(
    endpoint: Endpoint,
    address: &'static str,
    has_token: bool,
) -> Result<Channel, Error> {
    let connect = move |_| async move {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        check(&accepted_by(&stream).await, address, has_token)?;
        Ok::<_, io::Error>(TokioIo::new(stream))
    };
    endpoint.connect_with_connector(service_fn(connect)).await
}

/// Who has accepted a connection. A busy sidecar takes a moment for that.
async fn accepted_by(stream: &TcpStream) -> Known {
    let owners = peer::TcpOwners::open();
    let mut known = owners.of(stream);
    for _ in 0..ACCEPT_LOOKS_MAX {
        if known != Err(Unknown::NoConnection) {
            break;
        }
        tokio::time::sleep(ACCEPT_INTERVAL).await;
        known = owners.of(stream);
    }
    known
}

/// Fails if the listener is not of this user or root. Where the system does not tell it, only a token must not be sent.
fn check(listener: &Known, place: &str, has_token: bool) -> io::Result<()> {
    let own = geteuid().as_raw();
    let why = match listener {
        Ok(listener) if listener.uid == own || listener.uid == ROOT => return Ok(()),
        Ok(listener) => {
            format!("uid {} serves at {place}, and not this user (uid {own}) or root", listener.uid)
        }
        Err(Unknown::NoTable) if !has_token => return Ok(()),
        Err(unknown) => format!("it is not known who serves at {place}: {unknown}"),
    };
    let text = format!("{why}; if you trust it, give its address as --endpoint or SIDEKEEPER_ENDPOINT");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::peer::Peer;

    #[test]
    fn se_3_only_a_listener_of_this_user_or_of_root_is_trusted() {
        let own = geteuid().as_raw();
        for uid in [own, ROOT] {
            check(&Ok(Peer { uid, gid: None }), "there", true).unwrap();
        }
        let foreign = check(&Ok(Peer { uid: own + 1, gid: None }), "there", false).unwrap_err().to_string();
        assert!(foreign.contains(&format!("uid {} serves at there", own + 1)), "{foreign}");
        assert!(check(&Err(Unknown::NoTable), "there", false).is_ok());
        for unknown in [Unknown::NoTable, Unknown::NoConnection, Unknown::NotMapped] {
            assert!(check(&Err(unknown), "there", true).is_err());
        }
    }
}
