//! Converts between the program's values and those of the client library.

use zookeeper_client as zk;

use crate::registry::{CommitError, Error};
use crate::tree::{NodeKind, Operation, OperationResult, Path, SessionId, Stat, Zxid};

/// Ephemeral owners with these top eight bits are lifetimes (TTL nodes), not sessions.
const TTL_MARK: i64 = 0xff;

/// The owner of a container.
const CONTAINER_MARK: i64 = i64::MIN;

pub(super) fn stat(stat: &zk::Stat) -> Stat {
    let owner = stat.ephemeral_owner;
    let is_session = owner != 0 && owner != CONTAINER_MARK && (owner >> 56) & 0xff != TTL_MARK;
    Stat {
        created: Zxid(stat.czxid),
        modified: Zxid(stat.mzxid),
        version: stat.version,
        ephemeral_owner: is_session.then_some(SessionId(owner)),
        modified_ms: stat.mtime,
    }
}

pub(super) fn create_mode(kind: NodeKind) -> zk::CreateMode {
    match kind {
        NodeKind::Persistent => zk::CreateMode::Persistent,
        NodeKind::Container => zk::CreateMode::Container,
        NodeKind::Ephemeral => zk::CreateMode::Ephemeral,
        NodeKind::EphemeralSequential => zk::CreateMode::EphemeralSequential,
    }
}

/// The meaning of a failed request. `path` is the request's node.
///
/// Each error is an unknown outcome unless the request surely did not change the tree: a request in flight
/// when the connection breaks ends as a lost connection, as an error of the operating system, or without an
/// answer.
#[expect(clippy::wildcard_enum_match_arm, reason = "what we do not know is an unknown outcome")]
pub(super) fn error(error: zk::Error, path: &Path) -> Error {
    match error {
        zk::Error::NoNode => Error::NoNode(path.clone()),
        zk::Error::NodeExists => Error::NodeExists(path.clone()),
        zk::Error::BadVersion => Error::BadVersion(path.clone()),
        zk::Error::NotEmpty => Error::NotEmpty(path.clone()),
        zk::Error::NoChildrenForEphemerals => Error::ParentIsEphemeral(path.clone()),
        zk::Error::NoAuth | zk::Error::InvalidAcl => Error::NoPermission(path.clone()),
        // Only requests that were never sent end so. Requests in flight end with the connection's error.
        zk::Error::SessionExpired => Error::SessionLost,
        zk::Error::BadArguments(_)
        | zk::Error::NotReadOnly
        | zk::Error::QuotaExceeded
        | zk::Error::Throttled
        | zk::Error::MarshallingError
        | zk::Error::Unimplemented => Error::Refused(format!("{path}: {error}")),
        other => Error::OutcomeUnknown(format!("{path}: {other}")),
    }
}

pub(super) fn commit_error(error: zk::MultiWriteError, transaction: &[Operation]) -> CommitError {
    let root = Path::root();
    match error {
        zk::MultiWriteError::RequestFailed { source } => {
            let path = transaction.first().map_or(&root, Operation::path);
            self::error(source, path).into()
        }
        zk::MultiWriteError::OperationFailed { index, source } => {
            let path = transaction.get(index).map_or(&root, Operation::path);
            CommitError { index: Some(index), error: self::error(source, path) }
        }
    }
}

/// Puts the steps into one request. Fails for a step that the client refuses.
pub(super) fn fill(
    writer: &mut zk::MultiWriter<'_>,
    transaction: &[Operation],
    acls: zk::Acls<'_>,
) -> Result<(), CommitError> {
    for (index, operation) in transaction.iter().enumerate() {
        let path = operation.path();
        let text = path.as_str();
        let filled = match operation {
            // The client does not send these two; a server would answer with these errors.
            Operation::Create { .. } if path.is_root() => {
                return Err(CommitError { index: Some(index), error: Error::NodeExists(path.clone()) });
            }
            Operation::Delete { .. } if path.is_root() => {
                let error = Error::Refused("the root cannot be deleted".to_owned());
                return Err(CommitError { index: Some(index), error });
            }
            Operation::Create { data, kind, .. } => {
                writer.add_create(text, data, &create_mode(*kind).with_acls(acls))
            }
            Operation::Set { data, version, .. } => writer.add_set_data(text, data, *version),
            Operation::Delete { version, .. } => writer.add_delete(text, *version),
            Operation::Check { version, .. } => {
                writer.add_check_version(text, version.unwrap_or(ANY_VERSION))
            }
        };
        filled.map_err(|source| CommitError { index: Some(index), error: error(source, path) })?;
    }
    Ok(())
}

/// Matches every version of a node.
pub(super) const ANY_VERSION: i32 = -1;

/// The results of a transaction. There must be one for each step, of the step's kind. Otherwise the outcome
/// is unknown.
pub(super) fn results(
    answered: Vec<zk::MultiWriteResult>,
    transaction: &[Operation],
) -> Result<Vec<OperationResult>, CommitError> {
    let unknown = |reason: String| CommitError::from(Error::OutcomeUnknown(reason));
    if answered.len() != transaction.len() {
        let (got, sent) = (answered.len(), transaction.len());
        return Err(unknown(format!("the server answered {got} of {sent} steps")));
    }
    let converted = answered.into_iter().map(|result| match result {
        zk::MultiWriteResult::Create { path, stat } => Path::parse(&path)
            .map(|path| OperationResult::Created { path, stat: self::stat(&stat) })
            .map_err(|error| unknown(format!("the server answered a path that {error}"))),
        zk::MultiWriteResult::SetData { stat } => Ok(OperationResult::Set { stat: self::stat(&stat) }),
        zk::MultiWriteResult::Delete => Ok(OperationResult::Deleted),
        zk::MultiWriteResult::Check => Ok(OperationResult::Checked),
        other => Err(unknown(format!("the server answered a step with {other:?}"))),
    });
    converted.collect()
}

/// The node and those above it, topmost first, without the root.
pub(super) fn from_the_top(path: &Path) -> Vec<Path> {
    let upwards = std::iter::successors(Some(path.clone()), Path::parent);
    let mut nodes: Vec<_> = upwards.take_while(|node| !node.is_root()).collect();
    nodes.reverse();
    nodes
}
