//! How fast are locks? Sidecars, as an application sees them, beside Curator, kazoo and go-zookeeper, and beside the bare
//! requests of a lock: on one server, in rounds in which they take turns.

use std::path::PathBuf;
use std::process::Command;

use sidekeeper::registry::Registry;
use sidekeeper::tree::{NodeKind, Path};

use crate::contenders::{Contenders, Grant};
use crate::host::application_runtime;
use crate::program::Program;
use crate::server;
use crate::statistics::{Sorted, microseconds, rate};
use crate::zookeeper::Server;

/// Rounds that count, the pairs of an acquisition and a release in each, and the hand-overs in each. `BENCH_ROUNDS`,
/// `BENCH_PAIRS` and `BENCH_HAND_OVERS` change them.
const ROUNDS: usize = 5;
const PAIRS: usize = 1_200;
const HAND_OVERS: usize = 600;
/// The first ones of each turn do not count: other programs had the processor before.
const FIRST: usize = 100;
/// Contenders in a queue, and in how many sessions they are.
const QUEUES: [(usize, usize); 4] = [(10, 1), (100, 1), (10, 2), (100, 2)];
/// Sidecars: sessions of their contenders.
const SIDECARS: usize = 2;
/// The node above the nodes of all locks.
const ROOT: &str = "bench-locks";

/// A library, and the program that uses it.
struct Library {
    name: &'static str,
    /// The names of its locks.
    locks: &'static str,
    /// Whether its locks are below the sidecars' root of locks.
    is_ours: bool,
    /// Whether it contends in queues.
    has_queues: bool,
    /// Whether the call to its sidecar is measured.
    has_hops: bool,
    contenders: Contenders,
    pairs: Vec<Pairs>,
    hand_overs: [Vec<HandOvers>; QUEUES.len()],
    hops: Vec<Sorted>,
}

/// One round of a lock that nobody else wants. `requests`: those that the server got, for 100 pairs.
struct Pairs {
    acquired: Sorted,
    released: Sorted,
    both: Sorted,
    per_second: u64,
    requests: u64,
}

/// One round of a queue. `requests`: those that the server got, for 100 grants.
struct HandOvers {
    taken: Sorted,
    per_second: u64,
    requests: u64,
}

pub(crate) fn on_zookeeper() {
    let server = server::start();
    let root = format!("--lock-root=/{ROOT}/names");
    let sidecars = [(); SIDECARS].map(|()| Program::start(Some(&server.address()), &[&root]));
    let endpoints = sidecars.each_ref().map(Program::endpoint);
    let mut libraries = libraries(&server.address(), &endpoints);
    application_runtime().block_on(create_parents(&server, &libraries));
    let [rounds, pairs, hand_overs] =
        [("BENCH_ROUNDS", ROUNDS), ("BENCH_PAIRS", PAIRS), ("BENCH_HAND_OVERS", HAND_OVERS)].map(setting);
    println!(
        "- {rounds} rounds after one that does not count; in each {pairs} pairs and {hand_overs} hand-overs"
    );
    for round in 0..=rounds {
        // Another library begins each round.
        libraries.rotate_left(1);
        each(&mut libraries, |library| library.measure_pairs(&server, pairs));
        each(&mut libraries, |library| library.measure_hops(pairs));
        for (place, queue) in QUEUES.into_iter().enumerate() {
            each(&mut libraries, |library| library.measure_queue(&server, place, queue, hand_overs));
        }
        if round == 0 {
            each(&mut libraries, Library::forget);
        }
    }
    let turned = (rounds + 1) % libraries.len();
    libraries.rotate_right(turned);
    print(&libraries);
}

fn each(libraries: &mut [Library], measure: impl FnMut(&mut Library)) {
    libraries.iter_mut().for_each(measure);
}

/// A number of the environment, or the usual one.
fn setting((name, usual): (&str, usize)) -> usize {
    let given = std::env::var(name).ok().filter(|given| !given.is_empty());
    given.map_or(usual, |given| given.parse().expect("a number"))
}

fn libraries(zookeeper: &str, endpoints: &[String]) -> Vec<Library> {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let tools = here.join(".tools");
    let zookeeper = [zookeeper.to_owned()];
    let go = |library: &str, addresses: &[String]| {
        Contenders::start(Command::new(tools.join("locks/contenders")).arg(library).args(addresses))
    };
    let python = |library: &str, addresses: &[String]| {
        let program = here.join("benches/locks/contenders.py");
        Contenders::start(
            Command::new(tools.join("venv/bin/python")).arg(program).arg(library).args(addresses),
        )
    };
    let java = || {
        let classes = format!("{0}/classes:{0}/jars/*", tools.join("locks").display());
        let options = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", &classes, "Contenders"];
        Contenders::start(Command::new("java").args(options).args(&zookeeper))
    };
    let library = |name, locks, contenders| Library {
        name,
        locks,
        is_ours: false,
        has_queues: true,
        has_hops: false,
        contenders,
        pairs: Vec::new(),
        hand_overs: Default::default(),
        hops: Vec::new(),
    };
    let ours = |name, locks, contenders| Library { is_ours: true, ..library(name, locks, contenders) };
    vec![
        library("bare requests, Go", "requests", go("requests", &zookeeper)),
        Library {
            has_hops: true,
            ..ours("**sidecar**, Go, connection open", "stubs", go("stubs", endpoints))
        },
        Library {
            has_queues: false,
            ..library("**sidecar**, Go, connection open, `path`", "path", go("path", endpoints))
        },
        ours("**sidecar**, Go client", "client", go("sidekeeper", endpoints)),
        Library {
            has_hops: true,
            ..ours("**sidecar**, Python client", "python", python("sidekeeper", endpoints))
        },
        library("Curator, Java", "curator", java()),
        library("go-zookeeper", "go-zookeeper", go("go-zookeeper", &zookeeper)),
        library("kazoo, Python", "kazoo", python("kazoo", &zookeeper)),
    ]
}

/// Creates the nodes of all locks. They are persistent: containers, which some of the libraries create, are deleted when
/// they are empty, and this server looks for them often.
async fn create_parents(server: &Server, libraries: &[Library]) {
    let session = server::registry(server).open().await.expect("a session");
    let root = Path::root().child(ROOT);
    for library in libraries {
        let parent = if library.is_ours { root.child("names") } else { root.clone() };
        for lock in ["pairs", "queue"] {
            let lock = parent.child(&format!("{}-{lock}", library.locks));
            session.ensure(&lock, NodeKind::Persistent, b"").await.expect("the node of a lock");
        }
    }
    session.close().await;
}

impl Library {
    fn measure_pairs(&mut self, server: &Server, count: usize) {
        let before = server::requests(server);
        let (mut acquired, mut released) = self.contenders.pairs(FIRST + count);
        let requests = (server::requests(server) - before) * 100 / number(acquired.len());
        acquired.drain(..FIRST);
        released.drain(..FIRST);
        let both: Vec<_> = acquired.iter().zip(&released).map(|(one, other)| *one + *other).collect();
        let per_second = rate(count, both.iter().sum());
        let [acquired, released, both] = [acquired, released, both].map(Sorted::new);
        self.pairs.push(Pairs { acquired, released, both, per_second, requests });
    }

    fn measure_hops(&mut self, count: usize) {
        if self.has_hops {
            let mut taken = self.contenders.hops(FIRST + count);
            taken.drain(..FIRST);
            self.hops.push(Sorted::new(taken));
        }
    }

    fn measure_queue(&mut self, server: &Server, place: usize, queue: (usize, usize), count: usize) {
        if !self.has_queues {
            return;
        }
        let (contenders, sessions) = queue;
        let first = FIRST.max(contenders);
        let before = server::requests(server);
        let grants = self.contenders.queue(contenders, sessions, first + count + 1);
        let requests = (server::requests(server) - before) * 100 / number(grants.len());
        // Later ones are of a queue that becomes shorter.
        let counted: Vec<_> = grants.into_iter().skip(first).take(count + 1).collect();
        let handed: Vec<_> = counted.iter().zip(counted.iter().skip(1)).collect();
        let taken = handed.iter().map(|(from, to)| to.held.saturating_sub(from.released)).collect();
        let time = |grant: Option<&Grant>| grant.map(|grant| grant.held).unwrap_or_default();
        let per_second = rate(handed.len(), time(counted.last()).saturating_sub(time(counted.first())));
        if let Some(rounds) = self.hand_overs.get_mut(place) {
            rounds.push(HandOvers { taken: Sorted::new(taken), per_second, requests });
        }
    }

    /// Forgets the rounds up to now.
    fn forget(&mut self) {
        self.pairs.clear();
        self.hops.clear();
        self.hand_overs.iter_mut().for_each(Vec::clear);
    }
}

fn print(libraries: &[Library]) {
    println!(
        "\nMicroseconds, and requests to ZooKeeper: the median of the rounds, and in brackets the least and the most.\n"
    );
    println!(
        "| one contender | pairs /s | acquire, p50 | p99 | release, p50 | p99 | both, p50 | p99 | requests |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for library in libraries {
        let columns = [
            counts(&library.pairs, |round| round.per_second),
            percentiles(&library.pairs, |round| &round.acquired),
            percentiles(&library.pairs, |round| &round.released),
            percentiles(&library.pairs, |round| &round.both),
            hundredths(&library.pairs, |round| round.requests),
        ];
        println!("| {} | {} |", library.name, columns.join(" | "));
    }
    println!("\n| a call that the sidecar answers without ZooKeeper | p50 | p99 |\n|---|---|---|");
    for library in libraries.iter().filter(|library| library.has_hops) {
        println!("| {} | {} |", library.name, percentiles(&library.hops, |round| round));
    }
    for (place, (contenders, sessions)) in QUEUES.into_iter().enumerate() {
        let sessions = if sessions == 1 { "one session" } else { "two sessions in turn" };
        println!(
            "\n| hand-over, {contenders} contenders, {sessions} | p50 | p99 | grants /s | requests |\n|---|---|---|---|---|"
        );
        for library in libraries.iter().filter(|library| library.has_queues) {
            let rounds = library.hand_overs.get(place).map(Vec::as_slice).unwrap_or_default();
            let columns = [
                percentiles(rounds, |round| &round.taken),
                counts(rounds, |round| round.per_second),
                hundredths(rounds, |round| round.requests),
            ];
            println!("| {} | {} |", library.name, columns.join(" | "));
        }
    }
}

/// The columns of a half of all durations, and of all but one in a hundred.
fn percentiles<T>(rounds: &[T], of: impl Fn(&T) -> &Sorted) -> String {
    let column = |percent| {
        let durations = rounds.iter().map(|round| of(round).percentile(percent)).collect();
        spread(durations, microseconds)
    };
    format!("{} | {}", column(50), column(99))
}

fn counts<T>(rounds: &[T], of: impl Fn(&T) -> u64) -> String {
    spread(rounds.iter().map(of).collect(), |count| count.to_string())
}

/// The median of numbers that are a hundred times as large as they are meant.
fn hundredths<T>(rounds: &[T], of: impl Fn(&T) -> u64) -> String {
    let mut values: Vec<_> = rounds.iter().map(of).collect();
    values.sort_unstable();
    let median = values.get(values.len() / 2).copied().unwrap_or_default();
    format!("{}.{:02}", median / 100, median % 100)
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// The median of the rounds' values, and the least and the most of them.
fn spread<T: Ord + Copy + Default>(mut values: Vec<T>, text: impl Fn(T) -> String) -> String {
    values.sort_unstable();
    let [least, median, most] = [0, values.len() / 2, values.len().saturating_sub(1)]
        .map(|place| values.get(place).copied().unwrap_or_default());
    format!("{} ({}–{})", text(median), text(least), text(most))
}
