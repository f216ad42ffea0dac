//! The election: which instance leads, and that no leader is left behind (P6, P7).

use jiff::SignedDuration;
use sidekeeper::job::JobConfiguration;

use crate::setup::{one_node, second, second_dies, seeds};
use crate::world::{World, six_items};

#[test]
pub fn a_disabled_server_gets_no_items_and_does_not_lead() {
    let mut world = one_node(|_| {});
    world.join();
    world.run_for(1_000);
    world.put("servers/10.0.0.1", "DISABLED");
    world.run_for(3_000);
    world.settle();
    assert_eq!(world.nodes[0].items, []);
    assert_eq!(world.nodes[1].items.len(), 6);
    world.put("servers/10.0.0.1", "ENABLED");
    world.run_for(3_000);
    world.settle();
    assert_eq!(world.nodes[0].items.len(), 3);
}

#[test]
pub fn p7_a_leader_that_is_not_online_is_removed() {
    let mut world = World::new(1, six_items());
    world.put("leader/election/instance", "10.9.9.9@-@gone");
    world.join();
    world.run_for(8_000);
    world.settle();
    assert_eq!(world.get("leader/election/instance").unwrap(), b"10.0.0.1@-@n0");
    world.assert_all_owned();
}

#[test]
fn p6_an_instance_that_dies_as_a_candidate_leaves_no_leader() {
    // The world checks the nodes that it leaves when it has ended.
    for seed in seeds(50) {
        let world = second_dies(seed, |world| world.is_candidate(1));
        assert_eq!(world.get("leader/election/instance"), None, "seed {seed}");
    }
}

/// The application dies while its instance is a candidate; it is elected when its instance node has gone, while it
/// reads the nodes again.
#[test]
pub fn p6_an_instance_that_is_elected_after_its_departure_leaves_no_leader() {
    let mut world = World::new(1, JobConfiguration { failover: true, ..six_items() });
    for _ in 0..4 {
        world.join();
        world.run_for(1_000);
    }
    world.run_until(second(6) - SignedDuration::from_millis(500));
    world.kill(0);
    for _ in 0..100 {
        if world.is_candidate(1) {
            break;
        }
        world.turn();
    }
    world.kill(1);
    world.look(1);
    let instance = format!("instances/{}", world.nodes[1].instance);
    for _ in 0..10 {
        if world.get(&instance).is_none() {
            break;
        }
        world.take_first_effect(1);
    }
    world.look(1);
    assert!(world.is_candidate(1) && world.get(&instance).is_none());
    // An item begins to run, and an instance crashes: the item may be one of its executions, so the nodes are read
    // again.
    world.put("sharding/3/running", "10.9.9.9@-@4711");
    world.crash(3);
    world.end_session(3);
    world.look(1);
    assert!(world.is_reading(1));
    for _ in 0..10 {
        if world.is_candidate(1) {
            world.take_first_effect(1);
        }
    }
    assert!(world.get("leader/election/instance").unwrap().ends_with(b"n1"));
    // The world checks the nodes that it leaves when it ends.
    world.look(1);
    assert_eq!(world.nodes[1].ended, None);
    world.run_for(500);
    assert!(world.nodes[1].ended.is_some());
}
