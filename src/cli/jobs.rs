//! `jobs`, `job`, `items`, `instances` and `servers`: the jobs of the namespace, and the parts of one job.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::endpoint::{SidecarArgs, authorized, refused};
use super::registry::{Registry, RegistryArgs, failed};
use super::watch::json::{instance, instant, item, job_configuration, problem};
use super::watch::problem_in_words;
use super::{Failure, json_line, print, printable};
use crate::api::jobs::{self, PAGE_SIZE_MAX};
use crate::api::status;
use crate::elasticjob::field_error::FieldError;
use crate::job::JobName;
use crate::proto::disabling::Subject;
use crate::proto::job_service_client::JobServiceClient;
use crate::proto::{
    Disabling, GetJobRequest, GetJobResponse, InstanceStatus, ItemStatus, JobState, JobSummary,
    ListJobsRequest, ListJobsResponse, ServerStatus,
};
use crate::runner::admin;

/// How long to wait for an answer: longer than the sidecar may wait for its registry.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest accepted answer, in bytes.
pub(super) const MESSAGE_LIMIT: usize = 16 * 1024 * 1024;

#[derive(Args)]
pub(super) struct JobsArgs {
    #[command(flatten)]
    pub(super) sidecar: SidecarArgs,
    #[command(flatten)]
    pub(super) registry: RegistryArgs,
    /// Print one JSON object, with the field names of the proto.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Args)]
pub(super) struct JobArgs {
    /// The job's name.
    pub(super) job: String,
    #[command(flatten)]
    pub(super) common: JobsArgs,
}

/// The part of a job to show.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Everything.
    Job,
    /// The items.
    Items,
    /// The instances that are online.
    Instances,
    /// All servers that the job has had.
    Servers,
}

pub(super) async fn jobs(args: JobsArgs) -> Result<ExitCode, Failure> {
    let JobsArgs { sidecar, registry, json } = args;
    let listed = match registry.open().await? {
        Some(registry) => list_in(&registry).await?,
        None => list(&sidecar).await?,
    };
    let text = if json {
        json_line(&json!({ "jobs": listed.iter().map(summary_in_json).collect::<Vec<_>>() }))
    } else {
        let rows = listed.iter().map(summary_row);
        table(&["job", "state", "items", "instances", "cron", "description"], rows)
    };
    print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// All pages, one after the other.
async fn list(sidecar: &SidecarArgs) -> Result<Vec<JobSummary>, Failure> {
    let channel = sidecar.sidecar()?.connect().await?;
    let mut client = JobServiceClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
    let (mut jobs, mut page_token) = (Vec::new(), String::new());
    loop {
        let mut request = authorized(ListJobsRequest { page_size: PAGE_SIZE_MAX, page_token })?;
        request.set_timeout(ANSWER_TIMEOUT);
        let answer = client.list_jobs(request).await.map_err(|status| refused(&status))?;
        let ListJobsResponse { jobs: more, next_page_token } = answer.into_inner();
        jobs.extend(more);
        if next_page_token.is_empty() {
            return Ok(jobs);
        }
        page_token = next_page_token;
    }
}

async fn list_in(registry: &Registry) -> Result<Vec<JobSummary>, Failure> {
    let (mut jobs, mut page_token) = (Vec::new(), String::new());
    let listed = loop {
        let page = jobs::page(PAGE_SIZE_MAX, &page_token).map_err(|invalid| failed(&invalid.to_status()))?;
        match admin::jobs::list_in(registry.namespace(), &page, |_| true).await {
            Ok(listed) => {
                let ListJobsResponse { jobs: more, next_page_token } = jobs::list_to_message(listed);
                jobs.extend(more);
                if next_page_token.is_empty() {
                    break Ok(jobs);
                }
                page_token = next_page_token;
            }
            Err(error) => break Err(failed(&status::of_list(&error))),
        }
    };
    registry.session.close().await;
    listed
}

pub(super) async fn job(args: JobArgs, part: Part) -> Result<ExitCode, Failure> {
    let JobArgs { job, common: JobsArgs { sidecar, registry, json } } = args;
    let found = match registry.open().await? {
        Some(registry) => get_in(&registry, &job).await?,
        None => get(&sidecar, job).await?,
    };
    let text = if json { json_line(&in_json(&found, part)) } else { in_words(&found, part) };
    print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

async fn get(sidecar: &SidecarArgs, job_name: String) -> Result<GetJobResponse, Failure> {
    let channel = sidecar.sidecar()?.connect().await?;
    let mut client = JobServiceClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
    let mut request = authorized(GetJobRequest { job_name })?;
    request.set_timeout(ANSWER_TIMEOUT);
    Ok(client.get_job(request).await.map_err(|status| refused(&status))?.into_inner())
}

/// The name of a job on the command line.
pub(super) fn job_name(text: &str) -> Result<JobName, Failure> {
    JobName::parse(text).map_err(|error| {
        let invalid = crate::api::convert::InvalidRequest(vec![FieldError::of_job_name("job", &error)]);
        failed(&invalid.to_status())
    })
}

async fn get_in(registry: &Registry, name: &str) -> Result<GetJobResponse, Failure> {
    let job = job_name(name)?;
    let found = admin::jobs::get_in(registry.namespace(), &job).await;
    registry.session.close().await;
    let found = found.map_err(|error| failed(&status::of_explain(&error)))?;
    Ok(jobs::job_to_message(&job, &found, true))
}

/// The word for a state, as operators write it.
fn state_word(summary: &JobSummary) -> &'static str {
    match summary.state() {
        JobState::Ok => "ok",
        JobState::Disabled => "disabled",
        JobState::NoInstances => "no instances",
        JobState::Resharding => "resharding",
        JobState::Unreadable => "unreadable",
        JobState::Unspecified => "unknown",
    }
}

fn summary_row(summary: &JobSummary) -> Vec<String> {
    let instances = match summary.java_instance_count {
        0 => summary.instance_count.to_string(),
        java => format!("{} ({java} Java)", summary.instance_count),
    };
    let zone = if summary.time_zone.is_empty() { String::new() } else { format!(" {}", summary.time_zone) };
    vec![
        summary.job_name.clone(),
        state_word(summary).to_owned(),
        summary.sharding_total_count.to_string(),
        instances,
        format!("{}{zone}", summary.cron),
        summary.description.clone(),
    ]
}

fn summary_in_json(summary: &JobSummary) -> Value {
    let JobSummary {
        job_name,
        state: _,
        sharding_total_count,
        cron,
        time_zone,
        description,
        instance_count,
        java_instance_count,
    } = summary;
    json!({
        "job_name": job_name,
        "state": summary.state().as_str_name(),
        "sharding_total_count": sharding_total_count,
        "cron": cron,
        "time_zone": time_zone,
        "description": description,
        "instance_count": instance_count,
        "java_instance_count": java_instance_count,
    })
}

fn in_json(found: &GetJobResponse, part: Part) -> Value {
    let items = || found.items.iter().map(item).collect::<Vec<_>>();
    let instances = || found.instances.iter().map(instance).collect::<Vec<_>>();
    let servers = || found.servers.iter().map(server_in_json).collect::<Vec<_>>();
    let is_shown = |disabling: &&Disabling| match disabling.subject {
        Some(Subject::Item(_)) => part != Part::Servers,
        Some(Subject::ServerIp(_)) => part != Part::Items,
        None => part == Part::Job,
    };
    let disablings = || found.disablings.iter().filter(is_shown).map(disabling_in_json).collect::<Vec<_>>();
    match part {
        Part::Items => {
            json!({ "job_name": found.job_name, "items": items(), "disablings": disablings() })
        }
        Part::Instances => json!({ "job_name": found.job_name, "instances": instances() }),
        Part::Servers => {
            json!({ "job_name": found.job_name, "servers": servers(), "disablings": disablings() })
        }
        Part::Job => json!({
            "job_name": found.job_name,
            "configuration": found.configuration.as_ref().map(job_configuration),
            "etag": found.etag,
            "document": found.document,
            "instances": instances(),
            "servers": servers(),
            "items": items(),
            "resharding": found.resharding,
            "next_fire_time": found.next_fire_time.as_ref().and_then(instant),
            "problems": found.problems.iter().map(problem).collect::<Vec<_>>(),
            "parameters_hidden": found.parameters_hidden,
            "disablings": disablings(),
        }),
    }
}

fn server_in_json(server: &ServerStatus) -> Value {
    let ServerStatus { server_ip, disabled, instance_count } = server;
    json!({ "server_ip": server_ip, "disabled": disabled, "instance_count": instance_count })
}

fn disabling_in_json(disabling: &Disabling) -> Value {
    let Disabling { subject, author, reason, since, until } = disabling;
    let (item, server_ip) = match subject {
        Some(Subject::Item(item)) => (Some(item), None),
        Some(Subject::ServerIp(server)) => (None, Some(server)),
        None => (None, None),
    };
    json!({
        "item": item,
        "server_ip": server_ip,
        "author": author,
        "reason": reason,
        "since": since.as_ref().and_then(instant),
        "until": until.as_ref().and_then(instant),
    })
}

/// The author of a disabling, its time and its reason.
fn disabled_by(found: &GetJobResponse, is_it: impl Fn(&Subject) -> bool) -> String {
    let known = found.disablings.iter().find(|one| one.subject.as_ref().is_some_and(&is_it));
    let Some(Disabling { author, reason, since, until, .. }) = known else { return String::new() };
    let since = since.as_ref().and_then(instant).map(|since| format!("since {since}"));
    let author = Some(author).filter(|author| !author.is_empty()).map(|author| format!("by {author}"));
    let until = until.as_ref().and_then(instant).map(|until| format!("until {until}"));
    let who = since.into_iter().chain(author).chain(until).collect::<Vec<_>>().join(" ");
    if reason.is_empty() { who } else { format!("{who}: {reason}") }
}

fn in_words(found: &GetJobResponse, part: Part) -> String {
    match part {
        Part::Items => items(found),
        Part::Instances => instances(&found.instances),
        Part::Servers => servers(found),
        Part::Job => whole(found),
    }
}

fn whole(found: &GetJobResponse) -> String {
    let mut text = printable(&found.job_name);
    let next = found.next_fire_time.as_ref().and_then(instant);
    // Writing to a string cannot fail.
    let _ = writeln!(text, ", next fire {}", next.unwrap_or_else(|| "none".to_owned()));
    if found.resharding {
        text.push_str("a resharding is due\n");
    }
    for problem in &found.problems {
        text.push_str(&problem_in_words(&problem.path, problem));
        text.push('\n');
    }
    let document = match (&*found.document, found.parameters_hidden) {
        ("", true) => "hidden: the sidecar shows it to callers with the role `operate`\n".to_owned(),
        ("", false) => "none\n".to_owned(),
        (document, _) => document.lines().map(|line| format!("  {}\n", printable(line))).collect(),
    };
    let _ = write!(text, "\nconfiguration {}\n{document}", printable(&found.etag));
    for (title, part) in
        [("instances", instances(&found.instances)), ("servers", servers(found)), ("items", items(found))]
    {
        let _ = write!(text, "\n{title}\n{part}");
    }
    text
}

fn instances(instances: &[InstanceStatus]) -> String {
    let row = |instance: &InstanceStatus| {
        let word = |is_so, word: &str| if is_so { word.to_owned() } else { String::new() };
        vec![
            instance.instance_id.clone(),
            word(instance.leader, "leads"),
            word(!instance.enabled, "server disabled"),
        ]
    };
    table(&["instance", "", ""], instances.iter().map(row))
}

fn servers(found: &GetJobResponse) -> String {
    let row = |server: &ServerStatus| {
        let state = if server.disabled { "disabled" } else { "enabled" };
        let is_it = |subject: &Subject| *subject == Subject::ServerIp(server.server_ip.clone());
        let count = server.instance_count.to_string();
        vec![server.server_ip.clone(), state.to_owned(), count, disabled_by(found, is_it)]
    };
    table(&["server", "state", "instances", "disabled"], found.servers.iter().map(row))
}

fn items(found: &GetJobResponse) -> String {
    let row = |item: &ItemStatus| {
        let states = [
            (item.disabled, "disabled"),
            (item.running, "running"),
            (item.misfire, "misfired"),
            (!item.next_instance_id.is_empty(), "moving"),
        ];
        let states: Vec<_> = states.iter().filter(|(is_so, _)| *is_so).map(|(_, word)| *word).collect();
        let owner = if item.instance_id.is_empty() { "none" } else { &item.instance_id };
        let parameter = item.item_parameter.clone().unwrap_or_default();
        let disabled = disabled_by(found, |subject| *subject == Subject::Item(item.item));
        vec![item.item.to_string(), owner.to_owned(), states.join(", "), parameter, disabled]
    };
    table(&["item", "owner", "state", "parameter", "disabled"], found.items.iter().map(row))
}

/// Rows under a head, in columns.
pub(super) fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let head = head.iter().map(|cell| (*cell).to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(head)
        .chain(rows.map(|row| row.iter().map(|cell| printable(cell)).collect()))
        .collect();
    let mut widths = Vec::new();
    for row in &rows {
        widths.resize(row.len().max(widths.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}
