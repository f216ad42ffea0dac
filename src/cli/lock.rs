//! `lock`: runs a command while a lock is held. `locks`: shows locks, and changes them for operators.
//!
//! The command is stopped when the lock is lost, by the sidecar's word or by the end of the lease: it gets SIGTERM, and a
//! moment later SIGKILL.

use std::ffi::OsString;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::{ArgGroup, Args};
use futures::StreamExt as _;
use nix::sys::signal::Signal;
use serde_json::json;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use super::child::{Child, Signals, signalled, supervise};
use super::endpoint::{SidecarArgs, authorized, in_words, refused};
use super::{Failure, NOT_STARTED, TRY_AGAIN, print, printable};
use crate::config;
use crate::coordination::time::Wakeup;
use crate::proto::hold_response::Event;
use crate::proto::lock_id::Id;
use crate::proto::lock_service_client::LockServiceClient;
use crate::proto::{
    BreakLockRequest, Contender, GetLockRequest, HoldRequest, HoldResponse, ListLocksRequest, Lock, LockId,
    LockLease, LockMode, ReleaseRequest, RequestRevocationRequest,
};
use crate::runner::clock::Clock;

/// The exit code when the lock was lost while the command ran.
const LOST: u8 = 124;
/// How long the sidecar may take to delete the node of a lock that is given back.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long an answer may take: longer than the sidecar may wait for its registry.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Names of locks in one answer.
const PAGE_SIZE: u32 = 1_000;

/// Which lock.
#[derive(Args)]
#[command(group(ArgGroup::new("which").required(true).args(["name", "path"])))]
struct WhichArgs {
    /// The lock's name, below the sidecar's lock root.
    name: Option<String>,
    /// The path of a lock that other programs use, instead of a name.
    #[arg(long)]
    path: Option<String>,
}

impl WhichArgs {
    fn id(self) -> LockId {
        LockId { id: self.name.map(Id::Name).or(self.path.map(Id::Path)) }
    }
}

#[derive(Args)]
#[command(group(ArgGroup::new("mode").args(["read", "write"])))]
pub(super) struct LockArgs {
    #[command(flatten)]
    which: WhichArgs,
    /// Hold the lock together with other readers.
    #[arg(long)]
    read: bool,
    /// Hold the lock alone among readers and writers.
    #[arg(long)]
    write: bool,
    /// How long to wait for the lock, `30s`, `2h`; `0s`: not at all. [default: without a limit]
    #[arg(long, value_name = "DURATION", value_parser = config::lock_timeout)]
    wait: Option<Duration>,
    /// How long the command may run. Then the lock is lost, and the command is stopped.
    #[arg(long, value_name = "DURATION", value_parser = config::lock_timeout)]
    hold: Option<Duration>,
    /// How long a command may take to end after SIGTERM when the lock is lost. Then it is killed.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = config::lock_timeout)]
    kill_after: Duration,
    /// Whom others see as the holder. [default: the sidecar's address and a random id]
    #[arg(long, default_value = "")]
    holder: String,
    /// Say on standard error for whom the command waits.
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    sidecar: SidecarArgs,
    /// The command and its arguments.
    #[arg(last = true, value_name = "COMMAND", required = true, value_hint = clap::ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

/// A lock that is held.
struct Held {
    hold_id: String,
    /// The end of the lease, on this program's clock. `None`: no end is expected.
    lease_end: Option<Duration>,
    events: Streaming<HoldResponse>,
}

/// Runs a command while a lock is held.
pub(super) async fn lock(args: LockArgs) -> Result<ExitCode, Failure> {
    let not_started = || Failure::with(NOT_STARTED);
    let mut signals = Signals::listen().map_err(not_started())?;
    let clock = Clock::start();
    let channel = args.sidecar.sidecar()?.connect().await.map_err(not_started())?;
    let mut client = LockServiceClient::new(channel);
    let limit = |limit: Option<Duration>| limit.and_then(|limit| limit.try_into().ok());
    let mode = match (args.read, args.write) {
        (true, _) => LockMode::Read,
        (_, true) => LockMode::Write,
        (false, false) => LockMode::Mutex,
    };
    let request = HoldRequest {
        lock: Some(args.which.id()),
        mode: mode.into(),
        wait_timeout: limit(args.wait),
        hold_timeout: limit(args.hold),
        holder: args.holder,
        application_id: String::new(),
    };
    let request = authorized(request)?;
    let (mut held, mut command) = tokio::select! {
        biased; // A request to stop comes before the lock.
        Some(signal) = signals.forwarded.next() => return Ok(signalled(signal)),
        held = acquire(&mut client, request, &clock, args.verbose) => held?,
    };
    let mut words = args.command.into_iter();
    let mut started = Command::new(words.next().ok_or_else(|| anyhow!("there is no command to run"))?);
    started.args(words).envs(command.drain(..));
    let mut child = Child::start(&mut started)?;
    let code = {
        let mut ended = std::pin::pin!(supervise(&mut child, &mut signals));
        tokio::select! {
            biased; // A command that has ended needs no lock.
            code = &mut ended => Ok(code),
            why = lost(&mut held, &clock) => Err(why),
        }
    };
    match code {
        Ok(code) => {
            let mut request = authorized(ReleaseRequest { hold_id: held.hold_id })?;
            request.set_timeout(RELEASE_TIMEOUT);
            if let Err(status) = client.release(request).await {
                // The command has ended as it has; the end of the stream gives the lock back as well.
                eprintln!("sidekeeper: the lock could not be given back: {}", in_words(&status));
            }
            Ok(code)
        }
        Err(why) => {
            child.signal(Signal::SIGTERM);
            let ended = tokio::select! {
                biased;
                code = supervise(&mut child, &mut signals) => Some(code),
                () = clock.sleep(args.kill_after) => None,
            };
            if ended.is_none() {
                child.signal(Signal::SIGKILL);
                supervise(&mut child, &mut signals).await;
            }
            Err(Failure { code: LOST, error: anyhow!("{why}; the command was stopped") })
        }
    }
}

/// Waits for the lock. Returns it, and the variables for the command.
async fn acquire(
    client: &mut LockServiceClient<Channel>,
    request: tonic::Request<HoldRequest>,
    clock: &Clock,
    verbose: bool,
) -> Result<(Held, Vec<(&'static str, String)>), Failure> {
    let mut events = client.hold(request).await.map_err(|status| not_held(&status))?.into_inner();
    let mut started = None;
    loop {
        let event = events.message().await.map_err(|status| not_held(&status))?;
        let event = event
            .ok_or_else(|| anyhow!("the sidecar has ended the stream"))
            .map_err(Failure::with(NOT_STARTED))?;
        match event.event {
            Some(Event::Started(hold)) => started = Some(hold),
            Some(Event::Waiting(waiting)) if !waiting.reason.is_empty() => {
                eprintln!("sidekeeper: waiting for the lock: {}", printable(&waiting.reason));
            }
            Some(Event::Waiting(waiting)) if verbose => {
                let first = waiting.first.map(|first| one_line(&first)).unwrap_or_default();
                eprintln!(
                    "sidekeeper: {} contenders are before this one; the first is {first}",
                    waiting.position
                );
            }
            Some(Event::Acquired(acquired)) => {
                let hold = started
                    .context("the sidecar did not name the hold")
                    .map_err(Failure::with(NOT_STARTED))?;
                let lease_end = acquired.lease.and_then(|lease| lease_end(&lease, clock));
                let variables = vec![
                    ("SIDEKEEPER_LOCK_PATH", hold.path),
                    ("SIDEKEEPER_LOCK_NODE", acquired.node_path),
                    ("SIDEKEEPER_LOCK_TOKEN", acquired.fencing_token.to_string()),
                ];
                return Ok((Held { hold_id: hold.hold_id, lease_end, events }, variables));
            }
            Some(_) | None => {}
        }
    }
}

/// Why the command was not started. A lock that is not free may be free later.
fn not_held(status: &Status) -> Failure {
    let may_help = matches!(status.code(), Code::Unavailable | Code::Aborted | Code::DeadlineExceeded);
    Failure { code: if may_help { TRY_AGAIN } else { NOT_STARTED }, error: anyhow!(in_words(status)) }
}

/// Ends when the lock is not held any more; returns why.
async fn lost(held: &mut Held, clock: &Clock) -> String {
    loop {
        let over = Wakeup { wall: None, mono: held.lease_end };
        let event = tokio::select! {
            biased; // A process that has slept knows the end of its lease first.
            () = clock.sleep_until(over) => {
                if held.lease_end.is_some_and(|end| clock.now().mono >= end) {
                    return "the lease of the lock is over, and the sidecar is silent".to_owned();
                }
                continue;
            }
            event = held.events.message() => event,
        };
        let event = match event {
            Ok(Some(event)) => event.event,
            Ok(None) => return "the sidecar has ended the stream of the lock".to_owned(),
            Err(status) => return in_words(&status),
        };
        let lease = match event {
            // The status that follows says why.
            Some(Event::Lost(_) | Event::Released(_)) => {
                let end = held.events.message().await;
                return end.err().map_or_else(|| "the lock is lost".to_owned(), |status| in_words(&status));
            }
            Some(Event::LeaseRenewed(lease) | Event::Resumed(lease)) => lease,
            Some(_) | None => continue,
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

#[derive(Args)]
#[command(group(ArgGroup::new("which").args(["name", "path"])))]
pub(super) struct LocksArgs {
    /// The lock's name. Without a name and a path: the names of all locks below the sidecar's lock root.
    name: Option<String>,
    /// The path of a lock that other programs use, instead of a name.
    #[arg(long)]
    path: Option<String>,
    /// Ask the holder to give the lock back. Nothing forces it.
    #[arg(long, requires = "which", conflicts_with = "break_node")]
    revoke: bool,
    /// Delete this node of a contender. A holder in Java, Go or Python hears nothing and goes on: stop it first.
    #[arg(long, value_name = "NODE", requires = "which")]
    break_node: Option<String>,
    #[command(flatten)]
    sidecar: SidecarArgs,
    /// Print JSON, with the field names of the proto: one object, or for names one a line.
    #[arg(long)]
    json: bool,
}

/// Shows locks, and changes them.
pub(super) async fn locks(args: LocksArgs) -> Result<ExitCode, Failure> {
    let channel = args.sidecar.sidecar()?.connect().await?;
    let mut client = LockServiceClient::new(channel);
    if args.name.is_none() && args.path.is_none() {
        return list(&mut client, args.json).await;
    }
    let id = WhichArgs { name: args.name, path: args.path }.id();
    if args.revoke {
        let request = timed(RequestRevocationRequest { lock: Some(id) })?;
        let answer = client.request_revocation(request).await.map_err(|status| refused(&status))?;
        let holder = answer.into_inner().holder.unwrap_or_default();
        print(format!("asked    {}\n", one_line(&holder)).as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(node_name) = args.break_node {
        let request = timed(BreakLockRequest { lock: Some(id), node_name: node_name.clone() })?;
        client.break_lock(request).await.map_err(|status| refused(&status))?;
        print(format!("deleted  {}\n", printable(&node_name)).as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let answer = client.get_lock(timed(GetLockRequest { lock: Some(id) })?).await;
    let lock = answer.map_err(|status| refused(&status))?.into_inner().lock.unwrap_or_default();
    print(if args.json { in_json(&lock) } else { in_table(&lock) }.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn timed<T>(message: T) -> anyhow::Result<tonic::Request<T>> {
    let mut request = authorized(message)?;
    request.set_timeout(ANSWER_TIMEOUT);
    Ok(request)
}

async fn list(client: &mut LockServiceClient<Channel>, json: bool) -> Result<ExitCode, Failure> {
    let mut page_token = String::new();
    loop {
        let request = timed(ListLocksRequest { page_size: PAGE_SIZE, page_token })?;
        let page = client.list_locks(request).await.map_err(|status| refused(&status))?.into_inner();
        let lines = page.names.iter().map(|name| match json {
            true => super::json_line(&json!({ "name": name })),
            false => format!("{}\n", printable(name)),
        });
        if !print(lines.collect::<String>().as_bytes())? || page.next_page_token.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        page_token = page.next_page_token;
    }
}

fn mode_word(contender: &Contender) -> &'static str {
    match contender.mode() {
        LockMode::Read => "read",
        LockMode::Write => "write",
        LockMode::Mutex | LockMode::Unspecified => "mutex",
    }
}

fn one_line(contender: &Contender) -> String {
    let Contender { node_name, holder, session, .. } = contender;
    format!("{}  {}  session {}", printable(holder), printable(node_name), printable(session))
}

fn in_table(lock: &Lock) -> String {
    let mut text = String::new();
    let rows =
        lock.holders.iter().map(|one| ("holds", one)).chain(lock.waiting.iter().map(|one| ("waits", one)));
    for (state, contender) in rows {
        let (mode, token) = (mode_word(contender), contender.fencing_token);
        text.push_str(&format!("{state}  {mode}  token {token}  {}\n", one_line(contender)));
    }
    for name in &lock.foreign_nodes {
        text.push_str(&format!("foreign  {}\n", printable(name)));
    }
    if lock.holders.is_empty() && lock.waiting.is_empty() {
        text.push_str(&format!("free   {}\n", printable(&lock.path)));
    }
    text
}

fn in_json(lock: &Lock) -> String {
    let contenders = |contenders: &[Contender]| -> Vec<_> {
        let one = |one: &Contender| {
            json!({
                "node_name": one.node_name,
                "holder": one.holder,
                "session": one.session,
                "mode": mode_word(one),
                "fencing_token": one.fencing_token,
                "since": one.since.as_ref().map(|since| since.to_string()),
            })
        };
        contenders.iter().map(one).collect()
    };
    super::json_line(&json!({
        "path": lock.path,
        "holders": contenders(&lock.holders),
        "waiting": contenders(&lock.waiting),
        "foreign_nodes": lock.foreign_nodes,
    }))
}
