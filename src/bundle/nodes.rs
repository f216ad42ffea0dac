//! The nodes of a job in a bundle. Pure. Decides which data are written, and how paths and a configuration look.
//!
//! Each node has its version and its transactions. Its data are written if its place in the protocol says what they are; of all others there is
//! only the size. Checkpoints are in no bundle.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::pseudonyms::{Kind, Pseudonyms};
use crate::elasticjob::config_yaml;
use crate::elasticjob::path::{Place, is_latch};
use crate::elasticjob::redaction::{self, REDACTED};
use crate::extension::handoff_policy::ITEM_LABELS_PROPERTY;
use crate::extension::item_lock::{self, LOCK_PROPERTY};
use crate::extension::ledger_entry::LedgerEntry;
use crate::extension::path::OwnPlace;
use crate::extension::properties;
use crate::job::JobConfiguration;
use crate::tree::{Node, Path, Stat};

/// The nodes of a job, ElasticJob's or our own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Those of ElasticJob's protocol.
    ElasticJob,
    /// Those beside the namespace.
    Sidekeeper,
}

/// The nodes below a root. `with_parameters`: also the parameters of the job and of its items, and its description.
pub fn tree(
    pseudonyms: &mut Pseudonyms,
    owner: Owner,
    root: &Path,
    nodes: &[Node],
    with_parameters: bool,
) -> Vec<Value> {
    let below = nodes.iter().filter_map(|node| Some((node.path.relative_to(root)?, node)));
    let rows = below.map(|(relative, node)| {
        let (path, data) = match owner {
            Owner::ElasticJob => {
                let place = Place::of(relative);
                (path(pseudonyms, place, relative), data(pseudonyms, place, &node.data, with_parameters))
            }
            Owner::Sidekeeper => {
                let place = OwnPlace::of(relative);
                (own_path(pseudonyms, place, relative), own_data(place, &node.data))
            }
        };
        let Stat { created, modified, version, ephemeral_owner, modified_ms } = node.stat;
        let mut row = Map::new();
        row.insert("path".to_owned(), json!(path));
        row.insert("version".to_owned(), json!(version));
        row.insert("created_zxid".to_owned(), json!(created.0));
        row.insert("modified_zxid".to_owned(), json!(modified.0));
        let modified = Timestamp::from_millisecond(modified_ms).ok();
        row.insert("modified_time".to_owned(), json!(modified.map(|time| time.to_string())));
        if let Some(session) = ephemeral_owner {
            row.insert("ephemeral_owner".to_owned(), json!(session.to_string()));
        }
        row.insert("bytes".to_owned(), json!(node.data.len()));
        if let Some(data) = data {
            row.insert("data".to_owned(), data);
        }
        Value::Object(row)
    });
    rows.collect()
}

/// The path below the job's node. A name that is not in the protocol is hidden.
fn path(pseudonyms: &mut Pseudonyms, place: Place<'_>, relative: &str) -> String {
    match place {
        Place::Server(ip) => renamed(relative, &pseudonyms.address(ip)),
        Place::Instance(id) | Place::Trigger(id) => renamed(relative, &pseudonyms.instance(id)),
        Place::ItemChild(..) | Place::NotAnItem(_) => renamed(relative, REDACTED),
        // The nodes of Curator's latches have names of its own.
        Place::Other if is_latch(relative) => pseudonyms.text(relative),
        Place::Other => REDACTED.to_owned(),
        Place::Root
        | Place::Config
        | Place::Folder(_)
        | Place::Leader
        | Place::LeaderSharding
        | Place::Necessary
        | Place::Processing
        | Place::Item(_)
        | Place::ItemInstance(_)
        | Place::Running(_)
        | Place::Misfire(_)
        | Place::Disabled(_)
        | Place::Failover(_)
        | Place::Failovering(_)
        | Place::FailoverItem(_)
        | Place::RegistryTime
        | Place::Registered(..)
        | Place::NextJobInstanceIp => relative.to_owned(),
    }
}

/// The path with another name at its end.
fn renamed(relative: &str, name: &str) -> String {
    match relative.rsplit_once('/') {
        Some((parent, _)) => format!("{parent}/{name}"),
        None => name.to_owned(),
    }
}

/// The data of a node. `None`: only their size is written.
fn data(pseudonyms: &mut Pseudonyms, place: Place<'_>, data: &[u8], with_parameters: bool) -> Option<Value> {
    let text = std::str::from_utf8(data).ok();
    match place {
        Place::Config => Some(match config_yaml::parse(data) {
            Ok(parsed) => configuration(pseudonyms, parsed.configuration, with_parameters),
            // The place of the error, without the document.
            Err(_) => json!({ "unreadable": redaction::document(data) }),
        }),
        Place::Root => text.map(|class| json!(pseudonyms.name(Kind::Class, class))),
        Place::Server(_) => {
            text.filter(|text| matches!(*text, "ENABLED" | "DISABLED")).map(|text| json!(text))
        }
        Place::Leader
        | Place::ItemInstance(_)
        | Place::Running(_)
        | Place::Failover(_)
        | Place::Failovering(_) => text.map(|id| json!(pseudonyms.instance(id))),
        Place::NextJobInstanceIp => text.map(|ip| json!(pseudonyms.address(ip))),
        Place::Folder(_)
        | Place::Instance(_)
        | Place::LeaderSharding
        | Place::Necessary
        | Place::Processing
        | Place::Item(_)
        | Place::Misfire(_)
        | Place::Disabled(_)
        | Place::FailoverItem(_)
        | Place::ItemChild(..)
        | Place::Trigger(_)
        | Place::RegistryTime
        | Place::Registered(..)
        | Place::NotAnItem(_)
        | Place::Other => None,
    }
}

/// The path of one of our own nodes, below the job's folder.
fn own_path(pseudonyms: &mut Pseudonyms, place: OwnPlace<'_>, relative: &str) -> String {
    match place {
        OwnPlace::Member(id) => renamed(relative, &pseudonyms.instance(id)),
        OwnPlace::Name(name) => renamed(relative, &pseudonyms.name(Kind::Instance, name)),
        OwnPlace::Other => REDACTED.to_owned(),
        OwnPlace::Folder
        | OwnPlace::LedgerEntry
        | OwnPlace::Witness
        | OwnPlace::Checkpoint
        | OwnPlace::Handoff => relative.to_owned(),
    }
}

/// Of the ledger the instants; of all others only the size is written.
fn own_data(place: OwnPlace<'_>, data: &[u8]) -> Option<Value> {
    (place == OwnPlace::LedgerEntry).then(|| json!(LedgerEntry::read(data).write()))
}

/// A configuration without parameters, texts of people, extra configurations, and properties that are not ours.
fn configuration(
    pseudonyms: &mut Pseudonyms,
    configuration: JobConfiguration,
    with_parameters: bool,
) -> Value {
    // Taken apart as a whole, so that a new field gets a class here.
    let JobConfiguration {
        job_name,
        cron,
        time_zone,
        sharding_total_count,
        sharding_item_parameters,
        job_parameter,
        monitor_execution,
        failover,
        misfire,
        max_time_diff_seconds,
        reconcile_interval_minutes,
        job_sharding_strategy_type,
        job_executor_thread_pool_size_provider_type,
        job_error_handler_type,
        job_listener_types,
        props,
        description,
        label,
        disabled,
        overwrite,
        static_sharding,
        job_extra_configurations,
    } = configuration;
    let parameter = |text: String| match text.is_empty() || with_parameters {
        true => text,
        false => REDACTED.to_owned(),
    };
    let of_others = props.keys().filter(|key| !properties::is_known(key)).count();
    let own: Map<_, _> = props
        .into_iter()
        .filter(|(key, _)| properties::is_known(key))
        .map(|(key, value)| (key.clone(), json!(property(pseudonyms, &key, &value))))
        .collect();
    json!({
        "job_name": pseudonyms.name(Kind::Job, job_name.as_str()),
        "cron": cron,
        "time_zone": time_zone,
        "sharding_total_count": sharding_total_count,
        "sharding_item_parameters": parameter(sharding_item_parameters),
        "job_parameter": parameter(job_parameter),
        "monitor_execution": monitor_execution,
        "failover": failover,
        "misfire": misfire,
        "max_time_diff_seconds": max_time_diff_seconds,
        "reconcile_interval_minutes": reconcile_interval_minutes,
        "job_sharding_strategy_type": job_sharding_strategy_type.map(|text| pseudonyms.text(&text)),
        "job_executor_thread_pool_size_provider_type":
            job_executor_thread_pool_size_provider_type.map(|text| pseudonyms.text(&text)),
        "job_error_handler_type": job_error_handler_type.map(|text| pseudonyms.text(&text)),
        "job_listener_types": job_listener_types.iter().map(|text| pseudonyms.text(text)).collect::<Vec<_>>(),
        "props": own,
        "props_of_others": of_others,
        "description": parameter(description),
        "label": label.map(parameter),
        "disabled": disabled,
        "overwrite": overwrite,
        "static_sharding": static_sharding,
        "job_extra_configurations": if job_extra_configurations.is_empty() { "" } else { REDACTED },
    })
}

/// The value of one of our properties, if it is one of the allowed values.
fn property(pseudonyms: &mut Pseudonyms, key: &str, value: &str) -> String {
    match key {
        _ if properties::check(key, value).is_err() => REDACTED.to_owned(),
        ITEM_LABELS_PROPERTY => REDACTED.to_owned(),
        LOCK_PROPERTY => match item_lock::shared_name(value) {
            Some(name) => pseudonyms.name(Kind::Lock, &name),
            None => value.to_owned(),
        },
        _ => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobName;
    use crate::tree::{SessionId, Zxid};

    fn nodes(root: &str, nodes: &[(&str, &str)]) -> (Path, Vec<Node>) {
        let root = Path::parse(root).unwrap();
        let node = |(relative, data): &(&str, &str)| Node {
            path: if relative.is_empty() { root.clone() } else { root.child(relative) },
            data: data.as_bytes().into(),
            stat: Stat {
                created: Zxid(7),
                modified: Zxid(9),
                version: 2,
                ephemeral_owner: Some(SessionId(255)),
                modified_ms: 0,
            },
        };
        let nodes = nodes.iter().map(node).collect();
        (root, nodes)
    }

    fn shown(owner: Owner, given: &[(&str, &str)]) -> String {
        let (root, nodes) = nodes("/fleet/orders", given);
        let rows = tree(&mut Pseudonyms::default(), owner, &root, &nodes, false);
        rows.iter().map(|row| format!("{} {}\n", row["path"], row["data"])).collect()
    }

    #[test]
    fn each_node_has_its_versions_and_only_known_data() {
        let (root, one) = nodes("/fleet/orders", &[("sharding/3/instance", "10.0.0.7@-@worker-a")]);
        let rows = tree(&mut Pseudonyms::default(), Owner::ElasticJob, &root, &one, false);
        assert_eq!(
            rows,
            [json!({
                "path": "sharding/3/instance", "version": 2, "created_zxid": 7, "modified_zxid": 9,
                "modified_time": "1970-01-01T00:00:00Z", "ephemeral_owner": "0xff", "bytes": 19,
                "data": "ip1@-@instance1",
            })]
        );
        assert_eq!(
            shown(
                Owner::ElasticJob,
                &[
                    ("", "com.example.Job"),
                    ("servers/10.0.0.7", "ENABLED"),
                    ("servers/10.0.0.8", "hunter2"),
                    ("instances/10.0.0.7@-@12", "password: hunter2"),
                    ("sharding/1/hunter2", "hunter2"),
                    ("sharding/hunter2", "hunter2"),
                    ("hunter2", "hunter2"),
                    ("leader/election/latch/_c_1-latch-0000000001", "hunter2"),
                    ("config", "jobName: [hunter2\n"),
                ]
            ),
            "\"\" \"class1\"\n\"servers/ip1\" \"ENABLED\"\n\"servers/ip2\" null\n\"instances/ip1@-@12\" null\n\
             \"sharding/1/***\" null\n\"sharding/***\" null\n\"***\" null\n\
             \"leader/election/latch/_c_1-latch-0000000001\" null\n\
             \"config\" {\"unreadable\":\"*** not shown, because it cannot be read: line 2, column 1\"}\n"
        );
    }

    #[test]
    fn op_12_checkpoints_and_unknown_nodes_of_ours_have_only_a_size() {
        let text = shown(
            Owner::Sidekeeper,
            &[
                ("fires/3", "5 - -"),
                ("fires/4", "hunter2"),
                ("fires/witness-5", "hunter2"),
                ("checkpoints/3", "hunter2"),
                ("fleet/members/10.0.0.7@-@w-a", "hunter2"),
                ("fleet/names/w-a", "hunter2"),
                ("hunter2", "hunter2"),
            ],
        );
        assert_eq!(
            text,
            "\"fires/3\" \"5 - -\"\n\"fires/4\" \"- - -\"\n\"fires/witness-5\" null\n\"checkpoints/3\" null\n\
             \"fleet/members/ip1@-@instance1\" null\n\"fleet/names/instance1\" null\n\"***\" null\n"
        );
    }

    #[test]
    fn op_12_a_configuration_has_parameters_only_on_request_and_other_secrets_never() {
        let mut given = JobConfiguration::new(JobName::parse("orders").unwrap(), 3);
        given.cron = Some("0 0 12 * * ?".to_owned());
        given.job_parameter = "hunter2".to_owned();
        given.sharding_item_parameters = "0=hunter2".to_owned();
        given.description = "hunter2".to_owned();
        given.label = Some("hunter2".to_owned());
        given.job_extra_configurations = "jobExtraConfigurations:\n- password: hunter3\n".to_owned();
        for (key, value) in [
            ("hunter3", "hunter3"),
            ("email.password", "hunter3"),
            ("sidekeeper.execution-timeout", "30s"),
            ("sidekeeper.handoff", "hunter3"),
            ("sidekeeper.item-labels", "0=hunter3"),
            ("sidekeeper.item-lock", "ledger"),
        ] {
            given.props.insert(key.to_owned(), value.to_owned());
        }
        let mut names = Pseudonyms::default();
        let shown = configuration(&mut names, given.clone(), false);
        assert!(!shown.to_string().contains("hunter"), "{shown}");
        assert_eq!((&shown["job_name"], &shown["cron"]), (&json!("job1"), &json!("0 0 12 * * ?")));
        assert_eq!(shown["props_of_others"], 2);
        assert_eq!(
            shown["props"],
            json!({
                "sidekeeper.execution-timeout": "30s", "sidekeeper.handoff": "***",
                "sidekeeper.item-labels": "***", "sidekeeper.item-lock": "lock1",
            })
        );
        let shown = configuration(&mut names, given, true);
        assert_eq!(shown["job_parameter"], "hunter2");
        assert!(!shown.to_string().contains("hunter3"), "{shown}");
    }
}
