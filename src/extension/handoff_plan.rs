//! The content of the handoff plan's node: the items that change their owner one by one.

use std::collections::BTreeMap;

use crate::job::{InstanceId, Item};
use crate::tree::{SessionId, Stat};

/// In a plan: the items of this line get no owner.
const NO_OWNER: &str = "-";

/// The items that change their owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandoffPlan {
    /// The next owner of each item. `None`: no owner, because the job no longer has the item.
    pub targets: BTreeMap<Item, Option<InstanceId>>,
    /// The version of the node.
    pub version: i32,
    /// The transaction that wrote it.
    pub changed: i64,
    /// The session that owns the node.
    pub session: Option<SessionId>,
}

impl HandoffPlan {
    /// Reads the node.
    pub fn read(data: &[u8], stat: Stat) -> Self {
        let mut targets = BTreeMap::new();
        for line in String::from_utf8_lossy(data).lines() {
            let mut words = line.split(' ');
            let Some(target) = words.next().filter(|id| !id.is_empty()) else { continue };
            let target = (target != NO_OWNER).then(|| InstanceId::from_registry(target));
            let items = words.filter_map(|word| word.parse().ok()).map(Item);
            targets.extend(items.map(|item| (item, target.clone())));
        }
        Self { targets, version: stat.version, changed: stat.modified.0, session: stat.ephemeral_owner }
    }

    /// The node's content for these targets.
    pub fn write(targets: &BTreeMap<Item, Option<InstanceId>>) -> String {
        let mut lines: BTreeMap<&str, String> = BTreeMap::new();
        for (item, target) in targets {
            let target = target.as_ref().map_or(NO_OWNER, InstanceId::as_str);
            let line = lines.entry(target).or_insert_with(|| target.to_owned());
            line.push_str(&format!(" {item}"));
        }
        lines.into_values().map(|line| line + "\n").collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Zxid;

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
