//! A sidecar process restarts within its session while its application goes on executing: executions are restored or
//! ended (P2, P3, P6).

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use sidekeeper::coordination::job::contract::effect::EndReason;
use sidekeeper::coordination::job::contract::event::CancelReason;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::coordination::job::contract::reattach::OpenExecution;
use sidekeeper::coordination::job::contract::report::Outcome;
use sidekeeper::job::{FencingToken, Item, JobConfiguration};

use crate::setup::{lines, next_fire, running_nodes, seeds, starts};
use crate::world::{World, six_items};

/// A claim that has the id and the token only.
fn bare(open: &mut OpenExecution) {
    (open.source, open.scheduled, open.deadline, open.attempt) = (None, None, None, 1);
}

#[test]
fn an_execution_is_restored_by_its_id_and_its_token_alone() {
    let mut configuration = six_items();
    configuration.props.insert("sidekeeper.grace".to_owned(), "4s".to_owned());
    configuration.props.insert("sidekeeper.execution-timeout".to_owned(), "20s".to_owned());
    let mut world = World::new(5, configuration);
    world.join();
    world.join();
    world.run_for(4_500);
    world.settle();
    world.next_duration_ms = Some(30_000);
    world.run_for(2_000);
    let told = |world: &World| -> Vec<_> {
        let open = world.nodes[0].executions.values();
        open.map(|open| (open.execute.item, open.execute.token, open.execute.scheduled)).collect()
    };
    let before = told(&world);
    assert_eq!(before.len(), 3);
    world.kill_sidecar(0);
    world.run_for(300);
    world.start_sidecar(0);
    world.run_for(500);
    world.reattach_naming(0, bare);
    world.run_for(500);
    assert_eq!(told(&world), before);
    // Its timeout has begun anew.
    world.run_for(18_500);
    let cancelled = |world: &World| {
        let ours = world.cancels.iter().filter(|(item, ..)| before.iter().any(|told| told.0 == *item));
        ours.count()
    };
    assert_eq!(cancelled(&world), 0);
    world.run_for(2_000);
    assert_eq!(cancelled(&world), 3, "{:?}", world.cancels);
    world.next_duration_ms = None;
    world.run_for(10_000);
    world.settle_owned();
}

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
    world.join_many(nodes);
    world.run_for(4_500);
    world.settle_owned();
    world
}

/// The sidecar is killed, and both are back a while later.
fn restart(world: &mut World, node: usize, down_ms: u64, alone_ms: u64) {
    world.kill_sidecar(node);
    world.run_for(down_ms as i64);
    world.start_sidecar(node);
    world.run_for(alone_ms as i64);
    world.reattach(node);
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
fn p3_executions_go_on_with_their_ids_and_tokens() {
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
        assert_eq!(running_nodes(&world).len(), 6);
        world.run_for(500);
        assert!(!world.nodes[0].is_alone());
        assert_eq!((created(&world), world.starts.len()), (before, starts));
        assert_eq!(world.created("instances/10.0.0.1@-@n0"), instances);
        assert_eq!(world.nodes[0].executions.len(), 3);
        assert_eq!(world.interrupted, []);
        // It is reported to its end, and the job goes on.
        world.next_duration_ms = None;
        world.run_for(32_000);
        world.settle_owned();
        assert!(world.starts.len() > starts);
        world.drain(0);
        world.drain(1);
        world.run_for(5_000);
        assert_eq!(running_nodes(&world), Vec::<String>::new());
    }
}

/// The items that were started as failover, in this order.
fn taken_over(world: &World) -> Vec<Item> {
    world.starts.iter().filter(|start| start.source == Source::Failover).map(|start| start.item).collect()
}

/// The events around a restart of a sidecar whose application executes three items.
struct Restart {
    case: &'static str,
    failover: bool,
    /// Just before the sidecar is killed.
    before: fn(&mut World),
    /// When it runs again.
    after: fn(&mut World),
    /// How its instance ends; `None`: it goes on.
    end: Option<EndReason>,
}

fn stop(world: &mut World) {
    world.remove("instances/10.0.0.1@-@n0");
    world.run_for(500);
}

/// An application that does not return: its executions count as interrupted when the grace is over.
#[test]
fn p2_p6_an_application_that_does_not_return_leaves_as_if_its_stream_had_broken() {
    let restart = |case, failover, before: fn(&mut World), after: fn(&mut World), end| Restart {
        case,
        failover,
        before,
        after,
        end: Some(end),
    };
    let restarts = [
        restart("killed", false, |_| {}, |_| {}, EndReason::Detached),
        restart("killed", true, |_| {}, |_| {}, EndReason::Detached),
        restart("drained before the first answer", false, |_| {}, |world| world.drain(0), EndReason::Drained),
        restart("drained before the first answer", true, |_| {}, |world| world.drain(0), EndReason::Drained),
        // With failover the others flag the items of a stopped instance, as after a crash.
        restart("stopped", false, stop, |_| {}, EndReason::Stopped),
    ];
    for Restart { case, failover, before, after, end } in restarts {
        let mut world = executing(failover);
        let items = world.nodes[0].items.clone();
        world.next_duration_ms = Some(100);
        before(&mut world);
        world.kill_sidecar(0);
        world.run_for(500);
        world.start_sidecar(0);
        after(&mut world);
        world.run_for(1_000);
        // No instance touches items that may still be executed.
        assert_eq!((running_nodes(&world).len(), &world.nodes[0].ended), (6, &None), "{case}, {failover}");
        assert_eq!(taken_over(&world), [], "{case}, {failover}");
        world.give_up_waiting(0);
        world.run_for(4_000);
        assert_eq!(world.nodes[0].ended, end, "{case}, {failover}");
        assert_eq!(world.get("instances/10.0.0.1@-@n0"), None, "{case}, {failover}");
        world.run_for(3_000);
        assert_eq!(taken_over(&world), if failover { items } else { Vec::new() }, "{case}");
        world.run_for(30_000);
        world.settle_owned();
    }
}

/// An application that returns: it executes its items to the end, and no other instance does.
#[test]
fn p2_an_application_that_returns_executes_its_items_to_the_end() {
    let restart = |case, before: fn(&mut World), after: fn(&mut World), end| Restart {
        case,
        failover: true,
        before,
        after,
        end,
    };
    let restarts = [
        restart(
            "the configuration cannot be read any more",
            |world| {
                world.put("config", "a text");
                world.run_for(300);
            },
            |world| world.run_for(300),
            None,
        ),
        restart(
            "the instance was stopped; the application returns when its executions have been read",
            stop,
            |world| {
                world.take_effect(0);
                world.look(0);
            },
            Some(EndReason::Stopped),
        ),
    ];
    for Restart { case, failover, before, after, end } in restarts {
        let mut world = executing(failover);
        world.next_duration_ms = Some(100);
        before(&mut world);
        world.kill_sidecar(0);
        world.run_for(200);
        world.start_sidecar(0);
        after(&mut world);
        world.reattach(0);
        world.run_for(9_000);
        assert_eq!((world.nodes[0].executions.len(), &world.nodes[0].ended), (3, &None), "{case}");
        world.run_for(25_000);
        assert_eq!(world.nodes[0].ended, end, "{case}");
        assert_eq!((&*world.interrupted, taken_over(&world)), (&[][..], Vec::new()), "{case}");
        world.settle_owned();
    }
}

#[test]
fn p6_a_stopped_instance_removes_the_running_nodes_that_its_application_denies() {
    let mut world = executing(false);
    world.next_duration_ms = Some(100);
    world.remove("instances/10.0.0.1@-@n0");
    world.run_for(500);
    world.kill_sidecar(0);
    world.run_for(200);
    world.start_sidecar(0);
    world.take_effect(0);
    world.look(0);
    // The executions that it names are not those of the running nodes.
    world.reattach_naming(0, |open| open.token = FencingToken(1));
    world.run_for(1_000);
    assert_eq!(world.nodes[0].ended, Some(EndReason::Stopped));
    let left = running_nodes(&world).into_iter().filter(|path| world.read(path).unwrap().ends_with(b"n0"));
    assert_eq!(left.collect::<Vec<_>>(), Vec::<String>::new());
    world.settle_owned();
}

#[test]
fn p2_an_application_that_returns_before_the_first_answer_stops_with_the_sidecar() {
    let mut world = executing(true);
    world.next_duration_ms = Some(100);
    world.kill_sidecar(0);
    world.run_for(200);
    world.start_sidecar(0);
    // The registry has not answered yet.
    world.reattach(0);
    world.look(0);
    world.drain(0);
    world.look(0);
    assert!(world.nodes[0].executions.is_empty() && world.nodes[0].ended.is_none());
    world.run_for(8_000);
    assert_eq!(world.nodes[0].ended, Some(EndReason::Drained));
    world.settle_owned();
}

#[test]
fn p3_an_execution_that_the_application_does_not_name_counts_as_interrupted() {
    for failover in [false, true] {
        let mut world = executing(failover);
        let items = world.nodes[0].items.clone();
        world.next_duration_ms = Some(100);
        world.kill_sidecar(0);
        // It was killed, too, and comes back at once: it knows nothing.
        world.give_up_waiting(0);
        world.start_sidecar(0);
        world.reattach(0);
        world.run_for(1_500);
        let again = world.starts.iter().filter(|start| start.source == Source::Failover).count();
        assert_eq!(again, if failover { items.len() } else { 0 });
        assert_eq!(
            world.problems.iter().filter(|problem| problem.starts_with("ITEM_INTERRUPTED ")).count(),
            items.len()
        );
        world.run_for(35_000);
        world.settle_owned();
    }
}

#[test]
fn p3_an_execution_that_differs_from_its_running_node_is_not_restored() {
    let lies: [fn(&mut OpenExecution); 5] = [
        |open| open.token.0 += 1,
        |open| open.token.0 -= 1,
        // An execution of another instance, or of none.
        |open| open.execution_id = format!("{}7", open.execution_id),
        |open| open.execution_id = "without-an-item".to_owned(),
        |open| open.cancelled = Some(CancelReason::LeaseLost),
    ];
    for lie in lies {
        let mut world = executing(false);
        let count = world.nodes[0].executions.len();
        world.kill_sidecar(0);
        world.start_sidecar(0);
        world.reattach_naming(0, lie);
        world.run_for(300);
        assert_eq!(world.nodes[0].executions.len(), 0);
        assert_eq!(world.interrupted.len(), count);
        assert_eq!(running_nodes(&world).len(), 3);
    }
}

#[test]
fn cancels_and_deadlines_outlast_a_restart() {
    let mut world = executing(false);
    let last = world.nodes[0].items.last().copied();
    world.kill_sidecar(0);
    world.start_sidecar(0);
    let deadline = world.now + SignedDuration::from_secs(2);
    world.reattach_naming(0, |open| {
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
fn a_checkpoint_of_the_former_process_ends_with_its_execution() {
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
fn a_retry_gets_the_checkpoint_of_the_former_process() {
    let mut configuration = with_grace(false);
    configuration.props.insert("sidekeeper.retry-max-attempts".to_owned(), "2".to_owned());
    // A rerun would take its place.
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
fn p4_a_lost_session_ends_the_wait_for_the_application() {
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
fn without_a_grace_the_sidecar_does_not_wait_for_the_application() {
    let mut configuration = with_grace(false);
    configuration.props.clear();
    let mut world = settled(5, configuration, 2);
    world.next_duration_ms = Some(30_000);
    world.run_for(2_000);
    world.kill_sidecar(0);
    world.give_up_waiting(0);
    world.run_for(500);
    assert_eq!(running_nodes(&world).len(), 6);
    world.start_sidecar(0);
    world.run_for(500);
    assert_eq!(world.nodes[0].ended, Some(EndReason::Detached));
    assert_eq!(running_nodes(&world).len(), 3);
}

/// Has something happen to some node again and again, close to a fire, where it hurts; each fire is executed once.
fn assert_each_fire_once(seed: u64, what: impl Fn(&mut World, usize)) {
    let mut world = settled(seed, with_grace(true), 1 + seed as usize % 3);
    world.duration_max_ms = 700;
    let from = next_fire(&world);
    for _ in 0..10 {
        let next_fire = next_fire(&world);
        let offset = world.random.below(300) as i64 - 100;
        world.run_until(next_fire + SignedDuration::from_millis(offset));
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
fn p5_every_fire_is_executed_once_while_sidecars_restart() {
    // The last one met a flag that was being written when the application came back.
    for seed in seeds(60).chain([128]) {
        assert_each_fire_once(seed, |world, pick| {
            let (down, alone) = (world.random.below(500), world.random.below(500));
            restart(world, pick, down, alone);
        });
    }
}

#[test]
fn p5_every_fire_is_executed_once_while_streams_break_and_reattach() {
    for seed in seeds(40).chain([276]) {
        assert_each_fire_once(seed, |world, pick| {
            let alone = world.random.below(500) as i64;
            world.break_stream(pick, GRACE);
            world.run_for(alone);
            world.reattach(pick);
        });
    }
}

#[test]
fn p1_p2_p3_p6_hold_while_sidecars_restart_and_others_join_and_leave() {
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
        world.settle_owned();
        for node in world.staying() {
            world.drain(node);
        }
        world.run_for(35_000);
        assert_eq!(running_nodes(&world).iter().filter(|_| seed % 2 == 0).count(), 0, "seed {seed}");
        let instances = world.paths().into_iter().filter(|path| path.contains("/instances/"));
        assert_eq!(instances.count(), 0, "seed {seed}");
    }
}
