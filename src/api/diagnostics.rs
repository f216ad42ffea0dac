//! The service that explains jobs and checks sidecars.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures::future::ready;
use futures::stream::{BoxStream, Stream, StreamExt as _, iter, once};
use jiff::Timestamp;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::config::Role;
use crate::coordination::admin::doctor::{self, Check, Failed};
use crate::coordination::admin::explain::{Explanation, ItemExplanation, Verdict};
use crate::excerpt::Excerpt;
use crate::findings::sidecar::Trouble;
use crate::findings::{Finding, Severity, Subject};
use crate::job::{InstanceId, Item, JobName};
use crate::listen::caller::Caller;
use crate::proto;
use crate::proto::diagnostics_service_server::DiagnosticsService;
use crate::proto::finding_subject;
use crate::runner::admin::check_deployment::{self, CheckedSettings, JobChecked};
use crate::runner::admin::explain_job::{self, ExplainError};
use crate::runner::admin::plan_sharding;
use crate::runner::heartbeat::Heartbeat;
use crate::runner::shared::Shared;

use super::convert::InvalidRequest;
use super::event::timestamp;
use super::job::job_and_items;
use super::{names, plan, status};

/// The most findings of a job in its check: more than a person reads. `ExplainJob` has all.
const FINDINGS_MAX: usize = 20;

/// The service.
#[derive(Clone)]
pub struct Diagnostics {
    shared: Shared,
    settings: CheckedSettings,
    heartbeat: Heartbeat,
    draining: watch::Receiver<bool>,
}

impl Diagnostics {
    /// The service on the sidecar's session. `draining`: whether the sidecar is stopping.
    pub fn new(
        shared: Shared,
        settings: CheckedSettings,
        heartbeat: Heartbeat,
        draining: watch::Receiver<bool>,
    ) -> Self {
        Self { shared, settings, heartbeat, draining }
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

    async fn plan_sharding(
        &self,
        request: Request<proto::PlanShardingRequest>,
    ) -> Result<Response<proto::PlanShardingResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let request = request.into_inner();
        names::check(&caller, &request.job_name)?;
        let (job, what_if) = plan::read(&request).map_err(|invalid| invalid.to_status())?;
        let planned = plan_sharding::plan(&self.shared, &job, &what_if).await;
        let (planned, as_of) = planned.map_err(|error| status::of_plan(&error))?;
        Ok(Response::new(plan::to_message(&planned, as_of)))
    }

    type CheckDeploymentStream =
        Pin<Box<dyn Stream<Item = Result<proto::CheckDeploymentResponse, Status>> + Send>>;

    async fn check_deployment(
        &self,
        request: Request<proto::CheckDeploymentRequest>,
    ) -> Result<Response<Self::CheckDeploymentStream>, Status> {
        let caller = Caller::of(request.extensions());
        let sees_texts = caller.has(Role::Operate);
        let is_draining = *self.draining.borrow();
        let facts = check_deployment::facts(&self.shared, &self.settings, &self.heartbeat, is_draining).await;
        let checks = iter(doctor::check(&facts)).map(|check| Ok(check_to_message(&check)));
        if request.get_ref().without_jobs || facts.session.is_none() {
            return Ok(Response::new(Box::pin(checks.chain(iter([Ok(jobs_checked(0))])))));
        }
        let jobs = check_deployment::jobs(&self.shared, |name| caller.may_use(name)).await;
        let jobs = jobs.map_err(|error| status::of_list(&error))?;
        Ok(Response::new(Box::pin(checks.chain(jobs_to_messages(jobs, sees_texts)))))
    }
}

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
) -> impl Stream<Item = Result<proto::CheckDeploymentResponse, Status>> + Send {
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
    let explanation = if sees_texts { explanation } else { without_texts(explanation) };
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
        message: Excerpt::of(&trouble.message()).into_string(),
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
