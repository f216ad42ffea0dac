//! Commits the transactions of a participant, and creates before the folders that they need. Decides nothing.

use std::sync::Arc;

use futures::future::BoxFuture;

use crate::coordination::job::contract::commit::Purpose;
use crate::coordination::job::frame::context::Identity;
use crate::extension::path::ExtensionPaths;
use crate::registry::Session;
use crate::tree::{CommitResult, NodeKind, Path, Transaction};

/// Commits a transaction of a participant.
pub(super) fn commit(
    session: &Arc<dyn Session>,
    namespace: &Path,
    identity: &Identity,
    purpose: Purpose,
    transaction: Transaction,
) -> BoxFuture<'static, CommitResult> {
    match purpose {
        // These folders are not part of the transaction: for an application that is refused, it writes nothing.
        Purpose::Register => {
            let fleet = identity.own_paths.fleet();
            let names = identity.name.as_ref().map(|_| fleet.names());
            // The folders of all jobs come first, so that those of each job can be created together with those of others.
            let (ours, theirs) = (ExtensionPaths::all(namespace), namespace.clone());
            commit_in(session, [Some(theirs), Some(ours), Some(fleet.members()), names], transaction)
        }
        Purpose::Announce => commit_in(session, [Some(identity.own_paths.fleet().members())], transaction),
        Purpose::Abdicate
        | Purpose::FlagResharding
        | Purpose::Shard
        | Purpose::Start
        | Purpose::Complete
        | Purpose::Checkpoint
        | Purpose::FlagMisfire
        | Purpose::RegisterAtBarrier
        | Purpose::FlagFailover
        | Purpose::TakeTrigger
        | Purpose::RemoveServers
        | Purpose::CheckClock
        | Purpose::Enable
        | Purpose::RepairRotation
        | Purpose::RemindLeader
        | Purpose::PlanHandoff
        | Purpose::HandOff
        | Purpose::Renew
        | Purpose::ForgetNames
        | Purpose::Leave => session.commit_with_others(transaction),
    }
}

/// Commits a transaction once some folders exist.
fn commit_in<const N: usize>(
    session: &Arc<dyn Session>,
    folders: [Option<Path>; N],
    transaction: Transaction,
) -> BoxFuture<'static, CommitResult> {
    let session = Arc::clone(session);
    Box::pin(async move {
        for folder in folders.iter().flatten() {
            session.ensure(folder, NodeKind::Persistent, b"").await?;
        }
        session.commit_with_others(transaction).await
    })
}
