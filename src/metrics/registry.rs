//! A registry whose requests are counted and timed.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::watch;

use super::meters::Meters;
use super::words::{Answer, Request};
use crate::registry::{CommitError, DataFilter, Error, Registry, Session, SessionKey, SessionState, Watch};
use crate::tree::{Node, NodeKind, OperationResult, Path, Quota, SessionId, Transaction, Zxid};

/// The time, on a monotonic clock.
pub type Now = Arc<dyn Fn() -> Duration + Send + Sync>;

/// A registry with counters.
pub struct Metered {
    registry: Arc<dyn Registry>,
    counting: Counting,
}

#[derive(Clone)]
struct Counting {
    meters: Meters,
    now: Now,
}

struct MeteredSession {
    session: Arc<dyn Session>,
    counting: Counting,
}

impl Metered {
    /// Counts the requests to a registry.
    pub fn new(registry: Arc<dyn Registry>, meters: Meters, now: Now) -> Self {
        Self { registry, counting: Counting { meters, now } }
    }
}

impl Counting {
    fn count<T, E: Refused>(&self, kind: Request, since: Duration, result: &Result<T, E>) {
        let answer = result.as_ref().err().map_or(Answer::Done, |error| answer_of(error.error()));
        self.meters.requested(kind, answer, (self.now)().saturating_sub(since));
    }

    /// Counts a request when its answer is there, and until then as one that waits. A request that nobody awaits any more does not wait.
    fn on<T: Send + 'static, E: Refused + Send + 'static>(
        &self,
        kind: Request,
        asked: BoxFuture<'static, Result<T, E>>,
    ) -> BoxFuture<'static, Result<T, E>> {
        let (counting, since, waiting) = (self.clone(), (self.now)(), self.meters.waits());
        let answered = move |result: &Result<T, E>| {
            drop(waiting);
            counting.count(kind, since, result);
        };
        asked.inspect(answered).boxed()
    }

    fn session(&self, session: Arc<dyn Session>) -> Arc<dyn Session> {
        Arc::new(MeteredSession { session, counting: self.clone() })
    }
}

/// An error of a request.
trait Refused {
    fn error(&self) -> &Error;
}

impl Refused for Error {
    fn error(&self) -> &Error {
        self
    }
}

impl Refused for CommitError {
    fn error(&self) -> &Error {
        &self.error
    }
}

fn answer_of(error: &Error) -> Answer {
    match error {
        Error::NoNode(_)
        | Error::NodeExists(_)
        | Error::BadVersion(_)
        | Error::NotEmpty(_)
        | Error::ParentIsEphemeral(_) => Answer::Conflict,
        Error::NoPermission(_) | Error::Refused(_) | Error::AuthRefused(_) => Answer::Refused,
        Error::OutcomeUnknown(_)
        | Error::Suspended
        | Error::SessionLost
        | Error::Unreachable(_)
        | Error::ReadOnly(_) => Answer::Away,
    }
}

impl Registry for Metered {
    fn open(&self) -> BoxFuture<'_, Result<Arc<dyn Session>, Error>> {
        Box::pin(async move {
            let since = (self.counting.now)();
            let opened = self.registry.open().await;
            self.counting.count(Request::Open, since, &opened);
            Ok(self.counting.session(opened?))
        })
    }

    fn reopen<'a>(&'a self, key: &'a SessionKey) -> BoxFuture<'a, Result<Option<Arc<dyn Session>>, Error>> {
        Box::pin(async move {
            let since = (self.counting.now)();
            let opened = self.registry.reopen(key).await;
            self.counting.count(Request::Open, since, &opened);
            Ok(opened?.map(|session| self.counting.session(session)))
        })
    }

    fn describe(&self) -> String {
        self.registry.describe()
    }
}

impl Session for MeteredSession {
    fn id(&self) -> SessionId {
        self.session.id()
    }

    fn timeout(&self) -> Duration {
        self.session.timeout()
    }

    fn greeted(&self) -> Option<Duration> {
        self.session.greeted()
    }

    fn key(&self) -> BoxFuture<'_, Option<SessionKey>> {
        self.session.key()
    }

    fn state(&self) -> watch::Receiver<SessionState> {
        self.session.state()
    }

    fn obstacle(&self) -> Option<String> {
        self.session.obstacle()
    }

    fn request_limit(&self) -> Option<usize> {
        self.session.request_limit()
    }

    fn quotas(&self, path: &Path) -> BoxFuture<'static, Result<Vec<Quota>, Error>> {
        self.counting.on(Request::Read, self.session.quotas(path))
    }

    fn commit(
        &self,
        transaction: Transaction,
    ) -> BoxFuture<'static, Result<Vec<OperationResult>, CommitError>> {
        self.counting.on(Request::Write, self.session.commit(transaction))
    }

    fn ensure(&self, path: &Path, kind: NodeKind, data: &[u8]) -> BoxFuture<'static, Result<bool, Error>> {
        self.counting.on(Request::Write, self.session.ensure(path, kind, data))
    }

    fn get(&self, path: &Path) -> BoxFuture<'static, Result<Option<Node>, Error>> {
        self.counting.on(Request::Read, self.session.get(path))
    }

    fn nodes(&self, paths: &[Path]) -> BoxFuture<'static, Result<Vec<Option<Node>>, Error>> {
        self.counting.on(Request::Read, self.session.nodes(paths))
    }

    fn children(&self, path: &Path) -> BoxFuture<'static, Result<Option<Vec<String>>, Error>> {
        self.counting.on(Request::Read, self.session.children(path))
    }

    fn subtree(&self, root: &Path) -> BoxFuture<'static, Result<Vec<Node>, Error>> {
        self.counting.on(Request::Read, self.session.subtree(root))
    }

    fn watch(&self, root: &Path, wants_data: DataFilter) -> BoxFuture<'static, Result<Watch, Error>> {
        self.counting.on(Request::Watch, self.session.watch(root, wants_data))
    }

    fn watch_node(&self, node: &Path) -> BoxFuture<'static, Result<Watch, Error>> {
        self.counting.on(Request::Watch, self.session.watch_node(node))
    }

    fn can_skip_ids(&self) -> bool {
        self.session.can_skip_ids()
    }

    fn skip_ids(&self, zxid: Zxid) -> BoxFuture<'static, Result<(), Error>> {
        self.session.skip_ids(zxid)
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        self.session.close()
    }

    fn abandon(&self) -> BoxFuture<'static, ()> {
        self.session.abandon()
    }
}

#[cfg(test)]
mod tests {
    use futures::future::{pending, ready};

    use super::*;
    use crate::metrics::meters::Format;
    use crate::metrics::state::State;
    use crate::metrics::words::Level;

    #[test]
    fn a_request_waits_until_it_is_answered_or_given_up() {
        let meters = Meters::new("billing", 2);
        let counting = Counting { meters: meters.clone(), now: Arc::new(|| Duration::ZERO) };
        let waiting = || {
            let lines = [(Level::Warn, 0), (Level::Error, 0)];
            let text = meters.render(Format::Plain, State::default(), lines, Duration::ZERO).unwrap();
            let series = "sidekeeper_registry_requests_waiting{registry_namespace=\"billing\"} ";
            text.lines().find_map(|line| line.strip_prefix(series)?.parse::<u32>().ok())
        };
        let given_up = counting.on(Request::Read, pending::<Result<(), Error>>().boxed());
        let answered = counting.on(Request::Write, ready(Err::<(), _>(Error::Suspended)).boxed());
        assert_eq!(waiting(), Some(2));
        assert_eq!(answered.now_or_never(), Some(Err(Error::Suspended)));
        assert_eq!(waiting(), Some(1));
        drop(given_up);
        assert_eq!(waiting(), Some(0));
    }
}
