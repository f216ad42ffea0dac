//! The ledger: which fires of an item have been started, by any instance (P5).

use jiff::SignedDuration;
use sidekeeper::coordination::job::contract::commit::Purpose;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::job::JobConfiguration;

use crate::setup::second;
use crate::world::{World, six_items};

#[test]
fn p5_a_takeover_before_the_ledger_is_read_continues_the_ledger() {
    let mut met = 0;
    for seed in 0..60 {
        let mut world = World::new(seed, JobConfiguration { failover: true, ..six_items() });
        world.duration_max_ms = 200;
        world.join();
        world.run_for(1_000);
        world.join();
        world.run_until(second(4) - SignedDuration::from_millis(100));
        world.next_duration_ms = Some(60_000);
        while world.nodes[0].executions.is_empty() {
            world.run_for(1);
        }
        // It leads: the instance that takes over its executions reshards at the same time.
        world.next_duration_ms = Some(100);
        world.crash(0);
        world.end_session(0);
        world.run_until(second(5));
        met += usize::from(world.starts.iter().any(|start| start.source == Source::Failover));
        // It is alone, and each fire takes it one transaction.
        let before = world.commits[&Purpose::Start];
        world.run_until(second(7));
        assert_eq!(world.commits[&Purpose::Start], before + 1, "{seed}: {:#?}", world.starts);
    }
    assert!(met > 10, "{met}");
}
