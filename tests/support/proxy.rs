//! A TCP proxy that does to connections what networks do.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// What the proxy does with what it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Hands everything on.
    Pass,
    /// Hands everything on after this time.
    Delay(Duration),
    /// Hands nothing on, in neither direction, until the mode changes. Connections can be made.
    Blackhole,
    /// Hands on what goes to the server, loses what comes from it. A connection that lost something is closed when
    /// the mode changes.
    DropReplies,
    /// Closes connections as soon as they are made.
    Refuse,
}

pub struct Proxy {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    /// Counts up; connections made before are closed.
    resets: watch::Sender<u64>,
    accepting: AbortHandle,
}

impl Proxy {
    /// A proxy in front of a port of this machine.
    pub async fn start(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().expect("its address");
        let (mode, modes) = watch::channel(Mode::Pass);
        let (resets, reset) = watch::channel(0);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if *modes.borrow() != Mode::Refuse {
                    tokio::spawn(serve(client, server, modes.clone(), reset.clone()));
                }
            }
        });
        Self { address, mode, resets, accepting: accepting.abort_handle() }
    }

    pub fn address(&self) -> String {
        self.address.to_string()
    }

    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// Closes all connections; new ones can be made.
    pub fn reset(&self) {
        self.resets.send_modify(|resets| *resets += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.reset();
    }
}

async fn serve(client: TcpStream, port: u16, modes: watch::Receiver<Mode>, mut resets: watch::Receiver<u64>) {
    resets.mark_unchanged();
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        _ = resets.changed() => {}
        () = pump(from_client, to_server, modes.clone(), false) => {}
        () = pump(from_server, to_client, modes, true) => {}
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut modes: watch::Receiver<Mode>,
    are_replies: bool,
) {
    let mut buffer = vec![0; 64 * 1024];
    let mut has_lost = false;
    loop {
        let mode = *modes.borrow_and_update();
        if has_lost && mode != Mode::DropReplies {
            return;
        }
        if mode == Mode::Blackhole {
            if modes.changed().await.is_err() {
                return;
            }
            continue;
        }
        let count = tokio::select! {
            _ = modes.changed() => continue,
            count = from.read(&mut buffer) => count,
        };
        let Ok(count @ 1..) = count else { return };
        // It may have changed while we waited for the bytes.
        let mode = *modes.borrow();
        match mode {
            Mode::Delay(delay) => tokio::time::sleep(delay).await,
            Mode::DropReplies if are_replies => {
                has_lost = true;
                continue;
            }
            Mode::Blackhole => {
                if modes.wait_for(|mode| *mode != Mode::Blackhole).await.is_err() {
                    return;
                }
            }
            Mode::Pass | Mode::DropReplies | Mode::Refuse => {}
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
