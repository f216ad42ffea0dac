//! What the sidecars of a job tell each other, under our own root beside the namespace (protocol 12): each what it can,
//! and the leader which items are to change hands. Java peers do not look there. Decides nothing.
//!
//! | node under `/{namespace}-sidekeeper/{job}/fleet` | content |
//! | --- | --- |
//! | `members` | nothing; its version grows whenever items change hands otherwise than by a division |
//! | `members/{instance}`, ephemeral | a line each: `weight 1`, `label gpu`, `rule rendezvous`, `leaving`, `away` |
//! | `names/{name}`, persistent | a line `instance {id}`: who has the name, or had it last; then as above |
//! | `handoff`, ephemeral, the leader's | a line for each instance that is to get items: `{instance} 3 4 5`; `- 6`: nobody |
//!
//! What cannot be read is skipped, so that a later version may say more.

use std::collections::BTreeMap;

use crate::coordination::job::contract::profile::Profile;
use crate::elasticjob::path::FleetPaths;
use crate::job::{InstanceId, Item};
use crate::tree::{Node, NodeChange, Operation, Path, SessionId, Stat, WatchEvent};

/// In a plan: the items of this line are nobody's any more.
const NOBODY: &str = "-";

/// Which items are to change hands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandoffPlan {
    /// Who is to get which item; `None`: nobody, because the job does not have it any more.
    pub targets: BTreeMap<Item, Option<InstanceId>>,
    /// The version of the node.
    pub version: i32,
    /// The transaction that wrote it.
    pub changed: i64,
    /// Whose it is.
    pub session: Option<SessionId>,
}

impl HandoffPlan {
    fn read(data: &[u8], stat: Stat) -> Self {
        let mut targets = BTreeMap::new();
        for line in String::from_utf8_lossy(data).lines() {
            let mut words = line.split(' ');
            let Some(target) = words.next().filter(|id| !id.is_empty()) else { continue };
            let target = (target != NOBODY).then(|| InstanceId::from_registry(target));
            let items = words.filter_map(|word| word.parse().ok()).map(Item);
            targets.extend(items.map(|item| (item, target.clone())));
        }
        Self { targets, version: stat.version, changed: stat.modified.0, session: stat.ephemeral_owner }
    }

    /// The node's content for these targets.
    pub fn write(targets: &BTreeMap<Item, Option<InstanceId>>) -> String {
        let mut lines: BTreeMap<&str, String> = BTreeMap::new();
        for (item, target) in targets {
            let target = target.as_ref().map_or(NOBODY, InstanceId::as_str);
            let line = lines.entry(target).or_insert_with(|| target.to_owned());
            line.push_str(&format!(" {item}"));
        }
        lines.into_values().map(|line| line + "\n").collect()
    }
}

/// What a member's node says, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberView {
    /// What it says.
    pub profile: Profile,
    /// The session that wrote it.
    pub session: Option<SessionId>,
    /// The version of the node.
    pub version: i32,
}

/// What is written down of an instance that has a name. It outlives the instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameView {
    /// Who has it, or had it last.
    pub instance: InstanceId,
    /// What it said of itself.
    pub profile: Profile,
    /// The version of the node.
    pub version: i32,
}

impl NameView {
    fn read(data: &[u8], version: i32) -> Self {
        let text = String::from_utf8_lossy(data);
        let instance = text.lines().find_map(|line| line.strip_prefix("instance ")).unwrap_or_default();
        Self { instance: InstanceId::from_registry(instance), profile: Profile::read(data), version }
    }

    /// The node's content.
    pub fn write(instance: &InstanceId, profile: &Profile) -> String {
        format!("instance {instance}\n{}", profile.write())
    }
}

/// What the sidecars of a job have told each other.
#[derive(Debug, Clone)]
pub struct FleetView {
    paths: FleetPaths,
    loaded: bool,
    members: BTreeMap<InstanceId, MemberView>,
    names: BTreeMap<String, NameView>,
    plan: Option<HandoffPlan>,
    /// How often items were handed over or renewed; `None`: nothing is known.
    handovers: Option<i32>,
    revision: u64,
}

impl FleetView {
    /// Nothing is known yet.
    pub fn new(paths: FleetPaths) -> Self {
        let (members, names) = (BTreeMap::new(), BTreeMap::new());
        Self { paths, loaded: false, members, names, plan: None, handovers: None, revision: 0 }
    }

    /// Where its nodes are.
    pub fn paths(&self) -> &FleetPaths {
        &self.paths
    }

    /// Takes in what the watch told.
    pub fn apply(&mut self, event: WatchEvent) {
        self.revision += 1;
        match event {
            WatchEvent::Snapshot(nodes) => {
                self.members.clear();
                self.names.clear();
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
                        // Everything here comes with its content.
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
        } else if let Some(id) = self.paths.member_of(path) {
            let profile = Profile::read(data);
            let member = MemberView { profile, session: stat.ephemeral_owner, version: stat.version };
            self.members.insert(id, member);
        } else if let Some(name) = self.paths.name_of(path) {
            self.names.insert(name.to_owned(), NameView::read(data, stat.version));
        }
    }

    fn remove(&mut self, path: &Path) {
        if *path == self.paths.handoff() {
            self.plan = None;
        } else if let Some(id) = self.paths.member_of(path) {
            self.members.remove(&id);
        } else if let Some(name) = self.paths.name_of(path) {
            self.names.remove(name);
        }
    }

    /// Forgets everything until the next snapshot.
    pub fn forget(&mut self) {
        *self = Self { revision: self.revision + 1, ..Self::new(self.paths.clone()) };
    }

    /// Whether it is known what the sidecars have told.
    pub fn is_loaded(&self) -> bool {
        self.loaded
    }

    /// Grows with each change.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// What an instance has said; `None`: nothing.
    pub fn member(&self, id: &InstanceId) -> Option<&MemberView> {
        self.members.get(id)
    }

    /// What everybody has said.
    pub fn members(&self) -> impl Iterator<Item = (&InstanceId, &MemberView)> {
        self.members.iter()
    }

    /// What an instance has said, or what is written down of it because it has a name; `None`: nothing.
    pub fn profile(&self, id: &InstanceId) -> Option<&Profile> {
        let member = self.members.get(id).map(|member| &member.profile);
        let named = || self.names.get(id.unique()?).filter(|name| name.instance == *id);
        member.or_else(|| named().map(|name| &name.profile))
    }

    /// The first of these instances, ascending, that has said nothing.
    pub(in crate::coordination) fn first_silent<'a>(
        &self,
        instances: impl Iterator<Item = &'a InstanceId>,
    ) -> Option<&'a InstanceId> {
        // Both are in the same order, so nobody is searched for.
        let mut members = self.members.keys().peekable();
        let mut has_spoken = |id: &InstanceId| {
            while members.next_if(|member| *member < id).is_some() {}
            members.next_if_eq(&id).is_some() || self.profile(id).is_some()
        };
        instances.into_iter().find(|id| !self.loaded || !has_spoken(id))
    }

    /// The names that are written down.
    pub fn names(&self) -> &BTreeMap<String, NameView> {
        &self.names
    }

    /// Which items are to change hands; `None`: none.
    pub fn plan(&self) -> Option<&HandoffPlan> {
        self.plan.as_ref()
    }

    /// The step that says that items have changed hands otherwise than by a division. Their nodes are new, and have the
    /// version that they had before.
    pub fn handed_over(&self) -> Operation {
        Operation::set(self.paths.members(), "")
    }

    /// The step that fails if items have changed hands otherwise than by a division since we looked.
    pub fn not_handed_over(&self) -> Option<Operation> {
        self.handovers.map(|version| Operation::Check { path: self.paths.members(), version: Some(version) })
    }

    /// Who is to get an item that has somebody else now; `None`: there is nothing planned, or nobody is.
    pub fn target(&self, item: Item) -> Option<&InstanceId> {
        self.plan.as_ref()?.targets.get(&item)?.as_ref()
    }

    /// Whether an item that this instance has is to be somebody else's, or nobody's.
    pub fn is_to_leave(&self, item: Item, owner: &InstanceId) -> bool {
        let target = self.plan.as_ref().and_then(|plan| plan.targets.get(&item));
        target.is_some_and(|target| target.as_ref() != Some(owner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordination::job::contract::profile::LABELS_MAX;
    use crate::tree::Zxid;

    #[test]
    fn profiles_are_read_as_they_were_written_and_nonsense_is_skipped() {
        let labels = ["a", "zone b"].map(str::to_owned).into();
        let profile = Profile { weight: 7, labels, rendezvous: true, leaving: true, away: true };
        assert_eq!(Profile::read(profile.write().as_bytes()), profile);
        let earlier = Profile { rendezvous: false, ..profile };
        assert_eq!(Profile::read(earlier.write().as_bytes()), earlier);
        assert!(!Profile::read(b"rule another\n").rendezvous);
        assert_eq!(Profile::read(b"weight 0\nweight\n\xff\xff x\nnews 5\n").weight, 1);
        assert_eq!(Profile::read(b"weight 4294967296\nrule rendezvous"), Profile::default());
        let many: String = (0..100).map(|label| format!("label {label}\n")).collect();
        assert_eq!(Profile::read(many.as_bytes()).labels.len(), LABELS_MAX);
    }

    #[test]
    fn names_are_read_as_they_were_written_and_nonsense_is_nobody_s() {
        let profile = Profile { weight: 7, labels: ["gpu".to_owned()].into(), ..Profile::default() };
        let instance = InstanceId::from_registry("10.0.0.1@-@worker-0");
        let text = NameView::write(&instance, &profile);
        assert_eq!(text, "instance 10.0.0.1@-@worker-0\nweight 7\nlabel gpu\nrule rendezvous\n");
        assert_eq!(NameView::read(text.as_bytes(), 3), NameView { instance, profile, version: 3 });
        assert_eq!(NameView::read(b"\xff\ninstance", 0).instance, InstanceId::from_registry(""));
    }

    #[test]
    fn plans_are_read_as_they_were_written_and_nonsense_is_skipped() {
        let [a, b] = ["10.0.0.1@-@a", "10.0.0.2@-@b"].map(InstanceId::from_registry);
        let targets = [(3, Some(a.clone())), (4, Some(b)), (12, Some(a)), (13, None), (14, None)];
        let targets = targets.map(|(item, target)| (Item(item), target)).into();
        let text = HandoffPlan::write(&targets);
        assert_eq!(text, "- 13 14\n10.0.0.1@-@a 3 12\n10.0.0.2@-@b 4\n");
        let (created, modified) = (Zxid(1), Zxid(1));
        let stat = Stat { created, modified, version: 0, ephemeral_owner: None, modified_ms: 0 };
        assert_eq!(HandoffPlan::read(text.as_bytes(), stat).targets, targets);
        assert_eq!(HandoffPlan::read(b"\n x\n10.0.0.1@-@a -1 x 9999999999", stat).targets, BTreeMap::new());
    }
}
