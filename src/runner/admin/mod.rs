//! The calls of operators and the views of observers, which have no instance of their own. Shell.
//!
//! [`observer`] follows jobs and shows their status; [`jobs`] lists them, and [`servers`] their servers; [`watch_jobs`] follows the list; [`backup`] saves and restores them all; [`change_job`] changes and removes
//! them; [`cancel_fleet`] cancels executions of the whole fleet; [`check_deployment`] checks a sidecar and all its jobs; [`triggers`] lists triggers;
//! [`explain_job`] reads the evidence for an explanation; [`read_nodes`] and [`machine`] read what a bundle has; [`plan_sharding`] reads the nodes
//! for a plan of what would be; [`trigger_job`], [`trigger_items`] and [`switch`] carry out the plans of triggers and of a disabling
//! ([`crate::coordination::admin`] makes the plans). [`housekeeping`] removes finished jobs. All need no application to be attached.
//!
//! Must not know attachments and participants.

pub mod backup;
pub mod cancel_fleet;
pub mod change_job;
pub mod check_deployment;
pub mod explain_job;
pub mod housekeeping;
pub mod jobs;
pub mod machine;
pub mod observer;
pub mod plan_sharding;
pub mod read_nodes;
pub mod servers;
pub mod switch;
pub mod trigger_items;
pub mod trigger_job;
pub mod triggers;
pub mod watch_jobs;

use std::sync::Arc;

use crate::coordination::job::picture::Picture;
use crate::elasticjob::path::JobPaths;
use crate::extension::path::ExtensionPaths;
use crate::job::JobName;
use crate::registry::Session;
use crate::runner::clock::Clock;
use crate::runner::nodes::snapshot;
use crate::runner::shared::Shared;
use crate::tree::{Error, Path, WatchEvent};

/// The jobs of a namespace, as a session reaches them: a sidecar's, or that of a command.
#[derive(Clone, Copy)]
pub struct Namespace<'a> {
    /// The session.
    pub session: &'a Arc<dyn Session>,
    /// The node below which the jobs are.
    pub root: &'a Path,
    /// The clock.
    pub clock: &'a Clock,
}

impl<'a> Namespace<'a> {
    /// The sidecar's namespace, on its session.
    fn of(shared: &'a Shared, session: &'a Arc<dyn Session>) -> Self {
        Self { session, root: &shared.namespace, clock: &shared.clock }
    }
}

impl Namespace<'_> {
    /// The nodes of a job, and those that its sidecars publish. `None`: the registry has no nodes of the job.
    ///
    /// An instance publishes its profile when it registers, so the profiles are read last: each instance among the nodes has one then, or has
    /// left.
    async fn picture(self, job: &JobName) -> Result<Option<Picture>, Error> {
        let Self { session, root, clock } = self;
        let (paths, own_paths) = (JobPaths::new(root, job), ExtensionPaths::new(root, job));
        let nodes = snapshot::read(&**session, paths.root()).await?;
        if nodes.is_empty() {
            return Ok(None);
        }
        let mut picture = Picture::unknown(&paths, &own_paths);
        picture.apply_nodes(WatchEvent::Snapshot(nodes), clock.now());
        let fleet = snapshot::read(&**session, own_paths.fleet().root()).await?;
        picture.apply_fleet(WatchEvent::Snapshot(fleet));
        Ok(Some(picture))
    }
}
