//! The state of a job as JSON: the fields of the proto under their names, instants in RFC 3339, durations as
//! text like `10s`, absent fields as null. Pure.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::proto::{
    InstanceStatus, ItemLockWait, ItemStatus, JobConfiguration, LastExecution, Problem,
    WatchAssignmentsResponse,
};

/// One object with the whole state.
pub(super) fn json(state: &WatchAssignmentsResponse) -> Value {
    let WatchAssignmentsResponse {
        job_name,
        configuration,
        generation,
        instances,
        items,
        resharding,
        next_fire_time,
        problems,
        handoff_mode: _,
        handoff_mode_reason,
        parameters_hidden,
    } = state;
    json!({
        "job_name": job_name,
        "configuration": configuration.as_ref().map(job_configuration),
        "generation": generation,
        "instances": instances.iter().map(instance).collect::<Vec<_>>(),
        "items": items.iter().map(item).collect::<Vec<_>>(),
        "resharding": resharding,
        "next_fire_time": next_fire_time.as_ref().and_then(instant),
        "handoff_mode": state.handoff_mode().as_str_name(),
        "handoff_mode_reason": handoff_mode_reason,
        "parameters_hidden": parameters_hidden,
        "problems": problems.iter().map(problem).collect::<Vec<_>>(),
    })
}

pub(in crate::cli) fn instance(instance: &InstanceStatus) -> Value {
    let InstanceStatus { instance_id, server_ip, enabled, leader } = instance;
    json!({ "instance_id": instance_id, "server_ip": server_ip, "enabled": enabled, "leader": leader })
}

pub(in crate::cli) fn item(status: &ItemStatus) -> Value {
    let ItemStatus {
        item,
        item_parameter,
        instance_id,
        fencing_token,
        running,
        misfire,
        disabled,
        next_instance_id,
        last_execution,
        waiting_for_lock,
        running_since,
    } = status;
    json!({
        "item": item,
        "item_parameter": item_parameter,
        "instance_id": instance_id,
        "fencing_token": fencing_token,
        "running": running,
        "misfire": misfire,
        "disabled": disabled,
        "next_instance_id": next_instance_id,
        "last_execution": last_execution.as_ref().map(self::last_execution),
        "waiting_for_lock": waiting_for_lock.as_ref().map(item_lock_wait),
        "running_since": running_since.as_ref().and_then(instant),
    })
}

pub(in crate::cli) fn last_execution(last: &LastExecution) -> Value {
    let LastExecution { outcome: _, times_in_a_row, since, at, message, last_success_time } = last;
    json!({
        "outcome": last.outcome().as_str_name(),
        "times_in_a_row": times_in_a_row,
        "since": since.as_ref().and_then(instant),
        "at": at.as_ref().and_then(instant),
        "message": message,
        "last_success_time": last_success_time.as_ref().and_then(instant),
    })
}

fn item_lock_wait(waiting: &ItemLockWait) -> Value {
    let ItemLockWait { lock_name, holder, since } = waiting;
    json!({ "lock_name": lock_name, "holder": holder, "since": since.as_ref().and_then(instant) })
}

pub(in crate::cli) fn problem(problem: &Problem) -> Value {
    let Problem { path, message, code } = problem;
    json!({ "path": path, "message": message, "code": code })
}

pub(in crate::cli) fn job_configuration(configuration: &JobConfiguration) -> Value {
    let c = configuration;
    json!({
        "sharding_total_count": c.sharding_total_count,
        "cron": c.cron,
        "time_zone": c.time_zone,
        "sharding_item_parameters": c.sharding_item_parameters,
        "job_parameter": c.job_parameter,
        "monitor_execution": c.monitor_execution,
        "failover": c.failover,
        "misfire": c.misfire,
        "max_time_diff": c.max_time_diff.as_ref().map(duration),
        "reconcile_interval": c.reconcile_interval.as_ref().map(duration),
        "job_sharding_strategy_type": c.job_sharding_strategy_type,
        "static_sharding": c.static_sharding,
        "disabled": c.disabled,
        "overwrite": c.overwrite,
        "job_class": c.job_class,
        "description": c.description,
        "label": c.label,
        "props": c.props.iter().collect::<std::collections::BTreeMap<_, _>>(),
        "job_error_handler_type": c.job_error_handler_type,
        "job_executor_thread_pool_size_provider_type": c.job_executor_thread_pool_size_provider_type,
        "job_listener_types": c.job_listener_types,
    })
}

pub(in crate::cli) fn instant(time: &prost_types::Timestamp) -> Option<String> {
    Timestamp::new(time.seconds, time.nanos).ok().map(|time| time.to_string())
}

pub(in crate::cli) fn duration(duration: &prost_types::Duration) -> String {
    duration.to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message as _;

    use super::*;
    use crate::proto::DESCRIPTOR_SET;

    fn full() -> WatchAssignmentsResponse {
        WatchAssignmentsResponse {
            job_name: "orderSync".to_owned(),
            configuration: Some(JobConfiguration {
                sharding_total_count: 1,
                max_time_diff: Some(prost_types::Duration { seconds: 90, nanos: 500_000_000 }),
                ..Default::default()
            }),
            generation: 7,
            instances: vec![InstanceStatus::default()],
            items: vec![ItemStatus {
                fencing_token: i64::MAX,
                last_execution: Some(LastExecution::default()),
                waiting_for_lock: Some(ItemLockWait::default()),
                ..Default::default()
            }],
            next_fire_time: Some(prost_types::Timestamp { seconds: 1_767_225_605, nanos: 5_000_000 }),
            problems: vec![Problem::default()],
            ..Default::default()
        }
    }

    #[test]
    fn each_field_of_the_proto_is_there_under_its_name() {
        let set = prost_types::FileDescriptorSet::decode(DESCRIPTOR_SET).unwrap();
        let fields = |message: &str| -> BTreeSet<String> {
            let mut messages = set.file.iter().flat_map(|file| &file.message_type);
            let message = messages.find(|candidate| candidate.name() == message).unwrap();
            message.field.iter().map(|field| field.name().to_owned()).collect()
        };
        let keys =
            |value: &Value| -> BTreeSet<String> { value.as_object().unwrap().keys().cloned().collect() };
        let value = json(&full());
        assert_eq!(keys(&value), fields("WatchAssignmentsResponse"));
        assert_eq!(keys(&value["configuration"]), fields("JobConfiguration"));
        assert_eq!(keys(&value["instances"][0]), fields("InstanceStatus"));
        assert_eq!(keys(&value["items"][0]), fields("ItemStatus"));
        assert_eq!(keys(&value["items"][0]["last_execution"]), fields("LastExecution"));
        assert_eq!(keys(&value["items"][0]["waiting_for_lock"]), fields("ItemLockWait"));
        assert_eq!(keys(&value["problems"][0]), fields("Problem"));
    }

    #[test]
    fn values_are_as_documented() {
        let value = json(&full());
        assert_eq!(value["next_fire_time"], "2026-01-01T00:00:05.005Z");
        assert_eq!(value["configuration"]["max_time_diff"], "90.500s");
        assert_eq!(value["items"][0]["fencing_token"], i64::MAX);
        assert_eq!(value["items"][0]["item_parameter"], Value::Null);
        assert!(!value.to_string().contains('\n'));
    }
}
