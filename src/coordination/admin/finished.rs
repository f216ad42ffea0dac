//! Is a one-off job finished, and is the time over for which it stays? Asked by the housekeeper (`runner/admin/housekeeping.rs`), only for
//! jobs that ask for it (`sidekeeper.remove-finished-after`). Without an instance nobody leads, so any sidecar of the namespace may ask.
//!
//! A job is finished if it has no fire left, each item has been started and nothing is left to do:
//!
//! - no cron expression, or one whose last fire each item has been started for; not continuous ownership;
//! - an entry in the ledger for each item: the job was executed by sidecars, and monitors executions;
//! - no ephemeral node, so no instance, nothing that runs, and nobody on the way in;
//! - no running node, flag, trigger of an instance or of an item, barrier, takeover or checkpoint: somebody has still to do something;
//! - no disabled server and no disabled item: an operator's word stays;
//! - no item of a Java instance, unless the job allows it: Java keeps no ledger, and comes back late.
//!
//! The time counts by the registry's clock, from the node `finished` below our own root, which has the state that was found: each write,
//! each new node and each deletion begins it anew. So a job is removed late rather than early.
//!
//! All nodes go in one transaction, each with the version that was read. An instance that registers, an operator who writes, and another
//! housekeeper let it fail, and nothing is removed. A job whose nodes fit into no transaction stays.

use std::time::Duration;

use crate::coordination::job::frame::limits::TRANSACTION_BYTES_MAX;
use crate::coordination::job::picture::Picture;
use crate::coordination::job::picture::nodes::{ConfigView, ItemView};
use crate::coordination::job::picture::settings::Settings;
use crate::coordination::time::Now;
use crate::elasticjob::path::{JobPaths, Place};
use crate::extension::ledger_entry::LedgerNodes;
use crate::extension::path::ExtensionPaths;
use crate::extension::removal::Removal;
use crate::job::Item;
use crate::tree::{Node, NodeKind, Operation, Transaction, WatchEvent};

/// The next step with a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// None: it is not finished, or its time is not over.
    Leave,
    /// Notes in which state it was found finished, or that it is not any more.
    Note(Transaction),
    /// Removes all its nodes.
    Remove(Transaction),
}

/// The nodes of a job, as they were read.
#[derive(Debug)]
pub struct Job<'a> {
    /// Their paths.
    pub paths: &'a JobPaths,
    /// The paths of our own nodes.
    pub own_paths: &'a ExtensionPaths,
    /// The nodes, parents before children.
    pub nodes: Vec<Node>,
    /// Our own nodes, parents before children.
    pub own: Vec<Node>,
}

impl Job<'_> {
    /// The next step. `registry_ms`: the time by the registry's clock. `bytes_max`: the size of the largest transaction.
    pub fn next_step(self, registry_ms: i64, bytes_max: Option<usize>, now: Now) -> Step {
        let note = self.own.iter().find(|node| node.path == self.own_paths.finished()).cloned();
        let state = self.state();
        let removal = self.removal();
        let size: usize = removal.iter().map(Operation::wire_size).sum();
        let fits = size <= bytes_max.unwrap_or(usize::MAX).min(TRANSACTION_BYTES_MAX);
        let config = self.nodes.iter().find(|node| node.path == self.paths.config());
        let config =
            config.map(|node| Operation::Check { path: node.path.clone(), version: Some(node.stat.version) });
        let path = self.own_paths.finished();
        let after = self.stays_for(now).filter(|_| fits);
        match (after, note) {
            (None, None) => Step::Leave,
            (None, Some(note)) => {
                Step::Note(vec![Operation::Delete { path, version: Some(note.stat.version) }])
            }
            (Some(_), None) => {
                let noted = Operation::create(path, NodeKind::Persistent, state);
                Step::Note(config.into_iter().chain([noted]).collect())
            }
            (Some(_), Some(note)) if *note.data != *state.as_bytes() => {
                let (data, version) = (state.as_bytes().into(), Some(note.stat.version));
                Step::Note(config.into_iter().chain([Operation::Set { path, data, version }]).collect())
            }
            (Some(after), Some(note)) => {
                let past = u64::try_from(registry_ms.saturating_sub(note.stat.modified_ms)).unwrap_or(0);
                if Duration::from_millis(past) < after { Step::Leave } else { Step::Remove(removal) }
            }
        }
    }

    /// All nodes that decide, in a few bytes: the newest transaction among them, and their number.
    fn state(&self) -> String {
        let note = self.own_paths.finished();
        let nodes = self.nodes.iter().chain(&self.own).filter(|node| node.path != note);
        let newest = nodes.clone().map(|node| node.stat.created.max(node.stat.modified)).max();
        format!("{} {}", newest.unwrap_or_default().0, nodes.count())
    }

    /// Children before their parents; our own nodes last.
    fn removal(&self) -> Transaction {
        let delete =
            |node: &Node| Operation::Delete { path: node.path.clone(), version: Some(node.stat.version) };
        self.nodes.iter().rev().chain(self.own.iter().rev()).map(delete).collect()
    }

    /// How long the finished job stays. `None`: it is not finished, or stays for ever.
    fn stays_for(self, now: Now) -> Option<Duration> {
        let is_ephemeral = |node: &Node| node.stat.ephemeral_owner.is_some();
        if self.nodes.iter().chain(&self.own).any(is_ephemeral) {
            return None;
        }
        let relative = |node: &Node| node.path.relative_to(self.paths.root()).map(is_pending);
        if self.nodes.iter().filter_map(relative).any(|pending| pending) {
            return None;
        }
        let checkpoints = self.own_paths.checkpoints();
        if self.own.iter().any(|node| node.path.parent().as_ref() == Some(&checkpoints)) {
            return None;
        }
        let fleet = self.own_paths.fleet();
        if self.own.iter().any(|node| fleet.trigger_of(&node.path).is_some()) {
            return None;
        }
        let ledger = LedgerNodes::read(self.own_paths, &self.own);
        let mut picture = Picture::unknown(self.paths, self.own_paths);
        picture.apply_nodes(WatchEvent::Snapshot(self.nodes), now);
        let view = &picture.nodes;
        let ConfigView::Valid(configuration) = view.config() else { return None };
        let settings = Settings::compile(configuration.clone(), None);
        let Removal { after, beside_java } = settings.remove_finished?;
        if !settings.configuration.monitor_execution || settings.handoff.continuous {
            return None;
        }
        // A schedule that cannot be read is no missing one.
        let has_cron = settings.configuration.cron.as_deref().is_some_and(|cron| !cron.is_empty());
        if has_cron != settings.schedule.is_some() {
            return None;
        }
        if view.servers().any(|server| !view.is_enabled(server)) {
            return None;
        }
        let is_java = |known: &ItemView| known.owner.as_ref().is_some_and(|owner| owner.instance.is_java());
        if view.item_views().any(is_java) && !beside_java {
            return None;
        }
        let is_done = |item: Item| {
            let Some(entry) = ledger.entries.get(&item).map(|node| node.entry) else { return false };
            let (Some(_), None, None) = (entry.started, entry.flagged, entry.interrupted) else {
                return false;
            };
            let Some(schedule) = &settings.schedule else { return true };
            entry.latest.is_some_and(|latest| schedule.next_after(latest).is_none())
        };
        // An offline instance with a name may come back within its grace.
        settings.items().all(is_done).then(|| after.max(settings.grace))
    }
}

/// Whether a node says that somebody has still to do something, or that an operator has said something.
fn is_pending(relative: &str) -> bool {
    match Place::of(relative) {
        Place::Instance(_)
        | Place::Leader
        | Place::Processing
        | Place::Running(_)
        | Place::Misfire(_)
        | Place::Disabled(_)
        | Place::Failover(_)
        | Place::Failovering(_)
        | Place::FailoverItem(_)
        | Place::Trigger(_)
        | Place::Registered(..) => true,
        // A resharding that is due is done by the instance that comes next.
        Place::Necessary
        | Place::Root
        | Place::Config
        | Place::Folder(_)
        | Place::Server(_)
        | Place::LeaderSharding
        | Place::Item(_)
        | Place::ItemInstance(_)
        | Place::ItemChild(..)
        | Place::RegistryTime
        | Place::NextJobInstanceIp
        | Place::NotAnItem(_)
        | Place::Other => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobName;
    use crate::tree::{Path, SessionId, Stat, Zxid};
    use jiff::Timestamp;

    const MINUTE: i64 = 60_000;
    const CONFIG: &str = "jobName: bill\nmonitorExecution: true\nshardingTotalCount: 2\nprops:\n  \
                          sidekeeper.remove-finished-after: 10m\n";
    /// The nodes of a job whose two items were executed, once and by sidecars.
    const DONE: [(&str, &str); 11] = [
        ("", ""),
        ("config", CONFIG),
        ("instances", ""),
        ("leader", ""),
        ("leader/sharding", ""),
        ("leader/sharding/necessary", ""),
        ("servers", ""),
        ("servers/10.0.0.1", "ENABLED"),
        ("sharding/0/instance", "10.0.0.1@-@ab26cc03c7c9-dc69f77a239f"),
        ("sharding/1/instance", "10.0.0.1@-@ab26cc03c7c9-dc69f77a239f"),
        ("trigger", ""),
    ];
    const LEDGER: [(&str, &str); 3] = [("fires", ""), ("fires/0", "- 1000 -"), ("fires/1", "- 2000 -")];

    fn node(root: &Path, name: &str, data: &str) -> Node {
        let stat =
            Stat { created: Zxid(3), modified: Zxid(9), version: 4, ephemeral_owner: None, modified_ms: 0 };
        let path = if name.is_empty() { root.clone() } else { root.child(name) };
        Node { path, data: data.as_bytes().into(), stat }
    }

    /// The next step at this time, after these changes of a job that is done.
    fn step(minutes: i64, change: impl FnOnce(&mut Vec<Node>, &mut Vec<Node>)) -> Step {
        let (namespace, job) = (Path::parse("/ns").unwrap(), JobName::parse("bill").unwrap());
        let (paths, own_paths) = (JobPaths::new(&namespace, &job), ExtensionPaths::new(&namespace, &job));
        let mut nodes: Vec<_> = DONE.map(|(name, data)| node(paths.root(), name, data)).into();
        let mut own: Vec<_> = LEDGER.map(|(name, data)| node(own_paths.root(), name, data)).into();
        change(&mut nodes, &mut own);
        let job = Job { paths: &paths, own_paths: &own_paths, nodes, own };
        let now = Now { wall: Timestamp::from_second(86_400).unwrap(), mono: Duration::ZERO };
        job.next_step(minutes * MINUTE, None, now)
    }

    /// The same, when it was noted at minute 0 that the job is finished.
    fn noted(minutes: i64, change: impl FnOnce(&mut Vec<Node>, &mut Vec<Node>)) -> Step {
        step(minutes, |nodes, own| {
            let count = nodes.len() + own.len();
            let root = Path::parse("/ns-sidekeeper/bill").unwrap();
            own.push(node(&root, "finished", &format!("9 {count}")));
            change(nodes, own);
        })
    }

    fn put(nodes: &mut Vec<Node>, name: &str, data: &str) {
        let root = Path::parse("/ns/bill").unwrap();
        let node = node(&root, name, data);
        nodes.retain(|known| known.path != node.path);
        nodes.push(node);
    }

    fn entry(own: &mut Vec<Node>, item: u32, data: &str) {
        let root = Path::parse("/ns-sidekeeper/bill").unwrap();
        let node = node(&root, &format!("fires/{item}"), data);
        own.retain(|known| known.path != node.path);
        own.push(node);
    }

    #[test]
    fn a_finished_job_is_noted_and_removed_with_all_its_nodes_when_its_time_is_over() {
        let Step::Note(note) = step(0, |_, _| ()) else { panic!("it is not noted") };
        assert_eq!(note.len(), 2);
        assert_eq!(noted(9, |_, _| ()), Step::Leave);
        let Step::Remove(removal) = noted(10, |_, _| ()) else { panic!("it is not removed") };
        assert_eq!(removal.len(), DONE.len() + LEDGER.len() + 1);
        let is_guarded = |step: &Operation| matches!(step, Operation::Delete { version: Some(4), .. });
        assert!(removal.iter().all(is_guarded), "{removal:?}");
        assert_eq!(removal[DONE.len() - 1].path().as_str(), "/ns/bill");
    }

    #[test]
    fn each_change_begins_the_time_anew() {
        let changed = noted(60, |nodes, _| nodes[7].stat.modified = Zxid(10));
        assert!(matches!(changed, Step::Note(_)), "{changed:?}");
        let deleted = noted(60, |nodes, _| {
            nodes.pop();
        });
        assert!(matches!(deleted, Step::Note(_)), "{deleted:?}");
    }

    #[test]
    fn a_job_that_is_not_finished_stays_and_is_noted_no_more() {
        type Change = fn(&mut Vec<Node>, &mut Vec<Node>);
        let changes: [(&str, Change); 22] = [
            ("not asked for", |nodes, _| put(nodes, "config", CONFIG.split("props").next().unwrap())),
            ("unreadable", |nodes, _| put(nodes, "config", "-")),
            ("no configuration", |nodes, _| nodes.retain(|node| !node.path.as_str().ends_with("config"))),
            ("an instance", |nodes, _| {
                put(nodes, "instances/10.0.0.1@-@ab26cc03c7c9-dc69f77a239f", "");
            }),
            ("ephemeral", |nodes, _| nodes[3].stat.ephemeral_owner = Some(SessionId(1))),
            ("a member", |_, own| own[0].stat.ephemeral_owner = Some(SessionId(1))),
            ("running", |nodes, _| put(nodes, "sharding/1/running", "")),
            ("misfire", |nodes, _| put(nodes, "sharding/1/misfire", "")),
            ("disabled item", |nodes, _| put(nodes, "sharding/1/disabled", "")),
            ("disabled server", |nodes, _| put(nodes, "servers/10.0.0.2", "DISABLED")),
            ("taken over", |nodes, _| put(nodes, "sharding/1/failovering", "")),
            ("failover", |nodes, _| put(nodes, "leader/failover/items/1", "")),
            ("trigger", |nodes, _| put(nodes, "trigger/10.0.0.1@-@1", "")),
            ("trigger of an item", |_, own| {
                let root = Path::parse("/ns-sidekeeper/bill").unwrap();
                own.push(node(&root, "fleet/triggers/mine.1", ""));
            }),
            ("barrier", |nodes, _| put(nodes, "guarantee/started/1", "")),
            ("checkpoint", |_, own| {
                let root = Path::parse("/ns-sidekeeper/bill").unwrap();
                own.push(node(&root, "checkpoints/1", "page 7"));
            }),
            ("never started", |_, own| own.retain(|node| !node.path.as_str().ends_with("fires/1"))),
            ("flagged", |_, own| entry(own, 1, "- 2000 3000")),
            ("interrupted", |_, own| entry(own, 1, "- 2000 - 2000")),
            ("java", |nodes, _| put(nodes, "sharding/1/instance", "10.0.0.9@-@21")),
            ("unmonitored", |nodes, _| {
                put(nodes, "config", &CONFIG.replace("true", "false"));
            }),
            ("continuous", |nodes, _| {
                put(nodes, "config", &format!("{CONFIG}  sidekeeper.ownership: continuous\n"));
            }),
        ];
        for (name, change) in changes {
            assert_eq!(step(60, change), Step::Leave, "{name}");
            assert!(
                matches!(noted(60, change), Step::Note(steps) if matches!(steps[..], [Operation::Delete { .. }])),
                "{name}"
            );
        }
    }

    #[test]
    fn a_schedule_ends_when_each_item_was_started_for_its_last_fire() {
        let with = |cron: &str, latest: &str| {
            let config = format!("cron: {cron}\n{CONFIG}");
            step(0, |nodes, own| {
                put(nodes, "config", &config);
                for item in 0..2 {
                    entry(own, item, &format!("{latest} 2000 -"));
                }
            })
        };
        // 1980-01-01, and a fire ten years later.
        let (last, next) = ("315532800000", "0 0 0 1 1 ? 1990");
        assert!(matches!(with("0 0 0 1 1 ? 1980", last), Step::Note(_)));
        assert_eq!(with("0 0 0 1 1 ? 1980", "-"), Step::Leave, "the last fire was missed");
        assert_eq!(with("0 0 0 1 1 ? 1980", "1000"), Step::Leave, "the last fire was missed");
        assert_eq!(with(next, last), Step::Leave, "a fire is due");
        assert_eq!(with("nonsense", last), Step::Leave);
    }

    #[test]
    fn items_of_java_and_graces_count_as_the_job_says() {
        let java = |property: &str| {
            noted(60, |nodes, own| {
                put(nodes, "sharding/1/instance", "10.0.0.9@-@21");
                put(nodes, "config", &format!("{CONFIG}{property}"));
                let count = nodes.len() + own.len() - 1;
                own.last_mut().unwrap().data = format!("9 {count}").as_bytes().into();
            })
        };
        assert!(matches!(java("  sidekeeper.remove-finished-beside-java: \"false\"\n"), Step::Note(_)));
        assert!(matches!(java("  sidekeeper.remove-finished-beside-java: \"true\"\n"), Step::Remove(_)));
        let grace = |minutes| {
            noted(minutes, |nodes, _| put(nodes, "config", &format!("{CONFIG}  sidekeeper.grace: 30m\n")))
        };
        assert_eq!(grace(29), Step::Leave);
        assert!(matches!(grace(30), Step::Remove(_)));
    }

    #[test]
    fn a_job_whose_nodes_fit_into_no_transaction_stays() {
        let many = step(0, |nodes, own| {
            put(nodes, "config", &CONFIG.replace("Count: 2", "Count: 10000"));
            for item in 2..10_000 {
                put(nodes, &format!("sharding/{item}/instance"), "");
                entry(own, item, "- 1000 -");
            }
        });
        assert_eq!(many, Step::Leave);
    }
}
