//! Plans of what a change would do to the assignment of a job: requests to the domain, and the domain to messages.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::coordination::admin::plan_sharding::{PlannedItem, ShardingPlan, WhatIf};
use crate::elasticjob::field_error::FieldError;
use crate::job::{InstanceId, JobName, SHARDING_TOTAL_COUNT_MAX, ShardingStrategy};
use crate::proto;

use super::convert::InvalidRequest;
use super::event::timestamp;

/// The most instances that may join: more than a job has, and few enough for one answer.
const JOINING_MAX: usize = 1_000;
/// The most instances that may leave.
const LEAVING_MAX: usize = 10_000;
/// The most characters of an id after its address.
const UNIQUE_MAX: usize = 64;

/// The job and the change of a request.
pub fn read(request: &proto::PlanShardingRequest) -> Result<(JobName, WhatIf), InvalidRequest> {
    let mut errors = Vec::new();
    let job = JobName::parse(&request.job_name);
    if let Err(error) = &job {
        errors.push(FieldError::of_job_name("job_name", error));
    }
    let total = request.sharding_total_count;
    if let Some(total) = total.filter(|total| !(1..=SHARDING_TOTAL_COUNT_MAX).contains(total)) {
        let allowed = format!("1 to {SHARDING_TOTAL_COUNT_MAX}");
        errors.push(FieldError::new("sharding_total_count", &total.to_string(), &allowed));
    }
    let strategy = ShardingStrategy::from_type(&request.strategy);
    if strategy.is_none() && !request.strategy.is_empty() {
        errors.push(FieldError::new("strategy", &request.strategy, &ShardingStrategy::type_names()));
    }
    let named = request.joining_instance_ids.len();
    let joining = usize::try_from(request.joining_count).unwrap_or(usize::MAX).saturating_add(named);
    if joining > JOINING_MAX {
        let allowed = format!("at most {JOINING_MAX} instances that join");
        errors.push(FieldError::new("joining_count", &joining.to_string(), &allowed));
    } else if let Some(wrong) = request.joining_instance_ids.iter().find(|id| !is_instance_id(id)) {
        errors.push(FieldError::new("joining_instance_ids", wrong, "ids like `10.0.0.4@-@worker-4`"));
    }
    let leaving = request.leaving_instance_ids.len();
    if leaving > LEAVING_MAX {
        let allowed = format!("at most {LEAVING_MAX} ids");
        errors.push(FieldError::new("leaving_instance_ids", &leaving.to_string(), &allowed));
    }
    let (Ok(job), true) = (job, errors.is_empty()) else { return Err(InvalidRequest(errors)) };
    let ids = |texts: &[String]| -> BTreeSet<_> {
        texts.iter().map(|text| InstanceId::from_registry(text)).collect()
    };
    let what_if = WhatIf {
        total,
        strategy,
        joining: ids(&request.joining_instance_ids),
        joining_unknown: request.joining_count,
        leaving: ids(&request.leaving_instance_ids),
    };
    Ok((job, what_if))
}

/// Whether an instance may have this id.
fn is_instance_id(text: &str) -> bool {
    let id = InstanceId::from_registry(text);
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let is_unique = |unique: &str| {
        unique.len() <= UNIQUE_MAX
            && unique.chars().all(allowed)
            && unique.chars().any(|c| c.is_ascii_alphanumeric())
    };
    id.server_ip().is_some() && id.unique().is_some_and(is_unique)
}

/// A plan as the API has it.
pub fn to_message(planned: &ShardingPlan, as_of: Timestamp) -> proto::PlanShardingResponse {
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let text = |id: &Option<InstanceId>| id.as_ref().map(InstanceId::to_string).unwrap_or_default();
    let item = |item: &PlannedItem| proto::PlannedItem {
        item: item.item.0,
        instance_id: text(&item.owner),
        next_instance_id: text(&item.next),
    };
    proto::PlanShardingResponse {
        as_of: Some(timestamp(as_of)),
        all_at_once_reason: planned.all_at_once.clone().unwrap_or_default(),
        items: planned.items.iter().map(item).collect(),
        moves: count(planned.moves().count()),
        least_moves: count(planned.least_moves),
        remarks: planned.remarks.iter().map(ToString::to_string).collect(),
    }
}
