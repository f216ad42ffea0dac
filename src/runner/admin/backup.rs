//! Makes backups of a namespace, and restores them: reads the nodes, and commits the plan. Bounded in time and in size. Decides
//! nothing about nodes and tokens ([`crate::coordination::admin::backup`] does).

use std::sync::Arc;
use std::time::Duration;

use futures::future::{try_join, try_join3};
use futures::stream::{StreamExt as _, TryStreamExt as _, iter};
use jiff::Timestamp;

use crate::coordination::admin::backup::file::{Backup, FileError, Writer};
use crate::coordination::admin::backup::restore::Plan;
use crate::coordination::admin::backup::tokens::{self, Landmark};
use crate::coordination::admin::backup::{Home, Roots, Saved, of_job, of_sticky_lock};
use crate::coordination::job::frame::limits::TRANSACTION_BYTES_MAX;
use crate::elasticjob::path::{Folder, JobPaths};
use crate::extension::path::ExtensionPaths;
use crate::extension::restored::Restored;
use crate::extension::sticky::{StickyPaths, default_root};
use crate::job::JobName;
use crate::registry::Session;
use crate::runner::admin::Namespace;
use crate::runner::admin::jobs::{ListError, names};
use crate::tree::{Error, Node, NodeKind, Operation, OperationResult, Path, Stat, Transaction, Zxid};

/// How long a backup or a restore may take: some seconds for a thousand jobs, and the registry may be slow.
pub const LIMIT: Duration = Duration::from_secs(300);
/// The jobs that are read at once. Each has its nodes in memory.
const AT_ONCE: usize = 16;
/// Readings of a job that is being executed, until two in a row have the same ledger.
const READINGS_MAX: u32 = 20;

/// Why a namespace was not saved or restored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackupError {
    /// There is no session.
    #[error("the sidecar has no session with the registry; try again")]
    NoSession,
    /// The registry cannot write.
    #[error("nothing was restored: {0}")]
    Unwritable(String),
    /// The file is no backup, or would be too large.
    #[error("{0}")]
    File(#[from] FileError),
    /// The ledger of a job changed all the time.
    #[error(
        "job `{0}` wrote its ledger during each of {READINGS_MAX} readings; try again when it is executed less"
    )]
    Busy(JobName),
    /// Instances are online.
    #[error(
        "nothing was restored: job `{job}` of the namespace has {count} instances online; stop all applications of the \
         namespace first, or give `force`"
    )]
    Online {
        /// One of the jobs that have some.
        job: JobName,
        /// How many it has.
        count: usize,
    },
    /// The namespace has nodes that are not as in the backup.
    #[error(
        "nothing was restored: {count} nodes of the namespace are not as in the backup, for example {example}; look with \
         `--dry-run`, and give `force` to make them so"
    )]
    Differs {
        /// How many.
        count: usize,
        /// One of them.
        example: Path,
    },
    /// Other steps are needed than those that were shown.
    #[error("nothing was restored: the namespace has changed since it was shown; look at it again")]
    ChangedSinceShown,
    /// A node has changed between the reading and the writing.
    #[error(
        "the restore broke off, because something has changed meanwhile: {0}; run it again, it goes on where it was"
    )]
    ChangedMeanwhile(Error),
    /// The nodes could not be read or written.
    #[error("the registry did not read or write the nodes of the namespace: {0}; run it again")]
    Failed(#[from] Error),
    /// The registry did not answer in time.
    #[error("the registry did not answer within {LIMIT:?}; run it again")]
    Late,
}

impl From<ListError> for BackupError {
    fn from(error: ListError) -> Self {
        match error {
            ListError::NoSession => Self::NoSession,
            ListError::Unread(error) => Self::Failed(error),
            ListError::Late => Self::Late,
        }
    }
}

/// Saves all jobs of the namespace and its sticky locks, and returns the file. Writes nothing.
pub async fn save_in(namespace: Namespace<'_>) -> Result<Vec<u8>, BackupError> {
    tokio::select! {
        saved = save(namespace) => saved,
        () = namespace.clock.sleep(LIMIT) => Err(BackupError::Late),
    }
}

async fn save(namespace: Namespace<'_>) -> Result<Vec<u8>, BackupError> {
    let Namespace { session, root, clock } = namespace;
    let own = ExtensionPaths::all(root);
    let (top, own_top, restored) =
        try_join3(session.get(root), session.get(&own), session.get(&Restored::path(root))).await?;
    let tops: Vec<_> = top.into_iter().chain(own_top).collect();
    let landmarks = tops.iter().filter_map(Landmark::of).collect();
    let name = root.as_str().trim_start_matches('/');
    let mut writer = Writer::new(name, &clock.now().wall.to_string(), landmarks);
    tops.iter().for_each(|node| writer.note(newest(&node.stat)));
    if let Some(node) = restored {
        writer.note(newest(&node.stat));
        // The tokens of the registry before the last one count, too.
        writer.note(Restored::read(&node).highest);
    }
    let jobs = names(namespace, |_| true).await?;
    let mut read = iter(jobs).map(|job| read_job(namespace, job)).buffered(AT_ONCE);
    while let Some((job, nodes, own)) = read.try_next().await? {
        nodes.iter().chain(&own).for_each(|node| writer.note(newest(&node.stat)));
        for saved in of_job(root, &job, &nodes, &own) {
            writer.add(&saved)?;
        }
    }
    let locks = default_root(root);
    let mut names = session.children(&locks).await?.unwrap_or_default();
    names.sort_unstable();
    let mut records = iter(names).map(|name| read_record(namespace, &locks, name)).buffered(AT_ONCE);
    while let Some(record) = records.try_next().await? {
        let Some((name, node)) = record else { continue };
        writer.note(newest(&node.stat));
        writer.add(&of_sticky_lock(&name, &node))?;
    }
    Ok(writer.finish())
}

fn newest(stat: &Stat) -> Zxid {
    stat.created.max(stat.modified)
}

/// The nodes of a job at a moment at which its ledger did not change: a flag and its entry in the ledger are written together.
async fn read_job(
    namespace: Namespace<'_>,
    job: JobName,
) -> Result<(JobName, Vec<Node>, Vec<Node>), BackupError> {
    let Namespace { session, root, .. } = namespace;
    let (paths, own) = (JobPaths::new(root, &job), ExtensionPaths::new(root, &job));
    let mut before = session.subtree(own.root()).await?;
    for _ in 0..READINGS_MAX {
        let nodes = session.subtree(paths.root()).await?;
        let after = session.subtree(own.root()).await?;
        let ledger = |nodes: &[Node]| -> Vec<_> {
            let of_ledger = nodes.iter().filter(|node| node.path.is_within(&own.ledger()));
            of_ledger.map(|node| (node.path.clone(), newest(&node.stat))).collect()
        };
        if ledger(&before) == ledger(&after) {
            return Ok((job, nodes, after));
        }
        before = after;
    }
    Err(BackupError::Busy(job))
}

async fn read_record(
    namespace: Namespace<'_>,
    locks: &Path,
    name: String,
) -> Result<Option<(String, Node)>, BackupError> {
    let Ok(paths) = StickyPaths::named(locks, &name) else { return Ok(None) };
    let record = namespace.session.get(&paths.record()).await?;
    Ok(record.map(|node| (name, node)))
}

/// The wish of an operator.
#[derive(Debug, Clone)]
pub struct Wish {
    /// The backup.
    pub backup: Arc<Backup>,
    /// Whether only to look.
    pub dry: bool,
    /// Whether to restore although instances are online or nodes differ.
    pub force: bool,
    /// The state that the operator was shown. `None`: none.
    pub etag: Option<String>,
    /// Fires up to this instant count as started.
    pub settled: Option<Timestamp>,
}

/// The effects of a restore, done or only planned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Its steps, and the differences.
    pub plan: Plan,
    /// The jobs with instances online, also those that are not in the backup, and how many.
    pub online: Vec<(JobName, usize)>,
    /// The jobs of the namespace that the backup does not have. They stay as they are.
    pub others: Vec<JobName>,
    /// Whether fencing tokens may be lower than before.
    pub tokens_may_fall: bool,
}

/// Restores a backup, or says what that would do.
pub async fn restore_in(namespace: Namespace<'_>, wish: &Wish) -> Result<Outcome, BackupError> {
    tokio::select! {
        restored = restore(namespace, wish) => restored,
        () = namespace.clock.sleep(LIMIT) => Err(BackupError::Late),
    }
}

async fn restore(namespace: Namespace<'_>, wish: &Wish) -> Result<Outcome, BackupError> {
    let Namespace { session, root, .. } = namespace;
    let mut outcome = look(namespace, wish).await?;
    if wish.dry {
        return Ok(outcome);
    }
    if let Some(obstacle) = session.obstacle() {
        return Err(BackupError::Unwritable(obstacle));
    }
    if wish.etag.as_ref().is_some_and(|etag| *etag != outcome.plan.etag()) {
        return Err(BackupError::ChangedSinceShown);
    }
    if let (Some((job, count)), false) = (outcome.online.first(), wish.force) {
        return Err(BackupError::Online { job: job.clone(), count: *count });
    }
    let mut differences = outcome.plan.changed.iter().chain(&outcome.plan.removed);
    if let (Some(example), false) = (differences.next(), wish.force) {
        let (count, example) = (differences.count().saturating_add(1), example.clone());
        return Err(BackupError::Differs { count, example });
    }
    // First: no token may be given out before it is known whether tokens fall.
    outcome.tokens_may_fall = settle_tokens(namespace, &wish.backup).await?;
    let locks = default_root(root);
    try_join(
        session.ensure(root, NodeKind::Persistent, b""),
        session.ensure(&locks, NodeKind::Persistent, b""),
    )
    .await?;
    let mut rest = outcome.plan.steps.iter().cloned().peekable();
    while rest.peek().is_some() {
        let (mut transaction, mut bytes) = (Transaction::new(), 0_usize);
        while let Some(step) =
            rest.next_if(|step| bytes == 0 || bytes.saturating_add(step.wire_size()) <= TRANSACTION_BYTES_MAX)
        {
            bytes = bytes.saturating_add(step.wire_size());
            transaction.push(step);
        }
        match session.commit(transaction).await.map_err(|failure| failure.error) {
            Ok(_) => {}
            Err(
                changed @ (Error::NoNode(_)
                | Error::NodeExists(_)
                | Error::BadVersion(_)
                | Error::NotEmpty(_)),
            ) => return Err(BackupError::ChangedMeanwhile(changed)),
            Err(error) => return Err(BackupError::Failed(error)),
        }
    }
    Ok(outcome)
}

/// Compares the backup with the namespace.
async fn look(namespace: Namespace<'_>, wish: &Wish) -> Result<Outcome, BackupError> {
    let Namespace { session, root, .. } = namespace;
    let roots = Roots { namespace: root };
    let backup = &wish.backup;
    let groups = backup.nodes.chunk_by(|first, second| first.home == second.home);
    let read = groups.map(|saved| read_home(&**session, roots, saved));
    let mut read = iter(read.collect::<Vec<_>>()).buffered(AT_ONCE);
    let (mut outcome, mut now) = (Outcome::default(), Zxid(0));
    while let Some((saved, nodes)) = read.try_next().await? {
        now = nodes.iter().map(|node| newest(&node.stat)).chain([now]).max().unwrap_or(now);
        outcome.plan.add(roots, saved, &nodes, wish.settled);
    }
    let saved: std::collections::BTreeSet<_> = backup.nodes.iter().map(|node| &node.home).collect();
    let jobs = names(namespace, |_| true).await?;
    outcome.others = jobs.iter().filter(|job| !saved.contains(&Home::Job((*job).clone()))).cloned().collect();
    let mut online = iter(jobs).map(|job| online(namespace, job)).buffered(AT_ONCE);
    while let Some((job, count)) = online.try_next().await? {
        if count > 0 {
            outcome.online.push((job, count));
        }
    }
    // Read without a write, so the present transaction is known from below only. The registry of the backup counts on.
    let skips = session.can_skip_ids() && tokens::skip_to(backup.highest).is_some();
    let is_same = is_same(&**session, backup).await?;
    outcome.tokens_may_fall = !(skips || is_same) && tokens::may_fall(backup.highest, now, false);
    Ok(outcome)
}

async fn read_home<'a>(
    session: &dyn Session,
    roots: Roots<'_>,
    saved: &'a [Saved],
) -> Result<(&'a [Saved], Vec<Node>), Error> {
    let nodes = match saved.first().and_then(|node| roots.of(&node.home)) {
        Some(home) => session.subtree(&home).await?,
        None => Vec::new(),
    };
    Ok((saved, nodes))
}

/// How many instances of a job are online.
async fn online(namespace: Namespace<'_>, job: JobName) -> Result<(JobName, usize), Error> {
    let paths = JobPaths::new(namespace.root, &job);
    let instances = namespace.session.children(&paths.folder(Folder::Instances)).await?;
    Ok((job, instances.unwrap_or_default().len()))
}

/// Whether this is the registry of the backup.
async fn is_same(session: &dyn Session, backup: &Backup) -> Result<bool, Error> {
    for landmark in &backup.header.registry {
        let Some(path) = landmark.node() else { continue };
        if session.get(&path).await?.and_then(|node| Landmark::of(&node)).as_ref() == Some(landmark) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes later tokens higher than all earlier ones, or leaves a node that says that they may not be. True: they may not.
async fn settle_tokens(namespace: Namespace<'_>, backup: &Backup) -> Result<bool, BackupError> {
    let Namespace { session, root, .. } = namespace;
    let path = Restored::path(root);
    let earlier = session.get(&path).await?;
    let earlier = earlier.as_ref().map(Restored::read);
    let highest = earlier.map_or(backup.highest, |earlier| earlier.highest.max(backup.highest));
    // The registry of the backup may still be another one than that of an earlier restore.
    let is_same = earlier.is_none() && is_same(&**session, backup).await?;
    if session.can_skip_ids()
        && let Some(zxid) = tokens::skip_to(highest)
    {
        session.skip_ids(zxid).await?;
    }
    session.ensure(&ExtensionPaths::all(root), NodeKind::Persistent, b"").await?;
    // The transaction tells how far the registry is, and the node is there before the first token.
    let content = Restored::write(highest);
    let note = match earlier {
        Some(_) => Operation::set(path.clone(), content),
        None => Operation::create(path.clone(), NodeKind::Persistent, content),
    };
    let written = session.commit(vec![note]).await.map_err(|failure| failure.error)?;
    let now = written.iter().find_map(|result| match result {
        OperationResult::Created { stat, .. } | OperationResult::Set { stat } => Some(stat.modified),
        OperationResult::Deleted | OperationResult::Checked => None,
    });
    if tokens::may_fall(highest, now.unwrap_or_default(), is_same) {
        return Ok(true);
    }
    session.commit(vec![Operation::delete(path)]).await.map_err(|failure| failure.error)?;
    Ok(false)
}

/// The restore after which tokens may be lower than before. `None`: there was none.
pub async fn restored(session: &dyn Session, namespace: &Path) -> Result<Option<Restored>, Error> {
    Ok(session.get(&Restored::path(namespace)).await?.as_ref().map(Restored::read))
}
