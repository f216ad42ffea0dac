//! The simulation finds the deliberate bugs that only the real runner can have; `make mutants` runs this search.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sidekeeper::mutants::{Mutant, choose};

use crate::scenarios::partition;

/// The number of seeds for each bug.
const SEEDS: u64 = 60;

/// Searches for a mutant; returns the seed and the violation that found it.
fn find(mutant: Mutant, leads: bool) -> Option<(u64, String)> {
    (0..SEEDS).find_map(|seed| {
        choose(Some(mutant));
        let panic = catch_unwind(AssertUnwindSafe(|| drop(partition(seed, leads)))).err();
        choose(None);
        let how = panic?.downcast_ref::<String>().cloned().unwrap_or_default();
        // Without the bug, the same seed passes.
        drop(partition(seed, leads));
        Some((seed, how.lines().next().unwrap_or_default().to_owned()))
    })
}

fn assert_found(mutant: Mutant, leads: bool) {
    let hook = std::panic::take_hook();
    // A panic is the expected result here.
    std::panic::set_hook(Box::new(|_| {}));
    let found = find(mutant, leads);
    std::panic::set_hook(hook);
    println!("{mutant:?}: {found:?}");
    assert!(found.is_some(), "{mutant:?} is not found within {SEEDS} seeds; an invariant is missing");
}

#[test]
fn the_simulation_finds_a_lease_that_is_proven_by_a_read() {
    assert_found(Mutant::LeaseProvenByRead, false);
}

#[test]
fn the_simulation_finds_a_lease_that_is_proven_by_a_sync() {
    assert_found(Mutant::LeaseProvenBySync, true);
}
