//! The client reconnects a session only to a server that serves. `make return-time` measures how soon it does when
//! ZooKeeper runs again.

use std::sync::Arc;
use std::time::Duration;

use sidekeeper::registry::zookeeper::{Settings, ZooKeeper};
use sidekeeper::registry::{Session, SessionState};
use sidekeeper::tree::{NodeKind, Operation};

use crate::registries::{commit, exists, open_eventually, path, reaches, settings};
use crate::support::proxy::{Mode, Proxy};
use crate::support::zookeeper::Server;

async fn open(settings: Settings) -> Arc<dyn Session> {
    open_eventually(&ZooKeeper::new(settings).unwrap()).await.unwrap()
}

fn with_long_timeouts(connect: &str) -> Settings {
    Settings {
        session_timeout: Duration::from_secs(8),
        connection_timeout: Duration::from_secs(5),
        ..settings(connect)
    }
}

/// The request that asks whether a server serves. A session that connects to a silent server would have to wait for its
/// answer: 3.2 s with a session of 8 s.
///
/// A handshake may come besides: the client library sends one by itself when its connection breaks, until it is stopped.
const QUESTION: &[u8] = b"srvr";

/// A server that is starting: the system accepts connections, and no answer comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_silent_at_first_gets_the_session_when_it_serves() {
    let server = Server::shared();
    let proxy = Proxy::start(server.port()).await;
    let session = open(with_long_timeouts(&format!("{}/silent_at_first", proxy.address()))).await;
    commit(&*session, vec![Operation::create(path("/mine"), NodeKind::Ephemeral, "")]).await;
    let id = session.id();
    // The proxy never answers requests on connections that are made now.
    proxy.set(Mode::Silent);
    proxy.reset();
    reaches(&*session, SessionState::Suspended).await;
    proxy.wait_for_bytes(QUESTION).await;
    proxy.set(Mode::Pass);
    reaches(&*session, SessionState::Connected).await;
    assert_eq!(session.id(), id);
    assert!(exists(&*session, "/mine").await);
}

/// One of two servers is silent for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_server_is_skipped() {
    let server = Server::shared();
    let silent = Proxy::start(server.port()).await;
    silent.set(Mode::Silent);
    let proxy = Proxy::start(server.port()).await;
    let addresses = format!("{},{}/passed_over", silent.address(), proxy.address());
    let session = open(with_long_timeouts(&addresses)).await;
    let id = session.id();
    // The client draws the first server at each attempt.
    while !silent.has_received(QUESTION) {
        proxy.reset();
        reaches(&*session, SessionState::Suspended).await;
        reaches(&*session, SessionState::Connected).await;
    }
    assert_eq!(session.id(), id);
}
