//! Do fencing tokens fall after a restore? They are the numbers of the registry's transactions. A registry counts on, also over
//! restarts, but another registry begins anew.

use serde::{Deserialize, Serialize};

use crate::tree::{Node, Path, Zxid};

/// How far above the highest transaction of a backup a registry has to be, so that no token falls although the former registry
/// went on after the backup: more transactions than a registry carries out in years, and 256 of ZooKeeper's epochs.
const MARGIN: i64 = 1 << 40;

/// The highest transaction of a backup after which a registry may skip ids: half of all that there are. No registry comes to it;
/// a file with a higher one was made up.
const HIGHEST_MAX: i64 = i64::MAX / 2;

/// A node by which a registry is recognised: no other registry has it with the same transaction and time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Landmark {
    /// Its path.
    pub path: String,
    /// The transaction that created it.
    pub created: i64,
    /// When it was created, by the registry's clock, in milliseconds since 1970.
    pub created_ms: i64,
}

impl Landmark {
    /// The landmark that this node is. `None`: its data was set since, so its metadata says less.
    pub fn of(node: &Node) -> Option<Self> {
        let stat = node.stat;
        (stat.created == stat.modified && stat.ephemeral_owner.is_none()).then(|| Self {
            path: node.path.to_string(),
            created: stat.created.0,
            created_ms: stat.modified_ms,
        })
    }

    /// The node to compare with. `None`: the path is garbled.
    pub fn node(&self) -> Option<Path> {
        Path::parse(&self.path).ok()
    }
}

/// The transaction id from which on no token of the former registry is reached, wherever it was.
pub fn beyond(highest: Zxid) -> Zxid {
    Zxid(highest.0.saturating_add(MARGIN))
}

/// The transaction id to which a registry that can skip ids goes. `None`: it would have too few left.
pub fn skip_to(highest: Zxid) -> Option<Zxid> {
    (highest.0 <= HIGHEST_MAX).then(|| beyond(highest))
}

/// Whether tokens may be lower than before: in a registry that has come to the transaction `now`, after a backup that knows of
/// transactions up to `highest`. `same`: it is the registry of the backup.
pub fn may_fall(highest: Zxid, now: Zxid, same: bool) -> bool {
    !(same && now >= highest || now >= beyond(highest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Stat;

    #[test]
    fn tokens_may_fall_in_another_registry_unless_it_is_far_above() {
        assert!(may_fall(Zxid(500), Zxid(501), false), "the former one may have gone on");
        assert!(!may_fall(Zxid(500), Zxid(501), true));
        assert!(may_fall(Zxid(500), Zxid(499), true), "the registry itself was set back");
        assert!(!may_fall(Zxid(500), beyond(Zxid(500)), false));
        assert!(may_fall(Zxid(i64::MAX), Zxid(5), false));
        assert_eq!(skip_to(Zxid(500)), Some(beyond(Zxid(500))));
        assert_eq!(skip_to(Zxid(i64::MAX)), None);
    }

    #[test]
    fn a_landmark_is_a_node_whose_data_was_never_set() {
        let stat =
            Stat { created: Zxid(3), modified: Zxid(3), version: 0, ephemeral_owner: None, modified_ms: 7 };
        let node = Node { path: Path::parse("/ns").unwrap(), data: b"".as_slice().into(), stat };
        let landmark = Landmark::of(&node).unwrap();
        assert_eq!((landmark.created, landmark.created_ms, landmark.node()), (3, 7, Some(node.path.clone())));
        let changed = Node { stat: Stat { modified: Zxid(4), ..stat }, ..node };
        assert_eq!(Landmark::of(&changed), None);
    }
}
