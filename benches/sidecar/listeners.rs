//! What does a call cost over a Unix socket, a loopback port and TLS? One sidecar, in a process of its own, serves at all
//! three, and they are measured by turns, so a change of the machine's load does not count for one of them alone.

use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use futures::future::join_all;
use tempfile::TempDir;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::application::Client;
use crate::certificates::Authority;
use crate::host::application_runtime;
use crate::load::{self, Load};
use crate::program::{Program, file};
use crate::statistics::{Sorted, microseconds, rate};
use crate::throughput::burst_rate;

const ROUNDS: usize = 4;
/// The fires whose lateness is measured: 50 items each.
const FEW: Load = Load { jobs: 1, items: 50, warm_up: 1, seconds: 6 };
/// Fires of many items: how fast one of them is executed.
const MANY: Load = Load { jobs: 1, items: 5_000, warm_up: 1, seconds: 4 };
/// Calls one after the other.
const CALLS: usize = 2_000;
/// Calls at once, and for how long they are made.
const AT_ONCE: usize = 32;
const CALLS_LAST: Duration = Duration::from_secs(2);

/// A way to the sidecar, and what was measured on it.
struct Way {
    name: &'static str,
    endpoint: Endpoint,
    calls: Vec<Duration>,
    rates: Vec<u64>,
    lateness: Vec<Duration>,
    bursts: Vec<u64>,
}

pub(crate) fn embedded() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [port, secure_port] = [(); 2].map(|()| free_port());
    let mut options = vec![format!("--listen=127.0.0.1:{port}")];
    let tls = has_tls().then(|| tls(&folder, secure_port));
    options.extend(tls.iter().flat_map(|(options, _)| options.clone()));
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let program = Program::start(None, &options);
    let endpoint = |address: String| Endpoint::from_shared(address).expect("an endpoint");
    let mut ways = vec![
        Way::new("Unix socket", endpoint(program.endpoint())),
        Way::new("loopback port", endpoint(format!("http://127.0.0.1:{port}"))),
    ];
    ways.extend(tls.map(|(_, endpoint)| Way::new("TLS with certificates on both sides", endpoint)));
    let runtime = application_runtime();
    for _ in 0..ROUNDS {
        for way in &mut ways {
            runtime.block_on(way.measure());
        }
    }
    println!(
        "| | call, p50 \u{b5}s | p99 \u{b5}s | calls /s | lateness, p50 \u{b5}s | p99 \u{b5}s | executions in a burst /s |"
    );
    println!("|---|---|---|---|---|---|---|");
    ways.into_iter().for_each(Way::print);
}

impl Way {
    fn new(name: &'static str, endpoint: Endpoint) -> Self {
        let (calls, rates, lateness, bursts) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { name, endpoint, calls, rates, lateness, bursts }
    }

    async fn measure(&mut self) {
        let channel = self.endpoint.connect().await.expect("a sidecar that serves");
        for _ in 0..CALLS {
            let begin = Instant::now();
            call(&channel).await;
            self.calls.push(begin.elapsed());
        }
        let begin = Instant::now();
        let callers = (0..AT_ONCE).map(|_| calls_until(&channel, begin + CALLS_LAST));
        let count = join_all(callers).await.into_iter().sum();
        self.rates.push(rate(count, begin.elapsed()));
        let seen = load::run_on(Client::new(channel.clone()), FEW).await;
        let late = |received: u64, scheduled: u64| Duration::from_nanos(received.saturating_sub(scheduled));
        self.lateness.extend(seen.fired().map(|one| late(one.received, one.scheduled)));
        self.bursts.push(burst_rate(&load::run_on(Client::new(channel), MANY).await));
    }

    fn print(self) {
        let (calls, lateness) = (Sorted::new(self.calls), Sorted::new(self.lateness));
        let columns =
            |all: &Sorted| [50, 99].map(|percent| microseconds(all.percentile(percent))).join(" | ");
        let median = |mut rates: Vec<u64>| {
            rates.sort_unstable();
            rates.get(rates.len() / 2).copied().unwrap_or_default()
        };
        let (rates, bursts) = (median(self.rates), median(self.bursts));
        println!("| {} | {} | {rates} | {} | {bursts} |", self.name, columns(&calls), columns(&lateness));
    }
}

/// A call that does nothing: health.
async fn call(channel: &Channel) {
    let request = HealthCheckRequest { service: String::new() };
    HealthClient::new(channel.clone()).check(request).await.expect("an answer");
}

/// Calls one after the other until then. Returns how many.
async fn calls_until(channel: &Channel, until: Instant) -> usize {
    let mut count = 0;
    while Instant::now() < until {
        call(channel).await;
        count += 1;
    }
    count
}

/// Whether the program serves TLS; an earlier build that this one is compared with may not.
fn has_tls() -> bool {
    let help = Command::new(file()).args(["serve", "--help"]).output().expect("the program");
    String::from_utf8_lossy(&help.stdout).contains("--tls-cert")
}

/// The options of a sidecar that serves TLS at this port, and how a caller reaches it.
fn tls(folder: &TempDir, port: u16) -> (Vec<String>, Endpoint) {
    let authority = Authority::new(folder.path(), "authority");
    let server = authority.certify("sidecar", &["127.0.0.1"]);
    let caller = authority.certify("caller", &["caller.test"]);
    let options = vec![
        format!("--listen=https://127.0.0.1:{port}"),
        format!("--tls-cert={}", server.cert.display()),
        format!("--tls-key={}", server.key.display()),
        format!("--tls-client-ca={}", authority.ca().display()),
        "--tls-allow=caller.test".to_owned(),
    ];
    let read = |file| std::fs::read(file).expect("a file of the authority");
    let config = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(read(authority.ca())))
        .identity(Identity::from_pem(read(caller.cert), read(caller.key)));
    let endpoint = Endpoint::from_shared(format!("https://127.0.0.1:{port}")).expect("an endpoint");
    (options, endpoint.tls_config(config).expect("files of certificates"))
}

/// A port of the loopback interface that nothing has at this moment.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port()
}
