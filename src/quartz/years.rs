//! The year field: spans, because years have no upper end.

/// The years of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Years(pub(super) Vec<YearSpan>);

/// The years `first`, `first + step`, ... up to `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct YearSpan {
    pub(super) first: u32,
    /// `None`: no end.
    pub(super) last: Option<u32>,
    /// At least 1.
    pub(super) step: u32,
}

impl Years {
    /// The first year of `*` in Quartz.
    pub(super) const FIRST: u32 = 1970;

    /// `*`.
    pub(super) fn all() -> Self {
        Self(vec![YearSpan { first: Self::FIRST, last: None, step: 1 }])
    }

    /// Whether this contains `*`.
    pub(super) fn is_all(&self) -> bool {
        self.0.contains(&YearSpan { first: Self::FIRST, last: None, step: 1 })
    }

    /// The smallest year that is at least `from`.
    pub(super) fn first_from(&self, from: i16) -> Option<i16> {
        let from = u32::try_from(from).unwrap_or(0);
        let year = self.0.iter().filter_map(|span| span.first_from(from)).min()?;
        i16::try_from(year).ok()
    }
}

impl YearSpan {
    fn first_from(&self, from: u32) -> Option<u32> {
        let steps = from.saturating_sub(self.first).div_ceil(self.step.max(1));
        let year = self.first.checked_add(steps.checked_mul(self.step)?)?;
        self.last.is_none_or(|last| year <= last).then_some(year)
    }
}
