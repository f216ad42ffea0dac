//! A sidecar that leads waits beside Java instances so that no fire is lost at its reshardings (P5): for their
//! caches, which are behind the resharding flag; for their schedulers, which start after they have registered; and
//! for fires that are just being started.

use jiff::{SignedDuration, Timestamp};
use sidekeeper::elasticjob::config_yaml;
use sidekeeper::job::JobConfiguration;

use crate::java::Java;
use crate::setup::{owner, put_new_java, second, seeds};
use crate::world::{World, six_items};

/// How often the job fires.
const INTERVAL: SignedDuration = SignedDuration::from_secs(2);
/// When something happens in these worlds: everybody has been there for a while.
const THEN: i64 = 20;

/// The items that Java instances own.
fn of_javas(world: &World) -> Vec<u32> {
    let is_java = |item: &u32| world.javas.iter().any(|java| java.id() == owner(world, *item));
    (0..6).filter(is_java).collect()
}

fn is_flagged(world: &World) -> bool {
    world.get("leader/sharding/necessary").is_some()
}

/// A sidecar that leads, others, and Java instances, all there for a while.
fn fleet(seed: u64, sidecars: usize, javas: usize, change: impl Fn(&mut World)) -> World {
    let mut world = World::new(seed, six_items());
    world.duration_max_ms = 60;
    change(&mut world);
    for _ in 0..sidecars {
        world.join();
        world.run_for(300);
    }
    for _ in 0..javas {
        world.join_java();
    }
    world.run_until(second(THEN - 2) + SignedDuration::from_millis(500));
    assert_eq!(world.get("leader/election/instance").unwrap(), b"10.0.0.1@-@n0");
    assert!(!is_flagged(&world) && !of_javas(&world).is_empty(), "seed {seed}: {:#?}", world.paths());
    world
}

/// The items that no instance has executed or rerun for a fire.
fn missing(world: &World, fire: Timestamp) -> Vec<u32> {
    let is_now = |at: Timestamp| at >= fire - SignedDuration::from_millis(50) && at < fire + INTERVAL;
    let of_ours = |item: u32| {
        world.starts.iter().any(|start| start.item.0 == item && start.scheduled >= fire && is_now(start.at))
    };
    let of_javas = |item: u32| {
        let has_run = |java: &Java| java.runs().iter().any(|run| run.item == item && is_now(run.began));
        world.javas.iter().any(has_run)
    };
    (0..6).filter(|item| !of_ours(*item) && !of_javas(*item)).collect()
}

/// Every item has been executed for each fire from the first to the last second.
fn assert_executed(world: &World, first: i64, last: i64, what: &str) {
    for fire in (first..=last).step_by(2) {
        let missing = missing(world, second(fire));
        assert!(
            missing.is_empty(),
            "{what}: the fire of second {fire} is lost for {missing:?}\n{:#?}",
            world.log
        );
    }
}

/// Goes on for so many milliseconds, and notes the owners at each change.
fn run_logged(world: &mut World, millis: i64) {
    let until = world.now + SignedDuration::from_millis(millis);
    while world.now < until {
        world.run_for(1);
        let owners: Vec<_> = (0..6).map(|item| owner(world, item)).collect();
        let flag = if is_flagged(world) { "flagged" } else { "" };
        let line = format!("{owners:?} {flag}");
        if world.log.iter().rev().find(|line| line.contains('[')).is_none_or(|last| !last.ends_with(&line)) {
            world.log.push(format!("{} {line}", world.now));
        }
    }
}

#[test]
pub fn p5_a_fire_right_after_a_resharding_is_not_lost_though_javas_cache_is_behind() {
    for seed in 0..12 {
        let mut world = fleet(seed, 2, 1, |world| world.java_cache_lag_ms = 400);
        // The leader reshards the items of the other sidecar, just before a fire.
        world.run_until(second(THEN) - SignedDuration::from_millis(90 + 10 * seed as i64));
        world.kill(1);
        world.run_until(second(THEN + 6) - SignedDuration::from_millis(100));
        assert!(!is_flagged(&world));
        assert_executed(&world, THEN, THEN + 2, &format!("seed {seed}"));
    }
}

#[test]
fn p5_p7_the_next_leader_lowers_a_flag_that_stayed_up_beside_java() {
    let mut world = fleet(3, 2, 1, |_| {});
    world.run_until(second(THEN) + SignedDuration::from_millis(600));
    let before = owner(&world, 5);
    world.join();
    while !is_flagged(&world) || world.get("sharding/5/instance").is_none_or(|now| now == before.as_bytes()) {
        world.run_for(1);
    }
    // The flag is up, the items are resharded, and the leader dies.
    let divided: Vec<_> = (0..6).map(|item| owner(&world, item)).collect();
    assert!(is_flagged(&world) && divided.iter().any(|owner| owner.ends_with("@n2")), "{divided:?}");
    world.crash(0);
    world.end_session(0);
    world.run_for(8_000);
    assert!(!is_flagged(&world), "{:#?}", world.paths());
    assert!((0..6).all(|item| !owner(&world, item).ends_with("@n0")));
}

#[test]
fn a_fleet_without_java_waits_for_nothing() {
    let mut world = World::new(1, six_items());
    world.join();
    world.run_for(1_000);
    assert!(!is_flagged(&world));
    world.put("leader/sharding/necessary", "");
    world.run_for(100);
    assert!(!is_flagged(&world));
}

#[test]
pub fn p5_a_java_instance_that_has_just_registered_gets_no_item_before_a_fire() {
    for seed in 0..12 {
        let mut world = fleet(seed, 2, 1, |_| {});
        world.java_scheduler_after_ms = 3_000;
        world.run_until(second(THEN) - SignedDuration::from_millis(100 + 150 * seed as i64));
        world.join_java();
        let newcomer = world.javas.last().unwrap().id().to_owned();
        world.run_for(3_000);
        assert!((0..6).all(|item| owner(&world, item) != newcomer), "seed {seed}");
        world.run_for(6_000);
        assert!((0..6).any(|item| owner(&world, item) == newcomer), "seed {seed}: {:#?}", world.paths());
        assert_executed(&world, THEN, THEN + 4, &format!("seed {seed}"));
    }
}

#[test]
fn a_java_instance_gets_its_items_at_once_if_no_fire_comes_before_its_scheduler_runs() {
    let cases: [fn(&mut JobConfiguration); 2] = [
        |configuration| configuration.cron = Some("0 30 * * * ?".to_owned()),
        |configuration| {
            configuration.static_sharding = true;
            configuration.sharding_total_count = 7;
        },
    ];
    for change in cases {
        let mut configuration = six_items();
        change(&mut configuration);
        let is_static = configuration.static_sharding;
        let mut world = World::new(1, configuration);
        world.java_scheduler_after_ms = 3_000;
        if is_static {
            // The first assignment stays for good, so it is made among all instances that are there.
            put_new_java(&mut world, "10.9.9.9@-@4711");
            world.join();
            world.run_for(2_000);
            assert!((0..7).any(|item| owner(&world, item) == "10.9.9.9@-@4711"), "{:#?}", world.paths());
            continue;
        }
        world.join();
        world.run_for(500);
        world.join_java();
        world.run_for(1_500);
        assert_eq!(of_javas(&world).len(), 3, "{:#?}", world.paths());
    }
}

#[test]
pub fn a_java_instance_keeps_its_items_when_the_schedule_comes_to_fire_sooner() {
    let mut world = World::new(1, JobConfiguration { cron: Some("0 30 * * * ?".to_owned()), ..six_items() });
    world.join();
    world.run_for(500);
    world.join_java();
    world.run_for(1_500);
    let given = of_javas(&world);
    assert_eq!(given.len(), 3, "{:#?}", world.paths());
    let sooner = JobConfiguration { cron: Some("0/2 * * * * ?".to_owned()), ..six_items() };
    world.put("config", &config_yaml::write(&sooner));
    for _ in 0..20 {
        world.run_for(100);
        assert_eq!(of_javas(&world), given, "{:#?}", world.log);
    }
}

#[test]
pub fn p5_no_resharding_begins_while_a_fire_is_being_started() {
    for seed in 0..40 {
        let mut world = fleet(seed, 2, 2, |_| {});
        let of_gone: Vec<_> = (0..6).filter(|item| owner(&world, *item).ends_with("@n1")).collect();
        assert!(!of_gone.is_empty());
        world.run_until(
            second(THEN) - SignedDuration::from_millis(40) + SignedDuration::from_millis(seed as i64 * 2),
        );
        world.kill(1);
        world.run_until(second(THEN + 6) - SignedDuration::from_millis(100));
        // Its own items may have begun with it.
        let lost: Vec<_> =
            missing(&world, second(THEN)).into_iter().filter(|item| !of_gone.contains(item)).collect();
        assert!(lost.is_empty(), "seed {seed}: {lost:?}\n{:#?}", world.log);
        assert_executed(&world, THEN + 2, THEN + 2, &format!("seed {seed}"));
    }
}

#[test]
pub fn p5_no_resharding_begins_while_fires_that_waited_for_the_flag_are_being_started() {
    for seed in 0..12 {
        let mut world = fleet(seed, 2, 2, |_| {});
        // The leader reshards the items of the other sidecar. The fire comes while the flag is up; then another sidecar
        // joins.
        world.run_until(second(THEN) - SignedDuration::from_millis(100));
        world.kill(1);
        world.run_until(second(THEN) + SignedDuration::from_millis(200));
        assert!(is_flagged(&world), "seed {seed}");
        world.join();
        run_logged(&mut world, 1_700);
        world.run_until(second(THEN + 6) - SignedDuration::from_millis(100));
        assert!((0..6).any(|item| owner(&world, item).ends_with("@n2")), "seed {seed}");
        assert_executed(&world, THEN, THEN + 2, &format!("seed {seed}"));
    }
}

#[test]
pub fn p5_a_sidecar_that_registers_after_a_fire_that_waits_for_the_flag_gets_no_item_while_it_is_up() {
    let mut waited = 0;
    for seed in 0..4 {
        let mut world = fleet(seed, 2, 2, |_| {});
        world.run_until(second(THEN) - SignedDuration::from_millis(100));
        world.kill(1);
        world.run_until(second(THEN) + SignedDuration::from_millis(200));
        world.join();
        let is_newcomers = |world: &World| (0..6).any(|item| owner(world, item).ends_with("@n2"));
        while is_flagged(&world) {
            assert!(!is_newcomers(&world), "seed {seed}: {:#?}", world.log);
            world.run_for(1);
            waited += 1;
        }
        world.run_for(4_000);
        assert!(is_newcomers(&world), "seed {seed}: {:#?}", world.paths());
    }
    assert!(waited > 4 * 100, "the flag was lowered at once: {waited} ms in all");
}

#[test]
pub fn h5_a_sidecar_that_registers_while_a_java_leader_reshards_gets_items() {
    let mut left_out = 0;
    for seed in 0..12 {
        let mut world = World::new(seed, six_items());
        world.duration_max_ms = 2_600;
        world.join_java();
        world.javas[0].set_duration(1, 50);
        world.run_for(3_000);
        world.join();
        world.run_until(second(THEN) - SignedDuration::from_millis(100));
        assert_eq!(world.get("leader/election/instance").unwrap(), world.javas[0].id().as_bytes());
        // The leader reshards at the next fire, when the running items have ended.
        world.join();
        world.run_until(second(THEN) + SignedDuration::from_millis(20 + 20 * seed as i64));
        let newcomer = world.join();
        let has_items =
            |world: &World| (0..6).any(|item| owner(world, item) == world.nodes[newcomer].instance.as_str());
        world.run_for(5_000);
        left_out += usize::from(!has_items(&world));
        world.run_for(14_000);
        assert!(has_items(&world), "seed {seed}: {:#?}\n{:#?}", world.paths(), world.log);
    }
    assert!(left_out > 0, "the leader has always waited for the newcomer");
}

/// Random: Java instances and sidecars come and go; the sidecar that leads stays. Every fire is executed, or its
/// owner was an instance that had left.
#[test]
pub fn p5_no_fire_is_lost_beside_java_while_a_sidecar_leads() {
    for seed in seeds(12) {
        let mut world = fleet(seed, 2, 1, |world| {
            world.java_cache_lag_ms = 300;
            world.java_scheduler_after_ms = 2_000;
        });
        // When an instance left, and until when that may have an effect.
        let mut gone: Vec<(Timestamp, Timestamp)> = Vec::new();
        for _ in 0..12 {
            let pause = 400 + world.random.below(2_500) as i64;
            run_logged(&mut world, pause);
            let staying: Vec<_> = world.staying().into_iter().filter(|node| *node != 0).collect();
            let javas = world.living_javas();
            match world.random.below(4) {
                0 if staying.len() < 3 => drop(world.join()),
                1 if javas.len() < 3 => world.join_java(),
                2 if !staying.is_empty() => {
                    let chosen = world.random.below(staying.len() as u64) as usize;
                    gone.push((world.now - INTERVAL, world.now + SignedDuration::from_secs(1)));
                    world.drain(staying[chosen]);
                }
                3 if javas.len() > 1 => {
                    let chosen = world.random.below(javas.len() as u64) as usize;
                    // Its session ends after six seconds; the grace of its items, after two more.
                    gone.push((world.now - INTERVAL, world.now + SignedDuration::from_secs(9)));
                    world.log.push(format!("{} kill {}", world.now, world.javas[javas[chosen]].id()));
                    world.javas[javas[chosen]].kill();
                }
                _ => {}
            }
        }
        run_logged(&mut world, 14_000);
        let last = (world.now.as_second() - second(0).as_second()) / 2 * 2 - 4;
        for fire in (THEN..=last).step_by(2) {
            let is_excused = |(from, to): &(Timestamp, Timestamp)| (*from..*to).contains(&second(fire));
            let missing = missing(&world, second(fire));
            assert!(
                missing.is_empty() || gone.iter().any(is_excused),
                "seed {seed}: the fire of second {fire} is lost for {missing:?}\n{:#?}",
                world.log
            );
        }
        world.settle();
        assert!(!is_flagged(&world), "seed {seed}");
    }
}
