//! The state that all tasks of the sidecar share. Shell. Decides nothing.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::credential_file::CertificateEnds;
use crate::job::{JobConfiguration, JobName};
use crate::metrics::meters::Meters;
use crate::tree::Path;

use super::clock::Clock;
use super::elections::Elections;
use super::lock_waits::LockWaits;
use super::nodes::feed::{Feeds, Follower};
use super::outcomes::Outcomes;
use super::session::current::{Current, NoSession};
use super::session::lease::Lease;
use super::state_file::writer::StateFile;

/// The state that participants, observers and operators' calls share. Clones share it as well.
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
    /// The session's lease: until when the session is proven alive.
    pub lease: Lease,
    /// How long an application may leave its stream unread.
    pub slow_application_timeout: Duration,
    /// How long an application may be silent before its connection is closed.
    pub silent_application_timeout: Duration,
    /// The file for the next process of the sidecar.
    pub state_file: StateFile,
    /// Why there is no session.
    pub trouble: watch::Receiver<NoSession>,
    /// How items were executed last.
    pub outcomes: Outcomes,
    /// Which executions wait for locks.
    pub lock_waits: LockWaits,
    /// The elections in which an instance of the sidecar stands.
    pub elections: Elections,
    /// The counters.
    pub meters: Meters,
    /// When the sidecar's certificates expire.
    pub certificates: CertificateEnds,
}

impl Shared {
    /// Follows a job's nodes. `configuration` is the one that the follower expects in the registry.
    pub(crate) fn follow(&self, job: &JobName, configuration: Option<&Arc<JobConfiguration>>) -> Follower {
        self.feeds.follow(job, &self.namespace, (&self.current, &self.clock), configuration)
    }
}

#[cfg(test)]
impl Shared {
    /// The state of a sidecar that has no session.
    pub(crate) fn without_session() -> Self {
        let trouble = NoSession { trouble: "a test has no registry".to_owned(), is_read_only: false };
        Self {
            namespace: Path::root(),
            server_ip: Ipv4Addr::LOCALHOST,
            clock: Clock::start(),
            current: watch::channel(None).1,
            feeds: Feeds::default(),
            lease: Lease::new().0,
            slow_application_timeout: Duration::from_secs(10),
            silent_application_timeout: Duration::from_secs(10),
            state_file: StateFile::none(),
            trouble: watch::channel(trouble).1,
            outcomes: Outcomes::default(),
            lock_waits: LockWaits::default(),
            elections: Elections::default(),
            meters: Meters::new("jobs", 0),
            certificates: CertificateEnds::default(),
        }
    }
}
