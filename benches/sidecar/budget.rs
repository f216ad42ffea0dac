//! The requests that a fire sends to the registry. `tests/budget.rs` asserts them; this part prints them.

use sidekeeper::registry::counted::Counted;
use sidekeeper::registry::embedded::Embedded;

use crate::application;
use crate::application::Job;
use crate::host::{Host, application_runtime};

const ITEMS: u32 = 50;

pub(crate) fn embedded() {
    println!("| a fire of {ITEMS} items, in steady state | reads | watches | transactions | operations |");
    println!("|---|---|---|---|---|");
    let registry = Counted::new(Embedded::in_memory());
    let host = Host::start(registry.clone());
    application_runtime().block_on(async {
        let client = application::connect(&host.endpoint()).await;
        let mut job = Job::attach(client, "counted", application::job("* * * * * ?", ITEMS)).await;
        // The first fire reads the ledger of fires.
        let first = fire(&mut job).await;
        job.succeeded(first).await;
        let before = registry.counts();
        let executions = fire(&mut job).await;
        let started = registry.counts();
        job.succeeded(executions).await;
        let reported = registry.counts();
        for (what, counts) in [
            ("until the application has all messages", started.since(before)),
            ("one report of all, until it is answered", reported.since(started)),
        ] {
            let sidekeeper::registry::counted::Counts { reads, watches, transactions, operations, .. } =
                counts;
            println!("| {what} | {reads} | {watches} | {transactions} | {operations} |");
        }
    });
    host.stop();
}

async fn fire(job: &mut Job) -> Vec<String> {
    let mut executions = Vec::new();
    for _ in 0..ITEMS {
        executions.push(job.execute().await.execution_id);
    }
    executions
}
