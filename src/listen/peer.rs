//! Which user is at the other end of a connection? Shell.
//!
//! The kernel knows: for a Unix socket the credentials of the process that has connected, for TCP on the loopback
//! interface the owner of the socket at the other end, which is a row of this machine's table of sockets. So a caller
//! needs no token to be known, and cannot pretend to be another user.
//!
//! Only the row of an established connection counts, and only if a process has it: the kernel may give uid 0 for a socket that
//! its process has closed, or has not accepted yet.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpStream, UnixStream};

/// The user at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    /// The user's number.
    pub(crate) uid: u32,
    /// The user's primary group; `None` for TCP, where the kernel does not tell it.
    pub(crate) gid: Option<u32>,
}

/// The peer of a connection, or why it is not known.
pub(crate) type Known = Result<Peer, Unknown>;

/// Why the kernel does not tell the user at the other end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unknown {
    /// The connection was closed in the meantime, or comes from another network namespace.
    #[error("this machine has no established connection with this address at its other end")]
    NoConnection,
    /// The user has no number in the user namespace of the sidecar.
    #[error("the user does not exist in the sidecar's user namespace")]
    NotMapped,
    /// This system does not tell the users of TCP connections.
    #[cfg_attr(all(target_os = "linux", not(test)), expect(dead_code, reason = "Linux tells them"))]
    #[error("this system does not tell the users of TCP connections")]
    NoTable,
    /// The kernel was asked in vain.
    #[error("the kernel does not answer: {0}")]
    Failed(String),
}

impl From<io::Error> for Unknown {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Tells the owners of TCP connections.
#[derive(Debug)]
pub(crate) struct TcpOwners {
    owners: Owners,
}

impl TcpOwners {
    /// Opens what it needs, so that a lack of descriptors later does not matter.
    pub(crate) fn open() -> Self {
        Self { owners: Owners::open() }
    }

    /// The owner of the other end of a loopback connection.
    pub(crate) fn of(&self, stream: &TcpStream) -> Known {
        let (theirs, ours) = (stream.peer_addr()?, stream.local_addr()?);
        let uid = self.owners.owner(theirs, ours)?;
        // As long as this end is connected, no other connection has its addresses. After a reset another user's may have,
        // and what was received before could still be read.
        match stream.peer_addr() {
            Ok(_) => mapped(Peer { uid, gid: None }),
            Err(_) => Err(Unknown::NoConnection),
        }
    }
}

/// The process that has connected to a Unix socket.
pub(crate) fn of_unix(stream: &UnixStream) -> Known {
    let credentials = stream.peer_cred()?;
    mapped(Peer { uid: credentials.uid(), gid: Some(credentials.gid()) })
}

/// A system that does not tell them.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
struct Owners;

#[cfg(not(target_os = "linux"))]
impl Owners {
    fn open() -> Self {
        Self
    }

    fn owner(&self, _theirs: SocketAddr, _ours: SocketAddr) -> Result<u32, Unknown> {
        Err(Unknown::NoTable)
    }
}

#[cfg(not(target_os = "linux"))]
fn mapped(peer: Peer) -> Known {
    Ok(peer)
}

#[cfg(target_os = "linux")]
use self::linux::{Owners, mapped};

#[cfg(target_os = "linux")]
mod linux {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
    use netlink_packet_sock_diag::SockDiagMessage;
    use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP, TCP_ESTABLISHED};
    use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};
    use netlink_sys::protocols::NETLINK_SOCK_DIAG;
    use nix::errno::Errno;
    use procfs::net::{TcpNetEntry, TcpState};

    use super::*;

    /// The connection to the service of `ss` (sock_diag(7)).
    #[derive(Debug)]
    pub(super) struct Owners {
        /// `None`: the kernel has no such service, or this process may not use it.
        service: Option<Service>,
    }

    #[derive(Debug)]
    struct Service {
        socket: netlink_sys::Socket,
        /// The number of the last question.
        asked: AtomicU32,
    }

    impl Owners {
        pub(super) fn open() -> Self {
            Self { service: Service::open().ok() }
        }

        /// The owner of the socket with this address of its own, connected to `ours`.
        ///
        /// Asks the kernel for exactly this socket. A kernel without that service has a table of all of them.
        pub(super) fn owner(&self, theirs: SocketAddr, ours: SocketAddr) -> Result<u32, Unknown> {
            let found = match self.service.as_ref().map(|service| service.ask(theirs, ours)) {
                Some(Ok(found)) => found,
                Some(Err(_)) | None => look_up(theirs, ours)?,
            };
            found.ok_or(Unknown::NoConnection)
        }
    }

    impl Service {
        fn open() -> io::Result<Self> {
            let mut socket = netlink_sys::Socket::new(NETLINK_SOCK_DIAG)?;
            socket.bind_auto()?;
            socket.connect(&netlink_sys::SocketAddr::new(0, 0))?;
            // The kernel has answered when the question is sent.
            socket.set_non_blocking(true)?;
            Ok(Self { socket, asked: AtomicU32::new(0) })
        }

        /// The owner of the socket, if it is established.
        fn ask(&self, theirs: SocketAddr, ours: SocketAddr) -> io::Result<Option<u32>> {
            let request = InetRequest {
                family: if theirs.is_ipv4() { AF_INET } else { AF_INET6 },
                protocol: IPPROTO_TCP,
                extensions: ExtensionFlags::empty(),
                states: StateFlags::ESTABLISHED,
                socket_id: SocketId {
                    source_port: theirs.port(),
                    destination_port: ours.port(),
                    source_address: theirs.ip(),
                    destination_address: ours.ip(),
                    interface_id: 0,
                    // Any.
                    cookie: [0xff; 8],
                },
            };
            let number = self.asked.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            let mut header = NetlinkHeader::default();
            (header.flags, header.sequence_number) = (NLM_F_REQUEST, number);
            let mut message = NetlinkMessage::new(header, SockDiagMessage::InetRequest(request).into());
            message.finalize();
            let mut bytes = vec![0; message.buffer_len()];
            message.serialize(&mut bytes);
            self.socket.send(&bytes, 0)?;
            loop {
                let (bytes, _) = self.socket.recv_from_full()?;
                let answer =
                    NetlinkMessage::<SockDiagMessage>::deserialize(&bytes).map_err(io::Error::other)?;
                // An answer that was not read belongs to an earlier question.
                if answer.header.sequence_number == number {
                    return read(answer.payload);
                }
            }
        }
    }

    /// The answer to a question.
    fn read(answer: NetlinkPayload<SockDiagMessage>) -> io::Result<Option<u32>> {
        match answer {
            NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(found)) => {
                let found = &found.header;
                Ok((found.state == TCP_ESTABLISHED && found.inode != 0).then_some(found.uid))
            }
            NetlinkPayload::Error(error) => {
                let error = error.to_io();
                let no_such_socket = error.raw_os_error().map(Errno::from_raw) == Some(Errno::ENOENT);
                if no_such_socket { Ok(None) } else { Err(error) }
            }
            other @ (NetlinkPayload::InnerMessage(_)
            | NetlinkPayload::Done(_)
            | NetlinkPayload::Noop
            | NetlinkPayload::Overrun(_)
            | _) => Err(io::Error::other(format!("an answer of another kind: {other:?}"))),
        }
    }

    /// The same from the table of all sockets. One that speaks IPv4 through IPv6 is in the other table.
    pub(super) fn look_up(theirs: SocketAddr, ours: SocketAddr) -> Result<Option<u32>, Unknown> {
        let failed = |error: procfs::ProcError| Unknown::Failed(error.to_string());
        let of_ipv4 = if theirs.is_ipv4() { procfs::net::tcp().map_err(failed)? } else { Vec::new() };
        let of_ipv6 = procfs::net::tcp6().unwrap_or_default();
        let established = |row: TcpNetEntry| {
            let is_held = row.state == TcpState::Established && row.inode != 0;
            is_held.then_some((row.local_address, row.remote_address, row.uid))
        };
        Ok(only_owner(of_ipv4.into_iter().chain(of_ipv6).filter_map(established), theirs, ours))
    }

    /// The owner of the only socket with these addresses. A socket is its own address, that of its other end, and its owner.
    pub(super) fn only_owner(
        sockets: impl Iterator<Item = (SocketAddr, SocketAddr, u32)>,
        theirs: SocketAddr,
        ours: SocketAddr,
    ) -> Option<u32> {
        let same = |one: SocketAddr, other: SocketAddr| {
            (one.ip().to_canonical(), one.port()) == (other.ip().to_canonical(), other.port())
        };
        let mut found = sockets.filter(|(local, remote, _)| same(*local, theirs) && same(*remote, ours));
        let (_, _, owner) = found.next()?;
        found.next().is_none().then_some(owner)
    }

    /// The number that stands for all users who are not in this user namespace. `None`: every user is in it.
    static OVERFLOW: LazyLock<Option<u32>> = LazyLock::new(|| {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let number = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
        // 65534 is the number of every kernel that was not told another one.
        overflow(&map, number.trim().parse().unwrap_or(65_534))
    });

    /// The number that stands for all others, if the map of the namespace (user_namespaces(7)) leaves users out.
    pub(super) fn overflow(map: &str, number: u32) -> Option<u32> {
        let fields: Vec<_> = map.split_whitespace().collect();
        (fields != ["0", "0", "4294967295"]).then_some(number)
    }

    /// The peer, unless its number may stand for several users.
    pub(super) fn mapped(peer: Peer) -> Known {
        if *OVERFLOW == Some(peer.uid) { Err(Unknown::NotMapped) } else { Ok(peer) }
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use nix::unistd::{getegid, geteuid};
    use tokio::net::{TcpListener, TcpSocket, UnixListener};

    use super::linux::{look_up, only_owner, overflow};
    use super::*;

    /// Both ends of a connection; the client's first.
    async fn connected(at: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(at).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        (client.unwrap(), accepted.unwrap().0)
    }

    /// The kernel may leave out a row of a table that changes while it is read, as it does beside other tests.
    fn find(theirs: SocketAddr, ours: SocketAddr) -> Result<Option<u32>, Unknown> {
        let mut found = (0..100).map(|_| look_up(theirs, ours));
        found.find(|found| *found != Ok(None)).unwrap_or(Ok(None))
    }

    #[tokio::test]
    async fn the_user_of_a_connection_is_known_on_each_kind_of_listener() {
        let us = geteuid().as_raw();
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let (client, accepted) = connected(at).await;
            assert_eq!(TcpOwners::open().of(&accepted), Ok(Peer { uid: us, gid: None }), "{at}");
            let (theirs, ours) = (client.local_addr().unwrap(), accepted.local_addr().unwrap());
            assert_eq!(find(theirs, ours), Ok(Some(us)), "{at}");
        }
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("s")).unwrap();
        let client = UnixStream::connect(folder.path().join("s"));
        let (_client, accepted) = tokio::join!(client, listener.accept());
        let gid = Some(getegid().as_raw());
        assert_eq!(of_unix(&accepted.unwrap().0), Ok(Peer { uid: us, gid }));
    }

    /// Java and Go connect in this way.
    #[tokio::test]
    async fn a_client_that_speaks_ipv4_through_ipv6_is_known() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let client =
            TcpSocket::new_v6().unwrap().connect(format!("[::ffff:127.0.0.1]:{port}").parse().unwrap());
        let (client, accepted) = tokio::join!(client, listener.accept());
        let (_client, accepted) = (client.unwrap(), accepted.unwrap().0);
        let us = geteuid().as_raw();
        assert_eq!(TcpOwners::open().of(&accepted), Ok(Peer { uid: us, gid: None }));
        let (theirs, ours) = (accepted.peer_addr().unwrap(), accepted.local_addr().unwrap());
        assert_eq!(find(theirs, ours), Ok(Some(us)));
    }

    /// The kernel gives uid 0 for the socket of a client that has closed it.
    #[tokio::test]
    async fn se_1_a_client_that_has_closed_its_socket_is_nobody() {
        let (client, accepted) = connected("127.0.0.1:0").await;
        let (theirs, ours) = (accepted.peer_addr().unwrap(), accepted.local_addr().unwrap());
        drop(client);
        assert_eq!(TcpOwners::open().of(&accepted), Err(Unknown::NoConnection));
        assert_eq!(look_up(theirs, ours), Ok(None));
        let (mut client, accepted) = connected("127.0.0.1:0").await;
        tokio::io::AsyncWriteExt::shutdown(&mut client).await.unwrap();
        assert_eq!(TcpOwners::open().of(&accepted), Err(Unknown::NoConnection));
        let (client, accepted) = connected("127.0.0.1:0").await;
        client.set_zero_linger().unwrap();
        drop(client);
        assert!(TcpOwners::open().of(&accepted).is_err(), "it was reset");
    }

    #[tokio::test]
    async fn se_3_a_connection_that_nobody_has_accepted_is_nobodys() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (theirs, ours) = (client.peer_addr().unwrap(), client.local_addr().unwrap());
        assert_eq!(TcpOwners::open().of(&client), Err(Unknown::NoConnection));
        assert_eq!(look_up(theirs, ours), Ok(None));
        let accepted = listener.accept().await.unwrap();
        let us = geteuid().as_raw();
        assert_eq!(TcpOwners::open().of(&client), Ok(Peer { uid: us, gid: None }));
        assert_eq!(find(theirs, ours), Ok(Some(us)));
        drop(accepted);
    }

    #[test]
    fn se_1_two_sockets_with_the_same_addresses_are_nobody() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let socket = |local: &str, uid: u32| (address(local), address("127.0.0.1:7070"), uid);
        let found = |sockets: Vec<_>| {
            only_owner(sockets.into_iter(), address("127.0.0.1:5000"), address("127.0.0.1:7070"))
        };
        assert_eq!(found(vec![socket("127.0.0.1:5001", 9), socket("127.0.0.1:5000", 7)]), Some(7));
        assert_eq!(found(vec![socket("[::ffff:127.0.0.1]:5000", 7)]), Some(7));
        assert_eq!(found(vec![socket("127.0.0.1:5000", 7), socket("127.0.0.1:5000", 7)]), None);
        assert_eq!(found(vec![socket("127.0.0.1:5001", 9)]), None);
    }

    #[test]
    fn se_1_a_number_that_may_stand_for_several_users_is_nobody() {
        assert_eq!(overflow("         0          0 4294967295\n", 65_534), None);
        assert_eq!(overflow("0 100000 65536\n", 65_534), Some(65_534));
        assert_eq!(overflow("", 65_534), Some(65_534));
    }
}
