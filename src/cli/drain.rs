//! `drain`: makes all instances of a sidecar leave, and waits until they have left.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;
use serde_json::json;

use super::endpoint::{SidecarArgs, authorized, refused};
use super::printable;
use super::{Failure, print};
use crate::config::{self, DRAIN_TIMEOUT_MAX};
use crate::proto::sidecar_service_client::SidecarServiceClient;
use crate::proto::{DrainRequest, DrainResponse};

/// The time for the sidecar's answer beyond its timeout, with a reserve. The sidecar ends the drain itself,
/// so this only guards against a sidecar that does not answer.
const ANSWER_TAKES: Duration = Duration::from_secs(30);

#[derive(Args)]
pub(super) struct DrainArgs {
    /// How long executions may go on, `0s` to `1h`. [default: the sidecar's `drain_timeout`]
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,
    /// The instances do not come back: items that the job's `sidekeeper.grace` would keep for named instances
    /// go to others at once.
    #[arg(long)]
    for_good: bool,
    #[command(flatten)]
    sidecar: SidecarArgs,
    /// Print one JSON object, with the field names of the proto.
    #[arg(long)]
    json: bool,
}

pub(super) async fn drain(args: DrainArgs) -> Result<ExitCode, Failure> {
    let sidecar = args.sidecar.sidecar()?;
    let timeout = args.timeout.as_deref().map(config::drain_timeout).transpose().map_err(|reason| {
        let given = args.timeout.as_deref().unwrap_or_default().escape_debug();
        Failure { code: super::USAGE, error: anyhow!("--timeout = `{given}`: {reason}") }
    })?;
    let channel = sidecar.connect().await?;
    let mut client = SidecarServiceClient::new(channel);
    let given = timeout.map(prost_types::Duration::try_from).transpose().context("--timeout")?;
    let mut request = authorized(DrainRequest { timeout: given, for_good: args.for_good })?;
    request.set_timeout(timeout.unwrap_or(DRAIN_TIMEOUT_MAX).saturating_add(ANSWER_TAKES));
    let answer = client.drain(request).await.map_err(|status| refused(&status))?;
    print(if args.json { in_json(answer.get_ref()) } else { in_words(answer.get_ref()) }.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn in_words(answer: &DrainResponse) -> String {
    if answer.instances.is_empty() {
        return "no application was attached\n".to_owned();
    }
    let line =
        |(job, instance): (&str, &str)| format!("left  {}  of {}\n", printable(instance), printable(job));
    answer.instances.iter().map(|one| line((&one.job_name, &one.instance_id))).collect()
}

fn in_json(answer: &DrainResponse) -> String {
    let instances = answer.instances.iter();
    let instances = instances.map(|one| json!({ "job_name": one.job_name, "instance_id": one.instance_id }));
    super::json_line(&json!({ "instances": instances.collect::<Vec<_>>() }))
}
