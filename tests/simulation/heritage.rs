//! Sidecars that are killed and are back within their sessions, while their applications go on executing.

use std::time::Duration;

use jiff::Timestamp;
use sidekeeper::coordination::job::contract::effect::EndReason;
use sidekeeper::coordination::job::contract::event::CancelReason;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::coordination::job::contract::reattach::OpenExecution;
use sidekeeper::coordination::job::contract::report::Outcome;
use sidekeeper::job::{FencingToken, Item, JobConfiguration};

use crate::scenarios::{lines, seeds, starts};
use crate::world::{World, six_items};

/// As [`with_grace`] says.
const GRACE: Duration = Duration::from_secs(4);

fn with_grace(failover: bool) -> JobConfiguration {
    let mut configuration = six_items();
    configuration.props.insert("sidekeeper.grace".to_owned(), "4s".to_owned());
    configuration.failover = failover;
    configuration
}

/// A world with some nodes that have settled.
fn settled(seed: u64, configuration: JobConfiguration, nodes: usize) -> World {
    let mut world = World::new(seed, configuration);
    for _ in 0..nodes {
        world.join();
    }
    world.run_for(4_500);
    world.settle();
    world.assert_all_owned();
    world
}

/// The sidecar is killed, and both are back a while later.
fn restart(world: &mut World, node: usize, down_ms: u64, alone_ms: u64) {
    world.kill_sidecar(node);
    world.run_for(down_ms as i64);
    world.start_sidecar(node);
    world.run_for(alone_ms as i64);
    world.come_back(node);
}

fn running(world: &World) -> Vec<String> {
    world.paths().into_iter().filter(|path| path.ends_with("/running")).collect()
}

/// A world with two nodes; the first executes three items for long.
fn executing(failover: bool) -> World {
    let mut world = settled(5, with_grace(failover), 2);
    // The fire at 6 s.
    world.next_duration_ms = Some(30_000);
    world.run_for(2_000);
    assert_eq!(world.nodes[0].executions.len(), 3);
    world
}

#[test]
fn p3_what_is_executed_goes_on_with_its_id_and_its_token() {
    for failover in [false, true] {
        let mut world = executing(failover);
        let items = world.nodes[0].items.clone();
        let created = |world: &World| {
            items
                .clone()
                .into_iter()
                .map(|item| world.created(&format!("sharding/{item}/running")))
                .collect::<Vec<_>>()
        };
        let (before, starts, instances) =
            (created(&world), world.starts.len(), world.created("instances/10.0.0.1@-@n0"));
        restart(&mut world, 0, 300, 2_500);
        assert_eq!(running(&world).len(), 6);
        world.run_for(500);
        assert!(!world.nodes[0].is_alone());
        assert_eq!((created(&world), world.starts.len()), (before, starts));
        assert_eq!(world.created("instances/10.0.0.1@-@n0"), instances);
        assert_eq!(world.nodes[0].executions.len(), 3);
        assert_eq!(world.interrupted, []);
        // It is reported to its end, and the job goes on.
        world.next_duration_ms = None;
        world.run_for(32_000);
        world.settle();
        world.assert_all_owned();
        assert!(world.starts.len() > starts);
        world.drain(0);
        world.drain(1);
        world.run_for(5_000);
        assert_eq!(running(&world), Vec::<String>::new());
    }
}

/// What was executed as failover, in this order.
fn taken_over(world: &World) -> Vec<Item> {
    world.starts.iter().filter(|start| start.source == Source::Failover).map(|start| start.item).collect()
}

#[test]
pub fn p6_who_does_not_come_back_leaves_as_if_its_stream_had_broken() {
    for failover in [false, true] {
        let mut world = executing(failover);
        let items = world.nodes[0].items.clone();
        world.next_duration_ms = Some(100);
        world.kill_sidecar(0);
        world.run_for(500);
        world.start_sidecar(0);
        world.run_for(2_000);
        // Nobody touches what may still be executed.
        assert_eq!(running(&world).len(), 6);
        world.give_up_waiting(0);
        world.run_for(4_000);
        assert_eq!(world.nodes[0].ended, Some(EndReason::Detached));
        assert_eq!(taken_over(&world), if failover { items } else { Vec::new() });
        world.run_for(30_000);
        world.settle();
        world.assert_all_owned();
    }
}

#[test]
fn p2_who_comes_back_to_an_instance_that_was_stopped_goes_on_with_what_it_executes() {
    let mut world = executing(true);
    world.next_duration_ms = Some(100);
    world.remove("instances/10.0.0.1@-@n0");
    world.run_for(500);
    assert!(world.nodes[0].items.is_empty());
    world.kill_sidecar(0);
    world.run_for(200);
    world.start_sidecar(0);
    world.take_effect(0);
    world.look(0);
    // It knows what the former process had, and nobody was back until now.
    world.come_back(0);
    world.run_for(10_000);
    assert_eq!((world.nodes[0].executions.len(), &world.nodes[0].ended), (3, &None));
    world.run_for(25_000);
    assert_eq!(world.nodes[0].ended, Some(EndReason::Stopped));
    assert_eq!((&*world.interrupted, taken_over(&world)), (&[][..], Vec::new()));
    world.settle();
    world.assert_all_owned();
}

#[test]
fn p2_what_is_executed_goes_on_though_the_configuration_cannot_be_read_any_more() {
    let mut world = executing(true);
    world.next_duration_ms = Some(100);
    world.put("config", "a text");
    world.run_for(300);
    restart(&mut world, 0, 200, 300);
    world.run_for(8_000);
    assert_eq!((world.nodes[0].executions.len(), &*world.interrupted), (3, &[][..]));
    world.run_for(25_000);
    assert_eq!((&*world.interrupted, taken_over(&world)), (&[][..], Vec::new()));
    world.settle();
    world.assert_all_owned();
}

#[test]
fn p6_what_who_was_stopped_does_not_execute_any_more_goes_with_it() {
    let mut world = executing(false);
    world.next_duration_ms = Some(100);
    world.remove("instances/10.0.0.1@-@n0");
    world.run_for(500);
    world.kill_sidecar(0);
    world.run_for(200);
    world.start_sidecar(0);
    world.take_effect(0);
    world.look(0);
    // What it says that it executes is not what the running nodes say.
    world.come_back_saying(0, |open| open.token = FencingToken(1));
    world.run_for(1_000);
    assert_eq!(world.nodes[0].ended, Some(EndReason::Stopped));
    let left = running(&world).into_iter().filter(|path| world.read(path).unwrap().ends_with(b"n0"));
    assert_eq!(left.collect::<Vec<_>>(), Vec::<String>::new());
    world.settle();
    world.assert_all_owned();
}

#[test]
fn p2_who_is_back_before_it_is_known_what_it_has_reads_the_end_of_its_stream_if_the_sidecar_stops() {
    let mut world = executing(true);
    world.next_duration_ms = Some(100);
    world.kill_sidecar(0);
    world.run_for(200);
    world.start_sidecar(0);
    // The registry has not answered yet.
    world.come_back(0);
    world.look(0);
    world.drain(0);
    world.look(0);
    assert!(world.nodes[0].executions.is_empty() && world.nodes[0].ended.is_none());
    world.run_for(8_000);
    assert_eq!(world.nodes[0].ended, Some(EndReason::Drained));
    world.settle();
    world.assert_all_owned();
}

#[test]
pub fn p2_p6_who_is_to_go_before_it_has_looked_what_it_has_inherited_leaves_nothing_of_it() {
    for failover in [false, true] {
        let mut world = executing(failover);
        let items = world.nodes[0].items.clone();
        world.next_duration_ms = Some(100);
        world.kill_sidecar(0);
        world.run_for(500);
        world.start_sidecar(0);
        world.drain(0);
        world.run_for(1_000);
        // The application may go on with it for its grace.
        assert_eq!(world.nodes[0].ended, None);
        assert_eq!(taken_over(&world), Vec::new());
        world.give_up_waiting(0);
        world.run_for(3_500);
        assert_eq!(world.nodes[0].ended, Some(EndReason::Drained));
        assert_eq!(world.get("instances/10.0.0.1@-@n0"), None);
        world.run_for(3_000);
        assert_eq!(taken_over(&world), if failover { items } else { Vec::new() });
        world.run_for(30_000);
        world.settle();
        world.assert_all_owned();
    }
}

#[test]
fn p2_p6_what_a_stopped_instance_still_executes_is_taken_up_and_ended() {
    // With failover the others flag it, as after a crash.
    let mut world = executing(false);
    world.next_duration_ms = Some(100);
    world.remove("instances/10.0.0.1@-@n0");
    world.run_for(300);
    world.kill_sidecar(0);
    world.run_for(300);
    world.start_sidecar(0);
    world.run_for(1_500);
    // Nobody touches what may still be executed.
    assert_eq!((running(&world).len(), world.nodes[0].ended.clone()), (6, None));
    world.give_up_waiting(0);
    world.run_for(4_000);
    assert!(world.nodes[0].ended.is_some());
    world.run_for(30_000);
    world.settle();
    world.assert_all_owned();
}

#[test]
fn p3_what_the_application_does_not_execute_counts_as_interrupted() {
    for failover in [false, true] {
        let mut world = executing(failover);
        let items = world.nodes[0].items.clone();
        world.next_duration_ms = Some(100);
        world.kill_sidecar(0);
        // It was killed, too, and comes back at once: it knows nothing.
        world.give_up_waiting(0);
        world.start_sidecar(0);
        world.come_back(0);
        world.run_for(1_500);
        let again = world.starts.iter().filter(|start| start.source == Source::Failover).count();
        assert_eq!(again, if failover { items.len() } else { 0 });
        assert_eq!(
            world.problems.iter().filter(|problem| problem.contains("interrupted")).count(),
            items.len()
        );
        world.run_for(35_000);
        world.settle();
        world.assert_all_owned();
    }
}

#[test]
fn p3_what_the_running_nodes_do_not_bear_out_is_not_gone_on_with() {
    let lies: [fn(&mut OpenExecution); 5] = [
        |open| open.token.0 += 1,
        |open| open.token.0 -= 1,
        // Another instance's, or nobody's.
        |open| open.execution_id = format!("{}7", open.execution_id),
        |open| open.execution_id = "without-an-item".to_owned(),
        |open| open.cancelled = Some(CancelReason::LeaseLost),
    ];
    for lie in lies {
        let mut world = executing(false);
        let count = world.nodes[0].executions.len();
        world.kill_sidecar(0);
        world.start_sidecar(0);
        world.come_back_saying(0, lie);
        world.run_for(300);
        assert_eq!(world.nodes[0].executions.len(), 0);
        assert_eq!(world.interrupted.len(), count);
        assert_eq!(running(&world).len(), 3);
    }
}

#[test]
fn what_was_told_to_stop_and_what_has_a_deadline_stays_so() {
    let mut world = executing(false);
    let last = world.nodes[0].items.last().copied();
    world.kill_sidecar(0);
    world.start_sidecar(0);
    let deadline = world.now + jiff::SignedDuration::from_secs(2);
    world.come_back_saying(0, |open| {
        let is_last = last.is_some_and(|last| open.execution_id.ends_with(&format!(".{last}")));
        open.deadline = (!is_last).then_some(deadline);
        open.cancelled = is_last.then_some(CancelReason::Operator);
    });
    world.run_for(500);
    let told: Vec<_> = world.cancels.iter().map(|(item, reason, _)| (Some(*item), *reason)).collect();
    assert_eq!(told, [(last, CancelReason::Operator)]);
    world.run_for(2_000);
    assert_eq!(world.cancels.len(), 3);
    let late = world.cancels.iter().skip(1);
    assert!(late.clone().all(|(_, reason, at)| *reason == CancelReason::Deadline && *at >= deadline));
}

#[test]
fn a_checkpoint_of_the_former_life_goes_with_its_execution() {
    let mut world = executing(false);
    let item = world.nodes[0].items[0];
    world.progress(item.0, false, Some(b"half"));
    world.run_for(100);
    assert_eq!(world.checkpoint(item.0).as_deref(), Some(&b"half"[..]));
    restart(&mut world, 0, 100, 100);
    world.run_for(500);
    assert_eq!(world.checkpoint(item.0).as_deref(), Some(&b"half"[..]));
    world.next_duration_ms = None;
    world.run_for(32_000);
    assert_eq!(world.checkpoint(item.0), None);
}

#[test]
fn a_further_attempt_gets_the_checkpoint_of_the_former_life() {
    let mut configuration = with_grace(false);
    configuration.props.insert("sidekeeper.retry-max-attempts".to_owned(), "2".to_owned());
    // What is made up for would take its place.
    configuration.misfire = false;
    configuration.props.insert("sidekeeper.retry-backoff".to_owned(), "500ms".to_owned());
    let mut world = settled(5, configuration, 2);
    world.next_duration_ms = Some(5_000);
    world.run_for(2_000);
    let item = world.nodes[0].items[0];
    world.progress(item.0, false, Some(b"half"));
    world.run_for(100);
    restart(&mut world, 0, 100, 100);
    world.outcomes.insert(item, [Outcome::Failure("no stock".to_owned())].into());
    world.run_for(6_500);
    let of_item: Vec<_> = world.starts.iter().filter(|start| start.item == item).collect();
    let again = of_item.iter().find(|start| start.attempt == 2).unwrap();
    assert_eq!(again.checkpoint.as_deref(), Some(&b"half"[..]));
}

#[test]
fn p4_a_session_that_is_lost_ends_the_wait() {
    let mut world = executing(false);
    world.kill_sidecar(0);
    world.run_for(300);
    world.start_sidecar(0);
    world.run_for(100);
    world.give_up_waiting(0);
    world.expire(0);
    world.run_for(500);
    assert_eq!(world.nodes[0].ended, Some(EndReason::Detached));
}

#[test]
fn without_grace_nothing_is_waited_for() {
    let mut configuration = with_grace(false);
    configuration.props.clear();
    let mut world = settled(5, configuration, 2);
    world.next_duration_ms = Some(30_000);
    world.run_for(2_000);
    world.kill_sidecar(0);
    world.give_up_waiting(0);
    world.run_for(500);
    assert_eq!(running(&world).len(), 6);
    world.start_sidecar(0);
    world.run_for(500);
    assert_eq!(world.nodes[0].ended, Some(EndReason::Detached));
    assert_eq!(running(&world).len(), 3);
}

/// Has something happen to some node again and again, close to a fire, where it hurts; each fire is executed once.
fn assert_each_fire_once(seed: u64, what: impl Fn(&mut World, usize)) {
    let mut world = settled(seed, with_grace(true), 1 + seed as usize % 3);
    world.duration_max_ms = 700;
    let from = Timestamp::from_second(world.now.as_second() / 2 * 2 + 2).unwrap();
    for _ in 0..10 {
        let next_fire = Timestamp::from_second(world.now.as_second() / 2 * 2 + 2).unwrap();
        let offset = world.random.below(300) as i64 - 100;
        world.run_until(next_fire + jiff::SignedDuration::from_millis(offset));
        let staying = world.staying();
        let pick = staying[world.random.below(staying.len() as u64) as usize];
        what(&mut world, pick);
        world.run_for(500);
    }
    world.run_for(3_000);
    let to = Timestamp::from_second(world.now.as_second() / 2 * 2 - 2).unwrap();
    assert_eq!(world.interrupted, [], "seed {seed}");
    for ((instant, item), count) in starts(&world, from, to) {
        let told: Vec<_> = world.starts.iter().filter(|start| start.item == item).collect();
        assert_eq!(
            count,
            1,
            "seed {seed}: fire {instant} of item {item}:\n{}\n{:#?}",
            lines(&told),
            world.log
        );
    }
}

#[test]
fn p5_every_fire_is_executed_once_while_sidecars_are_killed_and_come_back() {
    // The last one met a flag that was being written when the application came back.
    for seed in seeds(60).chain([128]) {
        assert_each_fire_once(seed, |world, pick| {
            let (down, alone) = (world.random.below(500), world.random.below(500));
            restart(world, pick, down, alone);
        });
    }
}

#[test]
fn p5_every_fire_is_executed_once_while_streams_break_and_come_back() {
    for seed in seeds(40).chain([276]) {
        assert_each_fire_once(seed, |world, pick| {
            let alone = world.random.below(500) as i64;
            world.break_stream(pick, GRACE);
            world.run_for(alone);
            world.come_back(pick);
        });
    }
}

#[test]
fn p1_p2_p3_p6_hold_while_sidecars_are_killed_and_others_come_and_go() {
    for seed in seeds(30) {
        let mut world = World::new(seed, with_grace(seed % 2 == 1));
        world.duration_max_ms = 3_000;
        world.join();
        for _ in 0..30 {
            world.run_for(500);
            let staying = world.staying();
            let pick = staying[world.random.below(staying.len() as u64) as usize];
            match world.random.below(8) {
                0 if staying.len() < 4 => drop(world.join()),
                1 if staying.len() > 1 => world.drain(pick),
                2 if staying.len() > 1 => world.kill(pick),
                3 => {
                    let (down, alone) = (world.random.below(1_000), world.random.below(1_500));
                    restart(&mut world, pick, down, alone);
                    world.run_for(500);
                }
                4 if staying.len() > 1 => {
                    world.kill_sidecar(pick);
                    world.run_for(300);
                    world.give_up_waiting(pick);
                    world.start_sidecar(pick);
                }
                _ => {}
            }
        }
        world.join();
        world.run_for(15_000);
        world.settle();
        world.assert_all_owned();
        for node in world.staying() {
            world.drain(node);
        }
        world.run_for(35_000);
        assert_eq!(running(&world).iter().filter(|_| seed % 2 == 0).count(), 0, "seed {seed}");
        let instances = world.paths().into_iter().filter(|path| path.contains("/instances/"));
        assert_eq!(instances.count(), 0, "seed {seed}");
    }
}
