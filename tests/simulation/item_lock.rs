//! Executions that hold a lock for their item (`sidekeeper.item-lock`).

use std::collections::VecDeque;

use jiff::SignedDuration;
use sidekeeper::coordination::job::contract::effect::{LockWait, RetryNews};
use sidekeeper::coordination::job::contract::event::CancelReason;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::coordination::job::contract::report::Outcome;
use sidekeeper::job::{Item, JobConfiguration};

use crate::setup::{
    SEEDS, every_ten_seconds, millis_between, owner, runs, second, seeds, started, starts_of, with,
};
use crate::world::{World, six_items};

const LOCK: &str = "bills@-@2";

/// A job that fires every ten seconds, one second before a fire. Each execution holds the lock `bills` of its item, and
/// another job holds that of item 2.
fn behind_another_job(seed: u64, nodes: usize, failover: bool, more: &[(&str, &str)]) -> World {
    let props: Vec<_> = [("item-lock", "bills")].iter().chain(more).copied().collect();
    let mut world = every_ten_seconds(seed, nodes, failover, &props);
    world.take_lock(LOCK);
    world
}

fn given_up(world: &World) -> usize {
    world.waits.iter().filter(|(_, wait)| matches!(wait, LockWait::GivenUp { .. })).count()
}

fn failure() -> Outcome {
    Outcome::Failure("cancelled".to_owned())
}

#[test]
pub fn s53_an_execution_waits_until_the_other_job_gives_the_lock_back() {
    for seed in 0..SEEDS {
        let mut world = behind_another_job(seed, 2, false, &[]);
        world.run_for(4_000);
        let begun: Vec<_> = (0..6).map(|item| starts_of(&world, item).len()).collect();
        assert_eq!(begun, [1, 1, 0, 1, 1, 1], "seed {seed}");
        assert!(!runs(&world, 2), "seed {seed}: an execution that waits has no running node");
        let behind = LockWait::Behind { lock: LOCK.to_owned(), holder: Some("another job".to_owned()) };
        let waits: Vec<_> = world.waits.iter().filter(|(_, wait)| *wait != LockWait::Over).collect();
        assert_eq!(waits, [&(Item(2), behind)], "seed {seed}");
        let freed = world.now;
        world.free_lock(LOCK);
        world.run_for(1_500);
        let [start] = &starts_of(&world, 2)[..] else { panic!("seed {seed}: {:?}", world.starts) };
        assert_eq!((start.source, start.scheduled), (Source::Schedule, second(10)), "seed {seed}");
        assert!(start.lock_token.is_some() && millis_between(freed, start.at) < 200, "seed {seed}");
        assert_eq!(world.waits.last(), Some(&(Item(2), LockWait::Over)), "seed {seed}");
        // Each execution gives its lock back.
        assert_eq!(world.locks.queue(LOCK), [], "seed {seed}");
        world.run_for(10_000);
        assert!((0..6).all(|item| starts_of(&world, item).len() == 2), "seed {seed}: {:?}", world.starts);
    }
}

#[test]
fn fires_that_come_meanwhile_are_missed_as_during_an_execution() {
    for misfire in [true, false] {
        let mut world = one_that_waits(3, misfire, &[]);
        world.run_until(second(35));
        assert_eq!(starts_of(&world, 2), []);
        world.free_lock(LOCK);
        world.run_for(1_000);
        let rerun = misfire.then_some((Source::Misfire, 30));
        let expected: Vec<_> = [(Source::Schedule, 10)].into_iter().chain(rerun).collect();
        assert_eq!(started(&world, 2), expected);
        let skipped = if misfire { vec![] } else { vec![(Item(2), second(20)), (Item(2), second(30))] };
        assert_eq!(world.skips, skipped);
        world.run_until(second(42));
        assert_eq!(started(&world, 2).last(), Some(&(Source::Schedule, 40)));
    }
}

/// One node, one second before a fire; another job holds the lock of item 2.
fn one_that_waits(seed: u64, misfire: bool, more: &[(&str, &str)]) -> World {
    let mut configuration = JobConfiguration { misfire, ..six_items() };
    with(&[("item-lock", "bills")])(&mut configuration);
    with(more)(&mut configuration);
    configuration.cron = Some("0/10 * * * * ?".to_owned());
    let mut world = World::new(seed, configuration);
    world.duration_max_ms = 200;
    world.join();
    world.run_until(second(9));
    world.starts.clear();
    world.take_lock(LOCK);
    world
}

#[test]
fn a_trigger_that_comes_meanwhile_is_missed_as_during_an_execution() {
    let mut world = one_that_waits(3, true, &[]);
    world.run_until(second(12));
    world.put("trigger/10.0.0.1@-@n0", "");
    world.run_for(1_000);
    assert_eq!(world.get("trigger/10.0.0.1@-@n0"), None);
    world.free_lock(LOCK);
    world.run_for(1_000);
    let sources: Vec<_> = started(&world, 2).into_iter().map(|(source, _)| source).collect();
    assert_eq!(sources, [Source::Schedule, Source::Misfire]);
    assert_eq!(started(&world, 3).len(), 2);
}

#[test]
pub fn s54_an_execution_that_has_waited_for_too_long_is_not_run_and_counts_as_missed() {
    for seed in 0..SEEDS {
        for misfire in [false, true] {
            let mut world = one_that_waits(seed, misfire, &[("item-lock-timeout", "3s")]);
            world.run_until(second(12));
            assert_eq!((given_up(&world), world.locks.queue(LOCK).len()), (0, 2), "seed {seed}");
            world.run_until(second(14));
            assert_eq!(given_up(&world), 1, "seed {seed}: {:?}", world.waits);
            if misfire {
                // It stands in the queue anew, for the missed fire.
                assert_eq!(world.locks.queue(LOCK), [None, Some(0)], "seed {seed}");
            } else {
                assert_eq!(world.locks.queue(LOCK), [None], "seed {seed}: its node is gone");
                assert_eq!(world.skips, [(Item(2), second(10))], "seed {seed}");
            }
            world.free_lock(LOCK);
            world.run_until(second(22));
            let first = misfire.then_some((Source::Misfire, 10));
            let expected: Vec<_> = first.into_iter().chain([(Source::Schedule, 20)]).collect();
            assert_eq!(started(&world, 2), expected, "seed {seed}");
        }
    }
}

#[test]
fn the_execution_timeout_limits_the_wait_if_nothing_else_does() {
    let mut world = behind_another_job(1, 1, false, &[("execution-timeout", "2s")]);
    world.run_until(second(11));
    assert_eq!(given_up(&world), 0);
    world.run_until(second(13));
    assert_eq!(given_up(&world), 1);
}

#[test]
fn a_retry_that_has_waited_for_too_long_is_dropped() {
    let props = [("item-lock-timeout", "1s"), ("retry-max-attempts", "3"), ("retry-backoff", "1s")];
    let mut world = behind_another_job(5, 1, false, &props);
    world.free_lock(LOCK);
    world.outcomes.insert(Item(2), VecDeque::from([failure()]));
    world.next_duration_ms = Some(100);
    world.run_until(second(10) + SignedDuration::from_millis(500));
    world.take_lock(LOCK);
    world.run_until(second(13));
    let dropped = |(item, news): &(Item, RetryNews)| {
        *item == Item(2) && matches!(news, RetryNews::Dropped { why, .. } if why.contains("lock"))
    };
    assert!(world.retries.iter().any(dropped), "{:?}", world.retries);
    assert_eq!((starts_of(&world, 2).len(), world.locks.queue(LOCK)), (1, vec![None]));
}

#[test]
pub fn s55_an_item_that_moves_away_while_it_waits_leaves_the_queue() {
    for seed in 0..SEEDS {
        let mut world = every_ten_seconds(seed, 1, false, &[("item-lock", "bills")]);
        let locks: Vec<_> = (0..6).map(|item| format!("bills@-@{item}")).collect();
        for lock in &locks {
            world.take_lock(lock);
        }
        world.run_until(second(12));
        assert!(locks.iter().all(|lock| world.locks.queue(lock) == [None, Some(0)]), "seed {seed}");
        // No execution holds up the handoff: none has begun.
        world.join();
        world.run_for(3_000);
        let moved: Vec<_> = (0..6).filter(|item| owner(&world, *item).ends_with("n1")).collect();
        assert_eq!(moved.len(), 3, "seed {seed}");
        for (item, lock) in locks.iter().enumerate() {
            let is_moved = moved.contains(&u32::try_from(item).unwrap());
            let queue = world.locks.queue(lock);
            assert!(is_moved != queue.contains(&Some(0)), "seed {seed}: {lock} {queue:?}, moved {moved:?}");
        }
        for lock in &locks {
            world.free_lock(lock);
        }
        world.run_until(second(22));
        assert!((0..6).all(|item| started(&world, item).contains(&(Source::Schedule, 20))), "seed {seed}");
    }
}

#[test]
fn a_drain_or_a_broken_stream_ends_the_wait() {
    for seed in 0..SEEDS {
        for drains in [true, false] {
            let mut world = behind_another_job(seed, 2, false, &[]);
            world.run_until(second(12));
            let waiting = world.locks.queue(LOCK)[1].unwrap();
            if drains {
                world.drain(waiting);
            } else {
                world.kill(waiting);
            }
            world.run_for(2_000);
            assert!(world.nodes[waiting].ended.is_some(), "seed {seed}: nothing holds up the departure");
            assert!(!world.locks.queue(LOCK).contains(&Some(waiting)), "seed {seed}");
        }
    }
}

#[test]
pub fn s56_a_lost_lock_cancels_the_execution_which_then_counts_as_interrupted() {
    for seed in 0..SEEDS {
        for failover in [true, false] {
            let mut world = every_ten_seconds(seed, 2, failover, &[("item-lock", "bills")]);
            world.next_duration_ms = Some(8_000);
            world.outcomes.insert(Item(2), VecDeque::from([failure()]));
            world.run_until(second(11));
            let [first] = &starts_of(&world, 2)[..] else { panic!("seed {seed}") };
            let first = first.clone();
            world.next_duration_ms = Some(100);
            world.break_lock(LOCK);
            world.run_for(3_000);
            let cancels: Vec<_> = world.cancels.iter().map(|(item, reason, _)| (*item, *reason)).collect();
            assert_eq!(cancels, [(Item(2), CancelReason::ItemLockLost)], "seed {seed}");
            let starts = starts_of(&world, 2);
            if failover {
                let [_, again] = &starts[..] else { panic!("seed {seed}: {starts:?}") };
                assert_eq!((again.source, again.scheduled), (Source::Failover, second(10)), "seed {seed}");
                assert!(again.lock_token > first.lock_token, "seed {seed}");
            } else {
                assert_eq!(starts.len(), 1, "seed {seed}");
            }
            assert!(!runs(&world, 2), "seed {seed}");
            world.run_until(second(22));
            assert_eq!(started(&world, 2).last(), Some(&(Source::Schedule, 20)), "seed {seed}");
        }
    }
}

#[test]
fn a_lost_lock_does_not_end_an_execution_that_succeeds_all_the_same() {
    let mut world = every_ten_seconds(9, 1, true, &[("item-lock", "true")]);
    world.next_duration_ms = Some(8_000);
    world.run_until(second(11));
    // The application of the world reports a success unless it is told otherwise.
    world.break_lock("job@-@2");
    world.run_for(3_000);
    assert_eq!((world.cancels.len(), starts_of(&world, 2).len(), runs(&world, 2)), (1, 1, false));
}

#[test]
fn a_lock_that_cannot_be_had_is_a_problem_and_is_asked_for_again() {
    let mut world = behind_another_job(2, 1, false, &[]);
    world.run_until(second(11));
    world.refuse_lock(LOCK);
    world.run_for(500);
    let problem = world.nodes[0].problems.concat().into_iter().find(|problem| problem.message.contains(LOCK));
    assert_eq!(
        problem.map(|problem| problem.code.as_str()),
        Some("ITEM_WAITS_FOR_LOCK"),
        "{:?}",
        world.nodes[0].problems
    );
    world.free_lock(LOCK);
    world.run_for(3_000);
    assert_eq!(started(&world, 2), [(Source::Schedule, 10)]);
}

#[test]
pub fn an_item_is_never_executed_without_its_lock_while_instances_come_and_go() {
    for seed in seeds(40) {
        let mut configuration = six_items();
        configuration.failover = seed % 2 == 0;
        with(&[("item-lock", "bills"), ("item-lock-timeout", "5s")])(&mut configuration);
        let mut world = World::new(seed, configuration);
        world.duration_max_ms = 1_500;
        world.lossy = seed % 3 == 1;
        world.join();
        for _ in 0..60 {
            world.run_for(500);
            if world.nodes.iter().filter(|node| node.ended.is_none()).count() < 2 {
                world.join();
            }
            let nodes = 0..world.nodes.len();
            let alive: Vec<_> = nodes.filter(|node| world.nodes[*node].ended.is_none()).collect();
            let pick = alive[world.random.below(alive.len() as u64) as usize];
            let lock = format!("bills@-@{}", world.random.below(6));
            match world.random.below(12) {
                0 | 1 if alive.len() < 5 => drop(world.join()),
                2 if alive.len() > 1 => world.kill(pick),
                3 if alive.len() > 1 => world.drain(pick),
                4 => world.expire(pick),
                5 => {
                    world.toggle_suspended(pick);
                    world.run_for(300);
                    world.toggle_suspended(pick);
                }
                6 | 7 => world.take_lock(&lock),
                8 | 9 => world.free_lock(&lock),
                10 if !world.locks.queue(&lock).is_empty() => world.break_lock(&lock),
                _ => {}
            }
        }
        for item in 0..6 {
            world.free_lock(&format!("bills@-@{item}"));
        }
        world.run_for(30_000);
        world.settle_owned();
        let late = world.now - SignedDuration::from_secs(5);
        for item in 0..6 {
            let last = starts_of(&world, item).last().map(|start| start.at);
            assert!(last > Some(late), "seed {seed}: item {item} was executed last at {last:?}");
        }
    }
}
