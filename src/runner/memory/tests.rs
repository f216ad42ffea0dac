//! The file: whole or not there, and believed only if it is ours.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::folder::{FILE, LOCK_FILE, NEW_FILE};
use super::*;

fn open(folder: &Path) -> Result<(Memory, Option<FormerLife>), MemoryError> {
    Memory::open(folder, place(), &Clock::start())
}

fn read(file: &Path, place: &Place) -> Result<Option<FormerLife>, String> {
    folder::read(file)?.map(|text| super::read(&text, place)).transpose()
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

/// What a process finds that comes after the one that had the folder.
fn found(folder: &Path) -> Option<FormerLife> {
    open(folder).unwrap().1
}

/// A folder with the file of a process that was killed.
async fn left_behind() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (memory, former) = open(folder.path()).unwrap();
    assert_eq!(former, None);
    memory.session(Some(key())).await;
    memory.joins("a", member("a-1")).await;
    folder
}

#[tokio::test]
async fn what_is_written_is_what_the_next_process_finds() {
    let folder = left_behind().await;
    assert_eq!(found(folder.path()), Some(FormerLife { key: key(), members: vec![member("a-1")] }));
    let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(FILE), mode(LOCK_FILE)), (0o600, 0o600));
    // Until it knows more, it keeps what it found.
    let (memory, _) = open(folder.path()).unwrap();
    memory.joins("b", member("b-1")).await;
    drop(memory);
    assert_eq!(found(folder.path()).unwrap().key, key());
}

#[tokio::test]
async fn who_has_left_is_struck_out_and_without_a_session_there_is_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let (memory, _) = open(&folder.path().join("made/by/us")).unwrap();
    let folder = folder.path().join("made/by/us");
    memory.joins("a", member("a-1")).await;
    assert!(!folder.join(FILE).exists());
    memory.session(Some(key())).await;
    memory.joins("b", member("b-1")).await;
    memory.has_left("a").await;
    let written = read(&folder.join(FILE), &place()).unwrap().unwrap();
    assert_eq!(written.members, [member("b-1")]);
    memory.session(None).await;
    assert!(!folder.join(FILE).exists());
}

#[tokio::test]
async fn a_write_that_was_cut_short_changes_nothing() {
    let folder = left_behind().await;
    let before = found(folder.path());
    fs::write(folder.path().join(NEW_FILE), "{\"version\":1,\"pla").unwrap();
    assert_eq!(found(folder.path()), before);
    // Nor does it stand in the way.
    let (memory, _) = open(folder.path()).unwrap();
    memory.session(Some(key())).await;
    drop(memory);
    assert_eq!(found(folder.path()).unwrap().members, []);
}

#[tokio::test]
async fn what_comes_at_once_is_written_together_and_nobody_is_told_too_early() {
    let folder = left_behind().await;
    let (memory, _) = open(folder.path()).unwrap();
    let join = |number: usize| {
        let (memory, file) = (memory.clone(), folder.path().join(FILE));
        async move {
            let one = member(&format!("n-{number}"));
            memory.joins(&number.to_string(), one.clone()).await;
            assert!(read(&file, &place()).unwrap().unwrap().members.contains(&one));
        }
    };
    futures::future::join_all((0..50).map(join)).await;
}

#[tokio::test]
async fn a_folder_is_one_sidecars() {
    let folder = left_behind().await;
    let (memory, _) = open(folder.path()).unwrap();
    let taken = open(folder.path()).map(|_| ()).unwrap_err();
    assert!(taken.to_string().contains("another sidecar"), "{taken}");
    drop(memory);
    assert!(found(folder.path()).is_some());
    let file = folder.path().join(FILE);
    assert!(matches!(open(&file), Err(MemoryError::Folder { .. })));
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
    // What a volume's group may do is its administrator's decision.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o660)).unwrap();
    assert!(found(folder.path()).is_some());
}

#[test]
fn a_pipe_in_the_place_of_a_file_is_not_waited_for() {
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
    let (memory, _) = open(folder.path()).unwrap();
    // Nothing can be created in the place of the new file.
    fs::create_dir(folder.path().join(NEW_FILE)).unwrap();
    memory.joins("b", member("b-1")).await;
    assert!(!folder.path().join(FILE).exists());
    fs::remove_dir(folder.path().join(NEW_FILE)).unwrap();
    memory.joins("c", member("orders-0")).await;
    drop(memory);
    assert_eq!(found(folder.path()).unwrap().members, [member("b-1"), member("orders-0")]);
}
