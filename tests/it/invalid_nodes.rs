//! Nodes with invalid data: the job goes on, the problem is reported with the node's path, and ends with the repair
//! (P7, P8).

use prost::Message as _;
use sidekeeper::coordination::job::picture::job_view::NAMED_OF_FOLDER_MAX;
use sidekeeper::proto::Problem;
use sidekeeper::tree::{NodeKind, Operation};

use crate::fleet::{App, Event, Fleet, RunningSidecar, each_second, job, request, warnings_about};

/// An invalid node: its name, its data, and a part of the problem's message.
struct Case {
    node: &'static str,
    data: &'static [u8],
    says: &'static str,
}

fn is_about(problems: &[Problem], path: &str, says: &str) -> bool {
    problems.iter().any(|problem| problem.path == path && problem.message.contains(says))
}

/// Writes an invalid node while the job runs, and repairs it: writes `repair`, or deletes the node without one.
async fn check_invalid_node(
    fleet: &Fleet,
    sidecar: &RunningSidecar,
    app: &mut App,
    case: &Case,
    repair: Option<&str>,
) {
    let Case { node, data, says } = case;
    let path = fleet.nodes.path(node).to_string();
    let mut watcher = sidecar.watch().await;
    fleet.nodes.put(node, data).await;
    app.problems(&path, |problems| is_about(problems, &path, says)).await;
    watcher.until(&path, |state| is_about(&state.problems, &path, says)).await;
    // The job goes on with the items that it had.
    let items = app.items();
    for _ in &items {
        let execute = app.execute().await;
        app.report_success(&execute).await;
    }
    assert_eq!(app.items(), items);
    assert_eq!(fleet.nodes.tree().await.node(node).unwrap().data.as_ref(), *data, "the node was changed");
    match repair {
        Some(repair) => fleet.nodes.put(node, repair).await,
        None => fleet.nodes.delete(node).await,
    }
    app.problems("no problems", <[_]>::is_empty).await;
    watcher.until("no problems", |state| state.problems.is_empty()).await;
    let warnings = warnings_about(&path);
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
}

async fn running(total: u32) -> (Fleet, RunningSidecar, App) {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(each_second(total))).await;
    let all: Vec<_> = (0..total).collect();
    app.assigned(&all).await;
    (fleet, sidecar, app)
}

#[tokio::test]
async fn p7_a_configuration_that_is_not_yaml_leaves_the_last_good_one_in_force() {
    let (fleet, sidecar, mut app) = running(2).await;
    let good = fleet.nodes.tree().await.text("config").unwrap();
    let case = Case { node: "config", data: b"]: {not yaml", says: "the configuration cannot be read" };
    check_invalid_node(&fleet, &sidecar, &mut app, &case, Some(&good)).await;
}

#[tokio::test]
async fn p7_a_binary_configuration_or_a_huge_total_leaves_the_last_good_one_in_force() {
    let (fleet, sidecar, mut app) = running(1).await;
    let good = fleet.nodes.tree().await.text("config").unwrap();
    let case = Case { node: "config", data: b"\xff\xfe\0\x01", says: "the configuration cannot be read" };
    check_invalid_node(&fleet, &sidecar, &mut app, &case, Some(&good)).await;
    let path = fleet.nodes.path("config").to_string();
    fleet.nodes.edit_configuration("shardingTotalCount: 1", "shardingTotalCount: 99999999999").await;
    let problems = app.problems(&path, |problems| !problems.is_empty()).await;
    assert!(is_about(&problems, &path, "shardingTotalCount"), "{problems:?}");
    app.execute().await;
}

#[tokio::test]
async fn p7_a_cron_that_cannot_be_read_leaves_the_last_schedule_in_force() {
    let (fleet, _sidecar, mut app) = running(1).await;
    fleet.nodes.edit_configuration("* * * * * ?", "every second").await;
    let path = fleet.nodes.path("config").to_string();
    let problems = app.problems(&path, |problems| !problems.is_empty()).await;
    assert!(is_about(&problems, &path, "cron"), "{problems:?}");
    for _ in 0..2 {
        let execute = app.execute().await;
        app.report_success(&execute).await;
    }
}

#[tokio::test]
async fn p7_an_application_uses_its_own_configuration_when_the_stored_one_cannot_be_read() {
    let fleet = Fleet::new().await;
    fleet.nodes.put("config", b"\xff\xfe not yaml").await;
    let sidecar = fleet.sidecar().await;
    let by_name = sidecar.refusal(request(None)).await;
    assert_eq!(by_name.code(), tonic::Code::NotFound);
    assert!(by_name.message().contains("no readable configuration"), "{by_name:?}");

    let mut app = sidecar.attach(request(each_second(2))).await;
    let path = fleet.nodes.path("config").to_string();
    app.problems(&path, |problems| is_about(problems, &path, "cannot be read")).await;
    app.assigned(&[0, 1]).await;
    app.executes(2).await;
    // Without `overwrite`, the sidecar does not replace the stored configuration.
    let tree = fleet.nodes.tree().await;
    assert_eq!(tree.node("config").unwrap().data.as_ref(), b"\xff\xfe not yaml");
}

#[tokio::test]
async fn p7_an_instance_with_binary_data_gets_no_items() {
    let (fleet, sidecar, mut app) = running(2).await;
    fleet.nodes.put("servers/10.9.9.9", "ENABLED").await;
    let case = Case { node: "instances/10.9.9.9@-@1", data: b"\xff\0\x80", says: "gets no items" };
    check_invalid_node(&fleet, &sidecar, &mut app, &case, None).await;
}

#[tokio::test]
async fn p7_an_instance_with_an_invalid_name_gets_no_items() {
    let (fleet, sidecar, mut app) = running(2).await;
    let case = Case { node: "instances/nobody", data: b"", says: "the name is not of the form" };
    check_invalid_node(&fleet, &sidecar, &mut app, &case, None).await;
}

#[tokio::test]
async fn p7_servers_with_invalid_statuses_or_addresses_do_not_stop_the_job() {
    let (fleet, sidecar, mut app) = running(2).await;
    let case = Case { node: "servers/10.9.9.9", data: b"\xffperhaps", says: "counts as not enabled" };
    check_invalid_node(&fleet, &sidecar, &mut app, &case, Some("ENABLED")).await;
    let case = Case { node: "servers/here", data: b"ENABLED", says: "not an IPv4 address" };
    check_invalid_node(&fleet, &sidecar, &mut app, &case, None).await;
}

#[tokio::test]
async fn p7_an_item_node_that_is_no_number_is_not_touched() {
    let (fleet, sidecar, mut app) = running(2).await;
    for node in ["sharding/two", "sharding/01"] {
        let case = Case { node, data: b"", says: "is not an item number" };
        check_invalid_node(&fleet, &sidecar, &mut app, &case, None).await;
    }
}

#[tokio::test]
async fn p7_a_folder_full_of_foreign_nodes_is_counted_and_the_job_goes_on() {
    const FOREIGN: usize = 5_000;
    let (fleet, sidecar, mut app) = running(3).await;
    let folder = fleet.nodes.path("sharding");
    let foreign = |place: usize| folder.child(&format!("foreign-{place:0>200}"));
    for first in (0..FOREIGN).step_by(100) {
        let creations = (first..first + 100)
            .map(|place| Operation::create(foreign(place), NodeKind::Persistent, b"foreign"));
        fleet.nodes.commit(creations.collect()).await;
    }
    let count = format!("{} more nodes in this folder are wrong", FOREIGN - NAMED_OF_FOLDER_MAX);
    let problems = app.problems(&count, |problems| is_about(problems, folder.as_str(), &count)).await;
    assert_eq!(problems.len(), NAMED_OF_FOLDER_MAX + 1);
    let mut watcher = sidecar.watch().await;
    let state = watcher.until(&count, |state| is_about(&state.problems, folder.as_str(), &count)).await;
    assert!(state.encoded_len() < 64 * 1024, "{} bytes", state.encoded_len());
    app.report_all_open().await;
    for _ in 0..6 {
        let execute = app.execute().await;
        app.report_success(&execute).await;
    }
    for first in (0..FOREIGN).step_by(100) {
        let deletions = (first..first + 100).map(|place| Operation::delete(foreign(place)));
        fleet.nodes.commit(deletions.collect()).await;
    }
    app.problems("no problems", <[_]>::is_empty).await;
    let warnings = warnings_about(folder.as_str());
    // At most some warnings in each second of the test.
    assert!(warnings.len() < FOREIGN / 5, "{} warnings", warnings.len());
    let events = app.history.iter().filter(|event| matches!(event, Event::JobChanged(_)));
    assert!(events.count() < 100);
}

#[tokio::test]
async fn p7_a_leader_node_with_invalid_data_is_removed_and_another_leader_elected() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(job(2))).await;
    app.assigned(&[0, 1]).await;
    fleet.nodes.settled_tree().await;
    let leader = fleet.nodes.path("leader/election/instance");
    let impostor = Operation::create(leader.clone(), NodeKind::Persistent, b"\xff nobody");
    fleet.nodes.commit(vec![Operation::delete(leader), impostor]).await;
    let own_id = app.attached.instance_id.clone();
    fleet
        .nodes
        .until("the leader", move |tree| tree.text("leader/election/instance").as_ref() == Some(&own_id))
        .await;
    // The new leader reshards.
    let other = fleet.sidecar_with(2, |_| ()).await;
    let mut second = other.attach(request(None)).await;
    app.assigned(&[0]).await;
    second.assigned(&[1]).await;
}
