//! Runs schedules of the general world from many seeds and prints the result: `make simulate`.
//!
//! Without variables, as in `cargo test`, it judges a change with three checks: 2,000 schedules from seed 0, 250
//! schedules full of interruptions, and 100 seeds that run twice. An argument names one of them, as for other tests.
//!
//! `SEEDS` and `SEED_BASE` ask for other schedules; `SEED` runs a single one and prints its timeline. A schedule has
//! one thread, and there is one thread for each core. The first violation ends the run: the seed is reduced to the
//! faults that the failure needs, and the exit code is 1. With `GO_ON` every violation is listed, a line each.
//! `SEED_STEP=16 SEED_BASE=3` takes each sixteenth seed, which are those with applications that hold locks.
//!
//! With `DIGEST` the timelines are written whole, and one number stands for all of them: a change without effect on
//! behaviour leaves it as it is. `WHOLE` writes the timeline of one seed in the same way, so that two builds can be
//! compared line by line.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::wildcard_enum_match_arm
)]
#![allow(clippy::print_stdout, unreachable_pub)]

#[path = "../support/random.rs"]
#[allow(dead_code, reason = "the runner's simulation uses the rest")]
mod random;
mod reduce;
mod swarm;

/// What the world of locks shares with this one.
mod lock {
    pub mod belief;
    pub mod requests;
}

/// What the world of sticky locks shares with this one.
mod sticky {
    pub mod application;
    pub mod judge;
    pub mod requests;
}

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use swarm::faults::Counts;
use swarm::invariants::{Invariant, Violation};
use swarm::{Options, Summary, replay, schedule, schedule_of_interruptions};
use twox_hash::XxHash64;

/// A check that judges a change, and its name.
type Check = (&'static str, fn() -> ExitCode);

const CHECKS: [Check; 3] = [("schedules", schedules), ("interruptions", interruptions), ("replay", replays)];

/// How many schedules the interruptions are drawn for; each has about thirty.
const SCHEDULES_OF_INTERRUPTIONS: u64 = 250;

/// Seeds whose violation is understood and not mended yet; `docs/laboratory.md` explains each. They are excused only
/// in the run that judges a change, so that a new violation is seen. The list may only become shorter.
const OPEN: [(u64, Invariant); 0] = [];

/// The sums over many schedules.
#[derive(Default)]
struct Total {
    seeds: u64,
    faults: Counts,
    simulated: u64,
    steps: u64,
    executions: u64,
    grants: u64,
    losses: u64,
    digest: u64,
}

impl Total {
    fn add(&mut self, summary: &Summary) {
        self.seeds += 1;
        self.faults.extend(&summary.faults);
        self.simulated += summary.simulated;
        self.steps += summary.steps;
        self.executions += summary.executions;
        self.grants += summary.grants;
        self.losses += summary.losses;
    }
}

/// One schedule; with its timeline as a number, if `digests`.
fn one(seed: u64, digests: bool) -> (Result<Summary, Violation>, u64) {
    if !digests {
        return (schedule(seed, &Options::default()), 0);
    }
    let (result, timeline) = replay(seed, &Options { whole: true, ..Options::default() });
    (result, XxHash64::oneshot(seed, timeline.as_bytes()))
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn main() -> ExitCode {
    // A panic is a violation like any other, and is reported as one.
    std::panic::set_hook(Box::new(|_| {}));
    if let Some(seed) = number("SEED") {
        return show(seed);
    }
    if number("SEEDS").is_some() {
        return schedules();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let filters: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let is_wanted = |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(*filter));
    for (name, check) in CHECKS.iter().filter(|(name, _)| is_wanted(name)) {
        if check() != ExitCode::SUCCESS {
            println!("{name}: failed");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Interrupted executions are executed again for their own instants, with their checkpoints (P5), whether the sidecars
/// learn of the crash transaction by transaction or in parts.
fn interruptions() -> ExitCode {
    match (0..SCHEDULES_OF_INTERRUPTIONS).find_map(|seed| schedule_of_interruptions(seed).err()) {
        None => ExitCode::SUCCESS,
        Some(violation) => {
            println!("in a schedule of interruptions: {violation}");
            ExitCode::FAILURE
        }
    }
}

/// The same seed gives the same timeline, byte for byte, and writing the timeline changes nothing.
fn replays() -> ExitCode {
    let steps = |result: Result<Summary, Violation>| result.map(|summary| summary.steps).map_err(drop);
    let differs = |seed: &u64| {
        let options = Options::default();
        let (first, timeline) = replay(*seed, &options);
        let (second, again) = replay(*seed, &options);
        let unwritten = steps(schedule(*seed, &options));
        let first = steps(first);
        timeline.is_empty() || timeline != again || first != steps(second) || first != unwritten
    };
    match (0..100).find(differs) {
        None => ExitCode::SUCCESS,
        Some(seed) => {
            println!("seed {seed} does not give the same schedule each time");
            ExitCode::FAILURE
        }
    }
}

/// Many schedules, from the first seed on.
fn schedules() -> ExitCode {
    let (base, seeds) = (number("SEED_BASE").unwrap_or(0), number("SEEDS").unwrap_or(2_000));
    let step = number("SEED_STEP").unwrap_or(1);
    let judges_a_change = number("SEEDS").is_none();
    let is_open =
        |violation: &Violation| judges_a_change && OPEN.contains(&(violation.seed, violation.invariant));
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let (goes_on, digests) = (number("GO_ON").is_some(), number("DIGEST").is_some());
    let next = AtomicU64::new(base);
    let total = Mutex::new(Total::default());
    let found: Mutex<Option<Violation>> = Mutex::new(None);
    let violations = AtomicU64::new(0);
    #[expect(clippy::disallowed_methods, reason = "only to say how fast it was; no schedule sees it")]
    let begin = std::time::Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                let mut mine = Total::default();
                loop {
                    let seed = next.fetch_add(step, Ordering::Relaxed);
                    if seed >= base + seeds * step || found.lock().unwrap().is_some() {
                        break;
                    }
                    let (result, digest) = one(seed, digests);
                    // The schedules end in any order.
                    mine.digest = mine.digest.wrapping_add(digest);
                    match result {
                        Ok(summary) => mine.add(&summary),
                        Err(violation) if is_open(&violation) => println!("open: {violation}"),
                        Err(violation) if goes_on => {
                            println!("{violation}");
                            violations.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(violation) => {
                            found.lock().unwrap().get_or_insert(violation);
                        }
                    }
                }
                let mut total = total.lock().unwrap();
                total.seeds += mine.seeds;
                total.faults.extend(&mine.faults);
                total.simulated += mine.simulated;
                total.steps += mine.steps;
                total.executions += mine.executions;
                total.grants += mine.grants;
                total.losses += mine.losses;
                total.digest = total.digest.wrapping_add(mine.digest);
            });
        }
    });
    let took = begin.elapsed().as_secs_f64();
    let total = total.into_inner().unwrap();
    say(&total, base, cores, took);
    if digests {
        println!("digest of the timelines: {:016x}", total.digest);
    }
    match (found.into_inner().unwrap(), violations.into_inner()) {
        (None, 0) => {
            println!("no violation");
            ExitCode::SUCCESS
        }
        (None, several) => {
            println!("{several} violations");
            ExitCode::FAILURE
        }
        (Some(violation), _) => {
            reduce::report(&violation);
            ExitCode::FAILURE
        }
    }
}

/// One seed, and its timeline.
fn show(seed: u64) -> ExitCode {
    let options = reduce::options_from_environment();
    let (result, timeline) = replay(seed, &options);
    print!("{timeline}");
    match result {
        Ok(summary) => {
            println!("seed {seed}: no violation, {} faults", summary.faults.total());
            ExitCode::SUCCESS
        }
        Err(violation) => {
            println!("{violation}");
            ExitCode::FAILURE
        }
    }
}

fn say(total: &Total, base: u64, cores: usize, took: f64) {
    let hours = total.simulated as f64 / 3.6e9;
    println!(
        "{} schedules from seed {base} in {took:.1} s on {cores} cores: {:.0} a second",
        total.seeds,
        total.seeds as f64 / took
    );
    println!(
        "{hours:.1} hours simulated, {} executions, {} looks of participants, {} locks acquired and {} lost, {} faults:",
        total.executions,
        total.steps,
        total.grants,
        total.losses,
        total.faults.total()
    );
    let mut faults: Vec<_> = total.faults.iter().filter(|(_, count)| *count > 0).collect();
    faults.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for (fault, count) in faults {
        println!("{count:>12}  {fault}");
    }
}
