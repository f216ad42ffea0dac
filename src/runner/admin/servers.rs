//! Reads the servers of all jobs of a namespace for operators: a page of jobs at a time. Writes nothing, sets no watch that outlives the call,
//! decides nothing.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use futures::future::try_join;
use futures::stream::{StreamExt as _, TryStreamExt as _, iter};

use crate::coordination::job::picture::nodes::ServerStatus;
use crate::elasticjob::path::{Folder, JobPaths};
use crate::job::{InstanceId, JobName};
use crate::runner::admin::Namespace;
use crate::runner::admin::jobs::{AT_ONCE, LIMIT, ListError, Page, part};
use crate::runner::shared::Shared;
use crate::tree::{Error, Node};

/// The servers of a job: the address, whether it is disabled, and how many of its instances are online.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobServers {
    /// The job.
    pub job: JobName,
    /// Ascending by address.
    pub servers: Vec<(Ipv4Addr, bool, usize)>,
}

/// A part of the list, and the last job that was looked at, if there are more.
pub type ListedServers = (Vec<JobServers>, Option<String>);

/// Lists servers on the sidecar's session. `wanted`: only these; empty: all. `may_see`: which names of jobs the caller may use.
pub async fn list(
    shared: &Shared,
    page: &Page,
    wanted: &BTreeSet<Ipv4Addr>,
    may_see: impl Fn(&str) -> bool + Send,
) -> Result<ListedServers, ListError> {
    let session = shared.current.borrow().clone().ok_or(ListError::NoSession)?;
    let namespace = Namespace::of(shared, &session);
    list_in(namespace, page, wanted, may_see).await
}

/// The same, on another session.
pub async fn list_in(
    namespace: Namespace<'_>,
    page: &Page,
    wanted: &BTreeSet<Ipv4Addr>,
    may_see: impl Fn(&str) -> bool + Send,
) -> Result<ListedServers, ListError> {
    let read = async {
        let names = namespace.session.children(namespace.root).await?.unwrap_or_default();
        let (names, next) = part(names, page, may_see);
        let of_jobs = iter(names).map(|job| servers_of(namespace, job, wanted)).buffered(AT_ONCE);
        let of_jobs: Vec<_> = of_jobs.try_collect().await?;
        Ok((of_jobs.into_iter().filter(|of_job| !of_job.servers.is_empty()).collect(), next))
    };
    tokio::select! {
        read = read => read.map_err(ListError::Unread),
        () = namespace.clock.sleep(LIMIT) => Err(ListError::Late),
    }
}

async fn servers_of(
    namespace: Namespace<'_>,
    job: JobName,
    wanted: &BTreeSet<Ipv4Addr>,
) -> Result<JobServers, Error> {
    let paths = JobPaths::new(namespace.root, &job);
    let (folder, instances) = (paths.folder(Folder::Servers), paths.folder(Folder::Instances));
    // Both reads travel in one request with those of other jobs.
    let (known, online) =
        try_join(namespace.session.subtree(&folder), namespace.session.subtree(&instances)).await?;
    let online: Vec<_> = online
        .iter()
        .filter(|node| node.path.parent().as_ref() == Some(&instances))
        .filter_map(|node| InstanceId::from_registry(node.path.name()).server_ip())
        .collect();
    let server = |node: &Node| {
        let server: Ipv4Addr = node.path.name().parse().ok()?;
        let is_disabled = ServerStatus::read(&node.data) == ServerStatus::Disabled;
        Some((server, is_disabled, online.iter().filter(|of| **of == server).count()))
    };
    let of_job = known.iter().filter(|node| node.path.parent().as_ref() == Some(&folder)).filter_map(server);
    let mut servers: Vec<_> =
        of_job.filter(|(server, ..)| wanted.is_empty() || wanted.contains(server)).collect();
    servers.sort_unstable();
    Ok(JobServers { job, servers })
}
