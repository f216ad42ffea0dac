//! Who is attached: starts a participant for each stream, and finds it again for its calls.
//!
//! Decides only what concerns more than one participant of this sidecar: whether configurations conflict, and which
//! stream is the successor of which.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tracing::Instrument;

use crate::coordination::job::contract::answer::{Answer, Cancelled, Refusal};
use crate::coordination::job::contract::profile::Profile;
use crate::coordination::job::contract::reattach::OpenExecution;
use crate::coordination::job::contract::report::{ExecutionResult, ProgressReport};
use crate::coordination::job::contract::request::Request;
use crate::coordination::job::frame::context::Identity;
use crate::coordination::job::participant::Participant;
use crate::coordination::job::picture::difference;
use crate::coordination::time::Wakeup;
use crate::elasticjob::path::JobPaths;
use crate::excerpt::Excerpt;
use crate::job::{Generation, InstanceId, InstanceName, Item, JobConfiguration, JobName};

use super::clock::Clock;
use super::command::{Command, Handle};
use super::memory::Member;
use super::participant::{Outlet, Runner};
use super::shared::Shared;

/// Streams that may be open at once. Each costs some tens of kilobytes.
const ATTACHMENTS_MAX: usize = 10_000;
/// How long a reporter waits for its result to be recorded while the registry is away; then it reports again.
const ANSWER_WAIT: Duration = Duration::from_secs(60);
/// Random characters in the id of an instance without a name. Of a thousand streams with six of them two would be the same
/// instance once in thirty times. Java's trace tables hold 255 bytes for a task id, in which the instance id appears once.
const UNIQUE_LENGTH: usize = 12;

/// What an application asks for.
#[derive(Debug, Clone)]
pub struct Attach {
    /// The job.
    pub job: JobName,
    /// Its configuration; `None`: the registry's.
    pub configuration: Option<Arc<JobConfiguration>>,
    /// The Java class or type of the job.
    pub class: Option<String>,
    /// What the other sidecars are to know of the instance.
    pub profile: Profile,
    /// What the instance is called, so that it is the same one after a restart; `None`: nothing in particular.
    pub name: Option<InstanceName>,
    /// The application's process; empty: this stream is an instance of its own.
    pub application_id: String,
    /// The client library, for the log.
    pub client: String,
    /// What the application says it has open, from an earlier stream.
    pub open: Vec<OpenExecution>,
}

impl Attach {
    /// What its participant is to know.
    pub(super) fn request(&self) -> Request {
        Request {
            configuration: self.configuration.clone(),
            class: self.class.clone(),
            profile: self.profile.clone(),
            resumable: !self.application_id.is_empty(),
        }
    }
}

/// Why a stream was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// The sidecar is stopping.
    #[error("the sidecar is stopping; attach to another one, or again later")]
    Draining,
    /// There are too many streams.
    #[error("{ATTACHMENTS_MAX} streams are attached already")]
    TooMany,
    /// Another application attached to the job with another configuration, and neither is to overwrite.
    #[error(
        "job `{job}` is attached here with another configuration; these fields differ: {fields}. Give the same, none, or set overwrite"
    )]
    Conflict {
        /// The job.
        job: JobName,
        /// The fields, with both values.
        fields: String,
    },
    /// Another application that is attached has the name.
    #[error(
        "instance_name `{name}` of job `{job}` is in use by another application that is attached here; stop that one, or \
         give one of them another name"
    )]
    NameTaken {
        /// The job.
        job: JobName,
        /// The name.
        name: InstanceName,
    },
    /// The registry cannot write down who attaches.
    #[error("job `{job}` cannot be attached to now: {obstacle}")]
    Unwritable {
        /// The job.
        job: JobName,
        /// Why, and what to do.
        obstacle: String,
    },
    /// An earlier stream of the same application does not leave.
    #[error("the application's earlier stream for job `{0}` has not ended yet; attach again")]
    PredecessorStays(JobName),
}

/// Why a call was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No such stream is attached.
    #[error("attachment_id `{0}` is not attached to this sidecar; attach, and use the id from Attached")]
    UnknownAttachment(Excerpt),
    /// The stream ended before the call was answered.
    #[error("the stream ended before the call was answered")]
    Ended,
    /// The registry is away.
    #[error("the registry is away, and the result is not recorded yet; report it again")]
    NotYet,
    /// The registry cannot write.
    #[error("the result is not recorded yet; report it again: {0}")]
    Unwritable(String),
    /// An execution belongs to another stream.
    #[error("results[{index}].execution_id `{execution_id}` belongs to another attachment")]
    Foreign {
        /// Its index in the request.
        index: usize,
        /// What was given.
        execution_id: Excerpt,
    },
    /// The participant refused it.
    #[error("{}", refusal_text(.0))]
    Refused(Refusal),
}

fn refusal_text(refusal: &Refusal) -> String {
    match refusal {
        Refusal::UnknownExecution { index, execution_id } => format!(
            "results[{index}].execution_id `{execution_id}` is no execution of this attachment; use the id from Execute"
        ),
        Refusal::UnknownProgress { execution_id } => format!(
            "execution_id `{execution_id}` is no execution of this attachment; use the id from Execute"
        ),
        Refusal::ExecutionOver { execution_id } => format!(
            "execution_id `{execution_id}` is over: its result was reported, or the session with the registry was lost"
        ),
        Refusal::UnknownCall { call_id } => format!(
            "call_id `{call_id}` is no call of this attachment; use the id from BeforeFirst or AfterLast"
        ),
        Refusal::UnknownItem { item, total } => {
            format!("items: given item {item}; the job has {total} items, from 0")
        }
        Refusal::UnknownGeneration { given, newest } => {
            format!("generation {} was never told; the newest is {}", given.0, newest.0)
        }
    }
}

pub(super) struct Attachment {
    pub(super) job: JobName,
    pub(super) instance: InstanceId,
    pub(super) application_id: String,
    pub(super) configuration: Option<Arc<JobConfiguration>>,
    pub(super) class: Option<String>,
    pub(super) profile: Profile,
    pub(super) name: Option<InstanceName>,
    /// What distinguishes the participant, whose attachment's id changes with each stream that takes it over.
    execution_prefix: String,
    /// Whether it is a former process's, whose application is not back yet.
    pub(super) inherited: bool,
    pub(super) handle: Handle,
}

#[derive(Default)]
pub(super) struct Inner {
    pub(super) attachments: BTreeMap<String, Attachment>,
    /// What makes an application's instance ids unique, and how many streams use it.
    pub(super) uniques: BTreeMap<String, String>,
    pub(super) draining: bool,
}

/// Who is attached. Clones share it.
#[derive(Clone)]
pub struct Hub {
    shared: Shared,
    inner: Arc<Mutex<Inner>>,
    pub(super) count: Arc<watch::Sender<usize>>,
}

impl Hub {
    /// A hub where nobody is attached.
    pub fn new(shared: Shared) -> Self {
        let count = Arc::new(watch::channel(0).0);
        Self { shared, inner: Arc::default(), count }
    }

    /// What the participants share.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches an application to a job. Gives the attachment's id and what the application is to read.
    pub async fn attach(&self, attach: Attach) -> Result<(String, Outlet), AttachError> {
        // Looked up before the predecessor goes: its successor is the same instance.
        let predecessor = self.lock().uniques.get(&attach.application_id).cloned();
        // One that is here already may go on with another stream, which nobody has to write down.
        if !self.has_predecessor(&attach) {
            self.check_writable(&attach)?;
        }
        match self.replace_predecessor(&attach).await {
            Ok(Some(resumed)) => return Ok(resumed),
            Ok(None) => {}
            Err(error) => {
                // It cannot leave either.
                self.check_writable(&attach)?;
                return Err(error);
            }
        }
        self.check_writable(&attach)?;
        let mut inner = self.lock();
        let attach = Attach { configuration: inner.shared_configuration(&attach), ..attach };
        inner.admit(&attach)?;
        let instance = match &attach.name {
            Some(name) => InstanceId::new(self.shared.server_ip, name.as_str()),
            None => {
                let unique = inner.unique(&attach.application_id, predecessor, &self.shared.clock);
                InstanceId::new(self.shared.server_ip, &unique)
            }
        };
        let core = |identity| Participant::new(identity, attach.request());
        Ok(self.begin(&mut inner, instance, &attach, false, core))
    }

    /// Refuses an application that nobody could write down now.
    fn check_writable(&self, attach: &Attach) -> Result<(), AttachError> {
        let session = self.shared.current.borrow().clone();
        match session.and_then(|session| session.obstacle()) {
            Some(obstacle) => Err(AttachError::Unwritable { job: attach.job.clone(), obstacle }),
            None => Ok(()),
        }
    }

    /// Ends when the registry cannot write, with the reason. It may never end.
    async fn unwritable(&self) -> String {
        let session = self.shared.current.borrow().clone();
        if let Some(session) = session {
            let mut state = session.state();
            loop {
                // Marked before it is looked at, so that no change is missed.
                state.mark_unchanged();
                if let Some(obstacle) = session.obstacle() {
                    return obstacle;
                }
                if state.changed().await.is_err() {
                    break;
                }
            }
        }
        std::future::pending().await
    }

    /// Starts a participant. Gives the attachment's id and what its application is to read.
    pub(super) fn begin(
        &self,
        inner: &mut Inner,
        instance: InstanceId,
        attach: &Attach,
        inherited: bool,
        core: impl FnOnce(Identity) -> Participant,
    ) -> (String, Outlet) {
        let attachment_id = self.shared.clock.unguessable();
        let execution_prefix: String = self.shared.clock.unguessable().chars().take(16).collect();
        let identity = Identity {
            job: attach.job.clone(),
            instance: instance.clone(),
            name: attach.name.clone(),
            server_ip: self.shared.server_ip,
            paths: JobPaths::new(&self.shared.namespace, &attach.job),
            execution_prefix: execution_prefix.clone(),
        };
        let span = tracing::info_span!("job", job.name = %attach.job, instance.id = %instance);
        span.in_scope(|| match inherited {
            true => tracing::info!("a former process has left this instance; waiting for its application"),
            false => tracing::info!(client = attach.client, "attached"),
        });
        let (paths, configuration) = (&identity.paths, attach.configuration.as_ref());
        let picture = self.shared.follow(&attach.job, paths, configuration);
        let (runner, handle, outlet) = Runner::new(core(identity.clone()), identity, picture, &self.shared);
        let attachment = Attachment {
            job: attach.job.clone(),
            instance: instance.clone(),
            application_id: attach.application_id.clone(),
            configuration: attach.configuration.clone(),
            class: attach.class.clone(),
            profile: attach.profile.clone(),
            name: attach.name.clone(),
            execution_prefix: execution_prefix.clone(),
            inherited,
            handle,
        };
        inner.attachments.insert(attachment_id.clone(), attachment);
        self.count.send_replace(inner.attachments.len());
        let member = Member {
            job: attach.job.clone(),
            instance,
            name: attach.name.clone(),
            application_id: attach.application_id.clone(),
            profile: attach.profile.clone(),
            since: self.shared.clock.now().wall,
        };
        let hub = self.clone();
        let task = async move {
            if !inherited {
                // Before it has a node.
                hub.shared.memory.joins(&execution_prefix, member).await;
            }
            runner.run().await;
            hub.remove(&execution_prefix);
            hub.shared.memory.has_left(&execution_prefix).await;
        };
        // It ends with the stream or the drain.
        self.shared.clock.spawn(task.instrument(span));
        (attachment_id, outlet)
    }

    /// Forgets a participant that is over.
    fn remove(&self, execution_prefix: &str) {
        let mut inner = self.lock();
        let mut attachments = inner.attachments.iter();
        let id = attachments.find(|(_, other)| other.execution_prefix == execution_prefix);
        let id = id.map(|(id, _)| id.clone());
        if let Some(gone) = id.and_then(|id| inner.attachments.remove(&id))
            && !inner.attachments.values().any(|other| other.application_id == gone.application_id)
        {
            inner.uniques.remove(&gone.application_id);
        }
        self.count.send_replace(inner.attachments.len());
    }

    fn commands(&self, attachment_id: &str) -> Result<Handle, CallError> {
        let inner = self.lock();
        let attachment = inner.attachments.get(attachment_id);
        let handle = attachment.map(|attachment| attachment.handle.clone());
        handle.ok_or_else(|| CallError::UnknownAttachment(Excerpt::of(attachment_id)))
    }

    /// Records results. Comes back when they are recorded, or with the reason why not.
    pub async fn report(
        &self,
        attachment_id: &str,
        results: Vec<ExecutionResult>,
    ) -> Result<Answer, CallError> {
        let answer = tokio::select! {
            biased; // The participant has the result, and records it when it can; only nobody waits for that.
            answer = self.call(attachment_id, |reply| Command::Report(results, reply)) => answer,
            obstacle = self.unwritable() => Err(CallError::Unwritable(obstacle)),
        };
        match answer {
            Err(CallError::Refused(Refusal::UnknownExecution { index, execution_id }))
                if self.belongs_to_another(attachment_id, &execution_id.to_string()) =>
            {
                Err(CallError::Foreign { index, execution_id })
            }
            answer => answer,
        }
    }

    /// Has a participant leave, because its application says so.
    /// `for_good`: nothing is to be kept for it if it has a name.
    pub async fn detach(&self, attachment_id: &str, for_good: bool) -> Result<(), CallError> {
        let handle = self.commands(attachment_id)?;
        handle.commands.send(Command::Leave { for_good }).await.map_err(|_| CallError::Ended)
    }

    /// Takes note of an acknowledgement.
    pub async fn acknowledge(
        &self,
        attachment_id: &str,
        generation: Generation,
    ) -> Result<Answer, CallError> {
        self.call(attachment_id, |reply| Command::Acknowledge(generation, reply)).await
    }

    /// Takes the outcome of a call of the listener; comes back with whether it was still waited for.
    pub async fn report_listener(
        &self,
        attachment_id: &str,
        call_id: String,
        outcome: Result<(), String>,
    ) -> Result<bool, CallError> {
        let answer = self.call(attachment_id, |reply| Command::Listener(call_id, outcome, reply)).await?;
        Ok(matches!(answer, Answer::ListenerReported { in_time: true }))
    }

    /// Says until when the session may be acted on.
    pub async fn ask_lease(&self, attachment_id: &str) -> Result<Answer, CallError> {
        self.call(attachment_id, Command::AskLease).await
    }

    /// Takes note of how far an execution is; comes back when its checkpoint is recorded.
    pub async fn progress(&self, attachment_id: &str, report: ProgressReport) -> Result<Answer, CallError> {
        self.call(attachment_id, |reply| Command::Progress(report, reply)).await
    }

    /// Tells the executions of a job to stop that run here: those of these items, or all. Comes back with them, by
    /// instance. `None`: nobody is attached for the job. An item that the job does not have stops nothing.
    pub async fn cancel(
        &self,
        job: &JobName,
        items: Option<BTreeSet<Item>>,
    ) -> Result<Option<BTreeMap<InstanceId, Vec<Cancelled>>>, CallError> {
        let attached: Vec<_> = {
            let inner = self.lock();
            let ours = inner.attachments.iter().filter(|(_, attachment)| attachment.job == *job);
            ours.map(|(id, attachment)| (id.clone(), attachment.instance.clone())).collect()
        };
        if attached.is_empty() {
            return Ok(None);
        }
        let mut cancelled = BTreeMap::new();
        for (attachment_id, instance) in attached {
            match self.call(&attachment_id, |reply| Command::Cancel(items.clone(), reply)).await {
                Ok(Answer::Cancelled(executions)) => {
                    cancelled.insert(instance, executions);
                }
                Err(refused @ CallError::Refused(Refusal::UnknownItem { .. })) => return Err(refused),
                // One that has ended meanwhile executes nothing.
                Ok(_) | Err(_) => {}
            }
        }
        let count: usize = cancelled.values().map(Vec::len).sum();
        tracing::info!(job.name = %job, count, "executions cancelled by an operator");
        Ok(Some(cancelled))
    }

    async fn call(
        &self,
        attachment_id: &str,
        command: impl FnOnce(oneshot::Sender<Answer>) -> Command,
    ) -> Result<Answer, CallError> {
        let handle = self.commands(attachment_id)?;
        let (reply, answer) = oneshot::channel();
        handle.commands.send(command(reply)).await.map_err(|_| CallError::Ended)?;
        let deadline = self.shared.clock.now().mono.saturating_add(ANSWER_WAIT);
        let answer = tokio::select! {
            biased; // An answer counts, however late somebody looks.
            answer = answer => answer.map_err(|_| CallError::Ended)?,
            () = self.shared.clock.sleep_until(Wakeup { wall: None, mono: Some(deadline) }) => {
                return Err(CallError::NotYet);
            }
        };
        match answer {
            Answer::Refused(refusal) => Err(CallError::Refused(refusal)),
            Answer::Recorded(_)
            | Answer::Acknowledged
            | Answer::Lease { .. }
            | Answer::Cancelled(_)
            | Answer::Progressed { .. }
            | Answer::ListenerReported { .. } => Ok(answer),
        }
    }

    fn belongs_to_another(&self, attachment_id: &str, execution_id: &str) -> bool {
        let prefix = execution_id.rsplit_once('-').map_or(execution_id, |(prefix, _)| prefix);
        let inner = self.lock();
        inner.attachments.iter().any(|(id, other)| id != attachment_id && other.execution_prefix == prefix)
    }
}

impl Inner {
    /// Whether the stream may attach.
    fn admit(&self, attach: &Attach) -> Result<(), AttachError> {
        if self.draining {
            return Err(AttachError::Draining);
        }
        if self.attachments.len() >= ATTACHMENTS_MAX {
            return Err(AttachError::TooMany);
        }
        if let Some((name, _)) = self.namesake(attach) {
            return Err(AttachError::NameTaken { job: attach.job.clone(), name: name.clone() });
        }
        let Some(ours) = attach.configuration.as_ref().filter(|ours| !ours.overwrite) else { return Ok(()) };
        let others = self.attachments.values().filter(|other| other.job == attach.job);
        // Those that are the same are one.
        let theirs = others.filter_map(|other| other.configuration.as_ref());
        for theirs in theirs.filter(|theirs| !Arc::ptr_eq(theirs, ours)) {
            let fields = difference::in_words(theirs, ours);
            if !fields.is_empty() {
                return Err(AttachError::Conflict { job: attach.job.clone(), fields });
            }
        }
        Ok(())
    }

    /// The configuration that the application gives: the one that others of the job have given, if it is the same, so that it
    /// is kept once.
    fn shared_configuration(&self, attach: &Attach) -> Option<Arc<JobConfiguration>> {
        let ours = attach.configuration.as_ref()?;
        let others = self.attachments.values().filter(|other| other.job == attach.job);
        let known = others.filter_map(|other| other.configuration.as_ref()).find(|known| *known == ours);
        Some(Arc::clone(known.unwrap_or(ours)))
    }

    /// Who is attached for the same job under the name that is asked for.
    pub(super) fn namesake<'a>(&'a self, attach: &'a Attach) -> Option<(&'a InstanceName, &'a Attachment)> {
        let name = attach.name.as_ref()?;
        let same = |other: &&Attachment| {
            other.job == attach.job && other.name.as_ref() == Some(name) && !*other.handle.over.borrow()
        };
        self.attachments.values().find(same).map(|other| (name, other))
    }

    /// What distinguishes the application's instances from others on this server: what its streams have, or else its
    /// predecessor's, or else something new.
    fn unique(&mut self, application_id: &str, predecessor: Option<String>, clock: &Clock) -> String {
        let random = |length| clock.unguessable().chars().take(length).collect::<String>();
        if application_id.is_empty() {
            return format!("{}-{}", std::process::id(), random(UNIQUE_LENGTH));
        }
        // Everybody reads instance ids, and who has an application id can take its streams over.
        let fresh =
            || predecessor.unwrap_or_else(|| format!("{}-{}", random(UNIQUE_LENGTH), random(UNIQUE_LENGTH)));
        self.uniques.entry(application_id.to_owned()).or_insert_with(fresh).clone()
    }
}
