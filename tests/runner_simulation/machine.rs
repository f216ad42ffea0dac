//! The simulated machine of a sidecar: its clocks follow virtual time, with an error on request.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use sidekeeper::coordination::time::Now;
use sidekeeper::coordination::time::Wakeup;
use sidekeeper::runner::clock::{Boottime, Machine};
use uuid::Uuid;

use crate::executor::{Process, Spawner};
use crate::timeline::{Key, Timeline, start_of_time};

/// More reads of a clock at one moment than any task needs that makes progress.
const READS_MAX: u64 = 100_000;

pub struct Virtual {
    timeline: Timeline,
    spawner: Spawner,
    process: Process,
    born: Duration,
    /// The error of the monotonic clock, in parts per million; positive: too fast.
    drift: i64,
    day: Arc<Mutex<Day>>,
}

#[derive(Default)]
struct Day {
    /// The error of the time of day; positive: ahead.
    ahead: SignedDuration,
    /// The number of times that the time of day was set.
    steps: u64,
    sleepers: BTreeMap<Key, Waker>,
    /// The time of the last read of a clock, and the number of reads at that time.
    looked: (Duration, u64),
}

impl Virtual {
    pub fn new(
        timeline: &Timeline,
        spawner: &Spawner,
        process: Process,
        drift: i64,
        ahead: SignedDuration,
    ) -> Self {
        Self {
            timeline: timeline.clone(),
            spawner: spawner.clone(),
            process,
            born: timeline.now(),
            drift,
            day: Arc::new(Mutex::new(Day { ahead, ..Day::default() })),
        }
    }

    /// Sets the time of day, and wakes all sleeping tasks.
    pub fn set_ahead(&self, ahead: SignedDuration) {
        let sleepers = {
            let mut day = self.day.lock().unwrap();
            day.ahead = ahead;
            day.steps += 1;
            day.sleepers.clone()
        };
        sleepers.into_values().for_each(Waker::wake);
    }

    fn mono(&self) -> Duration {
        self.mono_at(self.timeline.now())
    }

    /// The value of the monotonic clock at a true time.
    pub fn mono_at(&self, time: Duration) -> Duration {
        Duration::from_nanos(self.shown((time - self.born).as_nanos() as i64) as u64)
    }

    /// The value of the monotonic clock after so many true nanoseconds.
    fn shown(&self, age: i64) -> i64 {
        age + age / 1_000_000 * self.drift
    }

    /// The true time at which the monotonic clock shows at least this value.
    fn true_time(&self, mono: Duration) -> Duration {
        let wanted = mono.as_nanos().min(1 << 60) as i64;
        let mut age = wanted - wanted / (1_000_000 + self.drift) * self.drift;
        // At its wake-up, a task must read a time that is not before its deadline.
        while self.shown(age) < wanted {
            age += (wanted - self.shown(age)).max(1_000);
        }
        self.born + Duration::from_nanos(age as u64)
    }

    /// Fails when a task reads the clock again and again at one moment: it runs in a loop.
    fn record_read(&self) {
        let now = self.timeline.now();
        let mut day = self.day.lock().unwrap();
        day.looked = if day.looked.0 == now { (now, day.looked.1 + 1) } else { (now, 1) };
        let often = day.looked.1;
        drop(day);
        assert!(often < READS_MAX, "a task runs in a loop: it read the clock {often} times at one moment");
    }

    fn wall(&self, ahead: SignedDuration) -> Timestamp {
        self.timeline.wall() + ahead
    }
}

impl Machine for Virtual {
    fn now(&self) -> Now {
        self.record_read();
        let ahead = self.day.lock().unwrap().ahead;
        Now { wall: self.wall(ahead), mono: self.mono() }
    }

    fn sleep_until(&self, wakeup: Wakeup) -> BoxFuture<'static, ()> {
        let (ahead, steps) = {
            let day = self.day.lock().unwrap();
            (day.ahead, day.steps)
        };
        let wall = wakeup.wall.map(|wall| {
            let until = wall.duration_since(start_of_time()) - ahead;
            Duration::try_from(until).unwrap_or_default()
        });
        let mono =
            wakeup.mono.map(|mono| if mono <= self.mono() { Duration::ZERO } else { self.true_time(mono) });
        let Some(deadline) = [wall, mono].into_iter().flatten().min() else {
            return Box::pin(std::future::pending());
        };
        let (timeline, day) = (self.timeline.clone(), Arc::clone(&self.day));
        Box::pin(Sleep { timeline, day, deadline, steps, key: None })
    }

    fn unguessable(&self) -> Uuid {
        let (high, low) = self.timeline.chance(|random| (random.next(), random.next()));
        Uuid::from_u64_pair(high, low)
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.spawner.spawn(self.process, task);
    }

    /// The simulated applications use the remaining time of a lease.
    fn boottime(&self) -> Option<&Boottime> {
        None
    }
}

struct Sleep {
    timeline: Timeline,
    day: Arc<Mutex<Day>>,
    deadline: Duration,
    steps: u64,
    key: Option<Key>,
}

impl Sleep {
    fn forget(&mut self) {
        if let Some(key) = self.key.take() {
            self.timeline.cancel(key);
            self.day.lock().unwrap().sleepers.remove(&key);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.forget();
        if self.timeline.now() >= self.deadline || self.day.lock().unwrap().steps != self.steps {
            return Poll::Ready(());
        }
        let key = self.timeline.wake_at(self.deadline, context.waker().clone());
        self.day.lock().unwrap().sleepers.insert(key, context.waker().clone());
        self.key = Some(key);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.forget();
    }
}
