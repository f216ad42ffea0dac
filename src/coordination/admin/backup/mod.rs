//! Which nodes of a namespace a backup has, the file that it is, and how a restore brings the nodes back. Pure.
//!
//! A restored namespace is as if all its instances had crashed at the moment of the backup. So nodes that end with a session
//! are left out, and so are requests to single instances and the barriers of a fire in progress.
//!
//! [`restore`] compares a backup with the present nodes; [`tokens`] says whether fencing tokens may fall.

pub mod file;
pub mod restore;
pub mod tokens;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::elasticjob::path::{Folder, JobPaths, Place};
use crate::extension::path::ExtensionPaths;
use crate::extension::sticky::{Record, StickyPaths, default_root};
use crate::job::JobName;
use crate::tree::{Node, Path};

/// The owner of a node in a backup.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Home {
    /// A job's subtree in the namespace, in ElasticJob's protocol.
    Job(JobName),
    /// Our own nodes of a job.
    Own(JobName),
    /// The sticky lock with this name.
    StickyLock(String),
}

/// A node in a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// Its owner.
    pub home: Home,
    /// Its path below its owner's node; empty: the owner's node itself.
    pub path: String,
    /// Its data.
    pub data: Arc<[u8]>,
}

/// The roots of a namespace.
#[derive(Debug, Clone, Copy)]
pub struct Roots<'a> {
    /// The node below which the jobs are.
    pub namespace: &'a Path,
}

impl Roots<'_> {
    /// The node below which all nodes of this owner are. `None`: the name cannot be that of a node.
    pub fn of(&self, home: &Home) -> Option<Path> {
        match home {
            Home::Job(job) => Some(JobPaths::new(self.namespace, job).root().clone()),
            Home::Own(job) => Some(ExtensionPaths::new(self.namespace, job).root().clone()),
            Home::StickyLock(name) => {
                Some(StickyPaths::named(&default_root(self.namespace), name).ok()?.root().clone())
            }
        }
    }

    /// The path of a saved node. `None`: it has a segment that no node can have.
    pub fn path(&self, saved: &Saved) -> Option<Path> {
        let root = self.of(&saved.home)?;
        let mut segments = saved.path.split('/').filter(|_| !saved.path.is_empty());
        segments.try_fold(root, |path, name| path.try_child(name).ok())
    }
}

/// Whether a node in ElasticJob's protocol survives the end of all sessions, and means something after it.
fn survives(place: Place<'_>) -> bool {
    match place {
        Place::Root
        | Place::Config
        | Place::Server(_)
        | Place::Necessary
        | Place::Item(_)
        | Place::ItemInstance(_)
        | Place::Misfire(_)
        | Place::Disabled(_)
        | Place::Failovering(_)
        | Place::FailoverItem(_)
        | Place::NextJobInstanceIp => true,
        // Folders are created with the nodes in them.
        Place::Folder(
            Folder::Servers
            | Folder::Instances
            | Folder::Leader
            | Folder::Sharding
            | Folder::Failover
            | Folder::FailoverItems
            | Folder::Trigger
            | Folder::RegistryTime
            | Folder::Guarantee
            | Folder::Barrier(_),
        )
        | Place::LeaderSharding
        // These are of a session, of one instance or of one fire.
        | Place::Instance(_)
        | Place::Leader
        | Place::Processing
        | Place::Running(_)
        | Place::Failover(_)
        | Place::Trigger(_)
        | Place::RegistryTime
        | Place::Registered(..)
        // Nobody knows what these mean.
        | Place::ItemChild(..)
        | Place::NotAnItem(_)
        | Place::Other => false,
    }
}

/// Whether a node in ElasticJob's protocol changes something by being absent, so that a restore removes it if the backup does
/// not have it.
fn is_missed(place: Place<'_>) -> bool {
    // A resharding more does no harm, an item too many goes with it, and a job without configuration is none.
    survives(place) && !matches!(place, Place::Root | Place::Config | Place::Item(_) | Place::Necessary)
}

/// Whether a node of ours concerns only the moment, so that no backup has it. A cancel that is created anew would concern what runs then, a trigger
/// would execute an item again, and nobody repeats an old request. A restored job is not finished for as long as the saved one.
fn is_passing(own_paths: &ExtensionPaths, path: &Path) -> bool {
    let fleet = own_paths.fleet();
    let passing = [own_paths.requests(), fleet.cancels(), fleet.triggers(), own_paths.finished()];
    passing.iter().any(|folder| path.is_within(folder))
}

/// Whether a backup may have this node. A file that somebody has changed could have others, such as those of an execution.
fn belongs(roots: Roots<'_>, saved: &Saved) -> bool {
    let Some(path) = roots.path(saved) else { return false };
    match &saved.home {
        Home::Job(_) => survives(Place::of(&saved.path)),
        Home::Own(job) => !is_passing(&ExtensionPaths::new(roots.namespace, job), &path),
        Home::StickyLock(_) => saved.path == "record",
    }
}

/// The nodes of a job in a backup, of these that were read: its own subtree, and our own nodes. In the order of a restore: the
/// ledger first, so that no instance starts without it, and the configuration last.
pub fn of_job(namespace: &Path, job: &JobName, nodes: &[Node], own: &[Node]) -> Vec<Saved> {
    let own_paths = ExtensionPaths::new(namespace, job);
    let own_root = own_paths.root().clone();
    let parents: BTreeSet<_> = own.iter().filter_map(|node| node.path.parent()).collect();
    let mut saved: Vec<_> = own
        .iter()
        .filter(|node| node.stat.ephemeral_owner.is_none())
        .filter(|node| !is_passing(&own_paths, &node.path))
        .filter_map(|node| {
            let path = node.path.relative_to(&own_root)?;
            // An empty node is a folder or a fact: the witness of a fire.
            let is_folder = node.data.is_empty() && (path.is_empty() || parents.contains(&node.path));
            let data = Arc::clone(&node.data);
            (!is_folder).then(|| Saved { home: Home::Own(job.clone()), path: path.to_owned(), data })
        })
        .collect();
    let root = JobPaths::new(namespace, job).root().clone();
    let lasting = nodes.iter().filter(|node| node.stat.ephemeral_owner.is_none());
    let places = lasting.filter_map(|node| {
        let path = node.path.relative_to(&root)?;
        Some((Place::of(path), path, node)).filter(|(place, ..)| survives(*place))
    });
    let (config, rest): (Vec<_>, Vec<_>) = places.partition(|(place, ..)| *place == Place::Config);
    saved.extend(rest.into_iter().chain(config).map(|(_, path, node)| Saved {
        home: Home::Job(job.clone()),
        path: path.to_owned(),
        data: Arc::clone(&node.data),
    }));
    saved
}

/// The record of a sticky lock in a backup. Its fields that only the node's own metadata has are filled in, because another
/// node has other metadata. A record that cannot be read is kept as it is.
pub fn of_sticky_lock(name: &str, record: &Node) -> Saved {
    let data = match Record::read(&record.data, &record.stat) {
        Ok(record) => record.write().into_bytes().into(),
        Err(_) => Arc::clone(&record.data),
    };
    Saved { home: Home::StickyLock(name.to_owned()), path: "record".to_owned(), data }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{SessionId, Stat, Zxid};

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

    fn ephemeral(path: &str) -> Node {
        let node = node(path, "x");
        Node { stat: Stat { ephemeral_owner: Some(SessionId(1)), ..node.stat }, ..node }
    }

    #[test]
    fn a_backup_has_the_nodes_that_outlive_all_instances_the_ledger_first_and_the_configuration_last() {
        let namespace = Path::parse("/ns").unwrap();
        let job = JobName::parse("bill").unwrap();
        let nodes = [
            node("/ns/bill", "class"),
            node("/ns/bill/config", "cron: x"),
            node("/ns/bill/instances", ""),
            ephemeral("/ns/bill/instances/10.0.0.1@-@1"),
            node("/ns/bill/leader/failover/items/2", ""),
            ephemeral("/ns/bill/leader/election/instance"),
            node("/ns/bill/leader/election/latch", ""),
            node("/ns/bill/servers/10.0.0.1", "DISABLED"),
            node("/ns/bill/sharding", ""),
            node("/ns/bill/sharding/0", ""),
            node("/ns/bill/sharding/0/disabled", ""),
            node("/ns/bill/sharding/0/instance", "10.0.0.1@-@1"),
            ephemeral("/ns/bill/sharding/0/running"),
            // ElasticJob after 3.0.5 leaves one behind.
            node("/ns/bill/sharding/1/running", "10.0.0.1@-@1"),
            node("/ns/bill/systemTime/current", ""),
            node("/ns/bill/trigger/10.0.0.1@-@1", ""),
            node("/ns/bill/guarantee/started/0", ""),
            node("/ns/bill/unknown", "x"),
        ];
        let own = [
            node("/ns-sidekeeper/bill", ""),
            node("/ns-sidekeeper/bill/fires", ""),
            node("/ns-sidekeeper/bill/fires/0", "1 1 -"),
            node("/ns-sidekeeper/bill/fires/witness-5", ""),
            ephemeral("/ns-sidekeeper/bill/fleet/members/10.0.0.1@-@1"),
            node("/ns-sidekeeper/bill/fleet/cancels", ""),
            node("/ns-sidekeeper/bill/fleet/cancels/mine", "all\n"),
            node("/ns-sidekeeper/bill/fleet/triggers", ""),
            node("/ns-sidekeeper/bill/fleet/triggers/mine.3", "parameter\nhunter2"),
            node("/ns-sidekeeper/bill/requests/mine", "trigger\n"),
        ];
        let saved = of_job(&namespace, &job, &nodes, &own);
        let roots = Roots { namespace: &namespace };
        let paths: Vec<_> = saved.iter().map(|saved| roots.path(saved).unwrap().to_string()).collect();
        assert_eq!(
            paths,
            [
                "/ns-sidekeeper/bill/fires/0",
                "/ns-sidekeeper/bill/fires/witness-5",
                "/ns/bill",
                "/ns/bill/leader/failover/items/2",
                "/ns/bill/servers/10.0.0.1",
                "/ns/bill/sharding/0",
                "/ns/bill/sharding/0/disabled",
                "/ns/bill/sharding/0/instance",
                "/ns/bill/config",
            ]
        );
    }

    #[test]
    fn a_saved_record_has_the_token_that_its_node_had() {
        let record =
            node("/ns-sidekeeper/@-@locks/sticky/bill/record", r#"{"owner":"m1","written":"grant"}"#);
        let saved = of_sticky_lock("bill", &record);
        let other = Stat { modified: Zxid(1), modified_ms: 5, ..record.stat };
        let read = Record::read(&saved.data, &other).unwrap();
        assert_eq!((read.token, read.acquired_ms), (9, Some(1_000)));
        let garbled = node("/ns-sidekeeper/@-@locks/sticky/bill/record", "x");
        assert_eq!(of_sticky_lock("bill", &garbled).data, garbled.data);
    }
}
