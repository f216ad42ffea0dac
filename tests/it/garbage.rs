//! Nodes that somebody garbled: the job goes on, the problem is told with its path, and is gone when it is repaired
//! (P7, P8).

use prost::Message as _;
use sidekeeper::coordination::job::picture::job_view::NAMED_OF_FOLDER_MAX;
use sidekeeper::proto::Problem;
use sidekeeper::tree::{NodeKind, Operation};

use crate::ground::{App, Event, Ground, Host, job, request, ticking, warnings_about};

/// What a garbled node is: its name, its data, what the problem has to say, and whether deleting the node is a repair.
struct Case {
    node: &'static str,
    data: &'static [u8],
    says: &'static str,
}

fn is_about(problems: &[Problem], path: &str, says: &str) -> bool {
    problems.iter().any(|problem| problem.path == path && problem.message.contains(says))
}

/// Garbles a node while the job runs, and repairs it.
async fn garble(ground: &Ground, host: &Host, app: &mut App, case: &Case, repair: Option<&str>) {
    let Case { node, data, says } = case;
    let path = ground.outside.path(node).to_string();
    let mut watcher = host.watch().await;
    ground.outside.put(node, data).await;
    app.problems(&path, |problems| is_about(problems, &path, says)).await;
    watcher.until(&path, |state| is_about(&state.problems, &path, says)).await;
    // It goes on, with what it had.
    let items = app.items();
    for _ in &items {
        let execute = app.execute().await;
        app.done(&execute).await;
    }
    assert_eq!(app.items(), items);
    assert_eq!(ground.outside.tree().await.node(node).unwrap().data.as_ref(), *data, "it was touched");
    match repair {
        Some(repair) => ground.outside.put(node, repair).await,
        None => ground.outside.delete(node).await,
    }
    app.problems("no problems", <[_]>::is_empty).await;
    watcher.until("no problems", |state| state.problems.is_empty()).await;
    let warnings = warnings_about(&path);
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
}

async fn running(total: u32) -> (Ground, Host, App) {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(ticking(total))).await;
    let all: Vec<_> = (0..total).collect();
    app.assigned(&all).await;
    (ground, host, app)
}

#[tokio::test]
async fn p7_a_configuration_that_is_not_yaml_leaves_the_last_good_one_in_force() {
    let (ground, host, mut app) = running(2).await;
    let good = ground.outside.tree().await.text("config").unwrap();
    let case = Case { node: "config", data: b"]: {not yaml", says: "the configuration cannot be read" };
    garble(&ground, &host, &mut app, &case, Some(&good)).await;
}

#[tokio::test]
async fn p7_neither_does_a_binary_one_with_a_huge_total_stop_it() {
    let (ground, host, mut app) = running(1).await;
    let good = ground.outside.tree().await.text("config").unwrap();
    let case = Case { node: "config", data: b"\xff\xfe\0\x01", says: "the configuration cannot be read" };
    garble(&ground, &host, &mut app, &case, Some(&good)).await;
    let path = ground.outside.path("config").to_string();
    ground.outside.edit_configuration("shardingTotalCount: 1", "shardingTotalCount: 99999999999").await;
    let said = app.problems(&path, |problems| !problems.is_empty()).await;
    assert!(is_about(&said, &path, "shardingTotalCount"), "{said:?}");
    app.execute().await;
}

#[tokio::test]
async fn p7_a_cron_that_cannot_be_read_leaves_the_last_schedule_in_force() {
    let (ground, _host, mut app) = running(1).await;
    ground.outside.edit_configuration("* * * * * ?", "every second").await;
    let path = ground.outside.path("config").to_string();
    let said = app.problems(&path, |problems| !problems.is_empty()).await;
    assert!(is_about(&said, &path, "cron"), "{said:?}");
    for _ in 0..2 {
        let execute = app.execute().await;
        app.done(&execute).await;
    }
}

#[tokio::test]
async fn p7_a_configuration_that_was_garbled_before_is_replaced_by_the_application_s_own() {
    let ground = Ground::new().await;
    ground.outside.put("config", b"\xff\xfe not yaml").await;
    let host = ground.sidecar().await;
    let by_name = host.refusal(request(None)).await;
    assert_eq!(by_name.code(), tonic::Code::NotFound);
    assert!(by_name.message().contains("no readable configuration"), "{by_name:?}");

    let mut app = host.attach(request(ticking(2))).await;
    let path = ground.outside.path("config").to_string();
    app.problems(&path, |problems| is_about(problems, &path, "cannot be read")).await;
    app.assigned(&[0, 1]).await;
    app.executes(2).await;
    // What somebody else wrote is not ours to replace without being told to.
    let tree = ground.outside.tree().await;
    assert_eq!(tree.node("config").unwrap().data.as_ref(), b"\xff\xfe not yaml");
}

#[tokio::test]
async fn p7_an_instance_of_binary_data_gets_nothing() {
    let (ground, host, mut app) = running(2).await;
    ground.outside.put("servers/10.9.9.9", "ENABLED").await;
    let case = Case { node: "instances/10.9.9.9@-@1", data: b"\xff\0\x80", says: "gets no items" };
    garble(&ground, &host, &mut app, &case, None).await;
}

#[tokio::test]
async fn p7_an_instance_whose_name_is_none_gets_nothing() {
    let (ground, host, mut app) = running(2).await;
    let case = Case { node: "instances/nobody", data: b"", says: "the name is not of the form" };
    garble(&ground, &host, &mut app, &case, None).await;
}

#[tokio::test]
async fn p7_servers_that_are_none_and_of_no_status_harm_nobody() {
    let (ground, host, mut app) = running(2).await;
    let case = Case { node: "servers/10.9.9.9", data: b"\xffperhaps", says: "counts as not enabled" };
    garble(&ground, &host, &mut app, &case, Some("ENABLED")).await;
    let case = Case { node: "servers/here", data: b"ENABLED", says: "not an IPv4 address" };
    garble(&ground, &host, &mut app, &case, None).await;
}

#[tokio::test]
async fn p7_an_item_that_is_no_number_is_left_alone() {
    let (ground, host, mut app) = running(2).await;
    for node in ["sharding/two", "sharding/01"] {
        let case = Case { node, data: b"", says: "is not an item number" };
        garble(&ground, &host, &mut app, &case, None).await;
    }
}

#[tokio::test]
async fn p7_a_folder_full_of_foreign_nodes_is_counted_and_the_job_goes_on() {
    const FOREIGN: usize = 5_000;
    let (ground, host, mut app) = running(3).await;
    let folder = ground.outside.path("sharding");
    let foreign = |place: usize| folder.child(&format!("foreign-{place:0>200}"));
    for first in (0..FOREIGN).step_by(100) {
        let creations = (first..first + 100).map(|place| {
            Operation::create(foreign(place), NodeKind::Persistent, b"nothing that anybody wants")
        });
        ground.outside.commit(creations.collect()).await;
    }
    let count = format!("{} more nodes in this folder are wrong", FOREIGN - NAMED_OF_FOLDER_MAX);
    let told = app.problems(&count, |problems| is_about(problems, folder.as_str(), &count)).await;
    assert_eq!(told.len(), NAMED_OF_FOLDER_MAX + 1);
    let mut watcher = host.watch().await;
    let state = watcher.until(&count, |state| is_about(&state.problems, folder.as_str(), &count)).await;
    assert!(state.encoded_len() < 64 * 1024, "{} bytes", state.encoded_len());
    app.done_with_all().await;
    for _ in 0..6 {
        let execute = app.execute().await;
        app.done(&execute).await;
    }
    for first in (0..FOREIGN).step_by(100) {
        let deletions = (first..first + 100).map(|place| Operation::delete(foreign(place)));
        ground.outside.commit(deletions.collect()).await;
    }
    app.problems("no problems", <[_]>::is_empty).await;
    let warnings = warnings_about(folder.as_str());
    // Some at the beginning and some at the end of a second, for as long as it took.
    assert!(warnings.len() < FOREIGN / 5, "{} warnings", warnings.len());
    let events = app.history.iter().filter(|event| matches!(event, Event::JobChanged(_)));
    assert!(events.count() < 100);
}

#[tokio::test]
async fn p7_a_leader_that_is_nobody_is_removed_and_another_elected() {
    let ground = Ground::new().await;
    let host = ground.sidecar().await;
    let mut app = host.attach(request(job(2))).await;
    app.assigned(&[0, 1]).await;
    ground.outside.quiet().await;
    let leader = ground.outside.path("leader/election/instance");
    let impostor = Operation::create(leader.clone(), NodeKind::Persistent, b"\xff nobody");
    ground.outside.commit(vec![Operation::delete(leader), impostor]).await;
    let ours = app.attached.instance_id.clone();
    ground
        .outside
        .until("the leader", move |tree| tree.text("leader/election/instance").as_ref() == Some(&ours))
        .await;
    // It leads, and does what leaders do.
    let other = ground.sidecar_with(2, |_| ()).await;
    let mut second = other.attach(request(None)).await;
    app.assigned(&[0]).await;
    second.assigned(&[1]).await;
}
