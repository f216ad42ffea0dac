//! May these items of a job be executed once for an operator, perhaps with a parameter of their own? A picture becomes a transaction or a
//! refusal. Belongs to no participant.
//!
//! Each item gets a node, which its owner takes up ([`crate::extension::item_trigger`]). A Java instance would not see it, and neither would a
//! sidecar of an earlier version, so both must not own an item: a job with one of them is refused as a whole.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::coordination::job::frame::limits::TRANSACTION_BYTES_MAX;
use crate::coordination::job::picture::Picture;
use crate::coordination::job::picture::nodes::ConfigView;
use crate::coordination::job::picture::settings::Settings;
use crate::extension::item_trigger::{ItemTrigger, fingerprint};
use crate::extension::path::ExtensionPaths;
use crate::extension::request_record::{RequestId, TriggerRecord};
use crate::job::{InstanceId, Item};
use crate::tree::{NodeKind, Operation, Transaction};

/// How many items may wait for their triggers' executions: as many as one request may name.
pub const WAITING_MAX: usize = 10_000;

/// The wish of an operator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ItemWish {
    /// The items; empty: all that are enabled.
    pub items: BTreeSet<Item>,
    /// The text that their executions get instead of the job's own parameter.
    pub parameter: Option<String>,
}

impl ItemWish {
    /// Whether it asks for more than a trigger of all instances.
    pub fn is_for_items(&self) -> bool {
        !self.items.is_empty() || self.parameter.is_some()
    }

    /// The text that tells it from other wishes with the same id.
    pub fn fingerprint(&self, id: &RequestId) -> String {
        fingerprint(id, &self.items, self.parameter.as_deref())
    }
}

/// The plan of a trigger of items.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ItemPlan {
    /// The nodes to create.
    pub transaction: Transaction,
    /// The items that it triggers.
    pub items: BTreeSet<Item>,
}

/// Why items cannot be triggered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ItemRefusal {
    /// The job has no configuration that can be read.
    NotConfigured,
    /// No instance is online.
    NobodyOnline,
    /// The servers of all instances that are online are disabled.
    ServersDisabled,
    /// All items are disabled.
    AllDisabled,
    /// These items are disabled.
    Disabled(BTreeSet<Item>),
    /// The job has no such item; it has so many.
    NoItem(Item, u32),
    /// Java instances, and instances of sidecars of earlier versions.
    Unable {
        /// The Java instances.
        java: BTreeSet<InstanceId>,
        /// The others.
        earlier: BTreeSet<InstanceId>,
    },
    /// Its instances wait for each other around each fire, so an item cannot be executed by itself.
    Listener,
    /// Its application works on its items all the time, and gets no executions.
    Continuous,
    /// Too many items wait already.
    TooManyWait,
    /// The nodes do not fit into one transaction.
    TooLarge,
}

/// Plans to trigger items of a job, with the record of the request in the same transaction.
pub fn plan_items(
    own_paths: &ExtensionPaths,
    picture: &Picture,
    wish: &ItemWish,
    id: &RequestId,
) -> Result<ItemPlan, ItemRefusal> {
    let ConfigView::Valid(configuration) = picture.nodes.config() else {
        return Err(ItemRefusal::NotConfigured);
    };
    let settings = Settings::compile(Arc::clone(configuration), None);
    let total = configuration.sharding_total_count;
    if let Some(item) = wish.items.iter().find(|item| item.0 >= total) {
        return Err(ItemRefusal::NoItem(*item, total));
    }
    check_job(picture, &settings)?;
    let is_disabled = |item: &Item| picture.nodes.item(*item).is_some_and(|view| view.disabled);
    let disabled: BTreeSet<_> = wish.items.iter().copied().filter(is_disabled).collect();
    if !disabled.is_empty() {
        return Err(ItemRefusal::Disabled(disabled));
    }
    let all = (0..total).map(Item).filter(|item| !is_disabled(item));
    let items: BTreeSet<_> = if wish.items.is_empty() { all.collect() } else { wish.items.clone() };
    if items.is_empty() {
        return Err(ItemRefusal::AllDisabled);
    }
    if picture.fleet.item_triggers().count().saturating_add(items.len()) > WAITING_MAX {
        return Err(ItemRefusal::TooManyWait);
    }
    let trigger = ItemTrigger { begun: None, parameter: wish.parameter.as_deref().map(Into::into) };
    let record =
        TriggerRecord { asked: Some(wish.fingerprint(id)), items: items.clone(), ..TriggerRecord::default() };
    let create = |path, content: String| Operation::create(path, NodeKind::Persistent, content);
    let fleet = own_paths.fleet();
    let triggers = items.iter().map(|item| create(fleet.trigger(id, *item), trigger.write()));
    let transaction: Transaction =
        std::iter::once(create(own_paths.request(id, 0), record.write())).chain(triggers).collect();
    if transaction.iter().map(Operation::wire_size).sum::<usize>() > TRANSACTION_BYTES_MAX {
        return Err(ItemRefusal::TooLarge);
    }
    Ok(ItemPlan { transaction, items })
}

/// Whether the job and all its instances can execute single items.
fn check_job(picture: &Picture, settings: &Settings) -> Result<(), ItemRefusal> {
    if settings.handoff.continuous {
        return Err(ItemRefusal::Continuous);
    }
    if settings.once_listener.is_some() {
        return Err(ItemRefusal::Listener);
    }
    let online: Vec<_> = picture.nodes.instances().keys().collect();
    if online.is_empty() {
        return Err(ItemRefusal::NobodyOnline);
    }
    let reads = |id: &InstanceId| picture.fleet.profile(id).is_some_and(|profile| profile.triggers);
    let unable = online.iter().copied().filter(|id| id.is_java() || !reads(id)).cloned();
    let (java, earlier): (BTreeSet<_>, BTreeSet<_>) = unable.partition(InstanceId::is_java);
    if !java.is_empty() || !earlier.is_empty() {
        return Err(ItemRefusal::Unable { java, earlier });
    }
    let is_enabled = |id: &&InstanceId| id.server_ip().is_some_and(|ip| picture.nodes.is_enabled(ip));
    match online.iter().any(is_enabled) {
        true => Ok(()),
        false => Err(ItemRefusal::ServersDisabled),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;
    use crate::coordination::time::Now;
    use crate::elasticjob::path::JobPaths;
    use crate::extension::request_record::RequestRecord;
    use crate::job::JobName;
    use crate::tree::{Node, Path, Stat, WatchEvent, Zxid};

    const CONFIG: (&str, &str) = ("config", "jobName: job\nshardingTotalCount: 3\nmonitorExecution: true\n");
    const OURS: &str = "10.0.0.2@-@a";
    const READS: &str = "weight 1\nreads triggers\n";

    fn own() -> ExtensionPaths {
        ExtensionPaths::new(&Path::parse("/ns").unwrap(), &JobName::parse("job").unwrap())
    }

    fn picture(nodes: &[(&str, &str)], members: &[(&str, &str)]) -> Picture {
        let paths = JobPaths::new(&Path::parse("/ns").unwrap(), &JobName::parse("job").unwrap());
        let node = |path: Path, data: &str| {
            let (created, modified) = (Zxid(1), Zxid(1));
            let stat = Stat { created, modified, version: 0, ephemeral_owner: None, modified_ms: 0 };
            Node { path, data: data.as_bytes().into(), stat }
        };
        let root = node(paths.root().clone(), "");
        let nodes = nodes.iter().map(|(path, data)| node(paths.root().child(path), data));
        let members =
            members.iter().map(|(id, data)| node(own().fleet().member(&InstanceId::from_registry(id)), data));
        let mut picture = Picture::unknown(&paths, &own());
        let now = Now { wall: Timestamp::UNIX_EPOCH, mono: Duration::ZERO };
        picture.apply_nodes(WatchEvent::Snapshot(std::iter::once(root).chain(nodes).collect()), now);
        picture.apply_fleet(WatchEvent::Snapshot(members.collect()));
        picture
    }

    /// A job with an instance of a sidecar, and these nodes.
    fn job(nodes: &[(&str, &str)]) -> Picture {
        let ours = format!("instances/{OURS}");
        let usual = [CONFIG, (ours.as_str(), ""), ("servers/10.0.0.2", "ENABLED")];
        picture(&[&usual, nodes].concat(), &[(OURS, READS)])
    }

    fn wish(items: &[u32], parameter: Option<&str>) -> ItemWish {
        ItemWish { items: items.iter().copied().map(Item).collect(), parameter: parameter.map(str::to_owned) }
    }

    fn id() -> RequestId {
        RequestId::parse("request-1").unwrap()
    }

    fn refused(picture: &Picture, items: &[u32]) -> ItemRefusal {
        plan_items(&own(), picture, &wish(items, None), &id()).unwrap_err()
    }

    #[test]
    fn each_item_gets_a_node_in_the_transaction_that_records_the_request() {
        let wish = wish(&[2, 0], Some("day=1"));
        let plan = plan_items(&own(), &job(&[]), &wish, &id()).unwrap();
        let paths: Vec<_> = plan.transaction.iter().map(|step| step.path().as_str()).collect();
        let root = "/ns-sidekeeper/job";
        let expected = ["requests/request-1", "fleet/triggers/request-1.0", "fleet/triggers/request-1.2"];
        assert_eq!(paths, expected.map(|path| format!("{root}/{path}")));
        let [Operation::Create { data: record, .. }, Operation::Create { data, .. }, _] =
            &plan.transaction[..]
        else {
            panic!("{plan:?}")
        };
        let trigger = ItemTrigger { begun: None, parameter: Some("day=1".into()) };
        assert_eq!(ItemTrigger::read(data), trigger);
        let RequestRecord::Trigger(record) = RequestRecord::read(record) else { panic!("{plan:?}") };
        assert_eq!((record.items, record.asked), (wish.items.clone(), Some(wish.fingerprint(&id()))));
    }

    #[test]
    fn without_items_all_enabled_ones_are_executed() {
        let picture = job(&[("sharding/1", ""), ("sharding/1/disabled", "")]);
        let plan = plan_items(&own(), &picture, &wish(&[], Some("")), &id()).unwrap();
        assert_eq!(plan.items, wish(&[0, 2], None).items);
    }

    #[test]
    fn an_item_that_is_unknown_or_disabled_is_refused_by_its_name() {
        let disabled = [("sharding/1", ""), ("sharding/1/disabled", "")];
        assert_eq!(refused(&job(&disabled), &[0, 3]), ItemRefusal::NoItem(Item(3), 3));
        assert_eq!(refused(&job(&disabled), &[0, 1]), ItemRefusal::Disabled([Item(1)].into()));
        let all = [0, 1, 2].map(|item| format!("sharding/{item}/disabled"));
        let all = all.each_ref().map(|path| (path.as_str(), ""));
        let refusal = plan_items(&own(), &job(&all), &wish(&[], Some("x")), &id());
        assert_eq!(refusal, Err(ItemRefusal::AllDisabled));
    }

    #[test]
    fn java_instances_and_earlier_versions_are_named() {
        let [java, earlier, silent] = ["10.0.0.1@-@77", "10.0.0.2@-@b", "10.0.0.2@-@c"];
        let nodes = [OURS, java, earlier, silent].map(|id| format!("instances/{id}"));
        let nodes: Vec<_> = nodes.iter().map(|path| (path.as_str(), "")).chain([CONFIG]).collect();
        let members = [(OURS, READS), (earlier, "weight 1\nreads cancels\n")];
        let ids = |ids: &[&str]| ids.iter().map(|id| InstanceId::from_registry(id)).collect();
        let unable = ItemRefusal::Unable { java: ids(&[java]), earlier: ids(&[earlier, silent]) };
        assert_eq!(refused(&picture(&nodes, &members), &[0]), unable);
    }

    #[test]
    fn a_job_that_cannot_execute_single_items_is_refused() {
        assert_eq!(refused(&picture(&[], &[]), &[0]), ItemRefusal::NotConfigured);
        assert_eq!(refused(&picture(&[CONFIG], &[]), &[0]), ItemRefusal::NobodyOnline);
        let off = [CONFIG, ("instances/10.0.0.2@-@a", ""), ("servers/10.0.0.2", "DISABLED")];
        assert_eq!(refused(&picture(&off, &[(OURS, READS)]), &[0]), ItemRefusal::ServersDisabled);
        for (property, refusal) in [
            ("sidekeeper.once-listener: true", ItemRefusal::Listener),
            ("sidekeeper.ownership: continuous", ItemRefusal::Continuous),
        ] {
            let config = format!("jobName: job\nshardingTotalCount: 3\nprops:\n  {property}\n");
            let picture = picture(&[("config", &config)], &[]);
            assert_eq!(refused(&picture, &[0]), refusal);
        }
    }

    #[test]
    fn a_request_that_does_not_fit_into_one_transaction_is_refused() {
        let config = "jobName: job\nshardingTotalCount: 5000\n";
        let nodes = [("config", config), ("instances/10.0.0.2@-@a", ""), ("servers/10.0.0.2", "ENABLED")];
        let picture = picture(&nodes, &[(OURS, READS)]);
        let long = "x".repeat(4_096);
        assert_eq!(plan_items(&own(), &picture, &wish(&[], Some(&long)), &id()), Err(ItemRefusal::TooLarge));
        let some: Vec<_> = (0..1_000).collect();
        assert!(plan_items(&own(), &picture, &wish(&some, Some("day=1")), &id()).is_ok());
    }
}
