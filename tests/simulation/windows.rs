//! What happens in narrow windows: between a request and its effect, between a fire and a change of owners.

use jiff::Timestamp;
use sidekeeper::coordination::job::contract::commit::Purpose;
use sidekeeper::coordination::job::contract::effect::EndReason;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::elasticjob::config_yaml;
use sidekeeper::job::Item;

use crate::cases::{one_node, relay};
use crate::handoff::with;
use crate::world::{World, six_items};

fn second(second: i64) -> Timestamp {
    Timestamp::from_second("2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap().as_second() + second).unwrap()
}

fn told(world: &World, item: u32, source: Source) -> Vec<Timestamp> {
    let of_item = world.starts.iter().filter(|start| start.item == Item(item) && start.source == source);
    of_item.map(|start| start.scheduled).collect()
}

/// A world whose node has asked to make up for missed fires, and has not been answered when the next fire comes.
fn making_up(seed: i64) -> Option<World> {
    let mut world = one_node(|_| {});
    world.next_duration_ms = Some(3_900);
    // It executes from :06, and :08 is missed.
    world.run_until(second(9) + jiff::SignedDuration::from_millis(800 + seed));
    let starts = |world: &World| world.commits.get(&Purpose::Start).copied().unwrap_or_default();
    let before = starts(&world);
    while starts(&world) == before && world.now < second(10) {
        world.turn();
        world.run_for(1);
    }
    let waits = starts(&world) > before && world.get("sharding/0/running").is_none();
    (waits && world.now < second(10) && world.get("sharding/0/misfire").is_some()).then_some(world)
}

#[test]
pub fn p5_a_fire_that_comes_while_missed_ones_are_being_made_up_for_is_not_taken_for_one_of_them() {
    let mut met = 0;
    for seed in 0..200 {
        let Some(mut world) = making_up(seed) else { continue };
        met += 1;
        world.next_duration_ms = Some(300);
        world.now = second(10) + jiff::SignedDuration::from_millis(5);
        world.look(0);
        world.take_effect(0);
        world.run_for(1_500);
        let made_up = told(&world, 0, Source::Misfire);
        assert!(made_up.contains(&second(10)), "{seed}: {:#?}", world.starts);
    }
    assert!(met > 0);
}

#[test]
pub fn p5_what_a_busy_item_misses_while_it_is_to_change_hands_is_known_to_who_comes_later() {
    let mut world = one_node(with(&[("handoff", "off")]));
    world.next_duration_ms = Some(3_500);
    world.run_until(second(7));
    // It waits for what is executed until :09.5, and the fire at :08 with it.
    world.join();
    world.run_until(second(8) + jiff::SignedDuration::from_millis(600));
    world.join();
    world.next_duration_ms = Some(50);
    world.run_until(second(9) + jiff::SignedDuration::from_millis(990));
    for item in 0..6 {
        let starts: Vec<_> = world.starts.iter().filter(|start| start.item == Item(item)).collect();
        assert!(starts.iter().any(|start| start.scheduled == second(8)), "item {item}: {starts:#?}");
    }
}

#[test]
pub fn p6_who_dies_with_items_that_it_has_taken_over_and_not_begun_hands_them_on() {
    let mut met = 0;
    for seed in 0..30 {
        let mut configuration = six_items();
        configuration.failover = true;
        let mut world = World::new(seed, configuration);
        world.duration_max_ms = 1_000;
        world.join();
        world.run_for(1_000);
        world.join();
        world.run_until(second(4) + jiff::SignedDuration::from_millis(20));
        world.kill(0);
        let has_taken = |world: &World| {
            let taken = |path: &String| path.contains("/sharding/") && path.ends_with("/failover");
            world.paths().iter().any(taken)
        };
        for _ in 0..400 {
            if has_taken(&world) {
                break;
            }
            world.turn();
        }
        met += usize::from(has_taken(&world));
        world.kill(1);
        world.run_for(1_000);
        assert!(world.nodes[1].ended.is_some(), "seed {seed}");
        assert!(!has_taken(&world), "seed {seed}: {:?}", world.paths());
    }
    assert!(met > 10, "{met}");
}

#[test]
fn p5_when_a_relay_ends_new_items_are_executed_for_no_fire_before_there_were_those() {
    for turn in 0..3 {
        let mut world = relay();
        let fire = second(4 + 2 * turn);
        world.run_until(fire - jiff::SignedDuration::from_millis(100));
        world.next_duration_ms = Some(1_500);
        world.run_until(fire + jiff::SignedDuration::from_millis(200));
        assert!(told(&world, 0, Source::Schedule).contains(&fire));
        let mut configuration = six_items();
        configuration.sharding_total_count = 3;
        configuration.job_sharding_strategy_type = Some("SINGLE_SHARDING_BALANCE".to_owned());
        world.put("config", &config_yaml::write(&configuration));
        world.next_duration_ms = Some(100);
        world.run_until(fire + jiff::SignedDuration::from_millis(3_500));
        let misfires = world.starts.iter().filter(|start| start.source == Source::Misfire);
        assert_eq!(misfires.count(), 0, "{turn}: {:#?}", world.starts);
        assert_eq!(told(&world, 1, Source::Schedule), [fire + jiff::SignedDuration::from_secs(2)]);
    }
}

#[test]
pub fn p5_without_a_ledger_a_clock_set_back_a_little_fires_nothing_again() {
    let mut world = one_node(|configuration| configuration.monitor_execution = false);
    world.set_wall_back(jiff::SignedDuration::from_secs(20));
    world.run_for(15_000);
    assert_eq!(world.starts, []);
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
fn p5_who_is_triggered_before_the_items_are_divided_executes_them_then() {
    let mut configuration = six_items();
    configuration.cron = None;
    let mut world = World::new(7, configuration);
    let node = world.join();
    while !world.commits.contains_key(&Purpose::Register) {
        world.take_effect(node);
        world.look(node);
    }
    world.take_effect(node);
    world.put("trigger/10.0.0.1@-@n0", "");
    world.look(node);
    assert_eq!(world.get("sharding/0/instance"), None);
    world.run_for(600);
    assert_eq!(world.get("trigger/10.0.0.1@-@n0"), None);
    assert!((0..6).all(|item| told(&world, item, Source::Trigger).len() == 1), "{:#?}", world.starts);
}

/// As in ElasticJob, where a fire waits until the items are divided.
#[test]
fn p5_who_is_there_at_a_fire_and_has_to_wait_for_the_first_division_executes_it_then() {
    for (late, source) in [(5, Source::Schedule), (1_700, Source::Misfire)] {
        for disabled in [false, true] {
            let mut world = World::new(7, six_items());
            world.run_until(second(2) - jiff::SignedDuration::from_millis(300));
            if disabled {
                world.put("servers/10.0.0.1", "DISABLED");
            }
            let node = world.join();
            while !world.commits.contains_key(&Purpose::Register) {
                world.take_effect(node);
                world.look(node);
            }
            world.take_effect(node);
            world.look(node);
            assert_eq!(world.get("sharding/0/instance"), None);
            world.now = second(2) + jiff::SignedDuration::from_millis(late);
            world.look(node);
            if disabled {
                world.put("servers/10.0.0.1", "ENABLED");
            }
            world.run_until(second(3) + jiff::SignedDuration::from_millis(990));
            // While the only server is disabled, nobody expects anything of it.
            let expected = usize::from(!disabled);
            let all = (0..6).all(|item| told(&world, item, source).len() == expected);
            assert!(all && world.starts.len() == 6 * expected, "{late} {disabled}: {:#?}", world.starts);
            assert!(world.starts.iter().all(|start| start.scheduled == second(2)));
        }
    }
}

#[test]
fn p5_who_was_disabled_for_a_while_makes_up_for_what_a_new_job_has_missed() {
    let mut world = World::new(7, six_items());
    world.duration_max_ms = 100;
    for _ in 0..2 {
        world.join();
        world.run_for(500);
    }
    world.run_until(second(2) - jiff::SignedDuration::from_millis(100));
    world.crash(0);
    world.run_until(second(2) + jiff::SignedDuration::from_millis(500));
    for status in ["DISABLED", "ENABLED"] {
        world.put("servers/10.0.0.2", status);
        world.run_for(100);
    }
    world.end_session(0);
    world.run_until(second(3) + jiff::SignedDuration::from_millis(900));
    let executed = |item: u32| {
        let mut starts = world.starts.iter().filter(|start| start.item == Item(item));
        starts.any(|start| start.scheduled == second(2))
    };
    assert!((0..6).all(executed), "{:#?}", world.starts);
}

#[test]
fn p6_a_completion_that_comes_late_ends_no_other_execution() {
    let mut met = 0;
    for seed in 0..40 {
        let mut world = World::new(seed, six_items());
        world.join();
        world.next_duration_ms = Some(300);
        while !world.commits.contains_key(&Purpose::Complete) {
            world.run_for(1);
        }
        if world.get("sharding/0/running").is_none() {
            continue;
        }
        met += 1;
        // The request is on its way. Its instance has been registered anew, in another session, and has begun the item again.
        world.put("leader/sharding", "");
        world.remove("sharding/0/running");
        world.put("sharding/0/running", "10.0.0.1@-@n0");
        world.take_effect(0);
        assert!(world.get("sharding/0/running").is_some(), "seed {seed}");
    }
    assert!(met > 0);
}

/// The earlier session lives on in the registry when the next one looks, and ends while its instance leaves.
#[test]
fn p5_p6_what_an_earlier_session_left_is_flagged_though_its_instance_was_still_there() {
    let mut world = one_node(|configuration| configuration.failover = true);
    world.next_duration_ms = Some(60_000);
    world.run_for(2_500);
    assert!(world.get("sharding/0/running").is_some());
    world.drain(0);
    world.expire(0);
    let [instance, leader] = ["instances/10.0.0.1@-@n0", "leader/election/instance"];
    world.put(instance, "jobInstanceId: 10.0.0.1@-@n0\nserverIp: 10.0.0.1\n");
    world.put(leader, "10.0.0.1@-@n0");
    while !world.commits.contains_key(&Purpose::Leave) {
        world.turn();
    }
    world.take_effect(0);
    assert!(world.get(leader).is_none() && world.get("leader/failover/items/0").is_none());
    world.remove(instance);
    world.run_for(1_000);
    assert!(world.nodes[0].ended.is_some());
    for item in 0..6 {
        assert!(world.get(&format!("leader/failover/items/{item}")).is_some(), "{item}");
        assert!(world.get(&format!("sharding/{item}/running")).is_none(), "{item}");
    }
}

/// Goes on until a node asks for something of a kind; then it takes effect, and the node does not learn of it.
fn lose_answer(world: &mut World, node: usize, purpose: Purpose) {
    let count = |world: &World| world.commits.get(&purpose).copied().unwrap_or_default();
    let before = count(world);
    for _ in 0..10_000 {
        world.look(node);
        if count(world) > before {
            break;
        }
        world.take_effect(node);
        world.now += jiff::SignedDuration::from_millis(1);
    }
    assert!(count(world) > before);
    world.loses_answer = Some(node);
    world.take_effect(node);
    assert_eq!(world.loses_answer, None);
}

#[test]
pub fn p1_p7_who_is_stopped_while_it_does_not_know_what_it_has_started_ends_it_and_leaves() {
    for failover in [false, true] {
        let mut world = one_node(|configuration| configuration.failover = failover);
        world.join();
        world.run_for(1_500);
        world.settle();
        lose_answer(&mut world, 0, Purpose::Start);
        let running = |world: &World| world.paths().iter().filter(|path| path.ends_with("/running")).count();
        assert_eq!(running(&world), 3);
        world.remove("instances/10.0.0.1@-@n0");
        world.run_for(1_500);
        assert_eq!(world.nodes[0].ended, Some(EndReason::Stopped));
        world.settle();
        world.assert_all_owned();
    }
}

#[test]
pub fn p1_p6_who_goes_while_it_does_not_know_that_it_is_registered_leaves_nothing() {
    let mut world = one_node(|_| {});
    let node = world.join();
    lose_answer(&mut world, node, Purpose::Register);
    let instance = "instances/10.0.0.2@-@n1";
    assert!(world.get(instance).is_some());
    world.kill(node);
    world.run_for(500);
    assert_eq!((world.nodes[node].ended.clone(), world.get(instance)), (Some(EndReason::Detached), None));
    world.settle();
    world.assert_all_owned();
}

/// A world whose first node is about to start items because of a source: which items, and for which instant.
fn about_to_start(source: Source, failover: bool) -> (World, Vec<u32>, Option<Timestamp>) {
    let mut world = one_node(|configuration| configuration.failover = failover);
    match source {
        Source::Schedule => (world, (0..6).collect(), Some(second(6))),
        Source::Misfire => {
            // It sleeps over five fires.
            world.now += jiff::SignedDuration::from_millis(10_500);
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

/// The token of what runs.
fn token(world: &World, item: u32) -> Option<i64> {
    let path = format!("sharding/{item}/running");
    world.get(&path).map(|_| world.created(&path))
}

#[test]
pub fn p5_p6_a_start_whose_answer_was_lost_is_told_once_for_what_it_was() {
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
            // It is told soon, and not with the next fire.
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

#[test]
fn p2_what_turns_out_to_be_started_when_a_drain_has_given_up_is_not_begun() {
    // Nor is anybody told to stop it when its deadline is over.
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
        world.now = second(8) + jiff::SignedDuration::from_millis(5);
        world.look(0);
        assert_eq!(world.commits[&Purpose::Start], asked + 1);
        // Whether it took effect is known when the registry is heard of again.
        world.loses_answer = Some(0);
        world.take_effect(0);
        world.drain_within(0, std::time::Duration::from_millis(10));
        world.look(0);
        world.now += jiff::SignedDuration::from_millis(20);
        world.look(0);
        world.run_for(4_000);
        assert_eq!((world.starts.len(), &world.nodes[0].ended), (begun, &Some(EndReason::Drained)));
        assert_eq!(world.cancels, []);
    }
}

#[test]
fn p5_who_has_taken_over_before_it_knows_the_ledger_writes_on_what_it_reads_then() {
    let mut met = 0;
    for seed in 0..60 {
        let mut configuration = six_items();
        configuration.failover = true;
        let mut world = World::new(seed, configuration);
        world.duration_max_ms = 200;
        world.join();
        world.run_for(1_000);
        world.join();
        world.run_until(second(4) - jiff::SignedDuration::from_millis(100));
        world.next_duration_ms = Some(60_000);
        while world.nodes[0].executions.is_empty() {
            world.run_for(1);
        }
        // It leads: who takes over what it has executed divides the items at the same time.
        world.next_duration_ms = Some(100);
        world.crash(0);
        world.end_session(0);
        world.run_until(second(5));
        met += usize::from(world.starts.iter().any(|start| start.source == Source::Failover));
        // It is alone, and each fire takes it one transaction.
        let before = world.commits[&Purpose::Start];
        world.run_until(second(7));
        assert_eq!(world.commits[&Purpose::Start], before + 1, "{seed}: {:#?}", world.starts);
    }
    assert!(met > 10, "{met}");
}
