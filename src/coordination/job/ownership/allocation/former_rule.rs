//! How were items allocated among sidecars before the seats beyond the equal share went to members by rank, and
//! `CONSISTENT_HASH` hashed well?
//!
//! Why the rule is still here: the leader reshards, and any sidecar may lead. If the leaders of a fleet applied two
//! rules, items would move to and fro with each change of the leader. So each sidecar publishes in its profile which
//! rule it knows, and the leader applies the rule that all sidecars know: the former one as long as the profile of one
//! sidecar does not say `rule rendezvous` (`contract/profile.rs`). A problem names that instance. When the last such
//! sidecar has left, each seat moves to the member that ranks first for it, and no other item moves.
//!
//! When the rule can go: with the first release that is not to be in one fleet with sidecars from before 0.1.0. Then
//! go, too, `member::Rule`, `strategy::consistent_hash_former` (its vectors go on with the article's own function), and
//! the problem that [`Outdated`] words.

use std::cmp::Reverse;
use std::fmt;

use crate::elasticjob::strategy::Allocation;
use crate::extension::strategy;
use crate::findings::problem::{Problem, ProblemCode};
use crate::job::{InstanceId, ShardingStrategy};
use crate::mutants::mutant;

use crate::coordination::job::ownership::allocation::{Held, Member, Rule};
use crate::coordination::job::ownership::mode::Mode;
use crate::coordination::job::picture::fleet_view::FleetView;
use crate::coordination::job::picture::job_view::JobView;
use crate::coordination::job::picture::settings::Settings;

/// A sidecar that does not know the present rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outdated<'a>(pub(crate) &'a InstanceId);

impl<'a> Outdated<'a> {
    /// The first outdated instance that is online, or has a name and may return. Java's instances have no profile, and
    /// do not apply these rules; a sidecar without a profile is not known yet.
    pub(crate) fn of(view: &'a JobView, fleet: &'a FleetView) -> Option<Self> {
        let online = fleet.members().map(|(id, member)| (id, &member.profile));
        let online = online.filter(|(id, profile)| !profile.rendezvous && view.instances().contains_key(*id));
        let offline = fleet.names().values().map(|name| (&name.instance, &name.profile));
        let offline = offline.filter(|(id, profile)| !profile.rendezvous && fleet.member(id).is_none());
        online.chain(offline).map(|(id, _)| Self(id)).next().filter(|_| !mutant!(OutdatedOverruled))
    }
}

impl fmt::Display for Outdated<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the sidecar of instance {} is of an earlier version, so items are divided by the rule that it knows, which \
             may put the items of many small jobs on one instance; upgrade it, or end it",
            self.0
        )
    }
}

/// The rule that all sidecars of the job know.
pub(crate) fn rule(view: &JobView, fleet: &FleetView) -> Rule {
    match Outdated::of(view, fleet) {
        Some(_) => Rule::Former,
        None => Rule::Rendezvous,
    }
}

/// The problem that users see while the former rule applies, if it allocates the job's items otherwise than the present
/// rule.
pub(crate) fn problem(view: &JobView, fleet: &FleetView, settings: &Settings) -> Option<Problem> {
    let outdated = Outdated::of(view, fleet)?;
    let one_by_one = !matches!(Mode::of(view, fleet, settings), Mode::AllAtOnce(_));
    let matters =
        settings.strategy == ShardingStrategy::ConsistentHash || (one_by_one && !settings.names_strategy());
    matters.then(|| Problem {
        path: fleet.paths().member(outdated.0),
        message: outdated.to_string(),
        code: ProblemCode::SidecarOutdated,
    })
}

/// The order in which members get a seat beyond their whole parts; each part comes with the fraction that rounding down
/// has taken from it. Members that have more than the whole part now come first.
pub(crate) fn order_of_seats(owners: &[Option<usize>], parts: &[(u64, u64)]) -> Vec<usize> {
    let mut held = vec![0_u64; parts.len()];
    for owner in owners.iter().flatten() {
        if let Some(held) = held.get_mut(*owner) {
            *held += 1;
        }
    }
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|place| {
        let (whole, rest) = parts.get(*place).copied().unwrap_or_default();
        (Reverse(held.get(*place).copied() > Some(whole)), Reverse(rest), *place)
    });
    order
}

/// Whether items are allocated as by a strategy of ElasticJob: the first time, if the members and the configuration
/// allow it.
pub(crate) fn begins_as_elasticjob(settings: &Settings, held: &[Held], members: &[Member]) -> bool {
    let equal = members.windows(2).all(|pair| matches!(pair, [one, other] if one.weight == other.weight));
    equal && settings.handoff.item_labels.is_empty() && held.iter().all(|item| item.owner.is_none())
}

/// Allocates by `CONSISTENT_HASH`.
pub(crate) fn consistent_hash(settings: &Settings, available: &[InstanceId]) -> Allocation {
    let configuration = &settings.configuration;
    strategy::consistent_hash_former(&configuration.job_name, configuration.sharding_total_count, available)
}
