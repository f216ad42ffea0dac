//! Lists of jobs and whole jobs: requests to the domain, and the domain to messages. Decides which texts are hidden from a caller without the role `operate`.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use crate::coordination::admin::cancel_fleet::{Concerned, Reach};
use crate::coordination::admin::explain::Disabling;
use crate::coordination::admin::summary::{JobState, JobSummary};
use crate::coordination::admin::trigger_items::ItemWish;
use crate::coordination::admin::triggers::{ItemTrigger, Trigger, TriggerState};
use crate::coordination::admin::update::{Update, etag};
use crate::elasticjob::config_yaml_editor::Key;
use crate::elasticjob::field_error::FieldError;
use crate::elasticjob::redaction;
use crate::extension::item_trigger::PARAMETER_BYTES_MAX;
use crate::extension::note::Note;
use crate::extension::path::Noted;
use crate::job::{InstanceId, Item, JobName};
use crate::proto;
use crate::runner::admin::change_job::Updated;
use crate::runner::admin::jobs::{Job, Listed, Page};
use crate::runner::admin::servers::{JobServers, ListedServers};
use crate::runner::admin::trigger_job::Triggered;
use crate::runner::admin::triggers::ListedTriggers;

use super::assignment::hide_parameters;
use super::convert::{InvalidRequest, field_of, values_from_proto};
use super::event::{status_to_message, timestamp};

/// Jobs on a page, if the request does not say how many.
const PAGE_SIZE: u32 = 50;
/// The most jobs on a page.
pub const PAGE_SIZE_MAX: u32 = 1_000;
/// The longest token of a page, in bytes: the longest name.
const TOKEN_BYTES_MAX: usize = 1_024;

/// The page of a request for a list.
pub fn page(size: u32, token: &str) -> Result<Page, InvalidRequest> {
    let size = if size == 0 { PAGE_SIZE } else { size };
    let mut errors = Vec::new();
    if size > PAGE_SIZE_MAX {
        errors.push(FieldError::new("page_size", &size.to_string(), &format!("1 to {PAGE_SIZE_MAX}, or 0")));
    }
    if token.len() > TOKEN_BYTES_MAX {
        errors.push(FieldError::new("page_token", token, "the token of an answer, or none"));
    }
    if !errors.is_empty() {
        return Err(InvalidRequest(errors));
    }
    let after = Some(token.to_owned()).filter(|token| !token.is_empty());
    Ok(Page { size: usize::try_from(size).unwrap_or(usize::MAX), after })
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// A page as the API has it.
pub fn list_to_message((jobs, next): Listed) -> proto::ListJobsResponse {
    let jobs = jobs.iter().map(summary_to_message).collect();
    proto::ListJobsResponse { jobs, next_page_token: next.unwrap_or_default() }
}

/// A page of servers as the API has it.
pub fn servers_to_message((jobs, next): ListedServers) -> proto::ListServersResponse {
    let servers_of = |of_job: JobServers| proto::JobServers {
        job_name: of_job.job.to_string(),
        servers: of_job.servers.iter().map(server_to_message).collect(),
    };
    let jobs = jobs.into_iter().map(servers_of).collect();
    proto::ListServersResponse { jobs, next_page_token: next.unwrap_or_default() }
}

fn server_to_message((ip, disabled, instances): &(Ipv4Addr, bool, usize)) -> proto::ServerStatus {
    proto::ServerStatus { server_ip: ip.to_string(), disabled: *disabled, instance_count: count(*instances) }
}

/// A job's line as the API has it.
pub(super) fn summary_to_message(summary: &JobSummary) -> proto::JobSummary {
    let state = match summary.state {
        JobState::Ok => proto::JobState::Ok,
        JobState::Disabled => proto::JobState::Disabled,
        JobState::NoInstances => proto::JobState::NoInstances,
        JobState::Resharding => proto::JobState::Resharding,
        JobState::Unreadable => proto::JobState::Unreadable,
    };
    proto::JobSummary {
        job_name: summary.job.to_string(),
        state: state.into(),
        sharding_total_count: summary.total,
        cron: summary.cron.clone(),
        time_zone: summary.time_zone.clone(),
        description: summary.description.clone(),
        instance_count: count(summary.instances),
        java_instance_count: count(summary.java_instances),
    }
}

/// A job as the API has it. Without `sees_parameters` texts that may have parameters are left out.
pub fn job_to_message(job: &JobName, found: &Job, sees_parameters: bool) -> proto::GetJobResponse {
    let mut state = status_to_message(job, &found.status);
    if !sees_parameters {
        hide_parameters(&mut state);
    }
    let document = found.configuration.as_ref().filter(|_| sees_parameters);
    proto::GetJobResponse {
        job_name: state.job_name,
        configuration: state.configuration,
        etag: etag(found.configuration.as_ref().map(|node| &node.stat)),
        document: document.map(|node| redaction::document(&node.data)).unwrap_or_default(),
        instances: state.instances,
        servers: found.servers.iter().map(server_to_message).collect(),
        items: state.items,
        resharding: state.resharding,
        next_fire_time: state.next_fire_time,
        problems: state.problems,
        parameters_hidden: state.parameters_hidden,
        disablings: found.disablings.iter().map(disabling_to_message).collect(),
    }
}

/// The executions that a cancel of the whole fleet concerns, as the API has them.
pub fn fleet_cancel_to_message(concerned: &[Concerned]) -> proto::CancelExecutionsResponse {
    let execution = |one: &Concerned| {
        let reach = match one.reach {
            Reach::Sidecar => proto::CancelReach::Sidecar,
            Reach::Java => proto::CancelReach::Java,
            Reach::EarlierVersion => proto::CancelReach::EarlierVersion,
            Reach::NotOnline => proto::CancelReach::NotOnline,
        };
        proto::FleetExecution {
            instance_id: one.instance.to_string(),
            item: one.item.0,
            fencing_token: one.token.0,
            reach: reach.into(),
        }
    };
    proto::CancelExecutionsResponse {
        cancelled: Vec::new(),
        fleet_executions: concerned.iter().map(execution).collect(),
    }
}

/// The items and the parameter of a trigger.
pub fn item_wish(
    request: &proto::TriggerJobRequest,
    items: BTreeSet<Item>,
) -> Result<ItemWish, InvalidRequest> {
    let parameter = request.parameter.clone();
    let is_wrong = |text: &String| text.len() > PARAMETER_BYTES_MAX || text.contains('\0');
    if let Some(text) = parameter.as_ref().filter(|text| is_wrong(text)) {
        // It may be a secret.
        let given = format!("a text of {} bytes", text.len());
        let allowed = format!("a text of at most {PARAMETER_BYTES_MAX} bytes, without NUL characters");
        return Err(InvalidRequest(vec![FieldError::new("parameter", &given, &allowed)]));
    }
    Ok(ItemWish { items, parameter })
}

/// The instances of a trigger as the API has them.
pub fn triggered_to_message(triggered: &Triggered) -> proto::TriggerJobResponse {
    let texts = |ids: &BTreeSet<InstanceId>| ids.iter().map(ToString::to_string).collect();
    proto::TriggerJobResponse {
        triggered_instance_ids: texts(&triggered.triggered),
        pending_instance_ids: texts(&triggered.pending),
        triggered_items: Vec::new(),
    }
}

/// The items of a trigger as the API has them.
pub fn triggered_items_to_message(items: &BTreeSet<Item>) -> proto::TriggerJobResponse {
    proto::TriggerJobResponse {
        triggered_items: items.iter().map(|item| item.0).collect(),
        ..proto::TriggerJobResponse::default()
    }
}

fn trigger_state(state: TriggerState) -> proto::TriggerState {
    match state {
        TriggerState::Pending => proto::TriggerState::Pending,
        TriggerState::TakenUp => proto::TriggerState::TakenUp,
        TriggerState::Done => proto::TriggerState::Done,
        TriggerState::Unknown => proto::TriggerState::Unknown,
    }
}

/// The triggers of a job as the API has them.
pub fn triggers_to_message(listed: &ListedTriggers) -> proto::ListTriggersResponse {
    let of_item = |trigger: &ItemTrigger| proto::ItemTrigger {
        item: trigger.item.0,
        state: trigger_state(trigger.state).into(),
        trigger_time: trigger.since.map(timestamp),
        request_id: trigger.request.to_string(),
        instance_id: trigger.instance.as_ref().map(ToString::to_string).unwrap_or_default(),
    };
    let trigger = |trigger: &Trigger| proto::Trigger {
        instance_id: trigger.instance.to_string(),
        state: trigger_state(trigger.state).into(),
        trigger_time: trigger.since.map(timestamp),
        request_id: trigger.request.as_ref().map(ToString::to_string).unwrap_or_default(),
        online: trigger.online,
        running_items: trigger.running.iter().map(|item| item.0).collect(),
    };
    proto::ListTriggersResponse {
        triggers: listed.triggers.iter().map(trigger).collect(),
        left_out_requests: count(listed.left_out),
        item_triggers: listed.item_triggers.iter().map(of_item).collect(),
    }
}

fn disabling_to_message(disabling: &Disabling) -> proto::Disabling {
    let subject = match disabling.about {
        Noted::Item(item) => proto::disabling::Subject::Item(item.0),
        Noted::Server(server) => proto::disabling::Subject::ServerIp(server.to_string()),
    };
    let Note { author, reason, until, .. } = disabling.note.clone().unwrap_or_default();
    proto::Disabling {
        subject: Some(subject),
        author,
        reason,
        since: disabling.since.map(timestamp),
        until: until.map(timestamp),
    }
}

/// The wish of a request, and whether it is only to be checked.
pub fn update(request: &proto::UpdateJobRequest) -> Result<(JobName, Update, bool), InvalidRequest> {
    let mut errors = Vec::new();
    let job = JobName::parse(&request.job_name);
    if let Err(error) = &job {
        errors.push(FieldError::of_job_name("job_name", error));
    }
    if request.configuration.is_none() {
        errors.push(FieldError::new("configuration", "", "the values of the fields in `update_mask`"));
    }
    let paths = request.update_mask.as_ref().map(|mask| &mask.paths[..]).unwrap_or_default();
    let mut keys = Vec::new();
    for path in paths {
        match Key::ALL.into_iter().find(|key| field_of(*key) == *path) {
            Some(key) => keys.push(key),
            None => errors.push(FieldError::new(
                "update_mask",
                path,
                "names of fields of JobConfiguration, but not job_class",
            )),
        }
    }
    if paths.is_empty() {
        errors.push(FieldError::new("update_mask", "", "at least one field of JobConfiguration"));
    }
    let (Ok(job), Some(message), true) = (job, &request.configuration, errors.is_empty()) else {
        return Err(InvalidRequest(errors));
    };
    let update = Update {
        wanted: values_from_proto(job.clone(), message)?,
        keys,
        etag: Some(request.etag.clone()).filter(|etag| !etag.is_empty()),
        allow_missing: request.allow_missing,
        class: message.job_class.clone(),
    };
    Ok((job, update, request.validate_only))
}

/// A change as the API has it.
pub fn update_to_message(updated: &Updated) -> proto::UpdateJobResponse {
    proto::UpdateJobResponse {
        etag: updated.etag.clone(),
        changed_fields: updated.keys.iter().map(|key| field_of(*key)).collect(),
        document: redaction::document(updated.document.as_bytes()),
    }
}
