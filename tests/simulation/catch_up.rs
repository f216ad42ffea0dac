//! Fires that nobody has executed yet for an item, found from the ledger: which ones are rerun, and from when on (P5).

use jiff::{SignedDuration, Timestamp};
use sidekeeper::coordination::job::contract::commit::Purpose;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::elasticjob::config_yaml;
use sidekeeper::job::Item;

use crate::setup::{one_node, second, started, started_by};
use crate::world::{World, six_items};

/// As in ElasticJob, where a fire waits until the first sharding.
#[test]
fn p5_a_fire_before_the_first_sharding_is_executed_after_it() {
    for (late, source) in [(5, Source::Schedule), (1_700, Source::Misfire)] {
        for disabled in [false, true] {
            let mut world = World::new(7, six_items());
            world.run_until(second(2) - SignedDuration::from_millis(300));
            if disabled {
                world.put("servers/10.0.0.1", "DISABLED");
            }
            let node = world.join();
            while !world.commits.contains_key(&Purpose::Register) {
                world.take_effect(node);
                world.look(node);
            }
            world.take_effect(node);
            world.look(node);
            assert_eq!(world.get("sharding/0/instance"), None);
            world.now = second(2) + SignedDuration::from_millis(late);
            world.look(node);
            if disabled {
                world.put("servers/10.0.0.1", "ENABLED");
            }
            world.run_until(second(3) + SignedDuration::from_millis(990));
            // While the only server is disabled, no instance is expected to execute.
            let expected = usize::from(!disabled);
            let all = (0..6).all(|item| started_by(&world, item, source).len() == expected);
            assert!(all && world.starts.len() == 6 * expected, "{late} {disabled}: {:#?}", world.starts);
            assert!(world.starts.iter().all(|start| start.scheduled == second(2)));
        }
    }
}

#[test]
fn p5_a_server_that_is_enabled_again_reruns_the_first_fire_of_a_new_job() {
    let mut world = World::new(7, six_items());
    world.duration_max_ms = 100;
    for _ in 0..2 {
        world.join();
        world.run_for(500);
    }
    world.run_until(second(2) - SignedDuration::from_millis(100));
    world.crash(0);
    world.run_until(second(2) + SignedDuration::from_millis(500));
    for status in ["DISABLED", "ENABLED"] {
        world.put("servers/10.0.0.2", status);
        world.run_for(100);
    }
    world.end_session(0);
    world.run_until(second(3) + SignedDuration::from_millis(900));
    let executed = |item: u32| {
        let mut starts = world.starts.iter().filter(|start| start.item == Item(item));
        starts.any(|start| start.scheduled == second(2))
    };
    assert!((0..6).all(executed), "{:#?}", world.starts);
}

#[test]
fn p5_fires_before_the_first_execution_of_an_item_are_rerun() {
    let mut world = World::new(7, six_items());
    world.join();
    world.run_for(1_000);
    // The fires at :02 and :04 come while the node is cut off; then its session is lost, and with it the memory of
    // them.
    world.toggle_suspended(0);
    world.run_for(4_200);
    world.expire(0);
    world.run_for(1_500);
    for item in 0..6 {
        assert_eq!(started(&world, item), [(Source::Misfire, 4), (Source::Schedule, 6)]);
    }
}

#[test]
fn p5_an_owner_that_wakes_to_a_handover_reruns_the_fires_that_it_slept_through() {
    let mut world = one_node(|_| {});
    let sleeper = world.join();
    world.run_until(second(7));
    assert_eq!(world.nodes[sleeper].items.len(), 3);
    world.sleep(sleeper, true);
    world.run_until(second(10));
    world.join();
    world.run_for(200);
    // The fire at :10 is fresh, that at :08 is not, and one of its items is to move to another node.
    world.sleep(sleeper, false);
    world.run_for(500);
    assert_eq!(world.nodes[sleeper].items.len(), 2);
    for item in world.nodes[sleeper].items.clone() {
        assert_eq!(started(&world, item.0), [(Source::Schedule, 6), (Source::Misfire, 10)]);
    }
}

#[test]
fn p5_a_new_item_is_not_executed_for_fires_before_it_existed() {
    let mut configuration = six_items();
    configuration.sharding_total_count = 1;
    let mut world = World::new(7, configuration.clone());
    world.join();
    world.run_for(500);
    let spare = world.join();
    world.run_until(second(6) + SignedDuration::from_millis(800));
    configuration.sharding_total_count = 2;
    world.put("config", &config_yaml::write(&configuration));
    world.run_until(second(9));
    assert_eq!(world.nodes[spare].items, [Item(1)]);
    assert_eq!(started(&world, 1), [(Source::Schedule, 8)]);
}

#[test]
fn p5_fires_before_the_job_existed_are_not_rerun() {
    let mut world = World::new(7, six_items());
    world.now = second(9);
    world.join();
    world.run_for(2_500);
    for item in 0..6 {
        assert_eq!(started(&world, item), [(Source::Schedule, 10)]);
    }
}

#[test]
fn an_instance_that_joins_a_flagged_job_reruns_the_fires_missed_without_instances() {
    let mut world = one_node(|_| {});
    world.next_duration_ms = Some(3_000);
    // It executes from :06 to :09; :08 is flagged, and then its application dies.
    world.run_for(3_500);
    world.kill(0);
    world.run_for(4_800);
    world.next_duration_ms = Some(100);
    // :13.3: no instance was there at :10 and :12.
    let (one, other) = (world.join(), world.join());
    world.run_for(500);
    for item in 0..6 {
        assert_eq!(started(&world, item), [(Source::Schedule, 6), (Source::Misfire, 12)]);
    }
    world.drain(one);
    world.run_for(1_000);
    assert_eq!(world.nodes[other].items.len(), 6);
    assert_eq!(world.starts.iter().filter(|start| start.misfire).count(), 6);
}

/// The only node is stopped at :07 with a schedule that does not fire, and before it hears of a change. Meanwhile an
/// operator writes one that fires every three seconds. It goes on at :11.
#[test]
pub fn p5_a_schedule_written_while_the_sidecar_was_stopped_counts_from_then() {
    for suspended in [false, true] {
        let mut world = one_node(|configuration| configuration.cron = Some("59 59 23 * * ?".to_owned()));
        world.put("servers/127.0.0.9", "ENABLED");
        world.run_until(second(7));
        world.sleep(0, true);
        world.put("servers/127.0.0.9", "DISABLED");
        world.run_for(500);
        if suspended {
            // It reads the new schedule after it has heard of the first change, late.
            world.toggle_suspended(0);
        }
        let mut configuration = six_items();
        configuration.cron = Some("0/3 * * * * ?".to_owned());
        world.put("config", &config_yaml::write(&configuration));
        world.run_until(second(11));
        world.sleep(0, false);
        world.look(0);
        if suspended {
            world.toggle_suspended(0);
        }
        world.run_for(800);
        assert_eq!(started(&world, 0), [(Source::Misfire, 9)], "suspended: {suspended}");
    }
}

/// One node is suspended at :05 with a schedule that does not fire; at :07.5 an operator writes one that fires every
/// three seconds; the registry is back at this instant.
fn scheduled_while_away(registry_ahead_ms: i64, back: Timestamp) -> World {
    let mut world = one_node(|configuration| configuration.cron = Some("59 59 23 * * ?".to_owned()));
    world.registry_ahead_ms = registry_ahead_ms;
    // The node hears of so many changes that none counts from before the registry's clock was set.
    for _ in 0..8 {
        world.put("servers/127.0.0.9", "ENABLED");
        world.run_for(50);
    }
    world.toggle_suspended(0);
    world.run_until(second(7) + SignedDuration::from_millis(500));
    let mut configuration = six_items();
    configuration.cron = Some("0/3 * * * * ?".to_owned());
    world.put("config", &config_yaml::write(&configuration));
    world.run_until(back);
    world.toggle_suspended(0);
    world.run_for(500);
    world
}

#[test]
pub fn p5_a_schedule_written_while_the_connection_was_broken_counts_from_then() {
    for registry_ahead_ms in [0, 40_000, -40_000] {
        let world = scheduled_while_away(registry_ahead_ms, second(9) + SignedDuration::from_millis(66));
        assert_eq!(
            started(&world, 0),
            [(Source::Schedule, 9)],
            "the registry is {registry_ahead_ms} ms ahead"
        );
        let world = scheduled_while_away(registry_ahead_ms, second(11));
        assert_eq!(
            started(&world, 0),
            [(Source::Misfire, 9)],
            "the registry is {registry_ahead_ms} ms ahead"
        );
        let world = scheduled_while_away(registry_ahead_ms, second(8));
        assert_eq!(started(&world, 0), [], "the registry is {registry_ahead_ms} ms ahead");
    }
}
