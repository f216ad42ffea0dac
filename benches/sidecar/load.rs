//! An application with jobs that fire every second, and its record of each execution.
//!
//! The application is one thread with one connection. A job's work takes no time. Each execution is reported
//! as soon as the job's last report has been answered. All executions that came in the meantime go into one
//! report.

use std::pin::pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::{BoxFuture, OptionFuture, join_all};
use sidekeeper::proto;
use sidekeeper::proto::{CompletionStatus, ExecutionSource};
use tokio::sync::watch;

use crate::application::{self, Client, Job};

/// How long the last executions may take to be recorded after the measured time.
const RECORD_TIME: Duration = Duration::from_millis(1500);
/// The most results that a sidecar takes in one report.
const REPORT_MAX: usize = 10_000;

/// The jobs, and the time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) jobs: usize,
    /// Items of each job.
    pub(crate) items: u32,
    /// Whole seconds between the last attachment and the measured time.
    pub(crate) warm_up: u64,
    /// The measured time in seconds; each job fires once a second.
    pub(crate) seconds: u64,
}

/// One execution, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Execution {
    /// The number of the job, and the item.
    pub(crate) item: (usize, u32),
    /// Whether it is a fire at its time, not a misfire re-run.
    pub(crate) on_time: bool,
    pub(crate) scheduled: u64,
    /// When the application had the message.
    pub(crate) received: u64,
    /// When the application had the answer that the result is recorded.
    pub(crate) recorded: u64,
}

/// The application's record.
pub(crate) struct Seen {
    pub(crate) executions: Vec<Execution>,
    /// The begin of the measured time.
    pub(crate) from: u64,
    pub(crate) until: u64,
}

impl Seen {
    /// The executions of the measured time's fires.
    pub(crate) fn fired(&self) -> impl Iterator<Item = &Execution> {
        self.executions.iter().filter(|seen| (self.from..self.until).contains(&seen.scheduled))
    }

    /// How many executions were recorded in the measured time.
    pub(crate) fn recorded(&self) -> usize {
        self.executions.iter().filter(|seen| (self.from..self.until).contains(&seen.recorded)).count()
    }
}

/// Runs an application against the sidecar at this endpoint.
pub(crate) async fn run(endpoint: &str, load: Load) -> Seen {
    run_on(application::connect(endpoint).await, load).await
}

/// Runs an application on this connection.
pub(crate) async fn run_on(client: Client, load: Load) -> Seen {
    let (stop, stopped) = watch::channel(false);
    let (attached, mut all_attached) = watch::channel(0);
    let jobs: Vec<_> = (0..load.jobs)
        .map(|number| {
            let (client, stopped, attached) = (client.clone(), stopped.clone(), attached.clone());
            tokio::spawn(async move {
                let job = attach(client, number, load.items).await;
                attached.send_modify(|count| *count += 1);
                follow(job, number, stopped).await
            })
        })
        .collect();
    // The sender lives in this function.
    let _ = all_attached.wait_for(|count| *count == load.jobs).await;
    let from = (now() / SECOND + 1 + load.warm_up) * SECOND;
    let until = from + load.seconds * SECOND;
    tokio::time::sleep(Duration::from_nanos(until.saturating_sub(now())) + RECORD_TIME).await;
    stop.send_replace(true);
    let executions = join_all(jobs).await.into_iter().flat_map(|seen| seen.expect("no panic")).collect();
    Seen { executions, from, until }
}

const SECOND: u64 = 1_000_000_000;

async fn attach(client: Client, number: usize, items: u32) -> Job {
    Job::attach(client, &format!("bench-{items}-{number}"), application::job("* * * * * ?", items)).await
}

async fn follow(mut job: Job, number: usize, mut stopped: watch::Receiver<bool>) -> Vec<Execution> {
    let mut stopped = pin!(stopped.wait_for(|stopped| *stopped));
    let mut seen = Vec::new();
    let mut waiting: Vec<(String, Execution)> = Vec::new();
    let mut reported: Vec<Execution> = Vec::new();
    let mut report: OptionFuture<BoxFuture<'static, Vec<proto::CompletionRecord>>> = None.into();
    let mut in_flight = false;
    loop {
        if !in_flight && !waiting.is_empty() {
            let batch = waiting.drain(..waiting.len().min(REPORT_MAX));
            let (ids, executions): (Vec<_>, Vec<_>) = batch.unzip();
            reported = executions;
            let answer: BoxFuture<'static, _> = Box::pin(job.succeeded(ids));
            report = Some(answer).into();
            in_flight = true;
        }
        tokio::select! {
            biased;
            _ = &mut stopped => return seen,
            Some(records) = &mut report, if in_flight => {
                let recorded = now();
                let all = records.iter().all(|record| record.status() == CompletionStatus::Recorded);
                assert!(all && records.len() == reported.len(), "results that were not recorded");
                seen.extend(reported.drain(..).map(|execution| Execution { recorded, ..execution }));
                in_flight = false;
            }
            execute = job.execute() => waiting.push(received(number, execute)),
        }
    }
}

fn received(job: usize, execute: proto::Execute) -> (String, Execution) {
    let received = now();
    let on_time = execute.source() == ExecutionSource::Schedule;
    let scheduled = execute.scheduled_time.map_or(0, |time| {
        let part = |part: i64| u64::try_from(part).unwrap_or_default();
        part(time.seconds) * SECOND + part(time.nanos.into())
    });
    let item = (job, execute.item);
    (execute.execution_id, Execution { item, on_time, scheduled, received, recorded: 0 })
}

/// The time of day, in nanoseconds since 1970.
fn now() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX)
}
