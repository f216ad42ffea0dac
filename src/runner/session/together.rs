//! The transactions of several participants in one request.
//!
//! When a fleet starts, when a sidecar drains, when a thousand jobs fire at one instant, hundreds of participants of a sidecar
//! commit small transactions at the same moment. A request for each costs the registry as many log entries, and all other
//! sidecars as many reads. So those that meet here travel together, in the order of the calls.
//!
//! No transaction waits for another one to come. The participants that are ready to run are let run first; then one
//! transaction is sent alone, and several as one. While one of several is in flight, or [`ALONE_MAX`] single ones, the
//! next ones gather.
//!
//! Only transactions that do not concern each other travel together: none changes a node that a later one checks, changes,
//! or has as a parent. So if the registry refuses one, that is what it would have answered to this one alone; it alone
//! has failed, and the others are sent again without it. Nothing else is sent meanwhile, so the order is kept.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::runner::clock::Clock;
use crate::runner::waiting::let_others_run;
use crate::tree::{CommitError, CommitResult, Error, Operation, OperationResult, Path, Transaction};

/// The most bytes of a request with several transactions: a fourth of what a transaction may have. A server keeps its last 500
/// requests in memory.
const BYTES_MAX: usize = 128 * 1024;
/// The single transactions in flight from which on further ones gather.
const ALONE_MAX: usize = 16;
/// The refusals after which the rest of a request is sent one by one.
const REFUSALS_MAX: usize = 4;

/// Sends a transaction at the call.
type Commit = Arc<dyn Fn(Transaction) -> BoxFuture<'static, CommitResult> + Send + Sync>;

/// The transactions of one session. Dropping it loses none of them.
pub(super) struct Together {
    clock: Clock,
    commit: Commit,
    alone: Arc<Semaphore>,
    waiting: Arc<Mutex<Waiting>>,
}

/// The transactions that have not been sent. There are at most as many as participants times their purposes.
#[derive(Default)]
struct Waiting {
    entries: VecDeque<Entry>,
    /// Whether a task sends them.
    is_sending: bool,
}

struct Entry {
    transaction: Transaction,
    answer: oneshot::Sender<CommitResult>,
}

impl Together {
    /// Commits with this function.
    pub(super) fn new(clock: Clock, commit: Commit) -> Self {
        Self { clock, commit, alone: Arc::new(Semaphore::new(ALONE_MAX)), waiting: Arc::default() }
    }

    /// Commits a transaction, perhaps together with others.
    pub(super) fn commit(&self, transaction: Transaction) -> BoxFuture<'static, CommitResult> {
        if transaction.is_empty() {
            return (self.commit)(transaction);
        }
        let (answer, answered) = oneshot::channel();
        let mut waiting = lock(&self.waiting);
        waiting.entries.push_back(Entry { transaction, answer });
        if !std::mem::replace(&mut waiting.is_sending, true) {
            let (clock, commit) = (self.clock.clone(), Arc::clone(&self.commit));
            let (alone, waiting) = (Arc::clone(&self.alone), Arc::clone(&self.waiting));
            // Ends when no transaction waits. The registry bounds the time of each.
            self.clock.spawn(send(clock, commit, alone, waiting));
        }
        drop(waiting);
        Box::pin(async move {
            let ended =
                || CommitError::from(Error::OutcomeUnknown("the task that sends it has ended".to_owned()));
            answered.await.unwrap_or_else(|_| Err(ended()))
        })
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn send(clock: Clock, commit: Commit, alone: Arc<Semaphore>, waiting: Arc<Mutex<Waiting>>) {
    loop {
        let_others_run().await;
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&alone).acquire_owned().await else { return };
        let mut batch = {
            let mut waiting = lock(&waiting);
            let batch = next_batch(&mut waiting.entries);
            if batch.is_empty() {
                waiting.is_sending = false;
                return;
            }
            batch
        };
        match batch.pop() {
            Some(only) if batch.is_empty() => send_alone(&clock, &commit, permit, only),
            last => {
                batch.extend(last);
                send_together(&commit, batch).await;
            }
        }
    }
}

/// Sends a single transaction. Does not wait for its answer.
fn send_alone(
    clock: &Clock,
    commit: &Commit,
    permit: OwnedSemaphorePermit,
    Entry { transaction, answer }: Entry,
) {
    let committing = commit(transaction);
    // Ends with the answer.
    clock.spawn(async move {
        // A participant that has ended needs no answer.
        let _ = answer.send(committing.await);
        drop(permit);
    });
}

/// Sends transactions as one, until all are answered.
async fn send_together(commit: &Commit, mut batch: Vec<Entry>) {
    for _ in 0..REFUSALS_MAX {
        if batch.len() < 2 {
            break;
        }
        let all = batch.iter().flat_map(|entry| entry.transaction.iter().cloned()).collect();
        match commit(all).await {
            Ok(results) => return answer_all(batch, results),
            Err(CommitError { index: Some(index), error }) => {
                let Some((refused, step)) = find(&batch, index) else { break };
                let _ = batch.remove(refused).answer.send(Err(CommitError { index: Some(step), error }));
            }
            // The request may be too large for the servers.
            Err(CommitError { index: None, error: Error::Refused(_) }) => break,
            Err(error) => {
                for entry in batch {
                    let _ = entry.answer.send(Err(error.clone()));
                }
                return;
            }
        }
    }
    let sent: Vec<_> =
        batch.into_iter().map(|Entry { transaction, answer }| (commit(transaction), answer)).collect();
    for (committing, answer) in sent {
        let _ = answer.send(committing.await);
    }
}

/// Gives each transaction its part of the results.
fn answer_all(batch: Vec<Entry>, results: Vec<OperationResult>) {
    let mut results = results.into_iter();
    for Entry { transaction, answer } in batch {
        let _ = answer.send(Ok(results.by_ref().take(transaction.len()).collect()));
    }
}

/// The transaction to which a step of all belongs, and the step's place there.
fn find(batch: &[Entry], step: usize) -> Option<(usize, usize)> {
    let mut first = 0;
    for (place, entry) in batch.iter().enumerate() {
        if step < first + entry.transaction.len() {
            return Some((place, step.saturating_sub(first)));
        }
        first += entry.transaction.len();
    }
    None
}

/// The first transactions that may travel together. A single one always may.
fn next_batch(entries: &mut VecDeque<Entry>) -> Vec<Entry> {
    let (mut bytes, mut changes) = (0, Changes::default());
    let mut may = |entry: &&Entry| {
        bytes += entry.transaction.iter().map(Operation::wire_size).sum::<usize>();
        let alike = bytes <= BYTES_MAX && !changes.concern(&entry.transaction);
        changes.add(&entry.transaction);
        alike
    };
    let count = entries.iter().take_while(|entry| may(entry)).count().max(1).min(entries.len());
    entries.drain(..count).collect()
}

/// The nodes that transactions change.
#[derive(Default)]
struct Changes(BTreeMap<Path, Change>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    /// Only its data.
    Set,
    /// It is created or deleted.
    Exists,
    /// A node below it is created or deleted.
    Children,
}

impl Changes {
    fn add(&mut self, transaction: &[Operation]) {
        for step in transaction {
            let change = match step {
                Operation::Create { .. } | Operation::Delete { .. } => Change::Exists,
                Operation::Set { .. } => Change::Set,
                Operation::Check { .. } => continue,
            };
            if change == Change::Exists
                && let Some(parent) = step.path().parent()
            {
                self.0.entry(parent).or_insert(Change::Children);
            }
            let known = self.0.entry(step.path().clone()).or_insert(change);
            if *known != Change::Exists {
                *known = change;
            }
        }
    }

    /// Whether the outcome of a transaction may depend on them.
    fn concern(&self, transaction: &[Operation]) -> bool {
        transaction.iter().any(|step| {
            let parent = || step.path().parent().and_then(|parent| self.0.get(&parent).copied());
            match (self.0.get(step.path()), step) {
                (Some(Change::Exists), _) => true,
                (Some(Change::Set), Operation::Set { version: None, .. }) => false,
                (Some(Change::Set), _) => true,
                (Some(Change::Children), Operation::Delete { .. }) => true,
                (Some(Change::Children) | None, Operation::Create { .. }) => parent() == Some(Change::Exists),
                (Some(Change::Children) | None, _) => false,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use futures::FutureExt;

    use super::*;
    use crate::tree::NodeKind;

    fn path(text: &str) -> Path {
        Path::parse(text).unwrap()
    }

    fn create(text: &str) -> Operation {
        Operation::create(path(text), NodeKind::Persistent, "")
    }

    fn check(text: &str) -> Operation {
        Operation::Check { path: path(text), version: Some(1) }
    }

    /// How many of these transactions travel together, and how many with the next request.
    fn batches(transactions: Vec<Transaction>) -> Vec<usize> {
        let entry = |transaction| Entry { transaction, answer: oneshot::channel().0 };
        let mut entries: VecDeque<_> = transactions.into_iter().map(entry).collect();
        std::iter::from_fn(|| Some(next_batch(&mut entries).len()).filter(|count| *count > 0)).collect()
    }

    #[test]
    fn transactions_that_do_not_concern_each_other_travel_together() {
        let set = |text: &str| Operation::set(path(text), "");
        let delete = |text: &str| Operation::delete(path(text));
        assert_eq!(batches(vec![vec![create("/a"), check("/x")], vec![create("/b"), check("/x")]]), [2]);
        // Both count the same thing; neither can fail because of the other.
        assert_eq!(batches(vec![vec![set("/x"), delete("/a")], vec![set("/x"), delete("/b")]]), [2]);
        // An earlier check does not depend on what comes later.
        assert_eq!(batches(vec![vec![check("/x")], vec![set("/x")]]), [2]);
        for (earlier, later) in [
            (create("/a"), create("/a")),
            (create("/a"), create("/a/b")),
            (create("/a/b"), delete("/a")),
            (delete("/a"), set("/a")),
            (set("/x"), check("/x")),
            (set("/x"), delete("/x")),
            (delete("/a/b"), delete("/a")),
        ] {
            let case = format!("{earlier:?} {later:?}");
            assert_eq!(batches(vec![vec![earlier], vec![create("/other"), later]]), [1, 1], "{case}");
        }
    }

    #[test]
    fn a_request_has_a_limit_and_a_larger_transaction_travels_alone() {
        let of = |bytes: usize| vec![Operation::set(path(&format!("/{bytes}")), "x".repeat(bytes))];
        assert_eq!(batches(vec![of(BYTES_MAX / 2), of(BYTES_MAX / 3), of(BYTES_MAX / 4)]), [2, 1]);
        assert_eq!(batches(vec![of(2 * BYTES_MAX), of(1), of(2)]), [1, 2]);
        assert_eq!(batches(Vec::new()), [0; 0]);
    }

    /// Commits as a registry does that has the nodes below `/there` only. Writes down the paths of each request.
    #[derive(Clone, Default)]
    struct Server {
        requests: Arc<Mutex<Vec<Vec<String>>>>,
        /// The most steps of a request that it accepts. Zero: any.
        steps_max: usize,
    }

    impl Server {
        fn commit(&self, transaction: &[Operation]) -> CommitResult {
            let paths = transaction.iter().map(|step| step.path().as_str().to_owned()).collect();
            self.requests.lock().unwrap().push(paths);
            if self.steps_max > 0 && transaction.len() > self.steps_max {
                return Err(CommitError::from(Error::Refused("too large".to_owned())));
            }
            let missing = transaction.iter().position(|step| !step.path().is_within(&path("/there")));
            match missing.and_then(|index| Some((index, transaction.get(index)?))) {
                Some((_, step)) if step.path().as_str() == "/unknown" => {
                    Err(CommitError::from(Error::OutcomeUnknown("no answer".to_owned())))
                }
                Some((index, step)) => {
                    Err(CommitError { index: Some(index), error: Error::NoNode(step.path().clone()) })
                }
                None => Ok(transaction.iter().map(|_| OperationResult::Checked).collect()),
            }
        }

        /// Commits transactions that set these paths, all at once. Returns the results in their order.
        async fn commit_all(&self, transactions: &[&[&str]]) -> Vec<CommitResult> {
            let server = self.clone();
            let commit: Commit = Arc::new(move |transaction| ready(server.commit(&transaction)).boxed());
            let together = Together::new(Clock::start(), commit);
            let set = |text: &&str| Operation::set(path(text), "");
            let committing: Vec<_> =
                transactions.iter().map(|paths| together.commit(paths.iter().map(set).collect())).collect();
            futures::future::join_all(committing).await
        }

        fn requests(&self) -> Vec<usize> {
            self.requests.lock().unwrap().iter().map(Vec::len).collect()
        }
    }

    #[tokio::test]
    async fn transactions_at_the_same_moment_are_one_request_and_each_gets_its_results() {
        let server = Server::default();
        let results = server.commit_all(&[&["/there/1"], &["/there/2", "/there/3"], &["/there/4"]]).await;
        assert_eq!(
            results.iter().map(|result| result.as_ref().unwrap().len()).collect::<Vec<_>>(),
            [1, 2, 1]
        );
        assert_eq!(server.requests(), [4]);
    }

    #[tokio::test]
    async fn a_refused_transaction_fails_alone_with_its_own_step() {
        let server = Server::default();
        let results = server.commit_all(&[&["/there/1"], &["/there/2", "/missing"], &["/there/4"]]).await;
        let refused = CommitError { index: Some(1), error: Error::NoNode(path("/missing")) };
        assert_eq!(results[1], Err(refused));
        assert!(results[0].is_ok() && results[2].is_ok());
        assert_eq!(server.requests(), [4, 2]);
    }

    #[tokio::test]
    async fn after_some_refusals_the_others_are_sent_one_by_one() {
        let server = Server::default();
        let results =
            server.commit_all(&[&["/1"], &["/2"], &["/3"], &["/4"], &["/there/5"], &["/there/6"]]).await;
        assert_eq!(results.iter().filter(|result| result.is_err()).count(), 4);
        assert_eq!(server.requests(), [6, 5, 4, 3, 1, 1]);
    }

    #[tokio::test]
    async fn a_request_that_is_too_large_for_the_servers_is_sent_in_parts() {
        let server = Server { steps_max: 2, ..Server::default() };
        let results = server.commit_all(&[&["/there/1", "/there/2"], &["/there/3"]]).await;
        assert!(results.iter().all(Result::is_ok));
        assert_eq!(server.requests(), [3, 2, 1]);
    }

    #[tokio::test]
    async fn an_unknown_outcome_is_unknown_for_all_that_travelled_together() {
        let server = Server::default();
        let results = server.commit_all(&[&["/there/1"], &["/unknown"]]).await;
        let is_unknown = |result: &CommitResult| matches!(result, Err(error) if matches!(error.error, Error::OutcomeUnknown(_)));
        assert!(results.iter().all(is_unknown));
    }
}
