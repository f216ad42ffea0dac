//! The dump command's connections: what is answered, what is not, and that nobody can hold it up.

use std::net::SocketAddr;
use std::time::Duration;

use sidekeeper::proto::JobConfiguration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::ground::{Ground, Host, JOB, bounded, job, request};

async fn host(ground: &Ground) -> (Host, SocketAddr) {
    let any = Some("127.0.0.1:0".parse().unwrap());
    let host = ground.sidecar_with(1, |config| config.dump_listen = any).await;
    let address = host.sidecar.dump_address().unwrap();
    (host, address)
}

async fn connect(address: SocketAddr) -> TcpStream {
    bounded("a connection", TcpStream::connect(address)).await.unwrap()
}

/// What comes until the connection is closed. A reset counts as that: it is how the end looks if not all was read.
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
    let ground = Ground::new().await;
    let (host, address) = host(&ground).await;
    let props = [("email.password".to_owned(), "hunter2".to_owned())].into();
    let mut app = host.attach(request(JobConfiguration { props, ..job(2) })).await;
    app.assigned(&[0, 1]).await;
    let tree = ground.outside.quiet().await;
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
    // Every node but the job's own, once.
    let below = tree.all().filter(|name| !name.is_empty()).count();
    assert_eq!(lines.len(), below, "{dump}");
    assert!(dump.ends_with('\n'));
    // As some clients send it: nothing after the name.
    let mut stream = connect(address).await;
    stream.write_all(format!("dump@{JOB}").as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(rest(&mut stream).await, dump);
}

#[tokio::test]
async fn anything_else_is_answered_with_nothing() {
    let ground = Ground::new().await;
    let (_host, address) = host(&ground).await;
    let long = format!("dump@{}\n", "x".repeat(100_000));
    for line in
        ["dump@nobody\n", "dump\n", "\n", "GET / HTTP/1.1\r\n\r\n", "dump@../other\n", "dump@a/b\n", &long]
    {
        assert_eq!(ask(address, line.as_bytes()).await, "", "{}", line.len());
    }
    assert_eq!(ask(address, b"dump@\xff\xfe\n").await, "");
    // Gone without a word.
    drop(connect(address).await);
    assert_eq!(ask(address, b"dump@nobody\n").await, "");
}

#[tokio::test]
async fn silent_clients_hold_up_nobody_and_are_sent_away() {
    let ground = Ground::new().await;
    let (host, address) = host(&ground).await;
    host.attach(request(job(1))).await.assigned(&[0]).await;
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
async fn a_client_that_does_not_read_does_not_hold_up_the_others_or_the_exit() {
    let ground = Ground::new().await;
    let (host, address) = host(&ground).await;
    // More than the system takes off our hands.
    for item in 0..60 {
        ground.outside.put(&format!("sharding/{item}"), "x".repeat(200_000)).await;
    }
    let mut lazy = connect(address).await;
    lazy.write_all(b"dump@orders\n").await.unwrap();
    let mut first = [0; 1];
    bounded("the start of the answer", lazy.read_exact(&mut first)).await.unwrap();
    let full = ask(address, b"dump@orders\n").await;
    assert!(full.len() > 60 * 200_000 && full.ends_with('\n'), "{}", full.len());
    let patience = Duration::from_secs(5);
    tokio::time::timeout(patience, host.drain()).await.expect("the exit does not wait for the lazy one");
    assert!(rest(&mut lazy).await.len() < full.len());
}
