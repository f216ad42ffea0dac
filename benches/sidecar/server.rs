//! The ZooKeeper server of the measurements, and its speed without a sidecar.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream;
use sidekeeper::registry::zookeeper::{Acl, CredentialFiles, Settings, ZooKeeper};
use sidekeeper::registry::{Registry, Session};
use sidekeeper::tree::{NodeKind, Operation, Path};
use zookeeper_client as zk;

use crate::environment::first_line;
use crate::statistics::{Sorted, rate};
use crate::zookeeper::Server;

/// Requests in flight when a server's throughput is measured. More requests make the server no faster.
const IN_FLIGHT: usize = 1000;
/// About the data of a running node.
const DATA: &[u8] = b"127.0.0.1@-@12345-abcdef";
const PARENT: &str = "/bare";

/// Starts a server with the tests' settings, except for the growth of its log: it grows in the default steps
/// of 64 MiB. The tests' steps are small to save space; with them the server would ask the file system for
/// more space all the time.
pub(crate) fn start() -> Server {
    let server = Server::start_with("preAllocSize=65536");
    let answer = server.command("srvr").unwrap_or_default();
    let version = answer.lines().next().unwrap_or_default();
    let version = version.split(['-', ',']).next().unwrap_or_default();
    println!("- server: {version}, alone, its log on the disk of this machine and synced (the default)");
    println!("- {}", first_line(Command::new("java").arg("-version")));
    server
}

/// How many requests the server has got since its start.
pub(crate) fn requests(server: &Server) -> u64 {
    statistic(server, "zk_packets_received")
}

/// A number that the server tells about itself.
pub(crate) fn statistic(server: &Server, name: &str) -> u64 {
    let [value] = statistics(server, [name]);
    value
}

/// Several numbers of one moment.
pub(crate) fn statistics<const COUNT: usize>(server: &Server, names: [&str; COUNT]) -> [u64; COUNT] {
    let answer = server.command("mntr").unwrap_or_default();
    let value = |name: &str| answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
    let number = |name| value(name).and_then(|value| value.parse().ok());
    names.map(|name| number(name).expect("a number that every server has"))
}

pub(crate) fn registry(server: &Server) -> ZooKeeper {
    let settings = Settings {
        connect: server.address(),
        session_timeout: Duration::from_secs(30),
        connection_timeout: Duration::from_secs(5),
        request_timeout: Duration::from_secs(10),
        digest: None,
        files: CredentialFiles::default(),
        acl: Acl::Auto,
    };
    ZooKeeper::new(settings).expect("settings")
}

/// How long the creation of an ephemeral node takes through the sidecar's registry, one at a time and with
/// pauses.
pub(crate) async fn create_latency(server: &Server, count: u32, pause: Duration) -> Sorted {
    let session = registry(server).open().await.expect("a session");
    prepare(&session).await;
    let mut taken = Vec::new();
    for number in 0..count {
        tokio::time::sleep(pause).await;
        let path = Path::root().child("bare").child(&number.to_string());
        let create = Operation::create(path.clone(), NodeKind::Ephemeral, DATA);
        let start = Instant::now();
        session.commit(vec![create]).await.expect("to create");
        taken.push(start.elapsed());
        session.commit(vec![Operation::delete(path)]).await.expect("to delete");
    }
    session.close().await;
    Sorted::new(taken)
}

async fn prepare(session: &Arc<dyn Session>) {
    session.ensure(&Path::root().child("bare"), NodeKind::Persistent, b"").await.expect("the parent");
}

/// Runs the client's connection: the client gives it to us as a task.
struct Tasks;

impl spawns_core::Spawn for Tasks {
    fn spawn(&self, task: spawns_core::Task) {
        tokio::spawn(Box::into_pin(task.future));
    }
}

async fn connect(address: &str) -> zk::Client {
    let mut connecting = pin!(zk::Client::connect(address));
    let connected = poll_fn(|context| {
        let _scope = spawns_core::enter(&Tasks);
        connecting.as_mut().poll(context)
    });
    connected.await.expect("a client")
}

/// Pairs of a creation and a deletion a second through the client library, with many in flight.
pub(crate) async fn pairs_per_second(server: &Server, time: Duration) -> u64 {
    let client = connect(&server.address()).await;
    let options = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    match client.create(PARENT, b"", &options).await {
        Ok(_) | Err(zk::Error::NodeExists) => {}
        Err(error) => unreachable!("{error}"),
    }
    let options = zk::CreateMode::Ephemeral.with_acls(zk::Acls::anyone_all());
    let (client, options) = (&client, &options);
    let start = Instant::now();
    let numbers = stream::iter(0_u64..).take_while(|_| futures::future::ready(start.elapsed() < time));
    let done = numbers
        .map(|number| async move {
            let path = format!("{PARENT}/{number}");
            client.create(&path, DATA, options).await.expect("to create");
            client.delete(&path, None).await.expect("to delete");
        })
        .buffer_unordered(IN_FLIGHT)
        .count()
        .await;
    rate(done, start.elapsed())
}
