//! An instance that leaves: what it flags, and that it leaves no node behind (P6).

use jiff::SignedDuration;
use sidekeeper::coordination::job::contract::commit::Purpose;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::job::{Item, JobConfiguration};

use crate::setup::{AT_ONCE, asked, assert_nothing_lost, job_with, one_node, second, seeds};
use crate::world::{World, six_items};

/// The earlier session lives on in the registry when the next one looks, and ends while its instance leaves.
#[test]
fn p5_p6_items_that_an_earlier_session_left_are_flagged_though_its_instance_is_still_there() {
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

#[test]
fn p6_a_drain_leaves_no_node_of_the_instance() {
    for seed in seeds(50) {
        let mut world = World::new(seed, six_items());
        world.join_many(3);
        world.run_for(5_000);
        for node in 0..3 {
            world.drain(node);
        }
        world.run_for(5_000);
        world.settle();
        assert!(world.nodes.iter().all(|node| node.ended.is_some()), "seed {seed}: an instance stays");
        let left: Vec<_> = world
            .paths()
            .into_iter()
            .filter(|path| {
                path.contains("instances/")
                    || path.ends_with("/running")
                    || path.ends_with("election/instance")
            })
            .collect();
        assert!(left.is_empty(), "seed {seed}: {left:?}");
    }
}

/// Its flag for a missed fire has failed, and it reads the ledger again when its items have another owner.
#[test]
fn p5_a_leaving_instance_flags_no_fire_that_the_next_owner_has_rerun() {
    let mut met = 0;
    for seed in 0..60 {
        let mut world = World::new(seed, job_with(&[("handoff", "off")]));
        world.join();
        world.run_for(200);
        world.join();
        world.run_until(second(4) - SignedDuration::from_millis(100));
        world.duration_max_ms = 100;
        while world.nodes[0].executions.is_empty() {
            world.run_for(1);
        }
        for open in world.nodes[0].executions.values_mut() {
            open.ends = second(60);
        }
        world.run_until(second(5));
        world.join();
        world.run_until(second(6) - SignedDuration::from_millis(20));
        if world.get("leader/sharding/necessary").is_none() {
            continue; // What is executed stays where it is.
        }
        met += 1;
        world.now = second(6) + SignedDuration::from_millis(1);
        world.look(0);
        assert_eq!(asked(&world, Purpose::FlagMisfire), 1);
        world.put("leader/sharding", "");
        world.take_effect(0);
        world.look(0);
        let shardings = asked(&world, Purpose::Shard);
        world.drain_within(0, std::time::Duration::from_millis(3_200));
        for _ in 0..4_000 {
            if asked(&world, Purpose::Shard) > shardings {
                break;
            }
            world.run_for(1);
        }
        // The others execute their new items before the node looks again.
        world.take_effect(0);
        world.sleep(0, true);
        world.run_for(300);
        world.sleep(0, false);
        world.run_for(5_000);
        assert!(world.nodes[0].ended.is_some(), "seed {seed}");
        assert_nothing_lost(&world, second(6), second(10));
        for item in (0..6).map(Item) {
            let made_up = world.starts.iter().filter(|start| start.item == item && start.misfire);
            assert_eq!(made_up.count(), 1, "seed {seed}: item {item}: {:#?}", world.starts);
        }
    }
    assert!(met > 0);
}

/// The application announces its stop while the running nodes of a fire are being created.
#[test]
pub fn p5_an_application_that_stops_gets_what_was_starting_and_then_nothing() {
    let mut handed_over = 0;
    for seed in 0..40 {
        let mut world = World::new(seed, job_with(&[]));
        world.join_many(2);
        world.run_until(second(4) - SignedDuration::from_millis(10));
        world.settle();
        world.duration_max_ms = 3_000;
        world.now = second(4) + SignedDuration::from_millis(1);
        let (starts, own) = (asked(&world, Purpose::Start), world.nodes[0].items.clone());
        world.look(0);
        assert_eq!(asked(&world, Purpose::Start), starts + 1, "seed {seed}");
        world.drain_attachment(0);
        world.look(0);
        assert!(!world.nodes[0].drained, "seed {seed}: a start is in flight");
        world.take_effect(0);
        let told = |world: &World| world.starts.iter().filter(|start| start.node == 0).count();
        let before = told(&world);
        world.run_for(100);
        assert!(world.nodes[0].drained, "seed {seed}");
        assert_eq!(told(&world), before + own.len(), "seed {seed}");
        // It executes beyond the next fire, which the other instance gets.
        world.run_until(second(7));
        assert!(world.nodes[0].ended.is_none(), "seed {seed}: the application ends its stream itself");
        handed_over += own.iter().filter(|item| world.nodes[1].items.contains(item)).count();
        world.run_until(second(8) - SignedDuration::from_millis(100));
        assert_eq!(told(&world), before + own.len(), "seed {seed}");
        world.detach(0);
        world.run_until(second(13));
        assert!(world.nodes[0].ended.is_some(), "seed {seed}");
        assert_nothing_lost(&world, second(2), second(12));
        assert!(world.interrupted.is_empty(), "seed {seed}: {:?}", world.interrupted);
        assert!(world.starts.iter().all(|start| start.source != Source::Failover), "seed {seed}");
    }
    assert!(handed_over > 0);
}

/// The instance has handed some items over, others have executed them, or do so, and then it goes on.
#[test]
fn p5_a_departure_in_several_transactions_hands_each_execution_over_once() {
    for (restarted, duration_ms) in [(false, 50), (false, 3_000), (true, 50), (true, 3_000)] {
        hands_each_execution_over_once(restarted, duration_ms);
    }
}

/// `restarted`: its sidecar was, and so has not seen whose the running nodes were at first. `duration_ms`: how long
/// others execute its items.
fn hands_each_execution_over_once(restarted: bool, duration_ms: u64) {
    let properties = [AT_ONCE[0], ("grace", "4s")];
    let mut world = World::new(5, JobConfiguration { failover: true, ..job_with(&properties) });
    world.join_many(2);
    world.settle_owned();
    world.next_duration_ms = Some(60_000);
    world.run_until(second(2) + SignedDuration::from_millis(200));
    assert_eq!(world.nodes[1].executions.len(), 3);
    world.next_duration_ms = Some(duration_ms);
    let mut items = world.nodes[1].items.clone();
    if restarted {
        world.kill_sidecar(1);
        world.start_sidecar(1);
        world.run_for(50);
        world.reattach(1);
    }
    world.limit_requests(1, 2);
    world.kill(1);
    // It does not come back: its grace does not count.
    world.detach(1);
    let leaves = asked(&world, Purpose::Leave);
    for _ in 0..100 {
        world.look(1);
        world.take_effect(1);
        if asked(&world, Purpose::Leave) > leaves {
            break;
        }
    }
    world.take_effect(1);
    world.sleep(1, true);
    world.run_for(1_000);
    let taken = |world: &World| -> Vec<Item> {
        world.starts.iter().filter(|start| start.source == Source::Failover).map(|start| start.item).collect()
    };
    assert!(!taken(&world).is_empty() && taken(&world).len() < items.len(), "{:#?}", world.starts);
    world.sleep(1, false);
    world.run_for(4_000);
    assert!(world.nodes[1].ended.is_some());
    let mut taken = taken(&world);
    taken.sort();
    items.sort();
    assert_eq!(taken, items, "restarted: {restarted}, {duration_ms} ms");
}
