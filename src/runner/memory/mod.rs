//! What a sidecar writes down so that its next process can go on where it was killed: its session, and which instances
//! are in it. One small file, written when a session begins or ends and when an instance comes or goes.
//!
//! An instance is written down before it has a node, and struck out after it has none: so whatever the session holds is
//! known to the next process. If the file cannot be written it is removed, and the next process begins anew.
//!
//! Decides only what of a file is believed: one that is damaged, of another version, of another registry or open to
//! everybody is reported and ignored.

mod folder;

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, Either, select};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tracing::warn;

use crate::coordination::job::contract::profile::{LABELS_MAX, Profile, WEIGHT_MAX};
use crate::elasticjob::handoff_policy::is_label;
use crate::job::{InstanceId, InstanceName, JobName};
use crate::registry::SessionKey;
use crate::tree::SessionId;

use self::folder::Folder;
use super::clock::Clock;

/// The form of the file. Another one is another version's.
const VERSION: u32 = 1;
/// How long a disk may take before an instance goes on without it.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The folder cannot be made or written.
    #[error("{folder}: {source}")]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process has it.
    #[error("{0} is used by another sidecar; give each its own")]
    Taken(PathBuf),
}

/// Keeps one text from one process to the next.
pub trait Shelf: Send + Sync + 'static {
    /// What is there. The error says why it is not believed.
    fn read(&self) -> Result<Option<String>, String>;

    /// Puts this in the place of what is there; `None`: nothing is to be there. Comes back when it will be found after a
    /// crash. If it fails, the old text is gone, or the error says that it is not.
    fn put(&self, text: Option<String>) -> BoxFuture<'static, io::Result<()>>;

    /// Where it is, in words.
    fn describe(&self) -> String;
}

/// Where the session is: a file about another place is of no use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The registry, in words.
    pub registry: String,
    /// The namespace.
    pub namespace: String,
    /// Our server's address.
    pub instance_ip: Ipv4Addr,
}

/// An instance that has nodes in the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The job.
    pub job: JobName,
    /// The instance.
    pub instance: InstanceId,
    /// What its id ends with, if somebody chose that.
    pub name: Option<InstanceName>,
    /// The application's process; empty: it cannot be known again.
    pub application_id: String,
    /// What it has told the other sidecars.
    pub profile: Profile,
    /// Since when it is attached.
    pub since: Timestamp,
}

/// What the former process has left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormerLife {
    /// Its session.
    pub key: SessionKey,
    /// Who was in it.
    pub members: Vec<Member>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    version: u32,
    place: Place,
    session: i64,
    password: Vec<u8>,
    timeout_ms: u64,
    members: Vec<WrittenMember>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenMember {
    job: String,
    instance: String,
    name: Option<String>,
    application_id: String,
    weight: u32,
    labels: Vec<String>,
    since_ms: i64,
}

/// The memory of one sidecar. Clones share it; [`Memory::none`] keeps nothing.
#[derive(Clone)]
pub struct Memory {
    inner: Option<Arc<Inner>>,
}

struct Inner {
    shelf: Arc<dyn Shelf>,
    clock: Clock,
    place: Place,
    facts: Mutex<Facts>,
    /// Which state of the facts the file has; held while it is written.
    written: Arc<tokio::sync::Mutex<u64>>,
}

#[derive(Default)]
struct Facts {
    revision: u64,
    session: Option<SessionKey>,
    members: BTreeMap<String, Member>,
}

impl Inner {
    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    /// Keeps nothing.
    pub fn none() -> Self {
        Self { inner: None }
    }

    /// Keeps the file in this folder, which is made if it is missing and belongs to this process from now on. Gives what
    /// the former process has left there. Fails if the folder cannot be used; a file that cannot is only reported.
    pub fn open(
        folder: &Path,
        place: Place,
        clock: &Clock,
    ) -> Result<(Self, Option<FormerLife>), MemoryError> {
        Ok(Self::on(Arc::new(Folder::open(folder)?), place, clock))
    }

    /// Keeps the text on this shelf, which belongs to this process from now on. Gives what the former process has left
    /// there.
    pub fn on(shelf: Arc<dyn Shelf>, place: Place, clock: &Clock) -> (Self, Option<FormerLife>) {
        let left = shelf.read().and_then(|text| text.map(|text| read(&text, &place)).transpose());
        let former = left.unwrap_or_else(|why| {
            warn!(file = shelf.describe(), why, "what the former process left is ignored");
            None
        });
        // What it was stays true until something else is known.
        let session = former.as_ref().map(|former| former.key.clone());
        let facts = Mutex::new(Facts { session, ..Facts::default() });
        let inner = Inner { shelf, clock: clock.clone(), place, facts, written: Arc::default() };
        (Self { inner: Some(Arc::new(inner)) }, former)
    }

    /// Whether anything is kept.
    pub fn is_kept(&self) -> bool {
        self.inner.is_some()
    }

    /// The session is this one now, or there is none.
    pub async fn session(&self, key: Option<SessionKey>) {
        self.change(|facts| facts.session = key).await;
    }

    /// An instance that the former process has left is somebody's; `name` is the participant's own. The file has it.
    pub fn knows(&self, name: &str, member: Member) {
        if let Some(inner) = &self.inner {
            inner.facts().members.insert(name.to_owned(), member);
        }
    }

    /// An instance is about to have nodes; `name` is the participant's own.
    pub async fn joins(&self, name: &str, member: Member) {
        self.change(|facts| drop(facts.members.insert(name.to_owned(), member))).await;
    }

    /// A participant has ended, and has left no nodes.
    pub async fn has_left(&self, name: &str) {
        self.change(|facts| drop(facts.members.remove(name))).await;
    }

    /// Changes the facts, and comes back when the file has them, or cannot have them.
    async fn change(&self, change: impl FnOnce(&mut Facts)) {
        let Some(inner) = &self.inner else { return };
        let revision = {
            let mut facts = inner.facts();
            change(&mut facts);
            facts.revision += 1;
            facts.revision
        };
        let limit = std::pin::pin!(inner.clock.sleep(WRITE_LIMIT));
        let written = std::pin::pin!(write(Arc::clone(inner), revision));
        if let Either::Right(_) = select(written, limit).await {
            let file = inner.shelf.describe();
            warn!(file, "the disk does not answer; what is done now may not be known later");
        }
    }
}

/// Has the file show this state of the facts, or a later one: what comes while the disk is busy is written together.
async fn write(inner: Arc<Inner>, revision: u64) {
    let mut written = Arc::clone(&inner.written).lock_owned().await;
    if *written >= revision {
        return;
    }
    let (now, text) = {
        let facts = inner.facts();
        (facts.revision, text(&inner.place, &facts))
    };
    let (done, is_done) = oneshot::channel::<()>();
    // It goes on when nobody waits for it any more, and the next one comes after it.
    inner.clock.clone().spawn(async move {
        match inner.shelf.put(text).await {
            Ok(()) => *written = now,
            Err(error) => warn!(file = inner.shelf.describe(), %error, "the file cannot be removed"),
        }
        drop(written);
        drop(done);
    });
    // It ends when the other end is dropped.
    let _ = is_done.await;
}

fn text(place: &Place, facts: &Facts) -> Option<String> {
    let key = facts.session.as_ref()?;
    let member = |member: &Member| WrittenMember {
        job: member.job.to_string(),
        instance: member.instance.to_string(),
        name: member.name.as_ref().map(|name| name.as_str().to_owned()),
        application_id: member.application_id.clone(),
        weight: member.profile.weight,
        labels: member.profile.labels.iter().cloned().collect(),
        since_ms: member.since.as_millisecond(),
    };
    let written = Written {
        version: VERSION,
        place: place.clone(),
        session: key.id.0,
        password: key.password.clone(),
        timeout_ms: u64::try_from(key.timeout.as_millis()).unwrap_or(u64::MAX),
        members: facts.members.values().map(member).collect(),
    };
    // It has nothing that JSON cannot say.
    serde_json::to_string(&written).ok()
}

/// What a text says. The error says why it is not believed.
fn read(text: &str, place: &Place) -> Result<FormerLife, String> {
    // Where the version is another one, the rest is too.
    let version = serde_json::from_str::<serde_json::Value>(text).map_err(|error| error.to_string())?;
    let version = version.get("version").and_then(serde_json::Value::as_u64);
    if version != Some(u64::from(VERSION)) {
        return Err(format!("its version is {version:?}, and this program's is {VERSION}"));
    }
    let written: Written = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if written.place != *place {
        return Err(format!("it is about {:?}, and this sidecar is configured for {place:?}", written.place));
    }
    let members: Result<Vec<_>, String> =
        written.members.into_iter().map(|member| read_member(member, place)).collect();
    let timeout = Duration::from_millis(written.timeout_ms);
    let key = SessionKey { id: SessionId(written.session), password: written.password, timeout };
    Ok(FormerLife { key, members: members? })
}

fn read_member(written: WrittenMember, place: &Place) -> Result<Member, String> {
    let job = JobName::parse(&written.job).map_err(|error| error.to_string())?;
    let instance = InstanceId::from_registry(&written.instance);
    if instance.server_ip() != Some(place.instance_ip) {
        return Err(format!("instance `{instance}` is not of {}", place.instance_ip));
    }
    let since = Timestamp::from_millisecond(written.since_ms).map_err(|error| error.to_string())?;
    if !(1..=WEIGHT_MAX).contains(&written.weight)
        || written.labels.len() > LABELS_MAX
        || !written.labels.iter().all(|label| is_label(label))
    {
        return Err(format!("instance `{instance}` has a weight or labels that are not allowed"));
    }
    let labels = written.labels.into_iter().collect();
    let profile = Profile { weight: written.weight, labels, ..Profile::default() };
    let name =
        written.name.as_deref().map(InstanceName::parse).transpose().map_err(|error| error.to_string())?;
    if name.as_ref().is_some_and(|name| !instance.has_name(name.as_str())) {
        return Err(format!("instance `{instance}` does not have the name that is written down for it"));
    }
    Ok(Member { job, instance, name, application_id: written.application_id, profile, since })
}

#[cfg(test)]
mod tests;
