//! The state of a job for observers: instances, items and their owners, problems. Decides nothing.

use std::sync::Arc;

use jiff::Timestamp;

use crate::findings::problem::Problem;
use crate::job::{FencingToken, Generation, InstanceId, Item, JobConfiguration};

use crate::coordination::job::ownership::allocation::former_rule;
use crate::coordination::job::ownership::mode::Mode;
use crate::coordination::job::picture::fleet_view::FleetView;
use crate::coordination::job::picture::job_view::JobView;
use crate::coordination::job::picture::nodes::ConfigView;
use crate::coordination::job::picture::settings::Settings;

/// An instance that is online.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceStatus {
    /// The instance.
    pub instance: InstanceId,
    /// Whether its server is enabled.
    pub enabled: bool,
    /// Whether this instance leads.
    pub leader: bool,
}

/// An item and its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemStatus {
    /// The item.
    pub item: Item,
    /// Its parameter.
    pub parameter: Option<String>,
    /// The owner, and the token with which it owns the item.
    pub owner: Option<(InstanceId, FencingToken)>,
    /// Whether an instance executes it.
    pub running: bool,
    /// Since when, by the registry's clock, as far as is known.
    pub running_since: Option<Timestamp>,
    /// Whether a fire was missed.
    pub misfire: bool,
    /// Whether an operator disabled it.
    pub disabled: bool,
    /// The instance that gets the item when its owner has released it.
    pub next: Option<InstanceId>,
    /// How its owner executed it last, if this sidecar knows it.
    pub last: Option<LastExecution>,
    /// The lock for which its execution waits, if this sidecar knows it.
    pub waiting_for_lock: Option<WaitingForLock>,
}

/// The wait of an execution for the lock of its item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingForLock {
    /// The lock's name.
    pub lock: String,
    /// The first contender of its queue, in its own words.
    pub holder: Option<String>,
    /// Since when the execution waits.
    pub since: Timestamp,
}

/// How an execution ended, as the application reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The application executed the item.
    Success,
    /// The application began the item, and failed.
    Failure,
    /// The application did not begin the item.
    Rejection,
    /// The application stopped it, or did not begin it, because another instance might have owned the item.
    Interruption,
}

/// How an item was executed last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastExecution {
    /// How the last execution ended.
    pub ending: Ending,
    /// How many executions in a row ended like this.
    pub times: u32,
    /// When the first of them was reported.
    pub since: Timestamp,
    /// When the last of them was reported.
    pub at: Timestamp,
    /// The first line of the application's message, shortened.
    pub message: String,
    /// When the last success was reported to this sidecar.
    pub success: Option<Timestamp>,
}

/// The state of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobStatus {
    /// The configuration, if there is a readable one.
    pub configuration: Option<Arc<JobConfiguration>>,
    /// The generation of the assignment.
    pub generation: Generation,
    /// The instances that are online.
    pub instances: Vec<InstanceStatus>,
    /// The items and their owners.
    pub items: Vec<ItemStatus>,
    /// Whether the registry has nodes of the job.
    pub exists: bool,
    /// Whether a resharding is due or going on.
    pub resharding: bool,
    /// The next fire.
    pub next_fire: Option<Timestamp>,
    /// The rules by which items change hands; `None`: there are no instances, or no configuration.
    pub handoff: Option<Mode>,
    /// The problems of the job's nodes.
    pub problems: Vec<Problem>,
}

impl JobStatus {
    /// The state that the views show at this time of day. `settings` keeps the compiled configuration between calls.
    pub fn of(
        view: &JobView,
        fleet: &FleetView,
        settings: &mut Option<Settings>,
        config_path: &crate::tree::Path,
        now: Timestamp,
    ) -> Self {
        match view.config() {
            ConfigView::Valid(configuration) => {
                if settings.as_ref().is_none_or(|settings| settings.configuration != *configuration) {
                    *settings = Some(Settings::compile(Arc::clone(configuration), None));
                }
            }
            ConfigView::Absent | ConfigView::Unreadable => *settings = None,
        }
        let settings = settings.as_ref();
        let leader = view.leader().map(|leader| &leader.instance);
        let instances = view.instances().keys().map(|instance| InstanceStatus {
            instance: instance.clone(),
            enabled: instance.server_ip().is_some_and(|ip| view.is_enabled(ip)),
            leader: Some(instance) == leader,
        });
        let items = view.items().map(|(item, known)| ItemStatus {
            item,
            parameter: settings.and_then(|settings| settings.parameter(item)).map(str::to_owned),
            owner: known.owner.as_ref().map(|owner| (owner.instance.clone(), owner.token)),
            running: known.running.is_some(),
            running_since: None,
            misfire: known.misfire,
            disabled: known.disabled,
            next: fleet
                .target(item)
                .filter(|next| known.owner.as_ref().is_some_and(|owner| owner.instance != **next))
                .cloned(),
            last: None,
            waiting_for_lock: None,
        });
        let mut problems: Vec<_> = view.problems().collect();
        problems.extend(settings.iter().flat_map(|settings| settings.problems(config_path)));
        problems.extend(settings.and_then(|settings| former_rule::problem(view, fleet, settings)));
        let schedule = settings.and_then(|settings| settings.schedule.as_ref());
        let next_fire = schedule.and_then(|schedule| schedule.next_after(now));
        if schedule.is_some() && next_fire.is_none() {
            problems.push(Settings::never_fires(config_path.clone()));
        }
        Self {
            configuration: settings.map(|settings| Arc::clone(&settings.configuration)),
            generation: view.generation(),
            instances: instances.collect(),
            items: items.collect(),
            exists: view.class().is_some(),
            resharding: view.is_resharding(),
            next_fire,
            handoff: settings
                .filter(|_| !view.instances().is_empty())
                .map(|settings| Mode::of(view, fleet, settings)),
            problems,
        }
    }
}
