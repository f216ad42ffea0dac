//! The rank of members for a job, or for an item of a job: rendezvous hashing, also called highest random
//! weight. Pure.
//!
//! Each member draws a number for each job. The draw is the XXH64 hash (seed 0) of the job's name and the
//! member's name, in UTF-8, with a NUL between them, which no name can contain. The algorithm is specified,
//! and its outputs never change. So a draw depends on the two names only: each leader computes the same draw
//! on every machine, and a member that joins or leaves changes no other draw. A member's draws for two jobs
//! are independent, so different jobs go to different members.
//!
//! With weights the highest score is first: score = -weight / ln(u), where u is the draw as a fraction
//! between 0 and 1. Then a member of twice the weight is first for twice as many jobs. Logarithms of
//! floating-point numbers may differ in the last digit between machines, and two leaders might prefer
//! different members. So this file computes the logarithm from integers only: -log2(u) in units of 2^-40
//! (`cost`). Scores are compared as fractions, multiplied crosswise. The base of the logarithm does not
//! matter for the order.
//!
//! Why the items that remain after equal parts go by rank, and not by the order of registration: each job is
//! resharded by itself, so the first member of a list would get the single item of every job. With draws no
//! member has to know other jobs, and all leaders agree. With unequal weights a draw counts in proportion to
//! the fraction that rounding down has taken from the member's part; the part already contains the weight
//! itself.

use std::cmp::Ordering;
use std::hash::Hasher;

use twox_hash::XxHash64;

use crate::job::{InstanceId, Item, JobName};
use crate::mutants::mutant;

/// The seed of the hash. It is part of the rule that all sidecars of a job share.
const SEED: u64 = 0;
/// The bits of a logarithm's fraction. With 40 bits two draws have the same logarithm only if they agree in
/// about their first 37 bits; then the draws themselves decide.
const FRACTION_BITS: u32 = 40;

/// The name with which an instance draws. A named instance of a sidecar draws by its name, so that a restart
/// changes nothing, also at another address. Another instance of a sidecar draws by its generated name. A
/// Java instance has a process id there, which is not unique, so it draws by its whole id.
pub fn member_name(id: &InstanceId) -> &str {
    id.unique().filter(|_| !id.is_java()).unwrap_or(id.as_str())
}

/// A member's draw for a job.
pub fn draw(job: &JobName, member: &str) -> u64 {
    let job = if mutant!(JobNotDrawnFor) { "" } else { job.as_str() };
    hash([job, member])
}

/// The draws of members for one item of a job. The hashed text has the item in decimal between the two names.
pub fn draws_for_item(job: &JobName, item: Item) -> impl Fn(&str) -> u64 {
    let item = item.to_string();
    move |member| hash([job.as_str(), &item, member])
}

fn hash<const PARTS: usize>(parts: [&str; PARTS]) -> u64 {
    let mut hasher = XxHash64::with_seed(SEED);
    for (place, part) in parts.iter().enumerate() {
        if place > 0 {
            hasher.write(&[0]);
        }
        hasher.write(part.as_bytes());
    }
    hasher.finish()
}

/// A member's draw and its weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// The draw.
    pub draw: u64,
    /// The weight in proportion to others. A ticket with 0 never wins.
    pub weight: u64,
}

impl Ticket {
    /// `Less`: this ticket ranks above the other one. The caller decides between equal tickets.
    pub fn compare(self, other: Self) -> Ordering {
        let by_draw = other.draw.cmp(&self.draw);
        if self.weight == other.weight {
            // The logarithm grows with the draw, so it would give the same order.
            return by_draw;
        }
        let crosswise = |one: Self, other: Self| u128::from(cost(one.draw)) * u128::from(other.weight);
        crosswise(self, other).cmp(&crosswise(other, self)).then(by_draw)
    }
}

/// The negative binary logarithm of a draw as a fraction of 2^64, in units of 2^-40; at least 1. The score is
/// the weight divided by this cost.
fn cost(draw: u64) -> u64 {
    (64_u64 << FRACTION_BITS).saturating_sub(log2(draw)).max(1)
}

/// The binary logarithm in units of 2^-40, rounded down; 0 of 0. It is computed bit by bit: a number between
/// 1 and 2 is squared; if the square is 2 or more, the next bit is set and the square is halved.
fn log2(number: u64) -> u64 {
    let Some(whole) = number.checked_ilog2() else { return 0 };
    let mut log = u64::from(whole);
    // Between 1 and 2, with 63 bits after the point.
    let mut mantissa = number << number.leading_zeros();
    for _ in 0..FRACTION_BITS {
        let square = u128::from(mantissa) * u128::from(mantissa);
        let bit = square >> 127;
        log = log << 1 | u64::from(bit == 1);
        mantissa = u64::try_from(square >> (63 + bit)).unwrap_or(u64::MAX);
    }
    log
}

#[cfg(test)]
#[expect(clippy::as_conversions, reason = "there is no other way from 64 bits to a floating-point number")]
mod tests {
    use super::*;

    fn job(name: &str) -> JobName {
        JobName::parse(name).unwrap()
    }

    #[test]
    fn draws_are_the_same_for_ever_and_everywhere() {
        // Computed with another implementation of XXH64. With other draws, leaders of two releases would undo
        // each other's shardings.
        assert_eq!(draw(&job("demoJob"), "worker-0"), 0xee43_ee3a_c784_b040);
        assert_eq!(draw(&job("demoJob"), "worker-1"), 0xdfe3_db40_07dd_b179);
        assert_eq!(draws_for_item(&job("demoJob"), Item(7))("worker-0"), 0x9d1d_6628_1328_20a8);
        assert_eq!(draw(&job("\u{4e2d}\u{6587}"), "worker-0"), 0x229e_a12f_57e4_1b91);
    }

    #[test]
    fn a_member_draws_by_its_name_at_every_address() {
        let ids = ["10.0.0.1@-@worker-0", "10.0.0.2@-@worker-0", "10.0.0.1@-@4711", "worker-0"];
        let names = ids.map(|id| member_name(&InstanceId::from_registry(id)).to_owned());
        assert_eq!(names, ["worker-0", "worker-0", "10.0.0.1@-@4711", "worker-0"]);
    }

    #[test]
    fn logarithms_are_right_and_never_fall() {
        let unit = f64::from(1 << 20) * f64::from(1 << 20);
        let mut before = 0;
        for number in
            (0..64).flat_map(|bit| [1_u64 << bit, (1 << bit) + (1 << bit >> 1), u64::MAX >> (63 - bit)])
        {
            let log = log2(number);
            assert!(log >= before, "{number}");
            before = log;
            let wide = log as f64 / unit;
            assert!(((number as f64).log2() - wide).abs() < 1e-10, "{number}: {wide}");
        }
        assert_eq!((log2(0), log2(1), log2(2), log2(1 << 63)), (0, 0, 1 << 40, 63 << 40));
        assert_eq!((cost(0), cost(u64::MAX)), (64 << 40, 1));
    }

    #[test]
    fn scores_are_compared_as_the_formula_says() {
        let mut seed = 1;
        let mut next = || {
            seed = hash([&format!("{seed}")]);
            seed
        };
        for _ in 0..10_000 {
            let [one, other] = [(); 2].map(|()| Ticket { draw: next(), weight: next() % 1_000 + 1 });
            let score = |ticket: Ticket| -(ticket.weight as f64) / (ticket.draw as f64 / 2_f64.powi(64)).ln();
            let (ours, theirs) = (score(one), score(other));
            if (ours / theirs - 1.0).abs() > 1e-9 {
                assert_eq!(one.compare(other) == Ordering::Less, ours > theirs, "{one:?}, {other:?}");
            }
            assert_eq!(one.compare(other), other.compare(one).reverse());
        }
        let [nothing, little] = [(u64::MAX, 0), (0, 1)].map(|(draw, weight)| Ticket { draw, weight });
        assert_eq!(little.compare(nothing), Ordering::Less);
    }

    #[test]
    fn a_member_of_twice_the_weight_is_first_twice_as_often() {
        let mut first = [0; 3];
        for number in 0..60_000 {
            let job = job(&format!("job-{number}"));
            let tickets = [1, 2, 3].map(|weight| Ticket { draw: draw(&job, &format!("m{weight}")), weight });
            let winner = (0..3).min_by(|one, other| tickets[*one].compare(tickets[*other])).unwrap();
            first[winner] += 1;
        }
        for (count, weight) in first.iter().zip([10_000, 20_000, 30_000]) {
            assert!((weight - count as &i32).abs() < 500, "{first:?}");
        }
    }
}
