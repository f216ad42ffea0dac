//! The registry in a ZooKeeper ensemble (3.6 or newer).
//!
//! The rest of the program must not see the client library's faults. This room handles each of them, and has
//! a test for each in `tests/registry/faults.rs`:
//!
//! | fault | where it ends |
//! | --- | --- |
//! | watches are lost at every reconnect, silently | `connection`, `watch`, `watch_node`: a new connection, a new snapshot |
//! | a request in flight ends with any error when the connection breaks | `convert`: an unknown outcome |
//! | requests wait without limit while disconnected, and are sent late | `session`: refused; `connection`: dropped |
//! | its pauses between connection attempts have no cap | `supervisor`: ours have |
//! | it waits for a starting server as long as for a silent one | `look`: asked before whether it serves |
//! | a `tcp+tls://` address makes it spin | `settings`: refused |
//! | its queues are unbounded | `session`: bounds the requests in flight; `watch`: reads them at once |
//! | a session's password cannot be read from it, nor given to it | `key`: read and set by a handshake with itself |
//! | a watcher panics when asked after the end | `watch`, `watch_node`: never asked again; `connection`: waits for it |
//!
//! Not used: the library's locks, which leave their nodes behind when they fail. `registry::latch` is our
//! own.

mod acl;
mod connection;
mod convert;
mod credentials;
mod flushers;
#[cfg_attr(not(feature = "kerberos"), path = "no_kerberos.rs")]
mod kerberos;
mod key;
mod limit;
mod look;
mod nodelay;
mod quota;
mod read;
mod session;
mod settings;
mod supervisor;
mod tls;
mod watch;
mod watch_node;

use std::sync::Arc;

use futures::future::BoxFuture;
use zookeeper_client as zk;

pub use self::acl::{Acl, AclEntry};
pub use self::credentials::CredentialFiles;
pub use self::kerberos::Service;
pub use self::key::is_greeting;
pub use self::settings::{Settings, SettingsError};

use self::connection::{Connection, OpenError};
use self::session::{Shared, ZooKeeperSession};
use self::settings::Checked;
use super::{Error, Monotonic, Registry, Session, SessionKey};
use crate::credential_file::CertificateEnd;
use crate::tree::Server;

/// A ZooKeeper ensemble. Clones share the settings, not sessions.
#[derive(Clone)]
pub struct ZooKeeper {
    checked: Checked,
}

impl ZooKeeper {
    /// Checks the settings. Connects to nothing yet.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        Ok(Self { checked: settings.check()? })
    }

    /// Reads the files of the settings, so that a mistake in them is known before the first connection.
    pub async fn check_files(&self) -> Result<(), SettingsError> {
        self.checked.credentials.presented().await.map(|_| ()).map_err(SettingsError::Credentials)
    }

    /// The same ensemble. This becomes the end of the client certificate, whenever the files of the settings are read.
    pub fn with_certificate_end(mut self, end: CertificateEnd) -> Self {
        self.checked.credentials.tell_end(end);
        self
    }

    /// The same ensemble. Its sessions report by this clock when their connections were made.
    pub fn with_clock(mut self, clock: Monotonic) -> Self {
        self.checked.clock = Some(clock);
        self
    }

    async fn connect(&self) -> Result<Connection, Error> {
        let Checked { addresses, chroot, .. } = &self.checked;
        let connection = Connection::open(&self.checked, None).await.map_err(|error| self.failed(error))?;
        if chroot.is_root() {
            return Ok(connection);
        }
        let limit = self.checked.settings.request_timeout;
        let creating = session::create_all(&connection.link.client, chroot.clone(), self.checked.acls());
        let created = tokio::time::timeout(limit, creating).await;
        let created = created.unwrap_or_else(|_| Err(Error::OutcomeUnknown("no answer in time".to_owned())));
        if let Err(error) = created {
            connection.close(limit).await;
            return Err(Error::Unreachable(format!("{addresses}: cannot create {chroot}: {error}")));
        }
        connection
            .below(chroot.as_str())
            .map_err(|error| Error::Unreachable(format!("{addresses}: {chroot}: {error}")))
    }
}

impl ZooKeeper {
    /// Why no session could be opened.
    fn failed(&self, error: OpenError) -> Error {
        let addresses = &self.checked.addresses;
        match error {
            OpenError::Client(zk::Error::AuthFailed) => Error::AuthRefused(format!(
                "{addresses}: the servers refuse {}; check it, and which schemes they demand",
                self.checked.credentials.in_words()
            )),
            OpenError::Client(error) => {
                Error::Unreachable(format!("{addresses}: {}", self.checked.explain(&error)))
            }
            OpenError::Refused(reason) => Error::AuthRefused(reason),
            error @ OpenError::ReadOnly => Error::ReadOnly(format!("{addresses}: {error}")),
        }
    }

    /// A session on its first connection in this process.
    fn serve(&self, connection: Connection) -> Arc<dyn Session> {
        let shared = Arc::new(Shared::new(self.checked.clone(), &connection));
        #[expect(clippy::disallowed_methods, reason = "ends when the session is closed, dropped or lost")]
        tokio::spawn(supervisor::supervise(Arc::clone(&shared), connection));
        Arc::new(ZooKeeperSession::new(shared))
    }
}

impl Registry for ZooKeeper {
    fn open(&self) -> BoxFuture<'_, Result<Arc<dyn Session>, Error>> {
        Box::pin(async move { Ok(self.serve(self.connect().await?)) })
    }

    fn reopen<'a>(&'a self, key: &'a SessionKey) -> BoxFuture<'a, Result<Option<Arc<dyn Session>>, Error>> {
        Box::pin(async move {
            let info = key::info(&self.checked, key).await.map_err(|error| self.failed(error.into()))?;
            match supervisor::attach(&self.checked, info).await {
                Ok(connection) => Ok(Some(self.serve(connection))),
                // A server also answers so to a password that is not the session's.
                Err(OpenError::Client(zk::Error::SessionExpired)) => Ok(None),
                Err(error) => Err(self.failed(error)),
            }
        })
    }

    fn servers(&self) -> BoxFuture<'_, Vec<Server>> {
        Box::pin(async move {
            // Credentials that cannot be read are in the log.
            match self.checked.credentials.presented().await {
                Ok(presented) => look::ask_each(&self.checked, &presented).await,
                Err(_) => Vec::new(),
            }
        })
    }

    fn describe(&self) -> String {
        format!("zookeeper {}", self.checked.settings.connect)
    }
}
