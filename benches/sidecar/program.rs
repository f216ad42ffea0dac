//! The sidecar's program as a process of its own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::host::application_runtime;

/// The file of the program: of this build, or another one, so that two builds can be compared.
pub(crate) fn file() -> String {
    std::env::var("SIDEKEEPER_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_sidekeeper").to_owned())
}

/// A sidecar in a process of its own. It ends with this value.
pub(crate) struct Program {
    child: Child,
    folder: TempDir,
    /// From just before exec until the health service says that it serves.
    pub(crate) started: Duration,
}

impl Program {
    pub(crate) fn start(zookeeper: Option<&str>, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new(file());
        command.arg("serve").arg(format!("--listen=unix:{}", folder.path().join("socket").display()));
        command.args(zookeeper.map(|address| format!("--zookeeper={address}")));
        // A fleet may overload the processors of this machine. So the figures do not depend on the default either.
        command.args(zookeeper.map(|_| "--session-timeout=30s"));
        command.args(options).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let start = Instant::now();
        let mut child = command.spawn().expect("the program");
        drain(&mut child);
        let mut program = Self { child, folder, started: Duration::ZERO };
        application_runtime().block_on(serving(&program.endpoint()));
        program.started = start.elapsed();
        program
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("unix://{}", self.folder.path().join("socket").display())
    }

    /// Resident memory in KiB.
    pub(crate) fn resident(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// The processor time since the start.
    pub(crate) fn cpu_time(&self) -> Duration {
        cpu_time(&format!("/proc/{}/stat", self.child.id()))
    }

    /// Asks the sidecar to stop in order.
    pub(crate) fn terminate(&self) {
        let process = i32::try_from(self.child.id()).map(nix::unistd::Pid::from_raw).expect("a process id");
        nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGTERM).expect("to signal the program");
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    pub(crate) fn status(&self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let value =
            status.lines().find_map(|line| line.strip_prefix(field)?.trim().split(' ').next()?.parse().ok());
        value.unwrap_or_default()
    }
}

/// The processor time of a process, from its file `stat`.
pub(crate) fn cpu_time(stat: &str) -> Duration {
    let stat = fs::read_to_string(stat).unwrap_or_default();
    // After the name: the twelfth and the thirteenth field are user and system time, in hundredths of a second.
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ');
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
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
