//! `trigger`: makes a job fire now, once.

use std::process::ExitCode;

use anyhow::anyhow;
use clap::Args;
use serde_json::json;

use super::endpoint::SidecarArgs;
use super::printable;
use super::repeat::{RequestArgs, repeated};
use super::{FAILED, Failure, print};
use crate::proto::job_service_client::JobServiceClient;
use crate::proto::{TriggerJobRequest, TriggerJobResponse};

/// The largest accepted answer, in bytes: more instances than a registry holds.
const MESSAGE_LIMIT: usize = 64 * 1024 * 1024;

#[derive(Args)]
pub(super) struct TriggerArgs {
    /// The job's name.
    job: String,
    /// Execute only this item, once; may be given several times. Not in a job with Java instances online.
    #[arg(long = "item", value_name = "ITEM")]
    items: Vec<u32>,
    /// Execute the items, or all that are enabled, with this text in place of the job's own parameter. Not in a job with Java instances online.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    parameter: Option<String>,
    #[command(flatten)]
    sidecar: SidecarArgs,
    #[command(flatten)]
    request: RequestArgs,
    /// Print one JSON object, with the field names of the proto.
    #[arg(long)]
    json: bool,
}

pub(super) async fn trigger(args: TriggerArgs) -> Result<ExitCode, Failure> {
    let request_id = args.request.id()?;
    let channel = args.sidecar.sidecar()?.connect().await?;
    let client = JobServiceClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
    let is_for_items = !args.items.is_empty() || args.parameter.is_some();
    let (job_name, items, parameter) = (args.job, args.items, args.parameter);
    let message = TriggerJobRequest { job_name, request_id: request_id.clone(), items, parameter };
    let send = |request| {
        let mut client = client.clone();
        async move { client.trigger_job(request).await }
    };
    let answer = repeated(&request_id, &message, send).await?;
    print(if args.json { in_json(&answer) } else { in_words(&answer) }.as_bytes())?;
    if is_for_items && answer.triggered_items.is_empty() {
        let error = anyhow!(
            "the sidecar is of an earlier version, and has triggered all items with the job's own parameter: upgrade it"
        );
        return Err(Failure { code: FAILED, error });
    }
    Ok(ExitCode::SUCCESS)
}

fn in_words(answer: &TriggerJobResponse) -> String {
    let triggered = answer.triggered_instance_ids.iter().map(|id| format!("triggered  {}\n", printable(id)));
    let pending = answer
        .pending_instance_ids
        .iter()
        .map(|id| format!("pending    {}  (fires once for this and an earlier trigger)\n", printable(id)));
    let items = answer.triggered_items.iter().map(|item| format!("triggered  item {item}\n"));
    triggered.chain(pending).chain(items).collect()
}

fn in_json(answer: &TriggerJobResponse) -> String {
    let TriggerJobResponse { triggered_instance_ids, pending_instance_ids, triggered_items } = answer;
    let value = json!({
        "triggered_instance_ids": triggered_instance_ids,
        "pending_instance_ids": pending_instance_ids,
        "triggered_items": triggered_items,
    });
    super::json_line(&value)
}
