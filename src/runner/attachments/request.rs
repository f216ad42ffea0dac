//! The request of an application that attaches, and the reasons to refuse it. Decides nothing.

use std::sync::Arc;

use crate::coordination::job::contract::reattach::OpenExecution;
use crate::coordination::job::contract::request::Request;
use crate::extension::profile::Profile;
use crate::job::{InstanceName, JobConfiguration, JobName};

/// Streams that may be attached at once. Each costs some tens of kilobytes.
pub(super) const ATTACHMENTS_MAX: usize = 10_000;

/// The request of an application for a stream.
#[derive(Debug, Clone)]
pub struct Attach {
    /// The job.
    pub job: JobName,
    /// The job's configuration; `None`: the one in the registry.
    pub configuration: Option<Arc<JobConfiguration>>,
    /// The Java class or type of the job.
    pub class: Option<String>,
    /// The profile that the sidecar announces to the other sidecars.
    pub profile: Profile,
    /// The instance's name, so that the instance has the same id after a restart; `None`: the sidecar chooses the id.
    pub name: Option<InstanceName>,
    /// Distinguishes the application's process; empty: this stream is an instance of its own, and cannot reattach.
    pub application_id: String,
    /// The client library, for the log.
    pub client: String,
    /// The executions that the application says are open, from an earlier stream.
    pub open: Vec<OpenExecution>,
}

impl Attach {
    /// The part of the request that the participant gets.
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
    /// The registry cannot store the nodes of an instance.
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
