//! Which missed fires one rerun covers, and which instant it carries (P5). The world checks at each start, in every
//! test, that no instant is executed twice (`World::record`).

use jiff::SignedDuration;
use sidekeeper::coordination::job::contract::commit::Purpose;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::elasticjob::config_yaml;
use sidekeeper::job::Item;

use crate::setup::{
    assert_nothing_lost, counts, next_fire, one_node, second, seeds, started, started_by, with,
};
use crate::world::{World, six_items};

#[test]
fn p5_several_fires_missed_in_a_suspension_are_rerun_once() {
    let mut world = one_node(|_| {});
    // 00:00:05 to 00:00:15.5: five fires pass, the last one more than a second ago.
    world.now += SignedDuration::from_millis(10_500);
    world.run_for(400);
    assert_eq!(counts(&world), [(0, 1); 6]);
}

#[test]
fn p5_a_fresh_fire_after_a_suspension_is_executed_and_the_older_ones_are_rerun() {
    let mut world = one_node(|_| {});
    // 00:00:05 to 00:00:16.3: the fire at 16 is fresh.
    world.now += SignedDuration::from_millis(11_300);
    world.run_for(1_000);
    assert_eq!(counts(&world), [(1, 1); 6]);
}

#[test]
fn p5_without_misfire_a_missed_fire_is_skipped() {
    let mut world = one_node(|configuration| configuration.misfire = false);
    world.now += SignedDuration::from_millis(10_500);
    world.run_for(400);
    assert_eq!(counts(&world), [(0, 0); 6]);
    world.run_for(1_500);
    assert_eq!(counts(&world), [(1, 0); 6]);
}

#[test]
fn p5_a_clock_set_forward_by_hours_causes_one_rerun() {
    let mut world = one_node(|_| {});
    world.now += SignedDuration::from_hours(30);
    world.run_for(900);
    assert_eq!(counts(&world), [(0, 1); 6]);
}

#[test]
fn p5_a_fire_missed_by_a_long_execution_is_rerun_when_it_ends() {
    let mut world = one_node(|_| {});
    world.run_for(900);
    world.next_duration_ms = Some(5_000);
    world.run_for(200);
    assert_eq!(counts(&world), [(1, 0); 6]);
    world.next_duration_ms = None;
    // The executions end at 11; the fires at 8 and 10 met them. One make-up follows at once.
    world.run_for(5_400);
    assert_eq!(counts(&world), [(1, 1); 6]);
}

/// A world whose node has asked to make up for the missed fires of so many items, and has not been answered when the
/// next fire comes. One item is flagged, several have a witness.
fn making_up(items: u32, seed: i64) -> Option<World> {
    let mut world = one_node(|configuration| configuration.sharding_total_count = items);
    world.next_duration_ms = Some(3_900);
    // It executes from :06, and :08 is missed.
    world.run_until(second(9) + SignedDuration::from_millis(800 + seed));
    let starts = |world: &World| world.commits.get(&Purpose::Start).copied().unwrap_or_default();
    let before = starts(&world);
    while starts(&world) == before && world.now < second(10) {
        world.turn();
        world.run_for(1);
    }
    let waits = starts(&world) > before && world.get("sharding/0/running").is_none();
    let flagged = world.get("sharding/0/misfire").is_some();
    (waits && world.now < second(10) && flagged == (items == 1)).then_some(world)
}

#[test]
pub fn p5_a_fire_during_a_rerun_is_not_taken_for_a_missed_one() {
    let mut met = [0; 2];
    for (place, seed) in (0..400).map(|number| (number % 2, i64::try_from(number / 2).unwrap())) {
        let Some(mut world) = making_up([1, 6][place], seed) else { continue };
        met[place] += 1;
        world.next_duration_ms = Some(300);
        world.now = second(10) + SignedDuration::from_millis(5);
        world.look(0);
        world.take_effect(0);
        world.run_for(1_500);
        let made_up = started_by(&world, 0, Source::Misfire);
        assert!(made_up.contains(&second(10)), "{seed}: {:#?}", world.starts);
    }
    assert!(!met.contains(&0), "{met:?}");
}

#[test]
pub fn p5_the_next_owner_knows_the_fires_that_a_busy_item_missed_before_a_resharding() {
    let mut world = one_node(with(&[("handoff", "off")]));
    world.next_duration_ms = Some(3_500);
    world.run_until(second(7));
    // The resharding waits for the executions until :09.5, and the fire at :08 with it.
    world.join();
    world.run_until(second(8) + SignedDuration::from_millis(600));
    world.join();
    world.next_duration_ms = Some(50);
    world.run_until(second(9) + SignedDuration::from_millis(990));
    for item in 0..6 {
        let starts: Vec<_> = world.starts.iter().filter(|start| start.item == Item(item)).collect();
        assert!(starts.iter().any(|start| start.scheduled == second(8)), "item {item}: {starts:#?}");
    }
}

#[test]
pub fn one_rerun_covers_all_missed_fires_and_names_the_newest() {
    let mut world = one_node(|_| {});
    world.next_duration_ms = Some(5_000);
    // It executes from :06 to :11; :08 and :10 are missed.
    world.run_for(1_500);
    world.next_duration_ms = Some(100);
    world.run_for(6_000);
    let flagged = world.read("/ns-sidekeeper/job/fires/0").unwrap();
    assert_eq!(started(&world, 0), [(Source::Schedule, 6), (Source::Misfire, 10), (Source::Schedule, 12)]);
    let latest = format!("{} ", second(12).as_millisecond());
    assert!(String::from_utf8(flagged).unwrap().starts_with(&latest));
}

#[test]
fn a_fire_executed_in_time_is_not_rerun() {
    let mut world = one_node(|_| {});
    // :05 to :16.3: the fire at :16 is fresh, and that at :14 the newest of the others.
    world.now += SignedDuration::from_millis(11_300);
    world.run_for(1_000);
    assert_eq!(started(&world, 3), [(Source::Schedule, 16), (Source::Misfire, 14)]);
}

/// Two nodes: the first executed its items from :06 to :11.2, was flagged at :08, and hands three of them over at its
/// end to the second, which came after so many milliseconds; gives those items, too.
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
    // The next owner reruns nothing.
    world.drain(other);
    world.run_for(700);
    assert_eq!(world.nodes[0].items.len(), 6);
    assert_eq!(world.starts.iter().filter(|start| start.misfire).count(), 6, "{:#?}", world.starts);
    (world, items)
}

#[test]
pub fn a_new_owner_reruns_the_fires_missed_before_and_after_the_flag_at_once() {
    let (world, items) = handed_over_when_flagged(4_500);
    for item in items {
        assert_eq!(started(&world, item.0)[..2], [(Source::Schedule, 6), (Source::Misfire, 10)]);
    }
}

#[test]
fn a_new_owner_reruns_a_flagged_item_once_also_for_the_fire_that_has_just_come() {
    let (world, items) = handed_over_when_flagged(0);
    for item in items {
        let expected = [(Source::Schedule, 6), (Source::Misfire, 10), (Source::Schedule, 12)];
        assert_eq!(started(&world, item.0)[..3], expected);
    }
}

#[test]
pub fn a_flagged_fire_keeps_its_instant_though_the_schedule_changes() {
    // One item is flagged; for several there is a witness.
    for items in [1, 6] {
        let mut world = one_node(|configuration| configuration.sharding_total_count = items);
        world.next_duration_ms = Some(3_000);
        // It executes from :06 to :09; :08 is missed, and then its application dies.
        world.run_for(3_500);
        assert_eq!(world.get("sharding/0/misfire").is_some(), items == 1);
        world.kill(0);
        let mut configuration = six_items();
        configuration.sharding_total_count = items;
        configuration.cron = Some("0 0 0 1 1 ? 2099".to_owned());
        world.put("config", &config_yaml::write(&configuration));
        world.run_for(4_800);
        world.next_duration_ms = Some(100);
        world.join();
        world.run_for(500);
        for item in 0..items {
            assert_eq!(started(&world, item), [(Source::Schedule, 6), (Source::Misfire, 8)], "{items} items");
        }
    }
}

#[test]
fn p8_a_flag_of_a_java_peer_causes_no_rerun_of_an_executed_instant() {
    let mut world = one_node(|_| {});
    world.run_for(1_500);
    world.put("sharding/2/misfire", "");
    let seen = world.now;
    world.run_for(300);
    // The ledger knows that :06 was executed; no instance knows which fire was missed.
    let starts: Vec<_> = world.starts.iter().filter(|start| start.item == Item(2)).collect();
    assert_eq!(starts.len(), 2, "{starts:#?}");
    assert!(starts[1].misfire && starts[1].scheduled >= seen && starts[1].scheduled <= starts[1].at);
    world.run_for(4_000);
    assert_eq!(world.starts.iter().filter(|start| start.item == Item(2)).count(), 4);
}

#[test]
pub fn p5_every_missed_fire_is_rerun_once_while_instances_join_and_leave() {
    for seed in seeds(60) {
        let mut world = World::new(seed, six_items());
        world.duration_max_ms = 5_000;
        world.lossy = seed % 2 == 1;
        world.join();
        world.run_for(2_500);
        let from = next_fire(&world);
        for _ in 0..15 {
            let next_fire = next_fire(&world);
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
