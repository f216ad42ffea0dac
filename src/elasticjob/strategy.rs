//! Which instance gets which items: ElasticJob's sharding strategies and our consistent hashing. Pure.
//!
//! Source: protocol 5. The kernel hands in the instances in descending order of their ids (protocol 0.2); the order
//! of the result is the order of the creates in the sharding transaction. Every function costs O(total + instances),
//! consistent hashing O(total x instances).

use std::cmp::Reverse;
use std::fmt;

use crate::elasticjob::{java, rendezvous};
use crate::job::{InstanceId, Item, JobConfiguration, JobName, ShardingStrategy};

/// The key in `props` under which a job names a strategy that Java peers do not have. They keep and ignore it, and
/// shard by `jobShardingStrategyType` when one of them leads.
pub const STRATEGY_PROPERTY: &str = "sidekeeper.sharding-strategy";

/// Instances with their items, in the order of the sharding transaction.
pub type Allocation = Vec<(InstanceId, Vec<Item>)>;

/// The hash of the article's strategy is taken modulo this.
const ARTICLE_HASH_SPACE: usize = 100;

impl ShardingStrategy {
    /// All of them, in the order in which error texts list them.
    pub const ALL: [Self; 5] = [
        Self::AvgAllocation,
        Self::Odevity,
        Self::RoundRobin,
        Self::SingleShardingBalance,
        Self::ConsistentHash,
    ];

    /// The strategy of this type name; case does not matter (protocol 5). `None` if there is none.
    pub fn from_type(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|strategy| strategy.type_name().eq_ignore_ascii_case(text))
    }

    /// The type name as configurations spell it.
    pub const fn type_name(self) -> &'static str {
        match self {
            Self::AvgAllocation => "AVG_ALLOCATION",
            Self::Odevity => "ODEVITY",
            Self::RoundRobin => "ROUND_ROBIN",
            Self::SingleShardingBalance => "SINGLE_SHARDING_BALANCE",
            Self::ConsistentHash => "CONSISTENT_HASH",
        }
    }

    /// All type names for error texts.
    pub fn type_names() -> String {
        Self::ALL.map(|strategy| format!("`{}`", strategy.type_name())).join(", ")
    }
}

impl fmt::Display for ShardingStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.type_name())
    }
}

/// Where Java throws instead of allocating. The sharding transaction is then never made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StrategyError {
    /// The strategy rotates by a remainder, and there is no instance to divide by.
    #[error("there is no instance, and the strategy divides by their number (Java: ArithmeticException)")]
    NoInstances,
    /// The strategy computed an index outside of the list of instances.
    #[error("index {index} is not one of {instances} instances (Java: IndexOutOfBoundsException)")]
    IndexOutOfBounds {
        /// The computed index.
        index: i64,
        /// How many instances there are.
        instances: usize,
    },
}

impl StrategyError {
    /// The simple name of the exception that Java throws.
    pub fn java_exception(self) -> &'static str {
        match self {
            Self::NoInstances => "ArithmeticException",
            Self::IndexOutOfBounds { .. } => "IndexOutOfBoundsException",
        }
    }
}

/// Divides the items 0 to `total` - 1 among `instances`. Never fails.
///
/// Equal to Java wherever Java gives a result. Where Java throws: without instances the result is empty; the one
/// hash whose absolute value is negative (protocol 5.3) rotates by its Euclidean remainder.
/// [`ShardingStrategy::ConsistentHash`] gives each item to the instance that ranks first for it ([`rendezvous`]), and leaves
/// out instances without items.
pub fn allocate(
    strategy: ShardingStrategy,
    job: &JobName,
    total: u32,
    instances: &[InstanceId],
    now_ms: i64,
) -> Allocation {
    match strategy {
        ShardingStrategy::AvgAllocation => average(instances.to_vec(), total),
        ShardingStrategy::Odevity => average(by_parity(instances, job), total),
        ShardingStrategy::RoundRobin | ShardingStrategy::SingleShardingBalance => {
            let number = rotation_number(strategy, job, now_ms);
            let count = i64::try_from(instances.len()).unwrap_or(i64::MAX);
            let offset = i64::from(number.wrapping_abs()).checked_rem_euclid(count).unwrap_or(0);
            average(rotated(instances, usize::try_from(offset).unwrap_or(0)), total)
        }
        ShardingStrategy::ConsistentHash => consistent_hash(job, total, instances),
    }
}

/// Divides the items exactly as a Java leader does, which includes throwing (protocol 5.3, 5.4).
///
/// Java has no [`ShardingStrategy::ConsistentHash`]; for it this equals [`allocate`].
pub fn allocate_as_java(
    strategy: ShardingStrategy,
    job: &JobName,
    total: u32,
    instances: &[InstanceId],
    now_ms: i64,
) -> Result<Allocation, StrategyError> {
    match strategy {
        ShardingStrategy::RoundRobin | ShardingStrategy::SingleShardingBalance => {
            let offset = rotation_offset(strategy, job, instances.len(), now_ms)?;
            let offset = usize::try_from(offset).map_err(|_| StrategyError::IndexOutOfBounds {
                index: offset.into(),
                instances: instances.len(),
            })?;
            Ok(average(rotated(instances, offset), total))
        }
        ShardingStrategy::AvgAllocation | ShardingStrategy::Odevity | ShardingStrategy::ConsistentHash => {
            Ok(allocate(strategy, job, total, instances, now_ms))
        }
    }
}

/// By how many places a Java leader rotates the list to the left; negative for the one hash whose absolute value
/// is. Zero for strategies that do not rotate.
pub fn rotation_offset(
    strategy: ShardingStrategy,
    job: &JobName,
    instances: usize,
    now_ms: i64,
) -> Result<i32, StrategyError> {
    let number = rotation_number(strategy, job, now_ms);
    let count = i32::try_from(instances).unwrap_or(i32::MAX);
    java::remainder(number.wrapping_abs(), count).ok_or(StrategyError::NoInstances)
}

/// The article's strategy exactly as printed there (protocol 5.6), for comparison only: it throws for some hashes,
/// and gives nothing at all for more than 100 instances.
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

/// The article's strategy in the variant that is total, `floor(hash * instances / 100)` (protocol 5.6). Earlier
/// versions had it as [`ShardingStrategy::ConsistentHash`]; only for fleets with a sidecar of such a version
/// (`coordination/job/ownership/former_rule.rs`).
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

/// The strategy that shards this job when we lead, and what is wrong with the one that is configured.
///
/// [`STRATEGY_PROPERTY`] goes first. Unknown types fall back to `AVG_ALLOCATION`, as Java leaders do (protocol 5).
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

/// Moves a strategy of ours from the type, where people write it, to [`STRATEGY_PROPERTY`], where Java peers do not
/// stumble over it.
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

fn rotation_number(strategy: ShardingStrategy, job: &JobName, now_ms: i64) -> i32 {
    let hash = java::hash_code(job.as_str());
    match strategy {
        ShardingStrategy::RoundRobin => hash,
        ShardingStrategy::SingleShardingBalance => hash.wrapping_add(java::int_of_long(now_ms)),
        ShardingStrategy::AvgAllocation | ShardingStrategy::Odevity | ShardingStrategy::ConsistentHash => 0,
    }
}

/// An even hash reverses the list (protocol 5.2).
fn by_parity(instances: &[InstanceId], job: &JobName) -> Vec<InstanceId> {
    let mut order = instances.to_vec();
    if java::hash_code(job.as_str()) % 2 == 0 {
        order.reverse();
    }
    order
}

fn rotated(instances: &[InstanceId], offset: usize) -> Vec<InstanceId> {
    let (front, back) = instances.split_at_checked(offset).unwrap_or((instances, &[]));
    back.iter().chain(front).cloned().collect()
}

/// Equal runs in order, then one of the remaining items for each of the first instances (protocol 5.1).
fn average(order: Vec<InstanceId>, total: u32) -> Allocation {
    let Ok(count) = u32::try_from(order.len()) else { return Vec::new() };
    let (Some(run), Some(rest)) = (total.checked_div(count), total.checked_rem(count)) else {
        return Vec::new();
    };
    let first_remaining = total - rest;
    order
        .into_iter()
        .zip(0_u32..)
        .map(|(instance, k)| {
            let mut items: Vec<Item> = (k * run..(k + 1) * run).map(Item).collect();
            if k < rest {
                items.push(Item(first_remaining + k));
            }
            (instance, items)
        })
        .collect()
}

fn consistent_hash(job: &JobName, total: u32, instances: &[InstanceId]) -> Allocation {
    let mut buckets = Buckets::new(instances);
    let members: Vec<_> = instances.iter().map(rendezvous::member_name).collect();
    for item in (0..total).map(Item) {
        let draw = rendezvous::draws_for_item(job, item);
        // Of several that have drawn the same, the first.
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

/// Items by instance, where the instance that got an item first comes first (Java: a map in insertion order).
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
    fn every_item_is_allocated_once_whatever_the_strategy() {
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
    fn without_instances_nothing_is_allocated_and_java_throws_when_it_rotates() {
        for strategy in ShardingStrategy::ALL {
            assert_eq!(allocate(strategy, &job("a"), 3, &[], 0), []);
        }
        let thrown = allocate_as_java(ShardingStrategy::SingleShardingBalance, &job("a"), 3, &[], 0);
        assert_eq!(thrown, Err(StrategyError::NoInstances));
        assert_eq!(allocate_as_java(ShardingStrategy::Odevity, &job("a"), 3, &[], 0), Ok(vec![]));
    }

    #[test]
    fn the_article_gives_nothing_beyond_a_hundred_instances() {
        assert_eq!(consistent_hash_article(&job("demoJob"), 3, &instances(101)), Ok(vec![]));
        assert_eq!(consistent_hash_former(&job("demoJob"), 3, &instances(101)).len(), 3);
    }

    #[test]
    fn types_are_found_whatever_their_case() {
        assert_eq!(ShardingStrategy::from_type("round_Robin"), Some(ShardingStrategy::RoundRobin));
        assert_eq!(ShardingStrategy::from_type("ROUND ROBIN"), None);
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
