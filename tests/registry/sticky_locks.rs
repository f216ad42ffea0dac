//! Sticky locks through the API of whole sidecars, on both registries: the owner, the candidates that wait, and the events of
//! each. The numbers are those of the scenarios in the locks specification.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use sidekeeper::proto::stand_response::Event;
use sidekeeper::proto::sticky_lock_service_client::StickyLockServiceClient;
use sidekeeper::proto::try_run_response::Answer;
use sidekeeper::proto::{
    GetStickyLockRequest, LeaveRequest, ListStickyLocksRequest, ResignOwnershipRequest, ResolveRequest,
    RunEntered, SaveCheckpointRequest, StandRequest, StandResponse, StickyAcquired, StickyCause, StickyLock,
    StickyLossReason, StickyLost, StickyStanding, StickyState, TryRunRequest,
};
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
use crate::registries::{PATIENCE, TestRegistry, path};
use crate::support::proxy::Mode;

on_both! {
    an_owner_stays_the_owner_between_its_runs,
    s40_a_short_interruption_inside_a_run_moves_nothing,
    s41_a_run_goes_on_after_a_lost_session_within_the_grace,
    s42_an_idle_owner_comes_back_after_a_lost_session,
    s43_s44_each_next_owner_hears_of_an_interrupted_run_until_one_resolves_it,
    s45_an_owner_that_is_back_after_the_grace_hears_who_owns,
    s46_a_resigned_lock_is_owned_by_the_next_at_once,
    s47_a_candidate_behind_a_vanished_one_waits_one_grace,
    s48_two_instances_at_one_address_have_one_owner,
    s50_a_changed_grace_is_in_force_from_the_next_grant_on,
    s51_no_event_about_the_lock_comes_before_an_answer,
    s52_a_run_begins_or_its_caller_hears_who_owns,
    an_instance_that_restarts_owns_again_at_once,
    an_owner_whose_node_is_deleted_hears_of_it,
    an_unreadable_record_is_an_error_that_names_it,
    a_refused_request_names_its_field,
    a_checkpoint_is_saved_once_a_second_and_only_inside_a_run,
    a_drain_ends_idle_stands_at_once_and_runs_at_the_deadline,
}

/// A sidecar, and an application of it.
struct Node {
    sidecar: Sidecar,
    client: StickyLockServiceClient<Channel>,
    _folder: TempDir,
}

impl Node {
    async fn start(registry: &TestRegistry) -> Self {
        Self::start_on(registry.shared()).await
    }

    async fn start_on(registry: Arc<dyn sidekeeper::registry::Registry>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(&folder.path().join("socket"));
        config.instance_ip = Ipv4Addr::new(10, 0, 0, 1);
        config.drain_timeout = Duration::from_millis(500);
        let sidecar = Sidecar::start_on(config, path("/jobs"), registry).await.unwrap();
        let mut client = StickyLockServiceClient::new(connect_channel(&sidecar.endpoints()[0]).await);
        // Until there is a session with the registry.
        let ready = async {
            while client.list_sticky_locks(ListStickyLocksRequest::default()).await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, ready).await.expect("the sidecar has no session");
        Self { sidecar, client, _folder: folder }
    }

    async fn open(&mut self, request: StandRequest) -> Result<Stand, Status> {
        let mut events = self.client.stand(request).await?.into_inner();
        let first = timeout(PATIENCE, events.message()).await.unwrap()?.unwrap().event;
        let Some(Event::Started(started)) = first else { panic!("{first:?}") };
        Ok(Stand { id: started.stand_id, events, client: self.client.clone() })
    }

    async fn stand(&mut self, instance: &str) -> Stand {
        self.open(request(instance)).await.unwrap()
    }

    async fn lock(&mut self) -> StickyLock {
        let request = GetStickyLockRequest { name: "bill".to_owned() };
        self.client.get_sticky_lock(request).await.unwrap().into_inner().lock.unwrap()
    }

    /// Waits until the lock is as wanted.
    async fn until(&mut self, wanted: impl Fn(&StickyLock) -> bool) -> StickyLock {
        let search = async {
            loop {
                let lock = self.lock().await;
                if wanted(&lock) {
                    return lock;
                }
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, search).await.expect("the lock does not become as wanted")
    }

    /// The session of the sidecar that owns the lock.
    async fn session_of_owner(&mut self) -> SessionId {
        let session = self.lock().await.session;
        let digits = session.trim_start_matches("0x");
        SessionId(u64::from_str_radix(digits, 16).unwrap().cast_signed())
    }
}

/// An open stand.
struct Stand {
    id: String,
    events: Streaming<StandResponse>,
    client: StickyLockServiceClient<Channel>,
}

impl Stand {
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

    /// The next event that is not a state either.
    async fn important(&mut self) -> Event {
        loop {
            match self.next().await.unwrap().expect("the stream has ended") {
                Event::State(_) => {}
                event => return event,
            }
        }
    }

    /// The status of the stream's end, after states.
    async fn end(&mut self) -> Result<Option<Event>, Status> {
        loop {
            match self.next().await {
                Ok(Some(Event::State(_))) => {}
                other => return other,
            }
        }
    }

    /// Waits until the lock is owned.
    async fn acquired(&mut self) -> StickyAcquired {
        loop {
            match self.important().await {
                Event::Acquired(acquired) => return acquired,
                Event::Suspended(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    async fn lost(&mut self) -> StickyLost {
        loop {
            match self.important().await {
                Event::Lost(lost) => return lost,
                Event::Suspended(_) | Event::Draining(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    async fn state(&mut self, wanted: StickyState) -> StickyStanding {
        loop {
            if let Some(Event::State(standing)) = self.next().await.unwrap()
                && standing.state() == wanted
            {
                return standing;
            }
        }
    }

    async fn try_run(&mut self, wait: f64) -> Answer {
        let wait_timeout = Some(Duration::from_secs_f64(wait).try_into().unwrap());
        let request = TryRunRequest { stand_id: self.id.clone(), wait_timeout };
        let answer = timeout(PATIENCE, self.client.try_run(request)).await.unwrap();
        answer.unwrap().into_inner().answer.unwrap()
    }

    async fn enter(&mut self) -> RunEntered {
        match self.try_run(10.0).await {
            Answer::Entered(entered) => entered,
            Answer::Busy(busy) => panic!("{busy:?}"),
        }
    }

    async fn busy(&mut self, wait: f64) -> StickyStanding {
        match self.try_run(wait).await {
            Answer::Busy(busy) => busy,
            Answer::Entered(entered) => panic!("{entered:?}"),
        }
    }

    async fn leave(&mut self, run_id: &str) -> Result<(), Status> {
        let request = LeaveRequest { stand_id: self.id.clone(), run_id: run_id.to_owned() };
        self.client.leave(request).await.map(drop)
    }

    async fn save(&mut self, data: &[u8]) -> Result<(), Status> {
        let request = SaveCheckpointRequest { stand_id: self.id.clone(), checkpoint: data.to_vec() };
        self.client.save_checkpoint(request).await.map(drop)
    }

    async fn resolve(&mut self, fencing_token: i64) {
        let request = ResolveRequest { stand_id: self.id.clone(), fencing_token };
        self.client.resolve(request).await.unwrap();
    }

    async fn resign(&mut self) -> Result<(), Status> {
        self.client.resign_ownership(ResignOwnershipRequest { stand_id: self.id.clone() }).await.map(drop)
    }
}

fn assert_ends<T: std::fmt::Debug>(result: Result<T, Status>, code: Code, reason: &str) {
    let status = result.unwrap_err();
    let given = status.get_error_details().error_info().map(|info| info.reason.clone());
    assert_eq!((status.code(), given.as_deref()), (code, Some(reason)), "{status:?}");
}

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

fn request(instance: &str) -> StandRequest {
    StandRequest { name: "bill".to_owned(), instance_name: instance.to_owned(), ..StandRequest::default() }
}

fn with_grace(instance: &str, grace: i64) -> StandRequest {
    StandRequest { grace: seconds(grace), ..request(instance) }
}

async fn an_owner_stays_the_owner_between_its_runs(registry: TestRegistry) {
    let (mut one, mut two) = (Node::start(&registry).await, Node::start(&registry).await);
    let mut owner = one.stand("m1").await;
    let acquired = owner.acquired().await;
    assert_eq!((acquired.cause(), acquired.continued), (StickyCause::First, false));
    assert_eq!((acquired.previous, acquired.unfinished), (None, vec![]));
    let mut other = two.stand("m2").await;
    assert_eq!(other.state(StickyState::Released).await.owner, "m1");
    for _ in 0..3 {
        let run = owner.enter().await;
        assert_eq!(run.fencing_token, acquired.fencing_token);
        let lock = two.lock().await;
        assert_eq!((lock.owner.as_str(), lock.inside), ("m1", true));
        // A second thread of the owner does not run at the same time.
        assert_eq!(owner.busy(0.0).await.owner, "m1");
        assert_ends(owner.leave("x").await, Code::FailedPrecondition, "LOCK_NOT_OWNED");
        owner.leave(&run.run_id).await.unwrap();
        let lock = two.lock().await;
        assert_eq!((lock.owner.as_str(), lock.inside), ("m1", false));
        assert!(lock.last_run_time.is_some() && lock.last_run_end_time.is_some());
    }
    assert_ends(owner.leave("").await, Code::FailedPrecondition, "LOCK_NOT_OWNED");
    let lock = two.lock().await;
    assert_eq!((lock.fencing_token, lock.waiting), (acquired.fencing_token, vec!["m2".to_owned()]));
}

async fn s40_a_short_interruption_inside_a_run_moves_nothing(registry: TestRegistry) {
    let mut victim = Node::start_on(registry.victims()).await;
    let mut other = Node::start(&registry).await;
    let mut owner = victim.stand("m1").await;
    let acquired = owner.acquired().await;
    let run = owner.enter().await;
    let mut waiting = other.stand("m2").await;
    waiting.state(StickyState::Released).await;
    let session = other.session_of_owner().await;
    registry.cut(session);
    assert!(matches!(owner.important().await, Event::Suspended(_)));
    registry.mend(session);
    assert!(matches!(owner.important().await, Event::Resumed(_)));
    owner.leave(&run.run_id).await.unwrap();
    assert_eq!(other.lock().await.fencing_token, acquired.fencing_token);
}

async fn s41_a_run_goes_on_after_a_lost_session_within_the_grace(registry: TestRegistry) {
    let mut victim = Node::start_on(registry.victims()).await;
    let mut other = Node::start(&registry).await;
    let mut owner = victim.open(with_grace("m1", 15)).await.unwrap();
    let acquired = owner.acquired().await;
    let run = owner.enter().await;
    owner.save(b"half").await.unwrap();
    let mut waiting = other.stand("m2").await;
    waiting.state(StickyState::Released).await;
    let session = other.session_of_owner().await;
    registry.cut(session);
    registry.end(session);
    if !registry.is_embedded() {
        waiting.state(StickyState::Waiting).await;
    }
    registry.mend(session);
    let again = owner.acquired().await;
    assert_eq!((again.cause(), again.continued), (StickyCause::Returned, true));
    assert!(again.fencing_token > acquired.fencing_token);
    assert_eq!(again.unfinished, []);
    let lock = other.lock().await;
    assert_eq!((lock.owner.as_str(), lock.inside), ("m1", true));
    owner.leave(&run.run_id).await.unwrap();
}

async fn s42_an_idle_owner_comes_back_after_a_lost_session(registry: TestRegistry) {
    let mut victim = Node::start_on(registry.victims()).await;
    let mut other = Node::start(&registry).await;
    let mut owner = victim.stand("m1").await;
    let acquired = owner.acquired().await;
    let mut waiting = other.stand("m2").await;
    waiting.state(StickyState::Released).await;
    let session = other.session_of_owner().await;
    registry.cut(session);
    registry.end(session);
    assert_eq!(owner.lost().await.reason(), StickyLossReason::LeaseLost);
    registry.mend(session);
    let again = owner.acquired().await;
    assert_eq!((again.cause(), again.continued), (StickyCause::Returned, false));
    assert!(again.fencing_token > acquired.fencing_token);
    assert_eq!(other.lock().await.owner, "m1");
}

async fn s43_s44_each_next_owner_hears_of_an_interrupted_run_until_one_resolves_it(registry: TestRegistry) {
    let mut node = Node::start(&registry).await;
    let mut first = node.open(with_grace("m1", 1)).await.unwrap();
    let acquired = first.acquired().await;
    first.enter().await;
    first.save(b"half").await.unwrap();
    let mut second = node.open(with_grace("m2", 1)).await.unwrap();
    second.state(StickyState::Released).await;
    let mut third = node.open(with_grace("m3", 1)).await.unwrap();
    third.state(StickyState::Released).await;
    // The application crashes.
    drop(first);
    let next = second.acquired().await;
    assert_eq!(next.cause(), StickyCause::GraceOver);
    let previous = next.previous.unwrap();
    assert_eq!((previous.instance_name.as_str(), previous.inside), ("m1", true));
    assert_eq!(previous.fencing_token, acquired.fencing_token);
    assert!(previous.last_run_time.is_some() && previous.owned_since.is_some());
    let [run] = &next.unfinished[..] else { panic!("{:?}", next.unfinished) };
    assert_eq!((run.instance_name.as_str(), &run.checkpoint[..]), ("m1", &b"half"[..]));
    assert_eq!(run.fencing_token, acquired.fencing_token);
    // It dies before it has resolved the run.
    drop(second);
    let last = third.acquired().await;
    let previous = last.previous.unwrap();
    assert_eq!((previous.instance_name.as_str(), previous.inside), ("m2", false));
    assert_eq!(last.unfinished, next.unfinished);
    third.resolve(run.fencing_token).await;
    third.resolve(run.fencing_token).await;
    assert_eq!(node.lock().await.unfinished, []);
    drop(third);
    assert_eq!(node.stand("m4").await.acquired().await.unfinished, []);
}

async fn s45_an_owner_that_is_back_after_the_grace_hears_who_owns(registry: TestRegistry) {
    if registry.is_embedded() {
        // Its sidecar is never away: the registry is in the same process.
        return;
    }
    let mut victim = Node::start_on(registry.victims()).await;
    let mut other = Node::start(&registry).await;
    let mut owner = victim.open(with_grace("m1", 1)).await.unwrap();
    owner.acquired().await;
    owner.enter().await;
    let mut waiting = other.open(with_grace("m2", 1)).await.unwrap();
    waiting.state(StickyState::Released).await;
    let session = other.session_of_owner().await;
    registry.cut(session);
    let next = waiting.acquired().await;
    assert_eq!((next.cause(), next.unfinished.len()), (StickyCause::GraceOver, 1));
    registry.mend(session);
    assert_eq!(owner.lost().await.reason(), StickyLossReason::LeaseLost);
    assert_eq!(owner.state(StickyState::Released).await.owner, "m2");
}

async fn s46_a_resigned_lock_is_owned_by_the_next_at_once(registry: TestRegistry) {
    let mut node = Node::start(&registry).await;
    let mut owner = node.open(with_grace("m1", 3600)).await.unwrap();
    let acquired = owner.acquired().await;
    let mut next = node.stand("m2").await;
    next.state(StickyState::Released).await;
    assert_ends(next.resign().await, Code::FailedPrecondition, "LOCK_NOT_OWNED");
    owner.resign().await.unwrap();
    assert_eq!(owner.lost().await.reason(), StickyLossReason::Resigned);
    let got = next.acquired().await;
    assert_eq!((got.cause(), got.previous), (StickyCause::Resigned, None));
    assert!(got.fencing_token > acquired.fencing_token);
    assert_eq!(owner.busy(0.0).await.owner, "m2");
}

async fn s47_a_candidate_behind_a_vanished_one_waits_one_grace(registry: TestRegistry) {
    let mut node = Node::start(&registry).await;
    let mut owner = node.open(with_grace("m1", 2)).await.unwrap();
    owner.acquired().await;
    let mut head = node.open(with_grace("m2", 2)).await.unwrap();
    head.state(StickyState::Released).await;
    let mut second = node.open(with_grace("m3", 2)).await.unwrap();
    second.state(StickyState::Released).await;
    drop(owner);
    head.state(StickyState::Waiting).await;
    second.state(StickyState::Waiting).await;
    drop(head);
    let lock = node.until(|lock| lock.waiting == ["m3"]).await;
    assert_eq!(lock.state(), StickyState::Waiting);
    let got = second.acquired().await;
    assert_eq!((got.cause(), got.previous.unwrap().instance_name.as_str()), (StickyCause::GraceOver, "m1"));
}

async fn s48_two_instances_at_one_address_have_one_owner(registry: TestRegistry) {
    let mut node = Node::start(&registry).await;
    let mut owner = node.stand("m1").await;
    owner.acquired().await;
    assert_ends(node.open(request("m1")).await.map(|_| ()), Code::FailedPrecondition, "LOCK_HELD_ALREADY");
    let mut other = node.stand("m2").await;
    assert_eq!(other.state(StickyState::Released).await.owner, "m1");
    assert_eq!(other.busy(0.0).await.owner, "m1");
    // The same name at another sidecar is another candidate.
    let mut far = Node::start(&registry).await;
    let mut twin = far.stand("m1").await;
    twin.state(StickyState::Released).await;
    assert_eq!(twin.busy(0.0).await.state(), StickyState::Released);
    owner.enter().await;
}

async fn s50_a_changed_grace_is_in_force_from_the_next_grant_on(registry: TestRegistry) {
    let mut node = Node::start(&registry).await;
    let mut owner = node.open(with_grace("m1", 2)).await.unwrap();
    owner.acquired().await;
    let mut next = node.open(with_grace("m2", 5)).await.unwrap();
    next.state(StickyState::Released).await;
    assert_eq!(node.lock().await.grace, seconds(2));
    owner.resign().await.unwrap();
    next.acquired().await;
    assert_eq!(node.lock().await.grace, seconds(5));
}

async fn s51_no_event_about_the_lock_comes_before_an_answer(registry: TestRegistry) {
    let mut victim = Node::start_on(registry.victims()).await;
    let mut first = victim.stand("m1").await;
    first.acquired().await;
    let session = victim.session_of_owner().await;
    registry.cut(session);
    assert!(matches!(first.important().await, Event::Suspended(_)));
    let mut late = victim.stand("m2").await;
    // Nobody knows who owns the lock. That is not the same as another owner.
    let request = TryRunRequest { stand_id: late.id.clone(), wait_timeout: None };
    assert_ends(late.client.try_run(request).await, Code::Unavailable, "REGISTRY_AWAY");
    assert!(futures::FutureExt::now_or_never(late.events.message()).is_none());
    registry.mend(session);
    assert_eq!(late.state(StickyState::Released).await.owner, "m1");
}

async fn s52_a_run_begins_or_its_caller_hears_who_owns(registry: TestRegistry) {
    let mut node = Node::start(&registry).await;
    let mut owner = node.open(with_grace("m1", 4)).await.unwrap();
    // Nobody has owned the lock yet: it is owned in a moment.
    let run = match owner.try_run(0.0).await {
        Answer::Entered(run) => run,
        Answer::Busy(busy) => panic!("{busy:?}"),
    };
    let mut other = node.open(with_grace("m2", 4)).await.unwrap();
    other.state(StickyState::Released).await;
    for wait in [0.0, 0.3] {
        let busy = other.busy(wait).await;
        assert_eq!((busy.state(), busy.owner.as_str(), busy.inside), (StickyState::Released, "m1", true));
    }
    owner.leave(&run.run_id).await.unwrap();
    drop(owner);
    other.state(StickyState::Waiting).await;
    let busy = other.busy(0.0).await;
    assert_eq!((busy.state(), busy.owner.as_str()), (StickyState::Waiting, "m1"));
    // The grace ends while the call waits.
    let run = other.enter().await;
    let acquired = other.acquired().await;
    assert_eq!((run.fencing_token, acquired.cause()), (acquired.fencing_token, StickyCause::GraceOver));
    assert!(acquired.previous.unwrap().last_run_time.is_some());
}

/// The write of a former owner's checkpoint is on its way while the ownership changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s49_a_late_checkpoint_of_a_former_owner_changes_nothing() {
    let registry = TestRegistry::zookeeper("s49").await;
    let TestRegistry::ZooKeeper { proxy, .. } = &registry else { panic!() };
    let (mut victim, mut other) = (Node::start_on(registry.victims()).await, Node::start(&registry).await);
    let mut owner = victim.open(with_grace("m1", 0)).await.unwrap();
    let token = owner.acquired().await.fencing_token;
    owner.enter().await;
    let mut next = other.open(with_grace("m2", 0)).await.unwrap();
    next.state(StickyState::Released).await;
    let session = registry.session().await;
    let lock = path("/jobs-sidekeeper/@-@locks/sticky/bill");
    proxy.set(Mode::Blackhole);
    let (mut client, stand_id) = (owner.client.clone(), owner.id.clone());
    let late = tokio::spawn(async move {
        client.save_checkpoint(SaveCheckpointRequest { stand_id, checkpoint: b"late".to_vec() }).await
    });
    session.commit(vec![Operation::delete(lock.child("owner"))]).await.unwrap();
    assert!(next.acquired().await.fencing_token > token);
    next.enter().await;
    let record = session.get(&lock.child("record")).await.unwrap().unwrap();
    proxy.set(Mode::Pass);
    let late = timeout(PATIENCE, late).await.unwrap().unwrap();
    assert!(late.is_err(), "{late:?}");
    let lost = owner.lost().await.reason();
    assert!(matches!(lost, StickyLossReason::Taken | StickyLossReason::LeaseLost), "{lost:?}");
    assert_eq!(session.get(&lock.child("record")).await.unwrap(), Some(record));
}

async fn an_instance_that_restarts_owns_again_at_once(registry: TestRegistry) {
    let (mut one, mut two) = (Node::start(&registry).await, Node::start(&registry).await);
    let mut owner = one.open(with_grace("m1", 3600)).await.unwrap();
    owner.acquired().await;
    owner.enter().await;
    let mut other = two.open(with_grace("m2", 3600)).await.unwrap();
    other.state(StickyState::Released).await;
    drop(owner);
    other.state(StickyState::Waiting).await;
    let acquired = two.stand("m1").await.acquired().await;
    assert_eq!((acquired.cause(), acquired.continued), (StickyCause::Returned, false));
    assert_eq!(acquired.unfinished.len(), 1);
}

async fn an_owner_whose_node_is_deleted_hears_of_it(registry: TestRegistry) {
    let mut node = Node::start(&registry).await;
    let session = registry.session().await;
    let mut owner = node.open(with_grace("m1", 1)).await.unwrap();
    let acquired = owner.acquired().await;
    session
        .commit(vec![Operation::delete(path("/jobs-sidekeeper/@-@locks/sticky/bill/owner"))])
        .await
        .unwrap();
    assert_eq!(owner.lost().await.reason(), StickyLossReason::Revoked);
    assert!(owner.acquired().await.fencing_token > acquired.fencing_token);
}

async fn an_unreadable_record_is_an_error_that_names_it(registry: TestRegistry) {
    let mut node = Node::start(&registry).await;
    let session = registry.session().await;
    let record = "/jobs-sidekeeper/@-@locks/sticky/bill/record";
    session.ensure(&path(record), NodeKind::Persistent, b"{\"owner\":5}").await.unwrap();
    let mut stand = node.stand("m1").await;
    let end = stand.next().await;
    assert!(end.as_ref().unwrap_err().message().contains(record), "{end:?}");
    assert_ends(end, Code::FailedPrecondition, "RECORD_UNREADABLE");
    let looked = node.client.get_sticky_lock(GetStickyLockRequest { name: "bill".to_owned() }).await;
    assert_ends(looked, Code::FailedPrecondition, "RECORD_UNREADABLE");
    // An owner whose record is overwritten loses the lock.
    session.commit(vec![Operation::set(path(record), b"{}")]).await.unwrap();
    let mut stand = node.stand("m1").await;
    stand.acquired().await;
    session.commit(vec![Operation::set(path(record), b"\xff")]).await.unwrap();
    assert_eq!(stand.lost().await.reason(), StickyLossReason::Revoked);
    assert_ends(stand.next().await, Code::FailedPrecondition, "RECORD_UNREADABLE");
}

async fn a_refused_request_names_its_field(registry: TestRegistry) {
    let mut node = Node::start(&registry).await;
    let named = |name: &str| StandRequest { name: name.to_owned(), ..request("m1") };
    let long = "x".repeat(256);
    let cases = [
        (named(""), "name"),
        (named(".."), "name"),
        (named("a/b"), "name"),
        (named("a\nb"), "name"),
        (named(&long), "name"),
        (request(""), "instance_name"),
        (request("a\nb"), "instance_name"),
        (request(&long), "instance_name"),
        (with_grace("m1", -1), "grace"),
        (with_grace("m1", 24 * 3600 + 1), "grace"),
        (StandRequest { application_id: "a b".to_owned(), ..request("m1") }, "application_id"),
    ];
    for (request, field) in cases {
        let status =
            node.open(request.clone()).await.err().unwrap_or_else(|| panic!("{request:?} is accepted"));
        let details = status.get_error_details();
        let named: Vec<_> =
            details.bad_request().unwrap().field_violations.iter().map(|one| one.field.clone()).collect();
        assert_eq!((status.code(), named), (Code::InvalidArgument, vec![field.to_owned()]), "{request:?}");
    }
    let unknown = LeaveRequest { stand_id: "x".to_owned(), run_id: String::new() };
    assert_ends(node.client.leave(unknown).await, Code::NotFound, "STAND_UNKNOWN");
    let names = node.client.list_sticky_locks(ListStickyLocksRequest::default()).await.unwrap();
    assert_eq!(names.into_inner().names, Vec::<String>::new());
    assert_eq!(node.lock().await.state(), StickyState::Created);
}

async fn a_checkpoint_is_saved_once_a_second_and_only_inside_a_run(registry: TestRegistry) {
    let mut node = Node::start(&registry).await;
    let mut owner = node.stand("m1").await;
    owner.acquired().await;
    assert_ends(owner.save(b"x").await, Code::FailedPrecondition, "LOCK_NOT_OWNED");
    owner.enter().await;
    assert_ends(owner.save(&[0; 4097]).await, Code::InvalidArgument, "INVALID_REQUEST");
    owner.save(&[0; 4096]).await.unwrap();
    assert_ends(owner.save(b"x").await, Code::ResourceExhausted, "TOO_MANY");
    owner.leave("").await.unwrap();
}

async fn a_drain_ends_idle_stands_at_once_and_runs_at_the_deadline(registry: TestRegistry) {
    let mut node = Node::start(&registry).await;
    let mut other = Node::start(&registry).await;
    let mut owner = node.open(with_grace("m1", 1)).await.unwrap();
    owner.acquired().await;
    owner.enter().await;
    let mut waiting = node.stand("m2").await;
    waiting.state(StickyState::Released).await;
    let mut next = other.open(with_grace("m3", 1)).await.unwrap();
    next.state(StickyState::Released).await;
    let draining = tokio::spawn(node.sidecar.drain(watch::channel(false).1));
    assert_ends(waiting.end().await, Code::Unavailable, "SIDECAR_STOPPING");
    assert_eq!(owner.lost().await.reason(), StickyLossReason::Draining);
    assert_ends(owner.end().await, Code::Unavailable, "SIDECAR_STOPPING");
    assert_eq!(next.acquired().await.unfinished.len(), 1);
    timeout(PATIENCE, draining).await.unwrap().unwrap();
}
