//! The settings of the connection with ZooKeeper. They are checked before anything is sent, because the
//! client handles several mistakes badly: a `tcp+tls://` address makes it spin for ever.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use zookeeper_client as zk;

use super::acl::Acl;
use super::credentials::{CredentialFiles, Credentials};
use super::limit::RequestLimit;
use super::tls;
use crate::registry::Monotonic;
use crate::tree::{Path, PathError};

/// The port of a server whose address has none.
const PORT: u16 = 2181;

/// How to reach a ZooKeeper ensemble.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// The servers, then an optional node below which the sidecar keeps all its nodes:
    /// `h1:2181,h2:2181/some/node`. The default port is 2181. The node is created if it is missing.
    pub connect: String,
    /// How long the ensemble is asked to keep a session without a message from it. It may grant another time.
    pub session_timeout: Duration,
    /// How long to look for a serving server, and how long to wait for a server's answer to a greeting, or
    /// for a silent server, before another server is tried.
    pub connection_timeout: Duration,
    /// How long to wait for the answer to a request.
    pub request_timeout: Duration,
    /// `user:password` for the scheme `digest`.
    pub digest: Option<String>,
    /// Files with other credentials.
    pub files: CredentialFiles,
    /// The access list of the nodes that the sidecar creates.
    pub acl: Acl,
}

/// Why settings are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The connect string has a scheme.
    #[error("the ZooKeeper address `{0}` has a scheme; write `host:port`, and set `zookeeper_ca` for TLS")]
    Scheme(String),
    /// The credentials cannot be read, or are wrong. The text names the setting and the file.
    #[error("{0}")]
    Credentials(String),
    /// An address in the connect string cannot be read.
    #[error("`{given}` in the ZooKeeper addresses is not `host:port`: {reason}")]
    Address {
        /// The address that was given.
        given: String,
        /// The mistake.
        reason: &'static str,
    },
    /// The node after the addresses is not a path.
    #[error("the node after the ZooKeeper addresses cannot be used: {0}")]
    Chroot(PathError),
    /// A time is out of range.
    #[error("the ZooKeeper {name} is {given:?}, but must be between 1 ms and 24 days")]
    Time {
        /// Which time.
        name: &'static str,
        /// The time that was given.
        given: Duration,
    },
    /// The digest is not a user and a password.
    #[error("the ZooKeeper digest must be `user:password` with a user")]
    Digest,
}

/// Checked settings.
#[derive(Clone)]
pub(super) struct Checked {
    /// The addresses, without the chroot.
    pub(super) addresses: String,
    /// The same, host and port.
    pub(super) servers: Vec<(String, u16)>,
    pub(super) chroot: Path,
    pub(super) settings: Settings,
    pub(super) credentials: Credentials,
    acls: Arc<[zk::Acl]>,
    /// The clock for the times at which connections are made.
    pub(super) clock: Option<Monotonic>,
    /// The limit for the size of requests, as far as sessions have found it out.
    pub(super) limit: Arc<RequestLimit>,
}

impl Settings {
    pub(super) fn check(self) -> Result<Checked, SettingsError> {
        if self.connect.contains("://") {
            return Err(SettingsError::Scheme(self.connect));
        }
        let (addresses, chroot) = match self.connect.find('/') {
            None => (self.connect.as_str(), Path::root()),
            Some(slash) => {
                let (addresses, chroot) = self.connect.split_at(slash);
                (addresses, Path::parse(chroot).map_err(SettingsError::Chroot)?)
            }
        };
        let mut servers = Vec::new();
        for address in addresses.split(',') {
            let server = server(address)
                .map_err(|reason| SettingsError::Address { given: address.to_owned(), reason })?;
            if self.files.ca.is_some() && !tls::is_name(&server.0) {
                let reason = "no certificate can have this name; write a DNS name or an IP address";
                return Err(SettingsError::Address { given: address.to_owned(), reason });
            }
            servers.push(server);
        }
        for (name, given) in [
            ("session timeout", self.session_timeout),
            ("connection timeout", self.connection_timeout),
            ("request timeout", self.request_timeout),
        ] {
            // The protocol has a signed 32-bit number of milliseconds.
            let fits = i32::try_from(given.as_millis()).is_ok_and(|milliseconds| milliseconds > 0);
            if !fits {
                return Err(SettingsError::Time { name, given });
            }
        }
        if let Some(digest) = &self.digest
            && digest.find(':').is_none_or(|colon| colon == 0)
        {
            return Err(SettingsError::Digest);
        }
        let credentials = Credentials::new(self.files.clone(), self.digest.clone());
        Ok(Checked {
            addresses: addresses.to_owned(),
            servers,
            chroot,
            acls: self.acl.list(credentials.name_a_user()),
            credentials,
            settings: self,
            clock: None,
            limit: Arc::default(),
        })
    }
}

/// Takes an address apart.
fn server(address: &str) -> Result<(String, u16), &'static str> {
    let (host, port) = match address.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("the bracket is not closed")?;
            match port.strip_prefix(':') {
                None if port.is_empty() => (host, None),
                None => return Err("there must be a `:` after the bracket"),
                port => (host, port),
            }
        }
        None => match address.split_once(':') {
            None => (address, None),
            Some((host, port)) => (host, Some(port)),
        },
    };
    if host.is_empty() {
        return Err("the host is empty");
    }
    if host.chars().any(char::is_whitespace) {
        return Err("the host has a space");
    }
    match port.map(str::parse::<u16>) {
        None => Ok((host.to_owned(), PORT)),
        Some(Ok(port @ 1..)) => Ok((host.to_owned(), port)),
        Some(_) => Err("the port is not a number from 1 to 65535"),
    }
}

impl fmt::Debug for Settings {
    /// Everything but the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.digest.as_deref().and_then(|digest| digest.split(':').next());
        f.debug_struct("Settings")
            .field("connect", &self.connect)
            .field("session_timeout", &self.session_timeout)
            .field("connection_timeout", &self.connection_timeout)
            .field("request_timeout", &self.request_timeout)
            .field("digest_user", &user)
            .field("files", &self.files)
            .field("acl", &self.acl)
            .finish()
    }
}

impl Checked {
    pub(super) fn acls(&self) -> zk::Acls<'_> {
        zk::Acls::new(&self.acls)
    }

    /// The same, for a conversation with ourselves: nothing secret is shown, nothing is encrypted.
    pub(super) fn for_ourselves(&self, session_timeout: Duration) -> Self {
        let settings = Settings {
            digest: None,
            files: CredentialFiles::default(),
            session_timeout,
            ..self.settings.clone()
        };
        Self { settings, credentials: Credentials::none(), ..self.clone() }
    }

    /// The client reports that there are no hosts when none of them answered.
    pub(super) fn explain(&self, error: &zk::Error) -> String {
        if matches!(error, zk::Error::NoHosts | zk::Error::ConnectionLoss | zk::Error::Timeout) {
            let limit = self.settings.connection_timeout;
            let reason = no_socket().map_or_else(String::new, |error| {
                format!("; this process cannot open any connection: {error}")
            });
            return format!("no server answered within {limit:?}{reason}");
        }
        error.to_string()
    }
}

/// Why this process cannot open one more socket: too many descriptors, no memory. The client's error is the
/// same as for unreachable servers.
fn no_socket() -> Option<std::io::Error> {
    std::net::UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0)).err()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(connect: &str) -> Settings {
        Settings {
            connect: connect.to_owned(),
            session_timeout: Duration::from_secs(30),
            connection_timeout: Duration::from_secs(3),
            request_timeout: Duration::from_secs(5),
            digest: None,
            files: CredentialFiles::default(),
            acl: Acl::Auto,
        }
    }

    #[test]
    fn connect_strings_are_taken_apart() {
        let checked = with("h1:2181,[::1]:99,h3/a/b").check().map_err(|error| error.to_string()).unwrap();
        assert_eq!(checked.addresses, "h1:2181,[::1]:99,h3");
        let servers = [("h1", 2181), ("::1", 99), ("h3", 2181)].map(|(host, port)| (host.to_owned(), port));
        assert_eq!(checked.servers, servers);
        assert_eq!(checked.chroot.as_str(), "/a/b");
        assert!(with("h1").check().is_ok_and(|checked| checked.chroot.is_root()));
    }

    #[test]
    fn mistakes_are_named() {
        let error_of = |settings: Settings| settings.check().map(|_| ()).unwrap_err().to_string();
        assert!(error_of(with("tcp+tls://h1:2181")).contains("`zookeeper_ca` for TLS"));
        let files = CredentialFiles { ca: Some("ca.pem".into()), ..CredentialFiles::default() };
        let by_tls = |connect| Settings { files: files.clone(), ..with(connect) };
        assert!(error_of(by_tls("h_1..:2281")).contains("no certificate can have this name"));
        assert!(by_tls("zk-1.example:2281,[::1]:2281,10.0.0.1:2281").check().is_ok());
        for bad in ["", "h1,", ":2181", "h1:0", "h1:x", "h1:65536", "[::1", "[::1]2181", "a b"] {
            assert!(error_of(with(bad)).contains("is not `host:port`"), "{bad:?}");
        }
        assert!(error_of(with("h1/a//b")).contains("empty segment"));
        let no_time = Settings { request_timeout: Duration::ZERO, ..with("h1") };
        assert!(error_of(no_time).contains("request timeout is 0ns"));
        for bad in ["", "secret", ":secret"] {
            let message = error_of(Settings { digest: Some(bad.to_owned()), ..with("h1") });
            assert!(message.contains("user:password"), "{message}");
        }
    }

    #[test]
    fn the_password_is_not_shown() {
        let shown = format!("{:?}", Settings { digest: Some("me:secret".to_owned()), ..with("h1") });
        assert!(shown.contains("me") && !shown.contains("secret"), "{shown}");
    }
}
