//! What one execution makes up for, and for which instant it is told (P5). That no instant is told twice is checked at each
//! start, in every scenario (`World::record`).

use jiff::{SignedDuration, Timestamp};
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::elasticjob::config_yaml;
use sidekeeper::job::Item;

use crate::cases::one_node;
use crate::scenarios::seeds;
use crate::world::{World, six_items};

/// The instant so many seconds after the begin of the world.
pub fn second(seconds: i64) -> Timestamp {
    "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds)
}

/// What was started of an item: what for, and for which second.
fn told(world: &World, item: u32) -> Vec<(Source, i64)> {
    let of_item = world.starts.iter().filter(|start| start.item == Item(item));
    of_item.map(|start| (start.source, start.scheduled.duration_since(second(0)).as_secs())).collect()
}

/// Asserts that each fire between two instants was started, or is before one that was made up for later.
pub fn assert_nothing_lost(world: &World, from: Timestamp, to: Timestamp) {
    for item in (0..6).map(Item) {
        let starts: Vec<_> = world.starts.iter().filter(|start| start.item == item).collect();
        let mut fire = from;
        while fire < to {
            let made_good = starts.iter().any(|start| {
                start.scheduled == fire || (start.misfire && start.scheduled > fire && start.at > fire)
            });
            assert!(
                made_good,
                "seed {}: fire {fire} of item {item}: {starts:#?}\n{:#?}",
                world.seed, world.log
            );
            fire += SignedDuration::from_secs(2);
        }
    }
}

#[test]
pub fn one_execution_makes_up_for_all_that_was_missed_and_is_told_for_the_newest() {
    let mut world = one_node(|_| {});
    world.next_duration_ms = Some(5_000);
    // It executes from :06 to :11; :08 and :10 are missed.
    world.run_for(1_500);
    world.next_duration_ms = Some(100);
    world.run_for(6_000);
    let flagged = world.read("/ns-sidekeeper/job/fires/0").unwrap();
    assert_eq!(told(&world, 0), [(Source::Schedule, 6), (Source::Misfire, 10), (Source::Schedule, 12)]);
    let latest = format!("{} ", second(12).as_millisecond());
    assert!(String::from_utf8(flagged).unwrap().starts_with(&latest));
}

#[test]
fn what_was_executed_at_its_time_is_not_told_again() {
    let mut world = one_node(|_| {});
    // :05 to :16.3: the fire at :16 is fresh, and that at :14 the newest of the others.
    world.now += SignedDuration::from_millis(11_300);
    world.run_for(1_000);
    assert_eq!(told(&world, 3), [(Source::Schedule, 16), (Source::Misfire, 14)]);
}

/// Two nodes: the first executed its items from :06 to :11.2, was flagged at :08, and hands three of them over at its end to
/// the second, which came after so many milliseconds; gives those items, too.
fn handed_over_when_flagged(joins_after: i64) -> (World, Vec<Item>) {
    let mut world = one_node(|_| {});
    world.next_duration_ms = Some(5_200);
    world.run_for(1_500);
    world.next_duration_ms = Some(100);
    world.run_for(joins_after);
    let other = world.join();
    world.run_for(4_600 - joins_after);
    assert_eq!(world.nodes[other].items, []);
    world.run_for(700);
    let items = world.nodes[other].items.clone();
    assert_eq!(items.len(), 3);
    // Whoever has them next makes up for nothing.
    world.drain(other);
    world.run_for(700);
    assert_eq!(world.nodes[0].items.len(), 6);
    assert_eq!(world.starts.iter().filter(|start| start.misfire).count(), 6, "{:#?}", world.starts);
    (world, items)
}

#[test]
pub fn a_new_owner_makes_up_for_what_was_missed_before_and_after_the_flag_at_once() {
    let (world, items) = handed_over_when_flagged(4_500);
    for item in items {
        assert_eq!(told(&world, item.0)[..2], [(Source::Schedule, 6), (Source::Misfire, 10)]);
    }
}

#[test]
fn a_new_owner_executes_a_flagged_item_once_for_what_was_missed_and_for_the_fire_that_has_just_come() {
    let (world, items) = handed_over_when_flagged(0);
    for item in items {
        let expected = [(Source::Schedule, 6), (Source::Misfire, 10), (Source::Schedule, 12)];
        assert_eq!(told(&world, item.0)[..3], expected);
    }
}

#[test]
fn p5_what_comes_before_an_item_has_ever_been_executed_is_made_up_for() {
    let mut world = World::new(7, six_items());
    world.join();
    world.run_for(1_000);
    // :02 and :04 come while it is cut off, and then its session is lost, and with it what it knew.
    world.toggle_suspended(0);
    world.run_for(4_200);
    world.expire(0);
    world.run_for(1_500);
    for item in 0..6 {
        assert_eq!(told(&world, item), [(Source::Misfire, 4), (Source::Schedule, 6)]);
    }
}

#[test]
fn p5_who_wakes_to_a_handover_makes_up_for_what_came_while_it_slept() {
    let mut world = one_node(|_| {});
    let sleeper = world.join();
    world.run_until(second(7));
    assert_eq!(world.nodes[sleeper].items.len(), 3);
    world.sleep(sleeper, true);
    world.run_until(second(10));
    world.join();
    world.run_for(200);
    // The fire at :10 is fresh, that at :08 is not, and one of its items is to be somebody else's.
    world.sleep(sleeper, false);
    world.run_for(500);
    assert_eq!(world.nodes[sleeper].items.len(), 2);
    for item in world.nodes[sleeper].items.clone() {
        assert_eq!(told(&world, item.0), [(Source::Schedule, 6), (Source::Misfire, 10)]);
    }
}

#[test]
fn p5_a_spare_instance_executes_a_new_item_for_no_fire_before_there_was_that() {
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
    assert_eq!(told(&world, 1), [(Source::Schedule, 8)]);
}

#[test]
fn p5_what_came_before_there_was_an_item_is_not_made_up_for() {
    let mut world = World::new(7, six_items());
    world.now = second(9);
    world.join();
    world.run_for(2_500);
    for item in 0..6 {
        assert_eq!(told(&world, item), [(Source::Schedule, 10)]);
    }
}

#[test]
fn p5_a_trigger_that_comes_with_a_fire_is_told_for_an_instant_of_its_own() {
    let mut world = one_node(|_| {});
    world.now = second(6);
    world.look(0);
    // What is being started is busy.
    world.put("trigger/10.0.0.1@-@n0", "");
    world.look(0);
    world.run_for(1_500);
    let of_item = world.starts.iter().filter(|start| start.item == Item(0));
    let told: Vec<_> = of_item.map(|start| (start.source, start.scheduled)).collect();
    let after = second(6) + SignedDuration::from_millis(1);
    assert_eq!(told, [(Source::Schedule, second(6)), (Source::Misfire, after)]);
}

#[test]
fn p5_a_trigger_in_the_instant_of_what_makes_up_for_a_fire_is_told_for_another_one() {
    let mut world = one_node(|_| {});
    world.next_duration_ms = Some(10);
    world.run_until(second(6) + SignedDuration::from_millis(300));
    world.starts.clear();
    world.put("sharding/0/misfire", "");
    world.look(0);
    world.put("trigger/10.0.0.1@-@n0", "");
    world.look(0);
    world.run_for(500);
    let of_item = world.starts.iter().filter(|start| start.item == Item(0));
    let [made_up, triggered] = of_item.collect::<Vec<_>>()[..] else { panic!("{:?}", world.starts) };
    assert_eq!((made_up.source, triggered.source), (Source::Misfire, Source::Misfire));
    assert!(made_up.scheduled < triggered.scheduled, "{made_up:?}, {triggered:?}");
}

#[test]
fn who_comes_when_an_item_is_flagged_settles_what_was_missed_while_nobody_was_there() {
    let mut world = one_node(|_| {});
    world.next_duration_ms = Some(3_000);
    // It executes from :06 to :09; :08 is flagged, and then its application dies.
    world.run_for(3_500);
    world.kill(0);
    world.run_for(4_800);
    world.next_duration_ms = Some(100);
    // :13.3: nobody was there at :10 and :12.
    let (one, other) = (world.join(), world.join());
    world.run_for(500);
    for item in 0..6 {
        assert_eq!(told(&world, item), [(Source::Schedule, 6), (Source::Misfire, 12)]);
    }
    world.drain(one);
    world.run_for(1_000);
    assert_eq!(world.nodes[other].items.len(), 6);
    assert_eq!(world.starts.iter().filter(|start| start.misfire).count(), 6);
}

#[test]
pub fn what_was_flagged_is_told_for_its_instant_though_the_schedule_has_changed() {
    let mut world = one_node(|_| {});
    world.next_duration_ms = Some(3_000);
    // It executes from :06 to :09; :08 is flagged, and then its application dies.
    world.run_for(3_500);
    world.kill(0);
    let mut configuration = six_items();
    configuration.cron = Some("0 0 0 1 1 ? 2099".to_owned());
    world.put("config", &config_yaml::write(&configuration));
    world.run_for(4_800);
    world.next_duration_ms = Some(100);
    world.join();
    world.run_for(500);
    for item in 0..6 {
        assert_eq!(told(&world, item), [(Source::Schedule, 6), (Source::Misfire, 8)]);
    }
}

#[test]
fn p8_what_a_java_peer_has_flagged_is_told_for_no_instant_that_was_executed() {
    let mut world = one_node(|_| {});
    world.run_for(1_500);
    world.put("sharding/2/misfire", "");
    let seen = world.now;
    world.run_for(300);
    // The ledger knows that :06 was executed, and nobody what was missed.
    let starts: Vec<_> = world.starts.iter().filter(|start| start.item == Item(2)).collect();
    assert_eq!(starts.len(), 2, "{starts:#?}");
    assert!(starts[1].misfire && starts[1].scheduled >= seen && starts[1].scheduled <= starts[1].at);
    world.run_for(4_000);
    assert_eq!(world.starts.iter().filter(|start| start.item == Item(2)).count(), 4);
}

#[test]
pub fn p5_whatever_is_missed_is_made_up_for_once_while_instances_join_and_leave() {
    for seed in seeds(60) {
        let mut world = World::new(seed, six_items());
        world.duration_max_ms = 5_000;
        world.lossy = seed % 2 == 1;
        world.join();
        world.run_for(2_500);
        let from = second(world.now.duration_since(second(0)).as_secs() / 2 * 2 + 2);
        for _ in 0..15 {
            let next_fire = second(world.now.duration_since(second(0)).as_secs() / 2 * 2 + 2);
            let offset = world.random.below(60) as i64 - 30;
            world.run_until(next_fire + SignedDuration::from_millis(offset));
            let staying = world.staying();
            let pick = staying[world.random.below(staying.len() as u64) as usize];
            match world.random.below(4) {
                0 if staying.len() < 4 => drop(world.join()),
                1 if staying.len() > 1 => world.drain(pick),
                2 => {
                    world.toggle_suspended(pick);
                    let away = world.random.below(2_500) as i64;
                    world.run_for(away);
                    world.toggle_suspended(pick);
                }
                _ => {}
            }
            world.run_for(1_000);
        }
        let to = world.now;
        world.duration_max_ms = 300;
        world.run_for(12_000);
        assert_nothing_lost(&world, from, to);
    }
}

/// The only node is stopped at :07 with a schedule that does not fire, and before it hears of a change. Meanwhile an operator
/// writes one that fires every three seconds. It goes on at :11.
#[test]
pub fn p5_a_schedule_that_was_written_while_the_sidecar_was_stopped_is_owed_since_then() {
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
        assert_eq!(told(&world, 0), [(Source::Misfire, 9)], "suspended: {suspended}");
    }
}

/// One node is suspended at :05 with a schedule that does not fire; at :07.5 an operator writes one that fires every three
/// seconds; the registry is back at this instant.
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
pub fn p5_a_schedule_that_was_written_while_the_registry_was_away_is_owed_since_then() {
    for registry_ahead_ms in [0, 40_000, -40_000] {
        let world = scheduled_while_away(registry_ahead_ms, second(9) + SignedDuration::from_millis(66));
        assert_eq!(told(&world, 0), [(Source::Schedule, 9)], "the registry is {registry_ahead_ms} ms ahead");
        let world = scheduled_while_away(registry_ahead_ms, second(11));
        assert_eq!(told(&world, 0), [(Source::Misfire, 9)], "the registry is {registry_ahead_ms} ms ahead");
        let world = scheduled_while_away(registry_ahead_ms, second(8));
        assert_eq!(told(&world, 0), [], "the registry is {registry_ahead_ms} ms ahead");
    }
}
