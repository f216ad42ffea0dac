//! Sends small requests at once: switches Nagle's algorithm off on the client library's connections.
//!
//! The library leaves it on. Then the second of two requests that are sent together waits until the first one is answered,
//! and a flight of two requests takes two round trips. The library does not show its socket, so the socket is found among the
//! files of this process by the server's address, and is set by a second descriptor of it (`pidfd_getfd`, Linux 5.6). Where a
//! container's rules forbid that, the connection works as before, only slower.

use std::net::SocketAddr;

/// Sets the connections of this process with a server.
#[cfg(target_os = "linux")]
pub(super) fn set(server: SocketAddr) {
    if let Err(error) = linux::set(server) {
        tracing::debug!(%server, %error, "requests that are sent together take one more round trip: TCP_NODELAY cannot be set");
    }
}

/// Sets the connections of this process with a server.
#[cfg(not(target_os = "linux"))]
pub(super) fn set(_: SocketAddr) {}

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::net::SocketAddr;

    use rustix::net::getpeername;
    use rustix::net::sockopt::set_tcp_nodelay;
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

    pub(super) fn set(server: SocketAddr) -> io::Result<()> {
        let own = pidfd_open(getpid(), PidfdFlags::empty())?;
        for entry in std::fs::read_dir("/proc/self/fd")? {
            let entry = entry?;
            // A file that was closed in the meantime.
            let Ok(target) = std::fs::read_link(entry.path()) else { continue };
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(number) = number.filter(|_| target.to_string_lossy().starts_with("socket:")) else {
                continue;
            };
            let socket = match pidfd_getfd(&own, number, PidfdGetfdFlags::empty()) {
                Err(rustix::io::Errno::BADF) => continue,
                answer => answer?,
            };
            let peer = getpeername(&socket).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok());
            if peer == Some(server) {
                set_tcp_nodelay(&socket, true)?;
            }
        }
        Ok(())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_connections_with_the_server_are_set_and_others_are_not() {
        let [server, other] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [ours, theirs] =
            [&server, &other].map(|one| TcpStream::connect(one.local_addr().unwrap()).unwrap());
        linux::set(server.local_addr().unwrap()).unwrap();
        assert!(ours.nodelay().unwrap());
        assert!(!theirs.nodelay().unwrap());
    }
}
