//! The service that saves and restores the namespace: files in chunks, and outcomes to messages.

use std::pin::Pin;
use std::sync::Arc;

use futures::stream::{Stream, iter};
use tokio::sync::watch;
use tonic::{Request, Response, Status, Streaming};

use crate::coordination::admin::backup::file::{BYTES_MAX, Backup, FileError};
use crate::elasticjob::field_error::FieldError;
use crate::excerpt::Excerpt;
use crate::job::JobName;
use crate::listen::caller::Caller;
use crate::listen::refusal::refusal;
use crate::proto;
use crate::proto::namespace_service_server::NamespaceService;
use crate::reason::Reason;
use crate::runner::admin::Namespace;
use crate::runner::admin::backup::{self, BackupError, LIMIT, Outcome, Wish};
use crate::runner::shared::Shared;
use crate::tree::Path;

use super::convert::InvalidRequest;
use super::event::instant;
use super::{audit, status};

/// The bytes of a message.
pub const CHUNK_BYTES: usize = 64 * 1024;
/// The most paths or names of a kind in an answer.
const NAMED_MAX: usize = 1_000;

/// The service.
#[derive(Clone)]
pub struct Namespaces {
    shared: Shared,
    draining: watch::Receiver<bool>,
}

impl Namespaces {
    /// The service on the sidecar's session, until it drains.
    pub fn new(shared: Shared, draining: watch::Receiver<bool>) -> Self {
        Self { shared, draining }
    }
}

#[tonic::async_trait]
impl NamespaceService for Namespaces {
    type BackupNamespaceStream =
        Pin<Box<dyn Stream<Item = Result<proto::BackupNamespaceResponse, Status>> + Send>>;

    async fn backup_namespace(
        &self,
        request: Request<proto::BackupNamespaceRequest>,
    ) -> Result<Response<Self::BackupNamespaceStream>, Status> {
        let caller = Caller::of(request.extensions());
        let saved = async {
            let session = self.shared.current.borrow().clone().ok_or(BackupError::NoSession)?;
            let Shared { namespace: root, clock, .. } = &self.shared;
            backup::save_in(Namespace { session: &session, root, clock }).await
        };
        let result = saved.await.map_err(|error| status::of_backup(&error));
        audit::record(&caller, "BackupNamespace", &self.shared.namespace, &result);
        let chunks: Vec<_> = result?.chunks(CHUNK_BYTES).map(<[u8]>::to_vec).collect();
        let messages = chunks.into_iter().map(|chunk| Ok(proto::BackupNamespaceResponse { chunk }));
        Ok(Response::new(Box::pin(iter(messages))))
    }

    async fn restore_namespace(
        &self,
        request: Request<Streaming<proto::RestoreNamespaceRequest>>,
    ) -> Result<Response<proto::RestoreNamespaceResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let result = self.restore(request.into_inner()).await;
        audit::record(&caller, "RestoreNamespace", &self.shared.namespace, &result);
        result.map(Response::new)
    }
}

impl Namespaces {
    async fn restore(
        &self,
        messages: Streaming<proto::RestoreNamespaceRequest>,
    ) -> Result<proto::RestoreNamespaceResponse, Status> {
        let Shared { namespace: root, clock, .. } = &self.shared;
        let received = tokio::select! {
            received = receive(messages) => received?,
            () = clock.sleep(LIMIT) => return Err(status::of_backup(&BackupError::Late)),
        };
        let wish = wish(&received)?;
        if *self.draining.borrow() {
            return Err(refusal(
                Reason::SidecarStopping,
                "the sidecar is stopping; ask another one".to_owned(),
            ));
        }
        let session = self.shared.current.borrow().clone();
        let session = session.ok_or_else(|| status::of_backup(&BackupError::NoSession))?;
        let outcome = backup::restore_in(Namespace { session: &session, root, clock }, &wish).await;
        Ok(to_message(&wish.backup, &outcome.map_err(|error| status::of_backup(&error))?))
    }
}

/// All messages as one: the first, with all bytes.
async fn receive(
    mut messages: Streaming<proto::RestoreNamespaceRequest>,
) -> Result<proto::RestoreNamespaceRequest, Status> {
    let mut received = messages.message().await?.unwrap_or_default();
    while let Some(message) = messages.message().await? {
        if received.chunk.len().saturating_add(message.chunk.len()) > BYTES_MAX {
            return Err(status::of_backup(&FileError::TooLarge.into()));
        }
        received.chunk.extend_from_slice(&message.chunk);
    }
    Ok(received)
}

/// The wish of a request that has all bytes of the file.
pub fn wish(request: &proto::RestoreNamespaceRequest) -> Result<Wish, Status> {
    let settled = match request.settled_until {
        None => None,
        Some(at) => Some(instant(&at).ok_or_else(|| {
            let given = format!("{}s", at.seconds);
            InvalidRequest(vec![FieldError::new("settled_until", &given, "an instant")]).to_status()
        })?),
    };
    let backup = Backup::read(&request.chunk).map_err(|error| status::of_backup(&error.into()))?;
    Ok(Wish {
        backup: Arc::new(backup),
        dry: request.validate_only,
        force: request.force,
        etag: Some(request.etag.clone()).filter(|etag| !etag.is_empty()),
        settled,
    })
}

/// An outcome as the API has it.
pub fn to_message(backup: &Backup, outcome: &Outcome) -> proto::RestoreNamespaceResponse {
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let paths = |paths: &[Path]| paths.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    let name = |job: &JobName| job.to_string();
    let plan = &outcome.plan;
    proto::RestoreNamespaceResponse {
        etag: plan.etag(),
        created_at: Excerpt::of(&backup.header.created_at).into_string(),
        namespace: Excerpt::of(&backup.header.namespace).into_string(),
        jobs: count(backup.jobs()),
        created_nodes: count(plan.created),
        kept_nodes: count(plan.kept),
        changed_paths: paths(&plan.changed),
        removed_paths: paths(&plan.removed),
        online_job_names: outcome.online.iter().take(NAMED_MAX).map(|(job, _)| name(job)).collect(),
        other_job_names: outcome.others.iter().take(NAMED_MAX).map(name).collect(),
        tokens_may_fall: outcome.tokens_may_fall,
    }
}
