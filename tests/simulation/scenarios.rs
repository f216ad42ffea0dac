//! What happens in the worlds, and what must hold.

use std::collections::BTreeMap;

use jiff::Timestamp;
use sidekeeper::job::Item;

use crate::world::{World, six_items};

/// Seeds of each scenario; `SIMULATION_SEEDS` asks for another number, `SIMULATION_SEED` for a single one.
pub fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match (number("SIMULATION_SEED"), number("SIMULATION_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(count)) => 0..count,
        (None, None) => 0..default,
    }
}

/// How often each (fire, item) was started between two instants.
pub fn starts(world: &World, from: Timestamp, to: Timestamp) -> BTreeMap<(Timestamp, Item), usize> {
    let mut counts = BTreeMap::new();
    let mut instant = from;
    while instant < to {
        for item in 0..6 {
            counts.insert((instant, Item(item)), 0);
        }
        instant += jiff::SignedDuration::from_secs(2);
    }
    for start in &world.starts {
        if let Some(count) = counts.get_mut(&(start.scheduled, start.item)) {
            *count += 1;
        }
    }
    counts
}

#[test]
fn p5_without_faults_each_item_runs_once_at_each_fire() {
    for seed in seeds(50) {
        let mut world = World::new(seed, six_items());
        for _ in 0..3 {
            world.join();
        }
        world.run_for(2_500);
        world.settle();
        world.assert_all_owned();
        let from = world.now.round(jiff::Unit::Second).unwrap();
        let from = Timestamp::from_second(from.as_second() / 2 * 2 + 2).unwrap();
        world.run_for(20_000);
        let to = Timestamp::from_second(world.now.as_second() / 2 * 2).unwrap();
        for ((instant, item), count) in starts(&world, from, to) {
            assert_eq!(count, 1, "seed {seed}: fire {instant} of item {item}");
        }
    }
}

#[test]
pub fn p5_each_item_runs_once_at_each_fire_while_instances_join_and_leave() {
    for seed in seeds(80) {
        let mut world = World::new(seed, six_items());
        world.duration_max_ms = 300;
        world.join();
        world.run_for(2_500);
        let from = Timestamp::from_second(world.now.as_second() / 2 * 2 + 2).unwrap();
        for _ in 0..12 {
            // Close to a fire, where it hurts.
            let next_fire = Timestamp::from_second(world.now.as_second() / 2 * 2 + 2).unwrap();
            let offset = world.random.below(60) as i64 - 30;
            world.run_until(next_fire + jiff::SignedDuration::from_millis(offset));
            let staying = world.staying();
            let pick = staying[world.random.below(staying.len() as u64) as usize];
            match world.random.below(3) {
                0 if staying.len() < 4 => drop(world.join()),
                1 if staying.len() > 1 => world.drain(pick),
                _ => {}
            }
            world.run_for(1_000);
        }
        let to = Timestamp::from_second(world.now.as_second() / 2 * 2).unwrap();
        for ((instant, item), count) in starts(&world, from, to) {
            let starts: Vec<_> = world.starts.iter().filter(|start| start.item == item).collect();
            assert_eq!(
                count,
                1,
                "seed {seed}: fire {instant} of item {item}:\n{}\n{:#?}",
                lines(&starts),
                world.log
            );
        }
    }
}

#[test]
pub fn p1_p2_p3_hold_while_instances_come_and_go() {
    for seed in seeds(80) {
        let mut world = World::new(seed, six_items());
        world.duration_max_ms = 3_000;
        world.lossy = seed % 2 == 1;
        world.join();
        for _ in 0..60 {
            world.run_for(500);
            if world.nodes.iter().filter(|node| node.ended.is_none()).count() < 2 {
                world.join();
            }
            let alive: Vec<_> =
                (0..world.nodes.len()).filter(|node| world.nodes[*node].ended.is_none()).collect();
            let pick = alive[world.random.below(alive.len() as u64) as usize];
            match world.random.below(10) {
                0 | 1 if alive.len() < 5 => {
                    world.join();
                }
                2 if alive.len() > 1 => world.kill(pick),
                3 if alive.len() > 1 => world.drain(pick),
                4 => world.expire(pick),
                5 => {
                    world.toggle_suspended(pick);
                    world.run_for(300);
                    world.toggle_suspended(pick);
                }
                _ => {}
            }
        }
        world.join();
        world.run_for(30_000);
        world.settle();
        world.assert_all_owned();
    }
}

#[test]
pub fn p5_with_failover_what_was_interrupted_is_executed_by_somebody() {
    for seed in seeds(60) {
        let mut configuration = six_items();
        configuration.failover = true;
        let mut world = World::new(seed, configuration);
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
        world.settle();
        world.assert_all_owned();
        let recent = world.now - jiff::SignedDuration::from_secs(5);
        for (item, at) in world.interrupted.iter().filter(|(_, at)| *at < recent) {
            let made_good = world.made_good.iter().any(|(other, started)| other == item && started >= at);
            let starts: Vec<_> = world.starts.iter().filter(|start| start.item == *item).collect();
            assert!(
                made_good,
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
fn p6_nothing_of_ours_is_left_after_a_drain() {
    for seed in seeds(50) {
        let mut world = World::new(seed, six_items());
        for _ in 0..3 {
            world.join();
        }
        world.run_for(5_000);
        for node in 0..3 {
            world.drain(node);
        }
        world.run_for(5_000);
        world.settle();
        assert!(world.nodes.iter().all(|node| node.ended.is_some()), "seed {seed}: somebody stays");
        let left: Vec<_> = world
            .paths()
            .into_iter()
            .filter(|path| {
                path.contains("instances/")
                    || path.ends_with("/running")
                    || path.ends_with("election/instance")
            })
            .collect();
        assert!(left.is_empty(), "seed {seed}: {left:?}");
    }
}

pub fn lines(starts: &[&crate::world::Start]) -> String {
    let line = |start: &&crate::world::Start| {
        format!("{} -> node {} at {} ({:?})\n", start.scheduled, start.node, start.at, start.source)
    };
    starts.iter().map(line).collect()
}

/// What may stand anywhere: nothing, binary data, numbers, ids with too few and too many parts, YAML of all kinds.
const GARBAGE: [&[u8]; 12] = [
    b"",
    b"\xff\xfe\0\x80",
    b"99999999999999999999",
    b"-1",
    b"nobody",
    b"10.9.9.9@-@1@-@2",
    b"10.9.9.9@-@4711",
    b"a: &a [*a, *a]\nb: &b [*a, *a]\nc: [*b, *b]",
    b"jobName: job\nshardingTotalCount: 2147483648",
    b"{jobName: job, shardingTotalCount: 6, cron: '0/2 * * * * ?', unknown: 1}",
    b"!!java.lang.Runtime {}",
    b"jobName: [job]\nshardingTotalCount: {}",
];

/// Where it may stand.
const PLACES: [&str; 26] = [
    "config",
    "servers/10.9.9.9",
    "servers/here",
    "instances/nobody",
    "instances/10.9.9.9@-@4711",
    "instances/10.9.9.9@-@1@-@2",
    "instances2/x",
    "leader/election/latch/_c_x-latch-",
    "leader/election/elsewhere",
    "leader/failover/items/0",
    "leader/failover/items/99",
    "leader/failover/items/x",
    "leader/sharding/necessary",
    "leader/sharding/processing",
    "sharding/99",
    "sharding/99/instance",
    "sharding/-1",
    "sharding/x/running",
    "sharding/4294967296/running",
    "sharding/0/unknown",
    "sharding/1/misfire",
    "sharding/2/failovering",
    "sharding/5/a/b/c/d/e/f/g/h",
    "trigger/10.9.9.9@-@4711",
    "guarantee/started/0",
    "next-job-instance-ip",
];

#[test]
fn p7_p8_whatever_stands_in_the_registry_the_job_goes_on_when_it_is_gone() {
    for seed in seeds(40) {
        let mut configuration = six_items();
        configuration.failover = seed % 2 == 0;
        let mut world = World::new(seed, configuration);
        world.duration_max_ms = 300;
        world.join();
        world.join();
        world.run_for(2_500);
        world.settle();
        let good = world.get("config").unwrap();
        let mut put = Vec::new();
        for _ in 0..25 {
            let place = PLACES[world.random.below(PLACES.len() as u64) as usize];
            let garbage = GARBAGE[world.random.below(GARBAGE.len() as u64) as usize];
            world.put_bytes(place, garbage);
            put.push(place);
            world.run_for(200);
        }
        world.put_bytes("config", &good);
        // The deepest first, with what is above it if nobody else put it there.
        put.sort_by_key(|place| std::cmp::Reverse(place.len()));
        for place in put.into_iter().filter(|place| *place != "config") {
            world.remove_with_parents(place);
        }
        world.run_for(15_000);
        world.settle();
        world.assert_all_owned();
        world.starts.clear();
        world.run_for(4_500);
        let executed: std::collections::BTreeSet<_> = world.starts.iter().map(|start| start.item).collect();
        assert_eq!(executed.len(), 6, "seed {seed}: {executed:?}\n{:#?}", world.paths());
    }
}
