//! Sidekeeper's own sharding strategy, consistent hashing, and the property that selects it. Pure.
//!
//! Consistent hashing costs O(total x instances).

use std::cmp::Reverse;

use crate::elasticjob::strategy::{self, Allocation, StrategyError};
use crate::extension::rendezvous;
use crate::job::{InstanceId, Item, JobConfiguration, JobName, ShardingStrategy};

/// The key in `props` under which a job names a strategy that Java peers do not have. Java peers keep and
/// ignore the key. They use `jobShardingStrategyType` when one of them leads.
pub const STRATEGY_PROPERTY: &str = "sidekeeper.sharding-strategy";

/// The modulus of the article's hash.
const ARTICLE_HASH_SPACE: usize = 100;

/// Allocates the items 0 to `total` - 1 to `instances`, with any strategy. Never fails.
///
/// [`ShardingStrategy::ConsistentHash`] gives each item to the instance that ranks first for it
/// ([`rendezvous`]), and leaves out instances without items. The other strategies are ElasticJob's
/// ([`strategy::allocate`]).
pub fn allocate(
    strategy: ShardingStrategy,
    job: &JobName,
    total: u32,
    instances: &[InstanceId],
    now_ms: i64,
) -> Allocation {
    match strategy {
        ShardingStrategy::ConsistentHash => consistent_hash(job, total, instances),
        ShardingStrategy::AvgAllocation
        | ShardingStrategy::Odevity
        | ShardingStrategy::RoundRobin
        | ShardingStrategy::SingleShardingBalance => {
            strategy::allocate(strategy, job, total, instances, now_ms)
        }
    }
}

/// The article's strategy exactly as printed (protocol 5.6), for comparison only. It throws for some hashes,
/// and allocates nothing for more than 100 instances.
pub fn consistent_hash_article(
    job: &JobName,
    total: u32,
    instances: &[InstanceId],
) -> Result<Allocation, StrategyError> {
    let Some(gap) = ARTICLE_HASH_SPACE.checked_div(instances.len()).filter(|gap| *gap > 0) else {
        return Ok(Vec::new());
    };
    let mut buckets = Buckets::new(instances);
    for (item, hash) in article_hashes(job, total) {
        let index = hash.checked_div(gap).unwrap_or(0);
        let out_of_bounds = |index| StrategyError::IndexOutOfBounds { index, instances: instances.len() };
        let index = if hash + 1 == ARTICLE_HASH_SPACE {
            index.checked_sub(1).ok_or_else(|| out_of_bounds(-1))?
        } else {
            index
        };
        if !buckets.add(index, item) {
            return Err(out_of_bounds(i64::try_from(index).unwrap_or(i64::MAX)));
        }
    }
    Ok(buckets.into_allocation())
}

/// The variant of the article's strategy that never throws, `floor(hash * instances / 100)` (protocol 5.6).
/// Earlier versions used it as [`ShardingStrategy::ConsistentHash`]. It is only for fleets with a sidecar of
/// such a version (`coordination/job/ownership/allocation/former_rule.rs`).
pub fn consistent_hash_former(job: &JobName, total: u32, instances: &[InstanceId]) -> Allocation {
    let mut buckets = Buckets::new(instances);
    for (item, hash) in article_hashes(job, total) {
        // Always below the number of instances, because the hash is below the hash space.
        buckets.add(hash.saturating_mul(instances.len()) / ARTICLE_HASH_SPACE, item);
    }
    buckets.into_allocation()
}

/// The article's hash of each item: the sum of the distances of the characters of job name and item from `0`,
/// modulo 100.
pub fn article_hashes(job: &JobName, total: u32) -> impl Iterator<Item = (Item, usize)> {
    let job = distance_from_zero(job.as_str());
    (0..total)
        .map(move |item| (Item(item), (job + distance_from_zero(&item.to_string())) % ARTICLE_HASH_SPACE))
}

/// The strategy with which this sidecar shards the job when it leads, and the problem of the configured
/// strategy.
///
/// [`STRATEGY_PROPERTY`] goes first. Unknown types become `AVG_ALLOCATION`, as with Java leaders (protocol
/// 5).
pub fn effective_strategy(configuration: &JobConfiguration) -> (ShardingStrategy, Option<String>) {
    let mut problem = None;
    if let Some(text) = configuration.props.get(STRATEGY_PROPERTY) {
        match ShardingStrategy::from_type(text) {
            Some(ShardingStrategy::ConsistentHash) => return (ShardingStrategy::ConsistentHash, None),
            _ => {
                problem = Some(format!(
                    "props `{STRATEGY_PROPERTY}` is `{text}` and is ignored; allowed is `CONSISTENT_HASH`, all \
                     other strategies go into `jobShardingStrategyType`"
                ));
            }
        }
    }
    let Some(text) = configuration.job_sharding_strategy_type.as_deref().filter(|text| !text.is_empty())
    else {
        return (ShardingStrategy::AvgAllocation, problem);
    };
    match ShardingStrategy::from_type(text) {
        Some(ShardingStrategy::ConsistentHash) => {
            let advice = format!(
                "jobShardingStrategyType is `{text}`, which Java peers do not have; set props \
                 `{STRATEGY_PROPERTY}` instead"
            );
            (ShardingStrategy::ConsistentHash, Some(advice))
        }
        Some(strategy) => (strategy, problem),
        None => {
            let fallback = format!(
                "jobShardingStrategyType is `{text}`, which is unknown; AVG_ALLOCATION is used instead; allowed: {}",
                ShardingStrategy::type_names()
            );
            (ShardingStrategy::AvgAllocation, Some(fallback))
        }
    }
}

/// Moves Sidekeeper's strategy from the type, where people write it, to [`STRATEGY_PROPERTY`]. Java peers
/// would not know the type.
pub fn move_own_strategy(configuration: &mut JobConfiguration) {
    let given = configuration.job_sharding_strategy_type.take();
    match given.as_deref().and_then(ShardingStrategy::from_type) {
        Some(ShardingStrategy::ConsistentHash) => {
            let own = ShardingStrategy::ConsistentHash.type_name().to_owned();
            configuration.props.insert(STRATEGY_PROPERTY.to_owned(), own);
        }
        _ => configuration.job_sharding_strategy_type = given,
    }
}

fn consistent_hash(job: &JobName, total: u32, instances: &[InstanceId]) -> Allocation {
    let mut buckets = Buckets::new(instances);
    let members: Vec<_> = instances.iter().map(rendezvous::member_name).collect();
    for item in (0..total).map(Item) {
        let draw = rendezvous::draws_for_item(job, item);
        // Of several members with the same draw, the first.
        let first = members.iter().enumerate().min_by_key(|(_, member)| Reverse(draw(member)));
        if let Some((index, _)) = first {
            buckets.add(index, item);
        }
    }
    buckets.into_allocation()
}

fn distance_from_zero(text: &str) -> usize {
    text.encode_utf16().map(|unit| usize::from(unit.abs_diff(u16::from(b'0')))).sum()
}

/// Items by instance. The instance that got an item first comes first (Java: a map in insertion order).
struct Buckets<'a> {
    slots: Vec<(&'a InstanceId, Vec<Item>)>,
    order: Vec<usize>,
}

impl<'a> Buckets<'a> {
    fn new(instances: &'a [InstanceId]) -> Self {
        Self { slots: instances.iter().map(|instance| (instance, Vec::new())).collect(), order: Vec::new() }
    }

    /// Whether there is an instance with this index.
    fn add(&mut self, index: usize, item: Item) -> bool {
        let Some((_, items)) = self.slots.get_mut(index) else { return false };
        if items.is_empty() {
            self.order.push(index);
        }
        items.push(item);
        true
    }

    fn into_allocation(mut self) -> Allocation {
        let mut allocation = Vec::with_capacity(self.order.len());
        for index in self.order {
            if let Some((instance, items)) = self.slots.get_mut(index) {
                allocation.push((instance.clone(), std::mem::take(items)));
            }
        }
        allocation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str) -> JobName {
        JobName::parse(name).unwrap()
    }

    fn instances(count: usize) -> Vec<InstanceId> {
        (0..count).map(|n| InstanceId::from_registry(&format!("10.0.0.1@-@{n}"))).collect()
    }

    #[test]
    fn every_strategy_allocates_every_item_once() {
        for strategy in ShardingStrategy::ALL {
            for name in ["demoJob", "polygenelubricants", "jobNaa", "a"] {
                for count in [1, 2, 3, 7, 51, 100, 101, 250] {
                    for now in [0, -1, i64::MAX, 1_700_000_000_000] {
                        let allocation = allocate(strategy, &job(name), 300, &instances(count), now);
                        let mut items: Vec<u32> =
                            allocation.iter().flat_map(|(_, items)| items).map(|item| item.0).collect();
                        items.sort_unstable();
                        assert!(items.iter().copied().eq(0..300), "{strategy} {name} {count} {now}");
                    }
                }
            }
        }
    }

    #[test]
    fn without_instances_nothing_is_allocated() {
        for strategy in ShardingStrategy::ALL {
            assert_eq!(allocate(strategy, &job("a"), 3, &[], 0), []);
        }
    }

    #[test]
    fn the_article_gives_nothing_beyond_a_hundred_instances() {
        assert_eq!(consistent_hash_article(&job("demoJob"), 3, &instances(101)), Ok(vec![]));
        assert_eq!(consistent_hash_former(&job("demoJob"), 3, &instances(101)).len(), 3);
    }

    #[test]
    fn the_property_goes_before_the_type_and_the_unknown_falls_back() {
        let mut configuration = JobConfiguration::new(job("a"), 3);
        assert_eq!(effective_strategy(&configuration), (ShardingStrategy::AvgAllocation, None));

        configuration.job_sharding_strategy_type = Some("odevity".to_owned());
        assert_eq!(effective_strategy(&configuration), (ShardingStrategy::Odevity, None));

        configuration.props.insert(STRATEGY_PROPERTY.to_owned(), "consistent_hash".to_owned());
        assert_eq!(effective_strategy(&configuration), (ShardingStrategy::ConsistentHash, None));

        configuration.props.insert(STRATEGY_PROPERTY.to_owned(), "ROUND_ROBIN".to_owned());
        let (strategy, problem) = effective_strategy(&configuration);
        assert_eq!(strategy, ShardingStrategy::Odevity);
        assert!(problem.unwrap().contains("allowed is `CONSISTENT_HASH`"));

        configuration.props.clear();
        configuration.job_sharding_strategy_type = Some("com.example.Mine".to_owned());
        let (strategy, problem) = effective_strategy(&configuration);
        assert_eq!(strategy, ShardingStrategy::AvgAllocation);
        assert!(problem.unwrap().contains("`com.example.Mine`"));
    }
}
