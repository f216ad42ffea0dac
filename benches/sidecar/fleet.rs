//! A fleet: sidecars in processes of their own, and applications in this process that attach to many jobs.
//!
//! Each application has one connection to its sidecar, and one stream for each job. It reports each execution at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sidekeeper::proto::attach_response::Event;
use sidekeeper::proto::{
    AttachRequest, Execute, ExecutionOutcome, ExecutionResult, ReportCompletionRequest, SessionState,
};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::application::{self, Client};
use crate::host::application_runtime;
use crate::program::Program;

/// How often the fleet looks whether it has settled.
const LOOK: Duration = Duration::from_millis(50);
/// Connections of an application to its sidecar: a connection of HTTP/2 has a limit of streams.
const STREAMS_A_CONNECTION: usize = 200;

/// The sizes of a fleet. Each application attaches to each job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) sidecars: usize,
    /// Applications at each sidecar.
    pub(crate) applications: usize,
    pub(crate) jobs: usize,
    /// Items of each job.
    pub(crate) items: u32,
    /// The time over which the attachments are spread.
    pub(crate) spread: Duration,
}

impl Size {
    pub(crate) fn instances(self) -> usize {
        self.sidecars * self.applications * self.jobs
    }
}

/// What the applications have seen.
#[derive(Default)]
struct Seen {
    /// By job, then by the numbers of sidecar and application: the items.
    owned: BTreeMap<usize, BTreeMap<(usize, usize), Vec<u32>>>,
    /// Items that came to an instance.
    moves: usize,
    /// When an assignment changed last.
    changed: Option<Instant>,
    /// The executions: their scheduled instant and when they were received, since 1970.
    executions: Vec<(Duration, Duration)>,
    /// By job: the sidecar of its leader.
    leaders: BTreeMap<usize, usize>,
    /// Streams whose session is suspended.
    suspended: usize,
    /// Sessions that were lost, counted by stream.
    lost: usize,
}

pub(crate) struct Fleet {
    pub(crate) size: Size,
    pub(crate) programs: Vec<Option<Program>>,
    seen: Arc<Mutex<Seen>>,
    streams: Vec<JoinHandle<()>>,
    pub(crate) runtime: Runtime,
    began: Instant,
}

impl Fleet {
    /// Starts the sidecars, and then attaches all applications at once.
    pub(crate) fn start(size: Size, zookeeper: &str, options: &[&str], cron: &str) -> Self {
        let programs: Vec<_> =
            (0..size.sidecars).map(|_| Some(Program::start(Some(zookeeper), options))).collect();
        let runtime = application_runtime();
        let mut fleet = Self {
            size,
            programs,
            seen: Arc::default(),
            streams: Vec::new(),
            runtime,
            began: Instant::now(),
        };
        for sidecar in 0..size.sidecars {
            fleet.attach(sidecar, cron);
        }
        fleet
    }

    /// Starts one more sidecar, and attaches its applications. Returns its number.
    pub(crate) fn join(&mut self, zookeeper: &str, cron: &str) -> usize {
        self.programs.push(Some(Program::start(Some(zookeeper), &[])));
        let number = self.programs.len() - 1;
        self.attach(number, cron);
        number
    }

    /// Attaches the applications of one sidecar.
    pub(crate) fn attach(&mut self, sidecar: usize, cron: &str) {
        let Some(program) = self.programs.get(sidecar).and_then(Option::as_ref) else { return };
        let (endpoint, size) = (program.endpoint(), self.size);
        self.began = Instant::now();
        for application in 0..size.applications {
            for first in (0..size.jobs).step_by(STREAMS_A_CONNECTION) {
                let client = self.runtime.block_on(application::connect(&endpoint));
                for job in first..size.jobs.min(first + STREAMS_A_CONNECTION) {
                    let place = Place { seen: Arc::clone(&self.seen), job, instance: (sidecar, application) };
                    let configuration = application::job(cron, size.items);
                    let request = AttachRequest {
                        job_name: format!("storm-{job}"),
                        configuration: Some(configuration),
                        ..AttachRequest::default()
                    };
                    let (client, pause) = (client.clone(), self.pause());
                    self.streams.push(self.runtime.spawn(async move {
                        tokio::time::sleep(pause).await;
                        follow(client, request, place).await;
                    }));
                }
            }
        }
    }

    /// The pause before the next stream: any part of the spread, and no two the same.
    fn pause(&self) -> Duration {
        let (all, number) = (self.size.instances(), self.streams.len());
        let place = number.wrapping_mul(0x9E37_79B9) % all;
        let part = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        self.size.spread / part(all) * part(place)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the applications until each item has one owner, all shares are equal within one, and there are so many
    /// instances. Returns the time since the last call of `attach` or `begin` until the last change.
    pub(crate) fn settle(&mut self, instances: usize, limit: Duration) -> Option<Duration> {
        let began = self.began;
        self.wait_until(limit, |seen, size| is_settled(seen, size, instances))?;
        let changed = self.seen().changed.unwrap_or(began);
        Some(changed.saturating_duration_since(began))
    }

    /// Runs the applications until this holds. `None`: it did not in time.
    fn wait_until(&self, limit: Duration, holds: impl Fn(&Seen, Size) -> bool) -> Option<()> {
        let start = Instant::now();
        while !holds(&self.seen(), self.size) {
            if start.elapsed() > limit {
                return None;
            }
            self.run(LOOK);
        }
        Some(())
    }

    /// Runs the applications for a while.
    pub(crate) fn run(&self, time: Duration) {
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }

    /// The next measured times count from now.
    pub(crate) fn begin(&mut self) {
        self.began = Instant::now();
        let mut seen = self.seen();
        (seen.moves, seen.changed, seen.lost) = (0, None, 0);
        seen.executions.clear();
    }

    /// Items that came to an instance since the fleet began.
    pub(crate) fn moves(&self) -> usize {
        self.seen().moves
    }

    /// Ends one sidecar in order, and forgets its instances.
    pub(crate) fn drain(&mut self, sidecar: usize) {
        if let Some(mut program) = self.programs.get_mut(sidecar).and_then(Option::take) {
            program.terminate();
            // The applications' streams have to run while the sidecar drains.
            while !program.has_ended() {
                self.run(LOOK);
            }
        }
        for instances in self.seen().owned.values_mut() {
            instances.retain(|(at, _), _| *at != sidecar);
        }
    }

    /// Runs until no session of a stream is suspended any more, if one was. Returns the sessions that were lost.
    pub(crate) fn resume(&self, limit: Duration) -> Option<usize> {
        self.wait_until(limit, |seen, _| seen.suspended == 0)?;
        Some(self.seen().lost)
    }

    /// The sidecar whose instance leads a job.
    pub(crate) fn leader(&self, job: usize) -> Option<usize> {
        self.seen().leaders.get(&job).copied()
    }

    pub(crate) fn suspended(&self) -> usize {
        self.seen().suspended
    }

    /// Runs until so many executions were received. Returns for each how late it was.
    pub(crate) fn executions(&self, count: usize, limit: Duration) -> Vec<Duration> {
        let _ = self.wait_until(limit, |seen, _| seen.executions.len() >= count);
        let seen = self.seen();
        seen.executions.iter().map(|(scheduled, received)| received.saturating_sub(*scheduled)).collect()
    }

    /// Processor time and resident memory (in MiB) of each sidecar, the highest.
    pub(crate) fn costs(&self) -> (Duration, u64) {
        let programs = || self.programs.iter().flatten();
        let cpu = programs().map(Program::cpu_time).max().unwrap_or_default();
        (cpu, programs().map(Program::resident).max().unwrap_or_default() / 1024)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for stream in &self.streams {
            stream.abort();
        }
    }
}

fn is_settled(seen: &Seen, size: Size, instances: usize) -> bool {
    let all: usize = seen.owned.values().map(BTreeMap::len).sum();
    all == instances && seen.owned.len() == size.jobs && seen.owned.values().all(|job| is_balanced(job, size))
}

fn is_balanced(job: &BTreeMap<(usize, usize), Vec<u32>>, size: Size) -> bool {
    let mut items: Vec<_> = job.values().flatten().copied().collect();
    items.sort_unstable();
    let shares = || job.values().map(Vec::len);
    let spread = shares().max().unwrap_or_default() - shares().min().unwrap_or_default();
    items.into_iter().eq(0..size.items) && spread <= 1
}

/// The place of a stream in what was seen.
struct Place {
    seen: Arc<Mutex<Seen>>,
    job: usize,
    instance: (usize, usize),
}

impl Place {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Attaches, and reads all events until the stream ends.
async fn follow(mut client: Client, request: AttachRequest, place: Place) {
    let Ok(events) = client.attach(request).await else { return };
    let (mut events, mut attachment, mut is_suspended) = (events.into_inner(), String::new(), false);
    while let Ok(Some(message)) = events.message().await {
        match message.event {
            Some(Event::Attached(attached)) => attachment = attached.attachment_id,
            Some(Event::AssignmentChanged(changed)) => {
                let items = changed.assignment.unwrap_or_default().items;
                let items = items.into_iter().map(|assigned| assigned.item).collect();
                let mut seen = place.seen();
                seen.moves += changed.added_items.len();
                seen.changed = Some(Instant::now());
                seen.owned.entry(place.job).or_default().insert(place.instance, items);
            }
            Some(Event::Execute(execute)) => {
                place.seen().executions.push((scheduled(&execute), since_1970()));
                let outcome = ExecutionOutcome::Success.into();
                let execution_id = execute.execution_id;
                let result = ExecutionResult { execution_id, outcome, failure_message: String::new() };
                let report =
                    ReportCompletionRequest { attachment_id: attachment.clone(), results: vec![result] };
                let mut client = client.clone();
                tokio::spawn(async move { client.report_completion(report).await });
            }
            Some(Event::LeadershipChanged(changed)) if changed.leader => {
                place.seen().leaders.insert(place.job, place.instance.0);
            }
            Some(Event::SessionChanged(changed)) => {
                let mut seen = place.seen();
                let suspended = changed.state() != SessionState::Connected;
                seen.lost += usize::from(changed.state() == SessionState::Lost);
                match (is_suspended, suspended) {
                    (false, true) => seen.suspended += 1,
                    (true, false) => seen.suspended -= 1,
                    _ => {}
                }
                is_suspended = suspended;
            }
            _ => {}
        }
    }
}

fn scheduled(execute: &Execute) -> Duration {
    let time = execute.scheduled_time.unwrap_or_default();
    let seconds = u64::try_from(time.seconds).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.nanos).unwrap_or_default())
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
