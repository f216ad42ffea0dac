//! Foreign and damaged nodes in the registry do not stop the job (P7, P8).
use sidekeeper::job::JobConfiguration;

use crate::setup::seeds;
use crate::world::{World, six_items};

/// Data for any node: nothing, binary data, numbers, ids with too few and too many parts, YAML of all kinds.
const GARBAGE: [&[u8]; 12] = [
    b"",
    b"\xff\xfe\0\x80",
    b"99999999999999999999",
    b"-1",
    b"nobody",
    b"10.9.9.9@-@1@-@2",
    b"10.9.9.9@-@4711",
    b"a: &a [*a, *a]\nb: &b [*a, *a]\nc: [*b, *b]",
    b"jobName: job\nshardingTotalCount: 2147483648",
    b"{jobName: job, shardingTotalCount: 6, cron: '0/2 * * * * ?', unknown: 1}",
    b"!!java.lang.Runtime {}",
    b"jobName: [job]\nshardingTotalCount: {}",
];

/// The nodes that it is written to.
const PLACES: [&str; 26] = [
    "config",
    "servers/10.9.9.9",
    "servers/here",
    "instances/nobody",
    "instances/10.9.9.9@-@4711",
    "instances/10.9.9.9@-@1@-@2",
    "instances2/x",
    "leader/election/latch/_c_x-latch-",
    "leader/election/elsewhere",
    "leader/failover/items/0",
    "leader/failover/items/99",
    "leader/failover/items/x",
    "leader/sharding/necessary",
    "leader/sharding/processing",
    "sharding/99",
    "sharding/99/instance",
    "sharding/-1",
    "sharding/x/running",
    "sharding/4294967296/running",
    "sharding/0/unknown",
    "sharding/1/misfire",
    "sharding/2/failovering",
    "sharding/5/a/b/c/d/e/f/g/h",
    "trigger/10.9.9.9@-@4711",
    "guarantee/started/0",
    "next-job-instance-ip",
];

#[test]
fn p7_p8_the_job_goes_on_when_foreign_nodes_are_removed() {
    for seed in seeds(40) {
        let mut world = World::new(seed, JobConfiguration { failover: seed % 2 == 0, ..six_items() });
        world.duration_max_ms = 300;
        world.join();
        world.join();
        world.run_for(2_500);
        world.settle();
        let good = world.get("config").unwrap();
        let mut put = Vec::new();
        for _ in 0..25 {
            let place = PLACES[world.random.below(PLACES.len() as u64) as usize];
            let garbage = GARBAGE[world.random.below(GARBAGE.len() as u64) as usize];
            world.put_bytes(place, garbage);
            put.push(place);
            world.run_for(200);
        }
        world.put_bytes("config", &good);
        // The deepest first, with its parents if the test created them.
        put.sort_by_key(|place| std::cmp::Reverse(place.len()));
        for place in put.into_iter().filter(|place| *place != "config") {
            world.remove_with_parents(place);
        }
        world.run_for(15_000);
        world.settle_owned();
        world.starts.clear();
        world.run_for(4_500);
        let executed: std::collections::BTreeSet<_> = world.starts.iter().map(|start| start.item).collect();
        assert_eq!(executed.len(), 6, "seed {seed}: {executed:?}\n{:#?}", world.paths());
    }
}
