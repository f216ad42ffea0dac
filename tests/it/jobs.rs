//! `ListJobs` and `GetJob`: every job of the namespace exactly once, Java's included, and one job as a whole.

use sidekeeper::proto::job_service_client::JobServiceClient;
use sidekeeper::proto::{
    GetJobRequest, GetJobResponse, JobState, JobSummary, ListJobsRequest, ListServersRequest, ServerStatus,
};
use sidekeeper::registry::Registry as _;
use sidekeeper::tree::{NodeKind, Operation, Path};
use tonic::{Code, Status};

use crate::fleet::{Fleet, JOB, RunningSidecar, bounded, each_second, request};

const CONFIG: &str =
    "jobName: orders\ncron: 0 0 0 1 1 ? *\nshardingTotalCount: 4\njobParameter: secret-parameter\n";

/// A page: its jobs, and the token of the next one.
async fn page(
    sidecar: &RunningSidecar,
    page_size: u32,
    page_token: &str,
) -> Result<(Vec<JobSummary>, String), Status> {
    let mut client = JobServiceClient::new(sidecar.connect().await);
    let request = ListJobsRequest { page_size, page_token: page_token.to_owned() };
    let answer = bounded("the page", client.list_jobs(request)).await?.into_inner();
    Ok((answer.jobs, answer.next_page_token))
}

async fn get(sidecar: &RunningSidecar, job: &str) -> Result<GetJobResponse, Status> {
    let mut client = JobServiceClient::new(sidecar.connect().await);
    let request = GetJobRequest { job_name: job.to_owned() };
    bounded("the job", client.get_job(request)).await.map(tonic::Response::into_inner)
}

/// The only job's state.
async fn state(sidecar: &RunningSidecar) -> JobState {
    let (jobs, next) = page(sidecar, 0, "").await.unwrap();
    let [job] = &jobs[..] else { panic!("{jobs:?}") };
    assert_eq!(next, "");
    job.state()
}

#[tokio::test]
async fn op_1_all_jobs_are_listed_exactly_once_in_pages_of_any_size() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    assert_eq!(
        page(&sidecar, 10, "").await.unwrap(),
        (Vec::new(), String::new()),
        "no job, and no namespace"
    );
    let session = fleet.registry.open().await.unwrap();
    let root = Path::parse(&format!("/{}", fleet.namespace)).unwrap();
    session.ensure(&root, NodeKind::Persistent, b"").await.unwrap();
    let names: Vec<_> = (0..150).map(|number| format!("job-{number:03}")).collect();
    for name in &names {
        let create = |path: Path, data: &str| Operation::create(path, NodeKind::Persistent, data.as_bytes());
        let job = root.child(name);
        let config = format!("jobName: {name}\nshardingTotalCount: 2\ndescription: {}\n", "d".repeat(1_000));
        session.commit(vec![create(job.clone(), ""), create(job.child("config"), &config)]).await.unwrap();
    }
    for size in [0, 7, 150, 1_000] {
        let (mut found, mut token) = (Vec::new(), String::new());
        loop {
            let (jobs, next) = page(&sidecar, size, &token).await.unwrap();
            assert!(jobs.len() <= usize::try_from(if size == 0 { 50 } else { size }).unwrap());
            found.extend(jobs);
            if next.is_empty() {
                break;
            }
            token = next;
        }
        let listed: Vec<_> = found.iter().map(|job| job.job_name.as_str()).collect();
        assert_eq!(listed, names, "pages of {size}");
        assert!(found.iter().all(|job| job.state() == JobState::NoInstances && job.description.len() < 500));
    }
    for (size, token) in [(1_001, String::new()), (1, "x".repeat(2_000))] {
        let refused = page(&sidecar, size, &token).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    }
}

#[tokio::test]
async fn the_state_of_a_job_is_the_worst_that_keeps_it_from_running() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let nodes = &fleet.nodes;
    nodes.put("config", CONFIG).await;
    assert_eq!(state(&sidecar).await, JobState::NoInstances);
    nodes.put("instances/10.0.0.8@-@1", "").await;
    nodes.put("servers/10.0.0.8", "ENABLED").await;
    // A server without instances counts for nothing.
    nodes.put("servers/10.0.0.9", "DISABLED").await;
    assert_eq!(state(&sidecar).await, JobState::Ok);
    nodes.put("leader/sharding/necessary", "").await;
    assert_eq!(state(&sidecar).await, JobState::Resharding);
    nodes.put("servers/10.0.0.8", "DISABLED").await;
    assert_eq!(state(&sidecar).await, JobState::Disabled);
    nodes.put("config", "shardingTotalCount: many").await;
    assert_eq!(state(&sidecar).await, JobState::Unreadable);
    nodes.delete("config").await;
    assert_eq!(state(&sidecar).await, JobState::Unreadable);
}

#[tokio::test]
async fn a_job_is_shown_with_its_instances_servers_and_items() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let other = fleet.sidecar_with(2, |_| ()).await;
    let mut app = sidecar.attach(request(each_second(3))).await;
    app.assigned(&[0, 1, 2]).await;
    let execute = app.execute().await;
    fleet.nodes.put("sharding/2/disabled", "").await;
    fleet.nodes.put("servers/10.9.9.9", "DISABLED").await;
    // A sidecar without an application of the job answers, too.
    let found = get(&other, JOB).await.unwrap();
    assert_eq!(found.configuration.as_ref().unwrap().cron, "* * * * * ?");
    assert!(
        found.document.contains("cron: '* * * * * ?'") || found.document.contains("cron: \"* * * * * ?\"")
    );
    let [instance] = &found.instances[..] else { panic!("{found:?}") };
    assert!(instance.leader && instance.enabled);
    let servers: Vec<_> = found
        .servers
        .iter()
        .map(|server| (server.server_ip.as_str(), server.disabled, server.instance_count))
        .collect();
    assert_eq!(servers, [("10.0.0.1", false, 1), ("10.9.9.9", true, 0)]);
    let disabled: Vec<_> = found.items.iter().map(|item| item.disabled).collect();
    assert_eq!(disabled, [false, false, true]);
    let item = &found.items[usize::try_from(execute.item).unwrap()];
    assert!(item.running && item.instance_id == instance.instance_id, "{item:?}");
    let unknown = get(&sidecar, "nobody").await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound, "{unknown:?}");
    let wrong = get(&sidecar, "a/b").await.unwrap_err();
    assert_eq!(wrong.code(), Code::InvalidArgument, "{wrong:?}");
}

#[tokio::test]
async fn the_servers_of_all_jobs_are_listed_in_pages_and_those_that_are_asked_for_alone() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let session = fleet.registry.open().await.unwrap();
    let root = Path::parse(&format!("/{}", fleet.namespace)).unwrap();
    session.ensure(&root, NodeKind::Persistent, b"").await.unwrap();
    let servers = [
        ("bills", vec![("10.0.0.2", "ENABLED"), ("10.0.0.10", "DISABLED"), ("not an address", "ENABLED")]),
        ("empty", vec![]),
        ("orders", vec![("10.0.0.2", "DISABLED")]),
    ];
    for (job, servers) in &servers {
        let mut path = root.child(job);
        for part in ["", "servers", "instances"] {
            let node = if part.is_empty() { path.clone() } else { path.child(part) };
            session.ensure(&node, NodeKind::Persistent, b"").await.unwrap();
        }
        path = path.child("servers");
        for (ip, status) in servers {
            session.ensure(&path.child(ip), NodeKind::Persistent, status.as_bytes()).await.unwrap();
        }
    }
    // A Java instance.
    let java = root.child("bills").child("instances").child("10.0.0.2@-@1");
    session.ensure(&java, NodeKind::Persistent, b"").await.unwrap();
    let list = async |server_ips: &[&str], page_size| {
        let mut client = JobServiceClient::new(sidecar.connect().await);
        let (mut found, mut page_token) = (Vec::new(), String::new());
        loop {
            let server_ips = server_ips.iter().map(ToString::to_string).collect();
            let request = ListServersRequest { server_ips, page_size, page_token };
            let page = bounded("the servers", client.list_servers(request)).await?.into_inner();
            for of_job in page.jobs {
                for ServerStatus { server_ip, disabled, instance_count } in of_job.servers {
                    found.push((of_job.job_name.clone(), server_ip, disabled, instance_count));
                }
            }
            if page.next_page_token.is_empty() {
                break Ok::<_, Status>(found);
            }
            page_token = page.next_page_token;
        }
    };
    let line =
        |job: &str, ip: &str, disabled, instances| (job.to_owned(), ip.to_owned(), disabled, instances);
    let all = [
        line("bills", "10.0.0.2", false, 1),
        line("bills", "10.0.0.10", true, 0),
        line("orders", "10.0.0.2", true, 0),
    ];
    for page_size in [0, 1] {
        assert_eq!(list(&[], page_size).await.unwrap(), all, "pages of {page_size}");
        assert_eq!(list(&["10.0.0.2"], page_size).await.unwrap(), [all[0].clone(), all[2].clone()]);
        assert_eq!(list(&["10.0.0.3"], page_size).await.unwrap(), []);
    }
    let refused = list(&["server-1"], 0).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
}

#[tokio::test]
async fn op_2_the_etag_changes_with_each_change_and_when_the_node_is_created_anew() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut seen = Vec::new();
    for change in 0..2 {
        fleet.nodes.put("config", CONFIG).await;
        seen.push(get(&sidecar, JOB).await.unwrap().etag);
        fleet.nodes.put("config", CONFIG.replace("total", "x")).await;
        fleet.nodes.put("config", CONFIG).await;
        seen.push(get(&sidecar, JOB).await.unwrap().etag);
        if change == 0 {
            fleet.nodes.delete("config").await;
        }
    }
    let unique: std::collections::BTreeSet<_> = seen.iter().collect();
    assert_eq!(unique.len(), seen.len(), "{seen:?}");
    assert_eq!(get(&sidecar, JOB).await.unwrap().etag, seen[3], "it stays while nothing changes");
}

#[tokio::test]
async fn se_13_a_caller_who_only_views_sees_no_parameters_and_no_document() {
    let fleet = Fleet::new().await;
    let viewer = fleet
        .sidecar_with(1, |config| {
            for listen in &mut config.listen {
                listen.rights = sidekeeper::config::Roles::parse("view").unwrap().into();
            }
        })
        .await;
    fleet.nodes.put("config", CONFIG).await;
    let found = get(&viewer, JOB).await.unwrap();
    assert!(found.parameters_hidden && !format!("{found:?}").contains("secret-parameter"), "{found:?}");
    assert!(!found.etag.is_empty());
    let operator = fleet.sidecar_with(2, |_| ()).await;
    let found = get(&operator, JOB).await.unwrap();
    assert!(found.document.contains("secret-parameter"), "{found:?}");
}

#[tokio::test]
async fn names_that_a_caller_may_not_use_are_not_listed() {
    let fleet = Fleet::new().await;
    let sidecar = fleet
        .sidecar_with(1, |config| {
            config.jobs_allowed = sidekeeper::config::Names::parse("mine-*").unwrap();
        })
        .await;
    fleet.nodes.put("config", CONFIG).await;
    assert_eq!(page(&sidecar, 0, "").await.unwrap(), (Vec::new(), String::new()));
    let all = fleet.sidecar_with(2, |_| ()).await;
    assert_eq!(page(&all, 0, "").await.unwrap().0.len(), 1);
}
