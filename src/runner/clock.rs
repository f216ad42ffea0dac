//! The only reader of clocks and entropy, and an alarm that is exact to some tens of microseconds.
//!
//! A [`Clock`] belongs to a [`Machine`]: the one that the process runs on, or one of a test, which is replayed and on which
//! nothing happens by itself. On such a machine the whole sidecar without its sockets is replayed from a seed, on one thread. So
//! each select of the runner polls its inputs in a fixed order, and tasks that several orders could wake are woken in the order of
//! the seed.
//!
//! The runtime's own timer rounds up to whole milliseconds, which is most of the lateness that a fire may have. Instead, one
//! thread with a condition variable wakes all participants. It also notices when the time of day was set, and wakes all
//! sleepers then: a participant that is stepped too early does nothing.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use tokio::runtime::Handle;
use uuid::Uuid;

use crate::coordination::time::{Now, Wakeup};
use crate::registry::latch;

/// How often the time of day is compared with the monotonic clock while tasks sleep.
const STEP_CHECK: Duration = Duration::from_secs(1);
/// A difference between the two clocks that means that the time of day was set: above what slewing does in
/// [`STEP_CHECK`] (0.5 ms), below what a fire's punctuality would notice.
const STEP_MIN_MS: i64 = 5;

/// The machine that a sidecar runs on: its clocks, alarms, entropy and tasks.
pub trait Machine: Send + Sync + 'static {
    /// The time.
    fn now(&self) -> Now;

    /// Sleeps until the first of the two times. May wake too early, and does so when the time of day was set. Without any
    /// it sleeps for ever.
    fn sleep_until(&self, wakeup: Wakeup) -> BoxFuture<'static, ()>;

    /// A random number that cannot be guessed and does not repeat.
    fn unguessable(&self) -> Uuid;

    /// Starts a task, which cannot be cancelled.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// The monotonic time as other processes of the machine can read it. `None`: they cannot, or not surely.
    fn boottime(&self) -> Option<&Boottime>;
}

/// The kernel's `CLOCK_BOOTTIME`, on which all processes of a machine agree: one of them can send another an instant that
/// does not depend on when it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Boottime {
    /// Which clock it is, as `SessionChanged.boottime_clock` describes it.
    pub clock: String,
    /// The time that it showed when [`Now::mono`] was zero.
    pub start: Duration,
}

impl Boottime {
    /// The time that it shows at an instant of the monotonic clock, in nanoseconds. `None`: that is centuries ahead.
    pub fn nanoseconds(&self, mono: Duration) -> Option<u64> {
        u64::try_from(self.start.checked_add(mono)?.as_nanos()).ok()
    }
}

/// Reads the time, and wakes at a given one. Clones share the machine.
#[derive(Clone)]
pub struct Clock {
    machine: Arc<dyn Machine>,
}

/// The machine that this process runs on. Its thread ends with the last clock.
struct AlarmHandle {
    shared: Arc<Shared>,
    boottime: Option<Boottime>,
    /// Where tasks run, whichever thread starts them. `None`: where they are started.
    runtime: Option<Handle>,
}

struct Shared {
    start: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    sleepers: BTreeMap<(Duration, u64), Waker>,
    last_key: u64,
    /// When the thread wakes up by itself. `None`: it is awake, and looks at the sleepers before it waits.
    wakes_at: Option<Duration>,
    stopped: bool,
    /// Counts the times that the time of day was set.
    steps: u64,
}

impl Clock {
    /// A clock whose monotonic time begins now.
    pub fn start() -> Self {
        Self::of(Arc::new(AlarmHandle::start()))
    }

    /// The clock of this machine.
    pub fn of(machine: Arc<dyn Machine>) -> Self {
        Self { machine }
    }

    /// The time.
    pub fn now(&self) -> Now {
        self.machine.now()
    }

    /// The monotonic time as other processes of the machine can read it. `None`: they cannot, or not surely.
    pub fn boottime(&self) -> Option<&Boottime> {
        self.machine.boottime()
    }

    /// Sleeps until the first of the two times, or until the time of day was set. Without any it sleeps for ever.
    pub async fn sleep_until(&self, wakeup: Wakeup) {
        self.machine.sleep_until(wakeup).await;
    }

    /// Sleeps for this time.
    pub async fn sleep(&self, pause: Duration) {
        let until = self.now().mono.saturating_add(pause);
        while self.now().mono < until {
            self.sleep_until(Wakeup { wall: None, mono: Some(until) }).await;
        }
    }

    /// A random text that cannot be guessed and does not repeat: 32 hexadecimal digits.
    pub fn unguessable(&self) -> String {
        self.machine.unguessable().simple().to_string()
    }

    /// Starts a task, which cannot be cancelled. A comment at each call says what ends the task.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.machine.spawn(Box::pin(task));
    }
}

impl latch::Host for Clock {
    fn sleep(&self, pause: Duration) -> BoxFuture<'static, ()> {
        let clock = self.clone();
        Box::pin(async move { Self::sleep(&clock, pause).await })
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.machine.spawn(task);
    }

    fn contender(&self) -> Uuid {
        self.machine.unguessable()
    }
}

impl AlarmHandle {
    fn start() -> Self {
        let shared = Arc::new(Shared {
            start: since_boot(),
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
        });
        let thread = Arc::clone(&shared);
        let spawned = std::thread::Builder::new()
            .name("alarm".into())
            .stack_size(64 * 1024)
            .spawn(move || thread.run());
        if let Err(error) = spawned {
            tracing::error!(event = "ALARM_NOT_STARTED", %error, "cannot start the alarm thread; nothing will fire");
        }
        let boottime = boottime_clock().map(|clock| Boottime { clock, start: shared.start });
        Self { shared, boottime, runtime: Handle::try_current().ok() }
    }
}

impl Machine for AlarmHandle {
    fn now(&self) -> Now {
        self.shared.now()
    }

    fn sleep_until(&self, wakeup: Wakeup) -> BoxFuture<'static, ()> {
        let now = self.now();
        let wall = wakeup.wall.map(|wall| {
            let remaining = Duration::try_from(wall.duration_since(now.wall)).unwrap_or_default();
            now.mono.saturating_add(remaining)
        });
        let Some(deadline) = [wall, wakeup.mono].into_iter().flatten().min() else {
            return Box::pin(std::future::pending());
        };
        let shared = Arc::clone(&self.shared);
        let steps = shared.lock().steps;
        let mut sleep = Sleep { shared, key: None };
        Box::pin(poll_fn(move |context| sleep.poll(deadline, steps, context.waker())))
    }

    fn unguessable(&self) -> Uuid {
        Uuid::new_v4()
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        match &self.runtime {
            Some(runtime) => drop(runtime.spawn(task)),
            None => {
                #[expect(clippy::disallowed_methods, reason = "the one place where the runner starts tasks")]
                tokio::spawn(task);
            }
        }
    }

    fn boottime(&self) -> Option<&Boottime> {
        self.boottime.as_ref()
    }
}

impl Drop for AlarmHandle {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        self.shared.changed.notify_one();
    }
}

/// Takes its waker out of the alarm when it is dropped.
struct Sleep {
    shared: Arc<Shared>,
    key: Option<(Duration, u64)>,
}

impl Sleep {
    /// Whether it is over; otherwise leaves a waker. `steps`: how often the time of day had been set when it began.
    fn poll(&mut self, deadline: Duration, steps: u64, waker: &Waker) -> Poll<()> {
        let now = self.shared.now().mono;
        let mut state = self.shared.lock();
        if let Some(key) = self.key.take() {
            state.sleepers.remove(&key);
        }
        if now >= deadline || state.steps != steps {
            return Poll::Ready(());
        }
        state.last_key += 1;
        let key = (deadline, state.last_key);
        state.sleepers.insert(key, waker.clone());
        self.key = Some(key);
        let is_early = state.wakes_at.is_some_and(|at| deadline < at);
        drop(state);
        if is_early {
            self.shared.changed.notify_one();
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.shared.lock().sleepers.remove(&key);
        }
    }
}

impl Shared {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads clocks")]
    fn now(&self) -> Now {
        Now { wall: Timestamp::now(), mono: since_boot().saturating_sub(self.start) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut difference = self.difference_ms();
        let mut state = self.lock();
        while !state.stopped {
            let now = self.now().mono;
            let later = state.sleepers.split_off(&(now.saturating_add(Duration::from_nanos(1)), 0));
            let due = std::mem::replace(&mut state.sleepers, later);
            let next = state.sleepers.first_key_value().map(|((deadline, _), _)| *deadline);
            drop(state);
            due.into_values().for_each(Waker::wake);
            state = self.lock();
            state = match next {
                // A new sleeper, or the end, may have come while the state was not locked.
                _ if state.stopped => state,
                _ if state.sleepers.first_key_value().map(|((deadline, _), _)| *deadline) != next => state,
                None => {
                    state.wakes_at = Some(Duration::MAX);
                    self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
                }
                Some(next) => {
                    let now = self.now().mono;
                    let pause = next.saturating_sub(now).min(STEP_CHECK);
                    state.wakes_at = Some(now.saturating_add(pause));
                    let waited = self.changed.wait_timeout(state, pause);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            state.wakes_at = None;
            let difference_now = self.difference_ms();
            if difference_now.abs_diff(difference) >= STEP_MIN_MS.unsigned_abs() {
                state.steps += 1;
                let all = std::mem::take(&mut state.sleepers);
                all.into_values().for_each(Waker::wake);
            }
            difference = difference_now;
        }
    }

    /// The time of day less the monotonic time.
    fn difference_ms(&self) -> i64 {
        let now = self.now();
        now.wall.as_millisecond() - i64::try_from(now.mono.as_millis()).unwrap_or(i64::MAX)
    }
}

/// Time since the machine has started, also while it was asleep: a lease ends under a closed lid, too. A guest
/// does not see the time for which its virtual machine was paused, if the host does not report it.
pub fn since_boot() -> Duration {
    use nix::time::{ClockId, clock_gettime};
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
    // Elsewhere this one runs on during sleep, or there is none that does.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;
    // A kernel without this clock is older than the minimum of the standard library.
    clock_gettime(CLOCK).map_or(Duration::ZERO, Duration::from)
}

/// Which clock [`since_boot`] reads, if other processes can, too: kernel and time namespace.
#[cfg(target_os = "linux")]
fn boottime_clock() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = match std::fs::read_link("/proc/self/ns/time") {
        Ok(namespace) => namespace.into_os_string().into_string().ok()?,
        // A kernel without time namespaces.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(_) => return None,
    };
    Some(format!("{}/{namespace}", boot.trim())).filter(|_| !boot.trim().is_empty())
}

/// Elsewhere it is not certain that all processes read the same clock as [`since_boot`].
#[cfg(not(target_os = "linux"))]
fn boottime_clock() -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use futures::stream::FuturesUnordered;

    use super::*;

    #[tokio::test]
    async fn sleepers_wake_in_the_order_of_their_deadlines() {
        let machine = Arc::new(AlarmHandle::start());
        let clock = Clock::of(machine.clone());
        let start = clock.now().mono;
        let order = Arc::new(Mutex::new(Vec::new()));
        let sleepers = [300, 100, 200].map(|ms| {
            let (clock, machine, order) = (clock.clone(), Arc::clone(&machine), Arc::clone(&order));
            async move {
                let deadline = start + Duration::from_millis(ms);
                while clock.now().mono < deadline {
                    let steps = machine.shared.lock().steps;
                    clock.sleep_until(Wakeup { wall: None, mono: Some(deadline) }).await;
                    // Somebody may set the time of day, and a machine that stands still between two readings looks like that.
                    assert!(clock.now().mono >= deadline || machine.shared.lock().steps > steps);
                }
                order.lock().unwrap().push(ms);
            }
        });
        // Each runs when it is woken, also if all are woken late.
        let woken: FuturesUnordered<_> = sleepers.into_iter().collect();
        woken.collect::<()>().await;
        assert_eq!(*order.lock().unwrap(), [100, 200, 300]);
    }

    /// The thread is not notified of a sleeper for which it will be awake in time anyway. None may be forgotten for that.
    #[tokio::test]
    async fn sleepers_that_begin_and_give_up_at_any_time_all_wake() {
        let clock = Clock::start();
        let tasks = (0..8_u64).map(|task| {
            let clock = clock.clone();
            async move {
                for round in 0..200 {
                    let now = clock.now().mono;
                    let at = |micros| Wakeup { wall: None, mono: Some(now + Duration::from_micros(micros)) };
                    let given_up = clock.sleep_until(at((task * 131 + round * 17) % 700));
                    let sleep = clock.sleep_until(at((task * 37 + round * 211) % 900));
                    tokio::select! { biased; () = sleep => {} () = given_up => {} }
                }
            }
        });
        let all = tokio::time::timeout(Duration::from_secs(20), futures::future::join_all(tasks));
        all.await.expect("a sleeper does not wake");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn other_processes_read_the_same_instant() {
        use nix::time::{ClockId, clock_gettime};
        let clock = Clock::start();
        let read = || Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).unwrap()).as_nanos();
        let before = read();
        let ours = clock.boottime().unwrap().nanoseconds(clock.now().mono).unwrap();
        assert!((before..=read()).contains(&u128::from(ours)));
        let named = &clock.boottime().unwrap().clock;
        let (boot, _) = named.split_once('/').unwrap();
        assert!(boot.parse::<Uuid>().is_ok(), "{boot}");
        assert_eq!(*named, Clock::start().boottime().unwrap().clock);
    }

    #[tokio::test]
    async fn a_dropped_sleep_leaves_nothing() {
        let machine = AlarmHandle::start();
        let wakeup = Wakeup { wall: None, mono: Some(Duration::from_secs(3600)) };
        {
            let mut sleep = machine.sleep_until(wakeup);
            assert!(futures::poll!(&mut sleep).is_pending());
            assert_eq!(machine.shared.lock().sleepers.len(), 1);
        }
        assert!(machine.shared.lock().sleepers.is_empty());
    }
}
