//! Sidekeeper's keys in `props`: all begin with `sidekeeper.`. Java peers keep and ignore them. Pure.

use crate::elasticjob::field_error::FieldError;
use crate::excerpt::Excerpt;
use crate::extension::strategy::STRATEGY_PROPERTY;
use crate::extension::{execution_policy, handoff_policy, item_lock, once_listener, reattach_grace, removal};
use crate::job::ShardingStrategy;

/// The beginning of these keys.
const PREFIX: &str = "sidekeeper.";

/// All keys, in the order in which an error lists them.
const PROPERTIES: [&str; 22] = [
    STRATEGY_PROPERTY,
    once_listener::ENABLED_PROPERTY,
    once_listener::STARTED_PROPERTY,
    once_listener::COMPLETED_PROPERTY,
    execution_policy::TIMEOUT_PROPERTY,
    execution_policy::CANCEL_GRACE_PROPERTY,
    execution_policy::RETRY_ATTEMPTS_PROPERTY,
    execution_policy::RETRY_BACKOFF_PROPERTY,
    execution_policy::RETRY_BACKOFF_MAX_PROPERTY,
    execution_policy::RETRY_ON_PROPERTY,
    handoff_policy::HANDOFF_PROPERTY,
    handoff_policy::DEADLINE_PROPERTY,
    handoff_policy::SETTLING_PROPERTY,
    handoff_policy::OWNERSHIP_PROPERTY,
    handoff_policy::ITEM_LABELS_PROPERTY,
    reattach_grace::PROPERTY,
    item_lock::LOCK_PROPERTY,
    item_lock::TIMEOUT_PROPERTY,
    removal::STALE_SERVERS.after,
    removal::STALE_SERVERS.beside_java,
    removal::FINISHED_JOBS.after,
    removal::FINISHED_JOBS.beside_java,
];

/// Whether a key of `props` is one of Sidekeeper's.
pub fn is_known(key: &str) -> bool {
    PROPERTIES.contains(&key)
}

/// Checks a key of `props` and its value. Keys of others pass.
pub fn check(key: &str, value: &str) -> Result<(), FieldError> {
    if !key.starts_with(PREFIX) {
        return Ok(());
    }
    if !PROPERTIES.contains(&key) {
        let allowed = format!("keys that begin with `{PREFIX}` are Sidekeeper's: {}", PROPERTIES.join(", "));
        return Err(FieldError::new("props", key, &allowed));
    }
    let is_own_strategy = || ShardingStrategy::from_type(value) == Some(ShardingStrategy::ConsistentHash);
    let checked = match key {
        STRATEGY_PROPERTY if !is_own_strategy() => {
            Err("`CONSISTENT_HASH`; all other strategies go into `jobShardingStrategyType`")
        }
        _ => once_listener::check(key, value)
            .and_then(|()| execution_policy::check(key, value))
            .and_then(|()| handoff_policy::check(key, value))
            .and_then(|()| reattach_grace::check(key, value))
            .and_then(|()| item_lock::check(key, value))
            .and_then(|()| removal::check(key, value)),
    };
    checked.map_err(|allowed| FieldError::new(&format!("props[{}]", Excerpt::of(key)), value, allowed))
}
