//! The author and the reason of a disabling: written together with it, shown as long as it lasts, and never about another one.

use jiff::{SignedDuration, Timestamp};
use sidekeeper::proto::diagnostics_service_client::DiagnosticsServiceClient;
use sidekeeper::proto::disabling::Subject;
use sidekeeper::proto::job_service_client::JobServiceClient;
use sidekeeper::proto::{
    DisableItemsRequest, DisableItemsResponse, DisableServersRequest, Disabling, EnableItemsRequest,
    EnableServersRequest, ExplainJobRequest, GetJobRequest, RemoveServersRequest,
};
use sidekeeper::registry::Registry as _;
use sidekeeper::tree::{Node, Path};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::fleet::{Fleet, JOB, RunningSidecar, bounded, job, request};

const CONFIG: &str = "jobName: orders\ncron: 0 0 0 1 1 ? *\nshardingTotalCount: 4\n";
const ONE: &str = "10.0.0.8@-@1";

async fn jobs(sidecar: &RunningSidecar) -> JobServiceClient<Channel> {
    JobServiceClient::new(sidecar.connect().await)
}

async fn disable(sidecar: &RunningSidecar, items: &[u32], reason: &str) -> Result<Vec<u32>, Status> {
    disable_until(sidecar, items, reason, None).await.map(|answer| answer.changed_items)
}

async fn disable_until(
    sidecar: &RunningSidecar,
    items: &[u32],
    reason: &str,
    until: Option<Timestamp>,
) -> Result<DisableItemsResponse, Status> {
    let (job_name, items, reason) = (JOB.to_owned(), items.to_vec(), reason.to_owned());
    let request = DisableItemsRequest { job_name, items, reason, until: until.map(to_message) };
    bounded("the answer", jobs(sidecar).await.disable_items(request)).await.map(tonic::Response::into_inner)
}

fn to_message(until: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: until.as_second(), nanos: until.subsec_nanosecond() }
}

fn after(seconds: i64) -> Timestamp {
    Timestamp::now() + SignedDuration::from_secs(seconds)
}

async fn enable(sidecar: &RunningSidecar, items: &[u32]) -> Vec<u32> {
    let request = EnableItemsRequest { job_name: JOB.to_owned(), items: items.to_vec() };
    let answer = bounded("the answer", jobs(sidecar).await.enable_items(request)).await;
    answer.unwrap().into_inner().changed_items
}

async fn disable_server(sidecar: &RunningSidecar, ip: &str, reason: &str) -> Vec<String> {
    let (job_name, server_ips) = (JOB.to_owned(), vec![ip.to_owned()]);
    let request = DisableServersRequest { job_name, server_ips, reason: reason.to_owned(), until: None };
    let answer = bounded("the answer", jobs(sidecar).await.disable_servers(request)).await;
    answer.unwrap().into_inner().changed_server_ips
}

/// Each disabling, as `GetJob` shows it: the subject, the author and the reason.
async fn shown(sidecar: &RunningSidecar) -> Vec<(Subject, String, String)> {
    let request = GetJobRequest { job_name: JOB.to_owned() };
    let job = bounded("the job", jobs(sidecar).await.get_job(request)).await.unwrap().into_inner();
    let of = |disabling: Disabling| {
        assert!(disabling.since.is_some(), "{disabling:?}");
        (disabling.subject.unwrap(), disabling.author, disabling.reason)
    };
    job.disablings.into_iter().map(of).collect()
}

/// The sentences of `ExplainJob` about disabled items and servers.
async fn explained(sidecar: &RunningSidecar) -> Vec<String> {
    let mut client = DiagnosticsServiceClient::new(sidecar.connect().await);
    let request = ExplainJobRequest { job_name: JOB.to_owned(), items: Vec::new() };
    let answer = bounded("the answer", client.explain_job(request)).await.unwrap().into_inner();
    let items = answer.items.into_iter().flat_map(|item| item.because);
    let findings = answer.findings.into_iter().chain(items);
    findings.filter(|found| found.code.ends_with("_DISABLED")).map(|found| found.message).collect()
}

/// The notes, by the names of their nodes.
async fn notes(fleet: &Fleet) -> Vec<Node> {
    let session = fleet.registry.open().await.unwrap();
    let folder = Path::parse(&format!("/{}-sidekeeper/{JOB}/fleet/notes", fleet.namespace)).unwrap();
    let names = session.children(&folder).await.unwrap().unwrap_or_default();
    let mut notes = Vec::new();
    for name in names {
        notes.extend(session.get(&folder.child(&name)).await.unwrap());
    }
    notes.sort_by(|one, other| one.path.cmp(&other.path));
    notes
}

/// The nodes of a job that a Java instance runs; the test may do with them what its console does.
async fn java_job(fleet: &Fleet) {
    for (name, data) in [("config", CONFIG), ("leader/election/instance", ONE), ("leader/sharding", "")] {
        fleet.nodes.put(name, data).await;
    }
    fleet.nodes.put("servers/10.0.0.8", "ENABLED").await;
    fleet.nodes.put(&format!("instances/{ONE}"), format!("jobInstanceId: {ONE}\nserverIp: 10.0.0.8\n")).await;
    for item in 0..4 {
        fleet.nodes.put(&format!("sharding/{item}/instance"), ONE).await;
    }
}

/// The author of the calls of a test.
fn us() -> String {
    format!("uid {}", nix::unistd::geteuid())
}

#[tokio::test]
async fn the_author_and_the_reason_of_a_disabled_item_are_shown_until_it_is_enabled() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    java_job(&fleet).await;
    let before = fleet.nodes.tree().await.names();
    assert_eq!(disable(&sidecar, &[1, 3], "replaying batch 881").await.unwrap(), [1, 3]);
    assert_eq!(disable(&sidecar, &[2], "").await.unwrap(), [2]);
    let reason = "replaying batch 881".to_owned();
    let wanted = [
        (Subject::Item(1), us(), reason.clone()),
        (Subject::Item(2), us(), String::new()),
        (Subject::Item(3), us(), reason),
    ];
    // Any sidecar shows it.
    let other = fleet.sidecar_with(2, |_| ()).await;
    assert_eq!(shown(&other).await, wanted);
    let with_reason = format!("the item is disabled (by {}: replaying batch 881)", us());
    let without = format!("the item is disabled (by {})", us());
    assert_eq!(explained(&other).await, [with_reason.clone(), without, with_reason]);
    // The nodes of the job are those that ElasticJob writes, and each note was written together with its node.
    let tree = fleet.nodes.tree().await;
    let new: Vec<_> = tree.names().into_iter().filter(|name| !before.contains(name)).collect();
    assert_eq!(new, ["sharding/1/disabled", "sharding/2/disabled", "sharding/3/disabled"]);
    assert!(new.iter().all(|name| tree.text(name).unwrap().is_empty()));
    let together: Vec<_> = notes(&fleet).await.iter().map(|note| note.stat.created.0).collect();
    assert_eq!(together, new.iter().map(|name| tree.created(name)).collect::<Vec<_>>());
    assert_eq!(enable(&other, &[1, 2]).await, [1, 2]);
    assert_eq!(shown(&sidecar).await, wanted[2..]);
    assert_eq!(notes(&fleet).await.len(), 1);
}

#[tokio::test]
async fn a_note_says_nothing_about_a_disabling_of_the_console_and_goes_with_the_next_enabling() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    java_job(&fleet).await;
    disable(&sidecar, &[1], "replaying batch 881").await.unwrap();
    // The console enables the item, and disables it again.
    fleet.nodes.delete("sharding/1/disabled").await;
    assert_eq!(shown(&sidecar).await, []);
    fleet.nodes.put("sharding/1/disabled", "").await;
    assert_eq!(shown(&sidecar).await, [(Subject::Item(1), String::new(), String::new())]);
    assert_eq!(explained(&sidecar).await, ["the item is disabled"]);
    assert_eq!(notes(&fleet).await.len(), 1);
    // An operator explains it, though the item stays as it is; without a reason nothing is written.
    assert_eq!(disable(&sidecar, &[1], "").await.unwrap(), Vec::<u32>::new());
    assert_eq!(explained(&sidecar).await, ["the item is disabled"]);
    for reason in ["the console has done it", "and now for good"] {
        assert_eq!(disable(&sidecar, &[1], reason).await.unwrap(), Vec::<u32>::new());
        assert_eq!(shown(&sidecar).await, [(Subject::Item(1), us(), reason.to_owned())]);
    }
    fleet.nodes.delete("sharding/1/disabled").await;
    assert_eq!(enable(&sidecar, &[1]).await, Vec::<u32>::new(), "it is enabled already");
    assert_eq!(notes(&fleet).await, []);
}

#[tokio::test]
async fn the_author_and_the_reason_of_a_disabled_server_are_shown_until_it_is_enabled_or_removed() {
    let fleet = Fleet::new().await;
    let (sidecar, other) = (fleet.sidecar().await, fleet.sidecar_with(2, |_| ()).await);
    let mut one = sidecar.attach(request(job(2))).await;
    let mut two = other.attach(request(None)).await;
    one.assigned(&[0]).await;
    two.assigned(&[1]).await;
    assert_eq!(disable_server(&sidecar, "10.0.0.2", "disk full").await, ["10.0.0.2"]);
    one.assigned(&[0, 1]).await;
    let server = |ip: &str, reason: &str| (Subject::ServerIp(ip.to_owned()), us(), reason.to_owned());
    assert_eq!(shown(&other).await, [server("10.0.0.2", "disk full")]);
    let said = explained(&other).await;
    assert!(said[0].ends_with(&format!(" (by {}: disk full)", us())), "{said:?}");
    assert_eq!(disable_server(&sidecar, "10.0.0.2", "still full").await, Vec::<String>::new());
    assert_eq!(shown(&other).await, [server("10.0.0.2", "still full")]);
    let enable = EnableServersRequest { job_name: JOB.to_owned(), server_ips: Vec::new() };
    bounded("the answer", jobs(&sidecar).await.enable_servers(enable)).await.unwrap();
    assert_eq!((shown(&other).await, notes(&fleet).await), (Vec::new(), Vec::new()));
    // A server without instances is removed with its note.
    fleet.nodes.put("servers/10.0.0.9", "ENABLED").await;
    disable_server(&sidecar, "10.0.0.9", "gone").await;
    assert_eq!(notes(&fleet).await.len(), 1);
    let remove = RemoveServersRequest { job_name: JOB.to_owned(), server_ips: vec!["10.0.0.9".to_owned()] };
    bounded("the answer", jobs(&sidecar).await.remove_servers(remove)).await.unwrap();
    assert_eq!(notes(&fleet).await, []);
}

#[tokio::test]
async fn a_reason_that_is_no_line_of_text_is_refused_and_changes_nothing() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    java_job(&fleet).await;
    let before = fleet.nodes.tree().await;
    for reason in ["a\nreason b".to_owned(), "\u{1b}[2J".to_owned(), "x".repeat(201)] {
        let refused = disable(&sidecar, &[1], &reason).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
        assert!(refused.message().contains("reason: given"), "{refused:?}");
    }
    assert_eq!(fleet.nodes.tree().await, before);
    assert_eq!(disable(&sidecar, &[1], &"ä".repeat(200)).await.unwrap(), [1]);
    assert_eq!(shown(&sidecar).await[0].2, "ä".repeat(200));
}

#[tokio::test]
async fn a_disabling_with_an_end_ends_then_unless_an_operator_repeats_it() {
    let fleet = Fleet::new().await;
    let (sidecar, other) = (fleet.sidecar().await, fleet.sidecar_with(2, |_| ()).await);
    let mut app = sidecar.attach(request(job(3))).await;
    app.assigned(&[0, 1, 2]).await;
    // Any sidecar takes the order; the leader carries it out.
    let until = after(3);
    let answer = disable_until(&other, &[0, 1], "repair", Some(until)).await.unwrap();
    assert_eq!((answer.changed_items, answer.ends_by_itself), (vec![0, 1], true));
    let said = explained(&other).await;
    assert_eq!(said[0], format!("the item is disabled (by {} until {until}: repair)", us()));
    assert_eq!(disable(&other, &[0], "").await.unwrap(), Vec::<u32>::new(), "for good, from now on");
    let tree = fleet.nodes.until("item 1 is enabled", |tree| !tree.has("sharding/1/disabled")).await;
    assert!(Timestamp::now() >= until);
    assert!(tree.has("sharding/0/disabled"), "the last word of an operator counts");
    assert_eq!(shown(&other).await, [(Subject::Item(0), us(), String::new())]);
    assert_eq!(notes(&fleet).await.len(), 1);
    // An operator may also give an end to a disabling that has none.
    let answer = disable_until(&sidecar, &[0], "", Some(after(1))).await.unwrap();
    assert_eq!((answer.changed_items, answer.ends_by_itself), (Vec::new(), true));
    fleet.nodes.until("item 0 is enabled", |tree| !tree.has("sharding/0/disabled")).await;
    assert_eq!(notes(&fleet).await, []);
}

#[tokio::test]
async fn whoever_gives_an_end_that_nobody_keeps_is_told_so() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    java_job(&fleet).await;
    let before = fleet.nodes.tree().await;
    let past = disable_until(&sidecar, &[1], "", Some(after(-1))).await.unwrap_err();
    assert_eq!(past.code(), Code::InvalidArgument, "{past:?}");
    assert!(past.message().contains("until: given"), "{past:?}");
    assert_eq!(fleet.nodes.tree().await, before);
    let answer = disable_until(&sidecar, &[1], "", Some(after(1))).await.unwrap();
    assert_eq!((answer.changed_items, answer.ends_by_itself), (vec![1], false));
    assert!(!disable_until(&sidecar, &[2], "", None).await.unwrap().ends_by_itself);
    // The first sidecar that takes part keeps it.
    let _app = sidecar.attach(request(None)).await;
    let tree = fleet.nodes.until("item 1 is enabled", |tree| !tree.has("sharding/1/disabled")).await;
    assert!(tree.has("sharding/2/disabled"));
}
