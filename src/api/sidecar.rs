//! The service for the programs that start and stop the sidecar.

use std::time::Duration;

use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::config::DRAIN_TIMEOUT_MAX;
use crate::elasticjob::field_error::FieldError;
use crate::job::{InstanceId, JobName};
use crate::listen::caller::Caller;
use crate::listen::refusal::refusal;
use crate::proto;
use crate::proto::sidecar_service_server::SidecarService;
use crate::reason::Reason;
use crate::runner::attachments::registry::Attachments;
use crate::runner::lock::registry::Locks;
use crate::runner::sticky::registry::StickyLocks;

use super::audit;
use super::convert::InvalidRequest;

/// The most instances in an error, which is sent in headers.
const NAMED_MAX: usize = 5;

/// The service.
#[derive(Clone)]
pub struct Sidecars {
    attachments: Attachments,
    locks: Locks,
    sticky_locks: StickyLocks,
    draining: watch::Sender<bool>,
    drain_timeout: Duration,
}

impl Sidecars {
    /// The service for the sidecar with these attachments and locks. `draining` becomes true with the first drain;
    /// `drain_timeout` is the default.
    pub fn new(
        attachments: Attachments,
        locks: Locks,
        sticky_locks: StickyLocks,
        draining: watch::Sender<bool>,
        drain_timeout: Duration,
    ) -> Self {
        Self { attachments, locks, sticky_locks, draining, drain_timeout }
    }
}

#[tonic::async_trait]
impl SidecarService for Sidecars {
    async fn drain(
        &self,
        request: Request<proto::DrainRequest>,
    ) -> Result<Response<proto::DrainResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let result = self.drain_now(request.get_ref(), &caller).await;
        audit::record(&caller, "Drain", "the sidecar", &result);
        result.map(Response::new)
    }
}

impl Sidecars {
    async fn drain_now(
        &self,
        request: &proto::DrainRequest,
        caller: &Caller,
    ) -> Result<proto::DrainResponse, Status> {
        let timeout = read_timeout(request).map_err(|invalid| invalid.to_status())?;
        let timeout = timeout.unwrap_or(self.drain_timeout);
        tracing::info!(?timeout, %caller, "draining on request; the sidecar keeps running until it is stopped");
        self.draining.send_replace(true);
        let deadline = self.attachments.shared().clock.now().mono.saturating_add(timeout);
        let drained = self.attachments.drain(deadline, request.for_good);
        let locks = (self.locks.drain(deadline), self.sticky_locks.drain(deadline));
        let (drained, (), ()) = futures::future::join3(drained, locks.0, locks.1).await;
        if !drained.remaining.is_empty() {
            return Err(refusal(
                Reason::DrainIncomplete,
                format!(
                    "these instances have not left in time, because the registry does not answer: {}; their nodes \
                     vanish when the sidecar's session ends",
                    named(&drained.remaining)
                ),
            ));
        }
        let instances = drained.instances.into_iter().map(|(job, instance)| proto::DrainedInstance {
            job_name: job.to_string(),
            instance_id: instance.to_string(),
        });
        Ok(proto::DrainResponse { instances: instances.collect() })
    }
}

fn read_timeout(request: &proto::DrainRequest) -> Result<Option<Duration>, InvalidRequest> {
    let Some(given) = request.timeout else { return Ok(None) };
    match Duration::try_from(given) {
        Ok(timeout) if timeout <= DRAIN_TIMEOUT_MAX => Ok(Some(timeout)),
        Ok(_) | Err(_) => {
            let text = format!("{}s", given.seconds);
            Err(InvalidRequest(vec![FieldError::new("timeout", &text, "0s to 3600s")]))
        }
    }
}

/// Instances in words.
fn named(instances: &[(JobName, InstanceId)]) -> String {
    let named = instances.iter().take(NAMED_MAX).map(|(job, instance)| format!("{instance} of job `{job}`"));
    let mut text = named.collect::<Vec<_>>().join(", ");
    let hidden = instances.len().saturating_sub(NAMED_MAX);
    if hidden > 0 {
        text.push_str(&format!(" and {hidden} more"));
    }
    text
}
