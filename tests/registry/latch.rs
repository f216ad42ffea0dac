//! The latch that sidecars share with Java peers: exclusive, with bounded waits, and without nodes that stay.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use sidekeeper::registry::counted::{Counted, Counts};
use sidekeeper::registry::embedded::Embedded;
use sidekeeper::registry::latch::{Host, LatchError};
use sidekeeper::registry::{Error, Registry, Session, SessionState};
use sidekeeper::runner::clock::Clock;
use sidekeeper::tree::{CommitResult, NodeKind, Operation, OperationResult, Path, Transaction, WatchEvent};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use uuid::Uuid;

use crate::conformance::on_both;
use crate::registries::{PATIENCE, TestRegistry, commit, hold, next, path, reaches};
use crate::support::altered_session::{Alteration, AlteredSession};

on_both! {
    one_contender_at_a_time_holds_the_latch,
    a_node_of_the_latch_has_the_name_that_curator_gives_it,
    a_contender_that_waits_too_long_names_the_session_at_the_head,
    work_that_takes_too_long_is_stopped,
    work_that_panics_releases_the_latch,
    a_dropped_caller_leaves_no_node,
    a_contender_whose_node_is_deleted_still_gets_the_latch,
    a_broken_connection_leaves_no_node,
    a_lost_session_ends_the_wait_with_an_error,
    a_contender_that_gets_wrong_answers_leaves_no_node,
    a_latch_that_is_deleted_and_created_while_a_contender_joins_is_held,
    h1_a_contender_leaves_no_node_although_what_travels_with_others_is_late,
}

const LIMIT: Duration = Duration::from_secs(10);

/// Work that must not run.
fn unreachable_work() {
    panic!("this work was done");
}

/// Waits until the latch has no contender.
async fn wait_until_free(session: &dyn Session) {
    let mut watch = session.watch(&path("/latch"), Arc::new(|_| false)).await.unwrap();
    next(&mut watch).await;
    while session.children(&path("/latch")).await.unwrap().is_some_and(|names| !names.is_empty()) {
        next(&mut watch).await;
    }
}

async fn one_contender_at_a_time_holds_the_latch(registry: TestRegistry) {
    let sessions = [registry.session().await, registry.session().await, registry.session().await];
    let inside = Arc::new(AtomicUsize::new(0));
    let holding = (0..30).map(|number| {
        let (session, inside) = (Arc::clone(&sessions[number % 3]), Arc::clone(&inside));
        hold(session, path("/a/b/latch"), PATIENCE, move || async move {
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold the latch");
            tokio::task::yield_now().await;
            inside.fetch_sub(1, Ordering::SeqCst);
            number
        })
    });
    let held: Result<Vec<_>, _> = join_all(holding).await.into_iter().collect();
    assert_eq!(held.map(|held| held.len()), Ok(30));
    let left = sessions[0].children(&path("/a/b/latch")).await.unwrap();
    assert!(left.is_none_or(|names| names.is_empty()));
}

/// A contender whose name is known.
#[derive(Clone)]
struct KnownContender(Clock, Uuid);

impl Host for KnownContender {
    fn sleep(&self, pause: Duration) -> BoxFuture<'static, ()> {
        Host::sleep(&self.0, pause)
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        Host::spawn(&self.0, task);
    }

    fn contender(&self) -> Uuid {
        self.1
    }
}

async fn a_node_of_the_latch_has_the_name_that_curator_gives_it(registry: TestRegistry) {
    let session = registry.session().await;
    let (other, id) = (Arc::clone(&session), Uuid::new_v4());
    let host = KnownContender(Clock::start(), id);
    let look = move || async move { other.children(&path("/latch")).await.unwrap().unwrap() };
    let names = sidekeeper::registry::latch::hold(&host, Arc::clone(&session), path("/latch"), LIMIT, look);
    assert_eq!(names.await, Ok(vec![format!("_c_{id}-latch-0000000000")]));
}

/// Takes the latch and keeps it until the sender is dropped.
async fn hold_until_released(session: &Arc<dyn Session>) -> oneshot::Sender<()> {
    let (release, released) = oneshot::channel::<()>();
    let (held, is_held) = oneshot::channel();
    let holding = hold(Arc::clone(session), path("/latch"), PATIENCE, move || async move {
        held.send(()).unwrap();
        let _ = released.await;
    });
    drop(holding);
    timeout(PATIENCE, is_held).await.unwrap().unwrap();
    release
}

async fn a_contender_that_waits_too_long_names_the_session_at_the_head(registry: TestRegistry) {
    let (session, other) = (registry.session().await, registry.session().await);
    let release = hold_until_released(&session).await;
    let short = Duration::from_millis(200);
    let waiting = hold(Arc::clone(&other), path("/latch"), short, || async { unreachable_work() });
    let Err(error @ LatchError::TimedOut { .. }) = waiting.await else { panic!("held") };
    assert!(error.to_string().contains(&format!("of session {} is at its head", session.id())), "{error}");
    assert_eq!(other.children(&path("/latch")).await.unwrap().unwrap().len(), 1);
    let next = hold(other, path("/latch"), LIMIT, || async {});
    drop(release);
    assert_eq!(next.await, Ok(()));
}

async fn work_that_takes_too_long_is_stopped(registry: TestRegistry) {
    let session = registry.session().await;
    let limit = Duration::from_millis(300);
    let held = hold(Arc::clone(&session), path("/latch"), limit, std::future::pending::<()>).await;
    assert_eq!(held, Err(LatchError::Overran { latch: path("/latch"), limit }));
    wait_until_free(&*session).await;
}

async fn work_that_panics_releases_the_latch(registry: TestRegistry) {
    let session = registry.session().await;
    let held = hold(Arc::clone(&session), path("/latch"), LIMIT, || async { unreachable_work() });
    assert_eq!(held.await, Err(LatchError::Panicked(path("/latch"))));
    wait_until_free(&*session).await;
}

async fn a_dropped_caller_leaves_no_node(registry: TestRegistry) {
    let (session, other) = (registry.session().await, registry.session().await);
    let release = hold_until_released(&session).await;
    let (done, is_done) = oneshot::channel();
    drop(hold(other, path("/latch"), LIMIT, move || async move { done.send(()).unwrap() }));
    drop(release);
    timeout(PATIENCE, is_done).await.unwrap().unwrap();
    wait_until_free(&*session).await;
}

async fn a_contender_whose_node_is_deleted_still_gets_the_latch(registry: TestRegistry) {
    let (session, other) = (registry.session().await, registry.session().await);
    let release = hold_until_released(&session).await;
    let mut watch = session.watch(&path("/latch"), Arc::new(|_| false)).await.unwrap();
    next(&mut watch).await;
    let waiting = hold(other, path("/latch"), LIMIT, || async {});
    let WatchEvent::Changes(changes) = next(&mut watch).await else { panic!("no changes") };
    commit(&*session, vec![Operation::delete(changes[0].path().clone())]).await;
    drop(release);
    assert_eq!(waiting.await, Ok(()));
    wait_until_free(&*session).await;
}

async fn a_broken_connection_leaves_no_node(registry: TestRegistry) {
    let (session, victim) = (registry.session().await, registry.victim().await);
    let release = hold_until_released(&session).await;
    let mut watch = session.watch(&path("/latch"), Arc::new(|_| false)).await.unwrap();
    next(&mut watch).await;
    let waiting = hold(Arc::clone(&victim), path("/latch"), Duration::from_millis(500), || async {});
    next(&mut watch).await;
    registry.interrupt(&*victim).await;
    // The contender gives up while it cannot delete its node, and deletes the node when it is connected again.
    assert!(matches!(waiting.await, Err(LatchError::TimedOut { head: None, .. })));
    registry.reconnect(&*victim).await;
    drop(release);
    wait_until_free(&*session).await;
    assert_eq!(*victim.state().borrow(), SessionState::Connected);
}

async fn a_lost_session_ends_the_wait_with_an_error(registry: TestRegistry) {
    let (session, victim) = (registry.session().await, registry.victim().await);
    let _release = hold_until_released(&session).await;
    let mut watch = session.watch(&path("/latch"), Arc::new(|_| false)).await.unwrap();
    next(&mut watch).await;
    let waiting = hold(Arc::clone(&victim), path("/latch"), PATIENCE, || async {});
    next(&mut watch).await;
    registry.lose(&*victim).await;
    reaches(&*victim, SessionState::Lost).await;
    let lost = LatchError::Registry { latch: path("/latch"), error: Error::SessionLost };
    assert_eq!(waiting.await, Err(lost));
}

/// A network that changes some answers.
struct Garbled {
    /// How many lists of children come without names.
    empty_lists: AtomicUsize,
    /// How many created nodes get another name on the way.
    renamed: AtomicUsize,
}

/// Whether one is left; takes it.
fn takes_one(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

impl Alteration for Garbled {
    fn commit(&self, inner: &Arc<dyn Session>, steps: Transaction) -> BoxFuture<'static, CommitResult> {
        let creates = steps.iter().any(|step| matches!(step, Operation::Create { .. }));
        let committed = inner.commit(steps);
        if !creates || !takes_one(&self.renamed) {
            return committed;
        }
        let rename = |result| match result {
            OperationResult::Created { path, stat } => {
                let renamed = path.parent().unwrap().child(&format!("{}9", path.name()));
                OperationResult::Created { path: renamed, stat }
            }
            other => other,
        };
        committed.map(move |result| result.map(|all| all.into_iter().map(rename).collect())).boxed()
    }

    fn children(
        &self,
        inner: &Arc<dyn Session>,
        path: &Path,
    ) -> BoxFuture<'static, Result<Option<Vec<String>>, Error>> {
        match takes_one(&self.empty_lists) {
            true => async { Ok(Some(Vec::new())) }.boxed(),
            false => inner.children(path),
        }
    }
}

async fn a_contender_that_gets_wrong_answers_leaves_no_node(registry: TestRegistry) {
    let session = registry.session().await;
    for (empty_lists, renamed) in [(1, 0), (0, 1), (2, 1), (1, 2)] {
        let alteration = Garbled { empty_lists: empty_lists.into(), renamed: renamed.into() };
        let garbled = AlteredSession { inner: Arc::clone(&session), alteration };
        // Without the containers, one more creation would get another name.
        session.ensure(&path("/latch"), NodeKind::Persistent, b"").await.unwrap();
        assert_eq!(hold(Arc::new(garbled), path("/latch"), LIMIT, || async {}).await, Ok(()));
        let left = session.children(&path("/latch")).await.unwrap();
        assert_eq!(left, Some(Vec::new()), "{empty_lists} lists without names, {renamed} other names");
    }
}

/// The registry and other contenders change the containers after a contender has looked, and before it joins.
struct Meanwhile {
    changes: Mutex<Vec<Operation>>,
}

impl Alteration for Meanwhile {
    fn commit(&self, inner: &Arc<dyn Session>, steps: Transaction) -> BoxFuture<'static, CommitResult> {
        let joins = steps.iter().any(|step| matches!(step, Operation::Create { .. }));
        let change = if joins { self.changes.lock().unwrap().pop() } else { None };
        // Requests take effect in the order of the calls.
        let changed = change.map(|change| inner.commit(vec![change]));
        let committed = inner.commit(steps);
        Box::pin(async move {
            if let Some(changed) = changed {
                changed.await.unwrap();
            }
            committed.await
        })
    }
}

async fn a_latch_that_is_deleted_and_created_while_a_contender_joins_is_held(registry: TestRegistry) {
    let session = registry.session().await;
    session.ensure(&path("/a/latch"), NodeKind::Persistent, b"").await.unwrap();
    let create = |name: &str| Operation::create(path(name), NodeKind::Persistent, "");
    let delete = |name: &str| Operation::delete(path(name));
    // The last one comes first.
    let changes = vec![create("/a/latch"), create("/a"), delete("/a"), delete("/a/latch")];
    let alteration = Meanwhile { changes: Mutex::new(changes) };
    let altered = Arc::new(AlteredSession { inner: Arc::clone(&session), alteration });
    let seen: Arc<dyn Session> = altered.clone();
    assert_eq!(hold(seen, path("/a/latch"), LIMIT, || async {}).await, Ok(()));
    assert_eq!(*altered.alteration.changes.lock().unwrap(), []);
    assert_eq!(session.children(&path("/a/latch")).await.unwrap(), Some(Vec::new()));
}

/// What travels with others is sent only when the test says so, if it creates something.
struct Late {
    sent: watch::Receiver<bool>,
    last: Arc<Mutex<Option<JoinHandle<CommitResult>>>>,
}

impl Alteration for Late {
    fn commit_with_others(
        &self,
        inner: &Arc<dyn Session>,
        steps: Transaction,
    ) -> BoxFuture<'static, CommitResult> {
        if !steps.iter().any(|step| matches!(step, Operation::Create { .. })) {
            return inner.commit(steps);
        }
        let (mut sent, inner) = (self.sent.clone(), Arc::clone(inner));
        // Dropping the future of the answer does not take the request back.
        *self.last.lock().unwrap() = Some(tokio::spawn(async move {
            sent.wait_for(|sent| *sent).await.unwrap();
            inner.commit(steps).await
        }));
        std::future::pending().boxed()
    }
}

/// A contender that gives up looks for the node that it may have created. If the creation waited for others, the read would
/// overtake it, and the node would stop the whole fleet.
async fn h1_a_contender_leaves_no_node_although_what_travels_with_others_is_late(registry: TestRegistry) {
    let session = registry.session().await;
    let (send, sent) = watch::channel(false);
    let last = Arc::default();
    let alteration = Late { sent, last: Arc::clone(&last) };
    let late = AlteredSession { inner: Arc::clone(&session), alteration };
    let _ = hold(Arc::new(late), path("/latch"), Duration::from_millis(300), || async {}).await;
    send.send_replace(true);
    let waiting = last.lock().unwrap().take();
    if let Some(waiting) = waiting {
        let _ = waiting.await.unwrap();
    }
    let left = session.children(&path("/latch")).await.unwrap().unwrap_or_default();
    assert_eq!(left, Vec::<String>::new());
}

#[tokio::test]
async fn a_free_latch_costs_four_requests_with_and_without_its_containers() {
    let registry = Counted::new(Embedded::in_memory());
    let session = registry.open().await.unwrap();
    session.ensure(&path("/there/other"), NodeKind::Persistent, b"").await.unwrap();
    for (latch, containers) in [("/there", 0), ("/missing/latch", 2)] {
        let before = registry.counts();
        hold(Arc::clone(&session), path(latch), LIMIT, || async {}).await.unwrap();
        let expected = Counts { reads: 2, transactions: 2, operations: 2 + containers, ..Counts::default() };
        assert_eq!(registry.counts().since(before), expected, "{latch}");
    }
}
