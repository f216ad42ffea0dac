//! The state file is whole or not there, and used only if it is this sidecar's.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;

use crate::extension::profile::Profile;
use crate::job::{InstanceId, InstanceName, JobName};
use crate::registry::SessionKey;
use crate::runner::clock::Clock;
use crate::tree::SessionId;

use super::contents::{self, FormerProcess, Member, Place};
use super::folder::{self, FILE, LOCK_FILE, NEW_FILE};
use super::storage::StateFileError;
use super::writer::StateFile;

fn open(folder: &Path) -> Result<(StateFile, Option<FormerProcess>), StateFileError> {
    StateFile::open(folder, place(), &Clock::start())
}

fn read(file: &Path, place: &Place) -> Result<Option<FormerProcess>, String> {
    folder::read(file)?.map(|text| contents::read(&text, place)).transpose()
}

fn place() -> Place {
    let (registry, namespace) = ("zookeeper h1:2181".to_owned(), "/ns".to_owned());
    Place { registry, namespace, instance_ip: Ipv4Addr::new(10, 0, 0, 1) }
}

fn key() -> SessionKey {
    SessionKey { id: SessionId(0x1234_5678_9abc), password: vec![1, 2, 255], timeout: Duration::from_secs(6) }
}

fn member(unique: &str) -> Member {
    Member {
        job: JobName::parse("orders").unwrap(),
        instance: InstanceId::new(place().instance_ip, unique),
        name: (unique == "orders-0").then(|| InstanceName::parse(unique).unwrap()),
        application_id: "worker-1".to_owned(),
        profile: Profile { weight: 3, labels: ["gpu".to_owned()].into(), ..Profile::default() },
        since: Timestamp::from_millisecond(1_700_000_000_123).unwrap(),
    }
}

/// The contents that the next process finds in the folder.
fn found(folder: &Path) -> Option<FormerProcess> {
    open(folder).unwrap().1
}

/// A folder with the file of a process that was killed.
async fn left_behind() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (state_file, former) = open(folder.path()).unwrap();
    assert_eq!(former, None);
    state_file.set_session(Some(key())).await;
    state_file.add("a", member("a-1")).await;
    folder
}

#[tokio::test]
async fn the_next_process_finds_what_was_written() {
    let folder = left_behind().await;
    assert_eq!(
        found(folder.path()),
        Some(FormerProcess { key: key(), members: vec![member("a-1")], locks: vec![] })
    );
    let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(FILE), mode(LOCK_FILE)), (0o600, 0o600));
    // The next process keeps the session that it has found, until it has another one.
    let (state_file, _) = open(folder.path()).unwrap();
    state_file.add("b", member("b-1")).await;
    drop(state_file);
    assert_eq!(found(folder.path()).unwrap().key, key());
}

#[tokio::test]
async fn an_instance_that_has_left_is_removed_and_without_a_session_there_is_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let (state_file, _) = open(&folder.path().join("made/by/us")).unwrap();
    let folder = folder.path().join("made/by/us");
    state_file.add("a", member("a-1")).await;
    assert!(!folder.join(FILE).exists());
    state_file.set_session(Some(key())).await;
    state_file.add("b", member("b-1")).await;
    state_file.remove("a").await;
    let written = read(&folder.join(FILE), &place()).unwrap().unwrap();
    assert_eq!(written.members, [member("b-1")]);
    state_file.set_session(None).await;
    assert!(!folder.join(FILE).exists());
}

#[tokio::test]
async fn a_file_is_not_used_while_executions_hold_locks_for_their_items() {
    let folder = left_behind().await;
    let (state_file, _) = open(folder.path()).unwrap();
    state_file.add("a", member("a-1")).await;
    state_file.begin_item_lock().await;
    state_file.begin_item_lock().await;
    state_file.end_item_lock().await;
    let error = read(&folder.path().join(FILE), &place()).unwrap_err();
    assert!(error.contains("held locks"), "{error}");
    state_file.end_item_lock().await;
    assert_eq!(read(&folder.path().join(FILE), &place()).unwrap().unwrap().members, [member("a-1")]);
}

#[tokio::test]
async fn a_write_that_was_cut_short_changes_nothing() {
    let folder = left_behind().await;
    let before = found(folder.path());
    fs::write(folder.path().join(NEW_FILE), "{\"version\":1,\"pla").unwrap();
    assert_eq!(found(folder.path()), before);
    // The next write replaces the incomplete file.
    let (state_file, _) = open(folder.path()).unwrap();
    state_file.set_session(Some(key())).await;
    drop(state_file);
    assert_eq!(found(folder.path()).unwrap().members, []);
}

#[tokio::test]
async fn changes_at_once_are_written_together_and_each_caller_waits_for_its_own() {
    let folder = left_behind().await;
    let (state_file, _) = open(folder.path()).unwrap();
    let join = |number: usize| {
        let (state_file, file) = (state_file.clone(), folder.path().join(FILE));
        async move {
            let one = member(&format!("n-{number}"));
            state_file.add(&number.to_string(), one.clone()).await;
            assert!(read(&file, &place()).unwrap().unwrap().members.contains(&one));
        }
    };
    futures::future::join_all((0..50).map(join)).await;
}

#[tokio::test]
async fn one_sidecar_at_a_time_uses_a_folder() {
    let folder = left_behind().await;
    let (state_file, _) = open(folder.path()).unwrap();
    let taken = open(folder.path()).map(|_| ()).unwrap_err();
    assert!(taken.to_string().contains("another sidecar"), "{taken}");
    drop(state_file);
    assert!(found(folder.path()).is_some());
    let file = folder.path().join(FILE);
    assert!(matches!(open(&file), Err(StateFileError::Folder { .. })));
}

#[tokio::test]
async fn a_file_that_is_not_ours_is_ignored_with_the_reason() {
    let folder = left_behind().await;
    let file = folder.path().join(FILE);
    let good = fs::read_to_string(&file).unwrap();
    let why = |text: &[u8]| {
        fs::write(&file, text).unwrap();
        assert_eq!(found(folder.path()), None);
        read(&file, &place()).unwrap_err()
    };
    assert!(why(b"").contains("EOF"));
    assert!(why(&good.as_bytes()[..good.len() / 2]).contains("EOF"));
    assert!(why(b"\xff\xfe").contains("UTF-8"));
    assert!(why(b"[]").contains("version is None"));
    assert!(why(good.replace("\"version\":1", "\"version\":2").as_bytes()).contains("version is Some(2)"));
    assert!(why(good.replace("h1", "h2").as_bytes()).contains("h2"));
    assert!(why(good.replace("\"session\"", "\"sessions\"").as_bytes()).contains("sessions"));
    assert!(why(good.replace("orders", "a/b").as_bytes()).contains("job"));
    assert!(why(good.replace("10.0.0.1@", "10.0.0.2@").as_bytes()).contains("10.0.0.2"));
    assert!(why(good.replace("\"weight\":3", "\"weight\":0").as_bytes()).contains("weight"));
    assert!(why(good.replace("gpu", "g p u").as_bytes()).contains("labels"));
    fs::write(&file, &good).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o604)).unwrap();
    assert!(read(&file, &place()).unwrap_err().contains("604"));
    assert_eq!(found(folder.path()), None);
    // The administrator of a volume decides what its group may do.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o660)).unwrap();
    assert!(found(folder.path()).is_some());
}

#[test]
fn a_pipe_in_the_place_of_a_file_is_refused_without_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = |name: &str| {
        let made = std::process::Command::new("mkfifo").arg(folder.path().join(name)).status().unwrap();
        assert!(made.success());
    };
    pipe(FILE);
    let path = folder.path().to_owned();
    let (sender, opened) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(open(&path).unwrap().1));
    let found = opened.recv_timeout(Duration::from_secs(30)).expect("it does not wait");
    assert_eq!(found, None);
    assert!(read(&folder.path().join(FILE), &place()).unwrap_err().contains("no regular file"));
    fs::remove_file(folder.path().join(LOCK_FILE)).unwrap();
    pipe(LOCK_FILE);
    let refused = open(folder.path()).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains(LOCK_FILE), "{refused}");
}

#[tokio::test]
async fn a_file_that_cannot_be_written_is_removed() {
    let folder = left_behind().await;
    let (state_file, _) = open(folder.path()).unwrap();
    // The folder prevents the new file.
    fs::create_dir(folder.path().join(NEW_FILE)).unwrap();
    state_file.add("b", member("b-1")).await;
    assert!(!folder.path().join(FILE).exists());
    fs::remove_dir(folder.path().join(NEW_FILE)).unwrap();
    state_file.add("c", member("orders-0")).await;
    drop(state_file);
    assert_eq!(found(folder.path()).unwrap().members, [member("b-1"), member("orders-0")]);
}
