//! `BackupNamespace` and `RestoreNamespace` on the embedded registry: what comes back, what is refused, and that tokens grow.

use std::collections::BTreeSet;

use futures::stream::iter;
use sidekeeper::proto::diagnostics_service_client::DiagnosticsServiceClient;
use sidekeeper::proto::namespace_service_client::NamespaceServiceClient;
use sidekeeper::proto::{
    BackupNamespaceRequest, CheckDeploymentRequest, RestoreNamespaceRequest, RestoreNamespaceResponse,
};
use sidekeeper::tree::{NodeKind, Operation, Path};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::fleet::{Fleet, JOB, RunningSidecar, bounded, each_second, job, request, request_for};

async fn backup(sidecar: &RunningSidecar) -> Vec<u8> {
    let mut client = NamespaceServiceClient::new(sidecar.connect().await);
    let answer = bounded("the backup", client.backup_namespace(BackupNamespaceRequest {})).await;
    let (mut chunks, mut file) = (answer.unwrap().into_inner(), Vec::new());
    while let Some(message) = bounded("the next chunk", chunks.message()).await.unwrap() {
        file.extend(message.chunk);
    }
    file
}

async fn restore(
    sidecar: &RunningSidecar,
    file: &[u8],
    change: impl FnOnce(&mut RestoreNamespaceRequest),
) -> Result<RestoreNamespaceResponse, Status> {
    let mut client = NamespaceServiceClient::new(sidecar.connect().await);
    let mut first = RestoreNamespaceRequest::default();
    change(&mut first);
    let chunk = |chunk: &[u8]| RestoreNamespaceRequest { chunk: chunk.to_vec(), ..Default::default() };
    let messages: Vec<_> = std::iter::once(first).chain(file.chunks(1_000).map(chunk)).collect();
    bounded("the restore", client.restore_namespace(iter(messages))).await.map(tonic::Response::into_inner)
}

/// The reason of a refusal.
fn reason(status: &Status) -> String {
    status.get_details_error_info().unwrap().reason
}

fn own(fleet: &Fleet, name: &str) -> Path {
    Path::parse(&format!("/{}-sidekeeper/{name}", fleet.namespace)).unwrap()
}

async fn findings(sidecar: &RunningSidecar) -> Vec<String> {
    let mut client = DiagnosticsServiceClient::new(sidecar.connect().await);
    let request = CheckDeploymentRequest { without_jobs: true };
    let mut checks = client.check_deployment(request).await.unwrap().into_inner();
    let mut codes = Vec::new();
    while let Some(check) = bounded("a check", checks.message()).await.unwrap() {
        codes.extend(check.findings.into_iter().map(|finding| finding.code));
    }
    codes
}

/// A namespace with a job that has fired, an item that is disabled and a sticky lock; and its backup.
async fn used() -> (Fleet, RunningSidecar, Vec<u8>, i64) {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut app = sidecar.attach(request(each_second(2))).await;
    app.assigned(&[0, 1]).await;
    let mut token = 0;
    for _ in 0..4 {
        let execution = app.execute().await;
        token = token.max(execution.fencing_token);
        app.report_success(&execution).await;
    }
    fleet.nodes.put("sharding/1/disabled", "").await;
    let record = own(&fleet, "@-@locks/sticky/nightly/record");
    for top in ["@-@locks", "@-@locks/sticky", "@-@locks/sticky/nightly"] {
        fleet.nodes.commit(vec![Operation::create(own(&fleet, top), NodeKind::Persistent, "")]).await;
    }
    let content =
        r#"{"owner":"m1","stand":"00000000-0000-0000-0000-000000000007","grace_ms":10000,"written":"grant"}"#;
    fleet.nodes.commit(vec![Operation::create(record, NodeKind::Persistent, content)]).await;
    drop(app);
    fleet.nodes.until("the instance has left", |tree| tree.children("instances").is_empty()).await;
    let file = backup(&sidecar).await;
    (fleet, sidecar, file, token)
}

#[tokio::test]
async fn a_restored_job_runs_on_with_its_ledger_and_its_switches_and_with_higher_tokens() {
    let (before, _sidecar, file, token) = used().await;
    let old = before.nodes.tree().await;
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let shown = restore(&sidecar, &file, |wish| wish.validate_only = true).await.unwrap();
    assert_eq!((shown.jobs, shown.tokens_may_fall, shown.changed_paths.len()), (1, false, 0), "{shown:?}");
    assert!(!fleet.nodes.tree().await.has("config"), "a look writes nothing");
    let done = restore(&sidecar, &file, |wish| wish.etag.clone_from(&shown.etag)).await.unwrap();
    assert_eq!((done.created_nodes, done.kept_nodes), (shown.created_nodes, 0));
    let new = fleet.nodes.tree().await;
    for name in ["config", "servers/10.0.0.1", "sharding/0/instance", "sharding/1/disabled"] {
        assert_eq!(new.text(name), old.text(name), "{name}");
    }
    for name in ["instances", "leader/election/instance", "sharding/0/running"] {
        assert!(!new.has(name), "{name}");
    }
    let entry = |fleet: &Fleet, item: u32| own(fleet, &format!("{JOB}/fires/{item}"));
    for item in [0, 1] {
        assert_eq!(new.data_of(&entry(&fleet, item)), old.data_of(&entry(&before, item)), "item {item}");
    }
    let record = new.data_of(&own(&fleet, "@-@locks/sticky/nightly/record")).unwrap();
    let granted = old.created_of(&own(&before, "@-@locks/sticky/nightly/record"));
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    assert_eq!((&record["token"], &record["owner"]), (&granted.into(), &"m1".into()));
    assert_eq!(findings(&sidecar).await, Vec::<String>::new());
    // The same once more does nothing.
    let again = restore(&sidecar, &file, |_| ()).await.unwrap();
    assert_eq!((again.created_nodes, again.kept_nodes), (0, shown.created_nodes));
    let mut app = sidecar.attach(request(None)).await;
    let execution = app.execute().await;
    assert!(execution.fencing_token > token, "{} is not above {token}", execution.fencing_token);
    assert_eq!(execution.item, 0, "item 1 is disabled");
    let latest: i64 = old.data_of(&entry(&before, 0)).unwrap().split(' ').next().unwrap().parse().unwrap();
    let fired = execution.scheduled_time.unwrap();
    assert!(fired.seconds * 1_000 > latest, "{fired:?} was executed before the backup");
}

#[tokio::test]
async fn a_restore_over_instances_or_other_nodes_needs_force_and_changes_nothing_without_it() {
    let (fleet, sidecar, file, _) = used().await;
    // As it is.
    let same = restore(&sidecar, &file, |_| ()).await.unwrap();
    assert_eq!((same.created_nodes, same.changed_paths.len(), same.removed_paths.len()), (0, 0, 0));
    fleet.nodes.edit_configuration("description: ''", "description: 'changed'").await;
    fleet.nodes.put("sharding/0/disabled", "").await;
    fleet.nodes.delete("sharding/1/disabled").await;
    let before = fleet.nodes.tree().await;
    let refused = restore(&sidecar, &file, |_| ()).await.unwrap_err();
    assert_eq!((refused.code(), reason(&refused).as_str()), (Code::FailedPrecondition, "NAMESPACE_DIFFERS"));
    assert!(refused.message().contains("2 nodes"), "{refused}");
    assert_eq!(fleet.nodes.tree().await, before);
    let shown = restore(&sidecar, &file, |wish| wish.validate_only = true).await.unwrap();
    let path = |name: &str| vec![fleet.nodes.path(name).to_string()];
    assert_eq!((&shown.changed_paths, &shown.removed_paths), (&path("config"), &path("sharding/0/disabled")));
    // The namespace changes after it was shown.
    fleet.nodes.put("sharding/0/misfire", "").await;
    let etag = shown.etag.clone();
    let late = restore(&sidecar, &file, |wish| (wish.force, wish.etag) = (true, etag)).await.unwrap_err();
    assert_eq!((late.code(), reason(&late).as_str()), (Code::Aborted, "REGISTRY_CHANGING"));
    // Another job has an instance online.
    let _other = sidecar.attach(request_for("other", job(1))).await;
    let online = restore(&sidecar, &file, |_| ()).await.unwrap_err();
    assert_eq!((online.code(), reason(&online).as_str()), (Code::FailedPrecondition, "INSTANCES_ONLINE"));
    assert!(online.message().contains("`other` of the namespace has 1 instances online"), "{online}");
    let done = restore(&sidecar, &file, |wish| wish.force = true).await.unwrap();
    assert_eq!(
        (done.online_job_names, done.other_job_names),
        (vec!["other".to_owned()], vec!["other".to_owned()])
    );
    let tree = fleet.nodes.tree().await;
    assert!(
        tree.has("sharding/1/disabled")
            && !tree.has("sharding/0/disabled")
            && !tree.has("sharding/0/misfire")
    );
    assert!(!tree.text("config").unwrap().contains("changed"));
}

#[tokio::test]
async fn a_restore_that_broke_off_goes_on_and_a_later_ledger_stays() {
    let (_, _sidecar, file, _) = used().await;
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    restore(&sidecar, &file, |_| ()).await.unwrap();
    let whole = fleet.nodes.tree().await;
    // The last steps of a restore are missing.
    for name in ["config", "sharding/1/disabled", "sharding/1/instance"] {
        fleet.nodes.delete(name).await;
    }
    let entry = own(&fleet, &format!("{JOB}/fires/0"));
    fleet.nodes.commit(vec![Operation::set(entry.clone(), "99999999999999 99999999999999 -")]).await;
    let done = restore(&sidecar, &file, |_| ()).await.unwrap();
    assert_eq!((done.created_nodes, done.changed_paths.len()), (3, 0));
    let tree = fleet.nodes.tree().await;
    let names = |all: &crate::fleet::Tree| all.all().map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(names(&tree), names(&whole));
    assert_eq!(tree.data_of(&entry).unwrap(), "99999999999999 99999999999999 -");
}

#[tokio::test]
async fn fires_up_to_a_given_instant_count_as_executed() {
    let (_, _sidecar, file, _) = used().await;
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let settled = Some(prost_types::Timestamp { seconds: 99_999_999_999, nanos: 0 });
    restore(&sidecar, &file, |wish| wish.settled_until = settled).await.unwrap();
    let tree = fleet.nodes.tree().await;
    for item in [0, 1] {
        let entry = tree.data_of(&own(&fleet, &format!("{JOB}/fires/{item}"))).unwrap();
        assert!(entry.starts_with("99999999999000 "), "{entry}");
    }
}

#[tokio::test]
async fn a_file_that_is_no_whole_backup_is_refused_and_changes_nothing() {
    let (_, _sidecar, file, _) = used().await;
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let mut changed = file.clone();
    let middle = file.len() / 2;
    changed[middle] ^= 1;
    for (wrong, why) in [
        (&file[..file.len() - 1], "it was cut"),
        (&changed[..], "checksum"),
        (&b""[..], "no backup of Sidekeeper"),
        (&b"cron: x\n"[..], "no backup of Sidekeeper"),
    ] {
        let before = fleet.nodes.tree().await;
        let refused = restore(&sidecar, wrong, |wish| wish.force = true).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().starts_with("chunk: ") && refused.message().contains(why), "{refused}");
        assert_eq!(fleet.nodes.tree().await, before);
    }
}
