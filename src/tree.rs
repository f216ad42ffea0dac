//! A registry as values: paths, nodes, transactions and changes. Pure. This room knows neither ZooKeeper nor
//! jobs.
//!
//! The model is ZooKeeper's: nodes with data, versions, transaction ids, ephemeral owners. The protocol is
//! specified in it. The embedded registry implements the same model.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// An absolute path: `/` or `/a/b`. Always well-formed: no empty, `.` or `..` segments, no control characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(Arc<str>);

/// Why a text is not a [`Path`] or not a path segment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not a valid {what}: {reason}")]
pub struct PathError {
    /// The expected kind of text: `path` or `node name`.
    pub what: &'static str,
    /// The text that was given.
    pub given: String,
    /// The rule that the text breaks.
    pub reason: &'static str,
}

impl Path {
    /// The root, `/`.
    pub fn root() -> Self {
        Self("/".into())
    }

    /// Reads an absolute path.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        let error = |reason| PathError { what: "path", given: text.to_owned(), reason };
        if text == "/" {
            return Ok(Self::root());
        }
        let Some(rest) = text.strip_prefix('/') else {
            return Err(error("it does not begin with `/`"));
        };
        for segment in rest.split('/') {
            check_segment(segment).map_err(error)?;
        }
        Ok(Self(text.into()))
    }

    /// The child with this name.
    ///
    /// Refuses a name that is not a valid segment: empty, or with a `/` or a control character. So text from
    /// outside cannot address another node.
    pub fn try_child(&self, name: &str) -> Result<Self, PathError> {
        check_segment(name).map_err(|reason| PathError {
            what: "node name",
            given: name.to_owned(),
            reason,
        })?;
        Ok(self.child(name))
    }

    /// The node at `relative`: a name, or several joined by `/`. Only for names that this program spells.
    pub fn child(&self, relative: &str) -> Self {
        debug_assert!(!relative.is_empty() && !relative.starts_with('/'), "{relative:?}");
        if self.is_root() {
            Self(format!("/{relative}").into())
        } else {
            Self(format!("{}/{relative}", self.0).into())
        }
    }

    /// The node beside this one: its name is this name with a suffix. Only for suffixes that this program
    /// spells.
    pub fn sibling_with_suffix(&self, suffix: &str) -> Self {
        debug_assert!(!suffix.contains('/'), "{suffix:?}");
        Self(format!("{}{suffix}", self.0).into())
    }

    /// The node above, `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        match self.0.rsplit_once('/') {
            _ if self.is_root() => None,
            Some(("", _)) => Some(Self::root()),
            Some((parent, _)) => Some(Self(parent.into())),
            None => None,
        }
    }

    /// The last segment; empty for the root.
    pub fn name(&self) -> &str {
        self.0.rsplit_once('/').map_or("", |(_, name)| name)
    }

    /// The rest of this path below `root`, without a leading `/`. Empty: both are equal. `None`: this path is
    /// not below `root`.
    pub fn relative_to(&self, root: &Self) -> Option<&str> {
        if root.is_root() {
            return self.0.strip_prefix('/');
        }
        match self.0.strip_prefix(&*root.0)? {
            "" => Some(""),
            rest => rest.strip_prefix('/'),
        }
    }

    /// Whether this is `root` or below it.
    pub fn is_within(&self, root: &Self) -> bool {
        self.relative_to(root).is_some()
    }

    /// Whether this is `/`.
    pub fn is_root(&self) -> bool {
        &*self.0 == "/"
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn check_segment(segment: &str) -> Result<(), &'static str> {
    match segment {
        "" => Err("it has an empty segment"),
        "." | ".." => Err("it has a segment `.` or `..`"),
        _ if segment.contains('/') => Err("it holds a `/`"),
        _ if segment.chars().any(is_forbidden) => Err("it holds a control or private-use character"),
        _ => Ok(()),
    }
}

/// The characters that ZooKeeper refuses in paths.
fn is_forbidden(c: char) -> bool {
    matches!(c, '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}')
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The id of a transaction of the registry. A later transaction has a higher id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Zxid(pub i64);

/// A session with the registry. Each ephemeral node belongs to a session and vanishes with it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub i64);

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:x}", self.0)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:x}", self.0)
    }
}

/// The registry's metadata of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// The transaction that created the node (ZooKeeper's czxid).
    pub created: Zxid,
    /// The transaction that last set the node's data (mzxid).
    pub modified: Zxid,
    /// How often the data was set since the creation.
    pub version: i32,
    /// The session that owns the node, if the node is ephemeral.
    pub ephemeral_owner: Option<SessionId>,
    /// When the data was last set, by the registry's clock, in milliseconds since 1970.
    pub modified_ms: i64,
}

/// A node: path, data and metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The path.
    pub path: Path,
    /// The data.
    pub data: Arc<[u8]>,
    /// The metadata.
    pub stat: Stat,
}

/// How long a node lives, and whether the registry completes its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKind {
    /// Until it is deleted.
    Persistent,
    /// Until it is deleted. The registry deletes it some time after its last child was deleted (ZooKeeper's
    /// container).
    Container,
    /// Until it is deleted or its session ends.
    Ephemeral,
    /// As [`Self::Ephemeral`]. The registry appends a growing number of ten digits to its name.
    EphemeralSequential,
}

/// One step of a [`Transaction`]. In `version` fields `None` means any version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Creates a node. The parent must exist, the node must not.
    Create {
        /// The node; for sequential kinds the part of its name before the number.
        path: Path,
        /// Its data.
        data: Arc<[u8]>,
        /// How long it lives.
        kind: NodeKind,
    },
    /// Sets a node's data.
    Set {
        /// The node.
        path: Path,
        /// Its new data.
        data: Arc<[u8]>,
        /// The version that the node must have.
        version: Option<i32>,
    },
    /// Deletes a node that has no children.
    Delete {
        /// The node.
        path: Path,
        /// The version that the node must have.
        version: Option<i32>,
    },
    /// Checks that a node exists.
    Check {
        /// The node.
        path: Path,
        /// The version that the node must have.
        version: Option<i32>,
    },
}

impl Operation {
    /// Creates a node.
    pub fn create(path: Path, kind: NodeKind, data: impl AsRef<[u8]>) -> Self {
        Self::Create { path, data: data.as_ref().into(), kind }
    }

    /// Sets a node's data at any version.
    pub fn set(path: Path, data: impl AsRef<[u8]>) -> Self {
        Self::Set { path, data: data.as_ref().into(), version: None }
    }

    /// Deletes a node at any version.
    pub fn delete(path: Path) -> Self {
        Self::Delete { path, version: None }
    }

    /// Checks that a node exists, at any version.
    pub fn check(path: Path) -> Self {
        Self::Check { path, version: None }
    }

    /// The node of this step.
    pub fn path(&self) -> &Path {
        match self {
            Self::Create { path, .. }
            | Self::Set { path, .. }
            | Self::Delete { path, .. }
            | Self::Check { path, .. } => path,
        }
    }

    /// About how many bytes the step takes on the wire. Callers keep transactions below the server's limit
    /// with it.
    pub fn wire_size(&self) -> usize {
        // Header 9, path and data with their lengths, version or flags 4, and an access list of 31 (world) to
        // about 80 (digest) bytes for a creation.
        match self {
            Self::Create { path, data, .. } => 9 + 8 + path.as_str().len() + data.len() + 4 + 84,
            Self::Set { path, data, .. } => 9 + 8 + path.as_str().len() + data.len() + 4,
            Self::Delete { path, .. } | Self::Check { path, .. } => 9 + 4 + path.as_str().len() + 4,
        }
    }
}

/// Steps in their order. All of them take effect, or none.
pub type Transaction = Vec<Operation>;

/// The result of one step of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperationResult {
    /// The node was created.
    Created {
        /// Its path, with its number if it is sequential.
        path: Path,
        /// Its metadata.
        stat: Stat,
    },
    /// The data was set.
    Set {
        /// The node's metadata after the step.
        stat: Stat,
    },
    /// The node was deleted.
    Deleted,
    /// The check held.
    Checked,
}

/// One change of a node below a watched root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeChange {
    /// The node exists now, or its data was set.
    Put {
        /// Which node.
        path: Path,
        /// Its data and stat, if the watch asked for the data of this path. They may be newer than the change.
        content: Option<(Arc<[u8]>, Stat)>,
    },
    /// The node was deleted.
    Removed {
        /// Which node.
        path: Path,
    },
}

impl NodeChange {
    /// The node that changed.
    pub fn path(&self) -> &Path {
        match self {
            Self::Put { path, .. } | Self::Removed { path } => path,
        }
    }
}

/// An event of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// The root and everything below it as it is now, parents before children. It is the first event. It
    /// comes again after changes may have been missed, and replaces all earlier events. Empty: there is no
    /// root.
    Snapshot(Vec<Node>),
    /// Changes, oldest first. A watch may merge several changes of one node into the last of them.
    Changes(Vec<NodeChange>),
}

/// Why a request to the registry failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A node that must exist does not.
    #[error("{0} does not exist")]
    NoNode(Path),
    /// A node that must not exist does.
    #[error("{0} exists already")]
    NodeExists(Path),
    /// A node does not have the expected version.
    #[error("{0} has another version than expected")]
    BadVersion(Path),
    /// A node cannot be deleted because it has children.
    #[error("{0} has children")]
    NotEmpty(Path),
    /// A node cannot be created because its parent is ephemeral.
    #[error("the parent of {0} is ephemeral and cannot have children")]
    ParentIsEphemeral(Path),
    /// The session may not do that. Check the digest and the node's access list.
    #[error("no permission for {0}; check the registry's digest and the node's access list")]
    NoPermission(Path),
    /// The request may or may not have taken effect: the connection broke, or the answer did not come in
    /// time. Read the registry before you try again.
    #[error("whether the request took effect is unknown: {0}")]
    OutcomeUnknown(String),
    /// The request was not sent, because there is no connection now. The session may still be alive.
    #[error("not connected to the registry")]
    Suspended,
    /// The session has ended, and its ephemeral nodes vanish with it.
    #[error("the session with the registry is lost")]
    SessionLost,
    /// No session could be opened. The text names the address and the reason.
    #[error("cannot open a session with the registry: {0}")]
    Unreachable(String),
    /// The registry refuses our authentication, or we refuse its: only a person can help. The text says what to check.
    #[error("cannot open a session with the registry: {0}")]
    AuthRefused(String),
    /// The servers that answer serve read-only, because more than half of the ensemble is away. The text names the servers.
    #[error("cannot open a session with the registry: {0}")]
    ReadOnly(String),
    /// Another error. The request definitely did not take effect.
    #[error("the registry refused the request: {0}")]
    Refused(String),
}

/// A server of a registry, asked for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Its address in the settings.
    pub address: String,
    /// Its answer. `Err`: it does not serve, for this reason.
    pub answer: Result<ServerAnswer, String>,
}

/// The answer of a server that serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerAnswer {
    /// The first two parts of its version. `None`: it does not tell.
    pub version: Option<(u32, u32)>,
    /// How long the quickest of some answers took. `None`: not measured.
    pub took: Option<Duration>,
}

/// A limit for a node and all nodes below it, and how much of it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// The node, in words: by the registry's own root.
    pub path: String,
    /// Whether bytes are limited; otherwise nodes are.
    pub is_of_bytes: bool,
    /// How many there are.
    pub used: u64,
    /// How many there may be.
    pub limit: u64,
}

impl Quota {
    /// The used part in percent, rounded down.
    pub fn percent(&self) -> u64 {
        self.used.saturating_mul(100).checked_div(self.limit).unwrap_or(100)
    }
}

/// Why a transaction failed. No step took effect, unless the error is [`Error::OutcomeUnknown`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct CommitError {
    /// The index of the failed step, if one step failed.
    pub index: Option<usize>,
    /// Why.
    #[source]
    pub error: Error,
}

impl From<Error> for CommitError {
    fn from(error: Error) -> Self {
        Self { index: None, error }
    }
}

/// How a transaction ended.
pub type CommitResult = Result<Vec<OperationResult>, CommitError>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_checked_and_taken_apart() {
        let path = Path::parse("/ns/job/sharding/0").unwrap();
        assert_eq!(path.name(), "0");
        assert_eq!(path.parent().unwrap().as_str(), "/ns/job/sharding");
        assert_eq!(Path::parse("/a").unwrap().parent(), Some(Path::root()));
        assert_eq!(Path::root().parent(), None);
        assert_eq!(path.relative_to(&Path::parse("/ns/job").unwrap()), Some("sharding/0"));
        assert_eq!(path.relative_to(&Path::parse("/ns/jo").unwrap()), None);
        assert_eq!(path.relative_to(&Path::root()), Some("ns/job/sharding/0"));
        assert_eq!(path.relative_to(&path), Some(""));
        for bad in ["", "a", "/a//b", "/a/", "/a/./b", "/a/../b", "/a\u{1}", "/\u{f000}"] {
            assert!(Path::parse(bad).is_err(), "{bad:?}");
        }
        assert!(path.try_child("x/y").is_err());
        assert!(path.try_child("").is_err());
    }
}
