//! `cancel`: cancels a job's executions.

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::endpoint::SidecarArgs;
use super::jobs::job_name;
use super::registry::{Registry, RegistryArgs};
use super::repeat::{RequestArgs, carried_out, repeated};
use super::{Failure, USAGE, print, printable};
use crate::api::{jobs, status};
use crate::extension::request_record::RequestId;
use crate::job::Item;
use crate::proto::job_service_client::JobServiceClient;
use crate::proto::{
    CancelExecutionsRequest, CancelExecutionsResponse, CancelReach, CancelledExecution, FleetExecution,
};
use crate::runner::admin::cancel_fleet;

/// The largest answer that is accepted, in bytes: far more executions than a sidecar has.
const MESSAGE_LIMIT: usize = 64 * 1024 * 1024;

#[derive(Args)]
pub(super) struct CancelArgs {
    /// The job's name.
    job: String,
    /// Only the execution of this item; may be given several times.
    #[arg(long = "item", value_name = "ITEM")]
    items: Vec<u32>,
    /// Cancel the executions in the applications of all sidecars, not only of one. Shows those that are not reached, as Java's.
    #[arg(long)]
    fleet: bool,
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

pub(super) async fn cancel(args: CancelArgs) -> Result<ExitCode, Failure> {
    let request_id = args.request.id()?;
    if let Some(registry) = args.registry.open_if(args.fleet, "--fleet").await? {
        let items = args.items.into_iter().map(Item).collect();
        let answer = cancel_in(&registry, &args.job, items, &request_id).await?;
        return show(&answer, true, args.json);
    }
    let channel = args.sidecar.sidecar()?.connect().await?;
    let client = JobServiceClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
    let (job_name, items) = (args.job, args.items);
    let fleet = args.fleet;
    let message = CancelExecutionsRequest { job_name, items, request_id: request_id.clone(), fleet };
    let send = |request| {
        let mut client = client.clone();
        async move { client.cancel_executions(request).await }
    };
    let answer = repeated(&request_id, &message, send).await?;
    show(&answer, fleet, args.json)
}

async fn cancel_in(
    registry: &Registry,
    job: &str,
    items: BTreeSet<Item>,
    request_id: &str,
) -> Result<CancelExecutionsResponse, Failure> {
    let job = job_name(job)?;
    let id = RequestId::parse(request_id).map_err(|error| Failure { code: USAGE, error: error.into() })?;
    let items = (!items.is_empty()).then_some(items);
    let cancel = async || {
        let concerned = cancel_fleet::cancel_in(registry.namespace(), &job, items.as_ref(), &id).await;
        concerned.map_err(|error| status::of_fleet_cancel(&error, Some(&id)))
    };
    let concerned = carried_out(request_id, cancel).await;
    registry.session.close().await;
    Ok(jobs::fleet_cancel_to_message(&concerned?))
}

fn show(answer: &CancelExecutionsResponse, fleet: bool, as_json: bool) -> Result<ExitCode, Failure> {
    let text = match (as_json, fleet) {
        (true, _) => in_json(answer),
        (false, true) => fleet_in_words(answer),
        (false, false) => in_words(answer),
    };
    print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn fleet_in_words(answer: &CancelExecutionsResponse) -> String {
    if answer.fleet_executions.is_empty() {
        return "nothing is being executed\n".to_owned();
    }
    let line = |one: &FleetExecution| {
        let how = match one.reach() {
            CancelReach::Sidecar => "cancelled    ",
            CancelReach::Unspecified
            | CancelReach::Java
            | CancelReach::EarlierVersion
            | CancelReach::NotOnline => "not reached  ",
        };
        let why = match one.reach() {
            CancelReach::Sidecar => "",
            CancelReach::Java => "  (a Java instance)",
            CancelReach::EarlierVersion => {
                "  (its sidecar is of an earlier version: cancel there, without --fleet)"
            }
            CancelReach::NotOnline => "  (not online)",
            CancelReach::Unspecified => "  (unknown)",
        };
        format!("{how}item {}  of {}{why}\n", one.item, printable(&one.instance_id))
    };
    answer.fleet_executions.iter().map(line).collect()
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
    let fleet = |one: &FleetExecution| {
        json!({
            "instance_id": one.instance_id,
            "item": one.item,
            "fencing_token": one.fencing_token,
            "reach": one.reach().as_str_name(),
        })
    };
    let value = json!({
        "cancelled": answer.cancelled.iter().map(one).collect::<Vec<_>>(),
        "fleet_executions": answer.fleet_executions.iter().map(fleet).collect::<Vec<_>>(),
    });
    super::json_line(&value)
}
