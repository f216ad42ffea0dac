//! An operator triggers items, with a parameter of their own: each of them is executed once, whichever instance owns it by then.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use sidekeeper::coordination::job::contract::commit::Purpose;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::coordination::job::contract::report::Outcome;
use sidekeeper::job::{Item, JobConfiguration};

use crate::setup::{
    SEEDS, delay_request, every_ten_seconds, lose_answer, one_node, second, seeds, starts_of, with,
};
use crate::world::{World, six_items};

/// The executions with this parameter: the item, the cause and the instant, in their order.
fn with_parameter(world: &World, parameter: &str) -> Vec<(u32, Source, Timestamp)> {
    let starts = world.starts.iter().filter(|start| start.parameter == parameter);
    starts.map(|start| (start.item.0, start.source, start.scheduled)).collect()
}

fn items(starts: &[(u32, Source, Timestamp)]) -> Vec<u32> {
    let mut items: Vec<_> = starts.iter().map(|(item, ..)| *item).collect();
    items.sort_unstable();
    items
}

#[test]
pub fn only_the_named_items_are_executed_once_and_the_next_fire_has_the_job_s_parameter_again() {
    for monitored in [true, false] {
        let mut world = one_node(|job| {
            job.job_parameter = "all".to_owned();
            job.monitor_execution = monitored;
        });
        world.trigger_items("one", &[1, 4], Some("day=1"));
        world.run_until(second(5) + SignedDuration::from_millis(900));
        assert_eq!(items(&with_parameter(&world, "day=1")), [1, 4], "{:?}", world.starts);
        assert!(world.starts.iter().all(|start| start.source == Source::Trigger), "{:?}", world.starts);
        assert_eq!(world.item_triggers(), Vec::<String>::new());
        world.starts.clear();
        world.run_until(second(7));
        assert_eq!(items(&with_parameter(&world, "all")), [0, 1, 2, 3, 4, 5]);
        // Without a parameter the job's own stays.
        world.starts.clear();
        world.trigger_items("two", &[2], None);
        world.run_until(second(7) + SignedDuration::from_millis(900));
        assert_eq!(items(&with_parameter(&world, "all")), [2], "{:?}", world.starts);
        assert_eq!((world.starts.len(), world.item_triggers()), (1, vec![]));
    }
}

#[test]
fn triggers_of_a_busy_item_are_executed_one_after_the_other_before_missed_fires() {
    let mut world = one_node(|_| {});
    world.next_duration_ms = Some(2_500);
    // Each execution takes longer than the period, so a missed fire waits at each end.
    world.run_until(second(6) + SignedDuration::from_millis(500));
    world.starts.clear();
    world.trigger_items("one", &[3], Some("first"));
    world.trigger_items("two", &[3], Some("second"));
    world.run_for(12_000);
    let told: Vec<_> =
        starts_of(&world, 3).into_iter().map(|start| (start.source, start.parameter)).collect();
    let named: Vec<_> = told.iter().filter(|(source, _)| *source == Source::Trigger).cloned().collect();
    let expected = ["first", "second"].map(|parameter| (Source::Trigger, parameter.to_owned()));
    assert_eq!(named, expected, "{told:?}");
    assert_eq!(told.first(), expected.first());
    assert!(told.iter().any(|(source, _)| *source == Source::Misfire), "{told:?}");
    assert_eq!(world.item_triggers(), Vec::<String>::new());
}

#[test]
fn a_trigger_of_all_instances_does_not_take_the_parameter_and_is_not_swallowed() {
    let mut world = one_node(|_| {});
    world.trigger_items("one", &[2], Some("day=1"));
    world.put("trigger/10.0.0.1@-@n0", "");
    world.run_until(second(5) + SignedDuration::from_millis(900));
    assert_eq!(items(&with_parameter(&world, "day=1")), [2], "{:?}", world.starts);
    // The item was busy for the other one, and is re-run.
    assert_eq!(items(&with_parameter(&world, "")), [0, 1, 2, 3, 4, 5], "{:?}", world.starts);
    assert_eq!(world.get("trigger/10.0.0.1@-@n0"), None);
}

#[test]
fn an_item_that_moves_between_the_request_and_the_execution_is_executed_by_its_next_owner() {
    let mut owners = BTreeSet::new();
    for seed in 0..SEEDS / 2 {
        let mut world = every_ten_seconds(seed, 2, false, &[("handoff-settling", "0s")]);
        world.next_duration_ms = Some(100);
        world.join();
        for _ in 0..seed * 4 {
            world.turn();
        }
        world.trigger_items("one", &[0, 1, 2, 3, 4, 5], Some("day=1"));
        world.run_for(8_000);
        let told = with_parameter(&world, "day=1");
        assert_eq!(items(&told), [0, 1, 2, 3, 4, 5], "seed {seed}: {told:?}");
        let starts = world.starts.iter().filter(|start| start.parameter == "day=1");
        owners.extend(starts.map(|start| start.node));
        assert_eq!(world.item_triggers(), Vec::<String>::new(), "seed {seed}");
    }
    assert!(owners.contains(&2), "no item has moved: {owners:?}");
}

#[test]
pub fn a_failover_and_a_retry_keep_the_parameter_and_the_instant() {
    let mut world = every_ten_seconds(3, 2, true, &[("retry-max-attempts", "2"), ("retry-backoff", "1s")]);
    world.next_duration_ms = Some(1_500);
    world.run_until(second(12));
    world.starts.clear();
    let theirs = world.nodes[1].items[0].0;
    let mine = world.nodes[0].items[0].0;
    world.outcomes.insert(Item(mine), [Outcome::Failure("no stock".to_owned())].into());
    world.trigger_items("one", &[mine, theirs], Some("day=1"));
    world.run_for(500);
    assert_eq!(world.item_triggers().len(), 2, "the parameters are needed until the executions have ended");
    world.crash(1);
    world.end_session(1);
    world.run_until(second(19));
    let told = with_parameter(&world, "day=1");
    for (item, causes) in
        [(mine, [Source::Trigger, Source::Trigger]), (theirs, [Source::Trigger, Source::Failover])]
    {
        let of_item: Vec<_> = told.iter().filter(|(of, ..)| *of == item).collect();
        assert_eq!(of_item.iter().map(|(_, source, _)| *source).collect::<Vec<_>>(), causes, "{told:?}");
        assert_eq!(of_item[0].2, of_item[1].2, "{told:?}");
    }
    assert_eq!(world.item_triggers(), Vec::<String>::new());
}

#[test]
pub fn a_start_with_a_lost_or_late_answer_is_sent_once_with_its_parameter() {
    let cases = [
        (true, false, true),
        (true, true, true),
        (true, false, false),
        (true, true, false),
        (false, false, false),
    ];
    for (monitored, failover, late) in cases {
        let mut world = one_node(|job| {
            (job.failover, job.monitor_execution) = (failover, monitored);
            job.cron = None;
        });
        world.trigger_items("one", &[1, 4], Some("day=1"));
        if late {
            delay_request(&mut world, 0, Purpose::Start);
            for _ in 0..2 {
                world.toggle_suspended(0);
                world.look(0);
            }
            while !world.is_reading_ledger(0) {
                world.take_first_effect(0);
                world.look(0);
            }
            world.deliver_delayed();
        } else {
            lose_answer(&mut world, 0, Purpose::Start);
        }
        world.run_for(15_000);
        let told = with_parameter(&world, "day=1");
        let case = format!("monitored {monitored}, failover {failover}, late {late}: {told:?}");
        assert_eq!(items(&told), [1, 4], "{case}");
        assert_eq!(world.item_triggers(), Vec::<String>::new(), "{case}");
    }
}

#[test]
fn a_trigger_that_nobody_takes_up_ends() {
    let mut world = one_node(|job| job.cron = None);
    world.put("sharding/2/disabled", "");
    world.run_for(500);
    world.trigger_items("one", &[2], Some("day=1"));
    world.run_for(3_000);
    assert_eq!((world.item_triggers().len(), with_parameter(&world, "day=1").len()), (1, 0));
    // It waits until the item is enabled.
    world.remove("sharding/2/disabled");
    world.run_for(1_000);
    assert_eq!((world.item_triggers().len(), with_parameter(&world, "day=1").len()), (0, 1));

    world.trigger_items("beyond", &[6], Some("day=2"));
    world.run_for(1_000);
    assert_eq!(world.item_triggers(), Vec::<String>::new(), "the job has no such item");

    world.registry_ahead_ms = -25 * 3_600_000;
    world.put("sharding/3/disabled", "");
    world.trigger_items("old", &[3], Some("day=3"));
    world.registry_ahead_ms = 0;
    world.run_for(1_000);
    assert_eq!(world.item_triggers(), Vec::<String>::new(), "nobody has taken it up within a day");
    world.remove("sharding/3/disabled");
    world.run_for(1_000);
    assert_eq!(with_parameter(&world, "day=3"), []);
}

#[test]
fn jobs_whose_items_are_not_executed_one_by_one_leave_triggers_alone() {
    for property in [("ownership", "continuous"), ("once-listener", "true")] {
        let mut world = World::new(7, {
            let mut job = JobConfiguration { cron: None, ..six_items() };
            with(&[property])(&mut job);
            job
        });
        world.join();
        world.run_for(2_000);
        world.trigger_items("one", &[1], Some("day=1"));
        world.run_for(2_000);
        assert_eq!((world.starts.len(), world.item_triggers().len()), (0, 1), "{property:?}");
    }
}

/// Each trigger has a parameter of its own. Its executions are all of its item and for one instant; the first attempt is sent once, and the others
/// are a failover's, a retry's or a repetition for another stream.
#[test]
fn p1_p2_p3_hold_while_items_are_triggered_and_instances_come_and_go() {
    let mut moved = 0;
    for seed in seeds(8) {
        let mut configuration = JobConfiguration { failover: true, ..six_items() };
        configuration.misfire = seed % 2 == 0;
        with(&[("retry-max-attempts", "2"), ("retry-backoff", "200ms")])(&mut configuration);
        let mut world = World::new(seed, configuration);
        world.join_many(3);
        world.duration_max_ms = 1_100;
        world.lossy = seed % 3 == 0;
        let mut asked = BTreeMap::new();
        for round in 0..25 {
            world.run_for(300);
            for _ in 0..world.random.below(60) {
                world.turn();
            }
            if world.random.once_in(2) {
                let item = world.random.below(6) as u32;
                let parameter = format!("round {round}");
                world.trigger_items(&format!("round-{round}"), &[item], Some(&parameter));
                asked.insert(parameter, item);
            }
            let staying = world.staying();
            if staying.len() < 2 {
                world.join();
                continue;
            }
            let pick = staying[world.random.below(staying.len() as u64) as usize];
            match world.random.below(16) {
                0 => drop(world.join()),
                1 => world.kill(pick),
                2 => world.expire(pick),
                3 => world.drain(pick),
                4 => world.toggle_suspended(pick),
                _ => {}
            }
        }
        (world.lossy, world.duration_max_ms) = (false, 100);
        world.resume_all();
        world.run_for(20_000);
        assert_eq!(world.item_triggers(), Vec::<String>::new(), "seed {seed}");
        for (parameter, item) in &asked {
            let told = with_parameter(&world, parameter);
            let instants: BTreeSet<_> = told.iter().map(|(.., scheduled)| *scheduled).collect();
            assert!(told.iter().all(|(of, ..)| of == item), "seed {seed}: {parameter} of {item}: {told:?}");
            assert_eq!(instants.len(), 1, "seed {seed}: {parameter} of {item}: {told:?}");
            moved += usize::from(told.len() > 1);
        }
        let others = world.starts.iter().filter(|start| !asked.contains_key(&start.parameter));
        assert!(others.clone().all(|start| start.parameter.is_empty()), "seed {seed}");
        assert!(others.clone().all(|start| start.source != Source::Trigger), "seed {seed}");
    }
    assert!(moved > 0, "no execution was interrupted");
}
