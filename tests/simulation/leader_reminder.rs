//! A Java leader is reminded of items without a living owner (H5).

use crate::setup::{one_node, put_new_java};
use crate::world::World;

#[test]
pub fn h5_a_java_leader_that_leaves_an_item_without_a_living_owner_is_reminded() {
    let mut world = one_node(|_| {});
    world.remove("leader/election/instance");
    put_new_java(&mut world, "10.9.9.9@-@1");
    world.put("leader/election/instance", "10.9.9.9@-@1");
    world.run_for(8_000);
    let version = |world: &World| world.version("servers/10.0.0.1");
    let before = version(&world);
    // Nothing is wrong: the leader is left alone.
    world.run_for(8_000);
    assert_eq!(version(&world), before);
    // The leader assigns an item to an offline instance, and considers the sharding complete.
    world.put("sharding/3/instance", "10.8.8.8@-@2");
    world.run_for(4_000);
    assert_eq!(version(&world), before);
    world.run_for(8_000);
    assert!(version(&world) > before);
    assert_eq!(world.get("servers/10.0.0.1").unwrap(), b"ENABLED");
    assert!(!world.paths().iter().any(|path| path.ends_with("/necessary")));
}

#[test]
fn h5_a_java_leader_whose_strategy_may_give_a_sidecar_nothing_is_not_reminded() {
    // The last one has fewer items than instances.
    let cases = [(None, 6, true), (Some("ODEVITY"), 6, true), (Some("OUR_OWN"), 6, false), (None, 1, false)];
    for (strategy, items, reminded) in cases {
        let mut world = one_node(|configuration| {
            configuration.job_sharding_strategy_type = strategy.map(str::to_owned);
            configuration.sharding_total_count = items;
        });
        world.remove("leader/election/instance");
        put_new_java(&mut world, "10.9.9.9@-@1");
        world.put("leader/election/instance", "10.9.9.9@-@1");
        for item in 0..items {
            world.put(&format!("sharding/{item}/instance"), "10.9.9.9@-@1");
        }
        let before = world.version("servers/10.0.0.1");
        world.run_for(4_000);
        assert_eq!(world.version("servers/10.0.0.1"), before, "{items} items");
        world.run_for(8_000);
        assert_eq!(world.version("servers/10.0.0.1") > before, reminded, "{items} items");
    }
}
