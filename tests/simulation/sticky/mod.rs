//! Candidates for a sticky lock in a simulated world full of faults: one owner that acts among applications that obey their
//! lease, growing tokens, the grace of the last owner, no interrupted run forgotten, and no waiting without a cause.

pub mod application;
pub mod judge;
pub mod requests;
pub mod world;

use world::{Outcome, World};

/// The steps of a schedule before its faults end.
const STEPS: usize = 1_500;

/// A schedule of a seed, and how it went.
pub fn schedule(seed: u64) -> Result<Outcome, world::Violation> {
    let mut world = World::new(seed);
    world.run(STEPS)?;
    Ok(world.outcome)
}

#[test]
fn the_promises_of_sticky_locks_hold_in_random_schedules() {
    let number = |name: &str, default: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (base, seeds) = (number("SEED_BASE", 0), number("LOCK_SEEDS", 1_000));
    let mut total = Outcome::default();
    for seed in base..base + seeds {
        match schedule(seed) {
            Ok(outcome) => total.add(&outcome),
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
    }
    println!("{seeds} schedules: {total:?}");
    // A world in which nothing happens proves nothing.
    let least = usize::try_from(seeds / 20).unwrap();
    assert!(total.counts().iter().all(|count| *count >= least), "{total:?}");
}
