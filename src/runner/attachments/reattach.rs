//! The next stream of an application for the same job reattaches to the participant of its earlier stream, or waits until
//! that instance has left. An application that wants the name of an instance whose application is gone waits too.
//!
//! Decides only whether the new stream's request is the same as before. Whether it may reattach, the participant decides.

use std::time::Duration;

use tokio::sync::oneshot;

use crate::coordination::job::contract::reattach::Return;
use crate::coordination::time::Wakeup;
use crate::runner::job::command::Command;
use crate::runner::job::outlet::Outlet;

use super::list::Attachment;
use super::registry::Attachments;
use super::request::{Attach, AttachError};

/// How long a new stream waits for an earlier instance to leave the registry.
const LEAVING_TAKES: Duration = Duration::from_secs(5);

impl Attachments {
    /// Ends an earlier stream of the same application for the same job. Returns the new attachment if the new stream reattaches
    /// to the participant; otherwise waits until the earlier instance has left.
    pub(super) async fn replace_earlier_stream(
        &self,
        attach: &Attach,
    ) -> Result<Option<(String, Outlet)>, AttachError> {
        self.replace_namesake(attach).await?;
        if attach.application_id.is_empty() {
            return Ok(None);
        }
        let earlier = {
            let inner = self.lock();
            if inner.draining {
                return Err(AttachError::Draining);
            }
            let mut attachments = inner.attachments.of_job(&attach.job);
            attachments.find(|(_, other)| other.application_id == attach.application_id).map(|(id, other)| {
                // The state file has only a part of the request: the participant compares with the registry.
                let same = other.name == attach.name
                    && (other.is_restored
                        || (other.configuration == attach.configuration
                            && other.class == attach.class
                            && other.profile == attach.profile));
                (id.clone(), same, other.handle.clone())
            })
        };
        let Some((id, same, mut handle)) = earlier else { return Ok(None) };
        let (sender, outlet) = oneshot::channel();
        // If the task has ended, its instance has left.
        let back = Box::new(Return { request: attach.request(), open: attach.open.clone() });
        handle.send(Command::Replace { same, back, outlet: sender }).await;
        let deadline = self.shared().clock.now().mono.saturating_add(LEAVING_TAKES);
        let over = async {
            if let Ok(Some(outlet)) = outlet.await {
                return Some(outlet);
            }
            // If the task has ended, the sender is dropped.
            let _ = handle.over.wait_for(|over| *over).await;
            None
        };
        tokio::select! {
            biased; // A new outlet counts, also if this task reads it late.
            outlet = over => Ok(outlet.map(|outlet| (self.rename(&id, attach), outlet))),
            () = self.shared().clock.sleep_until(Wakeup { wall: None, mono: Some(deadline) }) => {
                Err(AttachError::PredecessorStays(attach.job.clone()))
            }
        }
    }

    /// Whether the application has an earlier stream for the job, or its instance has not left yet.
    pub(super) fn has_earlier_stream(&self, attach: &Attach) -> bool {
        let is_same = |(_, other): (&String, &Attachment)| other.application_id == attach.application_id;
        !attach.application_id.is_empty() && self.lock().attachments.of_job(&attach.job).any(is_same)
    }

    /// Waits until another application's instance of the same name has left, if that application is gone (its stream is
    /// broken, and the job has a `reattach_grace`). Refuses if the other application is attached.
    async fn replace_namesake(&self, attach: &Attach) -> Result<(), AttachError> {
        let (mut handle, taken) = {
            let inner = self.lock();
            let Some((name, other)) = inner.namesake(attach) else { return Ok(()) };
            if !attach.application_id.is_empty() && other.application_id == attach.application_id {
                return Ok(());
            }
            let (job, name) = (attach.job.clone(), name.clone());
            (other.handle.clone(), AttachError::NameTaken { job, name })
        };
        let (sender, leaves) = oneshot::channel();
        // If the task has ended, its instance has left.
        handle.send(Command::ReleaseName { leaves: sender }).await;
        if let Ok(false) = leaves.await {
            return Err(taken);
        }
        let deadline = self.shared().clock.now().mono.saturating_add(LEAVING_TAKES);
        tokio::select! {
            biased;
            _ = handle.over.wait_for(|over| *over) => Ok(()),
            () = self.shared().clock.sleep_until(Wakeup { wall: None, mono: Some(deadline) }) => {
                Err(AttachError::PredecessorStays(attach.job.clone()))
            }
        }
    }

    /// Replaces the id of an attachment by a new one, and returns that.
    fn rename(&self, attachment_id: &str, attach: &Attach) -> String {
        let new = self.shared().clock.unguessable();
        let mut inner = self.lock();
        // If the participant has just ended, the new stream ends, too.
        if let Some(mut attachment) = inner.attachments.remove(attachment_id) {
            if std::mem::take(&mut attachment.is_restored) {
                attachment.configuration.clone_from(&attach.configuration);
                attachment.class.clone_from(&attach.class);
                attachment.profile.clone_from(&attach.profile);
            }
            tracing::info!(job.name = %attachment.job, instance.id = %attachment.instance, "attached again");
            inner.attachments.insert(new.clone(), attachment);
        }
        new
    }
}
