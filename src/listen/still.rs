//! For tests: a clock whose time passes only when the test sets it.

use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use tokio::sync::watch;
use uuid::Uuid;

use crate::coordination::time::Now;
use crate::coordination::time::Wakeup;
use crate::runner::clock::{Boottime, Machine};

/// A clock that stands still.
pub(crate) struct Still {
    /// The time of day, which never changes.
    pub(crate) wall: Timestamp,
    /// The monotonic time.
    pub(crate) mono: watch::Sender<Duration>,
}

impl Machine for Still {
    fn now(&self) -> Now {
        Now { wall: self.wall, mono: *self.mono.borrow() }
    }

    fn sleep_until(&self, wakeup: Wakeup) -> BoxFuture<'static, ()> {
        let mut now = self.mono.subscribe();
        Box::pin(async move {
            let _ = now.wait_for(|now| wakeup.mono.is_some_and(|until| *now >= until)).await;
        })
    }

    fn unguessable(&self) -> Uuid {
        Uuid::nil()
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        #[expect(clippy::disallowed_methods, reason = "the machine of a test")]
        tokio::spawn(task);
    }

    fn boottime(&self) -> Option<&Boottime> {
        None
    }
}
