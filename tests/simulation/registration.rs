//! An instance registers: its instance node, its server node and its member node.

use sidekeeper::coordination::job::contract::commit::Purpose;
use sidekeeper::coordination::job::contract::effect::EndReason;
use sidekeeper::job::JobConfiguration;

use crate::setup::{AT_ONCE, asked, job_with, lose_answer, one_node};
use crate::world::{World, six_items};

#[test]
fn h16_a_server_node_that_a_java_start_removed_is_created_again() {
    let mut world = one_node(|_| {});
    world.remove("servers/10.0.0.1");
    world.run_for(1_000);
    world.settle_owned();
    assert!(world.paths().contains(&"/ns/job/servers/10.0.0.1".to_owned()));
}

#[test]
pub fn p1_p6_an_instance_that_leaves_with_an_unknown_registration_leaves_nothing() {
    let mut world = one_node(|_| {});
    let node = world.join();
    lose_answer(&mut world, node, Purpose::Register);
    let instance = "instances/10.0.0.2@-@n1";
    assert!(world.get(instance).is_some());
    world.kill(node);
    world.run_for(500);
    assert_eq!((world.nodes[node].ended.clone(), world.get(instance)), (Some(EndReason::Detached), None));
    world.settle_owned();
}

#[test]
pub fn h15_a_server_that_an_operator_disabled_stays_disabled_in_a_new_session() {
    let mut world = World::new(1, six_items());
    world.join();
    world.run_for(1_000);
    world.put("servers/10.0.0.1", "DISABLED");
    world.run_for(500);
    world.expire(0);
    world.run_for(3_000);
    world.settle();
    assert!(world.get("instances/10.0.0.1@-@n0").is_some());
    assert_eq!(world.get("servers/10.0.0.1").unwrap(), b"DISABLED");
}

/// The leader has seen neither the end of an instance's session nor its return when it assigns an item to it, and has
/// seen the end only when it assigns the item to another one.
#[test]
fn p2_an_instance_that_is_registered_again_owns_nothing_that_the_leader_gives_to_others() {
    let properties = [AT_ONCE[0], ("ownership", "continuous"), ("handoff-deadline", "1s")];
    let two_items = JobConfiguration { sharding_total_count: 2, ..job_with(&properties) };
    let mut world = World::new(5, two_items);
    for _ in 0..3 {
        world.join();
        world.run_for(5_000);
    }
    world.settle_owned();
    // The last one has none, and gets that of the second.
    let owned = |world: &World| [0, 1, 2].map(|node: usize| world.nodes[node].items.len());
    assert_eq!(owned(&world), [1, 1, 0]);
    world.crash(1);
    world.end_session(1);
    let before = asked(&world, Purpose::Shard);
    world.look(0);
    assert_eq!(asked(&world, Purpose::Shard), before + 1);
    world.expire(2);
    // It reads the nodes, and registers.
    world.take_effect(2);
    let registered = asked(&world, Purpose::Register);
    world.look(2);
    assert_eq!(asked(&world, Purpose::Register), registered + 1);
    world.take_effect(0);
    world.look(0);
    assert_eq!(asked(&world, Purpose::Shard), before + 2);
    world.take_effect(2);
    world.look(2);
    world.take_effect(0);
    world.look(0);
    assert_eq!(owned(&world), [2, 0, 0]);
    world.run_for(3_000);
    world.settle_owned();
}

#[test]
fn p7_a_member_node_deleted_during_the_registration_is_written_again() {
    let mut world = one_node(|_| {});
    let before = world.commits[&Purpose::Register];
    let joined = world.join();
    while world.commits[&Purpose::Register] == before {
        world.take_effect(joined);
        world.look(joined);
    }
    world.take_effect(joined);
    let member = "/ns-sidekeeper/job/fleet/members/10.0.0.2@-@n1";
    assert!(world.read(member).is_some());
    world.remove_any(member);
    world.run_for(900);
    assert!(world.read(member).is_some());
    // So the others know that it hands items over.
    assert_eq!(world.commits.get(&Purpose::FlagResharding), None);
    world.assert_all_owned();
}

/// An instance has registered nothing if its request was refused, so no leader can have assigned anything to it: its next
/// request holds although the leader divides the items in between.
#[test]
fn an_instance_that_was_refused_registers_although_the_leader_divides_the_items_meanwhile() {
    let mut world = World::new(3, job_with(&AT_ONCE));
    let [first, refused] = [world.join(), world.join()];
    for (count, node) in [(1, first), (2, refused)] {
        for _ in 0..100 {
            if asked(&world, Purpose::Register) < count {
                world.take_effect(node);
                world.look(node);
            }
        }
        assert_eq!(asked(&world, Purpose::Register), count);
    }
    world.take_effect(first);
    world.take_effect(refused);
    world.look(refused);
    for _ in 0..100 {
        if asked(&world, Purpose::Shard) == 0 {
            world.wait(10);
            world.take_effect(first);
            world.look(first);
        }
    }
    assert_eq!((asked(&world, Purpose::Register), asked(&world, Purpose::Shard)), (2, 1));
    // It decides before the division takes effect, and its request comes after it.
    world.wait(2_000);
    world.look(refused);
    assert_eq!(asked(&world, Purpose::Register), 3);
    world.take_effect(first);
    world.take_effect(refused);
    assert!(world.get("instances/10.0.0.2@-@n1").is_some());
    world.run_for(3_000);
    world.settle_owned();
}
