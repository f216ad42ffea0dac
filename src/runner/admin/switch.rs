//! Disables and enables items and servers for an operator: reads the job's nodes, commits the plan, and goes on until everything is
//! as wished. Bounded in attempts and in time. Decides nothing ([`crate::coordination::admin::switch`] does).

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use crate::coordination::admin::switch::{SwitchRefusal, Wish, plan};
use crate::elasticjob::path::JobPaths;
use crate::extension::note::Note;
use crate::extension::path::ExtensionPaths;
use crate::job::{Item, JobName};
use crate::runner::admin::Namespace;
use crate::runner::shared::Shared;
use crate::tree::{Error, NodeKind};

/// Attempts in a row that fail because nodes have changed.
const ATTEMPTS_MAX: u32 = 5;
/// How long the registry may take: it waits while the session is suspended.
const LIMIT: Duration = Duration::from_secs(40);

/// The items and servers that the call has changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Switched {
    /// The items that were not as wished.
    pub items: BTreeSet<Item>,
    /// The servers that were not as wished.
    pub servers: BTreeSet<Ipv4Addr>,
    /// Whether a sidecar ends the disabling when its time has come.
    pub ends_by_itself: bool,
}

/// Why something is not as wished. Earlier changes stay; a repetition goes on with the rest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SwitchError {
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
    /// The job's items are not known.
    #[error("job `{0}` has no readable configuration, so its items are not known; write one first")]
    NotConfigured(JobName),
    /// The job has no such item.
    #[error("job `{job}` has no item {item}; it has {total} items, from 0")]
    NoItem {
        /// The job.
        job: JobName,
        /// The item.
        item: Item,
        /// How many it has.
        total: u32,
    },
    /// The job has no such server.
    #[error("job `{job}` has no server {server}; it has {}", in_words(.known))]
    NoServer {
        /// The job.
        job: JobName,
        /// The server.
        server: Ipv4Addr,
        /// The servers that it has.
        known: BTreeSet<Ipv4Addr>,
    },
    /// Nodes changed again and again.
    #[error("the nodes of job `{job}` changed {ATTEMPTS_MAX} times in between, at last: {last}; try again")]
    Changing {
        /// The job.
        job: JobName,
        /// The last failure.
        last: Error,
    },
    /// The nodes could not be read or written. If the outcome is unknown, some may have been written.
    #[error("job `{job}`: {error}; try again: no node is changed twice")]
    Failed {
        /// The job.
        job: JobName,
        /// How.
        error: Error,
    },
    /// The registry did not answer in time.
    #[error(
        "the registry did not answer for job `{0}` within {LIMIT:?}; try again: no node is changed twice"
    )]
    Late(JobName),
}

/// How many servers an error names: it is sent in a header.
const NAMED: usize = 10;

fn in_words(servers: &BTreeSet<Ipv4Addr>) -> String {
    if servers.is_empty() {
        return "none".to_owned();
    }
    let named = servers.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let more = servers.len().saturating_sub(NAMED);
    if more == 0 { named } else { format!("{named} and {more} more") }
}

/// Makes items or servers as wished, on the sidecar's session. `note`: who wishes it, and why.
pub async fn switch(
    shared: &Shared,
    job: &JobName,
    wish: &Wish,
    note: &Note,
) -> Result<Switched, SwitchError> {
    let session = shared.current.borrow().clone().ok_or(SwitchError::NoSession)?;
    let namespace = Namespace::of(shared, &session);
    switch_in(namespace, job, wish, note).await
}

/// The same, on another session.
pub async fn switch_in(
    namespace: Namespace<'_>,
    job: &JobName,
    wish: &Wish,
    note: &Note,
) -> Result<Switched, SwitchError> {
    tokio::select! {
        switched = switch_at_once(namespace, job, wish, note) => switched,
        () = namespace.clock.sleep(LIMIT) => Err(SwitchError::Late(job.clone())),
    }
}

async fn switch_at_once(
    namespace: Namespace<'_>,
    job: &JobName,
    wish: &Wish,
    note: &Note,
) -> Result<Switched, SwitchError> {
    let Namespace { session, root, .. } = namespace;
    if let Some(obstacle) = session.obstacle() {
        return Err(SwitchError::Unwritable { job: job.clone(), obstacle });
    }
    let (paths, own_paths) = (JobPaths::new(root, job), ExtensionPaths::new(root, job));
    let failed = |error| SwitchError::Failed { job: job.clone(), error };
    let mut switched = Switched::default();
    let mut attempt = 0;
    loop {
        let picture = namespace.picture(job).await.map_err(failed)?;
        let picture = picture.ok_or_else(|| SwitchError::Unknown(job.clone()))?;
        let plan = plan(&paths, &picture, wish, note).map_err(|refusal| match refusal {
            SwitchRefusal::NotConfigured => SwitchError::NotConfigured(job.clone()),
            SwitchRefusal::NoItem(item, total) => SwitchError::NoItem { job: job.clone(), item, total },
            SwitchRefusal::NoServer(server, known) => {
                SwitchError::NoServer { job: job.clone(), server, known }
            }
        })?;
        switched.ends_by_itself = plan.has_keeper && wish.disables() && note.until.is_some();
        if plan.transaction.is_empty() {
            return Ok(switched);
        }
        if wish.disables() {
            let notes = own_paths.fleet().notes();
            session.ensure(&notes, NodeKind::Persistent, b"").await.map_err(failed)?;
        }
        match session.commit(plan.transaction).await.map_err(|failure| failure.error) {
            Ok(_) => {
                attempt = 0;
                switched.items.extend(plan.items);
                switched.servers.extend(plan.servers);
            }
            Err(last @ (Error::NoNode(_) | Error::NodeExists(_) | Error::BadVersion(_))) => {
                attempt += 1;
                if attempt == ATTEMPTS_MAX {
                    return Err(SwitchError::Changing { job: job.clone(), last });
                }
            }
            Err(error) => return Err(failed(error)),
        }
    }
}
