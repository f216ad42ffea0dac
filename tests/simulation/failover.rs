//! The executions of a crashed instance are taken over by others (P5).

use jiff::SignedDuration;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::job::JobConfiguration;

use crate::setup::{JAVA, java_yaml, lines, of_java, running_node, second, second_dies, seeds, with_java};
use crate::world::{World, six_items};

#[test]
pub fn p6_an_instance_that_dies_before_it_begins_taken_over_items_passes_them_on() {
    let mut met = 0;
    for seed in 0..30 {
        let mut world = World::new(seed, JobConfiguration { failover: true, ..six_items() });
        world.duration_max_ms = 1_000;
        world.join();
        world.run_for(1_000);
        world.join();
        world.run_until(second(4) + SignedDuration::from_millis(20));
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
pub fn h2_the_executions_of_a_java_instance_that_reconnects_are_not_taken_over() {
    let mut world = with_java(|configuration| configuration.failover = true);
    let item = of_java(&world)[0];
    world.put(&format!("sharding/{item}/running"), JAVA);
    world.run_for(500);
    world.remove(&format!("instances/{JAVA}"));
    world.run_for(1_000);
    assert_eq!(running_node(&world, item).as_deref(), Some(JAVA.as_bytes()));
    world.put(&format!("instances/{JAVA}"), &java_yaml(JAVA));
    world.run_for(3_000);
    assert_eq!(running_node(&world, item).as_deref(), Some(JAVA.as_bytes()));
    assert!(world.starts.iter().all(|start| start.at < world.now), "{:?}", world.starts);
    // Without it, it is taken over.
    world.remove(&format!("instances/{JAVA}"));
    world.run_for(6_000);
    assert_ne!(running_node(&world, item).as_deref(), Some(JAVA.as_bytes()));
}

/// The instance has lost the session in which it took the items, and the server still has that: by the nodes the
/// items are its own, and it has forgotten their instants.
#[test]
pub fn p5_a_takeover_in_a_lost_session_is_executed_for_its_own_instant() {
    let mut world = World::new(17, JobConfiguration { failover: true, ..six_items() });
    world.join();
    world.join();
    world.run_for(3_500);
    world.settle_owned();
    world.next_duration_ms = Some(60_000);
    world.run_for(1_000);
    let interrupted: Vec<_> = world.nodes[1].executions.values().map(|open| open.execute.scheduled).collect();
    assert_eq!(interrupted.len(), 3);
    world.crash(1);
    world.end_session(1);
    for _ in 0..100 {
        world.look(0);
        if world.is_taking(0) {
            break;
        }
        world.take_effect(0);
    }
    assert!(world.is_taking(0));
    world.take_effect(0);
    // A fire comes before the instance is back.
    world.now += SignedDuration::from_millis(2_500);
    let _lost = world.give_up(0);
    assert!(world.get("sharding/0/failover").is_some());
    world.run_for(3_000);
    let taken = world.starts.iter().filter(|start| start.source == Source::Failover);
    let told: Vec<_> = taken.map(|start| start.scheduled).collect();
    // Its own three were interrupted, too.
    assert_eq!(told, [interrupted[0]; 6]);
}

#[test]
pub fn p5_with_failover_every_interrupted_execution_is_taken_over() {
    for seed in seeds(60) {
        let mut world = World::new(seed, JobConfiguration { failover: true, ..six_items() });
        world.duration_max_ms = 1_500;
        world.lossy = seed % 3 == 2;
        world.join();
        for _ in 0..40 {
            world.run_for(700);
            let staying = world.staying();
            if staying.len() < 2 {
                world.join();
            }
            let pick = staying.get(world.random.below(staying.len().max(1) as u64) as usize).copied();
            match (world.random.below(8), pick) {
                (0 | 1, _) if staying.len() < 5 => drop(world.join()),
                (2 | 3, Some(pick)) => world.kill(pick),
                (4, Some(pick)) => world.drain(pick),
                (5, Some(pick)) => world.expire(pick),
                _ => {}
            }
        }
        world.join();
        world.run_for(15_000);
        world.settle_owned();
        let recent = world.now - SignedDuration::from_secs(5);
        for (item, at) in world.interrupted.iter().filter(|(_, at)| *at < recent) {
            let is_completed =
                world.completed_takeovers.iter().any(|(other, started)| other == item && started >= at);
            let starts: Vec<_> = world.starts.iter().filter(|start| start.item == *item).collect();
            assert!(
                is_completed,
                "seed {seed}: item {item}, interrupted at {at}:\n{}\n{:#?}",
                lines(&starts),
                world.log
            );
        }
        let left: Vec<_> = world.paths().into_iter().filter(|path| path.contains("fail")).collect();
        let allowed = ["/ns/job/leader/failover", "/ns/job/leader/failover/items"];
        assert!(left.iter().all(|path| allowed.contains(&&**path)), "seed {seed}: {left:?}");
    }
}

#[test]
pub fn p6_an_instance_that_dies_during_a_takeover_gives_the_items_back() {
    for seed in seeds(50) {
        let world = second_dies(seed, |world| world.is_taking(1));
        let left: Vec<_> = world.paths().into_iter().filter(|path| path.ends_with("/failover")).collect();
        assert_eq!(left, ["/ns/job/leader/failover"], "seed {seed}");
    }
}
