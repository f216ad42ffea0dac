//! How late does an execution reach the application? From the scheduled instant to the moment when the
//! application has the message.

use std::time::Duration;

use sidekeeper::registry::Registry;
use sidekeeper::registry::embedded::Embedded;

use crate::host::{Host, application_runtime};
use crate::load::{self, Load};
use crate::server;
use crate::statistics::{Sorted, milliseconds};

const LOADS: [(&str, Load); 3] = [
    ("20 jobs of 1 item, every second", Load { jobs: 20, items: 1, warm_up: 2, seconds: 60 }),
    ("1 job of 50 items, every second", Load { jobs: 1, items: 50, warm_up: 2, seconds: 24 }),
    ("1 job of 1 item, every second", Load { jobs: 1, items: 1, warm_up: 2, seconds: 30 }),
];

/// Creations of a single node to compare with, and the pause before each.
const CREATIONS: u32 = 400;
const CREATION_PAUSE: Duration = Duration::from_millis(20);

pub(crate) fn embedded() {
    println!("| embedded registry | executions | p50 ms | p99 ms | max ms |\n|---|---|---|---|---|");
    for (name, load) in LOADS {
        let lateness = lateness(Embedded::in_memory(), load);
        println!("| {name} | {} | {} |", lateness.len(), lateness.columns());
    }
}

pub(crate) fn on_zookeeper() {
    let server = server::start();
    println!("\n| | executions | p50 ms | p99 ms | max ms | round trips more, p50 | p99 |");
    println!("|---|---|---|---|---|---|---|");
    // Measured before and after the rest: the server's code is compiled while it runs.
    let runtime = application_runtime();
    let create = || runtime.block_on(server::create_latency(&server, CREATIONS, CREATION_PAUSE));
    let before = create();
    println!("| bare `create`, before | {} | {} | | |", before.len(), before.columns());
    let mut rows = Vec::new();
    for (name, load) in LOADS {
        let embedded = lateness(Embedded::in_memory(), load);
        rows.push((name, embedded, lateness(server::registry(&server), load)));
    }
    let create = create();
    println!("| bare `create`, after | {} | {} | | |", create.len(), create.columns());
    for (name, embedded, zookeeper) in rows {
        let more = |percent| {
            let excess = zookeeper.percentile(percent).saturating_sub(embedded.percentile(percent));
            format!("{:.2}", excess.as_secs_f64() / create.percentile(percent).as_secs_f64())
        };
        let columns = zookeeper.columns();
        println!("| {name} | {} | {columns} | {} | {} |", zookeeper.len(), more(50), more(99));
        let [p50, p99] = [50, 99].map(|percent| milliseconds(embedded.percentile(percent)));
        println!(
            "| the same, embedded | {} | {p50} | {p99} | {} | | |",
            embedded.len(),
            milliseconds(embedded.percentile(100))
        );
    }
}

fn lateness(registry: impl Registry, load: Load) -> Sorted {
    let host = Host::start(registry);
    let seen = application_runtime().block_on(load::run(&host.endpoint(), load));
    host.stop();
    let lateness =
        seen.fired().map(|seen| Duration::from_nanos(seen.received.saturating_sub(seen.scheduled)));
    Sorted::new(lateness.collect())
}
