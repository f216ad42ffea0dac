//! A session is brought only to a server that serves. How soon it is served again when ZooKeeper is back is measured by
//! `make return-time`.

use std::sync::Arc;
use std::time::Duration;

use sidekeeper::registry::zookeeper::{Settings, ZooKeeper};
use sidekeeper::registry::{Registry, Session, SessionState};
use sidekeeper::tree::{NodeKind, Operation};

use crate::ground::{commit, exists, path, reaches, settings};
use crate::support::proxy::{Mode, Proxy};
use crate::support::zookeeper::Server;

async fn open(settings: Settings) -> Arc<dyn Session> {
    ZooKeeper::new(settings).unwrap().open().await.unwrap()
}

fn patient(connect: &str) -> Settings {
    Settings {
        session_timeout: Duration::from_secs(8),
        connection_timeout: Duration::from_secs(5),
        ..settings(connect)
    }
}

/// The question whether a server serves. A session that were brought to a server that is silent would have to wait for it:
/// 3.2 s with a session of 8 s.
///
/// A greeting may come besides: the client library greets by itself when its connection breaks, until it is stopped.
const QUESTION: &[u8] = b"srvr";

/// A server that is starting: the system accepts connections, and nobody answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_accepts_and_is_silent_at_first_is_greeted_when_it_serves() {
    let server = Server::shared();
    let proxy = Proxy::start(server.port()).await;
    let session = open(patient(&format!("{}/silent_at_first", proxy.address()))).await;
    commit(&*session, vec![Operation::create(path("/mine"), NodeKind::Ephemeral, "")]).await;
    let id = session.id();
    // Requests on connections that are made now are never answered.
    proxy.set(Mode::Silent);
    proxy.reset();
    reaches(&*session, SessionState::Suspended).await;
    proxy.hears(QUESTION).await;
    proxy.set(Mode::Pass);
    reaches(&*session, SessionState::Connected).await;
    assert_eq!(session.id(), id);
    assert!(exists(&*session, "/mine").await);
}

/// One of two servers is silent for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_server_is_passed_over() {
    let server = Server::shared();
    let silent = Proxy::start(server.port()).await;
    silent.set(Mode::Silent);
    let proxy = Proxy::start(server.port()).await;
    let addresses = format!("{},{}/passed_over", silent.address(), proxy.address());
    let session = open(patient(&addresses)).await;
    let id = session.id();
    // Which server is asked first is drawn each time.
    while !silent.has_heard(QUESTION) {
        proxy.reset();
        reaches(&*session, SessionState::Suspended).await;
        reaches(&*session, SessionState::Connected).await;
    }
    assert_eq!(session.id(), id);
}
