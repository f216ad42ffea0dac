//! No request grows beyond what a ZooKeeper server accepts, however many items there are.

use jiff::SignedDuration;
use sidekeeper::coordination::job::contract::commit::Purpose;
use sidekeeper::coordination::job::contract::report::Outcome;
use sidekeeper::job::{Item, JobConfiguration};

use crate::setup::{AT_ONCE, job_with, second};
use crate::world::{World, six_items};

#[test]
fn p5_ten_thousand_items_that_miss_a_fire_are_rerun_and_their_flags_fit_into_requests() {
    let mut world = World::new(11, JobConfiguration { sharding_total_count: 10_000, ..six_items() });
    world.next_duration_ms = Some(12_500);
    world.join();
    // The items began to run at :02 and are still running at :04. Ten seconds later a witness suffices no more.
    world.run_until(second(14) + SignedDuration::from_millis(400));
    let flagged = world.paths().iter().filter(|path| path.ends_with("/misfire")).count();
    assert_eq!(flagged, 10_000);
    world.next_duration_ms = None;
    world.starts.clear();
    world.run_until(second(15) + SignedDuration::from_millis(900));
    let made_up = world.starts.iter().filter(|start| start.misfire).count();
    assert_eq!(made_up, 10_000);
}

#[test]
fn p1_a_sharding_of_ten_thousand_items_is_split_and_each_item_has_one_owner() {
    let mut world =
        World::new(3, JobConfiguration { sharding_total_count: 10_000, cron: None, ..job_with(&AT_ONCE) });
    world.join();
    world.settle_owned();
    world.join();
    world.settle_owned();
    world.drain(0);
    world.settle_owned();
}

#[test]
fn p5_p6_no_transaction_grows_with_the_number_of_items() {
    let mut configuration = job_with(&AT_ONCE);
    // More than are allowed, in place of long names.
    configuration.sharding_total_count = 12_000;
    let mut world = World::new(5, configuration);
    world.next_duration_ms = Some(60_000);
    world.join();
    world.settle_owned();
    let started =
        |world: &World, misfire: bool| world.starts.iter().filter(|start| start.misfire == misfire).count();
    // The second fire meets the executions of the first. They go on for so long that all items are flagged.
    world.now += SignedDuration::from_secs(2);
    world.settle();
    assert_eq!((started(&world, false), started(&world, true)), (12_000, 0));
    // A server keeps the last transactions in memory: those of a fire are small.
    assert!(world.commits[&Purpose::Start] >= 20, "{:?}", world.commits);
    world.now += SignedDuration::from_secs(2);
    world.settle();
    world.now += SignedDuration::from_secs(11);
    world.settle();
    assert_eq!(world.paths().iter().filter(|path| path.ends_with("/misfire")).count(), 12_000);
    world.kill(0);
    world.settle();
    assert!(world.nodes[0].ended.is_some());
    assert!(!world.paths().iter().any(|path| path.ends_with("/running") || path.contains("instances/")));
}

#[test]
fn p5_p6_many_interrupted_items_are_handed_over_before_their_instance_leaves() {
    let mut configuration = job_with(&AT_ONCE);
    (configuration.sharding_total_count, configuration.failover) = (2_000, true);
    configuration.cron = Some("0/10 * * * * ?".to_owned());
    let mut world = World::new(8, configuration);
    world.next_duration_ms = Some(3_000);
    world.join();
    world.run_until(second(9));
    world.starts.clear();
    for item in (0..2_000).map(Item) {
        world.outcomes.insert(item, [Outcome::Interrupted("the lease has ended".to_owned())].into());
    }
    world.run_until(second(12));
    assert_eq!(world.starts.len(), 2_000);
    world.drain(0);
    world.run_for(4_000);
    assert!(world.nodes[0].ended.is_some());
    let ending = |end: &str| world.paths().iter().filter(|path| path.ends_with(end)).count();
    assert_eq!((ending("/running"), ending("/instances")), (0, 1));
    assert_eq!(world.paths().iter().filter(|path| path.contains("leader/failover/items/")).count(), 2_000);
}
