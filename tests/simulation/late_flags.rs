//! A Java peer may flag a crash late, after the takeover is completed (H11).

use crate::setup::{java_yaml, one_node};
use crate::world::World;

/// A world whose item 3 was being executed by a Java instance that is offline, and has been taken over.
fn taken_over() -> World {
    let mut world = one_node(|configuration| configuration.failover = true);
    world.put("sharding/3/running", "10.9.9.9@-@4711");
    world.run_for(4_000);
    assert_eq!(world.completed_takeovers.len(), 1, "{:?}", world.starts);
    world.settle();
    world
}

#[test]
pub fn h11_a_late_flag_of_a_java_peer_does_not_repeat_a_completed_takeover() {
    let mut world = taken_over();
    // The survivor.
    world.put("instances/10.9.9.9@-@4712", &java_yaml("10.9.9.9@-@4712"));
    world.put("leader/failover/items/3", "");
    world.run_for(1_500);
    assert_eq!(world.get("leader/failover/items/3"), None);
    world.run_for(5_000);
    assert_eq!(world.completed_takeovers.len(), 1, "{:?}", world.completed_takeovers);
}

#[test]
fn h11_the_flag_of_a_second_crash_is_not_a_late_flag() {
    let mut world = taken_over();
    world.put("instances/10.9.9.9@-@4712", &java_yaml("10.9.9.9@-@4712"));
    world.remove("instances/10.9.9.9@-@4712");
    world.put("leader/failover/items/3", "");
    world.run_for(5_000);
    assert_eq!(world.completed_takeovers.len(), 2, "{:?}", world.completed_takeovers);
}

#[test]
pub fn h11_a_flag_seen_before_its_departure_is_not_a_late_flag() {
    let mut world = taken_over();
    world.put("instances/10.9.9.9@-@4712", &java_yaml("10.9.9.9@-@4712"));
    world.put("leader/failover/items/3", "");
    world.run_for(300);
    world.remove("instances/10.9.9.9@-@4712");
    world.run_for(5_000);
    assert_eq!(world.completed_takeovers.len(), 2, "{:?}", world.completed_takeovers);
}

#[test]
fn p5_without_a_java_instance_a_flag_is_not_a_late_flag_though_nobody_has_left() {
    let mut world = taken_over();
    // A sidecar that stays flags an item whose lock was lost.
    world.put("leader/failover/items/3", "");
    world.run_for(5_000);
    assert_eq!(world.completed_takeovers.len(), 2, "{:?}", world.completed_takeovers);
}
