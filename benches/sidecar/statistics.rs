//! Percentiles, and numbers in the form in which they are printed.

use std::time::Duration;

/// Durations in ascending order.
pub(crate) struct Sorted(Vec<Duration>);

impl Sorted {
    pub(crate) fn new(mut durations: Vec<Duration>) -> Self {
        durations.sort_unstable();
        Self(durations)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The nearest rank: the smallest duration that is at least as long as this percentage of all.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.0.len() * percent).div_ceil(100);
        self.0.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }

    /// `p50 | p99 | max`, in milliseconds.
    pub(crate) fn columns(&self) -> String {
        let [p50, p99, max] = [50, 99, 100].map(|percent| milliseconds(self.percentile(percent)));
        format!("{p50} | {p99} | {max}")
    }
}

pub(crate) fn milliseconds(duration: Duration) -> String {
    format!("{:.2}", duration.as_secs_f64() * 1000.0)
}

pub(crate) fn microseconds(duration: Duration) -> String {
    duration.as_micros().to_string()
}

/// How many a second, as a whole number.
pub(crate) fn rate(count: usize, time: Duration) -> u64 {
    let nanos = time.as_nanos().max(1);
    let count = u128::try_from(count).unwrap_or(u128::MAX);
    u64::try_from(count.saturating_mul(1_000_000_000) / nanos).unwrap_or(u64::MAX)
}

/// A part of a whole in percent.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    format!("{} %", (part * 100 + whole / 2) / whole.max(1))
}

/// The straight line that fits some points: least squares.
pub(crate) struct Line {
    pub(crate) start: f64,
    pub(crate) slope: f64,
    /// The largest distance of a point from the line, as a part of the point's value.
    pub(crate) deviation: f64,
}

impl Line {
    /// The points are pairs of size and value; there are at least two sizes.
    pub(crate) fn through(points: &[(f64, f64)]) -> Self {
        let count: f64 = points.iter().map(|_| 1.0).sum();
        let mean = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(&|point| point.0), mean(&|point| point.1));
        let slope = mean(&|point| (point.0 - x) * (point.1 - y)) / mean(&|point| (point.0 - x).powi(2));
        let start = y - slope * x;
        let off = points.iter().map(|(x, y)| (start + slope * x - y).abs() / y.abs().max(1.0));
        Self { start, slope, deviation: off.fold(0.0, f64::max) }
    }
}
