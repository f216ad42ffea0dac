//! Which nodes does an operator's disabling or enabling of items and servers need? A picture becomes a transaction and a report, with the
//! nodes that differ only, so a repetition changes nothing. Belongs to no participant. Source: protocol 8.1 and 8.2.
//!
//! A note in the same transaction has the author and the reason of a disabling, under our own root: ElasticJob's nodes stay as it writes
//! them. Enabling deletes the note. The version of a note guards it, so that a call never touches the note of another operator's
//! disabling that it has not seen.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use crate::elasticjob::path::{Folder, JobPaths};
use crate::job::Item;
use crate::tree::{NodeKind, Operation, Path, Transaction, Zxid};

use crate::coordination::job::frame::limits::TRANSACTION_BYTES_MAX;
use crate::coordination::job::picture::Picture;
use crate::coordination::job::picture::disabling::keeper;
use crate::coordination::job::picture::fleet_view::FleetView;
use crate::coordination::job::picture::nodes::{ConfigView, ServerStatus};
use crate::extension::note::Note;
use crate::extension::path::Noted;

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

impl Wish {
    /// Whether it is to disable something.
    pub fn disables(&self) -> bool {
        match self {
            Self::Items(_, switch) | Self::Servers(_, switch) => *switch == Switch::Disabled,
        }
    }
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
    /// Whether an instance is online that ends a disabling when its time has come.
    pub has_keeper: bool,
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

/// Plans the missing changes of a wish: as much as fits into one transaction. `note`: who wishes it, why, and until when. A disabling that is
/// new gets the note, and one that is not gets it if it has a reason, or another end.
pub fn plan(
    paths: &JobPaths,
    picture: &Picture,
    wish: &Wish,
    note: &Note,
) -> Result<SwitchPlan, SwitchRefusal> {
    let plan = match wish {
        Wish::Items(items, switch) => plan_items(paths, picture, items, *switch, note)?,
        Wish::Servers(servers, switch) => plan_servers(paths, picture, servers, *switch, note)?,
    };
    Ok(SwitchPlan { has_keeper: keeper(&picture.nodes, &picture.fleet).is_some(), ..plan })
}

fn plan_items(
    paths: &JobPaths,
    picture: &Picture,
    items: &BTreeSet<Item>,
    switch: Switch,
    note: &Note,
) -> Result<SwitchPlan, SwitchRefusal> {
    let Picture { nodes: view, fleet } = picture;
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
        let disabled_in = known.and_then(|known| known.disabled_in);
        let is_disabled = known.is_some_and(|known| known.disabled);
        let node = paths.item_child(*item, "disabled");
        let about = Noted::Item(*item);
        let steps: Vec<_> = match (switch, is_disabled) {
            (Switch::Enabled, true) => {
                [Operation::delete(node)].into_iter().chain(forgotten(fleet, about)).collect()
            }
            (Switch::Enabled, false) => forgotten(fleet, about).into_iter().collect(),
            (Switch::Disabled, false) => {
                let own = (!known.is_some_and(|known| known.exists)).then(|| persistent(paths.item(*item)));
                let written = [persistent(node), written(fleet, about, note)];
                folder.take().into_iter().chain(own).chain(written).collect()
            }
            (Switch::Disabled, true) => repeated(fleet, about, disabled_in, node, note),
        };
        if !add(&mut plan.transaction, &mut bytes, steps) {
            break;
        }
        if is_disabled != (switch == Switch::Disabled) {
            plan.items.insert(*item);
        }
    }
    Ok(plan)
}

fn plan_servers(
    paths: &JobPaths,
    picture: &Picture,
    servers: &BTreeSet<Ipv4Addr>,
    switch: Switch,
    note: &Note,
) -> Result<SwitchPlan, SwitchRefusal> {
    let Picture { nodes: view, fleet } = picture;
    let known: BTreeSet<_> = view.servers().collect();
    if let Some(unknown) = servers.difference(&known).next() {
        return Err(SwitchRefusal::NoServer(*unknown, known));
    }
    let mut plan = SwitchPlan::default();
    let mut bytes = 0;
    for server in if servers.is_empty() { &known } else { servers } {
        let (node, about) = (paths.server(*server), Noted::Server(*server));
        let status = view.server(*server);
        let (steps, changes): (Vec<_>, _) = match switch {
            Switch::Enabled if status == Some(ServerStatus::Enabled) => {
                (forgotten(fleet, about).into_iter().collect(), false)
            }
            Switch::Enabled => {
                let set = Operation::set(node, "ENABLED");
                ([set].into_iter().chain(forgotten(fleet, about)).collect(), true)
            }
            Switch::Disabled if status == Some(ServerStatus::Disabled) => {
                (repeated(fleet, about, view.server_changed(*server), node, note), false)
            }
            Switch::Disabled => (vec![Operation::set(node, "DISABLED"), written(fleet, about, note)], true),
        };
        if !add(&mut plan.transaction, &mut bytes, steps) {
            break;
        }
        if changes {
            plan.servers.insert(*server);
        }
    }
    Ok(plan)
}

/// The step that writes a note over the one that was seen.
fn written(fleet: &FleetView, about: Noted, note: &Note) -> Operation {
    let path = fleet.paths().note(about);
    match fleet.note(about) {
        None => Operation::create(path, NodeKind::Persistent, note.write()),
        Some(known) => {
            Operation::Set { path, data: note.write().as_bytes().into(), version: Some(known.version) }
        }
    }
}

/// The step that deletes the note that was seen. A note that an operator writes meanwhile stays: then the step fails.
fn forgotten(fleet: &FleetView, about: Noted) -> Option<Operation> {
    let version = Some(fleet.note(about)?.version);
    Some(Operation::Delete { path: fleet.paths().note(about), version })
}

/// The steps for something that is disabled already, by this transaction and this node: its note gets the new reason and the new end, if
/// there are any. The last operator's word counts: without an end, the disabling lasts until somebody enables it.
fn repeated(
    fleet: &FleetView,
    about: Noted,
    disabled_in: Option<Zxid>,
    node: Path,
    note: &Note,
) -> Vec<Operation> {
    let Some(disabled_in) = disabled_in else { return Vec::new() };
    let known = fleet.note(about).filter(|known| known.is_about(disabled_in));
    let says_more = !note.reason.is_empty() || note.until != known.and_then(|known| known.note.until);
    if !says_more || known.is_some_and(|known| known.note.says(note)) {
        return Vec::new();
    }
    vec![
        Operation::Check { path: node, version: None },
        written(fleet, about, &note.clone().about(disabled_in)),
    ]
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
    use crate::extension::path::ExtensionPaths;
    use crate::job::JobName;
    use crate::tree::{Node, Stat, WatchEvent};

    const NOW: Now = Now { wall: Timestamp::UNIX_EPOCH, mono: Duration::ZERO };

    fn node(path: Path, data: &str, changed: i64, version: i32) -> Node {
        let (created, modified) = (Zxid(changed), Zxid(changed));
        let stat = Stat { created, modified, version, ephemeral_owner: None, modified_ms: 0 };
        Node { path, data: data.as_bytes().into(), stat }
    }

    fn paths() -> (JobPaths, ExtensionPaths) {
        let (namespace, job) = (Path::parse("/ns").unwrap(), JobName::parse("job").unwrap());
        (JobPaths::new(&namespace, &job), ExtensionPaths::new(&namespace, &job))
    }

    /// A job with so many items, and further nodes.
    fn picture(total: u32, nodes: Vec<Node>, fleet: Vec<Node>) -> Picture {
        let (paths, own_paths) = paths();
        let config = format!("jobName: job\nshardingTotalCount: {total}\n");
        let own = [node(paths.root().clone(), "", 1, 0), node(paths.config(), &config, 1, 0)];
        let mut picture = Picture::unknown(&paths, &own_paths);
        picture.apply_nodes(WatchEvent::Snapshot(own.into_iter().chain(nodes).collect()), NOW);
        picture.apply_fleet(WatchEvent::Snapshot(fleet));
        picture
    }

    #[test]
    fn a_plan_for_all_items_of_a_large_job_fits_into_a_transaction_and_begins_with_the_first() {
        let wish = Wish::Items((0..10_000).map(Item).collect(), Switch::Disabled);
        let note = Note::new("uid 1000", "disk full");
        let plan = plan(&paths().0, &picture(10_000, Vec::new(), Vec::new()), &wish, &note).unwrap();
        let bytes: usize = plan.transaction.iter().map(Operation::wire_size).sum();
        assert!(bytes <= TRANSACTION_BYTES_MAX, "{bytes}");
        let first: BTreeSet<_> =
            (0..plan.items.len()).map(|item| Item(u32::try_from(item).unwrap())).collect();
        assert_eq!(plan.items, first);
        assert!(first.len() > 50, "{}", first.len());
    }

    #[test]
    fn an_item_and_its_note_are_written_and_deleted_together() {
        let (paths, own_paths) = paths();
        let (disabled, noted) =
            (paths.item_child(Item(1), "disabled"), own_paths.fleet().note(Noted::Item(Item(1))));
        let note = Note::new("uid 1000", "disk full");
        let steps = |picture: &Picture, switch, note: &Note| {
            plan(&paths, picture, &Wish::Items([Item(1)].into(), switch), note).unwrap().transaction
        };
        let create = |path: &Path, data: &str| Operation::create(path.clone(), NodeKind::Persistent, data);
        let enabled = picture(3, vec![node(paths.item(Item(1)), "", 5, 0)], Vec::new());
        let new = steps(&enabled, Switch::Disabled, &note);
        assert_eq!(new[1..], [create(&disabled, ""), create(&noted, "by uid 1000\nreason disk full\n")]);
        assert_eq!(steps(&enabled, Switch::Enabled, &note), []);
        let with = |disabled_in, note_in, content: &str| {
            picture(
                3,
                vec![node(disabled.clone(), "", disabled_in, 0)],
                vec![node(noted.clone(), content, note_in, 4)],
            )
        };
        let ours = with(9, 9, &note.write());
        let delete = |version| Operation::Delete { path: noted.clone(), version };
        assert_eq!(
            steps(&ours, Switch::Enabled, &note),
            [Operation::delete(disabled.clone()), delete(Some(4))]
        );
        // The same again, and without a reason: nothing. With another reason: the note alone, about the same disabling.
        assert_eq!(steps(&ours, Switch::Disabled, &note), []);
        assert_eq!(steps(&ours, Switch::Disabled, &Note::new("uid 0", "")), []);
        let repeated = steps(&ours, Switch::Disabled, &Note::new("uid 0", "still full"));
        let data = "by uid 0\nreason still full\nin 9\n".as_bytes().into();
        let set = Operation::Set { path: noted.clone(), data, version: Some(4) };
        assert_eq!(repeated, [Operation::Check { path: disabled.clone(), version: None }, set]);
        // A disabling with an end gets none by a repetition without one.
        let until = note.clone().until(Some(Timestamp::UNIX_EPOCH));
        let ends = with(9, 9, &until.write());
        assert_eq!(steps(&ends, Switch::Disabled, &until), []);
        assert_eq!(steps(&ours, Switch::Disabled, &Note { reason: String::new(), ..until }).len(), 2);
        let forever = steps(&ends, Switch::Disabled, &Note::new("uid 0", ""));
        let data = "by uid 0\nin 9\n".as_bytes().into();
        assert_eq!(forever[1], Operation::Set { path: noted.clone(), data, version: Some(4) });
        // The note of an earlier disabling is replaced, whatever it says.
        assert_eq!(steps(&with(12, 9, &note.write()), Switch::Disabled, &note).len(), 2);
        assert_eq!(steps(&with(12, 13, &note.clone().about(Zxid(12)).write()), Switch::Disabled, &note), []);
        // The note of an item that somebody else has enabled is deleted.
        let left = picture(3, Vec::new(), vec![node(noted.clone(), "by x\n", 9, 7)]);
        assert_eq!(steps(&left, Switch::Enabled, &note), [delete(Some(7))]);
    }

    #[test]
    fn a_server_and_its_note_are_written_together() {
        let (paths, own_paths) = paths();
        let server = Ipv4Addr::new(10, 0, 0, 7);
        let (path, noted) = (paths.server(server), own_paths.fleet().note(Noted::Server(server)));
        let note = Note::new("uid 1000", "disk full");
        let steps = |status: &str, notes: Vec<Node>, switch| {
            let picture = picture(3, vec![node(path.clone(), status, 9, 2)], notes);
            plan(&paths, &picture, &Wish::Servers(BTreeSet::new(), switch), &note).unwrap().transaction
        };
        let ours = || vec![node(noted.clone(), &note.write(), 9, 0)];
        let create = Operation::create(noted.clone(), NodeKind::Persistent, note.write());
        assert_eq!(
            steps("ENABLED", Vec::new(), Switch::Disabled),
            [Operation::set(path.clone(), "DISABLED"), create]
        );
        assert_eq!(steps("DISABLED", ours(), Switch::Disabled), []);
        let delete = Operation::Delete { path: noted.clone(), version: Some(0) };
        assert_eq!(
            steps("DISABLED", ours(), Switch::Enabled),
            [Operation::set(path.clone(), "ENABLED"), delete]
        );
        // Disabled again by somebody else since.
        assert_eq!(
            steps("DISABLED", vec![node(noted.clone(), &note.write(), 8, 0)], Switch::Disabled).len(),
            2
        );
    }
}
