//! Virtual time, its planned events, and the only source of random numbers. Events of one moment have a fixed order: the
//! queue is ordered by time, and then by the order of insertion.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use jiff::Timestamp;

use crate::random::Random;
use crate::world::World;

/// An event: a change of the world.
pub type Act = Box<dyn FnOnce(&mut World) + Send>;

/// The position of an event in the queue.
pub type Key = (Duration, u64);

pub enum Due {
    Wake(Waker),
    Act(Act),
}

/// Clones share the time.
#[derive(Clone)]
pub struct Timeline {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    now: Duration,
    last: u64,
    queue: BTreeMap<Key, Due>,
    random: Random,
    log: Vec<String>,
    faults: BTreeMap<&'static str, u64>,
}

/// The time of day at the start of a simulation.
pub fn start_of_time() -> Timestamp {
    Timestamp::from_second(1_767_225_600).unwrap()
}

impl Timeline {
    pub fn new(seed: u64) -> Self {
        let inner = Inner {
            now: Duration::ZERO,
            last: 0,
            queue: BTreeMap::new(),
            random: Random::scattered(seed),
            log: Vec::new(),
            faults: BTreeMap::new(),
        };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// The time since the start.
    pub fn now(&self) -> Duration {
        self.lock().now
    }

    /// The true time of day.
    pub fn wall(&self) -> Timestamp {
        start_of_time() + self.now()
    }

    pub fn chance<T>(&self, draw: impl FnOnce(&mut Random) -> T) -> T {
        draw(&mut self.lock().random)
    }

    pub fn at(&self, time: Duration, act: impl FnOnce(&mut World) + Send + 'static) {
        self.put(time, Due::Act(Box::new(act)));
    }

    pub fn after(&self, pause: Duration, act: impl FnOnce(&mut World) + Send + 'static) {
        self.at(self.now() + pause, act);
    }

    pub fn wake_at(&self, time: Duration, waker: Waker) -> Key {
        self.put(time, Due::Wake(waker))
    }

    fn put(&self, time: Duration, due: Due) -> Key {
        let mut inner = self.lock();
        inner.last += 1;
        let key = (time.max(inner.now), inner.last);
        inner.queue.insert(key, due);
        key
    }

    pub fn cancel(&self, key: Key) {
        let cancelled = self.lock().queue.remove(&key);
        drop(cancelled);
    }

    /// Takes the first event that is due by `end` and moves the time to it; without one, moves the time to `end`.
    pub fn next(&self, end: Duration) -> Option<Due> {
        let mut inner = self.lock();
        let first = inner.queue.first_key_value().map(|((time, _), _)| *time);
        if first.is_none_or(|time| time > end) {
            inner.now = end.max(inner.now);
            return None;
        }
        let ((time, _), due) = inner.queue.pop_first()?;
        inner.now = time;
        Some(due)
    }

    /// Drops all planned events.
    pub fn clear(&self) {
        let queue = std::mem::take(&mut self.lock().queue);
        drop(queue);
    }

    /// Writes a line of the log.
    pub fn log(&self, text: impl AsRef<str>) {
        let mut inner = self.lock();
        let line = format!("{:>10.4} {}", inner.now.as_secs_f64(), text.as_ref());
        inner.log.push(line);
    }

    /// Counts a fault of this kind.
    pub fn fault(&self, kind: &'static str) {
        *self.lock().faults.entry(kind).or_default() += 1;
    }

    pub fn faults(&self) -> BTreeMap<&'static str, u64> {
        self.lock().faults.clone()
    }

    pub fn lines(&self) -> Vec<String> {
        self.lock().log.clone()
    }
}
