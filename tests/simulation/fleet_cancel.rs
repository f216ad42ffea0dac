//! A cancel of the whole fleet: which executions it concerns, at instances that see it at different times.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use sidekeeper::coordination::job::contract::event::CancelReason;

use crate::setup::{SEEDS, every_ten_seconds, one_node, second};
use crate::world::World;

/// The items that operators have cancelled since, in the order of the cancels.
fn cancelled(world: &World, since: usize) -> Vec<u32> {
    let since = world.cancels.iter().skip(since);
    assert!(since.clone().all(|(_, reason, _)| *reason == CancelReason::Operator), "{:?}", world.cancels);
    since.map(|(item, ..)| item.0).collect()
}

#[test]
pub fn each_execution_of_the_fleet_is_cancelled_once_and_the_next_ones_go_on() {
    for seed in 0..SEEDS {
        let mut world = every_ten_seconds(seed, 3, false, &[]);
        world.next_duration_ms = Some(5_000);
        world.run_until(second(11));
        assert_eq!(world.starts.len(), 6, "seed {seed}");
        world.cancel_fleet("one", None);
        world.run_for(1_000);
        let mut first = cancelled(&world, 0);
        first.sort_unstable();
        assert_eq!(first, [0, 1, 2, 3, 4, 5], "seed {seed}");
        // The node of the cancel is still there.
        world.run_until(second(21));
        assert_eq!(world.starts.len(), 12, "seed {seed}");
        assert_eq!(cancelled(&world, 6), Vec::<u32>::new(), "seed {seed}: a later execution");
        world.cancel_fleet("two", Some(&[2, 5]));
        world.run_for(1_000);
        let mut second = cancelled(&world, 6);
        second.sort_unstable();
        assert_eq!(second, [2, 5], "seed {seed}");
    }
}

#[test]
fn exactly_the_executions_that_are_older_than_the_cancel_are_cancelled() {
    let mut sizes = BTreeSet::new();
    for seed in (0..80).step_by(8) {
        let mut world = every_ten_seconds(seed, 3, false, &[]);
        world.next_duration_ms = Some(5_000);
        // Some starts are in the registry, and others are on their way there.
        world.run_until(second(10));
        for _ in 0..seed {
            world.turn();
        }
        let older: Vec<_> =
            (0..6).filter(|item| world.get(&format!("sharding/{item}/running")).is_some()).collect();
        world.cancel_fleet("one", None);
        world.run_until(second(13));
        assert_eq!(world.starts.len(), 6, "seed {seed}");
        let mut found = cancelled(&world, 0);
        found.sort_unstable();
        assert_eq!(found, older, "seed {seed}");
        sizes.insert(older.len());
    }
    assert!(sizes.len() > 2, "no cancel came between two starts: {sizes:?}");
}

#[test]
fn an_instance_that_was_cut_off_obeys_when_it_is_back_and_cancels_nothing_later() {
    for seed in 0..SEEDS {
        let mut world = every_ten_seconds(seed, 2, false, &[]);
        world.next_duration_ms = Some(5_000);
        world.run_until(second(11));
        let theirs: Vec<_> = world.nodes[1].items.iter().map(|item| item.0).collect();
        world.toggle_suspended(1);
        world.cancel_fleet("one", None);
        world.run_for(500);
        let before = cancelled(&world, 0);
        assert!(
            before.iter().all(|item| !theirs.contains(item)) && !before.is_empty(),
            "seed {seed}: {before:?}"
        );
        world.toggle_suspended(1);
        world.run_for(500);
        assert_eq!(cancelled(&world, 0).len(), 6, "seed {seed}");
        world.run_until(second(23));
        assert_eq!((world.starts.len(), world.cancels.len()), (12, 6), "seed {seed}");
    }
}

#[test]
pub fn an_execution_that_the_registry_does_not_know_is_not_cancelled() {
    let mut world = one_node(|configuration| configuration.monitor_execution = false);
    world.next_duration_ms = Some(1_500);
    world.run_until(second(8) + SignedDuration::from_millis(500));
    assert!(!world.starts.is_empty());
    world.cancel_fleet("one", None);
    world.run_for(5_000);
    assert_eq!(world.cancels, []);
}
