//! Checks, explanations and findings as messages of the API. Decides how many findings of a job its check has.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures::future::ready;
use futures::stream::{BoxStream, Stream, StreamExt as _, once};
use jiff::Timestamp;

use crate::coordination::admin::doctor::{Check, Failed};
use crate::coordination::admin::explain::{Explanation, ItemExplanation, Verdict};
use crate::excerpt::Excerpt;
use crate::findings::sidecar::Trouble;
use crate::findings::{Finding, Severity, Subject};
use crate::job::{InstanceId, Item, JobName};
use crate::proto;
use crate::proto::finding_subject;
use crate::runner::admin::check_deployment::JobChecked;
use crate::runner::admin::explain_job::ExplainError;

use super::convert::InvalidRequest;
use super::event::{last_execution, timestamp};
use super::job::job_and_items;
use super::status;

/// The most findings of a job in its check: more than a person reads. `ExplainJob` has all.
const FINDINGS_MAX: usize = 20;

/// Characters of the message of a check: a sentence, and the reasons of several servers.
const MESSAGE_CHARS_MAX: usize = 2_000;

/// A check as the API has it.
pub fn check_to_message(check: &Check) -> proto::CheckDeploymentResponse {
    let (outcome, findings) = match &check.result {
        Ok(()) => (proto::CheckOutcome::Ok, Vec::new()),
        Err(Failed::Skipped) => (proto::CheckOutcome::Skipped, Vec::new()),
        Err(Failed::Found(trouble)) => (outcome(trouble.severity()), vec![trouble_to_message(trouble)]),
    };
    proto::CheckDeploymentResponse {
        category: check.category.to_owned(),
        check: check.name.to_owned(),
        expects: check.expects.to_owned(),
        outcome: outcome.into(),
        findings,
        jobs_checked: None,
    }
}

/// The last message: how many jobs were explained.
pub fn jobs_checked(count: u32) -> proto::CheckDeploymentResponse {
    proto::CheckDeploymentResponse { jobs_checked: Some(count), ..proto::CheckDeploymentResponse::default() }
}

/// The jobs with a warning or an error, and the last message. Without `sees_texts` texts that may quote parameters are left out.
pub fn jobs_to_messages(
    jobs: BoxStream<'static, JobChecked>,
    sees_texts: bool,
) -> impl Stream<Item = Result<proto::CheckDeploymentResponse, tonic::Status>> + Send {
    let count = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&count);
    let checks = jobs.filter_map(move |(job, explained)| {
        let message = match explained {
            // The job has been removed meanwhile.
            Err(ExplainError::Unknown(_)) => None,
            Err(error) => Some(Err(status::of_explain(&error))),
            Ok(explanation) => {
                counted.fetch_add(1, Ordering::Relaxed);
                job_to_message(&job, explanation, sees_texts).map(Ok)
            }
        };
        ready(message)
    });
    checks.chain(once(async move { Ok(jobs_checked(count.load(Ordering::Relaxed))) }))
}

/// The check of a job; `None`: it has neither a warning nor an error.
fn job_to_message(
    job: &JobName,
    explanation: Explanation,
    sees_texts: bool,
) -> Option<proto::CheckDeploymentResponse> {
    let explanation = if sees_texts { explanation } else { explanation.without_texts() };
    let of_items = explanation.items.into_iter().flat_map(|item| item.because);
    let findings = explanation.findings.into_iter().chain(of_items);
    let findings: Vec<_> = findings.filter(|finding| finding.cause.severity() > Severity::Info).collect();
    let worst = findings.iter().map(|finding| finding.cause.severity()).max()?;
    Some(proto::CheckDeploymentResponse {
        category: "jobs".to_owned(),
        check: job.to_string(),
        expects: "all items run".to_owned(),
        outcome: outcome(worst).into(),
        findings: findings
            .iter()
            .take(FINDINGS_MAX)
            .map(|finding| finding_to_message(job, finding))
            .collect(),
        jobs_checked: None,
    })
}

fn outcome(severity: Severity) -> proto::CheckOutcome {
    match severity {
        Severity::Info => proto::CheckOutcome::Ok,
        Severity::Warning => proto::CheckOutcome::Warning,
        Severity::Error => proto::CheckOutcome::Error,
    }
}

fn severity(severity: Severity) -> proto::FindingSeverity {
    match severity {
        Severity::Info => proto::FindingSeverity::Info,
        Severity::Warning => proto::FindingSeverity::Warning,
        Severity::Error => proto::FindingSeverity::Error,
    }
}

fn trouble_to_message(trouble: &Trouble) -> proto::Finding {
    proto::Finding {
        code: trouble.code().to_owned(),
        severity: severity(trouble.severity()).into(),
        subject: None,
        message: Excerpt::of_length(&trouble.message(), MESSAGE_CHARS_MAX).into_string(),
        remedy: trouble.remedy().to_owned(),
        paths: Vec::new(),
        since: None,
        anchor: trouble.anchor(),
    }
}

/// The job and the items of a request.
pub fn read(request: &proto::ExplainJobRequest) -> Result<(JobName, BTreeSet<Item>), InvalidRequest> {
    job_and_items(&request.job_name, &request.items)
}

/// An explanation as the API has it.
pub fn to_message(job: &JobName, explanation: Explanation, as_of: Timestamp) -> proto::ExplainJobResponse {
    let Explanation { items, findings, instances, leader, next_fire, total } = explanation;
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    proto::ExplainJobResponse {
        as_of: Some(timestamp(as_of)),
        items: items.into_iter().map(|item| item_to_message(job, item)).collect(),
        findings: findings.into_iter().map(|finding| finding_to_message(job, &finding)).collect(),
        sharding_total_count: total,
        instance_count: count(instances.len()),
        java_instance_count: count(instances.iter().filter(|id| id.is_java()).count()),
        leader_instance_id: leader.as_ref().map(InstanceId::to_string).unwrap_or_default(),
        next_fire_time: next_fire.map(timestamp),
    }
}

fn item_to_message(job: &JobName, item: ItemExplanation) -> proto::ItemExplanation {
    let verdict = match item.verdict {
        Verdict::Runs => proto::ItemVerdict::Runs,
        Verdict::Waits => proto::ItemVerdict::Waits,
        Verdict::Blocked => proto::ItemVerdict::Blocked,
    };
    proto::ItemExplanation {
        item: item.item.0,
        verdict: verdict.into(),
        because: item.because.iter().map(|finding| finding_to_message(job, finding)).collect(),
        instance_id: item.owner.as_ref().map(InstanceId::to_string).unwrap_or_default(),
        running: item.running,
        running_since: item.running_since.map(timestamp),
        last_execution: item.last.as_ref().map(last_execution),
    }
}

fn finding_to_message(job: &JobName, finding: &Finding) -> proto::Finding {
    let subject = match finding.cause.subject() {
        Subject::Job => finding_subject::Subject::JobName(job.to_string()),
        Subject::Item(item) => finding_subject::Subject::Item(item.0),
        Subject::Instance(instance) => finding_subject::Subject::InstanceId(instance.to_string()),
        Subject::Server(server) => finding_subject::Subject::ServerIp(server.to_string()),
    };
    proto::Finding {
        code: finding.cause.code().to_owned(),
        severity: severity(finding.cause.severity()).into(),
        subject: Some(proto::FindingSubject { subject: Some(subject) }),
        message: finding.message(),
        remedy: finding.cause.remedy(job),
        paths: finding.paths.iter().map(ToString::to_string).collect(),
        since: finding.since.map(timestamp),
        anchor: finding.anchor(),
    }
}
