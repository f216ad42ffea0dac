//! The registry as a sidecar sees it: the trait that its code uses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use sidekeeper::registry::{
    CommitError, DataFilter, Error, Registry, Session, SessionKey, SessionState, Watch, watch_channel,
};
use sidekeeper::tree::{Node, NodeKind, Operation, OperationResult, Path, SessionId, Transaction};
use tokio::sync::{oneshot, watch};

use super::queue::Needs;
use super::{CONNECTION_TIMEOUT, Ensemble, Member, REQUEST_TIMEOUT, Up, Watched};
use crate::executor::Process;
use crate::machine::Virtual;

/// The registry as a process reaches it.
pub struct ClientRegistry {
    pub ensemble: Ensemble,
    pub process: Process,
    /// Whether the process lives: a dead one ends no session.
    pub alive: Arc<AtomicBool>,
    /// The machine whose clock measures the time of connections.
    pub machine: Arc<Virtual>,
}

struct ClientSession {
    ensemble: Ensemble,
    id: SessionId,
    timeout: Duration,
    password: Vec<u8>,
    alive: Arc<AtomicBool>,
    machine: Arc<Virtual>,
}

type Opened = Result<Option<Arc<dyn Session>>, Error>;

impl ClientRegistry {
    /// Connects, and runs `work` on the server. The connection takes time, and may fail.
    fn connect(
        &self,
        work: impl FnOnce(&Ensemble, Process, &Arc<AtomicBool>) -> Opened + Send + 'static,
    ) -> BoxFuture<'static, Opened> {
        let (reply, answer) = oneshot::channel();
        let (ensemble, process, alive) = (self.ensemble.clone(), self.process, Arc::clone(&self.alive));
        let network = ensemble.lock().network;
        let takes = ensemble.hop(network) * 4;
        let blocked = move |ensemble: &Ensemble| {
            let inner = ensemble.lock();
            inner.cut_off.contains(&process) || inner.partitioned.contains_key(&process)
        };
        let unreachable = || Err(Error::Unreachable("no server answers".to_owned()));
        if blocked(&ensemble) {
            ensemble.timeline.clone().after(CONNECTION_TIMEOUT, move |_| drop(reply.send(unreachable())));
        } else {
            ensemble.timeline.clone().after(takes, move |_| {
                let opened =
                    if blocked(&ensemble) { unreachable() } else { work(&ensemble, process, &alive) };
                // A process that is stopping does not wait for the answer.
                drop(reply.send(opened));
                if !alive.load(Ordering::Relaxed) {
                    ensemble.break_connections_of(process);
                }
            });
        }
        Box::pin(answer.map(move |answer| answer.unwrap_or_else(|_| unreachable())))
    }
}

impl Registry for ClientRegistry {
    fn open(&self) -> BoxFuture<'_, Result<Arc<dyn Session>, Error>> {
        let (asked, machine) = (self.ensemble.timeline.now(), Arc::clone(&self.machine));
        let opened = self.connect(move |ensemble, process, alive| {
            let session = ensemble.outside();
            let id = session.id();
            let number = ensemble.timeline.chance(crate::random::Random::next);
            let password = number.to_be_bytes().to_vec();
            let timeout = ensemble.lock().timeout;
            let member = Member {
                process,
                alive: Arc::clone(alive),
                password: password.clone(),
                timeout,
                session,
                over: false,
                silent_since: None,
                greeted: asked,
                connection: 0,
                up: Default::default(),
                down: Default::default(),
                state: SessionState::Connected,
                states: Vec::new(),
                asked: Default::default(),
                watches: Default::default(),
            };
            ensemble.lock().sessions.insert(id, member);
            ensemble.timeline.log(format!("session {id} opened by process {}", process.0));
            let (ensemble, alive) = (ensemble.clone(), Arc::clone(alive));
            let session = ClientSession { ensemble, id, timeout, password, alive, machine };
            Ok(Some(Arc::new(session) as Arc<dyn Session>))
        });
        Box::pin(opened.map(|opened| opened?.ok_or(Error::SessionLost)))
    }

    fn reopen<'a>(&'a self, key: &'a SessionKey) -> BoxFuture<'a, Result<Option<Arc<dyn Session>>, Error>> {
        let key = key.clone();
        let (asked, machine) = (self.ensemble.timeline.now(), Arc::clone(&self.machine));
        self.connect(move |ensemble, process, alive| {
            let mut inner = ensemble.lock();
            let member = inner.sessions.get_mut(&key.id);
            let member = member.filter(|member| !member.over && member.password == key.password);
            let Some(member) = member else { return Ok(None) };
            member.process = process;
            member.alive = Arc::clone(alive);
            member.connection += 1;
            member.greeted = asked;
            member.silent_since = None;
            (member.states, member.asked, member.watches) = Default::default();
            member.up.clear();
            member.down.clear();
            member.state = SessionState::Connected;
            let timeout = member.timeout;
            ensemble.timeline.log(format!("session {} reopened by process {}", key.id, process.0));
            ensemble.timeline.fault("session resumed");
            let (ensemble, alive) = (ensemble.clone(), Arc::clone(alive));
            let (id, password) = (key.id, key.password);
            let session = ClientSession { ensemble, id, timeout, password, alive, machine };
            Ok(Some(Arc::new(session) as Arc<dyn Session>))
        })
    }

    fn describe(&self) -> String {
        "simulated".to_owned()
    }
}

impl Drop for ClientSession {
    fn drop(&mut self) {
        // A killed process sends nothing, and its successor may have the session.
        if self.alive.load(Ordering::Relaxed) {
            drop(self.close());
        }
    }
}

impl Session for ClientSession {
    fn id(&self) -> SessionId {
        self.id
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn greeted(&self) -> Option<Duration> {
        let inner = self.ensemble.lock();
        let member = inner.sessions.get(&self.id).filter(|member| member.state == SessionState::Connected)?;
        Some(self.machine.mono_at(member.greeted))
    }

    fn key(&self) -> BoxFuture<'_, Option<SessionKey>> {
        let key = SessionKey { id: self.id, password: self.password.clone(), timeout: self.timeout };
        Box::pin(ready(Some(key)))
    }

    fn state(&self) -> watch::Receiver<SessionState> {
        // One channel for each caller: tasks that wait for one channel are woken in an unknown order.
        let mut inner = self.ensemble.lock();
        let member = inner.sessions.get_mut(&self.id);
        let (sender, receiver) =
            watch::channel(member.as_ref().map_or(SessionState::Lost, |member| member.state));
        if let Some(member) = member {
            member.states.push(sender);
        }
        receiver
    }

    fn commit(
        &self,
        transaction: Transaction,
    ) -> BoxFuture<'static, Result<Vec<OperationResult>, CommitError>> {
        let timeline = self.ensemble.timeline.clone();
        let handed_over = Arc::clone(&self.ensemble.handed_over);
        let id = self.id;
        self.ensemble.send(id, Needs::Quorum, move |server| {
            let steps = transaction.iter().map(step).collect::<Vec<_>>().join(" ");
            let by_plan = transaction.iter().any(|step| step.path().name() == "handoff");
            let given = transaction.iter().filter(|step| matches!(step, Operation::Create { .. }));
            let given: Vec<_> = given.map(|step| step.path().clone()).collect();
            let result = server.commit(transaction).now_or_never().unwrap();
            for path in given.into_iter().filter(|path| result.is_ok() && path.name() == "instance") {
                let mut handed_over = handed_over.lock().unwrap();
                _ = if by_plan { handed_over.insert(path) } else { handed_over.remove(&path) };
            }
            let outcome = result.as_ref().map_or_else(|error| format!(": {error}"), |_| String::new());
            timeline.log(format!("session {id}: {steps}{outcome}"));
            result
        })
    }

    fn ensure(&self, path: &Path, kind: NodeKind, data: &[u8]) -> BoxFuture<'static, Result<bool, Error>> {
        let (path, data) = (path.clone(), data.to_vec());
        let ensure = move |server: &dyn Session| server.ensure(&path, kind, &data).now_or_never().unwrap();
        self.ensemble.send(self.id, Needs::Quorum, ensure)
    }

    fn get(&self, path: &Path) -> BoxFuture<'static, Result<Option<Node>, Error>> {
        let path = path.clone();
        // In the runner's proof of a session, a read of this path stands for a `sync`.
        let needs = if path.as_str() == "/sync" { Needs::Leader } else { Needs::OneServer };
        self.ensemble.send(self.id, needs, move |server| server.get(&path).now_or_never().unwrap())
    }

    fn children(&self, path: &Path) -> BoxFuture<'static, Result<Option<Vec<String>>, Error>> {
        let path = path.clone();
        let children = move |server: &dyn Session| server.children(&path).now_or_never().unwrap();
        self.ensemble.send(self.id, Needs::OneServer, children)
    }

    fn watch(&self, root: &Path, wants_data: DataFilter) -> BoxFuture<'static, Result<Watch, Error>> {
        let (client, watch) = watch_channel();
        let mut inner = self.ensemble.lock();
        inner.last += 1;
        let (number, network) = (inner.last, inner.network);
        let member = inner.sessions.get_mut(&self.id);
        let Some(member) = member.filter(|member| member.state != SessionState::Lost) else {
            return Box::pin(ready(Err(Error::SessionLost)));
        };
        member.watches.retain(|_, watched| !watched.client.is_closed());
        let watched = Watched { root: root.clone(), wants_data, client, server: None };
        member.watches.insert(number, watched);
        // While the connection is broken, the next one brings the snapshot.
        if member.state == SessionState::Connected {
            self.ensemble.send_up(self.id, member, network, Up::Watch(number));
        }
        Box::pin(ready(Ok(watch)))
    }

    fn watch_node(&self, node: &Path) -> BoxFuture<'static, Result<Watch, Error>> {
        self.watch(node, Arc::new(|_| true))
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        if !self.ensemble.end_by_client(self.id) {
            return Box::pin(ready(()));
        }
        let (reply, answer) = oneshot::channel::<()>();
        let (ensemble, id) = (self.ensemble.clone(), self.id);
        let network = ensemble.lock().network;
        let takes = ensemble.hop(network);
        let timeline = ensemble.timeline.clone();
        timeline.after(takes, move |_| ensemble.close_arrives(id, reply));
        Box::pin(answer.map(drop))
    }

    fn abandon(&self) -> BoxFuture<'static, ()> {
        // The servers hear nothing more from the client, and end the session after its timeout.
        self.ensemble.end_by_client(self.id);
        Box::pin(ready(()))
    }
}

/// A step of a transaction, for the log.
fn step(step: &Operation) -> String {
    let path = step.path().as_str();
    let path = path.strip_prefix("/ns/").unwrap_or(path);
    match step {
        Operation::Create { .. } => format!("+{path}"),
        Operation::Set { .. } => format!("={path}"),
        Operation::Delete { .. } => format!("-{path}"),
        Operation::Check { .. } => format!("?{path}"),
    }
}

impl Ensemble {
    /// The client's request to close the session arrives, unless the connection is blocked.
    fn close_arrives(&self, id: SessionId, reply: oneshot::Sender<()>) {
        let (session, blocked) = {
            let inner = self.lock();
            let Some(member) = inner.sessions.get(&id) else { return };
            (Arc::clone(&member.session), inner.is_blocked(member))
        };
        if blocked {
            self.timeline.after(REQUEST_TIMEOUT, move |_| reply.send(()).unwrap_or_default());
            return;
        }
        self.end(id, &*session);
        self.timeline.log(format!("session {id} closed"));
        let back = self.hop(self.lock().network);
        self.timeline.after(back, move |_| reply.send(()).unwrap_or_default());
    }
}
