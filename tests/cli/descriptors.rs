//! A sidecar without free descriptors: it logs a warning, uses little of the processor, and serves again when some are free.

use std::fs;
use std::process::Stdio;

use nix::sys::signal::Signal;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::timeout;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::{LIMIT, Running};

/// The ticks (10 ms) of the processor that a process has used.
fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // Behind the name in parentheses come the state and ten numbers, and then the two numbers of ticks.
    let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

async fn is_healthy(endpoint: &str) -> bool {
    let Ok(channel) = Endpoint::from_shared(endpoint.to_owned()).unwrap().connect().await else {
        return false;
    };
    HealthClient::new(channel).check(HealthCheckRequest::default()).await.is_ok()
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_sidecar_without_descriptors_warns_and_pauses_and_serves_again_when_some_are_free() {
    let mut command = Command::new("sh");
    let script = "ulimit -n 64; exec \"$0\" serve --listen 127.0.0.1:0 --log-format json --log-level info";
    command.args(["-c", script, env!("CARGO_BIN_EXE_sidekeeper")]).process_group(0).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut serve = Running::start(command);
    let endpoint = loop {
        let event: serde_json::Value = serde_json::from_str(&serve.log_line().await).unwrap();
        if event["message"] == "serving" {
            break event["endpoints"].as_str().unwrap().to_owned();
        }
    };
    let address = endpoint.strip_prefix("http://").unwrap().to_owned();
    let mut held = Vec::new();
    for _ in 0..64 {
        held.push(TcpStream::connect(&address).await.unwrap());
    }
    let warning: serde_json::Value = loop {
        let line = serve.log_line().await;
        if line.contains("gives no more descriptors") {
            break serde_json::from_str(&line).unwrap();
        }
    };
    assert_eq!(warning["descriptors_max"], 64, "{warning}");

    // The sidecar closes new connections; each waits for a pause, and all of them for more than two seconds.
    let pid = serve.child.id().unwrap();
    let before = ticks(pid);
    for _ in 0..5 {
        let mut late = TcpStream::connect(&address).await.unwrap();
        let _ = timeout(LIMIT, late.read(&mut [0])).await.expect("the connection to be closed");
    }
    let used = ticks(pid) - before;
    assert!(used < 50, "{used} ticks of the processor");

    drop(held);
    timeout(LIMIT, async { while !is_healthy(&endpoint).await {} })
        .await
        .expect("the sidecar to serve again");
    serve.signal(Signal::SIGTERM);
    assert_eq!(serve.end().await.code(), Some(0));
}
