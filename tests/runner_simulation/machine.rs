//! The machine that a sidecar believes to run on: its clocks go by virtual time, a little wrong if that is wanted.

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
use crate::timeline::{Key, Timeline, dawn};

/// Looks at a clock at one moment that nobody needs who gets anything done.
const LOOKS_MAX: u64 = 100_000;

pub struct Virtual {
    timeline: Timeline,
    spawner: Spawner,
    process: Process,
    born: Duration,
    /// Parts in a million by which the monotonic clock is too fast.
    drift: i64,
    day: Arc<Mutex<Day>>,
}

#[derive(Default)]
struct Day {
    /// By how much the time of day is ahead.
    ahead: SignedDuration,
    /// How often it was set.
    steps: u64,
    sleepers: BTreeMap<Key, Waker>,
    /// When somebody last looked at a clock, and how often at that moment.
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

    /// Somebody sets the time of day.
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

    /// What the monotonic clock shows at a true time.
    pub fn mono_at(&self, time: Duration) -> Duration {
        Duration::from_nanos(self.shown((time - self.born).as_nanos() as i64) as u64)
    }

    /// What the monotonic clock shows when it has run for so long.
    fn shown(&self, age: i64) -> i64 {
        age + age / 1_000_000 * self.drift
    }

    /// When the monotonic clock shows at least this.
    fn true_time(&self, mono: Duration) -> Duration {
        let wanted = mono.as_nanos().min(1 << 60) as i64;
        let mut age = wanted - wanted / (1_000_000 + self.drift) * self.drift;
        // Who is woken has to see that it is time.
        while self.shown(age) < wanted {
            age += (wanted - self.shown(age)).max(1_000);
        }
        self.born + Duration::from_nanos(age as u64)
    }

    /// Whoever looks at the clock again and again at one moment turns in a loop.
    fn note_look(&self) {
        let now = self.timeline.now();
        let mut day = self.day.lock().unwrap();
        day.looked = if day.looked.0 == now { (now, day.looked.1 + 1) } else { (now, 1) };
        let often = day.looked.1;
        drop(day);
        assert!(often < LOOKS_MAX, "somebody turns in a loop: the clock was looked at {often} times at once");
    }

    fn wall(&self, ahead: SignedDuration) -> Timestamp {
        self.timeline.wall() + ahead
    }
}

impl Machine for Virtual {
    fn now(&self) -> Now {
        self.note_look();
        let ahead = self.day.lock().unwrap().ahead;
        Now { wall: self.wall(ahead), mono: self.mono() }
    }

    fn sleep_until(&self, wakeup: Wakeup) -> BoxFuture<'static, ()> {
        let (ahead, steps) = {
            let day = self.day.lock().unwrap();
            (day.ahead, day.steps)
        };
        let wall = wakeup.wall.map(|wall| {
            let until = wall.duration_since(dawn()) - ahead;
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

    /// Applications go by how long a lease lasts.
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
