//! `explain`: why the items of a job run or do not run.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::endpoint::{SidecarArgs, authorized, refused};
use super::printable;
use super::registry::{Registry, RegistryArgs, failed};
use super::watch::json::last_execution;
use super::{ANSWER_IS_NO, Failure, print};
use crate::api::{finding, status};
use crate::proto::diagnostics_service_client::DiagnosticsServiceClient;
use crate::proto::finding_subject::Subject;
use crate::proto::{
    ExecutionOutcome, ExplainJobRequest, ExplainJobResponse, Finding, FindingSeverity, ItemExplanation,
    ItemVerdict,
};
use crate::runner::admin::explain_job;

/// How long to wait for the answer: longer than the sidecar may wait for its registry.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest accepted answer, in bytes: 10000 items with several findings each.
const MESSAGE_LIMIT: usize = 64 * 1024 * 1024;
/// The width of the column with the items.
const WIDTH: usize = 16;

#[derive(Args)]
pub(super) struct ExplainArgs {
    /// The job's name.
    job: String,
    /// Explain this item only; may be given several times.
    #[arg(long = "item", value_name = "ITEM")]
    items: Vec<u32>,
    #[command(flatten)]
    sidecar: SidecarArgs,
    #[command(flatten)]
    registry: RegistryArgs,
    /// Print one JSON object, with the field names of the proto.
    #[arg(long)]
    json: bool,
    /// End with the exit status 2 if an item is blocked, or if the whole job is.
    #[arg(long)]
    exit_code: bool,
}

pub(super) async fn explain(args: ExplainArgs) -> Result<ExitCode, Failure> {
    let request = ExplainJobRequest { job_name: args.job.clone(), items: args.items };
    let answer = match args.registry.open().await? {
        Some(registry) => explain_in(&registry, &request).await?,
        None => ask(&args.sidecar, request).await?,
    };
    print(
        if args.json { super::json_line(&in_json(&answer)) } else { in_words(&args.job, &answer) }.as_bytes(),
    )?;
    let is_blocked = answer.items.iter().any(|item| item.verdict() == ItemVerdict::Blocked)
        || answer.findings.iter().any(|finding| finding.severity() == FindingSeverity::Error);
    Ok(if args.exit_code && is_blocked { ExitCode::from(ANSWER_IS_NO) } else { ExitCode::SUCCESS })
}

async fn ask(sidecar: &SidecarArgs, request: ExplainJobRequest) -> Result<ExplainJobResponse, Failure> {
    let channel = sidecar.sidecar()?.connect().await?;
    let mut client = DiagnosticsServiceClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
    let mut request = authorized(request)?;
    request.set_timeout(ANSWER_TIMEOUT);
    Ok(client.explain_job(request).await.map_err(|status| refused(&status))?.into_inner())
}

async fn explain_in(registry: &Registry, request: &ExplainJobRequest) -> Result<ExplainJobResponse, Failure> {
    let (job, items) = finding::read(request).map_err(|invalid| failed(&invalid.to_status()))?;
    let explained = explain_job::explain_in(registry.namespace(), &job, &items).await;
    registry.session.close().await;
    let (explanation, as_of) = explained.map_err(|error| failed(&status::of_explain(&error)))?;
    Ok(finding::to_message(&job, explanation, as_of))
}

/// A line about the job, its findings, and its items, with one entry for neighbours without findings.
fn in_words(job: &str, answer: &ExplainJobResponse) -> String {
    let mut text = String::new();
    let ExplainJobResponse {
        sharding_total_count,
        instance_count,
        java_instance_count,
        leader_instance_id,
        ..
    } = answer;
    let leader = if leader_instance_id.is_empty() { "none" } else { leader_instance_id };
    let job = printable(job);
    line(
        &mut text,
        &format!(
            "{job}: {}, {} ({java_instance_count} Java), leader {}",
            counted(*sharding_total_count, "item"),
            counted(*instance_count, "instance"),
            printable(leader)
        ),
    );
    let as_of = answer.as_of.as_ref().and_then(instant).unwrap_or_default();
    let next = answer.next_fire_time.as_ref().and_then(instant);
    line(
        &mut text,
        &format!(
            "as of {as_of:.0}, next fire {}",
            next.map_or_else(|| "none".to_owned(), |next| next.to_string())
        ),
    );
    for finding in &answer.findings {
        let subject = match finding.subject.as_ref().and_then(|subject| subject.subject.as_ref()) {
            Some(Subject::ServerIp(server)) => format!("server {}", printable(server)),
            Some(Subject::InstanceId(_)) => "instance".to_owned(),
            Some(Subject::Item(item)) => format!("item {item}"),
            Some(Subject::JobName(_)) | None => "job".to_owned(),
        };
        entry(&mut text, mark(finding), &subject, std::slice::from_ref(finding));
    }
    // An item with nodes to show has an entry of its own: an operator copies their paths.
    let alike = |a: &ItemExplanation, b: &ItemExplanation| {
        a.verdict == b.verdict && a.because.is_empty() && b.because.is_empty()
    };
    for group in answer.items.chunk_by(alike) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let items = match group.len() {
            1 => format!("item {}", first.item),
            _ => format!("items {} to {}", first.item, last.item),
        };
        let mark = match first.verdict() {
            ItemVerdict::Runs | ItemVerdict::Unspecified if first.because.iter().any(is_bad) => "!!",
            ItemVerdict::Runs | ItemVerdict::Unspecified => "ok",
            ItemVerdict::Waits => "..",
            ItemVerdict::Blocked => "no",
        };
        entry(&mut text, mark, &items, &first.because);
        if !first.because.is_empty() {
            executions(&mut text, first);
        }
    }
    text
}

fn is_bad(finding: &Finding) -> bool {
    matches!(finding.severity(), FindingSeverity::Warning | FindingSeverity::Error)
}

fn mark(finding: &Finding) -> &'static str {
    match finding.severity() {
        FindingSeverity::Error => "no",
        FindingSeverity::Warning => "!!",
        FindingSeverity::Info | FindingSeverity::Unspecified => "--",
    }
}

fn entry(text: &mut String, mark: &str, subject: &str, findings: &[Finding]) {
    let mut head = format!("{mark}  {subject:<WIDTH$}");
    for Finding { code, message, remedy, paths, since, .. } in findings {
        let since = since.as_ref().and_then(instant).map(|at| format!(", since {at:.0}")).unwrap_or_default();
        line(text, &format!("{head}{}{since}  {code}", printable(message)));
        head = " ".repeat(WIDTH.saturating_add(4));
        for path in paths {
            line(text, &format!("{head}{}", printable(path)));
        }
        if !remedy.is_empty() {
            line(text, &format!("{head}-> {}", printable(remedy)));
        }
    }
    if findings.is_empty() {
        line(text, &head);
    }
}

/// Since when an item is being executed, and its last success if it fails.
fn executions(text: &mut String, item: &ItemExplanation) {
    let last = item.last_execution.as_ref();
    let failing = last.filter(|last| last.outcome() != ExecutionOutcome::Success);
    let success = failing.and_then(|last| last.last_success_time.as_ref());
    for (what, at) in [("running since", item.running_since.as_ref()), ("last success", success)] {
        if let Some(at) = at.and_then(instant) {
            line(text, &format!("{}{what} {at:.0}", " ".repeat(WIDTH.saturating_add(4))));
        }
    }
}

fn line(text: &mut String, line: &str) {
    let _ = writeln!(text, "{}", line.trim_end());
}

fn counted(number: u32, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

fn instant(timestamp: &prost_types::Timestamp) -> Option<Timestamp> {
    Timestamp::new(timestamp.seconds, timestamp.nanos).ok()
}

/// The fields of the proto under their names, instants in RFC 3339, absent fields as null.
fn in_json(answer: &ExplainJobResponse) -> Value {
    let ExplainJobResponse {
        as_of,
        items,
        findings,
        sharding_total_count,
        instance_count,
        java_instance_count,
        leader_instance_id,
        next_fire_time,
    } = answer;
    let time = |timestamp: &Option<prost_types::Timestamp>| {
        timestamp.as_ref().and_then(instant).map(|instant| instant.to_string())
    };
    let items = items.iter().map(|item| {
        let ItemExplanation {
            item: number,
            verdict: _,
            because,
            instance_id,
            running,
            running_since,
            last_execution: last,
        } = item;
        json!({
            "item": number,
            "verdict": item.verdict().as_str_name(),
            "because": because.iter().map(finding_in_json).collect::<Vec<_>>(),
            "instance_id": instance_id,
            "running": running,
            "running_since": time(running_since),
            "last_execution": last.as_ref().map(last_execution),
        })
    });
    json!({
        "as_of": time(as_of),
        "items": items.collect::<Vec<_>>(),
        "findings": findings.iter().map(finding_in_json).collect::<Vec<_>>(),
        "sharding_total_count": sharding_total_count,
        "instance_count": instance_count,
        "java_instance_count": java_instance_count,
        "leader_instance_id": leader_instance_id,
        "next_fire_time": time(next_fire_time),
    })
}

pub(super) fn finding_in_json(finding: &Finding) -> Value {
    let Finding { code, severity: _, subject, message, remedy, paths, since, anchor } = finding;
    let subject = match subject.as_ref().and_then(|subject| subject.subject.as_ref()) {
        Some(Subject::JobName(job)) => json!({ "job_name": job }),
        Some(Subject::Item(item)) => json!({ "item": item }),
        Some(Subject::InstanceId(instance)) => json!({ "instance_id": instance }),
        Some(Subject::ServerIp(server)) => json!({ "server_ip": server }),
        None => Value::Null,
    };
    json!({
        "code": code,
        "severity": finding.severity().as_str_name(),
        "subject": subject,
        "message": message,
        "remedy": remedy,
        "paths": paths,
        "since": since.as_ref().and_then(instant).map(|instant| instant.to_string()),
        "anchor": anchor,
    })
}
