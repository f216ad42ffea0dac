//! Collects a bundle: reads the parts, one after the other, and sends the archive as it grows. [`crate::bundle`] decides what is written of
//! them, and [`shown`] does so for messages of the API. Shell.
//!
//! A part that cannot be read is left out, and the manifest says why: a bundle is collected when something is broken. Texts come after the fields
//! that have the names in them.

mod shown;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::stream::{BoxStream, Stream, StreamExt as _, iter};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::convert::InvalidRequest;
use super::finding::{check_to_message, jobs_to_messages, to_message};
use crate::bundle::archive::Archive;
use crate::bundle::nodes::{Owner, tree};
use crate::bundle::pseudonyms::{Kind, Pseudonyms};
use crate::bundle::{log, metrics, settings};
use crate::config::GivenSetting;
use crate::coordination::admin::doctor::Check;
use crate::coordination::admin::explain::Explanation;
use crate::elasticjob::field_error::FieldError;
use crate::findings::Cause;
use crate::job::JobName;
use crate::metrics::meters::Format;
use crate::proto;
use crate::proto::collect_bundle_response::Part as ProtoPart;
use crate::registry::Session;
use crate::runner::admin::check_deployment::{self, JobChecked};
use crate::runner::admin::explain_job::{self, ExplainError};
use crate::runner::admin::machine::Machine;
use crate::runner::admin::{Namespace, read_nodes};
use crate::runner::attachments::registry::Attachments;
use crate::runner::clock::Clock;
use crate::runner::gauges;
use crate::runner::heartbeat::Heartbeat;
use crate::telemetry::ring;
use crate::tree::Path;

/// The most jobs whose nodes are collected. Each is in memory for a moment.
const JOBS_MAX: usize = 200;
/// The bytes of a message.
const CHUNK_BYTES: usize = 64 * 1024;
/// Pseudonyms in a message.
const PSEUDONYMS_PER_MESSAGE: usize = 1_000;
/// Messages that wait for a slow reader.
const QUEUE: usize = 4;
/// The time between the two readings of the metrics: long enough to see what grows.
const BETWEEN_METRICS: Duration = Duration::from_secs(10);

/// How long a bundle may take with its reader: thousands of jobs, and a slow network.
const LIMIT: Duration = Duration::from_secs(600);

/// The files, and what they have.
const FILES: [(&str, &str); 10] = [
    (
        "configuration.json",
        "the settings with their origins; of secrets, paths and names of people only whether they are set",
    ),
    ("system.json", "kernel, time zone databases, limits, control group, and the clock that processes share"),
    ("status.json", "the session with the registry, and the instances that are attached"),
    ("metrics-1.txt", "the metrics"),
    ("jobs/*.json", "the nodes of each job with their versions and transactions"),
    ("explain/*.json", "why the items of each job run or do not run"),
    ("doctor.json", "all checks of the sidecar, and of all jobs"),
    ("metrics-2.txt", "the metrics ten seconds later"),
    ("log.jsonl", "the log in memory, level INFO and above"),
    ("manifest.json", "the size and the hash of each file, and what was left out"),
];
/// Those of a sidecar only.
const OF_SIDECAR: [&str; 4] = ["status.json", "metrics-1.txt", "metrics-2.txt", "log.jsonl"];

/// A message, or why there is no bundle.
pub type Part = Result<proto::CollectBundleResponse, Status>;

/// The parts to collect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    jobs: Vec<JobName>,
    with_parameters: bool,
    with_pseudonyms: bool,
}

/// The parts that a request asks for.
pub fn read(request: &proto::CollectBundleRequest) -> Result<Wanted, InvalidRequest> {
    let mut errors = Vec::new();
    if request.job_names.len() > JOBS_MAX {
        let given = format!("{} names", request.job_names.len());
        errors.push(FieldError::new("job_names", &given, &format!("at most {JOBS_MAX}")));
    }
    let mut jobs = BTreeMap::new();
    for name in request.job_names.iter().take(JOBS_MAX) {
        match JobName::parse(name) {
            Ok(job) => {
                jobs.insert(name.clone(), job);
            }
            Err(error) => errors.push(FieldError::new("job_names", name, error.reason)),
        }
    }
    if !errors.is_empty() {
        return Err(InvalidRequest(errors));
    }
    Ok(Wanted {
        jobs: jobs.into_values().collect(),
        with_parameters: request.include_parameters,
        with_pseudonyms: request.with_pseudonyms,
    })
}

/// Whether the caller may see the job with this name.
pub type MaySee = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Where the parts come from.
pub struct Source {
    /// The session; `None`: there is none, so jobs are left out.
    pub session: Option<Arc<dyn Session>>,
    /// The node below which the jobs are.
    pub root: Path,
    /// The clock.
    pub clock: Clock,
    /// Which jobs the caller may see.
    pub may_see: MaySee,
    /// The settings.
    pub settings: Vec<GivenSetting>,
    /// The checks besides those of jobs.
    pub checks: Vec<Check>,
    /// The facts of a sidecar; `None`: a command asks the registry.
    pub sidecar: Option<OfSidecar>,
}

/// The facts that only a sidecar has.
pub struct OfSidecar {
    /// Its state.
    pub status: proto::GetStatusResponse,
    /// Its instances.
    pub attachments: Attachments,
    /// Its heartbeat.
    pub heartbeat: Heartbeat,
}

/// Collects a bundle. `held` is dropped at the end.
pub fn stream(source: Source, wanted: Wanted, held: impl Send + 'static) -> impl Stream<Item = Part> + Send {
    let (parts, messages) = mpsc::channel(QUEUE);
    let clock = source.clock.clone();
    // Ends with the bundle, with its reader, or with the time for it.
    clock.clone().spawn(async move {
        let now = clock.now().wall;
        let work = Work { pseudonyms: Pseudonyms::default(), archive: Some(Archive::new(seconds(now))) };
        let collector = Collector { source, wanted, work: Arc::new(Mutex::new(work)), parts: parts.clone() };
        let end = tokio::select! {
            biased; // A bundle that is ready is in time.
            end = collector.collect() => end,
            () = clock.sleep(LIMIT) => Err(End::Failed(Status::deadline_exceeded(format!(
                "the bundle was not ready and read within {LIMIT:?}; name some jobs"
            )))),
        };
        if let Err(End::Failed(status)) = end {
            // A reader that is gone, or does not read, does not get it.
            let _ = parts.try_send(Err(status));
        }
        drop(held);
    });
    ReceiverStream::new(messages)
}

fn seconds(time: jiff::Timestamp) -> u64 {
    u64::try_from(time.as_second()).unwrap_or_default()
}

/// Why the collecting ends early.
enum End {
    /// Nobody reads.
    Gone,
    /// It cannot go on.
    Failed(Status),
}

struct Work {
    pseudonyms: Pseudonyms,
    /// `None`: it is finished.
    archive: Option<Archive>,
}

impl Work {
    fn leave_out(&mut self, what: &str, why: &str) {
        if let Some(archive) = &mut self.archive {
            archive.leave_out(what, why);
        }
    }
}

struct Collector {
    source: Source,
    wanted: Wanted,
    work: Arc<Mutex<Work>>,
    parts: mpsc::Sender<Part>,
}

impl Collector {
    async fn collect(&self) -> Result<(), End> {
        self.send(ProtoPart::Contents(self.contents())).await?;
        self.learn().await;
        self.settings().await?;
        self.add(
            "system.json",
            |_, boottime: &Option<String>| in_json(&shown::machine(&Machine::read(), boottime)),
            self.clock_name(),
        )
        .await?;
        let begin = self.source.clock.now().mono;
        if let Some(sidecar) = &self.source.sidecar {
            let status = sidecar.status.clone();
            self.add(
                "status.json",
                |work, status| in_json(&shown::status(&mut work.pseudonyms, status)),
                status,
            )
            .await?;
            self.metrics("metrics-1.txt", sidecar).await?;
        }
        self.jobs().await?;
        self.doctor().await?;
        if let Some(sidecar) = &self.source.sidecar {
            let rest = begin.saturating_add(BETWEEN_METRICS).saturating_sub(self.source.clock.now().mono);
            tokio::select! {
                () = self.source.clock.sleep(rest) => {}
                () = self.parts.closed() => return Err(End::Gone),
            }
            self.metrics("metrics-2.txt", sidecar).await?;
            self.log().await?;
        }
        self.finish().await
    }

    fn lock(&self) -> MutexGuard<'_, Work> {
        lock(&self.work)
    }

    fn contents(&self) -> proto::BundleContents {
        let is_there =
            |(name, _): &&(&str, &str)| self.source.sidecar.is_some() || !OF_SIDECAR.contains(name);
        let file = |(name, about): &(&str, &str)| proto::BundleFile {
            name: (*name).to_owned(),
            about: (*about).to_owned(),
        };
        proto::BundleContents { files: FILES.iter().filter(is_there).map(file).collect() }
    }

    /// Learns the names that texts may have: of hosts, of the namespace, of all jobs.
    async fn learn(&self) {
        let jobs = match self.namespace() {
            Some(namespace) => read_nodes::all_names(namespace).await.map_err(|error| error.to_string()),
            None => Ok(Vec::new()),
        };
        let mut work = self.lock();
        settings::shown(&mut work.pseudonyms, &self.source.settings);
        work.pseudonyms.name(Kind::Namespace, self.source.root.as_str().trim_start_matches('/'));
        match jobs {
            Ok(jobs) => {
                for job in jobs {
                    work.pseudonyms.name(Kind::Job, job.as_str());
                }
            }
            Err(error) => {
                let why = work.pseudonyms.text(&error);
                work.leave_out("jobs", &why);
            }
        }
        if self.source.sidecar.is_none() {
            for name in OF_SIDECAR {
                work.leave_out(name, "no sidecar was asked");
            }
        }
        work.leave_out("secrets, checkpoints, the environment", "they are in no bundle");
        if !self.wanted.with_parameters {
            work.leave_out(
                "parameters of jobs and items, and texts that may quote them",
                "they were not asked for",
            );
        }
    }

    fn namespace(&self) -> Option<Namespace<'_>> {
        let Source { session, root, clock, .. } = &self.source;
        session.as_ref().map(|session| Namespace { session, root, clock })
    }

    fn clock_name(&self) -> Option<String> {
        self.source.clock.boottime().map(|boottime| boottime.clock.clone())
    }

    async fn settings(&self) -> Result<(), End> {
        let settings = self.source.settings.clone();
        let make = |work: &mut Work, settings: &Vec<GivenSetting>| {
            let (shown, left_out) = settings::shown(&mut work.pseudonyms, settings);
            for key in left_out {
                work.leave_out(&format!("the setting `{key}`"), UNCLASSIFIED);
            }
            in_json(&shown)
        };
        self.add("configuration.json", make, settings).await
    }

    async fn metrics(&self, name: &str, sidecar: &OfSidecar) -> Result<(), End> {
        let of = (sidecar.attachments.clone(), sidecar.heartbeat.clone());
        let make = |work: &mut Work, (attachments, heartbeat): &(Attachments, Heartbeat)| {
            let text =
                gauges::render(Format::OpenMetrics, attachments, heartbeat).map_err(io::Error::other)?;
            Ok(metrics::scrape(&mut work.pseudonyms, &text).into_bytes())
        };
        self.add(name, make, of).await
    }

    /// The nodes and the explanation of each job, until one cannot be read: the registry is away then.
    async fn jobs(&self) -> Result<(), End> {
        let Some(namespace) = self.namespace() else {
            self.lock().leave_out("jobs", "there is no session with the registry");
            return Ok(());
        };
        let jobs = if self.wanted.jobs.is_empty() {
            match read_nodes::all_names(namespace).await {
                Ok(jobs) => jobs.into_iter().filter(|job| (self.source.may_see)(job.as_str())).collect(),
                // `learn` has met the same error.
                Err(_) => return Ok(()),
            }
        } else {
            self.wanted.jobs.clone()
        };
        for (number, job) in jobs.iter().enumerate() {
            let rest = jobs.len().saturating_sub(number);
            if number >= JOBS_MAX {
                self.lock().leave_out(
                    &format!("{rest} jobs"),
                    &format!("a bundle has {JOBS_MAX} at most; name the jobs"),
                );
                return Ok(());
            }
            match self.job(namespace, job).await? {
                Ok(()) => {}
                Err(ExplainError::Unknown(_)) => {
                    let mut work = self.lock();
                    let name = work.pseudonyms.name(Kind::Job, job.as_str());
                    work.leave_out(&name, "the registry has no nodes of it");
                }
                Err(error) => {
                    let mut work = self.lock();
                    let why = work.pseudonyms.text(&error.to_string());
                    work.leave_out(&format!("{rest} jobs"), &why);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    async fn job(&self, namespace: Namespace<'_>, job: &JobName) -> Result<Result<(), ExplainError>, End> {
        let nodes = match read_nodes::read(namespace, job).await {
            Ok(nodes) => nodes,
            Err(error) => return Ok(Err(error)),
        };
        let name = self.lock().pseudonyms.name(Kind::Job, job.as_str());
        let with_parameters = self.wanted.with_parameters;
        let make = move |work: &mut Work, nodes: &read_nodes::JobNodes| {
            let names = &mut work.pseudonyms;
            in_json(&json!({
                "job_name": names.name(Kind::Job, nodes.root.name()),
                "nodes": tree(names, Owner::ElasticJob, &nodes.root, &nodes.nodes, with_parameters),
                "own_nodes": tree(names, Owner::Sidekeeper, &nodes.own_root, &nodes.own_nodes, with_parameters),
            }))
        };
        self.add(&format!("jobs/{name}.json"), make, nodes).await?;
        let explained = match &self.source.sidecar {
            Some(sidecar) => explain_job::explain(sidecar.attachments.shared(), job, &BTreeSet::new()).await,
            None => explain_job::explain_in(namespace, job, &BTreeSet::new()).await,
        };
        let (explanation, as_of) = match explained {
            Ok(explained) => explained,
            Err(error) => return Ok(Err(error)),
        };
        learn_locks(&mut self.lock().pseudonyms, &explanation);
        let explanation = if with_parameters { explanation } else { explanation.without_texts() };
        let make = |work: &mut Work, explained: &proto::ExplainJobResponse| {
            in_json(&shown::explanation(&mut work.pseudonyms, explained.clone()))
        };
        self.add(&format!("explain/{name}.json"), make, to_message(job, explanation, as_of)).await?;
        Ok(Ok(()))
    }

    async fn doctor(&self) -> Result<(), End> {
        let mut messages: Vec<_> = self.source.checks.iter().map(check_to_message).collect();
        match self.checked_jobs().await {
            Ok(jobs) => {
                let work = Arc::clone(&self.work);
                let jobs = jobs.inspect(move |(_, explained)| {
                    if let Ok(explanation) = explained {
                        learn_locks(&mut lock(&work).pseudonyms, explanation);
                    }
                });
                let mut jobs = std::pin::pin!(jobs_to_messages(jobs.boxed(), self.wanted.with_parameters));
                while let Some(answer) = jobs.next().await {
                    match answer {
                        Ok(message) => messages.push(message),
                        Err(status) => {
                            let mut work = self.lock();
                            let why = work.pseudonyms.text(status.message());
                            work.leave_out("checks of further jobs", &why);
                            break;
                        }
                    }
                }
            }
            Err(why) => {
                let mut work = self.lock();
                let why = work.pseudonyms.text(&why);
                work.leave_out("checks of jobs", &why);
            }
        }
        let make = |work: &mut Work, messages: &Vec<proto::CheckDeploymentResponse>| {
            let names = &mut work.pseudonyms;
            let checks: Vec<_> = messages.iter().map(|check| shown::check(names, check.clone())).collect();
            in_json(&checks)
        };
        self.add("doctor.json", make, messages).await
    }

    async fn checked_jobs(&self) -> Result<BoxStream<'static, JobChecked>, String> {
        let Source { session, root, clock, sidecar, may_see, .. } = &self.source;
        let may_see = |name: &str| may_see(name);
        let Some(session) = session else { return Ok(iter([]).boxed()) };
        let jobs = match sidecar {
            Some(sidecar) => check_deployment::jobs(sidecar.attachments.shared(), may_see).await,
            None => {
                check_deployment::jobs_in(Arc::clone(session), root.clone(), clock.clone(), may_see).await
            }
        };
        jobs.map_err(|error| error.to_string())
    }

    async fn log(&self) -> Result<(), End> {
        let (lines, _) = ring::from(0, usize::MAX);
        let with_texts = self.wanted.with_parameters;
        let make = move |work: &mut Work, lines: &Vec<Arc<str>>| {
            let log = log::lines(&mut work.pseudonyms, lines.iter().map(AsRef::as_ref), with_texts);
            for (field, count) in log.left_out {
                work.leave_out(&format!("the field `{field}` of {count} lines of the log"), UNCLASSIFIED);
            }
            if log.lines_left_out > 0 {
                work.leave_out(
                    &format!("{} lines of the log", log.lines_left_out),
                    "they are no JSON objects",
                );
            }
            Ok(log.text.into_bytes())
        };
        self.add("log.jsonl", make, lines).await
    }

    async fn finish(&self) -> Result<(), End> {
        let facts = BTreeMap::from([
            ("format", json!(1)),
            ("version", json!(env!("CARGO_PKG_VERSION"))),
            ("collected", json!(self.source.clock.now().wall.to_string())),
            ("asked", json!(if self.source.sidecar.is_some() { "sidecar" } else { "registry" })),
            ("include_parameters", json!(self.wanted.with_parameters)),
        ]);
        let (bytes, pseudonyms) = {
            let mut work = self.lock();
            let archive = work.archive.take().ok_or_else(|| failed("it is finished already"))?;
            let bytes = archive.finish(facts).map_err(|error| failed(&error.to_string()))?;
            let pseudonym = |(pseudonym, name): (&str, &str)| proto::BundlePseudonym {
                pseudonym: pseudonym.to_owned(),
                name: name.to_owned(),
            };
            (bytes, work.pseudonyms.all().map(pseudonym).collect::<Vec<_>>())
        };
        self.send_bytes(&bytes).await?;
        if self.wanted.with_pseudonyms {
            for pseudonyms in pseudonyms.chunks(PSEUDONYMS_PER_MESSAGE) {
                let pseudonyms = proto::BundlePseudonyms { pseudonyms: pseudonyms.to_vec() };
                self.send(ProtoPart::Pseudonyms(pseudonyms)).await?;
            }
        }
        Ok(())
    }

    /// Adds the file that `make` writes of the facts. Neither the writing nor the compression keeps other tasks waiting.
    async fn add<T: Send + 'static>(
        &self,
        name: &str,
        make: impl FnOnce(&mut Work, &T) -> io::Result<Vec<u8>> + Send + 'static,
        facts: T,
    ) -> Result<(), End> {
        let (work, file) = (Arc::clone(&self.work), name.to_owned());
        let made = spawn_blocking(move || {
            let mut work = lock(&work);
            let content = make(&mut work, &facts)?;
            match &mut work.archive {
                Some(archive) => archive.add(&file, &content),
                None => Ok(Vec::new()),
            }
        });
        let bytes = match made.await {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) => return Err(failed(&format!("{name}: {error}"))),
            Err(_) => return Err(failed(&format!("{name} could not be written"))),
        };
        self.send_bytes(&bytes).await
    }

    async fn send_bytes(&self, bytes: &[u8]) -> Result<(), End> {
        for chunk in bytes.chunks(CHUNK_BYTES) {
            self.send(ProtoPart::Chunk(chunk.to_vec())).await?;
        }
        Ok(())
    }

    async fn send(&self, part: ProtoPart) -> Result<(), End> {
        let message = proto::CollectBundleResponse { part: Some(part) };
        self.parts.send(Ok(message)).await.map_err(|_| End::Gone)
    }
}

/// Why something is left out that no table has.
const UNCLASSIFIED: &str = "it is not on the list of what may be in a bundle";

fn lock(work: &Mutex<Work>) -> MutexGuard<'_, Work> {
    work.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(why: &str) -> End {
    End::Failed(Status::internal(format!("the bundle could not be written: {why}")))
}

fn in_json(value: &impl serde::Serialize) -> io::Result<Vec<u8>> {
    Ok(serde_json::to_vec_pretty(value)?)
}

/// Learns the names of locks and of their holders, which are in sentences only.
fn learn_locks(pseudonyms: &mut Pseudonyms, explanation: &Explanation) {
    let of_items = explanation.items.iter().flat_map(|item| &item.because);
    for finding in explanation.findings.iter().chain(of_items) {
        if let Cause::ItemWaitsForLock { lock, holder, .. } = &finding.cause {
            pseudonyms.name(Kind::Lock, lock);
            pseudonyms.name(Kind::Contender, holder.as_deref().unwrap_or_default());
        }
    }
}
