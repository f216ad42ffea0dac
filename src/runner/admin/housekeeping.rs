//! Removes finished one-off jobs that ask for it: reads their nodes from time to time, and commits the plan. Decides nothing
//! ([`crate::coordination::admin::finished`] does).
//!
//! One sidecar of the namespace does it, so that a fleet reads each configuration once: the one whose ephemeral node exists. When its
//! session ends, another one goes on. No correctness depends on that: a plan that two sidecars commit is carried out once.

use std::time::Duration;

use futures::future::try_join;
use tracing::{debug, info};

use crate::coordination::admin::finished::{Job, Step};
use crate::elasticjob::path::JobPaths;
use crate::extension::path::ExtensionPaths;
use crate::extension::removal::{housekeeper, may_ask};
use crate::job::JobName;
use crate::registry::Session;
use crate::runner::admin::Namespace;
use crate::runner::admin::jobs::{ListError, names};
use crate::runner::nodes::snapshot;
use crate::runner::shared::Shared;
use crate::tree::{Error, NodeKind, Operation, OperationResult, Path};

/// The pause between two rounds: a job stays for ten minutes at least.
const PAUSE: Duration = Duration::from_secs(5 * 60);
/// How long a round may take. The next one goes on.
const LIMIT: Duration = Duration::from_secs(120);
/// The configurations that are read at once.
const AT_ONCE: usize = 128;

/// Looks for finished jobs, for ever.
pub async fn keep(shared: Shared) {
    loop {
        shared.clock.sleep(PAUSE).await;
        let Some(session) = shared.current.borrow().clone() else { continue };
        let namespace = Namespace::of(&shared, &session);
        let round = async {
            match take_turn(&*session, namespace.root).await? {
                Some(registry_ms) => sweep(namespace, registry_ms).await,
                None => Ok(()),
            }
        };
        let done = tokio::select! {
            done = round => done,
            () = shared.clock.sleep(LIMIT) => Ok(()),
        };
        if let Err(error) = done {
            debug!(%error, "the round of the housekeeping broke off; the next one goes on");
        }
    }
}

/// Becomes the housekeeper, or stays it. Returns the time by the registry's clock, in milliseconds since 1970. `None`: another sidecar is it,
/// or no sidecar has ever been in a job of the namespace.
pub async fn take_turn(session: &dyn Session, namespace: &Path) -> Result<Option<i64>, Error> {
    let turn = housekeeper(namespace);
    let step = match session.get(&turn).await? {
        Some(node) if node.stat.ephemeral_owner == Some(session.id()) => Operation::set(turn, ""),
        Some(_) => return Ok(None),
        None => Operation::create(turn, NodeKind::Ephemeral, ""),
    };
    match session.commit(vec![step]).await.map_err(|failure| failure.error) {
        Ok(results) => Ok(results.into_iter().find_map(|result| match result {
            OperationResult::Created { stat, .. } | OperationResult::Set { stat } => Some(stat.modified_ms),
            OperationResult::Deleted | OperationResult::Checked => None,
        })),
        Err(Error::NodeExists(_) | Error::NoNode(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Looks at each job of the namespace once. `registry_ms`: the time by the registry's clock.
pub async fn sweep(namespace: Namespace<'_>, registry_ms: i64) -> Result<(), Error> {
    let Namespace { session, root, .. } = namespace;
    let jobs = names(namespace, |_| true).await.map_err(|error| match error {
        ListError::Unread(error) => error,
        ListError::NoSession | ListError::Late => Error::Suspended,
    })?;
    for jobs in jobs.chunks(AT_ONCE) {
        let paths: Vec<_> = jobs.iter().map(|job| JobPaths::new(root, job).config()).collect();
        let configurations = session.nodes(&paths).await?;
        for (job, configuration) in jobs.iter().zip(configurations) {
            if configuration.is_some_and(|node| may_ask(&node.data)) {
                look_at(namespace, job, registry_ms).await?;
            }
        }
    }
    Ok(())
}

async fn look_at(namespace: Namespace<'_>, job: &JobName, registry_ms: i64) -> Result<(), Error> {
    let Namespace { session, root, clock } = namespace;
    let (paths, own_paths) = (JobPaths::new(root, job), ExtensionPaths::new(root, job));
    let read =
        try_join(snapshot::read(&**session, paths.root()), snapshot::read(&**session, own_paths.root()));
    let (nodes, own) = read.await?;
    let job_nodes = Job { paths: &paths, own_paths: &own_paths, nodes, own };
    let (transaction, removes) = match job_nodes.next_step(registry_ms, session.request_limit(), clock.now())
    {
        Step::Leave => return Ok(()),
        Step::Note(transaction) => (transaction, false),
        Step::Remove(transaction) => (transaction, true),
    };
    let nodes = transaction.len();
    match session.commit(transaction).await.map_err(|failure| failure.error) {
        Ok(_) if removes => {
            info!(job.name = %job, nodes, "removed the finished job, as its property asks for");
            Ok(())
        }
        Ok(_) => Ok(()),
        Err(error @ (Error::Suspended | Error::SessionLost | Error::OutcomeUnknown(_))) => Err(error),
        // Something has changed meanwhile, or the nodes are of others.
        Err(error) => {
            debug!(job.name = %job, %error, "the job is left for the next round");
            Ok(())
        }
    }
}
