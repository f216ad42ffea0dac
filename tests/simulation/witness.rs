//! The witness of a fire that several items have missed: what it saves, and what the next owner learns from it (P5).

use jiff::SignedDuration;
use sidekeeper::coordination::job::contract::commit::Purpose;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::elasticjob::config_yaml;
use sidekeeper::extension::profile::Profile;
use sidekeeper::job::JobConfiguration;

use crate::setup::{JAVA, one_node, second, started, started_by};
use crate::world::{World, six_items};

fn witnesses(world: &World) -> usize {
    world.ledger().iter().filter(|name| name.starts_with("witness-")).count()
}

fn flags(world: &World) -> usize {
    world.paths().iter().filter(|path| path.ends_with("/misfire")).count()
}

/// One node that executes its six items from :06 for so long, at :08.5: the fire at :08 was missed.
fn busy(duration_ms: u64) -> World {
    let mut world = one_node(|_| {});
    world.next_duration_ms = Some(duration_ms);
    world.run_until(second(8) + SignedDuration::from_millis(500));
    world
}

/// The only node dies, and another one comes after it, which gets all items. Returns that one.
fn next_owner(world: &mut World) -> usize {
    world.crash(0);
    world.next_duration_ms = Some(50);
    let next = world.join();
    world.run_for(200);
    world.end_session(0);
    next
}

#[test]
fn the_missed_fire_of_several_items_costs_one_small_transaction() {
    let mut world = busy(3_000);
    assert_eq!((witnesses(&world), flags(&world)), (1, 0));
    assert_eq!(world.commits.get(&Purpose::FlagMisfire), Some(&1));
    world.next_duration_ms = None;
    world.run_until(second(9) + SignedDuration::from_millis(900));
    for item in 0..6 {
        assert_eq!(started(&world, item), [(Source::Schedule, 6), (Source::Misfire, 8)]);
    }
}

#[test]
pub fn p5_an_instance_that_came_after_a_missed_fire_learns_of_it_from_the_witness() {
    let mut world = busy(5_000);
    let next = next_owner(&mut world);
    world.run_until(second(9) + SignedDuration::from_millis(900));
    assert_eq!(world.nodes[next].items.len(), 6);
    for item in 0..6 {
        assert_eq!(started_by(&world, item, Source::Misfire), [second(8)], "{:#?}", world.starts);
    }
    // They were executed once.
    world.run_until(second(12) - SignedDuration::from_millis(100));
    assert!(world.starts.iter().filter(|start| start.node == next).count() == 12, "{:#?}", world.starts);
}

#[test]
fn p5_a_missed_fire_keeps_its_instant_though_the_schedule_changes_and_the_owner_crashes() {
    let mut world = busy(5_000);
    let never = JobConfiguration { cron: Some("0 0 0 1 1 ? 2099".to_owned()), ..six_items() };
    world.put("config", &config_yaml::write(&never));
    next_owner(&mut world);
    world.run_for(2_000);
    for item in 0..6 {
        assert_eq!(started_by(&world, item, Source::Misfire), [second(8)], "{:#?}", world.starts);
    }
}

#[test]
fn p5_items_that_miss_a_trigger_get_flags_and_the_others_are_executed_for_it_once() {
    let mut world = one_node(|configuration| configuration.cron = None);
    world.next_duration_ms = Some(5_000);
    let trigger = format!("trigger/{}", world.nodes[0].instance);
    world.put(&trigger, "");
    world.run_for(300);
    world.cancel(0, &[5]);
    world.run_for(300);
    world.put(&trigger, "");
    world.run_for(300);
    assert_eq!((witnesses(&world), flags(&world)), (0, 5), "{:#?}", world.starts);
    next_owner(&mut world);
    world.run_for(2_000);
    let of = |item: u32| world.starts.iter().filter(|start| start.item.0 == item).count();
    assert_eq!((0..6).map(of).collect::<Vec<_>>(), [2; 6], "{:#?}", world.starts);
}

#[test]
fn an_item_that_waits_for_long_gets_a_flag() {
    let mut world = busy(30_000);
    assert_eq!((witnesses(&world), flags(&world)), (1, 0));
    world.run_until(second(17) + SignedDuration::from_millis(900));
    assert_eq!(flags(&world), 0);
    world.run_until(second(18) + SignedDuration::from_millis(100));
    assert_eq!(flags(&world), 6);
}

#[test]
fn beside_a_sidecar_that_knows_only_flags_each_item_gets_one() {
    let mut world = one_node(|_| {});
    world.join_with(None, 2, Profile { witnesses: false, ..Profile::default() });
    world.settle();
    world.next_duration_ms = Some(3_000);
    world.run_until(second(8) + SignedDuration::from_millis(500));
    assert_eq!((witnesses(&world), flags(&world)), (0, 6));
}

#[test]
fn a_java_instance_that_joins_finds_the_flags_of_missed_fires() {
    let mut world = busy(5_000);
    assert_eq!(flags(&world), 0);
    world.put_java(JAVA);
    world.run_for(300);
    assert_eq!(flags(&world), 6, "{:#?} {:?}", world.paths(), world.commits);
}

#[test]
fn witnesses_do_not_accumulate() {
    let mut world = busy(3_000);
    world.join();
    world.run_until(second(59));
    assert!(world.commits[&Purpose::FlagMisfire] > 10, "{:?}", world.commits);
    assert!(witnesses(&world) <= 2, "{:?}", world.ledger());
}

#[test]
fn an_item_that_was_disabled_for_long_has_missed_nothing_that_a_witness_tells() {
    let mut world = one_node(|_| {});
    world.next_duration_ms = Some(50);
    world.put("sharding/2/disabled", "");
    world.run_until(second(12 * 60 + 1));
    world.next_duration_ms = Some(2_500);
    world.run_until(second(12 * 60 + 4) + SignedDuration::from_millis(200));
    assert_eq!(witnesses(&world), 1);
    world.next_duration_ms = Some(50);
    world.starts.clear();
    world.remove("sharding/2/disabled");
    world.run_until(second(12 * 60 + 7));
    assert_eq!(started(&world, 2), [(Source::Schedule, 12 * 60 + 6)], "{:#?}", world.starts);
}
