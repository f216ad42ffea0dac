//! The service for the programs that start and stop the sidecar.

use std::pin::Pin;
use std::time::Duration;

use futures::stream::{Stream, unfold};
use jiff::Timestamp;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::config::DRAIN_TIMEOUT_MAX;
use crate::coordination::time::{Now, Wakeup};
use crate::elasticjob::field_error::FieldError;
use crate::excerpt::Excerpt;
use crate::job::{InstanceId, JobName};
use crate::listen::caller::Caller;
use crate::listen::refusal::refusal;
use crate::proto;
use crate::proto::sidecar_service_server::SidecarService;
use crate::reason::Reason;
use crate::registry::SessionState;
use crate::runner::attachments::registry::Attachments;
use crate::runner::heartbeat::Heartbeat;
use crate::runner::lock::registry::Locks;
use crate::runner::session::current::Current;
use crate::runner::sticky::registry::StickyLocks;
use crate::telemetry::log_filter::{FilterError, LogFilter};
use crate::telemetry::ring;

use super::convert::InvalidRequest;
use super::event::{TROUBLE_CHARS_MAX, duration, timestamp};
use super::{audit, version};

/// The most instances in an error, which is sent in headers.
const NAMED_MAX: usize = 5;

/// For how long another log filter counts, if the request does not say it.
const FILTER_TIME: Duration = Duration::from_secs(15 * 60);
const FILTER_TIME_MIN: Duration = Duration::from_secs(1);
/// Long enough for a night. A filter that stays forgotten fills a disk.
const FILTER_TIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The most of the last lines of the log that a call may ask for: as many as are kept.
const LINES_MAX: u32 = 10_000;
/// Lines in a message.
const LINES_PER_MESSAGE: usize = 500;

/// A place in the log, which moves on.
struct Tail {
    /// The number of the next line.
    number: u64,
    news: watch::Receiver<u64>,
    /// Its sender is dropped when the sidecar stops.
    running: Current,
    follow: bool,
}

impl Tail {
    /// The next lines. `None`: there are no more.
    async fn next(&mut self) -> Option<proto::TailLogsResponse> {
        loop {
            // Before the look, so that no line is missed.
            self.news.mark_unchanged();
            let (lines, after) = ring::from(self.number, LINES_PER_MESSAGE);
            self.number = after;
            if !lines.is_empty() {
                let lines = lines.iter().map(|line| line.as_ref().to_owned()).collect();
                return Some(proto::TailLogsResponse { lines });
            }
            if !self.follow {
                return None;
            }
            tokio::select! {
                biased; // Lines come before the end.
                // The sender is the process's.
                _ = self.news.changed() => {}
                changed = self.running.changed() => changed.ok()?,
            }
        }
    }
}

/// The service.
#[derive(Clone)]
pub struct Sidecars {
    attachments: Attachments,
    locks: Locks,
    sticky_locks: StickyLocks,
    draining: watch::Sender<bool>,
    drain_timeout: Duration,
    registry: String,
    log_filter: LogFilter,
    heartbeat: Heartbeat,
}

impl Sidecars {
    /// The service for the sidecar with these attachments and locks. `draining` becomes true with the first drain;
    /// `drain_timeout` is the default. `registry`: where it is, in words.
    pub fn new(
        attachments: Attachments,
        (locks, sticky_locks): (Locks, StickyLocks),
        (draining, drain_timeout): (watch::Sender<bool>, Duration),
        registry: String,
        (log_filter, heartbeat): (LogFilter, Heartbeat),
    ) -> Self {
        Self { attachments, locks, sticky_locks, draining, drain_timeout, registry, log_filter, heartbeat }
    }
}

#[tonic::async_trait]
impl SidecarService for Sidecars {
    async fn get_status(
        &self,
        request: Request<proto::GetStatusRequest>,
    ) -> Result<Response<proto::GetStatusResponse>, Status> {
        Ok(Response::new(self.status(&Caller::of(request.extensions()))))
    }

    type TailLogsStream = Pin<Box<dyn Stream<Item = Result<proto::TailLogsResponse, Status>> + Send>>;

    async fn tail_logs(
        &self,
        request: Request<proto::TailLogsRequest>,
    ) -> Result<Response<Self::TailLogsStream>, Status> {
        let caller = Caller::of(request.extensions());
        let &proto::TailLogsRequest { lines, follow } = request.get_ref();
        if lines > LINES_MAX {
            let wrong = FieldError::new("lines", &lines.to_string(), &format!("0 to {LINES_MAX}"));
            return Err(InvalidRequest(vec![wrong]).to_status());
        }
        audit::record(&caller, "TailLogs", "the sidecar", &Ok::<_, Status>(()));
        let tail = Tail {
            number: ring::last(lines.into()),
            news: ring::next(),
            running: self.attachments.shared().current.clone(),
            follow,
        };
        let lines = unfold(tail, |mut tail| async move { Some((Ok(tail.next().await?), tail)) });
        Ok(Response::new(Box::pin(lines)))
    }

    async fn set_log_filter(
        &self,
        request: Request<proto::SetLogFilterRequest>,
    ) -> Result<Response<proto::SetLogFilterResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let result = self.filter_log(request.get_ref());
        audit::record(&caller, "SetLogFilter", Excerpt::of(&request.get_ref().filter), &result);
        result.map(Response::new)
    }

    async fn drain(
        &self,
        request: Request<proto::DrainRequest>,
    ) -> Result<Response<proto::DrainResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let result = self.drain_now(request.get_ref(), &caller).await;
        audit::record(&caller, "Drain", "the sidecar", &result);
        result.map(Response::new)
    }
}

impl Sidecars {
    /// The instances at the sidecar.
    pub(super) fn attachments(&self) -> &Attachments {
        &self.attachments
    }

    /// The state of the sidecar, for this caller.
    pub(super) fn status(&self, caller: &Caller) -> proto::GetStatusResponse {
        let shared = self.attachments.shared();
        let now = shared.clock.now();
        let session = shared.current.borrow().clone();
        let state = session.as_ref().map(|session| *session.state().borrow());
        let proof = *shared.lease.proof.borrow();
        let proof =
            proof.filter(|proof| session.as_ref().is_some_and(|session| session.id() == proof.session));
        let timeout = session.as_ref().map(|session| session.timeout());
        let instances = self.attachments.instances();
        let (log_filter, until) = self.log_filter.now();
        proto::GetStatusResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            api_level: version::API_LEVEL,
            namespace: shared.namespace.to_string().trim_start_matches('/').to_owned(),
            registry: self.registry.clone(),
            session_state: match state {
                Some(SessionState::Connected) => proto::SessionState::Connected,
                Some(SessionState::Suspended) => proto::SessionState::Suspended,
                Some(SessionState::Lost) | None => proto::SessionState::Lost,
            }
            .into(),
            session_id: session.as_ref().map(|session| session.id().to_string()).unwrap_or_default(),
            session_timeout: timeout.filter(|timeout| *timeout < Duration::MAX).and_then(duration),
            remaining_lease: proof.and_then(|proof| duration(proof.until.saturating_sub(now.mono))),
            trouble: Excerpt::of_length(&shared.trouble.borrow().trouble, TROUBLE_CHARS_MAX).into_string(),
            draining: *self.draining.borrow(),
            instances: instances
                .into_iter()
                .filter(|(job, _)| caller.may_use(job.as_str()))
                .map(|(job, instance)| proto::AttachedInstance {
                    job_name: job.to_string(),
                    instance_id: instance.to_string(),
                })
                .collect(),
            log_filter,
            log_filter_until: until.map(|until| timestamp(after(now, until))),
            runtime_stall: duration(self.heartbeat.longest_delay()),
        }
    }

    fn filter_log(
        &self,
        request: &proto::SetLogFilterRequest,
    ) -> Result<proto::SetLogFilterResponse, Status> {
        let clock = &self.attachments.shared().clock;
        let wrong = |field: &str, given: &str, allowed: &str| {
            InvalidRequest(vec![FieldError::new(field, given, allowed)]).to_status()
        };
        let failed = |error: FilterError| {
            let allowed = format!("a log filter like `debug` or `info,sidekeeper::runner=debug`; {error}");
            wrong("filter", &request.filter, &allowed)
        };
        if request.filter.is_empty() {
            self.log_filter.end(None).map_err(failed)?;
            return Ok(proto::SetLogFilterResponse { filter: self.log_filter.now().0, until: None });
        }
        let time_to_live = match request.time_to_live.map(Duration::try_from) {
            None => FILTER_TIME,
            Some(Ok(given)) if given >= FILTER_TIME_MIN && given <= FILTER_TIME_MAX => given,
            Some(_) => {
                let given = format!("{}s", request.time_to_live.unwrap_or_default().seconds);
                return Err(wrong("time_to_live", &given, "1s to 24h"));
            }
        };
        let now = clock.now();
        let until = now.mono.saturating_add(time_to_live);
        let number = self.log_filter.replace(&request.filter, until).map_err(failed)?;
        tracing::info!(filter = request.filter, ?time_to_live, "the log filter is replaced for a time");
        let (log_filter, clock) = (self.log_filter.clone(), clock.clone());
        // Ends with the time, also if the caller is gone.
        clock.clone().spawn(async move {
            while clock.now().mono < until {
                clock.sleep_until(Wakeup { wall: None, mono: Some(until) }).await;
            }
            if matches!(log_filter.end(Some(number)), Ok(true)) {
                tracing::info!(filter = log_filter.now().0, "the log filter is that of the setting again");
            }
        });
        let until = Some(timestamp(after(now, until)));
        Ok(proto::SetLogFilterResponse { filter: request.filter.clone(), until })
    }

    async fn drain_now(
        &self,
        request: &proto::DrainRequest,
        caller: &Caller,
    ) -> Result<proto::DrainResponse, Status> {
        let timeout = read_timeout(request).map_err(|invalid| invalid.to_status())?;
        let timeout = timeout.unwrap_or(self.drain_timeout);
        tracing::info!(?timeout, %caller, "draining on request; the sidecar keeps running until it is stopped");
        self.draining.send_replace(true);
        let deadline = self.attachments.shared().clock.now().mono.saturating_add(timeout);
        let drained = self.attachments.drain(deadline, request.for_good);
        let locks = (self.locks.drain(deadline), self.sticky_locks.drain(deadline));
        let (drained, (), ()) = futures::future::join3(drained, locks.0, locks.1).await;
        if !drained.remaining.is_empty() {
            return Err(refusal(
                Reason::DrainIncomplete,
                format!(
                    "these instances have not left in time, because the registry does not answer: {}; their nodes \
                     vanish when the sidecar's session ends",
                    named(&drained.remaining)
                ),
            ));
        }
        let instances = drained.instances.into_iter().map(|(job, instance)| proto::DrainedInstance {
            job_name: job.to_string(),
            instance_id: instance.to_string(),
        });
        Ok(proto::DrainResponse { instances: instances.collect() })
    }
}

/// The time of day at a later monotonic time.
fn after(now: Now, mono: Duration) -> Timestamp {
    let rest = mono.saturating_sub(now.mono);
    now.wall.checked_add(rest).unwrap_or(Timestamp::MAX)
}

fn read_timeout(request: &proto::DrainRequest) -> Result<Option<Duration>, InvalidRequest> {
    let Some(given) = request.timeout else { return Ok(None) };
    match Duration::try_from(given) {
        Ok(timeout) if timeout <= DRAIN_TIMEOUT_MAX => Ok(Some(timeout)),
        Ok(_) | Err(_) => {
            let text = format!("{}s", given.seconds);
            Err(InvalidRequest(vec![FieldError::new("timeout", &text, "0s to 3600s")]))
        }
    }
}

/// Instances in words.
fn named(instances: &[(JobName, InstanceId)]) -> String {
    let named = instances.iter().take(NAMED_MAX).map(|(job, instance)| format!("{instance} of job `{job}`"));
    let mut text = named.collect::<Vec<_>>().join(", ");
    let hidden = instances.len().saturating_sub(NAMED_MAX);
    if hidden > 0 {
        text.push_str(&format!(" and {hidden} more"));
    }
    text
}
