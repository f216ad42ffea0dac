//! The list of attachments. Starts a participant's task for each, and removes it when the task has ended. Decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::OptionFuture;
use tokio::sync::watch;
use tracing::Instrument;

use crate::coordination::job::frame::context::Identity;
use crate::coordination::job::participant::Participant;
use crate::elasticjob::path::JobPaths;
use crate::extension::path::ExtensionPaths;
use crate::job::{InstanceId, InstanceName, JobName};
use crate::runner::job::outlet::Outlet;
use crate::runner::job::task::Task;
use crate::runner::lock::registry::Locks;
use crate::runner::shared::Shared;
use crate::runner::state_file::contents::Member;
use crate::runner::turns::{Turn, Turns};

use super::list::{Attachment, List};
use super::request::Attach;

/// The attachments, and what is known of their applications.
#[derive(Default)]
pub(super) struct Inner {
    pub(super) attachments: List,
    /// By application id: the part of the instance id that distinguishes the application's instances from others.
    pub(super) uniques: BTreeMap<String, String>,
    /// Whether streams are refused because the sidecar is stopping.
    pub(super) draining: bool,
}

/// The streams that are attached, and those whose application may reattach. Clones share the list; each instance keeps one.
#[derive(Clone)]
pub struct Attachments {
    shared: Arc<Shared>,
    /// The locks that executions hold for their items.
    locks: Arc<Locks>,
    inner: Arc<Mutex<Inner>>,
    /// In which order many instances join.
    pub(super) turns: Turns,
    /// The number of attachments.
    pub(super) count: Arc<watch::Sender<usize>>,
}

impl Attachments {
    /// A list without attachments.
    pub fn new(shared: Shared, locks: Locks) -> Self {
        let count = Arc::new(watch::channel(0).0);
        let (shared, locks) = (Arc::new(shared), Arc::new(locks));
        Self { shared, locks, inner: Arc::default(), turns: Turns::default(), count }
    }

    /// The state that all tasks share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The number of attachments, and of their jobs.
    pub fn count_jobs(&self) -> (usize, usize) {
        let inner = self.lock();
        (inner.attachments.len(), inner.attachments.count_jobs())
    }

    /// All instances that are attached here, with their jobs.
    pub fn instances(&self) -> Vec<(JobName, InstanceId)> {
        let inner = self.lock();
        let attachments = inner.attachments.values();
        attachments.map(|attachment| (attachment.job.clone(), attachment.instance.clone())).collect()
    }

    /// The instances of a job that are attached here.
    pub fn instances_of(&self, job: &JobName) -> BTreeSet<InstanceId> {
        self.lock().attachments.of_job(job).map(|(_, attachment)| attachment.instance.clone()).collect()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a participant. Returns the attachment's id, and what its application reads.
    pub(super) fn start(
        &self,
        inner: &mut Inner,
        instance: InstanceId,
        attach: &Attach,
        is_restored: bool,
        participant: impl FnOnce(Identity) -> Participant,
    ) -> (String, Outlet) {
        let attachment_id = self.shared.clock.unguessable();
        let execution_prefix: String = self.shared.clock.unguessable().chars().take(16).collect();
        let identity = Identity {
            job: attach.job.clone(),
            instance: instance.clone(),
            name: attach.name.clone(),
            server_ip: self.shared.server_ip,
            paths: JobPaths::new(&self.shared.namespace, &attach.job),
            own_paths: ExtensionPaths::new(&self.shared.namespace, &attach.job),
            execution_prefix: execution_prefix.clone(),
        };
        let span = tracing::info_span!("job", job.name = %attach.job, instance.id = %instance);
        span.in_scope(|| match is_restored {
            true => tracing::info!(
                "this instance is restored from the former process; it waits for its application"
            ),
            false => tracing::info!(client = attach.client, "attached"),
        });
        let picture = self.shared.follow(&attach.job, attach.configuration.as_ref());
        let (task, handle, outlet) =
            Task::new(participant(identity.clone()), identity, picture, &self.shared, &self.locks);
        let attachment = Attachment {
            job: attach.job.clone(),
            instance: instance.clone(),
            application_id: attach.application_id.clone(),
            configuration: attach.configuration.clone(),
            class: attach.class.clone(),
            profile: attach.profile.clone(),
            name: attach.name.clone(),
            execution_prefix: execution_prefix.clone(),
            is_restored,
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
        let attachments = self.clone();
        // Boxed: its memory is free when the instance has joined.
        let turn = (!is_restored).then(|| Box::pin(self.clone().turn(execution_prefix.clone(), member)));
        let task = async move {
            let turn = OptionFuture::from(turn).await;
            task.run(turn).await;
            attachments.remove(&execution_prefix);
            attachments.shared.state_file.remove(&execution_prefix).await;
        };
        // The task ends after its stream or with a drain.
        self.shared.clock.spawn(task.instrument(span));
        (attachment_id, outlet)
    }

    /// The instance's turn to join. Its stream is open meanwhile, and the job's nodes are read.
    async fn turn(self, execution_prefix: String, member: Member) -> Turn {
        let job = member.job.clone();
        // Before the instance has a node.
        self.shared.state_file.add(&execution_prefix, member).await;
        self.turns.take(&job, || self.shared.clock.unguessable()).await
    }

    /// Removes the attachment of a participant whose task has ended.
    fn remove(&self, execution_prefix: &str) {
        let mut inner = self.lock();
        let id = inner.attachments.with_prefix(execution_prefix).map(str::to_owned);
        if let Some(gone) = id.and_then(|id| inner.attachments.remove(&id))
            && !inner.attachments.has_application(&gone.application_id)
        {
            inner.uniques.remove(&gone.application_id);
        }
        self.count.send_replace(inner.attachments.len());
    }
}

impl Inner {
    /// The attachment for the same job that has the requested name, if its participant has not ended.
    pub(super) fn namesake<'a>(&'a self, attach: &'a Attach) -> Option<(&'a InstanceName, &'a Attachment)> {
        let name = attach.name.as_ref()?;
        let same = |other: &&Attachment| other.name.as_ref() == Some(name) && !*other.handle.over.borrow();
        let mut others = self.attachments.of_job(&attach.job).map(|(_, other)| other);
        others.find(same).map(|other| (name, other))
    }
}
