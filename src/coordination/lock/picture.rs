//! The nodes of one lock as a watch tells of them: the holders, the queue, the leader of an election.

use std::collections::BTreeMap;

use crate::coordination::lock::contract::Leader;
use crate::excerpt::Excerpt;
use crate::extension::lock::{Child, HandOver, LockPaths, Mode, VALUE_BYTES_MAX};
use crate::job::FencingToken;
use crate::tree::{Node, NodeChange, Path, WatchEvent};

/// The most names of other nodes that are shown.
const FOREIGN_MAX: usize = 100;

/// The state of a lock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockState {
    /// The nodes of the contenders that hold it.
    pub holders: Vec<Node>,
    /// The nodes of the contenders that wait, in their order.
    pub waiting: Vec<Node>,
    /// The names of other nodes, the first of them.
    pub foreign: Vec<String>,
}

impl LockState {
    /// The state by the children of the lock's node: a name, and the node if it was read.
    pub fn of(children: impl IntoIterator<Item = (String, Option<Node>)>) -> Self {
        let mut state = Self::default();
        let mut contenders = Vec::new();
        for (name, node) in children {
            match (Child::read(&name), node) {
                (Child::Contender { mode, number }, Some(node)) => contenders.push((number, mode, node)),
                // It has gone in the meantime.
                (Child::Contender { .. }, None) => {}
                (Child::WithoutNumber(_) | Child::OtherRecipe | Child::Foreign, _) => {
                    state.foreign.push(name)
                }
            }
        }
        contenders.sort_unstable_by(|(number, mode, node), (other, its_mode, its_node)| {
            (number, mode, &node.path).cmp(&(other, its_mode, &its_node.path))
        });
        state.foreign.sort_unstable();
        state.foreign.truncate(FOREIGN_MAX);
        let holding = super::queue::holders(contenders.iter().map(|(_, mode, _)| *mode));
        state.holders = contenders.into_iter().map(|(_, _, node)| node).collect();
        state.waiting = state.holders.split_off(holding.min(state.holders.len()));
        state
    }

    /// The leader, if it is an election, and the successor that the leader has named.
    pub fn leader(&self) -> (Option<Leader>, Option<String>) {
        let leader = self.holders.first().and_then(candidate);
        leader.map_or((None, None), |(leader, successor)| (Some(leader), successor))
    }

    /// The candidates that wait, if it is an election: each as the leader that it may become.
    pub fn candidates(&self) -> Vec<Leader> {
        self.waiting.iter().filter_map(candidate).map(|(candidate, _)| candidate).collect()
    }
}

/// A candidate's node, and the successor that it names.
fn candidate(node: &Node) -> Option<(Leader, Option<String>)> {
    let name = node.path.name();
    let Child::Contender { mode: Mode::Candidate, .. } = Child::read(name) else { return None };
    let HandOver { successor, value } = HandOver::read(&node.data);
    let value = Excerpt::of_length(&String::from_utf8_lossy(value), VALUE_BYTES_MAX).into_string();
    let leader = Leader { name: name.to_owned(), value, term: FencingToken::from(node.stat.created) };
    Some((leader, successor.map(str::to_owned)))
}

/// The known nodes of a lock.
#[derive(Debug)]
pub struct Picture {
    lock: Path,
    nodes: BTreeMap<Path, Node>,
}

impl Picture {
    /// A picture without nodes.
    pub fn new(lock: &LockPaths) -> Self {
        Self { lock: lock.lock().clone(), nodes: BTreeMap::new() }
    }

    /// Takes an event of the lock's watch.
    pub fn apply(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::Snapshot(nodes) => {
                self.nodes = nodes.into_iter().map(|node| (node.path.clone(), node)).collect();
            }
            WatchEvent::Changes(changes) => {
                for change in changes {
                    match change {
                        NodeChange::Put { path, content: Some((data, stat)) } => {
                            self.nodes.insert(path.clone(), Node { path, data, stat });
                        }
                        // A watch with data tells of the data in the same event, or of the removal.
                        NodeChange::Put { content: None, .. } => {}
                        NodeChange::Removed { path } => {
                            self.nodes.remove(&path);
                        }
                    }
                }
            }
        }
    }

    /// The state of the lock.
    pub fn state(&self) -> LockState {
        let children = self.nodes.values().filter(|node| node.path.parent().as_ref() == Some(&self.lock));
        LockState::of(children.map(|node| (node.path.name().to_owned(), Some(node.clone()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{SessionId, Stat, Zxid};

    fn node(name: &str, created: i64, data: &str) -> Node {
        let stat = Stat {
            created: Zxid(created),
            modified: Zxid(created),
            version: 0,
            ephemeral_owner: Some(SessionId(1)),
            modified_ms: 0,
        };
        Node { path: Path::parse(&format!("/e/{name}")).unwrap(), data: data.as_bytes().into(), stat }
    }

    #[test]
    fn the_leader_is_the_first_candidate_and_its_value_is_shown_while_it_names_a_successor() {
        let mut picture = Picture::new(&LockPaths::at(Path::parse("/e").unwrap()));
        let (first, second) = (node("a-latch-0000000007", 20, "A"), node("z-latch-0000000006", 10, "Z"));
        let root = Node { path: Path::parse("/e").unwrap(), ..node("x", 1, "") };
        picture.apply(WatchEvent::Snapshot(vec![root, first.clone(), second.clone(), node("readme", 3, "")]));
        let state = picture.state();
        assert_eq!((state.holders, state.waiting), (vec![second.clone()], vec![first.clone()]));
        assert_eq!(state.foreign, ["readme"]);
        let data: std::sync::Arc<[u8]> = HandOver::write("a-latch-0000000007", b"Z").into();
        let put = NodeChange::Put { path: second.path.clone(), content: Some((data, second.stat)) };
        picture.apply(WatchEvent::Changes(vec![put]));
        let leader =
            Leader { name: "z-latch-0000000006".to_owned(), value: "Z".to_owned(), term: FencingToken(10) };
        assert_eq!(picture.state().leader(), (Some(leader), Some("a-latch-0000000007".to_owned())));
        picture.apply(WatchEvent::Changes(vec![NodeChange::Removed { path: second.path }]));
        assert_eq!(picture.state().leader().0.map(|leader| leader.term), Some(FencingToken(20)));
    }

    #[test]
    fn the_holder_of_a_lock_is_no_leader() {
        let state = LockState::of([("a-lock-0000000001".to_owned(), Some(node("a-lock-0000000001", 1, "")))]);
        assert_eq!((state.holders.len(), state.leader()), (1, (None, None)));
    }
}
