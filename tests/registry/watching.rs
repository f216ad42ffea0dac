//! Watches: complete, in order, before the results of commits; on both registries.

use std::sync::Arc;

use sidekeeper::registry::{Session, Watch};
use sidekeeper::tree::{NodeChange, NodeKind, Operation, Path, WatchEvent};
use tokio::time::timeout;

use crate::conformance::on_all;
use crate::registries::{PATIENCE, TestRegistry, View, commit, next, next_changes, next_snapshot, path};

on_all! {
    a_watch_sends_a_snapshot_and_then_changes,
    a_watch_sends_data_of_the_wanted_nodes_only,
    a_watch_covers_only_nodes_below_its_root,
    a_watch_can_wait_for_its_root,
    a_commit_is_in_the_watch_before_it_is_answered,
    a_watch_misses_no_change_under_random_commits,
    a_watch_of_nodes_that_change_all_the_time_has_their_data,
    a_watch_shows_only_states_that_the_registry_had,
    a_slow_reader_delays_no_commit,
    a_watch_sends_a_new_snapshot_after_an_interruption,
    watches_of_one_root_do_not_disturb_each_other,
    a_watch_of_one_node_shows_its_states_until_it_is_gone,
    a_watch_of_one_node_survives_an_interruption,
    watches_of_one_node_do_not_disturb_each_other,
}

fn create(at: &str) -> Operation {
    Operation::create(path(at), NodeKind::Persistent, at)
}

async fn a_watch_sends_a_snapshot_and_then_changes(registry: TestRegistry) {
    let (session, other) = (registry.session().await, registry.session().await);
    commit(&*session, vec![create("/a"), create("/a/c"), create("/a/b"), create("/a/b/x")]).await;
    let mut watch = session.watch(&path("/a"), Arc::new(|_| true)).await.unwrap();
    let paths = next_snapshot(&mut watch).await;
    assert_eq!(paths, ["/a", "/a/b", "/a/b/x", "/a/c"]);

    // The watch shows the changes of another session, in order.
    commit(&*other, vec![create("/a/d")]).await;
    commit(&*other, vec![Operation::set(path("/a/b"), "new"), Operation::delete(path("/a/c"))]).await;
    let mut changes = Vec::new();
    while changes.len() < 3 {
        changes.extend(next_changes(&mut watch).await);
    }
    let [
        NodeChange::Put { path: first, content: Some((data, stat)) },
        NodeChange::Put { path: second, content: Some((set, set_stat)) },
        NodeChange::Removed { path: third },
    ] = &changes[..]
    else {
        panic!("{changes:?}")
    };
    assert_eq!((first, second, third), (&path("/a/d"), &path("/a/b"), &path("/a/c")));
    assert_eq!((&**data, &**set), (&b"/a/d"[..], &b"new"[..]));
    assert_eq!((stat.version, set_stat.version), (0, 1));
}

async fn a_watch_sends_data_of_the_wanted_nodes_only(registry: TestRegistry) {
    let session = registry.session().await;
    commit(&*session, vec![create("/a"), create("/a/wanted"), create("/a/unwanted")]).await;
    let wants = Arc::new(|path: &Path| path.name().starts_with("wanted"));
    let mut watch = session.watch(&path("/a"), wants).await.unwrap();
    let WatchEvent::Snapshot(nodes) = next(&mut watch).await else { panic!("no snapshot") };
    assert!(nodes.iter().all(|node| &*node.data == node.path.as_str().as_bytes()), "{nodes:?}");
    let set = |at| Operation::set(path(at), "new");
    commit(&*session, vec![set("/a/unwanted"), set("/a/wanted")]).await;
    let changes = next_changes(&mut watch).await;
    let [
        NodeChange::Put { path: unwanted, content: None },
        NodeChange::Put { path: wanted, content: Some((data, _)) },
    ] = &changes[..]
    else {
        panic!("{changes:?}")
    };
    assert_eq!((unwanted.name(), wanted.name(), &**data), ("unwanted", "wanted", &b"new"[..]));
}

async fn a_watch_covers_only_nodes_below_its_root(registry: TestRegistry) {
    let session = registry.session().await;
    let mut inner = session.watch(&path("/a/b"), Arc::new(|_| true)).await.unwrap();
    let mut outer = session.watch(&path("/"), Arc::new(|_| false)).await.unwrap();
    assert!(next_snapshot(&mut inner).await.is_empty());
    next_snapshot(&mut outer).await;
    let all = ["/a", "/a/bb", "/a/b", "/a/b/c"];
    commit(&*session, all.iter().map(|at| create(at)).collect()).await;
    let paths = |changes: Vec<NodeChange>| -> Vec<_> {
        changes.iter().map(|change| change.path().to_string()).collect()
    };
    assert_eq!(paths(next_changes(&mut inner).await), ["/a/b", "/a/b/c"]);
    assert_eq!(paths(next_changes(&mut outer).await), all);
}

async fn a_watch_can_wait_for_its_root(registry: TestRegistry) {
    let session = registry.session().await;
    let mut watch = session.watch(&path("/later"), Arc::new(|_| true)).await.unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Snapshot(vec![]));
    commit(&*session, vec![create("/later")]).await;
    commit(&*session, vec![Operation::delete(path("/later"))]).await;
    commit(&*session, vec![create("/later"), create("/later/x")]).await;
    let mut view = View::default();
    view.catch_up(&mut watch);
    assert_eq!(view.nodes.keys().map(Path::as_str).collect::<Vec<_>>(), ["/later", "/later/x"]);
}

async fn a_commit_is_in_the_watch_before_it_is_answered(registry: TestRegistry) {
    let (session, other) = (registry.session().await, registry.session().await);
    commit(&*session, vec![create("/a"), create("/noise")]).await;
    let mut watch = session.watch(&path("/"), Arc::new(|_| true)).await.unwrap();
    let noise = tokio::spawn(async move {
        loop {
            commit(&*other, vec![Operation::set(path("/noise"), "x")]).await;
            tokio::task::yield_now().await;
        }
    });
    let mut view = View::default();
    for number in 0..300 {
        let at = path("/a").child(&number.to_string());
        commit(&*session, vec![Operation::create(at.clone(), NodeKind::Ephemeral, "x")]).await;
        view.catch_up(&mut watch);
        assert!(view.nodes.contains_key(&at), "{at} is not in the watch");
        if number % 2 == 0 {
            commit(&*session, vec![Operation::delete(at.clone())]).await;
            view.catch_up(&mut watch);
            assert!(!view.nodes.contains_key(&at), "{at} is still in the watch");
        }
    }
    noise.abort();
}

/// Small and repeatable: xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(sides).unwrap()).unwrap()
    }

    fn operation(&mut self) -> Operation {
        let mut at = path("/storm");
        for _ in 0..=self.below(3) {
            at = at.child(["x", "y", "z"][self.below(3)]);
        }
        match self.below(6) {
            0 => Operation::create(at, NodeKind::Ephemeral, "e"),
            1 => Operation::create(at, NodeKind::EphemeralSequential, "s"),
            2 => Operation::create(at, NodeKind::Persistent, "p"),
            3 => Operation::delete(at),
            _ => Operation::set(at, self.below(100).to_string()),
        }
    }
}

/// Commits at random, ten at once.
async fn commit_at_random(session: Arc<dyn Session>, seed: u64, rounds: usize) {
    let mut random = Random(seed);
    for _ in 0..rounds {
        let burst: Vec<_> = (0..10)
            .map(|_| {
                let steps = (0..=random.below(2)).map(|_| random.operation()).collect();
                session.commit(steps)
            })
            .collect();
        for future in burst {
            // Most transactions fail, as expected.
            let _ = future.await;
        }
    }
}

async fn a_watch_misses_no_change_under_random_commits(registry: TestRegistry) {
    let (session, other) = (registry.session().await, registry.session().await);
    commit(&*session, vec![create("/storm")]).await;
    let mut early = session.watch(&path("/storm"), Arc::new(|_| true)).await.unwrap();
    let writers = [(Arc::clone(&session), 17), (Arc::clone(&other), 42)];
    let writers = writers.map(|(session, seed)| tokio::spawn(commit_at_random(session, seed, 100)));
    let mut view = View::default();
    // One watch is added in the middle of the commits, and the other one is read before. Its snapshot and one more
    // event always come; the number of further events depends on how fast it is read.
    view.apply(next(&mut early).await);
    view.apply(next(&mut early).await);
    let mut late = session.watch(&path("/storm"), Arc::new(|_| true)).await.unwrap();
    let mut late_view = View::default();
    late_view.apply(next(&mut late).await);
    for writer in writers {
        writer.await.unwrap();
    }
    commit(&*session, vec![Operation::set(path("/storm"), "over")]).await;
    view.catch_up(&mut early);
    late_view.catch_up(&mut late);
    let mut after = View::default();
    after.apply(next(&mut other.watch(&path("/storm"), Arc::new(|_| true)).await.unwrap()).await);
    assert!(after.nodes.len() > 3, "{after:?}");
    assert_eq!(view, after);
    assert_eq!(late_view, after);
}

/// A registry that reads the data after the events cannot wait until no node changes.
async fn a_watch_of_nodes_that_change_all_the_time_has_their_data(registry: TestRegistry) {
    const ROUNDS: usize = 30;
    // So many at once: some nodes change during each read.
    const AT_ONCE: usize = 200;
    let (session, other) = (registry.session().await, registry.session().await);
    commit(&*session, vec![create("/t")]).await;
    let mut watch = session.watch(&path("/t"), Arc::new(|_| true)).await.unwrap();
    let mut view = View::default();
    view.apply(next(&mut watch).await);
    let writing = tokio::spawn(async move {
        for round in 0..ROUNDS {
            let at = |number: usize| path("/t").child(&number.to_string());
            let operation = |number: usize| match round {
                0 => Operation::create(at(number), NodeKind::Persistent, "0"),
                _ => Operation::set(at(number), round.to_string()),
            };
            let commits = (0..AT_ONCE).map(|number| other.commit(vec![operation(number)]));
            futures::future::try_join_all(commits).await.unwrap();
        }
    });
    // A view that misses the last data of a node misses it for ever.
    let last = (ROUNDS - 1).to_string();
    let is_last = |(data, _): &(Arc<[u8]>, _)| **data == *last.as_bytes();
    while view.nodes.values().filter(|node| is_last(node)).count() < AT_ONCE {
        view.apply(next(&mut watch).await);
    }
    writing.await.unwrap();
}

async fn a_slow_reader_delays_no_commit(registry: TestRegistry) {
    let session = registry.session().await;
    commit(&*session, vec![create("/a"), create("/b")]).await;
    let mut watch = session.watch(&path("/"), Arc::new(|path| path.name() == "a")).await.unwrap();
    next(&mut watch).await;
    for _ in 0..500 {
        let burst = [0; 4]
            .map(|_| session.commit(vec![Operation::set(path("/a"), "x"), Operation::set(path("/b"), "x")]));
        for future in burst {
            future.await.unwrap();
        }
    }
    let changes = next_changes(&mut watch).await;
    let [NodeChange::Put { content: Some((_, stat)), .. }, NodeChange::Put { content: None, .. }] =
        &changes[..]
    else {
        panic!("{} changes", changes.len())
    };
    assert_eq!(stat.version, 2_000);
    assert!(watch.try_recv().is_err());
}

async fn a_watch_sends_a_new_snapshot_after_an_interruption(registry: TestRegistry) {
    let (victim, other) = (registry.victim().await, registry.session().await);
    commit(&*victim, vec![create("/a"), create("/a/removed")]).await;
    let mut watch = victim.watch(&path("/a"), Arc::new(|_| true)).await.unwrap();
    assert_eq!(next_snapshot(&mut watch).await, ["/a", "/a/removed"]);
    registry.interrupt(&*victim).await;
    commit(&*other, vec![Operation::delete(path("/a/removed")), create("/a/new")]).await;
    assert!(watch.try_recv().is_err());
    registry.reconnect(&*victim).await;
    assert_eq!(next_snapshot(&mut watch).await, ["/a", "/a/new"]);
    commit(&*other, vec![create("/a/later")]).await;
    let changes = next_changes(&mut watch).await;
    assert_eq!(changes.iter().map(|change| change.path().as_str()).collect::<Vec<_>>(), ["/a/later"]);
}

async fn watches_of_one_root_do_not_disturb_each_other(registry: TestRegistry) {
    let session = registry.session().await;
    commit(&*session, vec![create("/a")]).await;
    let mut kept = session.watch(&path("/a"), Arc::new(|_| false)).await.unwrap();
    next(&mut kept).await;
    for round in 0..20 {
        let mut dropped = session.watch(&path("/a"), Arc::new(|_| true)).await.unwrap();
        next(&mut dropped).await;
        drop(dropped);
        commit(&*session, vec![create(&format!("/a/{round}"))]).await;
        assert_eq!(next_changes(&mut kept).await.len(), 1);
    }
}

/// The data of a node that is watched alone; `None`: it does not exist.
async fn next_data(watch: &mut Watch) -> Option<String> {
    let data = match next(watch).await {
        WatchEvent::Snapshot(nodes) => nodes.into_iter().next().map(|node| node.data),
        WatchEvent::Changes(changes) => match changes.into_iter().next_back() {
            Some(NodeChange::Put { content, .. }) => Some(content.expect("its data").0),
            Some(NodeChange::Removed { .. }) | None => None,
        },
    };
    data.map(|data| String::from_utf8(data.to_vec()).unwrap())
}

async fn a_watch_of_one_node_shows_its_states_until_it_is_gone(registry: TestRegistry) {
    let (session, other) = (registry.session().await, registry.session().await);
    commit(&*session, vec![create("/a"), create("/a/beside")]).await;
    let mut watch = session.watch_node(&path("/a/beside")).await.unwrap();
    assert_eq!(next_data(&mut watch).await.as_deref(), Some("/a/beside"));
    commit(&*other, vec![Operation::set(path("/a"), "unwanted"), create("/a/unwanted")]).await;
    commit(&*other, vec![Operation::set(path("/a/beside"), "new")]).await;
    assert_eq!(next_data(&mut watch).await.as_deref(), Some("new"));
    commit(&*other, vec![Operation::delete(path("/a/beside"))]).await;
    assert_eq!(next_data(&mut watch).await, None);
    let mut missing = session.watch_node(&path("/a/beside")).await.unwrap();
    assert_eq!(next_data(&mut missing).await, None);
}

async fn a_watch_of_one_node_survives_an_interruption(registry: TestRegistry) {
    let (victim, other) = (registry.victim().await, registry.session().await);
    commit(&*victim, vec![create("/kept"), create("/removed")]).await;
    let mut kept = victim.watch_node(&path("/kept")).await.unwrap();
    let mut removed = victim.watch_node(&path("/removed")).await.unwrap();
    assert!(next_data(&mut kept).await.is_some() && next_data(&mut removed).await.is_some());
    registry.interrupt(&*victim).await;
    let late = victim.watch_node(&path("/removed")).await;
    commit(&*other, vec![Operation::set(path("/kept"), "new"), Operation::delete(path("/removed"))]).await;
    registry.reconnect(&*victim).await;
    assert_eq!(next_data(&mut kept).await.as_deref(), Some("new"));
    assert_eq!(next_data(&mut removed).await, None);
    assert_eq!(next_data(&mut late.unwrap()).await, None);
    commit(&*other, vec![Operation::delete(path("/kept"))]).await;
    assert_eq!(next_data(&mut kept).await, None);
    let mut last = victim.watch_node(&path("/")).await.unwrap();
    next(&mut last).await;
    registry.lose(&*victim).await;
    assert_eq!(timeout(PATIENCE, last.recv()).await, Ok(None));
}

async fn watches_of_one_node_do_not_disturb_each_other(registry: TestRegistry) {
    let session = registry.session().await;
    for round in 0..50 {
        let node = path("/").child(&round.to_string());
        commit(&*session, vec![create(node.as_str())]).await;
        let mut kept = session.watch_node(&node).await.unwrap();
        let mut dropped = session.watch_node(&node).await.unwrap();
        if round % 2 == 0 {
            next(&mut dropped).await;
        }
        if round % 3 == 0 {
            next(&mut kept).await;
        }
        drop(dropped);
        if round % 5 == 0 {
            // The removal of the other watch has been answered.
            session.get(&node).await.unwrap();
        }
        commit(&*session, vec![Operation::delete(node)]).await;
        while next_data(&mut kept).await.is_some() {}
    }
}

/// Each transaction gives two nodes the same number, one of them far below the other, and creates or deletes a third
/// node. A reader that gets one of the numbers early or late could take a new version of one node as a proof that its
/// other nodes are as new.
async fn a_watch_shows_only_states_that_the_registry_had(registry: TestRegistry) {
    const TRANSACTIONS: usize = 600;
    // So many in a row: a registry may merge changes that follow each other without a pause.
    const BURST: usize = 6;
    let (session, writer) = (registry.session().await, registry.session().await);
    let deep = ["/t", "/t/a", "/t/x", "/t/x/y", "/t/x/y/b"];
    commit(&*writer, deep.map(|at| Operation::create(path(at), NodeKind::Persistent, "0")).into()).await;
    let wants = Arc::new(|_: &Path| true);
    let mut followed = session.watch(&path("/t"), wants.clone()).await.unwrap();
    let (seen_sender, mut seen) = tokio::sync::watch::channel(0);
    let writing = tokio::spawn(async move {
        for number in 1..=TRANSACTIONS {
            if number % BURST == 0 {
                seen.wait_for(|seen| *seen + 1 >= number).await.unwrap();
            }
            let set = |at| Operation::set(path(at), number.to_string());
            let flag = match number % 2 {
                1 => Operation::create(path("/t/flag"), NodeKind::Persistent, ""),
                _ => Operation::delete(path("/t/flag")),
            };
            commit(&*writer, vec![set("/t/a"), flag, set("/t/x/y/b")]).await;
        }
        writer
    });
    let mut view = View::default();
    let mut events = 0;
    let number = |view: &View, at: &str| {
        let data = view.nodes.get(&path(at)).map(|(data, _)| String::from_utf8_lossy(data).into_owned());
        data.and_then(|data| data.parse::<usize>().ok())
    };
    let state = |view: &View| {
        (number(view, "/t/a"), number(view, "/t/x/y/b"), view.nodes.contains_key(&path("/t/flag")))
    };
    let is_one = |(a, b, flag): (Option<usize>, _, bool)| a == b && a.is_some_and(|a| (a % 2 == 1) == flag);
    while number(&view, "/t/a") != Some(TRANSACTIONS) {
        // Another watch begins in the middle.
        let mut other = session.watch(&path("/t"), wants.clone()).await.unwrap();
        let mut begun = View::default();
        begun.apply(next(&mut other).await);
        assert!(is_one(state(&begun)), "a snapshot shows {:?}", state(&begun));
        view.apply(next(&mut followed).await);
        assert!(is_one(state(&view)), "after {events} events it is {:?}", state(&view));
        events += 1;
        seen_sender.send_replace(number(&view, "/t/a").unwrap());
    }
    assert!(events > 10, "{events} events");
    writing.await.unwrap();
}
