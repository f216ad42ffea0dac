//! The schedule when the clock is set.

use jiff::SignedDuration;

use crate::setup::{counts, one_node};

#[test]
pub fn p5_a_clock_set_back_by_seconds_fires_no_instant_again() {
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
pub fn p5_without_a_ledger_a_clock_set_back_by_seconds_fires_no_instant_again() {
    let mut world = one_node(|configuration| configuration.monitor_execution = false);
    world.set_wall_back(SignedDuration::from_secs(20));
    world.run_for(15_000);
    assert_eq!(world.starts, []);
}
