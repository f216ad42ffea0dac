//! The alerts, the dashboards and the page of metrics, made from the tables here and from the table of metrics.
//!
//! `make monitoring` writes the files anew. A file that differs from the tables is a failure.

mod alerts;
mod dashboards;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use expect_test::{ExpectFile, expect_file};
use sidekeeper::metrics::table::ALL;

use self::alerts::{ALERTS, Alert, Series};
use self::dashboards::DASHBOARDS;
use super::{none, read};

/// The page that has a section for each alert.
const PAGE: &str = "docs/metrics.md";
/// Where readers of an alert find that page.
const RUNBOOK: &str = "https://github.com/sidekeeper/sidekeeper/blob/main/docs/metrics.md";

#[test]
fn the_page_of_metrics_has_the_table_and_a_section_for_each_alert() {
    let page = read(PAGE);
    let page = between(&page, "metrics", &metrics());
    let page = between(&page, "alerts", &sections());
    expect_file!["../../../docs/metrics.md"].assert_eq(&page);
}

#[test]
fn the_alerts_and_their_tests_are_made_from_the_table() {
    expect_file!["../../../deploy/monitoring/alerts.yml"].assert_eq(&rules());
    expect_file!["../../../deploy/monitoring/alerts.test.yml"].assert_eq(&tests());
}

#[test]
fn the_dashboards_are_made_from_the_table() {
    let files: [(&str, ExpectFile); 3] = [
        ("fleet", expect_file!["../../../deploy/monitoring/grafana/fleet.json"]),
        ("job", expect_file!["../../../deploy/monitoring/grafana/job.json"]),
        ("sidecar", expect_file!["../../../deploy/monitoring/grafana/sidecar.json"]),
    ];
    assert_eq!(files.len(), DASHBOARDS.len());
    for ((name, file), dashboard) in files.iter().zip(DASHBOARDS) {
        assert_eq!(*name, dashboard.name);
        file.assert_eq(&dashboard.json());
    }
}

#[test]
fn alerts_and_dashboards_name_only_metrics_that_exist_and_each_metric_is_shown() {
    let panels = DASHBOARDS.iter().flat_map(|dashboard| dashboard.queries());
    let queries: Vec<_> = ALERTS.iter().map(|alert| alert.expr.to_owned()).chain(panels).collect();
    let known: BTreeSet<_> = ALL.iter().map(|metric| metric.full_name()).collect();
    let named: BTreeSet<_> = queries.iter().flat_map(|query| names(query)).collect();
    let mut problems = Vec::new();
    for name in named.difference(&known) {
        problems.push(format!("{name}: no such metric; see src/metrics/table.rs"));
    }
    for name in known.difference(&named) {
        problems.push(format!("{name}: neither an alert nor a dashboard has it; show it, or remove it"));
    }
    none(&problems);
}

/// The metrics in a query.
fn names(query: &str) -> Vec<String> {
    let words = query.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let ours = words.filter(|word| word.starts_with("sidekeeper_"));
    let plain = |word: &str| {
        let suffixes = ["_bucket", "_count", "_sum"];
        suffixes.iter().find_map(|suffix| word.strip_suffix(suffix)).unwrap_or(word).to_owned()
    };
    ours.map(plain).collect()
}

/// A page with another text between the marks of this name.
fn between(page: &str, name: &str, text: &str) -> String {
    let (begin, end) = (format!("<!-- {name}: begin -->\n"), format!("<!-- {name}: end -->\n"));
    let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("{PAGE} needs the line {begin}"));
    let (_, after) = rest.split_once(&end).unwrap_or_else(|| panic!("{PAGE} needs the line {end}"));
    format!("{before}{begin}{text}{end}{after}")
}

fn metrics() -> String {
    let mut text = String::from("\n| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n");
    for metric in ALL {
        let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, kind) = (metric.full_name(), metric.kind_word());
        writeln!(text, "| `{name}` | {kind} | {} | {} |", labels.join(", "), metric.help).unwrap();
    }
    text.push('\n');
    text
}

fn sections() -> String {
    let mut text = String::new();
    for Alert { name, severity, after, expr, meaning, remedy, .. } in ALERTS {
        write!(text, "\n### {name}\n\n{meaning} Severity: {severity}, after {after}.\n\n{remedy}\n\n")
            .unwrap();
        write!(text, "```promql\n{expr}\n```\n").unwrap();
    }
    text.push('\n');
    text
}

const HEAD: &str = "# Made by `make monitoring` from the table in tests/tidy/monitoring/alerts.rs.\n";

/// A text as a YAML value.
fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

fn rules() -> String {
    let mut text = format!("{HEAD}groups:\n  - name: sidekeeper\n    rules:\n");
    for alert in ALERTS {
        writeln!(text, "      - alert: {}", alert.name).unwrap();
        writeln!(text, "        expr: {}", quoted(alert.expr)).unwrap();
        writeln!(text, "        for: {}", alert.after).unwrap();
        writeln!(text, "        labels:\n          severity: {}", alert.severity).unwrap();
        writeln!(text, "        annotations:\n          summary: {}", quoted(alert.summary)).unwrap();
        writeln!(text, "          runbook_url: {}", quoted(&alert.runbook(RUNBOOK))).unwrap();
    }
    text
}

fn tests() -> String {
    let mut text = format!("{HEAD}rule_files:\n  - alerts.yml\nevaluation_interval: 1m\ntests:\n");
    for alert in ALERTS {
        test(&mut text, alert, "fires", alert.fires);
        test(&mut text, alert, "stays silent", alert.silent);
    }
    text
}

fn test(text: &mut String, alert: &Alert, what: &str, series: &[Series]) {
    writeln!(text, "  - name: {}", quoted(&format!("{} {what}", alert.name))).unwrap();
    text.push_str("    interval: 1m\n    input_series:\n");
    for (series, values) in series {
        writeln!(text, "      - series: {}\n        values: {}", quoted(series), quoted(values)).unwrap();
    }
    writeln!(text, "    alert_rule_test:\n      - eval_time: {}", alert.at).unwrap();
    writeln!(text, "        alertname: {}", alert.name).unwrap();
    if what != "fires" {
        text.push_str("        exp_alerts: []\n");
        return;
    }
    text.push_str("        exp_alerts:\n          - exp_labels:\n");
    writeln!(text, "              severity: {}", alert.severity).unwrap();
    for (label, value) in alert.labels {
        writeln!(text, "              {label}: {}", quoted(value)).unwrap();
    }
    let expand = |template: &str| {
        alert.labels.iter().fold(template.to_owned(), |text, (label, value)| {
            let plain = text.replace(&format!("{{{{ $labels.{label} }}}}"), value);
            plain.replace(&format!("{{{{ $labels.{label} | toLower }}}}"), &value.to_lowercase())
        })
    };
    writeln!(text, "            exp_annotations:\n              summary: {}", quoted(&expand(alert.summary)))
        .unwrap();
    writeln!(text, "              runbook_url: {}", quoted(&expand(&alert.runbook(RUNBOOK)))).unwrap();
}
