//! `UpdateJob` and `RemoveJob`: instances follow a change within moments, nothing of others is undone, and a removed job leaves no node.

use std::pin::pin;
use std::sync::Arc;

use prost_types::FieldMask;
use sidekeeper::proto::job_service_client::JobServiceClient;
use sidekeeper::proto::{
    GetJobRequest, JobConfiguration, RemoveJobRequest, RemoveServersRequest, StopInstancesRequest,
    TriggerJobRequest, UpdateJobRequest, UpdateJobResponse,
};
use sidekeeper::registry::counted::Counted;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::fleet::{Fleet, JOB, RunningSidecar, Tree, bounded, job, request};

const CONFIG: &str =
    "# ours\ncron: 0 0 0 1 1 ? *\njavaOnly: {a: 1}\njobName: orders\nshardingTotalCount: 2\n";

async fn update(
    sidecar: &RunningSidecar,
    fields: &[&str],
    configuration: JobConfiguration,
    change: impl FnOnce(&mut UpdateJobRequest),
) -> Result<UpdateJobResponse, Status> {
    let mut client = JobServiceClient::new(sidecar.connect().await);
    let mut request = UpdateJobRequest {
        job_name: JOB.to_owned(),
        configuration: Some(configuration),
        update_mask: Some(FieldMask { paths: fields.iter().map(ToString::to_string).collect() }),
        ..UpdateJobRequest::default()
    };
    change(&mut request);
    bounded("the update", client.update_job(request)).await.map(tonic::Response::into_inner)
}

async fn remove(sidecar: &RunningSidecar, etag: &str, force: bool) -> Result<u32, Status> {
    let mut client = JobServiceClient::new(sidecar.connect().await);
    let request = RemoveJobRequest { job_name: JOB.to_owned(), etag: etag.to_owned(), force };
    bounded("the removal", client.remove_job(request)).await.map(|answer| answer.into_inner().removed_nodes)
}

async fn etag(sidecar: &RunningSidecar) -> String {
    let mut client = JobServiceClient::new(sidecar.connect().await);
    let request = GetJobRequest { job_name: JOB.to_owned() };
    bounded("the job", client.get_job(request)).await.unwrap().into_inner().etag
}

fn total(count: u32) -> JobConfiguration {
    JobConfiguration { sharding_total_count: count, cron: "not asked for".to_owned(), ..job(count) }
}

#[tokio::test]
async fn op_2_instances_follow_an_update_and_everything_else_stays_byte_for_byte() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    fleet.nodes.put("config", CONFIG).await;
    let mut app = sidecar.attach(request(None)).await;
    app.assigned(&[0, 1]).await;
    let other = fleet.sidecar_with(2, |_| ()).await;
    let updated = update(&other, &["sharding_total_count"], total(3), |_| ()).await.unwrap();
    assert_eq!(updated.changed_fields, ["sharding_total_count"]);
    assert_eq!(updated.etag, etag(&sidecar).await);
    app.assigned(&[0, 1, 2]).await;
    let document = fleet.nodes.tree().await.text("config").unwrap();
    assert_eq!(document, CONFIG.replace("Count: 2", "Count: 3"));
    // The same once more writes nothing.
    let same = update(&other, &["sharding_total_count"], total(3), |_| ()).await.unwrap();
    assert_eq!((same.changed_fields.len(), same.etag), (0, updated.etag));
}

#[tokio::test]
async fn op_2_an_update_of_an_old_state_is_refused_also_when_the_node_was_created_anew() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    fleet.nodes.put("config", CONFIG).await;
    let seen = etag(&sidecar).await;
    fleet.nodes.delete("config").await;
    fleet.nodes.put("config", CONFIG).await;
    let with = |etag: &str| {
        let etag = etag.to_owned();
        |request: &mut UpdateJobRequest| request.etag = etag
    };
    let refused = update(&sidecar, &["sharding_total_count"], total(4), with(&seen)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted, "{refused:?}");
    let details = refused.get_error_details();
    let info = details.error_info().unwrap();
    let now = etag(&sidecar).await;
    assert_eq!((info.reason.as_str(), info.metadata.get("etag")), ("CONFIGURATION_CHANGED", Some(&now)));
    assert_eq!(fleet.nodes.tree().await.text("config").unwrap(), CONFIG);
    // A call that only checks changes nothing, and a change with its etag is carried out.
    let dry = update(&sidecar, &["sharding_total_count"], total(4), |request| request.validate_only = true);
    let dry = dry.await.unwrap();
    assert_eq!((dry.etag.as_str(), dry.changed_fields.len()), (now.as_str(), 1));
    assert_eq!(fleet.nodes.tree().await.text("config").unwrap(), CONFIG);
    update(&sidecar, &["sharding_total_count"], total(4), with(&dry.etag)).await.unwrap();
}

#[tokio::test]
async fn a_wrong_update_names_its_fields_and_changes_nothing() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let missing = update(&sidecar, &["sharding_total_count"], total(4), |_| ()).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound, "{missing:?}");
    fleet.nodes.put("config", CONFIG).await;
    for (fields, configuration, field) in [
        (&["sharding_total_count"][..], total(0), "configuration.sharding_total_count"),
        (&["cron"], total(2), "configuration.cron"),
        (&["job_class"], total(2), "update_mask"),
        (&["crom"], total(2), "update_mask"),
        (&[], total(2), "update_mask"),
    ] {
        let refused = update(&sidecar, fields, configuration, |_| ()).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
        let details = refused.get_error_details();
        let violations = details.bad_request().unwrap().field_violations.clone();
        assert_eq!(violations.iter().map(|one| one.field.as_str()).collect::<Vec<_>>(), [field]);
    }
    fleet.nodes.put("config", "{jobName: orders, shardingTotalCount: 2}").await;
    let refused = update(&sidecar, &["sharding_total_count"], total(4), |_| ()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
}

#[tokio::test]
async fn a_job_is_created_for_applications_that_attach_by_its_name_and_removed_with_all_its_nodes() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let all = ["cron", "sharding_total_count", "monitor_execution", "failover"];
    let create = |request: &mut UpdateJobRequest| request.allow_missing = true;
    let created = update(&sidecar, &all, job(2), create).await.unwrap();
    assert_eq!(created.etag, etag(&sidecar).await);
    let mut app = sidecar.attach(request(None)).await;
    app.assigned(&[0, 1]).await;
    let mut client = JobServiceClient::new(sidecar.connect().await);
    let trigger = TriggerJobRequest { job_name: JOB.to_owned(), ..Default::default() };
    bounded("the trigger", client.trigger_job(trigger)).await.unwrap();
    app.executes(2).await;
    let refused = remove(&sidecar, &created.etag, false).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    let stale = remove(&sidecar, "\"1.1\"", true).await.unwrap_err();
    assert_eq!(stale.code(), Code::Aborted, "{stale:?}");
    let application = async {
        let stopped = |tree: &Tree| tree.children("instances").is_empty();
        let tree = fleet.nodes.until("the stop", stopped).await;
        // The instance begins nothing more, and its executions go on.
        assert_eq!((tree.running().len(), tree.has("config")), (2, true), "{tree:?}");
        app.report_all_open().await;
    };
    let removal = remove(&sidecar, &created.etag, true);
    let (removed, ()) = futures::future::join(removal, application).await;
    assert!(removed.unwrap() > 5);
    let left = fleet.nodes.until("no node is left", |tree| tree.names().is_empty()).await;
    assert_eq!(left.all().count(), 0);
    let unknown = remove(&sidecar, &created.etag, true).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound, "{unknown:?}");
}

#[tokio::test]
async fn a_job_without_instances_is_removed_only_after_its_executions() {
    let fleet = Fleet::new().await;
    let registry = Counted::new(fleet.registry.clone());
    let sidecar = fleet.sidecar_on(Arc::new(registry.clone())).await;
    fleet.nodes.put("config", CONFIG).await;
    // As an instance leaves it that is away for its grace.
    fleet.nodes.put("sharding/1/running", "").await;
    let seen = etag(&sidecar).await;
    let before = registry.counts();
    // A removal that does not wait reads the nodes six times.
    let waits = async {
        while registry.counts().since(before).watches < 9 {
            tokio::task::yield_now().await;
        }
    };
    let mut removal = pin!(remove(&sidecar, &seen, false));
    tokio::select! {
        biased;
        removed = &mut removal => panic!("it is removed beside the execution: {removed:?}"),
        () = bounded("the looks of the removal", waits) => {}
    }
    assert_eq!(etag(&sidecar).await, seen);
    fleet.nodes.delete("sharding/1/running").await;
    assert!(removal.await.unwrap() > 1);
    assert!(!fleet.nodes.tree().await.has("config"));
}

#[tokio::test]
async fn instances_are_stopped_by_id_and_by_server_and_servers_without_instances_are_removed() {
    let fleet = Fleet::new().await;
    let (one, two) = (fleet.sidecar().await, fleet.sidecar_with(2, |_| ()).await);
    let mut first = one.attach(request(job(2))).await;
    let mut second = two.attach(request(job(2))).await;
    let id = first.attached.instance_id.clone();
    let mut client = JobServiceClient::new(two.connect().await);
    let mut stop = async |instance_ids: &[&str], server_ips: &[&str]| {
        let text = |given: &[&str]| given.iter().map(ToString::to_string).collect();
        let request = StopInstancesRequest {
            job_name: JOB.to_owned(),
            instance_ids: text(instance_ids),
            server_ips: text(server_ips),
        };
        let answer = bounded("the stop", client.stop_instances(request)).await;
        answer.map(|answer| answer.into_inner().stopped_instance_ids)
    };
    let unknown = stop(&[&id, "10.0.0.9@-@1"], &[]).await.unwrap_err();
    assert_eq!(unknown.code(), Code::InvalidArgument, "{unknown:?}");
    assert_eq!(stop(&[&id], &[]).await.unwrap(), [id.as_str()]);
    let (ended, _) = first.end().await;
    assert_eq!(ended.unwrap_err().code(), Code::FailedPrecondition);
    second.assigned(&[0, 1]).await;
    let mut client = JobServiceClient::new(two.connect().await);
    let mut remove = async |server: &str| {
        let request = RemoveServersRequest { job_name: JOB.to_owned(), server_ips: vec![server.to_owned()] };
        bounded("the removal", client.remove_servers(request)).await.map(drop)
    };
    assert_eq!(remove("10.0.0.2").await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(remove("10.0.0.9").await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(remove("all").await.unwrap_err().code(), Code::InvalidArgument);
    remove("10.0.0.1").await.unwrap();
    let tree = fleet.nodes.tree().await;
    assert_eq!(tree.children("servers"), ["10.0.0.2"]);
    assert_eq!(stop(&[], &["10.0.0.2"]).await.unwrap(), [second.attached.instance_id.as_str()]);
    let (ended, _) = second.end().await;
    assert_eq!(ended.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(stop(&[], &[]).await.unwrap(), Vec::<String>::new());
}
