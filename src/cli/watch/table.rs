//! The state of a job as a table of items and instances. Pure.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use jiff::Timestamp;

use crate::cli::printable;
use crate::proto::{
    ExecutionOutcome, HandoffMode, InstanceStatus, ItemStatus, LastExecution, WatchAssignmentsResponse,
};

/// The fewest shown characters of an instance id.
const SHORT_ID: usize = 6;
/// The most items with failures that get a line each.
const FAILURES_SHOWN: usize = 10;
/// The most items that wait for locks that get a line each.
const WAITS_SHOWN: usize = 10;
/// The most shown characters of a parameter.
const PARAMETER_LIMIT: usize = 24;

const LEGEND: &str =
    "o owned, R running, M misfired, D disabled, W waits for its lock, . another's; * leads\n";

/// Lays out a state.
pub(super) fn table(state: &WatchAssignmentsResponse) -> String {
    let mut text = head(state);
    if state.items.is_empty() && state.instances.is_empty() {
        text.push_str("\nno items and no instances\n");
    } else {
        text.push_str(&matrix(state));
        text.push('\n');
        text.push_str(LEGEND);
    }
    text.push_str(&waits(&state.items));
    text.push_str(&failures(&state.items));
    if state.parameters_hidden {
        line(
            &mut text,
            "parameters and messages are hidden: the sidecar shows them to callers with the role `operate`",
        );
    }
    for problem in &state.problems {
        let path = if problem.path.is_empty() { "job" } else { &problem.path };
        line(&mut text, &super::problem_in_words(path, problem));
    }
    text
}

fn head(state: &WatchAssignmentsResponse) -> String {
    let mut head = printable(&state.job_name);
    match state.generation {
        0 => head.push_str("  never sharded"),
        generation => head.push_str(&format!("  generation {generation}")),
    }
    head.push_str(&format!("  {}", count(state.items.len(), "item")));
    head.push_str(&format!("  {}", count(state.instances.len(), "instance")));
    if state.resharding {
        head.push_str("  resharding due");
    }
    if state.handoff_mode() == HandoffMode::AllAtOnce {
        let reason = printable(&state.handoff_mode_reason);
        head.push_str(&format!("  items change hands all at once: {reason}"));
    }
    head.push('\n');
    match &state.configuration {
        None => head.push_str("no configuration"),
        Some(configuration) if configuration.cron.is_empty() => head.push_str("no schedule"),
        Some(configuration) => head.push_str(&format!("cron {}", printable(&configuration.cron))),
    }
    if let Some(next) = &state.next_fire_time {
        match Timestamp::new(next.seconds, next.nanos) {
            Ok(time) => head.push_str(&format!("  next fire {time}")),
            Err(_) => head.push_str("  next fire out of range"),
        }
    }
    head.push('\n');
    head
}

fn matrix(state: &WatchAssignmentsResponse) -> String {
    let names = short_ids(&state.instances);
    let mut header = vec!["item".to_owned(), "parameter".to_owned()];
    for (instance, name) in state.instances.iter().zip(&names) {
        header.push(format!("{name}{}", if instance.leader { "*" } else { "" }));
    }
    header.push(String::new());
    let mut rows = vec![header];
    rows.extend(state.items.iter().map(|item| row(item, &state.instances)));

    let mut text = String::from("\n");
    let widths = widths(&rows);
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:>width$}"),
            _ => format!("{cell:<width$}"),
        });
        line(&mut text, &cells.collect::<Vec<_>>().join("  "));
    }
    text.push('\n');
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    for (instance, name) in state.instances.iter().zip(&names) {
        let disabled = if instance.enabled { "" } else { "  (server disabled)" };
        line(&mut text, &format!("{name:<width$}  {}{disabled}", printable(&instance.instance_id)));
    }
    text
}

/// The items whose last execution failed, a line each.
fn failures(items: &[ItemStatus]) -> String {
    let mut text = String::new();
    let last = |item: &ItemStatus| item.last_execution.clone().map(|last| (item.item, last));
    let is_bad = |(_, last): &(u32, LastExecution)| last.outcome() != ExecutionOutcome::Success;
    let failing: Vec<_> = items.iter().filter_map(last).filter(is_bad).collect();
    for (item, last) in failing.iter().take(FAILURES_SHOWN) {
        let how = match last.outcome() {
            ExecutionOutcome::Rejected => "rejected",
            ExecutionOutcome::Interrupted => "interrupted",
            ExecutionOutcome::Unspecified | ExecutionOutcome::Success | ExecutionOutcome::Failure => "failed",
        };
        let since = last.since.as_ref().and_then(|at| Timestamp::new(at.seconds, at.nanos).ok());
        let since = since.map(|at| format!(" since {at:.0}")).unwrap_or_default();
        let success =
            last.last_success_time.as_ref().and_then(|at| Timestamp::new(at.seconds, at.nanos).ok());
        let success = success.map(|at| format!(", last success {at:.0}")).unwrap_or_default();
        let (times, message) = (times(last.times_in_a_row), printable(&last.message));
        line(&mut text, &format!("item {item}: {how} {times}{since}{success}: {message}"));
    }
    if failing.len() > FAILURES_SHOWN {
        let hidden = failing.len().saturating_sub(FAILURES_SHOWN);
        line(&mut text, &format!("and {hidden} more items that failed"));
    }
    text
}

/// The items whose executions wait for their locks, a line each.
fn waits(items: &[ItemStatus]) -> String {
    let mut text = String::new();
    let wait = |item: &ItemStatus| item.waiting_for_lock.clone().map(|wait| (item.item, wait));
    let waiting: Vec<_> = items.iter().filter_map(wait).collect();
    for (item, wait) in waiting.iter().take(WAITS_SHOWN) {
        let since = wait.since.as_ref().and_then(|at| Timestamp::new(at.seconds, at.nanos).ok());
        let since = since.map(|at| format!(" since {at:.0}")).unwrap_or_default();
        let holder = if wait.holder.is_empty() { "unknown" } else { &wait.holder };
        let (lock, holder) = (printable(&wait.lock_name), printable(holder));
        line(&mut text, &format!("item {item}: waits for lock {lock}{since}; its holder is {holder}"));
    }
    if waiting.len() > WAITS_SHOWN {
        let hidden = waiting.len().saturating_sub(WAITS_SHOWN);
        line(&mut text, &format!("and {hidden} more items that wait for locks"));
    }
    text
}

fn times(number: u32) -> String {
    if number == 1 { "once".to_owned() } else { format!("{number} times in a row") }
}

fn row(item: &ItemStatus, instances: &[InstanceStatus]) -> Vec<String> {
    let mut flags = String::new();
    for (is_set, flag) in [
        (item.running, 'R'),
        (item.misfire, 'M'),
        (item.disabled, 'D'),
        (item.waiting_for_lock.is_some(), 'W'),
    ] {
        if is_set {
            flags.push(flag);
        }
    }
    let mut row = vec![item.item.to_string(), shortened(item.item_parameter())];
    let mut owner_is_online = false;
    for instance in instances {
        if instance.instance_id == item.instance_id {
            owner_is_online = true;
            row.push(if flags.is_empty() { "o".to_owned() } else { flags.clone() });
        } else {
            row.push(".".to_owned());
        }
    }
    // The end of the row has the text that belongs to no instance's column.
    row.push(match (owner_is_online, item.instance_id.as_str()) {
        (true, _) => String::new(),
        (false, "") => format!("{flags} nobody's").trim_start().to_owned(),
        (false, owner) => format!("{flags} of {}, not online", printable(owner)).trim_start().to_owned(),
    });
    row
}

/// Short and distinct names for instances: the last characters of their ids, because that part is random.
fn short_ids(instances: &[InstanceStatus]) -> Vec<String> {
    let ids: Vec<String> = instances.iter().map(|instance| printable(&instance.instance_id)).collect();
    let longest = ids.iter().map(|id| id.chars().count()).max().unwrap_or(0);
    for length in SHORT_ID..=longest {
        let names: Vec<_> = ids.iter().map(|id| last(id, length)).collect();
        if names.iter().collect::<BTreeSet<_>>().len() == names.len() {
            return names;
        }
    }
    ids
}

/// The last characters of the unique part of an id.
fn last(id: &str, length: usize) -> String {
    let unique = id.rsplit_once("@-@").map_or(id, |(_, unique)| unique);
    let skip = unique.chars().count().saturating_sub(length);
    unique.chars().skip(skip).collect()
}

fn shortened(text: &str) -> String {
    let text = printable(text);
    if text.chars().count() <= PARAMETER_LIMIT {
        return text;
    }
    let kept: String = text.chars().take(PARAMETER_LIMIT.saturating_sub(2)).collect();
    format!("{kept}..")
}

fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let mut widths = Vec::new();
    for row in rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    widths
}

fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

fn line(text: &mut String, line: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}", line.trim_end());
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use prost_types::Timestamp as ProtoTimestamp;

    use super::*;
    use crate::proto::{JobConfiguration, Problem};

    fn instance(id: &str, leader: bool, enabled: bool) -> InstanceStatus {
        let server_ip = id.split('@').next().unwrap().to_owned();
        InstanceStatus { instance_id: id.to_owned(), server_ip, enabled, leader }
    }

    fn item(item: u32, parameter: &str, owner: &str) -> ItemStatus {
        ItemStatus {
            item,
            item_parameter: (!parameter.is_empty()).then(|| parameter.to_owned()),
            instance_id: owner.to_owned(),
            ..Default::default()
        }
    }

    fn check(state: &WatchAssignmentsResponse, expected: &Expect) {
        expected.assert_eq(&table(state));
    }

    const A: &str = "10.0.0.1@-@4711-a1b2c3";
    const B: &str = "10.0.0.2@-@12";

    #[test]
    fn a_job_at_work() {
        let state = WatchAssignmentsResponse {
            job_name: "orderSync".to_owned(),
            configuration: Some(JobConfiguration { cron: "0/5 * * * * ?".to_owned(), ..Default::default() }),
            generation: 7,
            instances: vec![instance(A, true, true), instance(B, false, false)],
            items: vec![
                ItemStatus {
                    running: true,
                    misfire: true,
                    last_execution: Some(LastExecution {
                        outcome: ExecutionOutcome::Failure.into(),
                        times_in_a_row: 3,
                        since: Some(ProtoTimestamp { seconds: 1_767_225_590, nanos: 0 }),
                        at: Some(ProtoTimestamp { seconds: 1_767_225_600, nanos: 0 }),
                        message: "ValueError: no such city".to_owned(),
                        last_success_time: Some(ProtoTimestamp { seconds: 1_767_225_580, nanos: 0 }),
                    }),
                    ..item(0, "Beijing", A)
                },
                item(1, "Shanghai", B),
                ItemStatus { disabled: true, ..item(2, "", A) },
                ItemStatus { running: true, ..item(10, "a parameter that is too long", "10.0.0.3@-@9") },
                item(11, "", ""),
            ],
            resharding: true,
            handoff_mode: HandoffMode::AllAtOnce.into(),
            handoff_mode_reason: "instance 10.0.0.9@-@1 is ElasticJob's own".to_owned(),
            parameters_hidden: true,
            next_fire_time: Some(ProtoTimestamp { seconds: 1_767_225_605, nanos: 0 }),
            problems: vec![Problem {
                path: "/orderSync/config".to_owned(),
                message: "not YAML\u{1b}[2J".to_owned(),
                code: "JOB_CONFIG_UNREADABLE".to_owned(),
            }],
        };
        check(
            &state,
            &expect![[r#"
                orderSync  generation 7  5 items  2 instances  resharding due  items change hands all at once: instance 10.0.0.9@-@1 is ElasticJob's own
                cron 0/5 * * * * ?  next fire 2026-01-01T00:00:05Z

                item  parameter                 a1b2c3*  12
                   0  Beijing                   RM       .
                   1  Shanghai                  .        o
                   2                            D        .
                  10  a parameter that is to..  .        .   R of 10.0.0.3@-@9, not online
                  11                            .        .   nobody's

                a1b2c3  10.0.0.1@-@4711-a1b2c3
                12      10.0.0.2@-@12  (server disabled)

                o owned, R running, M misfired, D disabled, W waits for its lock, . another's; * leads
                item 0: failed 3 times in a row since 2025-12-31T23:59:50Z, last success 2025-12-31T23:59:40Z: ValueError: no such city
                parameters and messages are hidden: the sidecar shows them to callers with the role `operate`
                problem: /orderSync/config: not YAML\u{1b}[2J  JOB_CONFIG_UNREADABLE
            "#]],
        );
    }

    #[test]
    fn an_unknown_job() {
        let state = WatchAssignmentsResponse { job_name: "x".to_owned(), ..Default::default() };
        check(
            &state,
            &expect![[r#"
            x  never sharded  0 items  0 instances
            no configuration

            no items and no instances
        "#]],
        );
    }

    #[test]
    fn short_ids_grow_until_they_differ() {
        let names =
            |ids: &[&str]| short_ids(&ids.iter().map(|id| instance(id, false, true)).collect::<Vec<_>>());
        assert_eq!(names(&[A, B]), ["a1b2c3", "12"]);
        assert_eq!(names(&["10.0.0.1@-@1-xabcdef", "10.0.0.1@-@1-yabcdef"]), ["xabcdef", "yabcdef"]);
        // Java peers in containers often have process id 1.
        assert_eq!(names(&["10.0.0.1@-@1", "10.0.0.2@-@1"]), ["10.0.0.1@-@1", "10.0.0.2@-@1"]);
        assert_eq!(names(&["short"]), ["short"]);
        assert_eq!(names(&[]), [""; 0]);
    }
}
