//! Commits that need more than a transaction.

use std::sync::Arc;

use futures::future::BoxFuture;

use crate::registry::Session;
use crate::tree::{CommitResult, NodeKind, Path, Transaction};

/// Commits a transaction once a folder exists.
pub(super) fn commit_in(
    session: &Arc<dyn Session>,
    folder: Path,
    transaction: Transaction,
) -> BoxFuture<'static, CommitResult> {
    let session = Arc::clone(session);
    Box::pin(async move {
        session.ensure(&folder, NodeKind::Persistent, b"").await?;
        session.commit(transaction).await
    })
}
