//! The last lines of the log, in memory: those of level INFO and above, whatever the log filter is. Decides how many.
//!
//! A pod whose logs are gone, or a sidecar that logs errors only, still has them. The ring is the process's, as the log is.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tracing_subscriber::fmt::MakeWriter;

/// The most lines.
const LINES_MAX: usize = 10_000;
/// The most bytes of all lines.
const BYTES_MAX: usize = 8 * 1024 * 1024;

static RING: Mutex<Ring> = Mutex::new(Ring { lines: VecDeque::new(), bytes: 0, next: 0 });
/// The number of the next line.
static NEXT: LazyLock<watch::Sender<u64>> = LazyLock::new(|| watch::channel(0).0);

struct Ring {
    lines: VecDeque<Arc<str>>,
    bytes: usize,
    /// The number of the next line. The last line has the number before it.
    next: u64,
}

impl Ring {
    fn push(&mut self, line: &str) -> u64 {
        let line: Arc<str> = line.into();
        self.bytes = self.bytes.saturating_add(line.len());
        self.lines.push_back(line);
        self.next = self.next.saturating_add(1);
        while self.lines.len() > LINES_MAX || self.bytes > BYTES_MAX {
            let Some(oldest) = self.lines.pop_front() else { break };
            self.bytes = self.bytes.saturating_sub(oldest.len());
        }
        self.next
    }

    /// At most so many lines from the one with this number, and the number of the line after them.
    fn from(&self, number: u64, most: usize) -> (Vec<Arc<str>>, u64) {
        let kept = u64::try_from(self.lines.len()).unwrap_or(u64::MAX);
        let oldest = self.next.saturating_sub(kept);
        let begin = number.max(oldest);
        let skipped = usize::try_from(begin.saturating_sub(oldest)).unwrap_or(usize::MAX);
        let lines: Vec<_> = self.lines.iter().skip(skipped).take(most).cloned().collect();
        let after = begin.saturating_add(u64::try_from(lines.len()).unwrap_or(u64::MAX));
        (lines, after)
    }
}

fn lock() -> MutexGuard<'static, Ring> {
    RING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of the line before which there are so many, or as many as are kept.
pub fn last(count: u64) -> u64 {
    lock().next.saturating_sub(count)
}

/// At most so many lines from the one with this number, and the number of the line after them. Lines that are gone are skipped.
pub fn from(number: u64, most: usize) -> (Vec<Arc<str>>, u64) {
    lock().from(number, most)
}

/// The number of the next line, and each later one.
pub fn next() -> watch::Receiver<u64> {
    NEXT.subscribe()
}

/// Writes each event, which comes as one piece, as a line of the ring.
#[derive(Clone, Copy)]
pub(super) struct RingWriter;

impl io::Write for RingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let next = lock().push(String::from_utf8_lossy(bytes).trim_end());
        NEXT.send_replace(next);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for RingWriter {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        *self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_keeps_the_last_lines_and_numbers_go_on() {
        let mut ring = Ring { lines: VecDeque::new(), bytes: 0, next: 0 };
        for number in 0..LINES_MAX + 5 {
            ring.push(&format!("line {number}"));
        }
        let next = u64::try_from(LINES_MAX + 5).unwrap();
        assert_eq!(ring.from(0, 1), (vec!["line 5".into()], 6), "the oldest that is kept");
        assert_eq!(ring.from(next - 2, 10), (vec!["line 10003".into(), "line 10004".into()], next));
        assert_eq!(ring.from(next, 10), (Vec::new(), next));
        ring.push(&"x".repeat(BYTES_MAX));
        assert_eq!((ring.lines.len(), ring.bytes), (1, BYTES_MAX));
        ring.push(&"x".repeat(BYTES_MAX + 1));
        assert_eq!((ring.lines.len(), ring.bytes), (0, 0));
    }
}
