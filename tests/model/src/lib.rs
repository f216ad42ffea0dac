//! Election, sharding, failover and handoff as a small model that is explored completely: every order in which three
//! instances can look, ask, be answered, lose their sessions and come back. `fleet` says what is modelled, and which
//! function of the core each action stands for.
//!
//! Each property is broken once on purpose (`Bug`), to see that the exploration finds it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::as_conversions, clippy::print_stdout, unreachable_pub)]

mod fleet;
mod steps;

use std::fmt::Debug;

use fleet::{Bug, Fleet};
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

#[test]
fn small() {
    let number = |name: &str, other: usize| std::env::var(name).map_or(other, |text| text.parse().unwrap());
    explore(Fleet {
        instances: number("I", 2) as u8,
        items: number("T", 2),
        expiries: number("E", 1) as u8,
        fires: number("F", 1) as u8,
        bug: None,
    });
}
