//! The nodes that the sidecars of a job publish for each other, under Sidekeeper's own root beside the namespace
//! (protocol 12): each instance its profile, and the leader its plan which items are to change hands. Java peers do not
//! look there. Decides nothing.
//!
//! | node under `/{namespace}-sidekeeper/{job}/fleet` | content |
//! | --- | --- |
//! | `members` | nothing; its version grows whenever items change hands otherwise than by a resharding |
//! | `members/{instance}`, ephemeral | a line each: `weight 1`, `label gpu`, `rule rendezvous`, `reads witnesses`, `reads cancels`, `reads triggers`, `leaving`, `away` |
//! | `names/{name}`, persistent | a line `instance {id}`: the instance that has the name, or had it last; then as above |
//! | `cancels/{request id}`, persistent | `all` or `items 3 4 5`: cancels the older executions of these items |
//! | `triggers/{request id}.{item}`, persistent | a trigger of one item: it waits, or an execution has begun for it; its parameter |
//! | `notes/{subject}`, persistent | who has disabled an item or a server, why, and until when |
//! | `handoff`, ephemeral, the leader's | a line for each instance that is to get items: `{instance} 3 4 5`; `- 6`: none |
//!
//! A line that cannot be read is skipped, so that a later version may add more.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::coordination::job::picture::nodes::{NoteView, stat_time};
use crate::extension::cancel_wish::FleetCancel;
use crate::extension::handoff_plan::HandoffPlan;
use crate::extension::item_trigger::ItemTrigger;
use crate::extension::name_record::NameRecord;
use crate::extension::note::Note;
use crate::extension::path::{FleetPaths, Noted};
use crate::extension::profile::Profile;
use crate::extension::request_record::RequestId;
use crate::job::{FencingToken, InstanceId, Item};
use crate::tree::{Node, NodeChange, Operation, Path, SessionId, Stat, WatchEvent, Zxid};

/// What a member's node says, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberView {
    /// The published profile.
    pub profile: Profile,
    /// The session that wrote it.
    pub session: Option<SessionId>,
    /// The version of the node.
    pub version: i32,
}

/// A trigger of one item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemTriggerView {
    /// Its content.
    pub trigger: ItemTrigger,
    /// The request that has created it.
    pub request: RequestId,
    /// The metadata of its node.
    pub stat: Stat,
}

/// The published state of the sidecars of a job.
#[derive(Debug, Clone)]
pub struct FleetView {
    paths: FleetPaths,
    loaded: bool,
    /// Boxed: a node of the map has room for eleven, and many jobs have few instances.
    members: BTreeMap<InstanceId, Box<MemberView>>,
    names: BTreeMap<String, NameRecord>,
    notes: BTreeMap<Noted, NoteView>,
    plan: Option<HandoffPlan>,
    cancels: BTreeMap<Path, FleetCancel>,
    /// The triggers of each item, the oldest first.
    triggers: BTreeMap<Item, BTreeMap<Zxid, ItemTriggerView>>,
    /// How often items were handed over or renewed; `None`: not known.
    handovers: Option<i32>,
    revision: u64,
}

impl FleetView {
    /// A view before the first snapshot.
    pub fn new(paths: FleetPaths) -> Self {
        let (members, names, notes) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let cancels = BTreeMap::new();
        Self {
            paths,
            loaded: false,
            members,
            names,
            notes,
            plan: None,
            cancels,
            triggers: BTreeMap::new(),
            handovers: None,
            revision: 0,
        }
    }

    /// Where its nodes are.
    pub fn paths(&self) -> &FleetPaths {
        &self.paths
    }

    /// Applies an event of the watch.
    pub fn apply(&mut self, event: WatchEvent) {
        self.revision += 1;
        match event {
            WatchEvent::Snapshot(nodes) => {
                self.members.clear();
                self.names.clear();
                self.cancels.clear();
                self.triggers.clear();
                self.notes.clear();
                self.plan = None;
                self.handovers = None;
                self.loaded = true;
                for Node { path, data, stat } in nodes {
                    self.put(&path, &data, stat);
                }
            }
            WatchEvent::Changes(changes) => {
                for change in changes {
                    match change {
                        NodeChange::Put { path, content: Some((data, stat)) } => self.put(&path, &data, stat),
                        // All nodes of this watch come with their content.
                        NodeChange::Put { content: None, .. } => {}
                        NodeChange::Removed { path } => self.remove(&path),
                    }
                }
            }
        }
    }

    fn put(&mut self, path: &Path, data: &[u8], stat: Stat) {
        if *path == self.paths.handoff() {
            self.plan = Some(HandoffPlan::read(data, stat));
        } else if *path == self.paths.members() {
            self.handovers = Some(stat.version);
        } else if self.paths.is_cancel(path) {
            self.cancels.insert(path.clone(), FleetCancel::read(data, stat));
        } else if let Some((request, item)) = self.paths.trigger_of(path) {
            let view = ItemTriggerView { trigger: ItemTrigger::read(data), request, stat };
            self.triggers.entry(item).or_default().insert(stat.created, view);
        } else if let Some(id) = self.paths.member_of(path) {
            let profile = Profile::read(data);
            let member = MemberView { profile, session: stat.ephemeral_owner, version: stat.version };
            self.members.insert(id, Box::new(member));
        } else if let Some(name) = self.paths.name_of(path) {
            self.names.insert(name.to_owned(), NameRecord::read(data, stat.version));
        } else if let Some(about) = self.paths.noted_of(path) {
            let (note, written) = (Note::read(data), stat_time(stat));
            self.notes
                .insert(about, NoteView { note, written, changed: stat.modified, version: stat.version });
        }
    }

    fn remove(&mut self, path: &Path) {
        if *path == self.paths.handoff() {
            self.plan = None;
        } else if self.cancels.remove(path).is_some() {
            // It was a cancel.
        } else if let Some((request, item)) = self.paths.trigger_of(path) {
            if let Some(triggers) = self.triggers.get_mut(&item) {
                triggers.retain(|_, view| view.request != request);
            }
            self.triggers.retain(|_, triggers| !triggers.is_empty());
        } else if let Some(id) = self.paths.member_of(path) {
            self.members.remove(&id);
        } else if let Some(name) = self.paths.name_of(path) {
            self.names.remove(name);
        } else if let Some(about) = self.paths.noted_of(path) {
            self.notes.remove(&about);
        }
    }

    /// Forgets all nodes until the next snapshot.
    pub fn forget(&mut self) {
        *self = Self { revision: self.revision + 1, ..Self::new(self.paths.clone()) };
    }

    /// Whether a snapshot was applied.
    pub fn is_loaded(&self) -> bool {
        self.loaded
    }

    /// Grows with each event.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The node of an instance; `None`: it has published no profile.
    pub fn member(&self, id: &InstanceId) -> Option<&MemberView> {
        self.members.get(id).map(Box::as_ref)
    }

    /// All published profiles.
    pub fn members(&self) -> impl Iterator<Item = (&InstanceId, &MemberView)> {
        self.members.iter().map(|(id, member)| (id, member.as_ref()))
    }

    /// The profile that an instance has published, or that its name's node has; `None`: none.
    pub fn profile(&self, id: &InstanceId) -> Option<&Profile> {
        let member = self.members.get(id).map(|member| &member.profile);
        let named = || self.names.get(id.unique()?).filter(|name| name.instance == *id);
        member.or_else(|| named().map(|name| &name.profile))
    }

    /// The first of these instances, ascending, that has published no profile.
    pub(in crate::coordination) fn first_silent<'a>(
        &self,
        instances: impl Iterator<Item = &'a InstanceId>,
    ) -> Option<&'a InstanceId> {
        // Both are in the same order, so no search is needed.
        let mut members = self.members.keys().peekable();
        let mut has_spoken = |id: &InstanceId| {
            while members.next_if(|member| *member < id).is_some() {}
            members.next_if_eq(&id).is_some() || self.profile(id).is_some()
        };
        instances.into_iter().find(|id| !self.loaded || !has_spoken(id))
    }

    /// The nodes of all names.
    pub fn names(&self) -> &BTreeMap<String, NameRecord> {
        &self.names
    }

    /// Whether an operator has cancelled executions of the whole fleet in the last minutes.
    pub fn has_cancels(&self) -> bool {
        !self.cancels.is_empty()
    }

    /// The latest cancel of an item's executions: those whose running nodes are older are cancelled. `None`: there is none.
    pub fn cancelled_before(&self, item: Item) -> Option<FencingToken> {
        let concerns =
            |cancel: &&FleetCancel| cancel.items.as_ref().is_none_or(|items| items.contains(&item));
        self.cancels.values().filter(concerns).map(|cancel| cancel.created).max()
    }

    /// Whether items have triggers.
    pub fn has_item_triggers(&self) -> bool {
        !self.triggers.is_empty()
    }

    /// All triggers of items, ascending by item, those of an item the oldest first.
    pub fn item_triggers(&self) -> impl Iterator<Item = (Item, &ItemTriggerView)> {
        self.triggers.iter().flat_map(|(item, triggers)| triggers.values().map(|view| (*item, view)))
    }

    /// The trigger of an item that this transaction has created.
    pub fn item_trigger(&self, item: Item, created: Zxid) -> Option<&ItemTriggerView> {
        self.triggers.get(&item)?.get(&created)
    }

    /// The triggers of an item for which no execution has begun, the oldest first.
    pub fn waiting_triggers(&self, item: Item) -> impl Iterator<Item = &ItemTriggerView> {
        let triggers = self.triggers.get(&item).into_iter().flat_map(BTreeMap::values);
        triggers.filter(|view| view.trigger.begun.is_none())
    }

    /// The latest instant for which an execution of an item has begun because of a trigger that is still there.
    pub fn latest_begun(&self, item: Item) -> Option<Timestamp> {
        let begun = |view: &ItemTriggerView| view.trigger.begun.as_ref().map(|begun| begun.scheduled);
        self.triggers.get(&item)?.values().filter_map(begun).max()
    }

    /// The parameter of the trigger for which the execution of an item with this instant has begun. `None`: it has none.
    pub fn begun_parameter(&self, item: Item, scheduled: Timestamp) -> Option<Arc<str>> {
        let is_it = |view: &&ItemTriggerView| {
            view.trigger.begun.as_ref().is_some_and(|begun| begun.scheduled == scheduled)
        };
        self.triggers.get(&item)?.values().find(is_it)?.trigger.parameter.clone()
    }

    /// All notes, also those about earlier disablings.
    pub fn notes(&self) -> impl Iterator<Item = (Noted, &NoteView)> {
        self.notes.iter().map(|(about, note)| (*about, note))
    }

    /// The note about an item or a server, also if it is about an earlier disabling; `None`: there is none.
    pub fn note(&self, about: Noted) -> Option<&NoteView> {
        self.notes.get(&about)
    }

    /// The leader's plan; `None`: there is none.
    pub fn plan(&self) -> Option<&HandoffPlan> {
        self.plan.as_ref()
    }

    /// The step that records that items have changed hands otherwise than by a resharding. Their nodes are new, and
    /// have the version that they had before.
    pub fn handed_over(&self) -> Operation {
        Operation::set(self.paths.members(), "")
    }

    /// The step that fails if items have changed hands otherwise than by a resharding since this view.
    pub fn not_handed_over(&self) -> Option<Operation> {
        self.handovers.map(|version| Operation::Check { path: self.paths.members(), version: Some(version) })
    }

    /// The next owner of an item that another instance owns now; `None`: the plan gives the item to none, or there is
    /// no plan.
    pub fn target(&self, item: Item) -> Option<&InstanceId> {
        self.plan.as_ref()?.targets.get(&item)?.as_ref()
    }

    /// Whether an item of this owner is to be handed over or removed.
    pub fn is_to_leave(&self, item: Item, owner: &InstanceId) -> bool {
        let target = self.plan.as_ref().and_then(|plan| plan.targets.get(&item));
        target.is_some_and(|target| target.as_ref() != Some(owner))
    }
}
