//! The threads of a process as futures that somebody polls by hand: the scheduler chooses which one goes on, and each
//! goes on to its next request, sleep or wait. So blocking code can be written as it is in Java, without a thread.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use jiff::{SignedDuration, Timestamp};

use super::process::Process;

/// The condition that a thread waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Its turn.
    Turn,
    /// Its turn; a request is on its way, whose answer may get lost.
    Answer,
    /// An instant.
    Until(Timestamp),
    /// That something changes in the process after this count of changes, or an instant.
    Signal(u64, Option<Timestamp>),
}

pub struct Thread {
    future: Pin<Box<dyn Future<Output = ()>>>,
    pub wait: Wait,
}

impl Thread {
    pub fn new(future: impl Future<Output = ()> + 'static) -> Self {
        Self { future: Box::pin(future), wait: Wait::Turn }
    }

    pub fn can_go_on(&self, process: &Process) -> bool {
        match self.wait {
            Wait::Turn | Wait::Answer => true,
            Wait::Until(instant) => process.now() >= instant,
            Wait::Signal(seen, until) => {
                process.changes() != seen || until.is_some_and(|until| process.now() >= until)
            }
        }
    }

    /// Goes on to the next wait. Tells whether the thread has ended.
    pub fn go_on(&mut self, process: &Process) -> bool {
        let ended = self.future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        self.wait = process.wanted_wait();
        ended
    }
}

/// Waits once.
pub struct Pause<'a> {
    process: &'a Process,
    wait: Wait,
    has_waited: bool,
}

impl Future for Pause<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.has_waited {
            return Poll::Ready(());
        }
        self.has_waited = true;
        self.process.want_wait(self.wait);
        Poll::Pending
    }
}

impl Process {
    pub fn pause(&self, wait: Wait) -> Pause<'_> {
        Pause { process: self, wait, has_waited: false }
    }

    pub async fn sleep(&self, millis: i64) {
        self.pause(Wait::Until(self.now() + SignedDuration::from_millis(millis))).await;
    }

    /// Waits until something is there that another thread of this process makes.
    pub async fn wait_for<T>(&self, mut look: impl FnMut(&Self) -> Option<T>) -> T {
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            self.pause(Wait::Signal(self.changes(), None)).await;
        }
    }

    /// As [`Self::wait_for`], at the latest until an instant.
    pub async fn wait_until<T>(
        &self,
        until: Timestamp,
        mut look: impl FnMut(&Self) -> Option<T>,
    ) -> Option<T> {
        loop {
            if let Some(found) = look(self) {
                return Some(found);
            }
            if self.now() >= until {
                return None;
            }
            self.pause(Wait::Signal(self.changes(), Some(until))).await;
        }
    }

    /// An unchecked exception: whatever [`Self::catch`]es it goes on.
    pub async fn throw<T>(&self) -> T {
        self.is_thrown.set(true);
        std::future::pending().await
    }

    /// Does something until it is done, or throws. Tells what it gave.
    pub async fn catch<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if self.is_thrown.take() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// Starts another thread.
    pub fn spawn(self: &Rc<Self>, future: impl Future<Output = ()> + 'static) {
        self.spawned.borrow_mut().push(Thread::new(future));
    }
}
