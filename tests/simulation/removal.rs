//! An operator stops an instance or deletes its nodes.

use futures::FutureExt;
use sidekeeper::elasticjob::instance_yaml;
use sidekeeper::job::JobConfiguration;
use sidekeeper::tree::{NodeKind, Operation, Path};

use crate::setup::{one_node, second};
use crate::world::{World, six_items};

#[test]
pub fn an_instance_whose_node_an_operator_removes_stops_for_good() {
    let mut world = one_node(|_| {});
    world.remove("instances/10.0.0.1@-@n0");
    world.run_for(2_000);
    assert!(world.nodes[0].ended.is_some());
    assert!(!world.paths().iter().any(|path| path.contains("instances/")));
}

/// A world with two nodes that execute all items for long.
fn two_nodes_that_execute(failover: bool) -> World {
    let mut world = World::new(17, JobConfiguration { failover, ..six_items() });
    world.join();
    world.join();
    world.run_for(3_500);
    world.settle_owned();
    world.next_duration_ms = Some(5_000);
    world.run_for(1_000);
    assert!(world.nodes.iter().all(|node| node.executions.len() == 3));
    world
}

#[test]
fn p2_the_executions_of_a_stopped_instance_are_executed_by_no_other() {
    for failover in [false, true] {
        let mut world = two_nodes_that_execute(failover);
        world.remove("instances/10.0.0.1@-@n0");
        // An instance that executes one of its items meanwhile fails the world's own check.
        world.next_duration_ms = Some(100);
        world.run_for(12_000);
        assert!(world.nodes[0].ended.is_some());
        world.settle_owned();
        assert_eq!(world.nodes[1].items.len(), 6);
    }
}

#[test]
fn p2_an_owner_node_that_an_operator_deletes_does_not_end_executions() {
    for failover in [false, true] {
        let mut world = World::new(3, JobConfiguration { failover, ..six_items() });
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

#[test]
fn an_instance_whose_session_another_client_closes_is_not_stopped() {
    for silent_ms in [0, 200, 1_500] {
        let mut world = one_node(|configuration| configuration.failover = true);
        world.next_duration_ms = Some(60_000);
        world.run_for(2_500);
        assert_eq!(world.nodes[0].executions.len(), 6);
        world.next_duration_ms = None;
        // The server removes its nodes, breaks its connection, and then reports that the session has ended.
        world.remove("instances/10.0.0.1@-@n0");
        world.run_for(200);
        if silent_ms > 0 {
            world.toggle_suspended(0);
            world.run_for(silent_ms);
        }
        world.expire(0);
        world.run_for(6_000);
        assert_eq!(world.nodes[0].ended, None);
        assert_eq!(world.interrupted.len(), 6);
        world.assert_all_owned();
    }
}

#[test]
fn an_instance_whose_node_is_created_again_is_not_stopped() {
    let mut world = one_node(|_| {});
    let node = Path::parse(&format!("/ns/job/instances/{}", world.nodes[0].instance)).unwrap();
    world.remove(&format!("instances/{}", world.nodes[0].instance));
    world.run_for(100);
    let yaml = instance_yaml::write(&world.nodes[0].instance);
    let create = vec![Operation::create(node, NodeKind::Ephemeral, yaml)];
    world.nodes[0].session.commit(create).now_or_never().unwrap().unwrap();
    world.run_for(6_000);
    assert_eq!(world.nodes[0].ended, None);
    world.assert_all_owned();
}

#[test]
fn an_instance_that_wrongly_finds_its_node_removed_leaves_no_node_behind() {
    let mut world = World::new(17, six_items());
    let deceived = world.join();
    world.join();
    world.run_for(3_500);
    world.settle_owned();
    let node = format!("instances/{}", world.nodes[deceived].instance);
    world.hide(deceived, &node);
    world.run_for(6_000);
    assert!(world.nodes[deceived].ended.is_some());
    assert_eq!(world.get(&node), None);
    world.settle_owned();
    assert_eq!(world.nodes[1].items.len(), 6);
}

/// Its departure begins half a second after what looked like a removal. The answer to one of its requests is lost, that to
/// the deletion among them, or the connection breaks meanwhile.
#[test]
fn the_node_of_a_wrongly_stopped_instance_goes_also_if_an_answer_is_lost_or_the_connection_breaks() {
    for (millis, breaks) in (490..=520).flat_map(|millis| [(millis, false), (millis, true)]) {
        let mut world = World::new(18, six_items());
        let deceived = world.join();
        world.join();
        world.run_for(3_500);
        world.settle_owned();
        let node = format!("instances/{}", world.nodes[deceived].instance);
        world.hide(deceived, &node);
        world.run_for(millis);
        if breaks {
            world.toggle_suspended(deceived);
            world.run_for(500);
            world.toggle_suspended(deceived);
        } else {
            world.loses_answer = Some(deceived);
        }
        world.run_for(8_000);
        world.loses_answer = None;
        world.settle_owned();
        let registered = world.children("instances");
        let staying = world.nodes.iter().filter(|one| one.ended.is_none());
        let owned: usize = staying.clone().map(|one| one.items.len()).sum();
        // If the nodes are read again in time, the instance was not stopped at all.
        assert_eq!((owned, registered.len()), (6, staying.count()), "{millis} {breaks}: {registered:?}");
    }
}

#[test]
fn the_stop_of_an_operator_holds_though_the_session_is_lost_later() {
    let mut world = one_node(|configuration| configuration.failover = true);
    world.next_duration_ms = Some(60_000);
    world.run_for(2_500);
    world.remove("instances/10.0.0.1@-@n0");
    world.run_for(1_500);
    world.expire(0);
    world.run_for(3_000);
    assert!(world.nodes[0].ended.is_some());
    assert!(world.children("instances").is_empty());
}
