//! Drains the sidecar: no application may attach any more, and all instances leave. Decides nothing.
//!
//! A drain may be requested several times, by an operator, a signal, a second signal: the earliest deadline counts.
//! Each call ends when the last instance has left, or a few seconds after the deadline with the instances that
//! remain. A drained sidecar does not take streams again: a new process is started instead.

use std::time::Duration;

use crate::coordination::time::Wakeup;
use crate::job::{InstanceId, JobName};
use crate::runner::job::command::Command;
use crate::runner::session::keeper::CloseMode;

use super::registry::Attachments;

/// How long leaving may take after the deadline: cancelled executions have two seconds to be reported, and the registry has
/// the rest for its answers. A registry that does not answer must not delay the exit for ever.
const LEAVING_TAKES: Duration = Duration::from_secs(5);

/// The result of a drain: instances, by the job and the id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drained {
    /// The instances that were here when the drain was requested.
    pub instances: Vec<(JobName, InstanceId)>,
    /// The instances that have not left in time: the registry does not answer, or an application without a stream may still
    /// execute items. Their nodes are removed with the session.
    pub remaining: Vec<(JobName, InstanceId)>,
}

impl Drained {
    /// How to end the session after this drain.
    pub fn close_mode(&self) -> CloseMode {
        if self.remaining.is_empty() { CloseMode::Close } else { CloseMode::Abandon }
    }
}

impl Attachments {
    /// Refuses streams from now on, and drains all instances until the deadline (monotonic). Ends when the last instance has
    /// left, or some seconds after the deadline. `for_good`: no items are reserved for instances with a name.
    pub async fn drain(&self, deadline: Duration, for_good: bool) -> Drained {
        let handles: Vec<_> = {
            let mut inner = self.lock();
            inner.draining = true;
            inner.attachments.values().map(|attachment| attachment.handle.clone()).collect()
        };
        // An instance that has not joined yet takes the drain when it is in turn.
        self.turns.open();
        let instances = self.attached();
        for handle in handles {
            // A task that has ended has nothing to drain.
            handle.send(Command::Drain { deadline: Some(deadline), for_good }).await;
        }
        let mut count = self.count.subscribe();
        let last = deadline.saturating_add(LEAVING_TAKES);
        tokio::select! {
            biased; // If all instances have left, that counts, also if this task sees it late.
            _ = count.wait_for(|count| *count == 0) => {}
            () = self.shared().clock.sleep_until(Wakeup { wall: None, mono: Some(last) }) => {}
        }
        Drained { instances, remaining: self.attached() }
    }

    fn attached(&self) -> Vec<(JobName, InstanceId)> {
        let inner = self.lock();
        let attachments = inner.attachments.values();
        attachments.map(|attachment| (attachment.job.clone(), attachment.instance.clone())).collect()
    }
}
