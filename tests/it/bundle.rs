//! `CollectBundle`: the archive of a sidecar on the embedded registry. `tests/e2e/test_bundle.py` has the whole program, with its log and secrets.

use std::collections::BTreeMap;
use std::io::Read as _;

use flate2::read::MultiGzDecoder;
use serde_json::Value;
use sidekeeper::config::GivenSetting;
use sidekeeper::proto::collect_bundle_response::Part;
use sidekeeper::proto::diagnostics_service_client::DiagnosticsServiceClient;
use sidekeeper::proto::{BundlePseudonym, CollectBundleRequest, CollectBundleResponse, JobConfiguration};
use tonic::{Code, Status, Streaming};

use crate::fleet::{Fleet, JOB, RunningSidecar, bounded, job, request};

/// In a word that nothing else has.
const CANARY: &str = "hunter2";

/// A bundle as it came.
struct Bundle {
    announced: Vec<String>,
    files: BTreeMap<String, String>,
    pseudonyms: Vec<BundlePseudonym>,
}

impl Bundle {
    fn json(&self, name: &str) -> Value {
        serde_json::from_str(&self.files[name]).unwrap()
    }

    fn pseudonym(&self, name: &str) -> &str {
        &self.pseudonyms.iter().find(|pseudonym| pseudonym.name == name).unwrap().pseudonym
    }
}

async fn call(
    sidecar: &RunningSidecar,
    request: CollectBundleRequest,
) -> Result<Streaming<CollectBundleResponse>, Status> {
    let mut client = DiagnosticsServiceClient::new(sidecar.connect().await);
    bounded("the answer", client.collect_bundle(request)).await.map(tonic::Response::into_inner)
}

async fn collect(sidecar: &RunningSidecar, request: CollectBundleRequest) -> Bundle {
    let mut parts = call(sidecar, request).await.unwrap();
    let (mut announced, mut bytes, mut pseudonyms) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(message) = bounded("a part", parts.message()).await.unwrap() {
        match message.part.unwrap() {
            Part::Contents(contents) => {
                assert!(announced.is_empty() && bytes.is_empty(), "the list comes first, and once");
                announced = contents.files.into_iter().map(|file| file.name).collect();
            }
            Part::Chunk(chunk) => {
                assert!(chunk.len() <= 64 * 1024 && pseudonyms.is_empty());
                bytes.extend(chunk);
            }
            Part::Pseudonyms(more) => pseudonyms.extend(more.pseudonyms),
        }
    }
    let mut archive = tar::Archive::new(MultiGzDecoder::new(bytes.as_slice()));
    let mut files = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let mut content = String::new();
        entry.read_to_string(&mut content).unwrap();
        files.insert(name.strip_prefix("sidekeeper-bundle/").unwrap().to_owned(), content);
    }
    Bundle { announced, files, pseudonyms }
}

fn given(key: &'static str, text: &str) -> GivenSetting {
    GivenSetting { key, texts: vec![text.to_owned()], origin: "file" }
}

#[tokio::test]
async fn op_12_a_bundle_has_the_state_with_pseudonyms_and_without_parameters_and_secrets() {
    let fleet = Fleet::new().await;
    let sidecar = fleet
        .sidecar_with(1, |config| config.given = vec![given("token", CANARY), given("lease_margin", "2s")])
        .await;
    let props = [("email.password".to_owned(), CANARY.to_owned())].into();
    let configuration = JobConfiguration {
        props,
        job_parameter: CANARY.to_owned(),
        sharding_item_parameters: format!("0={CANARY}"),
        description: CANARY.to_owned(),
        ..job(2)
    };
    let mut app = sidecar.attach(request(configuration)).await;
    app.assigned(&[0, 1]).await;
    fleet.nodes.put("sharding/1/disabled", CANARY).await;
    fleet.nodes.put(CANARY, CANARY).await;
    let asked = CollectBundleRequest { with_pseudonyms: true, ..CollectBundleRequest::default() };
    let bundle = collect(&sidecar, asked.clone()).await;

    let announced = bundle.announced.iter().map(|name| name.replace('*', bundle.pseudonym(JOB)));
    let mut announced: Vec<_> = announced.collect();
    announced.sort();
    assert_eq!(bundle.files.keys().cloned().collect::<Vec<_>>(), announced);
    let instance = &app.attached.instance_id;
    for (name, content) in &bundle.files {
        for secret in [CANARY, JOB, "10.0.0.1", instance] {
            assert!(!content.contains(secret), "{secret} in {name}: {content}");
        }
    }
    let job = bundle.pseudonym(JOB);
    let nodes = bundle.json(&format!("jobs/{job}.json"));
    let of = |path: &str| {
        let nodes = nodes["nodes"].as_array().unwrap();
        nodes.iter().find(|node| node["path"] == path).unwrap().clone()
    };
    let unique = instance.split_once("@-@").unwrap().1;
    let owner = format!("{}@-@{}", bundle.pseudonym("10.0.0.1"), bundle.pseudonym(unique));
    assert_eq!(of("sharding/1/instance")["data"], *owner);
    assert_eq!(of("config")["data"]["job_parameter"], "***");
    assert_eq!(of("config")["data"]["props_of_others"], 1);
    assert!(of("config")["created_zxid"].as_i64().unwrap() > 0);
    let explained = bundle.json(&format!("explain/{job}.json"));
    assert_eq!(explained["items"][1]["because"][0]["code"], "ITEM_DISABLED");
    assert_eq!(explained["leader_instance_id"], *owner);
    let remedy = explained["items"][1]["because"][0]["remedy"].as_str().unwrap();
    assert_eq!(remedy, format!("sidekeeper enable {job} --item 1"));
    assert_eq!(bundle.json("status.json")["instances"][0]["job_name"], *job);
    let checks = bundle.json("doctor.json");
    let of_job = checks.as_array().unwrap().iter().find(|check| check["category"] == "jobs").unwrap();
    assert_eq!(
        (of_job["check"].as_str(), of_job["outcome"].as_str()),
        (Some(job), Some("CHECK_OUTCOME_ERROR"))
    );
    let settings = bundle.json("configuration.json");
    assert_eq!(settings[0]["is_set"], true);
    assert_eq!(settings[1]["values"][0], "2s");
    for metrics in ["metrics-1.txt", "metrics-2.txt"] {
        assert!(bundle.files[metrics].contains(&format!("job_name=\"{job}\"")), "{metrics}");
    }
    let manifest = bundle.json("manifest.json");
    assert_eq!(manifest["files"].as_array().unwrap().len(), bundle.files.len() - 1);
    let left_out = manifest["left_out"].to_string();
    assert!(left_out.contains("parameters of jobs") && left_out.contains("checkpoints"), "{left_out}");

    let bundle = collect(&sidecar, CollectBundleRequest { include_parameters: true, ..asked }).await;
    let nodes = &bundle.files[&format!("jobs/{job}.json")];
    assert!(nodes.contains(&format!("\"job_parameter\": \"{CANARY}\"")), "{nodes}");
    assert!(!nodes.contains("email.password"), "{nodes}");
}

#[tokio::test]
async fn one_bundle_is_collected_at_a_time_and_a_broken_call_makes_room() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let first = call(&sidecar, CollectBundleRequest::default()).await.unwrap();
    let refused = call(&sidecar, CollectBundleRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    drop(first);
    let again = async {
        while let Err(refused) = call(&sidecar, CollectBundleRequest::default()).await {
            assert_eq!(refused.code(), Code::ResourceExhausted);
        }
    };
    bounded("room for another one", again).await;
}

#[tokio::test]
async fn wrong_names_are_refused_and_an_unknown_job_is_in_the_manifest() {
    let fleet = Fleet::new().await;
    let sidecar = fleet.sidecar().await;
    let of = |names: &[&str]| CollectBundleRequest {
        job_names: names.iter().map(|name| (*name).to_owned()).collect(),
        ..CollectBundleRequest::default()
    };
    for names in [vec!["a/b"], vec!["job"; 201]] {
        let refused = call(&sidecar, of(&names)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{names:?}");
        assert!(refused.message().contains("job_names"), "{}", refused.message());
    }
    let bundle = collect(&sidecar, of(&["nobody"])).await;
    let manifest = &bundle.files["manifest.json"];
    assert!(
        manifest.contains("the registry has no nodes of it") && !manifest.contains("nobody"),
        "{manifest}"
    );
}
