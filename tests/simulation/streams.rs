//! Streams that break, and come back within the grace of their job, or do not (P2, P5, P6).

use std::time::Duration;

use jiff::SignedDuration;
use sidekeeper::coordination::job::contract::commit::Purpose;
use sidekeeper::coordination::job::contract::effect::EndReason;
use sidekeeper::job::{Item, JobConfiguration};

use crate::cases::one_node;
use crate::misfires::{assert_nothing_lost, second};
use crate::scenarios::seeds;
use crate::world::{World, six_items};

const GRACE: Duration = Duration::from_secs(3);

fn patient(configuration: &mut JobConfiguration) {
    configuration.props.insert("sidekeeper.grace".to_owned(), "3s".to_owned());
}

/// The second of the next fire, and lets it be close.
fn come_close_to_a_fire(world: &mut World) {
    let next = second(world.now.duration_since(second(0)).as_secs() / 2 * 2 + 2);
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
fn p5_nothing_is_lost_and_nothing_runs_twice_while_streams_break_and_come_back() {
    for seed in seeds(50) {
        let mut configuration = six_items();
        patient(&mut configuration);
        let mut world = World::new(seed, configuration);
        world.duration_max_ms = 2_500;
        world.lossy = seed % 2 == 1;
        world.join();
        world.run_for(2_500);
        let from = second(world.now.duration_since(second(0)).as_secs() / 2 * 2 + 2);
        for _ in 0..12 {
            come_close_to_a_fire(&mut world);
            let staying = world.staying();
            let pick = staying[world.random.below(staying.len() as u64) as usize];
            match world.random.below(4) {
                0 if staying.len() < 4 => drop(world.join()),
                1 | 2 if !world.is_away(pick) => {
                    world.break_stream(pick, GRACE);
                    let away = world.random.below(2_500) as i64;
                    world.run_for(away);
                    world.come_back(pick);
                }
                _ => {}
            }
            world.run_for(500);
        }
        let to = world.now;
        world.duration_max_ms = 300;
        world.run_for(10_000);
        world.settle();
        world.assert_all_owned();
        assert_eq!(world.interrupted, [], "seed {seed}");
        assert_nothing_lost(&world, from, to);
    }
}

#[test]
pub fn p1_p2_p5_p6_hold_while_applications_come_back_within_their_grace_or_do_not() {
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
                (2 | 3, Some(pick)) if !world.is_away(pick) => world.break_stream(pick, GRACE),
                (4 | 5, Some(pick)) => world.come_back(pick),
                (6, Some(pick)) if !world.is_away(pick) => world.kill(pick),
                (7, Some(pick)) if !world.is_away(pick) => world.drain(pick),
                (8, Some(pick)) => world.expire(pick),
                _ => {}
            }
            world.run_for(400);
        }
        world.join();
        world.run_for(15_000);
        world.settle();
        world.assert_all_owned();
        let recent = world.now - SignedDuration::from_secs(5);
        for (item, at) in world.interrupted.iter().filter(|(_, at)| *at < recent) {
            let made_good = world.made_good.iter().any(|(other, started)| other == item && started >= at);
            let starts: Vec<_> = world.starts.iter().filter(|start| start.item == *item).collect();
            assert!(made_good, "seed {seed}: item {item}, interrupted at {at}: {starts:#?}");
        }
    }
}

#[test]
pub fn who_is_away_keeps_its_items_and_gets_no_new_ones() {
    let mut world = one_node(patient);
    let [second, third] = [0, 1].map(|_| world.join());
    world.run_for(900);
    let kept = world.nodes[second].items.clone();
    assert_eq!(kept.len(), 2);
    world.break_stream(second, GRACE);
    world.run_for(200);
    assert!(says(&world, second).contains("away"), "{}", says(&world, second));
    // The third one's items go to whoever can execute them.
    world.drain(third);
    world.run_for(500);
    assert!(world.nodes[third].ended.is_some());
    assert_eq!(world.nodes[0].items.len(), 4);
    let owner = |world: &World, item: &Item| {
        String::from_utf8(world.get(&format!("sharding/{item}/instance")).unwrap()).unwrap()
    };
    assert!(kept.iter().all(|item| owner(&world, item).ends_with("n1")));
    world.come_back(second);
    world.run_for(900);
    assert!(!says(&world, second).contains("away"));
    assert_eq!((world.nodes[0].items.len(), world.nodes[second].items.len()), (3, 3));
}

#[test]
fn p1_if_everybody_is_away_the_items_have_owners_all_the_same() {
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
    world.come_back(0);
    world.run_for(500);
    world.assert_all_owned();
}

/// Two nodes, of which the first, the leader, dies while it executes; then turns until the second meets a condition, and
/// dies as well.
fn second_dies(seed: u64, when: impl Fn(&World) -> bool) -> World {
    let mut configuration = six_items();
    configuration.failover = true;
    let mut world = World::new(seed, configuration);
    world.duration_max_ms = 1_000;
    world.join();
    world.run_for(1_000);
    world.join();
    world.run_until(second(4) + SignedDuration::from_millis(20));
    world.kill(0);
    for _ in 0..100 {
        if when(&world) {
            break;
        }
        world.turn();
    }
    assert!(when(&world), "seed {seed}");
    world.kill(1);
    world.run_for(1_000);
    assert!(world.nodes[1].ended.is_some(), "seed {seed}");
    world
}

#[test]
fn p6_who_dies_while_it_stands_for_election_leaves_no_leader() {
    // What it leaves is looked at when it has ended.
    for seed in seeds(50) {
        let world = second_dies(seed, |world| world.is_standing(1));
        assert_eq!(world.get("leader/election/instance"), None, "seed {seed}");
    }
}

/// Its application dies while it stands; it is elected when its instance has gone, while it has the nodes read again.
#[test]
pub fn p6_an_instance_that_is_elected_when_it_has_left_and_reads_again_leaves_no_leader() {
    let mut world = World::new(1, JobConfiguration { failover: true, ..six_items() });
    for _ in 0..4 {
        world.join();
        world.run_for(1_000);
    }
    world.run_until(second(6) - SignedDuration::from_millis(500));
    world.kill(0);
    for _ in 0..100 {
        if world.is_standing(1) {
            break;
        }
        world.turn();
    }
    world.kill(1);
    world.look(1);
    let instance = format!("instances/{}", world.nodes[1].instance);
    for _ in 0..10 {
        if world.get(&instance).is_none() {
            break;
        }
        world.take_first_effect(1);
    }
    world.look(1);
    assert!(world.is_standing(1) && world.get(&instance).is_none());
    // An item begins to run, and an instance crashes: that may be what it executed, so the nodes are read again.
    world.put("sharding/3/running", "10.9.9.9@-@4711");
    world.crash(3);
    world.end_session(3);
    world.look(1);
    assert!(world.is_reading(1));
    for _ in 0..10 {
        if world.is_standing(1) {
            world.take_first_effect(1);
        }
    }
    assert!(world.get("leader/election/instance").unwrap().ends_with(b"n1"));
    // What it leaves is looked at when it ends.
    world.look(1);
    assert_eq!(world.nodes[1].ended, None);
    world.run_for(500);
    assert!(world.nodes[1].ended.is_some());
}

#[test]
pub fn p6_who_dies_while_it_takes_items_over_gives_them_back() {
    for seed in seeds(50) {
        let world = second_dies(seed, |world| world.is_taking(1));
        let left: Vec<_> = world.paths().into_iter().filter(|path| path.ends_with("/failover")).collect();
        assert_eq!(left, ["/ns/job/leader/failover"], "seed {seed}");
    }
}

#[test]
fn p4_a_session_that_is_lost_ends_an_absence_at_once() {
    let mut world = one_node(patient);
    world.next_duration_ms = Some(60_000);
    world.run_for(2_000);
    world.break_stream(0, GRACE);
    world.run_for(100);
    assert!(world.nodes[0].ended.is_none());
    world.expire(0);
    // Nobody is there to be told, and the next session is nobody's.
    let registered = world.commits[&Purpose::Register];
    world.run_for(500);
    assert!(world.nodes[0].ended.is_some());
    assert_eq!(world.commits[&Purpose::Register], registered);
    assert!(!world.paths().iter().any(|path| path.contains("instances/")));
}

#[test]
fn p2_what_an_application_without_a_stream_may_execute_is_not_handed_on() {
    for seed in seeds(8) {
        let mut configuration = six_items();
        patient(&mut configuration);
        configuration.failover = seed % 2 == 0;
        let mut world = World::new(seed, configuration);
        world.join();
        world.join();
        world.run_for(1_000);
        // What the first one begins next goes on for longer than anybody waits.
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
            // Nobody can tell it to stop when the drain is over.
            world.drain_within(0, Duration::from_millis(100));
            2_000
        } else {
            world.drain_within(0, Duration::from_millis(600));
            world.run_for(500);
            world.break_stream(0, GRACE);
            2_500
        };
        // The application does not hear that, and goes on; two that execute an item at once are noticed.
        world.run_for(waits);
        assert!(world.nodes[0].ended.is_none(), "seed {seed}");
        world.run_for(3_000);
        assert!(world.nodes[0].ended.is_some(), "seed {seed}");
        world.settle();
    }
}

#[test]
fn p2_who_is_expelled_when_its_stream_has_just_broken_stops_by_itself() {
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
        // It hears neither that it is to stop, nor that it is expelled.
        world.run_for(1_900);
        world.break_stream_unseen(0, GRACE);
        world.next_duration_ms = Some(100);
        world.run_for(1_500);
        assert!(world.problems.iter().any(|problem| problem.contains("has not reported")), "seed {seed}");
        assert!(!world.nodes[0].executions.is_empty() && world.nodes[0].ended.is_none(), "seed {seed}");
        world.run_for(3_500);
        assert!(matches!(world.nodes[0].ended, Some(EndReason::Disobedient { .. })), "seed {seed}");
        world.assert_all_owned();
    }
}

#[test]
fn p2_who_is_back_and_was_not_told_is_told_to_stop_before_a_drain_gives_anything_away() {
    let mut world = executing_for_long();
    world.toggle_suspended(0);
    world.break_stream(0, GRACE);
    world.look(0);
    world.come_back(0);
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
fn p2_who_comes_back_when_its_place_is_gone_and_breaks_off_again_is_waited_for() {
    let mut world = executing_for_long();
    world.break_stream(0, GRACE);
    world.run_for(2_000);
    world.drain_within(0, Duration::from_secs(10));
    world.come_back(0);
    world.break_stream_unseen(0, GRACE);
    // The grace of the first break ends, that of the second does not.
    world.run_for(2_000);
    assert!(!world.nodes[0].executions.is_empty() && world.nodes[0].ended.is_none());
    world.run_for(4_000);
    assert!(matches!(world.nodes[0].ended, Some(EndReason::Detached)), "{:?}", world.nodes[0].ended);
    world.assert_all_owned();
}

#[test]
fn p1_what_started_before_the_stream_broke_is_told_before_its_item_is_gone() {
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
    world.come_back(0);
    world.look(0);
    let told = world.starts.len();
    world.take_effect(0);
    world.run_for(200);
    // The world looks whether what is executed was assigned.
    assert_eq!(world.starts.len(), told + 6);
    world.run_for(3_000);
    assert!(world.nodes[0].items.is_empty());
    assert_eq!(world.interrupted, []);
}

#[test]
fn p2_who_is_away_gives_nothing_away_though_its_server_is_disabled() {
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
    // The application does not know, and may work on them.
    assert_eq!(owns(&world, 0), 3);
    world.come_back(0);
    world.run_for(1_500);
    assert_eq!((world.nodes[0].items.len(), owns(&world, 1)), (0, 6));
}

#[test]
fn p2_what_a_continuous_owner_without_a_stream_works_on_waits_for_its_grace() {
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
        world.settle();
        world.assert_all_owned();
        let mine = |world: &World| {
            let owner = |item| world.get(&format!("sharding/{item}/instance")).unwrap();
            (0..6).filter(|item| owner(*item).ends_with(b"n0")).count()
        };
        assert_eq!(mine(&world), 3);
        world.break_stream(0, GRACE);
        if unknown {
            // What it says that it is away is not answered, so what it owns is not known for a moment.
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
        // Nobody can tell the application, which works without being told to execute.
        assert_eq!((mine(&world), &world.nodes[0].ended), (3, &None), "{drained}, {joins}, {unknown}");
        world.run_for(2_000);
        assert!(world.nodes[0].ended.is_some());
        world.settle();
        assert_eq!(mine(&world), 0);
    }
}
