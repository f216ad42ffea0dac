//! The service for operators: operations on a job as a whole.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::pin::Pin;

use futures::stream::{Stream, unfold};
use jiff::Timestamp;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::config::Role;
use crate::coordination::admin::switch::{Switch, Wish};
use crate::coordination::admin::trigger_items::ItemWish;
use crate::coordination::job::contract::answer::Cancelled;
use crate::elasticjob::field_error::FieldError;
use crate::excerpt::{Excerpt, commands};
use crate::extension::note::{Note, REASON_CHARS_MAX};
use crate::extension::request_record::RequestId;
use crate::job::{InstanceId, Item, JobName, NameError, SHARDING_TOTAL_COUNT_MAX};
use crate::listen::caller::Caller;
use crate::listen::refusal::refusal;
use crate::proto;
use crate::proto::job_service_server::JobService;
use crate::reason::Reason;
use crate::runner::admin;
use crate::runner::admin::cancel_fleet;
use crate::runner::admin::change_job::{self, Stop};
use crate::runner::admin::jobs::ListError;
use crate::runner::admin::switch::{self, Switched};
use crate::runner::admin::watch_jobs::Watchers;
use crate::runner::admin::{trigger_items, trigger_job};
use crate::runner::attachments::registry::Attachments;
use crate::runner::cancel;

use super::convert::InvalidRequest;
use super::watch_jobs::{JobsWatch, Wanted};
use super::{audit, jobs, names, status};

/// The service.
#[derive(Clone)]
pub struct Jobs {
    attachments: Attachments,
    draining: watch::Receiver<bool>,
    watchers: Watchers,
}

impl Jobs {
    /// The service for the applications of these attachments, on the sidecar's session, until it drains.
    pub fn new(attachments: Attachments, draining: watch::Receiver<bool>) -> Self {
        Self { attachments, draining, watchers: Watchers::default() }
    }
}

#[tonic::async_trait]
impl JobService for Jobs {
    async fn list_jobs(
        &self,
        request: Request<proto::ListJobsRequest>,
    ) -> Result<Response<proto::ListJobsResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let proto::ListJobsRequest { page_size, page_token } = request.into_inner();
        let page = jobs::page(page_size, &page_token).map_err(|invalid| invalid.to_status())?;
        let listed = admin::jobs::list(self.attachments.shared(), &page, |name| caller.may_use(name)).await;
        Ok(Response::new(jobs::list_to_message(listed.map_err(|error| status::of_list(&error))?)))
    }

    async fn get_job(
        &self,
        request: Request<proto::GetJobRequest>,
    ) -> Result<Response<proto::GetJobResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let sees_parameters = caller.has(Role::Operate);
        let proto::GetJobRequest { job_name } = request.into_inner();
        names::check(&caller, &job_name)?;
        let (job, _) = job_and_items(&job_name, &[]).map_err(|invalid| invalid.to_status())?;
        let found = admin::jobs::get(self.attachments.shared(), &job).await;
        let found = found.map_err(|error| status::of_explain(&error))?;
        Ok(Response::new(jobs::job_to_message(&job, &found, sees_parameters)))
    }

    type WatchJobsStream = Pin<Box<dyn Stream<Item = Result<proto::WatchJobsResponse, Status>> + Send>>;

    async fn watch_jobs(
        &self,
        request: Request<proto::WatchJobsRequest>,
    ) -> Result<Response<Self::WatchJobsStream>, Status> {
        let caller = Caller::of(request.extensions());
        let wanted = Wanted::read(caller, request.get_ref()).map_err(|invalid| invalid.to_status())?;
        let shared = self.attachments.shared();
        if shared.current.borrow().is_none() {
            return Err(status::of_list(&ListError::NoSession));
        }
        let rounds = self.watchers.watch(shared);
        let rounds = rounds.map_err(|error| refusal(Reason::TooMany, error.to_string()))?;
        let watch = JobsWatch::new(rounds, wanted);
        let messages = unfold(watch, |mut watch| async move { Some((watch.next().await?, watch)) });
        Ok(Response::new(Box::pin(messages)))
    }

    async fn update_job(
        &self,
        request: Request<proto::UpdateJobRequest>,
    ) -> Result<Response<proto::UpdateJobResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let request = request.into_inner();
        let result = async {
            names::check(&caller, &request.job_name)?;
            let (job, update, dry) = jobs::update(&request).map_err(|invalid| invalid.to_status())?;
            self.check_draining()?;
            let updated = change_job::update(self.attachments.shared(), &job, &update, dry).await;
            Ok(jobs::update_to_message(&updated.map_err(|error| status::of_change(&error))?))
        };
        let result = result.await;
        audit::record(&caller, "UpdateJob", Excerpt::of(&request.job_name), &result);
        result.map(Response::new)
    }

    async fn remove_job(
        &self,
        request: Request<proto::RemoveJobRequest>,
    ) -> Result<Response<proto::RemoveJobResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let proto::RemoveJobRequest { job_name, etag, force } = request.into_inner();
        let result = async {
            names::check(&caller, &job_name)?;
            let (job, _) = job_and_items(&job_name, &[]).map_err(|invalid| invalid.to_status())?;
            self.check_draining()?;
            let removed = change_job::remove(self.attachments.shared(), &job, &etag, force).await;
            let removed = removed.map_err(|error| status::of_change(&error))?;
            Ok(proto::RemoveJobResponse { removed_nodes: u32::try_from(removed).unwrap_or(u32::MAX) })
        };
        let result = result.await;
        audit::record(&caller, "RemoveJob", Excerpt::of(&job_name), &result);
        result.map(Response::new)
    }

    async fn stop_instances(
        &self,
        request: Request<proto::StopInstancesRequest>,
    ) -> Result<Response<proto::StopInstancesResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let proto::StopInstancesRequest { job_name, instance_ids, server_ips } = request.into_inner();
        let result = async {
            names::check(&caller, &job_name)?;
            let (job, _) = job_and_items(&job_name, &[]).map_err(|invalid| invalid.to_status())?;
            let stop = stop_wish(&instance_ids, &server_ips).map_err(|invalid| invalid.to_status())?;
            self.check_draining()?;
            let stopped = change_job::stop(self.attachments.shared(), &job, &stop).await;
            let stopped = stopped.map_err(|error| status::of_change(&error))?;
            let stopped_instance_ids = stopped.iter().map(ToString::to_string).collect();
            Ok(proto::StopInstancesResponse { stopped_instance_ids })
        };
        let result = result.await;
        audit::record(&caller, "StopInstances", Excerpt::of(&job_name), &result);
        result.map(Response::new)
    }

    async fn list_servers(
        &self,
        request: Request<proto::ListServersRequest>,
    ) -> Result<Response<proto::ListServersResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let proto::ListServersRequest { server_ips, page_size, page_token } = request.into_inner();
        let page = jobs::page(page_size, &page_token).map_err(|invalid| invalid.to_status())?;
        let servers = read_servers(&server_ips).map_err(|error| InvalidRequest(vec![error]).to_status())?;
        let may_see = |name: &str| caller.may_use(name);
        let listed = admin::servers::list(self.attachments.shared(), &page, &servers, may_see).await;
        Ok(Response::new(jobs::servers_to_message(listed.map_err(|error| status::of_list(&error))?)))
    }

    async fn remove_servers(
        &self,
        request: Request<proto::RemoveServersRequest>,
    ) -> Result<Response<proto::RemoveServersResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let proto::RemoveServersRequest { job_name, server_ips } = request.into_inner();
        let result = async {
            names::check(&caller, &job_name)?;
            let (job, _) = job_and_items(&job_name, &[]).map_err(|invalid| invalid.to_status())?;
            let servers = read_servers(&server_ips).and_then(|servers| match servers.is_empty() {
                true => Err(FieldError::new("server_ips", "", &format!("1 to {} addresses", most()))),
                false => Ok(servers),
            });
            let servers = servers.map_err(|error| InvalidRequest(vec![error]).to_status())?;
            self.check_draining()?;
            let removed = change_job::remove_servers(self.attachments.shared(), &job, &servers).await;
            removed.map_err(|error| status::of_change(&error))?;
            Ok(proto::RemoveServersResponse {})
        };
        let result = result.await;
        audit::record(&caller, "RemoveServers", Excerpt::of(&job_name), &result);
        result.map(Response::new)
    }

    async fn trigger_job(
        &self,
        request: Request<proto::TriggerJobRequest>,
    ) -> Result<Response<proto::TriggerJobResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let request = request.into_inner();
        let result = self.trigger(&request, &caller).await;
        audit::record(&caller, "TriggerJob", Excerpt::of(&request.job_name), &result);
        result.map(Response::new)
    }

    async fn list_triggers(
        &self,
        request: Request<proto::ListTriggersRequest>,
    ) -> Result<Response<proto::ListTriggersResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let proto::ListTriggersRequest { job_name } = request.into_inner();
        names::check(&caller, &job_name)?;
        let (job, _) = job_and_items(&job_name, &[]).map_err(|invalid| invalid.to_status())?;
        let listed = admin::triggers::list(self.attachments.shared(), &job).await;
        let listed = listed.map_err(|error| status::of_explain(&error))?;
        Ok(Response::new(jobs::triggers_to_message(&listed)))
    }

    async fn cancel_executions(
        &self,
        request: Request<proto::CancelExecutionsRequest>,
    ) -> Result<Response<proto::CancelExecutionsResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let request = request.into_inner();
        let result = self.cancel(&request, &caller).await;
        audit::record(&caller, "CancelExecutions", Excerpt::of(&request.job_name), &result);
        result.map(Response::new)
    }

    async fn disable_items(
        &self,
        request: Request<proto::DisableItemsRequest>,
    ) -> Result<Response<proto::DisableItemsResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let proto::DisableItemsRequest { job_name, items, reason, until } = request.into_inner();
        let wish = read_items(&items).map(|items| Wish::Items(items, Switch::Disabled));
        let switched = self.switch(&caller, "DisableItems", &job_name, wish, &reason, until).await?;
        let ends_by_itself = switched.ends_by_itself;
        Ok(Response::new(proto::DisableItemsResponse { changed_items: numbers(switched), ends_by_itself }))
    }

    async fn enable_items(
        &self,
        request: Request<proto::EnableItemsRequest>,
    ) -> Result<Response<proto::EnableItemsResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let proto::EnableItemsRequest { job_name, items } = request.into_inner();
        let wish = read_items(&items).map(|items| Wish::Items(items, Switch::Enabled));
        let switched = self.switch(&caller, "EnableItems", &job_name, wish, "", None).await?;
        Ok(Response::new(proto::EnableItemsResponse { changed_items: numbers(switched) }))
    }

    async fn disable_servers(
        &self,
        request: Request<proto::DisableServersRequest>,
    ) -> Result<Response<proto::DisableServersResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let proto::DisableServersRequest { job_name, server_ips, reason, until } = request.into_inner();
        let wish = read_servers(&server_ips).map(|servers| Wish::Servers(servers, Switch::Disabled));
        let switched = self.switch(&caller, "DisableServers", &job_name, wish, &reason, until).await?;
        let ends_by_itself = switched.ends_by_itself;
        let changed_server_ips = addresses(switched);
        Ok(Response::new(proto::DisableServersResponse { changed_server_ips, ends_by_itself }))
    }

    async fn enable_servers(
        &self,
        request: Request<proto::EnableServersRequest>,
    ) -> Result<Response<proto::EnableServersResponse>, Status> {
        let caller = Caller::of(request.extensions());
        let proto::EnableServersRequest { job_name, server_ips } = request.into_inner();
        let wish = read_servers(&server_ips).map(|servers| Wish::Servers(servers, Switch::Enabled));
        let switched = self.switch(&caller, "EnableServers", &job_name, wish, "", None).await?;
        Ok(Response::new(proto::EnableServersResponse { changed_server_ips: addresses(switched) }))
    }
}

fn numbers(switched: Switched) -> Vec<u32> {
    switched.items.into_iter().map(|item| item.0).collect()
}

fn addresses(switched: Switched) -> Vec<String> {
    switched.servers.iter().map(ToString::to_string).collect()
}

impl Jobs {
    /// A sidecar that is stopping takes no operator's call that writes.
    fn check_draining(&self) -> Result<(), Status> {
        if *self.draining.borrow() {
            return Err(refusal(Reason::SidecarStopping, "the sidecar is stopping; ask another one"));
        }
        Ok(())
    }

    async fn switch(
        &self,
        caller: &Caller,
        method: &str,
        job_name: &str,
        wish: Result<Wish, FieldError>,
        reason: &str,
        until: Option<prost_types::Timestamp>,
    ) -> Result<Switched, Status> {
        let result = async {
            names::check(caller, job_name)?;
            let job = JobName::parse(job_name).map_err(|error| FieldError::of_job_name("job_name", &error));
            // The author is what the listener knows of the caller.
            let now = self.attachments.shared().clock.now().wall;
            let note = read_note(&caller.to_string(), reason, until, now);
            let (job, wish, note) = match (job, wish, note) {
                (Ok(job), Ok(wish), Ok(note)) => (job, wish, note),
                (job, wish, note) => {
                    let errors = job.err().into_iter().chain(wish.err()).chain(note.err()).collect();
                    return Err(InvalidRequest(errors).to_status());
                }
            };
            self.check_draining()?;
            let switched = switch::switch(self.attachments.shared(), &job, &wish, &note).await;
            switched.map_err(|error| status::of_switch(&error))
        };
        let result = result.await;
        audit::record(caller, method, Excerpt::of(job_name), &result);
        result
    }

    async fn trigger(
        &self,
        request: &proto::TriggerJobRequest,
        caller: &Caller,
    ) -> Result<proto::TriggerJobResponse, Status> {
        names::check(caller, &request.job_name)?;
        let named = job_and_items(&request.job_name, &request.items);
        let (job, items) = named.map_err(|invalid| invalid.to_status())?;
        let id = request_id(&request.request_id).map_err(|error| InvalidRequest(vec![error]).to_status())?;
        let wish = jobs::item_wish(request, items).map_err(|invalid| invalid.to_status())?;
        self.check_draining()?;
        if wish.is_for_items() {
            return self.trigger_items(&job, &wish, id).await;
        }
        let result = trigger_job::trigger(self.attachments.shared(), &job, id.as_ref())
            .await
            .map_err(|error| status::of_trigger(&error, id.as_ref()))?;
        Ok(jobs::triggered_to_message(&result))
    }

    async fn trigger_items(
        &self,
        job: &JobName,
        wish: &ItemWish,
        id: Option<RequestId>,
    ) -> Result<proto::TriggerJobResponse, Status> {
        let shared = self.attachments.shared();
        // Without an id nobody repeats the request.
        let own_id = match &id {
            Some(id) => id.clone(),
            None => RequestId::new(&shared.clock.unguessable()),
        };
        let items = trigger_items::trigger(shared, job, wish, &own_id).await;
        let items = items.map_err(|error| status::of_item_trigger(&error, id.as_ref()))?;
        Ok(jobs::triggered_items_to_message(&items))
    }

    async fn cancel(
        &self,
        request: &proto::CancelExecutionsRequest,
        caller: &Caller,
    ) -> Result<proto::CancelExecutionsResponse, Status> {
        names::check(caller, &request.job_name)?;
        let named = job_and_items(&request.job_name, &request.items);
        let (job, items) = named.map_err(|invalid| invalid.to_status())?;
        let id = request_id(&request.request_id).map_err(|error| InvalidRequest(vec![error]).to_status())?;
        let items = (!items.is_empty()).then_some(items);
        if request.fleet {
            return self.cancel_fleet(&job, items.as_ref(), id).await;
        }
        let cancelled = cancel::cancel(&self.attachments, &job, items, id.clone()).await;
        let cancelled = cancelled.map_err(|error| status::of_cancel(&error, id.as_ref()))?;
        let execution = |instance: &InstanceId, execution: Cancelled| proto::CancelledExecution {
            instance_id: instance.to_string(),
            item: execution.item.0,
            execution_id: execution.execution_id,
            was_waiting: execution.was_waiting,
        };
        let cancelled = cancelled.into_iter().flat_map(|(instance, executions)| {
            executions.into_iter().map(move |one| execution(&instance, one))
        });
        Ok(proto::CancelExecutionsResponse {
            cancelled: cancelled.collect(),
            ..proto::CancelExecutionsResponse::default()
        })
    }

    async fn cancel_fleet(
        &self,
        job: &JobName,
        items: Option<&BTreeSet<Item>>,
        id: Option<RequestId>,
    ) -> Result<proto::CancelExecutionsResponse, Status> {
        self.check_draining()?;
        let shared = self.attachments.shared();
        // Without an id nobody repeats the request.
        let own_id = match &id {
            Some(id) => id.clone(),
            None => RequestId::new(&shared.clock.unguessable()),
        };
        let concerned = cancel_fleet::cancel(shared, job, items, &own_id).await;
        let concerned = concerned.map_err(|error| status::of_fleet_cancel(&error, id.as_ref()))?;
        Ok(jobs::fleet_cancel_to_message(&concerned))
    }
}

/// The most items and servers that a request may name.
fn most() -> usize {
    usize::try_from(SHARDING_TOTAL_COUNT_MAX).unwrap_or(usize::MAX)
}

fn read_items(items: &[u32]) -> Result<BTreeSet<Item>, FieldError> {
    if items.is_empty() || items.len() > most() {
        let given = format!("{} items", items.len());
        return Err(FieldError::new("items", &given, &format!("1 to {} items", most())));
    }
    Ok(items.iter().copied().map(Item).collect())
}

/// The note of a disabling by this author, now.
pub fn read_note(
    author: &str,
    reason: &str,
    until: Option<prost_types::Timestamp>,
    now: Timestamp,
) -> Result<Note, FieldError> {
    if reason.chars().count() > REASON_CHARS_MAX || reason.chars().any(commands) {
        let allowed =
            format!("at most {REASON_CHARS_MAX} characters in one line, without control characters");
        return Err(FieldError::new("reason", reason, &allowed));
    }
    let note = Note::new(author, reason.trim());
    let Some(given) = until else { return Ok(note) };
    let until = Timestamp::new(given.seconds, given.nanos).ok();
    let Some(until) = until.filter(|until| *until > now) else {
        let shown = until.map_or_else(|| format!("{} s", given.seconds), |until| until.to_string());
        return Err(FieldError::new("until", &shown, "an instant in the future"));
    };
    Ok(note.until(Some(until)))
}

/// The instances of a request to stop.
fn stop_wish(instance_ids: &[String], server_ips: &[String]) -> Result<Stop, InvalidRequest> {
    let servers = read_servers(server_ips).map_err(|error| InvalidRequest(vec![error]))?;
    if instance_ids.len() > most() {
        let given = format!("{} ids", instance_ids.len());
        return Err(InvalidRequest(vec![FieldError::new(
            "instance_ids",
            &given,
            &format!("at most {} ids", most()),
        )]));
    }
    let instances = instance_ids.iter().map(|id| InstanceId::from_registry(id.as_str())).collect();
    Ok(Stop { instances, servers })
}

fn read_servers(server_ips: &[String]) -> Result<BTreeSet<Ipv4Addr>, FieldError> {
    if server_ips.len() > most() {
        let given = format!("{} addresses", server_ips.len());
        return Err(FieldError::new("server_ips", &given, &format!("at most {} addresses", most())));
    }
    let read = |text: &String| {
        text.parse().map_err(|_| FieldError::new("server_ips", text, "IPv4 addresses like `10.0.0.7`"))
    };
    server_ips.iter().map(read).collect()
}

/// The id that the caller has given a request. `None`: none.
fn request_id(text: &str) -> Result<Option<RequestId>, FieldError> {
    let wrong = |error: NameError| FieldError::new("request_id", text, error.reason);
    (!text.is_empty()).then(|| RequestId::parse(text)).transpose().map_err(wrong)
}

/// A job and some of its items: 10000 at most.
pub(super) fn job_and_items(
    job_name: &str,
    items: &[u32],
) -> Result<(JobName, BTreeSet<Item>), InvalidRequest> {
    let job = JobName::parse(job_name)
        .map_err(|error| InvalidRequest(vec![FieldError::of_job_name("job_name", &error)]))?;
    let most = most();
    if items.len() > most {
        let given = format!("{} items", items.len());
        let allowed = format!("at most {most} items");
        return Err(InvalidRequest(vec![FieldError::new("items", &given, &allowed)]));
    }
    Ok((job, items.iter().copied().map(Item).collect()))
}
