//! How much memory does an idle sidecar take? The program runs as a process of its own.

use std::fs;
use std::time::Duration;

use crate::application::{self, Job};
use crate::host::application_runtime;
use crate::program::{self, Program};
use crate::server;
use crate::statistics::{Sorted, milliseconds};

/// Starts in the measurement of the start time.
const STARTS: usize = 20;
/// Pause before memory is read, so that work after a change has ended.
const SETTLE: Duration = Duration::from_secs(3);
const JOBS: usize = 1_000;
const ITEMS: u32 = 10;
/// Connections over which the jobs' streams are spread.
const CONNECTIONS: usize = 4;

pub(crate) fn all() {
    let size = fs::metadata(program::file()).map_or(0, |metadata| metadata.len());
    println!("- the program: {:.1} MiB, stripped", mebibytes(size / 1024));
    let starts = (0..STARTS).map(|_| Program::start(None, &[]).started).collect();
    let starts = Sorted::new(starts);
    let [p50, max] = [50, 100].map(|percent| milliseconds(starts.percentile(percent)));
    println!("- from exec to serving, {STARTS} starts: p50 {p50} ms, max {max} ms");
    let server = server::start();
    println!(
        "\n| resident memory in MiB | idle | {JOBS} jobs of {ITEMS} items attached | at most | after they left |"
    );
    println!("|---|---|---|---|---|");
    for (name, zookeeper) in [("embedded registry", None), ("one ZooKeeper session", Some(server.address()))]
    {
        let program = Program::start(zookeeper.as_deref(), &[]);
        std::thread::sleep(SETTLE);
        let idle = program.resident();
        let runtime = application_runtime();
        let jobs = runtime.block_on(attach_all(&program.endpoint()));
        std::thread::sleep(SETTLE);
        let attached = program.resident();
        drop((jobs, runtime));
        std::thread::sleep(SETTLE);
        let columns = [idle, attached, program.status("VmHWM:"), program.resident()]
            .map(|kib| format!("{:.1}", mebibytes(kib)));
        println!("| {name} | {} |", columns.join(" | "));
    }
}

/// Attaches to the jobs. They have a schedule that does not fire before the end of the year.
async fn attach_all(endpoint: &str) -> Vec<Job> {
    let mut jobs = Vec::new();
    for connection in 0..CONNECTIONS {
        let client = application::connect(endpoint).await;
        for number in 0..JOBS / CONNECTIONS {
            let name = format!("idle-{connection}-{number}");
            jobs.push(Job::attach(client.clone(), &name, application::job("0 0 0 1 1 ?", ITEMS)).await);
        }
    }
    jobs
}

fn mebibytes(kib: u64) -> f64 {
    Duration::from_millis(kib).as_secs_f64() * 1000.0 / 1024.0
}
