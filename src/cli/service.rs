//! The service of jobs, as commands reach it: at a sidecar, or in this process on a session with ZooKeeper.
//!
//! Each command adds the calls that it needs.

use std::time::Duration;

use tonic::transport::Channel;

use super::Failure;
use super::endpoint::{SidecarArgs, authorized};
use super::registry::{Registry, RegistryArgs};
use crate::proto::job_service_client::JobServiceClient;

/// How long to wait for the answer: longer than the sidecar may wait for its registry.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The largest accepted answer, in bytes.
const MESSAGE_LIMIT: usize = 16 * 1024 * 1024;

/// The service, at a sidecar or in this process.
pub(super) enum Service {
    /// A sidecar.
    Sidecar(Box<JobServiceClient<Channel>>),
    /// This process.
    Registry(Registry),
}

impl Service {
    pub(super) async fn open(sidecar: &SidecarArgs, registry: &RegistryArgs) -> Result<Self, Failure> {
        if let Some(registry) = registry.open().await? {
            return Ok(Self::Registry(registry));
        }
        let client = JobServiceClient::new(sidecar.sidecar()?.connect().await?);
        Ok(Self::Sidecar(Box::new(client.max_decoding_message_size(MESSAGE_LIMIT))))
    }

    /// Ends the session of this process, if there is one.
    pub(super) async fn close(self) {
        if let Self::Registry(registry) = self {
            registry.session.close().await;
        }
    }
}

/// A request that waits for its answer for a bounded time.
pub(super) fn timed<T>(message: T) -> anyhow::Result<tonic::Request<T>> {
    let mut request = authorized(message)?;
    request.set_timeout(ANSWER_TIMEOUT);
    Ok(request)
}
