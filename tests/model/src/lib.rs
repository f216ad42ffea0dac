//! Election, sharding, failover and handoff as a small model that is explored completely: every order in which three
//! instances can look, ask, be answered, lose their sessions and come back. `fleet` says what is modelled, and which
//! function of the core each action stands for.
//!
//! Each property is broken on purpose (`Bug`), to see that the exploration finds it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::as_conversions, clippy::print_stdout, unreachable_pub)]
#![cfg(test)]

mod fleet;
mod steps;

use std::fmt::Debug;

use fleet::{ACKNOWLEDGED, Bug, Fleet, ONCE, ONE_OWNER, SETTLED, TOKENS};
use stateright::{Checker, Model};

/// Explores all states, and gives how many there are.
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
            panic!("{}:\n{}", property.name, story(&steps[..=last.min(steps.len() - 1)]));
        }
    }
    checker.assert_properties();
    states
}

/// How a counterexample comes about: each action, and what it led to.
fn story<S: Debug, A: Debug>(steps: &[(S, Option<A>)]) -> String {
    let line = |(state, action): &(S, Option<A>)| format!("{state:?}\n  {action:?}\n");
    steps.iter().map(line).collect()
}

/// Explores until a property is broken, and says how.
#[track_caller]
fn finds(fleet: Fleet, property: &'static str) {
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
fn three_instances_three_items_and_two_expiries_break_nothing() {
    let states = explore(Fleet { instances: 3, items: 3, expiries: 2, fires: 1, bug: None });
    assert!(states > 1_000_000, "the model has lost its moves: {states} states");
}

#[test]
fn two_executions_at_once_in_time_break_nothing() {
    explore(Fleet { instances: 3, items: 2, expiries: 1, fires: 2, bug: None });
}

#[test]
fn without_acknowledgement_items_are_taken_from_their_owners() {
    finds(broken(Bug::NoAcknowledgement), ACKNOWLEDGED);
}

#[test]
fn an_item_that_is_handed_over_while_it_is_executed_is_executed_twice() {
    finds(Fleet { fires: 2, ..broken(Bug::HandedOverWhileBusy) }, ONCE);
}

#[test]
fn without_a_lease_whoever_has_lost_its_session_goes_on() {
    finds(broken(Bug::NoLease), ONCE);
    finds(broken(Bug::NoLease), ONE_OWNER);
}

#[test]
fn a_running_node_that_is_overwritten_is_executed_twice() {
    finds(Fleet { fires: 2, ..broken(Bug::RunningOverwritten) }, ONCE);
}

#[test]
fn a_token_that_is_used_again_is_refused() {
    finds(Fleet { fires: 2, ..broken(Bug::TokenReused) }, TOKENS);
}

#[test]
fn a_flag_that_comes_very_late_hits_another_execution_and_a_fenced_store_tells() {
    finds(Fleet { fires: 2, ..broken(Bug::LateFlag) }, ONCE);
}

#[test]
fn a_crash_that_is_not_flagged_stays_unfinished() {
    finds(broken(Bug::NoFlag), SETTLED);
}
