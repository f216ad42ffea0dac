//! Who should own each item in the end, if items change hands one by one; and by the strategy of the job, if all at once.

use std::collections::BTreeMap;

use crate::coordination::job::contract::profile::Profile;
use crate::coordination::job::frame::context::Context;
use crate::coordination::job::ownership::allocation::{self};
use crate::coordination::job::ownership::former_rule;
use crate::coordination::job::ownership::member::{Held, Member, Rule};
use crate::coordination::job::ownership::reservation::Absences;
use crate::coordination::job::picture::fleet_view::FleetView;
use crate::coordination::job::picture::job_view::JobView;
use crate::coordination::job::picture::settings::Settings;
use crate::coordination::time::Now;
use crate::elasticjob::{java, rendezvous, strategy};
use crate::job::{InstanceId, Item, ShardingStrategy};

/// Who should own each item, if items change hands gently.
fn work_out(
    view: &JobView,
    fleet: &FleetView,
    absences: &Absences,
    settings: &Settings,
    now: Now,
) -> Vec<InstanceId> {
    let mut there = view.available();
    let leaving = |id: &InstanceId| fleet.member(id).is_some_and(|member| member.profile.leaving);
    if !there.iter().all(leaving) {
        there.retain(|id| !leaving(id));
    }
    if there.is_empty() {
        return there;
    }
    // An instance without a stream keeps its items, and gets no new ones, which nobody would execute.
    let is_away = |id: &InstanceId| fleet.member(id).is_some_and(|member| member.profile.away);
    let (mut away, mut present): (Vec<_>, Vec<_>) = there.into_iter().partition(is_away);
    if present.is_empty() {
        // Every item has an owner all the same.
        present = std::mem::take(&mut away);
    }
    let there = present;
    let mut everybody: Vec<_> = there.iter().chain(&away).chain(absences.away(view)).cloned().collect();
    java::sort_descending(&mut everybody);
    let places: BTreeMap<_, _> = everybody.iter().zip(0..).collect();
    let member = |id: &InstanceId| {
        let Profile { weight, labels, .. } = fleet.profile(id).cloned().unwrap_or_default();
        let absent = away.contains(id) || !view.instances().contains_key(id);
        let draw = rendezvous::draw(&settings.configuration.job_name, rendezvous::member_name(id));
        Member { weight, labels, draw, absent }
    };
    let members: Vec<_> = everybody.iter().map(member).collect();
    let place = |id: &InstanceId| {
        let id = if view.instances().contains_key(id) { id } else { absences.stays_with(id)? };
        places.get(id).copied()
    };
    let owner = |item| view.item(item).and_then(|view| view.owner.as_ref());
    let held: Vec<_> = settings
        .items()
        .map(|item| Held {
            owner: owner(item).and_then(|owner| place(&owner.instance)),
            since: owner(item).map_or(0, |owner| owner.token.0),
            label: settings.handoff.item_labels.get(&item).cloned(),
        })
        .collect();
    let rule = former_rule::rule(view, fleet);
    let formerly = rule == Rule::Former && former_rule::begins_as_elasticjob(settings, &held, &members);
    let owners = if settings.names_strategy() || formerly {
        let choose = |ids: &[InstanceId]| -> Vec<usize> {
            owners(settings, ids, rule, now).iter().filter_map(|id| places.get(id).copied()).collect()
        };
        by_strategy(&held, &members, choose(&there), choose(&everybody))
    } else {
        allocation::allocate(&held, &members, rule)
    };
    let stays = |(item, place): (Item, usize)| match members.get(place) {
        // It may be known by another address; the instance that comes back corrects that.
        Some(member) if member.absent => owner(item).map(|owner| owner.instance.clone()),
        Some(_) | None => everybody.get(place).cloned(),
    };
    settings.items().zip(owners).filter_map(stays).collect()
}

/// Who should own each item by the job's strategy, which was asked without and with those who are away. What is with them
/// stays there; what would go to them stays where it is, or goes to whom the strategy chooses without them.
fn by_strategy(held: &[Held], members: &[Member], without: Vec<usize>, with: Vec<usize>) -> Vec<usize> {
    let is_absent = |place: &usize| members.get(*place).is_some_and(|member| member.absent);
    let choose = |((held, with), without): ((&Held, usize), usize)| match held.owner {
        Some(owner) if is_absent(&owner) => owner,
        owner if is_absent(&with) => owner.unwrap_or(without),
        Some(_) | None => with,
    };
    held.iter().zip(with).zip(without).map(choose).collect()
}

/// Who is to own each item by the job's strategy.
pub(in crate::coordination) fn owners(
    settings: &Settings,
    available: &[InstanceId],
    rule: Rule,
    now: Now,
) -> Vec<InstanceId> {
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

/// The targets that were worked out last.
#[derive(Debug, Default)]
pub(in crate::coordination) struct Targets {
    /// Who should own each item, and for which state of the job that was worked out.
    known: Option<((u64, u64, u64), Vec<InstanceId>)>,
}

impl Targets {
    /// Who should own each item in the end, if items change hands gently.
    pub(in crate::coordination) fn now(&mut self, cx: &Context, absences: &Absences) -> Vec<InstanceId> {
        let state = (cx.view.membership_revision(), cx.fleet.revision(), absences.revision());
        if let Some((known, targets)) = &self.known
            && *known == state
        {
            return targets.clone();
        }
        let Some(settings) = &cx.settings else { return Vec::new() };
        let targets = work_out(&cx.view, &cx.fleet, absences, settings, cx.now);
        self.known = Some((state, targets.clone()));
        targets
    }

    /// Who is to own each item at once: who does, if it is online or waited for; else who should in the end.
    pub(in crate::coordination) fn owners_at_once(
        &mut self,
        cx: &Context,
        absences: &Absences,
    ) -> Vec<InstanceId> {
        let targets = self.now(cx, absences);
        let owner = |(item, target): (u32, &InstanceId)| {
            let owner = cx.view.item(Item(item)).and_then(|view| view.owner.as_ref());
            let online = owner.filter(|owner| {
                cx.view.instances().contains_key(&owner.instance)
                    || absences.stays_with(&owner.instance).is_some()
            });
            online.map_or_else(|| target.clone(), |owner| owner.instance.clone())
        };
        (0..).zip(&targets).map(owner).collect()
    }
}
