//! What a sidecar has of the registry: the trait that its code is written against.

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

use super::line::Needs;
use super::{CONNECTION_TIMEOUT, Ensemble, Member, REQUEST_TIMEOUT, Up, Watched};
use crate::executor::Process;
use crate::machine::Virtual;

/// The registry as a process reaches it.
pub struct ClientRegistry {
    pub ensemble: Ensemble,
    pub process: Process,
    /// Whether the process lives: a dead one ends no session.
    pub alive: Arc<AtomicBool>,
    /// Whose clock says when connections were made.
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
    /// Connects, and does something there; the connection takes its time, and may not come about.
    fn connect(
        &self,
        work: impl FnOnce(&Ensemble, Process, &Arc<AtomicBool>) -> Opened + Send + 'static,
    ) -> BoxFuture<'static, Opened> {
        let (reply, answer) = oneshot::channel();
        let (ensemble, process, alive) = (self.ensemble.clone(), self.process, Arc::clone(&self.alive));
        let weather = ensemble.lock().weather;
        let takes = ensemble.hop(weather) * 4;
        let blocked = move |ensemble: &Ensemble| {
            let inner = ensemble.lock();
            inner.cut_off.contains(&process) || inner.apart.contains_key(&process)
        };
        let unreachable = || Err(Error::Unreachable("no server answers".to_owned()));
        if blocked(&ensemble) {
            ensemble.timeline.clone().after(CONNECTION_TIMEOUT, move |_| drop(reply.send(unreachable())));
        } else {
            ensemble.timeline.clone().after(takes, move |_| {
                let opened =
                    if blocked(&ensemble) { unreachable() } else { work(&ensemble, process, &alive) };
                // Nobody waits if the process is stopping.
                drop(reply.send(opened));
                if !alive.load(Ordering::Relaxed) {
                    ensemble.bury(process);
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
        // A killed process says nothing, and its successor may have the session.
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
        // One for each who asks: those who wait for the same one are woken in an order that nobody knows.
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
        // See the runner's proof of a session: what stands for a `sync`.
        let needs = if path.as_str() == "/sync" { Needs::Leader } else { Needs::Itself };
        self.ensemble.send(self.id, needs, move |server| server.get(&path).now_or_never().unwrap())
    }

    fn children(&self, path: &Path) -> BoxFuture<'static, Result<Option<Vec<String>>, Error>> {
        let path = path.clone();
        let children = move |server: &dyn Session| server.children(&path).now_or_never().unwrap();
        self.ensemble.send(self.id, Needs::Itself, children)
    }

    fn watch(&self, root: &Path, wants_data: DataFilter) -> BoxFuture<'static, Result<Watch, Error>> {
        let (client, watch) = watch_channel();
        let mut inner = self.ensemble.lock();
        inner.last += 1;
        let (number, weather) = (inner.last, inner.weather);
        let member = inner.sessions.get_mut(&self.id);
        let Some(member) = member.filter(|member| member.state != SessionState::Lost) else {
            return Box::pin(ready(Err(Error::SessionLost)));
        };
        member.watches.retain(|_, watched| !watched.client.is_closed());
        let watched = Watched { root: root.clone(), wants_data, client, server: None };
        member.watches.insert(number, watched);
        // While the connection is broken, the next one brings the snapshot.
        if member.state == SessionState::Connected {
            self.ensemble.send_up(self.id, member, weather, Up::Watch(number));
        }
        Box::pin(ready(Ok(watch)))
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        if !self.ensemble.leave(self.id) {
            return Box::pin(ready(()));
        }
        let (reply, answer) = oneshot::channel::<()>();
        let (ensemble, id) = (self.ensemble.clone(), self.id);
        let weather = ensemble.lock().weather;
        let takes = ensemble.hop(weather);
        let timeline = ensemble.timeline.clone();
        timeline.after(takes, move |_| ensemble.say_goodbye(id, reply));
        Box::pin(answer.map(drop))
    }

    fn abandon(&self) -> BoxFuture<'static, ()> {
        // The servers hear nothing any more, and end the session in their time.
        self.ensemble.leave(self.id);
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
    /// A client's farewell has arrived, unless nothing does.
    fn say_goodbye(&self, id: SessionId, reply: oneshot::Sender<()>) {
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
        let back = self.hop(self.lock().weather);
        self.timeline.after(back, move |_| reply.send(()).unwrap_or_default());
    }
}
