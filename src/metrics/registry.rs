//! A registry whose requests are counted and timed.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;

use super::meters::Meters;
use super::words::{Answer, Request};
use crate::registry::observed::{self, Failure, ObservedSession, Observer};
use crate::registry::{Error, Registry, Session, SessionKey};
use crate::tree::Server;

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

impl Metered {
    /// Counts the requests to a registry.
    pub fn new(registry: Arc<dyn Registry>, meters: Meters, now: Now) -> Self {
        Self { registry, counting: Counting { meters, now } }
    }
}

impl Counting {
    fn count<T, E: Failure>(&self, kind: Request, since: Duration, result: &Result<T, E>) {
        let answer = result.as_ref().err().map_or(Answer::Done, |error| answer_of(error.reason()));
        self.meters.requested(kind, answer, (self.now)().saturating_sub(since));
    }

    fn session(&self, session: Arc<dyn Session>) -> Arc<dyn Session> {
        ObservedSession::of(session, self.clone())
    }
}

impl Observer for Counting {
    /// Counts a request when its answer is there, and until then as one that waits. A request that nobody awaits any more does not wait.
    fn observe<T: Send + 'static, E: Failure>(
        &self,
        request: observed::Request,
        answer: BoxFuture<'static, Result<T, E>>,
    ) -> BoxFuture<'static, Result<T, E>> {
        let kind = match request {
            observed::Request::Read => Request::Read,
            observed::Request::Write(_) => Request::Write,
            observed::Request::Watch => Request::Watch,
        };
        let (counting, since, waiting) = (self.clone(), (self.now)(), self.meters.waits());
        let answered = move |result: &Result<T, E>| {
            drop(waiting);
            counting.count(kind, since, result);
        };
        answer.inspect(answered).boxed()
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

    fn servers(&self) -> BoxFuture<'_, Vec<Server>> {
        self.registry.servers()
    }

    fn describe(&self) -> String {
        self.registry.describe()
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
        let given_up = counting.observe(observed::Request::Read, pending::<Result<(), Error>>().boxed());
        let answered =
            counting.observe(observed::Request::Write(1), ready(Err::<(), _>(Error::Suspended)).boxed());
        assert_eq!(waiting(), Some(2));
        assert_eq!(answered.now_or_never(), Some(Err(Error::Suspended)));
        assert_eq!(waiting(), Some(1));
        drop(given_up);
        assert_eq!(waiting(), Some(0));
    }
}
