//! A job whose single item rotates over the servers.

use jiff::SignedDuration;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::elasticjob::config_yaml;
use sidekeeper::job::{Item, JobConfiguration};

use crate::setup::{put_new_java, second, started_by};
use crate::world::{World, six_items};

/// A world with three nodes and one item that walks over them.
pub fn rotation() -> World {
    let mut world = rotation_from_the_start();
    world.run_for(2_000);
    world.settle();
    world.starts.clear();
    world
}

fn rotation_from_the_start() -> World {
    let mut world = World::new(
        13,
        JobConfiguration {
            sharding_total_count: 1,
            job_sharding_strategy_type: Some("SINGLE_SHARDING_BALANCE".to_owned()),
            ..six_items()
        },
    );
    world.duration_max_ms = 500;
    world.join_many(3);
    world
}

/// The nodes that executed the item, fire by fire.
fn executors(world: &World) -> Vec<usize> {
    world.starts.iter().map(|start| start.node).collect()
}

#[test]
pub fn a_single_item_rotates_over_the_servers_with_one_execution_each() {
    let mut world = rotation();
    world.run_for(12_500);
    let executors = executors(&world);
    assert_eq!(executors.len(), 6, "{:?}", world.starts);
    // Descending order of the servers' names, round and round.
    let next = |node: usize| (node + 2) % 3;
    for pair in executors.windows(2) {
        assert_eq!(pair[1], next(pair[0]), "{executors:?}");
    }
    let fires: std::collections::BTreeSet<_> = world.starts.iter().map(|start| start.scheduled).collect();
    assert_eq!(fires.len(), 6, "{:?}", world.starts);
}

#[test]
fn p7_the_rotation_goes_on_when_the_server_that_has_the_turn_leaves() {
    let mut world = rotation();
    for _ in 0..2 {
        world.run_for(4_000);
        world.settle();
        let turn = (0..world.nodes.len()).find(|node| world.nodes[*node].items == [Item(0)]).unwrap();
        world.drain(turn);
        world.starts.clear();
        world.run_for(4_500);
        let fires: std::collections::BTreeSet<_> = world.starts.iter().map(|start| start.scheduled).collect();
        assert!(
            fires.len() >= 2 && fires.len() == world.starts.len(),
            "{:?}\n{:#?}",
            world.starts,
            world.log
        );
        world.join();
    }
}

#[test]
fn p5_an_owner_that_gets_the_turn_back_knows_the_fires_that_others_executed() {
    let mut world = rotation_from_the_start();
    // :02 is the owner's, :04 the next one's; then the third goes, and with it the turns.
    world.run_for(4_800);
    world.settle();
    let turn = (0..world.nodes.len()).find(|node| world.nodes[*node].items == [Item(0)]).unwrap();
    world.kill(turn);
    world.run_for(1_000);
    let [first, second] = executors(&world)[..] else { panic!("{:?}\n{:#?}", world.starts, world.log) };
    assert!(first != second && ![first, second].contains(&turn), "{:?}", world.starts);
    assert_eq!(world.get("next-job-instance-ip"), None);
    let owner = format!("10.0.0.{}@-@n{first}", first + 1);
    assert_eq!(world.get("sharding/0/instance"), Some(owner.into_bytes()));
    assert_eq!(world.nodes[first].items, [Item(0)]);
}

#[test]
fn p5_a_missed_fire_is_rerun_by_the_server_that_has_the_turn_now() {
    let mut world = rotation();
    world.next_duration_ms = Some(2_500);
    world.run_for(3_000);
    world.next_duration_ms = Some(100);
    world.run_for(2_000);
    let misfires: Vec<_> = world.starts.iter().filter(|start| start.misfire).collect();
    assert_eq!(misfires.len(), 1, "{:?}", world.starts);
    assert_ne!(misfires[0].node, world.starts[0].node);
}

/// A rotation in which a Java server has the turn.
fn rotation_with_java() -> World {
    let mut world = rotation();
    put_new_java(&mut world, "10.9.9.9@-@1");
    run_to(&mut world, 1_000);
    world.put("next-job-instance-ip", "10.9.9.9");
    run_to(&mut world, 1_500);
    world.starts.clear();
    world
}

/// Runs on to so many milliseconds after a fire.
fn run_to(world: &mut World, millis: i64) {
    world.run_for((millis - world.now.as_millisecond()).rem_euclid(2_000));
}

#[test]
fn no_server_has_the_turn_while_java_passes_it_on() {
    for late in [1, 30, 90, 300] {
        let mut world = rotation_with_java();
        // The fire is Java's, which has executed it, and names the next one in two requests.
        run_to(&mut world, 1_000);
        world.remove("next-job-instance-ip");
        world.run_for(late);
        world.put("next-job-instance-ip", "10.0.0.2");
        run_to(&mut world, 1_900);
        assert_eq!(world.starts.len(), 0, "{late} ms: {:?}", world.starts);
        world.run_for(1_000);
        assert_eq!(executors(&world), [1], "{late} ms: {:?}", world.starts);
    }
}

#[test]
fn a_fire_while_java_passes_the_turn_on_belongs_to_the_next_server() {
    for early in [5, 20, 45] {
        let mut world = rotation_with_java();
        run_to(&mut world, 2_000 - early);
        world.remove("next-job-instance-ip");
        let removed = world.now;
        world.run_for(50);
        world.put("next-job-instance-ip", "10.0.0.2");
        world.run_for(1_000);
        assert_eq!(executors(&world), [1], "{early} ms: {:?}", world.starts);
        assert!(world.starts[0].scheduled > removed, "{early} ms: {:?}", world.starts);
    }
}

#[test]
fn p7_a_turn_without_a_holder_falls_back_to_the_assignment() {
    let mut world = rotation_with_java();
    run_to(&mut world, 300);
    let now = world.now;
    world.remove("next-job-instance-ip");
    world.run_for(2_500);
    // The fire that was Java's is not executed once more, and the one after it is.
    assert_eq!(world.starts.len(), 1, "{:?}", world.starts);
    assert!(world.starts[0].scheduled > now, "{:?}", world.starts);
}

#[test]
fn p5_items_that_appear_when_the_rotation_ends_are_not_executed_for_earlier_fires() {
    for turn in 0..3 {
        let mut world = rotation();
        let fire = second(4 + 2 * turn);
        world.run_until(fire - SignedDuration::from_millis(100));
        world.next_duration_ms = Some(1_500);
        world.run_until(fire + SignedDuration::from_millis(200));
        assert!(started_by(&world, 0, Source::Schedule).contains(&fire));
        let mut configuration = six_items();
        configuration.sharding_total_count = 3;
        configuration.job_sharding_strategy_type = Some("SINGLE_SHARDING_BALANCE".to_owned());
        world.put("config", &config_yaml::write(&configuration));
        world.next_duration_ms = Some(100);
        world.run_until(fire + SignedDuration::from_millis(3_500));
        let misfires = world.starts.iter().filter(|start| start.source == Source::Misfire);
        assert_eq!(misfires.count(), 0, "{turn}: {:#?}", world.starts);
        assert_eq!(started_by(&world, 1, Source::Schedule), [fire + SignedDuration::from_secs(2)]);
    }
}
