//! The contents of the state file, and their JSON. Decides whether a text is used: only one of this version, about this registry,
//! namespace and address, and with instances that are possible.

use std::net::Ipv4Addr;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::extension::handoff_policy::is_label;
use crate::extension::profile::{LABELS_MAX, Profile, WEIGHT_MAX};
use crate::job::{InstanceId, InstanceName, JobName};
use crate::registry::SessionKey;
use crate::tree::{Path, SessionId};

/// The version of the file's form. A file of another version is not used.
const VERSION: u32 = 1;

/// The place of the session. A file about another registry, namespace or address is not used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The registry, as it describes itself.
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
    /// The name that its application chose, with which its id ends. `None`: the sidecar chose the end of the id.
    pub name: Option<InstanceName>,
    /// The application's process; empty: the application cannot reattach.
    pub application_id: String,
    /// The profile that it has announced to the other sidecars.
    pub profile: Profile,
    /// Since when it is attached.
    pub since: Timestamp,
}

/// The contents that the former process has written down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormerProcess {
    /// Its session.
    pub key: SessionKey,
    /// The instances that had nodes in it.
    pub members: Vec<Member>,
    /// The locks in whose queues it had nodes.
    pub locks: Vec<Path>,
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
    /// A program that does not know locks does not use a file with locks: it would keep their nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    locks: Vec<String>,
    /// Whether executions held locks for their items, or waited for some.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    item_locks: bool,
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

/// The text of a file about this session, these instances and these locks. `None`: there is nothing to write down without a session.
pub(crate) fn text<'a>(
    place: &Place,
    session: Option<&SessionKey>,
    members: impl Iterator<Item = &'a Member>,
    locks: impl Iterator<Item = &'a Path>,
    item_locks: bool,
) -> Option<String> {
    let key = session?;
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
        members: members.map(member).collect(),
        locks: locks.map(Path::to_string).collect(),
        item_locks,
    };
    // All its values have a form in JSON.
    serde_json::to_string(&written).ok()
}

/// Reads a text. The error says why it is not used.
pub fn read(text: &str, place: &Place) -> Result<FormerProcess, String> {
    // A file of another version may have other fields: the version is read alone.
    let version = serde_json::from_str::<serde_json::Value>(text).map_err(|error| error.to_string())?;
    let version = version.get("version").and_then(serde_json::Value::as_u64);
    if version != Some(u64::from(VERSION)) {
        return Err(format!("its version is {version:?}, and this program's is {VERSION}"));
    }
    let written: Written = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if written.place != *place {
        return Err(format!("it is about {:?}, and this sidecar is configured for {place:?}", written.place));
    }
    // Nobody can say whose they were; they end with the session, after the executions that its lease stops.
    if written.item_locks {
        return Err("executions held locks for their items, which end with the session only".to_owned());
    }
    let members: Result<Vec<_>, String> =
        written.members.into_iter().map(|member| read_member(member, place)).collect();
    let locks: Result<Vec<_>, String> =
        written.locks.iter().map(|lock| Path::parse(lock).map_err(|error| error.to_string())).collect();
    let timeout = Duration::from_millis(written.timeout_ms);
    let key = SessionKey { id: SessionId(written.session), password: written.password, timeout };
    Ok(FormerProcess { key, members: members?, locks: locks? })
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
        return Err(format!("instance `{instance}` does not end with the name that is written down for it"));
    }
    Ok(Member { job, instance, name, application_id: written.application_id, profile, since })
}
