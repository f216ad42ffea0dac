//! A server that is cut off from the others. From its old state, it answers the requests that it can answer alone: reads
//! as a follower, and also a `sync` as a leader. Meanwhile the other servers end the sessions of its clients.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use sidekeeper::registry::{DataFilter, Error, Session, SessionKey, SessionState, Watch};
use sidekeeper::tree::{CommitResult, Node, NodeKind, Path, SessionId, Transaction, WatchEvent};
use tokio::sync::watch;

use super::Ensemble;
use crate::executor::Process;

/// The shortest and the longest time until the server notices the partition, in milliseconds (`syncLimit` ticks).
const UNNOTICED: (u64, u64) = (1_000, 4_000);
/// The longest time until the others have elected another leader, in milliseconds.
const ELECTION_MAX: u64 = 1_000;

/// The state of a server that is cut off.
pub(super) struct PartitionedServer {
    /// Whether it led.
    pub(super) leads: bool,
    nodes: BTreeMap<Path, Node>,
}

impl Ensemble {
    /// Cuts the server of a process off from the others. After the server notices, the process reaches no server.
    pub fn partition_server_of(&self, process: Process, leads: bool) {
        let watch = self.outside().watch(&Path::root(), Arc::new(|_: &Path| false));
        let mut watch = watch.now_or_never().unwrap().unwrap();
        let Ok(WatchEvent::Snapshot(nodes)) = watch.try_recv() else { return };
        let nodes = nodes.into_iter().map(|node| (node.path.clone(), node)).collect();
        self.lock().partitioned.insert(process, PartitionedServer { leads, nodes });
        for id in self.sessions_of(process) {
            if leads {
                // A new leader restarts the timeout of each session.
                let elected = self.timeline.chance(|random| random.millis(0, ELECTION_MAX));
                self.fall_silent_since(id, self.timeline.now() + elected);
            } else {
                self.fall_silent(id);
            }
        }
        let notices = self.timeline.chance(|random| random.millis(UNNOTICED.0, UNNOTICED.1));
        let ensemble = self.clone();
        self.timeline.after(notices, move |_| ensemble.notice_partition(process));
    }

    fn notice_partition(&self, process: Process) {
        if self.lock().partitioned.remove(&process).is_none() {
            return;
        }
        self.timeline.log(format!("servers: the one of process {} notices that it is cut off", process.0));
        self.set_cut_off(process, true);
        for id in self.sessions_of(process) {
            self.break_connection(id, "server stopped serving");
        }
    }

    /// Ends the partition. Requests that needed the other servers are never answered. `cut_off`: the process reaches no
    /// server.
    pub fn rejoin_server_of(&self, process: Process, cut_off: bool) {
        if self.lock().partitioned.remove(&process).is_some() {
            for id in self.sessions_of(process) {
                self.break_connection(id, "server follows again");
            }
        }
        if !cut_off {
            self.set_cut_off(process, false);
        }
    }
}

/// Answers reads; it gets no other request.
impl Session for PartitionedServer {
    fn id(&self) -> SessionId {
        SessionId(0)
    }

    fn timeout(&self) -> Duration {
        Duration::MAX
    }

    fn greeted(&self) -> Option<Duration> {
        None
    }

    fn key(&self) -> BoxFuture<'_, Option<SessionKey>> {
        Box::pin(ready(None))
    }

    fn state(&self) -> watch::Receiver<SessionState> {
        watch::channel(SessionState::Connected).1
    }

    fn commit(&self, _: Transaction) -> BoxFuture<'static, CommitResult> {
        Box::pin(ready(Err(Error::Suspended.into())))
    }

    fn ensure(&self, _: &Path, _: NodeKind, _: &[u8]) -> BoxFuture<'static, Result<bool, Error>> {
        Box::pin(ready(Err(Error::Suspended)))
    }

    fn get(&self, path: &Path) -> BoxFuture<'static, Result<Option<Node>, Error>> {
        Box::pin(ready(Ok(self.nodes.get(path).cloned())))
    }

    fn children(&self, path: &Path) -> BoxFuture<'static, Result<Option<Vec<String>>, Error>> {
        let below = self.nodes.keys().filter(|node| node.parent().as_ref() == Some(path));
        let names = below.map(|node| node.name().to_owned()).collect();
        Box::pin(ready(Ok(self.nodes.contains_key(path).then_some(names))))
    }

    fn watch(&self, _: &Path, _: DataFilter) -> BoxFuture<'static, Result<Watch, Error>> {
        Box::pin(ready(Err(Error::SessionLost)))
    }

    fn watch_node(&self, _: &Path) -> BoxFuture<'static, Result<Watch, Error>> {
        Box::pin(ready(Err(Error::SessionLost)))
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        Box::pin(ready(()))
    }

    fn abandon(&self) -> BoxFuture<'static, ()> {
        Box::pin(ready(()))
    }
}
