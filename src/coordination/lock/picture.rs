//! The nodes of one lock as a watch tells of them: the holders, the queue, the leader of an election.

use std::collections::BTreeMap;

use crate::coordination::lock::contract::Leader;
use crate::excerpt::Excerpt;
use crate::extension::lock::{Below, Child, HandOver, LockPaths, Mode, VALUE_BYTES_MAX};
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
    /// The nodes of the delays of holders that have vanished.
    pub vanished: Vec<Node>,
    /// The names of other nodes, the first of them.
    pub foreign: Vec<String>,
}

impl LockState {
    /// The state by the nodes below the lock's node: a name, and the node if it was read.
    pub fn of(nodes: impl IntoIterator<Item = (String, Option<Node>)>) -> Self {
        let mut state = Self::default();
        let (mut contenders, mut queued, mut permits) = (Vec::new(), Vec::new(), Vec::new());
        let mut delays = Vec::new();
        for (name, node) in nodes {
            match (Below::read(&name), node) {
                (Below::Child(Child::Contender { mode, number }), Some(node)) => {
                    contenders.push((number, mode, node));
                }
                (Below::Child(Child::Delay { number, .. }), Some(node)) => delays.push((number, node)),
                (Below::Queued(_), Some(node)) => queued.push(node),
                (Below::Permit(_), Some(node)) => permits.push(node),
                // It has gone in the meantime.
                (
                    Below::Child(Child::Contender { .. } | Child::Delay { .. })
                    | Below::Queued(_)
                    | Below::Permit(_),
                    None,
                )
                | (Below::Semaphore, _) => {}
                (
                    Below::Child(Child::WithoutNumber(_) | Child::OtherRecipe | Child::Foreign)
                    | Below::Foreign,
                    _,
                ) => state.foreign.push(name),
            }
        }
        delays.retain(|(number, _)| contenders.iter().all(|(other, _, _)| other != number));
        state.vanished = delays.into_iter().map(|(_, node)| node).collect();
        contenders.sort_unstable_by(|(number, mode, node), (other, its_mode, its_node)| {
            (number, mode, &node.path).cmp(&(other, its_mode, &its_node.path))
        });
        state.foreign.sort_unstable();
        state.foreign.truncate(FOREIGN_MAX);
        // The first of the queue deletes the nodes of delays when it holds.
        let holding = match state.vanished.is_empty() {
            true => super::queue::holders(contenders.iter().map(|(_, mode, _)| *mode)),
            false => 0,
        };
        state.holders = contenders.into_iter().map(|(_, _, node)| node).collect();
        state.waiting = state.holders.split_off(holding.min(state.holders.len()));
        state.add_semaphore(queued, permits);
        state
    }

    /// Adds the nodes of a semaphore. The first of the queue may have a permit's node that waits for room.
    fn add_semaphore(&mut self, mut queued: Vec<Node>, mut permits: Vec<Node>) {
        // The nodes of one folder are created in the order of their numbers.
        queued.sort_unstable_by_key(|node| node.stat.created);
        permits.sort_unstable_by_key(|node| node.stat.created);
        let waits = |node: &Node| {
            queued.first().is_some_and(|first| {
                node.stat.ephemeral_owner == first.stat.ephemeral_owner
                    && node.stat.created > first.stat.created
            })
        };
        permits.retain(|node| !waits(node));
        self.holders.extend(permits);
        self.waiting.extend(queued);
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
    lock: LockPaths,
    nodes: BTreeMap<Path, Node>,
}

impl Picture {
    /// A picture without nodes.
    pub fn new(lock: &LockPaths) -> Self {
        Self { lock: lock.clone(), nodes: BTreeMap::new() }
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
        let name = |node: &Node| self.lock.name_below(&node.path).map(str::to_owned);
        LockState::of(self.nodes.values().filter_map(|node| Some((name(node)?, Some(node.clone())))))
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
    fn the_permit_that_the_first_of_a_semaphores_queue_waits_for_is_not_held() {
        let named = |name: &str, created, session| {
            let mut node = node(name, created, "");
            node.stat.ephemeral_owner = Some(SessionId(session));
            (name.to_owned(), Some(node))
        };
        let state = LockState::of([
            named("locks/b-lock-0000000002", 5, 1),
            named("locks/a-lock-0000000003", 7, 2),
            named("leases/x-lease-0000000001", 2, 1),
            named("leases/y-lease-0000000000", 4, 2),
            named("leases/z-lease-0000000002", 6, 1),
            ("leases".to_owned(), None),
            ("locks".to_owned(), None),
        ]);
        let created = |nodes: &[Node]| nodes.iter().map(|node| node.stat.created.0).collect::<Vec<_>>();
        assert_eq!((created(&state.holders), created(&state.waiting)), (vec![2, 4], vec![5, 7]));
        assert!(state.foreign.is_empty());
    }

    #[test]
    fn nobody_holds_while_the_delay_of_a_vanished_holder_lasts() {
        let state = |names: &[&str]| {
            LockState::of(names.iter().map(|name| ((*name).to_owned(), Some(node(name, 1, "")))))
        };
        let counts = |state: LockState| (state.holders.len(), state.waiting.len(), state.vanished.len());
        assert_eq!(counts(state(&["a-lock-0000000001", "delay-5-0000000001"])), (1, 0, 0));
        assert_eq!(counts(state(&["a-lock-0000000003", "delay-5-0000000001"])), (0, 1, 1));
        // Not of ours: a longer delay than the longest, and a name that means nothing.
        let foreign = state(&["delay-600001-0000000001", "delay-5-1", "delay-+5-0000000001"]).foreign;
        assert_eq!(foreign.len(), 3);
    }

    #[test]
    fn the_holder_of_a_lock_is_no_leader() {
        let state = LockState::of([("a-lock-0000000001".to_owned(), Some(node("a-lock-0000000001", 1, "")))]);
        assert_eq!((state.holders.len(), state.leader()), (1, (None, None)));
    }
}
