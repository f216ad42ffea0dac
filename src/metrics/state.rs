//! The state of a sidecar at the moment of a scrape, and its series.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder};

use super::process::ProcessState;
use super::table::{self, Metric};
use super::words::{CertificateUse, InstanceKind, ItemState, Job, Session, Severity};

/// The state of a sidecar.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// The version of the sidecar.
    pub version: &'static str,
    /// The session with the registry; `None`: there is none.
    pub session: Option<SessionState>,
    /// The instances of applications.
    pub attachments: usize,
    /// How many jobs share one name.
    pub jobs_without_label: usize,
    /// The longest delay of the heartbeat.
    pub runtime_stall: Duration,
    /// When the sidecar's certificates expire, in seconds of the Unix time.
    pub certificates: BTreeMap<CertificateUse, f64>,
    /// How many spans of executions did not reach the collector of traces.
    pub spans_dropped: u64,
    /// The process.
    pub process: ProcessState,
    /// The jobs that have series of their own.
    pub jobs: BTreeMap<Job, JobState>,
}

/// The state of the session.
#[derive(Debug, Clone, Copy)]
pub struct SessionState {
    /// Whether the registry answers.
    pub is_connected: bool,
    /// The time until which it may be relied on; `None`: the registry never ends it.
    pub lease: Option<Duration>,
    /// Its timeout; `None`: it has none.
    pub timeout: Option<Duration>,
}

/// The state of a job.
#[derive(Debug, Clone, Default)]
pub struct JobState {
    /// The next instant of the schedule, in seconds of the Unix time.
    pub next_fire: Option<f64>,
    /// The last one for which this sidecar has started an execution.
    pub last_fire: Option<f64>,
    /// The time from the next instant to the one after it.
    pub period: Option<Duration>,
    /// The state of the whole fleet; `None`: the job's nodes are not known.
    pub fleet: Option<FleetState>,
}

/// The state of a job in the registry.
#[derive(Debug, Clone, Default)]
pub struct FleetState {
    /// The items by their states.
    pub items: BTreeMap<ItemState, usize>,
    /// The instances that are online, by their kinds.
    pub instances: BTreeMap<InstanceKind, usize>,
    /// Whether there is a leader.
    pub has_leader: bool,
    /// Whether a resharding is due or going on.
    pub is_resharding: bool,
    /// The items that applications of this sidecar own.
    pub items_owned: usize,
    /// Whether an application of this sidecar leads.
    pub leads: bool,
    /// The findings by code.
    pub findings: BTreeMap<(&'static str, Severity), usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfJob {
    job_name: Job,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfItems {
    job_name: Job,
    state: ItemState,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfInstances {
    job_name: Job,
    kind: InstanceKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfFindings {
    job_name: Job,
    code: &'static str,
    severity: Severity,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfSession {
    state: Session,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCertificate {
    r#use: CertificateUse,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfBuild {
    version: &'static str,
}

/// Writes the head of a metric, and returns the encoder of its series.
fn describe<'e>(
    encoder: &'e mut DescriptorEncoder<'_>,
    metric: &'e Metric,
) -> Result<MetricEncoder<'e>, fmt::Error> {
    encoder.encode_descriptor(metric.name, &format!("{}.", metric.help), metric.unit.as_ref(), metric.kind)
}

/// Writes a metric with a series for each pair.
fn gauges<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    metric: &Metric,
    series: impl IntoIterator<Item = (L, f64)>,
) -> fmt::Result {
    let mut encoder = describe(encoder, metric)?;
    for (labels, value) in series {
        encoder.encode_family(&labels)?.encode_gauge(&value)?;
    }
    Ok(())
}

/// Writes a metric without labels, if it has a value.
fn gauge(encoder: &mut DescriptorEncoder<'_>, metric: &Metric, value: Option<f64>) -> fmt::Result {
    let mut encoder = describe(encoder, metric)?;
    match value {
        Some(value) => encoder.encode_gauge(&value),
        None => Ok(()),
    }
}

/// A count as the value of a series. Exact for all numbers that occur.
fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

impl Collector for State {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let mut build = describe(encoder, &table::BUILD)?;
        build.encode_info(&OfBuild { version: self.version })?;
        self.encode_session(encoder)?;
        gauge(encoder, &table::ATTACHMENTS, Some(number(self.attachments)))?;
        gauge(encoder, &table::JOBS_WITHOUT_LABEL, Some(number(self.jobs_without_label)))?;
        gauge(encoder, &table::RUNTIME_STALL, Some(self.runtime_stall.as_secs_f64()))?;
        gauges(
            encoder,
            &table::CERTIFICATE_EXPIRY,
            self.certificates.iter().map(|(r#use, end)| (OfCertificate { r#use: *r#use }, *end)),
        )?;
        self.of_jobs(encoder, &table::JOB_NEXT_FIRE, |job| job.next_fire)?;
        self.of_jobs(encoder, &table::JOB_LAST_FIRE, |job| job.last_fire)?;
        self.of_jobs(encoder, &table::JOB_PERIOD, |job| job.period.map(|period| period.as_secs_f64()))?;
        self.of_fleets(encoder, &table::JOB_LEADERS, |fleet| number(usize::from(fleet.has_leader)))?;
        self.of_fleets(encoder, &table::JOB_RESHARDING, |fleet| number(usize::from(fleet.is_resharding)))?;
        self.of_fleets(encoder, &table::ITEMS_OWNED, |fleet| number(fleet.items_owned))?;
        self.of_fleets(encoder, &table::LEADER, |fleet| number(usize::from(fleet.leads)))?;
        gauges(
            encoder,
            &table::JOB_ITEMS,
            self.fleets().flat_map(|(job, fleet)| {
                ItemState::ALL.iter().map(move |state| {
                    let count = fleet.items.get(state).copied().unwrap_or_default();
                    (OfItems { job_name: job.clone(), state: *state }, number(count))
                })
            }),
        )?;
        gauges(
            encoder,
            &table::JOB_INSTANCES,
            self.fleets().flat_map(|(job, fleet)| {
                InstanceKind::ALL.iter().map(move |kind| {
                    let count = fleet.instances.get(kind).copied().unwrap_or_default();
                    (OfInstances { job_name: job.clone(), kind: *kind }, number(count))
                })
            }),
        )?;
        gauges(
            encoder,
            &table::FINDINGS,
            self.fleets().flat_map(|(job, fleet)| {
                fleet.findings.iter().map(move |((code, severity), count)| {
                    (OfFindings { job_name: job.clone(), code, severity: *severity }, number(*count))
                })
            }),
        )
    }
}

impl State {
    fn encode_session(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let present = match self.session {
            Some(session) if session.is_connected => Session::Connected,
            Some(_) => Session::Suspended,
            None => Session::None,
        };
        gauges(
            encoder,
            &table::SESSION_STATE,
            Session::ALL
                .iter()
                .map(|state| (OfSession { state: *state }, number(usize::from(*state == present)))),
        )?;
        let seconds =
            |of: fn(SessionState) -> Option<Duration>| Some(self.session.and_then(of)?.as_secs_f64());
        gauge(encoder, &table::SESSION_LEASE_REMAINING, seconds(|session| session.lease))?;
        gauge(encoder, &table::SESSION_TIMEOUT, seconds(|session| session.timeout))
    }

    fn fleets(&self) -> impl Iterator<Item = (&Job, &FleetState)> {
        self.jobs.iter().filter_map(|(job, state)| Some((job, state.fleet.as_ref()?)))
    }

    fn of_jobs(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        metric: &Metric,
        value: impl Fn(&JobState) -> Option<f64>,
    ) -> fmt::Result {
        let series = self
            .jobs
            .iter()
            .filter_map(|(job, state)| Some((OfJob { job_name: job.clone() }, value(state)?)));
        gauges(encoder, metric, series)
    }

    fn of_fleets(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        metric: &Metric,
        value: impl Fn(&FleetState) -> f64,
    ) -> fmt::Result {
        gauges(
            encoder,
            metric,
            self.fleets().map(|(job, fleet)| (OfJob { job_name: job.clone() }, value(fleet))),
        )
    }
}
