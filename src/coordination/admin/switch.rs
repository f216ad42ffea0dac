//! Which nodes does an operator's disabling or enabling of items and servers need? A view becomes a transaction and a report, with the
//! nodes that differ only, so a repetition changes nothing. Belongs to no participant. Source: protocol 8.1 and 8.2.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use crate::elasticjob::path::{Folder, JobPaths};
use crate::job::Item;
use crate::tree::{NodeKind, Operation, Transaction};

use crate::coordination::job::frame::limits::TRANSACTION_BYTES_MAX;
use crate::coordination::job::picture::job_view::JobView;
use crate::coordination::job::picture::nodes::{ConfigView, ServerStatus};

/// The state that an operator wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switch {
    /// They take part.
    Enabled,
    /// They do not.
    Disabled,
}

/// The items or servers, and the state that an operator wants for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// These items are to be so.
    Items(BTreeSet<Item>, Switch),
    /// These servers are to be so. Empty: all servers of the job.
    Servers(BTreeSet<Ipv4Addr>, Switch),
}

/// The plan for a wish.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SwitchPlan {
    /// The nodes to create, set and delete. Empty: everything is as wished.
    pub transaction: Transaction,
    /// The items that it changes.
    pub items: BTreeSet<Item>,
    /// The servers that it changes.
    pub servers: BTreeSet<Ipv4Addr>,
}

/// Why a wish cannot be fulfilled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SwitchRefusal {
    /// The job has no configuration that can be read, so its items are not known.
    NotConfigured,
    /// The job has only so many items.
    NoItem(Item, u32),
    /// The job has never had an instance on this server; it has had some on these.
    NoServer(Ipv4Addr, BTreeSet<Ipv4Addr>),
}

/// Plans the missing changes of a wish: as much as fits into one transaction.
pub fn plan(paths: &JobPaths, view: &JobView, wish: &Wish) -> Result<SwitchPlan, SwitchRefusal> {
    match wish {
        Wish::Items(items, switch) => plan_items(paths, view, items, *switch),
        Wish::Servers(servers, switch) => plan_servers(paths, view, servers, *switch),
    }
}

fn plan_items(
    paths: &JobPaths,
    view: &JobView,
    items: &BTreeSet<Item>,
    switch: Switch,
) -> Result<SwitchPlan, SwitchRefusal> {
    let ConfigView::Valid(configuration) = view.config() else { return Err(SwitchRefusal::NotConfigured) };
    let total = configuration.sharding_total_count;
    if let Some(unknown) = items.iter().find(|item| item.0 >= total) {
        return Err(SwitchRefusal::NoItem(*unknown, total));
    }
    let mut plan = SwitchPlan::default();
    let mut bytes = 0;
    let persistent = |path| Operation::create(path, NodeKind::Persistent, "");
    // A job that no instance has divided yet has no nodes of items.
    let mut folder = (!view.has_folder(Folder::Sharding)).then(|| persistent(paths.folder(Folder::Sharding)));
    for item in items {
        let known = view.item(*item);
        let is_disabled = known.is_some_and(|known| known.disabled);
        if is_disabled == (switch == Switch::Disabled) {
            continue;
        }
        let node = paths.item_child(*item, "disabled");
        let steps: Vec<_> = match switch {
            Switch::Enabled => vec![Operation::delete(node)],
            Switch::Disabled => {
                let own = (!known.is_some_and(|known| known.exists)).then(|| persistent(paths.item(*item)));
                folder.take().into_iter().chain(own).chain([persistent(node)]).collect()
            }
        };
        if !add(&mut plan.transaction, &mut bytes, steps) {
            break;
        }
        plan.items.insert(*item);
    }
    Ok(plan)
}

fn plan_servers(
    paths: &JobPaths,
    view: &JobView,
    servers: &BTreeSet<Ipv4Addr>,
    switch: Switch,
) -> Result<SwitchPlan, SwitchRefusal> {
    let known: BTreeSet<_> = view.servers().collect();
    if let Some(unknown) = servers.difference(&known).next() {
        return Err(SwitchRefusal::NoServer(*unknown, known));
    }
    let (status, data) = match switch {
        Switch::Enabled => (ServerStatus::Enabled, "ENABLED"),
        Switch::Disabled => (ServerStatus::Disabled, "DISABLED"),
    };
    let mut plan = SwitchPlan::default();
    let mut bytes = 0;
    for server in if servers.is_empty() { &known } else { servers } {
        if view.server(*server) == Some(status) {
            continue;
        }
        if !add(&mut plan.transaction, &mut bytes, vec![Operation::set(paths.server(*server), data)]) {
            break;
        }
        plan.servers.insert(*server);
    }
    Ok(plan)
}

/// Adds steps to a transaction, if they fit. The first ones always do.
fn add(transaction: &mut Transaction, bytes: &mut usize, steps: Vec<Operation>) -> bool {
    let more: usize = steps.iter().map(Operation::wire_size).sum();
    let fits = transaction.is_empty() || bytes.saturating_add(more) <= TRANSACTION_BYTES_MAX;
    if fits {
        *bytes = bytes.saturating_add(more);
        transaction.extend(steps);
    }
    fits
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;
    use crate::coordination::time::Now;
    use crate::job::JobName;
    use crate::tree::{Node, Path, Stat, WatchEvent, Zxid};

    #[test]
    fn a_plan_for_all_items_of_a_large_job_fits_into_a_transaction_and_begins_with_the_first() {
        let paths = JobPaths::new(&Path::parse("/ns").unwrap(), &JobName::parse("job").unwrap());
        let node = |path: Path, data: &str| {
            let (created, modified) = (Zxid(1), Zxid(1));
            let stat = Stat { created, modified, version: 0, ephemeral_owner: None, modified_ms: 0 };
            Node { path, data: data.as_bytes().into(), stat }
        };
        let config = node(paths.config(), "jobName: job\nshardingTotalCount: 10000\n");
        let mut view = JobView::new(paths.root().clone());
        let now = Now { wall: Timestamp::UNIX_EPOCH, mono: Duration::ZERO };
        view.apply(WatchEvent::Snapshot(vec![node(paths.root().clone(), ""), config]), now);
        let wish = Wish::Items((0..10_000).map(Item).collect(), Switch::Disabled);
        let plan = plan(&paths, &view, &wish).unwrap();
        let bytes: usize = plan.transaction.iter().map(Operation::wire_size).sum();
        assert!(bytes <= TRANSACTION_BYTES_MAX, "{bytes}");
        let first: BTreeSet<_> =
            (0..plan.items.len()).map(|item| Item(u32::try_from(item).unwrap())).collect();
        assert_eq!(plan.items, first);
        assert!(first.len() > 50, "{}", first.len());
    }
}
