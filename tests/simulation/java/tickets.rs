//! Tickets of ElasticJob that the model reproduces when it runs alone: so the simulation has teeth.

use jiff::{SignedDuration, Timestamp};

use super::fleet::{Fleet, job};
use crate::random::Random;

/// Within how many seeds each misbehaviour has to show.
const SEEDS: u64 = 50;

/// The first seed with which something shows, if any.
fn first(mut shows: impl FnMut(u64) -> bool) -> Option<u64> {
    (0..SEEDS).find(|seed| shows(*seed))
}

/// A fleet of three that has divided its items, shortly before the fire at 10 s.
fn settled(seed: u64, failover: bool) -> Fleet {
    let mut fleet = Fleet::new(seed);
    for number in 1..=3 {
        fleet.start(number, job(6, "0/5 * * * * ?", failover));
        fleet.run_for(100);
    }
    fleet.run_to(9_000);
    fleet
}

fn fire_at(second: i64) -> Timestamp {
    let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    start + SignedDuration::from_secs(second)
}

/// Whether a process began its items for a fire.
fn has_executed(fleet: &Fleet, java: usize, second: i64) -> bool {
    fleet.javas[java].runs().iter().any(|run| run.fire == Some(fire_at(second)))
}

/// 1471: the leader has divided and executes; then somebody joins, so the flag is up again when a follower looks,
/// which waits for the leader's next fire: its items miss this one.
fn misses_a_fire(seed: u64) -> bool {
    let mut fleet = settled(seed, false);
    fleet.javas.iter().for_each(|java| java.set_duration(1_000, 1_000));
    // Somebody has joined, so this fire divides; and somebody else does while it is divided.
    fleet.start(4, job(6, "0/5 * * * * ?", false));
    let joins = 9_900 + Random::new(seed).below(200) as i64;
    fleet.run_to(joins);
    fleet.start(5, job(6, "0/5 * * * * ?", false));
    fleet.run_to(14_500);
    let blocked = |java: &usize| {
        let since = fleet.javas[*java].blocked_since();
        since.is_some_and(|since| fleet.now.duration_since(since) > SignedDuration::from_secs(3))
    };
    let leader_executed = (0..3).any(|java| has_executed(&fleet, java, 10));
    let missed = (0..3).filter(blocked).any(|java| !has_executed(&fleet, java, 10));
    leader_executed && missed
}

#[test]
fn ticket_1471_followers_wait_while_the_leader_has_moved_on() {
    let seed = first(misses_a_fire);
    println!("1471: with seed {seed:?}");
    assert!(seed.is_some());
}

/// Whether a job is shut down in a process that goes on, for good, though no operator has asked for it.
fn has_shut_itself_down(fleet: &Fleet) -> bool {
    let gone = fleet.javas.iter().find(|java| java.was_stopped() && !java.is_dead());
    gone.is_some_and(|gone| fleet.get(&format!("instances/{}", gone.id())).is_none())
}

/// 2383, 1857, as H27 says: a job without a schedule is never paused, so the deletion of its own node by the server,
/// which comes before it has registered anew, is an order to stop.
fn shuts_itself_down(seed: u64) -> bool {
    let mut fleet = Fleet::new(seed);
    for number in 1..=3 {
        let mut configuration = job(6, "", false);
        configuration.cron = None;
        fleet.start(number, configuration);
        fleet.run_for(100);
    }
    fleet.run_to(5_000);
    fleet.javas[0].lose_connection(3_000, &mut Random::new(seed));
    fleet.run_to(25_000);
    has_shut_itself_down(&fleet)
}

/// The same with a schedule, when the registry is away twice ("multiple kill" in 1857): the connection breaks again
/// while
/// the process registers anew, which gives up without a word, and goes on with the schedule. Nothing is paused then,
/// and
/// when the registry is back, the node is not there.
fn shuts_itself_down_when_it_is_away_twice(seed: u64) -> bool {
    let mut fleet = settled(seed, false);
    let mut random = Random::new(seed);
    fleet.javas[0].lose_connection(3_000, &mut random);
    let again = 12_000 + random.below(40) as i64;
    fleet.run_to(again);
    fleet.javas[0].lose_connection(30_000 + random.below(15_000) as i64, &mut random);
    fleet.run_to(75_000);
    has_shut_itself_down(&fleet)
}

#[test]
fn ticket_2383_an_expired_session_is_taken_for_an_order_to_stop() {
    let (seed, twice) = (first(shuts_itself_down), first(shuts_itself_down_when_it_is_away_twice));
    println!("2383: with seed {seed:?}; with a schedule {twice:?}");
    assert!(seed.is_some() && twice.is_some());
}

#[test]
fn without_faults_none_of_this_shows() {
    for seed in 0..10 {
        let mut fleet = settled(seed, true);
        fleet.run_to(24_500);
        assert!(fleet.javas.iter().all(|java| !java.was_stopped() && java.unreadable().is_empty()));
        for second in [10, 15, 20] {
            let mut items: Vec<_> = Vec::new();
            for java in &fleet.javas {
                let runs = java.runs();
                items.extend(
                    runs.iter()
                        .filter(|run| run.fire == Some(fire_at(second)) && !run.misfire)
                        .map(|run| run.item),
                );
            }
            items.sort_unstable();
            assert_eq!(items, [0, 1, 2, 3, 4, 5], "seed {seed}: the fire at {second}");
        }
    }
}
