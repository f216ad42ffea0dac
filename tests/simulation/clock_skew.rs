//! An instance compares its clock with the registry's.

use sidekeeper::coordination::job::contract::commit::Purpose;

use crate::setup::{counts, one_node};

#[test]
fn a_clock_difference_is_reported_once_and_withdrawn_when_the_clock_is_right() {
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
    assert_eq!(problem.code.as_str(), "CLOCK_SKEW");
    let said = &problem.message;
    assert!(said.contains("s behind the registry's, and maxTimeDiffSeconds is 5"), "{said}");
    assert!(said.starts_with("the clock of 10.0.0.1 is 59.9") || said.contains("is 60.0"), "{said}");
    assert!(counts(&world).iter().all(|(scheduled, _)| *scheduled >= 120), "{:?}", counts(&world));

    world.registry_ahead_ms = -4_000;
    world.run_for(70_000);
    assert_eq!(world.nodes[0].problems[1..], [vec![]]);
}

#[test]
fn a_job_without_a_limit_for_clocks_costs_no_request() {
    let mut world = one_node(|_| {});
    world.registry_ahead_ms = 3_600_000;
    world.run_for(130_000);
    assert_eq!(world.commits.get(&Purpose::CheckClock), None);
    assert!(!world.paths().iter().any(|path| path.contains("systemTime")));
    assert!(world.nodes[0].problems.is_empty());
}

#[test]
fn each_instance_compares_its_clock_in_each_session() {
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
