//! The messages of the API in a bundle. Pure.
//!
//! Each message is taken apart as a whole, so that a field that is new in the API has to get its form here.

use prost_types::{Duration, Timestamp};
use serde_json::{Value, json};

use crate::bundle::pseudonyms::{Kind, Pseudonyms};
use crate::proto;
use crate::proto::finding_subject::Subject;
use crate::runner::admin::machine::Machine;

/// The facts about the machine, and the name of the clock that its processes share.
pub(super) fn machine(machine: &Machine, boottime: &Option<String>) -> Value {
    let Machine {
        system,
        architecture,
        kernel,
        parallelism,
        time_zones,
        own_time_zones,
        limits,
        control_group,
    } = machine;
    let limit =
        |(name, soft, hard): &(&str, String, String)| json!({ "name": name, "soft": soft, "hard": hard });
    let figure = |(name, content): &(&str, String)| json!({ "name": name, "content": content });
    json!({
        "system": system,
        "architecture": architecture,
        "kernel": kernel,
        "parallelism": parallelism,
        "time_zone_version": time_zones,
        "own_time_zone_version": own_time_zones,
        "boottime_clock": boottime,
        "limits": limits.iter().map(limit).collect::<Vec<_>>(),
        "control_group": control_group.iter().map(figure).collect::<Vec<_>>(),
    })
}

/// The status of a sidecar.
pub(super) fn status(names: &mut Pseudonyms, status: &proto::GetStatusResponse) -> Value {
    let session_state = status.session_state().as_str_name();
    let proto::GetStatusResponse {
        version,
        api_level,
        namespace,
        registry,
        session_state: _,
        session_id,
        session_timeout,
        remaining_lease,
        trouble,
        draining,
        instances,
        log_filter,
        log_filter_until,
        runtime_stall,
    } = status.clone();
    let instance = |instance: proto::AttachedInstance| {
        let proto::AttachedInstance { job_name, instance_id } = instance;
        json!({ "job_name": names.name(Kind::Job, &job_name), "instance_id": names.instance(&instance_id) })
    };
    let instances: Vec<_> = instances.into_iter().map(instance).collect();
    json!({
        "version": version,
        "api_level": api_level,
        "namespace": names.name(Kind::Namespace, &namespace),
        "registry": names.text(&registry),
        "session_state": session_state,
        "session_id": session_id,
        "session_timeout": session_timeout.map(duration),
        "remaining_lease": remaining_lease.map(duration),
        "trouble": names.text(&trouble),
        "draining": draining,
        "instances": instances,
        "log_filter": names.text(&log_filter),
        "log_filter_until": log_filter_until.and_then(instant),
        "runtime_stall": runtime_stall.map(duration),
    })
}

/// The explanation of a job.
pub(super) fn explanation(names: &mut Pseudonyms, explained: proto::ExplainJobResponse) -> Value {
    let proto::ExplainJobResponse {
        as_of,
        items,
        findings,
        sharding_total_count,
        instance_count,
        java_instance_count,
        leader_instance_id,
        next_fire_time,
    } = explained;
    json!({
        "as_of": as_of.and_then(instant),
        "sharding_total_count": sharding_total_count,
        "instance_count": instance_count,
        "java_instance_count": java_instance_count,
        "leader_instance_id": names.instance(&leader_instance_id),
        "next_fire_time": next_fire_time.and_then(instant),
        "findings": findings.into_iter().map(|one| finding(names, one)).collect::<Vec<_>>(),
        "items": items.into_iter().map(|one| item(names, one)).collect::<Vec<_>>(),
    })
}

fn item(names: &mut Pseudonyms, explained: proto::ItemExplanation) -> Value {
    let verdict = explained.verdict().as_str_name();
    let proto::ItemExplanation {
        item,
        verdict: _,
        because,
        instance_id,
        running,
        running_since,
        last_execution: last,
    } = explained;
    json!({
        "item": item,
        "verdict": verdict,
        "instance_id": names.instance(&instance_id),
        "running": running,
        "running_since": running_since.and_then(instant),
        "last_execution": last.map(|last| last_execution(names, last)),
        "because": because.into_iter().map(|one| finding(names, one)).collect::<Vec<_>>(),
    })
}

fn last_execution(names: &mut Pseudonyms, last: proto::LastExecution) -> Value {
    let outcome = last.outcome().as_str_name();
    let proto::LastExecution { outcome: _, times_in_a_row, since, at, message, last_success_time } = last;
    json!({
        "outcome": outcome,
        "times_in_a_row": times_in_a_row,
        "since": since.and_then(instant),
        "at": at.and_then(instant),
        "message": names.text(&message),
        "last_success_time": last_success_time.and_then(instant),
    })
}

/// A check.
pub(super) fn check(names: &mut Pseudonyms, checked: proto::CheckDeploymentResponse) -> Value {
    let outcome = checked.outcome().as_str_name();
    let proto::CheckDeploymentResponse { category, check, expects, outcome: _, findings, jobs_checked } =
        checked;
    if let Some(count) = jobs_checked {
        return json!({ "jobs_checked": count });
    }
    let check = if category == "jobs" { names.name(Kind::Job, &check) } else { check };
    json!({
        "category": category,
        "check": check,
        "expects": expects,
        "outcome": outcome,
        "findings": findings.into_iter().map(|one| finding(names, one)).collect::<Vec<_>>(),
    })
}

fn finding(names: &mut Pseudonyms, found: proto::Finding) -> Value {
    let severity = found.severity().as_str_name();
    let proto::Finding { code, severity: _, subject, message, remedy, paths, since, anchor } = found;
    let subject = match subject.and_then(|subject| subject.subject) {
        Some(Subject::JobName(job)) => json!({ "job_name": names.name(Kind::Job, &job) }),
        Some(Subject::Item(item)) => json!({ "item": item }),
        Some(Subject::InstanceId(id)) => json!({ "instance_id": names.instance(&id) }),
        Some(Subject::ServerIp(ip)) => json!({ "server_ip": names.address(&ip) }),
        None => Value::Null,
    };
    json!({
        "code": code,
        "severity": severity,
        "subject": subject,
        "message": names.text(&message),
        "remedy": names.text(&remedy),
        "paths": paths.iter().map(|path| names.text(path)).collect::<Vec<_>>(),
        "since": since.and_then(instant),
        "anchor": anchor,
    })
}

/// In seconds, with a fraction.
fn duration(duration: Duration) -> String {
    std::time::Duration::try_from(duration)
        .map_or_else(|_| "negative".to_owned(), |duration| format!("{:.3}s", duration.as_secs_f64()))
}

fn instant(time: Timestamp) -> Option<String> {
    jiff::Timestamp::new(time.seconds, time.nanos).ok().map(|time| time.to_string())
}
