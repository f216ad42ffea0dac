//! Checks a sidecar and the jobs of its namespace: reads the facts, and explains one job after the other. Writes nothing, sets no watch that
//! outlives the call, decides nothing ([`crate::coordination::admin`] does).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{join, join3, try_join};
use futures::stream::{BoxStream, StreamExt as _, iter};

use crate::coordination::admin::doctor::{Facts, Session};
use crate::coordination::admin::explain::Explanation;
use crate::credential_file::public;
use crate::extension::path::ExtensionPaths;
use crate::extension::restored::Restored;
use crate::findings::sidecar::Door;
use crate::job::JobName;
use crate::pem;
use crate::registry;
use crate::runner::admin::explain_job::{ExplainError, explain, explain_in};
use crate::runner::admin::jobs::{ListError, names_with_left};
use crate::runner::admin::{Namespace, backup};
use crate::runner::clock::Clock;
use crate::runner::heartbeat::Heartbeat;
use crate::runner::session::current::NoSession;
use crate::runner::shared::Shared;
use crate::tree::{Path, Quota, Server};

/// The jobs that are explained at once. Each has its nodes in memory.
const AT_ONCE: usize = 16;

/// How long the registry may take for one question.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// How long the servers may take for their answers. With TLS each is a handshake.
const SERVERS_LIMIT: Duration = Duration::from_secs(30);

/// The settings of a sidecar that checks concern.
#[derive(Debug, Clone, Default)]
pub struct CheckedSettings {
    /// The session's timeout; `None`: the registry is embedded.
    pub timeout: Option<Duration>,
    /// Whether the password for ZooKeeper is sent unencrypted.
    pub has_digest_in_clear: bool,
    /// Whether every client of ZooKeeper may change the nodes.
    pub has_open_nodes: bool,
    /// The settings that let others in without authentication.
    pub doors: Vec<Door>,
    /// The files with certificates that the sidecar shows, with their settings.
    pub certificates: Vec<(&'static str, PathBuf)>,
}

/// The facts about a sidecar now. Waits for the registry a moment at most: the rest is known without it.
pub async fn facts(
    shared: &Shared,
    registry: &dyn registry::Registry,
    settings: &CheckedSettings,
    heartbeat: &Heartbeat,
    is_draining: bool,
) -> Facts {
    let mut certificates = Vec::new();
    for (setting, file) in &settings.certificates {
        // The log tells of a file that cannot be read: what was read before stays in force.
        let end = public(setting, file).await.and_then(|text| pem::certificates(setting, &text));
        let end = end.ok().and_then(|chain| pem::end(&chain));
        certificates.extend(end.map(|end| (*setting, end)));
    }
    let now = shared.clock.now();
    let session = shared.current.borrow().clone();
    let proof = *shared.lease.proof.borrow();
    let lease = proof.filter(|proof| session.as_ref().is_some_and(|session| session.id() == proof.session));
    let id = session.as_ref().map(|session| session.id());
    let of_session = async {
        let session = session.as_deref()?;
        let (root, clock) = (&shared.namespace, &shared.clock);
        Some(join(quotas(session, root, clock), restored(session, root, clock)).await)
    };
    let (known, servers) = join(of_session, servers(registry, &shared.clock)).await;
    let (quotas, restored) = known.unwrap_or_default();
    let NoSession { trouble, is_read_only } = shared.trouble.borrow().clone();
    Facts {
        session: session.as_ref().map(|session| Session {
            timeout: timeout(&**session),
            lease: lease.map(|proof| proof.until.saturating_sub(now.mono)),
        }),
        trouble,
        is_read_only,
        servers,
        request_limit: session.as_ref().and_then(|session| session.request_limit()),
        obstacle: session.as_ref().and_then(|session| session.obstacle()),
        quotas,
        timeout: settings.timeout,
        ahead_ms: id.and_then(|id| shared.feeds.ahead_ms(id, now)),
        restored,
        stall: Some(heartbeat.longest_delay()),
        is_draining,
        has_digest_in_clear: settings.has_digest_in_clear,
        has_open_nodes: settings.has_open_nodes,
        doors: settings.doors.clone(),
        certificates,
        now: now.wall,
    }
}

/// The facts that a session of a command has.
pub async fn facts_of(registry: &dyn registry::Registry, namespace: Namespace<'_>, asked: Duration) -> Facts {
    let session = &**namespace.session;
    let timeout = timeout(session);
    let (quotas, restored, servers) = join3(
        quotas(session, namespace.root, namespace.clock),
        restored(session, namespace.root, namespace.clock),
        servers(registry, namespace.clock),
    )
    .await;
    Facts {
        session: Some(Session { timeout, lease: None }),
        servers,
        request_limit: session.request_limit(),
        obstacle: session.obstacle(),
        quotas,
        timeout: Some(asked),
        restored,
        ..Facts::default()
    }
}

/// The servers of the registry, each asked for itself.
async fn servers(registry: &dyn registry::Registry, clock: &Clock) -> Option<Vec<Server>> {
    tokio::select! {
        servers = registry.servers() => Some(servers),
        () = clock.sleep(SERVERS_LIMIT) => None,
    }
}

/// The quotas of the namespace and of Sidekeeper's own nodes beside it.
async fn quotas(session: &dyn registry::Session, namespace: &Path, clock: &Clock) -> Option<Vec<Quota>> {
    let own = ExtensionPaths::all(namespace);
    let read = try_join(session.quotas(namespace), session.quotas(&own));
    let (mut quotas, own) = tokio::select! {
        read = read => read.ok()?,
        () = clock.sleep(ANSWER_LIMIT) => return None,
    };
    quotas.extend(own);
    Some(quotas)
}

/// The restore after which tokens may be lower than before. A registry that does not answer has a finding of its own.
async fn restored(session: &dyn registry::Session, root: &Path, clock: &Clock) -> Option<Restored> {
    tokio::select! {
        restored = backup::restored(session, root) => restored.ok().flatten(),
        () = clock.sleep(ANSWER_LIMIT) => None,
    }
}

fn timeout(session: &dyn registry::Session) -> Option<Duration> {
    Some(session.timeout()).filter(|timeout| *timeout < Duration::MAX)
}

/// A job, and why its items run or do not run.
pub type JobChecked = (JobName, Result<Explanation, ExplainError>);

/// Explains all jobs of the sidecar's namespace whose names the caller may use, ascending by name, with the last outcomes at this sidecar.
pub async fn jobs(
    shared: &Shared,
    may_see: impl Fn(&str) -> bool + Send,
) -> Result<BoxStream<'static, JobChecked>, ListError> {
    let session = shared.current.borrow().clone().ok_or(ListError::NoSession)?;
    let namespace = Namespace::of(shared, &session);
    let jobs = names_with_left(namespace, may_see).await?;
    let shared = shared.clone();
    let explained = iter(jobs).map(move |job| {
        let shared = shared.clone();
        async move {
            let explained = explain(&shared, &job, &BTreeSet::new()).await;
            (job, explained.map(|(explanation, _)| explanation))
        }
    });
    Ok(explained.buffered(AT_ONCE).boxed())
}

/// The same, from the registry alone, on another session.
pub async fn jobs_in(
    session: Arc<dyn registry::Session>,
    root: Path,
    clock: Clock,
    may_see: impl Fn(&str) -> bool + Send,
) -> Result<BoxStream<'static, JobChecked>, ListError> {
    let namespace = Namespace { session: &session, root: &root, clock: &clock };
    let jobs = names_with_left(namespace, may_see).await?;
    let explained = iter(jobs).map(move |job| {
        let (session, root, clock) = (Arc::clone(&session), root.clone(), clock.clone());
        async move {
            let namespace = Namespace { session: &session, root: &root, clock: &clock };
            let explained = explain_in(namespace, &job, &BTreeSet::new()).await;
            (job, explained.map(|(explanation, _)| explanation))
        }
    });
    Ok(explained.buffered(AT_ONCE).boxed())
}
