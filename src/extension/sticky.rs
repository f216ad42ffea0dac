//! The nodes of a sticky lock, a layout of our own (locks specification 9.3). No other program reads them.
//!
//! | node of a lock | kind | content |
//! | --- | --- | --- |
//! | `record` | persistent | JSON: [`Record`]. Its version guards each transaction |
//! | `owner` | ephemeral | JSON: [`OwnerNode`]. It exists while an instance owns the lock, and its czxid is the token |
//! | `queue/_c_{stand}-lock-{number}` | ephemeral, sequential | the name of an instance that wants to own the lock |
//!
//! A transaction does not know its own number and time. So [`Record::written`] says which fields the record's own `Stat` has,
//! and [`Record::read`] fills them in.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::lock::{self, Child, LockPaths, Mode};
use crate::excerpt::Excerpt;
use crate::tree::{Path, PathError, Stat};

/// The most bytes of an instance's name.
pub const INSTANCE_BYTES_MAX: usize = lock::HOLDER_BYTES_MAX;
/// The most bytes of a checkpoint.
pub const CHECKPOINT_BYTES_MAX: usize = 4 * 1024;
/// The longest grace.
pub const GRACE_MAX: Duration = Duration::from_secs(24 * 3600);
/// The most interrupted runs that a record keeps. No run begins while there are so many.
pub const UNFINISHED_MAX: usize = 8;
/// The most bytes of a record: far more than this version writes.
const RECORD_BYTES_MAX: usize = 256 * 1024;

/// The nodes of one sticky lock.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StickyPaths {
    root: Path,
    queue: LockPaths,
}

impl StickyPaths {
    /// The lock with a name, below the root of all sticky locks. Fails if the name cannot be a node's name.
    pub fn named(root: &Path, name: &str) -> Result<Self, PathError> {
        let root = root.try_child(name)?;
        Ok(Self { queue: LockPaths::at(root.child("queue")), root })
    }

    /// The lock's node.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The node of the record.
    pub fn record(&self) -> Path {
        self.root.child("record")
    }

    /// The node that exists while an instance owns the lock.
    pub fn owner(&self) -> Path {
        self.root.child("owner")
    }

    /// The parent of the candidates' nodes.
    pub fn queue(&self) -> &Path {
        self.queue.lock()
    }

    /// The node that a candidate creates, without its number.
    pub fn candidate(&self, stand: Uuid) -> Path {
        self.queue.contender(Mode::Mutex, stand)
    }
}

/// The number of a candidate's node. `None`: the node is no candidate's.
pub fn place(name: &str) -> Option<u32> {
    match Child::read(name) {
        Child::Contender { mode: Mode::Mutex, number } => Some(number),
        Child::Contender { .. }
        | Child::Delay { .. }
        | Child::WithoutNumber(_)
        | Child::OtherRecipe
        | Child::Foreign => None,
    }
}

/// Whether a node is of this candidate.
pub fn is_of(name: &str, stand: Uuid) -> bool {
    name.starts_with(&lock::prefix(stand))
}

/// The root of all sticky locks.
pub fn default_root(namespace: &Path) -> Path {
    namespace.sibling_with_suffix("-sidekeeper").child(lock::LOCKS).child("sticky")
}

/// The content of the owner's node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerNode {
    /// The name of the instance.
    pub instance: String,
    /// Its candidate.
    #[serde(with = "uuid_text")]
    pub stand: Uuid,
}

impl OwnerNode {
    /// Reads the node. `None`: it has another form.
    pub fn read(data: &[u8]) -> Option<Self> {
        read_object(data).ok()
    }

    /// The content of the node.
    pub fn write(&self) -> String {
        json(self)
    }
}

/// The kind of the last write of a record: it changes fields that the record's own `Stat` has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Written {
    /// `token`, `acquired_ms`.
    Grant,
    /// `entered_ms`.
    Enter,
    /// `left_ms`.
    Leave,
}

/// Why an instance has become the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Nobody has owned the lock before.
    #[default]
    First,
    /// It was the last owner.
    Returned,
    /// The last owner vanished, and its grace is over.
    GraceOver,
    /// The last owner has resigned.
    Resigned,
}

/// The owner before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Previous {
    /// The name of the instance.
    pub instance: String,
    /// Its token.
    pub token: i64,
    /// When it became the owner, in milliseconds since 1970.
    #[serde(default)]
    pub acquired_ms: Option<i64>,
    /// When the last run began, by this owner or an earlier one.
    #[serde(default)]
    pub entered_ms: Option<i64>,
    /// Whether it vanished inside a run.
    #[serde(default)]
    pub inside: bool,
}

/// A run that its instance has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfinished {
    /// The name of the instance.
    pub instance: String,
    /// The token of the run.
    pub token: i64,
    /// When the run began, in milliseconds since 1970.
    #[serde(default)]
    pub entered_ms: Option<i64>,
    /// Its last checkpoint.
    #[serde(default, with = "hex::serde")]
    pub checkpoint: Vec<u8>,
}

/// The record of a sticky lock.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// The owner, or the last one. `None`: nobody, or it has resigned.
    pub owner: Option<String>,
    /// The candidate of the owner, or of the last one.
    #[serde(with = "uuid_text")]
    pub stand: Uuid,
    /// How long others wait after the owner has vanished, in milliseconds.
    pub grace_ms: u64,
    /// The owner's token.
    pub token: i64,
    /// When it became the owner, in milliseconds since 1970.
    pub acquired_ms: Option<i64>,
    /// Why it became the owner.
    pub cause: Cause,
    /// The run that it is inside.
    pub run: Option<String>,
    /// When the last run began, by this owner or an earlier one.
    pub entered_ms: Option<i64>,
    /// When the last run ended that has ended in good order.
    pub left_ms: Option<i64>,
    /// The last checkpoint of the run.
    #[serde(with = "hex::serde")]
    pub checkpoint: Vec<u8>,
    /// Whether the last owner gave the lock away.
    pub resigned: bool,
    /// Whether the last owner's sidecar knew that its application does not act any more.
    pub ended: bool,
    /// The owner before, if it has vanished.
    pub previous: Option<Previous>,
    /// Interrupted runs, the oldest first.
    pub unfinished: Vec<Unfinished>,
    /// The fields that the record's `Stat` has.
    pub written: Option<Written>,
}

impl Record {
    /// Reads the node. Fields of later versions are skipped. Fails with the reason, for people.
    pub fn read(data: &[u8], stat: &Stat) -> Result<Self, String> {
        if data.len() > RECORD_BYTES_MAX {
            return Err(format!("it has {} bytes, and the most is {RECORD_BYTES_MAX}", data.len()));
        }
        let mut record: Self =
            read_object(data).map_err(|error| Excerpt::of(&error.to_string()).into_string())?;
        if record.grace() > GRACE_MAX {
            return Err(format!(
                "grace_ms is {}, and the most is {}",
                record.grace_ms,
                GRACE_MAX.as_millis()
            ));
        }
        let time = Some(stat.modified_ms);
        match record.written.take() {
            Some(Written::Grant) => (record.token, record.acquired_ms) = (stat.modified.0, time),
            Some(Written::Enter) => record.entered_ms = time,
            Some(Written::Leave) => record.left_ms = time,
            None => {}
        }
        Ok(record)
    }

    /// The content of the node.
    pub fn write(&self) -> String {
        json(self)
    }

    /// How long others wait after the owner has vanished.
    pub fn grace(&self) -> Duration {
        Duration::from_millis(self.grace_ms)
    }

    /// Whether the owner, or the last one, is inside a run.
    pub fn is_inside(&self) -> bool {
        self.run.is_some()
    }

    /// The run that is interrupted if the owner does not go on. `None`: there is none.
    pub fn interrupted(&self) -> Option<Unfinished> {
        self.run.as_ref()?;
        Some(Unfinished {
            instance: self.owner.clone().unwrap_or_default(),
            token: self.token,
            entered_ms: self.entered_ms,
            checkpoint: self.checkpoint.clone(),
        })
    }
}

fn json(value: &impl Serialize) -> String {
    // These values have texts, numbers and lists only, which JSON can always have.
    serde_json::to_string(value).unwrap_or_default()
}

/// A UUID as text.
mod uuid_text {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};
    use uuid::Uuid;

    pub(super) fn serialize<S: Serializer>(uuid: &Uuid, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(uuid)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Uuid, D::Error> {
        Uuid::try_parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// Reads a JSON object. The library would take a list, too, with its fields in order.
fn read_object<T: serde::de::DeserializeOwned>(data: &[u8]) -> Result<T, serde_json::Error> {
    let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(data)?;
    serde_json::from_value(serde_json::Value::Object(fields))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Zxid;

    fn stat() -> Stat {
        Stat { created: Zxid(3), modified: Zxid(9), version: 4, ephemeral_owner: None, modified_ms: 1_000 }
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_its_stat_fills_it_in() {
        let record = Record {
            owner: Some("m1".to_owned()),
            stand: Uuid::from_u128(7),
            grace_ms: 10_000,
            run: Some("r".to_owned()),
            checkpoint: vec![0, 255],
            unfinished: vec![Unfinished {
                instance: "m0".to_owned(),
                token: 2,
                entered_ms: Some(5),
                checkpoint: vec![1],
            }],
            written: Some(Written::Grant),
            ..Record::default()
        };
        let read = Record::read(record.write().as_bytes(), &stat()).unwrap();
        assert_eq!(read, Record { token: 9, acquired_ms: Some(1_000), written: None, ..record.clone() });
        let entered = Record { written: Some(Written::Enter), ..record.clone() };
        assert_eq!(Record::read(entered.write().as_bytes(), &stat()).unwrap().entered_ms, Some(1_000));
        let left = Record { written: Some(Written::Leave), ..record };
        assert_eq!(Record::read(left.write().as_bytes(), &stat()).unwrap().left_ms, Some(1_000));
    }

    #[test]
    fn unknown_fields_are_skipped_and_nonsense_is_an_error() {
        let later = br#"{"owner":"m1","news":[1],"token":4}"#;
        assert_eq!(Record::read(later, &stat()).unwrap().token, 4);
        let garbage: [&[u8]; 7] = [
            b"",
            b"x",
            b"[]",
            br#"{"owner":5}"#,
            br#"{"checkpoint":"0"}"#,
            br#"{"checkpoint":"zz"}"#,
            br#"{"grace_ms":99999999999}"#,
        ];
        for data in garbage {
            assert!(Record::read(data, &stat()).is_err(), "{}", String::from_utf8_lossy(data));
        }
        assert!(Record::read(&vec![b' '; RECORD_BYTES_MAX + 1], &stat()).is_err());
        assert_eq!(OwnerNode::read(b"{}"), None);
    }

    #[test]
    fn the_nodes_of_a_lock_are_below_our_own_root() {
        let root = default_root(&Path::parse("/ns").unwrap());
        let paths = StickyPaths::named(&root, "bill").unwrap();
        assert_eq!(paths.record().as_str(), "/ns-sidekeeper/@-@locks/sticky/bill/record");
        assert_eq!(paths.owner().as_str(), "/ns-sidekeeper/@-@locks/sticky/bill/owner");
        let node = format!("{}0000000007", paths.candidate(Uuid::from_u128(1)).name());
        assert_eq!((place(&node), is_of(&node, Uuid::from_u128(1))), (Some(7), true));
        assert!(!is_of(&node, Uuid::from_u128(2)));
        assert_eq!(place("readme"), None);
        assert!(StickyPaths::named(&root, "a/b").is_err());
    }
}
