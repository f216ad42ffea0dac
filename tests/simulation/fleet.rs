//! Random fleets that change all the time: ownership and executions hold (P1, P2, P3, P5).

use jiff::{SignedDuration, Timestamp};

use crate::setup::{last_fire, lines, next_fire, seeds, starts};
use crate::world::{World, six_items};

#[test]
fn p5_without_faults_each_item_runs_once_at_each_fire() {
    for seed in seeds(50) {
        let mut world = World::new(seed, six_items());
        world.join_many(3);
        world.run_for(2_500);
        world.settle_owned();
        let from = world.now.round(jiff::Unit::Second).unwrap();
        let from = Timestamp::from_second(from.as_second() / 2 * 2 + 2).unwrap();
        world.run_for(20_000);
        let to = last_fire(&world);
        for ((instant, item), count) in starts(&world, from, to) {
            assert_eq!(count, 1, "seed {seed}: fire {instant} of item {item}");
        }
    }
}

#[test]
pub fn p5_each_item_runs_once_at_each_fire_while_instances_join_and_leave() {
    for seed in seeds(80) {
        let mut world = World::new(seed, six_items());
        world.duration_max_ms = 300;
        world.join();
        world.run_for(2_500);
        let from = next_fire(&world);
        for _ in 0..12 {
            // Close to a fire, where it hurts.
            let next_fire = next_fire(&world);
            let offset = world.random.below(60) as i64 - 30;
            world.run_until(next_fire + SignedDuration::from_millis(offset));
            let staying = world.staying();
            let pick = staying[world.random.below(staying.len() as u64) as usize];
            match world.random.below(3) {
                0 if staying.len() < 4 => drop(world.join()),
                1 if staying.len() > 1 => world.drain(pick),
                _ => {}
            }
            world.run_for(1_000);
        }
        let to = last_fire(&world);
        for ((instant, item), count) in starts(&world, from, to) {
            let starts: Vec<_> = world.starts.iter().filter(|start| start.item == item).collect();
            assert_eq!(
                count,
                1,
                "seed {seed}: fire {instant} of item {item}:\n{}\n{:#?}",
                lines(&starts),
                world.log
            );
        }
    }
}

#[test]
pub fn p1_p2_p3_hold_while_instances_come_and_go() {
    for seed in seeds(80) {
        let mut world = World::new(seed, six_items());
        world.duration_max_ms = 3_000;
        world.lossy = seed % 2 == 1;
        world.join();
        for _ in 0..60 {
            world.run_for(500);
            if world.nodes.iter().filter(|node| node.ended.is_none()).count() < 2 {
                world.join();
            }
            let alive: Vec<_> =
                (0..world.nodes.len()).filter(|node| world.nodes[*node].ended.is_none()).collect();
            let pick = alive[world.random.below(alive.len() as u64) as usize];
            match world.random.below(10) {
                0 | 1 if alive.len() < 5 => {
                    world.join();
                }
                2 if alive.len() > 1 => world.kill(pick),
                3 if alive.len() > 1 => world.drain(pick),
                4 => world.expire(pick),
                5 => {
                    world.toggle_suspended(pick);
                    world.run_for(300);
                    world.toggle_suspended(pick);
                }
                _ => {}
            }
        }
        world.join();
        world.run_for(30_000);
        world.settle_owned();
    }
}
