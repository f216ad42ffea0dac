//! Executions that are interrupted are told again for their own instants, with their checkpoints (P5), however the sidecars
//! hear of it: transaction by transaction, or in parts.

use jiff::SignedDuration;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::job::JobConfiguration;

use crate::swarm::schedule_of_interruptions;
use crate::world::{World, six_items};

/// Each has about thirty interruptions.
const SCHEDULES: u64 = 250;

#[test]
pub fn p5_what_was_interrupted_is_told_again_for_its_own_instant_with_its_checkpoint() {
    for seed in 0..SCHEDULES {
        if let Err(violation) = schedule_of_interruptions(seed) {
            panic!("{violation}");
        }
    }
}

/// The instance has lost the session in which it took the items, and the server still has that: by the nodes the
/// items are its own, and it has forgotten what it had read of them.
#[test]
pub fn p5_a_failover_taken_in_a_lost_session_is_told_for_its_own_instant() {
    let mut world = World::new(17, JobConfiguration { failover: true, ..six_items() });
    world.join();
    world.join();
    world.run_for(3_500);
    world.settle();
    world.assert_all_owned();
    world.next_duration_ms = Some(60_000);
    world.run_for(1_000);
    let interrupted: Vec<_> = world.nodes[1].executions.values().map(|open| open.execute.scheduled).collect();
    assert_eq!(interrupted.len(), 3);
    world.crash(1);
    world.end_session(1);
    for _ in 0..100 {
        world.look(0);
        if world.is_taking(0) {
            break;
        }
        world.take_effect(0);
    }
    assert!(world.is_taking(0));
    world.take_effect(0);
    // A fire comes before the instance is back.
    world.now += SignedDuration::from_millis(2_500);
    let _lost = world.give_up(0);
    assert!(world.get("sharding/0/failover").is_some());
    world.run_for(3_000);
    let taken = world.starts.iter().filter(|start| start.source == Source::Failover);
    let told: Vec<_> = taken.map(|start| start.scheduled).collect();
    // Its own three were interrupted, too.
    assert_eq!(told, [interrupted[0]; 6]);
}
