//! Worlds that several tests begin with, and questions that they ask.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use sidekeeper::coordination::job::contract::commit::Purpose;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::job::{Item, JobConfiguration};

use crate::world::{Start, World, six_items};

/// A Java instance that only its nodes show.
pub const JAVA: &str = "10.9.9.9@-@4711";

/// How many seeds a test has that checks one rule under random delays.
pub const SEEDS: u64 = 20;

/// The seeds of a random test; `SIMULATION_SEEDS` asks for another number, `SIMULATION_SEED` for a single one.
pub fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match (number("SIMULATION_SEED"), number("SIMULATION_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(count)) => 0..count,
        (None, None) => 0..default,
    }
}

/// The leader divides the items as soon as an instance joins, so that a test can stop the world between the two.
pub const AT_ONCE: [(&str, &str); 1] = [("handoff-settling", "0s")];

/// Sets properties of a job.
pub fn with(properties: &[(&str, &str)]) -> impl FnOnce(&mut JobConfiguration) {
    let properties: Vec<_> =
        properties.iter().map(|(key, value)| (format!("sidekeeper.{key}"), (*value).to_owned())).collect();
    move |configuration| configuration.props.extend(properties)
}

/// The job of most tests, with properties.
pub fn job_with(properties: &[(&str, &str)]) -> JobConfiguration {
    let mut configuration = six_items();
    with(properties)(&mut configuration);
    configuration
}

/// A world with one node that owns everything, some fires old, between two fires.
pub fn one_node(configure: impl FnOnce(&mut JobConfiguration)) -> World {
    let mut configuration = six_items();
    configure(&mut configuration);
    let mut world = World::new(7, configuration);
    world.duration_max_ms = 200;
    world.join();
    world.run_for(5_000);
    world.settle_owned();
    world.starts.clear();
    world
}

/// A world whose job fires every ten seconds, one second before a fire; the nodes own all items.
pub fn every_ten_seconds(seed: u64, nodes: usize, failover: bool, props: &[(&str, &str)]) -> World {
    let mut configuration = six_items();
    configuration.failover = failover;
    with(props)(&mut configuration);
    configuration.cron = Some("0/10 * * * * ?".to_owned());
    let mut world = World::new(seed, configuration);
    world.join_many(nodes);
    world.settle();
    world.run_until(second(9));
    world.settle_owned();
    world.starts.clear();
    world
}

/// A sidecar and a Java instance; both own items.
pub fn with_java(change: impl Fn(&mut JobConfiguration)) -> World {
    let mut configuration = six_items();
    change(&mut configuration);
    let mut world = World::new(1, configuration);
    world.join();
    world.run_for(1_000);
    world.put_java(JAVA);
    world.run_for(3_000);
    world.settle();
    assert!(!of_java(&world).is_empty());
    world
}

/// The nodes of a Java instance that has just registered.
pub fn put_new_java(world: &mut World, id: &str) {
    world.put("servers/10.9.9.9", "ENABLED");
    world.put(&format!("instances/{id}"), &java_yaml(id));
}

/// The data of a Java instance's node.
pub fn java_yaml(id: &str) -> String {
    format!("jobInstanceId: {id}\nserverIp: 10.9.9.9\n")
}

/// Two nodes, of which the first, the leader, dies while it executes; then turns until the second meets a condition,
/// and dies as well.
pub fn second_dies(seed: u64, when: impl Fn(&World) -> bool) -> World {
    let mut world = World::new(seed, JobConfiguration { failover: true, ..six_items() });
    world.duration_max_ms = 1_000;
    world.join();
    world.run_for(1_000);
    world.join();
    world.run_until(second(4) + SignedDuration::from_millis(20));
    world.kill(0);
    for _ in 0..100 {
        if when(&world) {
            break;
        }
        world.turn();
    }
    assert!(when(&world), "seed {seed}");
    world.kill(1);
    world.run_for(1_000);
    assert!(world.nodes[1].ended.is_some(), "seed {seed}");
    world
}

/// Goes on until a node sends a commit of this purpose; then the commit takes effect, and its answer is lost.
pub fn lose_answer(world: &mut World, node: usize, purpose: Purpose) {
    ask(world, node, purpose);
    world.loses_answer = Some(node);
    world.take_effect(node);
    assert_eq!(world.loses_answer, None);
}

/// Has the node's next request for this purpose take effect only with [`World::deliver_delayed`].
pub fn delay_request(world: &mut World, node: usize, purpose: Purpose) {
    ask(world, node, purpose);
    world.delays_request = Some(node);
    world.take_effect(node);
    assert_eq!(world.delays_request, None);
}

/// Lets the time pass until the node sends a request for this purpose.
fn ask(world: &mut World, node: usize, purpose: Purpose) {
    let before = asked(world, purpose);
    for _ in 0..10_000 {
        world.look(node);
        if asked(world, purpose) > before {
            break;
        }
        world.take_effect(node);
        world.now += SignedDuration::from_millis(1);
    }
    assert!(asked(world, purpose) > before);
}

/// The instant so many seconds after the begin of the world.
pub fn second(seconds: i64) -> Timestamp {
    "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds)
}

/// The next instant of a job that fires every two seconds.
pub fn next_fire(world: &World) -> Timestamp {
    last_fire(world) + SignedDuration::from_secs(2)
}

/// The last instant of a job that fires every two seconds.
pub fn last_fire(world: &World) -> Timestamp {
    Timestamp::from_second(world.now.as_second() / 2 * 2).unwrap()
}

pub fn millis_between(from: Timestamp, to: Timestamp) -> i64 {
    i64::try_from(to.duration_since(from).as_millis()).unwrap()
}

/// The id of an item's owner; empty without one.
pub fn owner(world: &World, item: u32) -> String {
    String::from_utf8(world.get(&format!("sharding/{item}/instance")).unwrap_or_default()).unwrap()
}

/// The items that the Java instance owns.
pub fn of_java(world: &World) -> Vec<u32> {
    (0..6).filter(|item| owner(world, *item) == JAVA).collect()
}

pub fn running_node(world: &World, item: u32) -> Option<Vec<u8>> {
    world.get(&format!("sharding/{item}/running"))
}

pub fn runs(world: &World, item: u32) -> bool {
    running_node(world, item).is_some()
}

/// The paths of all running nodes.
pub fn running_nodes(world: &World) -> Vec<String> {
    world.paths().into_iter().filter(|path| path.ends_with("/running")).collect()
}

/// How many commits of a purpose were sent.
pub fn asked(world: &World, purpose: Purpose) -> usize {
    world.commits.get(&purpose).copied().unwrap_or_default()
}

pub fn starts_of(world: &World, item: u32) -> Vec<Start> {
    world.starts.iter().filter(|start| start.item == Item(item)).cloned().collect()
}

/// The starts of an item: their source and their second.
pub fn started(world: &World, item: u32) -> Vec<(Source, i64)> {
    let of_item = world.starts.iter().filter(|start| start.item == Item(item));
    of_item.map(|start| (start.source, start.scheduled.duration_since(second(0)).as_secs())).collect()
}

/// The instants for which an item was started because of this source.
pub fn started_by(world: &World, item: u32, source: Source) -> Vec<Timestamp> {
    let of_item = world.starts.iter().filter(|start| start.item == Item(item) && start.source == source);
    of_item.map(|start| start.scheduled).collect()
}

/// How often each item was started, as (by the schedule, as a rerun).
pub fn counts(world: &World) -> Vec<(usize, usize)> {
    let of = |item: u32, misfire: bool| {
        world.starts.iter().filter(|start| start.item == Item(item) && start.misfire == misfire).count()
    };
    (0..6).map(|item| (of(item, false), of(item, true))).collect()
}

/// How often each (fire, item) was started between two instants.
pub fn starts(world: &World, from: Timestamp, to: Timestamp) -> BTreeMap<(Timestamp, Item), usize> {
    let mut counts = BTreeMap::new();
    let mut instant = from;
    while instant < to {
        for item in 0..6 {
            counts.insert((instant, Item(item)), 0);
        }
        instant += SignedDuration::from_secs(2);
    }
    for start in &world.starts {
        if let Some(count) = counts.get_mut(&(start.scheduled, start.item)) {
            *count += 1;
        }
    }
    counts
}

/// Each start in a line, for looking at a failure.
pub fn lines(starts: &[&Start]) -> String {
    let line = |start: &&Start| {
        format!("{} -> node {} at {} ({:?})\n", start.scheduled, start.node, start.at, start.source)
    };
    starts.iter().map(line).collect()
}

/// Asserts that each fire between two instants was started, or is before one that was rerun later.
pub fn assert_nothing_lost(world: &World, from: Timestamp, to: Timestamp) {
    for item in (0..6).map(Item) {
        let starts: Vec<_> = world.starts.iter().filter(|start| start.item == item).collect();
        let mut fire = from;
        while fire < to {
            let is_covered = starts.iter().any(|start| {
                start.scheduled == fire || (start.misfire && start.scheduled > fire && start.at > fire)
            });
            assert!(
                is_covered,
                "seed {}: fire {fire} of item {item}: {starts:#?}\n{:#?}",
                world.seed, world.log
            );
            fire += SignedDuration::from_secs(2);
        }
    }
}
