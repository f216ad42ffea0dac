//! `triggers`: which triggers of a job are there, and how far are they?

use std::process::ExitCode;

use serde_json::{Value, json};

use super::endpoint::{SidecarArgs, authorized, refused};
use super::jobs::{ANSWER_TIMEOUT, JobArgs, JobsArgs, MESSAGE_LIMIT, job_name, table};
use super::registry::{Registry, failed};
use super::watch::json::instant;
use super::{Failure, json_line, print};
use crate::api::{jobs, status};
use crate::proto::job_service_client::JobServiceClient;
use crate::proto::{ItemTrigger, ListTriggersRequest, ListTriggersResponse, Trigger, TriggerState};
use crate::runner::admin;

pub(super) async fn triggers(args: JobArgs) -> Result<ExitCode, Failure> {
    let JobArgs { job, common: JobsArgs { sidecar, registry, json } } = args;
    let listed = match registry.open().await? {
        Some(registry) => list_in(&registry, &job).await?,
        None => list(&sidecar, job).await?,
    };
    print(if json { in_json(&listed) } else { in_words(&listed) }.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

async fn list(sidecar: &SidecarArgs, job_name: String) -> Result<ListTriggersResponse, Failure> {
    let channel = sidecar.sidecar()?.connect().await?;
    let mut client = JobServiceClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
    let mut request = authorized(ListTriggersRequest { job_name })?;
    request.set_timeout(ANSWER_TIMEOUT);
    Ok(client.list_triggers(request).await.map_err(|status| refused(&status))?.into_inner())
}

async fn list_in(registry: &Registry, job: &str) -> Result<ListTriggersResponse, Failure> {
    let job = job_name(job)?;
    let listed = admin::triggers::list_in(registry.namespace(), &job).await;
    registry.session.close().await;
    Ok(jobs::triggers_to_message(&listed.map_err(|error| failed(&status::of_explain(&error)))?))
}

fn in_words(listed: &ListTriggersResponse) -> String {
    let row = |trigger: &Trigger| {
        let items: Vec<_> = trigger.running_items.iter().map(ToString::to_string).collect();
        let state = match trigger.state() {
            TriggerState::Pending if !trigger.online => "pending, not online".to_owned(),
            TriggerState::Pending => "pending".to_owned(),
            TriggerState::TakenUp => format!("taken up, executes {}", items.join(", ")),
            TriggerState::Done => "done".to_owned(),
            TriggerState::Unknown | TriggerState::Unspecified => "unknown, not online".to_owned(),
        };
        let since = trigger.trigger_time.as_ref().and_then(instant).unwrap_or_default();
        vec![trigger.instance_id.clone(), state, since, trigger.request_id.clone()]
    };
    let of_item = |trigger: &ItemTrigger| {
        let state = match trigger.state() {
            TriggerState::Pending => "pending".to_owned(),
            TriggerState::TakenUp => format!("taken up by {}", trigger.instance_id),
            TriggerState::Done => "done".to_owned(),
            TriggerState::Unknown | TriggerState::Unspecified => "unknown".to_owned(),
        };
        let since = trigger.trigger_time.as_ref().and_then(instant).unwrap_or_default();
        vec![trigger.item.to_string(), state, since, trigger.request_id.clone()]
    };
    let mut text = match listed.triggers.is_empty() && listed.item_triggers.is_empty() {
        true => "no triggers are known\n".to_owned(),
        false => String::new(),
    };
    if !listed.triggers.is_empty() {
        text.push_str(&table(&["instance", "state", "since", "request"], listed.triggers.iter().map(row)));
    }
    if !listed.item_triggers.is_empty() {
        text.push_str(&table(
            &["item", "state", "since", "request"],
            listed.item_triggers.iter().map(of_item),
        ));
    }
    if listed.left_out_requests > 0 {
        text.push_str(&format!("{} more requests are left out\n", listed.left_out_requests));
    }
    text
}

fn in_json(listed: &ListTriggersResponse) -> String {
    let one = |trigger: &Trigger| -> Value {
        let Trigger { instance_id, state: _, trigger_time, request_id, online, running_items } = trigger;
        json!({
            "instance_id": instance_id,
            "state": trigger.state().as_str_name(),
            "trigger_time": trigger_time.as_ref().and_then(instant),
            "request_id": request_id,
            "online": online,
            "running_items": running_items,
        })
    };
    let of_item = |trigger: &ItemTrigger| -> Value {
        let ItemTrigger { item, state: _, trigger_time, request_id, instance_id } = trigger;
        json!({
            "item": item,
            "state": trigger.state().as_str_name(),
            "trigger_time": trigger_time.as_ref().and_then(instant),
            "request_id": request_id,
            "instance_id": instance_id,
        })
    };
    let triggers: Vec<_> = listed.triggers.iter().map(one).collect();
    let item_triggers: Vec<_> = listed.item_triggers.iter().map(of_item).collect();
    json_line(&json!({
        "triggers": triggers,
        "item_triggers": item_triggers,
        "left_out_requests": listed.left_out_requests,
    }))
}
