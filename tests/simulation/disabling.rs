//! The end of a disabling: the leader enables when the time has come that an operator has wanted, and nothing else.

use sidekeeper::coordination::job::contract::commit::Purpose;
use sidekeeper::extension::note::Note;
use sidekeeper::extension::path::{ExtensionPaths, Noted};
use sidekeeper::job::{Item, JobName};
use sidekeeper::tree::{NodeKind, Operation, Path};

use crate::setup::{JAVA, asked, one_node, second, with_java};
use crate::world::{World, six_items};

const DISABLED: &str = "sharding/1/disabled";

fn path(about: Noted) -> Path {
    let (namespace, job) = (Path::parse("/ns").unwrap(), JobName::parse("job").unwrap());
    ExtensionPaths::new(&namespace, &job).fleet().note(about)
}

fn item() -> Path {
    path(Noted::Item(Item(1)))
}

fn has_note(world: &World, about: &Path) -> bool {
    world.read(about.as_str()).is_some()
}

/// An operator disables item 1 until this second.
fn disable(world: &mut World, until: i64) {
    let note = Note::new("uid 1000", "repair").until(Some(second(until)));
    let disabled = Path::parse("/ns/job").unwrap().child(DISABLED);
    let create = |path, data: &str| Operation::create(path, NodeKind::Persistent, data);
    world.operate(&item(), vec![create(disabled, ""), create(item(), &note.write())]);
}

fn is_disabled(world: &World) -> bool {
    world.get(DISABLED).is_some()
}

/// Two nodes, six seconds after the begin; the first one leads.
fn two_nodes() -> World {
    let mut world = World::new(5, six_items());
    world.join();
    world.run_for(2_000);
    world.join();
    world.run_until(second(6));
    world.settle_owned();
    assert_eq!(world.get("leader/election/instance").unwrap(), b"10.0.0.1@-@n0");
    world
}

#[test]
fn an_item_is_enabled_when_its_time_has_come_and_executed_at_the_next_fire() {
    let mut world = two_nodes();
    disable(&mut world, 21);
    world.starts.clear();
    world.run_until(second(20));
    assert!(is_disabled(&world) && has_note(&world, &item()));
    assert!(world.starts.iter().all(|start| start.item != Item(1)) && !world.starts.is_empty());
    world.run_until(second(22));
    assert!(!is_disabled(&world) && !has_note(&world, &item()));
    world.run_until(second(30));
    assert!(world.starts.iter().any(|start| start.item == Item(1)));
    assert_eq!(asked(&world, Purpose::Enable), 1, "only one node asks, and once");
}

#[test]
fn the_next_leader_enables_what_the_dead_one_has_not() {
    let mut world = two_nodes();
    disable(&mut world, 12);
    world.run_until(second(11));
    world.kill(0);
    world.run_until(second(20));
    assert!(!is_disabled(&world) && !has_note(&world, &item()));
}

#[test]
fn a_job_that_nobody_runs_until_its_time_is_over_is_enabled_by_the_next_instance() {
    let mut world = World::new(5, six_items());
    world.join();
    world.run_until(second(6));
    world.settle_owned();
    disable(&mut world, 9);
    world.kill(0);
    world.run_until(second(30));
    assert!(is_disabled(&world));
    world.join();
    world.run_until(second(40));
    assert!(!is_disabled(&world));
}

#[test]
fn a_disabling_that_is_repeated_while_it_is_being_ended_stays() {
    let mut world = two_nodes();
    disable(&mut world, 9);
    world.run_until(second(8));
    // The leader has sent its transaction when an operator says: for good.
    for _ in 0..10_000 {
        world.look(0);
        if asked(&world, Purpose::Enable) > 0 {
            break;
        }
        world.take_effect(0);
        world.now += jiff::SignedDuration::from_millis(1);
    }
    assert_eq!(asked(&world, Purpose::Enable), 1);
    assert!(is_disabled(&world));
    let data = Note::new("uid 0", "for good").write();
    world.operate(&item(), vec![Operation::set(item(), data)]);
    world.run_until(second(30));
    // That note does not name the disabling, so it is about none; it has no end in any case.
    assert!(is_disabled(&world) && has_note(&world, &item()));
}

#[test]
fn a_disabling_of_the_console_has_no_end_whatever_a_note_of_an_earlier_one_says() {
    let mut world = two_nodes();
    disable(&mut world, 9);
    world.remove(DISABLED);
    world.put(DISABLED, "");
    world.run_until(second(20));
    assert!(is_disabled(&world));
    assert_eq!(asked(&world, Purpose::Enable), 0);
}

#[test]
fn the_servers_of_a_job_without_a_leader_are_enabled_too() {
    let mut world = two_nodes();
    let servers = [[10, 0, 0, 1], [10, 0, 0, 2]].map(std::net::Ipv4Addr::from);
    for server in servers {
        let note = path(Noted::Server(server));
        let data = Note::new("uid 1000", "").until(Some(second(15))).write();
        let node = Path::parse("/ns/job").unwrap().child(&format!("servers/{server}"));
        let create = Operation::create(note.clone(), NodeKind::Persistent, data);
        world.operate(&note, vec![Operation::set(node, "DISABLED"), create]);
    }
    world.run_until(second(14));
    assert_eq!(world.get("leader/election/instance"), None);
    world.run_until(second(25));
    for server in servers {
        assert_eq!(world.get(&format!("servers/{server}")).unwrap(), b"ENABLED");
        assert!(!has_note(&world, &path(Noted::Server(server))));
    }
    world.settle_owned();
}

#[test]
fn beside_a_java_leader_the_first_instance_of_a_sidecar_enables() {
    let mut world = with_java(|_| {});
    world.put("leader/election/instance", JAVA);
    disable(&mut world, 20);
    world.run_until(second(19));
    assert!(is_disabled(&world));
    world.run_until(second(25));
    assert!(!is_disabled(&world));
}

#[test]
fn a_disabling_without_an_end_is_not_ended() {
    let mut world = one_node(|_| {});
    let disabled = Path::parse("/ns/job").unwrap().child(DISABLED);
    let create = |path, data: &str| Operation::create(path, NodeKind::Persistent, data);
    world.operate(&item(), vec![create(disabled, ""), create(item(), &Note::new("uid 0", "x").write())]);
    world.run_for(60_000);
    assert!(is_disabled(&world) && has_note(&world, &item()));
}
