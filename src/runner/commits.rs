//! Commits that need more than a transaction.

use std::sync::Arc;

use futures::future::BoxFuture;

use crate::registry::Session;
use crate::tree::{CommitResult, NodeKind, Path, Transaction};

/// Commits a transaction once some folders exist.
pub(super) fn commit_in<const N: usize>(
    session: &Arc<dyn Session>,
    folders: [Option<Path>; N],
    transaction: Transaction,
) -> BoxFuture<'static, CommitResult> {
    let session = Arc::clone(session);
    Box::pin(async move {
        for folder in folders.iter().flatten() {
            session.ensure(folder, NodeKind::Persistent, b"").await?;
        }
        session.commit(transaction).await
    })
}
