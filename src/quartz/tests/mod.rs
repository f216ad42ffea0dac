//! Tests that need no answers of Quartz. `tests/vectors_cron.rs` compares with Quartz's answers.

mod describe;
mod errors;
mod reference;
mod search;
mod zone;

/// Seeded random numbers: a failure can be repeated.
struct Random(u64);

impl Random {
    /// The next number, by splitmix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn between(&mut self, first: i64, last: i64) -> i64 {
        let size = u64::try_from(last - first + 1).unwrap();
        first + i64::try_from(self.next() % size).unwrap()
    }

    fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[usize::try_from(self.between(0, i64::try_from(all.len()).unwrap() - 1)).unwrap()]
    }
}
