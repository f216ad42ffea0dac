//! Fleets of sidecars and Java instances, as random worlds: P1, P2, P3, P5, P6 and P7 hold for the sidecars, whichever
//! instance leads and whatever fails; and no write of a sidecar stops a Java instance.

use jiff::{SignedDuration, Timestamp};
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::job::JobConfiguration;

use crate::setup::{next_fire, seeds};
use crate::world::{World, six_items};

/// How long after the last fault everything has an owner: a session's end, a leader's fires, and the reminder of a Java
/// leader that has forgotten an instance.
const BOUND_MS: i64 = 40_000;

fn configuration(seed: u64) -> JobConfiguration {
    let mut configuration = six_items();
    configuration.failover = seed % 2 == 1;
    configuration.misfire = seed % 5 != 4;
    configuration
}

/// The events of a world, counted.
#[derive(Debug, Default)]
struct Tally {
    faults: usize,
    ours: usize,
    java: usize,
    java_twice: usize,
    moved_while_running: usize,
    java_stopped: usize,
    left_running: usize,
}

/// One event happens to some instance. Returns whether it is a fault.
fn inflict(world: &mut World) -> bool {
    let staying = world.staying();
    let javas = world.living_javas();
    let of_ours = world.random.below(staying.len().max(1) as u64) as usize;
    let ours = staying.get(of_ours).copied();
    let of_javas = world.random.below(javas.len().max(1) as u64) as usize;
    let java = javas.get(of_javas).copied();
    let many = staying.len() > 1;
    match (world.random.below(16), ours, java) {
        (0, ..) if staying.len() < 4 => drop(world.join()),
        (1, ..) if javas.len() < 3 => world.join_java(),
        (2, Some(ours), _) if many => world.drain(ours),
        (3, Some(ours), _) if many => world.kill(ours),
        (4, Some(ours), _) => world.expire(ours),
        (5, Some(ours), _) => {
            world.toggle_suspended(ours);
            let millis = world.random.below(900) as i64;
            world.run_for(millis);
            if world.nodes[ours].ended.is_none() {
                world.toggle_suspended(ours);
            }
        }
        (6, Some(ours), _) if many => {
            world.crash(ours);
            world.run_for(800);
            world.end_session(ours);
        }
        (7, _, Some(java)) => world.javas[java].kill(),
        (8, _, Some(java)) => world.javas[java].stop(),
        (9, _, Some(java)) => world.javas[java].freeze(500 + world.random.below(9_000) as i64),
        (10 | 11, _, Some(java)) => {
            let millis = 200 + world.random.below(9_000) as i64;
            world.javas[java].lose_connection(millis, &mut world.random);
        }
        (12, _, Some(java)) => world.javas[java].expire(world.random.below(1_500) as i64),
        (13, ..) => {
            let servers = world.children("servers");
            let chosen = world.random.below(servers.len().max(1) as u64) as usize;
            let status = if world.random.once_in(2) { "ENABLED" } else { "DISABLED" };
            if let Some(server) = servers.get(chosen) {
                world.put(&format!("servers/{server}"), status);
            }
        }
        (14, ..) => {
            for id in world.children("instances") {
                world.put(&format!("trigger/{id}"), "");
            }
        }
        _ => return false,
    }
    true
}

/// A storm, and the calm after it.
fn weather(seed: u64) -> Tally {
    let mut world = World::new(seed, configuration(seed));
    let mut tally = Tally::default();
    world.duration_max_ms = [300, 700, 2_500][seed as usize % 3];
    world.lossy = seed % 4 == 3;
    world.java_cache_lag_ms = [0, 50, 400][seed as usize / 3 % 3];
    world.java_scheduler_after_ms = [0, 1_500][seed as usize / 2 % 2];
    for _ in 0..2 + world.random.below(3) {
        if world.random.once_in(2) {
            world.join();
        } else {
            world.join_java();
        }
        let pause = world.random.below(1_500) as i64;
        world.run_for(pause);
    }
    for _ in 0..30 {
        let pause = 100 + world.random.below(1_000) as i64;
        world.run_for(pause);
        tally.faults += usize::from(inflict(&mut world));
        world.assert_running_nodes();
    }
    world.lossy = false;
    world.resume_all();
    if world.staying().is_empty() {
        world.join();
    }
    for server in world.children("servers") {
        world.put(&format!("servers/{server}"), "ENABLED");
    }
    world.duration_max_ms = 300;
    world.javas.iter().for_each(|java| java.set_duration(1, 300));
    world.run_for(BOUND_MS);
    world.settle();
    world.assert_owned_with_javas();
    world.assert_java_reads();
    // A running node that a Java instance has forgotten stops all reshardings, and the leader reports it.
    let before = world.left_running_by_javas();
    world.run_for(1_000);
    let after = world.left_running_by_javas();
    tally.left_running = before.iter().filter(|left| after.contains(left)).count();
    if tally.left_running == 0 {
        calm(&mut world);
    }
    if tally.left_running == 0 && configuration(seed).misfire {
        world.assert_nothing_lost(SignedDuration::from_secs(25));
    }
    tally.ours = world.starts.len();
    tally.java = world.javas.iter().map(|java| java.runs().len()).sum();
    tally.java_twice = world.overlaps_of_javas();
    tally.moved_while_running = world.moved_while_running;
    tally.java_stopped = world.javas.iter().filter(|java| java.was_stopped()).count();
    drain(&mut world);
    tally
}

/// P5: an item that sidecars own all the time is executed once at each fire.
fn calm(world: &mut World) {
    let owned = |world: &World| -> Vec<_> {
        world.staying().into_iter().flat_map(|node| world.nodes[node].items.clone()).collect()
    };
    let before = owned(world);
    let from = next_fire(world);
    world.run_for(9_000);
    world.settle();
    let after = owned(world);
    let to = Timestamp::from_second(world.now.as_second() / 2 * 2 - 2).unwrap();
    for item in before.into_iter().filter(|item| after.contains(item)) {
        let mut fire = from;
        while fire < to {
            let of_fire = |start: &&crate::world::Start| {
                start.item == item && start.scheduled == fire && start.source == Source::Schedule
            };
            let count = world.starts.iter().filter(of_fire).count();
            let told: Vec<_> = world.starts.iter().filter(|start| start.item == item).collect();
            let told = crate::setup::lines(&told);
            assert_eq!(
                count,
                1,
                "seed {}: fire {fire} of item {item}:\n{told}\n{:#?}\n{:#?}",
                world.seed,
                world.paths(),
                world.log
            );
            fire += SignedDuration::from_secs(2);
        }
    }
}

/// P6: no node of a sidecar stays, whichever instance leads.
fn drain(world: &mut World) {
    for node in world.staying() {
        world.drain(node);
    }
    world.run_for(12_000);
    world.settle();
    let seed = world.seed;
    assert!(world.nodes.iter().all(|node| node.ended.is_some()), "seed {seed}: an instance stays");
    // A trigger is the operator's.
    let of_ours = |path: &String| path.contains("@-@n") && !path.contains("/trigger/");
    let left: Vec<_> = world.paths().into_iter().filter(of_ours).collect();
    assert!(left.is_empty(), "seed {seed}: {left:?}");
}

#[test]
fn p1_p2_p3_p5_p6_p7_hold_for_sidecars_beside_java_instances() {
    let mut all = Tally::default();
    let seeds = seeds(30);
    let count = seeds.clone().count();
    for seed in seeds {
        let tally = weather(seed);
        all.faults += tally.faults;
        all.ours += tally.ours;
        all.java += tally.java;
        all.java_twice += tally.java_twice;
        all.moved_while_running += tally.moved_while_running;
        all.java_stopped += tally.java_stopped;
        all.left_running += tally.left_running;
    }
    println!("{count} mixed worlds: {all:?}");
    // With a single seed there may be nothing of some kind.
    assert!(count < 10 || (all.ours > 0 && all.java > 0 && all.faults > count), "{all:?}");
}
