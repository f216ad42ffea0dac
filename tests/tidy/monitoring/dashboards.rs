//! The dashboards for Grafana. Each panel has a query; the data source and the namespace are variables.

use serde_json::{Value, json};

/// A dashboard.
pub(super) struct Dashboard {
    /// The name of its file.
    pub(super) name: &'static str,
    title: &'static str,
    /// The variable by which it shows a part, besides the namespace: its label, and a metric that has it.
    variable: Option<(&'static str, &'static str)>,
    panels: &'static [Panel],
}

struct Panel {
    title: &'static str,
    unit: &'static str,
    kind: Kind,
    /// Queries, and the legend of each. `$of` is the selection of the dashboard.
    queries: &'static [(&'static str, &'static str)],
}

#[derive(Clone, Copy)]
enum Kind {
    Lines,
    Heat,
    Number,
}

const fn lines(
    title: &'static str,
    unit: &'static str,
    queries: &'static [(&'static str, &'static str)],
) -> Panel {
    Panel { title, unit, kind: Kind::Lines, queries }
}

const fn number(
    title: &'static str,
    unit: &'static str,
    queries: &'static [(&'static str, &'static str)],
) -> Panel {
    Panel { title, unit, kind: Kind::Number, queries }
}

const fn heat(
    title: &'static str,
    unit: &'static str,
    queries: &'static [(&'static str, &'static str)],
) -> Panel {
    Panel { title, unit, kind: Kind::Heat, queries }
}

pub(super) static DASHBOARDS: &[Dashboard] = &[
    Dashboard {
        name: "fleet",
        title: "Sidekeeper: fleet",
        variable: None,
        panels: &[
            number("Jobs", "none", &[("count(max by (job_name) (sidekeeper_job_leaders{$of}))", "jobs")]),
            number(
                "Items without owner",
                "none",
                &[("sum(max by (job_name) (sidekeeper_job_items{$of, state=\"unowned\"}))", "items")],
            ),
            number(
                "Sidecars without a connection",
                "none",
                &[(
                    "count(sidekeeper_session_state{$of, state=\"connected\"} == 0) or vector(0)",
                    "sidecars",
                )],
            ),
            number(
                "Jobs without a name of their own",
                "none",
                &[("max(sidekeeper_jobs_without_label{$of})", "jobs")],
            ),
            lines(
                "Findings",
                "none",
                &[("max by (job_name, code, severity) (sidekeeper_findings{$of})", "{{job_name}} {{code}}")],
            ),
            lines(
                "Time since the last fire",
                "s",
                &[(
                    "time() - max by (job_name) (sidekeeper_job_last_fire_timestamp_seconds{$of})",
                    "{{job_name}}",
                )],
            ),
            lines(
                "Time until the next fire",
                "s",
                &[(
                    "max by (job_name) (sidekeeper_job_next_fire_timestamp_seconds{$of}) - time()",
                    "{{job_name}}",
                )],
            ),
            lines(
                "Executions",
                "ops",
                &[(
                    "sum by (outcome) (rate(sidekeeper_executions_total{$of}[$__rate_interval]))",
                    "{{outcome}}",
                )],
            ),
            lines(
                "Items executed now",
                "none",
                &[("max by (job_name) (sidekeeper_job_items{$of, state=\"running\"})", "{{job_name}}")],
            ),
            lines(
                "Leases",
                "s",
                &[
                    ("sidekeeper_session_lease_remaining_seconds{$of}", "{{instance}}"),
                    ("sidekeeper_session_timeout_seconds{$of}", "{{instance}} timeout"),
                ],
            ),
            lines("Versions", "none", &[("count by (version) (sidekeeper_build_info{$of})", "{{version}}")]),
        ],
    },
    Dashboard {
        name: "job",
        title: "Sidekeeper: job",
        variable: Some(("job_name", "sidekeeper_job_leaders")),
        panels: &[
            number("Instances", "none", &[("max by (kind) (sidekeeper_job_instances{$of})", "{{kind}}")]),
            number("Leader", "none", &[("sidekeeper_leader{$of} == 1", "{{instance}}")]),
            number("Period", "s", &[("max(sidekeeper_job_period_seconds{$of})", "period")]),
            number("Resharding", "none", &[("max(sidekeeper_job_resharding{$of})", "due or going on")]),
            heat(
                "Lateness of fires",
                "s",
                &[(
                    "sum by (le) (increase(sidekeeper_trigger_lateness_seconds_bucket{$of}[$__rate_interval]))",
                    "{{le}}",
                )],
            ),
            heat(
                "Duration of executions",
                "s",
                &[(
                    "sum by (le) (increase(sidekeeper_execution_duration_seconds_bucket{$of}[$__rate_interval]))",
                    "{{le}}",
                )],
            ),
            lines(
                "Executions",
                "ops",
                &[(
                    "sum by (source, outcome) (rate(sidekeeper_executions_total{$of}[$__rate_interval]))",
                    "{{source}} {{outcome}}",
                )],
            ),
            lines("Items by state", "none", &[("max by (state) (sidekeeper_job_items{$of})", "{{state}}")]),
            lines("Items by sidecar", "none", &[("sidekeeper_items_owned{$of}", "{{instance}}")]),
            lines(
                "Running and pending",
                "none",
                &[
                    ("sum(sidekeeper_executions_running{$of})", "running"),
                    ("sum(sidekeeper_completions_pending{$of})", "reported, not recorded"),
                ],
            ),
            lines(
                "Misfires, retries, cancels",
                "none",
                &[
                    ("sum(increase(sidekeeper_misfires_total{$of}[$__rate_interval]))", "misfires"),
                    ("sum(increase(sidekeeper_fires_skipped_total{$of}[$__rate_interval]))", "skipped"),
                    ("sum(increase(sidekeeper_retries_total{$of}[$__rate_interval]))", "retries"),
                    ("sum(increase(sidekeeper_retries_given_up_total{$of}[$__rate_interval]))", "given up"),
                    (
                        "sum by (reason) (increase(sidekeeper_cancels_total{$of}[$__rate_interval]))",
                        "cancelled: {{reason}}",
                    ),
                    ("sum(increase(sidekeeper_executions_lost_total{$of}[$__rate_interval]))", "lost"),
                ],
            ),
            lines(
                "Items that moved",
                "none",
                &[
                    (
                        "sum by (instance) (increase(sidekeeper_items_received_total{$of}[$__rate_interval]))",
                        "to {{instance}}",
                    ),
                    ("sum(increase(sidekeeper_reshardings_total{$of}[$__rate_interval]))", "reshardings"),
                ],
            ),
            lines("Findings", "none", &[("max by (code, severity) (sidekeeper_findings{$of})", "{{code}}")]),
        ],
    },
    Dashboard {
        name: "sidecar",
        title: "Sidekeeper: sidecar",
        variable: Some(("instance", "sidekeeper_build_info")),
        panels: &[
            number("Session", "none", &[("sidekeeper_session_state{$of} == 1", "{{state}}")]),
            number("Instances of applications", "none", &[("sidekeeper_attachments{$of}", "instances")]),
            number(
                "Sessions lost in a day",
                "none",
                &[("increase(sidekeeper_sessions_lost_total{$of}[1d])", "sessions")],
            ),
            number(
                "Slow readers in a day",
                "none",
                &[("increase(sidekeeper_slow_readers_total{$of}[1d])", "applications")],
            ),
            lines(
                "Lease",
                "s",
                &[
                    ("sidekeeper_session_lease_remaining_seconds{$of}", "remaining"),
                    ("sidekeeper_session_timeout_seconds{$of}", "timeout"),
                ],
            ),
            lines(
                "Requests to the registry",
                "reqps",
                &[(
                    "sum by (kind, answer) (rate(sidekeeper_registry_requests_total{$of}[$__rate_interval]))",
                    "{{kind}} {{answer}}",
                )],
            ),
            lines(
                "Requests that wait for the registry",
                "none",
                &[("sidekeeper_registry_requests_waiting{$of}", "requests")],
            ),
            lines(
                "Answers of the registry, p99",
                "s",
                &[(
                    "histogram_quantile(0.99, sum by (kind, le) (rate(sidekeeper_registry_request_duration_seconds_bucket{$of}[$__rate_interval])))",
                    "{{kind}}",
                )],
            ),
            lines(
                "Calls",
                "reqps",
                &[(
                    "sum by (method, code) (rate(sidekeeper_api_calls_total{$of}[$__rate_interval]))",
                    "{{method}} {{code}}",
                )],
            ),
            lines(
                "Answers to calls, p99",
                "s",
                &[(
                    "histogram_quantile(0.99, sum by (method, le) (rate(sidekeeper_api_call_duration_seconds_bucket{$of}[$__rate_interval])))",
                    "{{method}}",
                )],
            ),
            lines(
                "Certificates, time until they expire",
                "s",
                &[("sidekeeper_certificate_expiry_timestamp_seconds{$of} - time()", "{{use}}")],
            ),
            lines("Heartbeat, longest delay", "s", &[("sidekeeper_runtime_stall_seconds{$of}", "delay")]),
            lines(
                "Warnings and errors in the log",
                "none",
                &[(
                    "sum by (level) (increase(sidekeeper_log_lines_total{$of}[$__rate_interval]))",
                    "{{level}}",
                )],
            ),
            lines(
                "Jobs without a name of their own",
                "none",
                &[("sidekeeper_jobs_without_label{$of}", "jobs")],
            ),
            lines(
                "Spans that did not reach the collector of traces",
                "none",
                &[("increase(sidekeeper_spans_dropped_total{$of}[$__rate_interval])", "spans")],
            ),
        ],
    },
];

impl Dashboard {
    /// The part of the series that it shows.
    fn selection(&self) -> String {
        let namespace = "registry_namespace=~\"$namespace\"";
        match self.variable {
            Some((label, _)) => format!("{namespace}, {label}=~\"${label}\""),
            None => namespace.to_owned(),
        }
    }

    /// All queries, with the selection.
    pub(super) fn queries(&self) -> impl Iterator<Item = String> {
        let queries = self.panels.iter().flat_map(|panel| panel.queries);
        queries.map(|(query, _)| query.replace("$of", &self.selection()))
    }

    pub(super) fn json(&self) -> String {
        let (mut x, mut y, mut height) = (0, 0, 0);
        let mut panels = Vec::new();
        for (id, panel) in self.panels.iter().enumerate() {
            let (width, tall) = if matches!(panel.kind, Kind::Number) { (6, 4) } else { (12, 8) };
            if x + width > 24 {
                (x, y) = (0, y + height);
            }
            height = tall;
            panels.push(self.panel(panel, id + 1, &json!({ "x": x, "y": y, "w": width, "h": tall })));
            x += width;
        }
        let dashboard = json!({
            "uid": format!("sidekeeper-{}", self.name),
            "title": self.title,
            "tags": ["sidekeeper"],
            "timezone": "utc",
            "editable": true,
            "schemaVersion": 39,
            "refresh": "30s",
            "time": { "from": "now-3h", "to": "now" },
            "templating": { "list": self.variables() },
            "panels": panels,
        });
        format!("{}\n", serde_json::to_string_pretty(&dashboard).unwrap())
    }

    fn variables(&self) -> Vec<Value> {
        let values = |name: &str, query: String| {
            json!({
                "name": name, "type": "query", "datasource": source(), "query": query, "refresh": 2,
                "includeAll": true, "multi": true, "current": { "text": "All", "value": "$__all" },
            })
        };
        let mut variables = vec![
            json!({ "name": "datasource", "type": "datasource", "query": "prometheus" }),
            values("namespace", "label_values(sidekeeper_build_info, registry_namespace)".to_owned()),
        ];
        if let Some((label, metric)) = self.variable {
            let query = format!("label_values({metric}{{registry_namespace=~\"$namespace\"}}, {label})");
            variables.push(values(label, query));
        }
        variables
    }

    fn panel(&self, panel: &Panel, id: usize, place: &Value) -> Value {
        let kind = match panel.kind {
            Kind::Lines => "timeseries",
            Kind::Heat => "heatmap",
            Kind::Number => "stat",
        };
        let targets = panel.queries.iter().zip('A'..).map(|((query, legend), letter)| {
            json!({
                "refId": letter.to_string(),
                "expr": query.replace("$of", &self.selection()),
                "legendFormat": legend,
                "format": if matches!(panel.kind, Kind::Heat) { "heatmap" } else { "time_series" },
            })
        });
        json!({
            "id": id,
            "type": kind,
            "title": panel.title,
            "datasource": source(),
            "gridPos": place,
            "fieldConfig": { "defaults": { "unit": panel.unit }, "overrides": [] },
            "targets": targets.collect::<Vec<_>>(),
        })
    }
}

fn source() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}
