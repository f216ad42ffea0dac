//! Every parser of bytes from outside: nodes of the registry, files, requests, settings. None may panic, and what is written has to be
//! read again as the same.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use sidekeeper::api::convert;
use sidekeeper::config::{self, Sources};
use sidekeeper::coordination::admin::backup::Roots;
use sidekeeper::coordination::admin::backup::file::Backup;
use sidekeeper::coordination::admin::backup::restore::Plan;
use sidekeeper::coordination::admin::finished;
use sidekeeper::coordination::admin::status::JobStatus;
use sidekeeper::coordination::job::picture::Picture;
use sidekeeper::coordination::job::picture::settings::{Settings, checks};
use sidekeeper::coordination::time::Now;
use sidekeeper::elasticjob::path::JobPaths;
use sidekeeper::elasticjob::validate::validate;
use sidekeeper::elasticjob::{config_yaml, dump, instance_yaml, item_parameters, redaction, task_id};
use sidekeeper::extension::path::ExtensionPaths;
use sidekeeper::extension::{
    cancel_wish, checkpoint, handoff_plan, item_trigger, ledger_entry, lock, name_record, note, profile,
    properties, removal, request_record, restored, sticky,
};
use sidekeeper::job::{InstanceId, InstanceName, JobName};
use sidekeeper::listen::token_set::TokenSet;
use sidekeeper::pem;
use sidekeeper::proto;
use sidekeeper::quartz::{self, Expression};
use sidekeeper::registry::zookeeper::{self, Acl, CredentialFiles, ZooKeeper};
use sidekeeper::runner::state_file::contents::{self, Place};
use sidekeeper::tree::{Node, Operation, Path, Stat, WatchEvent, Zxid};

/// Takes one input. Panics if the parser is wrong.
pub(crate) type Target = fn(&[u8]);

/// All parsers.
pub(crate) const TARGETS: &[(&str, Target)] = &[
    ("attach_request", attach_request),
    ("backup_file", backup_file),
    ("config_file", config_file),
    ("cron", cron),
    ("dump_request", dump_request),
    ("instance_node", instance_node),
    ("greeting", greeting),
    ("item_parameters", read_item_parameters),
    ("job_configuration", job_configuration),
    ("job_nodes", job_nodes),
    ("names_and_paths", names_and_paths),
    ("own_records", own_records),
    ("pem_file", pem_file),
    ("properties", read_properties),
    ("state_file", state_file),
    ("task_id", read_task_id),
    ("token_file", token_file),
    ("zookeeper_settings", zookeeper_settings),
];

/// Noon of some day.
const NOW_MS: i64 = 1_790_000_000_000;

fn now() -> Timestamp {
    Timestamp::from_millisecond(NOW_MS).unwrap_or_default()
}

fn stat() -> Stat {
    Stat { created: Zxid(1), modified: Zxid(2), version: 1, ephemeral_owner: None, modified_ms: NOW_MS }
}

/// The document in the node `config`: also as it is shown, validated, compiled, and written again.
fn job_configuration(data: &[u8]) {
    let _ = config_yaml::parse_local(data);
    let _ = redaction::document(data);
    let Ok(parsed) = config_yaml::parse(data) else { return };
    let configuration = parsed.configuration;
    let _ = redaction::redacted(&configuration);
    let _ = convert::configuration_to_proto(&configuration, "");
    let _ = Settings::compile(Arc::new(configuration.clone()), None);
    if validate(&configuration, checks()).is_empty() {
        let written = config_yaml::write(&configuration);
        match config_yaml::parse(written.as_bytes()) {
            Ok(again) => assert_eq!(again.configuration, configuration, "{written}"),
            Err(problem) => panic!("{problem}: {written}"),
        }
    }
}

fn instance_node(data: &[u8]) {
    let _ = instance_yaml::read(&InstanceId::from_registry("10.0.0.1@-@1"), data);
}

fn read_item_parameters(data: &[u8]) {
    let _ = item_parameters::parse(&String::from_utf8_lossy(data));
}

fn read_task_id(data: &[u8]) {
    let _ = task_id::parse(&String::from_utf8_lossy(data));
}

/// An expression: read, in words, written and read again, its next instants in two zones.
fn cron(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = quartz::parse_time_zone(&text);
    let Ok(cron) = Expression::parse(&text) else { return };
    let _ = cron.describe();
    assert_eq!(Expression::parse(&cron.to_string()).as_ref(), Ok(&cron));
    let berlin = TimeZone::get("Europe/Berlin").unwrap_or(TimeZone::UTC);
    for zone in [TimeZone::UTC, berlin] {
        let mut last = now();
        for _ in 0..3 {
            let Some(next) = cron.next_after(last, &zone) else { break };
            assert!(next > last, "{cron}: {next} after {last}");
            last = next;
        }
    }
}

fn dump_request(data: &[u8]) {
    let _ = dump::requested_job(data);
}

/// Lines `PATH DATA`: a job's nodes, and what everybody sees of them.
fn job_nodes(data: &[u8]) {
    let (Ok(namespace), Ok(name)) = (Path::parse("/ns"), JobName::parse("job")) else { return };
    let (paths, own) = (JobPaths::new(&namespace, &name), ExtensionPaths::new(&namespace, &name));
    let mut picture = Picture::unknown(&paths, &own);
    let (mut nodes, mut fleet) = (Vec::new(), Vec::new());
    for line in data.split(|byte| *byte == b'\n') {
        let mut parts = line.splitn(2, |byte| *byte == b' ');
        let path = String::from_utf8_lossy(parts.next().unwrap_or_default());
        let data: Arc<[u8]> = parts.next().unwrap_or_default().into();
        if let Ok(path) = Path::parse(&format!("{}/{path}", paths.root())) {
            nodes.push(Node { path, data: Arc::clone(&data), stat: stat() });
        }
        if let Ok(path) = Path::parse(&format!("{}/{path}", own.fleet().root())) {
            fleet.push(Node { path, data, stat: stat() });
        }
    }
    let _ = dump::text(paths.root(), &nodes);
    let (as_read, own_as_read) = (nodes.clone(), fleet.clone());
    let moment = Now { wall: now(), mono: Duration::from_secs(1) };
    picture.apply_nodes(WatchEvent::Snapshot(nodes), moment);
    picture.apply_fleet(WatchEvent::Snapshot(fleet));
    let _ = removal::may_ask(data);
    let job = finished::Job { paths: &paths, own_paths: &own, nodes: as_read, own: own_as_read };
    let _ = job.next_step(NOW_MS, None, moment);
    let mut settings = None;
    let _ = JobStatus::of(&picture.nodes, &picture.fleet, &mut settings, &paths.config(), now());
}

fn names_and_paths(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(path) = Path::parse(&text) {
        assert_eq!(path.as_str(), text);
        let _ = sidekeeper::elasticjob::path::Place::of(&text);
    }
    let _ = JobName::parse(&text);
    let _ = InstanceName::parse(&text);
    let _ = InstanceId::from_registry(&text).server_ip();
    let _ = Acl::parse(&text);
    let _ = lock::Child::read(&text);
    let _ = lock::Below::read(&text);
}

/// The records that sidecars write beside the namespace. Other versions and other programs may write them, too.
fn own_records(data: &[u8]) {
    let _ = profile::Profile::read(data);
    let _ = name_record::NameRecord::read(data, 1);
    let _ = checkpoint::Checkpoint::read(data);
    let _ = handoff_plan::HandoffPlan::read(data, stat());
    let _ = ledger_entry::LedgerEntry::read(data);
    let _ = lock::HandOver::read(data);
    let _ = request_record::RequestRecord::read(data);
    let _ = cancel_wish::FleetCancel::read(data, stat());
    let note = note::Note::read(data);
    assert_eq!(note::Note::read(note.write().as_bytes()), note);
    let trigger = item_trigger::ItemTrigger::read(data);
    assert_eq!(item_trigger::ItemTrigger::read(trigger.write().as_bytes()), trigger);
    let _ = restored::Restored::read(&Node { path: Path::root(), data: data.into(), stat: stat() });
    if let Some(node) = sticky::OwnerNode::read(data) {
        assert!(sticky::OwnerNode::read(node.write().as_bytes()).is_some());
    }
    let _ = sticky::Record::read(data, &stat());
}

/// The lines of a backup. The checksum is made to fit, because a person who changes a file can do so, too. A restore that is repeated has
/// nothing to do.
fn backup_file(data: &[u8]) {
    let mut file = data.to_vec();
    if file.last() != Some(&b'\n') {
        file.push(b'\n');
    }
    let sum: String = Sha256::digest(&file).iter().map(|byte| format!("{byte:02x}")).collect();
    file.extend(format!("{{\"end\":{{\"sha256\":\"{sum}\"}}}}\n").bytes());
    let (Ok(backup), Ok(namespace)) = (Backup::read(&file), Path::parse("/ns")) else { return };
    let _ = backup.jobs();
    let roots = Roots { namespace: &namespace };
    for saved in backup.nodes.chunk_by(|one, next| one.home == next.home) {
        let mut plan = Plan::default();
        plan.add(roots, saved, &[], None);
        let _ = plan.etag();
        let created = plan.steps.into_iter().filter_map(|step| match step {
            Operation::Create { path, data, .. } => Some(Node { path, data, stat: stat() }),
            Operation::Set { .. } | Operation::Delete { .. } | Operation::Check { .. } => None,
        });
        let mut again = Plan::default();
        again.add(roots, saved, &created.collect::<Vec<_>>(), None);
        let paths: BTreeSet<_> = saved.iter().map(|one| &one.path).collect();
        // Of a node that is twice in the file, one has to win.
        assert!(again.steps.is_empty() || paths.len() < saved.len(), "{:?}", again.steps);
        let mut settled = Plan::default();
        settled.add(roots, saved, &[], Some(now()));
    }
}

/// Bytes that a process of this machine sends to the listener at which the client library greets this process.
fn greeting(data: &[u8]) {
    // Bytes in memory are there at once.
    let greeted = pin!(zookeeper::is_greeting(data)).poll(&mut Context::from_waker(Waker::noop()));
    assert!(greeted.is_ready(), "the parser waits for more");
}

/// `KEY=VALUE`: a property of a job.
fn read_properties(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (key, value) = text.split_once('=').unwrap_or((&text, ""));
    let _ = properties::check(key, value);
    let _ = properties::check(&format!("sidekeeper.{key}"), value);
    let _ = redaction::is_secret_key(key);
}

/// A file of TLS, and the names in its certificates.
fn pem_file(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for certificate in pem::certificates("file", &text).unwrap_or_default() {
        let _ = pem::names(&certificate);
    }
    let _ = pem::authorities("file", &text);
    let _ = pem::key("file", &text);
}

fn state_file(data: &[u8]) {
    let place = Place {
        registry: "zookeeper h:1".to_owned(),
        namespace: "/ns".to_owned(),
        instance_ip: Ipv4Addr::new(10, 0, 0, 1),
    };
    let _ = contents::read(&String::from_utf8_lossy(data), &place);
}

fn token_file(data: &[u8]) {
    let _ = TokenSet::parse(&String::from_utf8_lossy(data));
}

/// Lines `KEY=VALUE`: settings, as environment variables.
fn config_file(data: &[u8]) {
    let text = String::from_utf8_lossy(data).into_owned();
    let environment = |wanted: &str| {
        let key = wanted.strip_prefix("SIDEKEEPER_")?.to_lowercase();
        let value = text.lines().find_map(|line| line.strip_prefix(&key)?.strip_prefix('='))?;
        // A file would be read from the disk.
        (key != "config").then(|| value.into())
    };
    let sources =
        Sources { flags: config::Flags::new(), file: None, environment: &environment, default_listen: None };
    if let Ok(loaded) = config::load(&sources) {
        let _ = loaded.to_toml();
    }
}

fn zookeeper_settings(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for ca in [None, Some("ca.pem".into())] {
        let _ = ZooKeeper::new(zookeeper::Settings {
            connect: text.clone().into_owned(),
            session_timeout: Duration::from_secs(7),
            connection_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(10),
            digest: None,
            files: CredentialFiles { ca, ..CredentialFiles::default() },
            acl: Acl::Auto,
        });
    }
}

/// A request of an application, as prost reads it, and its configuration.
fn attach_request(data: &[u8]) {
    let Ok(request) = proto::AttachRequest::decode(data) else { return };
    let Some(message) = &request.configuration else { return };
    match convert::job_from_proto(&request.job_name, message, checks()) {
        Err(invalid) => drop(invalid.to_status()),
        Ok(job) => {
            let configuration = job.configuration;
            let written = config_yaml::write(&configuration);
            match config_yaml::parse(written.as_bytes()) {
                Ok(again) => assert_eq!(again.configuration, configuration, "{written}"),
                Err(problem) => panic!("{problem}: {written}"),
            }
        }
    }
}
