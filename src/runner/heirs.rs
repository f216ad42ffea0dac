//! What a sidecar makes of what its former process has left: a participant for each instance, which waits for its
//! application ([`crate::coordination::job::lifecycle::restart`]), and none of the nodes that only the former process could use.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::coordination::job::contract::reattach;
use crate::coordination::job::frame::context::Identity;
use crate::coordination::job::participant::Participant;
use crate::elasticjob::path::{Gate, JobPaths};
use crate::job::JobName;
use crate::registry::{Error, Session, SessionKey};
use crate::tree::{Operation, Path};

use super::hub::{Attach, Hub};
use super::memory::{FormerLife, Member};

/// The session of the former process, and what to look for in it.
pub struct Former {
    key: SessionKey,
    namespace: Path,
    jobs: BTreeSet<JobName>,
}

impl Former {
    /// What the former process has left under this namespace.
    pub fn new(life: &FormerLife, namespace: Path) -> Self {
        let jobs = life.members.iter().map(|member| member.job.clone()).collect();
        Self { key: life.key.clone(), namespace, jobs }
    }

    pub(super) fn key(&self) -> &SessionKey {
        &self.key
    }

    /// Leaves all latches at which the former process stood: nobody would ever be next after it.
    pub(super) async fn clear_latches(&self, session: &Arc<dyn Session>) -> Result<(), Error> {
        for job in &self.jobs {
            let paths = JobPaths::new(&self.namespace, job);
            let gates = [Gate::Started, Gate::Completed].map(|gate| paths.guarantee_latch(gate));
            for latch in [paths.election_latch(), paths.failover_latch()].iter().chain(&gates) {
                clear_latch(session, latch).await?;
            }
        }
        Ok(())
    }
}

async fn clear_latch(session: &Arc<dyn Session>, latch: &Path) -> Result<(), Error> {
    for name in session.children(latch).await?.unwrap_or_default() {
        let contender = latch.child(&name);
        let node = session.get(&contender).await?;
        if node.is_some_and(|node| node.stat.ephemeral_owner == Some(session.id())) {
            match session.commit(vec![Operation::delete(contender)]).await.map_err(|error| error.error) {
                // The former process may have sent that itself.
                Ok(_) | Err(Error::NoNode(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

impl Hub {
    /// Has participants wait for the applications of the former process. Before anybody can attach.
    pub fn inherit(&self, life: FormerLife) {
        let FormerLife { key, members } = life;
        let now = self.shared().clock.now().wall;
        // As long as the session lives, the former process was alive within its timeout.
        let proven = now.checked_sub(key.timeout).unwrap_or(now);
        let mut inner = self.lock();
        for member in members {
            let former = reattach::Former {
                session: key.id,
                timeout: key.timeout,
                since: member.since.max(proven).min(now),
            };
            let Member { job, instance, name, application_id, profile, .. } = member.clone();
            let chosen = name.is_some() || application_id.is_empty();
            if let Some(unique) = instance.unique().filter(|_| !chosen) {
                inner.uniques.insert(application_id.clone(), unique.to_owned());
            }
            let attach = Attach {
                job,
                configuration: None,
                class: None,
                profile,
                name,
                application_id,
                client: String::new(),
                open: Vec::new(),
            };
            let core = |identity: Identity| {
                self.shared().memory.knows(&identity.execution_prefix, member.clone());
                Participant::heir(identity, attach.request(), former)
            };
            // Nobody reads yet what it tells.
            drop(self.begin(&mut inner, instance, &attach, true, core));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::registry::Registry;
    use crate::registry::embedded::Embedded;
    use crate::tree::NodeKind;

    #[tokio::test]
    async fn the_former_process_leaves_all_latches_of_its_jobs_and_nobody_elses() {
        let registry = Embedded::in_memory();
        let (ours, theirs) = (registry.open().await.unwrap(), registry.open().await.unwrap());
        let namespace = Path::parse("/ns").unwrap();
        let job = JobName::parse("orders").unwrap();
        let paths = JobPaths::new(&namespace, &job);
        let latches = [
            paths.election_latch(),
            paths.failover_latch(),
            paths.guarantee_latch(Gate::Started),
            paths.guarantee_latch(Gate::Completed),
        ];
        let contend = async |session: &Arc<dyn Session>, latch: &Path, name: &str| {
            session.ensure(&latch.child(name), NodeKind::Ephemeral, b"").await.unwrap();
        };
        // The election's latch may not be there.
        for latch in &latches[1..] {
            contend(&ours, latch, "_c_a-latch-0000000000").await;
            contend(&theirs, latch, "_c_b-latch-0000000001").await;
            contend(&ours, latch, "_c_c-latch-0000000002").await;
        }
        let key = SessionKey { id: ours.id(), password: Vec::new(), timeout: Duration::from_secs(6) };
        let former = Former { key, namespace, jobs: [job].into() };
        former.clear_latches(&ours).await.unwrap();
        for latch in &latches[1..] {
            assert_eq!(theirs.children(latch).await.unwrap().unwrap(), ["_c_b-latch-0000000001"]);
        }
    }
}
