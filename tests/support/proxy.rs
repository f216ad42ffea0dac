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
    /// Says nothing on connections that are made now, whatever the mode is later.
    Silent,
}

/// The bytes that clients have sent on each connection on which the proxy says nothing.
type Heard = watch::Sender<Vec<Vec<u8>>>;

/// How long words are waited for that have to come.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Proxy {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    /// Counts up; connections made before are closed.
    resets: watch::Sender<u64>,
    heard: Heard,
    accepting: AbortHandle,
}

impl Proxy {
    /// A proxy in front of a port of this machine.
    pub async fn start(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().expect("its address");
        let (mode, modes) = watch::channel(Mode::Pass);
        let (resets, reset) = watch::channel(0);
        let heard = Heard::default();
        let hearing = heard.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let mode = *modes.borrow();
                match mode {
                    Mode::Refuse => {}
                    Mode::Silent => {
                        let mut place = 0;
                        hearing.send_modify(|heard| {
                            place = heard.len();
                            heard.push(Vec::new());
                        });
                        tokio::spawn(keep_silent(client, reset.clone(), hearing.clone(), place));
                    }
                    Mode::Pass | Mode::Delay(_) | Mode::Blackhole | Mode::DropReplies => {
                        tokio::spawn(serve(client, server, modes.clone(), reset.clone()));
                    }
                }
            }
        });
        Self { address, mode, resets, heard, accepting: accepting.abort_handle() }
    }

    /// Whether a client has said these words, and nothing else, on a connection on which the proxy says nothing.
    pub fn has_heard(&self, words: &[u8]) -> bool {
        self.heard.borrow().iter().any(|said| said == words)
    }

    /// Waits until that is so.
    pub async fn hears(&self, words: &[u8]) {
        let mut heard = self.heard.subscribe();
        let heard = heard.wait_for(|heard| heard.iter().any(|said| said == words));
        let heard = tokio::time::timeout(PATIENCE, heard).await;
        heard.expect("nobody has said it").expect("the proxy is there");
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

/// Reads what is sent, and says nothing.
async fn keep_silent(mut client: TcpStream, mut resets: watch::Receiver<u64>, heard: Heard, place: usize) {
    resets.mark_unchanged();
    let mut buffer = vec![0; 1024];
    loop {
        let count = tokio::select! {
            _ = resets.changed() => return,
            count = client.read(&mut buffer) => count,
        };
        let Ok(count @ 1..) = count else { return };
        heard.send_modify(|heard| heard[place].extend(&buffer[..count]));
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
            Mode::Pass | Mode::DropReplies | Mode::Refuse | Mode::Silent => {}
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
