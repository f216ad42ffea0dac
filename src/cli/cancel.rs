//! `cancel`: cancels a job's executions.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::endpoint::SidecarArgs;
use super::printable;
use super::repeat::{RequestArgs, repeated};
use super::{Failure, print};
use crate::proto::job_service_client::JobServiceClient;
use crate::proto::{CancelExecutionsRequest, CancelExecutionsResponse, CancelledExecution};

/// The largest answer that is accepted, in bytes: far more executions than a sidecar has.
const MESSAGE_LIMIT: usize = 64 * 1024 * 1024;

#[derive(Args)]
pub(super) struct CancelArgs {
    /// The job's name.
    job: String,
    /// Only the execution of this item; may be given several times.
    #[arg(long = "item", value_name = "ITEM")]
    items: Vec<u32>,
    #[command(flatten)]
    sidecar: SidecarArgs,
    #[command(flatten)]
    request: RequestArgs,
    /// Print one JSON object, with the field names of the proto.
    #[arg(long)]
    json: bool,
}

pub(super) async fn cancel(args: CancelArgs) -> Result<ExitCode, Failure> {
    let request_id = args.request.id()?;
    let channel = args.sidecar.sidecar()?.connect().await?;
    let client = JobServiceClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
    let (job_name, items) = (args.job, args.items);
    let message = CancelExecutionsRequest { job_name, items, request_id: request_id.clone() };
    let send = |request| {
        let mut client = client.clone();
        async move { client.cancel_executions(request).await }
    };
    let answer = repeated(&request_id, &message, send).await?;
    print(if args.json { in_json(&answer) } else { in_words(&answer) }.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn in_words(answer: &CancelExecutionsResponse) -> String {
    if answer.cancelled.is_empty() {
        return "nothing is being executed here\n".to_owned();
    }
    let line = |one: &CancelledExecution| {
        let then = if one.was_waiting { "  (was waiting to be tried again)" } else { "" };
        let (id, instance) = (printable(&one.execution_id), printable(&one.instance_id));
        format!("cancelled  item {}  {id}  of {instance}{then}\n", one.item)
    };
    answer.cancelled.iter().map(line).collect()
}

fn in_json(answer: &CancelExecutionsResponse) -> String {
    let one = |one: &CancelledExecution| {
        json!({
            "instance_id": one.instance_id,
            "item": one.item,
            "execution_id": one.execution_id,
            "was_waiting": one.was_waiting,
        })
    };
    let value = json!({ "cancelled": answer.cancelled.iter().map(one).collect::<Vec<_>>() });
    super::json_line(&value)
}
