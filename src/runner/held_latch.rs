//! A gate's latch, held until the core says what to commit before it is left. Dropping it leaves the latch.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use tokio::sync::oneshot;

use crate::coordination::job::contract::input::Input;
use crate::elasticjob::path::Gate;
use crate::registry::{Session, latch};
use crate::tree::{Path, Transaction};

use super::clock::Clock;

/// A latch that was joined and is not left.
pub(super) struct HeldLatch {
    /// What to commit before it is left.
    leave: oneshot::Sender<Vec<Transaction>>,
    /// Comes back when it was left, or was not reached.
    left: Shared<BoxFuture<'static, Result<(), String>>>,
}

impl HeldLatch {
    /// Joins the latch; the future tells that it is held, or why it could not be.
    pub(super) fn join(
        clock: &Clock,
        session: Arc<dyn Session>,
        latch: Path,
        gate: Gate,
        limit: Duration,
    ) -> (Self, BoxFuture<'static, Input>) {
        let (leave, leaving) = oneshot::channel::<Vec<Transaction>>();
        let (hold, held) = oneshot::channel();
        let inner = Arc::clone(&session);
        let left = latch::hold(clock, session, latch, limit, move || async move {
            // Nobody listens if the participant has ended.
            let _ = hold.send(());
            for transaction in leaving.await.unwrap_or_default() {
                inner.commit(transaction).await.map_err(|error| error.to_string())?;
            }
            Ok(())
        });
        let left = left.map(|left| left.map_err(|error| error.to_string())?).boxed().shared();
        let known = left.clone();
        let news = async move {
            match held.await {
                Ok(()) => Input::LatchHeld(gate),
                Err(_) => Input::LatchLeft(gate, known.await),
            }
        };
        (Self { leave, left }, Box::pin(news))
    }

    /// Commits these in order, and leaves.
    pub(super) fn leave(self, gate: Gate, transactions: Vec<Transaction>) -> BoxFuture<'static, Input> {
        // If nobody is there to take it, the limit was over, and that is the result.
        let _ = self.leave.send(transactions);
        Box::pin(self.left.map(move |left| Input::LatchLeft(gate, left)))
    }
}
