//! The counters of a sidecar, and the text that Prometheus reads.
//!
//! A participant holds the counters of its job, so an execution costs a few atomic additions. [`Meters::render`] writes them together with
//! the state of that moment. Only so many jobs have series of their own, the first ones that come; further jobs share [`OTHER`]. The series
//! of a job stay for an hour after its last participant, so that Prometheus sees its last values.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use prometheus_client::encoding::{
    EncodeLabelSet, EncodeLabelValue, LabelValueEncoder, prometheus_text, text,
};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric as Encoded, Registry};

use super::OTHER;
use super::state::State;
use super::table::{self, Metric, PREFIX};
use super::words::{Answer, Cancel, Job, Level, Outcome, Request, Source};
use crate::job::JobName;

/// How long the series of a job stay after its last participant.
const KEPT: Duration = Duration::from_secs(60 * 60);

/// From 1 ms, the best that a schedule can expect, to 5 min.
const LATENESS: [f64; 16] =
    [0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 120.0, 300.0];
/// From 10 ms to 6 h: executions are seconds of work, or a night's.
const DURATION: [f64; 16] = [
    0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 600.0, 1_800.0, 3_600.0, 7_200.0, 14_400.0,
    21_600.0,
];
/// Requests to the registry, and calls.
const REQUEST: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 2.5, 10.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfJob {
    job_name: Job,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfExecution {
    job_name: Job,
    source: Source,
    outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCancel {
    job_name: Job,
    reason: Cancel,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRequest {
    kind: Request,
    answer: Answer,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    kind: Request,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCall {
    method: &'static str,
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfMethod {
    method: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfLevel {
    level: Level,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfTrace {
    trace_id: TraceId,
}

/// The id of a trace. It becomes text only if it is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct TraceId([u8; 16]);

impl EncodeLabelValue for TraceId {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        write!(encoder, "{:032x}", u128::from_be_bytes(self.0))
    }
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;
/// Each bucket keeps an exemplar of the last trace.
type Exemplified = HistogramWithExemplars<OfTrace>;
type ExemplifiedOfJobs = Family<OfJob, Exemplified, fn() -> Exemplified>;

fn histograms<L: Clone + Hash + Eq>(make: fn() -> Histogram) -> Histograms<L> {
    Family::new_with_constructor(make)
}

/// An execution that stands for its bucket of a histogram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exemplar {
    /// The id of its trace.
    pub trace_id: [u8; 16],
    /// When it was measured.
    pub at: SystemTime,
}

/// A histogram of one job. All executions of a fire have one trace, and a bucket has an exemplar of it once: to keep each of them costs as much as to
/// count them.
#[derive(Debug)]
struct Examples {
    histogram: Exemplified,
    bounds: &'static [f64],
    /// The trace of each bucket's exemplar.
    traces: Mutex<Vec<[u8; 16]>>,
}

impl Examples {
    fn new(histogram: Exemplified, bounds: &'static [f64]) -> Self {
        // No trace has zeros for an id. The last bucket has no bound.
        let traces = Mutex::new(vec![[0; 16]; bounds.len().saturating_add(1)]);
        Self { histogram, bounds, traces }
    }

    fn observe(&self, measured: Duration, exemplar: Option<Exemplar>) {
        let seconds = measured.as_secs_f64();
        let exemplar = exemplar.filter(|exemplar| self.is_new(seconds, exemplar.trace_id));
        let (trace, at) =
            exemplar.map(|Exemplar { trace_id, at }| (OfTrace { trace_id: TraceId(trace_id) }, at)).unzip();
        self.histogram.observe(seconds, trace, at);
    }

    /// Whether its bucket has an exemplar of another trace, or none.
    fn is_new(&self, seconds: f64, trace: [u8; 16]) -> bool {
        let bucket = self.bounds.partition_point(|bound| *bound < seconds);
        let mut traces = self.traces.lock().unwrap_or_else(PoisonError::into_inner);
        traces.get_mut(bucket).is_some_and(|known| std::mem::replace(known, trace) != trace)
    }
}

/// The form of the text for a scrape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0, with exemplars.
    OpenMetrics,
    /// Prometheus's text format 0.0.4, which has none.
    Plain,
}

/// The series of all jobs.
struct JobFamilies {
    lateness: ExemplifiedOfJobs,
    executions: Family<OfExecution, Counter>,
    duration: ExemplifiedOfJobs,
    lost: Family<OfJob, Counter>,
    running: Family<OfJob, Gauge>,
    pending: Family<OfJob, Gauge>,
    retries: Family<OfJob, Counter>,
    given_up: Family<OfJob, Counter>,
    cancels: Family<OfCancel, Counter>,
    misfires: Family<OfJob, Counter>,
    skipped: Family<OfJob, Counter>,
    reshardings: Family<OfJob, Counter>,
    received: Family<OfJob, Counter>,
}

impl JobFamilies {
    fn new(registry: &mut Registry) -> Self {
        let lateness: fn() -> _ = || HistogramWithExemplars::new(LATENESS.into_iter());
        let duration: fn() -> _ = || HistogramWithExemplars::new(DURATION.into_iter());
        let families = Self {
            lateness: Family::new_with_constructor(lateness),
            executions: Family::default(),
            duration: Family::new_with_constructor(duration),
            lost: Family::default(),
            running: Family::default(),
            pending: Family::default(),
            retries: Family::default(),
            given_up: Family::default(),
            cancels: Family::default(),
            misfires: Family::default(),
            skipped: Family::default(),
            reshardings: Family::default(),
            received: Family::default(),
        };
        register(registry, &table::TRIGGER_LATENESS, families.lateness.clone());
        register(registry, &table::EXECUTIONS, families.executions.clone());
        register(registry, &table::EXECUTION_DURATION, families.duration.clone());
        register(registry, &table::EXECUTIONS_LOST, families.lost.clone());
        register(registry, &table::EXECUTIONS_RUNNING, families.running.clone());
        register(registry, &table::COMPLETIONS_PENDING, families.pending.clone());
        register(registry, &table::RETRIES, families.retries.clone());
        register(registry, &table::RETRIES_GIVEN_UP, families.given_up.clone());
        register(registry, &table::CANCELS, families.cancels.clone());
        register(registry, &table::MISFIRES, families.misfires.clone());
        register(registry, &table::FIRES_SKIPPED, families.skipped.clone());
        register(registry, &table::RESHARDINGS, families.reshardings.clone());
        register(registry, &table::ITEMS_RECEIVED, families.received.clone());
        families
    }

    /// All series of a job. Prometheus sees them from the beginning, so that the first failure is an increase.
    fn job(&self, name: &Job) -> JobMeters {
        let of_job = OfJob { job_name: name.clone() };
        let mut executions = BTreeMap::new();
        for source in Source::ALL {
            for outcome in Outcome::ALL {
                let labels = OfExecution { job_name: name.clone(), source: *source, outcome: *outcome };
                executions.insert((*source, *outcome), self.executions.get_or_create_owned(&labels));
            }
        }
        let cancel = |reason: &Cancel| {
            let labels = OfCancel { job_name: name.clone(), reason: *reason };
            (*reason, self.cancels.get_or_create_owned(&labels))
        };
        JobMeters {
            lateness: Examples::new(self.lateness.get_or_create_owned(&of_job), &LATENESS),
            executions,
            duration: Examples::new(self.duration.get_or_create_owned(&of_job), &DURATION),
            lost: self.lost.get_or_create_owned(&of_job),
            running: self.running.get_or_create_owned(&of_job),
            pending: self.pending.get_or_create_owned(&of_job),
            retries: self.retries.get_or_create_owned(&of_job),
            given_up: self.given_up.get_or_create_owned(&of_job),
            cancels: Cancel::ALL.iter().map(cancel).collect(),
            misfires: self.misfires.get_or_create_owned(&of_job),
            skipped: self.skipped.get_or_create_owned(&of_job),
            reshardings: self.reshardings.get_or_create_owned(&of_job),
            received: self.received.get_or_create_owned(&of_job),
            last_fire: AtomicU64::new(0),
        }
    }

    fn forget(&self, name: &Job) {
        let of_job = OfJob { job_name: name.clone() };
        for source in Source::ALL {
            for outcome in Outcome::ALL {
                let labels = OfExecution { job_name: name.clone(), source: *source, outcome: *outcome };
                self.executions.remove(&labels);
            }
        }
        for reason in Cancel::ALL {
            self.cancels.remove(&OfCancel { job_name: name.clone(), reason: *reason });
        }
        self.lateness.remove(&of_job);
        self.duration.remove(&of_job);
        self.running.remove(&of_job);
        self.pending.remove(&of_job);
        let counters = [&self.lost, &self.retries, &self.given_up, &self.misfires, &self.skipped];
        for counters in counters.into_iter().chain([&self.reshardings, &self.received]) {
            counters.remove(&of_job);
        }
    }
}

/// The counters of one job. All participants of the job share them.
#[derive(Debug)]
pub struct JobMeters {
    lateness: Examples,
    executions: BTreeMap<(Source, Outcome), Counter>,
    duration: Examples,
    /// [`table::EXECUTIONS_LOST`].
    pub lost: Counter,
    /// [`table::EXECUTIONS_RUNNING`].
    pub running: Gauge,
    /// [`table::COMPLETIONS_PENDING`].
    pub pending: Gauge,
    /// [`table::RETRIES`].
    pub retries: Counter,
    /// [`table::RETRIES_GIVEN_UP`].
    pub given_up: Counter,
    cancels: BTreeMap<Cancel, Counter>,
    /// [`table::MISFIRES`].
    pub misfires: Counter,
    /// [`table::FIRES_SKIPPED`].
    pub skipped: Counter,
    /// [`table::RESHARDINGS`].
    pub reshardings: Counter,
    /// [`table::ITEMS_RECEIVED`].
    pub received: Counter,
    /// [`table::JOB_LAST_FIRE`] in milliseconds. 0: there was none.
    last_fire: AtomicU64,
}

impl JobMeters {
    /// Counts an execution that was reported. `lasted`: since its start, if that is known.
    pub fn reported(
        &self,
        source: Source,
        outcome: Outcome,
        lasted: Option<Duration>,
        exemplar: Option<Exemplar>,
    ) {
        if let Some(counter) = self.executions.get(&(source, outcome)) {
            counter.inc();
        }
        if let Some(lasted) = lasted {
            self.duration.observe(lasted, exemplar);
        }
    }

    /// Counts a cancel.
    pub fn cancelled(&self, reason: Cancel) {
        if let Some(counter) = self.cancels.get(&reason) {
            counter.inc();
        }
    }

    /// Records a fire of the schedule whose execution was handed over so long after its instant.
    pub fn fired(&self, instant_ms: u64, late: Duration, exemplar: Option<Exemplar>) {
        self.lateness.observe(late, exemplar);
        self.last_fire.fetch_max(instant_ms, Ordering::Relaxed);
    }

    /// The last fire, in milliseconds of the Unix time. `None`: there was none.
    pub fn last_fire_ms(&self) -> Option<u64> {
        Some(self.last_fire.load(Ordering::Relaxed)).filter(|at| *at > 0)
    }
}

/// A request whose answer has not come.
pub(super) struct Waiting(Gauge);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The jobs that have series of their own.
struct Jobs {
    known: BTreeMap<JobName, Known>,
    /// For all others.
    other: Option<Arc<JobMeters>>,
}

struct Known {
    meters: Arc<JobMeters>,
    /// Since when it has no participant, on the monotonic clock; as far as anybody has looked.
    gone: Option<Duration>,
}

impl Known {
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.meters) > 1
    }
}

/// All counters of a sidecar. Clones share them.
#[derive(Clone)]
pub struct Meters {
    inner: Arc<Inner>,
}

struct Inner {
    registry: Registry,
    namespace: String,
    jobs_max: usize,
    families: JobFamilies,
    jobs: Mutex<Jobs>,
    requests: Family<OfRequest, Counter>,
    request_duration: Histograms<OfKind>,
    requests_waiting: Gauge,
    sessions_lost: Counter,
    slow_readers: Counter,
    calls: Family<OfCall, Counter>,
    call_duration: Histograms<OfMethod>,
}

impl Meters {
    /// Counters for a namespace. `jobs_max`: how many jobs have series of their own.
    pub fn new(namespace: &str, jobs_max: usize) -> Self {
        let mut registry = namespaced(namespace);
        let families = JobFamilies::new(&mut registry);
        let requests = Family::default();
        let request_duration = histograms(|| Histogram::new(REQUEST));
        let requests_waiting = Gauge::default();
        let (sessions_lost, slow_readers) = (Counter::default(), Counter::default());
        let calls = Family::default();
        let call_duration = histograms(|| Histogram::new(REQUEST));
        register(&mut registry, &table::REGISTRY_REQUESTS, Family::clone(&requests));
        register(&mut registry, &table::REGISTRY_REQUEST_DURATION, request_duration.clone());
        register(&mut registry, &table::REGISTRY_REQUESTS_WAITING, requests_waiting.clone());
        register(&mut registry, &table::SESSIONS_LOST, sessions_lost.clone());
        register(&mut registry, &table::SLOW_READERS, slow_readers.clone());
        register(&mut registry, &table::API_CALLS, Family::clone(&calls));
        register(&mut registry, &table::API_CALL_DURATION, call_duration.clone());
        let jobs = Mutex::new(Jobs { known: BTreeMap::new(), other: None });
        let namespace = namespace.to_owned();
        Self {
            inner: Arc::new(Inner {
                registry,
                namespace,
                jobs_max,
                families,
                jobs,
                requests,
                request_duration,
                requests_waiting,
                sessions_lost,
                slow_readers,
                calls,
                call_duration,
            }),
        }
    }

    /// The counters of a job, for a participant to hold while it lives.
    pub fn job(&self, name: &JobName) -> Arc<JobMeters> {
        let mut jobs = self.inner.lock();
        if let Some(known) = jobs.known.get_mut(name) {
            known.gone = None;
            return Arc::clone(&known.meters);
        }
        if jobs.known.len() >= self.inner.jobs_max
            && let Some(gone) =
                jobs.known.iter().find(|(_, known)| !known.is_used()).map(|(name, _)| name.clone())
        {
            self.inner.forget(&mut jobs, &gone);
        }
        if jobs.known.len() >= self.inner.jobs_max {
            let other = || Arc::new(self.inner.families.job(&Job(OTHER.into())));
            return Arc::clone(jobs.other.get_or_insert_with(other));
        }
        let meters = Arc::new(self.inner.families.job(&Job(name.as_str().into())));
        jobs.known.insert(name.clone(), Known { meters: Arc::clone(&meters), gone: None });
        meters
    }

    /// The jobs that have series of their own and a participant, each with its last fire.
    pub fn jobs(&self) -> Vec<(JobName, Option<u64>)> {
        let jobs = self.inner.lock();
        let used = jobs.known.iter().filter(|(_, known)| known.is_used());
        used.map(|(name, known)| (name.clone(), known.meters.last_fire_ms())).collect()
    }

    /// Counts a request to the registry.
    pub fn requested(&self, kind: Request, answer: Answer, lasted: Duration) {
        self.inner.requests.get_or_create(&OfRequest { kind, answer }).inc();
        self.inner.request_duration.get_or_create(&OfKind { kind }).observe(lasted.as_secs_f64());
    }

    /// Counts a request whose answer has not come, until the value is dropped.
    pub(super) fn waits(&self) -> Waiting {
        self.inner.requests_waiting.inc();
        Waiting(self.inner.requests_waiting.clone())
    }

    /// Counts a session that has ended while it was needed.
    pub fn session_lost(&self) {
        self.inner.sessions_lost.inc();
    }

    /// Counts an application that does not read its events.
    pub fn slow_reader(&self) {
        self.inner.slow_readers.inc();
    }

    /// Records when the answer of a call begins.
    pub fn answered(&self, method: &'static str, lasted: Duration) {
        self.inner.call_duration.get_or_create(&OfMethod { method }).observe(lasted.as_secs_f64());
    }

    /// Counts a call that has ended.
    pub fn called(&self, method: &'static str, code: &'static str) {
        self.inner.calls.get_or_create(&OfCall { method, code }).inc();
    }

    /// All series as text, with the state at this time. `lines`: the warnings and errors that were logged.
    pub fn render(
        &self,
        format: Format,
        state: State,
        lines: [(Level, u64); 2],
        now: Duration,
    ) -> Result<String, fmt::Error> {
        self.inner.forget_gone(now);
        let mut present = namespaced(&self.inner.namespace);
        let of_levels = Family::<OfLevel, Counter>::default();
        for (level, count) in lines {
            of_levels.get_or_create(&OfLevel { level }).inc_by(count);
        }
        register(&mut present, &table::LOG_LINES, of_levels);
        let dropped = Counter::<u64>::default();
        dropped.inc_by(state.spans_dropped);
        register(&mut present, &table::SPANS_DROPPED, dropped);
        let mut of_process = Registry::default();
        of_process.register_collector(Box::new(state.process));
        present.register_collector(Box::new(state));
        let encode = match format {
            Format::OpenMetrics => text::encode_registry::<String>,
            Format::Plain => prometheus_text::encode::<String>,
        };
        let mut text = String::new();
        for registry in [&self.inner.registry, &present, &of_process] {
            encode(&mut text, registry)?;
        }
        if format == Format::OpenMetrics {
            text::encode_eof(&mut text)?;
        }
        Ok(text)
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, jobs: &mut Jobs, name: &JobName) {
        jobs.known.remove(name);
        self.families.forget(&Job(name.as_str().into()));
    }

    /// Forgets the jobs that have had no participant for [`KEPT`].
    fn forget_gone(&self, now: Duration) {
        let mut jobs = self.lock();
        let mut over = Vec::new();
        for (name, known) in &mut jobs.known {
            if known.is_used() {
                known.gone = None;
            } else if now.saturating_sub(*known.gone.get_or_insert(now)) >= KEPT {
                over.push(name.clone());
            }
        }
        for name in over {
            self.forget(&mut jobs, &name);
        }
    }
}

/// A registry whose series all have the namespace.
fn namespaced(namespace: &str) -> Registry {
    let label = (Cow::Borrowed("registry_namespace"), Cow::Owned(namespace.to_owned()));
    Registry::with_prefix_and_labels(PREFIX, [label].into_iter())
}

fn register(registry: &mut Registry, metric: &Metric, encoded: impl Encoded) {
    match &metric.unit {
        Some(unit) => registry.register_with_unit(metric.name, metric.help, unit.clone(), encoded),
        None => registry.register(metric.name, metric.help, encoded),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> JobName {
        JobName::parse(text).unwrap()
    }

    fn text(meters: &Meters, now: Duration) -> String {
        let lines = [(Level::Warn, 3), (Level::Error, 0)];
        meters.render(Format::OpenMetrics, State::default(), lines, now).unwrap()
    }

    #[test]
    fn op_6_a_bucket_has_an_exemplar_of_its_last_trace_for_scrapers_of_openmetrics_and_no_other_has() {
        let meters = Meters::new("billing", 2);
        let job = meters.job(&name("a"));
        let exemplar = |byte: u8| {
            let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500);
            Some(Exemplar { trace_id: [byte; 16], at })
        };
        job.fired(1, Duration::from_millis(3), exemplar(1));
        job.fired(1, Duration::from_millis(4), exemplar(2));
        // Another one of the same trace.
        job.fired(1, Duration::from_millis(5), exemplar(2));
        // It is not traced.
        job.fired(1, Duration::from_millis(4), None);
        job.reported(Source::Schedule, Outcome::Success, Some(Duration::from_secs(2)), exemplar(0xf3));
        let open = text(&meters, Duration::ZERO);
        for (series, le, value) in [
            ("trigger_lateness", "0.005", format!("4 # {{trace_id=\"{}\"}} 0.004 1.5", "02".repeat(16))),
            ("execution_duration", "5.0", format!("1 # {{trace_id=\"{}\"}} 2.0 1.5", "f3".repeat(16))),
        ] {
            let labels = format!("registry_namespace=\"billing\",le=\"{le}\",job_name=\"a\"");
            let line = format!("sidekeeper_{series}_seconds_bucket{{{labels}}} {value}\n");
            assert!(open.contains(&line), "{line}{open}");
        }
        assert_eq!(open.matches("trace_id").count(), 2);
        let lines = [(Level::Warn, 3), (Level::Error, 0)];
        let plain = meters.render(Format::Plain, State::default(), lines, Duration::ZERO).unwrap();
        assert!(!plain.contains("trace_id") && !plain.contains("# EOF") && !plain.contains("# UNIT"));
        assert!(plain.contains("# TYPE sidekeeper_retries_total counter\n"), "{plain}");
        // But for the exemplars the samples are the same, with labels in another order and `le` as `1` for `1.0`.
        let samples = |text: &str| -> Vec<(String, String)> {
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            let parts = |line: &str| {
                let sample = line.split(" # ").next()?;
                let name = sample.split(['{', ' ']).next()?;
                Some((name.to_owned(), sample.rsplit(' ').next()?.parse::<f64>().ok()?.to_string()))
            };
            let mut samples: Vec<_> = lines.filter_map(parts).collect();
            samples.sort();
            samples
        };
        assert!(samples(&plain).len() > 50);
        assert_eq!(samples(&plain), samples(&open));
    }

    #[test]
    fn op_6_jobs_beyond_the_limit_share_one_name() {
        let meters = Meters::new("billing", 2);
        let jobs: Vec<_> = ["a", "b", "c", "d"].map(|job| meters.job(&name(job))).into_iter().collect();
        for job in &jobs {
            job.retries.inc();
        }
        let text = text(&meters, Duration::ZERO);
        for (job, count) in [("a", 1), ("b", 1), (OTHER, 2)] {
            let line = format!(
                "sidekeeper_retries_total{{registry_namespace=\"billing\",job_name=\"{job}\"}} {count}\n"
            );
            assert!(text.contains(&line), "{line}{text}");
        }
        assert!(!text.contains("job_name=\"c\""));
        assert!(
            text.contains("sidekeeper_log_lines_total{registry_namespace=\"billing\",level=\"warn\"} 3\n")
        );
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn op_6_ten_thousand_jobs_with_hostile_names_have_a_bounded_number_of_well_formed_series() {
        let meters = Meters::new("bill\"ing\\", 200);
        let held: Vec<_> =
            (0..10_000).map(|number| meters.job(&name(&format!("{number}\"}} 1\\ä{{le=\"")))).collect();
        for job in &held {
            job.reported(Source::Failover, Outcome::Failure, Some(Duration::from_secs(1)), None);
        }
        let text = text(&meters, Duration::ZERO);
        let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        // 201 names with some 75 series each.
        assert!((10_000..20_000).contains(&samples.len()), "{}", samples.len());
        for sample in samples {
            let (series, value) = sample.rsplit_once(' ').unwrap();
            let is_whole = series.ends_with('}') || series.starts_with("process_");
            assert!(value.parse::<f64>().is_ok() && is_whole, "{sample}");
            // Every quote of a value is escaped, so the others come in pairs.
            let bare = series.replace("\\\\", "").replace("\\\"", "");
            assert_eq!(bare.matches('"').count() % 2, 0, "{sample}");
            let le = bare.matches(",le=\"").count();
            assert_eq!(le, usize::from(series.contains("_bucket{")), "{sample}");
        }
    }

    #[test]
    fn the_series_of_a_job_stay_for_an_hour_after_its_last_participant() {
        let meters = Meters::new("billing", 2);
        let job = meters.job(&name("a"));
        job.reported(Source::Schedule, Outcome::Success, Some(Duration::from_secs(2)), None);
        drop(job);
        let has = |now| text(&meters, now).contains("job_name=\"a\"");
        assert!(has(Duration::from_secs(5)) && has(KEPT + Duration::from_secs(4)));
        assert!(!has(KEPT + Duration::from_secs(5)));
        // Nothing of it is left in any family.
        assert!(!text(&meters, Duration::ZERO).contains("job_name"));
    }

    #[test]
    fn a_job_without_participants_makes_room_for_another_one() {
        let meters = Meters::new("billing", 1);
        drop(meters.job(&name("a")));
        let _b = meters.job(&name("b"));
        let text = text(&meters, Duration::ZERO);
        assert!(text.contains("job_name=\"b\"") && !text.contains("job_name=\"a\""), "{text}");
    }
}
