//! `ExplainJob`: each fault in the nodes of a job, alone and together with each other one, is named by its code and no other, and
//! the remedy ends it (OP-4). The faults are written as ElasticJob's instances and operators leave them.

use std::collections::BTreeSet;

use futures::stream::TryStreamExt as _;
use sidekeeper::proto::diagnostics_service_client::DiagnosticsServiceClient;
use sidekeeper::proto::job_service_client::JobServiceClient;
use sidekeeper::proto::{
    CheckDeploymentRequest, ExplainJobRequest, ExplainJobResponse, Finding, FindingSeverity, ItemVerdict,
    TriggerJobRequest, finding_subject::Subject,
};
use sidekeeper::tree::{NodeKind, Operation, Path};
use tonic::{Code, Status};

use crate::fleet::{Fleet, JOB, RunningSidecar, bounded, each_second, failure, job, request};

const ONE: &str = "10.0.0.8@-@1";
const TWO: &str = "10.0.0.9@-@1";
/// Fires at no time that a test meets.
const CONFIG: &str = "jobName: orders\ncron: 0 0 0 1 1 ? *\nshardingTotalCount: 4\nmonitorExecution: true\n";

async fn explain(sidecar: &RunningSidecar, job: &str, items: &[u32]) -> Result<ExplainJobResponse, Status> {
    let mut client = DiagnosticsServiceClient::new(sidecar.connect().await);
    let request = ExplainJobRequest { job_name: job.to_owned(), items: items.to_vec() };
    bounded("the answer", client.explain_job(request)).await.map(tonic::Response::into_inner)
}

/// The nodes of a job with four items that two Java instances run.
async fn java_job(fleet: &Fleet) {
    let nodes = &fleet.nodes;
    for (name, data) in [("config", CONFIG), ("leader/election/instance", ONE), ("leader/sharding", "")] {
        nodes.put(name, data).await;
    }
    for id in [ONE, TWO] {
        let ip = id.split_once("@-@").unwrap().0;
        nodes.put(&format!("servers/{ip}"), "ENABLED").await;
        nodes.put(&format!("instances/{id}"), format!("jobInstanceId: {id}\nserverIp: {ip}\n")).await;
        nodes.put("trigger", "").await;
    }
    for (item, owner) in [(0, ONE), (1, ONE), (2, TWO), (3, TWO)] {
        nodes.put(&format!("sharding/{item}/instance"), owner).await;
    }
}

/// A fault: the writes that inflict it and undo it, the codes that must be found, and the items that it blocks or delays.
struct Fault {
    name: &'static str,
    inflict: &'static [Write],
    undo: &'static [Write],
    codes: &'static [&'static str],
    verdict: ItemVerdict,
    items: &'static [u32],
}

enum Write {
    Put(&'static str, &'static str),
    Delete(&'static str),
}

use Write::{Delete, Put};

const ALL: &[u32] = &[0, 1, 2, 3];

const FAULTS: &[Fault] = &[
    Fault {
        name: "an item is disabled and forgotten",
        inflict: &[Put("sharding/0/disabled", "")],
        undo: &[Delete("sharding/0/disabled")],
        codes: &["ITEM_DISABLED"],
        verdict: ItemVerdict::Blocked,
        items: &[0],
    },
    Fault {
        name: "an item has no owner",
        inflict: &[Delete("sharding/1/instance")],
        undo: &[Put("sharding/1/instance", ONE)],
        codes: &["ITEM_UNOWNED"],
        verdict: ItemVerdict::Blocked,
        items: &[1],
    },
    Fault {
        name: "an owner is not online",
        inflict: &[Put("sharding/2/instance", "10.0.0.7@-@1")],
        undo: &[Put("sharding/2/instance", TWO)],
        codes: &["ITEM_OWNER_OFFLINE"],
        verdict: ItemVerdict::Blocked,
        items: &[2],
    },
    Fault {
        name: "a running node of an instance that is gone",
        inflict: &[Put("sharding/3/running", "10.0.0.7@-@1")],
        undo: &[Delete("sharding/3/running")],
        codes: &["ITEM_RUNNING_STALE"],
        verdict: ItemVerdict::Blocked,
        items: &[3],
    },
    Fault {
        name: "a crashed execution that nobody has taken over",
        inflict: &[Put("leader/failover/items/0", "")],
        undo: &[Delete("leader/failover/items/0")],
        codes: &["ITEM_FAILOVER_WAITS"],
        verdict: ItemVerdict::Waits,
        items: &[0],
    },
    Fault {
        name: "a missed fire",
        inflict: &[Put("sharding/1/misfire", "")],
        undo: &[Delete("sharding/1/misfire")],
        codes: &["ITEM_MISFIRED"],
        verdict: ItemVerdict::Runs,
        items: &[],
    },
    Fault {
        name: "a resharding that a Java leader does at its next fire",
        inflict: &[Put("leader/sharding/necessary", "")],
        undo: &[Delete("leader/sharding/necessary")],
        codes: &["RESHARDING_WAITS_FOR_JAVA_FIRE"],
        verdict: ItemVerdict::Waits,
        items: ALL,
    },
    Fault {
        name: "a resharding that goes on",
        inflict: &[Put("leader/sharding/processing", "")],
        undo: &[Delete("leader/sharding/processing")],
        codes: &["RESHARDING_GOES_ON"],
        verdict: ItemVerdict::Waits,
        items: ALL,
    },
    Fault {
        name: "no leader",
        inflict: &[Delete("leader/election/instance")],
        undo: &[Put("leader/election/instance", ONE)],
        codes: &["LEADER_MISSING"],
        verdict: ItemVerdict::Runs,
        items: &[],
    },
    Fault {
        name: "a trigger that nobody has taken up",
        inflict: &[Put("trigger/10.0.0.8@-@1", "")],
        undo: &[Delete("trigger/10.0.0.8@-@1")],
        codes: &["TRIGGER_WAITS"],
        verdict: ItemVerdict::Runs,
        items: &[],
    },
    Fault {
        name: "a server without an address",
        inflict: &[Put("servers/nonsense", "ENABLED")],
        undo: &[Delete("servers/nonsense")],
        codes: &["NODE_UNREADABLE"],
        verdict: ItemVerdict::Runs,
        items: &[],
    },
    Fault {
        name: "a server that is disabled, and still owns items",
        inflict: &[Put("servers/10.0.0.9", "DISABLED")],
        undo: &[Put("servers/10.0.0.9", "ENABLED")],
        codes: &["SERVER_DISABLED", "ITEM_SERVER_DISABLED"],
        verdict: ItemVerdict::Blocked,
        items: &[2, 3],
    },
];

async fn write(fleet: &Fleet, writes: &[Write]) {
    for write in writes {
        match write {
            Put(name, data) => fleet.nodes.put(name, data).await,
            Delete(name) => fleet.nodes.delete(name).await,
        }
    }
}

fn findings(answer: &ExplainJobResponse) -> impl Iterator<Item = &Finding> {
    answer.findings.iter().chain(answer.items.iter().flat_map(|item| &item.because))
}

fn codes(answer: &ExplainJobResponse) -> BTreeSet<&str> {
    findings(answer).map(|finding| finding.code.as_str()).collect()
}

fn items_that(answer: &ExplainJobResponse, verdict: ItemVerdict) -> BTreeSet<u32> {
    answer.items.iter().filter(|item| item.verdict() == verdict).map(|item| item.item).collect()
}

fn set<'a, T: Ord + Copy + 'a>(of: impl IntoIterator<Item = &'a [T]>) -> BTreeSet<T> {
    of.into_iter().flatten().copied().collect()
}

#[tokio::test]
async fn op_4_each_fault_and_each_two_of_them_are_named_exactly_and_end_with_the_remedy() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    java_job(&fleet).await;
    let healthy = explain(&sidecar, JOB, &[]).await.unwrap();
    assert_eq!(codes(&healthy), BTreeSet::new(), "{healthy:#?}");
    assert_eq!(items_that(&healthy, ItemVerdict::Runs), set([ALL]));
    assert_eq!((healthy.instance_count, healthy.java_instance_count), (2, 2));
    assert_eq!((healthy.leader_instance_id.as_str(), healthy.sharding_total_count), (ONE, 4));
    for (index, first) in FAULTS.iter().enumerate() {
        // The same one twice: alone.
        for second in &FAULTS[index..] {
            let both = if first.name == second.name { vec![first] } else { vec![first, second] };
            for fault in &both {
                write(&fleet, fault.inflict).await;
            }
            let answer = explain(&sidecar, JOB, &[]).await.unwrap();
            let names = (first.name, second.name);
            let mut expected = set(both.iter().map(|fault| fault.codes));
            // While a resharding goes on, items without owners, with owners that are gone, or of a disabled server are what it
            // mends; and one that goes on is due no longer.
            let reshards = both.iter().any(|fault| fault.name.starts_with("a resharding"));
            if reshards {
                for code in ["ITEM_UNOWNED", "ITEM_OWNER_OFFLINE"] {
                    expected.remove(code);
                }
            }
            if both.iter().all(|fault| fault.name.starts_with("a resharding")) && both.len() == 2 {
                expected.remove("RESHARDING_WAITS_FOR_JAVA_FIRE");
            }
            if both.iter().any(|fault| fault.codes == ["ITEM_RUNNING_STALE"])
                && expected.remove("RESHARDING_WAITS_FOR_JAVA_FIRE")
            {
                expected.insert("RESHARDING_WAITS_FOR_RUNNING");
            }
            // Without a leader the kind of the next leader is not known.
            if both.iter().any(|fault| fault.codes == ["LEADER_MISSING"])
                && expected.remove("RESHARDING_WAITS_FOR_JAVA_FIRE")
            {
                expected.insert("RESHARDING_GOES_ON");
            }
            assert_eq!(codes(&answer), expected, "{names:?}: {answer:#?}");
            let blocked =
                both.iter().filter(|fault| fault.verdict == ItemVerdict::Blocked).map(|fault| fault.items);
            let mut blocked = set(blocked);
            if reshards {
                for fault in both
                    .iter()
                    .filter(|fault| ["ITEM_UNOWNED", "ITEM_OWNER_OFFLINE"].contains(&fault.codes[0]))
                {
                    blocked.retain(|item| !fault.items.contains(item));
                }
            }
            assert_eq!(items_that(&answer, ItemVerdict::Blocked), blocked, "{names:?}");
            let waiting =
                both.iter().filter(|fault| fault.verdict == ItemVerdict::Waits).map(|fault| fault.items);
            let waiting: BTreeSet<_> = set(waiting).difference(&blocked).copied().collect();
            assert_eq!(items_that(&answer, ItemVerdict::Waits), waiting, "{names:?}");
            for finding in findings(&answer) {
                assert!(!finding.message.is_empty() && !finding.paths.is_empty(), "{finding:?}");
                assert_eq!(finding.anchor, format!("docs/operations.md#{}", finding.code.to_lowercase()));
                let needs_help = finding.severity() == FindingSeverity::Error;
                assert!(!needs_help || !finding.remedy.is_empty(), "{finding:?}");
            }
            for fault in &both {
                write(&fleet, fault.undo).await;
            }
            let after = explain(&sidecar, JOB, &[]).await.unwrap();
            assert_eq!(codes(&after), BTreeSet::new(), "{names:?}");
        }
    }
}

#[tokio::test]
async fn op_4_what_is_wrong_with_a_configuration_or_with_all_instances_is_named_alone() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    java_job(&fleet).await;
    let found = async || {
        codes(&explain(&sidecar, JOB, &[]).await.unwrap()).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for (config, code) in [
        ("jobName: [", "JOB_CONFIG_UNREADABLE"),
        ("jobName: orders\nshardingTotalCount: 4\n", "JOB_NO_SCHEDULE"),
        ("jobName: orders\nshardingTotalCount: 4\ncron: 0 0 0 1 1 ? 2001\n", "JOB_NEVER_FIRES_AGAIN"),
        (
            "jobName: orders\nshardingTotalCount: 4\ncron: 0 0 0 1 1 ? *\nshardingItemParameters: 0-A\n",
            "JOB_PARAMETERS_UNREADABLE",
        ),
        (
            "jobName: orders\nshardingTotalCount: 4\ncron: 0 0 0 1 1 ? *\nprops:\n  sidekeeper.grace: x\n",
            "JOB_SETTING_WRONG",
        ),
    ] {
        fleet.nodes.put("config", config).await;
        assert_eq!(found().await, [code], "{config}");
    }
    fleet.nodes.delete("config").await;
    assert_eq!(found().await, ["JOB_NOT_CONFIGURED"]);
    fleet.nodes.put("config", CONFIG).await;
    assert_eq!(found().await, Vec::<String>::new());
    for server in ["servers/10.0.0.8", "servers/10.0.0.9"] {
        fleet.nodes.put(server, "DISABLED").await;
    }
    assert_eq!(found().await, ["JOB_SERVERS_DISABLED"]);
    for server in ["servers/10.0.0.8", "servers/10.0.0.9"] {
        fleet.nodes.put(server, "ENABLED").await;
    }
    for id in [ONE, TWO] {
        fleet.nodes.delete(&format!("instances/{id}")).await;
    }
    fleet.nodes.delete("leader/election/instance").await;
    assert_eq!(found().await, ["JOB_NO_INSTANCES"]);
    let answer = explain(&sidecar, JOB, &[]).await.unwrap();
    assert_eq!(items_that(&answer, ItemVerdict::Blocked), set([ALL]));
}

#[tokio::test]
async fn op_4_our_own_nodes_of_a_job_that_was_removed_are_named_until_they_are_deleted() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let unknown = explain(&sidecar, JOB, &[]).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound, "{unknown:?}");
    let (namespace, own) = (path(&fleet.namespace), path(&format!("{}-sidekeeper", fleet.namespace)));
    let node = |path| Operation::create(path, NodeKind::Persistent, "");
    let [job, fires] = ["orders", "orders/fires"].map(|name| own.child(name));
    let create = [namespace, own.clone(), own.child("@-@locks"), job.clone(), fires.clone()].map(node);
    fleet.nodes.commit(create.into()).await;
    let left = explain(&sidecar, JOB, &[]).await.unwrap();
    assert_eq!(codes(&left), set([&["JOB_NODES_LEFT"][..]]), "{left:#?}");
    assert_eq!(left.findings[0].paths, [job.to_string()]);
    // `doctor` names it, too.
    let mut client = DiagnosticsServiceClient::new(sidecar.connect().await);
    let checks = bounded("the checks", client.check_deployment(CheckDeploymentRequest::default())).await;
    let checks: Vec<_> = bounded("the checks", checks.unwrap().into_inner().try_collect()).await.unwrap();
    let found: Vec<_> =
        checks.iter().flat_map(|check| &check.findings).map(|one| one.code.as_str()).collect();
    assert_eq!(found, ["JOB_NODES_LEFT"]);
    fleet.nodes.commit([fires, job].map(Operation::delete).into()).await;
    let unknown = explain(&sidecar, JOB, &[]).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound, "{unknown:?}");
}

fn path(name: &str) -> Path {
    Path::parse(&format!("/{name}")).unwrap()
}

#[tokio::test]
async fn op_4_executions_that_take_longer_than_the_schedule_or_fail_are_named() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(each_second(2))).await;
    app.assigned(&[0, 1]).await;
    let [one, two] = <[_; 2]>::try_from(app.executes(2).await).unwrap();
    let (failing, long) = if one.item == 0 { (one, two) } else { (two, one) };
    app.report(vec![failure(&failing.execution_id, "no such city")]).await.unwrap();
    // The item that failed is due again while the other one goes on.
    let again = app.execute().await;
    assert_eq!((again.item, long.item), (0, 1));
    let answer = explain(&sidecar, JOB, &[]).await.unwrap();
    let of = |item: usize| answer.items[item].because.iter().map(|one| one.code.as_str()).collect::<Vec<_>>();
    assert_eq!(of(0)[0], "ITEM_FAILING", "{answer:#?}");
    assert_eq!(answer.items[0].because[0].message, "its last execution failed: no such city");
    assert!(of(1).contains(&"ITEM_RUNNING_LONG"), "{answer:#?}");
    assert_eq!(answer.items[1].verdict(), ItemVerdict::Waits);
    let last = answer.items[0].last_execution.clone().unwrap();
    assert_eq!((last.message.as_str(), last.last_success_time), ("no such city", None));
    let since = answer.items[1].running_since.unwrap().seconds;
    assert!((0..60).contains(&(answer.as_of.unwrap().seconds - since)), "{answer:#?}");
    app.report_success(&again).await;
    let again = app.execute().await;
    let answer = explain(&sidecar, JOB, &[0]).await.unwrap();
    let last = answer.items[0].last_execution.clone().unwrap();
    assert!(last.last_success_time.is_some() && last.last_success_time == last.at, "{answer:#?}");
    app.report_success(&again).await;
    app.report_success(&long).await;
}

#[tokio::test]
async fn op_4_triggers_of_an_item_that_is_busy_are_named_until_they_are_taken_up() {
    let fleet = Fleet::new().await;
    let (first, other) = (fleet.sidecar().await, fleet.sidecar_with(2, |_| ()).await);
    let yearly = sidekeeper::proto::JobConfiguration { cron: "0 0 0 1 1 ? *".to_owned(), ..job(2) };
    let mut app = first.attach(request(yearly)).await;
    app.assigned(&[0, 1]).await;
    let mut jobs = JobServiceClient::new(other.connect().await);
    let mut trigger = async |item| {
        let wish = TriggerJobRequest { items: vec![item], ..TriggerJobRequest::default() };
        let wish = TriggerJobRequest { job_name: JOB.to_owned(), ..wish };
        bounded("the answer", jobs.trigger_job(wish)).await.unwrap();
    };
    let found = async || explain(&other, JOB, &[]).await.unwrap();
    trigger(1).await;
    let busy = app.execute().await;
    assert_eq!(codes(&found().await), BTreeSet::new());
    for waiting in ["a trigger of the item has not", "2 triggers of the item have not"] {
        trigger(1).await;
        let answer = found().await;
        assert_eq!(codes(&answer), set([&["ITEM_TRIGGER_WAITS"][..]]), "{answer:#?}");
        let finding = &answer.items[1].because[0];
        assert_eq!(finding.subject.clone().unwrap().subject, Some(Subject::Item(1)));
        assert!(finding.message.starts_with(waiting) && finding.since.is_some(), "{finding:?}");
        assert_eq!(items_that(&answer, ItemVerdict::Runs), set([&[0, 1][..]]));
    }
    app.report_success(&busy).await;
    let busy = app.execute().await;
    let one_left = found().await;
    assert!(one_left.items[1].because[0].message.starts_with("a trigger"), "{one_left:#?}");
    app.report_success(&busy).await;
    app.execute().await;
    assert_eq!(codes(&found().await), BTreeSet::new());
}

#[tokio::test]
async fn a_healthy_job_of_sidecars_has_no_finding() {
    let fleet = Fleet::new().await;
    let (first, second) = (fleet.sidecar().await, fleet.sidecar_with(2, |_| ()).await);
    let yearly = sidekeeper::proto::JobConfiguration { cron: "0 0 0 1 1 ? *".to_owned(), ..job(4) };
    let mut one = first.attach(request(yearly)).await;
    let mut two = second.attach(request(None)).await;
    one.assigned(&[0, 1]).await;
    two.assigned(&[2, 3]).await;
    fleet.nodes.settled_tree().await;
    // Any sidecar answers, also one without an instance of the job.
    let third = fleet.sidecar_with(3, |_| ()).await;
    for sidecar in [&first, &third] {
        let answer = explain(sidecar, JOB, &[]).await.unwrap();
        assert_eq!(codes(&answer), BTreeSet::new(), "{answer:#?}");
        assert_eq!((answer.instance_count, answer.java_instance_count), (2, 0));
        assert!(answer.next_fire_time.is_some() && answer.as_of.is_some());
    }
}

#[tokio::test]
async fn some_items_are_explained_and_unknown_ones_and_jobs_are_refused() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    java_job(&fleet).await;
    fleet.nodes.put("sharding/2/disabled", "").await;
    let answer = explain(&sidecar, JOB, &[2, 3, 2]).await.unwrap();
    let items: Vec<_> =
        answer.items.iter().map(|item| (item.item, item.verdict(), item.instance_id.as_str())).collect();
    assert_eq!(items, [(2, ItemVerdict::Blocked, TWO), (3, ItemVerdict::Runs, TWO)]);
    let finding = &answer.items[0].because[0];
    assert_eq!(finding.subject.clone().unwrap().subject, Some(Subject::Item(2)));
    assert_eq!(finding.paths, [fleet.nodes.path("sharding/2/disabled").to_string()]);
    let since = finding.since.unwrap().seconds;
    assert!((answer.as_of.unwrap().seconds - since).abs() < 60, "{answer:#?}");
    for (job, items, code, says) in [
        (JOB, &[4][..], Code::InvalidArgument, "has no item 4; allowed: 0 to 3"),
        ("nothing", &[], Code::NotFound, "no nodes of job `nothing`"),
        ("", &[], Code::InvalidArgument, "job_name"),
    ] {
        let status = explain(&sidecar, job, items).await.unwrap_err();
        assert_eq!(status.code(), code, "{status:?}");
        assert!(status.message().contains(says), "{status:?}");
    }
}

#[tokio::test]
async fn op_5_an_explanation_changes_no_node() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    java_job(&fleet).await;
    let before = fleet.nodes.tree().await;
    for _ in 0..20 {
        explain(&sidecar, JOB, &[]).await.unwrap();
    }
    let after = fleet.nodes.tree().await;
    assert_eq!(before, after);
}
