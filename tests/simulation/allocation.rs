//! Which members get more items than the equal share (P1): the members that rank first for the job, by their names; and
//! the rule of fleets with sidecars of two versions.

use sidekeeper::extension::profile::Profile;
use sidekeeper::extension::rendezvous;
use sidekeeper::job::JobConfiguration;

use crate::setup::with;
use crate::world::{World, six_items};

/// The names of three members; each set has draws of its own.
fn names(set: u32) -> [String; 3] {
    ["a", "b", "c"].map(|letter| format!("{letter}{set}"))
}

/// An instance's sidecar of an earlier version.
fn outdated() -> Profile {
    Profile { rendezvous: false, ..Profile::default() }
}

fn job(items: u32) -> JobConfiguration {
    JobConfiguration { sharding_total_count: items, ..six_items() }
}

/// The name of each item's owner.
fn owners(world: &World, items: u32) -> Vec<String> {
    let owner = |item| String::from_utf8(world.get(&format!("sharding/{item}/instance")).unwrap()).unwrap();
    (0..items).map(|item| owner(item).split_once("@-@").unwrap().1.to_owned()).collect()
}

/// The name of the one that leads.
fn leader(world: &World) -> String {
    let id = String::from_utf8(world.get("leader/election/instance").unwrap()).unwrap();
    id.split_once("@-@").unwrap().1.to_owned()
}

/// How many of the members that stay say that the fleet has two versions.
fn told(world: &World) -> usize {
    let says = |node: &usize| {
        let problems = world.nodes[*node].problems.last();
        problems.is_some_and(|problems| {
            problems.iter().any(|problem| problem.code.as_str() == "SIDECAR_OUTDATED")
        })
    };
    world.staying().iter().filter(|node| says(node)).count()
}

fn settled(world: &mut World) {
    world.run_for(900);
    world.settle_owned();
}

fn join(world: &mut World, names: &[String; 3], place: usize, profile: Profile) -> usize {
    let node = world.join_with(Some(&names[place]), u16::try_from(place).unwrap() + 1, profile);
    settled(world);
    node
}

/// Three members that join one after the other, in this order.
fn three(configuration: JobConfiguration, names: &[String; 3], order: [usize; 3]) -> World {
    let mut world = World::new(7, configuration);
    world.duration_max_ms = 200;
    world.one_by_one = true;
    for place in order {
        join(&mut world, names, place, Profile::default());
    }
    world
}

#[test]
pub fn p1_the_owner_of_a_single_item_depends_on_names_and_not_on_the_order_of_registration() {
    let mut counts = [0; 3];
    for names in (0..24).map(names) {
        let owner = |order| owners(&three(job(1), &names, order), 1).remove(0);
        let first = owner([0, 1, 2]);
        assert_eq!(first, owner([2, 1, 0]));
        counts[names.iter().position(|name| *name == first).unwrap()] += 1;
    }
    assert!(counts.iter().all(|count| (3..=13).contains(count)), "{counts:?}");
}

#[test]
pub fn p1_a_seat_moves_only_to_a_newcomer_that_ranks_above_its_holder() {
    let mut moves = [0; 2];
    for set in 0..24 {
        let mut world = three(job(4), &names(set), [0, 1, 2]);
        let before = owners(&world, 4);
        let [fourth, fifth] = ["d", "e"].map(|letter| format!("{letter}{set}"));
        world.join_as(Some(&fourth), 4);
        settled(&mut world);
        let after = owners(&world, 4);
        // Four members have no seats beyond the one item each: the member that had two gives one.
        let moved: Vec<_> = (0..4).filter(|item| before[*item] != after[*item]).collect();
        assert!(moved.len() == 1 && after[moved[0]] == fourth, "{before:?}, {after:?}");
        world.join_as(Some(&fifth), 5);
        settled(&mut world);
        // Five members have four seats: the one that ranks last has nothing. If that is another one than the
        // newcomer, its item moves to the newcomer.
        let mut expected = after.clone();
        let all = after.iter().chain([&fifth]);
        let last = all.min_by_key(|name| rendezvous::draw(&job(4).job_name, name)).unwrap();
        for owner in expected.iter_mut().filter(|owner| *owner == last) {
            owner.clone_from(&fifth);
        }
        assert_eq!(owners(&world, 4), expected, "{after:?}");
        moves[usize::from(*last != fifth)] += 1;
    }
    // Both have been seen, a newcomer that ranks above a holder and one that ranks last.
    assert!(moves[0] > 0 && moves[1] > 0, "{moves:?}");
}

#[test]
fn p1_after_a_restart_a_member_with_a_name_has_as_many_items_as_before() {
    let names = names(0);
    let mut world = three(job(5), &names, [0, 1, 2]);
    let count =
        |world: &World| names.clone().map(|name| owners(world, 5).iter().filter(|it| **it == name).count());
    let before = count(&world);
    for (node, name) in names.iter().enumerate() {
        // Without a grace, so that others have its items meanwhile; and it comes back from another address.
        world.drain(node);
        settled(&mut world);
        world.join_as(Some(name), 20 + u16::try_from(node).unwrap());
        settled(&mut world);
        assert_eq!(count(&world), before, "{name}");
    }
}

#[test]
pub fn p1_beside_an_earlier_version_all_leaders_use_its_rule_and_report_that() {
    let mut elsewhere = 0;
    for names in (0..8).map(names) {
        let today = owners(&three(job(1), &names, [0, 1, 2]), 1);
        let mut world = World::new(7, job(1));
        world.duration_max_ms = 200;
        world.one_by_one = true;
        // The earlier version's leads. The first member has the item, also if it ranks below.
        let second = join(&mut world, &names, 1, outdated());
        join(&mut world, &names, 0, Profile::default());
        let third = join(&mut world, &names, 2, Profile::default());
        assert_eq!((leader(&world), told(&world)), (names[1].clone(), 3));
        assert_eq!(owners(&world, 1), names[1..2]);
        elsewhere += usize::from(today != names[1..2]);
        let changed = |world: &World| world.created("sharding/0/instance");
        let before = changed(&world);
        world.drain(third);
        settled(&mut world);
        join(&mut world, &names, 2, Profile::default());
        assert_eq!((leader(&world), changed(&world)), (names[1].clone(), before));
        // Now one of today's leads. Only the items of the one that leaves move.
        world.drain(second);
        settled(&mut world);
        let before = changed(&world);
        let second = join(&mut world, &names, 1, outdated());
        assert_ne!(leader(&world), names[1]);
        assert_eq!((changed(&world), told(&world)), (before, 3));
        // The last one is upgraded. Items move as the rule of today asks for.
        world.drain(second);
        settled(&mut world);
        join(&mut world, &names, 1, Profile::default());
        assert_eq!((owners(&world, 1), told(&world)), (today, 0));
    }
    assert!(elsewhere > 0, "the two rules give the same owners for all these names");
}

#[test]
fn p1_a_reservation_of_an_earlier_version_counts() {
    let mut configuration = job(1);
    with(&[("grace", "20s")])(&mut configuration);
    let mut world = World::new(7, configuration);
    world.one_by_one = true;
    let names = names(0);
    for place in 0..3 {
        let profile = if place == 2 { outdated() } else { Profile::default() };
        join(&mut world, &names, place, profile);
    }
    let before = world.created("sharding/0/instance");
    world.drain(2);
    settled(&mut world);
    assert_eq!(told(&world), 2);
    let back = join(&mut world, &names, 2, outdated());
    assert_eq!(world.created("sharding/0/instance"), before);
    world.leave_for_good(back);
    settled(&mut world);
    assert_eq!(told(&world), 0);
}

#[test]
fn p1_consistent_hash_spreads_single_items_and_follows_an_earlier_version() {
    let mut configuration = job(1);
    with(&[("sharding-strategy", "CONSISTENT_HASH")])(&mut configuration);
    let mut counts = [[0; 3]; 2];
    for names in (0..24).map(names) {
        for (version, counts) in counts.iter_mut().enumerate() {
            let mut world = World::new(7, configuration.clone());
            world.one_by_one = true;
            for place in 0..3 {
                let profile = Profile { rendezvous: version == 1, ..Profile::default() };
                join(&mut world, &names, place, profile);
            }
            assert_eq!(told(&world), if version == 0 { 3 } else { 0 });
            let owner = owners(&world, 1).remove(0);
            counts[names.iter().position(|name| *name == owner).unwrap()] += 1;
        }
    }
    // The article's hash does not look at the members' names.
    assert!(counts[0].contains(&24), "{counts:?}");
    assert!(counts[1].iter().all(|count| *count <= 13), "{counts:?}");
}
