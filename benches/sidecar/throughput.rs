//! How many executions a second go through one sidecar and one application? More and more jobs fire every
//! second, until fires come faster than they can be executed, and beyond that.
//!
//! An execution counts when the application has the answer that it is recorded, if that is within the
//! measured time. By then the execution was started in the registry, sent, executed (which takes no time),
//! reported and recorded.

use std::collections::BTreeMap;
use std::time::Duration;

use sidekeeper::registry::Registry;
use sidekeeper::registry::embedded::Embedded;

use crate::host::{Host, application_runtime};
use crate::load::{self, Execution, Load, Seen};
use crate::program::cpu_time;
use crate::server;
use crate::statistics::{Sorted, milliseconds, percent, rate};

/// The processor time of this process: the sidecar and the application.
const STAT: &str = "/proc/self/stat";
/// Measured seconds of each step.
const SECONDS: u64 = 10;
/// The most items that a job may have.
const ITEMS: u32 = 10_000;

pub(crate) fn embedded() {
    head();
    steps(&[(1, ITEMS), (2, ITEMS), (3, ITEMS), (4, ITEMS), (6, ITEMS), (8, ITEMS)], Embedded::in_memory);
}

pub(crate) fn on_zookeeper() {
    let server = server::start();
    let pairs =
        || application_runtime().block_on(server::pairs_per_second(&server, Duration::from_secs(SECONDS)));
    let (_warm_up, before) = (pairs(), pairs());
    println!();
    head();
    let loads = [(1, 2_500), (1, 5_000), (1, 6_000), (1, 8_000), (1, ITEMS), (2, 7_000), (2, ITEMS)];
    let most = steps(&loads, || server::registry(&server));
    let after = pairs();
    println!("\nbare pairs of `create` and `delete`, pipelined: {before}/s before, {after}/s after");
    println!(
        "executions at the best step: {most}/s, {} of the better of these",
        percent(most, before.max(after))
    );
}

fn head() {
    println!(
        "| jobs x items | due /s | recorded /s | on time | times of an item, fewest | in a burst /s | received to recorded, p50 ms | p99 ms | CPUs used |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
}

/// Runs the steps. Returns the best step's executions a second.
fn steps<R: Registry>(steps: &[(usize, u32)], registry: impl Fn() -> R) -> u64 {
    let mut most = 0;
    for &(jobs, items) in steps {
        let load = Load { jobs, items, warm_up: 3, seconds: SECONDS };
        let host = Host::start(registry());
        let cpu_before = cpu_time(STAT);
        let seen = application_runtime().block_on(load::run(&host.endpoint(), load));
        let cpu = cpu_time(STAT).saturating_sub(cpu_before);
        host.stop();
        most = most.max(print(load, &seen, cpu));
    }
    most
}

/// Prints a row. Returns the executions a second.
fn print(load: Load, seen: &Seen, cpu: Duration) -> u64 {
    let due = u64::try_from(load.jobs).unwrap_or(u64::MAX) * u64::from(load.items);
    let recorded = rate(seen.recorded(), Duration::from_secs(load.seconds));
    let on_time = seen.fired().filter(|execution| execution.on_time).count();
    let on_time = u64::try_from(on_time).unwrap_or(u64::MAX) * 100 / (due * load.seconds).max(1);
    let taken = seen.fired().map(|seen| Duration::from_nanos(seen.recorded.saturating_sub(seen.received)));
    let taken = Sorted::new(taken.collect());
    println!(
        "| {} x {} | {due} | {recorded} | {on_time} % | {} of {} | {} | {} | {} | {:.2} |",
        load.jobs,
        load.items,
        fewest(load, seen),
        load.seconds,
        burst_rate(seen),
        milliseconds(taken.percentile(50)),
        milliseconds(taken.percentile(99)),
        cpu.as_secs_f64() / Duration::from_secs(load.warm_up + load.seconds + 2).as_secs_f64(),
    );
    recorded
}

/// How often the item was executed in the measured time that was executed least.
fn fewest(load: Load, seen: &Seen) -> usize {
    let mut times = BTreeMap::new();
    let measured = seen.executions.iter().filter(|one| (seen.from..seen.until).contains(&one.recorded));
    for execution in measured {
        *times.entry(execution.item).or_insert(0) += 1;
    }
    let all = load.jobs * usize::try_from(load.items).unwrap_or(usize::MAX);
    if times.len() < all { 0 } else { times.into_values().min().unwrap_or_default() }
}

/// The median over the fires of this rate: the executions of all jobs for one instant, divided by the time
/// from the instant to the record of the last of them.
pub(crate) fn burst_rate(seen: &Seen) -> u64 {
    let mut bursts: BTreeMap<u64, (usize, u64)> = BTreeMap::new();
    for Execution { scheduled, recorded, .. } in seen.fired() {
        let (count, last) = bursts.entry(*scheduled).or_default();
        *count += 1;
        *last = (*recorded).max(*last);
    }
    let rate =
        |(scheduled, (count, last)): (u64, (usize, u64))| rate(count, Duration::from_nanos(last - scheduled));
    let mut rates: Vec<u64> = bursts.into_iter().map(rate).collect();
    rates.sort_unstable();
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}
