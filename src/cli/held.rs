//! Runs a command while something is held: a lock, or the leadership of an election.
//!
//! The command is stopped when that is lost, by the sidecar's word or by the end of the lease: it gets SIGTERM, and a
//! moment later SIGKILL.

use std::ffi::OsString;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use nix::sys::signal::Signal;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::child::{Child, Signals, signalled, supervise};
use super::endpoint::{SidecarArgs, in_words};
use super::{Failure, NOT_STARTED, TRY_AGAIN, printable};
use crate::coordination::time::Wakeup;
use crate::proto::LockLease;
use crate::runner::clock::Clock;

/// The exit code when the lock or the leadership was lost while the command ran.
const LOST: u8 = 124;
/// How long the sidecar may take to delete the node of what is given back.
pub(super) const RELEASE_TIMEOUT: Duration = Duration::from_secs(60);

/// A request for a lock or a leadership, and the way to give it back.
pub(super) struct Grant {
    /// Asks for it.
    pub(super) events: BoxFuture<'static, Result<Events, Status>>,
    /// Gives the one with this id back; fails with a text.
    pub(super) give_back: Box<dyn FnOnce(String) -> BoxFuture<'static, Result<(), String>> + Send>,
    /// The names of the variables for the command: of the path, the node and the token.
    pub(super) variables: [&'static str; 3],
    /// The word for it.
    pub(super) noun: &'static str,
}

/// The events of a stream.
pub(super) type Events = BoxStream<'static, Result<News, Status>>;

/// An event of a stream.
pub(super) enum News {
    /// The sidecar has accepted the call.
    Started {
        /// Names it in the call that gives it back.
        id: String,
        /// The path.
        path: String,
    },
    /// It is not held yet.
    Waiting {
        /// The place in the queue, for a person.
        place: String,
        /// Why the place is not known. Empty: it is known.
        trouble: String,
    },
    /// It is held.
    Granted {
        /// The fencing token.
        token: i64,
        /// The node that proves it.
        node_path: String,
        /// Until when it is surely held.
        lease: Option<LockLease>,
    },
    /// The lease ends later.
    Renewed(LockLease),
    /// It is not held any more: the reason, or `None` if the status that follows has it.
    Over(Option<String>),
    /// Something that does not matter here.
    Other,
}

/// A lock or a leadership that is held.
struct Held {
    id: String,
    /// The end of the lease, on this program's clock. `None`: no end is expected.
    lease_end: Option<Duration>,
    events: Events,
}

/// Listens to signals, and connects to the sidecar.
pub(super) async fn prepare(sidecar: SidecarArgs) -> Result<(Signals, Channel), Failure> {
    let signals = Signals::listen().map_err(Failure::with(NOT_STARTED))?;
    let channel = sidecar.sidecar()?.connect().await.map_err(Failure::with(NOT_STARTED))?;
    Ok((signals, channel))
}

/// An error as one line.
pub(super) fn in_text(error: &anyhow::Error) -> String {
    format!("{error:#}")
}

/// Runs a command while it is held.
pub(super) async fn run(
    grant: Grant,
    mut signals: Signals,
    command: Vec<OsString>,
    kill_after: Duration,
    verbose: bool,
) -> Result<ExitCode, Failure> {
    let clock = Clock::start();
    let Grant { events, give_back, variables, noun } = grant;
    let (mut held, values) = tokio::select! {
        biased; // A request to stop comes before the lock.
        Some(signal) = signals.forwarded.next() => return Ok(signalled(signal)),
        held = acquire(events, noun, &clock, verbose) => held?,
    };
    let mut words = command.into_iter();
    let mut started = Command::new(words.next().ok_or_else(|| anyhow!("there is no command to run"))?);
    started.args(words).envs(variables.into_iter().zip(values));
    let mut child = Child::start(&mut started)?;
    let code = {
        let mut ended = std::pin::pin!(supervise(&mut child, &mut signals));
        tokio::select! {
            biased; // A command that has ended needs no lock.
            code = &mut ended => Ok(code),
            why = lost(&mut held, noun, &clock) => Err(why),
        }
    };
    match code {
        Ok(code) => {
            if let Err(why) = give_back(held.id).await {
                // The command has ended as it has; the end of the stream gives it back as well.
                eprintln!("sidekeeper: the {noun} could not be given back: {why}");
            }
            Ok(code)
        }
        Err(why) => {
            child.signal(Signal::SIGTERM);
            let ended = tokio::select! {
                biased;
                code = supervise(&mut child, &mut signals) => Some(code),
                () = clock.sleep(kill_after) => None,
            };
            if ended.is_none() {
                child.signal(Signal::SIGKILL);
                supervise(&mut child, &mut signals).await;
            }
            Err(Failure { code: LOST, error: anyhow!("{why}; the command was stopped") })
        }
    }
}

/// Waits until it is held. Returns it, and the values of the variables for the command.
async fn acquire(
    events: BoxFuture<'static, Result<Events, Status>>,
    noun: &str,
    clock: &Clock,
    verbose: bool,
) -> Result<(Held, [String; 3]), Failure> {
    let mut events = events.await.map_err(|status| not_held(&status))?;
    let mut started = None;
    loop {
        let ended = || Failure::with(NOT_STARTED)(anyhow!("the sidecar has ended the stream"));
        let news = events.next().await.ok_or_else(ended)?;
        match news.map_err(|status| not_held(&status))? {
            News::Started { id, path } => started = Some((id, path)),
            News::Waiting { trouble, .. } if !trouble.is_empty() => {
                eprintln!("sidekeeper: waiting for the {noun}: {}", printable(&trouble));
            }
            News::Waiting { place, .. } if verbose => eprintln!("sidekeeper: {place}"),
            News::Granted { token, node_path, lease } => {
                let (id, path) = started
                    .context("the sidecar did not say what it has accepted")
                    .map_err(Failure::with(NOT_STARTED))?;
                let lease_end = lease.and_then(|lease| lease_end(&lease, clock));
                return Ok((Held { id, lease_end, events }, [path, node_path, token.to_string()]));
            }
            News::Waiting { .. } | News::Renewed(_) | News::Over(_) | News::Other => {}
        }
    }
}

/// Why the command was not started. A lock that is not free may be free later.
fn not_held(status: &Status) -> Failure {
    let may_help = matches!(status.code(), Code::Unavailable | Code::Aborted | Code::DeadlineExceeded);
    Failure { code: if may_help { TRY_AGAIN } else { NOT_STARTED }, error: anyhow!(in_words(status)) }
}

/// Ends when it is not held any more; returns why.
async fn lost(held: &mut Held, noun: &str, clock: &Clock) -> String {
    loop {
        let over = Wakeup { wall: None, mono: held.lease_end };
        let news = tokio::select! {
            biased; // A process that has slept knows the end of its lease first.
            () = clock.sleep_until(over) => {
                if held.lease_end.is_some_and(|end| clock.now().mono >= end) {
                    return format!("the lease of the {noun} is over, and the sidecar is silent");
                }
                continue;
            }
            news = held.events.next() => news,
        };
        let lease = match news {
            Some(Ok(News::Renewed(lease))) => lease,
            Some(Ok(News::Over(Some(why)))) => return format!("the {noun} is lost: {why}"),
            Some(Ok(News::Over(None))) => {
                let status = held.events.next().await.and_then(Result::err);
                return status.map_or_else(|| format!("the {noun} is lost"), |status| in_words(&status));
            }
            Some(Ok(News::Started { .. } | News::Waiting { .. } | News::Granted { .. } | News::Other)) => {
                continue;
            }
            Some(Err(status)) => return in_words(&status),
            None => return format!("the sidecar has ended the stream of the {noun}"),
        };
        held.lease_end = lease_end(&lease, clock).max(held.lease_end);
    }
}

/// The end of a lease on this program's clock: the remaining time, or the end on the kernel's clock if that is earlier.
fn lease_end(lease: &LockLease, clock: &Clock) -> Option<Duration> {
    let remaining = Duration::try_from(lease.remaining_lease?).unwrap_or_default();
    let counted = clock.now().mono.saturating_add(remaining);
    let same_clock = clock.boottime().filter(|boottime| boottime.clock == lease.boottime_clock);
    let exact = same_clock
        .filter(|_| lease.lease_end_boottime_ns > 0)
        .map(|boottime| Duration::from_nanos(lease.lease_end_boottime_ns).saturating_sub(boottime.start));
    Some(exact.map_or(counted, |exact| exact.min(counted)))
}
