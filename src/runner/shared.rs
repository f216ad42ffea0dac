//! The state that all tasks of the sidecar share. Shell. Decides nothing.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::elasticjob::path::JobPaths;
use crate::job::{JobConfiguration, JobName};
use crate::tree::Path;

use super::clock::Clock;
use super::feed::{Feeds, Follower};
use super::lease::Lease;
use super::memory::Memory;
use super::outcomes::Outcomes;
use super::session::Current;

/// The state that participants, observers and operators share. Clones share it as well.
#[derive(Clone)]
pub struct Shared {
    /// The namespace.
    pub namespace: Path,
    /// Our server's address.
    pub server_ip: Ipv4Addr,
    /// The clock.
    pub clock: Clock,
    /// The session.
    pub current: Current,
    /// The feeds of the jobs.
    pub feeds: Feeds,
    /// Until when it is proven alive.
    pub lease: Lease,
    /// How long an application may leave its stream unread.
    pub slow_application_timeout: Duration,
    /// How long an application may be silent before its connection is closed.
    pub silent_application_timeout: Duration,
    /// The memory for the next process of the sidecar.
    pub memory: Memory,
    /// The error of the last attempt to open a session. Empty: it succeeded.
    pub trouble: watch::Receiver<String>,
    /// How items were executed last.
    pub outcomes: Outcomes,
}

impl Shared {
    /// Follows a job's nodes. `configuration` is the one that its follower expects there.
    pub(super) fn follow(
        &self,
        job: &JobName,
        paths: &JobPaths,
        configuration: Option<&Arc<JobConfiguration>>,
    ) -> Follower {
        self.feeds.follow(job, paths, (&self.current, &self.clock), configuration)
    }
}
