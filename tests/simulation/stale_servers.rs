//! Servers without instances are removed after their time, if the job asks for it, and never one that an operator has disabled.

use crate::setup::{one_node, put_new_java, with};
use crate::world::World;

const TEN_MINUTES: i64 = 600_000;
const STALE: &str = "servers/10.8.8.8";

/// Lets time pass, without the many looks of a busy world.
fn wait(world: &mut World, millis: i64) {
    for _ in 0..millis / 5_000 {
        world.pass(5_000);
    }
}

/// A world with one node that does nothing, and an old server.
fn quiet(properties: &[(&str, &str)]) -> World {
    let mut world = one_node(|configuration| {
        with(properties)(configuration);
        configuration.cron = Some("0 0 0 1 1 ? 2099".to_owned());
    });
    world.put(STALE, "ENABLED");
    world.run_for(1_000);
    world
}

#[test]
fn a_server_without_instances_is_removed_after_its_time_and_not_before() {
    let mut world = quiet(&[("stale-servers", "10m")]);
    world.put("servers/10.7.7.7", "DISABLED");
    wait(&mut world, 5_000);
    let wakes = world.wakes_in(0).expect("it wakes for the server");
    assert!(wakes.as_secs() <= 600, "{wakes:?}");
    wait(&mut world, TEN_MINUTES - 15_000);
    assert!(world.get(STALE).is_some(), "too early");
    wait(&mut world, 20_000);
    assert_eq!(world.get(STALE), None);
    assert_eq!(world.get("servers/10.7.7.7").unwrap(), b"DISABLED");
    assert!(world.get("servers/10.0.0.1").is_some());
    world.assert_all_owned();
}

#[test]
fn no_server_is_removed_unless_the_job_asks_for_it() {
    let mut world = quiet(&[]);
    wait(&mut world, 2 * TEN_MINUTES);
    assert!(world.get(STALE).is_some());
}

#[test]
fn each_write_of_a_servers_node_begins_its_time_anew() {
    let mut world = quiet(&[("stale-servers", "10m")]);
    wait(&mut world, TEN_MINUTES - 10_000);
    // A Java instance writes it before it registers.
    world.put(STALE, "ENABLED");
    wait(&mut world, TEN_MINUTES - 10_000);
    assert!(world.get(STALE).is_some());
    wait(&mut world, 20_000);
    assert_eq!(world.get(STALE), None);
}

#[test]
fn a_server_that_an_operator_disables_in_between_stays_and_begins_anew_when_it_is_enabled() {
    let mut world = quiet(&[("stale-servers", "10m")]);
    wait(&mut world, TEN_MINUTES - 10_000);
    world.put(STALE, "DISABLED");
    wait(&mut world, TEN_MINUTES);
    assert_eq!(world.get(STALE).unwrap(), b"DISABLED");
    world.put(STALE, "ENABLED");
    wait(&mut world, TEN_MINUTES - 10_000);
    assert!(world.get(STALE).is_some());
    wait(&mut world, 20_000);
    assert_eq!(world.get(STALE), None);
}

#[test]
fn beside_java_instances_no_server_is_removed_unless_the_job_asks_for_that_too() {
    for (beside, stays) in [("false", true), ("true", false)] {
        let mut world = quiet(&[("stale-servers", "10m"), ("stale-servers-beside-java", beside)]);
        put_new_java(&mut world, "10.9.9.9@-@1");
        wait(&mut world, TEN_MINUTES + 20_000);
        assert_eq!(world.get(STALE).is_some(), stays, "{beside}");
        assert!(world.get("servers/10.9.9.9").is_some(), "it has an instance");
    }
}

#[test]
fn another_leader_begins_the_time_anew() {
    let mut world = quiet(&[("stale-servers", "10m")]);
    wait(&mut world, TEN_MINUTES - 30_000);
    world.join();
    world.run_for(5_000);
    world.kill(0);
    wait(&mut world, TEN_MINUTES - 30_000);
    assert!(world.get(STALE).is_some(), "the next leader has not seen it for so long");
    wait(&mut world, 60_000);
    assert_eq!(world.get(STALE), None);
}
