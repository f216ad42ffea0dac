//! Runs every vector of `sharding-vectors.json`: strategies, hashes, order of children, item parameters.
//!
//! The file comes from `SIDEKEEPER_VECTORS` (a directory) when that is set, else from `tests/fixtures/vectors`. All
//! failures are reported together; a vector that cannot be run is a failure.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use sidekeeper::elasticjob::strategy::{self, Allocation, StrategyError};
use sidekeeper::elasticjob::{item_parameters, java};
use sidekeeper::extension::strategy as own_strategy;
use sidekeeper::job::{InstanceId, JobName, ShardingStrategy};

/// The article's own function, which production never uses.
const ARTICLE: &str = "CONSISTENT_HASH_ARTICLE";

type Items = BTreeMap<String, Vec<u32>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Vectors {
    format: u32,
    #[serde(rename = "source")]
    _source: Option<String>,
    #[serde(rename = "notes")]
    _notes: Option<String>,
    vectors: Vec<StrategyVector>,
    java_string_hash: Vec<HashVector>,
    child_ordering: Vec<OrderVector>,
    sharding_item_parameters: Vec<ParametersVector>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct StrategyVector {
    #[serde(rename = "note")]
    _note: Option<String>,
    strategy: String,
    job_name: String,
    job_name_hash: Option<i32>,
    sharding_total_count: u32,
    instances: Vec<Instance>,
    now_millis: Option<i64>,
    expected: Option<Items>,
    expected_order: Option<Vec<String>>,
    expected_error: Option<String>,
    offset: Option<i32>,
    item_hashes: Option<Vec<usize>>,
    safe_variant_expected: Option<Items>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Instance {
    instance_id: String,
    server_ip: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HashVector {
    #[serde(rename = "note")]
    _note: Option<String>,
    text: String,
    hash: i32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OrderVector {
    #[serde(rename = "note")]
    _note: Option<String>,
    children: Vec<String>,
    expected: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ParametersVector {
    #[serde(rename = "note")]
    _note: Option<String>,
    text: String,
    expected: Option<BTreeMap<String, String>>,
    expected_error: Option<String>,
}

#[test]
fn every_sharding_vector_holds() {
    let directory = std::env::var_os("SIDEKEEPER_VECTORS")
        .map_or_else(|| PathBuf::from("tests/fixtures/vectors"), PathBuf::from);
    let file = directory.join("sharding-vectors.json");
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let vectors: Vectors =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    assert_eq!(vectors.format, 1, "the format of {}", file.display());
    let count = vectors.vectors.len()
        + vectors.java_string_hash.len()
        + vectors.child_ordering.len()
        + vectors.sharding_item_parameters.len();
    assert!(!vectors.vectors.is_empty() && count > 0, "{} has no vectors", file.display());

    let mut failures = Vec::new();
    for (number, vector) in vectors.vectors.iter().enumerate() {
        let mut found = Vec::new();
        check_strategy(vector, &mut found);
        let name = format!("vectors[{number}] {} {}", vector.strategy, vector.job_name);
        failures.extend(found.into_iter().map(|failure| format!("{name}: {failure}")));
    }
    for (number, vector) in vectors.java_string_hash.iter().enumerate() {
        expect(
            &format!("javaStringHash[{number}]"),
            &java::hash_code(&vector.text),
            &vector.hash,
            &mut failures,
        );
    }
    for (number, vector) in vectors.child_ordering.iter().enumerate() {
        let mut children = vector.children.clone();
        java::sort_descending(&mut children);
        expect(&format!("childOrdering[{number}]"), &children, &vector.expected, &mut failures);
    }
    for (number, vector) in vectors.sharding_item_parameters.iter().enumerate() {
        check_parameters(&format!("shardingItemParameters[{number}]"), vector, &mut failures);
    }
    assert!(failures.is_empty(), "{} of {count} vectors:\n{}", failures.len(), failures.join("\n"));
}

fn check_strategy(vector: &StrategyVector, failures: &mut Vec<String>) {
    let job = match JobName::parse(&vector.job_name) {
        Ok(job) => job,
        Err(error) => return failures.push(error.to_string()),
    };
    let instances: Vec<InstanceId> =
        vector.instances.iter().map(|instance| InstanceId::from_registry(&instance.instance_id)).collect();
    for (instance, id) in vector.instances.iter().zip(&instances) {
        let ip = id.server_ip().map(|ip| ip.to_string());
        expect("serverIp", &ip.as_ref(), &Some(&instance.server_ip), failures);
    }
    if let Some(hash) = vector.job_name_hash {
        expect("jobNameHash", &java::hash_code(&vector.job_name), &hash, failures);
    }
    let total = vector.sharding_total_count;
    let now_ms = vector.now_millis.unwrap_or(0);
    if let Some(hashes) = &vector.item_hashes {
        let computed: Vec<usize> = own_strategy::article_hashes(&job, total).map(|(_, hash)| hash).collect();
        expect("itemHashes", &computed, hashes, failures);
    }
    if let Some(safe) = &vector.safe_variant_expected {
        let allocation = own_strategy::consistent_hash_former(&job, total, &instances);
        expect("safeVariantExpected", &items(&allocation), safe, failures);
    }
    let result = if vector.strategy == ARTICLE {
        own_strategy::consistent_hash_article(&job, total, &instances)
    } else if let Some(strategy) = ShardingStrategy::from_type(&vector.strategy) {
        if strategy == ShardingStrategy::SingleShardingBalance && vector.now_millis.is_none() {
            failures.push("nowMillis is missing".to_owned());
        }
        if let Some(offset) = vector.offset {
            let computed = strategy::rotation_offset(strategy, &job, instances.len(), now_ms);
            expect("offset", &computed, &Ok(offset), failures);
        }
        let as_java = strategy::allocate_as_java(strategy, &job, total, &instances, now_ms);
        check_production(strategy, vector, &as_java, failures);
        as_java
    } else {
        return failures.push("unknown strategy".to_owned());
    };
    check_result(vector, &result, failures);
}

/// The allocation of production is that of Java wherever Java has a result, and loses no item where Java throws.
fn check_production(
    strategy: ShardingStrategy,
    vector: &StrategyVector,
    as_java: &Result<Allocation, StrategyError>,
    failures: &mut Vec<String>,
) {
    let job = JobName::parse(&vector.job_name).unwrap();
    let instances: Vec<InstanceId> =
        vector.instances.iter().map(|instance| InstanceId::from_registry(&instance.instance_id)).collect();
    let total = vector.sharding_total_count;
    let used = own_strategy::allocate(strategy, &job, total, &instances, vector.now_millis.unwrap_or(0));
    match as_java {
        Ok(allocation) => expect("allocate", &used, allocation, failures),
        Err(_) => {
            let allocated: usize = used.iter().map(|(_, items)| items.len()).sum();
            let wanted = if instances.is_empty() { 0 } else { total };
            expect("items allocated where Java throws", &u32::try_from(allocated), &Ok(wanted), failures);
        }
    }
}

fn check_result(
    vector: &StrategyVector,
    result: &Result<Allocation, StrategyError>,
    failures: &mut Vec<String>,
) {
    match (result, &vector.expected, &vector.expected_error) {
        (Ok(allocation), Some(expected), None) => {
            expect("expected", &items(allocation), expected, failures);
            if let Some(order) = &vector.expected_order {
                let computed: Vec<&str> = allocation.iter().map(|(instance, _)| instance.as_str()).collect();
                expect("expectedOrder", &computed, &order.iter().map(String::as_str).collect(), failures);
            }
        }
        (Err(error), None, Some(expected)) => {
            expect("expectedError", &error.java_exception(), &expected.as_str(), failures);
        }
        (result, expected, error) => {
            failures.push(format!("is {result:?}; expected {expected:?}, expectedError {error:?}"));
        }
    }
}

fn check_parameters(name: &str, vector: &ParametersVector, failures: &mut Vec<String>) {
    match (item_parameters::parse(&vector.text), &vector.expected, vector.expected_error.as_deref()) {
        (Ok(parameters), Some(expected), None) => {
            let parameters: BTreeMap<String, String> =
                parameters.into_iter().map(|(item, value)| (item.to_string(), value)).collect();
            expect(name, &parameters, expected, failures);
        }
        (Err(_), None, Some("JobConfigurationException")) => {}
        (result, expected, error) => {
            failures.push(format!("{name}: is {result:?}; expected {expected:?}, expectedError {error:?}"));
        }
    }
}

fn items(allocation: &Allocation) -> Items {
    allocation
        .iter()
        .map(|(instance, items)| (instance.to_string(), items.iter().map(|item| item.0).collect()))
        .collect()
}

fn expect<T: PartialEq + std::fmt::Debug>(
    what: &str,
    computed: &T,
    expected: &T,
    failures: &mut Vec<String>,
) {
    if computed != expected {
        failures.push(format!("{what} is {computed:?}; expected {expected:?}"));
    }
}
