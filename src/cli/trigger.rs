//! `trigger`: makes a job fire now, once.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::endpoint::{SidecarArgs, authorized, refused};
use super::printable;
use super::{Failure, print};
use crate::proto::job_service_client::JobServiceClient;
use crate::proto::{TriggerJobRequest, TriggerJobResponse};

/// How long to wait for the answer: longer than the sidecar may wait for its registry.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The largest accepted answer, in bytes: more instances than a registry holds.
const MESSAGE_LIMIT: usize = 64 * 1024 * 1024;

#[derive(Args)]
pub(super) struct TriggerArgs {
    /// The job's name.
    job: String,
    #[command(flatten)]
    sidecar: SidecarArgs,
    /// Print one JSON object, with the field names of the proto.
    #[arg(long)]
    json: bool,
}

pub(super) async fn trigger(args: TriggerArgs) -> Result<ExitCode, Failure> {
    let sidecar = args.sidecar.sidecar()?;
    let channel = sidecar.connect().await?;
    let mut client = JobServiceClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
    let mut request = authorized(TriggerJobRequest { job_name: args.job })?;
    request.set_timeout(ANSWER_TIMEOUT);
    let answer = client.trigger_job(request).await.map_err(|status| refused(&status))?;
    print(if args.json { in_json(answer.get_ref()) } else { in_words(answer.get_ref()) }.as_bytes())?;
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
