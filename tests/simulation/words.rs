//! What an application is told beside its items: what it waits for, what takes too long, which configuration is in force,
//! and until when its session lasts.

use std::time::Duration;

use futures::FutureExt;

use sidekeeper::coordination::job::contract::answer::Answer;
use sidekeeper::coordination::job::contract::event::WaitsFor;
use sidekeeper::coordination::job::contract::event::{CancelReason, SessionStatus};
use sidekeeper::coordination::job::contract::reattach::OpenExecution;
use sidekeeper::elasticjob::instance_yaml;
use sidekeeper::job::InstanceName;
use sidekeeper::tree::{NodeKind, Operation, Path};

use crate::cases::one_node;
use crate::world::{World, six_items};

#[test]
fn an_application_that_is_not_attached_is_told_what_it_waits_for() {
    let mut world = World::new(3, six_items());
    world.join();
    world.toggle_suspended(0);
    world.run_for(2_500);
    assert_eq!(world.waited, []);
    world.run_for(10_000);
    assert_eq!(world.waited, [WaitsFor::Registry]);
    world.toggle_suspended(0);
    world.run_for(2_000);
    world.assert_all_owned();
    assert_eq!(world.nodes[0].items.len(), 6);
}

#[test]
fn an_application_whose_name_another_session_has_is_told_so() {
    let mut world = World::new(3, six_items());
    world.join_as(Some("worker-0"), 0);
    world.run_for(4_000);
    world.join_as(Some("worker-0"), 1);
    world.run_for(5_000);
    assert_eq!(world.waited, [WaitsFor::Name(InstanceName::parse("worker-0").unwrap())]);
}

#[test]
fn executions_that_outlast_the_next_fire_by_a_minute_are_a_problem_until_they_end() {
    let mut world = one_node(|_| {});
    world.next_duration_ms = Some(90_000);
    world.run_for(2_500);
    assert_eq!(world.nodes[0].executions.len(), 6);
    world.next_duration_ms = Some(100);
    let slow = |world: &World| {
        let told = world.nodes[0].problems.last();
        told.is_some_and(|problems| {
            problems.iter().any(|problem| problem.message.contains("beyond the next fire"))
        })
    };
    world.run_for(58_000);
    assert!(!slow(&world));
    world.run_for(14_000);
    assert!(slow(&world), "{:?}", world.nodes[0].problems);
    let warned = world.problems.iter().find(|problem| problem.contains("beyond the next fire")).unwrap();
    assert!(warned.contains("item 0, item 1, item 2, item 3, item 4 and 1 more"), "{warned}");
    world.run_for(25_000);
    assert!(!slow(&world));
}

#[test]
fn a_configuration_that_is_not_in_force_is_a_problem_that_names_the_fields() {
    let mut world = one_node(|_| {});
    world.run_for(2_000);
    assert_eq!(world.problems, [""; 0]);
    // As a rolling deployment does.
    world.configuration.cron = Some("0 0 3 * * ?".to_owned());
    world.join();
    world.run_for(4_000);
    let ignored: Vec<_> = world.problems.iter().filter(|problem| problem.contains("is ignored")).collect();
    assert_eq!(ignored.len(), 1, "{:?}", world.problems);
    assert!(
        ignored[0].contains("configuration.cron (`0/2 * * * * ?` there, `0 0 3 * * ?` given)"),
        "{ignored:?}"
    );
    assert!(world.nodes[0].problems.iter().all(Vec::is_empty));
}

#[test]
fn an_application_that_asks_for_its_lease_is_given_what_is_proven() {
    let mut world = one_node(|_| {});
    world.run_for(1_000);
    assert_eq!(world.ask_lease(0), Answer::Lease { status: SessionStatus::Connected, lease_end: None });
    let end = world.time().mono + Duration::from_secs(3);
    world.prove(0, Duration::from_secs(3));
    assert_eq!(world.ask_lease(0), Answer::Lease { status: SessionStatus::Connected, lease_end: Some(end) });
    world.toggle_suspended(0);
    assert_eq!(world.ask_lease(0), Answer::Lease { status: SessionStatus::Suspended, lease_end: Some(end) });
    world.now += jiff::SignedDuration::from_millis(3_500);
    let over = Answer::Lease { status: SessionStatus::Lost, lease_end: Some(Duration::ZERO) };
    assert_eq!(world.ask_lease(0), over);
}

#[test]
fn the_lease_of_another_session_is_not_given_for_what_is_still_executed() {
    let mut world = one_node(|_| {});
    world.next_duration_ms = Some(60_000);
    world.run_for(2_500);
    world.next_duration_ms = None;
    // The application is stopped: it has not read that the session is lost.
    world.disobeyed.push(CancelReason::LeaseLost);
    world.expire(0);
    world.run_for(1_000);
    assert_eq!(world.nodes[0].executions.len(), 6);
    let over = Answer::Lease { status: SessionStatus::Lost, lease_end: Some(Duration::ZERO) };
    assert_eq!(world.ask_lease(0), over);
}

/// A claim that has the id and the token only.
fn bare(open: &mut OpenExecution) {
    (open.source, open.scheduled, open.deadline, open.attempt) = (None, None, None, 1);
}

#[test]
fn an_execution_is_known_by_its_id_and_its_token_alone() {
    let mut configuration = six_items();
    configuration.props.insert("sidekeeper.grace".to_owned(), "4s".to_owned());
    configuration.props.insert("sidekeeper.execution-timeout".to_owned(), "20s".to_owned());
    let mut world = World::new(5, configuration);
    world.join();
    world.join();
    world.run_for(4_500);
    world.settle();
    world.next_duration_ms = Some(30_000);
    world.run_for(2_000);
    let told = |world: &World| -> Vec<_> {
        let open = world.nodes[0].executions.values();
        open.map(|open| (open.execute.item, open.execute.token, open.execute.scheduled)).collect()
    };
    let before = told(&world);
    assert_eq!(before.len(), 3);
    world.kill_sidecar(0);
    world.run_for(300);
    world.start_sidecar(0);
    world.run_for(500);
    world.come_back_saying(0, bare);
    world.run_for(500);
    assert_eq!(told(&world), before);
    // Its timeout has begun anew.
    world.run_for(18_500);
    let cancelled = |world: &World| {
        let ours = world.cancels.iter().filter(|(item, ..)| before.iter().any(|told| told.0 == *item));
        ours.count()
    };
    assert_eq!(cancelled(&world), 0);
    world.run_for(2_000);
    assert_eq!(cancelled(&world), 3, "{:?}", world.cancels);
    world.next_duration_ms = None;
    world.run_for(10_000);
    world.settle();
    world.assert_all_owned();
}

#[test]
fn an_instance_whose_session_another_client_closes_is_not_stopped() {
    for silent_ms in [0, 200, 1_500] {
        let mut world = one_node(|configuration| configuration.failover = true);
        world.next_duration_ms = Some(60_000);
        world.run_for(2_500);
        assert_eq!(world.nodes[0].executions.len(), 6);
        world.next_duration_ms = None;
        // The server removes its nodes, breaks its connection, and then tells it that the session is gone.
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
fn an_instance_whose_node_is_there_after_all_is_not_stopped() {
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
fn an_operators_stop_holds_also_if_the_session_is_lost_later() {
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
