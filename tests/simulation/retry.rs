//! A failed execution is retried: when, how often, and which events end the retries.

use std::collections::VecDeque;

use sidekeeper::coordination::job::contract::answer::{Answer, Cancelled};
use sidekeeper::coordination::job::contract::effect::RetryNews;
use sidekeeper::coordination::job::contract::event::CancelReason;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::coordination::job::contract::report::Outcome;
use sidekeeper::elasticjob::path::Barrier;
use sidekeeper::job::Item;

use crate::setup::{SEEDS, every_ten_seconds, millis_between, running_nodes, second, seeds, starts_of};
use crate::world::{Happened, World, six_items};

const RETRY: [(&str, &str); 3] =
    [("retry-max-attempts", "4"), ("retry-backoff", "1s"), ("retry-backoff-max", "2s")];

/// The next executions of an item fail, so many of them.
fn fails(world: &mut World, item: u32, times: usize) {
    let failure = || Outcome::Failure("no stock".to_owned());
    let outcomes: VecDeque<_> = std::iter::repeat_with(failure).take(times).collect();
    world.outcomes.insert(Item(item), outcomes);
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
fn a_failed_execution_is_retried_after_growing_pauses_with_its_instant_and_higher_tokens() {
    for seed in 0..SEEDS {
        let mut world = every_ten_seconds(seed, 2, seed % 2 == 0, &RETRY);
        fails(&mut world, 3, 3);
        world.next_duration_ms = Some(100);
        world.run_for(1_900);
        // Between attempts nothing runs, and the registry shows no retry (P6).
        assert_eq!(world.get("sharding/3/running"), None, "seed {seed}");
        world.run_for(7_000);
        let starts = starts_of(&world, 3);
        assert_eq!(attempts_of(&world, 3), [1, 2, 3, 4], "seed {seed}");
        let pauses: Vec<_> = starts.windows(2).map(|two| millis_between(two[0].at, two[1].at)).collect();
        for (pause, expected) in pauses.iter().zip([1_100, 2_100, 2_100]) {
            assert!((expected..expected + 300).contains(pause), "seed {seed}: {pauses:?}");
        }
        for start in &starts {
            assert_eq!((start.source, start.scheduled), (Source::Schedule, second(10)), "seed {seed}");
            assert_eq!(start.node, starts[0].node, "seed {seed}");
        }
        let ids: std::collections::BTreeSet<_> = starts.iter().map(|start| &start.execution_id).collect();
        assert_eq!(ids.len(), 4, "seed {seed}");
        assert_eq!(world.starts.len(), 6 + 3, "seed {seed}: the others ran once");
    }
}

#[test]
fn without_the_properties_nothing_is_retried() {
    let mut world = every_ten_seconds(1, 1, false, &[]);
    fails(&mut world, 3, 3);
    world.run_for(9_000);
    assert_eq!((attempts_of(&world, 3), world.retries.len()), (vec![1], 0));
}

#[test]
pub fn after_the_last_attempt_the_next_fire_begins_anew() {
    let props = [("retry-max-attempts", "2"), ("retry-backoff", "500ms")];
    let mut world = every_ten_seconds(2, 1, false, &props);
    fails(&mut world, 3, 3);
    world.run_for(14_000);
    assert_eq!(attempts_of(&world, 3), [1, 2, 1, 2]);
    let given_up = world.retries.iter().filter(|(_, news)| *news == RetryNews::GivenUp { attempts: 2 });
    assert_eq!(given_up.count(), 1);
}

#[test]
fn only_the_outcomes_that_the_job_names_are_retried_and_never_a_rejection() {
    for (on, expected) in [("failure", [2, 1]), ("deadline", [1, 2]), ("failure,deadline", [2, 2])] {
        let props = [("retry-max-attempts", "2"), ("execution-timeout", "1s"), ("retry-on", on)];
        let mut world = every_ten_seconds(3, 1, false, &props);
        // Item 1 fails by itself, item 2 because it takes too long, item 4 does not even begin.
        fails(&mut world, 1, 1);
        fails(&mut world, 2, 1);
        world.outcomes.insert(Item(4), VecDeque::from([Outcome::Rejected("stopping".to_owned())]));
        world.next_duration_ms = Some(100);
        world.run_for(1_050);
        for open in world.nodes[0].executions.values_mut().filter(|open| open.execute.item == Item(2)) {
            open.ends = second(60);
        }
        world.run_for(6_000);
        let counts = [1, 2].map(|item| attempts_of(&world, item).len());
        assert_eq!((counts, attempts_of(&world, 4)), (expected, vec![1]), "{on}");
    }
}

fn interrupted() -> Outcome {
    Outcome::Interrupted("the lease has ended by the application's clock".to_owned())
}

#[test]
pub fn p5_an_execution_that_is_interrupted_shortly_before_its_instance_leaves_is_taken_over() {
    for seed in 0..SEEDS {
        // There is no other instance to which it hands its items over, so it leaves at once.
        let mut world =
            every_ten_seconds(seed, 1, true, &[("retry-max-attempts", "2"), ("retry-backoff", "50ms")]);
        world.next_duration_ms = Some(100);
        let failure = Outcome::Failure("no stock".to_owned());
        world.outcomes.insert(Item(2), VecDeque::from([interrupted()]));
        world.outcomes.insert(Item(3), VecDeque::from([failure, interrupted()]));
        // The nodes are read because of the first interruption. The retry's running node comes later, and is not read so soon.
        world.run_until(second(10));
        world.run_for(600);
        assert_eq!(attempts_of(&world, 3), [1, 2], "seed {seed}");
        world.drain(0);
        world.run_for(1_000);
        assert!(world.nodes[0].ended.is_some(), "seed {seed}");
        assert_eq!(running_nodes(&world).len(), 0, "seed {seed}");
        world.join();
        world.run_until(second(19));
        let again = starts_of(&world, 3).pop().unwrap();
        assert_eq!(
            (again.source, again.scheduled, again.node),
            (Source::Failover, second(10), 1),
            "seed {seed}"
        );
    }
}

#[test]
pub fn p5_an_interrupted_execution_fails_over_or_else_is_retried_as_one_that_failed() {
    for seed in 0..SEEDS / 4 {
        for (failover, attempts) in [(true, "4"), (false, "4"), (false, "1")] {
            let props = [("retry-max-attempts", attempts), ("retry-backoff", "500ms")];
            let mut world = every_ten_seconds(seed, 2, failover, &props);
            // The execution that takes its place is interrupted, too.
            world.outcomes.insert(Item(3), VecDeque::from([interrupted(), interrupted()]));
            world.next_duration_ms = Some(100);
            world.run_for(8_000);
            let case = format!("seed {seed}, failover {failover}, attempts {attempts}");
            let starts = starts_of(&world, 3);
            let found: Vec<_> =
                starts.iter().map(|start| (start.source, start.attempt, start.scheduled)).collect();
            let of = |source, attempt| (source, attempt, second(10));
            let expected = match (failover, attempts) {
                (true, _) => vec![of(Source::Schedule, 1), of(Source::Failover, 1), of(Source::Failover, 1)],
                (false, "1") => vec![of(Source::Schedule, 1)],
                (false, _) => [1, 2, 3].map(|attempt| of(Source::Schedule, attempt)).to_vec(),
            };
            assert_eq!(found, expected, "{case}");
            assert_eq!(running_nodes(&world).len(), 0, "{case}");
            assert_eq!(world.starts.len(), 6 + expected.len() - 1, "{case}: the others ran once");
            world.run_until(second(22));
            assert_eq!(starts_of(&world, 3).last().map(|start| start.scheduled), Some(second(20)), "{case}");
        }
    }
}

#[test]
fn a_fire_replaces_a_retry() {
    for seed in 0..SEEDS {
        let mut world =
            every_ten_seconds(seed, 2, false, &[("retry-max-attempts", "4"), ("retry-backoff", "15s")]);
        fails(&mut world, 3, 1);
        world.run_for(12_500);
        let starts = starts_of(&world, 3);
        assert_eq!(attempts_of(&world, 3), [1, 1], "seed {seed}");
        assert_eq!(starts[1].scheduled, second(20), "seed {seed}");
        assert_eq!(dropped(&world, 3), ["another execution of the item takes its place"], "seed {seed}");
        world.run_for(8_000);
        assert_eq!(starts_of(&world, 3).len(), 2, "seed {seed}");
    }
}

#[test]
fn a_trigger_or_a_missed_fire_replaces_a_retry() {
    for seed in 0..SEEDS {
        let props = [("retry-max-attempts", "4"), ("retry-backoff", "2s")];
        let mut world = every_ten_seconds(seed, 1, seed % 2 == 0, &props);
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
        world.run_until(second(22));
        world.next_duration_ms = Some(100);
        world.run_until(second(38));
        let sources: Vec<_> =
            starts_of(&world, 3).iter().map(|start| (start.source, start.attempt)).collect();
        assert_eq!(
            sources,
            [(Source::Schedule, 1), (Source::Misfire, 1)],
            "seed {seed}: {:?}",
            world.retries
        );
        assert_eq!(starts_of(&world, 3)[1].scheduled, second(30), "seed {seed}");
    }
}

#[test]
pub fn p2_a_retry_does_not_survive_a_change_of_owner_a_lost_session_or_a_drain() {
    for seed in 0..SEEDS {
        for case in 0..4 {
            let mut world = every_ten_seconds(
                seed,
                1,
                seed % 2 == 0,
                &[("retry-max-attempts", "4"), ("retry-backoff", "5s")],
            );
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
fn a_broken_connection_delays_a_retry() {
    let mut world = every_ten_seconds(5, 1, false, &RETRY);
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
fn retries_survive_lost_answers_of_the_registry() {
    for seed in 0..SEEDS {
        let mut world = every_ten_seconds(seed, 2, seed % 2 == 0, &RETRY);
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
pub fn an_execution_that_an_operator_cancels_is_not_retried() {
    for seed in 0..SEEDS {
        let mut props = RETRY.to_vec();
        props.push(("retry-on", "failure,deadline"));
        let mut world = every_ten_seconds(seed, 1, false, &props);
        for item in 0..6 {
            fails(&mut world, item, 1);
        }
        world.next_duration_ms = Some(3_000);
        world.run_for(1_100);
        // Item 0 has failed and waits; item 1 runs; item 2 is left alone.
        for open in world.nodes[0].executions.values_mut().filter(|open| open.execute.item == Item(0)) {
            open.ends = second(10);
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
fn an_execution_that_a_cancel_of_the_fleet_concerns_is_not_retried() {
    for seed in 0..SEEDS {
        let mut world = every_ten_seconds(seed, 1, false, &RETRY);
        for item in 0..6 {
            fails(&mut world, item, 1);
        }
        world.next_duration_ms = Some(3_000);
        world.run_for(1_100);
        // Item 0 has failed and waits; item 1 runs; item 2 is left alone.
        for open in world.nodes[0].executions.values_mut().filter(|open| open.execute.item == Item(0)) {
            open.ends = second(10);
        }
        world.run_for(300);
        world.cancel_fleet("one", Some(&[0, 1]));
        world.run_for(6_050);
        assert_eq!([0, 1, 2].map(|item| attempts_of(&world, item).len()), [1, 1, 2], "seed {seed}");
        // The next fire executes the items as usual, and fails no more.
        world.run_for(5_000);
        assert_eq!([0, 1].map(|item| attempts_of(&world, item)), [vec![1, 1], vec![1, 1]], "seed {seed}");
    }
}

#[test]
fn p5_a_failed_takeover_is_retried_if_the_instance_owns_the_item_now() {
    for seed in 0..SEEDS {
        let mut world = every_ten_seconds(seed, 2, true, &RETRY);
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
            assert!(starts.iter().all(|start| start.scheduled == second(10)), "seed {seed}");
            assert_eq!((starts[1].source, starts[2].source), (Source::Failover, Source::Failover));
        }
    }
}

#[test]
fn retries_belong_to_the_round_of_the_once_listener() {
    for seed in 0..SEEDS {
        let mut props = RETRY.to_vec();
        props.push(("once-listener", "true"));
        let mut world = every_ten_seconds(seed, 2, false, &props);
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
                Happened::Called(barrier, _) => Some((*barrier, place)),
                Happened::Answered(..) | Happened::Began(..) | Happened::Ended(..) => None,
            })
            .collect();
        let last =
            world.happened.iter().rposition(|happened| matches!(happened, Happened::Ended(..))).unwrap();
        let [(Barrier::Started, _), (Barrier::Completed, after)] = calls[..] else {
            panic!("seed {seed}: {calls:?}")
        };
        assert!(after > last, "seed {seed}: {:#?}", world.happened);
    }
}

#[test]
fn a_long_pause_before_a_retry_does_not_end_the_round() {
    let props = [
        ("retry-max-attempts", "2"),
        ("retry-backoff", "3s"),
        ("once-listener", "true"),
        ("once-listener.completed-timeout", "1s"),
    ];
    let mut world = every_ten_seconds(3, 1, false, &props);
    fails(&mut world, 3, 1);
    world.next_duration_ms = Some(100);
    world.happened.clear();
    world.run_for(8_500);
    assert_eq!(attempts_of(&world, 3), [1, 2], "{:?}", world.retries);
    let calls = world.happened.iter().filter(|happened| matches!(happened, Happened::Called(..)));
    assert_eq!((calls.count(), &world.problems[..]), (2, &[][..]));
}

#[test]
fn p1_p2_p3_hold_while_executions_fail_overrun_and_ignore_cancels() {
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
        world.join_many(3);
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
            // An application that goes on when the lease is lost breaks P2, and no sidecar can prevent that.
            let stubborn = world.random.once_in(6);
            let ignored_cancels =
                [CancelReason::Deadline, CancelReason::Operator, CancelReason::DrainTimeout];
            world.ignored_cancels = ignored_cancels.into_iter().filter(|_| stubborn).collect();
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
        // After all of that the job goes on, and no node is left behind.
        (world.lossy, world.duration_max_ms) = (false, 100);
        world.ignored_cancels.clear();
        world.outcomes.clear();
        world.resume_all();
        world.run_for(25_000);
        world.settle_owned();
        world.run_until(second(world.now.duration_since(second(0)).as_secs() / 2 * 2 + 3));
        world.starts.clear();
        world.run_for(8_000);
        assert!((0..6).all(|item| attempts_of(&world, item) == [1; 4]), "seed {seed}: {:?}", world.starts);
        let running = running_nodes(&world).len();
        assert_eq!(running, 0, "seed {seed}");
    }
}
