//! Runs the tasks of all processes on one thread. The next ready task is drawn at random. The tasks of a paused process
//! do not run, and those of a killed process are dropped wherever they wait.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use futures::future::BoxFuture;

use crate::timeline::Timeline;

/// One process of a sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process(pub u64);

/// The number of a task.
pub type TaskId = u64;

/// More polls at one moment than any run without an endless loop needs.
const POLLS_MAX: usize = 100_000;

#[derive(Default)]
struct Queue {
    last: TaskId,
    ready: BTreeSet<TaskId>,
    started: Vec<(TaskId, Process, BoxFuture<'static, ()>)>,
}

/// Starts tasks. Clones start them in the same executor.
#[derive(Clone, Default)]
pub struct Spawner {
    queue: Arc<Mutex<Queue>>,
}

impl Spawner {
    pub fn spawn(&self, process: Process, task: BoxFuture<'static, ()>) -> TaskId {
        let mut queue = self.queue.lock().unwrap();
        queue.last += 1;
        let id = queue.last;
        queue.started.push((id, process, task));
        id
    }
}

struct Alarm {
    id: TaskId,
    queue: Arc<Mutex<Queue>>,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.queue.lock().unwrap().ready.insert(self.id);
    }
}

struct Task {
    process: Process,
    future: BoxFuture<'static, ()>,
    waker: Waker,
}

pub struct Executor {
    pub spawner: Spawner,
    tasks: BTreeMap<TaskId, Task>,
    paused: BTreeSet<Process>,
    /// One poll in so many is delayed, as by a busy processor; zero: none.
    pub lags: u64,
    pub polls: u64,
}

impl Executor {
    pub fn new() -> Self {
        Self {
            spawner: Spawner::default(),
            tasks: BTreeMap::new(),
            paused: BTreeSet::new(),
            lags: 0,
            polls: 0,
        }
    }

    /// Runs tasks until none is ready. The error is the panic of a task.
    pub fn run(&mut self, timeline: &Timeline) -> Result<(), String> {
        for _ in 0..POLLS_MAX {
            self.take_started();
            let Some(id) = self.draw(timeline) else { return Ok(()) };
            let Some(task) = self.tasks.get_mut(&id) else { continue };
            if self.lags > 0 && timeline.chance(|random| random.once_in(self.lags)) {
                let lag = timeline.chance(|random| random.millis(0, 30));
                timeline.wake_at(timeline.now() + lag, task.waker.clone());
                continue;
            }
            self.polls += 1;
            let mut context = Context::from_waker(&task.waker);
            let future = &mut task.future;
            let polled = std::panic::catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context)));
            match polled {
                Ok(Poll::Pending) => {}
                Ok(Poll::Ready(())) => drop(self.tasks.remove(&id)),
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().cloned();
                    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                    return Err(format!("a task has panicked: {}", text.unwrap_or_default()));
                }
            }
        }
        Err(format!("tasks have woken each other {POLLS_MAX} times at one moment"))
    }

    fn take_started(&mut self) {
        let mut queue = self.spawner.queue.lock().unwrap();
        for (id, process, future) in std::mem::take(&mut queue.started) {
            let waker = Waker::from(Arc::new(Alarm { id, queue: Arc::clone(&self.spawner.queue) }));
            self.tasks.insert(id, Task { process, future, waker });
            queue.ready.insert(id);
        }
    }

    /// Draws one of the ready tasks.
    fn draw(&self, timeline: &Timeline) -> Option<TaskId> {
        let mut queue = self.spawner.queue.lock().unwrap();
        queue.ready.retain(|id| self.tasks.contains_key(id));
        let can = |id: &&TaskId| self.tasks.get(id).is_some_and(|task| !self.paused.contains(&task.process));
        let count = queue.ready.iter().filter(can).count();
        let index = if count > 1 { timeline.chance(|random| random.below(count as u64)) } else { 0 };
        let id = queue.ready.iter().filter(can).nth(index as usize).copied()?;
        queue.ready.remove(&id);
        Some(id)
    }

    pub fn pause(&mut self, process: Process) {
        self.paused.insert(process);
    }

    pub fn resume(&mut self, process: Process) {
        self.paused.remove(&process);
    }

    /// Drops one task.
    pub fn drop_task(&mut self, id: TaskId) {
        self.take_started();
        drop(self.tasks.remove(&id));
    }

    /// Drops all tasks of a process.
    pub fn kill(&mut self, process: Process) {
        self.take_started();
        self.paused.remove(&process);
        let of_process = |(_, task): &(&TaskId, &Task)| task.process == process;
        let ids: Vec<_> = self.tasks.iter().filter(of_process).map(|(id, _)| *id).collect();
        for id in ids {
            drop(self.tasks.remove(&id));
        }
        // Tasks that destructors have started belong to the process, too.
        self.take_started();
        self.tasks.retain(|_, task| task.process != process);
    }

    pub fn tasks_of(&self, process: Process) -> usize {
        self.tasks.values().filter(|task| task.process == process).count()
    }
}
