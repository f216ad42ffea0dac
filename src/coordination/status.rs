//! The state of a job as anybody may look at it: who is online, who owns what, what is wrong. Decides nothing.

use std::sync::Arc;

use jiff::Timestamp;

use crate::job::{FencingToken, Generation, InstanceId, Item, JobConfiguration, Problem};

use super::facts::ConfigView;
use super::fleet::FleetView;
use super::former;
use super::handoff::Mode;
use super::settings::Settings;
use super::view::JobView;

/// An instance that is online.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceStatus {
    /// The instance.
    pub instance: InstanceId,
    /// Whether its server is enabled.
    pub enabled: bool,
    /// Whether it leads.
    pub leader: bool,
}

/// An item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemStatus {
    /// The item.
    pub item: Item,
    /// Its parameter.
    pub parameter: Option<String>,
    /// Who owns it, and with which token.
    pub owner: Option<(InstanceId, FencingToken)>,
    /// Whether it is being executed.
    pub running: bool,
    /// Whether a fire was missed.
    pub misfire: bool,
    /// Whether an operator disabled it.
    pub disabled: bool,
    /// Who is to get it when its owner is done with it.
    pub next: Option<InstanceId>,
}

/// The state of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobStatus {
    /// The configuration, if there is a readable one.
    pub configuration: Option<Arc<JobConfiguration>>,
    /// Which sharding.
    pub generation: Generation,
    /// Who is online.
    pub instances: Vec<InstanceStatus>,
    /// Who owns what.
    pub items: Vec<ItemStatus>,
    /// Whether a resharding is due or going on.
    pub resharding: bool,
    /// The next fire.
    pub next_fire: Option<Timestamp>,
    /// By which rules items change hands; `None`: there are no instances, or no configuration.
    pub handoff: Option<Mode>,
    /// What is wrong.
    pub problems: Vec<Problem>,
}

impl JobStatus {
    /// What the views show at this time of day. `settings` keeps the compiled configuration between calls.
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
        let items = view.items().iter().map(|(item, known)| ItemStatus {
            item: *item,
            parameter: settings.and_then(|settings| settings.parameter(*item)).map(str::to_owned),
            owner: known.owner.as_ref().map(|owner| (owner.instance.clone(), owner.token)),
            running: known.running.is_some(),
            misfire: known.misfire,
            disabled: known.disabled,
            next: fleet
                .target(*item)
                .filter(|next| known.owner.as_ref().is_some_and(|owner| owner.instance != **next))
                .cloned(),
        });
        let mut problems: Vec<_> = view.problems().collect();
        for message in settings.iter().flat_map(|settings| &settings.problems) {
            problems.push(Problem { path: config_path.clone(), message: message.clone() });
        }
        problems.extend(settings.and_then(|settings| former::problem(view, fleet, settings)));
        let schedule = settings.and_then(|settings| settings.schedule.as_ref());
        Self {
            configuration: settings.map(|settings| Arc::clone(&settings.configuration)),
            generation: view.generation(),
            instances: instances.collect(),
            items: items.collect(),
            resharding: view.is_resharding(),
            next_fire: schedule.and_then(|schedule| schedule.next_after(now)),
            handoff: settings
                .filter(|_| !view.instances().is_empty())
                .map(|settings| Mode::of(view, fleet, settings)),
            problems,
        }
    }
}
