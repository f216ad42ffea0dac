//! ElasticJob's sharding strategies: they allocate items to instances. Pure.
//!
//! Source: protocol 5. The core passes the instances in descending order of their ids (protocol 0.2). The
//! order of the result is the order of the creates in the sharding transaction. Every function costs
//! O(total + instances).

use std::fmt;

use crate::elasticjob::java;
use crate::job::{InstanceId, Item, JobName, ShardingStrategy};

/// Instances with their items, in the order of the sharding transaction.
pub type Allocation = Vec<(InstanceId, Vec<Item>)>;

impl ShardingStrategy {
    /// All strategies, in the order in which error texts list them.
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

/// Why Java throws instead of allocating. Java then never makes the sharding transaction.
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

/// Allocates the items 0 to `total` - 1 to `instances`. Never fails.
///
/// The result is Java's wherever Java has one. Where Java throws: without instances the result is empty; the
/// one hash whose absolute value is negative (protocol 5.3) rotates by its Euclidean remainder. ElasticJob
/// does not have [`ShardingStrategy::ConsistentHash`]: for it the result is empty.
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
        ShardingStrategy::ConsistentHash => Vec::new(),
    }
}

/// Allocates the items exactly as a Java leader does, including the exceptions (protocol 5.3, 5.4).
///
/// For [`ShardingStrategy::ConsistentHash`] the result is empty, as that of [`allocate`].
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

/// By how many places a Java leader rotates the list to the left. Negative for the one hash whose absolute
/// value is negative. Zero for strategies that do not rotate.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str) -> JobName {
        JobName::parse(name).unwrap()
    }

    #[test]
    fn without_instances_java_throws_when_it_rotates() {
        let thrown = allocate_as_java(ShardingStrategy::SingleShardingBalance, &job("a"), 3, &[], 0);
        assert_eq!(thrown, Err(StrategyError::NoInstances));
        assert_eq!(allocate_as_java(ShardingStrategy::Odevity, &job("a"), 3, &[], 0), Ok(vec![]));
    }

    #[test]
    fn the_case_of_a_type_does_not_matter() {
        assert_eq!(ShardingStrategy::from_type("round_Robin"), Some(ShardingStrategy::RoundRobin));
        assert_eq!(ShardingStrategy::from_type("ROUND ROBIN"), None);
    }
}
