//! What would a change of a job's items, instances or strategy do to the assignment? The known nodes of one moment and a change in, the
//! owner of each item out. Decides as the leader does ([`crate::coordination::job::ownership::forecast`]), and changes nothing.
//!
//! The change is applied to the picture as the events that a leader would see: nodes of instances that vanish and appear.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use crate::coordination::job::ownership::forecast::{Unforeseen, forecast, leads_java};
use crate::coordination::job::picture::Picture;
use crate::coordination::job::picture::nodes::{ConfigView, ItemView};
use crate::coordination::job::picture::settings::Settings;
use crate::coordination::time::Now;
use crate::elasticjob::instance_yaml;
use crate::elasticjob::path::JobPaths;
use crate::elasticjob::strategy::StrategyError;
use crate::extension::name_record::NameRecord;
use crate::extension::path::ExtensionPaths;
use crate::extension::profile::Profile;
use crate::extension::strategy::{STRATEGY_PROPERTY, move_own_strategy};
use crate::job::{InstanceId, Item, JobConfiguration, ShardingStrategy};
use crate::tree::{NodeChange, Path, SessionId, Stat, WatchEvent, Zxid};

/// The address of instances that join and whose ids are not known. They are the last in the order of the strategies.
const UNKNOWN_ADDRESS: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

/// A change of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WhatIf {
    /// The number of items; `None`: as it is.
    pub total: Option<u32>,
    /// The strategy; `None`: as it is.
    pub strategy: Option<ShardingStrategy>,
    /// The instances that join.
    pub joining: BTreeSet<InstanceId>,
    /// How many further instances join, of sidecars.
    pub joining_unknown: u32,
    /// The instances that leave, and do not come back.
    pub leaving: BTreeSet<InstanceId>,
}

/// An item before and after the change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedItem {
    /// The item.
    pub item: Item,
    /// Its owner now, online or not.
    pub owner: Option<InstanceId>,
    /// Its owner after the change. `None`: it has none, or there is no such item any more.
    pub next: Option<InstanceId>,
}

impl PlannedItem {
    /// Whether another instance, or none, is to own it.
    pub fn moves(&self) -> bool {
        self.owner != self.next
    }
}

/// Something that the plan cannot know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Remark {
    /// The ids of instances that join are not known.
    #[error(
        "the ids of the instances that join are not known, and instances with other ids may get other items: give their ids"
    )]
    UnknownIds,
    /// The strategy reads the clock.
    #[error(
        "SINGLE_SHARDING_BALANCE chooses by the time of the resharding, so other instances may get the items"
    )]
    ByTime,
    /// Java instances and sidecars have different strategies.
    #[error("Java instances and sidecars divide the items of this job by different strategies; this is the plan of a {}", if *java { "Java leader" } else { "sidecar that leads" })]
    LeaderMatters {
        /// Whether the plan is that of a Java leader.
        java: bool,
    },
}

/// The assignment after a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardingPlan {
    /// Why the items change hands all at once. `None`: they do so one by one.
    pub all_at_once: Option<String>,
    /// The items that there are now, or would be, ascending.
    pub items: Vec<PlannedItem>,
    /// How many items have to move at least so that each instance gets as many as in this plan.
    pub least_moves: usize,
    /// The facts that the plan cannot know.
    pub remarks: BTreeSet<Remark>,
}

impl ShardingPlan {
    /// The items that move.
    pub fn moves(&self) -> impl Iterator<Item = &PlannedItem> {
        self.items.iter().filter(|item| item.moves())
    }
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanRefusal {
    /// The job has no configuration that can be read.
    NotConfigured,
    /// This instance is not online, and cannot leave.
    NotOnline(InstanceId),
    /// This instance is online, and cannot join.
    Online(InstanceId),
    /// A Java instance leads, and its application brings the strategy of this type.
    ForeignStrategy(String),
    /// A Java instance leads, and its strategy fails.
    JavaFails(StrategyError),
}

/// Plans the assignment after a change of this picture.
pub fn plan(
    paths: &JobPaths,
    own_paths: &ExtensionPaths,
    mut picture: Picture,
    what_if: &WhatIf,
    now: Now,
) -> Result<ShardingPlan, PlanRefusal> {
    let ConfigView::Valid(configuration) = picture.nodes.config() else {
        return Err(PlanRefusal::NotConfigured);
    };
    let online = |id: &&InstanceId| picture.nodes.instances().contains_key(*id);
    if let Some(absent) = what_if.leaving.iter().find(|id| !online(id)) {
        return Err(PlanRefusal::NotOnline(absent.clone()));
    }
    if let Some(present) = what_if.joining.iter().find(online) {
        return Err(PlanRefusal::Online(present.clone()));
    }
    let settings = Settings::compile(Arc::new(changed(configuration, what_if)), None);
    let owners = owners_now(&picture);
    let (nodes, fleet) = changes(paths, own_paths, &picture, what_if, &settings.configuration);
    picture.apply_nodes(WatchEvent::Changes(nodes), now);
    picture.apply_fleet(WatchEvent::Changes(fleet));
    let members_change =
        !what_if.joining.is_empty() || !what_if.leaving.is_empty() || what_if.joining_unknown > 0;
    let (view, fleet) = (&picture.nodes, &picture.fleet);
    let forecast = forecast(view, fleet, &settings, members_change, now);
    let forecast = forecast.map_err(|unforeseen| match unforeseen {
        Unforeseen::ForeignStrategy(strategy) => PlanRefusal::ForeignStrategy(strategy),
        Unforeseen::JavaFails(error) => PlanRefusal::JavaFails(error),
    })?;
    let all_at_once = forecast.all_at_once().map(ToString::to_string);
    let mut remarks = BTreeSet::new();
    if what_if.joining_unknown > 0 {
        remarks.insert(Remark::UnknownIds);
    }
    if all_at_once.is_some() {
        if settings.strategy == ShardingStrategy::SingleShardingBalance {
            remarks.insert(Remark::ByTime);
        }
        let is_ours = settings.strategy == ShardingStrategy::ConsistentHash;
        let differ = is_ours || !settings.knows_strategy();
        let java = leads_java(view);
        if differ && (java || view.has_java_instances()) {
            remarks.insert(Remark::LeaderMatters { java });
        }
    }
    let items = items(owners, forecast.into_owners());
    let least_moves = least_moves(&items);
    Ok(ShardingPlan { all_at_once, items, least_moves, remarks })
}

fn changed(configuration: &JobConfiguration, what_if: &WhatIf) -> JobConfiguration {
    let mut changed = configuration.clone();
    if let Some(total) = what_if.total {
        changed.sharding_total_count = total;
    }
    if let Some(strategy) = what_if.strategy {
        changed.props.remove(STRATEGY_PROPERTY);
        changed.job_sharding_strategy_type = Some(strategy.type_name().to_owned());
        move_own_strategy(&mut changed);
    }
    changed
}

fn owners_now(picture: &Picture) -> BTreeMap<Item, InstanceId> {
    let owner = |(item, view): (Item, &ItemView)| Some((item, view.owner.as_ref()?.instance.clone()));
    picture.nodes.items().filter_map(owner).collect()
}

/// The changes of nodes that the instances would make: of the job's, and of those that its sidecars publish.
fn changes(
    paths: &JobPaths,
    own_paths: &ExtensionPaths,
    picture: &Picture,
    what_if: &WhatIf,
    configuration: &JobConfiguration,
) -> (Vec<NodeChange>, Vec<NodeChange>) {
    let (mut nodes, mut fleet) = (Vec::new(), Vec::new());
    for id in &what_if.leaving {
        nodes.push(NodeChange::Removed { path: paths.instance(id) });
        fleet.push(NodeChange::Removed { path: own_paths.fleet().member(id) });
        let names = picture.fleet.names().iter().filter(|(_, known)| known.instance == *id);
        fleet.extend(names.map(|(name, _)| NodeChange::Removed { path: own_paths.fleet().name(name) }));
        if picture.nodes.leader().is_some_and(|leader| leader.instance == *id) {
            nodes.push(NodeChange::Removed { path: paths.leader() });
        }
    }
    let unknown = (1..=what_if.joining_unknown)
        .map(|number| InstanceId::new(UNKNOWN_ADDRESS, &format!("joining-{number}")));
    let status = if configuration.disabled { "DISABLED" } else { "ENABLED" };
    for id in what_if.joining.iter().cloned().chain(unknown) {
        // A Java instance writes the status at each start, a sidecar only for a server that has none.
        if let Some(ip) = id.server_ip().filter(|ip| id.is_java() || picture.nodes.server(*ip).is_none()) {
            nodes.push(put(paths.server(ip), status));
        }
        nodes.push(put(paths.instance(&id), &instance_yaml::write(&id)));
        if id.is_java() {
            continue;
        }
        let name = id.unique().filter(|name| picture.fleet.names().contains_key(*name));
        let known = name.and_then(|name| picture.fleet.names().get(name));
        let profile = known.map_or_else(Profile::default, |known| Profile {
            leaving: false,
            detached: false,
            ..known.profile.clone()
        });
        fleet.extend(name.map(|name| put(own_paths.fleet().name(name), &NameRecord::write(&id, &profile))));
        fleet.push(put(own_paths.fleet().member(&id), &profile.write()));
    }
    (nodes, fleet)
}

/// A node that does not exist yet. No decision of a plan reads its times.
fn put(path: Path, data: &str) -> NodeChange {
    let stat = Stat {
        created: Zxid(0),
        modified: Zxid(0),
        version: 0,
        ephemeral_owner: Some(SessionId(0)),
        modified_ms: 0,
    };
    NodeChange::Put { path, content: Some((data.as_bytes().into(), stat)) }
}

fn items(mut owners: BTreeMap<Item, InstanceId>, next: Vec<Option<InstanceId>>) -> Vec<PlannedItem> {
    let planned = (0..).map(Item).zip(next);
    let mut items: Vec<_> =
        planned.map(|(item, next)| PlannedItem { item, owner: owners.remove(&item), next }).collect();
    // Items beyond the number of items lose their owners.
    items.extend(owners.into_iter().map(|(item, owner)| PlannedItem {
        item,
        owner: Some(owner),
        next: None,
    }));
    items
}

/// How many items have to move at least if each instance is to get as many items as it gets in this plan.
fn least_moves(items: &[PlannedItem]) -> usize {
    let count = |ids: &mut dyn Iterator<Item = &InstanceId>| {
        let mut counts: BTreeMap<InstanceId, usize> = BTreeMap::new();
        for id in ids {
            *counts.entry(id.clone()).or_default() += 1;
        }
        counts
    };
    let staying = items.iter().filter(|item| item.next.is_some());
    let before = count(&mut staying.filter_map(|item| item.owner.as_ref()));
    let after = count(&mut items.iter().filter_map(|item| item.next.as_ref()));
    let kept: usize =
        before.iter().map(|(id, has)| after.get(id).copied().unwrap_or_default().min(*has)).sum();
    let concerned = items.iter().filter(|item| item.owner.is_some() || item.next.is_some()).count();
    concerned.saturating_sub(kept)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;
    use crate::job::JobName;
    use crate::tree::Node;

    const NOW: Now = Now { wall: Timestamp::UNIX_EPOCH, mono: Duration::ZERO };

    /// A job whose items are all without owners, and its instances.
    struct Fleet {
        paths: JobPaths,
        own_paths: ExtensionPaths,
        picture: Picture,
    }

    impl Fleet {
        fn new(configuration: &str, ids: &[&str]) -> Self {
            Self::of("orders", configuration, ids)
        }

        fn of(job: &str, configuration: &str, ids: &[&str]) -> Self {
            let (namespace, job) = (Path::parse("/ns").unwrap(), JobName::parse(job).unwrap());
            let (paths, own_paths) = (JobPaths::new(&namespace, &job), ExtensionPaths::new(&namespace, &job));
            let mut picture = Picture::unknown(&paths, &own_paths);
            let stat = |created| Stat {
                created: Zxid(created),
                modified: Zxid(created),
                version: 0,
                ephemeral_owner: None,
                modified_ms: 0,
            };
            let node = |path, data: &str| Node { path, data: data.as_bytes().into(), stat: stat(1) };
            let config = node(paths.config(), &format!("jobName: {job}\n{configuration}"));
            picture.apply_nodes(WatchEvent::Snapshot(vec![node(paths.root().clone(), ""), config]), NOW);
            picture.apply_fleet(WatchEvent::Snapshot(Vec::new()));
            let mut fleet = Self { paths, own_paths, picture };
            fleet.change(&WhatIf {
                joining: ids.iter().map(|id| InstanceId::from_registry(id)).collect(),
                ..WhatIf::default()
            });
            fleet
        }

        /// Makes the instances come and go, and then gives each item to the owner of the plan.
        fn change(&mut self, what_if: &WhatIf) -> ShardingPlan {
            let planned = self.plan(what_if).unwrap();
            let ConfigView::Valid(configuration) = self.picture.nodes.config() else {
                panic!("no configuration")
            };
            let configuration = Arc::clone(configuration);
            let (nodes, fleet) =
                changes(&self.paths, &self.own_paths, &self.picture, what_if, &configuration);
            self.picture.apply_nodes(WatchEvent::Changes(nodes), NOW);
            self.picture.apply_fleet(WatchEvent::Changes(fleet));
            for item in &planned.items {
                let path = self.paths.item_instance(item.item);
                let changes = match &item.next {
                    Some(next) => vec![put(self.paths.item(item.item), ""), put(path, next.as_str())],
                    None => vec![NodeChange::Removed { path }],
                };
                self.picture.apply_nodes(WatchEvent::Changes(changes), NOW);
            }
            planned
        }

        fn plan(&self, what_if: &WhatIf) -> Result<ShardingPlan, PlanRefusal> {
            plan(&self.paths, &self.own_paths, self.picture.clone(), what_if, NOW)
        }
    }

    fn joining(ids: &[&str]) -> WhatIf {
        WhatIf { joining: ids.iter().map(|id| InstanceId::from_registry(id)).collect(), ..WhatIf::default() }
    }

    fn leaving(ids: &[&str]) -> WhatIf {
        WhatIf { leaving: ids.iter().map(|id| InstanceId::from_registry(id)).collect(), ..WhatIf::default() }
    }

    const SIDECARS: [&str; 3] = ["10.0.0.1@-@a", "10.0.0.2@-@b", "10.0.0.3@-@c"];
    const JAVA: [&str; 3] = ["10.0.0.1@-@1", "10.0.0.2@-@2", "10.0.0.3@-@3"];

    #[test]
    fn in_a_fleet_of_sidecars_only_the_fewest_items_move() {
        for total in [1, 2, 7, 12, 30] {
            let mut fleet = Fleet::new(&format!("shardingTotalCount: {total}\n"), &SIDECARS);
            let four = WhatIf { joining_unknown: 2, ..joining(&["10.0.0.4@-@d"]) };
            for what_if in [
                joining(&["10.0.0.4@-@d"]),
                four,
                leaving(&SIDECARS[1..]),
                WhatIf { total: Some(9), ..leaving(&SIDECARS[..1]) },
            ] {
                let planned = fleet.plan(&what_if).unwrap();
                assert_eq!(planned.all_at_once, None);
                assert_eq!(planned.moves().count(), planned.least_moves, "{total} items, {what_if:?}");
                // A move that has happened is not counted again.
                if what_if == joining(&["10.0.0.4@-@d"]) {
                    fleet.change(&what_if);
                    assert_eq!(fleet.plan(&WhatIf::default()).unwrap().moves().count(), 0);
                    fleet.change(&leaving(&["10.0.0.4@-@d"]));
                }
            }
        }
    }

    #[test]
    fn beside_java_instances_the_strategy_divides_and_more_items_move_than_have_to() {
        let fleet = Fleet::new("shardingTotalCount: 12\n", &JAVA);
        let planned = fleet.plan(&joining(&["10.0.0.9@-@9"])).unwrap();
        assert!(planned.all_at_once.unwrap().contains("ElasticJob's own"));
        // Descending by id, each three items in a row.
        let next: Vec<_> =
            planned.items.iter().map(|item| item.next.clone().unwrap().as_str().to_owned()).collect();
        assert_eq!(next[0], "10.0.0.9@-@9");
        assert_eq!(next[3..6], ["10.0.0.3@-@3"; 3]);
        assert_eq!(planned.least_moves, 3);
        assert_eq!(planned.items.iter().filter(|item| item.moves()).count(), 6);
    }

    #[test]
    fn a_java_instance_that_joins_sidecars_changes_how_items_are_divided() {
        let fleet = Fleet::new("shardingTotalCount: 6\n", &SIDECARS);
        assert_eq!(fleet.plan(&joining(&["10.0.0.4@-@d"])).unwrap().all_at_once, None);
        assert!(fleet.plan(&joining(&["10.0.0.4@-@4"])).unwrap().all_at_once.is_some());
    }

    #[test]
    fn items_beyond_the_number_of_items_and_items_without_instances_lose_their_owners() {
        for ids in [SIDECARS, JAVA] {
            let fleet = Fleet::new("shardingTotalCount: 6\n", &ids);
            let fewer = fleet.plan(&WhatIf { total: Some(4), ..WhatIf::default() }).unwrap();
            let gone: Vec<_> =
                fewer.items.iter().filter(|item| item.next.is_none()).map(|item| item.item.0).collect();
            assert_eq!(gone, [4, 5]);
            let nobody = fleet.plan(&leaving(&ids)).unwrap();
            assert!(nobody.items.iter().all(|item| item.owner.is_some() && item.next.is_none()));
            assert_eq!((nobody.moves().count(), nobody.least_moves), (6, 6));
        }
    }

    #[test]
    fn a_first_assignment_that_is_to_stay_does() {
        let fleet = Fleet::new("shardingTotalCount: 6\nstaticSharding: true\n", &SIDECARS);
        let planned = fleet.plan(&leaving(&SIDECARS[..1])).unwrap();
        assert_eq!(planned.moves().count(), 0);
        assert!(planned.all_at_once.unwrap().contains("staticSharding"));
        assert!(fleet.plan(&WhatIf { total: Some(8), ..WhatIf::default() }).unwrap().moves().count() > 0);
    }

    #[test]
    fn what_a_plan_cannot_know_it_says() {
        let fleet = Fleet::new("shardingTotalCount: 6\n", &SIDECARS);
        let remarks = |what_if: &WhatIf| fleet.plan(what_if).unwrap().remarks.into_iter().collect::<Vec<_>>();
        assert_eq!(remarks(&joining(&["10.0.0.4@-@d"])), []);
        assert_eq!(remarks(&WhatIf { joining_unknown: 1, ..WhatIf::default() }), [Remark::UnknownIds]);
        let by_time = WhatIf { strategy: Some(ShardingStrategy::SingleShardingBalance), ..WhatIf::default() };
        assert_eq!(remarks(&by_time), [Remark::ByTime]);
        let hashed =
            WhatIf { strategy: Some(ShardingStrategy::ConsistentHash), ..joining(&["10.0.0.4@-@4"]) };
        assert_eq!(remarks(&hashed), [Remark::LeaderMatters { java: false }]);
    }

    #[test]
    fn what_cannot_be_planned_is_refused() {
        let fleet = Fleet::new("shardingTotalCount: 6\njobShardingStrategyType: OURS\n", &SIDECARS);
        let id = InstanceId::from_registry;
        let refused = |what_if: &WhatIf| fleet.plan(what_if).unwrap_err();
        assert_eq!(refused(&leaving(&["10.0.0.9@-@x"])), PlanRefusal::NotOnline(id("10.0.0.9@-@x")));
        assert_eq!(refused(&joining(&SIDECARS[..1])), PlanRefusal::Online(id(SIDECARS[0])));
        let mut all_java = leaving(&SIDECARS);
        all_java.joining = joining(&["10.0.0.4@-@4"]).joining;
        assert_eq!(refused(&all_java), PlanRefusal::ForeignStrategy("OURS".to_owned()));
        // The hash of this name is the one whose absolute value is negative.
        let negative = Fleet::of("polygenelubricants", "shardingTotalCount: 6\n", &JAVA);
        let turned = WhatIf { strategy: Some(ShardingStrategy::RoundRobin), ..WhatIf::default() };
        let failed = negative.plan(&turned).unwrap_err();
        assert!(matches!(failed, PlanRefusal::JavaFails(_)), "{failed:?}");
        let unreadable = Fleet::new("shardingTotalCount: 6\n", &SIDECARS);
        let mut picture = unreadable.picture.clone();
        let config = unreadable.paths.config();
        picture.apply_nodes(WatchEvent::Changes(vec![put(config, "no: yaml: at all")]), NOW);
        let planned = plan(&unreadable.paths, &unreadable.own_paths, picture, &WhatIf::default(), NOW);
        assert_eq!(planned, Err(PlanRefusal::NotConfigured));
    }

    #[test]
    fn the_least_number_of_moves_is_that_of_the_best_of_all_assignments_with_the_same_counts() {
        let id = |number: usize| InstanceId::from_registry(&format!("10.0.0.{number}@-@x"));
        for before in 0..3_usize.pow(5) {
            let owner = |code: usize, item: u32| code / 3_usize.pow(item) % 3;
            for after in [5, 121, 200, 242] {
                let pairs = |after: usize| {
                    (0..5).map(|item| (owner(before, item), owner(after, item))).collect::<Vec<_>>()
                };
                let counts = |after: usize| {
                    [0, 1, 2].map(|one| pairs(after).iter().filter(|(_, next)| *next == one).count())
                };
                let best = (0..3_usize.pow(5)).filter(|other| counts(*other) == counts(after));
                let best =
                    best.map(|other| pairs(other).iter().filter(|(was, next)| was != next).count()).min();
                let planned = pairs(after).into_iter().zip(0..).map(|((was, next), item)| PlannedItem {
                    item: Item(item),
                    owner: Some(id(was)),
                    next: Some(id(next)),
                });
                assert_eq!(Some(least_moves(&planned.collect::<Vec<_>>())), best);
            }
        }
    }
}
