//! Reads all nodes of a job, ElasticJob's and our own, for somebody who helps from afar. Writes nothing, sets no watch that outlives the call,
//! decides nothing.

use std::time::Duration;

use futures::future::try_join;

use crate::elasticjob::path::JobPaths;
use crate::extension::path::ExtensionPaths;
use crate::job::JobName;
use crate::runner::admin::Namespace;
use crate::runner::admin::explain_job::ExplainError;
use crate::runner::admin::jobs::{ListError, names};
use crate::runner::nodes::snapshot;
use crate::tree::{Node, Path};

/// How long the registry may take: it waits while the session is suspended.
const LIMIT: Duration = Duration::from_secs(20);

/// The nodes of a job.
#[derive(Debug, Clone)]
pub struct JobNodes {
    /// The job's node.
    pub root: Path,
    /// The node, and those below it.
    pub nodes: Vec<Node>,
    /// The folder with our own nodes of the job.
    pub own_root: Path,
    /// The folder, and the nodes below it.
    pub own_nodes: Vec<Node>,
}

/// Reads the nodes of a job.
pub async fn read(namespace: Namespace<'_>, job: &JobName) -> Result<JobNodes, ExplainError> {
    let Namespace { session, root, clock } = namespace;
    let (paths, own_paths) = (JobPaths::new(root, job), ExtensionPaths::new(root, job));
    let reads =
        try_join(snapshot::read(&**session, paths.root()), snapshot::read(&**session, own_paths.root()));
    let read = tokio::select! {
        read = reads => read.map_err(|error| ExplainError::Unread { job: job.clone(), error }),
        () = clock.sleep(LIMIT) => Err(ExplainError::Late(job.clone())),
    };
    let (nodes, own_nodes) = read?;
    if nodes.is_empty() {
        return Err(ExplainError::Unknown(job.clone()));
    }
    Ok(JobNodes { root: paths.root().clone(), nodes, own_root: own_paths.root().clone(), own_nodes })
}

/// The names of all jobs, ascending.
pub async fn all_names(namespace: Namespace<'_>) -> Result<Vec<JobName>, ListError> {
    names(namespace, |_| true).await
}
