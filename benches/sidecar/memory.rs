//! How much memory does an idle sidecar take? The program runs as a process of its own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::application::{self, Job};
use crate::host::application_runtime;
use crate::server;
use crate::statistics::{Sorted, milliseconds};

const PROGRAM: &str = env!("CARGO_BIN_EXE_sidekeeper");
/// Starts in the measurement of the start time.
const STARTS: usize = 20;
/// Pause before memory is read, so that work after a change has ended.
const SETTLE: Duration = Duration::from_secs(3);
const JOBS: usize = 1_000;
const ITEMS: u32 = 10;
/// Connections over which the jobs' streams are spread.
const CONNECTIONS: usize = 4;

pub(crate) fn all() {
    let size = fs::metadata(PROGRAM).map_or(0, |metadata| metadata.len());
    println!("- the program: {:.1} MiB, stripped", mebibytes(size / 1024));
    let starts = (0..STARTS).map(|_| Program::start(None).started).collect();
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
        let program = Program::start(zookeeper.as_deref());
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

struct Program {
    child: Child,
    folder: TempDir,
    /// From just before exec until the health service says that it serves.
    started: Duration,
}

impl Program {
    fn start(zookeeper: Option<&str>) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new(PROGRAM);
        command.arg("serve").arg(format!("--listen=unix:{}", folder.path().join("socket").display()));
        command.args(zookeeper.map(|address| format!("--zookeeper={address}")));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let start = Instant::now();
        let mut child = command.spawn().expect("the program");
        drain(&mut child);
        let mut program = Self { child, folder, started: Duration::ZERO };
        application_runtime().block_on(serving(&program.endpoint()));
        program.started = start.elapsed();
        program
    }

    fn endpoint(&self) -> String {
        format!("unix://{}", self.folder.path().join("socket").display())
    }

    /// Resident memory in KiB.
    fn resident(&self) -> u64 {
        self.status("VmRSS:")
    }

    fn status(&self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let value =
            status.lines().find_map(|line| line.strip_prefix(field)?.trim().split(' ').next()?.parse().ok());
        value.unwrap_or_default()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the log, so that the program never waits for a reader.
fn drain(child: &mut Child) {
    if let Some(log) = child.stderr.take() {
        std::thread::spawn(move || BufReader::new(log).lines().for_each(drop));
    }
}

/// Waits until the program serves and has a session with its registry.
async fn serving(endpoint: &str) {
    let endpoint = Endpoint::from_shared(endpoint.to_owned()).expect("an endpoint");
    loop {
        if let Ok(channel) = endpoint.connect().await {
            let answer =
                HealthClient::new(channel).check(HealthCheckRequest { service: String::new() }).await;
            if answer.is_ok_and(|answer| answer.get_ref().status() == ServingStatus::Serving) {
                return;
            }
        }
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
}

fn mebibytes(kib: u64) -> f64 {
    Duration::from_millis(kib).as_secs_f64() * 1000.0 / 1024.0
}
