//! Attaches an application to a job. Decides whether the stream is refused, and which instance id it gets.

use std::sync::Arc;

use crate::coordination::job::participant::Participant;
use crate::coordination::job::picture::difference;
use crate::job::{InstanceId, JobConfiguration};
use crate::runner::clock::Clock;
use crate::runner::job::outlet::Outlet;

use super::registry::{Attachments, Inner};
use super::request::{ATTACHMENTS_MAX, Attach, AttachError};

/// Random characters in the id of an instance without a name. With six, two of a thousand streams would have the same id with
/// a probability of one in thirty. Java's trace tables hold 255 bytes for a task id, in which the instance id appears once.
const UNIQUE_LENGTH: usize = 12;

impl Attachments {
    /// Attaches an application to a job. Returns the attachment's id, and what the application reads.
    pub async fn attach(&self, attach: Attach) -> Result<(String, Outlet), AttachError> {
        // Read before an earlier stream's instance leaves: the new stream gets the same instance id.
        let earlier = self.lock().uniques.get(&attach.application_id).cloned();
        // A stream that reattaches needs no new nodes.
        if !self.has_earlier_stream(&attach) {
            self.check_writable(&attach)?;
        }
        match self.replace_earlier_stream(&attach).await {
            Ok(Some(reattached)) => return Ok(reattached),
            Ok(None) => {}
            Err(error) => {
                // If the registry cannot write, the earlier stream's instance cannot leave: that is the reason to report.
                self.check_writable(&attach)?;
                return Err(error);
            }
        }
        self.check_writable(&attach)?;
        let mut inner = self.lock();
        let attach = Attach { configuration: inner.shared_configuration(&attach), ..attach };
        inner.admit(&attach)?;
        let instance = match &attach.name {
            Some(name) => InstanceId::new(self.shared().server_ip, name.as_str()),
            None => {
                let unique = inner.unique(&attach.application_id, earlier, &self.shared().clock);
                InstanceId::new(self.shared().server_ip, &unique)
            }
        };
        let participant = |identity| Participant::new(identity, attach.request());
        Ok(self.start(&mut inner, instance, &attach, false, participant))
    }

    /// Refuses a stream if the registry cannot store the nodes of an instance now.
    fn check_writable(&self, attach: &Attach) -> Result<(), AttachError> {
        let session = self.shared().current.borrow().clone();
        match session.and_then(|session| session.obstacle()) {
            Some(obstacle) => Err(AttachError::Unwritable { job: attach.job.clone(), obstacle }),
            None => Ok(()),
        }
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
        let others = self.attachments.of_job(&attach.job).map(|(_, other)| other);
        // Equal configurations are kept once, so they need no comparison.
        let theirs = others.filter_map(|other| other.configuration.as_ref());
        for theirs in theirs.filter(|theirs| !Arc::ptr_eq(theirs, ours)) {
            let fields = difference::in_words(theirs, ours);
            if !fields.is_empty() {
                return Err(AttachError::Conflict { job: attach.job.clone(), fields });
            }
        }
        Ok(())
    }

    /// The configuration in the request; if another stream of the job came with an equal one, that one, so that it is kept once.
    fn shared_configuration(&self, attach: &Attach) -> Option<Arc<JobConfiguration>> {
        let ours = attach.configuration.as_ref()?;
        let others = self.attachments.of_job(&attach.job).map(|(_, other)| other);
        let known = others.filter_map(|other| other.configuration.as_ref()).find(|known| *known == ours);
        Some(Arc::clone(known.unwrap_or(ours)))
    }

    /// The part of the instance id that distinguishes the application's instances from others on this server: the part that
    /// its streams have, or else the one of its earlier streams, or else a new one.
    fn unique(&mut self, application_id: &str, earlier: Option<String>, clock: &Clock) -> String {
        let random = |length| clock.unguessable().chars().take(length).collect::<String>();
        if application_id.is_empty() {
            return format!("{}-{}", std::process::id(), random(UNIQUE_LENGTH));
        }
        // Instance ids are public, but a client that knows an application id can replace its streams: so they differ.
        let fresh =
            || earlier.unwrap_or_else(|| format!("{}-{}", random(UNIQUE_LENGTH), random(UNIQUE_LENGTH)));
        self.uniques.entry(application_id.to_owned()).or_insert_with(fresh).clone()
    }
}
