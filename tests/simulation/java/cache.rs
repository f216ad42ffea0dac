//! The job cache and the events that it gives to the listeners (protocol 0.3).

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use sidekeeper::tree::{NodeChange, Path, SessionId, Stat, WatchEvent};

use super::process::Process;

/// The changes that come over the connection, path by path relative to the job.
#[derive(Debug, Clone)]
pub enum Raw {
    /// Everything that is there: what the cache reads when it is opened, and after a connection was away.
    All(BTreeMap<String, Known>),
    /// A node is like this now, or gone.
    Change(String, Option<Known>),
}

/// A node that the cache knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    pub data: Arc<[u8]>,
    version: i32,
    created: i64,
    owner: Option<SessionId>,
}

/// The events of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Added,
    Updated,
    Deleted,
}

#[derive(Debug, Clone)]
pub struct Event {
    pub kind: Kind,
    /// Relative to the job.
    pub path: String,
    pub data: Arc<[u8]>,
}

#[derive(Debug, Default)]
pub struct Cache {
    nodes: BTreeMap<String, Known>,
}

impl Raw {
    pub fn from_watch(event: WatchEvent, root: &Path, news: &mut VecDeque<Self>) {
        let relative = |path: &Path| path.relative_to(root).unwrap_or_default().to_owned();
        match event {
            WatchEvent::Snapshot(nodes) => {
                let nodes = nodes.into_iter();
                let known = nodes.map(|node| (relative(&node.path), Known::new(node.data, node.stat)));
                news.push_back(Self::All(known.filter(|(path, _)| !path.is_empty()).collect()));
            }
            WatchEvent::Changes(changes) => news.extend(changes.into_iter().filter_map(|change| {
                let path = relative(change.path());
                let content = match change {
                    NodeChange::Put { content, .. } => content,
                    NodeChange::Removed { .. } => None,
                };
                let known = content.map(|(data, stat)| Known::new(data, stat));
                (!path.is_empty()).then_some(Self::Change(path, known))
            })),
        }
    }
}

impl Known {
    fn new(data: Arc<[u8]>, stat: Stat) -> Self {
        Self { data, version: stat.version, created: stat.created.0, owner: stat.ephemeral_owner }
    }
}

impl Cache {
    pub fn get(&self, path: &str) -> Option<Arc<[u8]>> {
        self.nodes.get(path).map(|known| Arc::clone(&known.data))
    }

    /// The nodes that belong to a session.
    pub fn of_session(&self, session: SessionId) -> Vec<String> {
        let of_it = |(path, known): (&String, &Known)| (known.owner == Some(session)).then(|| path.clone());
        self.nodes.iter().filter_map(of_it).collect()
    }

    fn apply(&mut self, raw: Raw, events: &mut VecDeque<Event>) {
        let mut tell = |kind, path: &str, data: &Arc<[u8]>| {
            events.push_back(Event { kind, path: path.to_owned(), data: Arc::clone(data) });
        };
        match raw {
            Raw::All(all) => {
                for (path, gone) in self.nodes.iter().filter(|(path, _)| !all.contains_key(*path)) {
                    tell(Kind::Deleted, path, &gone.data);
                }
                // A node that was deleted and created again meanwhile is not noticed.
                for (path, known) in &all {
                    match self.nodes.get(path) {
                        None => tell(Kind::Added, path, &known.data),
                        Some(before) if before.version != known.version => {
                            tell(Kind::Updated, path, &known.data);
                        }
                        Some(_) => {}
                    }
                }
                self.nodes = all;
            }
            Raw::Change(path, None) => {
                if let Some(gone) = self.nodes.remove(&path) {
                    tell(Kind::Deleted, &path, &gone.data);
                }
            }
            Raw::Change(path, Some(known)) => {
                match self.nodes.get(&path) {
                    None => tell(Kind::Added, &path, &known.data),
                    // Both in one transaction: a server tells both.
                    Some(before) if before.created != known.created => {
                        tell(Kind::Deleted, &path, &before.data);
                        tell(Kind::Added, &path, &known.data);
                    }
                    Some(before) if before.version != known.version => {
                        tell(Kind::Updated, &path, &known.data);
                    }
                    Some(_) => {}
                }
                self.nodes.insert(path, known);
            }
        }
    }
}

impl Process {
    fn take_in(&self, raw: Raw) {
        let mut events = self.events.borrow_mut();
        self.cache.borrow_mut().apply(raw, &mut events);
        if !self.is_listening.get() {
            events.clear();
        }
        self.changed();
    }
}

/// The thread that keeps the cache. It hands the events on to the listeners' thread. It reads changed nodes with
/// requests of its own, so it may be behind the reads of other threads of the process.
pub async fn keep(process: Rc<Process>) {
    let lag = process.options.cache_lag_ms;
    loop {
        if lag > 0 && process.raw.borrow().is_empty() {
            process.wait_for(|process| (!process.raw.borrow().is_empty()).then_some(())).await;
            process.sleep(process.below(lag + 1) as i64).await;
        }
        let raw = process.wait_for(|process| process.raw.borrow_mut().pop_front()).await;
        process.take_in(raw);
        // One node each turn.
        process.pause(super::threads::Wait::Turn).await;
    }
}
