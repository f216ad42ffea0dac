//! A resharding and the starts just before and just after it, and the states that others see between its transactions
//! (P1, P2, P8). By ElasticJob's rules, where items move all at once.

use jiff::SignedDuration;
use sidekeeper::coordination::job::contract::commit::Purpose;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::job::Item;

use crate::setup::{
    AT_ONCE, JAVA, asked, job_with, of_java, one_node, owner, put_new_java, running_node, runs, second, with,
    with_java,
};
use crate::world::{Start, World, six_items};

#[test]
fn h4_a_running_node_of_an_offline_instance_does_not_block_a_resharding() {
    let mut world = one_node(|configuration| configuration.failover = true);
    world.put("sharding/3/running", "10.9.9.9@-@gone");
    world.join();
    world.run_for(3_000);
    world.settle_owned();
    world.run_for(4_000);
    let of_three = world.starts.iter().filter(|start| start.item == Item(3)).count();
    assert!(of_three >= 2, "item 3 was started {of_three} times");
}

#[test]
fn h6_a_running_node_of_a_living_instance_stays_though_its_item_has_no_living_owner() {
    for owner in [None, Some("10.8.8.8@-@n9")] {
        let mut world = one_node(|_| {});
        put_new_java(&mut world, "10.9.9.9@-@1");
        world.run_for(800);
        world.settle();
        // A Java instance that believes that it still leads deletes the owner; another Java instance begins to execute,
        // because its cache is behind.
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
pub fn p2_an_item_that_a_java_instance_executes_is_not_moved() {
    let mut world = with_java(|_| {});
    let items = of_java(&world);
    for item in &items {
        world.put(&format!("sharding/{item}/running"), JAVA);
    }
    world.run_for(100);
    world.join();
    world.run_for(3_000);
    world.settle();
    assert_eq!(of_java(&world), items);
    for item in items {
        assert_eq!(running_node(&world, item).as_deref(), Some(JAVA.as_bytes()));
        world.remove(&format!("sharding/{item}/running"));
    }
    world.run_for(2_000);
    world.settle();
    assert_eq!(of_java(&world).len(), 2);
}

/// The instance that joins, so that a resharding is due by ElasticJob's rules.
#[derive(Debug, Clone, Copy)]
enum Joins {
    /// A sidecar, where handing over is off.
    Sidecar,
    /// A Java instance that does not do much.
    Java,
}

/// The instance that joins, and the second whose fire comes at the moment of the resharding. The first fire of all is
/// at :02; the ledger has no entries then.
const MOMENTS: [(Joins, i64); 4] =
    [(Joins::Sidecar, 2), (Joins::Sidecar, 6), (Joins::Java, 2), (Joins::Java, 6)];

/// Just before a fire, two sidecars with three items each, of which the first leads; and it has sent another
/// resharding, because an instance has joined: the request is on its way. The second sidecar has seen nothing of
/// that.
fn about_to_reshard(joins: Joins, fire: i64) -> World {
    let mut configuration = six_items();
    if let Joins::Sidecar = joins {
        with(&[("handoff", "off")])(&mut configuration);
    }
    let mut world = World::new(7, configuration);
    world.next_duration_ms = Some(100);
    world.join();
    world.run_for(200);
    world.join();
    // Beside Java no resharding begins later than that before a fire.
    world.run_until(second(fire) - SignedDuration::from_millis(70));
    world.settle_owned();
    assert_eq!([0, 1].map(|node| world.nodes[node].items.len()), [3, 3]);
    assert_eq!(world.get("leader/election/instance").unwrap(), b"10.0.0.1@-@n0");
    assert_eq!(world.read("/ns-sidekeeper/job/fires/3").is_some(), fire > 2);
    world.starts.clear();
    let before = asked(&world, Purpose::Shard);
    let joined = match joins {
        Joins::Sidecar => Some(world.join()),
        Joins::Java => {
            world.put_java(JAVA);
            None
        }
    };
    while asked(&world, Purpose::Shard) == before {
        world.take_effect(0);
        if let Some(node) = joined {
            world.look(node);
            world.take_effect(node);
        }
        world.look(0);
    }
    world.next_duration_ms = Some(5_000);
    world.now = second(fire) + SignedDuration::from_millis(5);
    world
}

#[test]
pub fn p2_an_item_that_begins_just_before_a_resharding_keeps_its_owner() {
    for (joins, fire) in MOMENTS {
        let mut world = about_to_reshard(joins, fire);
        let items = world.nodes[1].items.clone();
        world.look(1);
        world.take_effect(1);
        assert!(items.iter().all(|item| runs(&world, item.0)));
        world.take_effect(0);
        assert!(items.iter().all(|item| owner(&world, item.0).ends_with("@n1")), "{joins:?}: {items:?}");
        // Their owner executes them to the end, and then they are resharded.
        world.run_for(4_500);
        assert!(items.iter().all(|item| runs(&world, item.0)));
        let of_others = world.starts.iter().filter(|start| items.contains(&start.item) && start.node != 1);
        assert_eq!(of_others.count(), 0, "{joins:?}: {:?}", world.starts);
        world.next_duration_ms = Some(100);
        world.run_for(2_000);
        let owned = (0..6).filter(|item| owner(&world, *item).ends_with("@n1")).count();
        assert_eq!((owned, world.interrupted.len()), (2, 0), "{joins:?}");
    }
}

#[test]
pub fn p2_p5_a_start_on_the_former_assignment_creates_nothing_and_is_decided_anew() {
    for (joins, fire) in MOMENTS {
        for knows in [false, true] {
            let mut world = about_to_reshard(joins, fire);
            let items = world.nodes[1].items.clone();
            let starts = asked(&world, Purpose::Start);
            // The resharding takes effect before the second node sends its start, or while that request is on its way.
            if knows {
                world.take_effect(0);
            }
            world.look_before_news(1);
            assert_eq!(asked(&world, Purpose::Start), starts + 1);
            world.take_effect(0);
            let went: Vec<_> = items.iter().filter(|item| !owner(&world, item.0).ends_with("@n1")).collect();
            assert!(!went.is_empty());
            world.take_effect(1);
            assert!(!(0..6).any(|item| runs(&world, item)), "{joins:?}, {fire}: {:#?}", world.paths());
            assert_eq!(world.starts, []);
            // The remaining items are executed once, for the same fire, by their owners.
            world.run_for(900);
            for item in (0..6).map(Item) {
                let of_item = world.starts.iter().filter(|start| start.item == item);
                let told: Vec<_> = of_item.map(|s| (s.source, s.scheduled, s.node)).collect();
                let node = (0..3).find(|node| owner(&world, item.0).ends_with(&format!("@n{node}")));
                let expected = node.map(|node| (Source::Schedule, second(fire), node));
                let expected: Vec<_> = expected.into_iter().collect();
                // Beside Java, a missing ledger entry does not prove that no instance has started the item.
                let unknown = matches!(joins, Joins::Java) && fire == 2 && told.is_empty();
                assert!(told == expected || unknown, "{joins:?}, {fire}: item {item}: {told:?}");
            }
        }
    }
}

/// The new owner executes the item, and the next resharding may wait for long. A Java leader removes all owners
/// before it writes the next ones: that is no loss.
#[test]
fn p2_a_lost_item_is_notified_though_another_resharding_is_due() {
    let mut world = World::new(7, six_items());
    world.join();
    world.run_for(200);
    world.join();
    world.run_for(900);
    assert_eq!(world.nodes[1].items, [3, 4, 5].map(Item));
    world.put("leader/sharding/necessary", "");
    for (item, next) in [(3, Some("10.9.9.9@-@4711")), (4, None)] {
        world.remove(&format!("sharding/{item}/instance"));
        if let Some(next) = next {
            world.put(&format!("sharding/{item}/instance"), next);
        }
    }
    world.look(1);
    assert_eq!(world.nodes[1].items, [4, 5].map(Item));
    world.run_for(1_500);
    world.assert_all_owned();
}

/// The leader does not see that a member has written its deleted node again; its request arrives after that.
#[test]
pub fn p2_a_member_that_announces_itself_again_is_not_taken_for_a_java_instance() {
    let mut world = World::new(7, six_items());
    for _ in 0..3 {
        world.join();
        world.run_for(900);
    }
    let owners = |world: &World| [0, 1, 2, 3, 4, 5].map(|item| owner(world, item));
    let before = owners(&world);
    world.next_duration_ms = Some(100);
    world.run_until(second(4) + SignedDuration::from_millis(300));
    assert!(!(0..6).any(|item| runs(&world, item)));
    let word = "/ns-sidekeeper/job/fleet/members/10.0.0.2@-@n1";
    world.remove_any(word);
    let shardings = asked(&world, Purpose::Shard);
    world.look(0);
    world.now += SignedDuration::from_millis(1_001);
    world.look(0);
    assert_eq!(asked(&world, Purpose::Shard), shardings + 1);
    world.look(1);
    world.take_effect(1);
    assert!(world.read(word).is_some());
    world.take_effect(0);
    assert_eq!(owners(&world), before);
    world.run_for(2_000);
    assert_eq!((owners(&world), world.interrupted.len()), (before, 0));
}

/// An item that was handed over has a new node, of the same version as before.
#[test]
pub fn p2_a_resharding_that_has_not_seen_a_handover_is_decided_anew() {
    let mut world = World::new(7, job_with(&AT_ONCE));
    world.next_duration_ms = Some(100);
    world.join();
    world.run_for(200);
    world.join();
    world.run_until(second(4) + SignedDuration::from_millis(300));
    let owners = |world: &World| [0, 1, 2, 3, 4, 5].map(|item| owner(world, item));
    let before = owners(&world);
    let handoffs = asked(&world, Purpose::HandOff);
    world.join();
    while asked(&world, Purpose::HandOff) == handoffs {
        world.turn();
    }
    assert_eq!(owners(&world), before);
    // The leader hears of a Java instance before it hears that items have been handed over.
    world.put_java(JAVA);
    let shardings = asked(&world, Purpose::Shard);
    while asked(&world, Purpose::Shard) == shardings {
        world.look(0);
    }
    for node in [1, 0] {
        world.take_effect(node);
    }
    let handed_over = owners(&world);
    assert_ne!(handed_over, before);
    assert!(handed_over.iter().all(|owner| owner != JAVA), "{handed_over:?}");
    world.run_for(900);
    assert!(owners(&world).iter().any(|owner| owner == JAVA));
    assert_eq!(world.interrupted.len(), 0);
}

/// The instance never announces itself: it gets its items in the same way as a Java instance.
#[test]
fn an_instance_without_an_announcement_gets_its_items_all_at_once() {
    let mut world = World::new(7, six_items());
    for _ in 0..2 {
        world.join();
        world.run_for(900);
    }
    let stranger = "10.9.9.9@-@stranger";
    put_new_java(&mut world, stranger);
    world.run_for(900);
    assert!((0..6).all(|item| owner(&world, item) != stranger));
    world.run_for(2_000);
    assert_eq!((0..6).filter(|item| owner(&world, *item) == stranger).count(), 2);
    assert_eq!(world.read(&format!("/ns-sidekeeper/job/fleet/members/{stranger}")), None);
}

/// Each leader is replaced before it has waited for long.
#[test]
fn p7_a_new_leader_reports_a_resharding_that_waits() {
    let mut world = World::new(7, job_with(&[("handoff", "off")]));
    world.join();
    world.run_for(200);
    world.join();
    world.run_until(second(2) - SignedDuration::from_millis(100));
    world.next_duration_ms = Some(60_000);
    world.run_for(1_000);
    world.join();
    world.run_for(8_000);
    assert!(world.get("leader/sharding/necessary").is_some());
    world.put("servers/10.0.0.1", "DISABLED");
    world.run_for(1_000);
    assert_eq!(world.nodes[1].problems.iter().flatten().count(), 0);
    world.run_for(3_000);
    let leader = world.get("leader/election/instance").unwrap();
    let leads = [1, 2].into_iter().find(|node| leader.ends_with(format!("@n{node}").as_bytes())).unwrap();
    let said = |node: usize| world.nodes[node].problems.iter().flatten();
    assert!(said(leads).any(|problem| problem.message.contains("a resharding waits for items")));
}

/// Each time its connection comes back, the leader has to look at everything again.
#[test]
fn p7_a_resharding_that_waits_is_reported_though_the_connection_breaks_again_and_again() {
    let mut world = World::new(7, job_with(&[("handoff", "off")]));
    world.join();
    world.run_until(second(2) - SignedDuration::from_millis(100));
    world.next_duration_ms = Some(60_000);
    world.run_for(1_000);
    world.join();
    for _ in 0..4 {
        world.run_for(3_000);
        world.toggle_suspended(0);
        world.run_for(50);
        world.toggle_suspended(0);
        world.look_before_news(0);
    }
    assert!(world.get("leader/sharding/necessary").is_some());
    let problems = world.nodes[0].problems.last().unwrap();
    assert!(problems.iter().any(|problem| problem.code.as_str() == "RESHARDING_WAITS_FOR_RUNNING"));
}

/// Its planned start still waits, and its note of the missed fires is gone.
#[test]
fn p5_an_owner_that_loses_an_item_and_regains_it_knows_its_missed_fires() {
    let mut met = 0;
    for seed in 0..60 {
        let mut configuration = six_items();
        configuration.sharding_total_count = 1;
        with(&[("handoff", "off")])(&mut configuration);
        let mut world = World::new(seed, configuration);
        world.duration_max_ms = 100;
        world.join();
        world.run_until(second(2) + SignedDuration::from_millis(500));
        // It is given the item, and executes nothing.
        world.put_java(JAVA);
        world.run_until(second(10) + SignedDuration::from_millis(100));
        world.remove(&format!("instances/{JAVA}"));
        for _ in 0..seed % 25 {
            world.turn();
        }
        let joined = world.join();
        for _ in 0..100 {
            if owner(&world, 0).ends_with("@n1") {
                break;
            }
            world.turn();
        }
        for _ in 0..seed % 3 {
            world.look(0);
        }
        world.crash(joined);
        world.end_session(joined);
        world.run_until(second(11) + SignedDuration::from_millis(900));
        let late = |start: &Start| start.scheduled == second(10) && start.source == Source::Schedule;
        met += usize::from(world.starts.iter().any(late));
        let made_up = |start: &Start| start.source == Source::Misfire && start.scheduled >= second(8);
        assert!(world.starts.iter().any(made_up), "{seed}: {:#?}", world.starts);
    }
    assert!(met > 10, "{met}");
}

#[test]
pub fn p8_the_flag_is_up_between_the_transactions_of_a_resharding() {
    let mut configuration = six_items();
    configuration.cron = None;
    configuration.sharding_total_count = 6_000;
    with(&[("handoff", "off")])(&mut configuration);
    let mut world = World::new(3, configuration);
    let mut pieces = [0, 0];
    for piece in &mut pieces {
        let before: Vec<_> = (0..6_000).map(|item| owner(&world, item)).collect();
        world.join();
        let mut seen = Vec::new();
        world.settle_and(|world| {
            let owners: Vec<_> = (0..6_000).map(|item| owner(world, item)).collect();
            seen.push((owners, world.get("leader/sharding/necessary").is_some()));
        });
        let (after, flagged) = seen.last().cloned().unwrap();
        assert!(!flagged && after != before);
        // An instance that sees the flag starts nothing, be it a sidecar or a Java instance.
        let torn = seen.iter().filter(|(owners, _)| *owners != before && *owners != after);
        let torn: Vec<_> = torn.map(|(_, flagged)| *flagged).collect();
        assert!(torn.iter().all(|flagged| *flagged), "{torn:?}");
        world.assert_all_owned();
        *piece = torn.len();
    }
    assert!(pieces.iter().all(|piece| *piece > 0), "{pieces:?}");
}
