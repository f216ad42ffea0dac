//! The listener that acts once for the whole job: before the first item of a fire, after the last (protocol 6.7).

use std::collections::BTreeSet;

use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::elasticjob::path::Barrier;
use sidekeeper::job::Item;

use crate::setup::second;
use crate::world::{Happened, Listener, World, six_items};

const SEEDS: u64 = 40;

/// A world of so many nodes whose job has the listener, after the first sharding and between two fires.
fn world(seed: u64, nodes: usize, failover: bool) -> World {
    let mut configuration = six_items();
    configuration.failover = failover;
    for (key, value) in [("", "true"), (".started-timeout", "4s"), (".completed-timeout", "4s")] {
        configuration.props.insert(format!("sidekeeper.once-listener{key}"), value.to_owned());
    }
    let mut world = World::new(seed, configuration);
    world.join_many(nodes);
    world.settle();
    world.run_for(1_000);
    world.settle_owned();
    world.happened.clear();
    world.starts.clear();
    world
}

/// The rounds that have ended, and the executions of each.
#[derive(Debug, Default)]
struct Rounds {
    ended: usize,
    executions: Vec<usize>,
}

/// Checks that nothing runs outside a round, and that a round is called once on either side. `again`: a call may come
/// again, because the instance that was called has died.
fn rounds(world: &World, again: bool) -> Rounds {
    let seed = world.seed;
    let mut rounds = Rounds::default();
    let mut running = BTreeSet::new();
    let (mut open, mut executions) = (false, 0);
    let mut called = None;
    for (place, happened) in world.happened.iter().enumerate() {
        let so_far = || format!("seed {seed}, at {place}:\n{:#?}", &world.happened[..=place]);
        match happened {
            Happened::Called(barrier, node) => {
                assert!(running.is_empty(), "called while {running:?} run, {}", so_far());
                assert!(again || called.is_none(), "called twice, {}", so_far());
                assert!(
                    again || open == (*barrier == Barrier::Completed),
                    "called in the wrong order, {}",
                    so_far()
                );
                called = Some((*barrier, *node));
            }
            Happened::Answered(barrier, node) => {
                assert_eq!(called, Some((*barrier, *node)), "{}", so_far());
                called = None;
                open = *barrier == Barrier::Started;
                if !open {
                    rounds.ended += 1;
                    rounds.executions.push(std::mem::take(&mut executions));
                }
            }
            Happened::Began(source, item, _) => {
                assert!(open && called.is_none() || *source == Source::Failover, "too early, {}", so_far());
                running.insert(*item);
                executions += 1;
            }
            Happened::Ended(item, _) => {
                running.remove(item);
            }
        }
    }
    rounds
}

fn nothing_registered(world: &World) {
    let left: Vec<_> = world.paths().into_iter().filter(|path| path.contains("guarantee/")).collect();
    assert!(left.is_empty(), "seed {}: {left:?}", world.seed);
}

#[test]
pub fn the_listener_is_called_once_before_the_first_item_and_once_after_the_last() {
    for seed in 0..SEEDS {
        let mut world = world(seed, 1 + (seed % 4) as usize, seed % 2 == 0);
        world.run_for(8_000);
        let rounds = rounds(&world, false);
        assert!(rounds.ended >= 3, "seed {seed}: {rounds:?}\n{:#?}", world.happened);
        assert!(rounds.executions.iter().all(|count| *count == 6), "seed {seed}: {rounds:?}");
        assert_eq!(world.problems, Vec::<String>::new(), "seed {seed}");
        world.run_for(900);
        nothing_registered(&world);
    }
}

#[test]
fn a_job_without_the_listener_registers_nothing_and_calls_nobody() {
    let mut world = World::new(1, six_items());
    world.join();
    world.join();
    world.run_for(5_000);
    assert!(!world.happened.iter().any(|happened| matches!(happened, Happened::Called(..))));
    assert!(!world.paths().iter().any(|path| path.contains("guarantee")));
    assert!(world.starts.len() >= 12);
}

#[test]
fn p7_a_round_goes_on_when_an_application_dies() {
    for seed in 0..SEEDS {
        let failover = seed % 2 == 0;
        let mut world = world(seed, 3, failover);
        // Somewhere from the registration to the end of the executions.
        world.run_for(960 + (seed as i64 * 37) % 800);
        world.kill((seed % 3) as usize);
        world.run_for(3_000);
        world.happened.clear();
        // Whatever became of that round: soon they go on as if nothing had been.
        world.run_for(12_000);
        let ended =
            world.happened.iter().filter(|one| matches!(one, Happened::Answered(Barrier::Completed, _)));
        assert!(ended.count() >= 4, "seed {seed}: {:#?}\n{:#?}", world.happened, world.problems);
    }
}

#[test]
fn p5_interrupted_items_are_taken_over_in_the_same_round() {
    for seed in 0..SEEDS {
        let mut world = world(seed, 3, true);
        world.next_duration_ms = Some(600);
        world.run_for(1_500);
        assert_eq!(world.starts.len(), 6, "seed {seed}: {:#?}", world.happened);
        world.kill((seed % 3) as usize);
        world.next_duration_ms = Some(200);
        world.run_for(1_400);
        let rounds = rounds(&world, false);
        assert_eq!(
            (rounds.ended, rounds.executions.first()),
            (1, Some(&8)),
            "seed {seed}: {:#?}",
            world.happened
        );
    }
}

#[test]
fn p7_a_lost_session_in_a_round_does_not_stop_the_job() {
    for seed in 0..SEEDS {
        let mut world = world(seed, 3, seed % 2 == 0);
        world.run_for(960 + (seed as i64 * 37) % 800);
        world.expire((seed % 3) as usize);
        world.run_for(8_000);
        world.settle();
        world.happened.clear();
        world.run_for(12_000);
        let ended =
            world.happened.iter().filter(|one| matches!(one, Happened::Answered(Barrier::Completed, _)));
        assert!(ended.count() >= 4, "seed {seed}: {:#?}\n{:#?}", world.happened, world.problems);
    }
}

#[test]
fn p7_an_instance_that_joins_or_leaves_does_not_stop_the_job() {
    for seed in 0..SEEDS {
        let mut world = world(seed, 2, false);
        world.run_for(960 + (seed as i64 * 37) % 800);
        if seed % 2 == 0 {
            world.join();
        } else {
            world.drain(1);
        }
        world.run_for(10_000);
        world.happened.clear();
        world.run_for(8_000);
        let rounds =
            world.happened.iter().filter(|one| matches!(one, Happened::Answered(Barrier::Completed, _)));
        assert!(rounds.count() >= 3, "seed {seed}: {:#?}\n{:#?}", world.happened, world.problems);
        assert!(seed % 2 == 0 || world.nodes[1].ended.is_some(), "seed {seed}");
    }
}

#[test]
fn h25_beside_an_instance_without_the_listener_the_fire_is_skipped_and_reported() {
    let mut world = world(3, 2, false);
    // A peer without a listener: it owns items, and registers nothing.
    world.put_java("10.9.9.9@-@77");
    world.settle();
    world.happened.clear();
    world.run_for(9_000);
    assert_eq!(world.happened, [], "nothing may run");
    let told =
        world.problems.iter().any(|problem| problem.contains("waited too long: 2 items were not registered"));
    assert!(told, "{:?}", world.problems);
    // The peer leaves: the job goes on, and the missed fires are rerun in the next round.
    world.remove("instances/10.9.9.9@-@77");
    world.run_for(10_000);
    let rounds = rounds(&world, false);
    assert!(rounds.ended >= 2 && world.starts.iter().any(|start| start.misfire), "{rounds:?}");
}

#[test]
fn h1_a_listener_that_never_answers_times_out_and_the_others_go_on() {
    let mut world = world(5, 2, false);
    world.listener = Listener::IsSilent;
    world.run_for(5_000);
    let of = |node: usize| world.starts.iter().filter(|start| start.node == node).count();
    let caller = world.happened.iter().find_map(|one| match one {
        Happened::Called(barrier, node) => (*barrier == Barrier::Started).then_some(*node),
        Happened::Answered(..) | Happened::Began(..) | Happened::Ended(..) => None,
    });
    let caller = caller.expect("a call");
    // The others execute that fire, and make up for the one that came while they waited.
    assert_eq!((of(caller), of(1 - caller)), (0, 6), "{:#?}", world.happened);
    assert!(world.problems.iter().any(|problem| problem.contains("did not answer in time")));
}

#[test]
fn a_listener_that_fails_stops_only_its_own_instance() {
    let mut world = world(5, 2, false);
    world.listener = Listener::Fails;
    world.run_for(1_950);
    assert_eq!(world.starts.len(), 3, "{:#?}", world.happened);
    let failed = world.happened.iter().find_map(|one| match one {
        Happened::Answered(barrier, node) => (*barrier == Barrier::Started).then_some(*node),
        Happened::Called(..) | Happened::Began(..) | Happened::Ended(..) => None,
    });
    assert!(world.starts.iter().all(|start| Some(start.node) != failed));
    assert!(
        world.happened.contains(&Happened::Answered(Barrier::Completed, 0))
            || world.happened.contains(&Happened::Answered(Barrier::Completed, 1))
    );
    assert!(world.problems.iter().any(|problem| problem.contains("no books today")));
}

#[test]
fn a_round_does_not_wait_for_a_disabled_item() {
    let mut world = world(9, 2, false);
    world.put("sharding/2/disabled", "");
    world.run_for(7_000);
    let rounds = rounds(&world, false);
    assert!(rounds.ended >= 3 && rounds.executions.iter().all(|count| *count == 5), "{rounds:?}");
    assert!(world.starts.iter().all(|start| start.item != Item(2)));
}

#[test]
fn p5_a_fire_missed_by_a_long_execution_is_rerun_in_its_round() {
    let mut world = world(9, 2, false);
    world.next_duration_ms = Some(2_500);
    world.run_for(1_500);
    world.next_duration_ms = Some(100);
    world.run_for(3_400);
    let rounds = rounds(&world, false);
    assert_eq!(rounds.executions, [12], "{:#?}", world.happened);
}

#[test]
fn a_registration_that_a_crash_left_does_not_count_in_a_later_round() {
    let mut world = world(9, 2, false);
    for item in 0..5 {
        world.put(&format!("guarantee/completed/{item}"), "");
    }
    world.run_for(5_000);
    let rounds = rounds(&world, false);
    assert!(rounds.ended >= 2 && rounds.executions.iter().all(|count| *count == 6), "{rounds:?}");
}

/// An operator triggers an instance whose items are executed by another one while it waits for the others.
#[test]
fn p5_a_trigger_that_waited_does_not_repeat_an_instant_that_was_rerun_meanwhile() {
    let mut met = 0;
    for seed in 0..SEEDS {
        let mut configuration = six_items();
        configuration.cron = Some("0/10 * * * * ?".to_owned());
        for (key, value) in [("", "true"), (".started-timeout", "3s"), (".completed-timeout", "2s")] {
            configuration.props.insert(format!("sidekeeper.once-listener{key}"), value.to_owned());
        }
        let mut world = World::new(seed, configuration);
        world.next_duration_ms = Some(100);
        world.join();
        world.run_for(200);
        world.join();
        world.run_until(second(9));
        world.assert_all_owned();
        let item = world.nodes[1].items[0];
        // The executions of the first node take long; the second node stops waiting for them.
        world.run_until(second(10));
        while world.nodes[0].executions.is_empty() {
            world.run_for(1);
        }
        for open in world.nodes[0].executions.values_mut() {
            open.ends = second(17);
        }
        world.run_until(second(14));
        assert!(world.nodes[1].executions.is_empty());
        world.starts.clear();
        world.put("trigger/10.0.0.2@-@n1", "");
        world.run_for(200);
        world.put("servers/10.0.0.2", "DISABLED");
        world.run_for(200);
        world.put(&format!("sharding/{item}/misfire"), "");
        world.run_for(500);
        world.put("servers/10.0.0.2", "ENABLED");
        world.run_for(20_000);
        let of_item: Vec<_> = world.starts.iter().filter(|start| start.item == item).collect();
        let nodes: Vec<_> = of_item.iter().map(|start| start.node).collect();
        met += usize::from(nodes.contains(&0) && nodes.contains(&1));
        let made_up: Vec<_> =
            of_item.iter().filter(|start| start.misfire).map(|start| start.scheduled).collect();
        assert!(made_up.is_sorted_by(|one, next| one < next), "seed {seed}: {of_item:?}");
    }
    assert!(met > 0);
}
