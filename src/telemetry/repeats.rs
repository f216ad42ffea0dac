//! Decides which warnings are repetitions, and leaves them out: at most one line in [`PAUSE`] for each event and job. The next line of the kind
//! has the number of those that were left out. Pure: the time is an argument, and `limited_lines` writes the lines.
//!
//! Unlike [`super::limiter`] it never counts two kinds as one, and a number waits for the next line of its kind.

use std::collections::BTreeMap;
use std::time::Duration;

use super::limiter::PAUSE;

/// The most kinds that are known. A warning of a further kind is written each time: it is better to write a line too many than to hide one.
const KINDS_MAX: usize = 4_096;
/// The longest kind, in bytes, so that the memory is bounded. Warnings of longer kinds are written each time.
const KIND_BYTES_MAX: usize = 1_024;

/// The key of a warning: two with the same key count as one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// The code of the event, and the job that it is about.
    OfJob(String, String),
    /// The code of the event, and a number made of all that the line says: two lines that say something different are no repetition.
    OfProcess(String, u64),
}

impl Kind {
    fn bytes(&self) -> usize {
        match self {
            Self::OfJob(event, job) => event.len().saturating_add(job.len()),
            Self::OfProcess(event, _) => event.len(),
        }
    }
}

/// The warnings of the last seconds, by kind.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    kinds: BTreeMap<Kind, Seen>,
}

#[derive(Debug)]
struct Seen {
    /// When its last line was written; monotonic.
    written: Duration,
    left_out: u64,
}

impl Repeats {
    /// How many warnings of this kind were left out since its last line, if this one is written. `None`: it is left out, too.
    pub(super) fn admit(&mut self, kind: Kind, now: Duration) -> Option<u64> {
        let is_over = |seen: &Seen| now >= seen.written.saturating_add(PAUSE);
        if let Some(seen) = self.kinds.get_mut(&kind) {
            if !is_over(seen) {
                seen.left_out = seen.left_out.saturating_add(1);
                return None;
            }
            seen.written = now;
            return Some(std::mem::take(&mut seen.left_out));
        }
        if self.kinds.len() >= KINDS_MAX {
            self.kinds.retain(|_, seen| !is_over(seen));
        }
        if self.kinds.len() < KINDS_MAX && kind.bytes() <= KIND_BYTES_MAX {
            self.kinds.insert(kind, Seen { written: now, left_out: 0 });
        }
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn second(second: u64) -> Duration {
        Duration::from_secs(second)
    }

    fn of(event: &str, job: &str) -> Kind {
        Kind::OfJob(event.to_owned(), job.to_owned())
    }

    #[test]
    fn a_repetition_is_left_out_and_the_next_line_counts_it() {
        let mut repeats = Repeats::default();
        assert_eq!(repeats.admit(of("A", "orders"), second(1)), Some(0));
        for now in [1, 3, 10] {
            assert_eq!(repeats.admit(of("A", "orders"), second(now)), None);
        }
        assert_eq!(repeats.admit(of("A", "orders"), second(11)), Some(3));
        assert_eq!(repeats.admit(of("A", "orders"), second(12)), None);
        assert_eq!(repeats.admit(of("A", "orders"), second(60)), Some(1));
        assert_eq!(repeats.admit(of("A", "orders"), second(90)), Some(0));
    }

    #[test]
    fn another_event_another_job_and_another_text_are_no_repetition() {
        let mut repeats = Repeats::default();
        for kind in [
            of("A", "orders"),
            of("B", "orders"),
            of("A", "bills"),
            Kind::OfProcess("A".to_owned(), 1),
            Kind::OfProcess("A".to_owned(), 2),
            Kind::OfProcess("B".to_owned(), 2),
        ] {
            assert_eq!(repeats.admit(kind, second(1)), Some(0));
        }
    }

    #[test]
    fn the_memory_is_bounded_and_no_kind_is_hidden_by_others() {
        let mut repeats = Repeats::default();
        for job in 0..2 * KINDS_MAX {
            assert_eq!(repeats.admit(of("A", &job.to_string()), second(1)), Some(0), "{job}");
        }
        assert_eq!(repeats.kinds.len(), KINDS_MAX);
        assert_eq!(repeats.admit(of("A", "0"), second(2)), None);
        // The pauses are over, so the kinds make room.
        assert_eq!(repeats.admit(of("A", "new"), second(11)), Some(0));
        assert_eq!(repeats.kinds.len(), 1);
        assert_eq!(repeats.admit(of("A", &"x".repeat(KIND_BYTES_MAX)), second(11)), Some(0));
        assert_eq!(repeats.kinds.len(), 1, "too long");
    }
}
