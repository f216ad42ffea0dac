//! A ZooKeeper server that also serves by TLS and with SASL.

use std::fs;
use std::net::TcpStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tempfile::TempDir;

use super::certificates::{Authority, Identity};
use super::zookeeper::{Server, free_port};

/// A server that also serves by TLS, and what its clients need.
pub struct SecureServer {
    pub server: Server,
    pub port: u16,
    /// Signs its certificate. It accepts clients whose certificates are signed by it.
    pub authority: Authority,
}

/// A server with a certificate that a test has made.
pub struct SecureServerOf {
    _server: Server,
    pub port: u16,
}

impl SecureServerOf {
    /// Where it serves by TLS.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

/// Users for SASL DIGEST-MD5.
const JAAS: &str = r#"Server {
    org.apache.zookeeper.server.auth.DigestLoginModule required
    user_me="secret"
    user_you="other";
};
"#;

/// A handshake that leaves a test enough time.
const QUICK: Duration = Duration::from_millis(150);
/// How long a server may take until it listens for TLS.
const LISTEN_LIMIT: Duration = Duration::from_secs(30);
/// How many handshakes warm a JVM up at most.
const HANDSHAKES: usize = 10;

/// The digest of `super:secret`: the user who may read and change everything.
const SUPER: &str = "super:lK75jTNcA+U9vtVEw5vB51mj/w4=";

impl SecureServer {
    /// Starts a server whose certificate is for 127.0.0.1 and `localhost`, with more lines of configuration.
    pub fn start_with(settings: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let authority = Authority::new(folder.path(), "authority");
        let identity = authority.certify("server", &["127.0.0.1", "localhost"]);
        let (port, server) = start(folder, &authority, &identity, settings);
        Self { server, port, authority }
    }

    /// Starts a server with a certificate of another authority.
    pub fn of(authority: &Authority, identity: &Identity) -> SecureServerOf {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (port, server) = start(folder, authority, identity, "ssl.clientAuth=none");
        SecureServerOf { _server: server, port }
    }

    /// The server that all tests of this process share. It asks for client certificates, and needs none.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<SecureServer> = OnceLock::new();
        SHARED.get_or_init(|| Self::start_with("ssl.clientAuth=want"))
    }

    /// Where it serves by TLS.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

/// Starts a server with this certificate. Its port for TLS, and the server.
fn start(folder: TempDir, authority: &Authority, identity: &Identity, settings: &str) -> (u16, Server) {
    let both = folder.path().join("server.pem");
    let text = |file| fs::read_to_string(file).expect("a file");
    fs::write(&both, text(&identity.key) + &text(&identity.cert)).expect("to write the key store");
    let jaas = folder.path().join("jaas");
    fs::write(&jaas, JAAS).expect("to write the users");
    let port = free_port();
    let settings = format!(
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\nsecureClientPort={port}\n\
         secureClientPortAddress=127.0.0.1\nssl.keyStore.location={}\nssl.trustStore.location={}\n\
         authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n{settings}",
        both.display(),
        authority.ca().display(),
    );
    let java = vec![
        format!("-Djava.security.auth.login.config={}", jaas.display()),
        format!("-Dzookeeper.DigestAuthenticationProvider.superDigest={SUPER}"),
    ];
    let server = Server::start_in(folder, &settings, java);
    warm_up(port);
    (port, server)
}

/// Shakes hands until that is quick: the first handshakes of a JVM take seconds.
fn warm_up(port: u16) {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = Arc::new(
        // It knows no authority, so each handshake ends when the server has done its part.
        config.expect("versions").with_root_certificates(RootCertStore::empty()).with_no_client_auth(),
    );
    for _ in 0..HANDSHAKES {
        let asked = Instant::now();
        let name = "localhost".try_into().expect("a name");
        let mut connection = ClientConnection::new(Arc::clone(&config), name).expect("a connection");
        let mut stream = connected(port);
        // It fails, because the certificate's authority is not known here.
        let _ = connection.complete_io(&mut stream);
        if asked.elapsed() < QUICK {
            return;
        }
    }
}

/// A connection. The server listens for TLS a moment after it serves without.
fn connected(port: u16) -> TcpStream {
    let started = Instant::now();
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => return stream,
            Err(error) => assert!(started.elapsed() < LISTEN_LIMIT, "no port for TLS: {error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
