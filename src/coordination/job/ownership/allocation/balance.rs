//! Tests of how evenly many jobs are allocated to members: figures over sets of random names, by the 95th percentile.

use crate::coordination::job::ownership::allocation::allocate;
use crate::coordination::job::ownership::allocation::{Held, Member, Rule};
use crate::extension::rendezvous;
use crate::job::JobName;

/// How many sets of names there are. Fewer would not tell the 95th percentile well enough: that of the busiest of ten
/// members is near its bound.
const SETS: u64 = 1_000;
const RULE: Rule = Rule::Rendezvous;

/// Names as deployments have them; the numbers in them are random (SplitMix64), from a fixed seed.
struct Names(u64);

impl Names {
    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn jobs(&mut self, count: usize) -> Vec<JobName> {
        let team = self.number() % 1_000_000;
        (0..count).map(|number| JobName::parse(&format!("team{team}-job-{number}")).unwrap()).collect()
    }

    /// Either a StatefulSet's, or made up.
    fn members(&mut self, count: usize) -> Vec<String> {
        let set = self.number() % 1_000_000;
        let ordered = self.number().is_multiple_of(2);
        let name = |place| {
            if ordered { format!("set{set}-{place}") } else { format!("w-{:06x}", self.number() >> 40) }
        };
        (0..count).map(name).collect()
    }
}

/// The owner of each item of a job, from the owners before; all items have been with their owners for the same time.
fn allocate_job(job: &JobName, members: &[String], weights: &[u32], owners: &[Option<usize>]) -> Vec<usize> {
    let member = |(name, weight): (&String, &u32)| Member {
        weight: *weight,
        labels: [].into(),
        draw: rendezvous::draw(job, name),
        absent: false,
    };
    let members: Vec<_> = members.iter().zip(weights).map(member).collect();
    let held: Vec<_> = owners.iter().map(|owner| Held { owner: *owner, ..Held::default() }).collect();
    allocate(&held, &members, RULE)
}

/// How many items each member has of all jobs, if these have just been allocated for the first time.
fn totals(jobs: &[JobName], items: u32, members: &[String], weights: &[u32]) -> Vec<f64> {
    let mut totals = vec![0.0; members.len()];
    let nobody = vec![None; usize::try_from(items).unwrap()];
    for job in jobs {
        for owner in allocate_job(job, members, weights, &nobody) {
            totals[owner] += 1.0;
        }
    }
    totals
}

/// The figure that 19 of 20 do not exceed.
fn percentile_95(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() * 95 / 100 - 1]
}

/// A figure of each set of names, by the 95th percentile.
fn over_all_sets(seed: u64, figure: impl Fn(&mut Names) -> f64) -> f64 {
    let mut names = Names(seed);
    percentile_95((0..SETS).map(|_| figure(&mut names)).collect())
}

#[test]
fn of_24_jobs_of_one_item_on_3_members_nobody_has_more_than_13() {
    let busiest = over_all_sets(1, |names| {
        let (jobs, members) = (names.jobs(24), names.members(3));
        totals(&jobs, 1, &members, &[1; 3]).into_iter().fold(0.0, f64::max)
    });
    assert!(busiest <= 13.0, "{busiest}");
}

#[test]
fn of_1000_jobs_of_one_item_10_members_have_even_parts_and_only_those_of_an_eleventh_move() {
    let mut names = Names(2);
    let (mut busiest, mut moves) = (Vec::new(), Vec::new());
    for _ in 0..SETS {
        let (jobs, members) = (names.jobs(1_000), names.members(11));
        let (mut totals, mut moved) = ([0_u32; 11], 0_u32);
        for job in &jobs {
            let before = allocate_job(job, &members[..10], &[1; 10], &[None])[0];
            totals[before] += 1;
            let after = allocate_job(job, &members, &[1; 11], &[Some(before)])[0];
            assert!(after == before || after == 10, "from {before} to {after}");
            moved += u32::from(after != before);
        }
        busiest.push(f64::from(totals.into_iter().max().unwrap()));
        moves.push(f64::from(moved));
    }
    let fewest = moves.iter().copied().fold(f64::MAX, f64::min);
    let (busiest, most) = (percentile_95(busiest), percentile_95(moves));
    assert!(busiest <= 125.0, "the busiest of 10 has {busiest}");
    assert!(most <= 130.0, "{most} move to the newcomer");
    // Its part is nearly 91. A newcomer that is passed over would be no balance.
    assert!(fewest >= 50.0, "only {fewest} move to the newcomer");
}

#[test]
fn over_many_jobs_of_2_5_or_7_items_each_member_has_its_weights_part() {
    let weights = [1, 2, 3];
    for (items, seed) in [(2, 4), (5, 5), (7, 6)] {
        // The error of the worst of the three, relative to its exact part.
        let off = over_all_sets(seed, |names| {
            let (jobs, members) = (names.jobs(300), names.members(3));
            let totals = totals(&jobs, items, &members, &weights);
            let parts = weights.map(|weight| f64::from(weight) / 6.0 * 300.0 * f64::from(items));
            let off = totals.iter().zip(parts).map(|(total, part)| (total / part - 1.0).abs());
            off.fold(0.0, f64::max)
        });
        assert!(off <= 0.2, "{items} items: {off}");
    }
}
