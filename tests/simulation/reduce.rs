//! Reduces a failing seed: fault by fault, kind by kind, machine by machine, it leaves out all that the failure does
//! not need.

use crate::swarm::faults::Fault;
use crate::swarm::invariants::{Invariant, Violation};
use crate::swarm::plan::Plan;
use crate::swarm::{Options, SECOND, schedule};

/// Tries at most so often.
const ATTEMPTS_MAX: usize = 2_000;

struct Reduction {
    seed: u64,
    invariant: Invariant,
    options: Options,
    attempts: usize,
}

impl Reduction {
    /// Whether the same invariant still fails with less.
    fn try_with(&mut self, options: Options) -> bool {
        self.attempts += 1;
        if self.attempts > ATTEMPTS_MAX {
            return false;
        }
        let fails = matches!(schedule(self.seed, &options), Err(found) if found.invariant == self.invariant);
        if fails {
            self.options = options;
        }
        fails
    }

    fn run(&mut self) {
        for machines in 1..8 {
            if self.try_with(Options { machines_max: machines, ..self.options.clone() }) {
                break;
            }
        }
        for seconds in [4, 6, 9, 13, 18, 25] {
            if self.try_with(Options { storm_max: seconds * SECOND, ..self.options.clone() }) {
                break;
            }
        }
        for fault in Fault::ALL {
            // Those that come at a time are left out one by one: to switch a kind off would draw all others anew.
            self.try_with(Options { off: self.options.off | fault.bit(), ..self.options.clone() });
        }
        let planned = Plan::draw(self.seed, &self.options).faults.len();
        let mut keep: Vec<usize> = (0..planned).collect();
        let mut size = keep.len();
        while size > 0 {
            let mut from = 0;
            while from < keep.len() {
                let mut less = keep.clone();
                less.drain(from..(from + size).min(keep.len()));
                if self.try_with(Options { keep: Some(less.clone()), ..self.options.clone() }) {
                    keep = less;
                } else {
                    from += size;
                }
            }
            size /= 2;
        }
    }
}

/// Prints the violated invariant, how to replay it, and the faults that it needs.
pub fn report(violation: &Violation) {
    println!("\nVIOLATION {violation}");
    let Violation { seed, invariant, .. } = *violation;
    println!("replay it: make simulate SEED={seed}");
    let mut reduction = Reduction { seed, invariant, options: Options::default(), attempts: 0 };
    reduction.run();
    let Options { off, keep, machines_max, storm_max, .. } = reduction.options.clone();
    let result = schedule(seed, &reduction.options);
    println!(
        "reduced in {} attempts: {}",
        reduction.attempts,
        result.err().map_or(String::new(), |v| v.to_string())
    );
    let plan = Plan::draw(seed, &reduction.options);
    println!("  job: {:?}", plan.configuration);
    for fault in &plan.faults {
        println!("  {:9.3} s  {}", fault.at as f64 / 1e6, fault.fault);
    }
    println!("  rates: {:?}", plan.rates);
    let mut command = format!("make simulate SEED={seed}");
    if machines_max < usize::MAX {
        command.push_str(&format!(" MACHINES={machines_max}"));
    }
    if storm_max < u64::MAX {
        command.push_str(&format!(" STORM={}", storm_max / SECOND));
    }
    if off != 0 {
        let names = Fault::ALL.iter().filter(|fault| off & fault.bit() != 0);
        command.push_str(&format!(" OFF={}", names.map(|f| format!("{f:?}")).collect::<Vec<_>>().join(",")));
    }
    if let Some(keep) = keep {
        let keep: Vec<_> = keep.iter().map(usize::to_string).collect();
        command.push_str(&format!(" KEEP={}", if keep.is_empty() { "none".into() } else { keep.join(",") }));
    }
    println!("replay that: {command}");
}

/// The options that a reduction has printed.
pub fn options_from_environment() -> Options {
    let text = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let number = |name: &str| text(name).and_then(|text| text.parse::<u64>().ok());
    let mut options = Options::default();
    if let Some(machines) = number("MACHINES") {
        options.machines_max = usize::try_from(machines).unwrap_or(usize::MAX);
    }
    if let Some(seconds) = number("STORM") {
        options.storm_max = seconds * SECOND;
    }
    if let Some(off) = text("OFF") {
        options.off = off.split(',').filter_map(Fault::named).map(Fault::bit).sum();
    }
    if let Some(keep) = text("KEEP") {
        options.keep = Some(keep.split(',').filter_map(|index| index.parse().ok()).collect());
    }
    options.whole = text("WHOLE").is_some();
    options
}
