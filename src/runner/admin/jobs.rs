//! Reads the jobs of a namespace for operators: a page of a list, or one job as a whole. Writes nothing, sets no watch that outlives the
//! call, decides nothing.

use std::net::Ipv4Addr;
use std::time::Duration;

use futures::future::try_join;
use futures::stream::{StreamExt as _, TryStreamExt as _, iter};

use crate::coordination::admin::explain::{Disabling, Evidence};
use crate::coordination::admin::status::JobStatus;
use crate::coordination::admin::summary::{JobSummary, Nodes};
use crate::coordination::job::picture::nodes::ServerStatus;
use crate::elasticjob::path::{Folder, JobPaths};
use crate::extension::path::ExtensionPaths;
use crate::job::{InstanceId, JobName};
use crate::runner::admin::Namespace;
use crate::runner::admin::explain_job::{self, ExplainError};
use crate::runner::shared::Shared;
use crate::tree::{Error, Node};

/// How long the registry may take: it waits while the session is suspended.
pub(super) const LIMIT: Duration = Duration::from_secs(20);
/// The jobs that are read at once. Their reads travel together.
pub(super) const AT_ONCE: usize = 128;

/// Why the jobs cannot be listed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// There is no session.
    #[error("the sidecar has no session with the registry; try again")]
    NoSession,
    /// The nodes could not be read.
    #[error("the registry did not tell the jobs of the namespace: {0}; try again")]
    Unread(Error),
    /// The registry did not answer in time.
    #[error("the registry did not tell the jobs of the namespace within {LIMIT:?}; try again")]
    Late,
}

/// A part of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// How many jobs it has at most.
    pub size: usize,
    /// The last job of the page before; `None`: this is the first page.
    pub after: Option<String>,
}

/// A part of the list, and the last job that was looked at, if there are more.
pub type Listed = (Vec<JobSummary>, Option<String>);

/// The names of all jobs, ascending.
pub(super) async fn names(
    namespace: Namespace<'_>,
    may_see: impl Fn(&str) -> bool + Send,
) -> Result<Vec<JobName>, ListError> {
    let read = namespace.session.children(namespace.root);
    let names = tokio::select! {
        names = read => names.map_err(ListError::Unread)?.unwrap_or_default(),
        () = namespace.clock.sleep(LIMIT) => return Err(ListError::Late),
    };
    let all = Page { size: usize::MAX, after: None };
    Ok(part(names, &all, may_see).0)
}

/// The same, with the jobs that were removed and of which our own nodes are left.
pub(super) async fn names_with_left(
    namespace: Namespace<'_>,
    may_see: impl Fn(&str) -> bool + Send,
) -> Result<Vec<JobName>, ListError> {
    let Namespace { session, root, clock } = namespace;
    let own = ExtensionPaths::all(root);
    let (own, jobs) = tokio::select! {
        read = try_join(session.children(&own), session.children(root)) => read.map_err(ListError::Unread)?,
        () = clock.sleep(LIMIT) => return Err(ListError::Late),
    };
    let mut names: Vec<_> = own.into_iter().chain(jobs).flatten().collect();
    names.sort_unstable();
    names.dedup();
    let all = Page { size: usize::MAX, after: None };
    Ok(part(names, &all, may_see).0)
}

/// Lists jobs on the sidecar's session. `may_see`: which names the caller may use.
pub async fn list(
    shared: &Shared,
    page: &Page,
    may_see: impl Fn(&str) -> bool + Send,
) -> Result<Listed, ListError> {
    let session = shared.current.borrow().clone().ok_or(ListError::NoSession)?;
    list_in(Namespace::of(shared, &session), page, may_see).await
}

/// The same, on another session.
pub async fn list_in(
    namespace: Namespace<'_>,
    page: &Page,
    may_see: impl Fn(&str) -> bool + Send,
) -> Result<Listed, ListError> {
    let read = async {
        let names = namespace.session.children(namespace.root).await?.unwrap_or_default();
        let (names, next) = part(names, page, may_see);
        let summaries = iter(names).map(|job| summary(namespace, job)).buffered(AT_ONCE);
        let summaries: Vec<_> = summaries.try_collect().await?;
        Ok((summaries.into_iter().flatten().collect(), next))
    };
    tokio::select! {
        read = read => read.map_err(ListError::Unread),
        () = namespace.clock.sleep(LIMIT) => Err(ListError::Late),
    }
}

/// The names of a page, ascending, and the last one if there are more.
pub(super) fn part(
    names: Vec<String>,
    page: &Page,
    may_see: impl Fn(&str) -> bool,
) -> (Vec<JobName>, Option<String>) {
    let is_later = |name: &String| page.after.as_ref().is_none_or(|after| name > after);
    let mut names: Vec<_> = names.into_iter().filter(|name| is_later(name) && may_see(name)).collect();
    names.sort_unstable();
    let is_all = names.len() <= page.size;
    names.truncate(page.size);
    let next = names.last().filter(|_| !is_all).cloned();
    // A node that no job can have is skipped.
    (names.iter().filter_map(|name| JobName::parse(name).ok()).collect(), next)
}

/// A job's line. `None`: the job has been removed meanwhile.
async fn summary(namespace: Namespace<'_>, job: JobName) -> Result<Option<JobSummary>, Error> {
    let Namespace { session, root, .. } = namespace;
    let paths = JobPaths::new(root, &job);
    let folder = paths.folder(Folder::Instances);
    // Both reads travel in one request with those of other jobs.
    let nodes = session.nodes(&[paths.config(), paths.necessary()]);
    let (nodes, below) = try_join(nodes, session.subtree(&folder)).await?;
    let [configuration, necessary] = <[_; 2]>::try_from(nodes).unwrap_or_default();
    // Nodes that may not be read count as missing there, and are an error here.
    if configuration.is_none() && below.is_empty() && session.get(paths.root()).await?.is_none() {
        return Ok(None);
    }
    let children = below.iter().filter(|node| node.path.parent().as_ref() == Some(&folder));
    let instances: Vec<_> = children.map(|node| InstanceId::from_registry(node.path.name())).collect();
    let mut servers: Vec<_> = instances.iter().filter_map(InstanceId::server_ip).collect();
    servers.sort_unstable();
    servers.dedup();
    let servers: Vec<_> = servers.into_iter().map(|server| paths.server(server)).collect();
    let servers = session.nodes(&servers).await?;
    let is_enabled = |server: &Option<Node>| {
        server.as_ref().is_none_or(|node| ServerStatus::read(&node.data) == ServerStatus::Enabled)
    };
    let nodes = Nodes {
        configuration: configuration.map(|node| node.data.to_vec()),
        instances,
        is_enabled: servers.iter().any(is_enabled),
        is_resharding: necessary.is_some(),
    };
    Ok(Some(JobSummary::of(job, &nodes)))
}

/// One job as a whole.
#[derive(Debug, Clone)]
pub struct Job {
    /// Its state.
    pub status: JobStatus,
    /// The node of its configuration.
    pub configuration: Option<Node>,
    /// Its servers: the address, whether it is disabled, and how many of its instances are online.
    pub servers: Vec<(Ipv4Addr, bool, usize)>,
    /// Its items and servers that are disabled.
    pub disablings: Vec<Disabling>,
}

/// Reads a job on the sidecar's session, with the last outcomes at this sidecar.
pub async fn get(shared: &Shared, job: &JobName) -> Result<Job, ExplainError> {
    let session = shared.current.borrow().clone().ok_or(ExplainError::NoSession)?;
    let namespace = Namespace::of(shared, &session);
    let mut found = get_in(namespace, job).await?;
    shared.outcomes.add_to(job, &mut found.status);
    shared.lock_waits.add_to(job, &mut found.status);
    Ok(found)
}

/// The same, from the registry alone.
pub async fn get_in(namespace: Namespace<'_>, job: &JobName) -> Result<Job, ExplainError> {
    let nodes = explain_job::read(namespace, job).await?;
    let configuration = nodes.configuration().cloned();
    let evidence: Evidence = nodes.into();
    let (servers, disablings) = (evidence.servers(), evidence.disablings());
    Ok(Job { servers, disablings, status: evidence.status, configuration })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_1_pages_have_every_job_that_stays_exactly_once() {
        let mut jobs: Vec<_> = (0..5_000).map(|number| format!("job-{number}")).collect();
        for size in [7, 1_000] {
            let (mut after, mut seen, mut pages) = (None, Vec::new(), 0);
            loop {
                let page = Page { size, after };
                let (names, next) = part(jobs.clone(), &page, |name| name != "job-13");
                seen.extend(names.iter().map(ToString::to_string));
                pages += 1;
                // Between two pages one job goes, and another one comes.
                jobs.retain(|name| *name != format!("job-{}", 4_000 + pages));
                jobs.push(format!("new-{size}-{pages}"));
                match next {
                    Some(next) => after = Some(next),
                    None => break,
                }
            }
            let unique: std::collections::BTreeSet<_> = seen.iter().collect();
            assert_eq!(unique.len(), seen.len(), "one twice");
            let stayed = jobs.iter().filter(|name| name.starts_with("job-") && *name != "job-13");
            assert!(stayed.clone().all(|name| unique.contains(name)), "one is missing");
            assert!(!unique.contains(&"job-13".to_owned()));
        }
    }
}
