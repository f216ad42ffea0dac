//! What others have left, or do, case by case: Java instances, operators, leaders that are gone (P7, P8).

use crate::world::{World, six_items};

const JAVA: &str = "10.9.9.9@-@4711";

fn yaml() -> String {
    format!("jobInstanceId: {JAVA}\nserverIp: 10.9.9.9\n")
}

/// A sidecar and a Java instance, with the items divided between them.
fn with_java(change: impl Fn(&mut sidekeeper::job::JobConfiguration)) -> World {
    let mut configuration = six_items();
    change(&mut configuration);
    let mut world = World::new(1, configuration);
    world.join();
    world.run_for(1_000);
    world.put_java(JAVA);
    world.run_for(3_000);
    world.settle();
    assert!(!of_java(&world).is_empty());
    world
}

/// The items that the Java instance owns.
fn of_java(world: &World) -> Vec<u32> {
    let owner = |item: &u32| world.get(&format!("sharding/{item}/instance"));
    (0..6).filter(|item| owner(item).is_some_and(|owner| owner == JAVA.as_bytes())).collect()
}

fn running(world: &World, item: u32) -> Option<Vec<u8>> {
    world.get(&format!("sharding/{item}/running"))
}

#[test]
pub fn p7_a_leader_that_is_not_online_is_removed() {
    let mut world = World::new(1, six_items());
    world.put("leader/election/instance", "10.9.9.9@-@gone");
    world.join();
    world.run_for(8_000);
    world.settle();
    assert_eq!(world.get("leader/election/instance").unwrap(), b"10.0.0.1@-@n0");
    world.assert_all_owned();
}

#[test]
pub fn h15_a_server_that_an_operator_has_disabled_stays_so_in_a_new_session() {
    let mut world = World::new(1, six_items());
    world.join();
    world.run_for(1_000);
    world.put("servers/10.0.0.1", "DISABLED");
    world.run_for(500);
    world.expire(0);
    world.run_for(3_000);
    world.settle();
    assert!(world.get("instances/10.0.0.1@-@n0").is_some());
    assert_eq!(world.get("servers/10.0.0.1").unwrap(), b"DISABLED");
}

#[test]
pub fn h2_what_a_java_instance_executes_is_not_taken_from_it_while_it_reconnects() {
    let mut world = with_java(|configuration| configuration.failover = true);
    let item = of_java(&world)[0];
    world.put(&format!("sharding/{item}/running"), JAVA);
    world.run_for(500);
    world.remove(&format!("instances/{JAVA}"));
    world.run_for(1_000);
    assert_eq!(running(&world, item).as_deref(), Some(JAVA.as_bytes()));
    world.put(&format!("instances/{JAVA}"), &yaml());
    world.run_for(3_000);
    assert_eq!(running(&world, item).as_deref(), Some(JAVA.as_bytes()));
    assert!(world.starts.iter().all(|start| start.at < world.now), "{:?}", world.starts);
    // Without it, it is taken over.
    world.remove(&format!("instances/{JAVA}"));
    world.run_for(6_000);
    assert_ne!(running(&world, item).as_deref(), Some(JAVA.as_bytes()));
}

#[test]
pub fn p2_what_a_java_instance_executes_is_not_given_to_others() {
    let mut world = with_java(|_| {});
    let items = of_java(&world);
    for item in &items {
        world.put(&format!("sharding/{item}/running"), JAVA);
    }
    world.run_for(100);
    world.join();
    world.run_for(3_000);
    world.settle();
    assert_eq!(of_java(&world), items);
    for item in items {
        assert_eq!(running(&world, item).as_deref(), Some(JAVA.as_bytes()));
        world.remove(&format!("sharding/{item}/running"));
    }
    world.run_for(2_000);
    world.settle();
    assert_eq!(of_java(&world).len(), 2);
}

#[test]
pub fn p8_nothing_starts_while_a_java_leader_is_to_divide_the_items() {
    let mut world = with_java(|_| {});
    world.remove("leader/election/instance");
    world.put("leader/election/instance", JAVA);
    world.run_for(200);
    world.put("leader/sharding/necessary", "");
    world.run_for(200);
    world.starts.clear();
    world.run_for(5_000);
    assert_eq!(world.starts, []);
    world.remove("leader/sharding/necessary");
    world.run_for(3_000);
    assert!(!world.starts.is_empty());
}
