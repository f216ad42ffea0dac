//! An operator triggers an instance.

use jiff::SignedDuration;
use sidekeeper::coordination::job::contract::commit::Purpose;
use sidekeeper::coordination::job::contract::plan::Source;
use sidekeeper::job::{Item, JobConfiguration};

use crate::setup::{one_node, second, started_by};
use crate::world::{World, six_items};

#[test]
fn p5_a_trigger_before_the_first_sharding_executes_the_items_after_it() {
    let mut world = World::new(7, JobConfiguration { cron: None, ..six_items() });
    let node = world.join();
    while !world.commits.contains_key(&Purpose::Register) {
        world.take_effect(node);
        world.look(node);
    }
    world.take_effect(node);
    world.put("trigger/10.0.0.1@-@n0", "");
    world.look(node);
    assert_eq!(world.get("sharding/0/instance"), None);
    world.run_for(600);
    assert_eq!(world.get("trigger/10.0.0.1@-@n0"), None);
    assert!((0..6).all(|item| started_by(&world, item, Source::Trigger).len() == 1), "{:#?}", world.starts);
}

#[test]
fn p5_a_trigger_at_a_fire_has_an_instant_of_its_own() {
    let mut world = one_node(|_| {});
    world.now = second(6);
    world.look(0);
    // An item that is being started is busy.
    world.put("trigger/10.0.0.1@-@n0", "");
    world.look(0);
    world.run_for(1_500);
    let of_item = world.starts.iter().filter(|start| start.item == Item(0));
    let told: Vec<_> = of_item.map(|start| (start.source, start.scheduled)).collect();
    let after = second(6) + SignedDuration::from_millis(1);
    assert_eq!(told, [(Source::Schedule, second(6)), (Source::Misfire, after)]);
}

#[test]
fn p5_a_trigger_at_a_rerun_has_another_instant() {
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
