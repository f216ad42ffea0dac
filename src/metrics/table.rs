//! The table of metrics: name, unit, type, labels and meaning of each. `docs/metrics.md`, the alerts and the dashboards name only metrics of
//! this table (`tests/tidy/monitoring.rs`).

use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// The prefix of all names.
pub const PREFIX: &str = "sidekeeper";

/// One metric.
#[derive(Debug)]
pub struct Metric {
    /// Its name without the prefix, the unit, and the `_total` of counters.
    pub name: &'static str,
    /// Its unit.
    pub unit: Option<Unit>,
    /// Its type.
    pub kind: MetricType,
    /// Its labels, besides `registry_namespace`, which all have.
    pub labels: &'static [&'static str],
    /// Its meaning in one sentence, without the stop.
    pub help: &'static str,
}

impl Metric {
    /// The name that Prometheus knows.
    pub fn full_name(&self) -> String {
        let unit = self.unit.as_ref().map(|unit| format!("_{}", unit.as_str())).unwrap_or_default();
        let suffix = match self.kind {
            MetricType::Counter => "_total",
            MetricType::Info => "_info",
            MetricType::Gauge | MetricType::Histogram | MetricType::Unknown => "",
        };
        format!("{PREFIX}_{}{unit}{suffix}", self.name)
    }

    /// The word for its type.
    pub fn kind_word(&self) -> &'static str {
        match self.kind {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
            MetricType::Info => "info",
            MetricType::Unknown => "unknown",
        }
    }
}

macro_rules! metrics {
    ($($constant:ident = $kind:ident $name:literal $(in $unit:ident)? [$($label:literal)*] $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $constant: Metric = Metric {
                name: $name,
                unit: metrics!(@unit $($unit)?),
                kind: MetricType::$kind,
                labels: &[$($label),*],
                help: $help,
            };
        )*
        /// All metrics, in the order of the page.
        pub static ALL: &[&Metric] = &[$(&$constant),*];
    };
    (@unit) => { None };
    (@unit $unit:ident) => { Some(Unit::$unit) };
}

metrics! {
    BUILD = Info "build" ["version"]
        "The version of the sidecar";
    TRIGGER_LATENESS = Histogram "trigger_lateness" in Seconds ["job_name"]
        "Time from the instant of a fire of the schedule until the execution is handed to the application's stream";
    EXECUTIONS = Counter "executions" ["job_name" "source" "outcome"]
        "Executions that an application of this sidecar has reported";
    EXECUTION_DURATION = Histogram "execution_duration" in Seconds ["job_name"]
        "Time from the start of an execution until the application's report, if both were seen by this process";
    EXECUTIONS_LOST = Counter "executions_lost" ["job_name"]
        "Executions whose session or instance ended before the application's report; in a job with failover an instance executes them again";
    EXECUTIONS_RUNNING = Gauge "executions_running" ["job_name"]
        "Executions that applications of this sidecar have begun and not reported";
    COMPLETIONS_PENDING = Gauge "completions_pending" ["job_name"]
        "Executions that are reported, and not recorded in the registry yet";
    RETRIES = Counter "retries" ["job_name"]
        "Executions that began again because an attempt had failed";
    RETRIES_GIVEN_UP = Counter "retries_given_up" ["job_name"]
        "Executions that failed, and are not tried again although the job has retries";
    CANCELS = Counter "cancels" ["job_name" "reason"]
        "Executions that applications were told to stop";
    MISFIRES = Counter "misfires" ["job_name"]
        "Fires that met a busy item, and that this sidecar recorded to be executed later";
    FIRES_SKIPPED = Counter "fires_skipped" ["job_name"]
        "Fires that met a busy item or came too late, in a job without misfire: they are not executed";
    JOB_NEXT_FIRE = Gauge "job_next_fire_timestamp" in Seconds ["job_name"]
        "The next instant of the schedule, as a Unix time; absent if there is none";
    JOB_LAST_FIRE = Gauge "job_last_fire_timestamp" in Seconds ["job_name"]
        "The last instant of the schedule for which this sidecar has started an execution, as a Unix time; absent before the first";
    JOB_PERIOD = Gauge "job_period" in Seconds ["job_name"]
        "Time from the next instant of the schedule to the one after it; absent if there is none";
    JOB_ITEMS = Gauge "job_items" ["job_name" "state"]
        "Items of the job by state, for the whole fleet; an item may have several states";
    JOB_INSTANCES = Gauge "job_instances" ["job_name" "kind"]
        "Instances that are online, for the whole fleet";
    JOB_LEADERS = Gauge "job_leaders" ["job_name"]
        "1 if the job has a leader, for the whole fleet";
    JOB_RESHARDING = Gauge "job_resharding" ["job_name"]
        "1 while a resharding is due or going on, for the whole fleet";
    ITEMS_OWNED = Gauge "items_owned" ["job_name"]
        "Items that applications of this sidecar own";
    LEADER = Gauge "leader" ["job_name"]
        "1 if an application of this sidecar leads the job";
    RESHARDINGS = Counter "reshardings" ["job_name"]
        "Reshardings of all items at once that this sidecar has carried out as leader";
    ITEMS_RECEIVED = Counter "items_received" ["job_name"]
        "Items that came to applications of this sidecar, from other instances or from none";
    FINDINGS = Gauge "findings" ["job_name" "code" "severity"]
        "Findings of the catalogue by code, as the command explain shows them; absent if there are none";
    SESSION_STATE = Gauge "session_state" ["state"]
        "1 for the present state of the session with the registry, 0 for the others";
    SESSION_LEASE_REMAINING = Gauge "session_lease_remaining" in Seconds []
        "Time until which the session may be relied on; absent if the registry never ends it";
    SESSION_TIMEOUT = Gauge "session_timeout" in Seconds []
        "The timeout that the registry has granted to the session; absent if there is none";
    SESSIONS_LOST = Counter "sessions_lost" []
        "Sessions that have ended while the sidecar needed them";
    REGISTRY_REQUESTS = Counter "registry_requests" ["kind" "answer"]
        "Requests to the registry by how they were answered";
    REGISTRY_REQUEST_DURATION = Histogram "registry_request_duration" in Seconds ["kind"]
        "Time from a request to the registry until its answer";
    REGISTRY_REQUESTS_WAITING = Gauge "registry_requests_waiting" []
        "Requests of the session whose answers have not come";
    ATTACHMENTS = Gauge "attachments" []
        "Applications' instances at this sidecar, those in their grace included";
    JOBS_WITHOUT_LABEL = Gauge "jobs_without_label" []
        "Jobs that share the name _other, because metrics_jobs jobs have a name already";
    SLOW_READERS = Counter "slow_readers" []
        "Applications that were detached because they did not read their events";
    RUNTIME_STALL = Gauge "runtime_stall" in Seconds []
        "The longest delay of the sidecar's heartbeat, which is due each second, in the last minute";
    API_CALLS = Counter "api_calls" ["method" "code"]
        "Calls of the gRPC API that have ended, by their status";
    API_CALL_DURATION = Histogram "api_call_duration" in Seconds ["method"]
        "Time from a call's arrival until its answer begins";
    CERTIFICATE_EXPIRY = Gauge "certificate_expiry_timestamp" in Seconds ["use"]
        "The end of the certificate in force, or of the first that expires of its chain, as a Unix time; absent if there is none";
    LOG_LINES = Counter "log_lines" ["level"]
        "Warnings and errors in the log, whatever the log filter is";
    SPANS_DROPPED = Counter "spans_dropped" []
        "Spans of executions that were not sent, because too many waited for the collector or it did not take them";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Names that Prometheus gives to targets and histograms.
    const TAKEN: &[&str] = &["job", "instance", "namespace", "le", "quantile", "registry_namespace"];

    #[test]
    fn op_6_names_are_unique_and_no_label_has_a_name_that_prometheus_gives() {
        let names: BTreeSet<_> = ALL.iter().map(|metric| metric.full_name()).collect();
        assert_eq!(names.len(), ALL.len());
        for metric in ALL {
            assert!(!metric.name.ends_with("_total") && !metric.help.ends_with('.'), "{}", metric.name);
            assert!(metric.labels.iter().all(|label| !TAKEN.contains(label)), "{}", metric.name);
        }
    }
}
