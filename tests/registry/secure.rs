//! ZooKeeper with TLS, client certificates, digests and SASL: who is let in, who owns what is created, and what a change of a file
//! does.

use std::fs;
use std::future::{Future as _, poll_fn};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path as FilePath, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use sidekeeper::registry::zookeeper::{Acl, CredentialFiles, Settings, ZooKeeper};
use sidekeeper::registry::{Error, Registry, Session, SessionState};
use sidekeeper::tree::{NodeKind, Operation};
use tokio::time::timeout;
use zookeeper_client as zk;

use crate::registries::{PATIENCE, commit, exists, open_eventually, path, reaches, settings};
use crate::support::certificates::{Authority, Identity};
use crate::support::proxy::{Mode, Proxy};
use crate::support::secure_zookeeper::SecureServer;
use crate::support::zookeeper::free_port;

fn file(folder: &FilePath, name: &str, text: &str) -> PathBuf {
    let place = folder.join(name);
    fs::write(&place, text).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o600)).unwrap();
    place
}

fn by_tls(server: &SecureServer) -> CredentialFiles {
    CredentialFiles { ca: Some(server.authority.ca()), ..CredentialFiles::default() }
}

fn showing(files: CredentialFiles, identity: &Identity) -> CredentialFiles {
    CredentialFiles { cert: Some(identity.cert.clone()), key: Some(identity.key.clone()), ..files }
}

/// Settings with timeouts that a busy machine keeps: a handshake of TLS costs a new JVM a lot.
fn at(address: &str, files: CredentialFiles) -> Settings {
    let timeout = Duration::from_secs(20);
    Settings { files, session_timeout: timeout, connection_timeout: timeout, ..settings(address) }
}

fn zookeeper(settings: Settings) -> ZooKeeper {
    ZooKeeper::new(settings).unwrap()
}

async fn open(settings: Settings) -> Arc<dyn Session> {
    open_eventually(&zookeeper(settings)).await.unwrap()
}

/// Why a session is refused for good.
async fn refusal(settings: Settings) -> String {
    match open_eventually(&zookeeper(settings)).await {
        Err(Error::AuthRefused(reason)) => reason,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("a session is open"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn se_8_a_server_is_refused_whose_certificate_is_not_good() {
    let server = SecureServer::shared();
    let own = tempfile::tempdir().unwrap();
    let stranger = Authority::new(own.path(), "stranger");
    let (by_address, by_name) = (server.address(), format!("localhost:{}", server.port));
    for address in [&by_address, &by_name] {
        assert_eq!(open(at(address, by_tls(server))).await.get(&path("/none")).await, Ok(None));
        let unknown = CredentialFiles { ca: Some(stranger.ca()), ..CredentialFiles::default() };
        let reason = refusal(at(address, unknown)).await;
        assert!(reason.contains("UnknownIssuer") && reason.contains(address), "{reason}");
    }
}

/// The server that is away may have a good certificate, so the next attempt must not wait for a person.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_server_beside_one_that_is_away_is_no_refusal_of_the_ensemble() {
    let server = SecureServer::shared();
    let own = tempfile::tempdir().unwrap();
    let stranger = Authority::new(own.path(), "stranger");
    let unknown = CredentialFiles { ca: Some(stranger.ca()), ..CredentialFiles::default() };
    let both = format!("{},127.0.0.1:{}", server.address(), free_port());
    let refused = zookeeper(at(&both, unknown)).open().await.err();
    assert!(matches!(refused, Some(Error::Unreachable(_))), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn se_8_a_server_is_refused_whose_certificate_is_for_another_or_revoked_or_expired() {
    let own = tempfile::tempdir().unwrap();
    let authority = Authority::new(own.path(), "other");
    let expired = authority.certify_until("expired", &["127.0.0.1"], 2021);
    let revoked = authority.certify("revoked", &["127.0.0.1"]);
    let files = CredentialFiles { ca: Some(authority.ca()), ..CredentialFiles::default() };
    let lists =
        [authority.revoke(&[], 2100), authority.revoke(&[&revoked], 2100), authority.revoke(&[], 2022)];
    let with = |list: &PathBuf| CredentialFiles { crl: Some(list.clone()), ..files.clone() };
    let [nothing_revoked, one_revoked, old_list] = &lists;

    let server = SecureServer::of(&authority, &authority.certify("elsewhere", &["zk.example"]));
    for host in ["127.0.0.1", "localhost"] {
        let reason = refusal(at(&format!("{host}:{}", server.port), files.clone())).await;
        assert!(reason.contains("not valid for name") && reason.contains(host), "{reason}");
    }
    drop(server);

    let server = SecureServer::of(&authority, &expired);
    let reason = refusal(at(&server.address(), files.clone())).await;
    assert!(reason.contains("expired"), "{reason}");
    drop(server);

    let server = SecureServer::of(&authority, &revoked);
    drop(open(at(&server.address(), files.clone())).await);
    drop(open(at(&server.address(), with(nothing_revoked))).await);
    let reason = refusal(at(&server.address(), with(one_revoked))).await;
    assert!(reason.contains("Revoked"), "{reason}");
    // A list that nobody renews may lack what was revoked since.
    let reason = refusal(at(&server.address(), with(old_list))).await;
    assert!(reason.to_lowercase().contains("expired"), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_demands_a_client_certificate_lets_in_those_that_its_authority_has_signed() {
    let server = SecureServer::start_with("ssl.clientAuth=need");
    let good = server.authority.certify("good", &["client"]);
    let own = tempfile::tempdir().unwrap();
    let bad = Authority::new(own.path(), "stranger").certify("bad", &["client"]);
    let session = open(at(&server.address(), showing(by_tls(&server), &good))).await;
    assert_eq!(session.get(&path("/none")).await, Ok(None));
    for files in [by_tls(&server), showing(by_tls(&server), &bad)] {
        let reason = refusal(at(&server.address(), files)).await;
        assert!(reason.contains("the server ends the handshake"), "{reason}");
    }
}

struct Tasks;

impl spawns_core::Spawn for Tasks {
    fn spawn(&self, task: spawns_core::Task) {
        tokio::spawn(Box::into_pin(task.future));
    }
}

/// A client that may read and change everything.
async fn super_user(server: &SecureServer) -> zk::Client {
    let address = server.server.address();
    let mut connecting = pin!(zk::Client::connector().with_auth("digest", b"super:secret").connect(&address));
    let connected = poll_fn(|context| {
        let _scope = spawns_core::enter(&Tasks);
        connecting.as_mut().poll(context)
    });
    connected.await.unwrap()
}

/// The access list of a node.
async fn acl_of(server: &SecureServer, node: &str) -> Vec<String> {
    let client = super_user(server).await;
    let (acls, _) = client.get_acl(node).await.unwrap();
    acls.iter().map(|acl| format!("{}:{}:{:?}", acl.scheme(), acl.id(), acl.permission())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn se_9_what_is_created_has_the_owner_that_the_setting_says() {
    let server = SecureServer::shared();
    let folder = tempfile::tempdir().unwrap();
    let client = server.authority.certify("client", &["client"]);
    let digest =
        || CredentialFiles { digest: Some(file(folder.path(), "digest", "me:secret\n")), ..by_tls(server) };
    let sasl = || CredentialFiles { sasl: Some(file(folder.path(), "sasl", "me:secret")), ..by_tls(server) };
    let certificate = || showing(by_tls(server), &client);
    let list = || Acl::parse("digest:other:hash=:rw").unwrap();
    // The hash is of `me:secret`, as Curator sends it.
    let (me, mine) = ("digest:me:016djjlksVQS5RgX3M7biBGyYwY=", "x509:CN=client");
    let cases = [
        ("open", by_tls(server), Acl::Auto, vec!["world:anyone"]),
        ("digest", digest(), Acl::Auto, vec![me]),
        ("sasl", sasl(), Acl::Auto, vec!["sasl:me"]),
        ("certificate", certificate(), Acl::Auto, vec!["world:anyone"]),
        ("creator", certificate(), Acl::Creator, vec![mine]),
        ("both", showing(digest(), &client), Acl::Auto, vec![mine, me]),
        ("opened", digest(), Acl::Open, vec!["world:anyone"]),
        ("listed", digest(), list(), vec!["digest:other:hash="]),
    ];
    for (name, files, acl, owners) in cases {
        let root = format!("{}/owners/{name}", server.address());
        let session = open(Settings { acl, ..at(&root, files) }).await;
        if name != "listed" {
            session.ensure(&path("/deep/node"), NodeKind::Persistent, b"").await.unwrap();
            commit(&*session, vec![Operation::create(path("/e"), NodeKind::Ephemeral, "")]).await;
        }
        let nodes: &[&str] = if name == "listed" { &[""] } else { &["", "/deep", "/deep/node", "/e"] };
        for node in nodes {
            let mut found = acl_of(server, &format!("/owners/{name}{node}")).await;
            found.sort();
            let mut wanted: Vec<_> = owners.iter().map(|owner| (*owner).to_owned()).collect();
            wanted.sort();
            let found: Vec<_> =
                found.iter().map(|text| text.rsplit_once(':').unwrap().0.to_owned()).collect();
            assert_eq!(found, wanted, "{name} {node}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn se_10_refused_authentication_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let server =
        SecureServer::start_with("ssl.clientAuth=none\nenforce.auth.enabled=true\nenforce.auth.schemes=sasl");
    let with = |name: &str, text: &str| CredentialFiles {
        sasl: Some(file(folder.path(), name, text)),
        ..by_tls(&server)
    };
    let session = open(at(&server.address(), with("right", "me:secret"))).await;
    assert_eq!(session.get(&path("/none")).await, Ok(None));
    let reason = refusal(at(&server.address(), with("wrong", "me:guess"))).await;
    assert!(reason.contains("the SASL user `me`") && !reason.contains("guess"), "{reason}");
    let digest =
        CredentialFiles { digest: Some(file(folder.path(), "digest", "me:secret")), ..by_tls(&server) };
    let reason = refusal(at(&server.address(), digest)).await;
    assert!(reason.contains("the digest of `me`") && reason.contains("schemes"), "{reason}");
    let reason = refusal(at(&server.address(), by_tls(&server))).await;
    assert!(reason.contains("no authentication"), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_are_wrong_are_named_and_nothing_of_them_is_told() {
    let server = SecureServer::shared();
    let folder = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| server.authority.certify(name, &["client"]));
    let readable = file(folder.path(), "readable", "me:canary");
    fs::set_permissions(&readable, fs::Permissions::from_mode(0o644)).unwrap();
    let canary = file(folder.path(), "canary", "canary");
    let broken =
        file(folder.path(), "broken", "-----BEGIN CERTIFICATE-----\ncanary!\n-----END CERTIFICATE-----\n");
    let missing = folder.path().join("missing");
    let mixed = CredentialFiles { key: Some(other.key), ..showing(by_tls(server), &one) };
    let base = || by_tls(server);
    for (files, named) in [
        (CredentialFiles { ca: Some(missing.clone()), ..base() }, "zookeeper_ca"),
        (CredentialFiles { ca: Some(canary.clone()), ..base() }, "zookeeper_ca"),
        (CredentialFiles { ca: Some(broken), ..base() }, "zookeeper_ca"),
        (CredentialFiles { crl: Some(canary.clone()), ..base() }, "zookeeper_crl"),
        (CredentialFiles { sasl: Some(canary.clone()), ..base() }, "zookeeper_sasl_file"),
        (CredentialFiles { digest: Some(canary), ..base() }, "digest_file"),
        (CredentialFiles { digest: Some(readable), ..base() }, "digest_file"),
        (CredentialFiles { digest: Some(missing), ..base() }, "digest_file"),
        (mixed, "zookeeper_cert and zookeeper_key"),
    ] {
        let error = zookeeper(at(&server.address(), files)).check_files().await.unwrap_err().to_string();
        assert!(
            error.starts_with(named) && !error.contains("canary!") && !error.contains(":canary"),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn se_7_a_certificate_that_is_replaced_is_shown_within_seconds_and_the_session_goes_on() {
    let server = SecureServer::start_with("ssl.clientAuth=need");
    let [old, new] = ["old", "new"].map(|name| server.authority.certify(name, &["client"]));
    let own = tempfile::tempdir().unwrap();
    let [cert, key] = ["cert", "key"].map(|name| file(own.path(), name, ""));
    let show = |identity: &Identity| {
        fs::copy(&identity.cert, &cert).unwrap();
        fs::copy(&identity.key, &key).unwrap();
    };
    show(&old);
    let files = CredentialFiles { cert: Some(cert.clone()), key: Some(key.clone()), ..by_tls(&server) };
    let session = open(Settings { acl: Acl::Creator, ..at(&server.address(), files) }).await;
    commit(&*session, vec![Operation::create(path("/kept"), NodeKind::Ephemeral, "")]).await;
    let owner_of = async |node: &str| {
        session.ensure(&path(node), NodeKind::Persistent, b"").await.unwrap();
        acl_of(&server, node).await.remove(0)
    };
    assert!(owner_of("/by_old").await.starts_with("x509:CN=old:"));
    let mut state = session.state();
    state.mark_unchanged();

    // Half of a change: the key is not the certificate's. Then one that the server refuses. The connection goes on with the old one.
    fs::copy(&new.cert, &cert).unwrap();
    let changed = timeout(Duration::from_secs(3), state.changed()).await;
    assert!(changed.is_err(), "{:?}", *state.borrow());
    show(&Authority::new(own.path(), "stranger").certify("bad", &["client"]));
    let changed = timeout(Duration::from_secs(3), state.changed()).await;
    assert!(changed.is_err(), "{:?}", *state.borrow());
    show(&new);
    let changed = timeout(PATIENCE, state.wait_for(|state| *state == SessionState::Suspended)).await;
    changed.expect("a new connection").unwrap();
    reaches(&*session, SessionState::Connected).await;
    assert!(owner_of("/by_new").await.starts_with("x509:CN=new:"));
    let kept = super_user(&server).await.check_stat("/kept").await.unwrap().expect("the ephemeral node");
    assert_eq!(kept.ephemeral_owner, session.id().0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn se_5_a_session_is_resumed_with_tls_a_client_certificate_and_sasl() {
    let server = SecureServer::start_with("ssl.clientAuth=need");
    let folder = tempfile::tempdir().unwrap();
    let client = server.authority.certify("client", &["client"]);
    let sasl = Some(file(folder.path(), "sasl", "me:secret"));
    let digest = Some(file(folder.path(), "digest", "me:secret"));
    let files = CredentialFiles { sasl, digest, ..showing(by_tls(&server), &client) };
    let proxy = Proxy::start(server.port).await;
    let long = |address: &str| Settings { ..at(address, files.clone()) };
    let session = open(long(&proxy.address())).await;
    commit(&*session, vec![Operation::create(path("/mine"), NodeKind::Ephemeral, "")]).await;
    let key = session.key().await.expect("a key");
    proxy.set(Mode::Refuse);
    proxy.reset();
    reaches(&*session, SessionState::Suspended).await;
    let next = zookeeper(long(&server.address()));
    let resumed = next.reopen(&key).await.unwrap().expect("the session");
    assert_eq!(resumed.id(), session.id());
    assert!(exists(&*resumed, "/mine").await);
}

/// The library sends what is larger than the system's buffers in several parts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_requests_and_answers_go_through_tls() {
    let server = SecureServer::shared();
    let session = open(at(&format!("{}/large", server.address()), by_tls(server))).await;
    let data = vec![7_u8; 900_000];
    for number in 0..20 {
        let node = path(&format!("/{number}"));
        let written =
            session.commit(vec![Operation::create(node.clone(), NodeKind::Persistent, data.clone())]);
        timeout(PATIENCE, written).await.expect("an answer").unwrap();
        let read = timeout(PATIENCE, session.get(&node)).await.expect("an answer").unwrap().unwrap();
        assert!(*read.data == *data);
    }
}
