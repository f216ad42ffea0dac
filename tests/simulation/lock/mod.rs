//! Contenders of a lock or of a semaphore, or candidates of an election, in a simulated world full of faults: mutual exclusion
//! among applications that obey their lease, no more holders than permits, growing tokens, no waiting without a cause, and
//! nothing left in the queue.

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
fn the_promises_of_locks_hold_in_random_schedules() {
    let number = |name: &str, default: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (base, seeds) = (number("SEED_BASE", 0), number("LOCK_SEEDS", 1_000));
    let mut total = Outcome::default();
    for seed in base..base + seeds {
        match schedule(seed) {
            Ok(outcome) => {
                total.grants += outcome.grants;
                total.faults += outcome.faults;
                total.losses += outcome.losses;
                total.timeouts += outcome.timeouts;
                total.leaders += outcome.leaders;
                total.successors += outcome.successors;
                total.permits += outcome.permits;
            }
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
    }
    println!("{seeds} schedules: {total:?}");
    // A world in which nothing happens proves nothing.
    let least = usize::try_from(seeds / 2).unwrap();
    let counts = [
        total.grants,
        total.faults,
        total.losses,
        total.timeouts,
        total.leaders,
        total.successors,
        total.permits,
    ];
    assert!(counts.iter().all(|count| *count >= least), "{total:?}");
}
