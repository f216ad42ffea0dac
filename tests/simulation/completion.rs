//! A completion ends the execution that it belongs to, and no other.

use sidekeeper::coordination::job::contract::commit::Purpose;

use crate::setup::{one_node, running_nodes, second};
use crate::world::{World, six_items};

#[test]
fn h11_a_completion_leaves_the_running_node_of_a_java_peer() {
    let mut world = one_node(|configuration| configuration.failover = true);
    world.next_duration_ms = Some(600);
    world.run_for(1_200);
    assert_eq!(world.nodes[0].executions.len(), 6);
    // A late Java survivor considers this instance crashed, and executes the item.
    world.remove("sharding/3/running");
    world.run_for(50);
    world.put("sharding/3/running", "10.9.9.9@-@4711");
    world.run_for(600);
    assert_eq!(world.nodes[0].executions.len(), 0);
    assert_eq!(world.get("sharding/3/running").as_deref(), Some(&b"10.9.9.9@-@4711"[..]));
    assert_eq!(world.get("sharding/2/running"), None);
}

#[test]
fn p6_a_completion_that_comes_late_ends_no_other_execution() {
    let mut met = 0;
    for seed in 0..40 {
        let mut world = World::new(seed, six_items());
        world.join();
        world.next_duration_ms = Some(300);
        while !world.commits.contains_key(&Purpose::Complete) {
            world.run_for(1);
        }
        if world.get("sharding/0/running").is_none() {
            continue;
        }
        met += 1;
        // The request is on its way. Its instance has been registered anew, in another session, and has begun the item
        // again.
        world.put("leader/sharding", "");
        world.remove("sharding/0/running");
        world.put("sharding/0/running", "10.0.0.1@-@n0");
        world.take_effect(0);
        assert!(world.get("sharding/0/running").is_some(), "seed {seed}");
    }
    assert!(met > 0);
}

#[test]
pub fn h4_an_unknown_running_node_is_looked_up_also_soon_after_another_one() {
    let mut world = one_node(|configuration| configuration.cron = Some("0 * * * * ?".to_owned()));
    world.run_until(second(59));
    // Nobody executes these items: their executor has left. A fire meets the first one, a trigger the second one.
    for item in [4, 5] {
        world.put(&format!("sharding/{item}/running"), "10.0.0.9@-@former");
        if item == 5 {
            world.put("trigger/10.0.0.1@-@n0", "");
        }
        world.run_for(2_000);
    }
    assert!(world.get("sharding/5/running").is_some());
    world.run_for(20_000);
    assert_eq!(running_nodes(&world).len(), 0);
}
