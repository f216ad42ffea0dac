//! The service that explains jobs, checks sidecars, and collects bundles.

use std::pin::Pin;
use std::sync::Arc;

use futures::stream::{Stream, StreamExt as _, iter};
use tokio::sync::{Semaphore, watch};
use tonic::{Request, Response, Status};

use crate::config::{GivenSetting, Role};
use crate::coordination::admin::doctor;
use crate::listen::caller::Caller;
use crate::listen::refusal::refusal;
use crate::proto;
use crate::proto::diagnostics_service_server::DiagnosticsService;
use crate::reason::Reason;
use crate::registry::Registry;
use crate::runner::admin::check_deployment::{self, CheckedSettings};
use crate::runner::admin::explain_job;
use crate::runner::admin::plan_sharding;
use crate::runner::heartbeat::Heartbeat;
use crate::runner::shared::Shared;

use super::bundle::{self, OfSidecar, Source};
use super::finding::{check_to_message, jobs_checked, jobs_to_messages, read, to_message};
use super::sidecar::Sidecars;
use super::{audit, names, plan, status};

/// The service.
#[derive(Clone)]
pub struct Diagnostics {
    shared: Shared,
    registry: Arc<dyn Registry>,
    settings: CheckedSettings,
    heartbeat: Heartbeat,
    draining: watch::Receiver<bool>,
    sidecars: Sidecars,
    given: Arc<Vec<GivenSetting>>,
    /// Each bundle has files of megabytes in memory.
    collecting: Arc<Semaphore>,
}

impl Diagnostics {
    /// The service on the sidecar's session, and on its registry. `draining`: whether the sidecar is stopping. `sidecars` knows its status.
    pub fn new(
        (shared, registry): (Shared, Arc<dyn Registry>),
        (settings, given): (CheckedSettings, Vec<GivenSetting>),
        heartbeat: Heartbeat,
        draining: watch::Receiver<bool>,
        sidecars: Sidecars,
    ) -> Self {
        let (given, collecting) = (Arc::new(given), Arc::new(Semaphore::new(1)));
        Self { shared, registry, settings, heartbeat, draining, sidecars, given, collecting }
    }

    async fn facts(&self) -> doctor::Facts {
        let is_draining = *self.draining.borrow();
        let (shared, registry) = (&self.shared, &*self.registry);
        check_deployment::facts(shared, registry, &self.settings, &self.heartbeat, is_draining).await
    }

    async fn collect(
        &self,
        request: &proto::CollectBundleRequest,
        caller: &Caller,
    ) -> Result<impl Stream<Item = bundle::Part> + Send + use<>, Status> {
        for name in &request.job_names {
            names::check(caller, name)?;
        }
        let wanted = bundle::read(request).map_err(|invalid| invalid.to_status())?;
        let turn = Arc::clone(&self.collecting).try_acquire_owned().map_err(|_| {
            refusal(Reason::TooMany, "the sidecar collects a bundle already; call again when that is done")
        })?;
        let facts = self.facts().await;
        let source = Source {
            session: self.shared.current.borrow().clone(),
            root: self.shared.namespace.clone(),
            clock: self.shared.clock.clone(),
            may_see: {
                let caller = caller.clone();
                Arc::new(move |name| caller.may_use(name))
            },
            settings: self.given.to_vec(),
            checks: doctor::check(&facts),
            sidecar: Some(OfSidecar {
                status: self.sidecars.status(caller),
                attachments: self.sidecars.attachments().clone(),
                heartbeat: self.heartbeat.clone(),
            }),
        };
        Ok(bundle::stream(source, wanted, turn))
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
        let explanation = if sees_texts { explanation } else { explanation.without_texts() };
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
        let facts = self.facts().await;
        let checks = iter(doctor::check(&facts)).map(|check| Ok(check_to_message(&check)));
        if request.get_ref().without_jobs || facts.session.is_none() {
            return Ok(Response::new(Box::pin(checks.chain(iter([Ok(jobs_checked(0))])))));
        }
        let jobs = check_deployment::jobs(&self.shared, |name| caller.may_use(name)).await;
        let jobs = jobs.map_err(|error| status::of_list(&error))?;
        Ok(Response::new(Box::pin(checks.chain(jobs_to_messages(jobs, sees_texts)))))
    }

    type CollectBundleStream = Pin<Box<dyn Stream<Item = bundle::Part> + Send>>;

    async fn collect_bundle(
        &self,
        request: Request<proto::CollectBundleRequest>,
    ) -> Result<Response<Self::CollectBundleStream>, Status> {
        let caller = Caller::of(request.extensions());
        let result = self.collect(request.get_ref(), &caller).await;
        audit::record(&caller, "CollectBundle", "the sidecar", &result);
        let parts: Self::CollectBundleStream = Box::pin(result?);
        Ok(Response::new(parts))
    }
}
