//! What does each thing cost an ensemble: a sidecar, an instance, a job, an item? Counts, not times. In each table one of the
//! four grows and the others stay, and each count gets the line that fits: the laws of `docs/scale.md`.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use jiff::{Timestamp, ToSpan, tz::TimeZone};

use crate::fleet::{Fleet, Size};
use crate::program::Program;
use crate::server;
use crate::statistics::Line;
use crate::zookeeper::Server;

/// How long one change of the fleet may take.
const LIMIT: Duration = Duration::from_secs(60);
/// How long the fleet does nothing after each change before it is measured: what follows a change belongs to it.
const QUIET: Duration = Duration::from_secs(3);
/// After how long all jobs fire, and then a year later. The fleet has settled before.
const FIRE: i64 = 20;
/// The time without a change in which requests are counted: an idle minute costs twice as many.
const IDLE: Duration = Duration::from_secs(30);

/// The environment variable with one fleet to measure in place of the tables: sidecars, instances of a job at each, jobs, and
/// items of each, like `6 3 30 40`.
const SIZE: &str = "BENCH_SIZE";

/// What grows in a table, its place among the sizes, and the sizes of the three fleets.
type Table = (&'static str, usize, [[u32; 4]; 3]);

const TABLES: [Table; 4] = [
    ("sidecars", 0, [[10, 1, 1, 360], [30, 1, 1, 360], [90, 1, 1, 360]]),
    ("instances of the job at each of 4 sidecars", 1, [[4, 2, 1, 144], [4, 6, 1, 144], [4, 18, 1, 144]]),
    ("jobs", 2, [[4, 1, 20, 12], [4, 1, 60, 12], [4, 1, 180, 12]]),
    ("items", 3, [[4, 1, 1, 200], [4, 1, 1, 600], [4, 1, 1, 1800]]),
];

/// The counts in the order in which they are printed. The requests of a change are those beyond an idle fleet's.
const COUNTS: [&str; 19] = [
    "znodes",
    "ephemeral znodes",
    "watches",
    "paths and data, bytes",
    "snapshot, bytes",
    "heap of the server, KiB",
    "memory of a sidecar, KiB",
    "an idle minute: requests",
    "a fire of all: requests",
    "a fire of all: events",
    "a sidecar joins: requests",
    "a sidecar joins: events",
    "a sidecar joins: moves",
    "a sidecar leaves: requests",
    "a sidecar leaves: events",
    "a sidecar leaves: moves",
    "the leader leaves: requests",
    "the leader leaves: events",
    "all attach: requests",
];

pub(crate) fn on_zookeeper() {
    let chosen = std::env::var(SIZE).unwrap_or_default();
    let chosen: Vec<u32> = chosen.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    if let Ok(sizes) = chosen.try_into() {
        let counts = measure(sizes);
        println!("\n| sidecars, instances at each, jobs, items: | {sizes:?} |\n|---|---|");
        for (name, count) in COUNTS.iter().zip(counts) {
            println!("| {name} | {count:.0} |");
        }
        return;
    }
    for (name, place, fleets) in TABLES {
        let counts = fleets.map(measure);
        let grown = fleets.map(|sizes| f64::from(sizes.get(place).copied().unwrap_or_default()));
        let [first, second, third] = grown;
        println!(
            "\n| {name}: | {first} | {second} | {third} | law | off by at most |\n|---|---|---|---|---|---|"
        );
        for (row, name) in COUNTS.iter().enumerate() {
            let values = counts.map(|counts| counts.get(row).copied().unwrap_or_default());
            let points: Vec<_> = grown.into_iter().zip(values).collect();
            let Line { start, slope, deviation } = Line::through(&points);
            let [first, second, third] = values;
            println!(
                "| {name} | {first:.0} | {second:.0} | {third:.0} | {start:.1} + {slope:.2} n | {:.0} % |",
                deviation * 100.0
            );
        }
    }
}

/// The counts of one fleet, in the order of [`COUNTS`].
fn measure([sidecars, applications, jobs, items]: [u32; 4]) -> [f64; COUNTS.len()] {
    let mut server = server::start();
    let [sidecars, applications, jobs] = [sidecars, applications, jobs].map(whole);
    let size = Size { sidecars, applications, jobs, items, spread: Duration::ZERO };
    let fire = Timestamp::now() + FIRE.seconds();
    let cron = fire.to_zoned(TimeZone::system()).strftime("%-S %-M %-H %-d %-m ?").to_string();
    let before = Packets::of(&server);
    let mut fleet = Fleet::start(size, &server.address(), &[], &cron);
    settle(&mut fleet, sidecars);
    assert!(Timestamp::now() < fire, "the fleet settled after the fire");
    let attach = before.since(&server);

    let before = Packets::of(&server);
    let executions = jobs * whole(items);
    assert_eq!(fleet.executions(executions, LIMIT).len(), executions, "executions of the fire");
    fleet.run(QUIET);
    let fired = before.since(&server);

    let before = Packets::of(&server);
    fleet.run(IDLE);
    let idle = before.since(&server);
    let names = ["zk_znode_count", "zk_ephemerals_count", "zk_watch_count", "zk_approximate_data_size"];
    let [znodes, ephemerals, watches, data] = server::statistics(&server, names).map(number);
    let heap = heap_kib(&server);
    let memory = fleet.programs.iter().flatten().map(Program::resident).max().unwrap_or_default();
    let snapshot = restart(&mut fleet, &mut server);

    fleet.begin();
    let before = Packets::of(&server);
    let newcomer = fleet.join(&server.address(), &cron);
    settle(&mut fleet, sidecars + 1);
    let (join, joined) = (before.since(&server), fleet.moves());

    fleet.begin();
    let before = Packets::of(&server);
    fleet.drain(newcomer);
    settle(&mut fleet, sidecars);
    let (leave, left) = (before.since(&server), fleet.moves());

    let before = Packets::of(&server);
    let leader = fleet.leader(0).expect("a leader");
    fleet.drain(leader);
    settle(&mut fleet, sidecars - 1);
    let lead = before.since(&server);

    [
        znodes,
        ephemerals,
        watches,
        data,
        snapshot,
        heap,
        number(memory),
        2.0 * idle.requests,
        fired.beyond(&idle),
        fired.events,
        join.beyond(&idle),
        join.events,
        number(joined),
        leave.beyond(&idle),
        leave.events,
        number(left),
        lead.beyond(&idle),
        lead.events,
        attach.beyond(&idle),
    ]
}

/// Runs the applications until each item has one owner among the instances of so many sidecars, and nothing follows.
fn settle(fleet: &mut Fleet, sidecars: usize) {
    let instances = sidecars * fleet.size.applications * fleet.size.jobs;
    fleet.settle(instances, LIMIT).expect("the fleet to settle");
    fleet.run(QUIET);
}

/// The packets of a server since its start, at a moment.
struct Packets {
    received: u64,
    sent: u64,
    at: Instant,
}

/// What a server got and sent during a change.
struct Cost {
    requests: f64,
    /// Packets that answer no request: the events of watches.
    events: f64,
    time: Duration,
}

impl Packets {
    fn of(server: &Server) -> Self {
        let [received, sent] = server::statistics(server, ["zk_packets_received", "zk_packets_sent"]);
        Self { received, sent, at: Instant::now() }
    }

    fn since(&self, server: &Server) -> Cost {
        let now = Self::of(server);
        // The question for the numbers is a request too.
        let requests = (now.received - self.received).saturating_sub(1);
        let events = number((now.sent - self.sent).saturating_sub(requests));
        Cost { requests: number(requests), events, time: now.at - self.at }
    }
}

impl Cost {
    /// The requests that an idle fleet would not have sent in the same time.
    fn beyond(&self, idle: &Self) -> f64 {
        self.requests - idle.requests * self.time.as_secs_f64() / idle.time.as_secs_f64()
    }
}

/// The live bytes of the server's heap: the last line of the JVM's list of classes, which it makes after a full collection.
fn heap_kib(server: &Server) -> f64 {
    let output = Command::new("jcmd").args([&server.process().to_string(), "GC.class_histogram"]).output();
    let output = String::from_utf8(output.expect("the JDK's jcmd").stdout).unwrap_or_default();
    let total = output.lines().rev().find_map(|line| line.strip_prefix("Total")?.split_whitespace().nth(1));
    number(total.and_then(|bytes| bytes.parse::<u64>().ok()).expect("the total") / 1024)
}

/// Restarts the server, and returns the size of the snapshot that it writes then.
fn restart(fleet: &mut Fleet, server: &mut Server) -> f64 {
    server.stop();
    while fleet.suspended() < fleet.size.instances() {
        fleet.run(Duration::from_millis(50));
    }
    server.start_again();
    assert_eq!(fleet.resume(LIMIT), Some(0), "lost sessions");
    fleet.run(QUIET);
    let files = fs::read_dir(server.data()).expect("the server's data").flatten();
    let snapshots = files.filter(|file| file.file_name().to_string_lossy().starts_with("snapshot."));
    let sizes = snapshots.filter_map(|file| file.metadata().ok()).map(|metadata| metadata.len());
    // The first one is of an empty server.
    number(sizes.max().expect("a snapshot"))
}

fn whole(size: u32) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

fn number(count: impl TryInto<u32>) -> f64 {
    f64::from(count.try_into().unwrap_or(u32::MAX))
}
