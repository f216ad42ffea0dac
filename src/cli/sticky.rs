//! `sticky`: shows sticky locks.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tonic::transport::Channel;

use super::endpoint::{SidecarArgs, refused};
use super::lock::timed;
use super::{Failure, json_line, print, printable};
use crate::proto::sticky_lock_service_client::StickyLockServiceClient;
use crate::proto::{GetStickyLockRequest, ListStickyLocksRequest, StickyLock, StickyState, UnfinishedRun};

/// Names of locks in one answer.
const PAGE_SIZE: u32 = 1_000;

#[derive(Args)]
pub(super) struct StickyArgs {
    /// The lock's name. Without a name: the names of all sticky locks of the namespace.
    name: Option<String>,
    #[command(flatten)]
    sidecar: SidecarArgs,
    /// Print JSON, with the field names of the proto: one object, or for names one a line.
    #[arg(long)]
    json: bool,
}

/// Shows sticky locks.
pub(super) async fn sticky(args: StickyArgs) -> Result<ExitCode, Failure> {
    let mut client = StickyLockServiceClient::new(args.sidecar.sidecar()?.connect().await?);
    let Some(name) = args.name else { return list(&mut client, args.json).await };
    let answer = client.get_sticky_lock(timed(GetStickyLockRequest { name })?).await;
    let lock = answer.map_err(|status| refused(&status))?.into_inner().lock.unwrap_or_default();
    print(if args.json { in_json(&lock) } else { in_table(&lock) }.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

async fn list(client: &mut StickyLockServiceClient<Channel>, json: bool) -> Result<ExitCode, Failure> {
    let mut page_token = String::new();
    loop {
        let request = timed(ListStickyLocksRequest { page_size: PAGE_SIZE, page_token })?;
        let page = client.list_sticky_locks(request).await.map_err(|status| refused(&status))?.into_inner();
        let lines = page.names.iter().map(|name| match json {
            true => json_line(&json!({ "name": name })),
            false => format!("{}\n", printable(name)),
        });
        if !print(lines.collect::<String>().as_bytes())? || page.next_page_token.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        page_token = page.next_page_token;
    }
}

fn state_word(lock: &StickyLock) -> &'static str {
    match lock.state() {
        StickyState::Own | StickyState::Released => "owned",
        StickyState::Waiting => "waiting",
        StickyState::Created | StickyState::Unspecified => "created",
    }
}

fn time(time: Option<&prost_types::Timestamp>) -> String {
    time.map_or_else(|| "-".to_owned(), ToString::to_string)
}

fn in_table(lock: &StickyLock) -> String {
    let mut text = format!("{}  {}\n", state_word(lock), printable(&lock.path));
    if !lock.owner.is_empty() {
        let inside = if lock.inside { "inside a run" } else { "idle" };
        let since = time(lock.owned_since.as_ref());
        let (owner, token) = (printable(&lock.owner), lock.fencing_token);
        text.push_str(&format!("owner  {owner}  token {token}  {inside}  since {since}"));
        if !lock.session.is_empty() {
            text.push_str(&format!("  session {}", printable(&lock.session)));
        }
        let grace = lock.grace.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
        text.push_str(&format!("  grace {grace}\n"));
    }
    if lock.last_run_time.is_some() {
        let (begin, end) = (time(lock.last_run_time.as_ref()), time(lock.last_run_end_time.as_ref()));
        text.push_str(&format!("last run  began {begin}  ended {end}\n"));
    }
    for UnfinishedRun { instance_name, fencing_token, begin_time, checkpoint } in &lock.unfinished {
        let (instance, begin) = (printable(instance_name), time(begin_time.as_ref()));
        let bytes = checkpoint.len();
        text.push_str(&format!(
            "unfinished  {instance}  token {fencing_token}  began {begin}  checkpoint of {bytes} bytes\n"
        ));
    }
    for instance in &lock.waiting {
        text.push_str(&format!("waits  {}\n", printable(instance)));
    }
    text
}

fn in_json(lock: &StickyLock) -> String {
    let time = |time: &Option<prost_types::Timestamp>| time.as_ref().map(ToString::to_string);
    let run = |run: &UnfinishedRun| {
        json!({
            "instance_name": run.instance_name,
            "fencing_token": run.fencing_token,
            "begin_time": time(&run.begin_time),
            "checkpoint_bytes": run.checkpoint.len(),
        })
    };
    json_line(&json!({
        "path": lock.path,
        "state": state_word(lock),
        "owner": lock.owner,
        "fencing_token": lock.fencing_token,
        "session": lock.session,
        "inside": lock.inside,
        "owned_since": time(&lock.owned_since),
        "last_run_time": time(&lock.last_run_time),
        "last_run_end_time": time(&lock.last_run_end_time),
        "grace": lock.grace.as_ref().map(ToString::to_string),
        "unfinished": lock.unfinished.iter().map(run).collect::<Vec<_>>(),
        "waiting": lock.waiting,
    }))
}
