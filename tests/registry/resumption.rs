//! A session that outlives the process that opened it, because a later one goes on with it.

use std::sync::Arc;
use std::time::Duration;

use sidekeeper::registry::embedded::Embedded;
use sidekeeper::registry::zookeeper::{Settings, ZooKeeper};
use sidekeeper::registry::{Error, Registry, Session, SessionKey, SessionState};
use sidekeeper::tree::{NodeKind, Operation, SessionId, WatchEvent};
use tokio::time::{sleep, timeout};

use crate::ground::{PATIENCE, commit, exists, next, path, reaches, settings};
use crate::support::proxy::{Mode, Proxy};
use crate::support::zookeeper::Server;

/// Whether the registry says that there is no such session. It closes the connection with that, and the word may be lost.
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

/// A process that will die without a word: a session of its own, which nobody else can reach any more when it is cut off.
struct Mortal {
    session: Arc<dyn Session>,
    proxy: Proxy,
    /// The ensemble, as the next process reaches it.
    next: ZooKeeper,
}

impl Mortal {
    async fn of(test: &str, change: impl Fn(&mut Settings)) -> Self {
        let server = Server::shared();
        let proxy = Proxy::start(server.port()).await;
        let at = |address: &str| {
            let mut settings = settings(&format!("{address}/{test}"));
            change(&mut settings);
            ZooKeeper::new(settings).unwrap()
        };
        let session = at(&proxy.address()).open().await.unwrap();
        Self { session, proxy, next: at(&server.address()) }
    }

    async fn key(&self) -> SessionKey {
        self.session.key().await.expect("a key")
    }

    /// It dies: what it does from now on reaches nobody.
    async fn die(&self) {
        self.proxy.set(Mode::Refuse);
        self.proxy.reset();
        reaches(&*self.session, SessionState::Suspended).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_goes_on_in_another_process() {
    for digest in [None, Some("me:secret".to_owned())] {
        let test = if digest.is_some() { "goes_on_with_digest" } else { "goes_on" };
        let mortal = Mortal::of(test, |settings| settings.digest.clone_from(&digest)).await;
        commit(&*mortal.session, vec![ephemeral("/mine")]).await;
        let created = mortal.session.get(&path("/mine")).await.unwrap().unwrap().stat;
        let key = mortal.key().await;
        assert_eq!((key.id, key.timeout), (mortal.session.id(), mortal.session.timeout()));
        assert!(key.password.len() >= 16 && key.password.iter().any(|byte| *byte != 0), "{key:?}");
        mortal.die().await;

        let session = mortal.next.reopen(&key).await.unwrap().expect("the session");
        assert_eq!(session.id(), mortal.session.id());
        assert_eq!(session.get(&path("/mine")).await.unwrap().unwrap().stat, created);
        // It is whole: it writes, watches, and its end takes along what the former process created.
        let mut watch = session.watch(&path("/"), Arc::new(|_| true)).await.unwrap();
        assert!(matches!(next(&mut watch).await, WatchEvent::Snapshot(nodes) if nodes.len() == 2));
        commit(&*session, vec![ephemeral("/more")]).await;
        assert!(matches!(next(&mut watch).await, WatchEvent::Changes(changes) if changes.len() == 1));
        // So it can be done once more.
        assert_eq!(session.key().await.as_ref(), Some(&key));
        let other = mortal.next.open().await.unwrap();
        assert!(exists(&*other, "/mine").await);
        timeout(PATIENCE, session.close()).await.expect("to close");
        assert!(!exists(&*other, "/mine").await && !exists(&*other, "/more").await);
    }
}

/// Also one whose connection has broken, at any moment until it is back: one that is dropped then ends the session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abandoned_session_lives_on() {
    let patient = |settings: &mut Settings| settings.session_timeout = 2 * PATIENCE;
    for moment in 0..60 {
        let Mortal { session, proxy, next } = Mortal::of("abandoned", patient).await;
        commit(&*session, vec![ephemeral("/mine")]).await;
        let key = session.key().await.expect("a key");
        if moment > 0 {
            proxy.reset();
            sleep(Duration::from_micros(50 * moment)).await;
        }
        timeout(PATIENCE, session.abandon()).await.expect("to let go");
        reaches(&*session, SessionState::Lost).await;
        // Too late: it is not ours any more.
        timeout(PATIENCE, session.close()).await.expect("to be lost");
        drop(session);
        let heir = next.reopen(&key).await.unwrap().expect("the session");
        assert!(exists(&*heir, "/mine").await);
        timeout(PATIENCE, heir.close()).await.expect("to close");
    }
}

#[tokio::test]
async fn an_abandoned_session_with_the_embedded_registry_lives_on() {
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
async fn a_session_that_is_over_or_somebody_elses_is_none() {
    let mortal = Mortal::of("is_none", |_| ()).await;
    commit(&*mortal.session, vec![ephemeral("/mine")]).await;
    let key = mortal.key().await;
    let forged = SessionKey { password: vec![7; 16], ..key.clone() };
    assert!(is_refused(&mortal.next, &forged).await);
    let unknown = SessionKey { id: SessionId(key.id.0 ^ 0xff), ..key.clone() };
    assert!(is_refused(&mortal.next, &unknown).await);
    // The server has cut the true one's connection, but it is its session.
    reaches(&*mortal.session, SessionState::Connected).await;
    let other = mortal.next.open().await.unwrap();
    assert!(exists(&*other, "/mine").await);
    mortal.die().await;
    let mut watch = other.watch(&path("/mine"), Arc::new(|_| true)).await.unwrap();
    next(&mut watch).await;
    next(&mut watch).await;
    assert!(!exists(&*other, "/mine").await);
    assert!(is_refused(&mortal.next, &key).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registry_that_is_away_is_no_end_of_the_session() {
    let mortal = Mortal::of("is_away", |_| ()).await;
    let key = mortal.key().await;
    mortal.die().await;
    let away = ZooKeeper::new(settings(&mortal.proxy.address())).unwrap();
    assert!(away.reopen(&key).await.is_err());
    assert!(mortal.next.reopen(&key).await.unwrap().is_some());
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
