//! The connections of the dump command: valid and invalid requests, and clients that send or read nothing.

use std::net::SocketAddr;
use std::time::Duration;

use sidekeeper::proto::JobConfiguration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::fleet::{Fleet, JOB, RunningSidecar, bounded, job, request};

async fn sidecar(fleet: &Fleet) -> (RunningSidecar, SocketAddr) {
    let any = Some("127.0.0.1:0".parse().unwrap());
    let sidecar = fleet.sidecar_with(1, |config| config.dump_listen = any).await;
    let address = sidecar.inner.dump_address().unwrap();
    (sidecar, address)
}

async fn connect(address: SocketAddr) -> TcpStream {
    bounded("a connection", TcpStream::connect(address)).await.unwrap()
}

/// The bytes until the connection is closed. A reset is an end, too: it follows when the server has not read everything.
async fn rest(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    if let Err(error) = bounded("the end of the connection", stream.read_to_end(&mut text)).await {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    String::from_utf8(text).unwrap()
}

async fn ask(address: SocketAddr, line: &[u8]) -> String {
    let mut stream = connect(address).await;
    stream.write_all(line).await.unwrap();
    rest(&mut stream).await
}

#[tokio::test]
async fn all_nodes_of_a_job_are_shown_without_addresses_and_secrets() {
    let fleet = Fleet::new().await;
    let (sidecar, address) = sidecar(&fleet).await;
    let props = [("email.password".to_owned(), "hunter2".to_owned())].into();
    let mut app = sidecar.attach(request(JobConfiguration { props, ..job(2) })).await;
    app.assigned(&[0, 1]).await;
    let tree = fleet.nodes.settled_tree().await;
    let dump = ask(address, format!("dump@{JOB}\n").as_bytes()).await;
    assert!(!dump.contains("hunter2") && !dump.contains("10.0.0.1"), "{dump}");
    let unique = app.attached.instance_id.split_once("@-@").unwrap().1;
    let lines: Vec<&str> = dump.lines().filter(|line| line.starts_with(&format!("/{JOB}/"))).collect();
    assert_eq!(
        lines[..3],
        [
            "/orders/sharding | ",
            "/orders/sharding/1 | ",
            &*format!("/orders/sharding/1/instance | ip1@-@{unique}")
        ]
    );
    assert!(lines.contains(&"/orders/servers/ip1 | ENABLED"), "{dump}");
    // Every node once, without the job's own.
    let below = tree.all().filter(|name| !name.is_empty()).count();
    assert_eq!(lines.len(), below, "{dump}");
    assert!(dump.ends_with('\n'));
    // Some clients send no newline after the name.
    let mut stream = connect(address).await;
    stream.write_all(format!("dump@{JOB}").as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(rest(&mut stream).await, dump);
}

#[tokio::test]
async fn any_other_request_gets_an_empty_answer() {
    let fleet = Fleet::new().await;
    let (_sidecar, address) = sidecar(&fleet).await;
    let long = format!("dump@{}\n", "x".repeat(100_000));
    for line in
        ["dump@nobody\n", "dump\n", "\n", "GET / HTTP/1.1\r\n\r\n", "dump@../other\n", "dump@a/b\n", &long]
    {
        assert_eq!(ask(address, line.as_bytes()).await, "", "{}", line.len());
    }
    assert_eq!(ask(address, b"dump@\xff\xfe\n").await, "");
    // A client that disconnects without a request.
    drop(connect(address).await);
    assert_eq!(ask(address, b"dump@nobody\n").await, "");
}

#[tokio::test]
async fn silent_clients_delay_no_other_client_and_are_disconnected() {
    let fleet = Fleet::new().await;
    let (sidecar, address) = sidecar(&fleet).await;
    sidecar.attach(request(job(1))).await.assigned(&[0]).await;
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(connect(address).await);
    }
    silent[0].write_all(b"dump@").await.unwrap();
    assert!(ask(address, b"dump@orders\n").await.contains("/orders/config | "));
    for mut stream in silent {
        assert_eq!(rest(&mut stream).await, "");
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_delays_neither_other_clients_nor_the_exit() {
    let fleet = Fleet::new().await;
    let (sidecar, address) = sidecar(&fleet).await;
    // More than the buffers of the system hold.
    for item in 0..60 {
        fleet.nodes.put(&format!("sharding/{item}"), "x".repeat(200_000)).await;
    }
    let mut slow_reader = connect(address).await;
    slow_reader.write_all(b"dump@orders\n").await.unwrap();
    let mut first = [0; 1];
    bounded("the start of the answer", slow_reader.read_exact(&mut first)).await.unwrap();
    let full = ask(address, b"dump@orders\n").await;
    assert!(full.len() > 60 * 200_000 && full.ends_with('\n'), "{}", full.len());
    let limit = Duration::from_secs(5);
    tokio::time::timeout(limit, sidecar.drain()).await.expect("the exit does not wait for the slow reader");
    assert!(rest(&mut slow_reader).await.len() < full.len());
}
