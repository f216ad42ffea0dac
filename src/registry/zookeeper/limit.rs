//! How large requests may be that the servers take (`jute.maxbuffer`). A server does not say: it breaks the connection, with
//! everything else that is in flight, and the same request breaks the next one. So a size that has broken several
//! connections in a row, while nothing of that size was ever answered, is taken for too large. Decides nothing else.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Connections that have to break over it before a size counts as too large: networks break them as well.
const BREAKS: u32 = 2;
/// Servers that take less than this cannot serve the registry at all.
const FLOOR: usize = 16 * 1024;

/// The limit, as far as it is known. All sessions with an ensemble share it.
#[derive(Debug, Default)]
pub(super) struct RequestLimit {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// The largest request that was answered.
    answered: usize,
    /// The smallest request that may have broken a connection, how many it were, and the last of them.
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

    /// A request of this size was answered.
    pub(super) fn answered(&self, bytes: usize) {
        if bytes < FLOOR {
            return;
        }
        let known = &mut *self.lock();
        known.answered = known.answered.max(bytes);
        known.suspect = known.suspect.filter(|(suspect, ..)| *suspect > known.answered);
    }

    /// A request of this size was in flight when a connection broke, which is named by a number. Gives the limit if it is
    /// news.
    pub(super) fn broke(&self, bytes: usize, connection: u64) -> Option<usize> {
        let known = &mut *self.lock();
        if bytes < FLOOR || bytes <= known.answered || known.limit.is_some_and(|limit| bytes >= limit) {
            return None;
        }
        let (size, breaks, last) = known.suspect.unwrap_or((bytes, 0, connection.wrapping_add(1)));
        let breaks = if last == connection { breaks } else { breaks.saturating_add(1) };
        // Of several that were in flight the largest is the likeliest; of several connections the smallest of these.
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
        // Two in flight over one connection are one break.
        assert_eq!((limit.broke(300_000, 11), limit.broke(400_000, 11)), (None, None));
        limit.answered(400_000);
        assert_eq!((limit.broke(300_000, 12), limit.broke(350_000, 13)), (None, None));
        assert_eq!(limit.get(), None);
    }
}
