//! Which executions does a cancel of the whole fleet concern, and which of them can it reach? Belongs to no participant.
//!
//! A sidecar obeys the cancel if the profile of its instance says that it reads cancels. Java instances do not: ElasticJob has no way to stop an
//! execution. Neither do sidecars of earlier versions.

use std::collections::{BTreeMap, BTreeSet};

use crate::coordination::job::picture::Picture;
use crate::coordination::job::picture::nodes::ConfigView;
use crate::job::{FencingToken, InstanceId, Item};

/// Whether a cancel reaches an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The sidecar of the instance cancels it.
    Sidecar,
    /// A Java instance executes it.
    Java,
    /// The sidecar of the instance is of a version that does not know such cancels.
    EarlierVersion,
    /// The instance is not online: it has crashed, or its application is away.
    NotOnline,
}

/// An execution that a cancel concerns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Concerned {
    /// The instance that executes the item.
    pub instance: InstanceId,
    /// The item.
    pub item: Item,
    /// The transaction that created its running node.
    pub token: FencingToken,
    /// Whether the cancel reaches it.
    pub reach: Reach,
}

/// Why nothing can be cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelRefusal {
    /// The job has no configuration that can be read.
    NotConfigured,
    /// The job does not monitor executions, so no execution can be told from a later one.
    NotMonitored,
    /// The job has no such item; it has so many.
    NoItem(Item, u32),
}

/// Checks whether executions of these items can be cancelled; `None`: of all items.
pub fn check(picture: &Picture, items: Option<&BTreeSet<Item>>) -> Result<(), CancelRefusal> {
    let ConfigView::Valid(configuration) = picture.nodes.config() else {
        return Err(CancelRefusal::NotConfigured);
    };
    if !configuration.monitor_execution {
        return Err(CancelRefusal::NotMonitored);
    }
    let total = configuration.sharding_total_count;
    // An item beyond a lowered total may still be executed.
    let is_known = |item: &Item| item.0 < total || picture.nodes.running().contains(item);
    match items.into_iter().flatten().find(|item| !is_known(item)) {
        Some(item) => Err(CancelRefusal::NoItem(*item, total)),
        None => Ok(()),
    }
}

/// The executions of these items that are older than a cancel, ascending by item. `pictures`: from the older to the newer one. What runs before the
/// cancel may have ended when its outcome is read, because sidecars obey within milliseconds; what begins meanwhile is in the last picture.
pub fn concerned(
    pictures: &[&Picture],
    items: Option<&BTreeSet<Item>>,
    cancel: FencingToken,
) -> Vec<Concerned> {
    let wanted = |item: &Item| items.is_none_or(|items| items.contains(item));
    let mut concerned = BTreeMap::new();
    for picture in pictures {
        for item in picture.nodes.running_known().filter(wanted) {
            let running = picture.nodes.item(item).and_then(|view| view.running.as_ref());
            let Some(running) = running else { continue };
            let (Some(instance), Some(token)) = (running.owner.clone(), running.token) else { continue };
            if token < cancel {
                let reach = reach(picture, &instance);
                concerned.insert((item, token), Concerned { instance, item, token, reach });
            }
        }
    }
    concerned.into_values().collect()
}

fn reach(picture: &Picture, instance: &InstanceId) -> Reach {
    if instance.is_java() {
        return Reach::Java;
    }
    if !picture.nodes.instances().contains_key(instance) {
        return Reach::NotOnline;
    }
    match picture.fleet.profile(instance) {
        Some(profile) if profile.cancels => Reach::Sidecar,
        Some(_) | None => Reach::EarlierVersion,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;
    use crate::coordination::time::Now;
    use crate::elasticjob::path::JobPaths;
    use crate::extension::path::ExtensionPaths;
    use crate::job::JobName;
    use crate::tree::{Node, Path, Stat, WatchEvent, Zxid};

    /// A picture of these nodes: a path, the data, and the transaction that created it.
    fn picture(nodes: &[(&str, &str, i64)], members: &[(&str, &str)]) -> Picture {
        let (namespace, job) = (Path::parse("/ns").unwrap(), JobName::parse("job").unwrap());
        let (paths, own) = (JobPaths::new(&namespace, &job), ExtensionPaths::new(&namespace, &job));
        let node = |path: Path, data: &str, zxid: i64| {
            let (created, modified) = (Zxid(zxid), Zxid(zxid));
            let stat = Stat { created, modified, version: 0, ephemeral_owner: None, modified_ms: 0 };
            Node { path, data: data.as_bytes().into(), stat }
        };
        let root = node(paths.root().clone(), "", 1);
        let nodes = nodes.iter().map(|(path, data, zxid)| node(paths.root().child(path), data, *zxid));
        let members = members
            .iter()
            .map(|(id, data)| node(own.fleet().member(&InstanceId::from_registry(id)), data, 1));
        let now = Now { wall: Timestamp::UNIX_EPOCH, mono: Duration::ZERO };
        let mut picture = Picture::unknown(&paths, &own);
        picture.apply_nodes(WatchEvent::Snapshot(std::iter::once(root).chain(nodes).collect()), now);
        picture.apply_fleet(WatchEvent::Snapshot(members.collect()));
        picture
    }

    const CONFIG: (&str, &str, i64) =
        ("config", "jobName: job\nshardingTotalCount: 6\nmonitorExecution: true\n", 1);

    #[test]
    fn the_answer_claims_only_instances_whose_profile_says_that_they_obey() {
        let [java, ours, silent, earlier, gone] =
            ["10.0.0.1@-@1", "10.0.0.2@-@a", "10.0.0.3@-@b", "10.0.0.4@-@c", "10.0.0.5@-@d"];
        let instances = [java, ours, silent, earlier].map(|id| format!("instances/{id}"));
        let mut nodes = vec![CONFIG];
        nodes.extend(instances.iter().map(|path| (path.as_str(), "", 2)));
        nodes.extend([
            ("sharding/0/running", java, 3),
            ("sharding/1/running", ours, 4),
            ("sharding/2/running", silent, 5),
            ("sharding/3/running", earlier, 6),
            ("sharding/4/running", gone, 7),
            ("sharding/5/running", ours, 11),
        ]);
        let members = [(ours, "weight 1\nreads cancels\n"), (earlier, "weight 1\nreads witnesses\n")];
        let picture = picture(&nodes, &members);
        let told = |items: Option<&BTreeSet<Item>>, cancel| -> Vec<_> {
            let concerned = concerned(&[&picture], items, FencingToken(cancel)).into_iter();
            concerned.map(|one| (one.item.0, one.token.0, one.reach)).collect()
        };
        let all = [
            (0, 3, Reach::Java),
            (1, 4, Reach::Sidecar),
            (2, 5, Reach::EarlierVersion),
            (3, 6, Reach::EarlierVersion),
            (4, 7, Reach::NotOnline),
        ];
        assert_eq!(told(None, 10), all, "item 5 has begun later");
        assert_eq!(
            told(Some(&[Item(1), Item(5)].into()), 12),
            [(1, 4, Reach::Sidecar), (5, 11, Reach::Sidecar)]
        );
        assert_eq!(told(None, 4), [(0, 3, Reach::Java)]);
    }

    #[test]
    fn the_answer_has_what_has_ended_since_and_what_has_begun_since() {
        let ours = "10.0.0.2@-@a";
        let before =
            picture(&[CONFIG, ("sharding/0/running", ours, 3), ("sharding/1/running", ours, 4)], &[]);
        let after = picture(&[CONFIG, ("sharding/1/running", ours, 4), ("sharding/2/running", ours, 5)], &[]);
        let both = concerned(&[&before, &after], None, FencingToken(9));
        assert_eq!(both.iter().map(|one| one.item.0).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn a_job_whose_executions_cannot_be_told_apart_is_refused() {
        let items = |items: &[u32]| -> BTreeSet<_> { items.iter().copied().map(Item).collect() };
        let refused = |nodes: &[(&str, &str, i64)], items: &BTreeSet<Item>| {
            check(&picture(nodes, &[]), Some(items)).unwrap_err()
        };
        assert_eq!(refused(&[], &items(&[0])), CancelRefusal::NotConfigured);
        let unmonitored = ("config", "jobName: job\nshardingTotalCount: 6\nmonitorExecution: false\n", 1);
        assert_eq!(refused(&[unmonitored], &items(&[0])), CancelRefusal::NotMonitored);
        assert_eq!(refused(&[CONFIG], &items(&[5, 6])), CancelRefusal::NoItem(Item(6), 6));
        let beyond = [CONFIG, ("sharding/6/running", "10.0.0.2@-@a", 3)];
        assert_eq!(check(&picture(&beyond, &[]), Some(&items(&[5, 6]))), Ok(()));
    }
}
