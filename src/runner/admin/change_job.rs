//! Changes and removes jobs for an operator: reads the job's nodes, and commits the plan. Bounded in attempts and in time. Decides nothing
//! about configurations ([`crate::coordination::admin::update`] does).

use std::collections::BTreeSet;
use std::future::Future;
use std::net::Ipv4Addr;
use std::time::Duration;

use futures::future::try_join;

use crate::coordination::admin::update::{Update, UpdateRefusal, etag, plan};
use crate::coordination::job::frame::limits::TRANSACTION_BYTES_MAX;
use crate::elasticjob::config_yaml_editor::{EditError, Key};
use crate::elasticjob::field_error::FieldError;
use crate::elasticjob::path::{JobPaths, Place};
use crate::extension::path::{ExtensionPaths, Noted};
use crate::job::{InstanceId, JobName};
use crate::registry::Session;
use crate::runner::admin::Namespace;
use crate::runner::nodes::snapshot;
use crate::runner::shared::Shared;
use crate::tree::{Error, Node, NodeKind, Operation, OperationResult, Path, Stat, Transaction};

/// Attempts in a row that fail because nodes have changed.
const ATTEMPTS_MAX: u32 = 5;
/// How long the registry may take: it waits while the session is suspended.
const LIMIT: Duration = Duration::from_secs(40);
/// How long executions may go on before a job is removed by force.
const DRAIN_LIMIT: Duration = Duration::from_secs(20);
/// The pause between two looks at the executions.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// Why a job was not changed or removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// There is no session.
    #[error("the sidecar has no session with the registry; try again")]
    NoSession,
    /// The registry cannot write.
    #[error("nothing of job `{job}` was changed: {obstacle}")]
    Unwritable {
        /// The job.
        job: JobName,
        /// Why, and what to do.
        obstacle: String,
    },
    /// The registry does not know the job.
    #[error("the registry has no nodes of job `{0}`; check the name and the namespace")]
    Unknown(JobName),
    /// The job has no configuration.
    #[error("job `{0}` has no configuration; `allow_missing` creates one")]
    NotConfigured(JobName),
    /// The configuration is not in the state that the operator has seen.
    #[error(
        "the configuration of job `{job}` has changed since it was read: its etag is {now} now; read it again"
    )]
    Changed {
        /// The job.
        job: JobName,
        /// Its present state.
        now: String,
    },
    /// The configuration would be invalid.
    #[error("{}", FieldError::join(.0))]
    Invalid(Vec<FieldError>),
    /// The document cannot be edited.
    #[error("job `{job}`: {error}")]
    Form {
        /// The job.
        job: JobName,
        /// Why.
        error: EditError,
    },
    /// Instances are online.
    #[error("job `{job}` has {} online, for example `{example}`: stop its applications first, or remove it by force", counted(.count))]
    Online {
        /// The job.
        job: JobName,
        /// How many.
        count: usize,
        /// One of them.
        example: InstanceId,
    },
    /// The instance is not online.
    #[error("job `{job}` has no instance `{instance}` online; look with `sidekeeper instances {job}`")]
    NoInstance {
        /// The job.
        job: JobName,
        /// The instance.
        instance: InstanceId,
    },
    /// The job has no such server.
    #[error("job `{job}` has no server {server}; look with `sidekeeper servers {job}`")]
    NoServer {
        /// The job.
        job: JobName,
        /// The server.
        server: Ipv4Addr,
    },
    /// Executions did not end in time.
    #[error(
        "{count} items of job `{job}` are still being executed after {DRAIN_LIMIT:?}: its configuration was not removed; try again"
    )]
    StillRunning {
        /// The job.
        job: JobName,
        /// How many.
        count: usize,
    },
    /// Nodes changed again and again.
    #[error("the nodes of job `{job}` changed {ATTEMPTS_MAX} times in between, at last: {last}; try again")]
    Changing {
        /// The job.
        job: JobName,
        /// The last failure.
        last: Error,
    },
    /// The nodes could not be read or written.
    #[error("job `{job}`: {error}; try again")]
    Failed {
        /// The job.
        job: JobName,
        /// How.
        error: Error,
    },
    /// The registry did not answer in time.
    #[error("the registry did not answer for job `{0}` within {LIMIT:?}; try again")]
    Late(JobName),
}

fn counted(count: &usize) -> String {
    if *count == 1 { "an instance".to_owned() } else { format!("{count} instances") }
}

/// Bounds the time of a change.
async fn in_time<T>(
    namespace: Namespace<'_>,
    job: &JobName,
    change: impl Future<Output = Result<T, ChangeError>>,
) -> Result<T, ChangeError> {
    tokio::select! {
        changed = change => changed,
        () = namespace.clock.sleep(LIMIT) => Err(ChangeError::Late(job.clone())),
    }
}

/// A configuration that was changed, or would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Updated {
    /// The keys that differ.
    pub keys: Vec<Key>,
    /// The state of the configuration now.
    pub etag: String,
    /// The document after the change.
    pub document: String,
}

/// Changes a configuration on the sidecar's session. `dry`: only names the keys that would be changed.
pub async fn update(
    shared: &Shared,
    job: &JobName,
    wish: &Update,
    dry: bool,
) -> Result<Updated, ChangeError> {
    let session = shared.current.borrow().clone().ok_or(ChangeError::NoSession)?;
    let namespace = Namespace::of(shared, &session);
    update_in(namespace, job, wish, dry).await
}

/// The same, on another session.
pub async fn update_in(
    namespace: Namespace<'_>,
    job: &JobName,
    wish: &Update,
    dry: bool,
) -> Result<Updated, ChangeError> {
    in_time(namespace, job, update_at_once(namespace, job, wish, dry)).await
}

async fn update_at_once(
    namespace: Namespace<'_>,
    job: &JobName,
    wish: &Update,
    dry: bool,
) -> Result<Updated, ChangeError> {
    let Namespace { session, root, .. } = namespace;
    let failed = |error| ChangeError::Failed { job: job.clone(), error };
    if let Some(obstacle) = session.obstacle().filter(|_| !dry) {
        return Err(ChangeError::Unwritable { job: job.clone(), obstacle });
    }
    let paths = JobPaths::new(root, job);
    let mut attempt = 0;
    loop {
        let (own, config) =
            try_join(session.get(paths.root()), session.get(&paths.config())).await.map_err(failed)?;
        let plan = plan(&paths, own.as_ref(), config.as_ref(), wish).map_err(|refusal| match refusal {
            UpdateRefusal::NotConfigured => ChangeError::NotConfigured(job.clone()),
            UpdateRefusal::Changed(now) => ChangeError::Changed { job: job.clone(), now },
            UpdateRefusal::Invalid(errors) => ChangeError::Invalid(errors),
            UpdateRefusal::Form(error) => ChangeError::Form { job: job.clone(), error },
        })?;
        let present = etag(config.as_ref().map(|node| &node.stat));
        let (keys, document) = (plan.keys, plan.document);
        if dry || plan.transaction.is_empty() {
            return Ok(Updated { keys, etag: present, document });
        }
        if config.is_none() {
            session.ensure(root, NodeKind::Persistent, b"").await.map_err(failed)?;
        }
        match session.commit(plan.transaction).await.map_err(|failure| failure.error) {
            Ok(results) => {
                let etag = match (results.last(), config) {
                    (Some(OperationResult::Created { stat, .. }), _) => etag(Some(stat)),
                    // The node keeps its creation.
                    (Some(OperationResult::Set { stat }), Some(before)) => {
                        etag(Some(&Stat { created: before.stat.created, ..*stat }))
                    }
                    (Some(_) | None, _) => present,
                };
                return Ok(Updated { keys, etag, document });
            }
            Err(last @ (Error::NoNode(_) | Error::NodeExists(_) | Error::BadVersion(_))) => {
                attempt += 1;
                if attempt == ATTEMPTS_MAX {
                    return Err(ChangeError::Changing { job: job.clone(), last });
                }
            }
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Removes a job with all its nodes, on the sidecar's session. Returns their number. `seen`: the state of the configuration that the
/// operator has seen. `force`: also if instances are online; they are stopped, and their executions may end first.
pub async fn remove(shared: &Shared, job: &JobName, seen: &str, force: bool) -> Result<usize, ChangeError> {
    let session = shared.current.borrow().clone().ok_or(ChangeError::NoSession)?;
    let namespace = Namespace::of(shared, &session);
    remove_in(namespace, job, seen, force).await
}

/// The same, on another session.
pub async fn remove_in(
    namespace: Namespace<'_>,
    job: &JobName,
    seen: &str,
    force: bool,
) -> Result<usize, ChangeError> {
    in_time(namespace, job, remove_at_once(namespace, job, seen, force)).await
}

async fn remove_at_once(
    namespace: Namespace<'_>,
    job: &JobName,
    seen: &str,
    force: bool,
) -> Result<usize, ChangeError> {
    let Namespace { session, root, clock } = namespace;
    let failed = |error| ChangeError::Failed { job: job.clone(), error };
    let (paths, nodes) = nodes_to_change(namespace, job).await?;
    let config = nodes.iter().find(|node| node.path == paths.config());
    let now = etag(config.map(|node| &node.stat));
    if now != seen {
        return Err(ChangeError::Changed { job: job.clone(), now });
    }
    let online = instances(&paths, &nodes);
    if let Some(example) = online.first() {
        if !force {
            let (count, example) = (online.len(), example.clone());
            return Err(ChangeError::Online { job: job.clone(), count, example });
        }
        delete_each(&**session, online.iter().map(|instance| paths.instance(instance)))
            .await
            .map_err(failed)?;
    }
    // Executions may also be of instances that are away for their grace.
    let over = clock.now().mono.saturating_add(DRAIN_LIMIT);
    loop {
        let nodes = snapshot::read(&**session, paths.root()).await.map_err(failed)?;
        let count = running(&paths, &nodes);
        if count == 0 {
            break;
        }
        if clock.now().mono >= over {
            return Err(ChangeError::StillRunning { job: job.clone(), count });
        }
        clock.sleep(LOOK_PAUSE).await;
    }
    let own = ExtensionPaths::new(root, job);
    // The first step proves that the configuration is still the one that the operator has seen.
    let seen = config.map(|node| Operation::Check { path: paths.config(), version: Some(node.stat.version) });
    let of_job = delete_below(&**session, job, paths.root(), seen).await?;
    Ok(of_job.saturating_add(delete_below(&**session, job, own.root(), None).await?))
}

/// Deletes nodes, each by itself; one that is gone already is as wished. An instance whose node is deleted stops: it begins nothing more,
/// and finishes its executions (protocol 2.3).
async fn delete_each(session: &dyn Session, nodes: impl Iterator<Item = Path>) -> Result<(), Error> {
    for node in nodes {
        match session.commit(vec![Operation::delete(node)]).await.map_err(|failure| failure.error) {
            Ok(_) | Err(Error::NoNode(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The instances to stop: those with these ids, and those on these servers. Both empty: all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stop {
    /// Ids.
    pub instances: BTreeSet<InstanceId>,
    /// Servers.
    pub servers: BTreeSet<Ipv4Addr>,
}

impl Stop {
    fn wants(&self, instance: &InstanceId) -> bool {
        let is_all = self.instances.is_empty() && self.servers.is_empty();
        is_all
            || self.instances.contains(instance)
            || instance.server_ip().is_some_and(|server| self.servers.contains(&server))
    }
}

/// Stops instances, on the sidecar's session. Returns those that were online.
pub async fn stop(shared: &Shared, job: &JobName, wish: &Stop) -> Result<Vec<InstanceId>, ChangeError> {
    let session = shared.current.borrow().clone().ok_or(ChangeError::NoSession)?;
    stop_in(Namespace::of(shared, &session), job, wish).await
}

/// The same, on another session.
pub async fn stop_in(
    namespace: Namespace<'_>,
    job: &JobName,
    wish: &Stop,
) -> Result<Vec<InstanceId>, ChangeError> {
    let failed = |error| ChangeError::Failed { job: job.clone(), error };
    let stopped = async {
        let (paths, nodes) = nodes_to_change(namespace, job).await?;
        let online = instances(&paths, &nodes);
        if let Some(unknown) = wish.instances.iter().find(|instance| !online.contains(instance)) {
            return Err(ChangeError::NoInstance { job: job.clone(), instance: unknown.clone() });
        }
        let stopped: Vec<_> = online.into_iter().filter(|instance| wish.wants(instance)).collect();
        let nodes = stopped.iter().map(|instance| paths.instance(instance));
        delete_each(&**namespace.session, nodes).await.map_err(failed)?;
        Ok(stopped)
    };
    in_time(namespace, job, stopped).await
}

/// Removes servers without instances, on the sidecar's session.
pub async fn remove_servers(
    shared: &Shared,
    job: &JobName,
    servers: &BTreeSet<Ipv4Addr>,
) -> Result<(), ChangeError> {
    let session = shared.current.borrow().clone().ok_or(ChangeError::NoSession)?;
    let namespace = Namespace::of(shared, &session);
    remove_servers_in(namespace, job, servers).await
}

/// The same, on another session.
pub async fn remove_servers_in(
    namespace: Namespace<'_>,
    job: &JobName,
    servers: &BTreeSet<Ipv4Addr>,
) -> Result<(), ChangeError> {
    let failed = |error| ChangeError::Failed { job: job.clone(), error };
    let removed = async {
        let (paths, nodes) = nodes_to_change(namespace, job).await?;
        let online = instances(&paths, &nodes);
        for server in servers {
            if !nodes.iter().any(|node| node.path == paths.server(*server)) {
                return Err(ChangeError::NoServer { job: job.clone(), server: *server });
            }
            let here: Vec<_> = online.iter().filter(|id| id.server_ip() == Some(*server)).collect();
            if let Some(example) = here.first() {
                let (count, example) = (here.len(), (*example).clone());
                return Err(ChangeError::Online { job: job.clone(), count, example });
            }
        }
        // The note of a server that is disabled goes with it.
        let own_paths = ExtensionPaths::new(namespace.root, job).fleet();
        let nodes =
            servers.iter().flat_map(|server| [paths.server(*server), own_paths.note(Noted::Server(*server))]);
        delete_each(&**namespace.session, nodes).await.map_err(failed)
    };
    in_time(namespace, job, removed).await
}

/// The nodes of a job that is to be changed. Fails if there are none, or if the registry cannot write.
async fn nodes_to_change(
    namespace: Namespace<'_>,
    job: &JobName,
) -> Result<(JobPaths, Vec<Node>), ChangeError> {
    let Namespace { session, root, .. } = namespace;
    if let Some(obstacle) = session.obstacle() {
        return Err(ChangeError::Unwritable { job: job.clone(), obstacle });
    }
    let paths = JobPaths::new(root, job);
    let nodes = snapshot::read(&**session, paths.root()).await;
    let nodes = nodes.map_err(|error| ChangeError::Failed { job: job.clone(), error })?;
    if nodes.is_empty() {
        return Err(ChangeError::Unknown(job.clone()));
    }
    Ok((paths, nodes))
}

/// The meaning of each node of a job.
fn places<'a>(paths: &JobPaths, nodes: &'a [Node]) -> impl Iterator<Item = Place<'a>> {
    let root = paths.root().clone();
    nodes.iter().filter_map(move |node| node.path.relative_to(&root).map(Place::of))
}

fn instances(paths: &JobPaths, nodes: &[Node]) -> Vec<InstanceId> {
    let id = |place| if let Place::Instance(id) = place { Some(InstanceId::from_registry(id)) } else { None };
    places(paths, nodes).filter_map(id).collect()
}

fn running(paths: &JobPaths, nodes: &[Node]) -> usize {
    places(paths, nodes).filter(|place| matches!(place, Place::Running(_))).count()
}

/// Deletes a node and all below it, children before their parents. `guard`: the first step of the first transaction.
async fn delete_below(
    session: &dyn Session,
    job: &JobName,
    top: &Path,
    mut guard: Option<Operation>,
) -> Result<usize, ChangeError> {
    let failed = |error| ChangeError::Failed { job: job.clone(), error };
    let (mut deleted, mut attempt) = (0_usize, 0);
    loop {
        let nodes = snapshot::read(session, top).await.map_err(failed)?;
        if nodes.is_empty() {
            return Ok(deleted);
        }
        let mut rest = nodes.iter().rev().peekable();
        while rest.peek().is_some() {
            let mut transaction: Transaction = guard.iter().cloned().collect();
            let mut bytes = 0_usize;
            while let Some(node) = rest.next_if(|_| bytes < TRANSACTION_BYTES_MAX) {
                let delete = Operation::delete(node.path.clone());
                bytes = bytes.saturating_add(delete.wire_size());
                transaction.push(delete);
            }
            let count = transaction.len().saturating_sub(guard.iter().len());
            match session.commit(transaction).await.map_err(|failure| failure.error) {
                Ok(_) => {
                    deleted = deleted.saturating_add(count);
                    guard = None;
                }
                Err(last @ Error::BadVersion(_)) => {
                    return Err(ChangeError::Changing { job: job.clone(), last });
                }
                Err(last @ (Error::NoNode(_) | Error::NotEmpty(_))) => {
                    attempt += 1;
                    if attempt == ATTEMPTS_MAX {
                        return Err(ChangeError::Changing { job: job.clone(), last });
                    }
                    break;
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }
}
