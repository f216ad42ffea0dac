//! The known state of one job: its nodes, and the nodes that its sidecars publish for each other. Decides nothing.
//!
//! All participants and watchers of a job at one sidecar share one picture, however many streams the job has: a
//! thousand streams would otherwise keep a thousand copies, and each change would be applied a thousand times. So the
//! picture is lent to each step, and a participant keeps no part of it. A participant that has nodes read again does
//! not see them until they are read; the others go on with the events of the old watch.

pub mod difference;
pub mod disabling;
pub mod fleet_view;
pub mod job_view;
pub mod nodes;
mod registry_clock;
pub(in crate::coordination) mod schedule;
pub mod settings;

use std::sync::{Arc, LazyLock};

use crate::elasticjob::path::JobPaths;
use crate::extension::path::ExtensionPaths;
use crate::job::JobConfiguration;
use crate::tree::WatchEvent;

use crate::coordination::job::picture::fleet_view::FleetView;
use crate::coordination::job::picture::job_view::JobView;
use crate::coordination::time::Now;

/// A view without any node, for all participants: each of them needs one between two steps.
static NOTHING: LazyLock<Arc<JobView>> = LazyLock::new(Arc::default);

/// Both views of a job. A clone shows the same moment, and costs nothing until one of them changes.
#[derive(Debug, Clone)]
pub struct Picture {
    /// The job's nodes.
    pub nodes: Arc<JobView>,
    /// The nodes that the sidecars publish for each other.
    pub fleet: Arc<FleetView>,
}

impl Picture {
    /// A picture before the first snapshots.
    pub fn unknown(paths: &JobPaths, own_paths: &ExtensionPaths) -> Self {
        let (nodes, fleet) = (JobView::new(paths.root().clone()), FleetView::new(own_paths.fleet()));
        Self { nodes: Arc::new(nodes), fleet: Arc::new(fleet) }
    }

    /// For a decision that must rest on no node: never applied to.
    pub(in crate::coordination) fn of_nothing(own_paths: &ExtensionPaths) -> Self {
        Self { nodes: Arc::clone(&NOTHING), fleet: Arc::new(FleetView::new(own_paths.fleet())) }
    }

    /// Announces an expected configuration. Many applications may have it, and it may be large.
    pub fn expect(&mut self, configuration: Option<Arc<JobConfiguration>>) {
        Arc::make_mut(&mut self.nodes).expect(configuration);
    }

    /// Applies an event of the watch of the job's nodes.
    pub fn apply_nodes(&mut self, event: WatchEvent, now: Now) {
        Arc::make_mut(&mut self.nodes).apply(event, now);
    }

    /// Applies an event of the watch of the sidecars' nodes.
    pub fn apply_fleet(&mut self, event: WatchEvent) {
        Arc::make_mut(&mut self.fleet).apply(event);
    }

    /// The session resumes after an interruption, or the outcome of a request is unknown: no decision rests on the old
    /// state of the job's nodes until the next snapshot. The plan of handovers stays until then.
    pub fn forget_nodes(&mut self) {
        Arc::make_mut(&mut self.nodes).forget();
    }

    /// The session is lost, or there is another one: no decision rests on the old state of any node until the next
    /// snapshots.
    pub fn forget(&mut self) {
        self.forget_nodes();
        Arc::make_mut(&mut self.fleet).forget();
    }
}
