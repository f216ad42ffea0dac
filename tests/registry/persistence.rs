//! Nodes and transaction ids of the embedded registry across restarts.

use std::fs::{Permissions, metadata, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path as FilePath;
use std::sync::Arc;

use sidekeeper::registry::Registry;
use sidekeeper::registry::embedded::{Embedded, OpenError};
use sidekeeper::tree::{NodeKind, Operation, Zxid};

use crate::registries::{commit, created, exists, path};

fn open(folder: &FilePath) -> Embedded {
    Embedded::open_with_clock(folder, Arc::new(|| 1_700_000_000_123)).unwrap()
}

async fn last_zxid(registry: &Embedded) -> Zxid {
    let session = registry.open().await.unwrap();
    let probe = commit(&*session, vec![Operation::create(path("/probe"), NodeKind::Ephemeral, "")]).await;
    created(&probe[0]).1.created
}

#[tokio::test]
async fn skipped_transaction_ids_stay_skipped_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let far = Zxid(1 << 41);
    {
        let registry = open(folder.path());
        let session = registry.open().await.unwrap();
        assert!(session.can_skip_ids());
        session.skip_ids(far).await.unwrap();
        assert!(last_zxid(&registry).await >= far);
        // A lower one changes nothing.
        session.skip_ids(Zxid(5)).await.unwrap();
        assert!(last_zxid(&registry).await > far);
    }
    assert!(last_zxid(&open(folder.path())).await > far);
    let registry = Embedded::in_memory();
    registry.open().await.unwrap().skip_ids(far).await.unwrap();
    assert!(last_zxid(&registry).await >= far);
}

#[tokio::test]
async fn persistent_nodes_survive_as_they_were_and_ephemeral_ones_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let before = {
        let session = open(folder.path()).open().await.unwrap();
        let steps = vec![
            Operation::create(path("/a"), NodeKind::Persistent, "one"),
            Operation::create(path("/a/b"), NodeKind::Persistent, [0, 255]),
            Operation::create(path("/a/gone"), NodeKind::Persistent, ""),
            Operation::create(path("/a/mine"), NodeKind::Ephemeral, ""),
            Operation::create(path("/box"), NodeKind::Container, ""),
            Operation::create(path("/box/kept"), NodeKind::Persistent, ""),
            Operation::create(path("/empty"), NodeKind::Container, ""),
            Operation::create(path("/empty/too"), NodeKind::Container, ""),
            Operation::create(path("/empty/too/mine"), NodeKind::Ephemeral, ""),
        ];
        commit(&*session, steps).await;
        commit(&*session, vec![Operation::set(path("/a"), "two"), Operation::delete(path("/a/gone"))]).await;
        commit(&*session, vec![Operation::set(path("/"), "root")]).await;
        let paths = ["/", "/a", "/a/b", "/box", "/box/kept"].map(|at| session.get(&path(at)));
        futures::future::join_all(paths).await
    };
    let session = open(folder.path()).open().await.unwrap();
    let paths = ["/", "/a", "/a/b", "/box", "/box/kept"].map(|at| session.get(&path(at)));
    assert_eq!(futures::future::join_all(paths).await, before);
    for removed in ["/a/gone", "/a/mine", "/empty/too", "/empty"] {
        assert!(!exists(&*session, removed).await, "{removed}");
    }
    let mut children = session.children(&path("/")).await.unwrap().unwrap();
    children.sort();
    assert_eq!(children, ["a", "box"]);
    // A container is still one.
    commit(&*session, vec![Operation::delete(path("/box/kept"))]).await;
    assert!(!exists(&*session, "/box").await);
}

#[tokio::test]
async fn transaction_ids_grow_over_restarts_even_without_anything_stored() {
    let folder = tempfile::tempdir().unwrap();
    let mut last = Zxid(0);
    for _ in 0..3 {
        let registry = open(folder.path());
        let zxid = last_zxid(&registry).await;
        assert!(zxid > last, "{zxid:?} after {last:?}");
        last = zxid;
    }
}

#[tokio::test]
async fn ephemeral_nodes_cost_no_write() {
    let folder = tempfile::tempdir().unwrap();
    let registry = open(folder.path());
    let session = registry.open().await.unwrap();
    let size_and_time = || {
        let file = metadata(folder.path().join("registry.redb")).unwrap();
        (file.len(), file.modified().unwrap())
    };
    commit(&*session, vec![Operation::create(path("/a"), NodeKind::Persistent, "")]).await;
    let before = size_and_time();
    for _ in 0..100 {
        commit(&*session, vec![Operation::create(path("/a/e"), NodeKind::Ephemeral, "")]).await;
        commit(&*session, vec![Operation::delete(path("/a/e"))]).await;
    }
    assert_eq!(size_and_time(), before);
    commit(&*session, vec![Operation::set(path("/a"), "x")]).await;
    assert_ne!(size_and_time(), before);
}

#[tokio::test]
async fn a_folder_belongs_to_one_registry_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let registry = open(folder.path());
    assert!(matches!(Embedded::open(folder.path()), Err(OpenError::File { .. })));
    // The folder is free again when the last clone and the last session are dropped.
    let session = registry.open().await.unwrap();
    drop(registry);
    assert!(Embedded::open(folder.path()).is_err());
    drop(session);
    assert!(Embedded::open(folder.path()).is_ok());
}

#[tokio::test]
async fn a_file_of_something_else_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("registry.redb");
    std::fs::write(&file, "not a registry").unwrap();
    let Err(error) = Embedded::open(folder.path()) else { panic!("opened") };
    assert!(error.to_string().contains(&file.display().to_string()), "{error}");
}

fn mode(of: &FilePath) -> u32 {
    metadata(of).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn only_the_owner_can_read_the_stored_file() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("new");
    let file = folder.join("registry.redb");
    drop(open(&folder));
    assert_eq!((mode(&folder), mode(&file)), (0o700, 0o600));
    // A file that other users can read is closed to them. A folder keeps its mode: other users may need it.
    set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
    set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    drop(open(&folder));
    assert_eq!((mode(&folder), mode(&file)), (0o755, 0o600));
    // A permission that an operator gave to a group stays.
    set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
    drop(open(&folder));
    assert_eq!(mode(&file), 0o640);
}

#[tokio::test]
async fn ten_thousand_nodes_of_one_transaction_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let steps: Vec<_> = (0..10_000)
        .map(|number| Operation::create(path(&format!("/{number}")), NodeKind::Persistent, "x"))
        .collect();
    {
        let session = open(folder.path()).open().await.unwrap();
        commit(&*session, steps).await;
    }
    let session = open(folder.path()).open().await.unwrap();
    assert_eq!(session.children(&path("/")).await.unwrap().unwrap().len(), 10_000);
}
