//! The answer of each path. Decides when the sidecar is live and when it is ready; the numbers are in [`crate::runner::gauges`].

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Response, StatusCode, Uri};
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_blocking;

use crate::metrics::meters::Format;
use crate::registry::SessionState;
use crate::runner::attachments::registry::Attachments;
use crate::runner::gauges;
use crate::runner::heartbeat::Heartbeat;

/// A process whose heartbeat is older is not alive: its threads are blocked.
const ALIVE: Duration = Duration::from_secs(10);

const TEXT: &str = "text/plain; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: &str = "application/json";

/// The answers of a sidecar. Clones share it.
#[derive(Clone)]
pub struct Answers {
    attachments: Attachments,
    heartbeat: Heartbeat,
    draining: watch::Receiver<bool>,
    /// An answer may have megabytes, so there is one at a time.
    rendering: Arc<Semaphore>,
}

/// A check of readiness: its name, and why it fails.
type Check = (&'static str, Result<(), &'static str>);

impl Answers {
    /// The answers of the sidecar with these attachments. `draining`: whether it is stopping.
    pub fn new(attachments: Attachments, heartbeat: Heartbeat, draining: watch::Receiver<bool>) -> Self {
        Self { attachments, heartbeat, draining, rendering: Arc::new(Semaphore::new(1)) }
    }

    /// Answers a request for a path.
    pub(super) async fn answer(&self, uri: &Uri, headers: &HeaderMap) -> Response<String> {
        let query = uri.query().unwrap_or_default();
        match uri.path() {
            "/livez" => probe("livez", &[("heartbeat", is_alive(&self.heartbeat))], query),
            // The sidecar answers only once its listeners are bound; a registry is not needed for that.
            "/startupz" => probe("startupz", &[], query),
            "/readyz" => probe("readyz", &self.readiness(), query),
            "/metrics" => self.metrics(wanted(headers)).await,
            "/version" => text(StatusCode::OK, JSON, version()),
            path => {
                let wanted = path.strip_prefix("/readyz/");
                let checks = self.readiness();
                match checks.iter().find(|(name, _)| Some(*name) == wanted) {
                    Some(check) => probe("readyz", std::slice::from_ref(check), query),
                    None => text(
                        StatusCode::NOT_FOUND,
                        TEXT,
                        "no such path: /livez /readyz /startupz /metrics /version\n".to_owned(),
                    ),
                }
            }
        }
    }

    fn readiness(&self) -> [Check; 4] {
        let shared = self.attachments.shared();
        let session = shared.current.borrow().clone();
        let state = session.as_ref().map(|session| *session.state().borrow());
        let lease = session.as_ref().is_some_and(|session| {
            let proof = *shared.lease.proof.borrow();
            let holds = |until| until > shared.clock.now().mono;
            session.timeout() == Duration::MAX
                || proof.is_some_and(|proof| proof.session == session.id() && holds(proof.until))
        });
        let obstacle = session.as_ref().is_some_and(|session| session.obstacle().is_some());
        let require = |is_so, why| if is_so { Ok(()) } else { Err(why) };
        [
            (
                "session",
                require(
                    matches!(state, Some(SessionState::Connected | SessionState::Suspended)),
                    "there is no session with the registry",
                ),
            ),
            ("lease", require(lease, "the session is not proven alive")),
            ("registry", require(!obstacle, "the registry cannot write")),
            ("draining", require(!*self.draining.borrow(), "the sidecar is stopping")),
        ]
    }

    async fn metrics(&self, format: Format) -> Response<String> {
        // The semaphore is never closed.
        let Ok(_turn) = self.rendering.acquire().await else { return failed() };
        let (attachments, heartbeat) = (self.attachments.clone(), self.heartbeat.clone());
        // A job may have thousands of items: no other task waits for them.
        let rendered = spawn_blocking(move || gauges::render(format, &attachments, &heartbeat));
        match rendered.await {
            Ok(Ok(body)) => text(StatusCode::OK, content(format), body),
            Ok(Err(_)) | Err(_) => failed(),
        }
    }
}

/// The format that a scraper asks for: OpenMetrics only by its name, because other scrapers accept everything, too.
fn wanted(headers: &HeaderMap) -> Format {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|header| header.to_str().ok());
    let mut kinds = accepted.flat_map(|header| header.split(','));
    let names_it = kinds.any(|kind| {
        let mut parts = kind.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        name.eq_ignore_ascii_case("application/openmetrics-text") && !parts.any(is_unwanted)
    });
    if names_it { Format::OpenMetrics } else { Format::Plain }
}

/// Whether a parameter of an accepted kind says that it is not accepted (RFC 9110, 12.4.2: a weight of 0).
fn is_unwanted(parameter: &str) -> bool {
    let weight = parameter.strip_prefix("q=").or_else(|| parameter.strip_prefix("Q="));
    weight.and_then(|weight| weight.parse::<f64>().ok()).is_some_and(|weight| weight <= 0.0)
}

fn content(format: Format) -> &'static str {
    match format {
        Format::OpenMetrics => OPEN_METRICS,
        Format::Plain => PLAIN,
    }
}

fn failed() -> Response<String> {
    text(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "the metrics could not be written\n".to_owned())
}

fn version() -> String {
    format!("{{\"version\":\"{}\"}}\n", env!("CARGO_PKG_VERSION"))
}

fn text(status: StatusCode, content: &'static str, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content));
    response
}

/// The answer of a probe. The query may have `verbose`, and `exclude=NAME` for checks that do not count.
fn probe(name: &str, checks: &[Check], query: &str) -> Response<String> {
    let options: Vec<_> = query.split('&').collect();
    let is_excluded =
        |check: &str| options.iter().any(|option| option.strip_prefix("exclude=") == Some(check));
    let mut lines = String::new();
    let mut is_well = true;
    for (check, result) in checks {
        // Writing to a string cannot fail.
        let _ = match result {
            _ if is_excluded(check) => writeln!(lines, "[+]{check} excluded: ok"),
            Ok(()) => writeln!(lines, "[+]{check} ok"),
            Err(why) => {
                is_well = false;
                writeln!(lines, "[-]{check} failed: {why}")
            }
        };
    }
    let (status, end) =
        if is_well { (StatusCode::OK, "passed") } else { (StatusCode::SERVICE_UNAVAILABLE, "failed") };
    let is_verbose = options.iter().any(|option| *option == "verbose" || option.starts_with("verbose="));
    let body =
        if is_well && !is_verbose { "ok\n".to_owned() } else { format!("{lines}{name} check {end}\n") };
    text(status, TEXT, body)
}

/// Never asks for the registry, a collector or a disk: a restart would not mend them.
fn is_alive(heartbeat: &Heartbeat) -> Result<(), &'static str> {
    if heartbeat.age() < ALIVE { Ok(()) } else { Err("the process has been blocked for ten seconds") }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::{Mutex, PoisonError};

    use futures::FutureExt as _;
    use futures::future::BoxFuture;
    use jiff::Timestamp;
    use uuid::Uuid;

    use super::*;
    use crate::coordination::time::{Now, Wakeup};
    use crate::runner::clock::{Boottime, Clock, Machine};

    /// A machine on which every wait is over at once, until a time comes.
    struct Virtual {
        /// The time, and when it comes to a stop.
        time: Mutex<(Duration, Duration)>,
    }

    impl Virtual {
        fn change(&self, change: impl FnOnce(&mut (Duration, Duration))) -> Duration {
            let mut time = self.time.lock().unwrap_or_else(PoisonError::into_inner);
            change(&mut time);
            time.0
        }
    }

    impl Machine for Virtual {
        fn now(&self) -> Now {
            let mono = self.change(|_| ());
            Now { wall: Timestamp::UNIX_EPOCH.checked_add(mono).unwrap(), mono }
        }

        fn sleep_until(&self, wakeup: Wakeup) -> BoxFuture<'static, ()> {
            let until = wakeup.mono.unwrap();
            let mut stands = false;
            self.change(|(now, stop)| {
                stands = until > *stop;
                *now = if stands { *now } else { until };
            });
            if stands { Box::pin(pending()) } else { Box::pin(ready(())) }
        }

        fn unguessable(&self) -> Uuid {
            Uuid::nil()
        }

        fn spawn(&self, _: BoxFuture<'static, ()>) {}

        fn boottime(&self) -> Option<&Boottime> {
            None
        }
    }

    #[test]
    fn op_10_a_process_is_live_for_an_hour_and_not_when_it_has_been_blocked_for_11_seconds() {
        let hour = Duration::from_secs(3_600);
        let machine = Arc::new(Virtual { time: Mutex::new((Duration::ZERO, hour)) });
        let clock = Clock::of(Arc::<Virtual>::clone(&machine));
        let heart = Heartbeat::new(&clock);
        let live = || probe("livez", &[("heartbeat", is_alive(&heart))], "").status();
        assert_eq!(heart.clone().keep().now_or_never(), None);
        assert_eq!((clock.now().mono, live()), (hour, StatusCode::OK));
        let pass = |seconds| machine.change(|(now, _)| *now += Duration::from_secs(seconds));
        pass(9);
        assert_eq!(live(), StatusCode::OK);
        pass(2);
        assert_eq!(live(), StatusCode::SERVICE_UNAVAILABLE);
        // It beats again.
        machine.change(|(now, stop)| *stop = *now + Duration::from_secs(1));
        assert_eq!(heart.clone().keep().now_or_never(), None);
        assert_eq!(live(), StatusCode::OK);
    }

    #[test]
    fn openmetrics_is_for_scrapers_that_name_it() {
        let wants = |accepted: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for kind in accepted {
                headers.append(ACCEPT, HeaderValue::from_static(kind));
            }
            wanted(&headers)
        };
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let several = ["text/plain", "Application/OpenMetrics-Text; version=1.0.0"];
        for accepted in [&[prometheus][..], &several] {
            assert_eq!(wants(accepted), Format::OpenMetrics, "{accepted:?}");
        }
        let others = [
            "*/*",
            "text/plain;version=0.0.4",
            "application/openmetrics-text;q=0",
            "application/json",
            ",;=,",
        ];
        assert_eq!(wants(&[]), Format::Plain);
        for accepted in others {
            assert_eq!(wants(&[accepted]), Format::Plain, "{accepted}");
        }
    }

    #[test]
    fn a_probe_says_which_check_fails_and_an_excluded_one_does_not_count() {
        let checks: [Check; 2] = [("session", Err("there is none")), ("draining", Ok(()))];
        let failed = probe("readyz", &checks, "");
        assert_eq!(failed.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(failed.body(), "[-]session failed: there is none\n[+]draining ok\nreadyz check failed\n");
        let well = probe("readyz", &checks, "exclude=session");
        assert_eq!((well.status(), well.body().as_str()), (StatusCode::OK, "ok\n"));
        let verbose = probe("readyz", &checks, "verbose&exclude=session");
        assert_eq!(verbose.body(), "[+]session excluded: ok\n[+]draining ok\nreadyz check passed\n");
    }
}
