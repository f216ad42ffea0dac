//! The stream of an application breaks, and the application reattaches within the grace of its job or does not (P2, P5,
//! P6).

use std::time::Duration;

use jiff::SignedDuration;
use sidekeeper::coordination::job::contract::commit::Purpose;
use sidekeeper::coordination::job::contract::effect::EndReason;
use sidekeeper::job::{Item, JobConfiguration};

use crate::setup::{assert_nothing_lost, next_fire, one_node, second, seeds};
use crate::world::{World, six_items};

const GRACE: Duration = Duration::from_secs(3);

fn patient(configuration: &mut JobConfiguration) {
    configuration.props.insert("sidekeeper.grace".to_owned(), "3s".to_owned());
}

/// Goes on until a fire is close.
fn come_close_to_a_fire(world: &mut World) {
    let next = next_fire(world);
    let offset = world.random.below(60) as i64 - 30;
    world.run_until(next + SignedDuration::from_millis(offset));
}

/// Two nodes of a job that fails over, whose executions take a minute.
fn executing_for_long() -> World {
    let mut configuration = six_items();
    patient(&mut configuration);
    configuration.failover = true;
    let mut world = World::new(7, configuration);
    world.next_duration_ms = Some(60_000);
    world.join();
    world.join();
    world.run_for(2_500);
    assert!(!world.nodes[0].executions.is_empty());
    world
}

/// A member's node, and which items it owns.
fn says(world: &World, node: usize) -> String {
    let data = world.read(&format!("/ns-sidekeeper/job/fleet/members/10.0.0.{}@-@n{node}", node + 1));
    String::from_utf8(data.unwrap_or_default()).unwrap()
}

#[test]
fn p5_no_fire_is_lost_or_executed_twice_while_streams_break_and_reattach() {
    for seed in seeds(50) {
        let mut configuration = six_items();
        patient(&mut configuration);
        let mut world = World::new(seed, configuration);
        world.duration_max_ms = 2_500;
        world.lossy = seed % 2 == 1;
        world.join();
        world.run_for(2_500);
        let from = next_fire(&world);
        for _ in 0..12 {
            come_close_to_a_fire(&mut world);
            let staying = world.staying();
            let pick = staying[world.random.below(staying.len() as u64) as usize];
            match world.random.below(4) {
                0 if staying.len() < 4 => drop(world.join()),
                1 | 2 if !world.is_detached(pick) => {
                    world.break_stream(pick, GRACE);
                    let away = world.random.below(2_500) as i64;
                    world.run_for(away);
                    world.reattach(pick);
                }
                _ => {}
            }
            world.run_for(500);
        }
        let to = world.now;
        world.duration_max_ms = 300;
        world.run_for(10_000);
        world.settle_owned();
        assert_eq!(world.interrupted, [], "seed {seed}");
        assert_nothing_lost(&world, from, to);
    }
}

#[test]
pub fn p1_p2_p5_p6_hold_while_applications_reattach_in_time_or_do_not() {
    for seed in seeds(50) {
        let mut configuration = six_items();
        patient(&mut configuration);
        configuration.failover = true;
        let mut world = World::new(seed, configuration);
        world.duration_max_ms = 1_500;
        world.lossy = seed % 3 == 2;
        world.join();
        for _ in 0..25 {
            come_close_to_a_fire(&mut world);
            let staying = world.staying();
            if staying.len() < 2 {
                world.join();
            }
            let pick = staying.get(world.random.below(staying.len().max(1) as u64) as usize).copied();
            match (world.random.below(9), pick) {
                (0 | 1, _) if staying.len() < 5 => drop(world.join()),
                (2 | 3, Some(pick)) if !world.is_detached(pick) => world.break_stream(pick, GRACE),
                (4 | 5, Some(pick)) => world.reattach(pick),
                (6, Some(pick)) if !world.is_detached(pick) => world.kill(pick),
                (7, Some(pick)) if !world.is_detached(pick) => world.drain(pick),
                (8, Some(pick)) => world.expire(pick),
                _ => {}
            }
            world.run_for(400);
        }
        world.join();
        world.run_for(15_000);
        world.settle_owned();
        let recent = world.now - SignedDuration::from_secs(5);
        for (item, at) in world.interrupted.iter().filter(|(_, at)| *at < recent) {
            let is_completed =
                world.completed_takeovers.iter().any(|(other, started)| other == item && started >= at);
            let starts: Vec<_> = world.starts.iter().filter(|start| start.item == *item).collect();
            assert!(is_completed, "seed {seed}: item {item}, interrupted at {at}: {starts:#?}");
        }
    }
}

#[test]
pub fn a_detached_instance_keeps_its_items_and_gets_no_new_ones() {
    let mut world = one_node(patient);
    let [second, third] = [0, 1].map(|_| world.join());
    world.run_for(900);
    let kept = world.nodes[second].items.clone();
    assert_eq!(kept.len(), 2);
    world.break_stream(second, GRACE);
    world.run_for(200);
    assert!(says(&world, second).contains("away"), "{}", says(&world, second));
    // The items of the third node go to the instance that can execute them.
    world.drain(third);
    world.run_for(500);
    assert!(world.nodes[third].ended.is_some());
    assert_eq!(world.nodes[0].items.len(), 4);
    let owner = |world: &World, item: &Item| {
        String::from_utf8(world.get(&format!("sharding/{item}/instance")).unwrap()).unwrap()
    };
    assert!(kept.iter().all(|item| owner(&world, item).ends_with("n1")));
    world.reattach(second);
    world.run_for(900);
    assert!(!says(&world, second).contains("away"));
    assert_eq!((world.nodes[0].items.len(), world.nodes[second].items.len()), (3, 3));
}

#[test]
fn p1_items_have_owners_though_all_instances_are_detached() {
    let mut world = one_node(patient);
    let other = world.join();
    world.run_for(900);
    world.break_stream(0, GRACE);
    world.run_for(200);
    world.drain(other);
    world.run_for(500);
    assert!(world.nodes[other].ended.is_some());
    let of_first = |item: u32| world.get(&format!("sharding/{item}/instance")).unwrap().ends_with(b"n0");
    assert!((0..6).all(of_first));
    world.reattach(0);
    world.run_for(500);
    world.assert_all_owned();
}

#[test]
fn p4_a_lost_session_ends_a_detached_instance_at_once() {
    let mut world = one_node(patient);
    world.next_duration_ms = Some(60_000);
    world.run_for(2_000);
    world.break_stream(0, GRACE);
    world.run_for(100);
    assert!(world.nodes[0].ended.is_none());
    world.expire(0);
    // No application is there, and the next session registers no instance.
    let registered = world.commits[&Purpose::Register];
    world.run_for(500);
    assert!(world.nodes[0].ended.is_some());
    assert_eq!(world.commits[&Purpose::Register], registered);
    assert!(!world.paths().iter().any(|path| path.contains("instances/")));
}

#[test]
fn p2_items_that_a_detached_application_may_execute_are_not_passed_on() {
    for seed in seeds(8) {
        let mut configuration = six_items();
        patient(&mut configuration);
        configuration.failover = seed % 2 == 0;
        let mut world = World::new(seed, configuration);
        world.join();
        world.join();
        world.run_for(1_000);
        // The next executions of the first node take longer than any timeout.
        world.duration_max_ms = 60_000;
        for _ in 0..100 {
            if !world.nodes[0].executions.is_empty() {
                break;
            }
            world.run_for(100);
        }
        assert!(!world.nodes[0].executions.is_empty(), "seed {seed}");
        let waits = if seed % 4 < 2 {
            world.break_stream(0, GRACE);
            world.run_for(500);
            // No message can stop the application when the drain is over.
            world.drain_within(0, Duration::from_millis(100));
            2_000
        } else {
            world.drain_within(0, Duration::from_millis(600));
            world.run_for(500);
            world.break_stream(0, GRACE);
            2_500
        };
        // The application does not learn that, and goes on; the world notices two executions of one item.
        world.run_for(waits);
        assert!(world.nodes[0].ended.is_none(), "seed {seed}");
        world.run_for(3_000);
        assert!(world.nodes[0].ended.is_some(), "seed {seed}");
        world.settle();
    }
}

#[test]
fn p2_an_application_disconnected_after_its_stream_broke_stops_by_itself() {
    for seed in seeds(4) {
        let mut configuration = six_items();
        patient(&mut configuration);
        configuration.failover = true;
        for (property, value) in [("execution-timeout", "2s"), ("cancel-grace", "1s")] {
            configuration.props.insert(format!("sidekeeper.{property}"), value.to_owned());
        }
        let mut world = World::new(seed, configuration);
        world.join();
        world.join();
        world.run_for(1_500);
        world.next_duration_ms = Some(60_000);
        while world.nodes[0].executions.is_empty() {
            world.run_for(10);
        }
        // The application learns neither of the cancel nor of the disconnection.
        world.run_for(1_900);
        world.break_stream_unseen(0, GRACE);
        world.next_duration_ms = Some(100);
        world.run_for(1_500);
        assert!(world.problems.iter().any(|problem| problem.contains("has not reported")), "seed {seed}");
        assert!(!world.nodes[0].executions.is_empty() && world.nodes[0].ended.is_none(), "seed {seed}");
        world.run_for(3_500);
        assert!(matches!(world.nodes[0].ended, Some(EndReason::Unresponsive { .. })), "seed {seed}");
        world.assert_all_owned();
    }
}

#[test]
fn p2_a_reattaching_application_stops_before_a_drain_passes_its_items_on() {
    let mut world = executing_for_long();
    world.toggle_suspended(0);
    world.break_stream(0, GRACE);
    world.look(0);
    world.reattach(0);
    world.look(0);
    world.drain_within(0, Duration::from_secs(10));
    world.look(0);
    // It has read the end of its stream, and stopped.
    assert!(world.nodes[0].executions.is_empty() && world.nodes[0].ended.is_none());
    world.resume_all();
    world.run_for(4_000);
    assert!(matches!(world.nodes[0].ended, Some(EndReason::Drained)));
    world.assert_all_owned();
}

#[test]
fn p2_a_second_break_during_a_drain_starts_a_new_grace() {
    let mut world = executing_for_long();
    world.break_stream(0, GRACE);
    world.run_for(2_000);
    world.drain_within(0, Duration::from_secs(10));
    world.reattach(0);
    world.break_stream_unseen(0, GRACE);
    // The grace of the first break ends, that of the second does not.
    world.run_for(2_000);
    assert!(!world.nodes[0].executions.is_empty() && world.nodes[0].ended.is_none());
    world.run_for(4_000);
    assert!(matches!(world.nodes[0].ended, Some(EndReason::Detached)), "{:?}", world.nodes[0].ended);
    world.assert_all_owned();
}

#[test]
fn p1_a_start_from_before_the_break_is_sent_before_its_item_is_revoked() {
    let mut configuration = six_items();
    patient(&mut configuration);
    let mut world = World::new(7, configuration);
    world.next_duration_ms = Some(100);
    world.join();
    world.run_for(2_500);
    world.settle();
    let starts = world.commits[&Purpose::Start];
    world.now = second(4) + SignedDuration::from_millis(5);
    world.look(0);
    assert_eq!(world.commits[&Purpose::Start], starts + 1);
    world.put("servers/10.0.0.1", "DISABLED");
    world.break_stream(0, GRACE);
    world.look(0);
    world.reattach(0);
    world.look(0);
    let told = world.starts.len();
    world.take_effect(0);
    world.run_for(200);
    // The world checks that each executed item was assigned.
    assert_eq!(world.starts.len(), told + 6);
    world.run_for(3_000);
    assert!(world.nodes[0].items.is_empty());
    assert_eq!(world.interrupted, []);
}

#[test]
fn p2_a_detached_instance_keeps_its_items_though_its_server_is_disabled() {
    let mut configuration = six_items();
    patient(&mut configuration);
    let mut world = World::new(7, configuration);
    world.join();
    world.join();
    world.run_for(4_500);
    world.settle();
    let owns = |world: &World, node: usize| {
        let owner = |item| world.get(&format!("sharding/{item}/instance")).unwrap();
        (0..6).filter(|item| owner(*item).ends_with(format!("n{node}").as_bytes())).count()
    };
    assert_eq!(owns(&world, 0), 3);
    world.break_stream(0, GRACE);
    world.run_for(100);
    world.put("servers/10.0.0.1", "DISABLED");
    world.run_for(2_000);
    // The application does not know that, and may work on them.
    assert_eq!(owns(&world, 0), 3);
    world.reattach(0);
    world.run_for(1_500);
    assert_eq!((world.nodes[0].items.len(), owns(&world, 1)), (0, 6));
}

#[test]
fn p2_the_items_of_a_detached_continuous_owner_wait_for_the_grace() {
    for (drained, joins, unknown) in
        [(true, false, false), (false, true, false), (true, true, false), (true, true, true)]
    {
        let mut configuration = six_items();
        patient(&mut configuration);
        for (property, value) in [("ownership", "continuous"), ("handoff-deadline", "1s")] {
            configuration.props.insert(format!("sidekeeper.{property}"), value.to_owned());
        }
        let mut world = World::new(7, configuration);
        let two = [world.join(), world.join()];
        for _ in 0..10 {
            two.into_iter().for_each(|node| world.acknowledge(node));
            world.run_for(100);
        }
        world.settle_owned();
        let mine = |world: &World| {
            let owner = |item| world.get(&format!("sharding/{item}/instance")).unwrap();
            (0..6).filter(|item| owner(*item).ends_with(b"n0")).count()
        };
        assert_eq!(mine(&world), 3);
        world.break_stream(0, GRACE);
        if unknown {
            // The answer to its announcement as detached is lost, so its items are not known for a moment.
            world.look(0);
            world.loses_answer = Some(0);
            world.take_effect(0);
        } else {
            world.run_for(300);
        }
        if drained {
            world.drain_within(0, Duration::from_secs(10));
            world.look(0);
        }
        if joins {
            world.join();
        }
        world.run_for(2_000);
        // No message reaches the application, which works on its items without executions.
        assert_eq!((mine(&world), &world.nodes[0].ended), (3, &None), "{drained}, {joins}, {unknown}");
        world.run_for(2_000);
        assert!(world.nodes[0].ended.is_some());
        world.settle();
        assert_eq!(mine(&world), 0);
    }
}
