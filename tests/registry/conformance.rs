//! Nodes, versions, transactions and sessions, on both registries, and on ZooKeeper by TLS.

use std::sync::Arc;

use sidekeeper::registry::{CommitError, Error, Session, SessionState};
use sidekeeper::tree::{NodeKind, Operation, OperationResult, WatchEvent};
use tokio::time::timeout;

use crate::registries::{PATIENCE, TestRegistry, commit, created, exists, next, path, reaches};

macro_rules! on_both {
    ($($test:ident),* $(,)?) => {
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test($crate::registries::TestRegistry::embedded()).await;
            })*
        }
        mod zookeeper {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test($crate::registries::TestRegistry::zookeeper(stringify!($test)).await).await;
            })*
        }
    };
}
pub(crate) use on_both;

/// On both registries, and on ZooKeeper by TLS.
macro_rules! on_all {
    ($($test:ident),* $(,)?) => {
        $crate::conformance::on_both! { $($test),* }
        mod zookeeper_by_tls {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test($crate::registries::TestRegistry::zookeeper_by_tls(stringify!($test)).await).await;
            })*
        }
    };
}
pub(crate) use on_all;

on_all! {
    a_node_is_created_read_set_and_deleted,
    ephemeral_nodes_end_with_their_session,
    sequential_names_count_the_children_ever_created,
    a_version_that_does_not_match_is_refused,
    steps_fail_for_the_reason_that_applies,
    a_failed_transaction_changes_nothing,
    a_transaction_sees_its_own_steps,
    transaction_ids_grow,
    a_node_is_stamped_with_the_registrys_time,
    ensure_creates_missing_nodes,
    a_subtree_is_read_with_its_data,
    several_nodes_are_read_in_the_order_of_their_paths,
    a_container_is_removed_after_its_last_child,
    commits_take_effect_in_the_order_of_the_calls,
    a_transaction_may_have_two_thousand_steps,
    a_lost_session_stays_lost,
    a_closed_session_leaves_no_ephemeral_nodes,
    a_dropped_session_leaves_no_ephemeral_nodes,
    an_interrupted_session_refuses_requests_until_it_is_connected_again,
}

async fn a_subtree_is_read_with_its_data(registry: TestRegistry) {
    let session = registry.session().await;
    assert_eq!(session.subtree(&path("/a")).await, Ok(Vec::new()));
    let create = |text: &str| Operation::create(path(text), NodeKind::Persistent, text);
    commit(&*session, ["/a", "/a/b", "/a/c", "/a/b/d", "/ab"].map(create).into()).await;
    let read = session.subtree(&path("/a")).await.unwrap();
    let texts: Vec<_> = read.iter().map(|node| node.path.as_str()).collect();
    assert_eq!(texts, ["/a", "/a/b", "/a/b/d", "/a/c"]);
    assert!(read.iter().all(|node| &*node.data == node.path.as_str().as_bytes()));
}

async fn several_nodes_are_read_in_the_order_of_their_paths(registry: TestRegistry) {
    let session = registry.session().await;
    assert_eq!(session.nodes(&[]).await, Ok(Vec::new()));
    let create = |text: &str| Operation::create(path(text), NodeKind::Persistent, text);
    commit(&*session, ["/a", "/a/b", "/c"].map(create).into()).await;
    let read = session.nodes(&["/c", "/missing", "/a/b", "/c"].map(path)).await.unwrap();
    let data: Vec<_> = read.iter().map(|node| node.as_ref().map(|node| &*node.data)).collect();
    assert_eq!(data, [Some(&b"/c"[..]), None, Some(b"/a/b"), Some(b"/c")]);
    assert!(read.iter().flatten().all(|node| node.path.as_str().as_bytes() == &*node.data));
    assert_eq!(read[2], session.get(&path("/a/b")).await.unwrap());
}

async fn a_node_is_created_read_set_and_deleted(registry: TestRegistry) {
    let session = registry.session().await;
    assert_eq!(session.get(&path("/a")).await, Ok(None));
    assert_eq!(session.children(&path("/a")).await, Ok(None));
    let results = commit(&*session, vec![Operation::create(path("/a"), NodeKind::Persistent, "one")]).await;
    let (at, stat) = created(&results[0]);
    assert_eq!(at, path("/a"));
    assert_eq!((stat.version, stat.ephemeral_owner, stat.created), (0, None, stat.modified));
    assert!(stat.modified_ms > 1_600_000_000_000, "{stat:?}");

    let results = commit(&*session, vec![Operation::set(path("/a"), "two")]).await;
    let OperationResult::Set { stat: set } = &results[0] else { panic!("{results:?}") };
    assert_eq!((set.version, set.created), (1, stat.created));
    let node = session.get(&path("/a")).await.unwrap().unwrap();
    assert_eq!((&*node.data, &node.stat), (&b"two"[..], set));

    commit(&*session, vec![Operation::create(path("/a/b"), NodeKind::Persistent, "")]).await;
    assert_eq!(session.children(&path("/a")).await, Ok(Some(vec!["b".to_owned()])));
    assert_eq!(session.children(&path("/a/b")).await, Ok(Some(vec![])));
    let both = vec![Operation::delete(path("/a/b")), Operation::delete(path("/a"))];
    assert_eq!(commit(&*session, both).await, [OperationResult::Deleted, OperationResult::Deleted]);
    assert!(!exists(&*session, "/a").await);
    assert_eq!(commit(&*session, vec![]).await, []);
}

/// Both registries run on this machine, so they use the clock of the test.
async fn a_node_is_stamped_with_the_registrys_time(registry: TestRegistry) {
    let session = registry.session().await;
    let mut latest = now_ms();
    let create = Operation::create(path("/clock"), NodeKind::Persistent, "");
    // Setting the same data stamps the node, too.
    for step in [create, Operation::set(path("/clock"), ""), Operation::set(path("/clock"), "")] {
        let results = commit(&*session, vec![step]).await;
        let (OperationResult::Created { stat, .. } | OperationResult::Set { stat }) = &results[0] else {
            panic!("{results:?}")
        };
        assert!((latest..=now_ms()).contains(&stat.modified_ms), "{latest}, {stat:?}, {}", now_ms());
        assert_eq!(session.get(&path("/clock")).await.unwrap().unwrap().stat, *stat);
        latest = now_ms();
        while now_ms() == latest {
            tokio::task::yield_now().await;
        }
        latest = now_ms();
    }
}

fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    since.as_millis().try_into().unwrap()
}

async fn ephemeral_nodes_end_with_their_session(registry: TestRegistry) {
    let (session, other) = (registry.session().await, registry.session().await);
    assert_ne!(session.id(), other.id());
    let mine = vec![
        Operation::create(path("/kept"), NodeKind::Persistent, ""),
        Operation::create(path("/kept/mine"), NodeKind::Ephemeral, ""),
    ];
    let results = commit(&*session, mine).await;
    assert_eq!(created(&results[1]).1.ephemeral_owner, Some(session.id()));
    commit(&*other, vec![Operation::create(path("/other"), NodeKind::Ephemeral, "")]).await;
    assert!(exists(&*other, "/kept/mine").await);
    session.close().await;
    assert!(!exists(&*other, "/kept/mine").await);
    assert!(exists(&*other, "/kept").await && exists(&*other, "/other").await);
}

async fn sequential_names_count_the_children_ever_created(registry: TestRegistry) {
    let session = registry.session().await;
    commit(&*session, vec![Operation::create(path("/q"), NodeKind::Persistent, "")]).await;
    let next = || Operation::create(path("/q/n-"), NodeKind::EphemeralSequential, "");
    let results = commit(&*session, vec![next(), next()]).await;
    assert_eq!(created(&results[0]).0, path("/q/n-0000000000"));
    assert_eq!(created(&results[1]).0, path("/q/n-0000000001"));
    commit(&*session, vec![Operation::create(path("/q/plain"), NodeKind::Persistent, "")]).await;
    commit(&*session, vec![Operation::delete(path("/q/plain"))]).await;
    let results = commit(&*session, vec![next()]).await;
    let (at, stat) = created(&results[0]);
    assert_eq!((at, stat.ephemeral_owner), (path("/q/n-0000000003"), Some(session.id())));
}

async fn a_version_that_does_not_match_is_refused(registry: TestRegistry) {
    let session = registry.session().await;
    commit(&*session, vec![Operation::create(path("/a"), NodeKind::Persistent, "")]).await;
    let set = |version| Operation::Set { path: path("/a"), data: b"x"[..].into(), version };
    commit(&*session, vec![set(Some(0)), set(Some(1)), set(None)]).await;
    let refused = Err(CommitError { index: Some(0), error: Error::BadVersion(path("/a")) });
    assert_eq!(session.commit(vec![set(Some(2))]).await, refused);
    let check = |version| Operation::Check { path: path("/a"), version };
    assert_eq!(commit(&*session, vec![check(Some(3)), check(None)]).await.len(), 2);
    assert_eq!(session.commit(vec![check(Some(0))]).await, refused);
    let delete = |version| Operation::Delete { path: path("/a"), version };
    assert_eq!(session.commit(vec![delete(Some(0))]).await, refused);
    commit(&*session, vec![delete(Some(3))]).await;
}

async fn steps_fail_for_the_reason_that_applies(registry: TestRegistry) {
    let session = registry.session().await;
    let setup = vec![
        Operation::create(path("/a"), NodeKind::Persistent, ""),
        Operation::create(path("/a/b"), NodeKind::Persistent, ""),
        Operation::create(path("/e"), NodeKind::Ephemeral, ""),
    ];
    commit(&*session, setup).await;
    let create = |at: &str| Operation::create(path(at), NodeKind::Persistent, "");
    for (operation, error) in [
        (create("/x/y"), Error::NoNode(path("/x/y"))),
        (create("/a/b"), Error::NodeExists(path("/a/b"))),
        (create("/"), Error::NodeExists(path("/"))),
        (create("/e/y"), Error::ParentIsEphemeral(path("/e/y"))),
        (Operation::set(path("/x"), ""), Error::NoNode(path("/x"))),
        (Operation::check(path("/x")), Error::NoNode(path("/x"))),
        (Operation::delete(path("/x")), Error::NoNode(path("/x"))),
        (Operation::delete(path("/a")), Error::NotEmpty(path("/a"))),
        (Operation::delete(path("/")), Error::Refused("the root cannot be deleted".to_owned())),
    ] {
        let failed = session.commit(vec![Operation::check(path("/a")), operation.clone()]).await;
        assert_eq!(failed, Err(CommitError { index: Some(1), error }), "{operation:?}");
    }
}

async fn a_failed_transaction_changes_nothing(registry: TestRegistry) {
    let session = registry.session().await;
    let setup = vec![
        Operation::create(path("/a"), NodeKind::Persistent, "old"),
        Operation::create(path("/a/gone"), NodeKind::Persistent, "kept"),
        Operation::create(path("/a/mine"), NodeKind::Ephemeral, "kept"),
    ];
    commit(&*session, setup).await;
    let before = session.get(&path("/a")).await;
    let mine = session.get(&path("/a/mine")).await;
    let mut watch = session.watch(&path("/"), Arc::new(|_| true)).await.unwrap();
    next(&mut watch).await;
    let failing = vec![
        Operation::create(path("/a/new"), NodeKind::Persistent, ""),
        Operation::create(path("/a/new/below"), NodeKind::Ephemeral, ""),
        Operation::create(path("/a/n-"), NodeKind::EphemeralSequential, ""),
        Operation::set(path("/a"), "new"),
        Operation::delete(path("/a/gone")),
        Operation::delete(path("/a/mine")),
        Operation::check(path("/missing")),
        Operation::create(path("/never"), NodeKind::Persistent, ""),
    ];
    let failed = session.commit(failing).await;
    assert_eq!(failed, Err(CommitError { index: Some(6), error: Error::NoNode(path("/missing")) }));
    assert_eq!(session.get(&path("/a")).await, before);
    assert_eq!(session.get(&path("/a/mine")).await, mine);
    let mut children = session.children(&path("/a")).await.unwrap().unwrap();
    children.sort();
    assert_eq!(children, ["gone", "mine"]);
    // The number of the failed creation was not used, and the watch shows only the next transaction.
    let sequential = Operation::create(path("/a/n-"), NodeKind::EphemeralSequential, "");
    let results = commit(&*session, vec![sequential]).await;
    assert_eq!(created(&results[0]).0, path("/a/n-0000000002"));
    let WatchEvent::Changes(changes) = next(&mut watch).await else { panic!("no changes") };
    assert_eq!(changes.len(), 1, "{changes:?}");
}

async fn a_transaction_sees_its_own_steps(registry: TestRegistry) {
    let session = registry.session().await;
    let create = |at: &str| Operation::create(path(at), NodeKind::Persistent, "");
    let steps = vec![
        create("/a"),
        create("/a/b"),
        Operation::set(path("/a/b"), "x"),
        Operation::Check { path: path("/a/b"), version: Some(1) },
        Operation::delete(path("/a/b")),
        create("/a/b"),
        Operation::Check { path: path("/a/b"), version: Some(0) },
    ];
    let results = commit(&*session, steps).await;
    assert_eq!(results.len(), 7);
    assert!(session.get(&path("/a/b")).await.unwrap().unwrap().data.is_empty());
}

async fn transaction_ids_grow(registry: TestRegistry) {
    let (session, other) = (registry.session().await, registry.session().await);
    let create = |at: &str| Operation::create(path(at), NodeKind::Persistent, "");
    let first = commit(&*session, vec![create("/a"), create("/b")]).await;
    assert_eq!(created(&first[0]).1.created, created(&first[1]).1.created);
    let second = commit(&*other, vec![create("/c")]).await;
    assert!(created(&second[0]).1.created > created(&first[1]).1.created);
    let third = commit(&*session, vec![Operation::set(path("/a"), "")]).await;
    let OperationResult::Set { stat } = &third[0] else { panic!("{third:?}") };
    assert!(stat.modified > created(&second[0]).1.created);
}

async fn ensure_creates_missing_nodes(registry: TestRegistry) {
    let session = registry.session().await;
    let deep = path("/a/b/c");
    assert_eq!(session.ensure(&deep, NodeKind::Ephemeral, b"data").await, Ok(true));
    assert_eq!(session.ensure(&deep, NodeKind::Ephemeral, b"other").await, Ok(false));
    let node = session.get(&deep).await.unwrap().unwrap();
    assert_eq!((&*node.data, node.stat.ephemeral_owner), (&b"data"[..], Some(session.id())));
    let parent = session.get(&path("/a/b")).await.unwrap().unwrap();
    assert_eq!((&*parent.data, parent.stat.ephemeral_owner), (&b""[..], None));
    let below = path("/a/b/c/d");
    let refused = session.ensure(&below, NodeKind::Persistent, b"").await;
    assert_eq!(refused, Err(Error::ParentIsEphemeral(below)));
    assert_eq!(session.ensure(&path("/"), NodeKind::Persistent, b"").await, Ok(false));
}

async fn a_container_is_removed_after_its_last_child(registry: TestRegistry) {
    let session = registry.session().await;
    let setup = vec![
        Operation::create(path("/outer"), NodeKind::Container, ""),
        Operation::create(path("/outer/inner"), NodeKind::Container, ""),
        Operation::create(path("/outer/inner/child"), NodeKind::Ephemeral, ""),
        Operation::create(path("/unused"), NodeKind::Container, ""),
    ];
    let results = commit(&*session, setup).await;
    assert_eq!(created(&results[0]).1.ephemeral_owner, None);
    let mut watch = session.watch(&path("/outer"), Arc::new(|_| false)).await.unwrap();
    next(&mut watch).await;
    commit(&*session, vec![Operation::delete(path("/outer/inner/child"))]).await;
    let mut removed = Vec::new();
    while removed.last().is_none_or(|last| *last != path("/outer")) {
        let WatchEvent::Changes(changes) = next(&mut watch).await else { panic!("no changes") };
        removed.extend(changes.iter().map(|change| change.path().clone()));
    }
    assert_eq!(removed, [path("/outer/inner/child"), path("/outer/inner"), path("/outer")]);
    assert!(exists(&*session, "/unused").await);
    let late = Operation::create(path("/outer/inner/child"), NodeKind::Ephemeral, "");
    let failed = session.commit(vec![late]).await;
    assert_eq!(failed.unwrap_err().error, Error::NoNode(path("/outer/inner/child")));
}

async fn commits_take_effect_in_the_order_of_the_calls(registry: TestRegistry) {
    let session = registry.session().await;
    commit(&*session, vec![Operation::create(path("/n"), NodeKind::Persistent, "")]).await;
    let mut pending = Vec::new();
    for number in 0..2_000 {
        // Each commit expects the version after the one before it; most futures are not polled, some are dropped.
        let set = Operation::Set {
            path: path("/n"),
            data: number.to_string().as_bytes().into(),
            version: Some(number),
        };
        let future = session.commit(vec![set]);
        if number % 3 != 0 {
            pending.push(future);
        }
    }
    for future in pending.into_iter().rev() {
        timeout(PATIENCE, future).await.expect("an answer").unwrap();
    }
    assert_eq!(&*session.get(&path("/n")).await.unwrap().unwrap().data, b"1999");
}

async fn a_transaction_may_have_two_thousand_steps(registry: TestRegistry) {
    let session = registry.session().await;
    commit(&*session, vec![Operation::create(path("/items"), NodeKind::Persistent, "")]).await;
    let mut watch = session.watch(&path("/items"), Arc::new(|_| true)).await.unwrap();
    next(&mut watch).await;
    let item = |number: i32| path("/items").child(&number.to_string());
    let creations = (0..2_000).map(|number| Operation::create(item(number), NodeKind::Persistent, "x"));
    let results = commit(&*session, creations.collect()).await;
    assert_eq!(results.len(), 2_000);
    let mut seen = 0;
    while let Ok(event) = watch.try_recv() {
        let WatchEvent::Changes(changes) = event else { panic!("{event:?}") };
        seen += changes.len();
    }
    assert_eq!(seen, 2_000);
    let deletions = (0..2_000).map(|number| Operation::delete(item(number)));
    commit(&*session, deletions.collect()).await;
    assert_eq!(session.children(&path("/items")).await, Ok(Some(vec![])));
}

/// Every call on a lost session fails.
async fn assert_lost(session: &dyn Session) {
    assert_eq!(*session.state().borrow(), SessionState::Lost);
    let step = Operation::create(path("/late"), NodeKind::Persistent, "");
    assert_eq!(session.commit(vec![step]).await, Err(Error::SessionLost.into()));
    assert_eq!(session.get(&path("/")).await, Err(Error::SessionLost));
    assert_eq!(session.children(&path("/")).await, Err(Error::SessionLost));
    assert_eq!(session.ensure(&path("/late"), NodeKind::Persistent, b"").await, Err(Error::SessionLost));
    assert_eq!(session.watch(&path("/"), Arc::new(|_| true)).await.unwrap_err(), Error::SessionLost);
    timeout(PATIENCE, session.close()).await.expect("to close");
}

async fn a_lost_session_stays_lost(registry: TestRegistry) {
    let (victim, other) = (registry.victim().await, registry.session().await);
    commit(&*victim, vec![Operation::create(path("/mine"), NodeKind::Ephemeral, "")]).await;
    let mut own_watch = victim.watch(&path("/"), Arc::new(|_| true)).await.unwrap();
    let mut watch = other.watch(&path("/mine"), Arc::new(|_| true)).await.unwrap();
    next(&mut own_watch).await;
    next(&mut watch).await;
    registry.lose(&*victim).await;
    let WatchEvent::Changes(changes) = next(&mut watch).await else { panic!("no changes") };
    assert_eq!(changes.iter().map(|change| change.path().as_str()).collect::<Vec<_>>(), ["/mine"]);
    assert_eq!(timeout(PATIENCE, own_watch.recv()).await, Ok(None));
    assert_lost(&*victim).await;
    let again = registry.victim().await;
    assert_ne!(again.id(), victim.id());
    commit(&*again, vec![Operation::create(path("/mine"), NodeKind::Ephemeral, "")]).await;
}

async fn a_closed_session_leaves_no_ephemeral_nodes(registry: TestRegistry) {
    let (session, other) = (registry.session().await, registry.session().await);
    let mut watch = session.watch(&path("/"), Arc::new(|_| true)).await.unwrap();
    next(&mut watch).await;
    // The last commit is not awaited. Its call precedes the close, so it takes effect before it.
    let create = |at: &str| Operation::create(path(at), NodeKind::Ephemeral, "");
    commit(&*session, vec![create("/one")]).await;
    let unpolled =
        session.commit(vec![create("/two"), Operation::create(path("/kept"), NodeKind::Persistent, "")]);
    session.close().await;
    assert!(!exists(&*other, "/one").await && !exists(&*other, "/two").await);
    assert!(exists(&*other, "/kept").await);
    assert_eq!(unpolled.await.map(|results| results.len()), Ok(2));
    while timeout(PATIENCE, watch.recv()).await.expect("the watch to end").is_some() {}
    assert_lost(&*session).await;
}

async fn a_dropped_session_leaves_no_ephemeral_nodes(registry: TestRegistry) {
    let (session, other) = (registry.session().await, registry.session().await);
    commit(&*session, vec![Operation::create(path("/mine"), NodeKind::Ephemeral, "")]).await;
    let mut watch = other.watch(&path("/mine"), Arc::new(|_| true)).await.unwrap();
    next(&mut watch).await;
    drop(session);
    assert!(matches!(next(&mut watch).await, WatchEvent::Changes(changes) if changes.len() == 1));
}

async fn an_interrupted_session_refuses_requests_until_it_is_connected_again(registry: TestRegistry) {
    let (victim, other) = (registry.victim().await, registry.session().await);
    commit(&*victim, vec![Operation::create(path("/mine"), NodeKind::Ephemeral, "")]).await;
    registry.interrupt(&*victim).await;
    let step = Operation::create(path("/late"), NodeKind::Persistent, "");
    assert_eq!(victim.commit(vec![step]).await, Err(Error::Suspended.into()));
    assert_eq!(victim.get(&path("/")).await, Err(Error::Suspended));
    assert_eq!(victim.children(&path("/")).await, Err(Error::Suspended));
    assert_eq!(victim.subtree(&path("/")).await, Err(Error::Suspended));
    assert_eq!(victim.nodes(&[path("/")]).await, Err(Error::Suspended));
    assert_eq!(victim.ensure(&path("/late"), NodeKind::Persistent, b"").await, Err(Error::Suspended));
    let mut early = victim.watch(&path("/"), Arc::new(|_| true)).await.unwrap();
    assert!(early.try_recv().is_err());
    registry.reconnect(&*victim).await;
    assert!(exists(&*other, "/mine").await && exists(&*victim, "/mine").await);
    assert!(matches!(next(&mut early).await, WatchEvent::Snapshot(nodes) if nodes.len() >= 2));
    reaches(&*victim, SessionState::Connected).await;
}
