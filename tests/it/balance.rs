//! Many small jobs on one fleet are spread over its instances (P1).

use std::collections::BTreeMap;

use sidekeeper::extension::rendezvous;
use sidekeeper::job::JobName;
use sidekeeper::proto;

use crate::fleet::{Fleet, job, request_for};

const NAMES: [&str; 3] = ["w-0", "w-1", "w-2"];

#[tokio::test]
async fn p1_of_24_jobs_of_one_item_no_sidecar_has_more_than_13_in_any_order_of_registration() {
    let fleet = Fleet::new().await;
    let sidecars =
        [fleet.sidecar().await, fleet.sidecar_with(2, |_| ()).await, fleet.sidecar_with(3, |_| ()).await];
    let mut apps = Vec::new();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for number in 1..=24 {
        let name = format!("job-{number}");
        // The first instance owns the item until the others join.
        for (sidecar, instance_name) in sidecars.iter().zip(NAMES) {
            let instance_name = instance_name.to_owned();
            apps.push(
                sidecar.attach(proto::AttachRequest { instance_name, ..request_for(&name, job(1)) }).await,
            );
        }
        let job_name = JobName::parse(&name).unwrap();
        let first = NAMES.into_iter().max_by_key(|member| rendezvous::draw(&job_name, member)).unwrap();
        let is_owner = |item: &proto::ItemStatus| item.instance_id.ends_with(&format!("@-@{first}"));
        let is_settled = |state: &proto::WatchAssignmentsResponse| {
            state.instances.len() == 3 && state.items.len() == 1 && state.items.iter().all(is_owner)
        };
        sidecars[0]
            .try_watch(&name)
            .await
            .unwrap()
            .until("the first in rank to own the item", is_settled)
            .await;
        *counts.entry(first.to_owned()).or_default() += 1;
    }
    assert!(counts.len() == 3 && counts.values().all(|count| *count <= 13), "{counts:?}");
}
