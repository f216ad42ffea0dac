//! The service that explains jobs.

use std::collections::BTreeSet;

use jiff::Timestamp;
use tonic::{Request, Response, Status};

use crate::config::Role;
use crate::coordination::admin::explain::{Explanation, ItemExplanation, Verdict};
use crate::findings::{Finding, Severity, Subject};
use crate::job::{InstanceId, Item, JobName};
use crate::listen::caller::Caller;
use crate::proto;
use crate::proto::diagnostics_service_server::DiagnosticsService;
use crate::proto::finding_subject;
use crate::runner::admin::explain_job;
use crate::runner::shared::Shared;

use super::convert::InvalidRequest;
use super::event::timestamp;
use super::job::job_and_items;
use super::{names, status};

/// The service.
#[derive(Clone)]
pub struct Diagnostics {
    shared: Shared,
}

impl Diagnostics {
    /// The service on the sidecar's session.
    pub fn new(shared: Shared) -> Self {
        Self { shared }
    }
}

#[tonic::async_trait]
impl DiagnosticsService for Diagnostics {
    async fn explain_job(
        &self,
        request: Request<proto::ExplainJobRequest>,
    ) -> Result<Response<proto::ExplainJobResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let sees_texts = caller.has(Role::Operate);
        let request = request.into_inner();
        names::check(&caller, &request.job_name)?;
        let (job, items) = read(&request).map_err(|invalid| invalid.to_status())?;
        let explained = explain_job::explain(&self.shared, &job, &items).await;
        let (explanation, as_of) = explained.map_err(|error| status::of_explain(&error))?;
        let explanation = if sees_texts { explanation } else { without_texts(explanation) };
        Ok(Response::new(to_message(&job, explanation, as_of)))
    }
}

/// The job and the items of a request.
pub fn read(request: &proto::ExplainJobRequest) -> Result<(JobName, BTreeSet<Item>), InvalidRequest> {
    job_and_items(&request.job_name, &request.items)
}

fn without_texts(explanation: Explanation) -> Explanation {
    let hide = |findings: Vec<Finding>| findings.into_iter().map(Finding::without_texts).collect();
    let items = explanation.items.into_iter();
    let items = items.map(|item| ItemExplanation { because: hide(item.because), ..item }).collect();
    Explanation { items, findings: hide(explanation.findings), ..explanation }
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
    }
}

fn finding_to_message(job: &JobName, finding: &Finding) -> proto::Finding {
    let severity = match finding.cause.severity() {
        Severity::Info => proto::FindingSeverity::Info,
        Severity::Warning => proto::FindingSeverity::Warning,
        Severity::Error => proto::FindingSeverity::Error,
    };
    let subject = match finding.cause.subject() {
        Subject::Job => finding_subject::Subject::JobName(job.to_string()),
        Subject::Item(item) => finding_subject::Subject::Item(item.0),
        Subject::Instance(instance) => finding_subject::Subject::InstanceId(instance.to_string()),
        Subject::Server(server) => finding_subject::Subject::ServerIp(server.to_string()),
    };
    proto::Finding {
        code: finding.cause.code().to_owned(),
        severity: severity.into(),
        subject: Some(proto::FindingSubject { subject: Some(subject) }),
        message: finding.cause.message(),
        remedy: finding.cause.remedy(job),
        paths: finding.paths.iter().map(ToString::to_string).collect(),
        since: finding.since.map(timestamp),
        anchor: finding.anchor(),
    }
}
