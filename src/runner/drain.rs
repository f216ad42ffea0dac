//! Has everybody leave: nobody may attach any more, and whoever is attached finishes until a deadline.
//!
//! May be asked for several times, by an operator, a signal, a second signal: the earliest deadline counts, and each
//! caller comes back when the last instance has left. There is no way back but a new sidecar.

use std::time::Duration;

use crate::coordination::time::Wakeup;
use crate::job::{InstanceId, JobName};

use super::command::Command;
use super::hub::Hub;
use super::session::Farewell;

/// How long leaving may take after the deadline: executions that are told to stop have two seconds to be reported, and
/// then the registry a few for its round trips. One that is away must not hold up the exit for ever.
const LEAVING_TAKES: Duration = Duration::from_secs(5);

/// What a drain has come to: instances, by the job and the id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drained {
    /// Those that were attached when it was asked for.
    pub instances: Vec<(JobName, InstanceId)>,
    /// Those that have not left in time: the registry does not answer, or an application without a stream may still
    /// execute something. What they have there goes with the session.
    pub remaining: Vec<(JobName, InstanceId)>,
}

impl Drained {
    /// How to part from the session, if nobody waits any longer.
    pub fn farewell(&self) -> Farewell {
        if self.remaining.is_empty() { Farewell::Close } else { Farewell::Abandon }
    }
}

impl Hub {
    /// Lets nobody attach any more, and drains everybody until the deadline (monotonic). Comes back when the last one
    /// has left, or some seconds after the deadline. `for_good`: nothing is to be kept for those who have a name.
    pub async fn drain(&self, deadline: Duration, for_good: bool) -> Drained {
        let handles: Vec<_> = {
            let mut inner = self.lock();
            inner.draining = true;
            inner.attachments.values().map(|attachment| attachment.handle.clone()).collect()
        };
        let instances = self.attached();
        for handle in handles {
            // One that has ended has nothing to drain.
            let _ = handle.commands.send(Command::Drain { deadline, for_good }).await;
        }
        let mut count = self.count.subscribe();
        let last = deadline.saturating_add(LEAVING_TAKES);
        tokio::select! {
            biased; // Who has left has left, however late somebody looks.
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
