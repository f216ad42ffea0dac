//! Election, sharding, failover and handoff as a small model that is explored completely: every order in which three
//! instances can read, send requests, get answers, lose their sessions and register again. `fleet` lists the actions, and
//! the function of the core for each.
//!
//! Each property is broken on purpose (`Bug`), and the exploration must find it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::as_conversions, clippy::print_stdout, unreachable_pub)]
#![cfg(test)]

mod fleet;
mod steps;

use std::fmt::Debug;

use fleet::{ACKNOWLEDGED, Bug, Fleet, ONCE, ONE_OWNER, SETTLED, TOKENS};
use stateright::{Checker, Model};

/// Explores all states; returns their number.
fn explore(fleet: Fleet) -> usize {
    let text = format!("{fleet:?}");
    let checker = fleet.checker().threads(2).spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{text}: {states} states, {} transitions, depth {}", checker.state_count(), checker.max_depth());
    for property in Fleet::promises() {
        if let Some(path) = checker.discovery(property.name) {
            let steps = path.into_vec();
            let last =
                steps.iter().take_while(|(state, _)| (property.condition)(checker.model(), state)).count();
            panic!("{}:\n{}", property.name, describe(&steps[..=last.min(steps.len() - 1)]));
        }
    }
    checker.assert_properties();
    states
}

/// The steps of a counterexample: each state and the action after it.
fn describe<S: Debug, A: Debug>(steps: &[(S, Option<A>)]) -> String {
    let line = |(state, action): &(S, Option<A>)| format!("{state:?}\n  {action:?}\n");
    steps.iter().map(line).collect()
}

/// Explores until the property is broken, and prints the actions.
#[track_caller]
fn assert_finds(fleet: Fleet, property: &'static str) {
    let text = format!("{fleet:?}");
    let checker = fleet.checker().threads(2).spawn_bfs().join();
    let Some(path) = checker.discovery(property) else {
        panic!("{text}: {property} is not broken in {} states", checker.unique_state_count());
    };
    let actions = path.into_actions();
    println!("{text}: {property} is broken after {} steps: {actions:?}", actions.len());
}

/// A fleet that is small enough to be explored in a second, with a bug.
fn broken(bug: Bug) -> Fleet {
    Fleet { instances: 3, items: 2, expiries: 1, fires: 1, bug: Some(bug) }
}

#[test]
fn three_instances_three_items_and_two_expiries_break_no_property() {
    let states = explore(Fleet { instances: 3, items: 3, expiries: 2, fires: 1, bug: None });
    assert!(states > 1_000_000, "the model has lost actions: {states} states");
}

#[test]
fn two_fires_break_no_property() {
    explore(Fleet { instances: 3, items: 2, expiries: 1, fires: 2, bug: None });
}

#[test]
fn without_acknowledgements_items_are_taken_from_their_owners() {
    assert_finds(broken(Bug::NoAcknowledgement), ACKNOWLEDGED);
}

#[test]
fn an_item_that_is_handed_over_while_it_is_executed_is_executed_twice() {
    assert_finds(Fleet { fires: 2, ..broken(Bug::HandedOverWhileBusy) }, ONCE);
}

#[test]
fn without_a_lease_an_instance_goes_on_after_the_end_of_its_session() {
    assert_finds(broken(Bug::NoLease), ONCE);
    assert_finds(broken(Bug::NoLease), ONE_OWNER);
}

#[test]
fn an_item_whose_running_node_is_overwritten_is_executed_twice() {
    assert_finds(Fleet { fires: 2, ..broken(Bug::RunningOverwritten) }, ONCE);
}

#[test]
fn a_token_that_is_used_again_does_not_grow() {
    assert_finds(Fleet { fires: 2, ..broken(Bug::TokenReused) }, TOKENS);
}

#[test]
fn a_very_late_failover_flag_makes_an_item_execute_twice() {
    assert_finds(Fleet { fires: 2, ..broken(Bug::LateFlag) }, ONCE);
}

#[test]
fn a_crash_that_is_not_flagged_stays_unfinished() {
    assert_finds(broken(Bug::NoFlag), SETTLED);
}
