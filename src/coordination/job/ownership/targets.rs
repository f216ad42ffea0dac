//! Which instance should own each item in the end, if items change hands one by one? And which one by the strategy of
//! the job, if all at once?

use std::collections::BTreeMap;

use crate::coordination::job::frame::context::Context;
use crate::coordination::job::ownership::allocation::{self, Held, Member, Rule, former_rule};
use crate::coordination::job::ownership::reservation::Reservations;
use crate::coordination::job::picture::fleet_view::FleetView;
use crate::coordination::job::picture::job_view::JobView;
use crate::coordination::job::picture::settings::Settings;
use crate::coordination::time::Now;
use crate::elasticjob::java;
use crate::extension::profile::Profile;
use crate::extension::{rendezvous, strategy};
use crate::job::{InstanceId, Item, ShardingStrategy};

/// The wanted owner of each item, if items change hands one by one.
pub(super) fn work_out(
    view: &JobView,
    fleet: &FleetView,
    reservations: &Reservations,
    settings: &Settings,
    now: Now,
) -> Vec<InstanceId> {
    let mut online = view.available();
    let leaving = |id: &InstanceId| fleet.member(id).is_some_and(|member| member.profile.leaving);
    if !online.iter().all(leaving) {
        online.retain(|id| !leaving(id));
    }
    if online.is_empty() {
        return online;
    }
    // A detached instance keeps its items, and gets no new ones, which it could not execute.
    let is_detached = |id: &InstanceId| fleet.member(id).is_some_and(|member| member.profile.detached);
    let (mut detached, mut present): (Vec<_>, Vec<_>) = online.into_iter().partition(is_detached);
    if present.is_empty() {
        // Every item has an owner all the same.
        present = std::mem::take(&mut detached);
    }
    let mut all: Vec<_> =
        present.iter().chain(&detached).chain(reservations.offline(view)).cloned().collect();
    java::sort_descending(&mut all);
    let places: BTreeMap<_, _> = all.iter().zip(0..).collect();
    let member = |id: &InstanceId| {
        let Profile { weight, labels, .. } = fleet.profile(id).cloned().unwrap_or_default();
        let draw = rendezvous::draw(&settings.configuration.job_name, rendezvous::member_name(id));
        let member = Member::new(weight, labels, draw);
        if detached.contains(id) || !view.instances().contains_key(id) { member.absent() } else { member }
    };
    let members: Vec<_> = all.iter().map(member).collect();
    let place = |id: &InstanceId| {
        let id = if view.instances().contains_key(id) { id } else { reservations.stays_with(id)? };
        places.get(id).copied()
    };
    let owner = |item| view.item(item).and_then(|view| view.owner.as_ref());
    let held: Vec<_> = settings
        .items()
        .map(|item| {
            let since = owner(item).map_or(0, |owner| owner.token.0);
            let label = settings.handoff.item_labels.get(&item).cloned();
            Held::new(owner(item).and_then(|owner| place(&owner.instance)), since, label)
        })
        .collect();
    let rule = former_rule::rule(view, fleet);
    let formerly = rule == Rule::Former && former_rule::begins_as_elasticjob(settings, &held, &members);
    let owners = if settings.names_strategy() || formerly {
        let choose = |ids: &[InstanceId]| -> Vec<usize> {
            owners(settings, ids, rule, now).iter().filter_map(|id| places.get(id).copied()).collect()
        };
        by_strategy(&held, &members, choose(&present), choose(&all))
    } else {
        allocation::allocate(&held, &members, rule)
    };
    let stays = |(item, place): (Item, usize)| match members.get(place) {
        // The owner may have returned with another address; then its renewal corrects the node.
        Some(member) if member.is_absent() => owner(item).map(|owner| owner.instance.clone()),
        Some(_) | None => all.get(place).cloned(),
    };
    settings.items().zip(owners).filter_map(stays).collect()
}

/// The wanted owners by the job's strategy, which was asked without and with the absent members. Items of absent
/// members stay there; items that would go to them stay where they are, or go to the strategy's choice without them.
fn by_strategy(held: &[Held], members: &[Member], without: Vec<usize>, with: Vec<usize>) -> Vec<usize> {
    let is_absent = |place: &usize| members.get(*place).is_some_and(Member::is_absent);
    let choose = |((held, with), without): ((&Held, usize), usize)| match held.owner() {
        Some(owner) if is_absent(&owner) => owner,
        owner if is_absent(&with) => owner.unwrap_or(without),
        Some(_) | None => with,
    };
    held.iter().zip(with).zip(without).map(choose).collect()
}

/// The wanted owner of each item by the job's strategy.
pub(crate) fn owners(settings: &Settings, available: &[InstanceId], rule: Rule, now: Now) -> Vec<InstanceId> {
    let configuration = &settings.configuration;
    let total = configuration.sharding_total_count;
    let now_ms = now.wall.as_millisecond();
    let shares = match (settings.strategy, rule) {
        (ShardingStrategy::ConsistentHash, Rule::Former) => former_rule::consistent_hash(settings, available),
        (strategy, _) => strategy::allocate(strategy, &configuration.job_name, total, available, now_ms),
    };
    let mut owners: Vec<_> = shares
        .into_iter()
        .flat_map(|(id, items)| items.into_iter().map(move |item| (item, id.clone())))
        .collect();
    owners.sort();
    owners.into_iter().map(|(_, id)| id).collect()
}

/// The targets that were computed last.
#[derive(Debug, Default)]
pub(crate) struct Targets {
    /// The state of the job for which the targets were computed, and the targets.
    known: Option<(State, Vec<InstanceId>)>,
    /// The same for the items that have to change hands.
    moves: Option<(State, BTreeMap<Item, Option<InstanceId>>)>,
}

/// All on which the targets depend.
type State = (u64, u64, u64);

impl Targets {
    fn state(cx: &Context, reservations: &Reservations) -> State {
        (cx.view.membership_revision(), cx.fleet.revision(), reservations.revision())
    }

    /// The wanted owner of each item, if items change hands one by one.
    pub(crate) fn now(&mut self, cx: &Context, reservations: &Reservations) -> Vec<InstanceId> {
        let state = Self::state(cx, reservations);
        if let Some((known, targets)) = &self.known
            && *known == state
        {
            return targets.clone();
        }
        let Some(settings) = &cx.settings else { return Vec::new() };
        let targets = work_out(&cx.view, &cx.fleet, reservations, settings, cx.now);
        self.known = Some((state, targets.clone()));
        targets
    }

    /// The items whose owner is online, and that another instance, or none, should own.
    pub(crate) fn moves(
        &mut self,
        cx: &Context,
        reservations: &Reservations,
    ) -> BTreeMap<Item, Option<InstanceId>> {
        let state = Self::state(cx, reservations);
        if let Some((known, moves)) = &self.moves
            && *known == state
        {
            return moves.clone();
        }
        let targets = self.now(cx, reservations);
        let total = cx.settings.as_ref().map_or(u32::MAX, |s| s.configuration.sharding_total_count);
        let surplus = cx.view.surplus(total).map(|item| (item, None));
        let moves = |(item, target): &(Item, Option<InstanceId>)| {
            let owner = cx.view.online_owner(*item);
            owner.is_some_and(|owner| target.as_ref() != Some(owner))
        };
        let moves: BTreeMap<_, _> =
            (0..).map(Item).zip(targets.into_iter().map(Some)).chain(surplus).filter(moves).collect();
        self.moves = Some((state, moves.clone()));
        moves
    }

    /// The next owner of each item: its owner, if that is online or has a reservation; else the wanted owner.
    pub(crate) fn owners_at_once(&mut self, cx: &Context, reservations: &Reservations) -> Vec<InstanceId> {
        let targets = self.now(cx, reservations);
        let owner = |(item, target): (u32, &InstanceId)| {
            let owner = cx.view.item(Item(item)).and_then(|view| view.owner.as_ref());
            let online = owner.filter(|owner| {
                cx.view.instances().contains_key(&owner.instance)
                    || reservations.stays_with(&owner.instance).is_some()
            });
            online.map_or_else(|| target.clone(), |owner| owner.instance.clone())
        };
        (0..).zip(&targets).map(owner).collect()
    }
}
