//! The general world: a fleet, an ensemble and faults, all drawn from one seed, on virtual time.
//!
//! Unlike the directed tests, which check one rule each, a schedule here is drawn from its seed: the job, the
//! number of machines, which faults are possible and how often. [`schedule`] runs one, and checks the invariants all
//! along. Nothing is shared between schedules, and nothing in one depends on anything but its seed and the options:
//! there is no clock, no thread and no unordered collection in here.
//!
//! Everything that can happen is an event with a time in one queue ([`world`]): a request reaches the ensemble, an
//! answer reaches a sidecar, a sidecar wakes, an application ends an execution, a fault comes.

mod application;
mod attach;
mod calm;
mod checks;
mod client;
mod effects;
pub mod ensemble;
mod explained;
pub mod faults;
mod guests;
mod inflict;
mod interruptions;
pub mod invariants;
mod item_locks;
mod item_triggers;
mod latch;
mod machine;
pub mod plan;
mod reads;
mod sessions;
mod step;
mod takes_effect;
mod world;

use self::faults::{Counts, Fault};
use self::invariants::{Invariant, Violation};
use self::plan::Plan;
use self::world::World;

/// Simulated time, in microseconds since the world began.
pub type Micros = u64;

pub const MILLISECOND: Micros = 1_000;
pub const SECOND: Micros = 1_000_000;

/// The parts that a schedule leaves out, to reduce a failure; and whether it writes a timeline.
#[derive(Debug, Clone)]
pub struct Options {
    /// Kinds of faults that do not happen, as bits.
    pub off: u64,
    /// Which of the faults that come at a time do come, by their place in the plan; `None`: all.
    pub keep: Option<Vec<usize>>,
    /// How many machines there are at most.
    pub machines_max: usize,
    /// How long faults come at most.
    pub storm_max: Micros,
    /// Whether to write a timeline.
    pub trace: bool,
    /// Whether the timeline shows each effect whole, with the bytes of its transaction.
    pub whole: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            off: 0,
            keep: None,
            machines_max: usize::MAX,
            storm_max: Micros::MAX,
            trace: false,
            whole: false,
        }
    }
}

impl Options {
    /// Whether a kind of fault can happen.
    pub fn allows(&self, fault: Fault) -> bool {
        self.off & fault.bit() == 0
    }
}

/// A schedule in which everything held.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    /// The faults.
    pub faults: Counts,
    /// How long it was, in simulated time.
    pub simulated: Micros,
    /// How often a participant looked.
    pub steps: u64,
    /// How many executions were begun.
    pub executions: u64,
    /// How often a guest got its lock, and how often it lost it.
    pub grants: u64,
    pub losses: u64,
}

/// Runs the schedule of a seed. The same seed and options give the same result, and the same timeline.
pub fn schedule(seed: u64, options: &Options) -> Result<Summary, Violation> {
    run(seed, options).0
}

/// As [`schedule`], with the timeline: a line for each thing that happened.
pub fn replay(seed: u64, options: &Options) -> (Result<Summary, Violation>, String) {
    run(seed, &Options { trace: true, ..options.clone() })
}

/// As [`schedule`], for a job that fails over and makes up, in which again and again most sidecars are cut off while
/// they execute.
pub fn schedule_of_interruptions(seed: u64) -> Result<Summary, Violation> {
    let options = Options::default();
    run_plan(seed, Plan::of_interruptions(seed), &options).0
}

fn run(seed: u64, options: &Options) -> (Result<Summary, Violation>, String) {
    run_plan(seed, Plan::draw(seed, options), options)
}

fn run_plan(seed: u64, plan: Plan, options: &Options) -> (Result<Summary, Violation>, String) {
    let mut world = World::new(seed, plan, options.clone());
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
    if let Err(panic) = ran {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        world.fail(Invariant::NoPanic, || format!("a panic: {}", said.unwrap_or_default()));
    }
    world.end()
}
