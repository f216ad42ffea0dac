//! Triggers items of a job for an operator: reads the nodes that the plan needs, and commits it with the record of the request. Bounded in
//! time. Decides nothing ([`crate::coordination::admin::trigger_items`] does).

use std::collections::BTreeSet;
use std::time::Duration;

use crate::coordination::admin::trigger_items::{ItemPlan, ItemRefusal, ItemWish, WAITING_MAX, plan_items};
use crate::extension::path::ExtensionPaths;
use crate::extension::request_record::{RequestId, RequestRecord, TriggerRecord};
use crate::job::{InstanceId, Item, JobName};
use crate::registry::Session;
use crate::runner::admin::Namespace;
use crate::runner::admin::trigger_job::TriggerError;
use crate::runner::requests;
use crate::runner::shared::Shared;
use crate::tree::{Error, NodeKind};

/// How long the registry may take: it waits while the session is suspended.
const LIMIT: Duration = Duration::from_secs(40);
/// How many names of instances and items an error has.
const SHOWN: usize = 20;

/// Why items were not triggered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ItemTriggerError {
    /// As for a trigger of all instances.
    #[error(transparent)]
    Trigger(#[from] TriggerError),
    /// Some items are disabled.
    #[error("the items {} of job `{job}` are disabled; enable them, or name others", shown(items))]
    Disabled {
        /// The job.
        job: JobName,
        /// The items.
        items: BTreeSet<Item>,
    },
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
    /// Some instances cannot execute single items.
    #[error(
        "{} of job `{job}` cannot be triggered with items or a parameter: {}; trigger the whole job, or stop them first",
        unable(java, earlier), shown(java.iter().chain(earlier))
    )]
    Unable {
        /// The job.
        job: JobName,
        /// Java instances.
        java: BTreeSet<InstanceId>,
        /// Instances of sidecars of earlier versions.
        earlier: BTreeSet<InstanceId>,
    },
    /// The instances wait for each other.
    #[error(
        "job `{0}` has a once-listener, so its items are not executed one by one; trigger it without items and without a parameter"
    )]
    Listener(JobName),
    /// The application works all the time.
    #[error("the applications of job `{0}` work on their items all the time, and get no executions")]
    Continuous(JobName),
    /// Too many items wait.
    #[error("job `{0}` has {WAITING_MAX} triggers of items that have not ended; wait, or name fewer items")]
    TooManyWait(JobName),
    /// The request is too large.
    #[error(
        "one request cannot trigger so many items of job `{0}` with such a parameter; name fewer at once"
    )]
    TooLarge(JobName),
    /// The registry did not answer in time.
    #[error("the registry did not answer for job `{0}` within {LIMIT:?}; try again with the same request_id")]
    Late(JobName),
}

fn unable(java: &BTreeSet<InstanceId>, earlier: &BTreeSet<InstanceId>) -> &'static str {
    match (java.is_empty(), earlier.is_empty()) {
        (false, true) => "the Java instances",
        (true, _) => "the instances of sidecars of earlier versions",
        (false, false) => "the Java instances, and those of sidecars of earlier versions,",
    }
}

fn shown<T: ToString>(all: impl IntoIterator<Item = T>) -> String {
    let mut all = all.into_iter();
    let first: Vec<_> = all.by_ref().take(SHOWN).map(|one| one.to_string()).collect();
    match all.count() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// Triggers items of a job, on the sidecar's session. Returns them. A request with the same id that was carried out before changes nothing.
pub async fn trigger(
    shared: &Shared,
    job: &JobName,
    wish: &ItemWish,
    id: &RequestId,
) -> Result<BTreeSet<Item>, ItemTriggerError> {
    let session = shared.current.borrow().clone().ok_or(TriggerError::NoSession)?;
    let namespace = Namespace::of(shared, &session);
    trigger_in(namespace, job, wish, id).await
}

/// The same, on another session.
pub async fn trigger_in(
    namespace: Namespace<'_>,
    job: &JobName,
    wish: &ItemWish,
    id: &RequestId,
) -> Result<BTreeSet<Item>, ItemTriggerError> {
    tokio::select! {
        triggered = trigger_at_once(namespace, job, wish, id) => triggered,
        () = namespace.clock.sleep(LIMIT) => Err(ItemTriggerError::Late(job.clone())),
    }
}

async fn trigger_at_once(
    namespace: Namespace<'_>,
    job: &JobName,
    wish: &ItemWish,
    id: &RequestId,
) -> Result<BTreeSet<Item>, ItemTriggerError> {
    let Namespace { session, root, .. } = namespace;
    if let Some(obstacle) = session.obstacle() {
        return Err(TriggerError::Unwritable { job: job.clone(), obstacle }.into());
    }
    let own_paths = ExtensionPaths::new(root, job);
    let unread = |error| TriggerError::Unread { job: job.clone(), error };
    let unwritten = |error| TriggerError::Unwritten { job: job.clone(), error };
    if let Some(items) = before(&**session, &own_paths, job, wish, id).await? {
        return Ok(items);
    }
    let picture = namespace.picture(job).await.map_err(unread)?;
    let picture = picture.ok_or_else(|| TriggerError::NotConfigured(job.clone()))?;
    let ItemPlan { transaction, items } =
        plan_items(&own_paths, &picture, wish, id).map_err(|refusal| of_refusal(job, refusal))?;
    requests::make_room(&**session, &own_paths).await.map_err(unwritten)?;
    let folder = own_paths.fleet().triggers();
    session.ensure(&folder, NodeKind::Persistent, b"").await.map_err(unwritten)?;
    match session.commit(transaction).await.map_err(|failure| failure.error) {
        Ok(results) => requests::forget_old(&**session, &own_paths, id, &results).await,
        // The same request at the same time.
        Err(error @ Error::NodeExists(_)) => {
            let before = before(&**session, &own_paths, job, wish, id).await?;
            return before.ok_or_else(|| unwritten(error).into());
        }
        Err(error) => return Err(unwritten(error).into()),
    }
    // The parameter may be a secret.
    tracing::info!(job.name = %job, %id, items = items.len(), "items triggered");
    Ok(items)
}

/// The items that the request with this id has triggered; `None`: there was none.
async fn before(
    session: &dyn Session,
    own_paths: &ExtensionPaths,
    job: &JobName,
    wish: &ItemWish,
    id: &RequestId,
) -> Result<Option<BTreeSet<Item>>, TriggerError> {
    let record = requests::read(session, &own_paths.request(id, 0)).await;
    match record.map_err(|error| TriggerError::Unread { job: job.clone(), error })? {
        None => Ok(None),
        Some(RequestRecord::Trigger(TriggerRecord { asked, items, .. }))
            if asked == Some(wish.fingerprint(id)) =>
        {
            tracing::info!(job.name = %job, %id, "items triggered before by the same request");
            Ok(Some(items))
        }
        Some(RequestRecord::Trigger(_) | RequestRecord::Cancel(_) | RequestRecord::Unknown) => {
            Err(TriggerError::OtherRequest { job: job.clone(), id: id.clone() })
        }
    }
}

fn of_refusal(job: &JobName, refusal: ItemRefusal) -> ItemTriggerError {
    let job = job.clone();
    match refusal {
        ItemRefusal::NotConfigured => TriggerError::NotConfigured(job).into(),
        ItemRefusal::NobodyOnline => TriggerError::NobodyOnline(job).into(),
        ItemRefusal::ServersDisabled => TriggerError::ServersDisabled(job).into(),
        ItemRefusal::AllDisabled => TriggerError::ItemsDisabled(job).into(),
        ItemRefusal::Disabled(items) => ItemTriggerError::Disabled { job, items },
        ItemRefusal::NoItem(item, total) => ItemTriggerError::NoItem { job, item, total },
        ItemRefusal::Unable { java, earlier } => ItemTriggerError::Unable { job, java, earlier },
        ItemRefusal::Listener => ItemTriggerError::Listener(job),
        ItemRefusal::Continuous => ItemTriggerError::Continuous(job),
        ItemRefusal::TooManyWait => ItemTriggerError::TooManyWait(job),
        ItemRefusal::TooLarge => ItemTriggerError::TooLarge(job),
    }
}
