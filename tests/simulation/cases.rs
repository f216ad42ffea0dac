//! Hard cases, one by one: what a clock, a suspension or an operator can do to a schedule and to a sharding.

use jiff::SignedDuration;
use sidekeeper::coordination::job::contract::commit::Purpose;
use sidekeeper::job::Item;

use crate::misfires::second;
use crate::world::{World, six_items};

/// A world with one node that owns everything, some fires old, between two fires.
pub fn one_node(configure: impl FnOnce(&mut sidekeeper::job::JobConfiguration)) -> World {
    let mut configuration = six_items();
    configure(&mut configuration);
    let mut world = World::new(7, configuration);
    world.duration_max_ms = 200;
    world.join();
    world.run_for(5_000);
    world.settle();
    world.assert_all_owned();
    world.starts.clear();
    world
}

/// How often each item was started, as (by the schedule, to make up).
fn counts(world: &World) -> Vec<(usize, usize)> {
    let of = |item: u32, misfire: bool| {
        world.starts.iter().filter(|start| start.item == Item(item) && start.misfire == misfire).count()
    };
    (0..6).map(|item| (of(item, false), of(item, true))).collect()
}

#[test]
fn p5_a_process_that_was_suspended_over_several_fires_makes_up_for_them_once() {
    let mut world = one_node(|_| {});
    // 00:00:05 to 00:00:15.5: five fires pass, the last one more than a second ago.
    world.now += SignedDuration::from_millis(10_500);
    world.run_for(400);
    assert_eq!(counts(&world), [(0, 1); 6]);
}

#[test]
fn p5_a_suspension_that_ends_just_after_a_fire_executes_that_one_and_makes_up_for_the_others() {
    let mut world = one_node(|_| {});
    // 00:00:05 to 00:00:16.3: the fire at 16 is fresh.
    world.now += SignedDuration::from_millis(11_300);
    world.run_for(1_000);
    assert_eq!(counts(&world), [(1, 1); 6]);
}

#[test]
fn p5_without_misfire_what_was_missed_is_skipped() {
    let mut world = one_node(|configuration| configuration.misfire = false);
    world.now += SignedDuration::from_millis(10_500);
    world.run_for(400);
    assert_eq!(counts(&world), [(0, 0); 6]);
    world.run_for(1_500);
    assert_eq!(counts(&world), [(1, 0); 6]);
}

#[test]
fn p5_a_clock_set_forward_by_hours_makes_up_once() {
    let mut world = one_node(|_| {});
    world.now += SignedDuration::from_hours(30);
    world.run_for(900);
    assert_eq!(counts(&world), [(0, 1); 6]);
}

#[test]
pub fn p5_a_clock_set_back_a_little_fires_nothing_again() {
    let mut world = one_node(|_| {});
    world.set_wall_back(SignedDuration::from_secs(20));
    world.run_for(15_000);
    assert_eq!(counts(&world), [(0, 0); 6]);
    world.run_for(10_000);
    assert!(counts(&world).iter().all(|(scheduled, made_up)| *scheduled >= 2 && *made_up == 0));
}

#[test]
pub fn p7_a_clock_set_back_by_hours_does_not_stop_the_job() {
    let mut world = one_node(|_| {});
    world.set_wall_back(SignedDuration::from_hours(5));
    world.run_for(10_000);
    assert!(counts(&world).iter().all(|(scheduled, _)| *scheduled >= 4), "{:?}", counts(&world));
}

#[test]
fn p5_an_execution_longer_than_the_period_is_made_up_for_as_soon_as_it_ends() {
    let mut world = one_node(|_| {});
    world.run_for(900);
    world.next_duration_ms = Some(5_000);
    world.run_for(200);
    assert_eq!(counts(&world), [(1, 0); 6]);
    world.next_duration_ms = None;
    // The executions end at 11; the fires at 8 and 10 met them. One make-up follows at once.
    world.run_for(5_400);
    assert_eq!(counts(&world), [(1, 1); 6]);
}

#[test]
fn p5_a_fire_that_all_of_many_items_miss_is_flagged_in_requests_that_a_server_takes() {
    let mut configuration = six_items();
    configuration.sharding_total_count = 10_000;
    let mut world = World::new(11, configuration);
    world.next_duration_ms = Some(2_500);
    world.join();
    world.run_for(2_500);
    // The items began to run at 2 and are still running at 4.
    world.run_for(1_900);
    let flagged = world.paths().iter().filter(|path| path.ends_with("/misfire")).count();
    assert_eq!(flagged, 10_000);
    world.next_duration_ms = None;
    world.starts.clear();
    world.run_for(1_400);
    let made_up = world.starts.iter().filter(|start| start.misfire).count();
    assert_eq!(made_up, 10_000);
}

#[test]
fn p1_a_sharding_of_many_items_is_split_and_still_gives_each_item_to_one() {
    let mut configuration = six_items();
    configuration.sharding_total_count = 10_000;
    configuration.cron = None;
    let mut world = World::new(3, configuration);
    world.join();
    world.settle();
    world.assert_all_owned();
    world.join();
    world.settle();
    world.assert_all_owned();
    world.drain(0);
    world.settle();
    world.assert_all_owned();
}

#[test]
fn p5_p6_no_transaction_grows_with_the_number_of_items() {
    let mut configuration = six_items();
    // More than are allowed, in place of long names.
    configuration.sharding_total_count = 12_000;
    let mut world = World::new(5, configuration);
    world.next_duration_ms = Some(2_500);
    world.join();
    world.settle();
    world.assert_all_owned();
    let started =
        |world: &World, misfire: bool| world.starts.iter().filter(|start| start.misfire == misfire).count();
    // The second fire meets the executions of the first, and all of it is flagged.
    world.now += SignedDuration::from_secs(2);
    world.settle();
    assert_eq!((started(&world, false), started(&world, true)), (12_000, 0));
    world.now += SignedDuration::from_secs(2);
    world.settle();
    assert_eq!(world.paths().iter().filter(|path| path.ends_with("/misfire")).count(), 12_000);
    world.kill(0);
    world.settle();
    assert!(world.nodes[0].ended.is_some());
    assert!(!world.paths().iter().any(|path| path.ends_with("/running") || path.contains("instances/")));
}

#[test]
fn h4_a_running_node_of_somebody_who_is_gone_does_not_block_a_sharding() {
    let mut world = one_node(|configuration| configuration.failover = true);
    world.put("sharding/3/running", "10.9.9.9@-@gone");
    world.join();
    world.run_for(3_000);
    world.settle();
    world.assert_all_owned();
    world.run_for(4_000);
    let of_three = world.starts.iter().filter(|start| start.item == Item(3)).count();
    assert!(of_three >= 2, "item 3 was started {of_three} times");
}

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
pub fn a_disabled_server_gets_nothing_and_does_not_lead() {
    let mut world = one_node(|_| {});
    world.join();
    world.run_for(1_000);
    world.put("servers/10.0.0.1", "DISABLED");
    world.run_for(3_000);
    world.settle();
    assert_eq!(world.nodes[0].items, []);
    assert_eq!(world.nodes[1].items.len(), 6);
    world.put("servers/10.0.0.1", "ENABLED");
    world.run_for(3_000);
    world.settle();
    assert_eq!(world.nodes[0].items.len(), 3);
}

#[test]
fn h16_a_server_node_that_a_java_start_up_removed_comes_back() {
    let mut world = one_node(|_| {});
    world.remove("servers/10.0.0.1");
    world.run_for(1_000);
    world.settle();
    world.assert_all_owned();
    assert!(world.paths().contains(&"/ns/job/servers/10.0.0.1".to_owned()));
}

#[test]
pub fn removing_the_instance_stops_it_for_good() {
    let mut world = one_node(|_| {});
    world.remove("instances/10.0.0.1@-@n0");
    world.run_for(2_000);
    assert!(world.nodes[0].ended.is_some());
    assert!(!world.paths().iter().any(|path| path.contains("instances/")));
}

#[test]
fn a_clock_that_differs_from_the_registrys_is_told_once_and_taken_back_when_it_is_right() {
    let mut world = one_node(|configuration| configuration.max_time_diff_seconds = 5);
    assert_eq!(world.commits.get(&Purpose::CheckClock), Some(&1), "at the registration");
    world.registry_ahead_ms = 60_000;
    world.run_for(50_000);
    assert_eq!(world.commits.get(&Purpose::CheckClock), Some(&1), "within a minute");
    assert!(world.nodes[0].problems.is_empty(), "{:?}", world.nodes[0].problems);
    world.run_for(200_000);
    // Four minutes of fires, every two seconds.
    assert_eq!(world.commits.get(&Purpose::CheckClock), Some(&5));
    let [told] = world.nodes[0].problems.as_slice() else { panic!("{:?}", world.nodes[0].problems) };
    let [problem] = told.as_slice() else { panic!("{told:?}") };
    assert_eq!(problem.path.as_str(), "/ns/job/systemTime/current");
    let said = &problem.message;
    assert!(said.contains("s behind the registry's, and maxTimeDiffSeconds is 5"), "{said}");
    assert!(said.starts_with("the clock of 10.0.0.1 is 59.9") || said.contains("is 60.0"), "{said}");
    assert!(counts(&world).iter().all(|(scheduled, _)| *scheduled >= 120), "{:?}", counts(&world));

    world.registry_ahead_ms = -4_000;
    world.run_for(70_000);
    assert_eq!(world.nodes[0].problems[1..], [vec![]]);
}

#[test]
fn a_job_that_does_not_care_about_clocks_costs_no_request() {
    let mut world = one_node(|_| {});
    world.registry_ahead_ms = 3_600_000;
    world.run_for(130_000);
    assert_eq!(world.commits.get(&Purpose::CheckClock), None);
    assert!(!world.paths().iter().any(|path| path.contains("systemTime")));
    assert!(world.nodes[0].problems.is_empty());
}

#[test]
fn clocks_are_compared_again_in_a_new_session_and_by_each_instance() {
    let mut world = one_node(|configuration| configuration.max_time_diff_seconds = 0);
    world.registry_ahead_ms = 1_000;
    world.join();
    world.expire(0);
    world.run_for(5_000);
    for node in &world.nodes {
        let last = node.problems.last().cloned().unwrap_or_default();
        assert_eq!(last.len(), 1, "{}: {:?}", node.name, node.problems);
    }
    assert_eq!(world.commits.get(&Purpose::CheckClock), Some(&3));
}

/// A world with three nodes and one item that walks over them.
pub fn relay() -> World {
    let mut world = relay_from_the_start();
    world.run_for(2_000);
    world.settle();
    world.starts.clear();
    world
}

fn relay_from_the_start() -> World {
    let mut configuration = six_items();
    configuration.sharding_total_count = 1;
    configuration.job_sharding_strategy_type = Some("SINGLE_SHARDING_BALANCE".to_owned());
    let mut world = World::new(13, configuration);
    world.duration_max_ms = 500;
    for _ in 0..3 {
        world.join();
    }
    world
}

/// Who executed the item, fire by fire.
fn executors(world: &World) -> Vec<usize> {
    world.starts.iter().map(|start| start.node).collect()
}

#[test]
pub fn a_single_item_walks_over_the_servers_one_execution_each() {
    let mut world = relay();
    world.run_for(12_500);
    let executors = executors(&world);
    assert_eq!(executors.len(), 6, "{:?}", world.starts);
    // Descending order of the servers' names, round and round.
    let next = |node: usize| (node + 2) % 3;
    for pair in executors.windows(2) {
        assert_eq!(pair[1], next(pair[0]), "{executors:?}");
    }
    let fires: std::collections::BTreeSet<_> = world.starts.iter().map(|start| start.scheduled).collect();
    assert_eq!(fires.len(), 6, "{:?}", world.starts);
}

#[test]
fn p7_a_relay_goes_on_when_the_server_whose_turn_it_is_goes() {
    let mut world = relay();
    for _ in 0..2 {
        world.run_for(4_000);
        world.settle();
        let turn = (0..world.nodes.len()).find(|node| world.nodes[*node].items == [Item(0)]).unwrap();
        world.drain(turn);
        world.starts.clear();
        world.run_for(4_500);
        let fires: std::collections::BTreeSet<_> = world.starts.iter().map(|start| start.scheduled).collect();
        assert!(
            fires.len() >= 2 && fires.len() == world.starts.len(),
            "{:?}\n{:#?}",
            world.starts,
            world.log
        );
        world.join();
    }
}

#[test]
fn p5_whose_turn_it_is_again_by_the_assignment_knows_what_others_have_executed() {
    let mut world = relay_from_the_start();
    // :02 is the owner's, :04 the next one's; then the third goes, and with it the turns.
    world.run_for(4_800);
    world.settle();
    let turn = (0..world.nodes.len()).find(|node| world.nodes[*node].items == [Item(0)]).unwrap();
    world.kill(turn);
    world.run_for(1_000);
    let [first, second] = executors(&world)[..] else { panic!("{:?}\n{:#?}", world.starts, world.log) };
    assert!(first != second && ![first, second].contains(&turn), "{:?}", world.starts);
    assert_eq!(world.get("next-job-instance-ip"), None);
    let owner = format!("10.0.0.{}@-@n{first}", first + 1);
    assert_eq!(world.get("sharding/0/instance"), Some(owner.into_bytes()));
    assert_eq!(world.nodes[first].items, [Item(0)]);
}

#[test]
fn p5_a_relay_s_item_that_is_missed_runs_with_whom_it_has_come_to() {
    let mut world = relay();
    world.next_duration_ms = Some(2_500);
    world.run_for(3_000);
    world.next_duration_ms = Some(100);
    world.run_for(2_000);
    let misfires: Vec<_> = world.starts.iter().filter(|start| start.misfire).collect();
    assert_eq!(misfires.len(), 1, "{:?}", world.starts);
    assert_ne!(misfires[0].node, world.starts[0].node);
}

/// A relay whose turn a Java server has got.
fn relay_with_java() -> World {
    let mut world = relay();
    world.put("servers/10.9.9.9", "ENABLED");
    world.put("instances/10.9.9.9@-@1", "jobInstanceId: 10.9.9.9@-@1\nserverIp: 10.9.9.9\n");
    run_to(&mut world, 1_000);
    world.put("next-job-instance-ip", "10.9.9.9");
    run_to(&mut world, 1_500);
    world.starts.clear();
    world
}

/// Runs on to so many milliseconds after a fire.
fn run_to(world: &mut World, millis: i64) {
    world.run_for((millis - world.now.as_millisecond()).rem_euclid(2_000));
}

#[test]
fn a_turn_that_java_passes_on_is_nobody_s_in_between() {
    for late in [1, 30, 90, 300] {
        let mut world = relay_with_java();
        // The fire is Java's, which has executed it, and names the next one in two requests.
        run_to(&mut world, 1_000);
        world.remove("next-job-instance-ip");
        world.run_for(late);
        world.put("next-job-instance-ip", "10.0.0.2");
        run_to(&mut world, 1_900);
        assert_eq!(world.starts.len(), 0, "{late} ms: {:?}", world.starts);
        world.run_for(1_000);
        assert_eq!(executors(&world), [1], "{late} ms: {:?}", world.starts);
    }
}

#[test]
fn a_fire_while_java_passes_the_turn_on_is_for_whom_it_comes_to() {
    for early in [5, 20, 45] {
        let mut world = relay_with_java();
        run_to(&mut world, 2_000 - early);
        world.remove("next-job-instance-ip");
        let removed = world.now;
        world.run_for(50);
        world.put("next-job-instance-ip", "10.0.0.2");
        world.run_for(1_000);
        assert_eq!(executors(&world), [1], "{early} ms: {:?}", world.starts);
        assert!(world.starts[0].scheduled > removed, "{early} ms: {:?}", world.starts);
    }
}

#[test]
fn p7_a_turn_that_nobody_gets_falls_back_to_the_assignment() {
    let mut world = relay_with_java();
    run_to(&mut world, 300);
    let now = world.now;
    world.remove("next-job-instance-ip");
    world.run_for(2_500);
    // The fire that was Java's is not executed once more, and the one after it is.
    assert_eq!(world.starts.len(), 1, "{:?}", world.starts);
    assert!(world.starts[0].scheduled > now, "{:?}", world.starts);
}

#[test]
pub fn h5_a_java_leader_that_has_forgotten_somebody_is_reminded() {
    let mut world = one_node(|_| {});
    world.remove("leader/election/instance");
    world.put("servers/10.9.9.9", "ENABLED");
    world.put("instances/10.9.9.9@-@1", "jobInstanceId: 10.9.9.9@-@1\nserverIp: 10.9.9.9\n");
    world.put("leader/election/instance", "10.9.9.9@-@1");
    world.run_for(8_000);
    let version = |world: &World| world.version("servers/10.0.0.1");
    let before = version(&world);
    // Nothing is wrong: the leader is left alone.
    world.run_for(8_000);
    assert_eq!(version(&world), before);
    // It divides the items among somebody who is gone, and believes that all is well.
    world.put("sharding/3/instance", "10.8.8.8@-@2");
    world.run_for(4_000);
    assert_eq!(version(&world), before);
    world.run_for(8_000);
    assert!(version(&world) > before);
    assert_eq!(world.get("servers/10.0.0.1").unwrap(), b"ENABLED");
    assert!(!world.paths().iter().any(|path| path.ends_with("/necessary")));
}

#[test]
fn h5_a_java_leader_whose_strategy_may_give_us_nothing_is_not_reminded() {
    // The last one has fewer items than instances.
    let cases = [(None, 6, true), (Some("ODEVITY"), 6, true), (Some("OUR_OWN"), 6, false), (None, 1, false)];
    for (strategy, items, reminded) in cases {
        let mut world = one_node(|configuration| {
            configuration.job_sharding_strategy_type = strategy.map(str::to_owned);
            configuration.sharding_total_count = items;
        });
        world.remove("leader/election/instance");
        world.put("servers/10.9.9.9", "ENABLED");
        world.put("instances/10.9.9.9@-@1", "jobInstanceId: 10.9.9.9@-@1\nserverIp: 10.9.9.9\n");
        world.put("leader/election/instance", "10.9.9.9@-@1");
        for item in 0..items {
            world.put(&format!("sharding/{item}/instance"), "10.9.9.9@-@1");
        }
        let before = world.version("servers/10.0.0.1");
        world.run_for(4_000);
        assert_eq!(world.version("servers/10.0.0.1"), before, "{items} items");
        world.run_for(8_000);
        assert_eq!(world.version("servers/10.0.0.1") > before, reminded, "{items} items");
    }
}

/// A world whose item 3 was being executed by a Java instance that is gone, and has been made good.
fn made_good() -> World {
    let mut world = one_node(|configuration| configuration.failover = true);
    world.put("sharding/3/running", "10.9.9.9@-@4711");
    world.run_for(4_000);
    assert_eq!(world.made_good.len(), 1, "{:?}", world.starts);
    world.settle();
    world
}

#[test]
pub fn h11_what_a_java_peer_flags_late_has_been_made_good_already() {
    let mut world = made_good();
    world.put("leader/failover/items/3", "");
    world.run_for(1_500);
    assert_eq!(world.get("leader/failover/items/3"), None);
    world.run_for(5_000);
    assert_eq!(world.made_good.len(), 1, "{:?}", world.made_good);
}

#[test]
fn h11_a_crash_after_that_is_none_of_the_old_one_s_echo() {
    let mut world = made_good();
    world.put("instances/10.9.9.9@-@4712", "jobInstanceId: 10.9.9.9@-@4712\nserverIp: 10.9.9.9\n");
    world.remove("instances/10.9.9.9@-@4712");
    world.put("leader/failover/items/3", "");
    world.run_for(5_000);
    assert_eq!(world.made_good.len(), 2, "{:?}", world.made_good);
}

#[test]
pub fn h11_a_flag_that_is_seen_before_the_departure_that_raised_it_is_no_echo() {
    let mut world = made_good();
    world.put("instances/10.9.9.9@-@4712", "jobInstanceId: 10.9.9.9@-@4712\nserverIp: 10.9.9.9\n");
    world.put("leader/failover/items/3", "");
    world.run_for(300);
    world.remove("instances/10.9.9.9@-@4712");
    world.run_for(5_000);
    assert_eq!(world.made_good.len(), 2, "{:?}", world.made_good);
}

/// A world with two nodes that execute all items for long.
fn two_nodes_that_execute(failover: bool) -> World {
    let mut configuration = six_items();
    configuration.failover = failover;
    let mut world = World::new(17, configuration);
    world.join();
    world.join();
    world.run_for(3_500);
    world.settle();
    world.assert_all_owned();
    world.next_duration_ms = Some(5_000);
    world.run_for(1_000);
    assert!(world.nodes.iter().all(|node| node.executions.len() == 3));
    world
}

#[test]
fn p2_what_an_instance_executes_that_an_operator_stops_is_executed_by_nobody_else() {
    for failover in [false, true] {
        let mut world = two_nodes_that_execute(failover);
        world.remove("instances/10.0.0.1@-@n0");
        // Whoever executes one of its items meanwhile fails the world's own check.
        world.next_duration_ms = Some(100);
        world.run_for(12_000);
        assert!(world.nodes[0].ended.is_some());
        world.settle();
        world.assert_all_owned();
        assert_eq!(world.nodes[1].items.len(), 6);
    }
}

#[test]
fn h11_a_running_node_that_a_java_peer_has_put_in_place_of_ours_stays() {
    let mut world = one_node(|configuration| configuration.failover = true);
    world.next_duration_ms = Some(600);
    world.run_for(1_200);
    assert_eq!(world.nodes[0].executions.len(), 6);
    // A survivor that is late takes it for crashed, and executes it.
    world.remove("sharding/3/running");
    world.run_for(50);
    world.put("sharding/3/running", "10.9.9.9@-@4711");
    world.run_for(600);
    assert_eq!(world.nodes[0].executions.len(), 0);
    assert_eq!(world.get("sharding/3/running").as_deref(), Some(&b"10.9.9.9@-@4711"[..]));
    assert_eq!(world.get("sharding/2/running"), None);
}

#[test]
fn h6_a_running_node_of_somebody_who_is_there_stays_when_its_item_has_another_owner_who_is_gone_or_none() {
    for owner in [None, Some("10.8.8.8@-@n9")] {
        let mut world = one_node(|_| {});
        world.put("servers/10.9.9.9", "ENABLED");
        world.put("instances/10.9.9.9@-@1", "jobInstanceId: 10.9.9.9@-@1\nserverIp: 10.9.9.9\n");
        world.run_for(800);
        world.settle();
        // A Java instance that believes that it still leads deletes the owner; another one begins to execute, because its
        // cache is behind.
        world.remove("sharding/1/instance");
        if let Some(owner) = owner {
            world.put("sharding/1/instance", owner);
        }
        world.put("sharding/1/running", "10.9.9.9@-@1");
        world.run_for(3_000);
        world.settle();
        let running = world.get("sharding/1/running");
        assert_eq!(running.as_deref(), Some(&b"10.9.9.9@-@1"[..]), "{owner:?}");
        // When it has ended, the item gets an owner.
        world.remove("sharding/1/running");
        world.run_for(1_000);
        world.settle();
        let found = world.get("sharding/1/instance").map(|id| String::from_utf8(id).unwrap());
        assert!(found.is_some() && found.as_deref() != owner, "{found:?}");
    }
}

#[test]
fn p2_an_operator_who_deletes_an_owner_s_node_does_not_end_what_it_executes() {
    for failover in [false, true] {
        let mut configuration = six_items();
        configuration.failover = failover;
        let mut world = World::new(3, configuration);
        let owner = world.join();
        world.join();
        world.run_for(4_500);
        world.settle();
        // The fire at 6 s.
        world.next_duration_ms = Some(3_000);
        world.run_for(2_000);
        let running: Vec<_> = world.paths().into_iter().filter(|path| path.ends_with("/running")).collect();
        assert_eq!(running.len(), 6);
        let item = world.nodes[owner].items[0];
        world.remove(&format!("sharding/{item}/instance"));
        world.run_for(1_000);
        assert!(
            running.iter().all(|path| world.paths().contains(path)),
            "failover {failover}: {:#?}",
            world.paths()
        );
        world.next_duration_ms = Some(100);
        world.run_for(4_000);
        world.assert_all_owned();
        let starts = world.starts.iter().filter(|start| start.item == item && start.scheduled == second(6));
        assert_eq!(starts.count(), 1);
    }
}
