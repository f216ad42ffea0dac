//! Many small jobs on one fleet: they do not pile up on one instance (P1).

use std::collections::BTreeMap;

use sidekeeper::elasticjob::rendezvous;
use sidekeeper::job::JobName;
use sidekeeper::proto;

use crate::ground::{Ground, job, request_for};

const NAMES: [&str; 3] = ["w-0", "w-1", "w-2"];

#[tokio::test]
async fn p1_of_24_jobs_of_one_item_no_sidecar_has_more_than_13_in_any_order_of_registration() {
    let ground = Ground::new().await;
    let hosts =
        [ground.sidecar().await, ground.sidecar_with(2, |_| ()).await, ground.sidecar_with(3, |_| ()).await];
    let mut apps = Vec::new();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for number in 1..=24 {
        let name = format!("job-{number}");
        // The first one has the item until the others come.
        for (host, instance_name) in hosts.iter().zip(NAMES) {
            let instance_name = instance_name.to_owned();
            apps.push(
                host.attach(proto::AttachRequest { instance_name, ..request_for(&name, job(1)) }).await,
            );
        }
        let job_name = JobName::parse(&name).unwrap();
        let first = NAMES.into_iter().max_by_key(|member| rendezvous::draw(&job_name, member)).unwrap();
        let is_owner = |item: &proto::ItemStatus| item.instance_id.ends_with(&format!("@-@{first}"));
        let settled = |state: &proto::WatchAssignmentsResponse| {
            state.instances.len() == 3 && state.items.len() == 1 && state.items.iter().all(is_owner)
        };
        hosts[0].try_watch(&name).await.unwrap().until("the first in rank to own the item", settled).await;
        *counts.entry(first.to_owned()).or_default() += 1;
    }
    assert!(counts.len() == 3 && counts.values().all(|count| *count <= 13), "{counts:?}");
}
