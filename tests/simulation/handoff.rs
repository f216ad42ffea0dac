//! Items move one by one among sidecars (P1, P2): which owner releases which item, and when.

use sidekeeper::coordination::job::contract::commit::Purpose;
use sidekeeper::job::Item;

use crate::setup::{AT_ONCE, one_node, owner, with};
use crate::world::{World, six_items};

fn czxid_of_all(world: &World) -> Vec<i64> {
    (0..6).map(|item| world.created(&format!("sharding/{item}/instance"))).collect()
}

#[test]
pub fn p1_a_newcomer_gets_its_share_and_no_other_item_moves() {
    let mut world = one_node(|_| {});
    let before = czxid_of_all(&world);
    world.join();
    world.run_for(900);
    world.assert_all_owned();
    assert_eq!(world.nodes[0].items, [0, 1, 2].map(Item));
    assert_eq!(world.nodes[1].items, [3, 4, 5].map(Item));
    let after = czxid_of_all(&world);
    assert_eq!(after[..3], before[..3]);
    assert!(after[3..].iter().min() > before.iter().max());
    // No flag was raised: no instance had to pause.
    assert_eq!(world.commits.get(&Purpose::FlagResharding), None);
    assert_eq!(world.read("/ns-sidekeeper/job/fleet/handoff"), None);
}

#[test]
pub fn p2_a_running_item_is_handed_over_when_it_has_ended() {
    let mut world = one_node(|_| {});
    world.next_duration_ms = Some(5_000);
    world.run_for(2_000);
    assert_eq!(world.nodes[0].executions.len(), 6);
    world.join();
    world.run_for(2_000);
    // Three items were revoked, and the application goes on to execute them.
    assert_eq!(world.nodes[0].items.len(), 3);
    assert_eq!(world.nodes[0].executions.len(), 6);
    assert!(owner(&world, 5).ends_with("n0") && world.nodes[1].items.is_empty());
    world.next_duration_ms = None;
    world.run_for(4_000);
    world.assert_all_owned();
    assert!(owner(&world, 5).ends_with("n1"));
    assert_eq!(world.nodes[1].items.len(), 3);
    assert_eq!(world.interrupted, []);
}

#[test]
pub fn p2_without_an_acknowledgement_an_item_is_handed_over_at_the_deadline() {
    let mut world = one_node(with(&[("handoff", "drained"), ("handoff-deadline", "3s")]));
    world.join();
    world.run_for(2_500);
    assert_eq!((world.nodes[0].items.len(), world.nodes[1].items.len()), (3, 0));
    assert!((3..6).all(|item| owner(&world, item).ends_with("n0")));
    world.run_for(1_500);
    assert_eq!((world.nodes[0].items.len(), world.nodes[1].items.len()), (3, 3));
}

#[test]
fn p2_the_items_of_a_disabled_server_wait_for_its_acknowledgement() {
    let mut world = one_node(with(&[("handoff", "drained"), ("handoff-deadline", "3s")]));
    world.join();
    for _ in 0..10 {
        world.acknowledge(0);
        world.run_for(100);
    }
    assert_eq!((world.nodes[0].items.len(), world.nodes[1].items.len()), (3, 3));
    // Its assignment is the newest.
    world.acknowledge(1);
    world.run_for(10);
    world.put("servers/10.0.0.2", "DISABLED");
    world.run_for(1_000);
    // The items were revoked, and the application has not acknowledged that.
    assert!(world.nodes[1].items.is_empty());
    assert!((3..6).all(|item| owner(&world, item).ends_with("n1")));
    world.acknowledge(1);
    world.run_for(500);
    assert_eq!(world.nodes[0].items.len(), 6);
}

#[test]
fn p2_an_item_that_was_resharded_meanwhile_is_not_handed_over() {
    let mut world = one_node(with(&AT_ONCE));
    world.join();
    while !world.commits.contains_key(&Purpose::HandOff) {
        world.turn();
    }
    // A resharding that the owner has not seen gives the item to another instance, under the same version of its node.
    world.put("leader/sharding", "");
    world.remove("sharding/5/instance");
    world.put("sharding/5/instance", "10.0.0.9@-@other");
    world.take_effect(0);
    assert!(owner(&world, 5).ends_with("other"), "{}", owner(&world, 5));
}

#[test]
fn p2_a_removed_instance_hands_nothing_over() {
    let mut world = one_node(with(&AT_ONCE));
    world.join();
    while !world.commits.contains_key(&Purpose::HandOff) {
        world.turn();
    }
    // The leader that reshards its items may not see to whom they were handed over.
    world.remove("instances/10.0.0.1@-@n0");
    world.take_effect(0);
    assert!((0..6).all(|item| owner(&world, item).ends_with("n0")));
}

#[test]
pub fn with_handoff_off_elasticjob_s_rules_hold() {
    let mut world = one_node(with(&[("handoff", "off")]));
    let before = czxid_of_all(&world);
    world.join();
    world.run_for(900);
    world.assert_all_owned();
    assert!(czxid_of_all(&world).iter().min() > before.iter().max(), "all are assigned anew");
}

#[test]
fn p8_with_a_java_instance_elasticjob_s_rules_hold() {
    let mut world = one_node(|_| {});
    world.join();
    world.run_for(900);
    let before = czxid_of_all(&world);
    world.put_java("10.9.9.9@-@77");
    world.run_for(900);
    assert!(czxid_of_all(&world).iter().min() > before.iter().max(), "all are assigned anew");
    assert_eq!((0..6).filter(|item| owner(&world, *item).ends_with("@77")).count(), 2);
}

#[test]
pub fn p5_a_leaving_instance_hands_its_items_over_first() {
    let mut world = one_node(|_| {});
    world.join();
    world.run_for(900);
    world.next_duration_ms = Some(3_000);
    world.run_for(1_500);
    world.drain(0);
    world.run_for(600);
    // It still executes, and its items are on their way.
    assert!(world.nodes[0].ended.is_none() && world.nodes[0].items.is_empty());
    world.next_duration_ms = None;
    world.run_for(6_000);
    assert!(world.nodes[0].ended.is_some());
    assert_eq!(world.nodes[1].items.len(), 6);
    assert_eq!(world.interrupted, []);
}

#[test]
fn a_continuous_owner_gets_no_executions() {
    let mut world = one_node(with(&[("ownership", "continuous")]));
    world.put("trigger/10.0.0.1@-@n0", "");
    world.run_for(5_000);
    assert_eq!(world.starts, []);
    assert_eq!(world.nodes[0].items.len(), 6);
    assert_eq!(world.get("trigger/10.0.0.1@-@n0"), None);
}

#[test]
pub fn p5_a_fire_missed_during_a_handover_that_fails_is_rerun() {
    let mut world = one_node(|_| {});
    world.next_duration_ms = Some(3_500);
    // It executes from :06 to :09.5.
    world.run_for(2_000);
    assert_eq!(world.nodes[0].executions.len(), 6);
    world.next_duration_ms = Some(200);
    let other = world.join();
    // The fire at :08 finds three items revoked, and busy.
    world.run_for(1_500);
    assert_eq!(world.nodes[0].items.len(), 3);
    world.kill(other);
    world.starts.clear();
    world.run_for(1_400);
    let made_up = world.starts.iter().filter(|start| start.misfire).count();
    assert_eq!(made_up, 6, "{:?}", world.starts);
}

#[test]
pub fn instances_that_join_within_the_settling_time_get_their_items_together() {
    let mut world = one_node(|_| {});
    world.join();
    // One that joins alone waits for 50 ms.
    world.run_for(200);
    assert_eq!(world.nodes[1].items.len(), 3);
    let plans = |world: &World| world.commits.get(&Purpose::PlanHandoff).copied().unwrap_or_default();
    let before = plans(&world);
    world.join();
    world.run_for(150);
    world.join();
    world.run_for(150);
    assert!(world.nodes[2].items.is_empty() && world.nodes[3].items.is_empty());
    world.run_for(1_000);
    world.assert_all_owned();
    let shares = world.nodes.iter().map(|node| node.items.len()).collect::<Vec<_>>();
    assert_eq!(shares.iter().sum::<usize>(), 6);
    assert!(shares.iter().all(|share| (1..=2).contains(share)), "{shares:?}");
    // The plan was written, shortened when one of the two owners had handed over, and deleted.
    assert!(plans(&world) - before <= 3, "{}", plans(&world) - before);
}

#[test]
pub fn an_instance_that_leaves_hands_its_items_over_within_the_settling_time() {
    let mut world = one_node(with(&[("handoff-settling", "1m")]));
    world.join();
    world.run_for(200);
    world.join();
    world.run_for(300);
    assert!(world.nodes[2].items.is_empty(), "it waits");
    world.drain(1);
    world.run_for(500);
    assert!(world.nodes[1].ended.is_some());
    world.assert_all_owned();
    assert_eq!((world.nodes[0].items.len(), world.nodes[2].items.len()), (3, 3));
}

#[test]
pub fn instances_that_start_a_job_together_divide_its_items_once() {
    let mut world = World::new(7, six_items());
    world.join_many(3);
    world.run_for(500);
    world.assert_all_owned();
    assert!(world.nodes.iter().all(|node| node.items.len() == 2));
    assert_eq!((world.commits.get(&Purpose::Shard), world.commits.get(&Purpose::HandOff)), (Some(&1), None));
}

#[test]
pub fn items_without_an_owner_wait_for_no_other_instance() {
    let mut world = one_node(with(&[("handoff-settling", "1m")]));
    world.join();
    world.run_for(200);
    world.join();
    world.run_for(300);
    assert!(world.nodes[2].items.is_empty(), "it waits");
    world.crash(1);
    world.end_session(1);
    world.run_for(500);
    world.assert_all_owned();
}
