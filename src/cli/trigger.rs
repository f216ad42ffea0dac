//! `trigger`: makes a job fire now, once.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::endpoint::SidecarArgs;
use super::printable;
use super::repeat::{RequestArgs, repeated};
use super::{Failure, print};
use crate::proto::job_service_client::JobServiceClient;
use crate::proto::{TriggerJobRequest, TriggerJobResponse};

/// The largest accepted answer, in bytes: more instances than a registry holds.
const MESSAGE_LIMIT: usize = 64 * 1024 * 1024;

#[derive(Args)]
pub(super) struct TriggerArgs {
    /// The job's name.
    job: String,
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
    let message = TriggerJobRequest { job_name: args.job, request_id: request_id.clone() };
    let send = |request| {
        let mut client = client.clone();
        async move { client.trigger_job(request).await }
    };
    let answer = repeated(&request_id, &message, send).await?;
    print(if args.json { in_json(&answer) } else { in_words(&answer) }.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn in_words(answer: &TriggerJobResponse) -> String {
    let triggered = answer.triggered_instance_ids.iter().map(|id| format!("triggered  {}\n", printable(id)));
    let pending = answer
        .pending_instance_ids
        .iter()
        .map(|id| format!("pending    {}  (fires once for this and an earlier trigger)\n", printable(id)));
    triggered.chain(pending).collect()
}

fn in_json(answer: &TriggerJobResponse) -> String {
    let TriggerJobResponse { triggered_instance_ids, pending_instance_ids } = answer;
    let value = json!({
        "triggered_instance_ids": triggered_instance_ids,
        "pending_instance_ids": pending_instance_ids,
    });
    super::json_line(&value)
}
