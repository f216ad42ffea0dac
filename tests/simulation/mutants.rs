//! Every deliberate bug is found: for each one, schedules are run from seed 0 on until an invariant is broken. `make
//! mutants` does so, and prints which invariant found which bug, and after how many seeds.
//!
//! What random schedules cannot reach, because it takes a certain order of events, is found by a test that makes that
//! order: [`DIRECTED`] says which.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use sidekeeper::mutants::{Mutant, choose};

use crate::swarm::{Options, schedule};

/// How many schedules there are for each mutant, at most. `MUTANT_SEEDS` asks for another number.
const SEEDS: u64 = 300;
/// How many mutants are looked for at once.
const THREADS: usize = 2;

/// A test that finds a mutant: its name, and itself.
type Directed = (Mutant, &'static str, fn());

/// The mutants that random schedules do not find, and which test does.
const DIRECTED: &[Directed] = &[];

/// How a mutant was found.
struct Found {
    by: String,
    /// How many seeds that took; `None`: it was a directed test.
    seeds: Option<u64>,
    how: String,
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Looks for a mutant, first with random schedules, then with the test that is known to find it.
fn find(mutant: Mutant, seeds: u64) -> Option<Found> {
    choose(Some(mutant));
    let directed = DIRECTED.iter().find(|(known, ..)| *known == mutant);
    let random = if directed.is_some() { 0 } else { seeds };
    for seed in 0..random {
        if let Err(violation) = schedule(seed, &Options::default()) {
            choose(None);
            let sound = schedule(seed, &Options::default()).is_ok();
            choose(Some(mutant));
            if !sound {
                // That is another bug, which needs no mutant.
                continue;
            }
            let by = format!("I{} {:?}", violation.invariant.number(), violation.invariant);
            return Some(Found { by, seeds: Some(seed + 1), how: violation.found });
        }
    }
    let (_, name, test) = directed?;
    let panic = catch_unwind(AssertUnwindSafe(test)).err()?;
    let how = panic.downcast_ref::<String>().cloned().unwrap_or_default();
    Some(Found { by: format!("`{name}`"), seeds: None, how })
}

#[test]
fn every_mutant_is_found() {
    let only = std::env::var("MUTANT").ok();
    let wanted = |mutant: &&Mutant| only.as_ref().is_none_or(|only| *only == format!("{mutant:?}"));
    let mutants: Vec<Mutant> = Mutant::ALL.iter().filter(wanted).copied().collect();
    assert!(!mutants.is_empty(), "MUTANT: there is no {only:?}; there are {:?}", Mutant::ALL);
    let seeds = number("MUTANT_SEEDS", SEEDS);
    let results: Mutex<BTreeMap<Mutant, Option<Found>>> = Mutex::default();
    let next = AtomicUsize::new(0);
    let hook = std::panic::take_hook();
    // What panics here is what is looked for.
    std::panic::set_hook(Box::new(|_| {}));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = find(*mutant, seeds);
                    println!("{}", line(*mutant, found.as_ref()));
                    results.lock().unwrap().insert(*mutant, found);
                }
            });
        }
    });
    std::panic::set_hook(hook);
    let results = results.into_inner().unwrap();
    println!("\n| mutant | what is wrong | found by | seeds |\n| --- | --- | --- | ---: |");
    for (mutant, found) in &results {
        let (by, seeds) = found.as_ref().map_or(("nothing", "-".to_owned()), |found| {
            (found.by.as_str(), found.seeds.map_or("-".to_owned(), |seeds| seeds.to_string()))
        });
        println!("| {mutant:?} | {} | {by} | {seeds} |", mutant.what());
    }
    let survivors: Vec<_> =
        results.iter().filter(|(_, found)| found.is_none()).map(|(mutant, _)| mutant).collect();
    assert!(survivors.is_empty(), "not found within {seeds} seeds: {survivors:?}; an invariant is missing");
}

/// One line that says how a mutant was found.
fn line(mutant: Mutant, found: Option<&Found>) -> String {
    let Some(Found { by, seeds, how }) = found else { return format!("{mutant:?}: NOT FOUND") };
    let how: String = how.lines().next().unwrap_or_default().chars().take(160).collect();
    format!("{mutant:?}: {by}, seeds {seeds:?}: {how}")
}
