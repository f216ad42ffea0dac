//! Faults of the network, of servers and of the client library of ZooKeeper, and their effect on a session.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sidekeeper::registry::zookeeper::{Settings, ZooKeeper};
use sidekeeper::registry::{Error, Registry, Session, SessionState};
use sidekeeper::tree::{NodeKind, Operation, WatchEvent};
use tokio::time::timeout;

use crate::registries::{
    PATIENCE, View, commit, exists, hold, next, next_snapshot, open_eventually, path, patient, reaches,
    settings,
};
use crate::support::proxy::{Mode, Proxy};
use crate::support::zookeeper::Server;

async fn open(settings: Settings) -> Arc<dyn Session> {
    open_eventually(&ZooKeeper::new(settings).unwrap()).await.unwrap()
}

/// A proxy before the shared server, settings for a session through it, and a session beside it.
async fn behind_a_proxy(test: &str) -> (Proxy, Settings, Arc<dyn Session>) {
    let server = Server::shared();
    let proxy = Proxy::start(server.port()).await;
    let through = settings(&format!("{}/{test}", proxy.address()));
    let beside = open(patient(settings(&format!("{}/{test}", server.address())))).await;
    (proxy, through, beside)
}

fn ephemeral(at: &str) -> Operation {
    Operation::create(path(at), NodeKind::Ephemeral, "")
}

fn persistent(at: &str) -> Operation {
    Operation::create(path(at), NodeKind::Persistent, "")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_and_a_session_survive_a_restart_of_the_server() {
    let mut server = Server::start();
    let with_long_timeouts =
        |connect: &str| Settings { session_timeout: Duration::from_secs(20), ..settings(connect) };
    let session = open(with_long_timeouts(&server.address())).await;
    let id = session.id();
    commit(&*session, vec![persistent("/a"), ephemeral("/a/mine")]).await;
    let mut watch = session.watch(&path("/a"), Arc::new(|_| true)).await.unwrap();
    assert_eq!(next_snapshot(&mut watch).await, ["/a", "/a/mine"]);
    server.stop();
    reaches(&*session, SessionState::Suspended).await;
    assert_eq!(session.get(&path("/a")).await, Err(Error::Suspended));
    server.start_again();
    reaches(&*session, SessionState::Connected).await;
    assert_eq!(next_snapshot(&mut watch).await, ["/a", "/a/mine"]);
    // The client library has lost the watch; the session must have added it again.
    let other = open(with_long_timeouts(&server.address())).await;
    commit(&*other, vec![persistent("/a/later")]).await;
    assert!(
        matches!(next(&mut watch).await, WatchEvent::Changes(changes) if changes[0].path() == &path("/a/later"))
    );
    assert_eq!(session.id(), id);
    assert!(exists(&*other, "/a/mine").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_its_data_ends_the_session_at_once() {
    let mut server = Server::start();
    let session =
        open(Settings { session_timeout: Duration::from_secs(60), ..settings(&server.address()) }).await;
    let mut watch = session.watch(&path("/"), Arc::new(|_| true)).await.unwrap();
    next(&mut watch).await;
    server.forget();
    server.start_again();
    reaches(&*session, SessionState::Lost).await;
    assert_eq!(timeout(PATIENCE, watch.recv()).await, Ok(None));
    assert_eq!(session.get(&path("/")).await, Err(Error::SessionLost));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_ends_soon_after_the_network_is_back() {
    let (proxy, through, beside) = behind_a_proxy("an_outage_ends_soon").await;
    let session = open(Settings { session_timeout: Duration::from_secs(20), ..through }).await;
    commit(&*session, vec![ephemeral("/mine")]).await;
    proxy.set(Mode::Refuse);
    proxy.reset();
    reaches(&*session, SessionState::Suspended).await;
    // Pauses that double without a cap would reach to the eleventh second.
    tokio::time::sleep(Duration::from_millis(5_500)).await;
    proxy.set(Mode::Pass);
    let mended = Instant::now();
    reaches(&*session, SessionState::Connected).await;
    assert!(mended.elapsed() < Duration::from_secs(2), "{:?}", mended.elapsed());
    assert!(exists(&*beside, "/mine").await);
    commit(&*session, vec![Operation::delete(path("/mine"))]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_is_an_unknown_outcome() {
    let (proxy, through, beside) = behind_a_proxy("a_lost_reply").await;
    let session = open(through).await;
    proxy.set(Mode::DropReplies);
    let failed = session.commit(vec![persistent("/took-effect")]).await;
    assert!(matches!(failed.unwrap_err().error, Error::OutcomeUnknown(_)));
    reaches(&*session, SessionState::Suspended).await;
    proxy.set(Mode::Pass);
    reaches(&*session, SessionState::Connected).await;
    assert!(exists(&*session, "/took-effect").await && exists(&*beside, "/took-effect").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unsent_request_is_never_sent_late() {
    let (proxy, through, beside) = behind_a_proxy("never_sent_late").await;
    let session = open(Settings { session_timeout: Duration::from_secs(20), ..through }).await;
    proxy.set(Mode::Blackhole);
    // More than the sockets' buffers hold: most requests wait in the client when it gives the connection up.
    let data = vec![0; 900_000];
    let waiting: Vec<_> = (0..30)
        .map(|number| {
            let at = path(&format!("/{number}"));
            session.commit(vec![Operation::create(at, NodeKind::Persistent, &data)])
        })
        .collect();
    for future in waiting {
        let error = timeout(PATIENCE, future).await.expect("an end").unwrap_err().error;
        assert!(matches!(error, Error::OutcomeUnknown(_)), "{error}");
    }
    reaches(&*session, SessionState::Suspended).await;
    proxy.set(Mode::Pass);
    reaches(&*session, SessionState::Connected).await;
    let first_look = session.children(&path("/")).await.unwrap().unwrap();
    assert!(first_look.len() < 30, "{}", first_look.len());
    commit(&*session, vec![persistent("/after")]).await;
    let mut second_look = beside.children(&path("/")).await.unwrap().unwrap();
    second_look.retain(|name| name != "after");
    assert_eq!(second_look.len(), first_look.len());
}

/// A transaction that takes effect and leaves nothing.
async fn commit_and_remove(session: &dyn Session, at: &str) {
    commit(session, vec![persistent(at)]).await;
    commit(session, vec![Operation::delete(path(at))]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_waits_for_ever() {
    let server = Server::start();
    let limit = Duration::from_millis(500);
    let session = open(Settings {
        session_timeout: Duration::from_secs(20),
        // Longer, so that the end of the connection does not end the requests.
        connection_timeout: Duration::from_secs(3),
        request_timeout: limit,
        ..settings(&server.address())
    })
    .await;
    server.freeze();
    let root = path("/");
    let (committed, get, children, ensure) = tokio::join!(
        session.commit(vec![persistent("/a")]),
        session.get(&root),
        session.children(&root),
        session.ensure(&root.child("b"), NodeKind::Persistent, b""),
    );
    for error in [committed.unwrap_err().error, get.unwrap_err(), children.unwrap_err(), ensure.unwrap_err()]
    {
        assert_eq!(error, Error::OutcomeUnknown(format!("no answer within {limit:?}")));
    }
    reaches(&*session, SessionState::Suspended).await;
    assert_eq!(session.get(&root).await, Err(Error::Suspended));
    server.thaw();
    reaches(&*session, SessionState::Connected).await;
    // The server may have read the requests before it noticed the end of their connection: the first read shows it.
    let first_look = session.children(&root).await;
    commit_and_remove(&*session, "/after").await;
    assert_eq!(session.children(&root).await, first_look);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_in_flight_are_bounded() {
    let (proxy, through, _) = behind_a_proxy("in_flight").await;
    let session = open(through).await;
    proxy.set(Mode::Blackhole);
    let data = vec![0; 500_000];
    let set = || Operation::set(path("/"), &data);
    // The test does not await the answers; the bound holds without that.
    let mut refused = None;
    for number in 0..200 {
        let mut future = session.commit(vec![set()]);
        if let Some(answer) = futures::FutureExt::now_or_never(&mut future) {
            refused = Some((number, answer.unwrap_err().error));
            break;
        }
    }
    let (number, error) = refused.expect("no request was refused");
    assert!(matches!(&error, Error::Refused(reason) if reason.contains("wait for their answers")), "{error}");
    assert!((100..150).contains(&number), "{number}");
    proxy.set(Mode::Pass);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_too_large_for_a_server_breaks_nothing() {
    let (_proxy, through, _) = behind_a_proxy("too_large").await;
    let session = open(through).await;
    commit(&*session, vec![ephemeral("/mine")]).await;
    let error =
        session.commit(vec![Operation::set(path("/mine"), vec![0; 1_100_000])]).await.unwrap_err().error;
    assert!(matches!(&error, Error::Refused(reason) if reason.contains("split it")), "{error}");
    commit(&*session, vec![Operation::set(path("/mine"), vec![0; 1_000_000])]).await;
    assert_eq!(*session.state().borrow(), SessionState::Connected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_latch_node_whose_creation_was_not_answered_is_found() {
    let (proxy, through, beside) = behind_a_proxy("orphaned_latch").await;
    beside.ensure(&path("/latch"), NodeKind::Persistent, b"").await.unwrap();
    let session = open(Settings { session_timeout: Duration::from_secs(20), ..through }).await;
    proxy.set(Mode::DropReplies);
    let inside = Arc::clone(&beside);
    let held = hold(Arc::clone(&session), path("/latch"), PATIENCE, move || async move {
        inside.children(&path("/latch")).await.unwrap().unwrap().len()
    });
    reaches(&*session, SessionState::Suspended).await;
    proxy.set(Mode::Pass);
    assert_eq!(held.await, Ok(1), "two nodes of the contender");
    assert_eq!(beside.children(&path("/latch")).await, Ok(Some(vec![])));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_misses_no_change_while_connections_break_all_the_time() {
    let (proxy, through, beside) = behind_a_proxy("breaking").await;
    let session = open(Settings { session_timeout: Duration::from_secs(20), ..through }).await;
    commit(&*beside, vec![persistent("/a"), persistent("/b")]).await;
    let mut watch = session.watch(&path("/"), Arc::new(|_| true)).await.unwrap();
    let noise = tokio::spawn({
        let beside = Arc::clone(&beside);
        async move {
            for number in 0..1_500 {
                let at = format!("/b/{}", number % 20);
                let step = if number % 40 < 20 { persistent(&at) } else { Operation::delete(path(&at)) };
                beside.commit(vec![step]).await.unwrap();
            }
        }
    });
    let mut view = View::default();
    let mut answered = 0;
    for number in 0..600 {
        if number % 50 == 49 {
            proxy.reset();
        }
        let at = format!("/a/{number}");
        match session.commit(vec![persistent(&at)]).await.map_err(|error| error.error) {
            Ok(_) => {
                answered += 1;
                view.catch_up(&mut watch);
                assert!(view.nodes.contains_key(&path(&at)), "{at} is not in the watch");
            }
            Err(Error::OutcomeUnknown(_) | Error::Suspended) => {
                reaches(&*session, SessionState::Connected).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
    noise.await.unwrap();
    assert!(answered > 300, "{answered}");
    // After one more commit, the watch has all changes.
    reaches(&*session, SessionState::Connected).await;
    while session.commit(vec![persistent("/over")]).await.is_err() {
        reaches(&*session, SessionState::Connected).await;
    }
    view.catch_up(&mut watch);
    let mut after = View::default();
    after.apply(next(&mut beside.watch(&path("/"), Arc::new(|_| true)).await.unwrap()).await);
    assert_eq!(view, after);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_can_be_closed_without_a_connection() {
    let (proxy, through, _) = behind_a_proxy("closed_without").await;
    let session = open(Settings { session_timeout: Duration::from_secs(60), ..through }).await;
    proxy.set(Mode::Refuse);
    proxy.reset();
    reaches(&*session, SessionState::Suspended).await;
    timeout(Duration::from_secs(2), session.close()).await.expect("to close");
    assert_eq!(*session.state().borrow(), SessionState::Lost);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_server_is_named_within_the_timeout() {
    let (proxy, through, _) = behind_a_proxy("unreachable").await;
    proxy.set(Mode::Blackhole);
    let started = Instant::now();
    let Err(error) = ZooKeeper::new(through).unwrap().open().await else { panic!("opened") };
    assert!(matches!(&error, Error::Unreachable(reason) if reason.contains(&proxy.address())), "{error}");
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    let no_server = settings("127.0.0.1:1");
    let Err(error) = ZooKeeper::new(no_server).unwrap().open().await else { panic!("opened") };
    assert!(error.to_string().contains("127.0.0.1:1: no server answered"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_below_the_node_of_the_connect_string() {
    let server = Server::shared();
    let inside = open(settings(&format!("{}/chroot/b/c", server.address()))).await;
    let outside = open(settings(&server.address())).await;
    let mut watch = inside.watch(&path("/"), Arc::new(|_| true)).await.unwrap();
    assert_eq!(next_snapshot(&mut watch).await, ["/"]);
    let results = commit(&*inside, vec![persistent("/x")]).await;
    assert_eq!(crate::registries::created(&results[0]).0, path("/x"));
    assert!(exists(&*outside, "/chroot/b/c/x").await);
    assert!(
        matches!(next(&mut watch).await, WatchEvent::Changes(changes) if changes[0].path() == &path("/x"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_digest_denies_access_to_other_users() {
    let server = Server::shared();
    let at = format!("{}/digest", server.address());
    let with = |digest: &str| Settings { digest: Some(digest.to_owned()), ..settings(&at) };
    let (mine, same, other) =
        (open(with("me:secret")).await, open(with("me:secret")).await, open(with("you:secret")).await);
    mine.ensure(&path("/deep/node"), NodeKind::Persistent, b"data").await.unwrap();
    commit(&*mine, vec![persistent("/committed")]).await;
    assert!(exists(&*same, "/deep/node").await && exists(&*same, "/committed").await);
    for closed in ["/", "/deep", "/deep/node", "/committed"] {
        assert_eq!(other.get(&path(closed)).await, Err(Error::NoPermission(path(closed))));
    }
    let mut watch = other.watch_node(&path("/committed")).await.unwrap();
    assert!(next_snapshot(&mut watch).await.is_empty());
    let refused = other.commit(vec![persistent("/deep/x")]).await.unwrap_err();
    assert_eq!((refused.index, refused.error), (Some(0), Error::NoPermission(path("/deep/x"))));
    // Without a digest, every session has access.
    let open_to_all = open(settings(&format!("{}/no_digest", server.address()))).await;
    commit(&*open_to_all, vec![persistent("/open")]).await;
    let other_user =
        open(Settings { digest: Some("you:secret".to_owned()), ..settings(&server.address()) }).await;
    assert!(exists(&*other_user, "/no_digest/open").await);
    // A watch leaves out the nodes that its session may not read.
    commit(&*mine, vec![Operation::set(path("/deep"), "x")]).await;
    let mut watch = other.watch(&path("/"), Arc::new(|_| true)).await.unwrap();
    assert!(next_snapshot(&mut watch).await.is_empty());
}
