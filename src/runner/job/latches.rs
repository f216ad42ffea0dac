//! The commits that the sidecar makes while it holds a latch: elections, takeovers of crashed instances' items, and the
//! once-listener's barrier. Decides nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use tokio::sync::oneshot;
use tracing::warn;

use crate::coordination::job::contract::input::Input;
use crate::coordination::job::frame::context::Identity;
use crate::coordination::job::membership::leadership::LATCH_LIMIT;
use crate::elasticjob::path::Barrier;
use crate::job::Item;
use crate::registry::{Session, latch};
use crate::runner::clock::Clock;
use crate::runner::elections::Elections;
use crate::tree::{CommitResult, Path, Transaction};

use super::reads;

/// Tries to become the leader.
pub(super) fn elect(
    elections: &Elections,
    clock: &Clock,
    session: &Arc<dyn Session>,
    identity: &Identity,
    transaction: Transaction,
) -> BoxFuture<'static, Input> {
    let elected = elections.stand(session.id(), &identity.job, || {
        let held = commit(clock, session, identity.paths.election_latch(), transaction);
        Box::pin(async move {
            // The picture shows whether this instance is the leader now. A node of another leader is no failure.
            held.await.map(drop).map_err(|error| {
                warn!(event = "ELECTION_FAILED", %error, "the election failed");
                error.to_string()
            })
        })
    });
    Box::pin(elected.map(Input::Elected))
}

/// Tries to take items over, and reads the ledger and the checkpoints of these items.
pub(super) fn take_over(
    clock: &Clock,
    session: &Arc<dyn Session>,
    identity: &Identity,
    transaction: Transaction,
    items: &BTreeSet<Item>,
) -> BoxFuture<'static, Input> {
    let held = commit(clock, session, identity.paths.failover_latch(), transaction);
    let read = reads::read_taken(Arc::clone(session), identity.own_paths.clone(), items.clone());
    Box::pin(async move {
        match held.await {
            // The picture shows which items this instance has taken over. A node of another instance is no failure.
            Ok(_) => Input::TookOver(read.await),
            Err(error) => {
                warn!(event = "TAKEOVER_FAILED", %error, "the takeover of items failed");
                Input::TookOver(Err(error.to_string()))
            }
        }
    })
}

/// Commits a transaction while holding a latch.
fn commit(
    clock: &Clock,
    session: &Arc<dyn Session>,
    latch: Path,
    transaction: Transaction,
) -> impl Future<Output = Result<CommitResult, latch::LatchError>> + Send + use<> {
    let inner = Arc::clone(session);
    latch::hold(clock, Arc::clone(session), latch, LATCH_LIMIT, move || async move {
        inner.commit_with_others(transaction).await
    })
}

/// A latch that the sidecar has joined for a participant, and holds until the participant says what to commit. Dropping it
/// leaves the latch.
pub(super) struct HeldLatch {
    /// The commits before the latch is left.
    leave: oneshot::Sender<Vec<Transaction>>,
    /// Ends when the latch was left, or could not be reached.
    left: Shared<BoxFuture<'static, Result<(), String>>>,
}

impl HeldLatch {
    /// Joins the latch. The future ends when the latch is held, or with the reason why not.
    pub(super) fn join(
        clock: &Clock,
        session: Arc<dyn Session>,
        latch: Path,
        barrier: Barrier,
        limit: Duration,
    ) -> (Self, BoxFuture<'static, Input>) {
        let (leave, leaving) = oneshot::channel::<Vec<Transaction>>();
        let (hold, held) = oneshot::channel();
        let inner = Arc::clone(&session);
        let left = latch::hold(clock, session, latch, limit, move || async move {
            // The receiver is dropped if the participant has ended.
            let _ = hold.send(());
            for transaction in leaving.await.unwrap_or_default() {
                inner.commit_with_others(transaction).await.map_err(|error| error.to_string())?;
            }
            Ok(())
        });
        let left = left.map(|left| left.map_err(|error| error.to_string())?).boxed().shared();
        let known = left.clone();
        let news = async move {
            match held.await {
                Ok(()) => Input::LatchHeld(barrier),
                Err(_) => Input::LatchLeft(barrier, known.await),
            }
        };
        (Self { leave, left }, Box::pin(news))
    }

    /// Commits the transactions in order, and leaves the latch.
    pub(super) fn leave(self, barrier: Barrier, transactions: Vec<Transaction>) -> BoxFuture<'static, Input> {
        // The receiver is dropped if the limit was over. Then that is the result.
        let _ = self.leave.send(transactions);
        Box::pin(self.left.map(move |left| Input::LatchLeft(barrier, left)))
    }
}
