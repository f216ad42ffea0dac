//! The deliberate bugs that only the real runner can have are found; `make mutants` looks for them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sidekeeper::mutants::{Mutant, choose};

use crate::scenarios::parted;

/// How many seeds there are for each.
const SEEDS: u64 = 60;

/// Finds a mutant; gives the seed and what was found.
fn find(mutant: Mutant, leads: bool) -> Option<(u64, String)> {
    (0..SEEDS).find_map(|seed| {
        choose(Some(mutant));
        let panic = catch_unwind(AssertUnwindSafe(|| drop(parted(seed, leads)))).err();
        choose(None);
        let how = panic?.downcast_ref::<String>().cloned().unwrap_or_default();
        // Without the bug it holds.
        drop(parted(seed, leads));
        Some((seed, how.lines().next().unwrap_or_default().to_owned()))
    })
}

fn assert_found(mutant: Mutant, leads: bool) {
    let hook = std::panic::take_hook();
    // What panics here is what is looked for.
    std::panic::set_hook(Box::new(|_| {}));
    let found = find(mutant, leads);
    std::panic::set_hook(hook);
    println!("{mutant:?}: {found:?}");
    assert!(found.is_some(), "{mutant:?} is not found within {SEEDS} seeds; an invariant is missing");
}

#[test]
fn a_lease_that_is_proven_by_a_read_is_found() {
    assert_found(Mutant::LeaseProvenByRead, false);
}

#[test]
fn a_lease_that_is_proven_by_a_sync_is_found() {
    assert_found(Mutant::LeaseProvenBySync, true);
}
