//! Instances with names: an instance that returns in time finds its items where they were (P1, P3, P5, H36), and its
//! items are reserved only for the grace.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use sidekeeper::coordination::job::contract::commit::Purpose;
use sidekeeper::coordination::job::contract::effect::EndReason;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::job::{Item, JobConfiguration};

use crate::setup::{AT_ONCE, counts, owner, put_new_java, seeds, with};
use crate::world::{Start, World, six_items};

const NAMES: [&str; 3] = ["w-0", "w-1", "w-2"];

/// Three instances with names and two items each, between two fires; the first one leads.
fn three(seed: u64, grace: &str, configure: impl FnOnce(&mut JobConfiguration)) -> World {
    let mut configuration = six_items();
    configuration.props.insert("sidekeeper.grace".to_owned(), grace.to_owned());
    configure(&mut configuration);
    let mut world = World::new(seed, configuration);
    world.duration_max_ms = 200;
    world.one_by_one = true;
    for (name, machine) in NAMES.into_iter().zip(1..) {
        world.join_as(Some(name), machine);
        world.run_for(300);
    }
    world.run_for(4_100);
    world.settle_owned();
    world.starts.clear();
    world
}

/// The name of each item's owner.
fn names(world: &World) -> Vec<String> {
    let name = |item| owner(world, item).split_once("@-@").unwrap().1.to_owned();
    (0..6).map(name).collect()
}

fn tokens(world: &World) -> Vec<i64> {
    (0..6).map(|item| world.created(&format!("sharding/{item}/instance"))).collect()
}

fn noted(world: &World, name: &str) -> bool {
    world.read(&format!("/ns-sidekeeper/job/fleet/names/{name}")).is_some()
}

/// How often the leader resharded, or planned handovers.
fn reshardings(world: &World) -> usize {
    let purposes = [Purpose::Shard, Purpose::PlanHandoff, Purpose::HandOff, Purpose::FlagResharding];
    purposes.iter().filter_map(|purpose| world.commits.get(purpose)).sum()
}

#[test]
pub fn p1_p3_p5_a_named_instance_that_restarts_in_time_finds_its_items_with_new_tokens() {
    for (node, name) in NAMES.into_iter().enumerate() {
        let mut world = three(7, "20s", |_| {});
        let (before, divided) = (names(&world), reshardings(&world));
        let old = tokens(&world);
        world.drain(node);
        // The fires at :06, :08 and :10 pass.
        world.run_for(6_000);
        assert!(world.nodes[node].ended.is_some());
        assert_eq!(names(&world), before);
        let back = world.join_as(Some(name), u16::try_from(node).unwrap() + 1);
        world.run_for(900);
        world.assert_all_owned();
        assert_eq!(names(&world), before);
        assert_eq!(reshardings(&world), divided, "no resharding");
        assert_eq!(world.nodes[back].items.len(), 2);
        let (new, was_away) = (tokens(&world), |item: usize| before[item] == name);
        for item in 0..6 {
            assert_eq!(new[item] > old[item], was_away(item), "{item}");
            // One rerun covers the fires that came meanwhile.
            assert_eq!(counts(&world)[item], if was_away(item) { (0, 1) } else { (3, 0) }, "{item}");
        }
    }
}

#[test]
fn p5_the_missed_fires_of_items_that_came_to_a_suspended_instance_are_rerun() {
    let every_ten = |job: &mut JobConfiguration| job.cron = Some("0/10 * * * * ?".to_owned());
    let mut world = three(7, "1s", every_ten);
    world.run_for(4_500);
    world.crash(2);
    world.run_for(1_000);
    // The fire at :10 was the first.
    world.toggle_suspended(1);
    world.end_session(2);
    world.run_for(2_000);
    assert_eq!(names(&world).iter().filter(|name| **name == NAMES[1]).count(), 3);
    world.expire(1);
    world.run_for(800);
    assert_eq!(world.nodes[1].items.len(), 3);
    let mut made_up = counts(&world);
    made_up.sort();
    assert_eq!(made_up, [(0, 1), (0, 1), (1, 0), (1, 0), (1, 0), (1, 0)]);
}

#[test]
fn p2_an_item_that_was_resharded_meanwhile_is_not_renewed() {
    let mut world = three(7, "20s", |_| {});
    let item = names(&world).iter().position(|name| name == "w-1").unwrap() as u32;
    world.drain(1);
    world.run_for(1_500);
    assert!(world.nodes[1].ended.is_some());
    assert_eq!(world.commits.get(&Purpose::Renew), None);
    let back = world.join_as(Some("w-1"), 2);
    while !world.commits.contains_key(&Purpose::Renew) {
        world.turn();
    }
    // A resharding that it has not seen gives the item to another instance, under the same version of its node.
    let path = format!("sharding/{item}/instance");
    world.put("leader/sharding", "");
    world.remove(&path);
    world.put(&path, "10.0.0.1@-@w-0");
    world.take_effect(back);
    assert_eq!(owner(&world, item), "10.0.0.1@-@w-0");
}

#[test]
fn p7_a_reservation_ends_with_the_grace() {
    for leader in [true, false] {
        let mut world = three(7, "5s", |_| {});
        let gone = usize::from(!leader);
        world.crash(gone);
        world.end_session(gone);
        world.run_for(4_500);
        assert_eq!(names(&world).iter().filter(|name| **name == NAMES[gone]).count(), 2);
        assert!(noted(&world, NAMES[gone]));
        world.run_for(1_500);
        world.assert_all_owned();
        assert!(!noted(&world, NAMES[gone]));
        assert_eq!(world.nodes[2].items.len(), 3);
        // From :05 to :11 the other owners have executed three fires; one rerun covers the first two of the reserved
        // items.
        let missed = counts(&world).into_iter().filter(|count| *count != (3, 0)).collect::<Vec<_>>();
        assert_eq!(missed, [(1, 1); 2]);
        // An instance that comes back later is a newcomer.
        world.join_as(Some(NAMES[gone]), 1);
        world.run_for(900);
        world.assert_all_owned();
        assert_eq!(world.nodes[3].items.len(), 2);
    }
}

#[test]
fn p1_a_named_instance_on_another_machine_gets_its_items_at_once() {
    let mut world = three(7, "20s", |_| {});
    let (before, divided) = (names(&world), reshardings(&world));
    world.crash(1);
    world.end_session(1);
    world.run_for(1_500);
    let back = world.join_as(Some(NAMES[1]), 77);
    world.run_for(900);
    world.assert_all_owned();
    assert_eq!((names(&world), reshardings(&world)), (before, divided));
    assert!((0..6).any(|item| owner(&world, item) == "10.0.0.77@-@w-1"));
    assert_eq!(world.nodes[back].items.len(), 2);
}

#[test]
fn an_instance_that_leaves_for_good_keeps_no_reservation() {
    let mut world = three(7, "20s", |_| {});
    world.leave_for_good(1);
    world.run_for(900);
    world.assert_all_owned();
    assert!(!noted(&world, NAMES[1]));
    assert_eq!(world.nodes[0].items.len() + world.nodes[2].items.len(), 6);
}

#[test]
fn without_a_grace_a_name_keeps_no_reservation() {
    let mut world = three(7, "0s", |_| {});
    world.crash(0);
    world.end_session(0);
    world.drain(1);
    world.run_for(1_500);
    world.assert_all_owned();
    assert_eq!(world.nodes[2].items.len(), 6);
    assert_eq!(NAMES.map(|name| noted(&world, name)), [false, false, true]);
}

#[test]
fn a_stop_or_a_disabled_server_ends_a_reservation_at_once() {
    let mut world = three(7, "20s", |_| {});
    world.remove("instances/10.0.0.2@-@w-1");
    world.run_for(1_500);
    assert_eq!(world.nodes[1].ended, Some(EndReason::Stopped));
    world.assert_all_owned();
    world.drain(2);
    world.run_for(600);
    assert_eq!(names(&world).iter().filter(|name| *name == "w-2").count(), 3);
    world.put("servers/10.0.0.3", "DISABLED");
    world.run_for(600);
    world.assert_all_owned();
    assert_eq!(world.nodes[0].items.len(), 6);
}

#[test]
fn a_reservation_does_not_grow_and_its_surplus_moves_when_the_instance_is_back() {
    let mut world = three(7, "20s", |_| {});
    world.drain(1);
    world.run_for(600);
    world.join_as(Some("w-3"), 4);
    world.join_as(Some("w-4"), 5);
    world.join_as(Some("w-5"), 6);
    world.run_for(900);
    assert_eq!(names(&world).iter().filter(|name| *name == "w-1").count(), 2);
    world.join_as(Some("w-1"), 2);
    world.run_for(900);
    world.assert_all_owned();
    assert_eq!(names(&world).into_iter().collect::<BTreeSet<_>>().len(), 6);
}

#[test]
fn p1_a_late_departure_does_not_remove_the_next_instance_of_the_name() {
    let mut world = three(7, "20s", |_| {});
    world.drain(1);
    while !world.commits.contains_key(&Purpose::Leave) {
        world.turn();
    }
    // The request is on its way; its instance has been registered anew, in another session.
    let instance = "instances/10.0.0.2@-@w-1";
    world.put("leader/sharding", "");
    world.remove(instance);
    world.put(instance, "jobInstanceId: 10.0.0.2@-@w-1\nserverIp: 10.0.0.2\n");
    world.take_effect(1);
    assert!(world.get(instance).is_some());
}

#[test]
fn p2_a_name_waits_until_the_stopped_instance_has_ended_its_executions() {
    let mut world = three(7, "20s", |configuration| configuration.failover = true);
    world.next_duration_ms = Some(6_000);
    world.run_for(2_000);
    assert_eq!(world.nodes[1].executions.len(), 2);
    world.next_duration_ms = Some(100);
    world.remove("instances/10.0.0.2@-@w-1");
    world.run_for(500);
    let back = world.join_as(Some("w-1"), 9);
    world.run_for(2_000);
    assert_eq!(world.nodes[1].executions.len(), 2);
    assert_eq!(world.get("instances/10.0.0.9@-@w-1"), None);
    assert!(world.problems.iter().any(|problem| problem.starts_with("INSTANCE_NAME_TAKEN ")));
    world.run_for(6_000);
    assert_eq!(world.nodes[1].ended, Some(EndReason::Stopped));
    assert_eq!(world.interrupted, []);
    world.settle();
    assert!(!world.nodes[back].items.is_empty());
    world.assert_all_owned();
}

#[test]
fn p2_an_item_that_was_just_handed_over_is_not_renewed() {
    let mut world = three(7, "20s", with(&AT_ONCE));
    world.drain(1);
    world.run_for(600);
    for (name, machine) in [("w-3", 4), ("w-4", 5), ("w-5", 6)] {
        world.join_as(Some(name), machine);
    }
    world.run_for(900);
    let before = names(&world);
    let asked = |world: &World, purpose| world.commits.get(&purpose).copied().unwrap_or_default();
    let back = world.join_as(Some("w-1"), 2);
    let renewals = asked(&world, Purpose::Renew);
    while asked(&world, Purpose::Renew) == renewals {
        world.take_effect(back);
        world.look(back);
    }
    // A leader has resharded, or asked for that, in this moment.
    world.put("leader/sharding", "");
    let given = asked(&world, Purpose::HandOff);
    while asked(&world, Purpose::HandOff) == given {
        world.take_effect(back);
        for node in world.staying() {
            world.look(node);
            if node != back {
                world.take_effect(node);
            }
        }
    }
    world.take_effect(back);
    let after = names(&world);
    assert_ne!(before, after);
    world.now += SignedDuration::from_millis(500);
    world.look_before_news(back);
    world.take_effect(back);
    assert_eq!(names(&world), after);
}

#[test]
fn p5_the_executions_of_an_offline_instance_are_taken_over_though_its_items_are_reserved() {
    let mut world = three(7, "20s", |configuration| configuration.failover = true);
    let before = names(&world);
    world.next_duration_ms = Some(3_000);
    world.run_for(1_500);
    assert_eq!(world.nodes[1].executions.len(), 2);
    let killed = world.now;
    world.crash(1);
    world.end_session(1);
    world.next_duration_ms = Some(100);
    world.run_for(1_500);
    let taken: Vec<_> = world.starts.iter().filter(|start| start.source == Source::Failover).collect();
    assert_eq!(taken.len(), 2);
    assert!(taken.iter().all(|start| start.at >= killed));
    assert_eq!(names(&world), before);
    world.join_as(Some(NAMES[1]), 2);
    world.run_for(900);
    world.assert_all_owned();
    assert_eq!(names(&world), before);
}

#[test]
pub fn an_instance_whose_name_is_in_use_waits_and_takes_nothing() {
    for machine in [2, 9] {
        let mut world = three(7, "60s", |_| {});
        let before = names(&world);
        // The registry does not know yet that this node is dead: its session lives.
        world.crash(1);
        let newcomer = world.join_as(Some(NAMES[1]), machine);
        world.run_for(3_000);
        assert_eq!(names(&world), before);
        assert!(world.nodes[newcomer].items.is_empty());
        let told = |problem: &String| problem.contains("`w-1` is in use by another session");
        assert_eq!(world.problems.iter().filter(|problem| told(problem)).count(), 1, "{:?}", world.problems);
        world.end_session(1);
        world.run_for(900);
        world.assert_all_owned();
        assert_eq!(names(&world), before);
        assert_eq!(world.nodes[newcomer].items.len(), 2);
        // A third instance gives up in the end, and removes no node of the holder.
        let late = world.join_as(Some(NAMES[1]), machine);
        world.run_for(45_500);
        let ended = world.nodes[late].ended.clone();
        assert!(matches!(ended, Some(EndReason::NameTaken { .. })), "{ended:?}");
        world.assert_all_owned();
        assert_eq!(names(&world), before);
        assert!(noted(&world, NAMES[1]));
    }
}

#[test]
fn an_instance_that_leaves_while_it_waits_for_its_name_removes_no_node_of_the_holder() {
    let mut world = three(7, "0s", |_| {});
    // The first one leads.
    let newcomer = world.join_as(Some(NAMES[0]), 1);
    world.run_for(900);
    world.drain(newcomer);
    world.run_for(900);
    assert!(world.nodes[newcomer].ended.is_some());
    world.assert_all_owned();
    assert_eq!(world.get("leader/election/instance").unwrap(), b"10.0.0.1@-@w-0");
    assert!(noted(&world, NAMES[0]) && world.get("instances/10.0.0.1@-@w-0").is_some());
}

#[test]
fn p1_one_of_two_instances_that_join_under_one_name_gets_it() {
    for seed in seeds(40) {
        let mut world = three(seed, "60s", |_| {});
        world.lossy = seed % 2 == 1;
        let before = names(&world);
        world.crash(1);
        world.end_session(1);
        let newcomers = [50, 60].map(|machine| world.join_as(Some(NAMES[1]), machine));
        world.run_for(3_000);
        let there = world.paths().into_iter().filter(|path| path.ends_with("@-@w-1"));
        assert_eq!(there.filter(|path| path.contains("/instances/")).count(), 1, "seed {seed}");
        world.settle_owned();
        assert_eq!(names(&world), before);
        let owning = newcomers.iter().filter(|node| world.nodes[**node].items.len() == 2).count();
        assert_eq!(owning, 1, "seed {seed}");
    }
}

#[test]
fn p1_p2_p3_hold_when_an_instance_returns_at_the_end_of_the_grace() {
    for seed in seeds(40) {
        let mut world = three(seed, "2s", |configuration| configuration.monitor_execution = seed % 3 != 0);
        let gone = world.random.below(3) as usize;
        world.crash(gone);
        world.end_session(gone);
        let around = world.random.below(30) as i64;
        world.run_for(1_985 + around);
        world.join_as(Some(NAMES[gone]), u16::try_from(gone).unwrap() + 1);
        world.run_for(4_000);
        world.settle_owned();
        assert!(noted(&world, NAMES[gone]), "seed {seed}");
        assert!(
            (0..6).all(|item| names(&world).iter().filter(|name| **name == names(&world)[item]).count() == 2)
        );
    }
}

#[test]
fn h36_with_static_sharding_a_name_gets_its_items_again() {
    for (machine, java) in [(2, false), (2, true), (99, false), (99, true)] {
        let mut world = three(7, "0s", |configuration| configuration.static_sharding = true);
        let mut expected: BTreeMap<_, _> = names(&world).into_iter().zip(0..).collect();
        if java {
            put_new_java(&mut world, "10.9.9.9@-@77");
        }
        let before = names(&world);
        // The first sharding came before all three had joined, or after; an instance that owns items comes back.
        let node = NAMES.iter().position(|name| expected.remove(*name).is_some()).unwrap();
        world.crash(node);
        world.end_session(node);
        world.run_for(3_000);
        assert_eq!(names(&world), before);
        let back = world.join_as(Some(NAMES[node]), machine);
        world.run_for(900);
        assert_eq!(names(&world), before);
        let owned = before.iter().filter(|name| **name == NAMES[node]).count();
        assert_eq!(world.nodes[back].items.len(), owned);
        world.starts.clear();
        world.run_for(2_000);
        let executed = world.starts.iter().filter(|start| start.node == back).count();
        assert!(executed >= owned, "{executed} of {owned}");
    }
}

#[test]
fn p1_p2_p3_p5_no_item_moves_and_no_fire_is_lost_while_named_instances_restart() {
    for seed in seeds(60) {
        let mut world = three(seed, "60s", |configuration| configuration.failover = seed % 2 == 0);
        world.lossy = seed % 3 == 2;
        let before = names(&world);
        let mut now_at = [0, 1, 2];
        let begin = world.now;
        for round in 0..8 {
            let pick = world.random.below(3) as usize;
            let pause = world.random.below(1_500) as i64;
            world.run_for(pause);
            match world.random.below(3) {
                0 => world.drain(now_at[pick]),
                1 => {
                    world.crash(now_at[pick]);
                    let late = world.random.below(3_000) as i64;
                    world.run_for(late);
                    world.end_session(now_at[pick]);
                }
                _ => {
                    world.expire(now_at[pick]);
                    world.run_for(1_000);
                    continue;
                }
            }
            let away = world.random.below(4_000) as i64;
            world.run_for(away);
            let machine =
                u16::try_from(pick).unwrap() + 1 + if round % 3 == 2 { 10 * (round + 1) } else { 0 };
            now_at[pick] = world.join_as(Some(NAMES[pick]), machine);
            world.run_for(2_500);
            assert_eq!(names(&world), before, "seed {seed}: {:#?}", world.log);
        }
        world.run_for(12_000);
        world.settle_owned();
        assert_eq!(names(&world), before, "seed {seed}");
        let end = world.now - SignedDuration::from_secs(3);
        assert_none_lost(&world, seed, begin, end);
    }
}

/// P5: each fire of each item was executed, or covered by a later rerun; none was executed twice.
fn assert_none_lost(world: &World, seed: u64, begin: Timestamp, end: Timestamp) {
    let mut fire = Timestamp::from_second(begin.as_second() / 2 * 2 + 2).unwrap();
    while fire < end {
        for item in (0..6).map(Item) {
            let starts = world.starts.iter().filter(|start| start.item == item);
            let at_fire = |start: &&Start| start.source == Source::Schedule && start.scheduled == fire;
            let twice = starts.clone().filter(at_fire).count();
            assert!(twice <= 1, "seed {seed}: item {item} ran {twice} times for {fire}: {:#?}", world.log);
            let soon = fire..fire + SignedDuration::from_secs(15);
            let made_up = |start: &Start| start.misfire && soon.contains(&start.at);
            let done = twice == 1 || starts.clone().any(made_up);
            assert!(done, "seed {seed}: fire {fire} of {item} is lost: {:#?}", world.log);
        }
        fire += SignedDuration::from_secs(2);
    }
}
