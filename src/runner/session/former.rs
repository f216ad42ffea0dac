//! The session of the sidecar's former process: its key, and the latches and locks that the former process left in it.
//!
//! Decides only which nodes to remove: those that the former session owns, at the latches of the jobs in which the former
//! process had instances, and in the queues of its locks. An application has lost its locks with the stream to that process.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::join_all;

use crate::elasticjob::path::{Barrier, JobPaths};
use crate::job::JobName;
use crate::registry::{Error, Session, SessionKey};
use crate::tree::{Operation, Path};

use crate::runner::state_file::contents::FormerProcess;

/// The session of the former process, and the jobs in which it had instances.
pub struct FormerSession {
    key: SessionKey,
    namespace: Path,
    jobs: BTreeSet<JobName>,
    locks: Vec<Path>,
}

impl FormerSession {
    /// The session of a former process that used this namespace.
    pub fn new(former: &FormerProcess, namespace: Path) -> Self {
        let jobs = former.members.iter().map(|member| member.job.clone()).collect();
        Self { key: former.key.clone(), namespace, jobs, locks: former.locks.clone() }
    }

    pub(crate) fn key(&self) -> &SessionKey {
        &self.key
    }

    /// Removes the former process's nodes at all latches and in the queues of all locks: no task is left that would act when such a node is first, so all
    /// later contenders would wait until the session ends.
    pub(crate) async fn clear_queues(&self, session: &Arc<dyn Session>) -> Result<(), Error> {
        for lock in &self.locks {
            clear_queue(session, lock).await?;
        }
        for job in &self.jobs {
            let paths = JobPaths::new(&self.namespace, job);
            let barriers =
                [Barrier::Started, Barrier::Completed].map(|barrier| paths.guarantee_latch(barrier));
            for latch in [paths.election_latch(), paths.failover_latch()].iter().chain(&barriers) {
                clear_queue(session, latch).await?;
            }
        }
        Ok(())
    }
}

async fn clear_queue(session: &Arc<dyn Session>, latch: &Path) -> Result<(), Error> {
    let names = session.children(latch).await?.unwrap_or_default();
    let contenders = names.iter().filter_map(|name| latch.try_child(name).ok());
    // All at once: a queue may have a thousand contenders.
    let nodes = join_all(contenders.map(|contender| session.get(&contender))).await;
    for node in nodes {
        let ours = node?.filter(|node| node.stat.ephemeral_owner == Some(session.id()));
        if let Some(node) = ours {
            match session.commit(vec![Operation::delete(node.path)]).await.map_err(|error| error.error) {
                // The former process may have sent the same request.
                Ok(_) | Err(Error::NoNode(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::registry::Registry;
    use crate::registry::embedded::Embedded;
    use crate::tree::NodeKind;

    #[tokio::test]
    async fn clear_queues_removes_the_nodes_of_the_former_session_only() {
        let registry = Embedded::in_memory();
        let (ours, theirs) = (registry.open().await.unwrap(), registry.open().await.unwrap());
        let namespace = Path::parse("/ns").unwrap();
        let job = JobName::parse("orders").unwrap();
        let paths = JobPaths::new(&namespace, &job);
        let lock = Path::parse("/ns-sidekeeper/locks/bill").unwrap();
        let latches = [
            paths.election_latch(),
            paths.failover_latch(),
            paths.guarantee_latch(Barrier::Started),
            paths.guarantee_latch(Barrier::Completed),
            lock.clone(),
        ];
        let contend = async |session: &Arc<dyn Session>, latch: &Path, name: &str| {
            session.ensure(&latch.child(name), NodeKind::Ephemeral, b"").await.unwrap();
        };
        // The election's latch does not exist.
        for latch in &latches[1..] {
            contend(&ours, latch, "_c_a-latch-0000000000").await;
            contend(&theirs, latch, "_c_b-latch-0000000001").await;
            contend(&ours, latch, "_c_c-latch-0000000002").await;
        }
        let key = SessionKey { id: ours.id(), password: Vec::new(), timeout: Duration::from_secs(6) };
        let former = FormerSession { key, namespace, jobs: [job].into(), locks: vec![lock] };
        former.clear_queues(&ours).await.unwrap();
        for latch in &latches[1..] {
            assert_eq!(theirs.children(latch).await.unwrap().unwrap(), ["_c_b-latch-0000000001"]);
        }
    }
}
