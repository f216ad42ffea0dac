//! A full disk of the embedded registry: no session sees an unwritten change, and sessions go on when there is room.

use std::path::Path as FilePath;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use sidekeeper::registry::embedded::Embedded;
use sidekeeper::registry::{Error, Registry, Session, SessionState};
use sidekeeper::tree::{NodeKind, Operation, WatchEvent};
use tokio::sync::watch;

use crate::disk::Disk;
use crate::registries::{commit, created, exists, next, next_snapshot, path, reaches};

fn node(at: &str) -> Operation {
    Operation::create(path(at), NodeKind::Persistent, "x")
}

/// Commits without room on the disk, and waits until the session is suspended.
async fn fails_to_commit(session: &dyn Session, folder: &FilePath, at: &str) {
    let error = session.commit(vec![node(at)]).await.unwrap_err().error;
    let text = error.to_string();
    assert!(matches!(error, Error::OutcomeUnknown(_)), "{text}");
    let wanted = format!("make room in data_dir {}", folder.display());
    assert!(text.contains(&wanted), "{text}");
    reaches(session, SessionState::Suspended).await;
    assert!(session.obstacle().unwrap().contains(&wanted));
}

#[tokio::test]
async fn a_full_disk_suspends_all_sessions_until_there_is_room_and_loses_no_write() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), Disk::default());
    {
        let registry = disk.open(folder.path());
        let session = registry.open().await.unwrap();
        let other = registry.open().await.unwrap();
        commit(&*session, vec![node("/a")]).await;
        let mut watch = other.watch(&path("/"), Arc::new(|_| true)).await.unwrap();
        assert_eq!(next_snapshot(&mut watch).await, ["/", "/a"]);
        for round in 0..3 {
            let late = format!("/late-{round}");
            disk.fill();
            fails_to_commit(&*session, folder.path(), &late).await;
            reaches(&*other, SessionState::Suspended).await;
            // No session can read or change a tree that is not on the disk.
            assert_eq!(other.get(&path(&late)).await, Err(Error::Suspended));
            let ephemeral = Operation::create(path("/mine"), NodeKind::Ephemeral, "");
            assert_eq!(other.commit(vec![ephemeral]).await, Err(Error::Suspended.into()));
            let Err(error) = registry.open().await else { panic!("a session was opened") };
            assert!(error.to_string().contains("make room"), "{error}");
            // A session that was suspended by the test stays suspended.
            registry.suspend(other.id());

            disk.make_room();
            reaches(&*session, SessionState::Connected).await;
            assert_eq!(session.obstacle(), None);
            assert_eq!(*other.state().borrow(), SessionState::Suspended);
            registry.resume(other.id());
            while !matches!(next(&mut watch).await, WatchEvent::Snapshot(nodes) if nodes.iter().any(|node| node.path == path(&late)))
            {
            }
            assert!(exists(&*session, &late).await);
            commit(&*session, vec![node(&format!("/well-{round}"))]).await;
        }
    }
    let session = Embedded::open(folder.path()).unwrap().open().await.unwrap();
    for kept in ["/a", "/late-0", "/late-1", "/late-2", "/well-0", "/well-1", "/well-2"] {
        assert!(exists(&*session, kept).await, "{kept}");
    }
}

/// Records the state of the session whenever the watch has an event.
struct StateRecorder {
    state: watch::Receiver<SessionState>,
    seen: Mutex<Vec<SessionState>>,
}

impl Wake for StateRecorder {
    fn wake(self: Arc<Self>) {
        self.seen.lock().unwrap().push(*self.state.borrow());
    }
}

#[tokio::test]
async fn a_session_is_connected_before_its_watches_send_new_snapshots() {
    let registry = Embedded::in_memory();
    let session = registry.open().await.unwrap();
    let mut watch = session.watch(&path("/"), Arc::new(|_| true)).await.unwrap();
    next(&mut watch).await;
    registry.suspend(session.id());
    let recorder = Arc::new(StateRecorder { state: session.state(), seen: Mutex::default() });
    let waker = Waker::from(Arc::clone(&recorder));
    assert!(watch.poll_recv(&mut Context::from_waker(&waker)).is_pending());
    registry.resume(session.id());
    assert_eq!(*recorder.seen.lock().unwrap(), [SessionState::Connected]);
}

#[tokio::test]
async fn an_acknowledged_write_survives_a_process_that_ends_while_the_disk_is_full() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), Disk::default());
    {
        let session = disk.open(folder.path()).open().await.unwrap();
        commit(&*session, vec![node("/a")]).await;
        disk.fill();
        fails_to_commit(&*session, folder.path(), "/b").await;
    }
    let session = Embedded::open(folder.path()).unwrap().open().await.unwrap();
    assert!(exists(&*session, "/a").await);
    assert!(!exists(&*session, "/b").await);
}

#[tokio::test]
async fn transaction_ids_that_cannot_be_reserved_suspend_sessions_and_are_never_used_twice() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), Disk::default());
    let registry = disk.open(folder.path());
    let session = registry.open().await.unwrap();
    let before = created(&commit(&*session, vec![node("/before")]).await[0]).1.created;
    disk.fill();
    // An empty transaction has an id, too. It needs no room until the reserved ids are used up.
    let mut used = 0;
    let error = loop {
        match session.commit(vec![]).await {
            Ok(_) => used += 1,
            Err(error) => break error.error,
        }
    };
    assert_eq!(error, Error::Suspended);
    assert!(session.obstacle().unwrap().contains("make room"));
    disk.make_room();
    reaches(&*session, SessionState::Connected).await;
    let after = created(&commit(&*session, vec![node("/after")]).await[0]).1.created;
    assert!(after.0 > before.0 + used, "{after:?} after {used} more than {before:?}");
}

#[tokio::test]
async fn a_transaction_that_depends_on_an_unwritten_one_is_not_acknowledged() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), Disk::default());
    let session = disk.open(folder.path()).open().await.unwrap();
    disk.fill();
    let parent = session.commit(vec![node("/a")]);
    let ephemeral = session.commit(vec![Operation::create(path("/a/mine"), NodeKind::Ephemeral, "")]);
    assert!(parent.await.is_err());
    assert!(ephemeral.await.is_err());
}
