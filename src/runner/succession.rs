//! One stream of an application after another: the next one takes the participant over, or waits until it has left. So
//! does the next application of the same name, if the one that had it is gone.

use std::time::Duration;

use tokio::sync::oneshot;

use crate::coordination::job::contract::reattach::Return;
use crate::coordination::time::Wakeup;

use super::command::Command;
use super::hub::{Attach, AttachError, Attachment, Hub};
use super::participant::Outlet;

/// How long a stream waits for its predecessor to leave the registry.
const PREDECESSOR_LEAVES: Duration = Duration::from_secs(5);

impl Hub {
    /// Ends an earlier stream of the same application for the same job. Gives the new attachment if it takes over the
    /// participant, and otherwise waits until that has left.
    pub(super) async fn replace_predecessor(
        &self,
        attach: &Attach,
    ) -> Result<Option<(String, Outlet)>, AttachError> {
        self.replace_namesake(attach).await?;
        if attach.application_id.is_empty() {
            return Ok(None);
        }
        let predecessor = {
            let inner = self.lock();
            if inner.draining {
                return Err(AttachError::Draining);
            }
            let mut attachments = inner.attachments.iter();
            attachments
                .find(|(_, other)| other.job == attach.job && other.application_id == attach.application_id)
                .map(|(id, other)| {
                    // What the former process's application asked for, its participant finds in the registry.
                    let same = other.name == attach.name
                        && (other.inherited
                            || (other.configuration == attach.configuration
                                && other.class == attach.class
                                && other.profile == attach.profile));
                    (id.clone(), same, other.handle.clone())
                })
        };
        let Some((id, same, mut handle)) = predecessor else { return Ok(None) };
        let (sender, outlet) = oneshot::channel();
        // If it has ended meanwhile, that is as good.
        let back = Box::new(Return { request: attach.request(), open: attach.open.clone() });
        let _ = handle.commands.send(Command::Replace { same, back, outlet: sender }).await;
        let deadline = self.shared().clock.now().mono.saturating_add(PREDECESSOR_LEAVES);
        let over = async {
            if let Ok(Some(outlet)) = outlet.await {
                return Some(outlet);
            }
            // A sender that is gone means the same.
            let _ = handle.over.wait_for(|over| *over).await;
            None
        };
        tokio::select! {
            biased; // A stream that was given is not thrown away, however late somebody looks.
            outlet = over => Ok(outlet.map(|outlet| (self.rename(&id, attach), outlet))),
            () = self.shared().clock.sleep_until(Wakeup { wall: None, mono: Some(deadline) }) => {
                Err(AttachError::PredecessorStays(attach.job.clone()))
            }
        }
    }

    /// Whether the application is attached to the job already, or was until a moment ago.
    pub(super) fn has_predecessor(&self, attach: &Attach) -> bool {
        let is_same =
            |other: &Attachment| other.job == attach.job && other.application_id == attach.application_id;
        !attach.application_id.is_empty() && self.lock().attachments.values().any(is_same)
    }

    /// Waits until an application of the same name has left that is gone already: its stream has broken, and the job has a
    /// grace. Refuses if it is there.
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
        // If it has ended meanwhile, that is as good.
        let _ = handle.commands.send(Command::Yield { leaves: sender }).await;
        if let Ok(false) = leaves.await {
            return Err(taken);
        }
        let deadline = self.shared().clock.now().mono.saturating_add(PREDECESSOR_LEAVES);
        tokio::select! {
            biased;
            _ = handle.over.wait_for(|over| *over) => Ok(()),
            () = self.shared().clock.sleep_until(Wakeup { wall: None, mono: Some(deadline) }) => {
                Err(AttachError::PredecessorStays(attach.job.clone()))
            }
        }
    }

    /// Gives an attachment another id, under which it is called from now on.
    fn rename(&self, attachment_id: &str, attach: &Attach) -> String {
        let new = self.shared().clock.unguessable();
        let mut inner = self.lock();
        // One that has ended in this moment ends the new stream, too.
        if let Some(mut attachment) = inner.attachments.remove(attachment_id) {
            if std::mem::take(&mut attachment.inherited) {
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
