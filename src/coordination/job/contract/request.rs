//! The request of an application that attaches.

use std::sync::Arc;

use crate::extension::profile::Profile;
use crate::job::JobConfiguration;

/// The request of an application that attaches.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Its configuration; `None`: the registry's.
    pub configuration: Option<Arc<JobConfiguration>>,
    /// The Java class or type of the job; `None`: the registry's.
    pub class: Option<String>,
    /// Its profile, for the other sidecars.
    pub profile: Profile,
    /// Whether the sidecar can recognise another stream of the same application.
    pub resumable: bool,
}
