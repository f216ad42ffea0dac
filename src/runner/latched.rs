//! What is committed under a latch: an election, and the taking over of crashed items. Decides nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::BoxFuture;
use tracing::warn;

use crate::coordination::job::contract::input::Input;
use crate::coordination::job::membership::leadership::LATCH_LIMIT;
use crate::elasticjob::path::JobPaths;
use crate::job::Item;
use crate::registry::{Session, latch};
use crate::tree::{CommitResult, Path, Transaction};

use super::clock::Clock;
use super::ledger;

/// Tries to become the leader.
pub(super) fn elect(
    clock: &Clock,
    session: &Arc<dyn Session>,
    paths: &JobPaths,
    transaction: Transaction,
) -> BoxFuture<'static, Input> {
    let held = commit(clock, session, paths.election_latch(), transaction);
    Box::pin(async move {
        // Whether we won is for the view to tell; another one's node is no failure.
        Input::Elected(held.await.map(drop).map_err(|error| {
            warn!(%error, "election failed");
            error.to_string()
        }))
    })
}

/// Tries to take items over, and reads what is written down about them.
pub(super) fn take_over(
    clock: &Clock,
    session: &Arc<dyn Session>,
    paths: &JobPaths,
    transaction: Transaction,
    items: &BTreeSet<Item>,
) -> BoxFuture<'static, Input> {
    let held = commit(clock, session, paths.failover_latch(), transaction);
    let read = ledger::read_taken(Arc::clone(session), paths.clone(), items.clone());
    Box::pin(async move {
        match held.await {
            // Whether we took anything is for the view to tell; another one's node is no failure.
            Ok(_) => Input::TookOver(read.await),
            Err(error) => {
                warn!(%error, "taking over failed");
                Input::TookOver(Err(error.to_string()))
            }
        }
    })
}

fn commit(
    clock: &Clock,
    session: &Arc<dyn Session>,
    latch: Path,
    transaction: Transaction,
) -> impl Future<Output = Result<CommitResult, latch::LatchError>> + Send + use<> {
    let inner = Arc::clone(session);
    latch::hold(clock, Arc::clone(session), latch, LATCH_LIMIT, move || async move {
        inner.commit(transaction).await
    })
}
