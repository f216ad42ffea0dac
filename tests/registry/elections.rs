//! Elections through the API of whole sidecars, on both registries: which candidate leads, in which term, and what its
//! application and observers hear.

use std::collections::BTreeSet;
use std::sync::Arc;

use sidekeeper::proto::campaign_response::Event;
use sidekeeper::proto::election_service_client::ElectionServiceClient;
use sidekeeper::proto::{
    CampaignRequest, CampaignResponse, ElectionLeader, HoldRequest, Leading, LockId, LockLossReason,
    ObserveRequest, ObserveResponse, ResignRequest,
};
use sidekeeper::tree::{NodeKind, Operation};
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use crate::conformance::on_both;
use crate::locks::{Node, assert_ends, at, named, tree};
use crate::registries::{PATIENCE, TestRegistry, path};

on_both! {
    candidates_lead_one_after_another_and_all_hear_of_each_leader,
    a_candidate_whose_stream_ends_gives_the_leadership_to_the_next_one,
    a_leader_resigns_to_a_named_successor,
    a_leader_resigns_to_a_successor_that_has_just_come,
    a_leader_that_cannot_hand_over_leads_on_with_its_value,
    a_leader_whose_session_ends_hears_of_it_and_stands_again,
    a_leader_whose_node_is_deleted_stands_again,
    a_campaign_that_ends_when_lost_does_not_stand_again,
    a_campaign_that_ends_when_lost_ends_with_its_session,
    an_observer_creates_nothing_and_sees_leaders_come_and_go,
    a_drain_ends_campaigns,
    a_refused_campaign_names_its_field_and_changes_nothing,
    an_election_and_a_lock_do_not_mix,
}

fn client(node: &Node) -> ElectionServiceClient<Channel> {
    ElectionServiceClient::new(node.channel.clone())
}

fn request(value: &str) -> CampaignRequest {
    CampaignRequest { election: named("chief"), value: value.to_owned(), ..CampaignRequest::default() }
}

/// An open campaign.
struct Campaign {
    id: String,
    events: Streaming<CampaignResponse>,
    /// The leader that the application has heard of last.
    leader: Option<ElectionLeader>,
}

impl Campaign {
    async fn open(node: &Node, request: CampaignRequest) -> Result<Self, Status> {
        let mut events = client(node).campaign(request).await?.into_inner();
        let first = timeout(PATIENCE, events.message()).await.unwrap()?.unwrap().event;
        let Some(Event::Started(started)) = first else { panic!("{first:?}") };
        Ok(Self { id: started.campaign_id, events, leader: None })
    }

    /// The next event that is not about the lease; `Err`: the status of the stream's end.
    async fn next(&mut self) -> Result<Option<Event>, Status> {
        loop {
            let event = timeout(PATIENCE, self.events.message()).await.expect("no event comes")?;
            match event.map(|event| event.event.unwrap()) {
                Some(Event::LeaseRenewed(_)) => {}
                Some(Event::LeaderChanged(changed)) => {
                    self.leader.clone_from(&changed.leader);
                    return Ok(Some(Event::LeaderChanged(changed)));
                }
                event => return Ok(event),
            }
        }
    }

    /// Waits until the candidate leads, over all events before.
    async fn leading(&mut self) -> Leading {
        loop {
            match self.next().await.unwrap() {
                Some(Event::Leading(leading)) => return leading,
                Some(
                    Event::Following(_) | Event::LeaderChanged(_) | Event::Lost(_) | Event::Suspended(_),
                ) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Waits until the candidate has this place in the queue.
    async fn following(&mut self, position: u32) {
        loop {
            match self.next().await.unwrap() {
                Some(Event::Following(following)) if following.position == position => return,
                Some(Event::Following(_) | Event::LeaderChanged(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Waits until the candidate has heard of the leader with this value. Returns its term.
    async fn hears_of(&mut self, value: &str) -> i64 {
        loop {
            if let Some(leader) = self.leader.as_ref().filter(|leader| leader.value == value) {
                return leader.term;
            }
            match self.next().await.unwrap() {
                Some(Event::LeaderChanged(_) | Event::Following(_) | Event::Leading(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Waits until the campaign has ended by the will of its application.
    async fn resigned(&mut self) {
        while !matches!(self.next().await.unwrap(), Some(Event::Resigned(_))) {}
        assert!(matches!(self.next().await, Ok(None)));
    }

    /// Waits until the stream ends.
    async fn end(&mut self) -> Result<(), Status> {
        while self.next().await?.is_some() {}
        Ok(())
    }

    async fn lost(&mut self) -> LockLossReason {
        loop {
            match self.next().await.unwrap() {
                Some(Event::Lost(lost)) => return lost.reason(),
                Some(Event::Suspended(_) | Event::LeaderChanged(_) | Event::Draining(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Ends a campaign; the next leader has this value, or is the next one in the order.
async fn resign(node: &Node, campaign: &Campaign, successor: &str) -> Result<(), Status> {
    let request = ResignRequest { campaign_id: campaign.id.clone(), successor: successor.to_owned() };
    client(node).resign(request).await.map(drop)
}

async fn observe(node: &Node, election: Option<LockId>) -> Streaming<ObserveResponse> {
    client(node).observe(ObserveRequest { election }).await.unwrap().into_inner()
}

/// Waits until an observer sees what is wanted.
async fn sees(
    states: &mut Streaming<ObserveResponse>,
    wanted: impl Fn(&ObserveResponse) -> bool,
) -> ObserveResponse {
    timeout(PATIENCE, async {
        loop {
            let state = states.message().await.unwrap().unwrap();
            if wanted(&state) {
                return state;
            }
        }
    })
    .await
    .expect("an observer does not see it")
}

fn leads(value: &'static str) -> impl Fn(&ObserveResponse) -> bool {
    move |state| state.leader.as_ref().is_some_and(|leader| leader.value == value)
}

async fn candidates_lead_one_after_another_and_all_hear_of_each_leader(registry: TestRegistry) {
    let (one, two) = (Node::start(&registry, 1).await, Node::start(&registry, 2).await);
    let mut a = Campaign::open(&one, request("A")).await.unwrap();
    let first = a.leading().await;
    assert_eq!(a.hears_of("A").await, first.term);
    let mut b = Campaign::open(&two, request("B")).await.unwrap();
    b.following(1).await;
    let mut c = Campaign::open(&one, request("C")).await.unwrap();
    c.following(2).await;
    assert_eq!((b.hears_of("A").await, c.hears_of("A").await), (first.term, first.term));
    resign(&one, &a, "").await.unwrap();
    a.resigned().await;
    let second = b.leading().await;
    assert!(second.term > first.term, "{second:?} after {first:?}");
    // The third one hears of it, although only the second one has watched the first.
    assert_eq!(c.hears_of("B").await, second.term);
    resign(&two, &b, "").await.unwrap();
    assert!(c.leading().await.term > second.term);
    assert_ends(resign(&two, &b, "").await, Code::NotFound, "HOLD_UNKNOWN");
}

async fn a_candidate_whose_stream_ends_gives_the_leadership_to_the_next_one(registry: TestRegistry) {
    let node = Node::start(&registry, 1).await;
    let mut a = Campaign::open(&node, request("A")).await.unwrap();
    a.leading().await;
    let mut b = Campaign::open(&node, request("B")).await.unwrap();
    b.following(1).await;
    drop(a);
    b.leading().await;
}

async fn a_leader_resigns_to_a_named_successor(registry: TestRegistry) {
    let (one, two) = (Node::start(&registry, 1).await, Node::start(&registry, 2).await);
    let mut states = observe(&two, named("chief")).await;
    let mut a = Campaign::open(&one, request("A")).await.unwrap();
    let term = a.leading().await.term;
    let mut others = Vec::new();
    for (place, value) in ["B", "C", "D"].into_iter().enumerate() {
        let node = if place % 2 == 0 { &two } else { &one };
        let mut campaign = Campaign::open(node, request(value)).await.unwrap();
        campaign.following(u32::try_from(place + 1).unwrap()).await;
        others.push(campaign);
    }
    assert_ends(resign(&two, &others[0], "D").await, Code::FailedPrecondition, "NOT_LEADER");
    assert_ends(resign(&one, &a, "nobody").await, Code::NotFound, "CANDIDATE_UNKNOWN");
    resign(&one, &a, "D").await.unwrap();
    let chosen = others[2].leading().await;
    assert!(chosen.term > term);
    let state = sees(&mut states, |state| leads("D")(state) && state.candidates.len() == 2).await;
    let values: BTreeSet<_> = state.candidates.iter().map(|candidate| candidate.value.as_str()).collect();
    assert_eq!(values, BTreeSet::from(["B", "C"]));
    // Terms grow also among those that have made way.
    resign(&two, &others[2], "").await.unwrap();
    let state = sees(&mut states, |state| state.candidates.len() == 1).await;
    assert!(state.leader.unwrap().term > chosen.term);
}

async fn a_leader_resigns_to_a_successor_that_has_just_come(registry: TestRegistry) {
    let node = Node::start(&registry, 1).await;
    let (session, election) = (registry.session().await, path("/locks/latch"));
    session.ensure(&election, NodeKind::Persistent, b"").await.unwrap();
    let newcomer = election.child("_c_98f85861-1111-4111-8111-111111111111-latch-");
    for _ in 0..20 {
        let request = CampaignRequest { election: at("/locks/latch"), ..request("A") };
        let mut a = Campaign::open(&node, request).await.unwrap();
        a.leading().await;
        let create = Operation::create(newcomer.clone(), NodeKind::EphemeralSequential, b"new");
        session.commit(vec![create]).await.unwrap();
        // The sidecar may not have seen it yet.
        resign(&node, &a, "new").await.unwrap();
        let names = session.children(&election).await.unwrap().unwrap();
        let [name] = names.as_slice() else { panic!("{names:?}") };
        session.commit(vec![Operation::delete(election.child(name))]).await.unwrap();
    }
}

async fn a_leader_that_cannot_hand_over_leads_on_with_its_value(registry: TestRegistry) {
    let node = Node::start(&registry, 1).await;
    let lock = path("/locks/latch");
    let session = registry.session().await;
    session.ensure(&lock, NodeKind::Persistent, b"").await.unwrap();
    let at_path = |value: &str| CampaignRequest { election: at("/locks/latch"), ..request(value) };
    let mut a = Campaign::open(&node, at_path("A")).await.unwrap();
    let leading = a.leading().await;
    // A candidate of another program, which does not make way.
    let curator = lock.child("_c_98f85861-1111-4111-8111-111111111111-latch-");
    session.commit(vec![Operation::create(curator, NodeKind::EphemeralSequential, b"java")]).await.unwrap();
    let mut b = Campaign::open(&node, at_path("B")).await.unwrap();
    b.following(2).await;
    let mut states = observe(&node, at("/locks/latch")).await;
    assert_ends(resign(&node, &a, "B").await, Code::FailedPrecondition, "CANDIDATE_IN_THE_WAY");
    let own = session.get(&path(&leading.node_path)).await.unwrap().unwrap();
    assert_eq!(&*own.data, b"A", "the value is restored");
    let state = sees(&mut states, leads("A")).await;
    assert_eq!(state.leader.unwrap().term, leading.term);
    resign(&node, &a, "").await.unwrap();
    sees(&mut states, leads("java")).await;
}

async fn a_leader_whose_session_ends_hears_of_it_and_stands_again(registry: TestRegistry) {
    let (victim, other) = (Node::start_on(registry.victims(), 1).await, Node::start(&registry, 2).await);
    let mut a = Campaign::open(&victim, request("A")).await.unwrap();
    let first = a.leading().await;
    let mut b = Campaign::open(&other, request("B")).await.unwrap();
    b.following(1).await;
    let node = registry.session().await.get(&path(&first.node_path)).await.unwrap().unwrap();
    let session = node.stat.ephemeral_owner.unwrap();
    registry.cut(session);
    registry.end(session);
    assert_eq!(a.lost().await, LockLossReason::LeaseLost);
    let second = b.leading().await;
    assert!(second.term > first.term);
    registry.mend(session);
    assert_eq!(a.hears_of("B").await, second.term);
    drop(b);
    assert!(a.leading().await.term > second.term);
}

async fn a_leader_whose_node_is_deleted_stands_again(registry: TestRegistry) {
    let node = Node::start(&registry, 1).await;
    let mut a = Campaign::open(&node, request("A")).await.unwrap();
    let first = a.leading().await;
    let deleted = vec![Operation::delete(path(&first.node_path))];
    registry.session().await.commit(deleted).await.unwrap();
    assert_eq!(a.lost().await, LockLossReason::Revoked);
    assert!(a.leading().await.term > first.term);
}

async fn a_campaign_that_ends_when_lost_does_not_stand_again(registry: TestRegistry) {
    let node = Node::start(&registry, 1).await;
    let session = registry.session().await;
    for _ in 0..10 {
        let once = CampaignRequest { ends_when_lost: true, ..request("A") };
        let mut a = Campaign::open(&node, once).await.unwrap();
        let leading = path(&a.leading().await.node_path);
        session.commit(vec![Operation::delete(leading.clone())]).await.unwrap();
        assert_eq!(a.lost().await, LockLossReason::Revoked);
        assert_ends(a.end().await, Code::Aborted, "LOCK_LOST");
        let left = session.children(&leading.parent().unwrap()).await.unwrap();
        assert_eq!(left.unwrap_or_default(), [""; 0], "candidates");
    }
}

async fn a_campaign_that_ends_when_lost_ends_with_its_session(registry: TestRegistry) {
    let (victim, other) = (Node::start_on(registry.victims(), 1).await, Node::start(&registry, 2).await);
    let once = |value: &str| CampaignRequest { ends_when_lost: true, ..request(value) };
    let mut a = Campaign::open(&victim, once("A")).await.unwrap();
    let first = path(&a.leading().await.node_path);
    // A candidate that waits loses no leadership: it stands again with the next session.
    let mut waiting = Campaign::open(&victim, once("waits")).await.unwrap();
    waiting.following(1).await;
    let mut b = Campaign::open(&other, request("B")).await.unwrap();
    b.following(2).await;
    let session = registry.session().await;
    let owner = session.get(&first).await.unwrap().unwrap().stat.ephemeral_owner.unwrap();
    registry.cut(owner);
    registry.end(owner);
    assert_eq!(a.lost().await, LockLossReason::LeaseLost);
    assert_ends(a.end().await, Code::Aborted, "LOCK_LOST");
    b.leading().await;
    registry.mend(owner);
    waiting.following(1).await;
    let names = session.children(&first.parent().unwrap()).await.unwrap().unwrap();
    assert_eq!(names.len(), 2, "B leads, one waits: {names:?}");
    drop(b);
    waiting.leading().await;
}

async fn an_observer_creates_nothing_and_sees_leaders_come_and_go(registry: TestRegistry) {
    let (one, two) = (Node::start(&registry, 1).await, Node::start(&registry, 2).await);
    let session = registry.session().await;
    let before = tree(&*session).await;
    let mut states = observe(&two, named("chief")).await;
    sees(&mut states, |state| state.leader.is_none() && state.stale_reason.is_empty()).await;
    assert_eq!(tree(&*session).await, before);
    let mut a = Campaign::open(&one, request("A")).await.unwrap();
    let term = a.leading().await.term;
    assert_eq!(sees(&mut states, leads("A")).await.leader.unwrap().term, term);
    drop(a);
    sees(&mut states, |state| state.leader.is_none()).await;
}

async fn a_drain_ends_campaigns(registry: TestRegistry) {
    let (one, two) = (Node::start(&registry, 1).await, Node::start(&registry, 2).await);
    let mut leader = Campaign::open(&one, request("A")).await.unwrap();
    leader.leading().await;
    let mut follower = Campaign::open(&one, request("B")).await.unwrap();
    follower.following(1).await;
    let mut next = Campaign::open(&two, request("C")).await.unwrap();
    let draining = tokio::spawn(one.drain());
    assert_ends(follower.end().await, Code::Unavailable, "SIDECAR_STOPPING");
    assert_eq!(leader.lost().await, LockLossReason::Draining);
    assert_ends(leader.end().await, Code::Aborted, "LOCK_LOST");
    next.leading().await;
    timeout(PATIENCE, draining).await.unwrap().unwrap();
}

async fn a_refused_campaign_names_its_field_and_changes_nothing(registry: TestRegistry) {
    let node = Node::start(&registry, 1).await;
    let session = registry.session().await;
    let before = tree(&*session).await;
    let with_election = |election| CampaignRequest { election, ..request("A") };
    let cases = [
        (with_election(None), "election"),
        (with_election(named("a/b")), "election.name"),
        (with_election(named("@-@x")), "election.name"),
        (with_election(named(&"x".repeat(201))), "election.name"),
        (with_election(at("/jobs/leader/election/latch")), "election.path"),
        (with_election(at("/")), "election.path"),
        (CampaignRequest { value: "x".repeat(4_097), ..request("") }, "value"),
        (CampaignRequest { application_id: "a b".to_owned(), ..request("A") }, "application_id"),
    ];
    for (request, field) in cases {
        let status = Campaign::open(&node, request).await.map(drop).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{field}: {status:?}");
        assert!(status.message().contains(field), "{field}: {status:?}");
    }
    let refused = client(&node).observe(ObserveRequest { election: None }).await;
    assert_ends(refused.map(drop), Code::InvalidArgument, "INVALID_REQUEST");
    assert_eq!(tree(&*session).await, before);
    let own = CampaignRequest { application_id: "app".to_owned(), ..request("A") };
    let mut first = Campaign::open(&node, own.clone()).await.unwrap();
    first.leading().await;
    let again = Campaign::open(&node, own).await.map(drop);
    assert_ends(again, Code::FailedPrecondition, "LOCK_HELD_ALREADY");
}

async fn an_election_and_a_lock_do_not_mix(registry: TestRegistry) {
    let mut node = Node::start(&registry, 1).await;
    let campaign = || CampaignRequest { election: at("/locks/both"), ..request("A") };
    let mut a = Campaign::open(&node, campaign()).await.unwrap();
    a.leading().await;
    let hold = HoldRequest { lock: at("/locks/both"), ..HoldRequest::default() };
    let mut events = node.client.hold(hold).await.unwrap().into_inner();
    let end = loop {
        match events.message().await {
            Ok(Some(_)) => {}
            other => break other,
        }
    };
    assert_ends(end, Code::FailedPrecondition, "LOCK_OF_OTHER_KIND");
    let lock = Arc::new(registry.session().await.children(&path("/locks/both")).await.unwrap().unwrap());
    assert_eq!(lock.len(), 1, "{lock:?}");
}
