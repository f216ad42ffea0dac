//! The session as a lease (P4): an instance gives up what it cannot prove to be its own before the registry can end the
//! session.

use std::time::Duration;

use jiff::SignedDuration;
use sidekeeper::coordination::job::contract::answer::Answer;
use sidekeeper::coordination::job::contract::event::{CancelReason, SessionStatus};
use sidekeeper::elasticjob::config_yaml;

use crate::setup::{next_fire, one_node};
use crate::world::{Happened, World, six_items};

#[test]
fn a_question_for_the_lease_is_answered_with_the_proven_end() {
    let mut world = one_node(|_| {});
    world.run_for(1_000);
    assert_eq!(world.ask_lease(0), Answer::Lease { status: SessionStatus::Connected, lease_end: None });
    let end = world.time().mono + Duration::from_secs(3);
    world.prove(0, Duration::from_secs(3));
    assert_eq!(world.ask_lease(0), Answer::Lease { status: SessionStatus::Connected, lease_end: Some(end) });
    world.toggle_suspended(0);
    assert_eq!(world.ask_lease(0), Answer::Lease { status: SessionStatus::Suspended, lease_end: Some(end) });
    world.now += SignedDuration::from_millis(3_500);
    let over = Answer::Lease { status: SessionStatus::Lost, lease_end: Some(Duration::ZERO) };
    assert_eq!(world.ask_lease(0), over);
}

#[test]
fn the_executions_of_a_lost_session_do_not_get_the_lease_of_the_next() {
    let mut world = one_node(|_| {});
    world.next_duration_ms = Some(60_000);
    world.run_for(2_500);
    world.next_duration_ms = None;
    // The application is stopped: it has not read that the session is lost.
    world.ignored_cancels.push(CancelReason::LeaseLost);
    world.expire(0);
    world.run_for(1_000);
    assert_eq!(world.nodes[0].executions.len(), 6);
    let over = Answer::Lease { status: SessionStatus::Lost, lease_end: Some(Duration::ZERO) };
    assert_eq!(world.ask_lease(0), over);
}

/// A world with one node whose items run for long, and whose session has just been proven alive for two seconds.
fn executing() -> World {
    let mut world = one_node(|_| {});
    world.next_duration_ms = Some(60_000);
    world.run_for(2_000);
    assert_eq!(world.nodes[0].executions.len(), 6);
    world.prove(0, Duration::from_secs(2));
    world
}

#[test]
pub fn p4_a_process_that_slept_through_the_lease_gives_everything_up_first() {
    let mut world = executing();
    world.happened.clear();
    // The process sleeps, over fires too; when it wakes, the registry's word that all is well waits already.
    world.now += SignedDuration::from_secs(9);
    world.toggle_suspended(0);
    world.toggle_suspended(0);
    world.look(0);
    assert_eq!(world.nodes[0].executions.len(), 0);
    assert_eq!(world.nodes[0].items, []);
    assert!(
        world.happened.iter().all(|happened| matches!(happened, Happened::Ended(..))),
        "{:?}",
        world.happened
    );
    assert_eq!(world.interrupted.len(), 6);
    // In another session the job goes on.
    world.next_duration_ms = None;
    world.run_for(6_000);
    world.assert_all_owned();
    assert!(world.starts.len() > 6);
}

#[test]
pub fn p4_a_start_from_before_a_sleep_beyond_the_lease_is_not_sent() {
    let mut world = one_node(|_| {});
    world.run_until(next_fire(&world));
    world.prove(0, Duration::from_secs(2));
    let starts = world.starts.len();
    world.look(0);
    world.take_effect(0);
    assert_eq!(world.starts.len(), starts);
    world.now += SignedDuration::from_secs(9);
    world.look(0);
    assert_eq!(world.starts.len(), starts, "{:?}", world.starts);
    assert_eq!(world.nodes[0].items, []);
}

#[test]
fn p5_a_process_that_slept_reruns_no_fire_of_a_schedule_that_has_changed() {
    let mut world = one_node(|_| {});
    world.run_for(1_500);
    world.prove(0, Duration::from_secs(2));
    let mut configuration = six_items();
    configuration.cron = Some("0/30 * * * * ?".to_owned());
    world.put("config", &config_yaml::write(&configuration));
    // It sleeps over fires of the schedule that it knows, and its session ends.
    let starts = world.starts.len();
    world.now += SignedDuration::from_secs(9);
    world.look(0);
    world.run_for(5_000);
    world.assert_all_owned();
    assert_eq!(world.starts.len(), starts, "{:?}", world.starts.last());
    world.run_for(18_000);
    assert_eq!(world.starts.len(), starts + 6);
}

#[test]
fn p4_a_proof_in_time_keeps_the_executions() {
    let mut world = executing();
    for _ in 0..8 {
        world.now += SignedDuration::from_millis(1_900);
        world.prove(0, Duration::from_secs(2));
        world.look(0);
    }
    assert_eq!(world.nodes[0].executions.len(), 6);
    assert_eq!(world.interrupted, []);
}

/// Lets a node sleep until it wakes by itself; gives for how long.
fn sleep(world: &mut World) -> Duration {
    let wakes_in = world.wakes_in(0).expect("a wake-up");
    world.now += SignedDuration::try_from(wakes_in).unwrap();
    wakes_in
}

#[test]
fn p4_the_end_of_the_lease_wakes_the_participant() {
    let mut world = executing();
    world.look(0);
    // Before that the participant wakes to see whether there is a newer proof.
    let (mut slept, mut looks) = (Duration::ZERO, 0);
    while world.nodes[0].executions.len() == 6 {
        slept += sleep(&mut world);
        looks += 1;
        world.look(0);
    }
    assert_eq!(slept, Duration::from_secs(2));
    assert!(looks < 20, "{looks} wake-ups");
}

#[test]
fn p4_the_application_is_notified_of_its_lease_after_each_third() {
    let mut world = executing();
    let lease = Some(Duration::from_secs(3));
    world.prove(0, Duration::from_secs(3));
    world.look(0);
    // No lease had been notified yet.
    assert_eq!(world.nodes[0].leases, [lease]);
    for _ in 0..4 {
        // Proofs between change nothing.
        world.prove(0, Duration::from_millis(3_100));
        world.look(0);
        assert_eq!(sleep(&mut world), Duration::from_secs(1));
        world.prove(0, Duration::from_secs(3));
        world.look(0);
    }
    assert_eq!(world.nodes[0].leases, [lease; 5]);
    // Without a newer proof there is no notice.
    sleep(&mut world);
    world.look(0);
    assert_eq!(world.nodes[0].leases.len(), 5);
    // A newer proof is notified at the next look.
    sleep(&mut world);
    world.prove(0, Duration::from_secs(3));
    world.look(0);
    assert_eq!(world.nodes[0].leases, [lease; 6]);
}

#[test]
fn p4_a_suspended_session_is_notified_once() {
    let mut world = executing();
    world.look(0);
    world.toggle_suspended(0);
    world.look(0);
    let told = world.nodes[0].leases.clone();
    assert_eq!(told, [Some(Duration::from_secs(2)); 2]);
    sleep(&mut world);
    world.look(0);
    assert_eq!(world.nodes[0].leases, told);
    world.toggle_suspended(0);
    world.prove(0, Duration::from_secs(2));
    world.look(0);
    assert_eq!(world.nodes[0].leases.len(), 3);
    assert_eq!(world.nodes[0].leases[2], Some(Duration::from_secs(2)));
}

#[test]
fn p4_an_unknown_lease_is_not_notified() {
    let mut world = one_node(|_| {});
    world.run_for(60_000);
    assert_eq!(world.nodes[0].leases, []);
}

#[test]
fn p4_a_late_proof_does_not_bring_the_session_back() {
    let mut world = executing();
    world.now += SignedDuration::from_millis(2_000);
    world.look(0);
    assert_eq!(world.nodes[0].executions.len(), 0);
    world.prove(0, Duration::from_secs(2));
    world.look(0);
    assert_eq!(world.nodes[0].items, []);
}
