//! The model against the transaction logs of the real ElasticJob 3.0.5 (appendix A of the notes on its protocol): each
//! trace is a scenario, and the model's writes in it are compared with it: which session, which kind of write, which
//! path, which data, in which order.
//!
//! Writes that always come in one order have to with every seed; a race in the trace has to be one of the orders
//! that the scheduler finds. Differences that are none of the model's:
//! - The embedded registry removes an empty container at once, ZooKeeper within a minute; so a latch's folder is made
//!   again here where the trace found it there. Only A.1 looks at containers.
//! - The traces shorten the ids to A and B; so do these.

use std::collections::BTreeSet;

use futures::FutureExt;
use sidekeeper::registry::Registry;
use sidekeeper::tree::{NodeKind, Operation};

use super::Options;
use super::fleet::{Fleet, job, options};
use super::yaml::Config;

const SEEDS: u64 = 20;

/// As in the traces, two processes on one machine; B comes after A.
fn process(number: u32, configuration: Config, seed: u64) -> Options {
    let mut options = options(number, configuration, seed);
    (options.ip, options.pid) = ("10.0.0.1".to_owned(), 4_710 + number);
    options
}

fn fleet_of(seed: u64, configuration: &Config, processes: u32) -> Fleet {
    let mut fleet = Fleet::new(seed);
    for number in 1..=processes {
        fleet.start_with(process(number, configuration.clone(), seed));
        fleet.run_for(400);
    }
    fleet
}

/// The writes since the last look, ids shortened, without the containers.
fn trace(fleet: &mut Fleet) -> Vec<String> {
    let lines = fleet.trace().into_iter().filter(|line| !line.contains(": create C "));
    let short = |line: String| {
        line.replace("10.0.0.1@-@4711", "A").replace("10.0.0.1@-@4712", "B").replace("10.0.0.1", "ip")
    };
    lines.map(short).collect()
}

fn assert_trace(seed: u64, found: &[String], expected: &[&str]) {
    assert_eq!(found, expected, "seed {seed}:\n{}", found.join("\n"));
}

/// Whether these writes come in this order, among others.
fn has_in_order(found: &[String], expected: &[&str]) -> bool {
    let mut rest = found.iter();
    expected.iter().all(|line| rest.any(|found| found == line))
}

#[test]
fn a1_the_first_instance() {
    let expected = [
        "A: create C /ns",
        "A: create P root",
        "A: create P config (275 bytes)",
        "A: multi[check root; set root = com.example.OrderJob]",
        "A: create C leader",
        "A: create C leader/election",
        "A: create C leader/election/latch",
        "A: create ES leader/election/latch/_c_",
        "A: create E leader/election/instance = A",
        "A: delete leader/election/latch/_c_",
        "A: create P servers",
        "A: create P servers/10.0.0.1 = ENABLED",
        "A: create P instances",
        "A: create E instances/A (50 bytes)",
        "A: create P leader/sharding",
        "A: create P leader/sharding/necessary",
        "A: create E leader/sharding/processing",
        "A: create P sharding",
        "A: create P sharding/0",
        "A: create P sharding/1",
        "A: create P sharding/2",
        "A: multi[check /ns; create P sharding/0/instance = A; create P sharding/1/instance = A; \
         create P sharding/2/instance = A; delete leader/sharding/necessary; \
         delete leader/sharding/processing]",
        "A: create E sharding/0/running = A",
        "A: create E sharding/1/running = A",
        "A: create E sharding/2/running = A",
        "A: delete sharding/0/running",
        "A: delete sharding/1/running",
        "A: delete sharding/2/running",
    ];
    let mut exact = 0;
    for seed in 0..SEEDS {
        let mut fleet = fleet_of(seed, &job(3, "0/5 * * * * ?", false), 1);
        fleet.run_for(6_500);
        let found: Vec<_> =
            fleet.trace().into_iter().map(|line| line.replace("10.0.0.1@-@4711", "A")).collect();
        exact += u32::from(found == expected);
        // The listener's thread sees the server's node, and may be quicker than the main thread's last two writes.
        let of_listener = |line: &&str| line.contains("create P leader/sharding");
        let both = |lines: &[&str]| -> (Vec<String>, Vec<String>) {
            let (listener, others): (Vec<_>, Vec<_>) = lines.iter().partition(|line| of_listener(line));
            let owned = |lines: Vec<&&str>| lines.into_iter().map(|line| (*line).to_owned()).collect();
            (owned(listener), owned(others))
        };
        let lines: Vec<_> = found.iter().map(|line| &**line).collect();
        assert_eq!(both(&lines), both(&expected), "seed {seed}:\n{}", found.join("\n"));
    }
    assert!(exact > 0);
    println!("A.1: exactly with {exact} of {SEEDS} seeds");
}

#[test]
fn a2_a_second_instance_joins() {
    let mut orders = BTreeSet::new();
    for seed in 0..SEEDS {
        let mut fleet = fleet_of(seed, &job(3, "0/5 * * * * ?", false), 1);
        fleet.run_to(7_000);
        fleet.trace();
        fleet.start_with(process(2, job(3, "0/5 * * * * ?", false), seed));
        fleet.run_to(9_500);
        let joined = trace(&mut fleet);
        // The leader sees the server's node first, and may be quicker than the joiner.
        let (flags, others): (Vec<_>, Vec<_>) =
            joined.iter().cloned().partition(|line| line.starts_with("A"));
        assert_trace(seed, &flags, &["A: create P leader/sharding/necessary"]);
        assert_trace(
            seed,
            &others,
            &[
                "B: create ES leader/election/latch/_c_",
                "B: delete leader/election/latch/_c_",
                "B: multi[check servers/ip; set servers/ip = ENABLED]",
                "B: create E instances/B (50 bytes)",
            ],
        );
        orders.insert(joined);
        fleet.run_to(10_090);
        let divided: Vec<_> =
            trace(&mut fleet).into_iter().take_while(|line| !line.contains("running")).collect();
        assert_trace(
            seed,
            &divided,
            &[
                "A: create E leader/sharding/processing",
                "A: delete sharding/0/instance",
                "A: delete sharding/1/instance",
                "A: delete sharding/2/instance",
                "A: multi[check /ns; create P sharding/0/instance = B; create P sharding/2/instance = B; \
                 create P sharding/1/instance = A; delete leader/sharding/necessary; \
                 delete leader/sharding/processing]",
            ],
        );
    }
    assert!(orders.iter().any(|order| order.last().is_some_and(|line| line.starts_with("A"))), "{orders:?}");
}

#[test]
fn a3_a_crash_with_failover() {
    let (mut exact, mut last) = (0, String::new());
    for seed in 0..SEEDS {
        let mut fleet = fleet_of(seed, &job(4, "0/5 * * * * ?", true), 2);
        fleet.run_to(9_000);
        fleet.javas.iter().for_each(|java| java.set_duration(5_800, 5_800));
        fleet.run_to(12_000);
        fleet.javas[1].set_duration(100, 100);
        fleet.javas[0].kill();
        fleet.run_to(13_500);
        fleet.trace();
        // A's session ends at 14.0, B's run at 15.8; the fire at 15 is missed.
        fleet.run_to(19_500);
        let found = trace(&mut fleet);
        let taken = |item: u32| {
            [
                "B: create ES leader/failover/latch/_c_".to_owned(),
                format!("B: create E sharding/{item}/failover = B"),
                format!("B: create P sharding/{item}/failovering = B"),
                format!("B: delete leader/failover/items/{item}"),
                "B: delete leader/failover/latch/_c_".to_owned(),
                format!("B: create P sharding/{item}/running = B"),
                format!("B: delete sharding/{item}/running"),
                format!("B: delete sharding/{item}/failover"),
                format!("B: delete sharding/{item}/failovering"),
            ]
        };
        let mut expected: Vec<_> = [
            "B: create ES leader/election/latch/_c_",
            "B: create E leader/election/instance = B",
            "B: delete leader/election/latch/_c_",
            "B: create P leader/sharding/necessary",
            "B: create P leader/failover",
            "B: create P leader/failover/items",
            "B: create P leader/failover/items/2",
            "B: delete sharding/2/running",
            "B: create P leader/failover/items/3",
            "B: delete sharding/3/running",
            // Not in the summary of the trace: the event that the leader is gone comes after B has become it, and is
            // one
            // more election, which finds a leader.
            "B: create ES leader/election/latch/_c_",
            "B: delete leader/election/latch/_c_",
            "B: delete sharding/0/running",
            "B: delete sharding/1/running",
        ]
        .map(str::to_owned)
        .to_vec();
        expected.extend(taken(3));
        expected.extend(taken(2));
        let (flags, others): (Vec<_>, Vec<_>) =
            found.iter().cloned().partition(|line| line.contains("misfire"));
        assert_trace(seed, &flags, &["B: create P sharding/0/misfire", "B: create P sharding/1/misfire"]);
        exact += u32::from(others == expected);
        last = others.join("\n");
        // The scheduler may only change which of the two nodes is deleted first when A's session ends.
        let starts = others.iter().position(|line| line == "B: delete sharding/0/running").unwrap();
        let from = expected.iter().position(|line| line == "B: delete sharding/0/running").unwrap();
        assert_eq!(others[starts..], expected[from..], "seed {seed}:\n{}", found.join("\n"));
        fleet.run_to(20_900);
        let next = trace(&mut fleet);
        assert_eq!(next[0], "B: create E leader/sharding/processing", "seed {seed}");
        let marks = next.iter().filter(|line| line.contains("running") || line.contains("misfire"));
        let (all, twice): (Vec<_>, Vec<_>) =
            (0..4).map(|item| (format!("B: create P sharding/{item}/running = B"), item)).unzip();
        let gone: Vec<_> =
            twice.iter().map(|item: &u32| format!("B: delete sharding/{item}/running")).collect();
        let flags = [0, 1].map(|item| format!("B: delete sharding/{item}/misfire"));
        let runs: Vec<_> = all.iter().chain(&gone).chain(&flags).chain(&all).chain(&gone).collect();
        assert_eq!(marks.collect::<Vec<_>>(), runs, "seed {seed}");
    }
    assert!(exact > 0, "{last}");
    println!("A.3: exactly with {exact} of {SEEDS} seeds");
}

#[test]
fn a4_a_session_expires_while_the_process_is_frozen() {
    let mut exact = Vec::new();
    for seed in 0..200 {
        let mut fleet = fleet_of(seed, &job(2, "0/2 * * * * ?", false), 1);
        fleet.run_to(5_000);
        fleet.javas[0].freeze(7_000);
        fleet.run_to(11_900);
        fleet.trace();
        fleet.run_to(13_900);
        let found: Vec<_> = trace(&mut fleet).into_iter().map(|line| line.replace("B: ", "new: ")).collect();
        let expected = [
            "?: multi[check servers/ip; set servers/ip = ENABLED]",
            "?: create E instances/A (50 bytes)",
            "?: create P sharding/0/misfire",
            "?: create P sharding/1/misfire",
            "?: create ES leader/election/latch/_c_",
            "?: create E leader/election/instance = A",
            "?: delete leader/election/latch/_c_",
            "?: create P leader/sharding/necessary",
        ]
        .map(|line| line.replace("?:", "A:"));
        if found == expected {
            exact.push(seed);
        }
        let of = |name: &str| found.iter().any(|line| line.contains(name));
        assert!(of("instances/A") && of("election/instance = A"), "seed {seed}:\n{}", found.join("\n"));
    }
    assert!(!exact.is_empty());
    println!("A.4: exactly with {} of 200 seeds", exact.len());
}

#[test]
fn a5_a_server_restarts_within_a_second_during_a_run() {
    let mut twice = Vec::new();
    for seed in 0..200 {
        let mut fleet = fleet_of(seed, &job(4, "0/5 * * * * ?", true), 2);
        fleet.run_to(9_000);
        fleet.javas[0].set_duration(2_500, 2_500);
        fleet.javas[1].set_duration(4_800, 4_800);
        fleet.run_to(11_000);
        fleet.trace();
        let mut random = crate::random::Random::new(seed);
        fleet.javas.iter_mut().for_each(|java| java.lose_connection(1_000, &mut random));
        fleet.run_to(14_500);
        let found = trace(&mut fleet);
        let reconnected = |me: &str, items: [u32; 2]| {
            let [first, second] = items;
            vec![
                format!("{me}: multi[check servers/ip; set servers/ip = ENABLED]"),
                format!("{me}: delete instances/{me}"),
                format!("{me}: create E instances/{me} (50 bytes)"),
                format!("{me}: delete sharding/{first}/running"),
                format!("{me}: delete sharding/{second}/running"),
            ]
        };
        for (me, items) in [("A", [2, 3]), ("B", [0, 1])] {
            let expected = reconnected(me, items);
            let expected: Vec<_> = expected.iter().map(|line| &**line).collect();
            // Some are taken for crashed by the other one, which then deletes their running nodes.
            assert!(has_in_order(&found, &expected[..3]), "seed {seed}:\n{}", found.join("\n"));
        }
        assert!(found.contains(&"A: create P leader/sharding/necessary".to_owned()), "seed {seed}");
        let a: Vec<_> = reconnected("A", [2, 3]);
        let a: Vec<_> = a.iter().map(|line| &**line).collect();
        let flags = |line: &String| {
            *line == "A: create P leader/failover/items/1" || *line == "A: create P leader/failover/items/0"
        };
        if has_in_order(&found, &a) && found.iter().any(flags) {
            let (mine, others) = (fleet.javas[0].runs(), fleet.javas[1].runs());
            let after =
                |one: &super::Run, other: &super::Run| other.ended.is_none_or(|ended| one.began < ended);
            let overlap = mine.iter().any(|mine| {
                let at_once = |other: &&super::Run| after(mine, other) && after(other, mine);
                others.iter().filter(|other| other.item == mine.item).any(|other| at_once(&other))
            });
            twice.push((seed, overlap));
        }
    }
    // As in the trace: A takes an item of B's for crashed, and executes it.
    assert!(twice.iter().any(|(_, overlap)| *overlap), "{twice:?}");
    println!("A.5: with {} of 200 seeds", twice.len());
}

#[test]
fn a6_an_operator_stops_both() {
    for seed in 0..SEEDS {
        // B leads, because it has started first; nobody has divided anything since, so the flag is up.
        let mut fleet = Fleet::new(seed);
        for number in [2, 1] {
            fleet.start_with(process(number, job(3, "0 0 * * * ?", false), seed));
            fleet.run_for(400);
        }
        fleet.trace();
        fleet.remove("instances/10.0.0.1@-@4712");
        fleet.remove("instances/10.0.0.1@-@4711");
        fleet.run_for(3_000);
        // The fleet's first process is B.
        assert_trace(seed, &trace(&mut fleet), &["A: delete leader/election/instance"]);
        assert!(fleet.javas.iter().all(|java| java.was_stopped() && !java.is_dead()), "seed {seed}");
    }
}

#[test]
fn a7_a_foreign_participant() {
    for seed in 0..SEEDS {
        let configuration = job(4, "0/5 * * * * ?", true);
        let mut fleet = Fleet::new(seed);
        let java =
            |pid| Options { ip: "192.0.2.2".to_owned(), pid, ..options(pid, configuration.clone(), seed) };
        fleet.start_with(java(6_644));
        fleet.run_to(6_500);
        let foreign = fleet.registry.open().now_or_never().unwrap().unwrap();
        let me = "10.9.9.9@-@sc-1";
        fleet.put("servers/10.9.9.9", "ENABLED");
        let data = format!("jobInstanceId: {me}\nserverIp: 10.9.9.9\n");
        let instance = fleet.path(&format!("instances/{me}"));
        foreign.ensure(&instance, NodeKind::Ephemeral, data.as_bytes()).now_or_never().unwrap().unwrap();
        fleet.run_to(13_000);
        for item in [2, 3] {
            assert_eq!(fleet.get(&format!("sharding/{item}/instance")).as_deref(), Some(me), "seed {seed}");
            let running = fleet.path(&format!("sharding/{item}/running"));
            let create = Operation::create(running, NodeKind::Persistent, me);
            foreign.commit(vec![create]).now_or_never().unwrap().unwrap();
        }
        fleet.trace();
        drop(foreign);
        fleet.run_to(16_500);
        let found = fleet.trace();
        for item in [2, 3] {
            let taken = [
                format!("A: create P leader/failover/items/{item}"),
                format!("A: create E sharding/{item}/failover = 192.0.2.2@-@6644"),
                format!("A: create P sharding/{item}/failovering = 192.0.2.2@-@6644"),
                format!("A: delete leader/failover/items/{item}"),
                format!("A: create P sharding/{item}/running = 192.0.2.2@-@6644"),
                format!("A: delete sharding/{item}/running"),
                format!("A: delete sharding/{item}/failover"),
                format!("A: delete sharding/{item}/failovering"),
            ];
            let taken: Vec<_> = taken.iter().map(|line| &**line).collect();
            assert!(has_in_order(&found, &taken), "seed {seed}: {item}:\n{}", found.join("\n"));
        }
        assert_eq!(fleet.get("sharding/2/instance").as_deref(), Some("192.0.2.2@-@6644"), "seed {seed}");
        fleet.start_with(java(6_645));
        fleet.run_for(1_000);
        assert!(fleet.trace().contains(&"B: delete servers/10.9.9.9".to_owned()), "seed {seed}");
    }
}
