//! A TCP proxy that delays, drops and breaks connections as networks do.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// How the proxy treats connections and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Forwards all bytes.
    Pass,
    /// Forwards all bytes after this time.
    Delay(Duration),
    /// Forwards no byte in either direction until the mode changes. Connections can be made.
    Blackhole,
    /// Forwards the bytes to the server, and drops the bytes from it. A connection with dropped bytes is closed when
    /// the mode changes.
    DropReplies,
    /// Closes connections as soon as they are made.
    Refuse,
    /// Never answers on connections that are made now, also in a later mode.
    Silent,
}

/// The bytes that clients have sent on each silent connection.
type Received = watch::Sender<Vec<Vec<u8>>>;

/// The types of the requests that clients have sent.
type Requests = Arc<Mutex<Vec<i32>>>;

/// The type of a ping, which a client sends by itself.
const PING: i32 = 11;

/// How long to wait for bytes that must come.
const LIMIT: Duration = Duration::from_secs(20);

pub struct Proxy {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    /// Counts up; connections made before are closed.
    resets: watch::Sender<u64>,
    received: Received,
    requests: Requests,
    accepting: AbortHandle,
}

impl Proxy {
    /// A proxy in front of a port of this machine.
    pub async fn start(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().expect("its address");
        let (mode, modes) = watch::channel(Mode::Pass);
        let (resets, reset) = watch::channel(0);
        let received = Received::default();
        let received_there = received.clone();
        let requests = Requests::default();
        let requests_there = requests.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let mode = *modes.borrow();
                match mode {
                    Mode::Refuse => {}
                    Mode::Silent => {
                        let mut place = 0;
                        received_there.send_modify(|received| {
                            place = received.len();
                            received.push(Vec::new());
                        });
                        tokio::spawn(keep_silent(client, reset.clone(), received_there.clone(), place));
                    }
                    Mode::Pass | Mode::Delay(_) | Mode::Blackhole | Mode::DropReplies => {
                        let requests = requests_there.clone();
                        tokio::spawn(serve(client, server, modes.clone(), reset.clone(), requests));
                    }
                }
            }
        });
        Self { address, mode, resets, received, requests, accepting: accepting.abort_handle() }
    }

    /// Whether a client has sent these bytes, and no others, on a silent connection.
    pub fn has_received(&self, bytes: &[u8]) -> bool {
        self.received.borrow().iter().any(|sent| sent == bytes)
    }

    /// Waits until a client has sent these bytes, and no others, on a silent connection.
    pub async fn wait_for_bytes(&self, bytes: &[u8]) {
        let mut received = self.received.subscribe();
        let received = received.wait_for(|received| received.iter().any(|sent| sent == bytes));
        let received = tokio::time::timeout(LIMIT, received).await;
        received.expect("no client has sent the bytes").expect("the proxy runs");
    }

    /// The types of the requests, as ZooKeeper numbers them, that clients have sent since they were last taken. No pings.
    pub fn requests(&self) -> Vec<i32> {
        self.requests.lock().expect("no test has failed").clone()
    }

    /// As [`Self::requests`], and forgets them.
    pub fn take_requests(&self) -> Vec<i32> {
        std::mem::take(&mut self.requests.lock().expect("no test has failed"))
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

/// Reads the bytes of a client, and never answers.
async fn keep_silent(
    mut client: TcpStream,
    mut resets: watch::Receiver<u64>,
    received: Received,
    place: usize,
) {
    resets.mark_unchanged();
    let mut buffer = vec![0; 1024];
    loop {
        let count = tokio::select! {
            _ = resets.changed() => return,
            count = client.read(&mut buffer) => count,
        };
        let Ok(count @ 1..) = count else { return };
        received.send_modify(|received| received[place].extend(&buffer[..count]));
    }
}

/// Finds the requests in the bytes of a client.
struct Frames {
    bytes: Vec<u8>,
    has_greeted: bool,
    requests: Requests,
}

impl Frames {
    fn take(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        // A word for the operator is no request.
        while let Some(length) = self.bytes.first_chunk().filter(|first| *first != b"srvr") {
            let length = usize::try_from(u32::from_be_bytes(*length)).expect("a length");
            let Some(frame) = self.bytes.get(4..4 + length) else { return };
            let kind = i32::from_be_bytes(*frame[4..].first_chunk().expect("a type"));
            if std::mem::replace(&mut self.has_greeted, true) && kind != PING {
                self.requests.lock().expect("no test has failed").push(kind);
            }
            self.bytes.drain(..4 + length);
        }
    }
}

async fn serve(
    client: TcpStream,
    port: u16,
    modes: watch::Receiver<Mode>,
    mut resets: watch::Receiver<u64>,
    requests: Requests,
) {
    resets.mark_unchanged();
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let frames = Frames { bytes: Vec::new(), has_greeted: false, requests };
    tokio::select! {
        _ = resets.changed() => {}
        () = pump(from_client, to_server, modes.clone(), Some(frames)) => {}
        () = pump(from_server, to_client, modes, None) => {}
    }
}

/// Forwards the bytes of a client, with the finder of its requests; or those of the server, without.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut modes: watch::Receiver<Mode>,
    mut frames: Option<Frames>,
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
        // The mode may have changed during the wait for the bytes.
        let mode = *modes.borrow();
        match mode {
            Mode::Delay(delay) => tokio::time::sleep(delay).await,
            Mode::DropReplies if frames.is_none() => {
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
        if let Some(frames) = &mut frames {
            frames.take(&buffer[..count]);
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
