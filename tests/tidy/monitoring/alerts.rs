//! The alerts. All sidecars of a job see the same nodes, so an alert about a job takes the maximum over them, never a sum.

/// A series, and its values minute by minute in the notation of promtool.
pub(super) type Series = (&'static str, &'static str);

/// An alert, its remedy, a case in which it fires, and one in which it is silent.
pub(super) struct Alert {
    pub(super) name: &'static str,
    pub(super) severity: &'static str,
    pub(super) expr: &'static str,
    /// For how long the expression holds before the alert fires.
    pub(super) after: &'static str,
    pub(super) summary: &'static str,
    pub(super) meaning: &'static str,
    pub(super) remedy: &'static str,
    /// The page of its findings, if it is not the page of metrics: an anchor with labels.
    pub(super) findings: Option<&'static str>,
    /// The labels of the alert that fires.
    pub(super) labels: &'static [(&'static str, &'static str)],
    pub(super) fires: &'static [Series],
    pub(super) silent: &'static [Series],
    /// When the tests look.
    pub(super) at: &'static str,
}

impl Alert {
    /// The address of the section with the remedy.
    pub(super) fn runbook(&self, page: &str) -> String {
        match self.findings {
            Some(findings) => page.replace("metrics.md", findings),
            None => format!("{page}#{}", self.name.to_lowercase()),
        }
    }
}

const OF_JOB: &[(&str, &str)] = &[("registry_namespace", "billing"), ("job_name", "settlement")];
const OF_SIDECAR: &[(&str, &str)] =
    &[("registry_namespace", "billing"), ("instance", "10.0.0.7:9464"), ("job", "sidekeeper")];
const OF_CERTIFICATE: &[(&str, &str)] = &[
    ("registry_namespace", "billing"),
    ("instance", "10.0.0.7:9464"),
    ("job", "sidekeeper"),
    ("use", "registry"),
];

pub(super) static ALERTS: &[Alert] = &[
    Alert {
        name: "SidekeeperJobNotFiring",
        severity: "critical",
        expr: "time() - max by (registry_namespace, job_name) (sidekeeper_job_last_fire_timestamp_seconds) \
               > 2 * max by (registry_namespace, job_name) (sidekeeper_job_period_seconds) + 60",
        after: "1m",
        summary: "Job {{ $labels.job_name }} of {{ $labels.registry_namespace }} misses its schedule",
        meaning: "No sidecar has started an execution of the job for two periods and a minute.",
        remedy: "Ask `sidekeeper explain JOB`. If a run takes longer than the period, that is the reason: see `ITEM_RUNNING_LONG`.",
        findings: None,
        labels: OF_JOB,
        fires: &[
            (
                r#"sidekeeper_job_last_fire_timestamp_seconds{registry_namespace="billing", job_name="settlement", instance="a"}"#,
                "0 60 120 120x60",
            ),
            (
                r#"sidekeeper_job_period_seconds{registry_namespace="billing", job_name="settlement", instance="a"}"#,
                "60x60",
            ),
        ],
        silent: &[
            // One sidecar has not fired for long, because another one owns the items.
            (
                r#"sidekeeper_job_last_fire_timestamp_seconds{registry_namespace="billing", job_name="settlement", instance="a"}"#,
                "0x60",
            ),
            (
                r#"sidekeeper_job_last_fire_timestamp_seconds{registry_namespace="billing", job_name="settlement", instance="b"}"#,
                "0+60x60",
            ),
            (
                r#"sidekeeper_job_period_seconds{registry_namespace="billing", job_name="settlement", instance="b"}"#,
                "60x60",
            ),
        ],
        at: "20m",
    },
    Alert {
        name: "SidekeeperItemUnowned",
        severity: "critical",
        expr: "max by (registry_namespace, job_name) (sidekeeper_job_items{state=\"unowned\"}) > 0",
        after: "2m",
        summary: "Items of {{ $labels.job_name }} of {{ $labels.registry_namespace }} have no owner",
        meaning: "No instance that is online owns some items, so they are not executed.",
        remedy: "Ask `sidekeeper explain JOB`: it has the reason for each item, and the remedy.",
        findings: None,
        labels: OF_JOB,
        fires: &[(
            r#"sidekeeper_job_items{registry_namespace="billing", job_name="settlement", state="unowned", instance="a"}"#,
            "0x5 2x30",
        )],
        silent: &[(
            r#"sidekeeper_job_items{registry_namespace="billing", job_name="settlement", state="unowned", instance="a"}"#,
            "0x18 2 0x30",
        )],
        at: "20m",
    },
    Alert {
        name: "SidekeeperLeaderMissing",
        severity: "critical",
        expr: "max by (registry_namespace, job_name) (sidekeeper_job_leaders) == 0",
        after: "2m",
        summary: "Job {{ $labels.job_name }} of {{ $labels.registry_namespace }} has no leader",
        meaning: "Nobody divides the items when instances come and go. An election takes moments.",
        remedy: "Ask `sidekeeper explain JOB`. Servers that are all disabled have no leader: `JOB_SERVERS_DISABLED`.",
        findings: None,
        labels: OF_JOB,
        fires: &[(
            r#"sidekeeper_job_leaders{registry_namespace="billing", job_name="settlement", instance="a"}"#,
            "1x5 0x30",
        )],
        silent: &[
            (
                r#"sidekeeper_job_leaders{registry_namespace="billing", job_name="settlement", instance="a"}"#,
                "0x30",
            ),
            (
                r#"sidekeeper_job_leaders{registry_namespace="billing", job_name="settlement", instance="b"}"#,
                "1x30",
            ),
        ],
        at: "20m",
    },
    Alert {
        name: "SidekeeperReshardingStuck",
        severity: "warning",
        expr: "max by (registry_namespace, job_name) (sidekeeper_job_resharding) == 1",
        after: "10m",
        summary: "The resharding of {{ $labels.job_name }} of {{ $labels.registry_namespace }} does not end",
        meaning: "A resharding is due. By ElasticJob's rules it waits until no item of the job is executed, and nothing starts meanwhile.",
        remedy: "Ask `sidekeeper explain JOB`: it names the items that are being executed, or the leader that does not act.",
        findings: None,
        labels: OF_JOB,
        fires: &[(
            r#"sidekeeper_job_resharding{registry_namespace="billing", job_name="settlement", instance="a"}"#,
            "1x40",
        )],
        silent: &[(
            r#"sidekeeper_job_resharding{registry_namespace="billing", job_name="settlement", instance="a"}"#,
            "0x15 1x5 0x5 1x2",
        )],
        at: "25m",
    },
    Alert {
        name: "SidekeeperFinding",
        severity: "warning",
        expr: "max by (registry_namespace, job_name, code) (sidekeeper_findings{severity=\"error\"}) > 0",
        after: "5m",
        summary: "{{ $labels.code }} in job {{ $labels.job_name }} of {{ $labels.registry_namespace }}",
        meaning: "The sidecars of a job see something that keeps its items from being executed. The alert's link leads to the code's section in \
                  [operations](operations.md).",
        remedy: "Ask `sidekeeper explain JOB`: it names the node, and the command that ends it.",
        findings: Some("operations.md#{{ $labels.code | toLower }}"),
        labels: &[("registry_namespace", "billing"), ("job_name", "settlement"), ("code", "ITEM_DISABLED")],
        fires: &[(
            r#"sidekeeper_findings{registry_namespace="billing", job_name="settlement", code="ITEM_DISABLED", severity="error", instance="a"}"#,
            "_x3 1x30",
        )],
        silent: &[
            (
                r#"sidekeeper_findings{registry_namespace="billing", job_name="settlement", code="RESHARDING_GOES_ON", severity="info", instance="a"}"#,
                "1x30",
            ),
            (
                r#"sidekeeper_findings{registry_namespace="billing", job_name="settlement", code="ITEM_UNOWNED", severity="error", instance="a"}"#,
                "_x16 1x2 _x20",
            ),
        ],
        at: "20m",
    },
    Alert {
        name: "SidekeeperExecutionsFailing",
        severity: "warning",
        expr: "sum by (registry_namespace, job_name) (increase(sidekeeper_executions_total{outcome=\"failure\"}[30m])) \
               / sum by (registry_namespace, job_name) (increase(sidekeeper_executions_total[30m])) > 0.5",
        after: "5m",
        summary: "More than half of the executions of {{ $labels.job_name }} of {{ $labels.registry_namespace }} fail",
        meaning: "The applications report failures for more than half of the executions of the last half hour.",
        remedy: "`sidekeeper explain JOB` shows the last failure of each item, and since when it fails; the application's log has the rest.",
        findings: None,
        labels: OF_JOB,
        fires: &[
            (
                r#"sidekeeper_executions_total{registry_namespace="billing", job_name="settlement", source="schedule", outcome="failure", instance="a"}"#,
                "0+3x60",
            ),
            (
                r#"sidekeeper_executions_total{registry_namespace="billing", job_name="settlement", source="schedule", outcome="success", instance="b"}"#,
                "0+2x60",
            ),
        ],
        silent: &[
            (
                r#"sidekeeper_executions_total{registry_namespace="billing", job_name="settlement", source="schedule", outcome="failure", instance="a"}"#,
                "0+1x60",
            ),
            (
                r#"sidekeeper_executions_total{registry_namespace="billing", job_name="settlement", source="schedule", outcome="success", instance="b"}"#,
                "0+2x60",
            ),
        ],
        at: "50m",
    },
    Alert {
        name: "SidekeeperExecutionsLost",
        severity: "warning",
        expr: "sum by (registry_namespace, job_name) (increase(sidekeeper_executions_lost_total[15m])) > 0",
        after: "0m",
        summary: "Executions of {{ $labels.job_name }} of {{ $labels.registry_namespace }} ended without a report",
        meaning: "A session was lost during executions, or an instance left before its application reported them. In a job with `failover` an \
                  instance executes the items again.",
        remedy: "Look at the sidecar's log for `session lost`, and at the application for its end. A job without `failover` has missed these items.",
        findings: None,
        labels: OF_JOB,
        fires: &[(
            r#"sidekeeper_executions_lost_total{registry_namespace="billing", job_name="settlement", instance="a"}"#,
            "0x10 2x30",
        )],
        silent: &[(
            r#"sidekeeper_executions_lost_total{registry_namespace="billing", job_name="settlement", instance="a"}"#,
            "7x40",
        )],
        at: "20m",
    },
    Alert {
        name: "SidekeeperCompletionsPending",
        severity: "warning",
        expr: "min_over_time(sidekeeper_completions_pending[5m]) > 0",
        after: "5m",
        summary: "Reports for {{ $labels.job_name }} of {{ $labels.registry_namespace }} are not recorded",
        meaning: "Applications have reported executions, and the registry does not record them. The items count as running.",
        remedy: "The registry does not answer, or refuses: see the sidecar's log, and `SidekeeperRegistrySlow`.",
        findings: None,
        labels: &[
            ("registry_namespace", "billing"),
            ("job_name", "settlement"),
            ("instance", "10.0.0.7:9464"),
            ("job", "sidekeeper"),
        ],
        fires: &[(
            r#"sidekeeper_completions_pending{registry_namespace="billing", job_name="settlement", instance="10.0.0.7:9464", job="sidekeeper"}"#,
            "3x40",
        )],
        silent: &[(
            r#"sidekeeper_completions_pending{registry_namespace="billing", job_name="settlement", instance="10.0.0.7:9464", job="sidekeeper"}"#,
            "3 3 0 3 3 0 3 3 0 3 3 0 3 3 0 3 3 0 3 3 0 3 3 0",
        )],
        at: "20m",
    },
    Alert {
        name: "SidekeeperNoSession",
        severity: "critical",
        expr: "sidekeeper_session_state{state=\"connected\"} == 0",
        after: "1m",
        summary: "The sidecar at {{ $labels.instance }} has no connection with the registry",
        meaning: "The applications of this sidecar execute nothing that is new. Other instances take over when its session ends.",
        remedy: "The sidecar's log has the servers that it tries, and their answers. `sidekeeper explain` with `--zookeeper` asks ZooKeeper itself.",
        findings: None,
        labels: &[
            ("registry_namespace", "billing"),
            ("instance", "10.0.0.7:9464"),
            ("job", "sidekeeper"),
            ("state", "connected"),
        ],
        fires: &[(
            r#"sidekeeper_session_state{registry_namespace="billing", state="connected", instance="10.0.0.7:9464", job="sidekeeper"}"#,
            "1x5 0x30",
        )],
        silent: &[(
            r#"sidekeeper_session_state{registry_namespace="billing", state="suspended", instance="10.0.0.7:9464", job="sidekeeper"}"#,
            "0x40",
        )],
        at: "20m",
    },
    Alert {
        name: "SidekeeperLeaseLow",
        severity: "warning",
        expr: "sidekeeper_session_lease_remaining_seconds < 0.4 * sidekeeper_session_timeout_seconds",
        after: "1m",
        summary: "The lease of the sidecar at {{ $labels.instance }} is short",
        meaning: "The registry confirms the session late, again and again. If the lease ends, the applications stop their executions.",
        remedy: "Look at `SidekeeperRegistrySlow` and `SidekeeperRuntimeStalls`: the ensemble or this machine is too busy. A longer `session_timeout` \
                 gives more time, and makes failover later.",
        findings: None,
        labels: OF_SIDECAR,
        fires: &[
            (
                r#"sidekeeper_session_lease_remaining_seconds{registry_namespace="billing", instance="10.0.0.7:9464", job="sidekeeper"}"#,
                "2x30",
            ),
            (
                r#"sidekeeper_session_timeout_seconds{registry_namespace="billing", instance="10.0.0.7:9464", job="sidekeeper"}"#,
                "7x30",
            ),
        ],
        silent: &[
            (
                r#"sidekeeper_session_lease_remaining_seconds{registry_namespace="billing", instance="10.0.0.7:9464", job="sidekeeper"}"#,
                "5x30",
            ),
            (
                r#"sidekeeper_session_timeout_seconds{registry_namespace="billing", instance="10.0.0.7:9464", job="sidekeeper"}"#,
                "7x30",
            ),
        ],
        at: "20m",
    },
    Alert {
        name: "SidekeeperRegistrySlow",
        severity: "warning",
        expr: "histogram_quantile(0.99, sum by (registry_namespace, instance, job, le) \
               (rate(sidekeeper_registry_request_duration_seconds_bucket{kind!=\"open\"}[5m]))) > 1",
        after: "5m",
        summary: "The registry answers the sidecar at {{ $labels.instance }} slowly",
        meaning: "One request in a hundred takes longer than a second. Starts, completions and failovers wait for it.",
        remedy: "Look at the ensemble: its disks, its leader, its load. If only one sidecar is slow, it is the network of that machine.",
        findings: None,
        labels: OF_SIDECAR,
        fires: &[
            (
                r#"sidekeeper_registry_request_duration_seconds_bucket{registry_namespace="billing", kind="write", le="1.0", instance="10.0.0.7:9464", job="sidekeeper"}"#,
                "0+50x40",
            ),
            (
                r#"sidekeeper_registry_request_duration_seconds_bucket{registry_namespace="billing", kind="write", le="2.5", instance="10.0.0.7:9464", job="sidekeeper"}"#,
                "0+100x40",
            ),
            (
                r#"sidekeeper_registry_request_duration_seconds_bucket{registry_namespace="billing", kind="write", le="+Inf", instance="10.0.0.7:9464", job="sidekeeper"}"#,
                "0+100x40",
            ),
        ],
        silent: &[
            (
                r#"sidekeeper_registry_request_duration_seconds_bucket{registry_namespace="billing", kind="write", le="1.0", instance="10.0.0.7:9464", job="sidekeeper"}"#,
                "0+100x40",
            ),
            (
                r#"sidekeeper_registry_request_duration_seconds_bucket{registry_namespace="billing", kind="write", le="+Inf", instance="10.0.0.7:9464", job="sidekeeper"}"#,
                "0+100x40",
            ),
        ],
        at: "20m",
    },
    Alert {
        name: "SidekeeperRuntimeStalls",
        severity: "warning",
        expr: "sidekeeper_runtime_stall_seconds > 1",
        after: "3m",
        summary: "The sidecar at {{ $labels.instance }} gets too little processor time",
        meaning: "The sidecar's heartbeat is more than a second late, minute after minute. A lease that is not renewed in time ends.",
        remedy: "Give the sidecar's container more processor time, or look for the process that takes it.",
        findings: None,
        labels: OF_SIDECAR,
        fires: &[(
            r#"sidekeeper_runtime_stall_seconds{registry_namespace="billing", instance="10.0.0.7:9464", job="sidekeeper"}"#,
            "1.5x30",
        )],
        silent: &[(
            r#"sidekeeper_runtime_stall_seconds{registry_namespace="billing", instance="10.0.0.7:9464", job="sidekeeper"}"#,
            "0x17 3 3 0x30",
        )],
        at: "20m",
    },
    Alert {
        name: "SidekeeperSlowReaders",
        severity: "warning",
        expr: "increase(sidekeeper_slow_readers_total[15m]) > 0",
        after: "0m",
        summary: "An application at {{ $labels.instance }} does not read its events",
        meaning: "The sidecar has detached an application that left its stream unread; other instances get its items.",
        remedy: "The application's event loop is blocked, or its process is stopped. See `slow_application_timeout` in [configuration](configuration.md).",
        findings: None,
        labels: OF_SIDECAR,
        fires: &[(
            r#"sidekeeper_slow_readers_total{registry_namespace="billing", instance="10.0.0.7:9464", job="sidekeeper"}"#,
            "0x10 1x30",
        )],
        silent: &[(
            r#"sidekeeper_slow_readers_total{registry_namespace="billing", instance="10.0.0.7:9464", job="sidekeeper"}"#,
            "4x40",
        )],
        at: "20m",
    },
    Alert {
        name: "SidekeeperCertificateExpires",
        severity: "warning",
        // As long as the finding CERT_EXPIRES.
        expr: "sidekeeper_certificate_expiry_timestamp_seconds - time() <= 30 * 86400",
        after: "0m",
        summary: "The certificate that the sidecar at {{ $labels.instance }} shows ({{ $labels.use }}) expires within 30 days",
        meaning: "When it expires, callers (`use=\"listener\"`, the file `tls_cert`) or the servers of ZooKeeper (`use=\"registry\"`, the file \
                  `zookeeper_cert`) refuse the sidecar.",
        remedy: "Write a new certificate and its key into the files. The alert ends when the sidecar has read them, without a restart. If it does \
                 not end, the sidecar's log says what is wrong with the files.",
        findings: Some("operations.md#cert_expires"),
        labels: OF_CERTIFICATE,
        // 30 days and 20 minutes, and a second more.
        fires: &[(
            r#"sidekeeper_certificate_expiry_timestamp_seconds{registry_namespace="billing", use="registry", instance="10.0.0.7:9464", job="sidekeeper"}"#,
            "2593200x40",
        )],
        silent: &[(
            r#"sidekeeper_certificate_expiry_timestamp_seconds{registry_namespace="billing", use="registry", instance="10.0.0.7:9464", job="sidekeeper"}"#,
            "2593201x40",
        )],
        at: "20m",
    },
];
