//! The notices of an application beside its items: what it waits for, which executions take too long, which
//! configuration is in force.

use sidekeeper::coordination::job::contract::event::WaitsFor;
use sidekeeper::job::InstanceName;

use crate::setup::one_node;
use crate::world::{World, six_items};

#[test]
fn an_application_that_is_not_attached_is_notified_of_the_reason() {
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
fn an_application_is_notified_that_its_name_is_in_use() {
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
            problems.iter().any(|problem| problem.code.as_str() == "ITEM_RUNNING_LONG")
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
