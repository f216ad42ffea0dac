//! The start transaction: which items are started, and a start whose answer is lost.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};
use sidekeeper::coordination::job::contract::commit::Purpose;
use sidekeeper::coordination::job::contract::effect::EndReason;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::coordination::job::contract::report::Outcome;
use sidekeeper::job::Item;

use crate::setup::{
    JAVA, counts, delay_request, lose_answer, one_node, running_nodes, second, starts_of, with, with_java,
};
use crate::world::World;

#[test]
pub fn a_disabled_item_is_owned_and_not_executed() {
    let mut world = one_node(|_| {});
    world.put("sharding/2/disabled", "");
    world.run_for(4_000);
    world.assert_all_owned();
    assert_eq!(counts(&world)[2], (0, 0));
    assert_eq!(counts(&world)[3], (2, 0));
    world.remove("sharding/2/disabled");
    world.run_for(4_000);
    assert_eq!(counts(&world)[2], (2, 0));
}

#[test]
pub fn a_disabled_server_that_is_alone_executes_nothing() {
    let mut world = one_node(|_| {});
    world.put("servers/10.0.0.1", "DISABLED");
    world.run_for(500);
    world.starts.clear();
    world.run_for(4_000);
    assert_eq!((world.starts.len(), world.nodes[0].items.len()), (0, 0));
}

#[test]
pub fn p1_p7_an_instance_stopped_with_an_unknown_start_ends_the_executions_and_leaves() {
    for failover in [false, true] {
        let mut world = one_node(|configuration| configuration.failover = failover);
        world.join();
        world.run_for(1_500);
        world.settle();
        lose_answer(&mut world, 0, Purpose::Start);
        assert_eq!(running_nodes(&world).len(), 3);
        world.remove("instances/10.0.0.1@-@n0");
        world.run_for(1_500);
        assert_eq!(world.nodes[0].ended, Some(EndReason::Stopped));
        world.settle_owned();
    }
}

/// A world whose first node is about to start items because of a source: which items, and for which instant.
fn about_to_start(source: Source, failover: bool) -> (World, Vec<u32>, Option<Timestamp>) {
    let mut world = one_node(|configuration| configuration.failover = failover);
    match source {
        Source::Schedule => (world, (0..6).collect(), Some(second(6))),
        Source::Misfire => {
            // It sleeps over five fires.
            world.now += SignedDuration::from_millis(10_500);
            (world, (0..6).collect(), Some(second(14)))
        }
        Source::Trigger => {
            world.put("trigger/10.0.0.1@-@n0", "");
            (world, (0..6).collect(), None)
        }
        Source::Failover => {
            let other = world.join();
            world.next_duration_ms = Some(1_500);
            world.run_until(second(7));
            let items = world.nodes[other].items.iter().map(|item| item.0).collect();
            world.crash(other);
            world.end_session(other);
            (world, items, Some(second(6)))
        }
    }
}

/// The token of a running item.
fn token(world: &World, item: u32) -> Option<i64> {
    let path = format!("sharding/{item}/running");
    world.get(&path).map(|_| world.created(&path))
}

#[test]
pub fn p5_p6_a_start_whose_answer_was_lost_is_sent_once_with_its_source_and_instant() {
    let cases = [
        (Source::Schedule, false),
        (Source::Schedule, true),
        (Source::Misfire, false),
        (Source::Misfire, true),
        (Source::Trigger, false),
        (Source::Trigger, true),
        (Source::Failover, true),
    ];
    for (source, failover) in cases {
        for breaks in [false, true] {
            let (mut world, items, scheduled) = about_to_start(source, failover);
            world.starts.clear();
            lose_answer(&mut world, 0, Purpose::Start);
            let case = format!("{source:?}, failover {failover}, connection breaks {breaks}");
            let nodes: Vec<_> = items.iter().map(|item| token(&world, *item)).collect();
            assert_eq!(world.starts, [], "{case}");
            world.next_duration_ms = Some(200);
            let asked = world.now;
            if breaks {
                world.toggle_suspended(0);
                world.look(0);
                world.toggle_suspended(0);
            }
            world.run_for(100);
            // The nodes that it has created are the executions': nothing was started a second time.
            assert_eq!(items.iter().map(|item| token(&world, *item)).collect::<Vec<_>>(), nodes, "{case}");
            // It is sent soon, and not with the next fire.
            world.run_for(350);
            for item in &items {
                let starts: Vec<_> = world.starts.iter().filter(|start| start.item == Item(*item)).collect();
                let [start] = starts[..] else { panic!("{case}: item {item}: {starts:?}") };
                assert_eq!((start.source, start.node), (source, 0), "{case}");
                assert!(scheduled.is_none_or(|scheduled| start.scheduled == scheduled), "{case}: {start:?}");
                assert!(start.scheduled <= asked, "{case}: {start:?}");
                assert_eq!(world.get(&format!("sharding/{item}/running")), None, "{case}");
            }
        }
    }
}

/// A request can take effect after its sender has connected again and has read the job's nodes without it.
#[test]
pub fn p5_an_item_whose_start_takes_effect_late_is_executed_once_for_its_instant() {
    let sources = [Source::Schedule, Source::Misfire, Source::Trigger];
    for (source, failover) in sources.into_iter().flat_map(|source| [(source, false), (source, true)]) {
        let case = format!("{source:?}, failover {failover}");
        let mut world = one_node(|configuration| {
            configuration.cron = Some("0/20 * * * * ?".to_owned());
            configuration.failover = failover;
        });
        match source {
            Source::Trigger => world.put("trigger/10.0.0.1@-@n0", ""),
            Source::Misfire => world.now = second(25),
            Source::Schedule | Source::Failover => world.run_until(second(19)),
        }
        world.starts.clear();
        delay_request(&mut world, 0, Purpose::Start);
        let asked = world.now;
        world.toggle_suspended(0);
        world.look(0);
        world.toggle_suspended(0);
        world.look(0);
        while !world.is_reading_ledger(0) {
            world.take_first_effect(0);
            world.look(0);
        }
        assert_eq!(running_nodes(&world).len(), 0, "{case}");
        world.deliver_delayed();
        world.run_for(5_000);
        let mut items: Vec<_> = world.starts.iter().map(|start| start.item.0).collect();
        items.sort_unstable();
        assert_eq!(items, [0, 1, 2, 3, 4, 5], "{case}: {:?}", world.starts);
        for start in &world.starts {
            assert!(start.scheduled <= asked, "{case}: {start:?}");
            assert_eq!(start.source == Source::Failover, failover, "{case}: {start:?}");
        }
    }
}

/// The start of a retry takes effect late. Before it, another unknown running node may have been looked up.
#[test]
pub fn p5_a_retry_whose_start_takes_effect_late_is_executed_at_once() {
    for (failover, looked_up) in [(false, false), (false, true), (true, false)] {
        let case = format!("failover {failover}, looked up before {looked_up}");
        let mut world = one_node(|configuration| {
            configuration.cron = Some("0 * * * * ?".to_owned());
            configuration.failover = failover;
            with(&[("retry-max-attempts", "2"), ("retry-backoff", "1s")])(configuration);
        });
        for item in if looked_up { vec![3, 5] } else { vec![3] } {
            world.outcomes.insert(Item(item), VecDeque::from([Outcome::Failure("no stock".to_owned())]));
        }
        world.run_until(second(60));
        while world.starts.len() < 6 || !running_nodes(&world).is_empty() {
            world.run_for(10);
        }
        if looked_up {
            world.put("sharding/5/running", "10.0.0.9@-@another");
        }
        world.starts.clear();
        delay_request(&mut world, 0, Purpose::Start);
        let asked = world.now;
        world.toggle_suspended(0);
        world.look(0);
        world.toggle_suspended(0);
        world.look(0);
        while !world.is_reading_ledger(0) {
            world.take_first_effect(0);
            world.look(0);
        }
        world.deliver_delayed();
        world.run_for(15_000);
        let starts = starts_of(&world, 3);
        let [start] = &starts[..] else { panic!("{case}: {:?}", world.starts) };
        assert_eq!(start.scheduled, second(60), "{case}");
        let expected = if failover { (Source::Failover, 1) } else { (Source::Schedule, 2) };
        assert_eq!((start.source, start.attempt), expected, "{case}");
        assert!(start.at >= asked, "{case}");
    }
}

#[test]
fn p2_a_start_that_becomes_known_after_the_drain_timeout_is_not_executed() {
    // No application is told to stop it when its deadline is over.
    let limits = [("execution-timeout", "500ms"), ("cancel-grace", "100ms")];
    for (failover, limits) in [(false, &limits[..0]), (true, &limits[..0]), (true, &limits)] {
        let mut world = one_node(|configuration| {
            configuration.failover = failover;
            with(limits)(configuration);
        });
        world.next_duration_ms = Some(100);
        world.run_for(2_000);
        world.settle();
        world.next_duration_ms = Some(60_000);
        let (asked, begun) = (world.commits[&Purpose::Start], world.starts.len());
        world.now = second(8) + SignedDuration::from_millis(5);
        world.look(0);
        assert_eq!(world.commits[&Purpose::Start], asked + 1);
        // Whether it took effect is known when the registry is heard of again.
        world.loses_answer = Some(0);
        world.take_effect(0);
        world.drain_within(0, std::time::Duration::from_millis(10));
        world.look(0);
        world.now += SignedDuration::from_millis(20);
        world.look(0);
        world.run_for(4_000);
        assert_eq!((world.starts.len(), &world.nodes[0].ended), (begun, &Some(EndReason::Drained)));
        assert_eq!(world.cancels, []);
    }
}

#[test]
pub fn p8_nothing_starts_while_a_java_leader_has_to_reshard() {
    let mut world = with_java(|_| {});
    world.remove("leader/election/instance");
    world.put("leader/election/instance", JAVA);
    world.run_for(200);
    world.put("leader/sharding/necessary", "");
    world.run_for(200);
    world.starts.clear();
    world.run_for(5_000);
    assert_eq!(world.starts, []);
    world.remove("leader/sharding/necessary");
    world.run_for(3_000);
    assert!(!world.starts.is_empty());
}
