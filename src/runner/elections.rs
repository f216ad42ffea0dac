//! One candidate of the sidecar at a time for each job. Decides nothing.
//!
//! When a job has no leader, all its instances stand for election. Those of one sidecar share the session, so one of them
//! is enough: the others wait for the same result, which says only that there was a leader. Whether an instance is it, and
//! whether there still is one, the picture shows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};

use crate::job::JobName;
use crate::tree::SessionId;

/// The result of a candidature: why it failed.
pub(crate) type Elected = Result<(), String>;

/// A candidature, and the session in which it stands.
type Standing = (SessionId, Shared<BoxFuture<'static, Elected>>);

/// The candidatures of all jobs. Clones share them.
#[derive(Clone, Default)]
pub struct Elections {
    standing: Arc<Mutex<BTreeMap<JobName, Standing>>>,
}

impl Elections {
    /// The result of the candidature that stands for this job in this session, or else of this one.
    pub(crate) fn stand(
        &self,
        session: SessionId,
        job: &JobName,
        candidature: impl FnOnce() -> BoxFuture<'static, Elected>,
    ) -> BoxFuture<'static, Elected> {
        let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((theirs, result)) = standing.get(job)
            && *theirs == session
        {
            return result.clone().boxed();
        }
        let (elections, name, candidature) = (self.clone(), job.clone(), candidature());
        let result = async move {
            let elected = candidature.await;
            let mut standing = elections.standing.lock().unwrap_or_else(PoisonError::into_inner);
            if standing.get(&name).is_some_and(|(ours, _)| *ours == session) {
                standing.remove(&name);
            }
            elected
        };
        let result = result.boxed().shared();
        standing.insert(job.clone(), (session, result.clone()));
        result.boxed()
    }
}

#[cfg(test)]
mod tests {
    use futures::future::ready;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn instances_that_stand_at_the_same_time_share_a_candidature() {
        let (elections, job) = (Elections::default(), JobName::parse("job").unwrap());
        let (end, ended) = oneshot::channel::<()>();
        let first = elections.stand(SessionId(1), &job, || Box::pin(ended.map(|_| Ok(()))));
        let second = elections.stand(SessionId(1), &job, || unreachable!("another one stands"));
        let failed = |reason: &str| ready(Err(reason.to_owned())).boxed();
        assert!(elections.stand(SessionId(2), &job, || failed("another session")).await.is_err());
        end.send(()).unwrap();
        assert_eq!((second.await, first.await), (Ok(()), Ok(())));
        assert_eq!(elections.stand(SessionId(1), &job, || failed("again")).await, Err("again".to_owned()));
    }
}
