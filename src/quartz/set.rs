//! A set of numbers 0 to 63, one bit each: the values of one cron field.

/// A set of numbers from 0 to 63.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Set(u64);

impl Set {
    /// Adds `value`. Ignores a value that the set cannot hold.
    pub(super) fn insert(&mut self, value: i8) {
        self.0 |= bit(value);
    }

    pub(super) fn contains(self, value: i8) -> bool {
        self.0 & bit(value) != 0
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The smallest value.
    pub(super) fn first(self) -> Option<i8> {
        self.first_from(0)
    }

    /// The largest value.
    pub(super) fn last(self) -> Option<i8> {
        63u32.checked_sub(self.0.leading_zeros()).and_then(|value| i8::try_from(value).ok())
    }

    /// The smallest value that is at least `from`.
    pub(super) fn first_from(self, from: i8) -> Option<i8> {
        let below = bit(from.max(0)).wrapping_sub(1);
        let rest = self.0 & !below;
        if rest == 0 { None } else { i8::try_from(rest.trailing_zeros()).ok() }
    }

    /// The only value, if there is exactly one.
    pub(super) fn single(self) -> Option<i8> {
        self.first().filter(|_| self.len() == 1)
    }

    /// How many values there are.
    pub(super) fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether this holds every value from `first` to `last`.
    pub(super) fn covers(self, first: i8, last: i8) -> bool {
        (first..=last).all(|value| self.contains(value))
    }

    /// The values, smallest first.
    pub(super) fn iter(self) -> impl Iterator<Item = i8> {
        std::iter::successors(self.first(), move |last| self.first_from(last.saturating_add(1)))
    }
}

/// The bit of `value`. 0 for a value that no set can hold.
fn bit(value: i8) -> u64 {
    u32::try_from(value).ok().and_then(|value| 1u64.checked_shl(value)).unwrap_or(0)
}

impl FromIterator<i8> for Set {
    fn from_iter<I: IntoIterator<Item = i8>>(values: I) -> Self {
        let mut set = Self::default();
        values.into_iter().for_each(|value| set.insert(value));
        set
    }
}
