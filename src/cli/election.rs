//! `election`: shows which candidate leads an election, or stands for election and runs a command while it leads.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use clap::{ArgGroup, Args};
use futures::StreamExt as _;
use serde_json::json;
use tonic::transport::Channel;

use super::endpoint::{SidecarArgs, authorized, in_words, refused};
use super::held::{Grant, News, RELEASE_TIMEOUT, in_text, prepare, run};
use super::{Failure, print, printable};
use crate::config;
use crate::proto::campaign_response::Event;
use crate::proto::election_service_client::ElectionServiceClient;
use crate::proto::lock_id::Id;
use crate::proto::{CampaignRequest, ElectionLeader, LockId, ObserveRequest, ObserveResponse, ResignRequest};

#[derive(Args)]
#[command(group(ArgGroup::new("which").required(true).args(["name", "path"])))]
pub(super) struct ElectionArgs {
    /// The election's name.
    name: Option<String>,
    /// The path of a `LeaderLatch` of other programs, instead of a name.
    #[arg(long)]
    path: Option<String>,
    /// Show the leader again after each change, until interrupted.
    #[arg(long, conflicts_with = "command")]
    watch: bool,
    /// Print JSON, with the field names of the proto: one object a line.
    #[arg(long, conflicts_with = "command")]
    json: bool,
    /// The value that others see of this candidate, for example its address.
    #[arg(long, default_value = "", requires = "command")]
    value: String,
    /// How long the command may take to end after SIGTERM when the leadership is lost. Then it is killed.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = config::lock_timeout, requires = "command")]
    kill_after: Duration,
    /// Say on standard error how many candidates are before this one.
    #[arg(long, short, requires = "command")]
    verbose: bool,
    #[command(flatten)]
    sidecar: SidecarArgs,
    /// Stand for election, and run this command with its arguments while this candidate leads. When it ends, the leader resigns.
    #[arg(last = true, value_name = "COMMAND", value_hint = clap::ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

/// Shows an election, or stands in it.
pub(super) async fn election(args: ElectionArgs) -> Result<ExitCode, Failure> {
    let id = LockId { id: args.name.clone().map(Id::Name).or(args.path.clone().map(Id::Path)) };
    if args.command.is_empty() {
        return show(id, args).await;
    }
    let (signals, channel) = prepare(args.sidecar).await?;
    let mut client = ElectionServiceClient::new(channel);
    let campaign = CampaignRequest {
        election: Some(id),
        value: args.value,
        application_id: String::new(),
        ends_when_lost: true,
    };
    let request = authorized(campaign)?;
    let mut resigns = client.clone();
    let grant = Grant {
        events: Box::pin(async move {
            let events = client.campaign(request).await?.into_inner();
            Ok(events.map(|event| event.map(|event| news(event.event))).boxed())
        }),
        give_back: Box::new(move |campaign_id| {
            Box::pin(async move {
                let request = ResignRequest { campaign_id, successor: String::new() };
                let mut request = authorized(request).map_err(|error| in_text(&error))?;
                request.set_timeout(RELEASE_TIMEOUT);
                resigns.resign(request).await.map(drop).map_err(|status| in_words(&status))
            })
        }),
        variables: ["SIDEKEEPER_ELECTION_PATH", "SIDEKEEPER_ELECTION_NODE", "SIDEKEEPER_ELECTION_TERM"],
        noun: "leadership",
    };
    run(grant, signals, args.command, args.kill_after, args.verbose).await
}

/// An event of a campaign, as far as it matters here.
fn news(event: Option<Event>) -> News {
    match event {
        Some(Event::Started(campaign)) => News::Started { id: campaign.campaign_id, path: campaign.path },
        Some(Event::Following(following)) => {
            let place = format!("{} candidates are before this one", following.position);
            News::Waiting { place, trouble: following.reason }
        }
        Some(Event::Leading(leading)) => {
            News::Granted { token: leading.term, node_path: leading.node_path, lease: leading.lease }
        }
        Some(Event::LeaseRenewed(lease) | Event::Resumed(lease)) => News::Renewed(lease),
        Some(Event::Lost(lost)) => News::Over(Some(lost.reason().as_str_name().to_owned())),
        Some(Event::Resigned(_)) => News::Over(Some("it was given up".to_owned())),
        Some(Event::Suspended(_) | Event::Draining(_) | Event::LeaderChanged(_)) | None => News::Other,
    }
}

async fn show(election: LockId, args: ElectionArgs) -> Result<ExitCode, Failure> {
    let channel: Channel = args.sidecar.sidecar()?.connect().await?;
    let mut client = ElectionServiceClient::new(channel);
    let request = authorized(ObserveRequest { election: Some(election) })?;
    let mut states = client.observe(request).await.map_err(|status| refused(&status))?.into_inner();
    loop {
        let state = states.message().await.map_err(|status| refused(&status))?;
        let state = state.ok_or_else(|| anyhow!("the sidecar has ended the stream"))?;
        if !state.stale_reason.is_empty() {
            eprintln!("sidekeeper: this may be old: {}", printable(&state.stale_reason));
        }
        let text = if args.json { in_json(&state) } else { in_table(&state) };
        if !print(text.as_bytes())? || !args.watch {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn in_table(state: &ObserveResponse) -> String {
    let row = |word: &str, one: &ElectionLeader| {
        format!("{word}  term {}  {}  {}\n", one.term, printable(&one.node_name), printable(&one.value))
    };
    let leader =
        state.leader.as_ref().map_or_else(|| "nobody leads\n".to_owned(), |leader| row("leads", leader));
    let candidates = state.candidates.iter().map(|candidate| row("waits", candidate));
    std::iter::once(leader).chain(candidates).collect()
}

fn in_json(state: &ObserveResponse) -> String {
    let one =
        |one: &ElectionLeader| json!({ "value": one.value, "term": one.term, "node_name": one.node_name });
    super::json_line(&json!({
        "leader": state.leader.as_ref().map(one),
        "candidates": state.candidates.iter().map(one).collect::<Vec<_>>(),
        "stale_reason": state.stale_reason,
    }))
}
