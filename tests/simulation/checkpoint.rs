//! The progress of executions: deadlines that are extended, and checkpoints that reach the next execution.

use std::collections::VecDeque;

use jiff::SignedDuration;
use sidekeeper::coordination::job::contract::answer::{Answer, Refusal};
use sidekeeper::coordination::job::contract::event::CancelReason;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::coordination::job::contract::report::Outcome;
use sidekeeper::extension::checkpoint::CHECKPOINT_BYTES_MAX;
use sidekeeper::job::{Item, JobConfiguration};

use crate::setup::{SEEDS, running_nodes, second, starts_of, with};
use crate::world::{World, six_items};

/// A world of so many nodes that fires each ten seconds, in the first execution, which takes five.
fn world(seed: u64, nodes: usize, configure: impl FnOnce(&mut JobConfiguration)) -> World {
    let mut configuration = six_items();
    configuration.failover = true;
    configuration.cron = Some("0/10 * * * * ?".to_owned());
    configure(&mut configuration);
    let mut world = World::new(seed, configuration);
    world.join_many(nodes);
    world.settle();
    world.run_until(second(9));
    world.starts.clear();
    world.next_duration_ms = Some(5_000);
    world.run_for(1_300);
    assert_eq!(world.starts.len(), world.nodes.iter().map(|node| node.items.len()).sum::<usize>());
    world
}

/// The node that executes an item, or did so last.
fn node_of(world: &World, item: u32) -> usize {
    starts_of(world, item).last().unwrap().node
}

/// How often a checkpoint was recorded, and how often superseded.
fn progressed(world: &World) -> (usize, usize) {
    let of = |wanted: bool| {
        let is = |answer: &&Answer| matches!(answer, Answer::Progressed { superseded, .. } if *superseded == wanted);
        world.answers.iter().filter(is).count()
    };
    (of(false), of(true))
}

#[test]
fn progress_extends_the_deadline_by_the_whole_timeout_from_then_on() {
    let mut world = world(1, 1, with(&[("execution-timeout", "2s")]));
    world.run_for(1_200);
    world.progress(3, true, None);
    world.progress(4, false, None);
    world.run_for(1_500);
    let cancelled: Vec<_> = world.cancels.iter().map(|(item, reason, _)| (item.0, *reason)).collect();
    assert_eq!(cancelled, [0, 1, 2, 4, 5].map(|item| (item, CancelReason::Deadline)));
    world.run_for(600);
    assert_eq!(world.cancels.len(), 6, "the extension has an end, too");
    let told: Vec<_> =
        world.answers.iter().filter(|answer| matches!(answer, Answer::Progressed { .. })).collect();
    let [Answer::Progressed { deadline: Some(longer), .. }, Answer::Progressed { deadline: Some(same), .. }] =
        told[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!(starts_of(&world, 4)[0].deadline, Some(*same));
    let extended = longer.duration_since(*same).as_millis();
    assert!((1_000..1_700).contains(&extended), "{extended}");
}

#[test]
pub fn a_takeover_gets_the_checkpoint_and_its_success_deletes_it() {
    for seed in 0..SEEDS {
        let mut world = world(seed, 3, |_| {});
        let victim = node_of(&world, 3);
        world.progress(3, false, Some(b"row 1"));
        world.run_for(300);
        world.progress(3, false, Some(b"row 2"));
        world.run_for(300);
        assert_eq!(progressed(&world), (2, 0), "seed {seed}");
        assert_eq!(world.checkpoint(3).as_deref(), Some(b"row 2".as_slice()), "seed {seed}");
        world.kill(victim);
        world.next_duration_ms = Some(300);
        world.run_for(1_800);
        let again = starts_of(&world, 3)[1].clone();
        assert_eq!(
            (again.source, again.checkpoint.as_deref()),
            (Source::Failover, Some(b"row 2".as_slice()))
        );
        for start in world.starts.iter().filter(|start| start.item != Item(3)) {
            assert_eq!(start.checkpoint, None, "seed {seed}");
        }
        world.run_for(1_000);
        assert_eq!(world.checkpoint(3), None, "seed {seed}");
    }
}

#[test]
fn after_a_second_crash_the_newest_checkpoint_is_passed_on() {
    for seed in 0..SEEDS {
        let mut world = world(seed, 3, |_| {});
        world.progress(3, false, Some(b"first"));
        world.run_for(300);
        for (turn, expected) in [b"first".as_slice(), b"first", b"second"].into_iter().enumerate() {
            let victim = node_of(&world, 3);
            world.join();
            world.kill(victim);
            world.run_for(1_500);
            let last = starts_of(&world, 3).last().unwrap().clone();
            assert_eq!(last.checkpoint.as_deref(), Some(expected), "seed {seed}, turn {turn}");
            if turn == 1 {
                world.progress(3, false, Some(b"second"));
                world.run_for(300);
            }
        }
    }
}

#[test]
pub fn a_retry_gets_the_checkpoint_and_the_next_fire_does_not() {
    const RETRY: &[(&str, &str)] = &[
        ("retry-max-attempts", "2"),
        ("retry-backoff", "500ms"),
        ("retry-on", "failure,deadline"),
        ("execution-timeout", "1s"),
    ];
    for seed in 0..SEEDS {
        let mut world = world(seed, 2, with(RETRY));
        let failure = || Outcome::Failure("no stock".to_owned());
        world.outcomes.insert(Item(3), VecDeque::from([failure(), failure()]));
        world.progress(3, false, Some(b"half"));
        world.next_duration_ms = Some(100);
        world.run_for(2_500);
        let of: Vec<_> = starts_of(&world, 3).iter().map(|start| start.checkpoint.clone()).collect();
        assert_eq!(of, [None, Some(b"half".to_vec())], "seed {seed}: {:?}", world.retries);
        // The execution has failed for good; no other execution gets its checkpoint.
        assert_eq!(world.checkpoint(3).as_deref(), Some(b"half".as_slice()), "seed {seed}");
        world.run_until(second(21));
        let last = starts_of(&world, 3).last().unwrap().clone();
        assert_eq!((last.attempt, last.checkpoint), (1, None), "seed {seed}");
        let left = world.checkpoint(3);
        assert_eq!(left.as_deref(), Some(b"half".as_slice()), "seed {seed}: it is of another instant");
    }
}

#[test]
pub fn a_checkpoint_of_another_instant_is_passed_to_no_execution() {
    for seed in 0..SEEDS {
        let mut world = world(seed, 2, |_| {});
        world.progress(3, false, Some(b"of 10"));
        world.outcomes.insert(Item(3), VecDeque::from([Outcome::Failure("no stock".to_owned())]));
        world.run_until(second(21));
        assert_eq!(world.checkpoint(3).as_deref(), Some(b"of 10".as_slice()), "seed {seed}");
        let victim = node_of(&world, 3);
        world.kill(victim);
        world.run_for(2_000);
        let last = starts_of(&world, 3).last().unwrap().clone();
        assert_eq!((last.source, last.checkpoint), (Source::Failover, None), "seed {seed}");
    }
}

#[test]
fn of_several_checkpoints_the_latest_is_written_and_all_callers_are_answered() {
    let mut world = world(3, 1, |_| {});
    let before: usize = world.commits.values().sum();
    for text in ["a", "b", "c"] {
        world.progress(3, false, Some(text.as_bytes()));
        world.progress(4, false, Some(text.as_bytes()));
    }
    world.settle();
    assert_eq!(progressed(&world), (2, 4));
    assert_eq!([3, 4].map(|item| world.checkpoint(item)), [Some(b"c".to_vec()), Some(b"c".to_vec())]);
    assert_eq!(world.commits.values().sum::<usize>() - before, 1, "one commit for both");
}

#[test]
fn the_result_supersedes_a_checkpoint_that_is_not_written_yet() {
    let mut world = world(4, 1, |_| {});
    world.toggle_suspended(0);
    world.progress(3, false, Some(b"late"));
    world.run_for(5_500);
    world.toggle_suspended(0);
    world.run_for(500);
    assert_eq!(progressed(&world), (0, 1));
    assert_eq!(world.checkpoint(3), None);
}

#[test]
fn a_lost_session_refuses_checkpoints_that_wait_to_be_written() {
    let mut world = world(5, 1, |_| {});
    world.toggle_suspended(0);
    world.progress(3, false, Some(b"late"));
    world.run_for(300);
    world.expire(0);
    world.run_for(100);
    let refused = world
        .answers
        .iter()
        .filter(|answer| matches!(answer, Answer::Refused(Refusal::ExecutionOver { .. })));
    assert_eq!(refused.count(), 1, "{:?}", world.answers);
}

#[test]
fn lost_answers_and_deleted_nodes_stop_no_checkpoint_and_no_completion() {
    for seed in 0..SEEDS * 2 {
        let mut world = world(seed, 2, |_| {});
        world.lossy = true;
        let mut told = 0;
        for round in 0..8 {
            for item in 0..6 {
                world.progress(item, false, Some(format!("{item} {round}").as_bytes()));
                told += 1;
            }
            world.run_for(250);
            if round == 4 && world.checkpoint(0).is_some() {
                world.remove_checkpoints();
            }
        }
        world.lossy = false;
        world.run_for(1_000);
        let (recorded, superseded) = progressed(&world);
        assert_eq!(recorded + superseded, told, "seed {seed}");
        for item in 0..6 {
            let expected = format!("{item} 7").into_bytes();
            assert_eq!(world.checkpoint(item), Some(expected), "seed {seed}");
        }
        if seed % 2 == 0 {
            world.remove_checkpoints();
        }
        world.run_for(2_500);
        let recorded = world.answers.iter().filter(|answer| matches!(answer, Answer::Recorded(_))).count();
        assert_eq!(recorded, 6, "seed {seed}: {:?}", world.answers);
        let running = running_nodes(&world).len();
        assert_eq!(running, 0, "seed {seed}");
    }
}

#[test]
fn an_instance_drains_though_its_checkpoints_were_deleted() {
    let mut world = world(6, 1, |configuration| configuration.failover = false);
    world.progress(3, false, Some(b"x"));
    world.run_for(500);
    world.remove_checkpoints();
    world.drain(0);
    world.run_for(6_000);
    assert!(world.nodes[0].ended.is_some());
}

#[test]
fn large_checkpoints_of_many_items_fit_into_requests() {
    let mut world = world(7, 1, |configuration| configuration.sharding_total_count = 60);
    for item in 0..60 {
        world.progress(item, false, Some(&vec![7; CHECKPOINT_BYTES_MAX]));
    }
    world.settle();
    assert_eq!(progressed(&world), (60, 0));
    assert!(
        (0..60).all(|item| world.checkpoint(item).is_some_and(|data| data.len() == CHECKPOINT_BYTES_MAX))
    );
    world.now += SignedDuration::from_secs(6);
    world.run_for(100);
    world.settle();
    assert!((0..60).all(|item| world.checkpoint(item).is_none()));
}
