//! A session whose answered writes prove it alive, and the time since when they do (P4; `docs/lease.md`).
//!
//! Only the leader of a ZooKeeper ensemble ends sessions. The leader knows what the servers report: every half tick each server
//! reports the sessions that it has heard from since. An answer to a read comes from the server alone and says nothing
//! about the leader: a server that is cut off from its leader answers reads for up to `syncLimit` ticks. A leader that is cut
//! off from the other servers answers a `sync` for as long, while they elect another leader. A write is answered only after
//! the leader has committed it, together with the majority of the servers.
//!
//! A write that was sent at `t` and answered proves:
//!
//! - The leader has received all reports that the server sent before it passed the write on, because they go over one
//!   connection, in order. So the leader knows of each sign of life that the server had at least half a tick before `t`,
//!   and counts from when it got the report, which is later. The write itself may be reported half a tick later.
//! - The server asked the leader for the session by name when the present connection was made. So the leader knows of the
//!   handshake.
//! - No other server led when the write was committed. A server that leads later counts each session anew, from then on.
//!
//! So the session is alive for its timeout, counted from the last sign of life that was half a tick before the write, or
//! from the handshake. A refusal proves as much: the leader has committed it as a transaction that fails.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::watch;

use crate::mutants::mutant;
use crate::registry::{DataFilter, Error, Session, SessionKey, SessionState, Watch};
use crate::runner::clock::Clock;
use crate::tree::{CommitResult, Node, NodeKind, Operation, Path, Quota, SessionId, Transaction, Zxid};

use super::folders::Folders;
use super::together::Together;

/// Half a tick of servers with ZooKeeper's default `tickTime` of two seconds: the longest time between two reports of a server
/// to its leader.
const HALF_TICK: Duration = Duration::from_secs(1);
/// The part of a session's timeout that half a tick takes at most, as a divisor: by default servers grant no timeout of less
/// than two ticks.
const HALF_TICK_PART_MIN: u32 = 4;
/// Of signs of life that are closer to each other only the first is kept, so that few are kept: half of the shortest pause
/// between two proofs.
const GRAIN: Duration = Duration::from_millis(50);
/// The registry's contract has no `sync`, because it proves nothing. The registry of the simulation answers a read of this
/// node as servers answer a `sync`, for the deliberate bug that trusts it.
const SYNC: &str = "sync";

/// The proof of a session. All times are the runner's, monotonic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Proven {
    /// The session is alive for its timeout, counted from then. `None`: nothing is proven.
    pub(crate) since: Option<Duration>,
    /// When the latest answered write was sent. `None`: no write was answered.
    pub(crate) sent: Option<Duration>,
}

/// A session, and what its writes prove.
pub(crate) struct ProvenSession {
    writes: Writes,
    together: Together,
}

/// The writes of a session. Clones share the session.
#[derive(Clone)]
struct Writes {
    session: Arc<dyn Session>,
    clock: Clock,
    notes: Arc<Notes>,
    folders: Folders,
}

struct Notes {
    /// When the session was asked for. It stands for the handshake if the registry does not say when that was sent.
    asked: Duration,
    heard: Mutex<Heard>,
    proven: watch::Sender<Proven>,
}

/// Since when a server has heard from the session over the present connection.
#[derive(Debug)]
struct Heard {
    /// The longest time between two reports of a server to its leader.
    report_interval: Duration,
    /// When the connection's handshake was sent.
    greeted: Duration,
    /// When the answered writes were sent, the oldest first.
    writes: VecDeque<Duration>,
}

impl ProvenSession {
    /// A session that was asked for at this time (monotonic). Nothing is proven of it yet.
    pub(crate) fn new(session: Arc<dyn Session>, clock: Clock, asked: Duration) -> Self {
        let heard = Heard::new(session.timeout());
        let proven = watch::Sender::new(Proven { since: None, sent: None });
        let notes = Arc::new(Notes { asked, heard: Mutex::new(heard), proven });
        let writes = Writes { session, clock: clock.clone(), notes, folders: Folders::default() };
        let all = writes.clone();
        let together = Together::new(clock, Arc::new(move |transaction| all.commit(transaction)));
        Self { writes, together }
    }

    fn session(&self) -> &dyn Session {
        &*self.writes.session
    }

    /// The proof, now and later.
    pub(crate) fn proven(&self) -> watch::Receiver<Proven> {
        self.writes.notes.proven.subscribe()
    }

    /// Sends a write without effect, whose answer is a proof.
    pub(crate) async fn prove(&self) -> Result<(), Error> {
        if mutant!(LeaseProvenByRead) {
            return self.believe(&Path::root()).await;
        }
        if mutant!(LeaseProvenBySync) {
            return self.believe(&Path::root().child(SYNC)).await;
        }
        let result = self.commit(vec![Operation::check(Path::root())]).await;
        match result {
            Err(error) if !is_committed_refusal(&[Operation::check(Path::root())], &error) => {
                Err(error.error)
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

impl ProvenSession {
    /// Creates a folder. `missing`: the folder and those of its parents that are probably missing, topmost first.
    fn create(&self, path: &Path, missing: &[Path]) -> BoxFuture<'static, Result<bool, Error>> {
        let (session, path) = (Arc::clone(&self.writes.session), path.clone());
        let one_by_one = move || session.ensure(&path, NodeKind::Persistent, b"");
        if missing.len() < 2 {
            return one_by_one();
        }
        let create = |folder: &Path| Operation::create(folder.clone(), NodeKind::Persistent, []);
        let created = self.together.commit(missing.iter().map(create).collect());
        Box::pin(async move {
            match created.await {
                Ok(_) => Ok(true),
                // Some of them exist.
                Err(_) => one_by_one().await,
            }
        })
    }

    /// Takes any answer for a proof, as a deliberate bug does.
    async fn believe(&self, path: &Path) -> Result<(), Error> {
        let sent = self.writes.clock.now().mono;
        self.session().get(path).await?;
        let known = Some(sent);
        self.writes.notes.proven.send_modify(|proven| {
            (proven.since, proven.sent) = (proven.since.max(known), proven.sent.max(known));
        });
        Ok(())
    }
}

impl Writes {
    fn commit(&self, transaction: Transaction) -> BoxFuture<'static, CommitResult> {
        if transaction.is_empty() {
            return self.session.commit(transaction);
        }
        let (sent, greeted) = (self.clock.now().mono, self.session.greeted());
        let (steps, notes, folders) = (transaction.clone(), Arc::clone(&self.notes), self.folders.clone());
        let answer = self.session.commit(transaction);
        Box::pin(async move {
            let result = answer.await;
            folders.learn(&result);
            let committed = match &result {
                Ok(_) => true,
                Err(error) => is_committed_refusal(&steps, error),
            };
            if committed {
                notes.record(greeted, sent);
            }
            result
        })
    }
}

impl Notes {
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a write was answered.
    fn record(&self, greeted: Option<Duration>, sent: Duration) {
        let greeted = greeted.unwrap_or(self.asked);
        let Some(since) = self.heard().answered(greeted, sent) else { return };
        self.proven.send_modify(|proven| {
            proven.since = proven.since.max(Some(since));
            proven.sent = proven.sent.max(Some(sent));
        });
    }
}

impl Heard {
    fn new(timeout: Duration) -> Self {
        let report_interval = HALF_TICK.min(timeout / HALF_TICK_PART_MIN);
        Self { report_interval, greeted: Duration::ZERO, writes: VecDeque::new() }
    }

    /// Records an answered write, and the handshake of the connection it was sent over. Returns the latest sign of life that
    /// the leader knows of for certain. `None`: there is another connection now.
    fn answered(&mut self, greeted: Duration, sent: Duration) -> Option<Duration> {
        if sent < greeted || greeted < self.greeted {
            return None;
        }
        if greeted > self.greeted {
            self.greeted = greeted;
            self.writes.clear();
        }
        let reported = sent.saturating_sub(self.report_interval);
        // Of the writes that were surely reported only the last matters.
        while self.writes.get(1).is_some_and(|second| *second <= reported) {
            self.writes.pop_front();
        }
        let known = self.writes.front().copied().filter(|write| *write <= reported);
        if self.writes.back().is_none_or(|last| sent >= last.saturating_add(GRAIN)) {
            self.writes.push_back(sent);
        }
        Some(known.unwrap_or(greeted))
    }
}

/// Whether the registry itself has refused a transaction: the leader orders refusals like commits. `false` if our client
/// refused it without a request, or if no answer came.
fn is_committed_refusal(transaction: &[Operation], error: &crate::tree::CommitError) -> bool {
    let step = error.index.and_then(|index| transaction.get(index));
    match error.error {
        Error::NoNode(_) | Error::NodeExists(_) | Error::BadVersion(_) | Error::NotEmpty(_) => {
            // Our client refuses to create or delete the root.
            step.is_some_and(|step| {
                !step.path().is_root() || matches!(step, Operation::Check { .. } | Operation::Set { .. })
            })
        }
        // Our client may find an access list wrong.
        Error::NoPermission(_) => step.is_some_and(|step| !matches!(step, Operation::Create { .. })),
        Error::ParentIsEphemeral(_) => step.is_some(),
        Error::OutcomeUnknown(_)
        | Error::Suspended
        | Error::SessionLost
        | Error::Unreachable(_)
        | Error::ReadOnly(_)
        | Error::AuthRefused(_)
        | Error::Refused(_) => false,
    }
}

impl Session for ProvenSession {
    fn id(&self) -> SessionId {
        self.session().id()
    }

    fn timeout(&self) -> Duration {
        self.session().timeout()
    }

    fn greeted(&self) -> Option<Duration> {
        self.session().greeted()
    }

    fn key(&self) -> BoxFuture<'_, Option<SessionKey>> {
        self.session().key()
    }

    fn state(&self) -> watch::Receiver<SessionState> {
        self.session().state()
    }

    fn obstacle(&self) -> Option<String> {
        self.session().obstacle()
    }

    fn request_limit(&self) -> Option<usize> {
        self.session().request_limit()
    }

    fn quotas(&self, path: &Path) -> BoxFuture<'static, Result<Vec<Quota>, Error>> {
        self.session().quotas(path)
    }

    fn commit(&self, transaction: Transaction) -> BoxFuture<'static, CommitResult> {
        self.writes.commit(transaction)
    }

    fn commit_with_others(&self, transaction: Transaction) -> BoxFuture<'static, CommitResult> {
        self.together.commit(transaction)
    }

    fn ensure(&self, path: &Path, kind: NodeKind, data: &[u8]) -> BoxFuture<'static, Result<bool, Error>> {
        match (kind, data) {
            (NodeKind::Persistent, []) => {
                self.writes.folders.ensure(path, |missing| self.create(path, missing))
            }
            _ => self.session().ensure(path, kind, data),
        }
    }

    fn get(&self, path: &Path) -> BoxFuture<'static, Result<Option<Node>, Error>> {
        self.session().get(path)
    }

    fn nodes(&self, paths: &[Path]) -> BoxFuture<'static, Result<Vec<Option<Node>>, Error>> {
        self.session().nodes(paths)
    }

    fn children(&self, path: &Path) -> BoxFuture<'static, Result<Option<Vec<String>>, Error>> {
        self.session().children(path)
    }

    fn subtree(&self, root: &Path) -> BoxFuture<'static, Result<Vec<Node>, Error>> {
        self.session().subtree(root)
    }

    fn watch(&self, root: &Path, wants_data: DataFilter) -> BoxFuture<'static, Result<Watch, Error>> {
        self.session().watch(root, wants_data)
    }

    fn watch_node(&self, node: &Path) -> BoxFuture<'static, Result<Watch, Error>> {
        self.session().watch_node(node)
    }

    fn can_skip_ids(&self) -> bool {
        self.session().can_skip_ids()
    }

    fn skip_ids(&self, zxid: Zxid) -> BoxFuture<'static, Result<(), Error>> {
        self.session().skip_ids(zxid)
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        self.session().close()
    }

    fn abandon(&self) -> BoxFuture<'static, ()> {
        self.session().abandon()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::CommitError;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn a_write_proves_the_signs_of_life_from_half_a_tick_before() {
        let mut heard = Heard::new(seconds(30.0));
        // The server has reported the handshake to the leader.
        assert_eq!(heard.answered(seconds(5.0), seconds(5.1)), Some(seconds(5.0)));
        assert_eq!(heard.answered(seconds(5.0), seconds(6.0)), Some(seconds(5.0)));
        // A second later the server has reported the first write.
        assert_eq!(heard.answered(seconds(5.0), seconds(6.1)), Some(seconds(5.1)));
        // After a long pause, and until half a tick after it, only the writes before the pause are surely reported.
        assert_eq!(heard.answered(seconds(5.0), seconds(20.0)), Some(seconds(6.1)));
        assert_eq!(heard.answered(seconds(5.0), seconds(20.9)), Some(seconds(6.1)));
        assert_eq!(heard.answered(seconds(5.0), seconds(21.0)), Some(seconds(20.0)));
    }

    #[test]
    fn another_connection_begins_with_its_handshake() {
        let mut heard = Heard::new(seconds(30.0));
        assert_eq!(heard.answered(seconds(1.0), seconds(2.0)), Some(seconds(1.0)));
        assert_eq!(heard.answered(seconds(9.0), seconds(9.5)), Some(seconds(9.0)));
        // Answers over the former connection prove nothing any more.
        assert_eq!(heard.answered(seconds(1.0), seconds(4.0)), None);
        assert_eq!(heard.answered(seconds(9.0), seconds(8.0)), None);
        assert_eq!(heard.answered(seconds(9.0), seconds(10.5)), Some(seconds(9.5)));
    }

    #[test]
    fn of_many_writes_few_are_kept() {
        let mut heard = Heard::new(seconds(30.0));
        for write in 0..100_000_u32 {
            let sent = Duration::from_micros(100) * write;
            let known = heard.answered(Duration::ZERO, sent).unwrap();
            assert!(known <= sent.saturating_sub(HALF_TICK) && known + HALF_TICK + 2 * GRAIN >= sent);
            assert!(heard.writes.len() <= 22, "{}", heard.writes.len());
        }
    }

    #[test]
    fn short_sessions_have_short_ticks() {
        assert_eq!(Heard::new(seconds(1.0)).report_interval, seconds(0.25));
        assert_eq!(Heard::new(seconds(4.0)).report_interval, seconds(1.0));
    }

    #[test]
    fn only_a_refusal_of_the_registry_is_a_proof() {
        let (root, node) = (Path::root(), Path::root().child("a"));
        let refused = |operation: Operation, error: Error| {
            is_committed_refusal(&[operation], &CommitError { index: Some(0), error })
        };
        assert!(refused(Operation::check(root.clone()), Error::NoPermission(root.clone())));
        assert!(refused(Operation::check(node.clone()), Error::NoNode(node.clone())));
        assert!(refused(
            Operation::create(node.clone(), NodeKind::Ephemeral, []),
            Error::NodeExists(node.clone())
        ));
        // Our client refuses these without a request.
        assert!(!refused(
            Operation::create(root.clone(), NodeKind::Ephemeral, []),
            Error::NodeExists(root.clone())
        ));
        assert!(!refused(Operation::check(root.clone()), Error::Refused("too much is in flight".to_owned())));
        let unanswered = CommitError::from(Error::OutcomeUnknown("no answer in time".to_owned()));
        assert!(!is_committed_refusal(&[Operation::check(root)], &unanswered));
    }
}
