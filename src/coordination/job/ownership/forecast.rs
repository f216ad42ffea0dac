//! Which instance will own each item in the end, if nothing else changes? What the leader decides, from the nodes alone, for operators who ask
//! what would be. Proposes nothing.
//!
//! The leader's waits are left out: for executions, for a fire, for further instances that join, and for Java instances that start. They
//! delay a resharding, and do not change its result. An offline instance with a name counts as the leader counts it until its grace ends.

use std::time::Duration;

use crate::coordination::job::ownership::mode::{AllAtOnceReason, Mode};
use crate::coordination::job::ownership::reservation::Reservations;
use crate::coordination::job::ownership::targets::{owners, work_out};
use crate::coordination::job::picture::fleet_view::FleetView;
use crate::coordination::job::picture::job_view::JobView;
use crate::coordination::job::picture::settings::Settings;
use crate::coordination::time::Now;
use crate::elasticjob::strategy::{StrategyError, allocate_as_java};
use crate::job::{InstanceId, Item, ShardingStrategy};

use crate::coordination::job::ownership::allocation::former_rule;

/// The owners in the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forecast {
    all_at_once: Option<AllAtOnceReason>,
    owners: Vec<Option<InstanceId>>,
}

impl Forecast {
    /// Why the items change hands all at once. `None`: they do so one by one.
    pub fn all_at_once(&self) -> Option<&AllAtOnceReason> {
        self.all_at_once.as_ref()
    }

    /// The owner of each item, ascending. `None`: it has none.
    pub fn into_owners(self) -> Vec<Option<InstanceId>> {
        self.owners
    }
}

/// Why nobody but the leader can know the owners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unforeseen {
    /// A Java instance leads, and its application brings the strategy of this type.
    ForeignStrategy(String),
    /// A Java instance leads, and its strategy fails, so the items stay where they are.
    JavaFails(StrategyError),
}

/// The owners in the end. `members_change`: whether the instances of these views are others than at the last resharding.
pub fn forecast(
    view: &JobView,
    fleet: &FleetView,
    settings: &Settings,
    members_change: bool,
    now: Now,
) -> Result<Forecast, Unforeseen> {
    let all_at_once = match Mode::of(view, fleet, settings) {
        Mode::OneByOne => None,
        Mode::AllAtOnce(reason) => Some(reason),
        // The leader waits a second, and then decides so.
        Mode::Undecided(silent) => Some(AllAtOnceReason::Silent(silent)),
    };
    let owners = match all_at_once {
        None => {
            let reservations = Reservations::of(view, fleet, settings.grace);
            work_out(view, fleet, &reservations, settings, now).into_iter().map(Some).collect()
        }
        Some(_) => by_strategy(view, fleet, settings, members_change, now)?,
    };
    // Without an instance that may get items there are no owners.
    let owners: Vec<_> = owners.into_iter().chain(std::iter::repeat(None)).zip(settings.items()).collect();
    Ok(Forecast { all_at_once, owners: owners.into_iter().map(|(owner, _)| owner).collect() })
}

/// Whether a Java instance leads: this one, or the only ones that may.
pub fn leads_java(view: &JobView) -> bool {
    let online = |id: &&InstanceId| view.instances().contains_key(*id);
    match view.leader().map(|leader| &leader.instance).filter(online) {
        Some(leader) => leader.is_java(),
        None => view.has_java_instances() && view.available().iter().all(InstanceId::is_java),
    }
}

fn by_strategy(
    view: &JobView,
    fleet: &FleetView,
    settings: &Settings,
    members_change: bool,
    now: Now,
) -> Result<Vec<Option<InstanceId>>, Unforeseen> {
    let available = view.available();
    if available.is_empty() {
        return Ok(Vec::new());
    }
    let owner = |item: Item| view.item(item).and_then(|item| item.owner.as_ref());
    if !view.necessary() && stays(view, &available, settings, members_change) {
        return Ok(settings.items().map(|item| owner(item).map(|owner| owner.instance.clone())).collect());
    }
    if !leads_java(view) {
        let rule = former_rule::rule(view, fleet);
        return Ok(owners(settings, &available, rule, now).into_iter().map(Some).collect());
    }
    let configuration = &settings.configuration;
    let named = configuration.job_sharding_strategy_type.as_deref().filter(|name| !name.is_empty());
    if let Some(foreign) = named.filter(|_| !settings.knows_strategy()) {
        return Err(Unforeseen::ForeignStrategy(foreign.to_owned()));
    }
    // Java instances have no strategy of Sidekeeper's.
    let strategy = named.and_then(ShardingStrategy::from_type);
    let strategy = strategy.filter(|strategy| *strategy != ShardingStrategy::ConsistentHash);
    let strategy = strategy.unwrap_or(ShardingStrategy::AvgAllocation);
    let total = configuration.sharding_total_count;
    let now_ms = now.wall.as_millisecond();
    let shares = allocate_as_java(strategy, &configuration.job_name, total, &available, now_ms)
        .map_err(Unforeseen::JavaFails)?;
    let mut owners: Vec<_> = shares
        .into_iter()
        .flat_map(|(id, items)| items.into_iter().map(move |item| (item, id.clone())))
        .collect();
    owners.sort();
    Ok(owners.into_iter().map(|(_, id)| Some(id)).collect())
}

/// Whether no resharding comes: the first assignment stays for good, or the strategy chooses anew only for other instances.
fn stays(view: &JobView, available: &[InstanceId], settings: &Settings, members_change: bool) -> bool {
    let configuration = &settings.configuration;
    if view.surplus(configuration.sharding_total_count).next().is_some() {
        return false;
    }
    let owned = |item: Item| {
        let owner = view.item(item).and_then(|item| item.owner.as_ref());
        owner.is_some_and(|owner| available.contains(&owner.instance))
    };
    let exists = |item: Item| view.item(item).is_some_and(|item| item.exists);
    match settings.strategy {
        _ if configuration.static_sharding && view.items().next().is_some() => settings.items().all(exists),
        ShardingStrategy::SingleShardingBalance => !members_change && settings.items().all(owned),
        ShardingStrategy::AvgAllocation
        | ShardingStrategy::Odevity
        | ShardingStrategy::RoundRobin
        | ShardingStrategy::ConsistentHash => false,
    }
}

impl Reservations {
    /// The reservations of a leader that has just begun to look.
    fn of(view: &JobView, fleet: &FleetView, grace: Duration) -> Self {
        let mut reservations = Self::default();
        reservations.look(view, fleet, grace, Duration::ZERO);
        reservations
    }
}
