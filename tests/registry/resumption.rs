//! A session that outlives the process that opened it, because a later process resumes it.

use std::sync::Arc;
use std::time::Duration;

use sidekeeper::registry::embedded::Embedded;
use sidekeeper::registry::zookeeper::{Settings, ZooKeeper};
use sidekeeper::registry::{Error, Registry, Session, SessionKey, SessionState};
use sidekeeper::tree::{NodeKind, Operation, SessionId, WatchEvent};
use tokio::time::{sleep, timeout};

use crate::registries::{PATIENCE, commit, exists, next, open_eventually, path, reaches, settings};
use crate::support::proxy::{Mode, Proxy};
use crate::support::zookeeper::Server;

/// Whether the registry refuses the session. It closes the connection with that answer, which may be lost: then it is
/// asked again.
async fn is_refused(registry: &ZooKeeper, key: &SessionKey) -> bool {
    let asking = async {
        loop {
            if let Ok(session) = registry.reopen(key).await {
                return session.is_none();
            }
        }
    };
    timeout(PATIENCE, asking).await.expect("an answer")
}

fn ephemeral(at: &str) -> Operation {
    Operation::create(path(at), NodeKind::Ephemeral, "")
}

/// A process that will be killed: a session of its own, behind a proxy that can cut it off.
struct DyingProcess {
    session: Arc<dyn Session>,
    proxy: Proxy,
    /// The ensemble, as the next process reaches it.
    next: ZooKeeper,
}

impl DyingProcess {
    async fn of(test: &str, change: impl Fn(&mut Settings)) -> Self {
        let server = Server::shared();
        let proxy = Proxy::start(server.port()).await;
        let at = |address: &str| {
            let mut settings = settings(&format!("{address}/{test}"));
            change(&mut settings);
            ZooKeeper::new(settings).unwrap()
        };
        let session = open_eventually(&at(&proxy.address())).await.unwrap();
        Self { session, proxy, next: at(&server.address()) }
    }

    async fn key(&self) -> SessionKey {
        self.session.key().await.expect("a key")
    }

    /// The process is killed: none of its messages reaches a server any more.
    async fn die(&self) {
        self.proxy.set(Mode::Refuse);
        self.proxy.reset();
        reaches(&*self.session, SessionState::Suspended).await;
    }
}

/// For a session that must not expire before another process resumes it, though the machine stalls.
fn long_timeout(settings: &mut Settings) {
    settings.session_timeout = 2 * PATIENCE;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_resumed_by_another_process() {
    for digest in [None, Some("me:secret".to_owned())] {
        let test = if digest.is_some() { "goes_on_with_digest" } else { "goes_on" };
        let change = |settings: &mut Settings| {
            long_timeout(settings);
            settings.digest.clone_from(&digest);
        };
        let process = DyingProcess::of(test, change).await;
        commit(&*process.session, vec![ephemeral("/mine")]).await;
        let created = process.session.get(&path("/mine")).await.unwrap().unwrap().stat;
        let key = process.key().await;
        assert_eq!((key.id, key.timeout), (process.session.id(), process.session.timeout()));
        assert!(key.password.len() >= 16 && key.password.iter().any(|byte| *byte != 0), "{key:?}");
        process.die().await;

        let session = process.next.reopen(&key).await.unwrap().expect("the session");
        assert_eq!(session.id(), process.session.id());
        assert_eq!(session.get(&path("/mine")).await.unwrap().unwrap().stat, created);
        // The session writes and watches, and its end removes the nodes that the former process created.
        let mut watch = session.watch(&path("/"), Arc::new(|_| true)).await.unwrap();
        assert!(matches!(next(&mut watch).await, WatchEvent::Snapshot(nodes) if nodes.len() == 2));
        commit(&*session, vec![ephemeral("/more")]).await;
        assert!(matches!(next(&mut watch).await, WatchEvent::Changes(changes) if changes.len() == 1));
        // The session can be resumed again.
        assert_eq!(session.key().await.as_ref(), Some(&key));
        let other = open_eventually(&process.next).await.unwrap();
        assert!(exists(&*other, "/mine").await);
        timeout(PATIENCE, session.close()).await.expect("to close");
        assert!(!exists(&*other, "/mine").await && !exists(&*other, "/more").await);
    }
}

/// The connection may have broken before, and may be restored at any moment: a session that is dropped then would end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abandoned_session_can_be_resumed() {
    for moment in 0..60 {
        let DyingProcess { session, proxy, next } = DyingProcess::of("abandoned", long_timeout).await;
        commit(&*session, vec![ephemeral("/mine")]).await;
        let key = session.key().await.expect("a key");
        if moment > 0 {
            proxy.reset();
            sleep(Duration::from_micros(50 * moment)).await;
        }
        timeout(PATIENCE, session.abandon()).await.expect("to abandon the session");
        reaches(&*session, SessionState::Lost).await;
        // A close after the abandonment has no effect.
        timeout(PATIENCE, session.close()).await.expect("to be lost");
        drop(session);
        let resumed = next.reopen(&key).await.unwrap().expect("the session");
        assert!(exists(&*resumed, "/mine").await);
        timeout(PATIENCE, resumed.close()).await.expect("to close");
    }
}

#[tokio::test]
async fn an_abandoned_session_of_the_embedded_registry_keeps_its_nodes_until_it_expires() {
    let registry = Embedded::in_memory();
    let (session, other) = (registry.open().await.unwrap(), registry.open().await.unwrap());
    commit(&*session, vec![ephemeral("/mine")]).await;
    let id = session.id();
    session.abandon().await;
    reaches(&*session, SessionState::Lost).await;
    assert_eq!(session.get(&path("/mine")).await, Err(Error::SessionLost));
    session.close().await;
    drop(session);
    assert!(exists(&*other, "/mine").await);
    registry.expire(id);
    assert!(!exists(&*other, "/mine").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_session_and_a_wrong_password_are_refused() {
    let process = DyingProcess::of("is_none", |_| ()).await;
    commit(&*process.session, vec![ephemeral("/mine")]).await;
    let key = process.key().await;
    let forged = SessionKey { password: vec![7; 16], ..key.clone() };
    assert!(is_refused(&process.next, &forged).await);
    let unknown = SessionKey { id: SessionId(key.id.0 ^ 0xff), ..key.clone() };
    assert!(is_refused(&process.next, &unknown).await);
    // The server has closed the connection of the true owner; the session goes on.
    reaches(&*process.session, SessionState::Connected).await;
    let other = open_eventually(&process.next).await.unwrap();
    assert!(exists(&*other, "/mine").await);
    process.die().await;
    let mut watch = other.watch(&path("/mine"), Arc::new(|_| true)).await.unwrap();
    next(&mut watch).await;
    next(&mut watch).await;
    assert!(!exists(&*other, "/mine").await);
    assert!(is_refused(&process.next, &key).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_registry_does_not_end_the_session() {
    let process = DyingProcess::of("is_away", long_timeout).await;
    let key = process.key().await;
    process.die().await;
    let unreachable = ZooKeeper::new(settings(&process.proxy.address())).unwrap();
    assert!(unreachable.reopen(&key).await.is_err());
    assert!(process.next.reopen(&key).await.unwrap().is_some());
}

#[tokio::test]
async fn a_session_with_the_embedded_registry_ends_with_its_process() {
    let registry = Embedded::in_memory();
    let session = registry.open().await.unwrap();
    assert_eq!(session.key().await, None);
    let key = SessionKey { id: session.id(), password: Vec::new(), timeout: session.timeout() };
    assert!(registry.reopen(&key).await.unwrap().is_none());
    assert!(!format!("{:?}", SessionKey { password: b"secret".to_vec(), ..key }).contains("115"));
}
