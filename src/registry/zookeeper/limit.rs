//! The size of the requests that the servers accept (`jute.maxbuffer`). A server does not report it: it
//! breaks the connection with all other requests in flight, and the same request breaks the next connection.
//! A failing network looks the same. So a size counts as too large only when it has broken several
//! connections in a row, and the servers have never answered a request of that size. Decides nothing else.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Connections that must break with a size in flight before the size counts as too large: networks break
/// connections, too.
const BREAKS: u32 = 2;
/// A server that accepts less than this cannot serve the registry at all.
const FLOOR: usize = 16 * 1024;

/// The limit, if it is known. All sessions with an ensemble share it.
#[derive(Debug, Default)]
pub(super) struct RequestLimit {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// The size of the largest answered request.
    answered: usize,
    /// The smallest size that may have broken a connection, the number of broken connections, and the last of
    /// them.
    suspect: Option<(usize, u32, u64)>,
    /// The smallest size that is too large.
    limit: Option<usize>,
}

impl RequestLimit {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The smallest size that is too large, if one is known.
    pub(super) fn get(&self) -> Option<usize> {
        self.lock().limit
    }

    /// Records that a request of this size was answered.
    pub(super) fn answered(&self, bytes: usize) {
        if bytes < FLOOR {
            return;
        }
        let known = &mut *self.lock();
        known.answered = known.answered.max(bytes);
        known.suspect = known.suspect.filter(|(suspect, ..)| *suspect > known.answered);
    }

    /// Records that a request of this size was in flight when a connection broke; a number names the
    /// connection. Returns the limit if it is new.
    pub(super) fn broke(&self, bytes: usize, connection: u64) -> Option<usize> {
        let known = &mut *self.lock();
        if bytes < FLOOR || bytes <= known.answered || known.limit.is_some_and(|limit| bytes >= limit) {
            return None;
        }
        let (size, breaks, last) = known.suspect.unwrap_or((bytes, 0, connection.wrapping_add(1)));
        let breaks = if last == connection { breaks } else { breaks.saturating_add(1) };
        // Of several requests in flight the largest is the likeliest cause. Of several connections the
        // smallest such size counts.
        let size = if last == connection { size.max(bytes) } else { size.min(bytes) };
        if breaks < BREAKS {
            known.suspect = Some((size, breaks, connection));
            return None;
        }
        known.suspect = None;
        known.limit = Some(size);
        Some(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_breaks_two_connections_is_too_large() {
        let limit = RequestLimit::default();
        assert_eq!(limit.broke(200_000, 1), None);
        assert_eq!(limit.broke(300, 1), None);
        assert_eq!((limit.get(), limit.broke(180_000, 2)), (None, Some(180_000)));
        assert_eq!(limit.get(), Some(180_000));
        // A half of it is too large, too.
        assert_eq!((limit.broke(90_000, 3), limit.broke(90_000, 4)), (None, Some(90_000)));
        assert_eq!(limit.broke(200_000, 5), None);
    }

    #[test]
    fn a_network_that_breaks_connections_makes_nothing_too_large() {
        let limit = RequestLimit::default();
        limit.answered(250_000);
        for connection in 0..10 {
            assert_eq!(limit.broke(200_000, connection), None);
        }
        // Two requests in flight over one connection count as one break.
        assert_eq!((limit.broke(300_000, 11), limit.broke(400_000, 11)), (None, None));
        limit.answered(400_000);
        assert_eq!((limit.broke(300_000, 12), limit.broke(350_000, 13)), (None, None));
        assert_eq!(limit.get(), None);
    }
}
