//! Reads the evidence for an explanation: the nodes of a job, those that its sidecars publish, and the last outcomes at this sidecar.
//! Sets no watch that outlives the call, writes nothing, decides nothing ([`crate::coordination::admin::explain`] does).

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use crate::coordination::admin::explain::{Evidence, Explanation};
use crate::coordination::job::picture::Picture;
use crate::coordination::time::Now;
use crate::elasticjob::path::JobPaths;
use crate::extension::path::ExtensionPaths;
use crate::job::{Item, JobName};
use crate::runner::admin::Namespace;
use crate::runner::nodes::snapshot;
use crate::runner::shared::Shared;
use crate::tree::{Error, Node, WatchEvent};

/// How long the registry may take: it waits while the session is suspended.
const LIMIT: Duration = Duration::from_secs(20);

/// An instance registers in less time after it has created our own folders.
const REGISTERS_WITHIN: Duration = Duration::from_secs(2);

/// Why a job cannot be explained.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExplainError {
    /// There is no session.
    #[error("the sidecar has no session with the registry; try again")]
    NoSession,
    /// The registry does not know the job.
    #[error("the registry has no nodes of job `{0}`; check the name and the namespace")]
    Unknown(JobName),
    /// The job has no such item.
    #[error("job `{job}` has no item {item}; allowed: 0 to {last}")]
    NoItem {
        /// The job.
        job: JobName,
        /// The item.
        item: Item,
        /// The last item that there is.
        last: Item,
    },
    /// The nodes could not be read.
    #[error("the registry did not tell the state of job `{job}`: {error}; try again")]
    Unread {
        /// The job.
        job: JobName,
        /// How.
        error: Error,
    },
    /// The registry did not answer in time.
    #[error("the registry did not tell the state of job `{0}` within {LIMIT:?}; try again")]
    Late(JobName),
}

/// Explains these items of a job, or all, with the last outcomes at this sidecar; and when the nodes were read.
pub async fn explain(
    shared: &Shared,
    job: &JobName,
    items: &BTreeSet<Item>,
) -> Result<(Explanation, Timestamp), ExplainError> {
    let session = shared.current.borrow().clone().ok_or(ExplainError::NoSession)?;
    let namespace = Namespace::of(shared, &session);
    let Some(nodes) = read_or_left(namespace, job).await? else { return Ok(left(namespace, job)) };
    let as_of = nodes.now.wall;
    let mut evidence = Evidence::from(nodes);
    shared.outcomes.add_to(job, &mut evidence.status);
    shared.lock_waits.add_to(job, &mut evidence.status);
    Ok((conclude(&evidence, job, items)?, as_of))
}

/// The same, from the registry alone.
pub async fn explain_in(
    namespace: Namespace<'_>,
    job: &JobName,
    items: &BTreeSet<Item>,
) -> Result<(Explanation, Timestamp), ExplainError> {
    let Some(nodes) = read_or_left(namespace, job).await? else { return Ok(left(namespace, job)) };
    let as_of = nodes.now.wall;
    Ok((conclude(&nodes.into(), job, items)?, as_of))
}

/// The nodes of a job, and those that its sidecars publish, at one moment.
pub(super) struct Nodes {
    paths: JobPaths,
    own_paths: ExtensionPaths,
    nodes: Vec<Node>,
    fleet: Vec<Node>,
    now: Now,
}

impl Nodes {
    /// The node of the configuration.
    pub(super) fn configuration(&self) -> Option<&Node> {
        let path = self.paths.config();
        self.nodes.iter().find(|node| node.path == path)
    }
}

impl Nodes {
    /// The job's paths, its known state, and when it was read.
    pub(super) fn into_picture(self) -> (JobPaths, ExtensionPaths, Picture, Now) {
        let Self { paths, own_paths, nodes, fleet, now } = self;
        let mut picture = Picture::unknown(&paths, &own_paths);
        picture.apply_nodes(WatchEvent::Snapshot(nodes), now);
        picture.apply_fleet(WatchEvent::Snapshot(fleet));
        (paths, own_paths, picture, now)
    }
}

impl From<Nodes> for Evidence {
    fn from(read: Nodes) -> Self {
        Self::new(&read.paths, &read.own_paths, read.nodes, read.fleet, read.now)
    }
}

/// Reads the nodes. `None`: the job was removed, and only our own nodes of it are left.
async fn read_or_left(namespace: Namespace<'_>, job: &JobName) -> Result<Option<Nodes>, ExplainError> {
    let Namespace { session, root, clock } = namespace;
    match read(namespace, job).await {
        Err(ExplainError::Unknown(_)) => {}
        read => return read.map(Some),
    }
    let own_paths = ExtensionPaths::new(root, job);
    let own = session.get(own_paths.root()).await;
    if own.map_err(|error| ExplainError::Unread { job: job.clone(), error })?.is_none() {
        return Err(ExplainError::Unknown(job.clone()));
    }
    // The first instance of a job creates our own folders before it registers.
    clock.sleep(REGISTERS_WITHIN).await;
    match read(namespace, job).await {
        Err(ExplainError::Unknown(_)) => Ok(None),
        read => read.map(Some),
    }
}

fn left(namespace: Namespace<'_>, job: &JobName) -> (Explanation, Timestamp) {
    let own_paths = ExtensionPaths::new(namespace.root, job);
    (Explanation::of_left(own_paths.root().clone()), namespace.clock.now().wall)
}

/// Reads the nodes.
pub(super) async fn read(namespace: Namespace<'_>, job: &JobName) -> Result<Nodes, ExplainError> {
    let Namespace { session, root, clock } = namespace;
    let (paths, own_paths) = (JobPaths::new(root, job), ExtensionPaths::new(root, job));
    let fleet_paths = own_paths.fleet();
    // An instance publishes its profile in the transaction that registers it, so the profiles are read first: an instance that
    // registers after them is newer, not silent.
    let read = async {
        let fleet = snapshot::read(&**session, fleet_paths.root()).await?;
        Ok((fleet, snapshot::read(&**session, paths.root()).await?))
    };
    let read = tokio::select! {
        read = read => read.map_err(|error| ExplainError::Unread { job: job.clone(), error }),
        () = clock.sleep(LIMIT) => Err(ExplainError::Late(job.clone())),
    };
    let (fleet, nodes) = read?;
    if nodes.is_empty() {
        return Err(ExplainError::Unknown(job.clone()));
    }
    Ok(Nodes { paths, own_paths, nodes, fleet, now: clock.now() })
}

fn conclude(evidence: &Evidence, job: &JobName, items: &BTreeSet<Item>) -> Result<Explanation, ExplainError> {
    let configuration = evidence.status.configuration.as_ref();
    let total = configuration.map(|configuration| configuration.sharding_total_count);
    if let Some(total) = total
        && let Some(item) = items.iter().find(|item| item.0 >= total)
    {
        let last = Item(total.saturating_sub(1));
        return Err(ExplainError::NoItem { job: job.clone(), item: *item, last });
    }
    Ok(evidence.explain(items))
}
