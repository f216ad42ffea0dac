//! How the nodes of a backup come into a namespace: the present nodes in, transactions out. Pure.
//!
//! - A node that is missing is created.
//! - A node in ElasticJob's protocol that differs is set, and one that the backup does not have, and that would mean something,
//!   is removed. Both are differences, which need the operator's explicit wish.
//! - Our own nodes that are there stay: they are newer. Of two entries in the ledger the later one stays, so no restore makes
//!   a fire run again that has begun since.
//!
//! So a restore that broke off in the middle can be repeated: what it has done already is as in the backup.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::{Home, Roots, Saved, is_missed};
use crate::elasticjob::path::Place;
use crate::extension::ledger_entry::LedgerEntry;
use crate::extension::path::ExtensionPaths;
use crate::tree::{Node, NodeKind, Operation, Path};

/// The steps of a restore, and their counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The steps in their order. Each is refused if its node has changed since.
    pub steps: Vec<Operation>,
    /// How many nodes of the backup are created.
    pub created: usize,
    /// Nodes that have other data than in the backup, and get the backup's.
    pub changed: Vec<Path>,
    /// Nodes that the backup does not have, and that are removed.
    pub removed: Vec<Path>,
    /// How many nodes stay as they are, because they are as in the backup or newer.
    pub kept: usize,
}

impl Plan {
    /// Whether the namespace differs from the backup, so that something is lost.
    pub fn has_differences(&self) -> bool {
        !(self.changed.is_empty() && self.removed.is_empty())
    }

    /// The plan for these nodes of a backup, all of them of one owner, in a namespace where these nodes are at and below the
    /// owner's node. `settled`: fires up to this instant count as started.
    pub fn add(&mut self, roots: Roots<'_>, saved: &[Saved], present: &[Node], settled: Option<Timestamp>) {
        let present: BTreeMap<&Path, &Node> = present.iter().map(|node| (&node.path, node)).collect();
        let mut there: BTreeSet<Path> = present.keys().copied().cloned().collect();
        let mut wanted = BTreeSet::new();
        for node in saved {
            let (Some(path), Some(root)) = (roots.path(node), roots.of(&node.home)) else { continue };
            let data = with_settled(roots, node, &path, settled);
            match present.get(&path) {
                None => {
                    let upwards = std::iter::successors(path.parent(), Path::parent);
                    let mut parents: Vec<_> = upwards
                        .take_while(|parent| parent.is_within(&root) && !there.contains(parent))
                        .collect();
                    parents.reverse();
                    for parent in parents {
                        there.insert(parent.clone());
                        self.steps.push(Operation::create(parent, NodeKind::Persistent, []));
                    }
                    there.insert(path.clone());
                    self.steps.push(Operation::create(path.clone(), NodeKind::Persistent, data));
                    self.created = self.created.saturating_add(1);
                }
                Some(found) if replaces(roots, node, &data, found) => {
                    let version = Some(found.stat.version);
                    self.steps.push(Operation::Set { path: path.clone(), data: data.into(), version });
                    if matches!(node.home, Home::Job(_)) {
                        self.changed.push(path.clone());
                    }
                }
                Some(_) => self.kept = self.kept.saturating_add(1),
            }
            wanted.insert(path);
        }
        let Some(home @ Home::Job(_)) = saved.first().map(|node| &node.home) else { return };
        let Some(root) = roots.of(home) else { return };
        for (path, node) in present {
            let place = path.relative_to(&root).map(Place::of);
            let lasts = node.stat.ephemeral_owner.is_none();
            if lasts && !wanted.contains(path) && place.is_some_and(is_missed) {
                self.steps.push(Operation::Delete { path: path.clone(), version: Some(node.stat.version) });
                self.removed.push(path.clone());
            }
        }
    }

    /// The state that an operator was shown: another one if other steps are needed since.
    pub fn etag(&self) -> String {
        let mut hash = Sha256::new();
        for step in &self.steps {
            let (data, version) = match step {
                Operation::Create { data, .. } => (&data[..], None),
                Operation::Set { data, version, .. } => (&data[..], *version),
                Operation::Delete { version, .. } | Operation::Check { version, .. } => (&[][..], *version),
            };
            hash.update(format!("{} {version:?} {}\n", step.path(), data.len()));
            hash.update(data);
        }
        hex::encode(hash.finalize())
    }
}

/// The data of a node, with the instant up to which fires count as started.
fn with_settled(roots: Roots<'_>, node: &Saved, path: &Path, settled: Option<Timestamp>) -> Vec<u8> {
    match settled {
        Some(settled) if is_entry(roots, node, path) => {
            let entry = LedgerEntry::read(&node.data);
            LedgerEntry { latest: entry.latest.max(Some(settled)), ..entry }.write().into_bytes()
        }
        Some(_) | None => node.data.to_vec(),
    }
}

/// Whether a node of the backup takes the place of the one that is there.
fn replaces(roots: Roots<'_>, node: &Saved, data: &[u8], found: &Node) -> bool {
    match &node.home {
        Home::Job(_) => *found.data != *data,
        Home::Own(_) if is_entry(roots, node, &found.path) => {
            let age = |data: &[u8]| {
                let entry = LedgerEntry::read(data);
                (entry.latest, entry.started)
            };
            age(data) > age(&found.data)
        }
        Home::Own(_) | Home::StickyLock(_) => false,
    }
}

/// Whether a node is an entry of the ledger.
fn is_entry(roots: Roots<'_>, node: &Saved, path: &Path) -> bool {
    let Home::Own(job) = &node.home else { return false };
    ExtensionPaths::new(roots.namespace, job).ledger_item_of(path).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobName;
    use crate::tree::{SessionId, Stat, Zxid};

    fn saved(is_own: bool, path: &str, data: &str) -> Saved {
        let job = JobName::parse("bill").unwrap();
        let home = if is_own { Home::Own(job) } else { Home::Job(job) };
        Saved { home, path: path.to_owned(), data: data.as_bytes().into() }
    }

    fn node(path: &str, data: &str) -> Node {
        let stat = Stat {
            created: Zxid(3),
            modified: Zxid(9),
            version: 4,
            ephemeral_owner: None,
            modified_ms: 1_000,
        };
        Node { path: Path::parse(path).unwrap(), data: data.as_bytes().into(), stat }
    }

    fn plan(saved: &[Saved], present: &[Node], settled: Option<i64>) -> Plan {
        let namespace = Path::parse("/ns").unwrap();
        let mut plan = Plan::default();
        let settled = settled.map(|at| Timestamp::from_millisecond(at).unwrap());
        plan.add(Roots { namespace: &namespace }, saved, present, settled);
        plan
    }

    fn shown(steps: &[Operation]) -> Vec<String> {
        let show = |step: &Operation| match step {
            Operation::Create { path, data, .. } => format!("+{path} {}", String::from_utf8_lossy(data)),
            Operation::Set { path, data, version } => {
                format!("={path} {} {}", String::from_utf8_lossy(data), version.unwrap())
            }
            Operation::Delete { path, version } => format!("-{path} {}", version.unwrap()),
            Operation::Check { path, .. } => format!("?{path}"),
        };
        steps.iter().map(show).collect()
    }

    #[test]
    fn missing_nodes_are_created_with_their_parents_and_a_repetition_has_nothing_to_do() {
        let wanted =
            [saved(false, "", "class"), saved(false, "sharding/0/disabled", ""), saved(false, "config", "c")];
        let first = plan(&wanted, &[], None);
        assert_eq!(
            shown(&first.steps),
            [
                "+/ns/bill class",
                "+/ns/bill/sharding ",
                "+/ns/bill/sharding/0 ",
                "+/ns/bill/sharding/0/disabled ",
                "+/ns/bill/config c"
            ]
        );
        assert_eq!((first.created, first.has_differences()), (3, false));
        // It breaks off after any step.
        for done in 0..=first.steps.len() {
            let there: Vec<_> = first.steps[..done]
                .iter()
                .map(|step| match step {
                    Operation::Create { path, data, .. } => {
                        node(path.as_str(), std::str::from_utf8(data).unwrap())
                    }
                    Operation::Set { .. } | Operation::Delete { .. } | Operation::Check { .. } => {
                        panic!("{step:?}")
                    }
                })
                .collect();
            let again = plan(&wanted, &there, None);
            assert_eq!(again.steps, first.steps[done..], "after {done} steps");
            assert!(!again.has_differences());
        }
    }

    #[test]
    fn nodes_of_the_protocol_become_as_in_the_backup_and_others_are_left_alone() {
        let wanted = [saved(false, "", ""), saved(false, "config", "c"), saved(false, "sharding/0", "")];
        let mut running = node("/ns/bill/sharding/0/running", "x");
        running.stat.ephemeral_owner = Some(SessionId(1));
        let present = [
            node("/ns/bill", ""),
            node("/ns/bill/config", "other"),
            node("/ns/bill/servers/10.0.0.1", ""),
            node("/ns/bill/sharding/0", ""),
            node("/ns/bill/sharding/0/disabled", ""),
            running,
            node("/ns/bill/sharding/5", ""),
            node("/ns/bill/leader/sharding/necessary", ""),
            node("/ns/bill/unknown", "x"),
        ];
        let plan = plan(&wanted, &present, None);
        assert_eq!(
            shown(&plan.steps),
            ["=/ns/bill/config c 4", "-/ns/bill/servers/10.0.0.1 4", "-/ns/bill/sharding/0/disabled 4"]
        );
        assert_eq!((plan.changed.len(), plan.removed.len(), plan.kept), (1, 2, 2));
    }

    #[test]
    fn the_later_entry_of_the_ledger_stays_and_so_does_everything_else_of_ours() {
        let wanted = [
            saved(true, "fires/0", "5 5 -"),
            saved(true, "fires/1", "5 5 -"),
            saved(true, "fires/2", "5 5 -"),
            saved(true, "checkpoints/0", "5\nold"),
        ];
        let present = [
            node("/ns-sidekeeper/bill", ""),
            node("/ns-sidekeeper/bill/fires", ""),
            node("/ns-sidekeeper/bill/fires/0", "7 7 -"),
            node("/ns-sidekeeper/bill/fires/1", "3 3 3"),
            node("/ns-sidekeeper/bill/fires/9", "3 3 3"),
            node("/ns-sidekeeper/bill/checkpoints", ""),
            node("/ns-sidekeeper/bill/checkpoints/0", "7\nnew"),
        ];
        let found = plan(&wanted, &present, None);
        assert_eq!(
            shown(&found.steps),
            ["=/ns-sidekeeper/bill/fires/1 5 5 - 4", "+/ns-sidekeeper/bill/fires/2 5 5 -"]
        );
        assert!(!found.has_differences());
        let settled = plan(&wanted, &present, Some(6));
        assert_eq!(
            shown(&settled.steps),
            ["=/ns-sidekeeper/bill/fires/1 6 5 - 4", "+/ns-sidekeeper/bill/fires/2 6 5 -"]
        );
    }

    #[test]
    fn the_etag_is_another_one_if_a_node_changes() {
        let wanted = [saved(false, "", ""), saved(false, "config", "c")];
        let present = [node("/ns/bill", ""), node("/ns/bill/config", "other")];
        let before = plan(&wanted, &present, None);
        assert_eq!(before.etag(), plan(&wanted, &present, None).etag());
        let mut changed = present.clone();
        changed[1].stat.version += 1;
        assert_ne!(before.etag(), plan(&wanted, &changed, None).etag());
        assert_ne!(before.etag(), plan(&wanted[..1], &present, None).etag());
    }
}
