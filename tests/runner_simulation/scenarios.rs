//! Random scenarios and directed ones, and the rules that hold in them.

use std::time::Duration;

use crate::checks::SETTLED;
use crate::ensemble::Network;
use crate::random::Random;
use crate::world::{Job, World};

/// `SIMULATION_SEEDS` is the number of seeds, `SIMULATION_SEED_BASE` the first one, `SIMULATION_SEED` a single one.
fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let base = number("SIMULATION_SEED_BASE").unwrap_or(0);
    match (number("SIMULATION_SEED"), number("SIMULATION_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => base..base + count.unwrap_or(default),
    }
}

/// Runs a scenario with each seed. With a single seed, it prints the log.
fn with_seeds(default: u64, scenario: impl Fn(u64) -> World) {
    let seeds = seeds(default);
    let single = seeds.end - seeds.start == 1;
    for seed in seeds {
        let world = scenario(seed);
        if single {
            println!("{}", world.timeline.lines().join("\n"));
            println!("faults: {:?}, polls: {}", world.timeline.faults(), world.executor.polls);
        }
    }
}

fn job(name: &str, random: &mut Random) -> Job {
    Job {
        name: name.to_owned(),
        total: 1 + random.below(4) as u32,
        period: 2 + random.below(2) as i64,
        failover: random.once_in(2),
        grace: if random.once_in(2) { random.millis(1_000, 5_000) } else { Duration::ZERO },
        drained: random.once_in(3),
    }
}

/// A world of one to three sidecars with one or two applications each.
fn world(seed: u64, has_state_file: bool) -> World {
    let mut random = Random::scattered(seed ^ 0x5EED);
    let mut jobs = vec![job("orders", &mut random)];
    if random.once_in(2) {
        jobs.push(job("mails", &mut random));
    }
    let sidecars = 1 + random.below(3) as usize;
    let mut world = World::new(seed, jobs, sidecars, has_state_file);
    let named = random.once_in(3);
    for place in 0..sidecars {
        world.start_sidecar(place);
        for number in 0..1 + random.below(2) {
            let name = format!("worker-{place}-{number}");
            world.start_app(place, named.then_some(&name));
        }
    }
    world
}

fn calm(seed: u64) -> World {
    let mut world = world(seed, false);
    world.exact = true;
    world.run_seconds(6);
    world.check_all_owned();
    let from = world.timeline.now();
    world.run_seconds(10);
    world.check_each_fire_once(from, world.timeline.now());
    world.check_all_recorded();
    for place in 0..world.places.len() {
        world.drain_sidecar(place, Duration::from_secs(5));
        world.run_seconds(4);
    }
    if world.places.iter().any(|place| place.life.is_some()) {
        world.violation("a drain ends", "a sidecar is still there");
    }
    world
}

#[test]
fn without_faults_each_item_runs_once_at_each_fire_and_drains_leave_no_nodes() {
    with_seeds(60, calm);
}

/// One random disturbance, or none.
fn disturb(world: &mut World) {
    let place = world.timeline.chance(|random| random.below(world.places.len() as u64)) as usize;
    let app = world.timeline.chance(|random| random.below(world.apps.len() as u64)) as usize;
    let job = world.timeline.chance(|random| random.below(world.jobs.len() as u64)) as usize;
    match world.timeline.chance(|random| random.below(18)) {
        0 | 1 if world.places[place].life.is_some() => world.crash_sidecar(place),
        2 => world.drain_sidecar(place, Duration::from_secs(3)),
        3 => {
            world.pause_sidecar(place, true);
            let pause = world.timeline.chance(|random| random.millis(10, 9_000));
            world.timeline.after(pause, move |world| world.pause_sidecar(place, false));
        }
        4 => {
            world.cut_off_sidecar(place, true);
            let pause = world.timeline.chance(|random| random.millis(10, 9_000));
            world.timeline.after(pause, move |world| world.cut_off_sidecar(place, false));
        }
        5 | 6 => world.break_connections(place),
        7 | 8 => world.kill_app(app),
        9 => world.leave_app(app),
        10 => world.hang_app(app),
        11 => world.ignore_cancels(app),
        12 => world.trigger(place, job),
        13 => world.cancel_executions(place, job),
        14 if world.clocks_are_wrong => world.set_clock(place),
        kind @ (16 | 17) => {
            let time = world.timeline.chance(|random| random.millis(100, 12_000));
            world.partition_server(place, kind == 17, time);
        }
        _ => {}
    }
}

/// Starts processes that do not run: each with a chance of one half, or all of them.
fn mend(world: &mut World, always: bool) {
    for place in 0..world.places.len() {
        if always || world.timeline.chance(|random| random.once_in(2)) {
            world.start_sidecar(place);
        }
    }
    for app in 0..world.apps.len() {
        if always || world.timeline.chance(|random| random.once_in(2)) {
            let stuck = world.apps[app].hung || world.apps[app].unresponsive;
            if stuck {
                world.kill_app(app);
            }
            world.restart_app(app);
        }
    }
}

fn storm(seed: u64) -> World {
    let mut world = world(seed, seed.is_multiple_of(2));
    let mut random = Random::scattered(seed ^ 0x0057_0811);
    world.clocks_are_wrong = random.once_in(2);
    world.sloppy = random.once_in(2);
    // Some executions take longer than a session lives without contact.
    let longest = if random.once_in(3) { 14_000 } else { 4_000 };
    world.duration_max = 200 + random.below(longest);
    world.executor.lags = if random.once_in(2) { 30 } else { 0 };
    world.ensemble.set_network(Network {
        hop_max: 500 + random.below(20_000),
        spikes: if random.once_in(2) { 40 } else { 0 },
        late_changes: if random.once_in(2) { 40 } else { 0 },
        breaks: if random.once_in(2) { 300 } else { 0 },
    });
    world.run_seconds(3);
    for _ in 0..12 {
        let pause = world.timeline.chance(|random| random.millis(50, 3_000));
        world.run_for(pause);
        disturb(&mut world);
        mend(&mut world, false);
    }
    world.calm_down();
    world.duration_max = 1_000;
    // Five rounds, so that applications that are leaving can end and start again.
    for _ in 0..5 {
        mend(&mut world, true);
        world.run_seconds(2);
    }
    world.run_for(SETTLED);
    world.check_all_owned();
    let from = world.timeline.now();
    world.run_seconds(8);
    world.check_each_fire_once(from, world.timeline.now());
    for app in 0..world.apps.len() {
        world.leave_app(app);
    }
    world.run_seconds(12);
    for place in 0..world.places.len() {
        world.check_bounds(place);
        world.drain_sidecar(place, Duration::from_secs(1));
    }
    world.run_seconds(3);
    if world.places.iter().any(|place| place.life.is_some()) {
        world.violation("a drain ends", "a sidecar is still there");
    }
    world
}

#[test]
fn the_promises_hold_under_faults_and_the_fleet_recovers() {
    with_seeds(150, storm);
}

/// P6: the sidecar notices the death of an application by the end of its stream, without a timeout; its items move at once.
#[test]
fn the_items_of_a_killed_application_move_without_a_timeout() {
    with_seeds(30, |seed| {
        let mut world = World::new(seed, vec![plain("orders")], 2, false);
        for place in 0..2 {
            world.start_sidecar(place);
            world.start_app(place, None);
            world.start_app(place, None);
        }
        world.exact = true;
        let before = world.timeline.chance(|random| random.millis(5_000, 8_000));
        world.run_for(before);
        world.kill_app(0);
        world.run_seconds(2);
        world.check_all_owned();
        world.run_seconds(3);
        world
    });
}

/// P2, P4: an application whose sidecar is connected to a partitioned server must stop before the other instances
/// reassign its items.
pub fn partition(seed: u64, leads: bool) -> World {
    let job = Job { failover: true, ..plain("orders") };
    let mut world = World::new(seed, vec![job], 2, false);
    for place in 0..2 {
        world.start_sidecar(place);
        world.start_app(place, None);
    }
    // Executions are long, so that there is always a running one.
    world.duration_max = 20_000;
    let before = world.timeline.chance(|random| random.millis(8_000, 12_000));
    world.run_for(before);
    world.partition_server(0, leads, Duration::from_secs(20));
    world.run_seconds(15);
    world
}

#[test]
fn p2_p4_a_lease_ends_in_time_at_a_partitioned_follower() {
    with_seeds(60, |seed| partition(seed, false));
}

#[test]
fn p2_p4_a_lease_ends_in_time_at_a_partitioned_leader() {
    with_seeds(60, |seed| partition(seed, true));
}

fn plain(name: &str) -> Job {
    Job { name: name.to_owned(), total: 3, period: 2, failover: false, grace: Duration::ZERO, drained: false }
}

/// A participant that leaves follows no schedule. If it woke for a fire, it would wake again and again at that instant.
#[test]
fn an_instance_that_leaves_without_a_registry_does_not_wake_for_fires() {
    let mut world = World::new(0, vec![plain("orders")], 1, false);
    world.start_sidecar(0);
    world.start_app(0, None);
    world.run_seconds(5);
    world.cut_off_sidecar(0, true);
    world.kill_app(0);
    world.run_seconds(4);
    world.cut_off_sidecar(0, false);
    world.run_seconds(2);
    world.check_bounds(0);
}

#[test]
fn an_instance_that_could_not_leave_in_time_does_not_run_in_a_loop() {
    let mut world = World::new(0, vec![plain("orders")], 1, false);
    world.start_sidecar(0);
    world.start_app(0, None);
    world.run_seconds(5);
    world.break_connections(0);
    world.cut_off_sidecar(0, true);
    world.stop_sidecar(0);
    world.run_seconds(5);
}

#[test]
fn the_same_seed_gives_the_same_log() {
    for seed in seeds(20) {
        let (once, again) = (storm(seed), storm(seed));
        assert!(once.timeline.lines().len() > 100, "seed {seed}");
        for (line, other) in once.timeline.lines().iter().zip(again.timeline.lines()) {
            assert_eq!(*line, other, "seed {seed}");
        }
        assert_eq!(once.timeline.lines().len(), again.timeline.lines().len(), "seed {seed}");
    }
}
