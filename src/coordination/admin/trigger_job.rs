//! Which nodes does an operator's trigger need? A view becomes a transaction and a report. Belongs to no participant.
//! Source: protocol 6.6, 8.1; H18.

use std::collections::BTreeSet;

use crate::elasticjob::path::{Folder, JobPaths};
use crate::extension::request_record::TriggerRecord;
use crate::job::InstanceId;
use crate::tree::{NodeKind, Operation, Path, Transaction};

use crate::coordination::job::frame::limits::TRANSACTION_BYTES_MAX;

/// The known state of a job that is to be triggered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TriggerView {
    /// Whether it has a configuration.
    pub configured: bool,
    /// The instances that are online.
    pub instances: BTreeSet<InstanceId>,
    /// The instances that have not yet taken up a trigger; `None`: the node that holds triggers does not exist.
    pub triggers: Option<BTreeSet<InstanceId>>,
    /// Whether a server of an instance that is online is enabled.
    pub has_enabled_server: bool,
    /// Whether an item is enabled.
    pub has_enabled_item: bool,
}

/// The plan of a trigger.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TriggerPlan {
    /// The nodes to create and to delete. Empty: there is nothing to do.
    pub transaction: Transaction,
    /// The instances that it triggers.
    pub triggered: BTreeSet<InstanceId>,
    /// The instances that have not yet taken up an earlier trigger; that trigger stays, and stands for both.
    pub pending: BTreeSet<InstanceId>,
    /// Whether instances are left for another transaction, because this one is full.
    pub is_partial: bool,
}

/// Why a job cannot be triggered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TriggerRefusal {
    /// The job has no configuration.
    NotConfigured,
    /// No instance is online.
    NobodyOnline,
    /// The servers of all instances that are online are disabled.
    ServersDisabled,
    /// All items are disabled.
    ItemsDisabled,
}

/// Plans to trigger all instances but those in `done`. Java removes the whole `trigger` node first, and with it
/// triggers that no instance has seen; here they stay. With `clear`, triggers of offline instances are removed: an
/// instance that registers again under the same id would fire because of them. `record`: the node that says in the same transaction
/// what was done, if the caller has given the request an id.
pub fn plan_trigger(
    paths: &JobPaths,
    view: &TriggerView,
    done: &BTreeSet<InstanceId>,
    clear: bool,
    record: Option<&Path>,
) -> Result<TriggerPlan, TriggerRefusal> {
    if !view.configured {
        return Err(TriggerRefusal::NotConfigured);
    }
    if done.is_empty() {
        if view.instances.is_empty() {
            return Err(TriggerRefusal::NobodyOnline);
        }
        if !view.has_enabled_server {
            return Err(TriggerRefusal::ServersDisabled);
        }
        if !view.has_enabled_item {
            return Err(TriggerRefusal::ItemsDisabled);
        }
    }
    let mut plan = TriggerPlan::default();
    let record_of = |path: &Path, record: &TriggerRecord| {
        Operation::create(path.clone(), NodeKind::Persistent, record.write())
    };
    let partial = TriggerRecord { is_partial: true, ..TriggerRecord::default() };
    let mut bytes = record.map_or(0, |path| record_of(path, &partial).wire_size());
    let mut add = |plan: &mut TriggerPlan, steps: Transaction, more: usize| {
        // The first steps always fit, so that each transaction makes progress.
        let fits = plan.transaction.is_empty() || bytes + more <= TRANSACTION_BYTES_MAX;
        if fits {
            bytes += more;
            plan.transaction.extend(steps);
        }
        fits
    };
    let line = |id: &InstanceId| if record.is_some() { TriggerRecord::size_of(id) } else { 0 };
    let size = |steps: &Transaction| steps.iter().map(Operation::wire_size).sum::<usize>();
    let persistent = |path| Operation::create(path, NodeKind::Persistent, "");
    let none = BTreeSet::new();
    let triggers = view.triggers.as_ref().unwrap_or(&none);
    let mut folder = view.triggers.is_none().then(|| persistent(paths.folder(Folder::Trigger)));
    for id in view.instances.difference(done) {
        if triggers.contains(id) {
            plan.pending.insert(id.clone());
            continue;
        }
        // The check proves that the instance is still online.
        let own = [Operation::check(paths.instance(id)), persistent(paths.trigger(id))];
        let steps: Transaction = folder.take().into_iter().chain(own).collect();
        let more = size(&steps) + line(id);
        if !add(&mut plan, steps, more) {
            plan.is_partial = true;
            break;
        }
        plan.triggered.insert(id.clone());
    }
    if clear {
        for gone in triggers.difference(&view.instances) {
            let delete = vec![Operation::delete(paths.trigger(gone))];
            let more = size(&delete);
            if !add(&mut plan, delete, more) {
                break;
            }
        }
    }
    if let Some(record) = record {
        let (triggered, is_partial) = (plan.triggered.clone(), plan.is_partial);
        // The last part has the pending ones.
        let pending = if is_partial { BTreeSet::new() } else { plan.pending.clone() };
        let record_now = TriggerRecord { triggered, pending, is_partial, ..TriggerRecord::default() };
        plan.transaction.push(record_of(record, &record_now));
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extension::request_record::RequestRecord;
    use crate::job::JobName;

    fn ids(texts: &[&str]) -> BTreeSet<InstanceId> {
        texts.iter().map(|text| InstanceId::from_registry(text)).collect()
    }

    fn paths() -> JobPaths {
        JobPaths::new(&Path::parse("/ns").unwrap(), &JobName::parse("job").unwrap())
    }

    fn view(instances: &[&str], triggers: Option<&[&str]>) -> TriggerView {
        TriggerView {
            configured: true,
            instances: ids(instances),
            triggers: triggers.map(ids),
            has_enabled_server: true,
            has_enabled_item: true,
        }
    }

    fn steps(plan: &TriggerPlan) -> Vec<String> {
        let step = |operation: &Operation| {
            let path = operation.path().as_str().trim_start_matches("/ns/job/").to_owned();
            match operation {
                Operation::Create { .. } => format!("+{path}"),
                Operation::Delete { .. } => format!("-{path}"),
                Operation::Check { .. } => format!("={path}"),
                Operation::Set { .. } => format!("!{path}"),
            }
        };
        plan.transaction.iter().map(step).collect()
    }

    fn plan(view: &TriggerView) -> TriggerPlan {
        plan_trigger(&paths(), view, &BTreeSet::new(), true, None).unwrap()
    }

    #[test]
    fn everybody_online_gets_a_trigger_in_one_transaction() {
        let plan = plan(&view(&["a", "b"], None));
        assert_eq!(steps(&plan), ["+trigger", "=instances/a", "+trigger/a", "=instances/b", "+trigger/b"]);
        assert_eq!((plan.triggered, plan.pending, plan.is_partial), (ids(&["a", "b"]), ids(&[]), false));
    }

    #[test]
    fn h18_pending_triggers_stay_and_those_of_the_gone_go() {
        let some = plan(&view(&["a", "b"], Some(&["b", "c"])));
        assert_eq!(steps(&some), ["=instances/a", "+trigger/a", "-trigger/c"]);
        assert_eq!((some.triggered, some.pending), (ids(&["a"]), ids(&["b"])));
        let all = plan(&view(&["a"], Some(&["a"])));
        assert_eq!((all.transaction, all.pending), (vec![], ids(&["a"])));
        let without =
            plan_trigger(&paths(), &view(&["a"], Some(&["c"])), &BTreeSet::new(), false, None).unwrap();
        assert_eq!(steps(&without), ["=instances/a", "+trigger/a"]);
    }

    #[test]
    fn a_job_that_nobody_runs_is_refused() {
        let refused =
            |view: &TriggerView| plan_trigger(&paths(), view, &BTreeSet::new(), true, None).unwrap_err();
        assert_eq!(refused(&TriggerView::default()), TriggerRefusal::NotConfigured);
        assert_eq!(refused(&view(&[], Some(&["a"]))), TriggerRefusal::NobodyOnline);
        let disabled = TriggerView { has_enabled_server: false, ..view(&["a"], None) };
        assert_eq!(refused(&disabled), TriggerRefusal::ServersDisabled);
        let disabled = TriggerView { has_enabled_item: false, ..view(&["a"], None) };
        assert_eq!(refused(&disabled), TriggerRefusal::ItemsDisabled);
    }

    #[test]
    fn thousands_of_instances_take_several_transactions_and_none_is_triggered_twice() {
        let names: Vec<_> = (0..5_000).map(|number| format!("10.0.0.1@-@{number:04}-abcdef")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let record = Path::parse("/ns-sidekeeper/job/requests/1").unwrap();
        let (mut done, mut recorded) = (BTreeSet::new(), BTreeSet::new());
        let mut rounds = 0;
        loop {
            let plan = plan_trigger(&paths(), &view(&names, Some(&[])), &done, true, Some(&record)).unwrap();
            assert!(
                plan.transaction.iter().map(Operation::wire_size).sum::<usize>() <= TRANSACTION_BYTES_MAX
            );
            assert!(done.is_disjoint(&plan.triggered) && !plan.triggered.is_empty());
            let Some(Operation::Create { data, .. }) = plan.transaction.last() else { panic!("{plan:?}") };
            let RequestRecord::Trigger(part) = RequestRecord::read(data) else { panic!("{plan:?}") };
            assert_eq!(part.is_partial, plan.is_partial);
            recorded.extend(part.triggered);
            done.extend(plan.triggered);
            rounds += 1;
            if !plan.is_partial {
                break;
            }
        }
        assert!(done == ids(&names) && recorded == done);
        assert_eq!(rounds, 3);
    }
}
