//! The attachments by what they are looked up by, so that no lookup goes through thousands of others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::extension::profile::Profile;
use crate::job::{InstanceId, InstanceName, JobConfiguration, JobName};
use crate::runner::job::command::Handle;

/// A stream and its participant.
pub(super) struct Attachment {
    pub(super) job: JobName,
    pub(super) instance: InstanceId,
    pub(super) application_id: String,
    pub(super) configuration: Option<Arc<JobConfiguration>>,
    pub(super) class: Option<String>,
    pub(super) profile: Profile,
    pub(super) name: Option<InstanceName>,
    /// Distinguishes the participant from all others. The attachment's id changes with each stream that reattaches.
    pub(super) execution_prefix: String,
    /// Whether the instance is restored from the former process, and its application has not reattached yet.
    pub(super) is_restored: bool,
    pub(super) handle: Handle,
}

/// The attachments of the sidecar.
#[derive(Default)]
pub(super) struct List {
    by_id: BTreeMap<String, Attachment>,
    /// The ids of each job's attachments.
    by_job: BTreeMap<JobName, BTreeSet<String>>,
    /// The id of the participant with this prefix of its executions.
    by_prefix: BTreeMap<String, String>,
    /// The number of each application's attachments.
    by_application: BTreeMap<String, usize>,
}

impl List {
    pub(super) fn insert(&mut self, id: String, attachment: Attachment) {
        self.by_job.entry(attachment.job.clone()).or_default().insert(id.clone());
        self.by_prefix.insert(attachment.execution_prefix.clone(), id.clone());
        *self.by_application.entry(attachment.application_id.clone()).or_default() += 1;
        self.by_id.insert(id, attachment);
    }

    pub(super) fn remove(&mut self, id: &str) -> Option<Attachment> {
        let gone = self.by_id.remove(id)?;
        if let Some(ids) = self.by_job.get_mut(&gone.job) {
            ids.remove(id);
            if ids.is_empty() {
                self.by_job.remove(&gone.job);
            }
        }
        self.by_prefix.remove(&gone.execution_prefix);
        if let Some(count) = self.by_application.get_mut(&gone.application_id) {
            *count -= 1;
            if *count == 0 {
                self.by_application.remove(&gone.application_id);
            }
        }
        Some(gone)
    }

    pub(super) fn get(&self, id: &str) -> Option<&Attachment> {
        self.by_id.get(id)
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// The number of jobs that have attachments.
    pub(super) fn count_jobs(&self) -> usize {
        self.by_job.len()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Attachment> {
        self.by_id.values()
    }

    /// The attachments for a job, with their ids.
    pub(super) fn of_job(&self, job: &JobName) -> impl Iterator<Item = (&String, &Attachment)> {
        self.by_job.get(job).into_iter().flatten().filter_map(|id| self.by_id.get_key_value(id))
    }

    /// The id of the participant whose executions have this prefix.
    pub(super) fn with_prefix(&self, prefix: &str) -> Option<&str> {
        self.by_prefix.get(prefix).map(String::as_str)
    }

    /// Whether an application has attachments.
    pub(super) fn has_application(&self, application_id: &str) -> bool {
        self.by_application.contains_key(application_id)
    }
}
