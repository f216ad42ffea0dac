//! Contenders of a lock or of a semaphore, or candidates of an election, in a simulated world full of faults: mutual exclusion
//! among applications that obey their lease, no more holders than permits, growing tokens, no waiting without a cause, and
//! nothing left in the queue.

pub mod belief;
pub mod requests;
pub mod world;

use std::time::Duration;

use jiff::Timestamp;
use sidekeeper::coordination::lock::contender::{Contender, Wanted};
use sidekeeper::coordination::lock::contract::{Effect, Event, Input};
use sidekeeper::coordination::time::Now;
use sidekeeper::extension::lock::{LockPaths, Mode};
use sidekeeper::tree::{Path, SessionId, Zxid};
use uuid::Uuid;
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
                total.vanished += outcome.vanished;
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
        total.vanished,
    ];
    assert!(counts.iter().all(|count| *count >= least), "{total:?}");
}

#[test]
fn a_contender_watches_its_own_node_only_if_it_waits_for_a_while() {
    let lock = LockPaths::at(Path::parse("/locks/bill").unwrap());
    let mut contender = Contender::new(Wanted {
        lock: lock.clone(),
        mode: Mode::Mutex,
        wait_until: None,
        hold_max: None,
        queue_max: 10,
        looks_first: false,
        stands_again: false,
        permits: 0,
        lock_delay: Duration::ZERO,
        seed: Uuid::from_u128(1),
    });
    let at = |millis: u64| Now { wall: Timestamp::UNIX_EPOCH, mono: Duration::from_millis(millis) };
    let effects = contender.step(at(0), vec![Input::SessionOpened(SessionId(1))]);
    let Some(Effect::Create(attempt, path)) = effects.first().cloned() else { panic!("{effects:?}") };
    let own = lock.child(&format!("{}0000000002", path.name())).unwrap();
    let other = "_c_other-lock-0000000001".to_owned();
    let seen = vec![
        Input::Created(attempt, Ok((own.clone(), Zxid(2)))),
        Input::Listed(1, Ok(vec![other.clone(), own.name().to_owned()])),
    ];
    let effects = contender.step(at(1), seen);
    let other = lock.child(&other).unwrap();
    assert!(effects.contains(&Effect::WatchBefore(Some(other.clone()))), "{effects:?}");
    let watches_own = |effects: &[Effect]| effects.contains(&Effect::WatchOwn(Some(own.clone())));
    assert!(!watches_own(&effects), "{effects:?}");
    let wakeup = contender.next_wakeup(at(1).mono).unwrap();
    assert!(wakeup <= Duration::from_millis(200), "{wakeup:?}");
    assert!(watches_own(&contender.step(Now { mono: wakeup, ..at(0) }, Vec::new())));
    // The holder's watch is that of the waiting contender.
    let effects = contender.step(at(300), vec![Input::Gone(other)]);
    let Some(Effect::List(look)) = effects.first().cloned() else { panic!("{effects:?}") };
    let effects = contender.step(at(301), vec![Input::Listed(look, Ok(vec![own.name().to_owned()]))]);
    let is_watch = |effect: &&Effect| matches!(effect, Effect::WatchOwn(_));
    assert!(matches!(effects.first(), Some(Effect::Notify(Event::Acquired { .. }))), "{effects:?}");
    assert_eq!(effects.iter().find(is_watch), None);
}
