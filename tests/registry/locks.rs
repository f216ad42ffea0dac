//! Locks through the API of whole sidecars, on both registries: who holds, in which order, and who hears what.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use sidekeeper::proto::hold_response::Event;
use sidekeeper::proto::lock_id::Id;
use sidekeeper::proto::lock_service_client::LockServiceClient;
use sidekeeper::proto::{
    BreakLockRequest, GetLockRequest, HoldRequest, HoldResponse, ListLocksRequest, Lock, LockAcquired,
    LockId, LockLossReason, LockMode, ReleaseRequest, RequestRevocationRequest, WatchLockRequest,
    WatchLockResponse,
};
use sidekeeper::registry::counted::Counted;
use sidekeeper::registry::zookeeper::ZooKeeper;
use sidekeeper::registry::{Registry, Session};
use sidekeeper::sidecar::Sidecar;
use sidekeeper::tree::{NodeKind, Operation, SessionId};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt as _;

use crate::application::{config, connect_channel};
use crate::conformance::on_both;
use crate::registries::{PATIENCE, TestRegistry, path, patient, settings};
use crate::support::proxy::Proxy;
use crate::support::zookeeper::Server;

on_both! {
    contenders_hold_one_after_another_in_the_order_of_the_queue,
    a_lock_is_free_when_the_stream_of_its_holder_ends,
    a_contender_that_only_tries_hears_who_is_first_and_leaves_nothing,
    readers_hold_together_and_a_writer_alone,
    a_hold_timeout_ends_the_hold,
    s21_a_holder_whose_node_is_deleted_hears_of_it,
    s22_a_revocation_is_an_event_and_changes_nothing,
    s36_a_refused_request_names_its_field_and_changes_nothing,
    s37_a_second_hold_of_the_same_application_is_refused,
    s39_a_hold_is_released_once,
    s33_foreign_nodes_are_listed_and_do_not_matter,
    a_lock_of_another_kind_is_refused,
    an_operator_breaks_a_lock,
    a_semaphore_has_as_many_holders_as_permits_and_a_queue,
    a_contender_that_only_tries_a_full_semaphore_leaves_nothing,
    a_semaphore_is_refused_where_another_kind_is_in_use_and_changes_nothing,
    a_semaphores_holder_hears_of_a_revocation_and_of_the_loss,
    names_of_locks_are_listed_in_pages,
    the_states_of_a_lock_are_sent_after_each_change,
    s19_a_holder_keeps_the_lock_through_a_short_interruption,
    s18_a_holder_whose_session_ends_hears_of_it_and_the_next_one_holds,
    a_contender_hears_that_the_registry_does_not_answer,
    a_drain_ends_waiting_contenders_at_once_and_holders_at_the_deadline,
    an_uncontended_lock_costs_one_flight_and_its_release_one_request,
    s38_a_hold_beyond_the_limit_of_a_queue_is_refused,
    a_lock_delay_follows_a_holder_that_has_vanished,
    a_lock_that_is_given_back_has_no_delay,
    an_operator_ends_a_lock_delay,
}

/// A sidecar, and an application of it.
pub(crate) struct Node {
    sidecar: Sidecar,
    pub(crate) channel: Channel,
    pub(crate) client: LockServiceClient<Channel>,
    _folder: TempDir,
}

impl Node {
    pub(crate) async fn start(registry: &TestRegistry, number: u8) -> Self {
        Self::start_on(registry.shared(), number).await
    }

    pub(crate) async fn start_on(registry: Arc<dyn Registry>, number: u8) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(&folder.path().join("socket"));
        config.instance_ip = Ipv4Addr::new(10, 0, 0, number);
        config.drain_timeout = Duration::from_millis(500);
        let sidecar = Sidecar::start_on(config, path("/jobs"), registry).await.unwrap();
        let channel = connect_channel(&sidecar.endpoints()[0]).await;
        let mut client = LockServiceClient::new(channel.clone());
        // Until there is a session with the registry.
        let ready = async {
            while client.list_locks(ListLocksRequest::default()).await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, ready).await.expect("the sidecar has no session");
        Self { sidecar, channel, client, _folder: folder }
    }

    async fn hold(&mut self, request: HoldRequest) -> Result<Hold, Status> {
        let mut events = self.client.hold(request).await?.into_inner();
        let first = timeout(PATIENCE, events.message()).await.unwrap()?.unwrap().event;
        let Some(Event::Started(started)) = first else { panic!("{first:?}") };
        Ok(Hold { id: started.hold_id, events })
    }

    async fn lock(&mut self, name: &str) -> Lock {
        let request = GetLockRequest { lock: named(name) };
        self.client.get_lock(request).await.unwrap().into_inner().lock.unwrap()
    }

    /// Waits until the lock is as wanted.
    async fn until(&mut self, name: &str, wanted: impl Fn(&Lock) -> bool) -> Lock {
        timeout(PATIENCE, async {
            loop {
                let lock = self.lock(name).await;
                if wanted(&lock) {
                    return lock;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("the lock does not become as wanted")
    }

    pub(crate) async fn drain(self) {
        self.sidecar.drain(watch::channel(false).1).await;
    }
}

/// An open hold.
struct Hold {
    id: String,
    events: Streaming<HoldResponse>,
}

impl Hold {
    /// The next event that is not about the lease; `Err`: the status of the stream's end.
    async fn next(&mut self) -> Result<Option<Event>, Status> {
        loop {
            let event = timeout(PATIENCE, self.events.message()).await.expect("no event comes")?;
            match event.map(|event| event.event.unwrap()) {
                Some(Event::LeaseRenewed(_)) => {}
                event => return Ok(event),
            }
        }
    }

    /// Waits until the lock is held, over all events before.
    async fn acquired(&mut self) -> LockAcquired {
        loop {
            match self.next().await.unwrap() {
                Some(Event::Acquired(acquired)) => return acquired,
                Some(Event::Waiting(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    async fn lost(&mut self) -> LockLossReason {
        loop {
            match self.next().await.unwrap() {
                Some(Event::Lost(lost)) => {
                    assert_ends(self.next().await, Code::Aborted, "LOCK_LOST");
                    return lost.reason();
                }
                Some(Event::Suspended(_) | Event::Draining(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

pub(crate) fn assert_ends<T: std::fmt::Debug>(result: Result<T, Status>, code: Code, reason: &str) {
    let status = result.unwrap_err();
    let given = status.get_error_details().error_info().map(|info| info.reason.clone());
    assert_eq!((status.code(), given.as_deref()), (code, Some(reason)), "{status:?}");
}

pub(crate) fn named(name: &str) -> Option<LockId> {
    Some(LockId { id: Some(Id::Name(name.to_owned())) })
}

pub(crate) fn at(path: &str) -> Option<LockId> {
    Some(LockId { id: Some(Id::Path(path.to_owned())) })
}

fn request(name: &str) -> HoldRequest {
    HoldRequest { lock: named(name), ..HoldRequest::default() }
}

fn of_mode(name: &str, mode: LockMode) -> HoldRequest {
    HoldRequest { mode: mode.into(), ..request(name) }
}

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

/// All nodes of the registry, by their paths.
pub(crate) async fn tree(session: &dyn Session) -> BTreeMap<String, Vec<u8>> {
    let mut watch = session.watch(&path("/"), Arc::new(|_| true)).await.unwrap();
    let nodes = match crate::registries::next(&mut watch).await {
        sidekeeper::tree::WatchEvent::Snapshot(nodes) => nodes,
        other => panic!("{other:?}"),
    };
    let ours = nodes.into_iter().filter(|node| !node.path.as_str().starts_with("/zookeeper"));
    ours.map(|node| (node.path.to_string(), node.data.to_vec())).collect()
}

async fn contenders_hold_one_after_another_in_the_order_of_the_queue(registry: TestRegistry) {
    let mut nodes = Vec::new();
    for number in 1..=3 {
        nodes.push(Node::start(&registry, number).await);
    }
    let mut holds = vec![nodes[0].hold(request("bill")).await.unwrap()];
    let mut acquired = holds[0].acquired().await;
    for round in 1..9 {
        let mut hold = nodes[round % 3].hold(request("bill")).await.unwrap();
        // Its place is known, so its node is there before the next call.
        let Some(Event::Waiting(waiting)) = hold.next().await.unwrap() else { panic!() };
        assert_eq!(waiting.position, u32::try_from(round).unwrap());
        assert!(waiting.first.unwrap().holder.starts_with("10.0.0.1@-@"));
        holds.push(hold);
    }
    let mut last = 0;
    for round in 0..9 {
        if round > 0 {
            acquired = holds[round].acquired().await;
        }
        assert!(acquired.fencing_token > last, "{acquired:?}");
        last = acquired.fencing_token;
        let lock = nodes[0].lock("bill").await;
        assert_eq!((lock.holders.len(), lock.waiting.len()), (1, 8 - round));
        assert_eq!(lock.holders[0].fencing_token, acquired.fencing_token);
        assert!(acquired.node_path.ends_with(&lock.holders[0].node_name));
        let hold = &mut holds[round];
        nodes[round % 3].client.release(ReleaseRequest { hold_id: hold.id.clone() }).await.unwrap();
        assert!(matches!(hold.next().await, Ok(Some(Event::Released(_)))));
        assert!(matches!(hold.next().await, Ok(None)));
    }
    assert_eq!(nodes[0].lock("bill").await.holders, []);
}

async fn a_lock_is_free_when_the_stream_of_its_holder_ends(registry: TestRegistry) {
    let (mut one, mut two) = (Node::start(&registry, 1).await, Node::start(&registry, 2).await);
    let mut held = one.hold(request("bill")).await.unwrap();
    held.acquired().await;
    let (mut second, mut third) =
        (two.hold(request("bill")).await.unwrap(), one.hold(request("bill")).await.unwrap());
    assert!(matches!(second.next().await, Ok(Some(Event::Waiting(_)))));
    assert!(matches!(third.next().await, Ok(Some(Event::Waiting(_)))));
    // A waiting contender in the middle leaves: its follower does not hold early.
    drop(second);
    let lock = one.until("bill", |lock| lock.waiting.len() == 1).await;
    assert_eq!(lock.holders.len(), 1);
    drop(held);
    third.acquired().await;
    drop(third);
    one.until("bill", |lock| lock.holders.is_empty()).await;
}

async fn a_contender_that_only_tries_hears_who_is_first_and_leaves_nothing(registry: TestRegistry) {
    let mut node = Node::start(&registry, 1).await;
    let tries = || HoldRequest { wait_timeout: seconds(0), ..request("bill") };
    let mut free = node.hold(tries()).await.unwrap();
    free.acquired().await;
    let mut taken = node.hold(tries()).await.unwrap();
    let end = loop {
        match taken.next().await {
            Ok(Some(Event::Waiting(_))) => {}
            other => break other,
        }
    };
    let message = end.as_ref().unwrap_err().message().to_owned();
    assert!(message.contains("is first") && message.contains("10.0.0.1@-@"), "{message}");
    assert_ends(end, Code::DeadlineExceeded, "LOCK_NOT_FREE");
    let lock = node.lock("bill").await;
    assert_eq!((lock.holders.len(), lock.waiting.len()), (1, 0));
}

async fn readers_hold_together_and_a_writer_alone(registry: TestRegistry) {
    let mut node = Node::start(&registry, 1).await;
    let mut readers = Vec::new();
    for _ in 0..2 {
        let mut reader = node.hold(of_mode("bill", LockMode::Read)).await.unwrap();
        reader.acquired().await;
        readers.push(reader);
    }
    let mut writer = node.hold(of_mode("bill", LockMode::Write)).await.unwrap();
    assert!(matches!(writer.next().await, Ok(Some(Event::Waiting(_)))));
    // S7: a later reader waits behind the writer.
    let mut later = node.hold(of_mode("bill", LockMode::Read)).await.unwrap();
    assert!(matches!(later.next().await, Ok(Some(Event::Waiting(_)))));
    let lock = node.lock("bill").await;
    assert_eq!((lock.holders.len(), lock.waiting.len()), (2, 2));
    drop(readers);
    writer.acquired().await;
    assert_eq!(node.lock("bill").await.holders.len(), 1);
    drop(writer);
    later.acquired().await;
}

async fn a_hold_timeout_ends_the_hold(registry: TestRegistry) {
    let mut node = Node::start(&registry, 1).await;
    let limit = Some(prost_types::Duration { seconds: 0, nanos: 200_000_000 });
    let mut hold = node.hold(HoldRequest { hold_timeout: limit, ..request("bill") }).await.unwrap();
    hold.acquired().await;
    assert_eq!(hold.lost().await, LockLossReason::HoldTimeout);
    node.until("bill", |lock| lock.holders.is_empty()).await;
}

async fn s21_a_holder_whose_node_is_deleted_hears_of_it(registry: TestRegistry) {
    let mut node = Node::start(&registry, 1).await;
    let session = registry.session().await;
    let mut hold = node.hold(request("bill")).await.unwrap();
    let acquired = hold.acquired().await;
    let mut next = node.hold(request("bill")).await.unwrap();
    session.commit(vec![Operation::delete(path(&acquired.node_path))]).await.unwrap();
    assert_eq!(hold.lost().await, LockLossReason::Revoked);
    assert!(next.acquired().await.fencing_token > acquired.fencing_token);
}

async fn s22_a_revocation_is_an_event_and_changes_nothing(registry: TestRegistry) {
    let (mut one, mut two) = (Node::start(&registry, 1).await, Node::start(&registry, 2).await);
    let free = two.client.request_revocation(RequestRevocationRequest { lock: named("bill") }).await;
    assert_ends(free, Code::NotFound, "LOCK_FREE");
    let mut hold = one.hold(request("bill")).await.unwrap();
    let acquired = hold.acquired().await;
    let asked =
        two.client.request_revocation(RequestRevocationRequest { lock: named("bill") }).await.unwrap();
    assert_eq!(asked.into_inner().holder.unwrap().fencing_token, acquired.fencing_token);
    assert!(matches!(hold.next().await, Ok(Some(Event::RevocationRequested(_)))));
    assert_eq!(two.lock("bill").await.holders[0].fencing_token, acquired.fencing_token);
}

async fn s36_a_refused_request_names_its_field_and_changes_nothing(registry: TestRegistry) {
    let mut node = Node::start(&registry, 1).await;
    let session = registry.session().await;
    // It is held to the end: ZooKeeper may delete the node of a lock that nobody holds.
    let mut held = node.hold(request("bill")).await.unwrap();
    held.acquired().await;
    let before = tree(&*session).await;
    let long = "x".repeat(201);
    let cases = [
        (HoldRequest { lock: None, ..request("a") }, "lock"),
        (HoldRequest { lock: Some(LockId { id: None }), ..request("a") }, "lock"),
        (request(""), "lock.name"),
        (request("."), "lock.name"),
        (request(".."), "lock.name"),
        (request("a/b"), "lock.name"),
        (request("a\u{0}b"), "lock.name"),
        (request("a\nb"), "lock.name"),
        (request(&long), "lock.name"),
        (HoldRequest { lock: at(""), ..request("a") }, "lock.path"),
        (HoldRequest { lock: at("/"), ..request("a") }, "lock.path"),
        (HoldRequest { lock: at("a"), ..request("a") }, "lock.path"),
        (HoldRequest { lock: at("/a/"), ..request("a") }, "lock.path"),
        (HoldRequest { lock: at("/a//b"), ..request("a") }, "lock.path"),
        (HoldRequest { lock: at("/jobs/orders/locks"), ..request("a") }, "lock.path"),
        (HoldRequest { lock: at("/jobs"), ..request("a") }, "lock.path"),
        (HoldRequest { lock: at("/other-sidekeeper/orders"), ..request("a") }, "lock.path"),
        (HoldRequest { mode: 9, ..request("a") }, "mode"),
        (HoldRequest { wait_timeout: seconds(-1), ..request("a") }, "wait_timeout"),
        (HoldRequest { wait_timeout: seconds(366 * 24 * 3600), ..request("a") }, "wait_timeout"),
        (HoldRequest { hold_timeout: seconds(0), ..request("a") }, "hold_timeout"),
        (HoldRequest { lock_delay: seconds(601), ..request("a") }, "lock_delay"),
        (HoldRequest { lock_delay: seconds(-1), ..request("a") }, "lock_delay"),
        (HoldRequest { lock_delay: seconds(1), ..of_mode("a", LockMode::Read) }, "lock_delay"),
        (HoldRequest { lock_delay: seconds(1), ..permits("a", 2) }, "lock_delay"),
        (HoldRequest { lock_delay: seconds(1), lock: at("/locks/a"), ..request("") }, "lock_delay"),
        (HoldRequest { holder: "x".repeat(256), ..request("a") }, "holder"),
        (HoldRequest { holder: "a\nb".to_owned(), ..request("a") }, "holder"),
        (HoldRequest { application_id: "a b".to_owned(), ..request("a") }, "application_id"),
    ];
    for (request, field) in cases {
        let status =
            node.hold(request.clone()).await.err().unwrap_or_else(|| panic!("{request:?} is accepted"));
        assert_eq!(status.code(), Code::InvalidArgument, "{request:?}");
        let details = status.get_error_details();
        let named: Vec<_> =
            details.bad_request().unwrap().field_violations.iter().map(|one| one.field.clone()).collect();
        assert_eq!(named, [field], "{request:?}");
    }
    let broken = node
        .client
        .break_lock(BreakLockRequest { lock: named("bill"), node_name: "readme".to_owned() })
        .await;
    assert_ends(broken.map(drop), Code::InvalidArgument, "INVALID_REQUEST");
    assert_eq!(tree(&*session).await, before);
}

async fn s37_a_second_hold_of_the_same_application_is_refused(registry: TestRegistry) {
    let mut node = Node::start(&registry, 1).await;
    let mine = |name| HoldRequest { application_id: "app-1".to_owned(), ..request(name) };
    let mut hold = node.hold(mine("bill")).await.unwrap();
    hold.acquired().await;
    assert_ends(node.hold(mine("bill")).await.map(|_| ()), Code::FailedPrecondition, "LOCK_HELD_ALREADY");
    node.hold(mine("other")).await.unwrap().acquired().await;
    let lock = node.lock("bill").await;
    // The application id is a secret.
    assert!(lock.holders[0].holder.starts_with("10.0.0.1@-@"));
    assert!(!lock.holders[0].holder.contains("app-1"));
    assert_eq!(lock.waiting, []);
    node.client.release(ReleaseRequest { hold_id: hold.id.clone() }).await.unwrap();
    node.hold(mine("bill")).await.unwrap().acquired().await;
}

async fn s39_a_hold_is_released_once(registry: TestRegistry) {
    let (mut one, mut two) = (Node::start(&registry, 1).await, Node::start(&registry, 2).await);
    let mut hold = one.hold(request("bill")).await.unwrap();
    hold.acquired().await;
    let release = ReleaseRequest { hold_id: hold.id.clone() };
    assert_ends(two.client.release(release.clone()).await.map(drop), Code::NotFound, "HOLD_UNKNOWN");
    assert_eq!(one.lock("bill").await.holders.len(), 1);
    one.client.release(release.clone()).await.unwrap();
    // The answer comes when the node is deleted.
    assert_eq!(two.lock("bill").await.holders, []);
    assert_ends(one.client.release(release).await.map(drop), Code::NotFound, "HOLD_UNKNOWN");
}

async fn s33_foreign_nodes_are_listed_and_do_not_matter(registry: TestRegistry) {
    let mut node = Node::start(&registry, 1).await;
    let session = registry.session().await;
    let foreign = ["!x", "000", "lease-1", "readme"];
    for name in foreign {
        session.ensure(&path("/locks/bill").child(name), NodeKind::Persistent, b"").await.unwrap();
    }
    let lock = at("/locks/bill");
    let mut hold = node.hold(HoldRequest { lock: lock.clone(), ..request("") }).await.unwrap();
    hold.acquired().await;
    let mut state = node.client.get_lock(GetLockRequest { lock }).await.unwrap().into_inner().lock.unwrap();
    state.foreign_nodes.sort();
    assert_eq!((state.foreign_nodes, state.holders.len()), (foreign.map(str::to_owned).to_vec(), 1));
}

async fn a_lock_of_another_kind_is_refused(registry: TestRegistry) {
    let mut node = Node::start(&registry, 1).await;
    let session = registry.session().await;
    let mut hold = node.hold(request("bill")).await.unwrap();
    hold.acquired().await;
    let mut other = node.hold(of_mode("bill", LockMode::Read)).await.unwrap();
    assert_ends(other.next().await, Code::FailedPrecondition, "LOCK_OF_OTHER_KIND");
    let lock = node.lock("bill").await;
    assert_eq!((lock.holders.len(), lock.waiting.len()), (1, 0));
    // Curator's semaphore. The queue is read before a node is created in it.
    session.ensure(&path("/locks/permits/leases"), NodeKind::Persistent, b"").await.unwrap();
    let before = tree(&*session).await;
    let mut semaphore = node.hold(HoldRequest { lock: at("/locks/permits"), ..request("") }).await.unwrap();
    assert_ends(semaphore.next().await, Code::FailedPrecondition, "LOCK_OF_OTHER_KIND");
    assert_eq!(tree(&*session).await, before);
}

fn permits(name: &str, permits: u32) -> HoldRequest {
    HoldRequest { permits, ..of_mode(name, LockMode::Semaphore) }
}

async fn a_semaphore_has_as_many_holders_as_permits_and_a_queue(registry: TestRegistry) {
    let mut nodes = [Node::start(&registry, 1).await, Node::start(&registry, 2).await];
    let mut holds = Vec::new();
    let mut tokens = Vec::new();
    for node in &mut nodes {
        let mut hold = node.hold(permits("bill", 2)).await.unwrap();
        tokens.push(hold.acquired().await.fencing_token);
        holds.push(hold);
    }
    // The third is the first of the queue, and waits for a permit. The fourth waits for the third.
    let mut third = nodes[0].hold(permits("bill", 2)).await.unwrap();
    let Some(Event::Waiting(waiting)) = third.next().await.unwrap() else { panic!() };
    let first = waiting.first.unwrap();
    assert_eq!((waiting.position, first.mode()), (0, LockMode::Semaphore));
    let mut fourth = nodes[1].hold(permits("bill", 2)).await.unwrap();
    let Some(Event::Waiting(waiting)) = fourth.next().await.unwrap() else { panic!() };
    assert_eq!(waiting.position, 1);
    assert!(waiting.first.unwrap().node_name.starts_with("locks/_c_"));
    let lock = nodes[0].lock("bill").await;
    assert_eq!((lock.holders.len(), lock.waiting.len(), lock.foreign_nodes.len()), (2, 2, 0));
    assert_eq!(lock.holders[0].node_name, first.node_name);
    // The second holder goes first.
    drop(holds.pop());
    tokens.push(third.acquired().await.fencing_token);
    let lock = nodes[1].until("bill", |lock| lock.waiting.len() == 1).await;
    assert_eq!(lock.holders.len(), 2);
    // An operator takes the permit of the first holder: it hears of it, and the fourth holds.
    let id = named("bill");
    let broken = BreakLockRequest { lock: id, node_name: first.node_name };
    nodes[1].client.break_lock(broken).await.unwrap();
    assert_eq!(holds[0].lost().await, LockLossReason::Revoked);
    tokens.push(fourth.acquired().await.fencing_token);
    assert!(tokens.is_sorted(), "{tokens:?}");
    for (node, hold) in [(0, &mut third), (1, &mut fourth)] {
        nodes[node].client.release(ReleaseRequest { hold_id: hold.id.clone() }).await.unwrap();
        assert!(matches!(hold.next().await, Ok(Some(Event::Released(_)))));
    }
    let lock = nodes[0].lock("bill").await;
    assert_eq!((lock.holders.len(), lock.waiting.len()), (0, 0));
}

async fn a_contender_that_only_tries_a_full_semaphore_leaves_nothing(registry: TestRegistry) {
    let mut node = Node::start(&registry, 1).await;
    let tries = || HoldRequest { wait_timeout: seconds(0), ..permits("bill", 1) };
    let mut free = node.hold(tries()).await.unwrap();
    free.acquired().await;
    for _ in 0..2 {
        let mut taken = node.hold(tries()).await.unwrap();
        let end = loop {
            match taken.next().await {
                Ok(Some(Event::Waiting(_))) => {}
                other => break other,
            }
        };
        let message = end.as_ref().unwrap_err().message().to_owned();
        assert!(message.contains("`leases/_c_") && message.contains("is first"), "{message}");
        assert_ends(end, Code::DeadlineExceeded, "LOCK_NOT_FREE");
    }
    let lock = node.lock("bill").await;
    assert_eq!((lock.holders.len(), lock.waiting.len()), (1, 0));
}

async fn a_semaphore_is_refused_where_another_kind_is_in_use_and_changes_nothing(registry: TestRegistry) {
    let mut node = Node::start(&registry, 1).await;
    let session = registry.session().await;
    let mut hold = node.hold(request("bill")).await.unwrap();
    hold.acquired().await;
    let before = tree(&*session).await;
    let mut other = node.hold(permits("bill", 3)).await.unwrap();
    assert_ends(other.next().await, Code::FailedPrecondition, "LOCK_OF_OTHER_KIND");
    assert_eq!(tree(&*session).await, before);
    for (mode, count) in [(LockMode::Semaphore, 0), (LockMode::Semaphore, 1_001), (LockMode::Mutex, 1)] {
        let request = HoldRequest { permits: count, ..of_mode("other", mode) };
        let refused = node.client.hold(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert_eq!(refused.get_details_bad_request().unwrap().field_violations[0].field, "permits");
    }
    assert_eq!(tree(&*session).await, before);
}

async fn a_semaphores_holder_hears_of_a_revocation_and_of_the_loss(registry: TestRegistry) {
    let mut node = Node::start_on(registry.victims(), 1).await;
    let mut hold = node.hold(permits("bill", 1)).await.unwrap();
    hold.acquired().await;
    let id = named("bill");
    let asked =
        node.client.request_revocation(RequestRevocationRequest { lock: id }).await.unwrap().into_inner();
    assert!(asked.holder.unwrap().node_name.starts_with("leases/_c_"));
    while !matches!(hold.next().await.unwrap(), Some(Event::RevocationRequested(_))) {}
    let session = session_of_holder(&mut node, "bill").await;
    registry.cut(session);
    registry.end(session);
    assert_eq!(hold.lost().await, LockLossReason::LeaseLost);
    registry.mend(session);
    let mut next = Node::start(&registry, 2).await;
    next.hold(permits("bill", 1)).await.unwrap().acquired().await;
}

async fn an_operator_breaks_a_lock(registry: TestRegistry) {
    let mut node = Node::start(&registry, 1).await;
    let session = registry.session().await;
    // S34: a contender of Go that is gone, on a session that lives.
    let name = "_c_7433dccf1ec4a26460c4bee596ccfd01-lock-0000000000";
    session.ensure(&path("/locks/bill").child(name), NodeKind::Ephemeral, b"go").await.unwrap();
    let lock = at("/locks/bill");
    let mut hold = node.hold(HoldRequest { lock: lock.clone(), ..request("") }).await.unwrap();
    let Some(Event::Waiting(waiting)) = hold.next().await.unwrap() else { panic!() };
    let first = waiting.first.unwrap();
    assert_eq!((first.node_name.as_str(), first.holder.as_str()), (name, "go"));
    let broken = BreakLockRequest { lock, node_name: name.to_owned() };
    node.client.break_lock(broken.clone()).await.unwrap();
    hold.acquired().await;
    assert_ends(node.client.break_lock(broken).await.map(drop), Code::NotFound, "LOCK_FREE");
}

async fn names_of_locks_are_listed_in_pages(registry: TestRegistry) {
    let mut node = Node::start(&registry, 1).await;
    let mut holds = Vec::new();
    for name in ["c", "a", "b"] {
        let mut hold = node.hold(request(name)).await.unwrap();
        hold.acquired().await;
        holds.push(hold);
    }
    let mut found = Vec::new();
    let mut page_token = String::new();
    loop {
        let page =
            node.client.list_locks(ListLocksRequest { page_size: 2, page_token }).await.unwrap().into_inner();
        assert!(page.names.len() <= 2);
        found.extend(page.names);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(found, ["a", "b", "c"]);
    let large = ListLocksRequest { page_size: 1_001, page_token: String::new() };
    assert_ends(node.client.list_locks(large).await.map(drop), Code::InvalidArgument, "INVALID_REQUEST");
}

async fn the_states_of_a_lock_are_sent_after_each_change(registry: TestRegistry) {
    let mut victim = Node::start_on(registry.victims(), 1).await;
    let mut states =
        victim.client.watch_lock(WatchLockRequest { lock: named("bill") }).await.unwrap().into_inner();
    let mut until = async |wanted: &dyn Fn(&WatchLockResponse) -> bool| {
        timeout(PATIENCE, async {
            loop {
                let state = states.message().await.unwrap().unwrap();
                if wanted(&state) {
                    return state;
                }
            }
        })
        .await
        .expect("no such state comes")
    };
    let count = |state: &WatchLockResponse| {
        let lock = state.lock.as_ref().unwrap();
        (lock.holders.len(), lock.waiting.len())
    };
    until(&|state| count(state) == (0, 0)).await;
    let mut hold = victim.hold(request("bill")).await.unwrap();
    let token = hold.acquired().await.fencing_token;
    let state = until(&|state| count(state) == (1, 0)).await;
    assert_eq!(state.lock.unwrap().holders[0].fencing_token, token);
    let _waiting = victim.hold(request("bill")).await.unwrap();
    until(&|state| count(state) == (1, 1)).await;
    let session = session_of_holder(&mut victim, "bill").await;
    registry.cut(session);
    let stale = until(&|state| !state.stale_reason.is_empty()).await;
    assert_eq!(count(&stale), (1, 1), "the last known state");
    registry.mend(session);
    until(&|state| state.stale_reason.is_empty()).await;
    drop(hold);
    until(&|state| count(state) == (1, 0)).await;
}

/// The session of the sidecar that holds the lock.
async fn session_of_holder(node: &mut Node, name: &str) -> SessionId {
    let session = node.lock(name).await.holders[0].session.clone();
    let digits = session.trim_start_matches("0x");
    SessionId(u64::from_str_radix(digits, 16).unwrap().cast_signed())
}

async fn s19_a_holder_keeps_the_lock_through_a_short_interruption(registry: TestRegistry) {
    let mut victim = Node::start_on(registry.victims(), 1).await;
    let mut other = Node::start(&registry, 2).await;
    let mut hold = victim.hold(request("bill")).await.unwrap();
    let acquired = hold.acquired().await;
    assert!(registry.is_embedded() || acquired.lease.unwrap().remaining_lease.is_some());
    let mut next = other.hold(request("bill")).await.unwrap();
    assert!(matches!(next.next().await, Ok(Some(Event::Waiting(_)))));
    let session = session_of_holder(&mut other, "bill").await;
    registry.cut(session);
    assert!(matches!(hold.next().await, Ok(Some(Event::Suspended(_)))));
    registry.mend(session);
    assert!(matches!(hold.next().await, Ok(Some(Event::Resumed(_)))));
    assert_eq!(other.lock("bill").await.holders[0].fencing_token, acquired.fencing_token);
    victim.client.release(ReleaseRequest { hold_id: hold.id.clone() }).await.unwrap();
    next.acquired().await;
}

async fn s18_a_holder_whose_session_ends_hears_of_it_and_the_next_one_holds(registry: TestRegistry) {
    let mut victim = Node::start_on(registry.victims(), 1).await;
    let mut other = Node::start(&registry, 2).await;
    let mut hold = victim.hold(request("bill")).await.unwrap();
    let acquired = hold.acquired().await;
    let mut waiting = victim.hold(request("bill")).await.unwrap();
    assert!(matches!(waiting.next().await, Ok(Some(Event::Waiting(_)))));
    let mut next = other.hold(request("bill")).await.unwrap();
    assert!(matches!(next.next().await, Ok(Some(Event::Waiting(_)))));
    let session = session_of_holder(&mut other, "bill").await;
    registry.cut(session);
    registry.end(session);
    assert_eq!(hold.lost().await, LockLossReason::LeaseLost);
    assert!(next.acquired().await.fencing_token > acquired.fencing_token);
    registry.mend(session);
    drop(next);
    // A waiting contender goes on in the next session, at the end of the queue.
    waiting.acquired().await;
    drop(waiting);
    other.until("bill", |lock| lock.holders.is_empty()).await;
}

async fn a_contender_hears_that_the_registry_does_not_answer(registry: TestRegistry) {
    let mut victim = Node::start_on(registry.victims(), 1).await;
    let mut held = victim.hold(request("bill")).await.unwrap();
    held.acquired().await;
    let session = session_of_holder(&mut victim, "bill").await;
    registry.cut(session);
    let mut limited =
        victim.hold(HoldRequest { wait_timeout: seconds(1), ..permits("limited", 2) }).await.unwrap();
    let mut holds = Vec::new();
    for other in [request("other"), permits("permits", 2)] {
        let mut hold = victim.hold(other).await.unwrap();
        let Some(Event::Waiting(waiting)) = hold.next().await.unwrap() else { panic!() };
        assert_eq!((waiting.position, waiting.first), (0, None));
        assert!(waiting.reason.contains("registry"), "{}", waiting.reason);
        holds.push(hold);
    }
    assert_ends(limited.next().await, Code::DeadlineExceeded, "LOCK_NOT_FREE");
    registry.mend(session);
    for mut hold in holds {
        hold.acquired().await;
    }
}

async fn a_drain_ends_waiting_contenders_at_once_and_holders_at_the_deadline(registry: TestRegistry) {
    let mut node = Node::start(&registry, 1).await;
    let mut other = Node::start(&registry, 2).await;
    let mut held = node.hold(request("bill")).await.unwrap();
    held.acquired().await;
    let mut waiting = node.hold(request("bill")).await.unwrap();
    assert!(matches!(waiting.next().await, Ok(Some(Event::Waiting(_)))));
    let mut next = other.hold(request("bill")).await.unwrap();
    let client = node.client.clone();
    let draining = tokio::spawn(node.drain());
    assert_ends(waiting.next().await, Code::Unavailable, "SIDECAR_STOPPING");
    assert!(matches!(held.next().await, Ok(Some(Event::Draining(_)))));
    let refused = client.clone().hold(request("bill")).await;
    assert!(refused.is_err());
    assert_eq!(held.lost().await, LockLossReason::Draining);
    next.acquired().await;
    timeout(PATIENCE, draining).await.unwrap().unwrap();
}

async fn an_uncontended_lock_costs_one_flight_and_its_release_one_request(registry: TestRegistry) {
    let counted = Counted::new(SharedRegistry(registry.shared()));
    let mut node = Node::start_on(Arc::new(counted.clone()), 1).await;
    // The registry may remove an empty container at any time, and the next contender creates it again.
    let lock = path("/jobs-sidekeeper/@-@locks/queues/bill");
    registry.session().await.ensure(&lock, NodeKind::Persistent, b"").await.unwrap();
    let before = counted.counts();
    let mut hold = node.hold(request("bill")).await.unwrap();
    hold.acquired().await;
    node.client.release(ReleaseRequest { hold_id: hold.id.clone() }).await.unwrap();
    let after = counted.counts();
    // The creation and the look are sent together. A proof of the lease may come in between.
    let cost =
        (after.reads - before.reads, after.operations - before.operations, after.watches - before.watches);
    assert!(matches!(cost, (1, 2..=3, 0)), "{cost:?}");
}

async fn a_lock_delay_follows_a_holder_that_has_vanished(registry: TestRegistry) {
    let (mut one, mut two) = (Node::start(&registry, 1).await, Node::start(&registry, 2).await);
    let wanted = HoldRequest { lock_delay: seconds(2), holder: "billing".to_owned(), ..request("bill") };
    let mut held = one.hold(wanted).await.unwrap();
    let token = held.acquired().await.fencing_token;
    assert_eq!(one.lock("bill").await.vanished, []);
    let mut next = two.hold(request("bill")).await.unwrap();
    let Some(Event::Waiting(waiting)) = next.next().await.unwrap() else { panic!() };
    assert_eq!(waiting.position, 1);
    // Its application is gone.
    drop(held);
    let lock = two.until("bill", |lock| !lock.vanished.is_empty()).await;
    let (vanished, delay) = (lock.vanished[0].clone(), seconds(2));
    assert_eq!((vanished.holder.as_str(), vanished.lock_delay), ("billing", delay));
    let Some(Event::Waiting(waiting)) = next.next().await.unwrap() else { panic!("no delay") };
    let first = waiting.first.unwrap();
    assert_eq!(
        (waiting.position, &first.node_name, first.holder.as_str()),
        (0, &vanished.node_name, "billing")
    );
    assert!(next.acquired().await.fencing_token > token);
    assert_eq!(two.until("bill", |lock| lock.vanished.is_empty()).await.holders.len(), 1);
    // A limit of the holding time is no release either.
    let limited = HoldRequest { lock_delay: seconds(600), hold_timeout: seconds(1), ..request("other") };
    let mut held = one.hold(limited).await.unwrap();
    held.acquired().await;
    held.lost().await;
    let tries = HoldRequest { wait_timeout: seconds(0), ..request("other") };
    assert_ends(two.hold(tries).await.unwrap().next().await, Code::DeadlineExceeded, "LOCK_NOT_FREE");
}

async fn a_lock_that_is_given_back_has_no_delay(registry: TestRegistry) {
    let mut node = Node::start(&registry, 1).await;
    let delayed = || HoldRequest { lock_delay: seconds(600), ..request("bill") };
    for _ in 0..3 {
        let mut held = node.hold(delayed()).await.unwrap();
        held.acquired().await;
        // It has waited, and leaves without having held.
        let mut waits = node.hold(delayed()).await.unwrap();
        assert!(matches!(waits.next().await, Ok(Some(Event::Waiting(_)))));
        drop(waits);
        node.until("bill", |lock| lock.waiting.is_empty()).await;
        node.client.release(ReleaseRequest { hold_id: held.id.clone() }).await.unwrap();
        assert_eq!(node.lock("bill").await.vanished, []);
    }
}

async fn an_operator_ends_a_lock_delay(registry: TestRegistry) {
    let (mut one, mut two) = (Node::start(&registry, 1).await, Node::start(&registry, 2).await);
    let mut held = one.hold(HoldRequest { lock_delay: seconds(600), ..request("bill") }).await.unwrap();
    held.acquired().await;
    drop(held);
    let lock = two.until("bill", |lock| !lock.vanished.is_empty()).await;
    let mut next = two.hold(request("bill")).await.unwrap();
    assert!(matches!(next.next().await, Ok(Some(Event::Waiting(_)))));
    let node_name = lock.vanished[0].node_name.clone();
    two.client.break_lock(BreakLockRequest { lock: named("bill"), node_name }).await.unwrap();
    next.acquired().await;
}

async fn s38_a_hold_beyond_the_limit_of_a_queue_is_refused(registry: TestRegistry) {
    const CONTENDERS: usize = 1_000;
    let mut node = Node::start(&registry, 1).await;
    let session = registry.session().await;
    let lock = path("/jobs-sidekeeper/@-@locks/queues/bill");
    session.ensure(&lock, NodeKind::Persistent, b"").await.unwrap();
    let stand = || Operation::create(lock.child("_c_x-lock-"), NodeKind::EphemeralSequential, "other");
    for _ in 0..CONTENDERS / 100 {
        session.commit((0..100).map(|_| stand()).collect()).await.unwrap();
    }
    let before = tree(&*session).await;
    let mut refused = node.hold(request("bill")).await.unwrap();
    assert_ends(refused.next().await, Code::ResourceExhausted, "TOO_MANY");
    assert_eq!(tree(&*session).await, before);
    let mut names = session.children(&lock).await.unwrap().unwrap();
    names.sort();
    session.commit(vec![Operation::delete(lock.child(&names[0]))]).await.unwrap();
    let mut waits = node.hold(request("bill")).await.unwrap();
    let Some(Event::Waiting(waiting)) = waits.next().await.unwrap() else { panic!() };
    assert_eq!(usize::try_from(waiting.position).unwrap(), CONTENDERS - 1);
    assert_eq!(waiting.first.unwrap().node_name, names[1]);
}

/// ZooKeeper's numbers of the types of requests: <https://github.com/apache/zookeeper>, `ZooDefs.OpCode`.
const GET_DATA: i32 = 4;
const GET_CHILDREN: i32 = 12;
const MULTI: i32 = 14;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_costs_five_requests() {
    let server = Server::shared();
    let proxy = Proxy::start(server.port()).await;
    let below =
        |address: &str| ZooKeeper::new(patient(settings(&format!("{address}/five_requests")))).unwrap();
    let direct: Arc<dyn Registry> = Arc::new(below(&server.address()));
    let mut first = Node::start_on(Arc::clone(&direct), 1).await;
    let mut second = Node::start_on(Arc::new(below(&proxy.address())), 2).await;
    let session = direct.open().await.unwrap();
    session.ensure(&path("/jobs-sidekeeper/@-@locks/queues/bill"), NodeKind::Persistent, b"").await.unwrap();
    // Creation, look, read with a watch, look, deletion.
    let usual = [MULTI, GET_CHILDREN, GET_DATA, GET_CHILDREN, MULTI];
    let mut cost = Vec::new();
    // A proof of the lease may come in between, and what a long wait costs if the machine is slow.
    for _ in 0..50 {
        let mut held = first.hold(request("bill")).await.unwrap();
        held.acquired().await;
        second.client.list_locks(ListLocksRequest::default()).await.unwrap();
        proxy.take_requests();
        let mut waiting = second.hold(request("bill")).await.unwrap();
        while !proxy.requests().contains(&GET_DATA) {
            tokio::task::yield_now().await;
        }
        first.client.release(ReleaseRequest { hold_id: held.id.clone() }).await.unwrap();
        waiting.acquired().await;
        second.client.release(ReleaseRequest { hold_id: waiting.id.clone() }).await.unwrap();
        cost = proxy.take_requests();
        if cost == usual {
            break;
        }
    }
    assert_eq!(cost, usual);
}

/// A registry behind a pointer.
struct SharedRegistry(Arc<dyn Registry>);

impl Registry for SharedRegistry {
    fn open(&self) -> futures::future::BoxFuture<'_, Result<Arc<dyn Session>, sidekeeper::registry::Error>> {
        self.0.open()
    }

    fn reopen<'a>(
        &'a self,
        key: &'a sidekeeper::registry::SessionKey,
    ) -> futures::future::BoxFuture<'a, Result<Option<Arc<dyn Session>>, sidekeeper::registry::Error>> {
        self.0.reopen(key)
    }

    fn describe(&self) -> String {
        self.0.describe()
    }
}
