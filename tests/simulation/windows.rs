//! What happens in narrow windows: between a request and its effect, between a fire and a change of owners.

use jiff::Timestamp;
use sidekeeper::coordination::effect::{EndReason, Purpose, Source};
use sidekeeper::job::Item;

use crate::cases::one_node;
use crate::handoff::with;
use crate::world::{World, six_items};

fn second(second: i64) -> Timestamp {
    Timestamp::from_second("2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap().as_second() + second).unwrap()
}

fn told(world: &World, item: u32, source: Source) -> Vec<Timestamp> {
    let of_item = world.starts.iter().filter(|start| start.item == Item(item) && start.source == source);
    of_item.map(|start| start.scheduled).collect()
}

/// A world whose node has asked to make up for missed fires, and has not been answered when the next fire comes.
fn making_up(seed: i64) -> Option<World> {
    let mut world = one_node(|_| {});
    world.next_duration_ms = Some(3_900);
    // It executes from :06, and :08 is missed.
    world.run_until(second(9) + jiff::SignedDuration::from_millis(800 + seed));
    let starts = |world: &World| world.commits.get(&Purpose::Start).copied().unwrap_or_default();
    let before = starts(&world);
    while starts(&world) == before && world.now < second(10) {
        world.turn();
        world.run_for(1);
    }
    let waits = starts(&world) > before && world.get("sharding/0/running").is_none();
    (waits && world.now < second(10) && world.get("sharding/0/misfire").is_some()).then_some(world)
}

#[test]
pub fn p5_a_fire_that_comes_while_missed_ones_are_being_made_up_for_is_not_taken_for_one_of_them() {
    let mut met = 0;
    for seed in 0..200 {
        let Some(mut world) = making_up(seed) else { continue };
        met += 1;
        world.next_duration_ms = Some(300);
        world.now = second(10) + jiff::SignedDuration::from_millis(5);
        world.look(0);
        world.take_effect(0);
        world.run_for(1_500);
        let made_up = told(&world, 0, Source::Misfire);
        assert!(made_up.contains(&second(10)), "{seed}: {:#?}", world.starts);
    }
    assert!(met > 0);
}

#[test]
pub fn p5_what_a_busy_item_misses_while_it_is_to_change_hands_is_known_to_who_comes_later() {
    let mut world = one_node(with(&[("handoff", "off")]));
    world.next_duration_ms = Some(3_500);
    world.run_until(second(7));
    // It waits for what is executed until :09.5, and the fire at :08 with it.
    world.join();
    world.run_until(second(8) + jiff::SignedDuration::from_millis(600));
    world.join();
    world.next_duration_ms = Some(50);
    world.run_until(second(9) + jiff::SignedDuration::from_millis(990));
    for item in 0..6 {
        let starts: Vec<_> = world.starts.iter().filter(|start| start.item == Item(item)).collect();
        assert!(starts.iter().any(|start| start.scheduled == second(8)), "item {item}: {starts:#?}");
    }
}

#[test]
pub fn p6_who_dies_with_items_that_it_has_taken_over_and_not_begun_hands_them_on() {
    let mut met = 0;
    for seed in 0..30 {
        let mut configuration = six_items();
        configuration.failover = true;
        let mut world = World::new(seed, configuration);
        world.duration_max_ms = 1_000;
        world.join();
        world.run_for(1_000);
        world.join();
        world.run_until(second(4) + jiff::SignedDuration::from_millis(20));
        world.kill(0);
        let has_taken = |world: &World| {
            let taken = |path: &String| path.contains("/sharding/") && path.ends_with("/failover");
            world.paths().iter().any(taken)
        };
        for _ in 0..400 {
            if has_taken(&world) {
                break;
            }
            world.turn();
        }
        met += usize::from(has_taken(&world));
        world.kill(1);
        world.run_for(1_000);
        assert!(world.nodes[1].ended.is_some(), "seed {seed}");
        assert!(!has_taken(&world), "seed {seed}: {:?}", world.paths());
    }
    assert!(met > 10, "{met}");
}

#[test]
pub fn p5_without_a_ledger_a_clock_set_back_a_little_fires_nothing_again() {
    let mut world = one_node(|configuration| configuration.monitor_execution = false);
    world.set_wall_back(jiff::SignedDuration::from_secs(20));
    world.run_for(15_000);
    assert_eq!(world.starts, []);
}

#[test]
pub fn a_disabled_server_that_is_alone_executes_nothing() {
    let mut world = one_node(|_| {});
    world.put("servers/10.0.0.1", "DISABLED");
    world.run_for(500);
    world.starts.clear();
    world.run_for(4_000);
    assert_eq!((world.starts.len(), world.nodes[0].items.len()), (0, 0));
}

/// Goes on until a node asks for something of a kind; then it takes effect, and the node does not learn of it.
fn lose_answer(world: &mut World, node: usize, purpose: Purpose) {
    let count = |world: &World| world.commits.get(&purpose).copied().unwrap_or_default();
    let before = count(world);
    for _ in 0..10_000 {
        world.look(node);
        if count(world) > before {
            break;
        }
        world.take_effect(node);
        world.now += jiff::SignedDuration::from_millis(1);
    }
    assert!(count(world) > before);
    world.loses_answer = Some(node);
    world.take_effect(node);
    assert_eq!(world.loses_answer, None);
}

#[test]
pub fn p1_p7_who_is_stopped_while_it_does_not_know_what_it_has_started_ends_it_and_leaves() {
    for failover in [false, true] {
        let mut world = one_node(|configuration| configuration.failover = failover);
        world.join();
        world.run_for(1_500);
        world.settle();
        lose_answer(&mut world, 0, Purpose::Start);
        let running = |world: &World| world.paths().iter().filter(|path| path.ends_with("/running")).count();
        assert_eq!(running(&world), 3);
        world.remove("instances/10.0.0.1@-@n0");
        world.run_for(1_500);
        assert_eq!(world.nodes[0].ended, Some(EndReason::Stopped));
        world.settle();
        world.assert_all_owned();
    }
}

#[test]
pub fn p1_p6_who_goes_while_it_does_not_know_that_it_is_registered_leaves_nothing() {
    let mut world = one_node(|_| {});
    let node = world.join();
    lose_answer(&mut world, node, Purpose::Register);
    let instance = "instances/10.0.0.2@-@n1";
    assert!(world.get(instance).is_some());
    world.kill(node);
    world.run_for(500);
    assert_eq!((world.nodes[node].ended.clone(), world.get(instance)), (Some(EndReason::Detached), None));
    world.settle();
    world.assert_all_owned();
}
