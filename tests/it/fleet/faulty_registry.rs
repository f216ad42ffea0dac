//! A registry with a fault that occurs when a job is triggered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures::future::BoxFuture;
use sidekeeper::registry::embedded::Embedded;
use sidekeeper::registry::{Registry, Session, SessionKey};
use sidekeeper::tree::{CommitResult, Error, NodeKind, Operation, Transaction};

use crate::altered_session::{Alteration, AlteredSession};

#[derive(Clone)]
pub enum RegistryFault {
    /// The last instance unregisters just before the commit, so many times, and registers again just after.
    InstanceFlickers(Arc<AtomicU32>),
    /// The commit takes effect, and its answer is lost.
    AnswerLost,
    /// The commits that record operators' requests take effect, and the answers of so many are lost.
    RecordAnswerLost(Arc<AtomicU32>),
    /// No session can be opened.
    Unreachable,
}

/// See the module.
pub struct FaultyRegistry {
    pub registry: Embedded,
    pub fault: RegistryFault,
}

impl Registry for FaultyRegistry {
    fn open(&self) -> BoxFuture<'_, Result<Arc<dyn Session>, Error>> {
        Box::pin(async move {
            if matches!(self.fault, RegistryFault::Unreachable) {
                return Err(Error::Unreachable("unreachable on purpose".to_owned()));
            }
            let (inner, alteration) = (self.registry.open().await?, self.fault.clone());
            let session: Arc<dyn Session> = Arc::new(AlteredSession { inner, alteration });
            Ok(session)
        })
    }

    fn reopen<'a>(&'a self, key: &'a SessionKey) -> BoxFuture<'a, Result<Option<Arc<dyn Session>>, Error>> {
        self.registry.reopen(key)
    }

    fn describe(&self) -> String {
        self.registry.describe()
    }
}

impl Alteration for RegistryFault {
    fn commit(&self, inner: &Arc<dyn Session>, transaction: Transaction) -> BoxFuture<'static, CommitResult> {
        if let Self::RecordAnswerLost(times) = self
            && transaction.iter().any(|step| step.path().as_str().contains("/requests/"))
            && times.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
        {
            return lose_answer(Arc::clone(inner), transaction);
        }
        let last_checked = transaction.iter().rev().find(|step| matches!(step, Operation::Check { .. }));
        let (inner, instance) = (Arc::clone(inner), last_checked.map(|step| step.path().clone()));
        let Some(instance) = instance.filter(|path| path.as_str().contains("/instances/")) else {
            return inner.commit(transaction);
        };
        match self {
            Self::InstanceFlickers(times) => {
                let less = |left: u32| left.checked_sub(1);
                if times.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err() {
                    return inner.commit(transaction);
                }
                Box::pin(async move {
                    let node = inner.get(&instance).await.unwrap().unwrap();
                    inner.commit(vec![Operation::delete(instance.clone())]).await.unwrap();
                    let result = inner.commit(transaction).await;
                    inner.ensure(&instance, NodeKind::Persistent, &node.data).await.unwrap();
                    result
                })
            }
            Self::AnswerLost => lose_answer(inner, transaction),
            Self::RecordAnswerLost(_) | Self::Unreachable => inner.commit(transaction),
        }
    }
}

fn lose_answer(inner: Arc<dyn Session>, transaction: Transaction) -> BoxFuture<'static, CommitResult> {
    Box::pin(async move {
        inner.commit(transaction).await?;
        Err(Error::OutcomeUnknown("the answer was lost".to_owned()).into())
    })
}
