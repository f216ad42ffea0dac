//! Measures the sidecar and prints Markdown tables, as they stand in `docs/benchmarks.md`. Asserts no times:
//! the numbers depend on the machine, so the reader judges them.
//!
//! `make bench` runs all parts, `make bench BENCH="throughput memory"` some of them. See [`PARTS`].
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a measurement that cannot be made ends with a panic"
)]
#![allow(clippy::disallowed_methods, reason = "measuring is reading clocks and waiting")]

#[path = "../../tests/support/application.rs"]
mod application;
mod budget;
#[path = "../../tests/support/certificates.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "shared with the tests"
)]
mod certificates;
mod contenders;
mod environment;
mod fleet;
mod handoff;
mod host;
mod latency;
mod listeners;
mod load;
mod locks;
mod memory;
mod program;
mod scale;
mod server;
mod statistics;
mod storms;
mod throughput;
#[path = "../../tests/support/zookeeper.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "shared with the tests"
)]
mod zookeeper;

/// The parts by name, in the order in which they are run.
const PARTS: [(&str, fn()); 12] = [
    ("budget", budget::embedded),
    ("latency", latency::embedded),
    ("latency-zookeeper", latency::on_zookeeper),
    ("listeners", listeners::embedded),
    ("handoff", handoff::on_zookeeper),
    ("throughput", throughput::embedded),
    ("throughput-zookeeper", throughput::on_zookeeper),
    ("memory", memory::all),
    ("locks", locks::on_zookeeper),
    ("storms", storms::instances),
    ("many-jobs", storms::many_jobs),
    ("scale", scale::on_zookeeper),
];

fn main() {
    // Cargo adds `--bench`.
    let chosen: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let known = |name: &String| PARTS.iter().any(|(part, _)| part == name);
    if let Some(unknown) = chosen.iter().find(|name| !known(name)) {
        let names = PARTS.map(|(part, _)| part).join(", ");
        println!("`{unknown}` is no part; there are {names}");
        std::process::exit(2);
    }
    environment::print();
    for (name, part) in PARTS {
        if chosen.is_empty() || chosen.iter().any(|chosen| chosen == name) {
            println!("\nload before `{name}`: {}\n", environment::load());
            part();
        }
    }
    println!("\nload at the end: {}", environment::load());
}
