//! `lock`: runs a command while a lock is held. `locks`: shows locks, and changes them for operators.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Args};
use futures::StreamExt as _;
use serde_json::json;
use tonic::transport::Channel;

use super::endpoint::{SidecarArgs, authorized, in_words, refused};
use super::held::{Grant, News, RELEASE_TIMEOUT, in_text, prepare, run};
use super::{Failure, print, printable};
use crate::config;
use crate::proto::hold_response::Event;
use crate::proto::lock_id::Id;
use crate::proto::lock_service_client::LockServiceClient;
use crate::proto::{
    BreakLockRequest, Contender, GetLockRequest, HoldRequest, ListLocksRequest, Lock, LockId, LockMode,
    ReleaseRequest, RequestRevocationRequest,
};

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
#[command(group(ArgGroup::new("mode").args(["read", "write", "permits"])))]
pub(super) struct LockArgs {
    #[command(flatten)]
    which: WhichArgs,
    /// Hold the lock together with other readers.
    #[arg(long)]
    read: bool,
    /// Hold the lock alone among readers and writers.
    #[arg(long)]
    write: bool,
    /// Hold one of so many permits: the lock is a semaphore. All programs have to give the same number.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1000))]
    permits: Option<u32>,
    /// How long to wait for the lock, `30s`, `2h`; `0s`: not at all. [default: without a limit]
    #[arg(long, value_name = "DURATION", value_parser = config::lock_timeout)]
    wait: Option<Duration>,
    /// How long the command may run. Then the lock is lost, and the command is stopped.
    #[arg(long, value_name = "DURATION", value_parser = config::lock_timeout)]
    hold: Option<Duration>,
    /// For how long nobody may hold the lock if this program ends without giving it back: killed, or without its machine.
    #[arg(long, value_name = "DURATION", value_parser = config::lock_timeout, conflicts_with_all = ["read", "permits", "path"])]
    lock_delay: Option<Duration>,
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

/// Runs a command while a lock is held.
pub(super) async fn lock(args: LockArgs) -> Result<ExitCode, Failure> {
    let (signals, channel) = prepare(args.sidecar).await?;
    let mut client = LockServiceClient::new(channel);
    let limit = |limit: Option<Duration>| limit.and_then(|limit| limit.try_into().ok());
    let mode = match (args.read, args.write, args.permits) {
        (true, ..) => LockMode::Read,
        (_, true, _) => LockMode::Write,
        (.., Some(_)) => LockMode::Semaphore,
        (false, false, None) => LockMode::Mutex,
    };
    let request = authorized(HoldRequest {
        lock: Some(args.which.id()),
        mode: mode.into(),
        wait_timeout: limit(args.wait),
        hold_timeout: limit(args.hold),
        holder: args.holder,
        application_id: String::new(),
        permits: args.permits.unwrap_or_default(),
        lock_delay: limit(args.lock_delay),
    })?;
    let mut releases = client.clone();
    let grant = Grant {
        // Not answered while the sidecar has no room for streams.
        events: Box::pin(async move {
            let events = client.hold(request).await?.into_inner();
            Ok(events.map(|event| event.map(|event| news(event.event))).boxed())
        }),
        give_back: Box::new(move |hold_id| {
            Box::pin(async move {
                let mut request = authorized(ReleaseRequest { hold_id }).map_err(|error| in_text(&error))?;
                request.set_timeout(RELEASE_TIMEOUT);
                releases.release(request).await.map(drop).map_err(|status| in_words(&status))
            })
        }),
        variables: ["SIDEKEEPER_LOCK_PATH", "SIDEKEEPER_LOCK_NODE", "SIDEKEEPER_LOCK_TOKEN"],
        noun: "lock",
    };
    run(grant, signals, args.command, args.kill_after, args.verbose).await
}

/// An event of a hold, as far as it matters here.
fn news(event: Option<Event>) -> News {
    match event {
        Some(Event::Started(hold)) => News::Started { id: hold.hold_id, path: hold.path },
        Some(Event::Waiting(waiting)) => {
            let first = waiting.first.map(|first| one_line(&first)).unwrap_or_default();
            let place = match waiting.position {
                0 => format!("no contender is before this one; it waits for {first}"),
                position => format!("{position} contenders are before this one; the first is {first}"),
            };
            News::Waiting { place, trouble: waiting.reason }
        }
        Some(Event::Acquired(acquired)) => News::Granted {
            token: acquired.fencing_token,
            node_path: acquired.node_path,
            lease: acquired.lease,
        },
        Some(Event::LeaseRenewed(lease) | Event::Resumed(lease)) => News::Renewed(lease),
        Some(Event::Lost(_) | Event::Released(_)) => News::Over(None),
        Some(Event::Suspended(_) | Event::RevocationRequested(_) | Event::Draining(_)) | None => News::Other,
    }
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

pub(super) fn timed<T>(message: T) -> anyhow::Result<tonic::Request<T>> {
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
        LockMode::Semaphore => "semaphore",
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
    for holder in &lock.vanished {
        let delay = holder.lock_delay.as_ref().and_then(|delay| Duration::try_from(*delay).ok());
        let delay = delay.unwrap_or_default();
        text.push_str(&format!("vanished  delay {delay:?}  {}\n", one_line(holder)));
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
                "lock_delay": one.lock_delay.as_ref().map(|delay| delay.to_string()),
            })
        };
        contenders.iter().map(one).collect()
    };
    super::json_line(&json!({
        "path": lock.path,
        "holders": contenders(&lock.holders),
        "waiting": contenders(&lock.waiting),
        "foreign_nodes": lock.foreign_nodes,
        "vanished": contenders(&lock.vanished),
    }))
}
