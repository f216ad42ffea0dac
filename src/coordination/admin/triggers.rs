//! Which triggers of a job are there, and how far are they? From its nodes, and from the records of requests that had an id. Belongs to no
//! participant. Source: protocol 6.6.
//!
//! A trigger is one node for each instance. The instance deletes it when it takes the trigger up, and no node says afterwards what it
//! did for the trigger: not the running nodes, which look alike for all causes, and not the ledger. So this tells only what the nodes prove,
//! and calls everything else not known.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::coordination::job::picture::fleet_view::{FleetView, ItemTriggerView};
use crate::coordination::job::picture::job_view::JobView;
use crate::coordination::job::picture::nodes::stat_time;
use crate::elasticjob::path::{JobPaths, Place};
use crate::extension::request_record::{RequestId, TriggerRecord};
use crate::job::{FencingToken, InstanceId, Item};
use crate::tree::{Node, Stat, Zxid};

/// How far a trigger is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TriggerState {
    /// Its node exists: the instance has not taken it up.
    Pending,
    /// The instance has taken it up, and executes items that it has begun since.
    TakenUp,
    /// The instance has taken it up, and executes nothing that it has begun since.
    Done,
    /// The instance is not online any more: it may have taken the trigger up, or left before.
    Unknown,
}

/// The trigger of one instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trigger {
    /// The instance.
    pub instance: InstanceId,
    /// How far it is.
    pub state: TriggerState,
    /// When the instance was triggered, by the registry's clock; `None`: the time is impossible.
    pub since: Option<Timestamp>,
    /// The id of the request that triggered it, if it had one.
    pub request: Option<RequestId>,
    /// Whether the instance is online.
    pub online: bool,
    /// The items that the instance executes, and has begun since this trigger and before its next one that is known; ascending.
    pub running: Vec<Item>,
}

/// The trigger of one item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemTrigger {
    /// The item.
    pub item: Item,
    /// How far it is.
    pub state: TriggerState,
    /// When the item was triggered, by the registry's clock; `None`: the time is impossible.
    pub since: Option<Timestamp>,
    /// The id of the request that triggered it.
    pub request: RequestId,
    /// The instance that has begun its execution, if that has not ended.
    pub instance: Option<InstanceId>,
}

/// The record of a trigger, or of a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The id of the request.
    pub request: RequestId,
    /// The metadata of its node.
    pub stat: Stat,
    /// Its effects.
    pub record: TriggerRecord,
}

/// The node of a trigger, and the record of the request that made it, as far as they are there.
type Known<'a> = (Option<Stat>, Option<&'a Recorded>);

/// Lists the triggers of a job, those of each instance by time. `nodes`: all nodes of the job, which `view` shows.
pub fn triggers(paths: &JobPaths, view: &JobView, nodes: &[Node], records: &[Recorded]) -> Vec<Trigger> {
    // By instance and by the transaction that triggered it, which wrote its node and the record.
    let mut known: BTreeMap<(InstanceId, Zxid), Known<'_>> = BTreeMap::new();
    for recorded in records {
        for instance in &recorded.record.triggered {
            known.entry((instance.clone(), recorded.stat.created)).or_default().1 = Some(recorded);
        }
    }
    for node in nodes {
        if let Some(Place::Trigger(id)) = node.path.relative_to(paths.root()).map(Place::of) {
            let key = (InstanceId::from_registry(id), node.stat.created);
            known.entry(key).or_default().0 = Some(node.stat);
        }
    }
    let mut triggers = Vec::new();
    let mut rest = known.into_iter().peekable();
    while let Some(((instance, zxid), (node, recorded))) = rest.next() {
        let next = rest.peek().map(|((other, zxid), _)| (other, *zxid));
        let until = next.filter(|(other, _)| **other == instance).map(|(_, zxid)| zxid);
        let began = |item: &Item| {
            let running = view.item(*item).and_then(|view| view.running.as_ref());
            let token = running.and_then(|running| running.token);
            token.is_some_and(|token| {
                token > FencingToken::from(zxid)
                    && until.is_none_or(|until| token < FencingToken::from(until))
            })
        };
        let running: Vec<_> = view.running_of(&instance).filter(began).collect();
        let online = view.instances().contains_key(&instance);
        let state = match node {
            Some(_) => TriggerState::Pending,
            None if !running.is_empty() => TriggerState::TakenUp,
            None if online => TriggerState::Done,
            None => TriggerState::Unknown,
        };
        let stat = node.or_else(|| recorded.map(|recorded| recorded.stat));
        triggers.push(Trigger {
            state,
            since: stat.and_then(|stat| Timestamp::from_millisecond(stat.modified_ms).ok()),
            request: recorded.map(|recorded| recorded.request.clone()),
            online,
            // Nothing runs for a trigger that waits.
            running: if node.is_some() { Vec::new() } else { running },
            instance,
        });
    }
    triggers
}

/// Lists the triggers of items, those of each item by time. A node is there until the execution for it has ended.
pub fn item_triggers(fleet: &FleetView, records: &[Recorded]) -> Vec<ItemTrigger> {
    // By item and by the transaction of the request, which wrote the nodes and the record.
    let mut known: BTreeMap<(Item, Zxid), (Option<&ItemTriggerView>, &RequestId, Stat)> = BTreeMap::new();
    for recorded in records {
        for item in &recorded.record.items {
            known.insert((*item, recorded.stat.created), (None, &recorded.request, recorded.stat));
        }
    }
    for (item, view) in fleet.item_triggers() {
        // A node that was marked has another time.
        let stat = known.get(&(item, view.stat.created)).map_or(view.stat, |(_, _, stat)| *stat);
        known.insert((item, view.stat.created), (Some(view), &view.request, stat));
    }
    let one =
        |((item, _), (node, request, stat)): ((Item, Zxid), (Option<&ItemTriggerView>, &RequestId, Stat))| {
            let begun = node.and_then(|view| view.trigger.begun.as_ref());
            let state = match (node, begun) {
                (Some(_), None) => TriggerState::Pending,
                (Some(_), Some(_)) => TriggerState::TakenUp,
                (None, _) => TriggerState::Done,
            };
            let instance = begun.map(|begun| begun.instance.clone());
            ItemTrigger { item, state, since: stat_time(stat), request: request.clone(), instance }
        };
    known.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::coordination::time::Now;
    use crate::extension::path::ExtensionPaths;
    use crate::job::JobName;
    use crate::tree::{Path, WatchEvent};

    fn stat(zxid: i64) -> Stat {
        let (created, modified) = (Zxid(zxid), Zxid(zxid));
        Stat { created, modified, version: 0, ephemeral_owner: None, modified_ms: zxid * 1_000 }
    }

    /// The triggers of a job with these nodes: a path, the data, and the transaction that created it.
    fn list(nodes: &[(&str, &str, i64)], records: &[(&str, i64, &[&str])]) -> Vec<String> {
        let paths = JobPaths::new(&Path::parse("/ns").unwrap(), &JobName::parse("job").unwrap());
        let node = |(path, data, zxid): &(&str, &str, i64)| Node {
            path: paths.root().child(path),
            data: data.as_bytes().into(),
            stat: stat(*zxid),
        };
        let root = Node { path: paths.root().clone(), data: b"".as_slice().into(), stat: stat(1) };
        let nodes: Vec<_> = std::iter::once(root).chain(nodes.iter().map(node)).collect();
        let mut view = JobView::new(paths.root().clone());
        let now = Now { wall: Timestamp::UNIX_EPOCH, mono: Duration::ZERO };
        view.apply(WatchEvent::Snapshot(nodes.clone()), now);
        let recorded = |(id, zxid, triggered): &(&str, i64, &[&str])| Recorded {
            request: RequestId::parse(id).unwrap(),
            stat: stat(*zxid),
            record: TriggerRecord {
                triggered: triggered.iter().map(|id| InstanceId::from_registry(id)).collect(),
                ..TriggerRecord::default()
            },
        };
        let records: Vec<_> = records.iter().map(recorded).collect();
        let line = |trigger: Trigger| {
            let Trigger { instance, state, since, request, online, running } = trigger;
            let running: Vec<_> = running.iter().map(ToString::to_string).collect();
            let request = request.map_or("-".to_owned(), |id| id.to_string());
            let since = since.unwrap().as_second();
            format!("{instance} {state:?} {since} {request} {online} [{}]", running.join(" "))
        };
        triggers(&paths, &view, &nodes, &records).into_iter().map(line).collect()
    }

    const A: &str = "10.0.0.1@-@1";
    const B: &str = "10.0.0.2@-@b";

    #[test]
    fn a_node_is_a_pending_trigger_and_its_transaction_names_the_request() {
        let nodes = [
            (&*format!("instances/{A}"), "", 2),
            ("trigger", "", 3),
            (&format!("trigger/{A}"), "", 4),
            (&format!("trigger/{B}"), "", 5),
            // It ran before.
            ("sharding/0/running", A, 3),
        ];
        let told = list(&nodes, &[("r", 4, &[A]), ("s", 6, &[])]);
        assert_eq!(told, [format!("{A} Pending 4 r true []"), format!("{B} Pending 5 - false []")]);
        assert_eq!(list(&nodes, &[]).len(), 2);
    }

    #[test]
    fn what_runs_since_belongs_to_the_last_trigger_before_it() {
        let instance = format!("instances/{A}");
        let nodes = [
            (&*instance, "", 2),
            ("sharding/0/running", A, 4),
            ("sharding/1/running", A, 8),
            ("sharding/2/running", A, 9),
            ("sharding/3/running", B, 9),
        ];
        let told =
            list(&nodes, &[("first", 5, &[A]), ("second", 7, &[A]), ("third", 10, &[A]), ("gone", 5, &[B])]);
        let wanted = [
            format!("{A} Done 5 first true []"),
            format!("{A} TakenUp 7 second true [1 2]"),
            format!("{A} Done 10 third true []"),
            // The instance has left, and its running node with it, or not yet.
            format!("{B} TakenUp 5 gone false [3]"),
        ];
        assert_eq!(told, wanted);
        assert_eq!(list(&nodes[..1], &[("gone", 5, &[B])]), [format!("{B} Unknown 5 gone false []")]);
    }

    #[test]
    fn the_node_of_an_item_s_trigger_is_there_until_its_execution_has_ended_and_then_the_record_tells_of_it()
    {
        let own = ExtensionPaths::new(&Path::parse("/ns").unwrap(), &JobName::parse("job").unwrap());
        let id = |id: &str| RequestId::parse(id).unwrap();
        let node = |request: &str, item, data: &str, zxid| {
            let path = own.fleet().trigger(&id(request), Item(item));
            Node { path, data: data.as_bytes().into(), stat: stat(zxid) }
        };
        let begun = format!("begun 5 {A}\nparameter\nhunter2");
        let mut fleet = FleetView::new(own.fleet());
        let nodes = vec![node("b", 3, &begun, 7), node("b", 9, "", 7), node("c", 3, "parameter\nhunter2", 8)];
        fleet.apply(WatchEvent::Snapshot(nodes));
        let record = |request: &str, zxid, items: &[u32]| Recorded {
            request: id(request),
            stat: stat(zxid),
            record: TriggerRecord {
                items: items.iter().copied().map(Item).collect(),
                ..TriggerRecord::default()
            },
        };
        let records = [record("a", 4, &[3]), record("b", 7, &[3, 9])];
        let line = |trigger: ItemTrigger| {
            let ItemTrigger { item, state, since, request, instance } = trigger;
            let instance = instance.map_or("-".to_owned(), |id| id.to_string());
            format!("{item} {state:?} {} {request} {instance}", since.unwrap().as_second())
        };
        let told: Vec<_> = item_triggers(&fleet, &records).into_iter().map(line).collect();
        let running = format!("3 TakenUp 7 b {A}");
        assert_eq!(told, ["3 Done 4 a -", &running, "3 Pending 8 c -", "9 Pending 7 b -"]);
    }
}
