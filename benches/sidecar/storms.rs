//! What does it cost when a whole fleet does the same at once? All applications attach, a sidecar drains, ZooKeeper
//! restarts, all jobs fire at one instant; and what does a fleet cost that does nothing?

use std::time::Duration;

use jiff::{Timestamp, ToSpan, tz::TimeZone};

use crate::fleet::{Fleet, Size};
use crate::server;
use crate::statistics::{Sorted, milliseconds};
use crate::zookeeper::Server;

/// How long one storm may take.
const LIMIT: Duration = Duration::from_secs(150);
/// How long the fleet does nothing after each storm before it is measured: what follows a storm belongs to it.
const QUIET: Duration = Duration::from_secs(3);
/// The time without a storm in which requests and processor time are measured.
const IDLE: Duration = Duration::from_secs(20);

/// The environment variable with other sizes: sidecars, applications at each, jobs, items of each, the seconds over which
/// the attachments are spread, and the seconds until all jobs fire, like `5 10 40 100 20 75`.
const SIZE: &str = "BENCH_SIZE";

pub(crate) fn instances() {
    for spread in [0, 20] {
        run([5, 10, 40, 100, spread, 75]);
    }
}

pub(crate) fn many_jobs() {
    run([3, 1, 10_000, 1, 0, 150]);
}

/// Runs a fleet of these sizes, or of those that the environment names.
fn run(sizes: [u32; 6]) {
    let numbers = |text: String| -> Option<Vec<u32>> {
        text.split_whitespace().map(|number| number.parse().ok()).collect()
    };
    let chosen = std::env::var(SIZE).ok().and_then(numbers).and_then(|sizes| sizes.try_into().ok());
    let [sidecars, applications, jobs, items, spread, fire] = chosen.unwrap_or(sizes);
    let [sidecars, applications, jobs] =
        [sidecars, applications, jobs].map(|size| usize::try_from(size).unwrap_or(usize::MAX));
    let [spread, fire] = [spread, fire].map(|seconds| Duration::from_secs(seconds.into()));
    storms(Size { sidecars, applications, jobs, items, spread }, fire);
}

fn storms(size: Size, fire_after: Duration) {
    let mut server = server::start();
    let Size { sidecars, applications, jobs, items, spread } = size;
    println!("\n{sidecars} sidecars x {applications} applications x {jobs} jobs of {items} items\n");
    println!(
        "| | time, s | requests | requests per instance | moves per item | processor time of a sidecar, s | memory of a sidecar, MiB |"
    );
    println!("|---|---|---|---|---|---|---|");
    let fire = Timestamp::now() + fire_after.as_secs().cast_signed().seconds();
    let fire_at = fire.to_zoned(TimeZone::system());
    let cron = fire_at.strftime("%-S %-M %-H %-d %-m ? %Y").to_string();
    let start = server::requests(&server);
    let mut fleet = Fleet::start(size, &server.address(), &[], &cron);
    let settled = fleet.settle(size.instances(), LIMIT);
    fleet.run(QUIET);
    row(
        &format!("all attach within {} s", spread.as_secs()),
        &fleet,
        settled,
        server::requests(&server) - start,
        Duration::ZERO,
    );
    idle(&mut fleet, &server);
    wait_for(&fleet, fire - 5.seconds());
    fires(&mut fleet, &server);
    restarts(&mut fleet, &mut server);
    drains(&mut fleet, &server);
    println!("\n- watches of the server: {}", server::statistic(&server, "zk_watch_count"));
}

fn row(what: &str, fleet: &Fleet, time: Option<Duration>, requests: u64, cpu_before: Duration) {
    let time = time.map_or_else(|| "not".to_owned(), |time| format!("{:.1}", time.as_secs_f64()));
    let per =
        |number: f64, of: usize| format!("{:.2}", number / of.to_string().parse::<f64>().unwrap_or(1.0));
    let number = |count: u64| count.to_string().parse::<f64>().unwrap_or_default();
    let items = fleet.size.jobs * usize::try_from(fleet.size.items).unwrap_or(usize::MAX);
    let (cpu, memory) = fleet.costs();
    println!(
        "| {what} | {time} | {requests} | {} | {} | {:.2} | {memory} |",
        per(number(requests), fleet.size.instances()),
        per(number(u64::try_from(fleet.moves()).unwrap_or_default()), items),
        cpu.saturating_sub(cpu_before).as_secs_f64(),
    );
}

fn wait_for(fleet: &Fleet, until: Timestamp) {
    let left = until.duration_since(Timestamp::now());
    fleet.run(Duration::try_from(left).unwrap_or_default());
}

fn idle(fleet: &mut Fleet, server: &Server) {
    fleet.begin();
    let (requests, cpu) = (server::requests(server), fleet.costs().0);
    fleet.run(IDLE);
    row("nothing happens", fleet, Some(IDLE), server::requests(server) - requests, cpu);
}

fn fires(fleet: &mut Fleet, server: &Server) {
    fleet.begin();
    let (requests, cpu) = (server::requests(server), fleet.costs().0);
    let count = fleet.size.jobs * usize::try_from(fleet.size.items).unwrap_or(usize::MAX);
    let late = Sorted::new(fleet.executions(count, LIMIT));
    fleet.run(QUIET);
    row(
        "all jobs fire at one instant",
        fleet,
        Some(late.percentile(100)),
        server::requests(server) - requests,
        cpu,
    );
    println!(
        "| of {count} executions, {} were received, p50 {} ms | | | | | | |",
        late.len(),
        milliseconds(late.percentile(50))
    );
}

fn restarts(fleet: &mut Fleet, server: &mut Server) {
    fleet.begin();
    let cpu = fleet.costs().0;
    server.stop();
    while fleet.suspended() < fleet.size.instances() {
        fleet.run(Duration::from_millis(50));
    }
    fleet.run(Duration::from_secs(1));
    server.start_again();
    let began = std::time::Instant::now();
    let lost = fleet.resume(LIMIT);
    let resumed = lost.map(|_| began.elapsed());
    fleet.run(QUIET);
    row("ZooKeeper restarts", fleet, resumed, server::requests(server), cpu);
    println!("| sessions lost, by stream: {} | | | | | | |", lost.unwrap_or_default());
}

fn drains(fleet: &mut Fleet, server: &Server) {
    fleet.begin();
    let (requests, cpu) = (server::requests(server), fleet.costs().0);
    fleet.drain(0);
    let left = fleet.size.instances() / fleet.size.sidecars * (fleet.size.sidecars - 1);
    let settled = fleet.settle(left, LIMIT);
    fleet.run(QUIET);
    row("a sidecar drains", fleet, settled, server::requests(server) - requests, cpu);
}
