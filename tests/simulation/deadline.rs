//! How long an execution may take, and what follows if it takes longer.

use jiff::SignedDuration;
use sidekeeper::coordination::job::contract::effect::EndReason;
use sidekeeper::coordination::job::contract::event::CancelReason;
use sidekeeper::coordination::job::contract::plan::Source;

use crate::setup::{SEEDS, every_ten_seconds, millis_between, second};

#[test]
pub fn an_execution_gets_its_deadline_and_is_cancelled_when_it_has_passed() {
    for seed in 0..SEEDS {
        let mut world = every_ten_seconds(seed, 2, false, &[("execution-timeout", "2s")]);
        world.next_duration_ms = Some(5_000);
        world.run_for(7_000);
        assert_eq!(world.starts.len(), 6, "seed {seed}");
        for start in &world.starts {
            assert_eq!(start.deadline, Some(start.at + SignedDuration::from_secs(2)), "seed {seed}");
            let (_, reason, stopped) = world.cancels.iter().find(|(item, ..)| *item == start.item).unwrap();
            assert_eq!(*reason, CancelReason::Deadline, "seed {seed}");
            let after = millis_between(start.at, *stopped);
            assert!((2_000..2_200).contains(&after), "seed {seed}: after {after} ms");
        }
        assert_eq!(world.cancels.len(), 6, "seed {seed}: each once, {:?}", world.cancels);
        // The applications have stopped: the job goes on.
        world.next_duration_ms = Some(100);
        world.run_for(6_000);
        assert_eq!((world.starts.len(), world.staying().len()), (12, 2), "seed {seed}");
    }
}

#[test]
fn an_execution_that_ends_in_time_is_not_cancelled() {
    let mut world = every_ten_seconds(1, 2, true, &[("execution-timeout", "2s"), ("cancel-grace", "100ms")]);
    world.next_duration_ms = Some(1_800);
    world.run_for(21_500);
    assert_eq!((world.starts.len(), &world.cancels[..]), (18, &[][..]));
    assert_eq!(world.problems, Vec::<String>::new());
}

#[test]
pub fn p2_an_unresponsive_application_is_disconnected_and_its_items_are_executed_by_others() {
    for seed in 0..SEEDS {
        let props = [("execution-timeout", "2s"), ("cancel-grace", "1s")];
        let mut world = every_ten_seconds(seed, 2, true, &props);
        world.ignored_cancels = vec![CancelReason::Deadline];
        world.next_duration_ms = Some(60_000);
        world.run_for(2_500);
        assert_eq!(world.starts.len(), 6, "seed {seed}");
        let (mine, others): (Vec<_>, Vec<_>) =
            world.starts.iter().cloned().partition(|start| start.node == 0);
        // The second application stops by itself just in time.
        for open in world.nodes[1].executions.values_mut() {
            open.ends = second(12);
        }
        world.next_duration_ms = Some(100);
        world.run_for(2_500);
        let end = world.nodes[0].ended.clone();
        assert!(matches!(end, Some(EndReason::Unresponsive { .. })), "seed {seed}: {end:?}");
        let problem = world.problems.iter().find(|problem| problem.contains("has not reported"));
        let problem = problem.unwrap_or_else(|| panic!("seed {seed}: {:?}", world.problems));
        assert!(problem.starts_with("ITEM_CANCEL_IGNORED "), "{problem}");
        assert!(problem.contains("execution node0-") && problem.contains("of item "), "{problem}");
        for start in &mine {
            let again: Vec<_> =
                world.starts.iter().filter(|again| again.item == start.item && again.node == 1).collect();
            let [again] = again[..] else { panic!("seed {seed}: {:?}", world.starts) };
            assert_eq!((again.source, again.scheduled), (Source::Failover, start.scheduled), "seed {seed}");
            let after = millis_between(start.at, again.at);
            assert!((3_000..3_600).contains(&after), "seed {seed}: after {after} ms");
        }
        assert_eq!(world.starts.len(), 6 + mine.len(), "seed {seed}: {others:?}");
    }
}

#[test]
fn an_application_that_ignores_a_lost_session_does_not_block_its_items() {
    let mut world = every_ten_seconds(3, 1, false, &[]);
    world.ignored_cancels = vec![CancelReason::LeaseLost];
    world.next_duration_ms = Some(60_000);
    world.run_for(2_000);
    world.expire(0);
    world.run_for(9_000);
    assert_eq!(world.nodes[0].ended, None, "it has ten seconds");
    world.run_for(2_000);
    assert!(matches!(world.nodes[0].ended, Some(EndReason::Unresponsive { .. })));
}

#[test]
fn a_clock_that_is_set_moves_no_deadline() {
    let mut world = every_ten_seconds(4, 1, false, &[("execution-timeout", "5s")]);
    world.next_duration_ms = Some(3_600_000);
    world.run_for(1_500);
    world.set_wall_back(SignedDuration::from_mins(20));
    world.run_for(4_000);
    assert_eq!(world.cancels.len(), 0);
    world.run_for(1_000);
    assert_eq!(world.cancels.len(), 6);
}
