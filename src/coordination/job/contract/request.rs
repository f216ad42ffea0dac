//! The request of an application that attaches.

use std::sync::Arc;

use crate::coordination::job::contract::profile::Profile;
use crate::job::JobConfiguration;

/// What the application asked for when it attached.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Its configuration; `None`: the registry's.
    pub configuration: Option<Arc<JobConfiguration>>,
    /// The Java class or type of the job; `None`: the registry's.
    pub class: Option<String>,
    /// What the other sidecars are to know of it.
    pub profile: Profile,
    /// Whether another stream of the same application can be known as the next one of this.
    pub resumable: bool,
}
