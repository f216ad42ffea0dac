//! What is known of one job: its nodes, and what its sidecars tell each other. Participants of one sidecar may share it, so
//! it is given to each step, and not kept. Decides nothing.

pub mod difference;
pub mod fleet_view;
pub mod job_view;
pub mod nodes;
mod registry_clock;
pub(in crate::coordination) mod schedule;
pub mod settings;

use std::sync::Arc;

use crate::elasticjob::path::JobPaths;
use crate::job::JobConfiguration;
use crate::tree::WatchEvent;

use crate::coordination::job::picture::fleet_view::FleetView;
use crate::coordination::job::picture::job_view::JobView;
use crate::coordination::time::Now;

/// Both views of a job. A clone is the same moment, and costs nothing until one of them changes.
#[derive(Debug, Clone)]
pub struct Picture {
    /// The job's nodes.
    pub nodes: Arc<JobView>,
    /// What the sidecars tell each other.
    pub fleet: Arc<FleetView>,
}

impl Picture {
    /// Nothing is known until the first snapshots.
    pub fn unknown(paths: &JobPaths) -> Self {
        let (nodes, fleet) = (JobView::new(paths.root().clone()), FleetView::new(paths.fleet()));
        Self { nodes: Arc::new(nodes), fleet: Arc::new(fleet) }
    }

    /// Tells which configuration is to be expected. Many applications may have it, and it may be large.
    pub fn expect(&mut self, configuration: Option<Arc<JobConfiguration>>) {
        Arc::make_mut(&mut self.nodes).expect(configuration);
    }

    /// Takes in what the watch of the job's nodes told.
    pub fn apply_nodes(&mut self, event: WatchEvent, now: Now) {
        Arc::make_mut(&mut self.nodes).apply(event, now);
    }

    /// Takes in what the watch of the sidecars' nodes told.
    pub fn apply_fleet(&mut self, event: WatchEvent) {
        Arc::make_mut(&mut self.fleet).apply(event);
    }

    /// The session goes on after an interruption, or the outcome of a request is unknown: nothing is decided on what the
    /// job's nodes were, until the next snapshot. What is to be handed over stays so until more is known.
    pub fn forget_nodes(&mut self) {
        Arc::make_mut(&mut self.nodes).forget();
    }

    /// The session is lost, or there is another one: nothing is known until the next snapshots.
    pub fn forget(&mut self) {
        self.forget_nodes();
        Arc::make_mut(&mut self.fleet).forget();
    }
}
