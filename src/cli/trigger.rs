//! `trigger`: makes a job fire now, once.

use std::process::ExitCode;

use anyhow::anyhow;
use clap::Args;
use serde_json::json;

use super::endpoint::SidecarArgs;
use super::jobs::job_name;
use super::registry::{Registry, RegistryArgs};
use super::repeat::{RequestArgs, carried_out, repeated};
use super::{FAILED, Failure, USAGE, print, printable};
use crate::api::{jobs, status};
use crate::extension::request_record::RequestId;
use crate::job::Item;
use crate::proto::job_service_client::JobServiceClient;
use crate::proto::{TriggerJobRequest, TriggerJobResponse};
use crate::runner::admin::{trigger_items, trigger_job};

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
    registry: RegistryArgs,
    #[command(flatten)]
    request: RequestArgs,
    /// Print one JSON object, with the field names of the proto.
    #[arg(long)]
    json: bool,
}

pub(super) async fn trigger(args: TriggerArgs) -> Result<ExitCode, Failure> {
    let request_id = args.request.id()?;
    let (job_name, items, parameter) = (args.job, args.items, args.parameter);
    let is_for_items = !items.is_empty() || parameter.is_some();
    let message = TriggerJobRequest { job_name, request_id: request_id.clone(), items, parameter };
    if let Some(registry) = args.registry.open().await? {
        let answer = trigger_in(&registry, &message).await;
        registry.session.close().await;
        return show(&answer?, args.json);
    }
    let channel = args.sidecar.sidecar()?.connect().await?;
    let client = JobServiceClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
    let send = |request| {
        let mut client = client.clone();
        async move { client.trigger_job(request).await }
    };
    let answer = repeated(&request_id, &message, send).await?;
    let status = show(&answer, args.json)?;
    if is_for_items && answer.triggered_items.is_empty() {
        let error = anyhow!(
            "the sidecar is of an earlier version, and has triggered all items with the job's own parameter: upgrade it"
        );
        return Err(Failure { code: FAILED, error });
    }
    Ok(status)
}

async fn trigger_in(registry: &Registry, message: &TriggerJobRequest) -> Result<TriggerJobResponse, Failure> {
    let job = job_name(&message.job_name)?;
    let id = RequestId::parse(&message.request_id)
        .map_err(|error| Failure { code: USAGE, error: error.into() })?;
    let items = message.items.iter().copied().map(Item).collect();
    let wish = jobs::item_wish(message, items).map_err(|invalid| Failure {
        code: USAGE,
        error: anyhow!(printable(invalid.to_status().message())),
    })?;
    let namespace = registry.namespace();
    let trigger = async || {
        if wish.is_for_items() {
            let items = trigger_items::trigger_in(namespace, &job, &wish, &id).await;
            let items = items.map_err(|error| status::of_item_trigger(&error, Some(&id)))?;
            return Ok(jobs::triggered_items_to_message(&items));
        }
        let triggered = trigger_job::trigger_in(namespace, &job, Some(&id)).await;
        let triggered = triggered.map_err(|error| status::of_trigger(&error, Some(&id)))?;
        Ok(jobs::triggered_to_message(&triggered))
    };
    carried_out(&message.request_id, trigger).await
}

fn show(answer: &TriggerJobResponse, as_json: bool) -> Result<ExitCode, Failure> {
    print(if as_json { in_json(answer) } else { in_words(answer) }.as_bytes())?;
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
