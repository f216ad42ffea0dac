//! What a fleet of hundreds costs the registry, and how that grows: the laws of `docs/scale.md` for one job.
//!
//! A world has one job, and jobs share nothing but their sidecars' sessions: a fleet with twenty jobs is twenty worlds, with
//! other numbers of items, so that other instances have the items beyond equal shares. `SIMULATION_JOBS=20` simulates all of
//! them; `cargo test` simulates one. Requests are those of the core, before the runner sends several as one. The latch of an
//! election is not nodes here: what candidates cost each other is measured by `make bench BENCH=scale`.

use std::collections::BTreeMap;

use crate::setup::owner;
use crate::world::{Traffic, World, six_items};

/// The fleets: so many sidecars with an instance each, and two items or more for each.
const FLEETS: [u32; 3] = [50, 150, 500];
/// How long the leader waits for others that join, at most, in milliseconds.
const SETTLING: i64 = 1_000;
/// How long an execution takes, in milliseconds.
const EXECUTION: u64 = 200;

/// How many sidecars a rolling restart restarts.
const RESTARTED: usize = 20;

struct Fleet {
    world: World,
    sidecars: usize,
    items: usize,
}

impl Fleet {
    /// All sidecars attach their applications to a new job at once.
    fn attach(sidecars: u32, job: u32) -> Self {
        let mut configuration = six_items();
        configuration.sharding_total_count = 2 * sidecars + job;
        configuration.cron = Some("0/10 * * * * ?".to_owned());
        let items = configuration.sharding_total_count as usize;
        let mut world = World::new(u64::from(job), configuration);
        world.next_duration_ms = Some(EXECUTION);
        world.join_many(sidecars as usize);
        Self { world, sidecars: sidecars as usize, items }
    }

    /// What the registry is asked and tells while this happens, and everything that follows from it.
    fn cost(&mut self, change: impl FnOnce(&mut World)) -> Traffic {
        let before = self.world.traffic;
        change(&mut self.world);
        self.world.pass(1);
        self.world.pass(SETTLING);
        self.world.traffic.since(before)
    }

    fn owners(&self) -> Vec<String> {
        (0..self.items as u32).map(|item| owner(&self.world, item)).collect()
    }

    /// I10: the items that have changed their owner are exactly those that this instance got or had, and shares are equal
    /// within one. Returns how many have.
    fn moves(&self, before: &[String], of: usize) -> usize {
        let after = self.owners();
        let id = self.world.nodes[of].instance.as_str();
        let mut shares = BTreeMap::<_, usize>::new();
        for owner in &after {
            *shares.entry(owner).or_default() += 1;
        }
        let (least, most) = (shares.values().min().unwrap(), shares.values().max().unwrap());
        assert!(most - least <= 1 && shares.len() == self.world.staying().len(), "{shares:?}");
        let moved = before.iter().zip(&after).filter(|(before, after)| before != after);
        let moved: Vec<_> = moved.collect();
        assert!(moved.iter().all(|(before, after)| *before == id || *after == id), "{id}: {moved:?}");
        moved.len()
    }

    /// The law of one instance that joins or leaves: a number of requests that the items that move decide, and for each
    /// sidecar a number of events and reads that they decide. Nothing is the product of two sizes of the fleet.
    fn assert_one(&self, cost: Traffic, moves: usize, candidates: usize) {
        // The share of one instance.
        assert!((1..=4).contains(&moves), "{moves} moves");
        let Traffic { requests, events, reads } = cost;
        assert!(
            requests <= 5 + 2 * moves + 2 * candidates,
            "{} sidecars, {moves} moves: {cost:?}",
            self.sidecars
        );
        assert!(
            events <= (8 + 2 * moves) * self.sidecars,
            "{} sidecars, {moves} moves: {cost:?}",
            self.sidecars
        );
        assert!(reads <= (3 + moves) * self.sidecars, "{} sidecars, {moves} moves: {cost:?}", self.sidecars);
    }
}

#[test]
fn p1_p5_the_requests_and_the_moves_of_a_large_fleet_follow_the_law() {
    let jobs = std::env::var("SIMULATION_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1);
    for sidecars in FLEETS {
        let mut sums = BTreeMap::<_, Traffic>::new();
        for job in 0..jobs {
            for (what, cost) in simulate(Fleet::attach(sidecars, job)) {
                *sums.entry(what).or_default() += cost;
            }
        }
        println!("{sidecars} sidecars x {jobs} jobs: {sums:#?}");
    }
}

/// The costs of each change of the fleet.
fn simulate(mut fleet: Fleet) -> [(&'static str, Traffic); 5] {
    let (sidecars, items) = (fleet.sidecars, fleet.items);

    let attach = fleet.cost(|_| {});
    fleet.world.assert_all_owned();
    // Each reads the job, registers, once more if another one has created its folders, and reads the ledger.
    assert!(attach.requests <= 4 * sidecars + 2, "{sidecars} sidecars: {attach:?}");
    // Each hears of the nodes of all instances and of all items: this is the one square.
    assert!(attach.events <= (3 * sidecars + 2 * items + 11) * sidecars, "{sidecars} sidecars: {attach:?}");

    let fire = fleet.cost(|world| {
        world.pass(10_000);
        world.pass(EXECUTION as i64);
    });
    assert_eq!(fleet.world.starts.len(), items);
    // Each starts its items in one transaction, and completes them in one; all hear of both for each item.
    assert_eq!(fire, Traffic { requests: 2 * sidecars, events: 2 * items * sidecars, reads: 0 });

    let before = fleet.owners();
    let mut newcomer = 0;
    let join = fleet.cost(|world| newcomer = world.join());
    fleet.world.assert_all_owned();
    fleet.sidecars += 1;
    let moves = fleet.moves(&before, newcomer);
    assert_eq!(moves, fleet.world.nodes[newcomer].items.len());
    fleet.assert_one(join, moves, 0);

    let before = fleet.owners();
    let leave = fleet.cost(|world| world.drain(newcomer));
    fleet.world.assert_all_owned();
    fleet.assert_one(leave, fleet.moves(&before, newcomer), 0);
    fleet.sidecars -= 1;

    let before = fleet.owners();
    let id = fleet.world.get("leader/election/instance").unwrap();
    let leader = fleet.world.nodes.iter().position(|node| node.instance.as_str().as_bytes() == id).unwrap();
    let lead = fleet.cost(|world| world.drain(leader));
    fleet.world.assert_all_owned();
    // All others stand for election.
    fleet.assert_one(lead, fleet.moves(&before, leader), sidecars - 1);
    [("attach", attach), ("fire", fire), ("join", join), ("leave", leave), ("the leader leaves", lead)]
}

/// Restarts one sidecar after the other, as a deployment does: each drains, and then attaches its application again.
/// Returns how often each item has moved.
fn restart_all(items: u32, seed: u64) -> Vec<usize> {
    let mut configuration = six_items();
    configuration.sharding_total_count = items;
    configuration.cron = None;
    let mut world = World::new(seed, configuration);
    world.join_many(RESTARTED);
    let settle = |world: &mut World| {
        world.pass(1);
        world.pass(SETTLING);
        world.assert_all_owned();
    };
    settle(&mut world);
    let owners = |world: &World| -> Vec<String> { (0..items).map(|item| owner(world, item)).collect() };
    let mut known = owners(&world);
    let mut moves = vec![0; items as usize];
    let mut count = |world: &World| {
        let now = owners(world);
        for ((before, now), moves) in known.iter().zip(&now).zip(&mut moves) {
            *moves += usize::from(before != now);
        }
        known = now;
    };
    for restarted in 0..RESTARTED {
        world.drain(restarted);
        settle(&mut world);
        count(&world);
        world.join();
        settle(&mut world);
        count(&world);
    }
    moves
}

#[test]
fn p1_a_rolling_restart_of_twenty_sidecars_moves_each_item_at_most_twice() {
    for (items, seed) in [(20, 0), (100, 1), (100, 2)] {
        let moves = restart_all(items, seed);
        assert!(moves.iter().all(|moves| *moves <= 2), "{items} items, seed {seed}: {moves:?}");
    }
    // The items beyond equal shares follow the ranks of the instances, and new instances have other ranks.
    for (items, seed) in [(107, 3), (130, 4)] {
        let moves = restart_all(items, seed);
        assert!(moves.iter().all(|moves| *moves <= 3), "{items} items, seed {seed}: {moves:?}");
        assert!(moves.iter().sum::<usize>() <= 2 * items as usize, "{items} items, seed {seed}: {moves:?}");
    }
}
