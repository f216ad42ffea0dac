//! How long an execution may take, what follows if it takes longer, and what is tried again.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};
use sidekeeper::coordination::job::contract::answer::{Answer, Cancelled};
use sidekeeper::coordination::job::contract::effect::{EndReason, RetryNews};
use sidekeeper::coordination::job::contract::event::CancelReason;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::coordination::job::contract::report::Outcome;
use sidekeeper::elasticjob::path::Gate;
use sidekeeper::job::Item;

use crate::scenarios::seeds;
use crate::world::{Happened, Start, World, six_items};

const SEEDS: u64 = 20;

/// A world of so many nodes with six items, divided and between two fires, of which the next is in a second.
fn world(seed: u64, nodes: usize, failover: bool, props: &[(&str, &str)]) -> World {
    let mut configuration = six_items();
    configuration.failover = failover;
    for (key, value) in props {
        configuration.props.insert(format!("sidekeeper.{key}"), (*value).to_owned());
    }
    configuration.cron = Some("0/10 * * * * ?".to_owned());
    let mut world = World::new(seed, configuration);
    for _ in 0..nodes {
        world.join();
    }
    world.settle();
    world.run_until("2026-01-01T00:00:09Z".parse().unwrap());
    world.settle();
    world.assert_all_owned();
    world.starts.clear();
    world
}

fn at(second: i64) -> Timestamp {
    let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    start + SignedDuration::from_secs(second)
}

fn millis_between(from: Timestamp, to: Timestamp) -> i64 {
    i64::try_from(to.duration_since(from).as_millis()).unwrap()
}

#[test]
pub fn an_execution_is_told_its_deadline_and_to_stop_when_it_has_passed() {
    for seed in 0..SEEDS {
        let mut world = world(seed, 2, false, &[("execution-timeout", "2s")]);
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
        // They have obeyed: the job goes on.
        world.next_duration_ms = Some(100);
        world.run_for(6_000);
        assert_eq!((world.starts.len(), world.staying().len()), (12, 2), "seed {seed}");
    }
}

#[test]
fn an_execution_that_ends_in_time_is_left_alone() {
    let mut world = world(1, 2, true, &[("execution-timeout", "2s"), ("cancel-grace", "100ms")]);
    world.next_duration_ms = Some(1_800);
    world.run_for(21_500);
    assert_eq!((world.starts.len(), &world.cancels[..]), (18, &[][..]));
    assert_eq!(world.problems, Vec::<String>::new());
}

#[test]
pub fn p2_who_does_not_stop_is_expelled_and_its_items_are_executed_by_others() {
    for seed in 0..SEEDS {
        let props = [("execution-timeout", "2s"), ("cancel-grace", "1s")];
        let mut world = world(seed, 2, true, &props);
        world.disobeyed = vec![CancelReason::Deadline];
        world.next_duration_ms = Some(60_000);
        world.run_for(2_500);
        assert_eq!(world.starts.len(), 6, "seed {seed}");
        let (mine, others): (Vec<_>, Vec<_>) =
            world.starts.iter().cloned().partition(|start| start.node == 0);
        // The second application stops by itself just in time.
        for open in world.nodes[1].executions.values_mut() {
            open.ends = at(12);
        }
        world.next_duration_ms = Some(100);
        world.run_for(2_500);
        let end = world.nodes[0].ended.clone();
        assert!(matches!(end, Some(EndReason::Disobedient { .. })), "seed {seed}: {end:?}");
        let problem = world.problems.iter().find(|problem| problem.contains("has not reported"));
        let problem = problem.unwrap_or_else(|| panic!("seed {seed}: {:?}", world.problems));
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
fn who_does_not_stop_after_a_lost_session_does_not_block_its_items() {
    let mut world = world(3, 1, false, &[]);
    world.disobeyed = vec![CancelReason::LeaseLost];
    world.next_duration_ms = Some(60_000);
    world.run_for(2_000);
    world.expire(0);
    world.run_for(9_000);
    assert_eq!(world.nodes[0].ended, None, "it has ten seconds");
    world.run_for(2_000);
    assert!(matches!(world.nodes[0].ended, Some(EndReason::Disobedient { .. })));
}

#[test]
fn a_clock_that_is_set_moves_no_deadline() {
    let mut world = world(4, 1, false, &[("execution-timeout", "5s")]);
    world.next_duration_ms = Some(3_600_000);
    world.run_for(1_500);
    world.set_wall_back(SignedDuration::from_mins(20));
    world.run_for(4_000);
    assert_eq!(world.cancels.len(), 0);
    world.run_for(1_000);
    assert_eq!(world.cancels.len(), 6);
}

const RETRY: [(&str, &str); 3] =
    [("retry-max-attempts", "4"), ("retry-backoff", "1s"), ("retry-backoff-max", "2s")];

/// The next executions of an item fail, so many of them.
fn fails(world: &mut World, item: u32, times: usize) {
    let failure = || Outcome::Failure("no stock".to_owned());
    let outcomes: VecDeque<_> = std::iter::repeat_with(failure).take(times).collect();
    world.outcomes.insert(Item(item), outcomes);
}

fn starts_of(world: &World, item: u32) -> Vec<Start> {
    world.starts.iter().filter(|start| start.item == Item(item)).cloned().collect()
}

fn attempts_of(world: &World, item: u32) -> Vec<u32> {
    starts_of(world, item).iter().map(|start| start.attempt).collect()
}

fn dropped(world: &World, item: u32) -> Vec<&'static str> {
    let of_item = world.retries.iter().filter(|(of, _)| *of == Item(item));
    of_item
        .filter_map(|(_, news)| match news {
            RetryNews::Dropped { why, .. } => Some(*why),
            RetryNews::Waits { .. } | RetryNews::GivenUp { .. } => None,
        })
        .collect()
}

#[test]
fn what_fails_is_tried_again_after_a_growing_pause_with_the_same_instant_and_a_higher_token() {
    for seed in 0..SEEDS {
        let mut world = world(seed, 2, seed % 2 == 0, &RETRY);
        fails(&mut world, 3, 3);
        world.next_duration_ms = Some(100);
        world.run_for(1_900);
        // Between attempts nothing runs, and nobody knows of a retry (P6).
        assert_eq!(world.get("sharding/3/running"), None, "seed {seed}");
        world.run_for(7_000);
        let starts = starts_of(&world, 3);
        assert_eq!(attempts_of(&world, 3), [1, 2, 3, 4], "seed {seed}");
        let pauses: Vec<_> = starts.windows(2).map(|two| millis_between(two[0].at, two[1].at)).collect();
        for (pause, expected) in pauses.iter().zip([1_100, 2_100, 2_100]) {
            assert!((expected..expected + 300).contains(pause), "seed {seed}: {pauses:?}");
        }
        for start in &starts {
            assert_eq!((start.source, start.scheduled), (Source::Schedule, at(10)), "seed {seed}");
            assert_eq!(start.node, starts[0].node, "seed {seed}");
        }
        let ids: std::collections::BTreeSet<_> = starts.iter().map(|start| &start.execution_id).collect();
        assert_eq!(ids.len(), 4, "seed {seed}");
        assert_eq!(world.starts.len(), 6 + 3, "seed {seed}: the others ran once");
    }
}

#[test]
fn without_the_properties_nothing_is_tried_again() {
    let mut world = world(1, 1, false, &[]);
    fails(&mut world, 3, 3);
    world.run_for(9_000);
    assert_eq!((attempts_of(&world, 3), world.retries.len()), (vec![1], 0));
}

#[test]
pub fn after_the_last_attempt_it_is_given_up_and_the_next_fire_begins_anew() {
    let props = [("retry-max-attempts", "2"), ("retry-backoff", "500ms")];
    let mut world = world(2, 1, false, &props);
    fails(&mut world, 3, 3);
    world.run_for(14_000);
    assert_eq!(attempts_of(&world, 3), [1, 2, 1, 2]);
    let given_up = world.retries.iter().filter(|(_, news)| *news == RetryNews::GivenUp { attempts: 2 });
    assert_eq!(given_up.count(), 1);
}

#[test]
fn only_what_the_job_names_is_tried_again_and_never_what_was_rejected() {
    for (on, expected) in [("failure", [2, 1]), ("deadline", [1, 2]), ("failure,deadline", [2, 2])] {
        let props = [("retry-max-attempts", "2"), ("execution-timeout", "1s"), ("retry-on", on)];
        let mut world = world(3, 1, false, &props);
        // Item 1 fails by itself, item 2 because it takes too long, item 4 does not even begin.
        fails(&mut world, 1, 1);
        fails(&mut world, 2, 1);
        world.outcomes.insert(Item(4), VecDeque::from([Outcome::Rejected("stopping".to_owned())]));
        world.next_duration_ms = Some(100);
        world.run_for(1_050);
        for open in world.nodes[0].executions.values_mut().filter(|open| open.execute.item == Item(2)) {
            open.ends = at(60);
        }
        world.run_for(6_000);
        let counts = [1, 2].map(|item| attempts_of(&world, item).len());
        assert_eq!((counts, attempts_of(&world, 4)), (expected, vec![1]), "{on}");
    }
}

#[test]
fn a_fire_takes_the_place_of_a_retry() {
    for seed in 0..SEEDS {
        let mut world = world(seed, 2, false, &[("retry-max-attempts", "4"), ("retry-backoff", "15s")]);
        fails(&mut world, 3, 1);
        world.run_for(12_500);
        let starts = starts_of(&world, 3);
        assert_eq!(attempts_of(&world, 3), [1, 1], "seed {seed}");
        assert_eq!(starts[1].scheduled, at(20), "seed {seed}");
        assert_eq!(dropped(&world, 3), ["another execution of the item takes its place"], "seed {seed}");
        world.run_for(8_000);
        assert_eq!(starts_of(&world, 3).len(), 2, "seed {seed}");
    }
}

#[test]
fn a_trigger_and_a_fire_that_was_missed_meanwhile_take_the_place_of_a_retry() {
    for seed in 0..SEEDS {
        let props = [("retry-max-attempts", "4"), ("retry-backoff", "2s")];
        let mut world = world(seed, 1, seed % 2 == 0, &props);
        fails(&mut world, 3, 1);
        world.next_duration_ms = Some(100);
        world.run_for(1_500);
        world.put("trigger/10.0.0.1@-@n0", "");
        world.run_for(6_000);
        let sources: Vec<_> =
            starts_of(&world, 3).iter().map(|start| (start.source, start.attempt)).collect();
        assert_eq!(sources, [(Source::Schedule, 1), (Source::Trigger, 1)], "seed {seed}");
        assert_eq!(world.get("trigger/10.0.0.1@-@n0"), None, "seed {seed}");
        assert_eq!(dropped(&world, 3).len(), 1, "seed {seed}");

        // The execution of 20 lasts until 31, so that the fire of 30 meets it.
        world.starts.clear();
        fails(&mut world, 3, 1);
        world.next_duration_ms = Some(11_000);
        world.run_until(at(22));
        world.next_duration_ms = Some(100);
        world.run_until(at(38));
        let sources: Vec<_> =
            starts_of(&world, 3).iter().map(|start| (start.source, start.attempt)).collect();
        assert_eq!(
            sources,
            [(Source::Schedule, 1), (Source::Misfire, 1)],
            "seed {seed}: {:?}",
            world.retries
        );
        assert_eq!(starts_of(&world, 3)[1].scheduled, at(30), "seed {seed}");
    }
}

#[test]
pub fn p2_a_retry_does_not_survive_a_change_of_owner_a_lost_session_or_a_drain() {
    for seed in 0..SEEDS {
        for case in 0..4 {
            let mut world =
                world(seed, 1, seed % 2 == 0, &[("retry-max-attempts", "4"), ("retry-backoff", "5s")]);
            for item in 0..6 {
                fails(&mut world, item, 1);
            }
            world.next_duration_ms = Some(100);
            world.run_for(1_500);
            assert_eq!(world.starts.len(), 6, "seed {seed}");
            match case {
                0 => {
                    world.join();
                    world.run_for(7_000);
                    // Half of the items have moved.
                    let retried = world.starts.iter().filter(|start| start.attempt == 2);
                    let gone =
                        world.retries.iter().filter(|(_, news)| matches!(news, RetryNews::Dropped { .. }));
                    assert_eq!((retried.count(), gone.count()), (3, 3), "seed {seed}: {:?}", world.retries);
                }
                1 => {
                    world.expire(0);
                    world.run_for(7_000);
                    assert_eq!((world.starts.len(), dropped(&world, 3)), (6, vec!["the session is lost"]));
                }
                2 => {
                    world.drain(0);
                    world.run_for(7_000);
                    assert_eq!(
                        (world.starts.len(), dropped(&world, 3)),
                        (6, vec!["the instance is leaving"])
                    );
                    assert!(world.nodes[0].ended.is_some(), "seed {seed}: it does not wait for retries");
                }
                _ => {
                    world.put("sharding/3/disabled", "");
                    world.run_for(7_000);
                    let counts = [2, 3].map(|item| attempts_of(&world, item).len());
                    assert_eq!((counts, dropped(&world, 3).len()), ([2, 1], 1), "seed {seed}");
                }
            }
        }
    }
}

#[test]
fn a_registry_that_is_away_when_a_retry_is_due_delays_it() {
    let mut world = world(5, 1, false, &RETRY);
    fails(&mut world, 3, 1);
    world.next_duration_ms = Some(100);
    world.run_for(1_500);
    world.toggle_suspended(0);
    world.run_for(3_000);
    assert_eq!(attempts_of(&world, 3), [1]);
    world.toggle_suspended(0);
    world.run_for(500);
    assert_eq!(attempts_of(&world, 3), [1, 2]);
}

#[test]
fn retries_survive_answers_of_the_registry_that_get_lost() {
    for seed in 0..SEEDS {
        let mut world = world(seed, 2, seed % 2 == 0, &RETRY);
        world.lossy = true;
        for item in 0..6 {
            fails(&mut world, item, 2);
        }
        world.next_duration_ms = Some(100);
        world.run_for(9_000);
        for item in 0..6 {
            let attempts = attempts_of(&world, item);
            assert_eq!(attempts, [1, 2, 3], "seed {seed}: {:?}", world.retries);
        }
    }
}

#[test]
pub fn what_an_operator_cancels_is_not_tried_again_and_the_next_fire_goes_on() {
    for seed in 0..SEEDS {
        let mut props = RETRY.to_vec();
        props.push(("retry-on", "failure,deadline"));
        let mut world = world(seed, 1, false, &props);
        for item in 0..6 {
            fails(&mut world, item, 1);
        }
        world.next_duration_ms = Some(3_000);
        world.run_for(1_100);
        // Item 0 has failed and waits; item 1 runs; item 2 is left alone.
        for open in world.nodes[0].executions.values_mut().filter(|open| open.execute.item == Item(0)) {
            open.ends = at(10);
        }
        world.run_for(300);
        world.cancel(0, &[0, 1]);
        world.run_for(50);
        let answer = world.answers.iter().find(|answer| matches!(answer, Answer::Cancelled(_))).unwrap();
        let id = |item: u32| starts_of(&world, item)[0].execution_id.clone();
        let expected = [(0, true), (1, false)];
        let expected = expected.map(|(item, was_waiting)| Cancelled {
            item: Item(item),
            execution_id: id(item),
            was_waiting,
        });
        assert_eq!(*answer, Answer::Cancelled(expected.to_vec()), "seed {seed}");
        assert_eq!(world.cancels.len(), 1, "seed {seed}");
        assert_eq!(world.cancels[0].1, CancelReason::Operator, "seed {seed}");
        world.run_for(6_000);
        assert_eq!([0, 1, 2].map(|item| attempts_of(&world, item).len()), [1, 1, 2], "seed {seed}");
        world.run_for(5_000);
        assert_eq!([0, 1].map(|item| attempts_of(&world, item)), [vec![1, 1], vec![1, 1]], "seed {seed}");
    }
}

#[test]
fn p5_what_was_taken_over_and_fails_is_tried_again_if_the_item_has_come_to_us() {
    for seed in 0..SEEDS {
        let mut world = world(seed, 2, true, &RETRY);
        world.next_duration_ms = Some(5_000);
        world.run_for(1_500);
        let theirs: Vec<_> =
            world.starts.iter().filter(|start| start.node == 0).map(|start| start.item.0).collect();
        for item in &theirs {
            fails(&mut world, *item, 1);
        }
        world.next_duration_ms = Some(200);
        world.kill(0);
        world.run_for(4_000);
        for item in theirs {
            let starts: Vec<_> = starts_of(&world, item);
            assert_eq!(attempts_of(&world, item), [1, 1, 2], "seed {seed}: {:?}", world.retries);
            assert!(starts.iter().all(|start| start.scheduled == at(10)), "seed {seed}");
            assert_eq!((starts[1].source, starts[2].source), (Source::Failover, Source::Failover));
        }
    }
}

#[test]
fn attempts_belong_to_the_round_of_the_once_listener() {
    for seed in 0..SEEDS {
        let mut props = RETRY.to_vec();
        props.push(("once-listener", "true"));
        let mut world = world(seed, 2, false, &props);
        world.happened.clear();
        fails(&mut world, 3, 2);
        world.next_duration_ms = Some(100);
        world.run_for(8_500);
        assert_eq!(attempts_of(&world, 3), [1, 2, 3], "seed {seed}: {:?}", world.retries);
        let calls: Vec<_> = world
            .happened
            .iter()
            .enumerate()
            .filter_map(|(place, happened)| match happened {
                Happened::Called(gate, _) => Some((*gate, place)),
                Happened::Answered(..) | Happened::Began(..) | Happened::Ended(..) => None,
            })
            .collect();
        let last =
            world.happened.iter().rposition(|happened| matches!(happened, Happened::Ended(..))).unwrap();
        let [(Gate::Started, _), (Gate::Completed, after)] = calls[..] else {
            panic!("seed {seed}: {calls:?}")
        };
        assert!(after > last, "seed {seed}: {:#?}", world.happened);
    }
}

#[test]
fn a_pause_that_is_longer_than_others_would_wait_does_not_end_our_own_round() {
    let props = [
        ("retry-max-attempts", "2"),
        ("retry-backoff", "3s"),
        ("once-listener", "true"),
        ("once-listener.completed-timeout", "1s"),
    ];
    let mut world = world(3, 1, false, &props);
    fails(&mut world, 3, 1);
    world.next_duration_ms = Some(100);
    world.happened.clear();
    world.run_for(8_500);
    assert_eq!(attempts_of(&world, 3), [1, 2], "{:?}", world.retries);
    let calls = world.happened.iter().filter(|happened| matches!(happened, Happened::Called(..)));
    assert_eq!((calls.count(), &world.problems[..]), (2, &[][..]));
}

#[test]
fn p1_p2_p3_hold_whatever_fails_takes_too_long_or_does_not_stop() {
    for seed in seeds(30) {
        let props = [
            ("execution-timeout", "800ms"),
            ("cancel-grace", "300ms"),
            ("retry-max-attempts", "3"),
            ("retry-backoff", "200ms"),
            ("retry-on", "failure,deadline"),
        ];
        let mut configuration = six_items();
        configuration.failover = seed % 2 == 0;
        let own = props.map(|(key, value)| (format!("sidekeeper.{key}"), value.to_owned()));
        configuration.props.extend(own);
        let mut world = World::new(seed, configuration);
        for _ in 0..3 {
            world.join();
        }
        world.duration_max_ms = 1_100;
        world.lossy = seed % 3 == 0;
        let mut extended = 0;
        for _ in 0..40 {
            world.run_for(500);
            for item in 0..6 {
                if world.random.once_in(3) {
                    fails(&mut world, item, 1);
                }
                let runs = |world: &World| {
                    let open = world.nodes.iter().flat_map(|node| node.executions.values());
                    open.into_iter().any(|open| open.execute.item == Item(item))
                };
                if runs(&world) && world.random.once_in(4) {
                    world.progress(item, true, Some(b"some way"));
                    extended += 1;
                }
            }
            // Who does not stop when the lease is lost breaks P2, and nobody can help it.
            let stubborn = world.random.once_in(6);
            let disobeyed = [CancelReason::Deadline, CancelReason::Operator, CancelReason::DrainTimeout];
            world.disobeyed = disobeyed.into_iter().filter(|_| stubborn).collect();
            let staying = world.staying();
            if staying.len() < 2 {
                world.join();
                continue;
            }
            let pick = staying[world.random.below(staying.len() as u64) as usize];
            match world.random.below(24) {
                0 => drop(world.join()),
                1 => world.kill(pick),
                2 => world.expire(pick),
                3 => world.drain(pick),
                4 => world.cancel(pick, &[0, 1, 2]),
                5 => world.toggle_suspended(pick),
                _ => {}
            }
        }
        assert!(extended > 0, "seed {seed}");
        // Whatever it was: the job goes on, and nothing is left behind.
        (world.lossy, world.duration_max_ms) = (false, 100);
        world.disobeyed.clear();
        world.outcomes.clear();
        world.resume_all();
        world.run_for(25_000);
        world.settle();
        world.assert_all_owned();
        world.run_until(at(world.now.duration_since(at(0)).as_secs() / 2 * 2 + 3));
        world.starts.clear();
        world.run_for(8_000);
        assert!((0..6).all(|item| attempts_of(&world, item) == [1; 4]), "seed {seed}: {:?}", world.starts);
        let running = world.paths().into_iter().filter(|path| path.ends_with("/running")).count();
        assert_eq!(running, 0, "seed {seed}");
    }
}
