//! `plan`: the owner of each item if the items, the instances or the strategy of a job were others.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::endpoint::{SidecarArgs, authorized, refused};
use super::registry::{Registry, RegistryArgs, failed};
use super::watch::json::instant;
use super::{Failure, json_line, print, printable};
use crate::api::{plan, status};
use crate::proto::diagnostics_service_client::DiagnosticsServiceClient;
use crate::proto::{PlanShardingRequest, PlanShardingResponse, PlannedItem};
use crate::runner::admin::plan_sharding;

use super::jobs::table;

/// How long to wait for the answer: longer than the sidecar may wait for its registry.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest accepted answer, in bytes: 10000 items with two owners each.
const MESSAGE_LIMIT: usize = 16 * 1024 * 1024;
/// The word for no owner.
const NONE: &str = "none";

#[derive(Args)]
pub(super) struct PlanArgs {
    /// The job's name.
    job: String,
    /// The number of items.
    #[arg(long, value_name = "ITEMS")]
    total: Option<u32>,
    /// How many instances of sidecars join whose ids are not known.
    #[arg(long, value_name = "INSTANCES", default_value_t = 0, hide_default_value = true)]
    join: u32,
    /// An instance that joins, by its id; may be given several times.
    #[arg(long, value_name = "INSTANCE")]
    join_id: Vec<String>,
    /// An instance that leaves and does not come back, by its id; may be given several times.
    #[arg(long, value_name = "INSTANCE")]
    leave: Vec<String>,
    /// The strategy: AVG_ALLOCATION, ODEVITY, ROUND_ROBIN, SINGLE_SHARDING_BALANCE or CONSISTENT_HASH.
    #[arg(long, value_name = "STRATEGY")]
    strategy: Option<String>,
    #[command(flatten)]
    sidecar: SidecarArgs,
    #[command(flatten)]
    registry: RegistryArgs,
    /// Print one JSON object, with the field names of the proto.
    #[arg(long)]
    json: bool,
}

pub(super) async fn plan(args: PlanArgs) -> Result<ExitCode, Failure> {
    let PlanArgs { job, total, join, join_id, leave, strategy, sidecar, registry, json } = args;
    let request = PlanShardingRequest {
        job_name: job.clone(),
        sharding_total_count: total,
        joining_count: join,
        joining_instance_ids: join_id,
        leaving_instance_ids: leave,
        strategy: strategy.unwrap_or_default(),
    };
    let answer = match registry.open().await? {
        Some(registry) => plan_in(&registry, &request).await?,
        None => ask(&sidecar, request).await?,
    };
    print(if json { json_line(&in_json(&answer)) } else { in_words(&job, &answer) }.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

async fn ask(sidecar: &SidecarArgs, request: PlanShardingRequest) -> Result<PlanShardingResponse, Failure> {
    let channel = sidecar.sidecar()?.connect().await?;
    let mut client = DiagnosticsServiceClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
    let mut request = authorized(request)?;
    request.set_timeout(ANSWER_TIMEOUT);
    Ok(client.plan_sharding(request).await.map_err(|status| refused(&status))?.into_inner())
}

async fn plan_in(
    registry: &Registry,
    request: &PlanShardingRequest,
) -> Result<PlanShardingResponse, Failure> {
    let (job, what_if) = plan::read(request).map_err(|invalid| failed(&invalid.to_status()))?;
    let planned = plan_sharding::plan_in(registry.namespace(), &job, &what_if).await;
    registry.session.close().await;
    let (planned, as_of) = planned.map_err(|error| failed(&status::of_plan(&error)))?;
    Ok(plan::to_message(&planned, as_of))
}

/// The moves, and the items of each instance before and after.
fn in_words(job: &str, answer: &PlanShardingResponse) -> String {
    let PlanShardingResponse { all_at_once_reason, items, moves, least_moves, remarks, .. } = answer;
    let how = match all_at_once_reason.is_empty() {
        true => "one by one".to_owned(),
        false => format!("all at once: {}", printable(all_at_once_reason)),
    };
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{}: {moves} of {} items move, at least {least_moves} have to; {how}",
        printable(job),
        items.len()
    );
    for remark in remarks {
        let _ = writeln!(text, "note: {}", printable(remark));
    }
    let is_moving = |item: &&PlannedItem| item.instance_id != item.next_instance_id;
    if items.iter().any(|item| is_moving(&item)) {
        let row = |item: &PlannedItem| {
            vec![item.item.to_string(), owner(&item.instance_id), owner(&item.next_instance_id)]
        };
        let _ = write!(text, "\n{}", table(&["item", "from", "to"], items.iter().filter(is_moving).map(row)));
    }
    let mut parts: BTreeMap<&str, (Vec<u32>, Vec<u32>)> = BTreeMap::new();
    for PlannedItem { item, instance_id, next_instance_id } in items {
        parts.entry(instance_id).or_default().0.push(*item);
        parts.entry(next_instance_id).or_default().1.push(*item);
    }
    let row = |(id, (now, then)): (&str, (Vec<u32>, Vec<u32>))| {
        vec![owner(id), now.len().to_string(), ranges(&now), then.len().to_string(), ranges(&then)]
    };
    let head = ["instance", "now", "", "then", ""];
    let _ = write!(text, "\n{}", table(&head, parts.into_iter().map(row)));
    text
}

fn owner(id: &str) -> String {
    if id.is_empty() { NONE.to_owned() } else { id.to_owned() }
}

/// Ascending numbers as ranges: `0-3, 7`.
fn ranges(items: &[u32]) -> String {
    let follows = |one: &u32, next: &u32| one.checked_add(1) == Some(*next);
    let range = |run: &[u32]| match run {
        [] => String::new(),
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
    };
    items.chunk_by(follows).map(range).collect::<Vec<_>>().join(", ")
}

/// The fields of the proto under their names.
fn in_json(answer: &PlanShardingResponse) -> Value {
    let PlanShardingResponse { as_of, all_at_once_reason, items, moves, least_moves, remarks } = answer;
    let item = |PlannedItem { item, instance_id, next_instance_id }: &PlannedItem| json!({ "item": item, "instance_id": instance_id, "next_instance_id": next_instance_id });
    json!({
        "as_of": as_of.as_ref().and_then(instant),
        "all_at_once_reason": all_at_once_reason,
        "items": items.iter().map(item).collect::<Vec<_>>(),
        "moves": moves,
        "least_moves": least_moves,
        "remarks": remarks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_shown_with_its_moves_and_the_parts_of_each_instance() {
        let item = |item, from: &str, to: &str| PlannedItem {
            item,
            instance_id: from.to_owned(),
            next_instance_id: to.to_owned(),
        };
        let answer = PlanShardingResponse {
            as_of: None,
            all_at_once_reason: String::new(),
            items: vec![item(0, "a", "a"), item(1, "a", "a"), item(2, "a", "b"), item(3, "", "b")],
            moves: 2,
            least_moves: 2,
            remarks: vec!["the ids are not known".to_owned()],
        };
        assert_eq!(
            in_words("orders", &answer),
            "orders: 2 of 4 items move, at least 2 have to; one by one\n\
             note: the ids are not known\n\
             \n\
             item  from  to\n\
             2     a     b\n\
             3     none  b\n\
             \n\
             instance  now       then\n\
             none      1    3    0\n\
             a         3    0-2  2     0-1\n\
             b         0         2     2-3\n"
        );
        let reason = "instance x is ElasticJob's own\u{1b}[2J".to_owned();
        let at_once =
            PlanShardingResponse { all_at_once_reason: reason, moves: 0, items: Vec::new(), ..answer };
        let said = in_words("orders", &at_once);
        assert!(said.contains("all at once: instance x is ElasticJob's own\\u{1b}[2J"), "{said}");
    }
}
