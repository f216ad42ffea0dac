//! The latch that we share with Java: exclusive, bounded, and never leaving a node behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use sidekeeper::registry::counted::{Counted, Counts};
use sidekeeper::registry::embedded::Embedded;
use sidekeeper::registry::latch::{Host, LatchError};
use sidekeeper::registry::{Error, Registry, Session, SessionState};
use sidekeeper::runner::clock::Clock;
use sidekeeper::tree::{NodeKind, Operation, WatchEvent};
use tokio::sync::oneshot;
use tokio::time::timeout;
use uuid::Uuid;

use crate::conformance::on_both;
use crate::ground::{Ground, PATIENCE, commit, hold, next, path, reaches};

on_both! {
    one_after_the_other_holds_the_latch,
    a_node_of_the_latch_looks_as_curator_makes_it,
    whoever_waits_too_long_leaves_and_says_who_is_before,
    work_that_takes_too_long_is_stopped,
    work_that_panics_leaves_the_latch,
    a_caller_that_goes_away_leaves_no_node,
    somebody_else_may_delete_the_node,
    a_broken_connection_leaves_no_node,
    a_lost_session_is_told,
}

const LIMIT: Duration = Duration::from_secs(10);

/// Work that panics when it is done.
fn unreachable_work() {
    panic!("this work was done");
}

/// Waits until nobody stands at the latch.
async fn is_free(session: &dyn Session) {
    let mut watch = session.watch(&path("/latch"), Arc::new(|_| false)).await.unwrap();
    next(&mut watch).await;
    while session.children(&path("/latch")).await.unwrap().is_some_and(|names| !names.is_empty()) {
        next(&mut watch).await;
    }
}

async fn one_after_the_other_holds_the_latch(ground: Ground) {
    let sessions = [ground.session().await, ground.session().await, ground.session().await];
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
struct Named(Clock, Uuid);

impl Host for Named {
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

async fn a_node_of_the_latch_looks_as_curator_makes_it(ground: Ground) {
    let session = ground.session().await;
    let (other, id) = (Arc::clone(&session), Uuid::new_v4());
    let host = Named(Clock::start(), id);
    let look = move || async move { other.children(&path("/latch")).await.unwrap().unwrap() };
    let names = sidekeeper::registry::latch::hold(&host, Arc::clone(&session), path("/latch"), LIMIT, look);
    assert_eq!(names.await, Ok(vec![format!("_c_{id}-latch-0000000000")]));
}

/// Takes the latch and keeps it until told otherwise.
async fn occupy(session: &Arc<dyn Session>) -> oneshot::Sender<()> {
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

async fn whoever_waits_too_long_leaves_and_says_who_is_before(ground: Ground) {
    let (session, other) = (ground.session().await, ground.session().await);
    let release = occupy(&session).await;
    let short = Duration::from_millis(200);
    let waiting = hold(Arc::clone(&other), path("/latch"), short, || async { unreachable_work() });
    let Err(error @ LatchError::TimedOut { .. }) = waiting.await else { panic!("held") };
    assert!(error.to_string().contains(&format!("of session {} is at its head", session.id())), "{error}");
    assert_eq!(other.children(&path("/latch")).await.unwrap().unwrap().len(), 1);
    let next = hold(other, path("/latch"), LIMIT, || async {});
    drop(release);
    assert_eq!(next.await, Ok(()));
}

async fn work_that_takes_too_long_is_stopped(ground: Ground) {
    let session = ground.session().await;
    let limit = Duration::from_millis(300);
    let held = hold(Arc::clone(&session), path("/latch"), limit, std::future::pending::<()>).await;
    assert_eq!(held, Err(LatchError::Overran { latch: path("/latch"), limit }));
    is_free(&*session).await;
}

async fn work_that_panics_leaves_the_latch(ground: Ground) {
    let session = ground.session().await;
    let held = hold(Arc::clone(&session), path("/latch"), LIMIT, || async { unreachable_work() });
    assert_eq!(held.await, Err(LatchError::Panicked(path("/latch"))));
    is_free(&*session).await;
}

async fn a_caller_that_goes_away_leaves_no_node(ground: Ground) {
    let (session, other) = (ground.session().await, ground.session().await);
    let release = occupy(&session).await;
    let (done, is_done) = oneshot::channel();
    drop(hold(other, path("/latch"), LIMIT, move || async move { done.send(()).unwrap() }));
    drop(release);
    timeout(PATIENCE, is_done).await.unwrap().unwrap();
    is_free(&*session).await;
}

async fn somebody_else_may_delete_the_node(ground: Ground) {
    let (session, other) = (ground.session().await, ground.session().await);
    let release = occupy(&session).await;
    let mut watch = session.watch(&path("/latch"), Arc::new(|_| false)).await.unwrap();
    next(&mut watch).await;
    let waiting = hold(other, path("/latch"), LIMIT, || async {});
    let WatchEvent::Changes(changes) = next(&mut watch).await else { panic!("no changes") };
    commit(&*session, vec![Operation::delete(changes[0].path().clone())]).await;
    drop(release);
    assert_eq!(waiting.await, Ok(()));
    is_free(&*session).await;
}

async fn a_broken_connection_leaves_no_node(ground: Ground) {
    let (session, victim) = (ground.session().await, ground.victim().await);
    let release = occupy(&session).await;
    let mut watch = session.watch(&path("/latch"), Arc::new(|_| false)).await.unwrap();
    next(&mut watch).await;
    let waiting = hold(Arc::clone(&victim), path("/latch"), Duration::from_millis(500), || async {});
    next(&mut watch).await;
    ground.interrupt(&*victim).await;
    // It gives up while it cannot delete its node, and does so when it can.
    assert!(matches!(waiting.await, Err(LatchError::TimedOut { head: None, .. })));
    ground.mend(&*victim).await;
    drop(release);
    is_free(&*session).await;
    assert_eq!(*victim.state().borrow(), SessionState::Connected);
}

async fn a_lost_session_is_told(ground: Ground) {
    let (session, victim) = (ground.session().await, ground.victim().await);
    let _release = occupy(&session).await;
    let mut watch = session.watch(&path("/latch"), Arc::new(|_| false)).await.unwrap();
    next(&mut watch).await;
    let waiting = hold(Arc::clone(&victim), path("/latch"), PATIENCE, || async {});
    next(&mut watch).await;
    ground.lose(&*victim).await;
    reaches(&*victim, SessionState::Lost).await;
    let lost = LatchError::Registry { latch: path("/latch"), error: Error::SessionLost };
    assert_eq!(waiting.await, Err(lost));
}

#[tokio::test]
async fn a_free_latch_costs_three_requests() {
    let registry = Counted::new(Embedded::in_memory());
    let session = registry.open().await.unwrap();
    // Somebody else is there, or the container would have to be made again.
    session.ensure(&path("/latch/other"), NodeKind::Persistent, b"").await.unwrap();
    let before = registry.counts();
    hold(session, path("/latch"), LIMIT, || async {}).await.unwrap();
    let expected = Counts { reads: 1, transactions: 2, operations: 2, ..Counts::default() };
    assert_eq!(registry.counts().since(before), expected);
}
